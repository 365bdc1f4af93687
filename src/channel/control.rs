//! The control segment: the few words that all ranks of an epoch share, made by whoever starts the job.
//!
//! | byte | what | one for | written by |
//! |---|---|---|---|
//! | 0 | segment header | the epoch | its creator |
//! | 4096 | revocation | the epoch | the first who finds a reason |
//! | 4224 | barrier: where its waiters sleep | the epoch | waiters and wakers |
//! | 4352 | where the proxy service process sleeps | the epoch | the service, producers |
//! | 4480 | life words | each rank | its process, and the kernel when it dies |
//! | 12672 | barrier arrivals | each rank | that rank |
//! | 20864 | agreements | each rank | that rank |
//! | 29056 | where those sleep who go on after the epoch | the epoch | they |
//! | 29184 | rounds of going on | 64 | survivors |
//! | 37376 | what is offered to those who go on | each rank | that rank |
//! | 45568 | whether those who have met begin together | the epoch | they |

use std::os::fd::OwnedFd;

use super::world::Era;
use crate::error::Result;
use crate::rank::MAX_RANKS;
use crate::shm::segment::AttachAs;
use crate::shm::{Backing, CellRef, CellSlice, Expected, HostKernel, Mapping, Segment};
use crate::sync::regroup::{OfferCell, RoundCell};
use crate::sync::{AgreementCell, BarrierCell, LifeCell, ParkCell, Revocation, RevokeCell};

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
const END: u64 = FORMATION + size_of::<RoundCell>() as u64;

/// How often the survivors of an epoch can try to go on. Each death can spoil one round.
pub(crate) const MAX_ROUNDS: u64 = MAX_RANKS as u64;

/// The length of a control segment, in bytes.
const LEN: u64 = END.next_multiple_of(4096);

const _: () = {
    assert!(
        BARRIER_PARK == 4224 && DOORBELL == 4352 && LIVES == 4480 && BARRIER == 12672 && AGREEMENT == 20864
    );
    assert!(REGROUP_PARK == 29056 && ROUNDS == 29184 && OFFERS == 37376 && FORMATION == 45568);
};

/// A control segment, mapped.
#[derive(Clone, Debug)]
pub(crate) struct Control {
    mapping: Mapping,
    n_ranks: u32,
}

impl Control {
    /// Makes the control segment of a new epoch, ready to be handed out.
    ///
    /// # Errors
    /// Those of [`Segment::create`].
    pub(crate) fn create(n_ranks: u32, era: Era) -> Result<(Self, Segment)> {
        let segment = Segment::create(&Backing::Anonymous, LEN, era.identity(None))?;
        segment.commit(0, LEN)?;
        segment.header().publish();
        Ok((Self { mapping: segment.map()?, n_ranks }, segment))
    }

    /// Maps the control segment behind `fd`.
    ///
    /// # Errors
    /// Those of [`Segment::attach`].
    pub(crate) fn attach(fd: OwnedFd, n_ranks: u32, era: Era) -> Result<Self> {
        let identity = Some(era.identity(None));
        let segment = Segment::attach(fd, AttachAs::Sealed, &Expected { len: Some(LEN), identity })?;
        Ok(Self { mapping: segment.map()?, n_ranks })
    }

    /// Ends the epoch for everybody, unless somebody did already.
    pub(crate) fn revoke(&self, kernel: &HostKernel, reason: Revocation) {
        self.revocation().revoke(kernel, reason);
    }

    pub(crate) fn revocation(&self) -> CellRef<RevokeCell> {
        self.mapping.cell(REVOKE).expect("in the layout")
    }

    /// What the proxy service process sleeps on when there is nothing to serve.
    pub(crate) fn proxy_doorbell(&self) -> CellRef<ParkCell> {
        self.mapping.cell(DOORBELL).expect("in the layout")
    }

    /// The life words of all ranks.
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

    /// The rounds in which survivors go on, and where they sleep.
    pub(crate) fn rounds(&self) -> (CellSlice<RoundCell>, CellRef<ParkCell>) {
        let cells = self.mapping.cells(ROUNDS, MAX_ROUNDS).expect("in the layout");
        (cells, self.mapping.cell(REGROUP_PARK).expect("in the layout"))
    }

    /// Where those who have met settle whether they begin, and where they sleep meanwhile.
    pub(crate) fn formation(&self) -> (CellRef<RoundCell>, CellRef<ParkCell>) {
        let cell = self.mapping.cell(FORMATION).expect("in the layout");
        (cell, self.mapping.cell(REGROUP_PARK).expect("in the layout"))
    }

    /// What ranks offer to those who go on with them.
    pub(crate) fn offers(&self) -> CellSlice<OfferCell> {
        self.mapping.cells(OFFERS, u64::from(self.n_ranks)).expect("in the layout")
    }
}
