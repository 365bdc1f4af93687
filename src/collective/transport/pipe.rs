//! Pipes: fragments from one member to another, over a channel of either kind.
//!
//! A pipe is a ring of [`PIPE_SLOTS`] slots, the receiver's inbox for this sender in its own
//! region. A fragment of at most a slot goes from the sender's heap into the next slot by one put
//! with a signal. The receiver waits for the signal, works on the fragment where it lies, and then
//! gives *credit* by counting it in a word of its region. The sender looks at that word only when,
//! as far as it knows, no slot is free.
//!
//! | step | by | edge |
//! |---|---|---|
//! | fill slot p mod slots, signal | sender's channel | S1: the receiver sees the fragment |
//! | count fragment p as taken | receiver | C2: the sender may fill the slot again |
//! | or: post an inline message for fragment p | sender's core | C1: the receiver sees it |
//!
//! Both ends count fragments alike, whatever channel they went over, so that operations may change
//! from one kind to the other.
//!
//! An *inline message* ([`message::inline`](crate::collective::message::inline)) stands for a slot
//! and its signal: what a short fragment says is in one place with the stamp that tells of it. It
//! has the number that the fragment would have, and its semaphore is not raised for it.
//!
//! # Two uses
//! Algorithms and [messages](crate::collective::message) share the pipes of a pair. That is sound,
//! as the calls of a communicator are made in one order on all its members: what one end sends by
//! some call the other takes by the same. An algorithm waits where it can go on no further;
//! messages are many at a time and are only polled. Before an algorithm starts, the members make
//! sure that no message is left in any pipe (`Pipework::balance`), which is the one thing that a
//! wrong order could do unnoticed.
//!
//! # The send staging
//! A fragment that is made first, and sent then, is made on the *send staging*: as many slots in
//! the sender's own region. Fragment p is made in send staging slot p mod slots, after
//! [`Transport::reserve`] has found its slot in the inbox free. Then fragment p - slots was taken,
//! and its copy out of that send staging slot is long done, even by a proxy. This holds as long as
//! all fragments on the send staging go to one peer; between operations everything is flushed.
//!
//! # No deadlock
//! [`Transport::send`] waits when all slots are full, [`Transport::receive`] when all are empty.
//! Each algorithm says why that ends, by the same argument. Its steps have *times*, and every
//! member takes its steps in the order of their times. A fragment is received at a later time than
//! it was sent, and at an earlier one than the fragment [`PIPE_SLOTS`] later on its pipe is sent.
//! Of all steps that are not done, look at one with the least time. It waits for an earlier step of
//! the peer, which is done. So the step can be taken. Both ends take the fragments of a pipe in the
//! same order, that of the times.

use super::checksum;
use super::link::{Bare, Checked, Link, Outgoing, PipeChannel};
use crate::channel::Channel;
use crate::collective::call::{Input, Operation};
use crate::collective::region::PIPE_SLOTS;
use crate::collective::rendezvous::members::Members;
use crate::error::Result;
use crate::heap::HeapOffset;
use crate::shm::{CellRef, CellSlice};
use crate::sync::atomic::AtomicU64;
use crate::sync::{PostCell, ProgressCell};

/// What a member keeps of the two pipes that join it to a peer.
#[derive(Debug)]
pub(crate) struct PipeEnd {
    /// The checksums of what the peer is sent, and of what this member is sent.
    checks_there: CellSlice<AtomicU64>,
    checks_here: CellSlice<AtomicU64>,
    /// What this member leaves for the peer without a slot, and the peer for this one.
    inline_there: CellSlice<PostCell>,
    inline_here: CellSlice<PostCell>,
    /// Where the peer counts the fragments that it took.
    taken_by_peer: CellRef<ProgressCell>,
    /// Where this member counts those that it took.
    taken_here: CellRef<ProgressCell>,
    /// Slot 0 of the peer's inbox for this member, in the peer's heap.
    outbox: HeapOffset,
    /// Slot 0 of this member's inbox for the peer.
    inbox: HeapOffset,
    sent: u64,
    /// How many of those are known to have been taken.
    known_taken: u64,
    received: u64,
    /// Whether the signal of a fragment was taken that has not been received.
    signalled: bool,
    /// Whether something was sent that is not known to have left this member's heap.
    pending: bool,
    /// Fragments of messages that were sent here, less those that were received, modulo 2^64.
    pub(super) balance: u64,
}

/// Words of checksums for one pipe.
const CHECKS: u64 = PIPE_SLOTS * checksum::WORDS as u64;

impl PipeEnd {
    /// Makes the end at this member of the pipes to and from `peer`.
    ///
    /// # Errors
    /// [`crate::Error::OutOfRange`] for a region that is not allocated.
    pub(crate) fn new(members: &Members, peer: usize) -> Result<Self> {
        let (me, layout) = (members.me(), members.layout());
        let (mine, theirs) = (me as u64, peer as u64);
        Ok(Self {
            checks_there: members.cells(peer, layout.checks(mine), CHECKS)?,
            checks_here: members.cells(me, layout.checks(theirs), CHECKS)?,
            inline_there: members.cells(peer, layout.inline_messages(mine), PIPE_SLOTS)?,
            inline_here: members.cells(me, layout.inline_messages(theirs), PIPE_SLOTS)?,
            taken_by_peer: members.cell(peer, layout.credit(mine))?,
            taken_here: members.cell(me, layout.credit(theirs))?,
            outbox: members.place(peer, layout.slot(mine, 0)),
            inbox: members.place(me, layout.slot(theirs, 0)),
            sent: 0,
            known_taken: 0,
            received: 0,
            signalled: false,
            pending: false,
            balance: 0,
        })
    }

    #[inline]
    fn has_free_slot(&self) -> bool {
        self.sent.wrapping_sub(self.known_taken) < PIPE_SLOTS
    }

    /// Looks how many fragments the peer has taken; whether there is a free slot now.
    fn look_for_credit(&mut self) -> bool {
        let oldest = self.sent.wrapping_sub(PIPE_SLOTS);
        let taken = (1..=PIPE_SLOTS).rev().map(|ahead| oldest.wrapping_add(ahead));
        if let Some(taken) = taken.into_iter().find(|&taken| self.taken_by_peer.has_reached(taken)) {
            self.known_taken = taken;
        }
        self.has_free_slot()
    }
}

/// A fragment that has arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FragmentArrival {
    pub(crate) operation: Operation,
    /// The member that has sent it.
    pub(crate) member: usize,
    /// The number of the fragment in its pipe.
    pub(crate) number: u64,
}

/// Returns which slot fragment number `number` has.
#[inline]
fn turn(number: u64) -> usize {
    usize::try_from(number % PIPE_SLOTS).unwrap_or(0)
}

/// Returns the words of the slot of fragment number `number`.
fn words_of(checks: &[AtomicU64], number: u64) -> &[AtomicU64] {
    let at = turn(number) * checksum::WORDS;
    &checks[at..at + checksum::WORDS]
}

/// The pipes between a member and all others in one operation, by the numbers of these.
#[derive(Debug)]
pub(crate) struct Pipes<'a, L: Link> {
    pub(crate) members: &'a Members,
    pub(crate) operation: Operation,
    pub(crate) ends: &'a mut [Option<PipeEnd>],
    pub(crate) channels: &'a mut [Option<L::Channel>],
}

/// Why there is an end, and a channel, wherever an algorithm looks for one.
const OTHERS: &str = "a pipe leads to another member, and all were opened";

impl<'a, C: PipeChannel> Pipes<'a, Bare<C>> {
    /// Returns the same pipes, on which everything is checked and struck.
    pub(crate) fn checked(self) -> Pipes<'a, Checked<C>> {
        let Self { members, operation, ends, channels } = self;
        Pipes { members, operation, ends, channels }
    }
}

/// What algorithms do with pipes, whatever link they go by.
pub(crate) trait Transport {
    /// Waits until the next fragment to `to` has a slot, and returns the send staging slot to make
    /// it in.
    ///
    /// # Errors
    /// Fails as [`crate::collective::rendezvous::board::CallBoard::await_post`] does.
    fn reserve(&mut self, to: usize) -> Result<HeapOffset>;

    /// Sends `len` bytes at `source` of this member's heap, at most a slot, when there is a free
    /// one. The source may be written again after [`Transport::flush`], or when something came back
    /// that the peer made of it.
    ///
    /// # Errors
    /// Fails as [`crate::collective::rendezvous::board::CallBoard::await_post`] does, or with
    /// [`crate::Error::OutOfRange`] for a source that is not allocated.
    fn send(&mut self, to: usize, source: HeapOffset, len: u64) -> Result<()>;

    /// Waits for the next fragment of `from`, and returns where it lies in this member's heap until
    /// [`Transport::release`].
    ///
    /// # Errors
    /// Fails as [`Channel::wait`] does.
    fn receive(&mut self, from: usize) -> Result<HeapOffset>;

    /// Gives the slot of the fragment that was received last from `from` back. Its sender may
    /// already wait for room in a later call, which sends messages.
    fn release(&mut self, from: usize);

    /// Returns when `to` has taken everything sent to it.
    ///
    /// # Errors
    /// Fails as [`crate::collective::rendezvous::board::CallBoard::await_post`] does.
    fn await_taken(&mut self, to: usize) -> Result<()>;

    /// Returns when everything sent to `to` has left this member's heap.
    ///
    /// # Errors
    /// Fails as [`Channel::flush`] does.
    fn flush(&mut self, to: usize) -> Result<()>;
}

impl<L: Link> Transport for Pipes<'_, L> {
    fn reserve(&mut self, to: usize) -> Result<HeapOffset> {
        let end = self.ends[to].as_mut().expect(OTHERS);
        if !end.has_free_slot() && !end.look_for_credit() {
            self.members.board.wait(to, self.operation, || end.look_for_credit())?;
        }
        let layout = self.members.layout();
        Ok(self
            .members
            .place(self.members.me(), layout.send_staging() + end.sent % PIPE_SLOTS * layout.slot_len()))
    }

    fn send(&mut self, to: usize, source: HeapOffset, len: u64) -> Result<()> {
        debug_assert!(len <= self.slot_len(), "{len} bytes in a message");
        self.reserve(to)?;
        let input = Input::Heap(source);
        L::before_send(
            self,
            to,
            &Outgoing { header: None, body: 0, input: &input, at: 0, len, fetched: None },
        )?;
        let slot_len = self.slot_len();
        let end = self.ends[to].as_mut().expect(OTHERS);
        let target = HeapOffset::new(end.outbox.get() + end.sent % PIPE_SLOTS * slot_len);
        self.channels[to].as_mut().expect(OTHERS).put_with_signal(target, source, len)?;
        end.sent = end.sent.wrapping_add(1);
        end.pending = true;
        Ok(())
    }

    fn receive(&mut self, from: usize) -> Result<HeapOffset> {
        let end = self.ends[from].as_mut().expect(OTHERS);
        if !std::mem::take(&mut end.signalled) {
            self.channels[from].as_mut().expect(OTHERS).wait()?;
        }
        let end = self.ends[from].as_ref().expect(OTHERS);
        let at = HeapOffset::new(end.inbox.get() + end.received % PIPE_SLOTS * self.slot_len());
        let arrival = FragmentArrival { operation: self.operation, member: from, number: end.received };
        L::arrived(self, arrival, at)?;
        Ok(at)
    }

    fn release(&mut self, from: usize) {
        let end = self.ends[from].as_mut().expect(OTHERS);
        end.received = end.received.wrapping_add(1);
        end.taken_here.publish(end.received);
        self.members.board.wake();
        self.wake(from);
    }

    fn await_taken(&mut self, to: usize) -> Result<()> {
        let end = self.ends[to].as_mut().expect(OTHERS);
        let all_taken = || end.taken_by_peer.has_reached(end.sent);
        if !all_taken() {
            self.members.board.wait(to, self.operation, all_taken)?;
        }
        end.known_taken = end.sent;
        Ok(())
    }

    fn flush(&mut self, to: usize) -> Result<()> {
        let end = self.ends[to].as_mut().expect(OTHERS);
        if end.pending {
            self.channels[to].as_mut().expect(OTHERS).flush()?;
            end.pending = false;
        }
        Ok(())
    }
}

impl<L: Link> Pipes<'_, L> {
    /// Returns the longest fragment.
    #[inline]
    pub(crate) fn slot_len(&self) -> u64 {
        self.members.layout().slot_len()
    }

    /// Returns the words beside the slot of the next fragment to `to`.
    pub(super) fn words_of_next(&self, to: usize) -> &[AtomicU64] {
        let end = self.ends[to].as_ref().expect(OTHERS);
        words_of(&end.checks_there, end.sent)
    }

    /// Returns the words beside the slot of a fragment that has arrived.
    pub(super) fn words_of_arrival(&self, arrival: FragmentArrival) -> &[AtomicU64] {
        words_of(&self.ends[arrival.member].as_ref().expect(OTHERS).checks_here, arrival.number)
    }

    /// Returns whether the next fragment to `to` has a slot now.
    #[inline]
    pub(crate) fn has_room(&mut self, to: usize) -> bool {
        let end = self.ends[to].as_mut().expect(OTHERS);
        end.has_free_slot() || end.look_for_credit()
    }

    /// Returns the number of the next fragment to `to`, and where it goes in that member's heap.
    #[inline]
    pub(crate) fn next_to(&self, to: usize) -> (u64, HeapOffset) {
        let end = self.ends[to].as_ref().expect(OTHERS);
        (end.sent, HeapOffset::new(end.outbox.get() + end.sent % PIPE_SLOTS * self.slot_len()))
    }

    /// Returns the inline message that stands for the next fragment to `to`, and what it has to
    /// show as that.
    #[inline]
    pub(crate) fn inline_to(&self, to: usize) -> (&PostCell, u64) {
        let end = self.ends[to].as_ref().expect(OTHERS);
        (&end.inline_there[turn(end.sent)], end.sent.wrapping_add(1))
    }

    /// Returns the inline message that `from` has left as its next fragment, if that is one, until
    /// [`Pipes::give_back`].
    ///
    /// # Ordering
    /// Acquires everything `from` did before (C1).
    #[inline]
    pub(crate) fn inline_from(&self, from: usize) -> Option<&PostCell> {
        let end = self.ends[from].as_ref().expect(OTHERS);
        let inline = &end.inline_here[turn(end.received)];
        inline.shows(end.received.wrapping_add(1)).then_some(inline)
    }

    /// Returns the channel to `to`, for whoever fills a slot by other means than
    /// [`Transport::send`] and says so by [`Pipes::count_sent`].
    #[inline]
    pub(crate) fn channel(&mut self, to: usize) -> &mut L::Channel {
        self.channels[to].as_mut().expect(OTHERS)
    }

    /// Counts a fragment of a message to `to` that was signalled.
    #[inline]
    pub(crate) fn count_sent(&mut self, to: usize) {
        let end = self.ends[to].as_mut().expect(OTHERS);
        end.sent = end.sent.wrapping_add(1);
        end.balance = end.balance.wrapping_add(1);
        end.pending = true;
    }

    /// Returns whether `to` has taken the fragment numbered `number`.
    #[inline]
    pub(crate) fn was_taken(&self, to: usize, number: u64) -> bool {
        self.ends[to].as_ref().expect(OTHERS).taken_by_peer.has_reached(number.wrapping_add(1))
    }

    /// Looks whether a slot is filled that `from` has not yet been given back. It may be behind
    /// inline messages: these come first, and are seen by whoever looks at them after this.
    ///
    /// # Ordering
    /// What is found acquires everything `from` did before (S1).
    #[inline]
    pub(crate) fn look_for_signal(&mut self, from: usize) {
        let end = self.ends[from].as_mut().expect(OTHERS);
        end.signalled = end.signalled || self.channels[from].as_mut().expect(OTHERS).poll();
    }

    /// Takes the signal of the next fragment of `from`, which is no inline message, if
    /// [`look_for_signal`](Self::look_for_signal) has found it, and returns the fragment's number
    /// and where it lies in this member's heap until [`Pipes::give_back`].
    ///
    /// It does not look once more: an inline message may have come since the inline messages were
    /// looked at, and the signal of a fragment behind it.
    #[inline]
    pub(crate) fn take_signal(&mut self, from: usize) -> Option<(u64, HeapOffset)> {
        let end = self.ends[from].as_mut().expect(OTHERS);
        if !std::mem::take(&mut end.signalled) {
            return None;
        }
        let (number, inbox) = (end.received, end.inbox.get());
        Some((number, HeapOffset::new(inbox + number % PIPE_SLOTS * self.slot_len())))
    }

    /// Leaves the fragment of `from` whose signal was taken last where it is, to be taken later.
    pub(crate) fn keep_signal(&mut self, from: usize) {
        self.ends[from].as_mut().expect(OTHERS).signalled = true;
    }

    /// Gives the slot of the fragment of a message that was taken last from `from` back.
    #[inline]
    pub(crate) fn give_back(&mut self, from: usize) {
        let end = self.ends[from].as_mut().expect(OTHERS);
        end.received = end.received.wrapping_add(1);
        end.balance = end.balance.wrapping_sub(1);
        end.taken_here.publish(end.received);
        self.wake(from);
    }

    /// Wakes `member` if it waits for fragments, or for room for them.
    #[inline]
    pub(crate) fn wake(&self, member: usize) {
        self.members.message_park(member).wake(self.members.board.context().kernel());
    }

    /// Returns when all fragments of messages have left this member's heap, and wakes those that
    /// they are for: a proxy, which raised their semaphores, does not know what they sleep on.
    ///
    /// # Errors
    /// Fails as [`Channel::flush`] does.
    pub(crate) fn flush_and_wake(&mut self) -> Result<()> {
        for member in 0..self.ends.len() {
            if self.ends[member].as_ref().is_some_and(|end| end.pending) {
                self.flush(member)?;
                self.wake(member);
            }
        }
        Ok(())
    }

    /// Returns when everything sent has left this member's heap.
    ///
    /// # Errors
    /// Fails as [`Channel::flush`] does.
    pub(crate) fn flush_all(&mut self) -> Result<()> {
        let me = self.members.me();
        (0..self.members.n_members()).filter(|&member| member != me).try_for_each(|member| self.flush(member))
    }
}
