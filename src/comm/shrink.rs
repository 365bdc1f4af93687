//! Going on after a loss: those who are left agree on who they are and come together in a new epoch.
//!
//! The old epoch's control segment is where they agree, in rounds (see [`regroup`](crate::sync::regroup)). Each survivor makes a
//! fresh segment, and the first of them a control segment, and offers where they can be had: by process and descriptor, since
//! the system lets processes of one user open each other's. So nobody else is needed, neither launcher nor host.
//! A rank that was given up and wakes later maps the old epoch only, and is told at its next look that it was not chosen.

use std::fs::OpenOptions;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::OFlag;

use super::Communicator;
use super::attach::{JoinParams, LiveRank};
use super::launcher_link::Incarnation;
use super::membership::JobMembership;
use super::oversubscription::CoreSet;
use super::survivor::{OpenRound, Survivor};
use crate::bootstrap::{CONTRIBUTION_LEN, ProxyMode, SegmentBacking, resource_error};
use crate::channel::{Control, Era, Fabric, World};
use crate::error::{Error, Result};
use crate::heap::layout::HeapShape;
use crate::logs::{EPOCH, step};
use crate::rank::{Rank, RankSet};
use crate::shm::Segment;
use crate::sync::LifeStatus;
use crate::sync::header::Creator;
use crate::sync::regroup::{OFFER_WORDS, OfferCell, RoundOutcome};

const SHRINK: &str = "shrink";

/// Where an offer has what: first the process, by id and start, then descriptors, then the cores.
const SEGMENT: usize = 2;
const CONTROL: usize = 3;
const CORES: usize = 4;

const _: () = assert!(CORES + CONTRIBUTION_LEN / 8 == OFFER_WORDS);

/// What came of [`Communicator::shrink`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Shrunk {
    /// The communicator of those who go on.
    pub comm: Communicator,
    /// Who does not, as the communicator before numbers them, in order. The same on all who go on.
    pub lost: Vec<Rank>,
}

impl Communicator {
    /// Goes on without the ranks that are gone: those who are left come together in a new epoch, with fresh segments, and are
    /// numbered anew in the order of their ranks. To be called by all of them, through the job's first communicator, once a call
    /// has failed with [`Error::PeerLost`] or the like; where the epoch has not ended yet, this ends it.
    ///
    /// It waits until every rank of this communicator has called it, has left, or is lost. Nobody is needed in particular, and a
    /// death in the middle of it only makes it start over. All who go on are told the same ranks to be lost.
    ///
    /// The new heap is as long as the old one and empty. Its segments are anonymous and its proxies threads, whatever they were
    /// before; tables and algorithms are to be set anew. This communicator can move nothing any more, nor can those derived from
    /// it; but what is in its heaps can be read until it is dropped, also that of ranks that have died ([`Communicator::span`]).
    /// Who has called this writes there no more; a rank that was given up in the middle of a call may still write into outputs of that.
    /// Channels, buffers and streams belong to the epoch in which they were made; what streams have begun is waited for first.
    ///
    /// The launcher goes on as well only if it [keeps going](crate::launch::Launch::keep_going); that holds too where it starts ranks
    /// again ([`Launch::restart`](crate::launch::Launch::restart)), which it does until no restart is left, though nobody takes them
    /// back.
    ///
    /// Ranks open each other's segments in `/proc`, which the system allows to processes of one user that may be traced (not
    /// after `PR_SET_DUMPABLE`) and see each other's process ids.
    ///
    /// # Errors
    /// - [`Error::Timeout`]: the rank that it names has neither called it nor died. It can be called again, after
    ///   [`Communicator::give_up`] if that rank is not to be waited for.
    /// - [`Error::Excluded`]: the others have given this rank up, and go on without it.
    /// - [`Error::Revoked`]: the launcher is gone, and nobody goes on.
    /// - [`Error::ResourceLimit`], [`Error::Os`]: here; [`Error::FailedElsewhere`] when it was on another rank. All get an error then,
    ///   and can call it again.
    /// - [`Error::Unavailable`]: this is not the job's first communicator, or has gone on already.
    /// - [`Error::Exhausted`]: it has failed too often.
    ///
    /// # Ordering
    /// What the others did before they called it has happened before it returns.
    pub fn shrink(&mut self) -> Result<Shrunk> {
        if self.job_barrier.is_none() {
            return Err(Error::Unavailable { operation: SHRINK, needs: "the first communicator of the job" });
        }
        self.revoke();
        self.reclaim_engine();
        let survivor = Survivor::new(self.fabric(), SHRINK, self.membership.launcher_state());
        let (mut comm, chosen) = survivor.continue_with(|round, chosen, number| {
            let era = survivor.era_after(number);
            EpochTransition { survivor: &survivor, round, chosen, era }.enter()
        })?;
        comm.succeed(self, chosen.iter().map(|rank| self.membership.incarnations[rank.index()]).collect());
        let world = self.fabric().world();
        let lost: Vec<_> = RankSet::all(world.n_ranks()).without(chosen).iter().collect();
        tracing::info!(target: EPOCH, rank = %comm.rank(), n_ranks = comm.n_ranks(), ?lost, "gone on without the lost");
        // Those who left in peace are not lost to the launcher.
        let is_lost = |rank: &&Rank| world.life(**rank).status() == LifeStatus::Lost;
        lost.iter().filter(is_lost).for_each(|lost| self.membership.report_loss(*lost));
        Ok(Shrunk { comm, lost })
    }

    /// Keeps the line to the launcher that `old` has, in this new communicator, whose ranks the launcher knows by `numbers`.
    pub(super) fn succeed(&mut self, old: &Self, incarnations: Vec<Option<Incarnation>>) {
        self.alone().succeed(&old.membership, incarnations);
    }

    /// The membership that this new communicator is alone on.
    pub(super) fn alone(&mut self) -> &mut JobMembership {
        Arc::get_mut(&mut self.membership).expect("a new communicator is alone on its membership")
    }

    /// Declares `rank` lost, though it may live: it hangs, or is stopped. That ends the epoch, as a death does. The others
    /// can go on without it ([`Communicator::shrink`]); should it wake, it finds the epoch ended, gets [`Error::Excluded`] there,
    /// and can reach nothing that the others share from then on.
    ///
    /// Two ranks that give each other up are both lost. Where each may wait for the other, let one decide.
    ///
    /// # Errors
    /// [`Error::InvalidRank`]; [`Error::InvalidArgument`] for this rank itself; [`Error::Excluded`] when it was given up itself.
    pub fn give_up(&self, rank: Rank) -> Result<()> {
        let fabric = self.fabric();
        let lost = self.member(rank)?;
        if lost == fabric.rank() {
            let (name, value) = ("rank", rank.get().into());
            return Err(Error::InvalidArgument {
                name,
                value,
                expected: "another rank than the caller's own",
            });
        }
        if fabric.world().life(fabric.rank()).status() == LifeStatus::Lost {
            return Err(Error::Excluded);
        }
        self.membership.give_up(lost);
        Ok(())
    }
}

/// A member's way into the epoch `era` of those who were chosen.
struct EpochTransition<'s> {
    survivor: &'s Survivor<'s>,
    round: &'s OpenRound<'s>,
    chosen: RankSet,
    era: Era,
}

impl EpochTransition<'_> {
    /// Joins the epoch; `None` when the round has to be repeated.
    fn enter(&self) -> Result<Option<Communicator>> {
        let Self { survivor, round, chosen, era } = self;
        let laggard = || round.first_incomplete(*chosen);
        let own = match NewSegments::make(survivor.fabric, *chosen, *era) {
            Ok(own) => own,
            Err(error) => return self.fail(error),
        };
        survivor.offers[survivor.fabric.rank().index()].write(own.offer());
        step("about to offer");
        round.offer();
        step("offered");
        match survivor.wait(|| round.poll_offers(*chosen), laggard) {
            Ok(None) => {}
            Ok(Some(outcome)) => return survivor.after(outcome),
            Err(late) => {
                round.conclude(RoundOutcome::Repeated);
                return Err(late);
            }
        }
        let comm = match own.join(survivor.fabric, &survivor.offers, *chosen) {
            Ok(comm) => comm,
            Err(error) => return self.fail(error),
        };
        step("about to be ready");
        round.ready();
        step("ready");
        let outcome = survivor.wait(|| round.poll_outcome(*chosen), laggard);
        // The others may have come together at the last moment: then this one is with them.
        match outcome.or_else(|late| {
            Some(round.conclude(RoundOutcome::Repeated))
                .filter(|stands| *stands == RoundOutcome::Together)
                .ok_or(late)
        })? {
            RoundOutcome::Together => Ok(Some(comm)),
            outcome => survivor.after(outcome),
        }
    }

    /// Ends the round with the failure of this member, unless it was for a death.
    fn fail(&self, error: Error) -> Result<Option<Communicator>> {
        let Self { survivor, round, .. } = self;
        let own = RoundOutcome::Failed(survivor.fabric.rank());
        // What a dead rank has offered cannot be had, and that is nobody's failure.
        match survivor.await_reason(round, self.chosen).unwrap_or_else(|| round.conclude(own)) {
            stands if stands == own => Err(error),
            stands => survivor.after(stands),
        }
    }
}

/// What one member makes for the new epoch. It has to stay open until all have it.
struct NewSegments {
    era: Era,
    shape: HeapShape,
    rank: Rank,
    cores: CoreSet,
    segment: Segment,
    control: Option<Arc<Segment>>,
}

impl NewSegments {
    fn make(fabric: &Fabric, chosen: RankSet, era: Era) -> Result<Self> {
        let shape = HeapShape::new(chosen.len(), fabric.world().shape().len())?;
        let rank = Rank::new(chosen.place_of(fabric.rank()), chosen.len())?;
        let segment = World::create_segment(era, rank, shape, &SegmentBacking::Anonymous)?;
        let is_first = rank.get() == 0;
        let control = is_first.then(|| Control::create(chosen.len(), era).map(|(_, segment)| segment));
        Ok(Self { era, shape, rank, cores: CoreSet::own(), segment, control: control.transpose()? })
    }

    fn offer(&self) -> [u64; OFFER_WORDS] {
        let number = |segment: &Segment| segment.as_fd().as_raw_fd().unsigned_abs().into();
        let Creator { pid, start } = Creator::this_process();
        let mut words = [0; OFFER_WORDS];
        words[..CORES].copy_from_slice(&[
            pid,
            start,
            number(&self.segment),
            self.control.as_deref().map_or(0, number),
        ]);
        for (word, bytes) in words[CORES..].iter_mut().zip(self.cores.bytes().chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().expect("of 8 bytes"));
        }
        words
    }

    /// Takes what all who were `chosen` have offered. What this member offers stays open until it returns from the round: the
    /// world of the new epoch has a descriptor of its own of all segments.
    fn join(&self, old: &Fabric, offers: &[OfferCell], chosen: RankSet) -> Result<Communicator> {
        let Self { era, shape, rank, cores, .. } = self;
        let offered: Vec<_> = chosen.iter().map(|rank| offers[rank.index()].read()).collect();
        let first = offered.first().expect("this rank is one of them");
        let theirs = Control::attach(open(first, first[CONTROL])?, shape.n_ranks(), *era)?;
        let segments = offered.iter().map(|words| open(words, words[SEGMENT])).collect::<Result<_>>()?;
        let world = World::attach(*era, *shape, theirs, segments, &SegmentBacking::Anonymous)?;
        let all: Vec<_> = offered.iter().map(cores_of).collect();
        let terms = JoinParams {
            mode: ProxyMode::Thread,
            spinners: cores.spinners(&all),
            cores: old.told_cores(),
            beside_service: false,
            timeout: old.timeout(),
        };
        let world = Arc::new(world);
        LiveRank::announce(&world, *rank)?.join(&world, &terms, None, None)
    }
}

fn cores_of(words: &[u64; OFFER_WORDS]) -> [u8; CONTRIBUTION_LEN] {
    let mut bytes = [0; CONTRIBUTION_LEN];
    for (bytes, word) in bytes.chunks_exact_mut(8).zip(&words[CORES..]) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// Opens once more what the process that has made this offer has open there. That it is the right thing is checked by
/// whoever attaches it.
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
