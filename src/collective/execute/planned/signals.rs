//! The counters of a plan's channels.
//!
//! Those of direct channels are words (S1) in the *control* memory of the rank that waits, one for
//! each channel and direction. Those that one peer raises lie side by side, and the signals of all
//! blocks that can go on are published together: a line that two ranks pull at costs more than all
//! the rest of a signal. So a signal carries what came before it in its block, or more.
//!
//! A proxy raises semaphores of slots only, and there are fewer slots than a plan may have port
//! channels. So all port channels of a plan between two ranks share one, a *line*. The sender
//! writes into a ring of the receiver which counter a signal is for, and then pushes the signal.
//! The ring is read after the semaphore: the push (F1) and the signal (S1) carry it. The receiver
//! publishes how many signals it has read (C2), and a sender that is a ring ahead waits for that.

use shmccl_plan::Lowered;
use shmccl_plan::lower::RankCode;
use shmccl_plan::plan::ChannelKind;

use super::memory::{Area, strange};
use crate::channel::{Channel, PortChannel};
use crate::collective::rendezvous::members::Members;
use crate::error::Result;
use crate::heap::{HeapOffset, Region};
use crate::shm::CellRef;
use crate::sync::atomic::AtomicU64;
use crate::sync::{ProgressCell, plain, semaphore};

/// Bytes of a cell, and of what only one rank writes.
const CELL: u64 = 128;

/// Bytes of a word.
const WORD: u64 = 8;

/// Signals of one line that are not read yet, at most.
const RING: u64 = 1024;

/// Where things are in the control memory of a rank, among `n` ranks.
struct Control {
    n: u64,
    counters: Vec<u64>,
    rings: u64,
}

impl Control {
    fn of(code: &RankCode, n: usize) -> Self {
        let mut lens = vec![0; n];
        let mut counters: Vec<_> = code
            .counters
            .iter()
            .map(|counter| {
                lens[counter.peer] += WORD;
                lens[counter.peer] - WORD
            })
            .collect();
        let mut rings = 0;
        for start in &mut lens {
            rings += start.next_multiple_of(CELL);
            *start = rings - start.next_multiple_of(CELL);
        }
        for (place, counter) in counters.iter_mut().zip(&code.counters) {
            *place += lens[counter.peer];
        }
        Self { n: n as u64, counters, rings }
    }

    /// Returns where `sender` writes which counters its signals are for.
    const fn ring(&self, sender: u64) -> u64 {
        self.rings + sender * RING * WORD
    }

    /// Returns where `receiver` publishes how many signals of this rank it has read.
    const fn read(&self, receiver: u64) -> u64 {
        self.ring(self.n) + receiver * CELL
    }

    const fn len(&self) -> u64 {
        self.read(self.n)
    }
}

/// Returns the bytes of control memory that each rank needs.
pub(super) fn control_len(lowered: &Lowered) -> usize {
    let n = lowered.ranks.len();
    let most = lowered.ranks.iter().map(|code| Control::of(code, n).len()).max().unwrap_or(0);
    usize::try_from(most).unwrap_or(usize::MAX)
}

/// Returns whether some rank of a plan has port channels.
pub(super) fn has_ports(lowered: &Lowered) -> bool {
    lowered.ranks.iter().any(|code| !code.ports.is_empty())
}

/// One rank's ends of all channels of a plan.
#[derive(Debug)]
pub(super) struct Signals {
    /// The counters of each peer that this rank signals directly.
    senders: Vec<Vec<Option<Counted>>>,
    /// The counters of each peer with signals that the peer cannot see yet.
    unpublished: Vec<Vec<usize>>,
    /// What comes directly to each counter of this rank, and how much was taken of whatever came.
    receivers: Vec<Counted>,
    /// How many signals over ports were read for each counter of this rank.
    arrived: Vec<u64>,
    /// The line to each member.
    lines: Vec<Option<Line>>,
}

/// A counter, and how many signals were sent to it or taken from it here.
#[derive(Debug)]
struct Counted {
    word: CellRef<AtomicU64>,
    count: u64,
}

/// The port channels of a plan between this rank and another.
#[derive(Debug)]
struct Line {
    channel: PortChannel,
    peer: usize,
    /// The ring in the peer's memory, and in this rank's.
    outbound: HeapOffset,
    inbound: HeapOffset,
    sent: u64,
    read: u64,
    /// How many signals of this rank the peer has read, and the other way round.
    read_by_peer: CellRef<ProgressCell>,
    read_here: CellRef<ProgressCell>,
    /// Whether something was pushed and not flushed.
    pending: bool,
}

impl Signals {
    /// Opens the ends of this rank in the zeroed `control` memory of all, with a port channel to
    /// each other member where there are `ports`.
    ///
    /// # Errors
    /// [`crate::Error::OutOfRange`], not in a job that is intact.
    pub(super) fn open(
        members: &Members,
        lowered: &Lowered,
        control: &Area,
        ports: Vec<Option<PortChannel>>,
    ) -> Result<Self> {
        let (me, n) = (members.me(), members.n_members());
        let layouts: Vec<_> = lowered.ranks.iter().map(|code| Control::of(code, n)).collect();
        let at = |member: usize, place: u64| HeapOffset::new(control.starts[member].get() + place);
        let counter = |member: usize, index: usize| -> Result<_> {
            let place = at(member, layouts[member].counters[index]);
            Ok(Counted { word: members.view().cell(members.ranks()[member], place)?, count: 0 })
        };
        let receivers =
            (0..lowered.ranks[me].counters.len()).map(|index| counter(me, index)).collect::<Result<_>>()?;
        let sender = |member: usize, index: usize| -> Result<_> {
            let counted = &lowered.ranks[member].counters[index];
            let is_mine = counted.peer == me && counted.kind == ChannelKind::Memory;
            is_mine.then(|| counter(member, index)).transpose()
        };
        let to = |member: usize| {
            (0..lowered.ranks[member].counters.len()).map(|index| sender(member, index)).collect()
        };
        let senders = (0..n).map(to).collect::<Result<_>>()?;
        let line = |(peer, channel): (usize, Option<PortChannel>)| -> Result<_> {
            let Some(channel) = channel else { return Ok(None) };
            let cell = |member: usize, other: usize| {
                members.view().cell(members.ranks()[member], at(member, layouts[member].read(other as u64)))
            };
            Ok(Some(Line {
                channel,
                peer,
                outbound: at(peer, layouts[peer].ring(me as u64)),
                inbound: at(me, layouts[me].ring(peer as u64)),
                sent: 0,
                read: 0,
                read_by_peer: cell(me, peer)?,
                read_here: cell(peer, me)?,
                pending: false,
            }))
        };
        let lines = ports.into_iter().enumerate().map(line).collect::<Result<_>>()?;
        let arrived = vec![0; lowered.ranks[me].counters.len()];
        Ok(Self { senders, unpublished: vec![Vec::new(); n], receivers, arrived, lines })
    }

    /// Signals directly, with the next [`Signals::publish`].
    pub(super) fn signal(&mut self, peer: usize, counter: usize) {
        let counted = self.senders[peer][counter].as_mut();
        let counted = counted.expect("a plan signals over its own channels");
        counted.count = counted.count.wrapping_add(1);
        self.unpublished[peer].push(counter);
    }

    /// Lets peers see all direct signals, those for one peer in a row. Wakes nobody.
    pub(super) fn publish(&mut self) {
        for (senders, unpublished) in self.senders.iter().zip(&mut self.unpublished) {
            for counted in unpublished.drain(..).filter_map(|counter| senders[counter].as_ref()) {
                semaphore::publish_count(&counted.word, counted.count);
            }
        }
    }

    /// Takes a signal that has come directly, if there is one.
    pub(super) fn take(&mut self, counter: usize) -> bool {
        let Counted { word, count } = &mut self.receivers[counter];
        let is_there = semaphore::counts(word, count.wrapping_add(1));
        *count = count.wrapping_add(u64::from(is_there));
        is_there
    }

    /// Takes a signal that has come over a port, if there is one.
    ///
    /// # Errors
    /// [`crate::Error::Layout`] when a ring makes no sense.
    pub(super) fn take_pushed(&mut self, members: &Members, counter: usize, peer: usize) -> Result<bool> {
        if let Some(line) = &mut self.lines[peer] {
            line.read_signals(members, &mut self.arrived)?;
        }
        let taken = &mut self.receivers[counter].count;
        let is_there = self.arrived[counter] > *taken;
        *taken += u64::from(is_there);
        Ok(is_there)
    }

    /// Returns how many signals were taken of a counter.
    pub(super) fn taken(&self, counter: usize) -> u64 {
        self.receivers[counter].count
    }

    /// Pushes a copy from the own heap to that of `peer`.
    ///
    /// # Errors
    /// Fails as [`Channel::put`] does.
    pub(super) fn push(&mut self, peer: usize, source: u64, target: u64, len: u64) -> Result<()> {
        let line = self.line(peer);
        line.pending = true;
        line.channel.put(HeapOffset::new(target), HeapOffset::new(source), len)
    }

    /// Pushes a signal for `counter` of `peer`. Returns false where the peer has to read others
    /// first.
    ///
    /// # Errors
    /// Fails as [`Channel::signal`] does.
    pub(super) fn push_signal(&mut self, members: &Members, peer: usize, counter: usize) -> Result<bool> {
        self.line(peer).signal(members, counter)
    }

    /// Waits until all is done that was pushed to `peer`.
    ///
    /// # Errors
    /// Fails as [`Channel::flush`] does.
    pub(super) fn flush(&mut self, peer: usize) -> Result<()> {
        self.line(peer).flush()
    }

    /// Waits until all is done that was pushed.
    ///
    /// # Errors
    /// Fails as [`Channel::flush`] does.
    pub(super) fn flush_all(&mut self) -> Result<()> {
        self.lines.iter_mut().flatten().try_for_each(Line::flush)
    }

    /// Returns whether a proxy may signal to this rank.
    pub(super) fn are_by_proxy(&self) -> bool {
        self.lines.iter().any(Option::is_some)
    }

    fn line(&mut self, peer: usize) -> &mut Line {
        self.lines[peer].as_mut().expect("a plan with port channels has a line to each other rank")
    }
}

impl Line {
    fn signal(&mut self, members: &Members, counter: usize) -> Result<bool> {
        if self.sent >= RING && !self.read_by_peer.has_reached(self.sent - RING + 1) {
            return Ok(false);
        }
        let word = Region::new(HeapOffset::new(self.outbound.get() + self.sent % RING * WORD), WORD);
        plain::store(members.heap_of(self.peer, word)?.atomic_u64(word.offset.get())?, counter as u64);
        self.sent += 1;
        self.pending = true;
        self.channel.signal()?;
        Ok(true)
    }

    fn read_signals(&mut self, members: &Members, arrived: &mut [u64]) -> Result<()> {
        let before = self.read;
        while self.channel.poll() {
            let word = Region::new(HeapOffset::new(self.inbound.get() + self.read % RING * WORD), WORD);
            let counter = plain::load(members.heap_of(members.me(), word)?.atomic_u64(word.offset.get())?);
            let limit = arrived.len();
            let count = usize::try_from(counter).ok().and_then(|counter| arrived.get_mut(counter));
            *count.ok_or_else(|| strange("the counter of a plan's signal", limit, counter))? += 1;
            self.read += 1;
        }
        if self.read != before {
            self.read_here.publish(self.read);
            members.board.wake();
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        if self.pending {
            self.channel.flush()?;
            self.pending = false;
        }
        Ok(())
    }
}
