//! The control segment: the few words that all ranks of an epoch share, made by whoever starts the
//! job.
//!
//! | byte | what | one for | written by |
//! |---|---|---|---|
//! | 0 | segment header | the epoch | its creator |
//! | 4096 | revocation | the epoch | the first who finds a reason |
//! | 4224 | barrier: where its waiters sleep | the epoch | waiters and wakers |
//! | 4352 | where the proxy service process sleeps | the epoch | the service, producers |
//! | 4480 | life words | each rank | its process, and the kernel when it dies |
//! | 37248 | barrier arrivals | each rank | that rank |
//! | 70016 | agreements | each rank | that rank |
//! | 102784 | where those sleep who go on after the epoch | the epoch | they |
//! | 102912 | rounds of going on | 256 | survivors |
//! | 168448 | what is offered to those who go on | each rank | that rank |
//! | 201216 | whether those who have met begin together | the epoch | they |
//! | 201472 | facts: ranks, beginning, job gone on from | the epoch | its creator, survivors |
//! | 201600 | what ranks tell of themselves | each rank | that rank |
//! | 267136 | heartbeats, for a launcher at first | each rank, then the service | that member |
//! | 300032 | faults that were injected, 32 bytes each | each rank | that rank, its proxy |
//! | 308224 | roster of the fifos of the proxy service process | the epoch | producers |

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use shmccl_proxy::Roster;

use crate::epoch_id::EpochId;
#[cfg(doc)]
use crate::error::Error;
use crate::error::{DeviceName, Result, check_layout};
use crate::faults::FAULT_WORDS;
use crate::rank::{MAX_RANKS, Rank, check_n_ranks};
use crate::shm::segment::AttachAs;
use crate::shm::{Backing, CellRef, CellSlice, Expected, HostKernel, Mapping, Segment};
use crate::sync::atomic::AtomicU64;
use crate::sync::regroup::{OfferCell, RoundCell};
use crate::sync::{
    ActivityCell, AgreementCell, BarrierCell, HeartbeatCell, LifeCell, ParkCell, Revocation, RevokeCell,
    plain,
};

const REVOKE: u64 = 4096;
const BARRIER_PARK: u64 = REVOKE + size_of::<RevokeCell>() as u64;
const DOORBELL: u64 = BARRIER_PARK + 128;
const LIVES: u64 = DOORBELL + 128;
const BARRIER: u64 = LIVES + MAX_RANKS as u64 * size_of::<LifeCell>() as u64;
const AGREEMENT: u64 = BARRIER + MAX_RANKS as u64 * size_of::<BarrierCell>() as u64;
const REGROUP_PARK: u64 = AGREEMENT + MAX_RANKS as u64 * size_of::<AgreementCell>() as u64;
const ROUNDS: u64 = REGROUP_PARK + 128;
const OFFERS: u64 = ROUNDS + MAX_ROUNDS * size_of::<RoundCell>() as u64;
const FORMATION: u64 = OFFERS + MAX_RANKS as u64 * size_of::<OfferCell>() as u64;
const EPOCH_FACTS: u64 = FORMATION + size_of::<RoundCell>() as u64;
const ACTIVITIES: u64 = EPOCH_FACTS + 128;
const BEATS: u64 = ACTIVITIES + MAX_RANKS as u64 * size_of::<ActivityCell>() as u64;
const FAULTS: u64 = BEATS + (MAX_RANKS as u64 + 1) * size_of::<HeartbeatCell>() as u64;
const ROSTER: u64 = FAULTS + MAX_RANKS as u64 * FAULT_WORDS as u64 * 8;
const END: u64 = ROSTER + 128;

/// How often the survivors of an epoch can try to go on. Each death can spoil one round.
pub(crate) const MAX_ROUNDS: u64 = MAX_RANKS as u64;

/// The words of the facts of the epoch.
const N_RANKS: usize = 0;
const BEGAN: usize = 1;
const ORIGIN: usize = 2;

/// The length of a control segment, in bytes.
pub(crate) const LEN: u64 = END.next_multiple_of(4096);

const _: () = {
    assert!(BARRIER_PARK == 4224 && DOORBELL == 4352 && LIVES == 4480);
    assert!(BARRIER == 37248 && AGREEMENT == 70016);
    assert!(REGROUP_PARK == 102784 && ROUNDS == 102912 && OFFERS == 168448 && FORMATION == 201216);
    assert!(EPOCH_FACTS == 201472 && ACTIVITIES == 201600 && BEATS == 267136);
    assert!(FAULTS == 300032 && ROSTER == 308224);
};

/// A control segment, mapped.
#[derive(Clone, Debug)]
pub(crate) struct Control {
    mapping: Mapping,
    n_ranks: u32,
    /// Kept open, so that whoever looks on finds it among the descriptors of this process; none has
    /// a copy of its contents.
    segment: Option<Arc<Segment>>,
}

impl Control {
    /// Makes the control segment of a new epoch, ready to be handed out.
    ///
    /// # Errors
    /// Fails as [`Segment::create`] does.
    pub(crate) fn create(n_ranks: u32, epoch_id: EpochId) -> Result<(Self, Arc<Segment>)> {
        let segment = Arc::new(Segment::create(&Backing::Anonymous, LEN, epoch_id.identity(None))?);
        segment.commit(0, LEN)?;
        let control = Self { mapping: segment.map()?, n_ranks, segment: Some(Arc::clone(&segment)) };
        let facts = control.epoch_facts();
        plain::store(&facts[N_RANKS], n_ranks.into());
        plain::store(&facts[BEGAN], plain::nanos(HostKernel::clock()));
        segment.header().publish();
        Ok((control, segment))
    }

    /// Maps the control segment behind `fd`.
    ///
    /// # Errors
    /// Fails as [`Segment::attach`] does.
    pub(crate) fn attach(fd: OwnedFd, n_ranks: u32, epoch_id: EpochId) -> Result<Self> {
        let identity = Some(epoch_id.identity(None));
        let segment = Segment::attach(fd, AttachAs::Sealed, &Expected { len: Some(LEN), identity })?;
        Ok(Self { mapping: segment.map()?, n_ranks, segment: Some(Arc::new(segment)) })
    }

    /// Looks at a copy of a control segment, which may hold anything.
    ///
    /// # Errors
    /// [`Error::Layout`] for a copy of another length; [`Error::InvalidArgument`] when it says that
    /// there are no ranks, or too many.
    pub(crate) fn of_copy(mapping: Mapping) -> Result<Self> {
        check_layout("control segment length", LEN, mapping.len())?;
        let mut control = Self { mapping, n_ranks: 0, segment: None };
        let n_ranks = u32::try_from(plain::load(&control.epoch_facts()[N_RANKS])).unwrap_or(u32::MAX);
        check_n_ranks(n_ranks)?;
        control.n_ranks = n_ranks;
        Ok(control)
    }

    /// Returns the number of ranks.
    pub(crate) fn n_ranks(&self) -> u32 {
        self.n_ranks
    }

    /// Returns when the epoch began, by the system's monotonic clock.
    pub(crate) fn began(&self) -> Duration {
        Duration::from_nanos(plain::load(&self.epoch_facts()[BEGAN]))
    }

    /// Returns the number of the job that this one goes on from, as those who have survived it have
    /// told.
    pub(crate) fn origin(&self) -> Option<u64> {
        Some(plain::load(&self.epoch_facts()[ORIGIN])).filter(|origin| *origin != 0)
    }

    /// Tells that this job goes on from that of number `origin`. All who have survived that one
    /// tell the same.
    pub(crate) fn go_on_from(&self, origin: u64) {
        plain::store(&self.epoch_facts()[ORIGIN], origin);
    }

    /// Returns the cells in which ranks tell of themselves.
    pub(crate) fn activities(&self) -> CellSlice<ActivityCell> {
        self.mapping.cells(ACTIVITIES, u64::from(self.n_ranks)).expect("in the layout")
    }

    /// Returns the heartbeats of all ranks, and behind them that of the service process.
    pub(crate) fn beats(&self) -> CellSlice<HeartbeatCell> {
        self.mapping.cells(BEATS, u64::from(self.n_ranks) + 1).expect("in the layout")
    }

    /// Returns the heartbeat of one member.
    pub(crate) fn beat(&self, device: DeviceName) -> CellRef<HeartbeatCell> {
        let place = match device {
            DeviceName::Rank(rank) => rank.get(),
            DeviceName::Proxy => self.n_ranks,
        };
        let offset = BEATS + u64::from(place) * size_of::<HeartbeatCell>() as u64;
        self.mapping.cell(offset).expect("in the layout")
    }

    /// Returns the words in which `rank` tells of faults that were injected.
    pub(crate) fn faults(&self, rank: Rank) -> CellSlice<AtomicU64> {
        let words = FAULT_WORDS as u64;
        self.mapping.cells(FAULTS + u64::from(rank.get()) * words * 8, words).expect("in the layout")
    }

    /// Returns the segment, where this is no copy.
    pub(crate) fn segment(&self) -> Option<Arc<Segment>> {
        self.segment.clone()
    }

    /// Returns the descriptor, where this is no copy.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.segment.as_deref().map(Segment::as_fd)
    }

    fn epoch_facts(&self) -> CellSlice<AtomicU64> {
        self.mapping.cells(EPOCH_FACTS, 3).expect("in the layout")
    }

    /// Ends the epoch for everybody, unless somebody did already.
    pub(crate) fn revoke(&self, kernel: &HostKernel, reason: Revocation) {
        self.revocation().revoke(kernel, reason);
    }

    pub(crate) fn revocation(&self) -> CellRef<RevokeCell> {
        self.mapping.cell(REVOKE).expect("in the layout")
    }

    /// Returns the cell on which the proxy service process sleeps when there is nothing to serve.
    pub(crate) fn proxy_doorbell(&self) -> CellRef<ParkCell> {
        self.mapping.cell(DOORBELL).expect("in the layout")
    }

    /// Returns where ranks tell the proxy service process that a producer of one of their fifos has
    /// come or gone.
    pub(crate) fn proxy_roster(&self) -> CellRef<Roster> {
        self.mapping.cell(ROSTER).expect("in the layout")
    }

    /// Returns the life words of all ranks.
    pub(crate) fn lives(&self) -> CellSlice<LifeCell> {
        self.mapping.cells(LIVES, u64::from(self.n_ranks)).expect("in the layout")
    }

    pub(crate) fn barrier(&self) -> (CellSlice<BarrierCell>, CellRef<ParkCell>) {
        let cells = self.mapping.cells(BARRIER, u64::from(self.n_ranks)).expect("in the layout");
        (cells, self.mapping.cell(BARRIER_PARK).expect("in the layout"))
    }

    pub(crate) fn agreement(&self) -> CellSlice<AgreementCell> {
        self.mapping.cells(AGREEMENT, u64::from(self.n_ranks)).expect("in the layout")
    }

    /// Returns the rounds in which survivors go on, and where they sleep.
    pub(crate) fn rounds(&self) -> (CellSlice<RoundCell>, CellRef<ParkCell>) {
        let cells = self.mapping.cells(ROUNDS, MAX_ROUNDS).expect("in the layout");
        (cells, self.mapping.cell(REGROUP_PARK).expect("in the layout"))
    }

    /// Returns where those who have met settle whether they begin, and where they sleep meanwhile.
    pub(crate) fn formation(&self) -> (CellRef<RoundCell>, CellRef<ParkCell>) {
        let cell = self.mapping.cell(FORMATION).expect("in the layout");
        (cell, self.mapping.cell(REGROUP_PARK).expect("in the layout"))
    }

    /// Returns the offers of ranks to those that go on with them.
    pub(crate) fn offers(&self) -> CellSlice<OfferCell> {
        self.mapping.cells(OFFERS, u64::from(self.n_ranks)).expect("in the layout")
    }
}
