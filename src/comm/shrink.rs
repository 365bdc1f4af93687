//! Shrinking after a loss: the survivors agree on who they are and come together in a new epoch.
//!
//! They agree in rounds, in the old epoch's control segment (see
//! [`regroup`](crate::sync::regroup)). Each survivor makes a fresh segment, and the first one a
//! control segment. They offer these by process and descriptor, since the system lets processes of
//! one user open each other's. So neither launcher nor host is needed. A rank that was given up and
//! wakes later maps only the old epoch, and learns by its next wait that it was not chosen.

use std::fs::OpenOptions;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::OFlag;

use super::Communicator;
use super::attach::{JoinParams, LiveRank};
use super::init::CoreSet;
use super::launcher_link::Incarnation;
use super::membership::JobMembership;
use super::survivor::{OpenRound, Survivor};
use crate::bootstrap::{CONTRIBUTION_LEN, SegmentBacking, resource_error};
use crate::channel::{Control, EpochMapping, RankContext};
use crate::epoch_id::EpochId;
use crate::error::{Error, Result};
use crate::heap::layout::HeapShape;
use crate::logs::{EPOCH, step};
use crate::rank::{Rank, RankSet};
use crate::shm::Segment;
use crate::sync::LifeStatus;
use crate::sync::header::Creator;
use crate::sync::regroup::{OFFER_WORDS, OfferCell, RoundOutcome};

const SHRINK: &str = "shrink";

/// The places in an offer: first the process, by id and start, then descriptors, then the cores.
const SEGMENT: usize = 2;
const CONTROL: usize = 3;
const CORES: usize = 4;

const _: () = assert!(CORES + CONTRIBUTION_LEN / 8 == OFFER_WORDS);

/// The result of [`Communicator::shrink`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Shrunk {
    /// The communicator of the ranks that go on.
    pub comm: Communicator,
    /// The other ranks as the communicator before numbers them, in order. They are the same on all
    /// ranks that go on.
    pub lost: Vec<Rank>,
}

impl Communicator {
    /// Goes on without the lost ranks: the survivors come together in a new epoch and are numbered
    /// anew in the order of their ranks. All survivors call it on the job's first communicator,
    /// once a call has failed. It ends the epoch where that has not ended.
    ///
    /// It waits until every rank of this communicator has called it, has left, or is lost. All that
    /// go on get the same list of lost ranks. [`comm::failure`](super::failure) says more.
    ///
    /// # Errors
    /// - [`Error::Timeout`] names a rank that has neither called it nor died. It can be called
    ///   again, after [`Communicator::give_up`] if that rank is not to be waited for.
    /// - [`Error::Excluded`]: the others have given this rank up, and go on without it.
    /// - [`Error::Revoked`]: the launcher is gone, and nobody goes on.
    /// - [`Error::ResourceLimit`], [`Error::Os`] here; [`Error::FailedElsewhere`] when it was on
    ///   another rank. All ranks get an error then, and can call it again.
    /// - [`Error::Unavailable`]: this is not the job's first communicator, or has gone on already.
    /// - [`Error::Exhausted`]: it has failed too often.
    pub fn shrink(&mut self) -> Result<Shrunk> {
        if self.job_barrier.is_none() {
            return Err(Error::Unavailable { operation: SHRINK, needs: "the first communicator of the job" });
        }
        self.revoke();
        self.reclaim_engine();
        let survivor = Survivor::new(self.context(), SHRINK, self.membership.launcher_state());
        let (mut comm, chosen) = survivor.continue_with(enter)?;
        comm.succeed(self, chosen.iter().map(|rank| self.membership.incarnations[rank.index()]).collect());
        let mapped = self.context().mapped();
        let lost: Vec<_> = RankSet::all(mapped.n_ranks()).without(chosen).iter().collect();
        tracing::info!(target: EPOCH, rank = %comm.rank(), n_ranks = comm.n_ranks(), ?lost, "gone on without the lost");
        // The launcher has not lost ranks that left.
        let is_lost = |rank: &&Rank| mapped.life(**rank).status() == LifeStatus::Lost;
        lost.iter().filter(is_lost).for_each(|lost| self.membership.report_loss(*lost));
        Ok(Shrunk { comm, lost })
    }

    /// Keeps the launcher link of `old` in this new communicator, whose ranks the launcher knows by
    /// `incarnations`.
    pub(super) fn succeed(&mut self, old: &Self, incarnations: Vec<Option<Incarnation>>) {
        self.alone().succeed(&old.membership, incarnations);
    }

    /// Returns the membership of this new communicator, which nothing else shares.
    pub(super) fn alone(&mut self) -> &mut JobMembership {
        Arc::get_mut(&mut self.membership).expect("a new communicator is alone on its membership")
    }

    /// Declares `rank` lost, though it may live: it hangs, or is stopped. That ends the epoch like
    /// a death. The others can go on without it ([`Communicator::shrink`]). If it wakes, it gets
    /// [`Error::Excluded`], and reaches nothing that the others share from then on.
    ///
    /// Two ranks that give each other up are both lost. Where each may wait for the other, let one
    /// decide.
    ///
    /// # Errors
    /// [`Error::InvalidRank`]; [`Error::InvalidArgument`] for this rank itself; [`Error::Excluded`]
    /// when it was given up itself.
    pub fn give_up(&self, rank: Rank) -> Result<()> {
        let context = self.context();
        let lost = self.member(rank)?;
        if lost == context.rank() {
            let expected = "another rank than the caller's own";
            return Err(Error::invalid("rank", rank.get().into(), expected));
        }
        if context.mapped().life(context.rank()).status() == LifeStatus::Lost {
            return Err(Error::Excluded);
        }
        self.membership.give_up(lost);
        Ok(())
    }
}

/// Joins the epoch of those who were chosen; `None` when the round has to be repeated.
fn enter(open: &OpenRound<'_>) -> Result<Option<Communicator>> {
    let OpenRound { survivor, round, chosen, epoch_id } = open;
    let own = match NewSegments::make(survivor.context, *chosen, *epoch_id) {
        Ok(own) => own,
        Err(error) => return fail(open, error),
    };
    survivor.offers[round.rank.index()].write(own.offer());
    if let Some(outcome) = open.offer(|| round.poll_offers(*chosen))? {
        return open.after(outcome);
    }
    let comm = match own.join(survivor.context, &survivor.offers, *chosen) {
        Ok(comm) => comm,
        Err(error) => return fail(open, error),
    };
    step("about to be ready");
    round.ready();
    step("ready");
    let outcome = open.wait(|| round.poll_outcome(*chosen)).or_else(|late| {
        // The others may have come together at the last moment: then this one is with them.
        match round.conclude(RoundOutcome::Repeated) {
            RoundOutcome::Together => Ok(RoundOutcome::Together),
            _ => Err(late),
        }
    })?;
    if outcome == RoundOutcome::Together { Ok(Some(comm)) } else { open.after(outcome) }
}

/// Ends the round with the failure of this member, unless it was for a death.
fn fail(open: &OpenRound<'_>, error: Error) -> Result<Option<Communicator>> {
    let own = open.own_failure();
    // The offer of a dead rank cannot be opened, and that is no survivor's failure.
    match open.await_reason().unwrap_or_else(|| open.round.conclude(own)) {
        stands if stands == own => Err(error),
        stands => open.after(stands),
    }
}

/// The segments that one member makes for the new epoch. They stay open until all have them.
struct NewSegments {
    epoch_id: EpochId,
    shape: HeapShape,
    rank: Rank,
    cores: CoreSet,
    segment: Segment,
    control: Option<Arc<Segment>>,
}

impl NewSegments {
    fn make(context: &RankContext, chosen: RankSet, epoch_id: EpochId) -> Result<Self> {
        let shape = HeapShape::new(chosen.len(), context.mapped().shape().len())?;
        let rank = Rank::new(chosen.place_of(context.rank()), chosen.len())?;
        let segment = EpochMapping::create_segment(epoch_id, rank, shape, &SegmentBacking::Anonymous)?;
        let is_first = rank.get() == 0;
        let control = is_first.then(|| Control::create(chosen.len(), epoch_id).map(|(_, segment)| segment));
        Ok(Self { epoch_id, shape, rank, cores: CoreSet::own(), segment, control: control.transpose()? })
    }

    fn offer(&self) -> [u64; OFFER_WORDS] {
        let number = |segment: &Segment| segment.as_fd().as_raw_fd().unsigned_abs().into();
        let Creator { pid, start } = Creator::this_process();
        let mut words = [0; OFFER_WORDS];
        let control = self.control.as_deref().map_or(0, number);
        words[..CORES].copy_from_slice(&[pid, start, number(&self.segment), control]);
        let cores: [u64; CONTRIBUTION_LEN / 8] = bytemuck::cast(*self.cores.bytes());
        words[CORES..].copy_from_slice(&cores);
        words
    }

    /// Opens the offers of all that were `chosen`. This member's own offer stays open until it
    /// returns from the round: the new epoch has descriptors of its own.
    fn join(&self, old: &RankContext, offers: &[OfferCell], chosen: RankSet) -> Result<Communicator> {
        let Self { epoch_id, shape, rank, cores, .. } = self;
        let offered: Vec<_> = chosen.iter().map(|rank| offers[rank.index()].read()).collect();
        let first = offered.first().expect("this rank is one of them");
        let theirs = Control::attach(open(first, first[CONTROL])?, shape.n_ranks(), *epoch_id)?;
        let segments = offered.iter().map(|words| open(words, words[SEGMENT])).collect::<Result<_>>()?;
        let mapped = EpochMapping::attach(*epoch_id, *shape, theirs, segments, &SegmentBacking::Anonymous)?;
        let all: Vec<_> = offered.iter().map(cores_of).collect();
        let params = JoinParams::with_proxy_threads(cores.spinners(&all), old.told_cores(), old.timeout());
        let mapped = Arc::new(mapped);
        LiveRank::announce(&mapped, *rank)?.join(&mapped, &params)
    }
}

fn cores_of(words: &[u64; OFFER_WORDS]) -> [u8; CONTRIBUTION_LEN] {
    bytemuck::cast_slice(&words[CORES..]).try_into().expect("of as many bytes")
}

/// Opens a descriptor of the process that made this offer. Attaching checks that it is the right
/// thing.
fn open(offer: &[u64; OFFER_WORDS], descriptor: u64) -> Result<OwnedFd> {
    const ACTION: &str = "opening the segment of another rank";
    let [pid, start, ..] = *offer;
    if !(Creator { pid, start }).is_alive() {
        return Err(Error::os(ACTION, Errno::ESRCH));
    }
    let flags = OFlag::O_NOCTTY | OFlag::O_NONBLOCK;
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(flags.bits())
        .open(format!("/proc/{pid}/fd/{descriptor}"));
    file.map(OwnedFd::from).map_err(|error| resource_error(ACTION, error))
}
