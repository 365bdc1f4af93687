//! The channel to all members at once: the caller's core does what a switch does that reduces and
//! multicasts.
//!
//! It stands over one buffer of each member, of one length, at any offsets. Reading combines the
//! elements of all buffers at an index, and writing stores to all of them. An all-reduce over such
//! a switch does both: each member takes a share, loads it reduced, and stores it everywhere
//! (`multimem.ld_reduce` and `multimem.st`).
//!
//! Data calls order nothing, like those instructions. [`SwitchChannel::signal`] and
//! [`SwitchChannel::wait`] around them do, or a barrier, other channels, collective operations.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use super::buffers::{Recv, RecvBuffer, RecvBytes, Send, SendBuffer, SendBytes};
use super::settings::all_same;
use crate::channel::{Channel, MemoryChannel, RankContext};
use crate::collective::{Operation, PerMember, fill, share_of};
use crate::comm::Communicator;
use crate::error::{Error, Result};
use crate::heap::{DeviceBuffer, HeapOffset, Region};
use crate::rank::Rank;
use crate::reduce::{Element, ReduceOp, Reducer, Source, SourcePlace, Target};
use crate::shm::{CacheHint, Span};

/// A member's heap, and the offset of its elements in it.
type MemberBuffer<'a> = (&'a Span, u64);

/// A channel to the buffers of all members of a communicator, this rank's included. Its calls
/// allocate nothing.
#[derive(Debug)]
pub struct SwitchChannel<T> {
    context: Arc<RankContext>,
    members: Arc<[Rank]>,
    me: usize,
    /// The start of each member's buffer.
    bases: Vec<HeapOffset>,
    count: usize,
    /// The channels to each other member, for signals.
    channels: Vec<MemoryChannel>,
    element: PhantomData<fn(T) -> T>,
}

impl Communicator {
    /// Opens a switch channel over `buffer` of this rank and the buffers of the other members.
    /// Collective.
    ///
    /// The buffers have the same number of elements, at any offsets. The channel takes one of the
    /// [`MAX_CHANNELS_PER_PEER`](crate::channel::MAX_CHANNELS_PER_PEER) to each other member. It
    /// does not count in the order of those opened by [`Communicator::memory_channel`]. Drop it
    /// before the buffers are freed.
    ///
    /// # Errors
    /// Nobody gets a switch channel then.
    /// - [`Error::Mismatch`] when the buffers have different lengths or types.
    /// - [`Error::Exhausted`] when this rank has no channel left to some member;
    ///   [`Error::FailedElsewhere`] on the others.
    /// - Otherwise those of [`Communicator::barrier`] in a derived communicator.
    pub fn switch_channel<T: Element>(&mut self, buffer: &DeviceBuffer<T>) -> Result<SwitchChannel<T>> {
        let operation = Operation::SwitchChannel;
        self.enter(operation)?;
        let (region, code) = (buffer.region(), u64::from(T::DATA_TYPE.code()));
        let mine = [buffer.len() as u64, code, region.offset.get()];
        let told = self.exchange(operation, &mine)?;
        let members = || self.members.iter().copied().zip(&told);
        for (word, what) in [(0, "the elements of a switch channel"), (1, "their type, by its code")] {
            all_same(what, mine[word], members().map(|(rank, words)| (rank, words[word])))?;
        }
        let bases: Vec<_> = told.iter().map(|theirs| HeapOffset::new(theirs[2])).collect();
        let view = self.heap().view();
        let mut places = self.members.iter().zip(&bases);
        let reached = places.try_for_each(|(&rank, &base)| view.check(rank, Region::new(base, region.len)));
        let channels = self.engine()?.open_memory_channels(operation, reached)?;
        Ok(SwitchChannel {
            context: Arc::clone(self.context()),
            members: Arc::clone(&self.members),
            me: self.rank.index(),
            bases,
            count: buffer.len(),
            channels,
            element: PhantomData,
        })
    }
}

impl<T: Element> SwitchChannel<T> {
    /// Returns the number of elements of each buffer.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Says whether the buffers have no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns this rank's share of the first `count` elements, when each member takes one.
    #[must_use]
    pub fn share(&self, count: usize) -> Range<usize> {
        let size = size_of::<T>() as u64;
        let bytes = share_of(count as u64, size, self.me, self.members.len());
        // The index is at most `count`.
        let index = |bytes: u64| usize::try_from(bytes / size).unwrap_or(count);
        index(bytes.start)..index(bytes.end)
    }

    /// Combines the elements from index `at` on of all members' buffers into `recv`, as many as it
    /// has. They are combined in the order of the ranks on every rank. A scalar of `op` multiplies
    /// the elements of all members.
    ///
    /// `recv` may be this rank's own elements from `at` on, and must not overlap the buffer
    /// otherwise.
    ///
    /// # Errors
    /// Nothing was changed then.
    /// - [`Error::OutOfRange`] when the buffers end before.
    /// - [`Error::InvalidArgument`] when `op` is for another type, and for a `recv` that overlaps.
    /// - [`Error::UnsupportedOperator`] when `op` is not defined on the type.
    /// - [`Error::Unavailable`] when this rank has left the job.
    ///
    /// # Ordering
    /// None.
    #[inline]
    pub fn reduce<'a>(&self, at: usize, recv: impl Into<RecvBuffer<'a, T>>, op: &ReduceOp) -> Result<()> {
        let recv = RecvBytes::from(recv.into());
        let count = recv.count(T::DATA_TYPE)?;
        let mut places = PerMember::new();
        self.places("reduce", at, count, &mut places)?;
        let mut sources = PerMember::new();
        gather_sources(&places, &mut sources);
        let target = match recv.0 {
            Recv::Heap(region, _) => {
                let own = self.context.heap().reach(self.context.rank(), region)?;
                Target::Shared(own, region.offset.get())
            }
            Recv::Slice(bytes) => Target::Slice(bytes),
        };
        self.reducer(op)?.combine(&sources, &mut [target], count, true)
    }

    /// Stores `send` to the elements from index `at` on of all members' buffers.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] when the buffers end before, [`Error::Unavailable`] when this rank has
    /// left the job. Nothing was changed then.
    ///
    /// # Ordering
    /// None.
    #[inline]
    pub fn broadcast<'a>(&self, at: usize, send: impl Into<SendBuffer<'a, T>>) -> Result<()> {
        let send = SendBytes::from(send.into());
        let mut targets = PerMember::new();
        self.places("broadcast", at, send.count(T::DATA_TYPE)?, &mut targets)?;
        // This rank's own first: so the members do not all begin at the same one.
        let (before, after) = targets.split_at(self.me);
        let mut targets = after.iter().chain(before);
        match send.0 {
            Send::Heap(region, _) => {
                let (source, start) =
                    (self.context.heap().reach(self.context.rank(), region)?, region.offset.get());
                targets.try_for_each(|(span, offset)| {
                    source.copy_to(start, span, *offset, region.len, CacheHint::Keep)
                })
            }
            Send::Slice(bytes) => {
                targets.try_for_each(|(span, offset)| span.copy_in_for(*offset, bytes, CacheHint::Keep))
            }
        }
    }

    /// Combines `elements` of all members' buffers and stores the result to all of them, in one
    /// pass. It is an all-reduce where each member does its [`SwitchChannel::share`] between two
    /// barriers.
    ///
    /// # Errors
    /// Fails as [`SwitchChannel::reduce`] does.
    ///
    /// # Ordering
    /// None.
    #[inline]
    pub fn reduce_broadcast(&self, elements: Range<usize>, op: &ReduceOp) -> Result<()> {
        let count = elements.len() as u64;
        let mut places = PerMember::new();
        self.places("reduce_broadcast", elements.start, count, &mut places)?;
        let mut targets = PerMember::new();
        targets.extend(places.iter().map(|&(span, offset)| Target::Shared(span, offset)));
        let mut sources = PerMember::new();
        gather_sources(&places, &mut sources);
        self.reducer(op)?.combine(&sources, &mut targets, count, true)
    }

    /// Signals all other members that this one has come here. Each [`SwitchChannel::wait`] of
    /// theirs takes one signal of each.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when this rank has left the job.
    ///
    /// # Ordering
    /// Publishes everything before it (S1).
    #[inline]
    pub fn signal(&mut self) -> Result<()> {
        self.channels.iter_mut().try_for_each(Channel::signal)
    }

    /// Returns after one signal of each other member.
    ///
    /// # Errors
    /// [`Error::Timeout`], [`Error::PeerLost`], [`Error::Revoked`]; [`Error::Unavailable`] when
    /// this rank has left the job. The signals of some members may have been taken then, so the
    /// channel is of no more use.
    ///
    /// # Ordering
    /// Acquires everything that the members did before their signals (S1).
    #[inline]
    pub fn wait(&mut self) -> Result<()> {
        self.channels.iter_mut().try_for_each(Channel::wait)
    }

    /// Returns when all members have called it: a signal and a wait.
    ///
    /// # Errors
    /// Fails as [`SwitchChannel::wait`] does.
    #[inline]
    pub fn barrier(&mut self) -> Result<()> {
        self.signal()?;
        self.wait()
    }

    /// Puts into `places` where `count` elements from index `at` on of each member's buffer are.
    #[inline]
    fn places<'s>(
        &'s self,
        operation: &'static str,
        at: usize,
        count: u64,
        places: &mut PerMember<MemberBuffer<'s>>,
    ) -> Result<()> {
        self.context.present(operation)?;
        let (at, limit, size) = (at as u64, self.count as u64, size_of::<T>() as u64);
        if at > limit || count > limit - at {
            let what = "elements of a switch channel";
            return Err(Error::OutOfRange { what, offset: at, len: count, limit });
        }
        let place = |(&rank, base): (&Rank, &HeapOffset)| {
            // Neither can wrap: the whole buffers were checked as the channel was opened.
            let region = Region::new(HeapOffset::new(base.get() + at * size), count * size);
            Ok((self.context.heap().reach(rank, region)?, region.offset.get()))
        };
        fill(places, self.members.iter().zip(&self.bases).map(place))
    }

    #[inline]
    fn reducer(&self, op: &ReduceOp) -> Result<Reducer> {
        Reducer::new(T::DATA_TYPE, op, u32::try_from(self.members.len()).expect("at most 256 members"))
    }
}

/// Puts all `places` into `sources`, where these stay.
#[inline]
fn gather_sources<'a>(places: &[MemberBuffer<'a>], sources: &mut PerMember<Source<'a>>) {
    sources.extend(places.iter().map(|&(span, offset)| Source::fresh(SourcePlace::Shared(span, offset))));
}
