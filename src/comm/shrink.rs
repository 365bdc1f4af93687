//! Going on after a loss: those who are left agree on who they are and come together in a new epoch.
//!
//! The old epoch's control segment is where they agree, in rounds (see [`regroup`](crate::sync::regroup)). Each survivor makes a
//! fresh segment, and the first of them a control segment, and offers where they can be had: by process and descriptor, since
//! the system lets processes of one user open each other's. So nobody else is needed, neither launcher nor host, and
//! a rank that was given up and wakes later has no way to what the others share now: it was never offered.

use std::fs::OpenOptions;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use super::Communicator;
use super::attach::{Seat, Terms};
use super::crowd::Cores;
use crate::bootstrap::{CONTRIBUTION_LEN, ProxyMode, SegmentBacking, resource_error};
use crate::channel::{Control, Era, Fabric, MAX_ROUNDS, World};
use crate::error::{Error, Result};
use crate::heap::layout::HeapShape;
use crate::rank::{Rank, RankSet};
use crate::shm::{CellRef, CellSlice, HostKernel, Segment};
use crate::sync::regroup::{OFFER_WORDS, OfferCell, Outcome, Round, RoundCell};
use crate::sync::{LifeStatus, ParkCell, Revocation, Stop, Watch, wait_until};

const SHRINK: &str = "shrink";

/// How many numbers the cores of a rank are.
const CORE_WORDS: usize = CONTRIBUTION_LEN / 8;

const _: () = assert!(3 + CORE_WORDS == OFFER_WORDS);

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
    /// before. This communicator can move nothing any more; but what is in its heaps can be read until it is dropped, also
    /// that of ranks that have died ([`Communicator::span`]). Channels and buffers belong to the epoch in which they were made.
    ///
    /// # Errors
    /// - [`Error::Timeout`]: the rank that it names has neither called it nor died. It can be called again, after
    ///   [`Communicator::give_up`] if that rank is not to be waited for.
    /// - [`Error::Excluded`]: the others have given this rank up, and go on without it.
    /// - [`Error::ResourceLimit`], [`Error::Os`]: here; [`Error::FailedElsewhere`] when it was on another rank. All get an error then,
    ///   and can call it again.
    /// - [`Error::Unavailable`]: this is not the job's first communicator, or has gone on already.
    /// - [`Error::Exhausted`]: it has failed too often.
    ///
    /// # Ordering
    /// What the others did before they called it has happened before it returns.
    pub fn shrink(&mut self) -> Result<Shrunk> {
        if self.meeting.is_none() {
            return Err(Error::Unavailable { operation: SHRINK, needs: "the first communicator of the job" });
        }
        self.reclaim_engine();
        self.revoke();
        Survivor::new(self.fabric()).go_on()
    }

    /// Declares `rank` lost, though it may live: it hangs, or is stopped. That ends the epoch, as a death does. The others
    /// can go on without it ([`Communicator::shrink`]); should it wake, it gets [`Error::PeerLost`] with its own number in the job,
    /// then [`Error::Excluded`], and can reach nothing that the others share from then on.
    ///
    /// # Errors
    /// [`Error::InvalidRank`]; [`Error::InvalidArgument`] for this rank itself.
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
        let life = fabric.world().life(lost);
        if matches!(life.status(), LifeStatus::Alive | LifeStatus::Lost) {
            life.mark_lost(fabric.kernel());
            fabric.world().control().revoke(fabric.kernel(), Revocation::PeerLost(lost));
        }
        Ok(())
    }
}

/// A member of an epoch that has ended.
struct Survivor<'a> {
    fabric: &'a Fabric,
    rounds: CellSlice<RoundCell>,
    park: CellRef<ParkCell>,
    offers: CellSlice<OfferCell>,
}

impl<'a> Survivor<'a> {
    fn new(fabric: &'a Fabric) -> Self {
        let control = fabric.world().control();
        let (rounds, park) = control.rounds();
        Self { fabric, rounds, park, offers: control.offers() }
    }

    fn go_on(&self) -> Result<Shrunk> {
        let mut candidates = RankSet::all(self.fabric.world().n_ranks());
        for number in 0..MAX_ROUNDS {
            match self.attempt(number, candidates)? {
                ControlFlow::Break(shrunk) => return Ok(shrunk),
                ControlFlow::Continue(chosen) => candidates = chosen,
            }
        }
        Err(Error::Exhausted { what: "rounds of going on after a loss", limit: MAX_ROUNDS })
    }

    /// Takes part in one round; goes on with those who were chosen in it when another one is needed.
    fn attempt(&self, number: u64, candidates: RankSet) -> Result<ControlFlow<Shrunk, RankSet>> {
        let cell =
            usize::try_from(number).ok().and_then(|number| self.rounds.get(number)).expect("a known round");
        if let (Some(outcome), Some(chosen)) = (cell.outcome(), cell.chosen()) {
            // Of an earlier call; or this rank was slow, and has been given up meanwhile.
            return match outcome {
                _ if !chosen.contains(self.fabric.rank()) => Err(Error::Excluded),
                Outcome::Together => {
                    Err(Error::Unavailable { operation: SHRINK, needs: "an epoch that nobody went on from" })
                }
                Outcome::Repeated | Outcome::Failed(_) => Ok(ControlFlow::Continue(chosen)),
            };
        }
        let world = self.fabric.world();
        let gone = |rank| matches!(world.life(rank).status(), LifeStatus::Lost | LifeStatus::Left);
        let (rank, kernel, park) = (self.fabric.rank(), self.fabric.kernel(), &*self.park);
        let round = Round { cell, rank, kernel, park, gone };
        round.come();
        let chosen = self.wait(|| round.choose(candidates), || round.missing(candidates))?;
        if !chosen.contains(rank) {
            return Err(Error::Excluded);
        }
        let era = Era { epoch: world.era().epoch + 1 + number, ..world.era() };
        match self.come_over(&round, chosen, era)? {
            Some(comm) => {
                let lost = RankSet::all(world.n_ranks()).without(chosen).iter().collect();
                Ok(ControlFlow::Break(Shrunk { comm, lost }))
            }
            None => Ok(ControlFlow::Continue(chosen)),
        }
    }

    /// Joins the epoch `era` of those who were chosen; `None` when the round has to be repeated.
    fn come_over<G: Fn(Rank) -> bool>(
        &self,
        round: &Round<'_, HostKernel, G>,
        chosen: RankSet,
        era: Era,
    ) -> Result<Option<Communicator>> {
        let judge = |outcome, error| match outcome {
            Outcome::Failed(rank) if rank == self.fabric.rank() => Err(error),
            Outcome::Failed(rank) => Err(Error::FailedElsewhere { operation: SHRINK, rank }),
            Outcome::Together | Outcome::Repeated => Ok(None),
        };
        let fail = |error| {
            // What a dead rank has offered cannot be had, and that is nobody's failure.
            let bereft = chosen.iter().any(|rank| (round.gone)(rank));
            let outcome = if bereft { Outcome::Repeated } else { Outcome::Failed(self.fabric.rank()) };
            judge(round.conclude(outcome), error)
        };
        let late = |error| {
            round.conclude(Outcome::Repeated);
            error
        };
        let laggard = || round.laggard(chosen);
        let own = match Own::make(self.fabric, chosen, era) {
            Ok(own) => own,
            Err(error) => return fail(error),
        };
        self.offers[self.fabric.rank().index()].write(own.offer());
        round.offer();
        if let Some(outcome) = self.wait(|| round.poll_offers(chosen), laggard).map_err(late)? {
            return judge(outcome, Error::Excluded);
        }
        let joined = match own.join(&self.offers, chosen) {
            Ok(joined) => joined,
            Err(error) => return fail(error),
        };
        round.ready();
        match self.wait(|| round.poll_outcome(chosen), laggard).map_err(late)? {
            Outcome::Together => joined.sit(self.fabric).map(Some),
            outcome => judge(outcome, Error::Excluded),
        }
    }

    /// Waits for the others; if that takes too long, `awaited` is whom it was for.
    fn wait<T>(&self, poll: impl FnMut() -> Option<T>, awaited: impl FnOnce() -> Option<Rank>) -> Result<T> {
        let waiting = self.fabric.waiting(&Aftermath);
        wait_until(&waiting, &self.park, poll).map_err(|stop| waiting.error(stop, SHRINK, awaited()))
    }
}

/// Watches nothing: the epoch has ended, and who is gone is seen by whoever polls.
struct Aftermath;

impl Watch for Aftermath {
    fn check(&self) -> Option<Stop> {
        None
    }
}

/// What one member makes for the new epoch. It has to stay open until all have it.
struct Own {
    era: Era,
    shape: HeapShape,
    rank: Rank,
    cores: Cores,
    segment: Segment,
    control: Option<Segment>,
}

impl Own {
    fn make(fabric: &Fabric, chosen: RankSet, era: Era) -> Result<Self> {
        let shape = HeapShape::new(chosen.len(), fabric.world().shape().len())?;
        let rank = Rank::new(chosen.place_of(fabric.rank()), chosen.len())?;
        let segment = World::create_segment(era, rank, shape, &SegmentBacking::Anonymous)?;
        let is_first = rank.get() == 0;
        let control = is_first.then(|| Control::create(chosen.len(), era).map(|(_, segment)| segment));
        Ok(Self { era, shape, rank, cores: Cores::own(), segment, control: control.transpose()? })
    }

    fn offer(&self) -> [u64; OFFER_WORDS] {
        let number = |segment: &Segment| segment.as_fd().as_raw_fd().unsigned_abs().into();
        let mut words = [0; OFFER_WORDS];
        words[0] = std::process::id().into();
        words[1] = number(&self.segment);
        words[2] = self.control.as_ref().map_or(0, number);
        for (word, bytes) in words[3..].iter_mut().zip(self.cores.bytes().chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().expect("of 8 bytes"));
        }
        words
    }

    /// Takes what all who were `chosen` have offered.
    fn join(self, offers: &[OfferCell], chosen: RankSet) -> Result<Joined> {
        let Self { era, shape, rank, cores, segment, control } = self;
        let offered: Vec<_> = chosen.iter().map(|rank| offers[rank.index()].read()).collect();
        let first = offered.first().expect("this rank is one of them");
        let theirs = Control::attach(open(first[0], first[2])?, shape.n_ranks(), era)?;
        let segments = offered.iter().map(|words| open(words[0], words[1])).collect::<Result<_>>()?;
        let world = Arc::new(World::attach(era, shape, theirs, segments, &SegmentBacking::Anonymous)?);
        let all: Vec<_> = offered.iter().map(cores_of).collect();
        let seat = Seat::take(&world, rank)?;
        Ok(Joined { world, seat, spinners: cores.spinners(&all), _offered: (segment, control) })
    }
}

/// A member of the new epoch that does not know yet whether all others are.
struct Joined {
    world: Arc<World>,
    seat: Seat,
    spinners: u32,
    _offered: (Segment, Option<Segment>),
}

impl Joined {
    fn sit(self, old: &Fabric) -> Result<Communicator> {
        let terms = Terms { mode: ProxyMode::Thread, spinners: self.spinners, timeout: old.timeout() };
        self.seat.sit(&self.world, &terms, None, None)
    }
}

fn cores_of(words: &[u64; OFFER_WORDS]) -> [u8; CONTRIBUTION_LEN] {
    let mut bytes = [0; CONTRIBUTION_LEN];
    for (bytes, word) in bytes.chunks_exact_mut(8).zip(&words[3..]) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// Opens once more what another process has open. That it is the right thing is checked by whoever attaches it.
fn open(pid: u64, descriptor: u64) -> Result<OwnedFd> {
    let path = format!("/proc/{pid}/fd/{descriptor}");
    let file = OpenOptions::new().read(true).write(true).open(path);
    file.map(OwnedFd::from).map_err(|error| resource_error("opening the segment of another rank", error))
}
