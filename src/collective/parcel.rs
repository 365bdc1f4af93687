//! Parcels: what one member sends another by a call of its own, and how they go through a pipe.
//!
//! A parcel is one message of the [pipe](super::pipe) between the two, or several. In its slot, the first one starts with a header:
//!
//! | bytes | what |
//! |---|---|
//! | 0..16 | the sender's [`Summary`]: its operation, the type and the count of the elements |
//! | 16..24 | where the elements are in the sender's heap, or [`HERE`] |
//! | 24..32 | the number of the message in its pipe |
//!
//! Elements follow the header: in a parcel that fits into the rest of its cache line there, otherwise from the next line on (a
//! long copy to a crooked place is slow), also in messages without a header. What comes at the two ends of a pipe goes
//! together in order, the k-th parcel that is sent with the k-th that is received; if they differ in type or count, the
//! receiver [complains](super::complaint).
//!
//! A long parcel in the sender's heap, over direct channels, is *lent*: its only message says where it is, the receiver copies it
//! from there, and the sender waits until the receiver has given the slot back. Every other one is copied into slots, and the
//! sender is done when its last message is in the receiver's inbox. The sender alone chooses, by the length ([`LENT_FROM`],
//! [`COPIED_UP_TO`]), and the header tells the receiver.
//!
//! Over proxied channels what is not in the heap is copied to a *desk* first, a place in this member's scratch for each
//! slot of each pipe. It is free again when the slot is; the scratch is not used by anything else in the meantime, as
//! nothing is left for the proxy when a call returns.
//!
//! Two parcels, one each way, may share a block, which is then [replaced].

mod replaced;

use std::rc::Rc;

use super::algorithm::ChannelKind;
use super::call::{Call, Input, Output, shifted};
use super::checks::{self, Message};
use super::operation::{Operation, Summary};
use super::pipe::{Arrival, Pipes};
use super::region::PIPE_SLOTS;
use super::team::Team;
use crate::channel::Channel;
use crate::error::{Error, Result};
use crate::faults::MESSAGE;
use crate::heap::{HeapOffset, Place, Region};
use replaced::Kept;
pub(crate) use replaced::Replaced;

/// The length of a header in bytes.
const HEADER_LEN: u64 = 32;

/// The length of a cache line in bytes.
const LINE: u64 = 64;

/// The shortest parcel in the heap that is lent by who has a core of its own. One that is lent is copied once and not twice, but its
/// sender waits until it is told that it was taken.
///
/// Lent from 1 KiB on against never, medians one way in microseconds, of `shmccl perf sendrecv -g N -b 1K -e 256K -f 2` on two cores:
/// two ranks on hyper-thread siblings and on separate cores, then ranks that share them: two (`taskset -c 0`), four, eight.
///
/// | KiB | siblings: lent | copied | separate | copied | 2 on one | copied | 4 on two | copied | 8 on two | copied |
/// |---|---|---|---|---|---|---|---|---|---|---|
/// | 1 | 0.51 | 0.44 | 1.23 | 0.89 | 4.2 | 2.5 | 5.3 | 2.4 | 9.9 | 5.5 |
/// | 8 | 0.93 | 0.80 | 2.83 | 1.50 | 4.7 | 3.0 | 8.7 | 3.7 | 14 | 7.2 |
/// | 16 | 0.73 | 0.84 | 1.61 | 1.83 | 4.4 | 2.8 | 7.0 | 4.2 | 12 | 6.3 |
/// | 32 | 1.00 | 1.31 | 2.05 | 2.65 | 4.8 | 3.4 | 8.9 | 5.4 | 15 | 8.2 |
/// | 64 | 1.50 | 2.29 | 2.90 | 4.35 | 5.5 | 4.6 | 13 | 6.9 | 22 | 22 |
/// | 128 | 2.52 | 4.11 | 4.66 | 7.97 | 7.3 | 7.9 | 20 | 20 | 30 | 43 |
/// | 256 | 4.86 | 8.32 | 8.97 | 15.8 | 12 | 21 | 35 | 42 | 56 | 87 |
const LENT_FROM: u64 = 16 << 10;

/// The longest parcel in the heap that is copied by who shares its core, which it has to give away to be told of anything: so only if
/// its pipe holds all of it at once.
const COPIED_UP_TO: u64 = 64 << 10;

/// The place of a parcel whose elements are in the slots themselves.
const HERE: u64 = u64::MAX;

/// One end of a parcel.
#[derive(Debug)]
pub(crate) struct Parcel<'a> {
    /// What this member has called.
    summary: Summary,
    operation: Operation,
    peer: usize,
    len: u64,
    /// Bytes that have gone into the pipe, or come out of it.
    moved: u64,
    stage: Stage,
    contents: Contents<'a>,
}

/// What a parcel is made of, or unpacked into.
#[derive(Debug)]
pub(crate) enum Contents<'a> {
    Sent(Input<'a>),
    Received(Output<'a>),
    /// Sent, from where another parcel is [taken](Self::Taken).
    Given(Rc<Replaced<'a>>),
    /// Received, over what was [given](Self::Given).
    Taken(Rc<Replaced<'a>>),
}

/// How far a parcel is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// No message yet.
    Fresh,
    /// Some messages.
    Begun,
    /// Its only message, of this number, is in the pipe.
    Lent(u64),
    Done,
}

impl<'a> Parcel<'a> {
    /// The parcel that a send or a receive is, whose buffer it takes.
    ///
    /// # Errors
    /// [`crate::Error::OutOfRange`] when the length cannot be counted.
    #[inline]
    pub(crate) fn of(call: &mut Call<'a>) -> Result<Self> {
        let contents = match call.operation {
            Operation::Recv => Contents::Received(std::mem::replace(&mut call.output, Output::None)),
            _ => Contents::Sent(std::mem::replace(&mut call.input, Input::None)),
        };
        Ok(Self::new(call.operation, call.summary(), call.root, call.block_len()?, contents))
    }

    /// The end of a parcel between this member and `peer`, of `len` bytes, by which it takes its part in a call like `summary`.
    #[inline]
    pub(crate) fn new(
        operation: Operation,
        summary: Summary,
        peer: usize,
        len: u64,
        contents: Contents<'a>,
    ) -> Self {
        Self { summary, operation, peer, len, moved: 0, stage: Stage::Fresh, contents }
    }

    /// Whether it is sent.
    pub(crate) fn is_sent(&self) -> bool {
        matches!(self.contents, Contents::Sent(_) | Contents::Given(_))
    }

    /// Copies this parcel, which is sent, to the other end `received`, which is this member too.
    ///
    /// # Errors
    /// [`crate::Error::CallMismatch`] when the two differ; [`crate::Error::OutOfRange`] for buffers that are not allocated.
    pub(crate) fn copy_to(&self, team: &Team, received: &mut Self) -> Result<()> {
        if !received.summary.answers(self.summary) {
            // Nobody else is wrong, but all wait for this member.
            team.board.object(received.summary);
            let (mine, rank, theirs) = (received.summary, team.members()[team.me()], self.summary);
            return Err(Error::CallMismatch { mine, rank, theirs });
        }
        match (&self.contents, &mut received.contents) {
            (Contents::Sent(Input::Memory(bytes)), Contents::Received(output)) => {
                output.write(team.view(), 0, bytes)
            }
            (Contents::Sent(Input::Heap(offset)), Contents::Received(output)) => {
                let heap = team.heap_of(team.me(), Region::new(*offset, self.len))?;
                output.copy(team.view(), 0, heap, offset.get(), self.len)
            }
            _ => Ok(()),
        }
    }

    /// The call that it belongs to.
    pub(crate) fn operation(&self) -> Operation {
        self.operation
    }

    /// How many bytes this member has for it, or room.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// What this member has called.
    pub(crate) fn summary(&self) -> Summary {
        self.summary
    }

    /// The member at the other end.
    #[inline]
    pub(crate) fn peer(&self) -> usize {
        self.peer
    }

    /// Whether there is nothing left to do at this end.
    #[inline]
    pub(crate) fn is_done(&self) -> bool {
        self.stage == Stage::Done
    }

    /// Does what can be done at this end now, without waiting; whether that was anything.
    ///
    /// # Errors
    /// Those of [`super::delivery::run`].
    #[inline]
    pub(super) fn advance<C: Channel>(
        &mut self,
        pipes: &mut Pipes<'_, C>,
        kind: ChannelKind,
    ) -> Result<bool> {
        let (stage, moved) = (self.stage, self.moved);
        match self.contents {
            Contents::Sent(_) | Contents::Given(_) => self.send(pipes, kind)?,
            Contents::Received(_) | Contents::Taken(_) => self.receive(pipes)?,
        }
        Ok(self.stage != stage || self.moved != moved)
    }

    fn send<C: Channel>(&mut self, pipes: &mut Pipes<'_, C>, kind: ChannelKind) -> Result<()> {
        if let Stage::Lent(number) = self.stage {
            if pipes.was_taken(self.peer, number) {
                self.stage = Stage::Done;
            }
            return Ok(());
        }
        while !self.is_in_pipe() && pipes.has_room(self.peer) {
            let Posted { number, len, is_lent } = match &self.contents {
                Contents::Sent(input) => self.post(input, pipes, kind)?,
                Contents::Given(replaced) => self.post_replaced(replaced, pipes, kind)?,
                Contents::Received(_) | Contents::Taken(_) => return Ok(()),
            };
            self.moved += len;
            if let Contents::Given(replaced) = &self.contents {
                replaced.give(self.moved);
            }
            self.stage = match is_lent {
                true => Stage::Lent(number),
                false if self.moved == self.len => Stage::Done,
                false => Stage::Begun,
            };
        }
        Ok(())
    }

    /// The same as [`Parcel::post`], of a block that is soon written over.
    #[inline(never)]
    fn post_replaced<C: Channel>(
        &self,
        replaced: &Replaced<'_>,
        pipes: &mut Pipes<'_, C>,
        kind: ChannelKind,
    ) -> Result<Posted> {
        replaced.read(|input| self.post(input, pipes, kind))
    }

    /// Sends the next message, which is of `input` and has room.
    // In line in the one place that counts, and in the one that does not.
    #[inline(always)]
    fn post<C: Channel>(
        &self,
        input: &Input<'_>,
        pipes: &mut Pipes<'_, C>,
        kind: ChannelKind,
    ) -> Result<Posted> {
        let is_replaced = matches!(self.contents, Contents::Given(_));
        let (number, _) = pipes.next_to(self.peer);
        let lent = match *input {
            Input::Heap(offset)
                if kind == ChannelKind::Memory && !is_replaced && is_lent(pipes.team, self.len) =>
            {
                Some(offset)
            }
            _ => None,
        };
        let len = match lent {
            Some(_) => 0,
            None => (self.len - self.moved).min(capacity(pipes.team)),
        };
        let (header, body) = (self.header(lent, number), body_at(self.len));
        let letter = Letter { to: self.peer, header, body, input, at: self.moved, len, is_replaced };
        if pipes.team.checksums {
            letter.tell_check(pipes, lent.map(|_| self.len))?;
        }
        match kind {
            ChannelKind::Memory => letter.write(pipes)?,
            ChannelKind::Port => letter.hand_over(pipes)?,
        }
        Ok(Posted { number, len, is_lent: lent.is_some() })
    }

    /// The header of the message numbered `number`, if it has one.
    #[inline]
    fn header(&self, lent: Option<HeapOffset>, number: u64) -> Option<[u64; 4]> {
        let [signature, count] = self.summary.words();
        let place = lent.map_or(HERE, HeapOffset::get);
        (self.stage == Stage::Fresh).then_some([signature, count, place, number])
    }

    /// Whether nothing more of it will be sent: a later one may follow.
    #[inline]
    pub(crate) fn is_in_pipe(&self) -> bool {
        matches!(self.stage, Stage::Lent(_) | Stage::Done)
    }

    fn receive<C: Channel>(&mut self, pipes: &mut Pipes<'_, C>) -> Result<()> {
        while self.stage != Stage::Done {
            let message = match &self.contents {
                Contents::Taken(replaced) => self.poll_over(replaced, pipes)?,
                _ => pipes.poll(self.peer),
            };
            let Some((number, at)) = message else { return Ok(()) };
            if pipes.team.checksums {
                self.open_checked(pipes, number, at)?;
            } else {
                self.open(pipes.team, number, at)?;
            }
            pipes.give_back(self.peer);
        }
        Ok(())
    }

    /// The next message, if it has come and what it is copied over was given.
    #[inline(never)]
    fn poll_over<C: Channel>(
        &self,
        replaced: &Replaced<'_>,
        pipes: &mut Pipes<'_, C>,
    ) -> Result<Option<(u64, HeapOffset)>> {
        let message = match replaced.kept() {
            Some(kept) => kept,
            None => match pipes.poll(self.peer) {
                Some((number, at)) => self.look_at(pipes, number, at)?,
                None => return Ok(None),
            },
        };
        Ok(replaced.admits(message).then_some((message.number, message.at)))
    }

    /// What has to be given before the message numbered `number` may be opened, which is what was sent and called for.
    fn look_at<C: Channel>(&self, pipes: &Pipes<'_, C>, number: u64, at: HeapOffset) -> Result<Kept> {
        let team = pipes.team;
        if team.checksums {
            pipes.check(self.arrival(number), at)?;
        }
        let mine = team.heap_of(team.me(), Region::new(at, HEADER_LEN))?;
        let is_first = self.stage == Stage::Fresh;
        let place = if is_first { self.check(team, mine.read(at.get())?, number)? } else { HERE };
        let needed = if place == HERE { self.len.min(self.moved + capacity(team)) } else { self.len };
        Ok(Kept { number, at, needed })
    }

    fn arrival(&self, number: u64) -> Arrival {
        Arrival { operation: self.operation, member: self.peer, number }
    }

    /// The same as [`Parcel::open`], of what is what was sent.
    #[cold]
    fn open_checked<C: Channel>(&mut self, pipes: &Pipes<'_, C>, number: u64, at: HeapOffset) -> Result<()> {
        let arrival = self.arrival(number);
        if let Contents::Received(_) = self.contents {
            pipes.check(arrival, at)?;
        }
        if !self.open(pipes.team, number, at)? {
            return Ok(());
        }
        let check = |output: &Output<'_>| {
            checks::check_lent(pipes.team, pipes.checks_of(arrival), output, self.len, arrival)
        };
        match &self.contents {
            Contents::Received(output) => check(output),
            Contents::Taken(replaced) => check(&replaced.block().borrow()),
            Contents::Sent(_) | Contents::Given(_) => Ok(()),
        }
    }

    /// Takes what is in the message numbered `number`, at `at` of this member's heap; whether that was lent.
    // In line in the one place that counts, and in the one that does not.
    #[inline(always)]
    fn open(&mut self, team: &Team, number: u64, at: HeapOffset) -> Result<bool> {
        let mine = team.heap_of(team.me(), Region::new(at, HEADER_LEN))?;
        let place =
            if self.stage == Stage::Fresh { self.check(team, mine.read(at.get())?, number)? } else { HERE };
        let opened = Opened { peer: self.peer, len: self.len, moved: self.moved, place, at };
        self.moved = match &mut self.contents {
            Contents::Received(output) => opened.unpack(team, output)?,
            Contents::Taken(replaced) => opened.unpack_over(team, replaced)?,
            Contents::Sent(_) | Contents::Given(_) => return Ok(false),
        };
        self.stage = if self.moved == self.len { Stage::Done } else { Stage::Begun };
        Ok(place != HERE)
    }

    /// Holds the header of message `number` against what was called for, and returns where the elements are.
    #[inline]
    fn check(&self, team: &Team, header: [u64; 4], number: u64) -> Result<u64> {
        let [signature, count, place, sent_as] = header;
        let theirs = Summary::from_words([signature, count]);
        if self.summary.answers(theirs) && sent_as == number {
            Ok(place)
        } else {
            Err(team.board.complain(self.peer, self.summary, theirs))
        }
    }
}

/// A message whose contents are to be taken.
struct Opened {
    peer: usize,
    /// Bytes of the parcel, and of those that came before.
    len: u64,
    moved: u64,
    /// Where the elements are in the heap of `peer`, or [`HERE`].
    place: u64,
    /// Where the message is.
    at: HeapOffset,
}

impl Opened {
    /// Copies the elements to where they belong in `output`; how many bytes of the parcel are there now.
    // In line in the one place that counts, and in the one that does not.
    #[inline(always)]
    fn unpack(self, team: &Team, output: &mut Output<'_>) -> Result<u64> {
        let Self { peer, len: all, moved, place, at } = self;
        if place == HERE {
            let len = (all - moved).min(capacity(team));
            let source = Region::new(shifted(at, body_at(all)), len);
            let heap = team.heap_of(team.me(), source)?;
            output.copy(team.view(), moved, heap, source.offset.get(), len)?;
            return Ok(moved + len);
        }
        let source = Region::new(HeapOffset::new(place), all);
        let heap = team.heap_of(peer, source)?;
        output.copy(team.view(), 0, heap, place, all)?;
        if let (&mut Output::Heap(offset), true) = (output, team.board.fabric().is_faulty()) {
            let place = Place { rank: team.members()[team.me()], offset };
            team.board.fabric().damage(MESSAGE, place, all);
        }
        Ok(all)
    }

    /// The same over what was given.
    #[inline(never)]
    fn unpack_over(self, team: &Team, replaced: &Replaced<'_>) -> Result<u64> {
        self.unpack(team, &mut replaced.block().borrow_mut())
    }
}

/// Whether a parcel of `len` bytes in the heap is lent.
#[inline]
fn is_lent(team: &Team, len: u64) -> bool {
    let is_crowded = team.board.fabric().crowded();
    len >= LENT_FROM && (!is_crowded || len > COPIED_UP_TO.min(PIPE_SLOTS * capacity(team)))
}

/// Elements that fit into one message.
#[inline]
fn capacity(team: &Team) -> u64 {
    team.layout().letter_len() - LINE
}

/// Where the elements start in the messages of a parcel of `len` bytes.
#[inline]
fn body_at(len: u64) -> u64 {
    if len <= LINE - HEADER_LEN { HEADER_LEN } else { LINE }
}

/// One message of a parcel: `len` bytes of `input` from `at` on.
struct Letter<'p, 'a> {
    to: usize,
    header: Option<[u64; 4]>,
    /// Where the elements go in the slot.
    body: u64,
    input: &'p Input<'a>,
    at: u64,
    len: u64,
    /// Whether the elements are soon written over.
    is_replaced: bool,
}

/// A message that was sent: its number, and how many bytes of the parcel are in it, if it is not lent.
struct Posted {
    number: u64,
    len: u64,
    is_lent: bool,
}

impl Letter<'_, '_> {
    /// Tells the receiver its checksum, and that of the bytes that it lends, if it lends so many.
    #[cold]
    fn tell_check<C: Channel>(&self, pipes: &Pipes<'_, C>, lent: Option<u64>) -> Result<()> {
        let all = lent.map(|len| checks::of_input(pipes.team, self.input, 0, 0, len)).transpose()?;
        let &Self { to, body, at, len, .. } = self;
        let header = self.header.map_or(0, |header| crc32c::crc32c(bytemuck::bytes_of(&header)));
        let crc = checks::of_input(pipes.team, self.input, header, at, len)?;
        pipes.tell_check(to, Message { has_header: self.header.is_some(), body, len, crc }, all);
        Ok(())
    }

    /// Writes it straight into the inbox of the receiver.
    #[inline]
    fn write<C: Channel>(self, pipes: &mut Pipes<'_, C>) -> Result<()> {
        let (_, slot) = pipes.next_to(self.to);
        self.lay_out(pipes.team, self.to, slot)?;
        let fabric = pipes.team.board.fabric();
        if fabric.is_faulty() {
            let place = Place { rank: pipes.team.members()[self.to], offset: shifted(slot, self.body) };
            fabric.damage(MESSAGE, place, self.len);
        }
        pipes.channel(self.to).signal()?;
        pipes.count_sent(self.to);
        pipes.wake(self.to);
        Ok(())
    }

    /// Has the proxy write it: from where it is, if that is in the heap and stays as it is.
    fn hand_over<C: Channel>(self, pipes: &mut Pipes<'_, C>) -> Result<()> {
        let team = pipes.team;
        let (number, slot) = pipes.next_to(self.to);
        let desk = team.place(team.me(), team.layout().desk(self.to as u64, number % PIPE_SLOTS));
        let channel = pipes.channel(self.to);
        if let (Input::Heap(source), false) = (self.input, self.is_replaced) {
            Letter { len: 0, ..self }.lay_out(team, team.me(), desk)?;
            if self.header.is_some() {
                channel.put(slot, desk, HEADER_LEN)?;
            }
            channel.put_with_signal(shifted(slot, self.body), shifted(*source, self.at), self.len)?;
        } else {
            self.lay_out(team, team.me(), desk)?;
            channel.put_with_signal(slot, desk, self.body + self.len)?;
        }
        pipes.count_sent(self.to);
        Ok(())
    }

    /// Writes header and elements as they are to lie in a slot, to `place` of the heap of `member`.
    #[inline]
    fn lay_out(&self, team: &Team, member: usize, place: HeapOffset) -> Result<()> {
        let target = team.heap_of(member, Region::new(place, self.body + self.len))?;
        if let Some(header) = self.header {
            target.write(place.get(), header)?;
        }
        self.input.copy(team.view(), self.at, target, Region::new(shifted(place, self.body), self.len))
    }
}
