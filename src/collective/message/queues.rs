//! The parcels of a batch in queues, one for each end of a pipe that they go through, each in the order of the calls.
//!
//! Whoever looks for parcels that are not done looks at the first one of each queue. So what a pass takes depends on how many queues
//! there are, and not on how many parcels a group has.

use arrayvec::ArrayVec;

use super::progress::Batch;
use super::{Parcel, Replaced};
use crate::channel::{MemoryChannel, PortChannel};
use crate::collective::call::{ChannelKind, Operation};
use crate::collective::rendezvous::members::Team;
use crate::collective::transport::Pipework;
use crate::collective::transport::checked::Checked;
use crate::collective::transport::link::Bare;
use crate::collective::transport::pipe::Pipes;
use crate::error::Result;
use crate::rank::MAX_RANKS;

/// The most queues: to each member and from it.
const MOST: usize = 2 * MAX_RANKS as usize;

/// No queue has this number.
const NONE: u8 = u8::MAX;

const _: () = assert!(MOST <= NONE as usize);

/// A batch in queues.
#[derive(Debug)]
pub(super) struct Queues<'r, 'a> {
    pub(super) team: &'r Team,
    pipework: &'r mut Pipework,
    kind: ChannelKind,
    parcels: &'r mut [Parcel<'a>],
    replaced: &'r [Replaced<'a>],
    /// The index of the first parcel of each queue that is not done; past the end where all are.
    heads: ArrayVec<usize, MOST>,
    /// The index of the parcel behind each in its queue; past the end for the last. Empty where each queue is of one.
    behind: Vec<usize>,
}

impl<'r, 'a> Queues<'r, 'a> {
    /// No queues yet for those of `batch`: see [`Queues::fill`].
    #[inline]
    pub(super) fn new(batch: &'r mut Batch<'_, '_, 'a>) -> Self {
        let Batch { team, pipework, kind, parcels, replaced } = batch;
        let kind = *kind;
        Self { team, pipework, kind, parcels, replaced, heads: ArrayVec::new(), behind: Vec::new() }
    }

    /// Makes the queues, where they stay: to move a kibibyte takes as long as to send a few bytes.
    #[inline]
    pub(super) fn fill(&mut self) {
        let mut lasts = ArrayVec::<usize, MOST>::new();
        let (mut numbers, end) = ([NONE; MOST], self.parcels.len());
        for (at, parcel) in self.parcels.iter().enumerate() {
            let number = &mut numbers[2 * parcel.peer() + usize::from(parcel.is_sent())];
            if let Some(last) = lasts.get_mut(usize::from(*number)) {
                self.behind.resize(end, end);
                self.behind[std::mem::replace(last, at)] = at;
            } else {
                *number = u8::try_from(lasts.len()).expect("there are fewer queues");
                self.heads.push(at);
                lasts.push(at);
            }
        }
    }

    /// Whether no parcel is left.
    #[inline]
    pub(super) fn are_done(&self) -> bool {
        self.heads.iter().all(|&head| head >= self.parcels.len())
    }

    /// The first parcel that is not done, in the order of the calls.
    #[inline]
    pub(super) fn first(&self) -> Option<&Parcel<'a>> {
        self.parcels.get(*self.heads.iter().min()?)
    }

    /// The same, or the last of all, where all are done.
    pub(super) fn first_or_last(&self) -> Option<&Parcel<'a>> {
        self.first().or_else(|| self.parcels.last())
    }

    /// The first parcel of each queue that is not done, in the order of the calls.
    pub(super) fn open(&self) -> impl Iterator<Item = &Parcel<'a>> {
        let mut heads = self.heads.clone();
        heads.sort_unstable();
        heads.into_iter().filter_map(|head| self.parcels.get(head))
    }

    /// The first of those for each peer, with which there may be one to send and one to receive.
    pub(super) fn open_by_peer(&self) -> impl Iterator<Item = &Parcel<'a>> {
        let mut found = 0_u64;
        self.open().filter(move |parcel| {
            let bit = 1 << parcel.peer();
            let is_first = found & bit == 0;
            found |= bit;
            is_first
        })
    }

    /// Does what can be done now in each queue, without waiting; whether that was anything.
    #[inline]
    pub(super) fn advance(&mut self) -> Result<bool> {
        let (mut has_moved, end) = (false, self.parcels.len());
        for head in &mut self.heads {
            let mut at = *head;
            // What is lent is left behind on the way: no more parcels than a pipe has slots.
            while let Some(parcel) = self.parcels.get_mut(at) {
                if !parcel.is_done() {
                    has_moved |= self.pipework.advance(self.team, parcel, self.replaced, self.kind)?;
                }
                let behind = self.behind.get(at).copied().unwrap_or(end);
                if *head == at && parcel.is_done() {
                    *head = behind;
                }
                if !parcel.is_in_pipe() {
                    break;
                }
                at = behind;
            }
        }
        Ok(has_moved)
    }

    /// Returns when all messages have left this member's heap.
    #[inline]
    pub(super) fn flush(&mut self) -> Result<()> {
        self.pipework.flush_parcels(self.team, self.kind)
    }
}

impl Pipework {
    /// Does what can be done now for `parcel`, one of those that share the blocks `replaced`, over pipes of `kind`, which are open;
    /// whether that was anything.
    ///
    /// # Errors
    /// Those of [`crate::collective::message::progress::run`].
    #[inline]
    pub(crate) fn advance(
        &mut self,
        team: &Team,
        parcel: &mut Parcel<'_>,
        replaced: &[Replaced<'_>],
        kind: ChannelKind,
    ) -> Result<bool> {
        let Self { ends, memory, ports, .. } = self;
        let operation = Operation::Send;
        match (kind, team.is_watched()) {
            (ChannelKind::Memory, false) => {
                let mut pipes = Pipes::<Bare<MemoryChannel>> { team, operation, ends, channels: memory };
                parcel.advance(replaced, &mut pipes, kind)
            }
            (ChannelKind::Port, false) => {
                let mut pipes = Pipes::<Bare<PortChannel>> { team, operation, ends, channels: ports };
                parcel.advance(replaced, &mut pipes, kind)
            }
            (ChannelKind::Memory, true) => {
                let mut pipes = Pipes::<Checked<MemoryChannel>> { team, operation, ends, channels: memory };
                parcel.advance(replaced, &mut pipes, kind)
            }
            (ChannelKind::Port, true) => {
                let mut pipes = Pipes::<Checked<PortChannel>> { team, operation, ends, channels: ports };
                parcel.advance(replaced, &mut pipes, kind)
            }
        }
    }

    /// Returns when all messages of parcels over pipes of `kind` have left this member's heap.
    ///
    /// # Errors
    /// Those of [`crate::channel::Channel::flush`].
    #[inline]
    pub(crate) fn flush_parcels(&mut self, team: &Team, kind: ChannelKind) -> Result<()> {
        let Self { ends, ports, .. } = self;
        match kind {
            // What a member's own core has moved is there, and the peers are awake.
            ChannelKind::Memory => Ok(()),
            ChannelKind::Port => {
                let operation = Operation::Send;
                Pipes::<Bare<PortChannel>> { team, operation, ends, channels: ports }.flush_and_wake()
            }
        }
    }
}
