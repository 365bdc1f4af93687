//! What all channels of one rank stand on: the mapped epoch, its own heap, its seats, and how it waits.

use std::num::NonZeroU32;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::occupation;
use super::seat::Seats;
use super::world::World;
use crate::error::{Error, Result};
use crate::faults::Injector;
use crate::heap::SymmetricHeap;
use crate::observe::Report;
use crate::rank::{Rank, RankSet};
use crate::shm::{CellRef, HostKernel};
use crate::sync::atomic::AtomicU64;
use crate::sync::{
    ActivityCell, LifeStatus, ParkCell, Revocation, SemaphoreCell, SemaphoreReceiver, SleepWord, Stop,
    WaitPolicy, Waiting, WaitingIn, Watch, plain, spin_until, wait_until,
};
use crate::trace::{Note, Recorder, Verb};

/// The receiving side of a channel's semaphore.
pub(crate) type Inbound = SemaphoreReceiver<CellRef<SemaphoreCell>>;

/// One rank's view of a [`World`].
#[derive(Debug)]
pub(crate) struct Fabric {
    world: Arc<World>,
    rank: Rank,
    heap: SymmetricHeap,
    seats: Seats,
    /// How many threads that may spin share this rank's core.
    spinners: AtomicU64,
    /// Whether there was more than one from the start.
    crowded: bool,
    /// How many cores the ranks were told to count on, instead of those on which they may run.
    cores: Option<NonZeroU32>,
    /// Where the proxy service process sleeps, when it runs on this rank's core.
    service: Option<CellRef<ParkCell>>,
    /// Where this rank's proxy thread sleeps, once there is one.
    proxy: OnceLock<CellRef<ParkCell>>,
    timeout: Duration,
    /// [`LEFT`], [`FAULTY`], [`TRACED`] and [`ENDED`]; 0 as long as nothing is out of the ordinary.
    state: AtomicU64,
    /// What goes wrong on purpose.
    injector: OnceLock<Arc<Injector>>,
    /// Where this rank notes what it does.
    recorder: OnceLock<Recorder>,
    /// Whether data are checked on their way.
    checksums: OnceLock<()>,
    /// Whom this rank blames, if a wait has come to nothing.
    blamed: OnceLock<Blamed>,
}

/// A rank that lives or has left, and by which a wait of another one has come to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Blamed {
    pub(crate) rank: Rank,
    /// It held others up until the deadline had passed; otherwise it had left.
    pub(crate) is_late: bool,
}

/// The rank has left the job. Channels may outlive its communicators.
const LEFT: u64 = 1;

/// Faults are planned.
const FAULTY: u64 = 2;

/// What the rank does is noted.
const TRACED: u64 = 4;

/// This rank knows that the epoch has ended: a collective call of it has failed, and ended it, or a call was told.
const ENDED: u64 = 8;

impl Fabric {
    /// Looks at `world` as `rank`, which shares its core with `spinners` spinning threads in all, itself included.
    ///
    /// # Errors
    /// Those of [`SymmetricHeap::new`].
    pub(crate) fn new(world: Arc<World>, rank: Rank, spinners: u32, timeout: Duration) -> Result<Self> {
        let segment = Arc::clone(world.segment(rank));
        let heap = SymmetricHeap::new(Arc::clone(world.view(rank).window()), segment, rank, world.shape())?;
        let seats = Seats::new(world.n_ranks());
        let crowded = spinners > 1;
        let (spinners, state) = (AtomicU64::new(spinners.into()), AtomicU64::new(0));
        let (injector, recorder, checksums) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        Ok(Self {
            world,
            rank,
            heap,
            seats,
            spinners,
            crowded,
            cores: None,
            service: None,
            proxy: OnceLock::new(),
            timeout,
            state,
            injector,
            recorder,
            checksums,
            blamed: OnceLock::new(),
        })
    }

    /// The same, on the core of the proxy service process, which counts as long as it is awake.
    pub(crate) fn beside_service(self) -> Self {
        Self { service: Some(self.world.control().proxy_doorbell()), ..self }
    }

    /// The same, with as many spinning threads on its core as there are if the ranks have so many `cores`.
    pub(crate) fn counting_on(self, cores: NonZeroU32) -> Self {
        let spinners = self.world.n_ranks().div_ceil(cores.get());
        Self { spinners: AtomicU64::new(spinners.into()), crowded: spinners > 1, cores: Some(cores), ..self }
    }

    pub(crate) fn world(&self) -> &Arc<World> {
        &self.world
    }

    pub(crate) fn rank(&self) -> Rank {
        self.rank
    }

    pub(crate) fn heap(&self) -> &SymmetricHeap {
        &self.heap
    }

    pub(crate) fn seats(&self) -> &Seats {
        &self.seats
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    #[inline]
    pub(crate) fn kernel(&self) -> &HostKernel {
        self.world.kernel()
    }

    /// One more thread spins on this rank's core from now on.
    pub(crate) fn add_spinner(&self) {
        plain::add(&self.spinners, 1);
    }

    /// One that was added does not spin any more.
    pub(crate) fn remove_spinner(&self) {
        plain::add(&self.spinners, u64::MAX);
    }

    /// This rank has a proxy thread from now on, which sleeps on `doorbell` and counts as long as it is awake.
    pub(crate) fn host_proxy(&self, doorbell: CellRef<ParkCell>) {
        self.proxy.get_or_init(|| doorbell);
    }

    /// Whether this rank shares its core, with proxies left aside.
    pub(crate) fn crowded(&self) -> bool {
        self.crowded
    }

    /// How many cores it was told to count on, where it was.
    pub(crate) fn told_cores(&self) -> Option<NonZeroU32> {
        self.cores
    }

    #[inline]
    pub(crate) fn policy(&self) -> WaitPolicy {
        // Whoever pushes for a proxy that sleeps has marked it awake before it waits.
        let is_awake = |doorbell: &CellRef<ParkCell>| !doorbell.is_slept_on();
        let awake = |proxy: Option<&CellRef<ParkCell>>| u64::from(proxy.is_some_and(is_awake));
        let proxies = awake(self.service.as_ref()) + awake(self.proxy.get());
        let spinners = plain::load(&self.spinners).saturating_add(proxies);
        WaitPolicy::for_spinners(u32::try_from(spinners).unwrap_or(u32::MAX))
    }

    /// Semaphore number `index` of `rank`.
    pub(crate) fn semaphore(&self, rank: Rank, index: u32) -> Result<CellRef<SemaphoreCell>> {
        let semaphores = self.world.semaphores(rank);
        semaphores.get_ref(index as usize).ok_or(Error::OutOfRange {
            what: "semaphores of a rank",
            offset: index.into(),
            len: 1,
            limit: semaphores.len() as u64,
        })
    }

    /// Watches the epoch and, where one is awaited, a rank.
    pub(crate) fn watch(&self, awaited: Option<Rank>) -> PeerWatch<'_> {
        PeerWatch { world: &self.world, awaited }
    }

    /// The context of a wait that `watch` looks after.
    pub(crate) fn waiting<'a, W: Watch>(&'a self, watch: &'a W) -> Waiting<'a, HostKernel, W> {
        Waiting::new(self.kernel(), watch, self.policy(), self.timeout)
    }

    /// What this rank tells of itself to whoever looks on.
    pub(crate) fn activity(&self) -> &ActivityCell {
        self.world.activity(self.rank)
    }

    /// Tells that the `wait` which began at `since` is over, or why it was given up.
    #[cold]
    pub(crate) fn tell_end(&self, wait: &WaitingIn, since: Duration, stop: Option<Stop>) {
        let now = HostKernel::clock();
        if let Some(recorder) = self.recorder() {
            let took = plain::nanos(now.saturating_sub(since));
            let mut awaited = RankSet::from_bits(wait.awaited).iter();
            let (first, second) = (awaited.next(), awaited.next());
            let note = Note::of(Verb::LONG_WAIT);
            let note = first.filter(|_| second.is_none()).map_or(note, |peer| note.with(peer));
            recorder.note(took, note.failing(stop.is_some()));
        }
        match stop {
            Some(stop) => self.activity().give_up_wait(since, now, stop == Stop::Timeout),
            None => self.activity().end_wait(wait, since, now),
        }
    }

    /// Ends the epoch when a wait has come to nothing because a peer died, and returns the reason that was there first.
    ///
    /// This rank is about to leave in turn. Whoever waits for it then has to learn whom *it* lost, and so has the launcher:
    /// without this the first cause is anybody's guess when a wait notices before the life lock does. A peer that left
    /// of its own accord is lost to whoever waits for it and to nobody else; that it was is told when this rank leaves.
    ///
    /// A rank that is told of the end makes no collective call from then on. Peers have come to calls that they gave up, some of them to
    /// one that this rank has left by that error: it would meet them there in its next one, and take that for done.
    #[cold]
    pub(crate) fn settle(&self, stop: Stop) -> Stop {
        if stop == Stop::Timeout {
            return stop;
        }
        if let Stop::PeerLost(rank) = stop {
            match self.world.life(rank).status() {
                LifeStatus::Lost => self.world.control().revoke(self.kernel(), Revocation::PeerLost(rank)),
                LifeStatus::Left => self.blame(Blamed { rank, is_late: false }),
                LifeStatus::Absent | LifeStatus::Alive => {}
            }
        }
        let Some(reason) = self.world.revocation().check() else { return stop };
        plain::set_bits(&self.state, ENDED);
        if matches!(stop, Stop::PeerLost(_)) { reason } else { stop }
    }

    /// Notes the first one.
    fn blame(&self, blamed: Blamed) {
        self.blamed.get_or_init(|| blamed);
    }

    /// By whom the first wait of this rank has come to nothing that did, if that one was not lost.
    pub(crate) fn blamed(&self) -> Option<Blamed> {
        self.blamed.get().copied()
    }

    fn has_left(&self, rank: Rank) -> bool {
        self.world.life(rank).status() == LifeStatus::Left
    }

    /// The error of an `operation` that a wait gave up, while it waited for `awaited`; it names who holds all up, and what everybody is in.
    #[cold]
    pub(crate) fn error<W: Watch>(
        &self,
        waiting: &Waiting<'_, HostKernel, W>,
        stop: Stop,
        operation: &'static str,
        awaited: Option<Rank>,
    ) -> Error {
        let mut error = waiting.error(self.settle(stop), operation, awaited);
        if let Error::Timeout { straggler, report, .. } = &mut error {
            *straggler = self.world.straggler().filter(|rank| *rank != self.rank);
            if let Some(rank) = *straggler {
                self.blame(Blamed { rank, is_late: true });
            }
            *report = Report::of(&self.world).ok().map(Box::new);
        }
        error
    }

    /// The rank leaves the job: no channel can do anything from now on.
    pub(crate) fn leave(&self) {
        plain::set_bits(&self.state, LEFT);
    }

    /// Has faults injected from now on. Not while the rank leaves.
    pub(crate) fn inject(&self, injector: Arc<Injector>) {
        if self.injector.set(injector).is_ok() {
            plain::set_bits(&self.state, FAULTY);
        }
    }

    /// What injects faults, if any are planned.
    pub(crate) fn injector(&self) -> Option<&Arc<Injector>> {
        self.injector.get()
    }

    /// Notes from now on what this rank does, if it does not already. Not while the rank leaves.
    pub(crate) fn record(&self, recorder: Recorder) {
        if self.recorder.set(recorder).is_ok() {
            plain::set_bits(&self.state, TRACED);
        }
    }

    /// Notes from now on what this rank does, or does not, where it was to [`Fabric::record`]. Not while the rank leaves.
    pub(crate) fn set_tracing(&self, tracing: bool) {
        match self.recorder.get() {
            Some(_) if tracing => plain::set_bits(&self.state, TRACED),
            Some(_) => plain::clear_bits(&self.state, TRACED),
            None => {}
        }
    }

    /// Where this rank notes what it does when it does, if there is such a place.
    #[inline]
    pub(crate) fn any_recorder(&self) -> Option<&Recorder> {
        self.recorder.get()
    }

    /// Where this rank notes what it does, if it does.
    #[inline]
    pub(crate) fn recorder(&self) -> Option<&Recorder> {
        if plain::load(&self.state) & TRACED == 0 { None } else { self.recorder.get() }
    }

    /// Has data checked on their way from now on. Before anything is moved.
    pub(crate) fn take_checksums(&self) {
        self.checksums.get_or_init(|| ());
    }

    /// Whether data are checked on their way.
    pub(crate) fn takes_checksums(&self) -> bool {
        self.checksums.get().is_some()
    }

    /// Whether faults are planned.
    #[inline]
    pub(crate) fn is_faulty(&self) -> bool {
        plain::load(&self.state) & FAULTY != 0
    }

    /// Whether the rank is in the job, knows of no end of the epoch, and no faults are planned: then any operation may be entered.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        plain::load(&self.state) & (LEFT | FAULTY | ENDED) == 0
    }

    /// Ends the epoch as this rank's word: a collective call of it has failed, or the program has asked for it. It makes no other one
    /// then: peers that come late to the call that failed would take the next one's post for an answer to the one after.
    #[cold]
    pub(crate) fn abort(&self) {
        plain::set_bits(&self.state, ENDED);
        self.world.control().revoke(self.kernel(), Revocation::Aborted(Some(self.rank)));
    }

    /// Refuses a collective call when this rank knows that the epoch has ended.
    ///
    /// # Errors
    /// Those of [`Fabric::check`].
    #[cold]
    pub(crate) fn can_call(&self, operation: &'static str) -> Result<()> {
        if plain::load(&self.state) & ENDED == 0 { Ok(()) } else { self.check(operation) }
    }

    /// Whether the rank is in the job, knows of no end of the epoch, no faults are planned, and nothing is noted: then there is nothing to
    /// look up.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        plain::load(&self.state) == 0
    }

    /// Refuses `operation` when the rank has left the job.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    #[inline]
    pub(crate) fn present(&self, operation: &'static str) -> Result<()> {
        if plain::load(&self.state) & LEFT == 0 { Ok(()) } else { Err(absent(operation)) }
    }

    /// Refuses `operation` when the epoch has ended.
    ///
    /// # Errors
    /// [`Error::PeerLost`], [`Error::ProxyLost`], [`Error::Revoked`].
    pub(crate) fn check(&self, operation: &'static str) -> Result<()> {
        let watch = self.watch(None);
        let error = |stop| Err(self.error(&self.waiting(&watch), stop, operation, None));
        watch.check().map_or(Ok(()), error)
    }

    /// Ends the epoch because this rank unwinds with work enqueued: nobody is to wait for what it will never do.
    #[cold]
    pub(crate) fn mark_own_loss(&self) {
        self.world.life(self.rank).mark_lost(self.kernel());
        self.world.control().revoke(self.kernel(), Revocation::PeerLost(self.rank));
    }

    /// Takes one signal of `peer`: what `wait` is on either kind of channel, be it the program's own or not.
    ///
    /// # Errors
    /// Those of [`Fabric::wait_for_peer`].
    ///
    /// # Ordering
    /// Acquires everything the peer wrote before that signal (S1).
    #[inline]
    pub(crate) fn wait_for_signal(&self, is_own: bool, peer: Rank, inbound: &mut Inbound) -> Result<()> {
        if self.is_plain() {
            self.take_signal(peer, inbound)
        } else {
            self.take_signal_watched(is_own, peer, inbound)
        }
    }

    #[inline]
    fn take_signal(&self, peer: Rank, inbound: &mut Inbound) -> Result<()> {
        // A short wait is spent right here, without a watch and a deadline.
        if inbound.poll() || spin_until(self.policy(), || inbound.poll()) {
            return Ok(());
        }
        self.wait_for_peer("wait", peer, |waiting| inbound.wait(waiting))
    }

    // Not cold: who traces is in a hurry, too.
    #[inline(never)]
    fn take_signal_watched(&self, is_own: bool, peer: Rank, inbound: &mut Inbound) -> Result<()> {
        self.enter_own(is_own, "wait")?;
        let Some(recorder) = self.recorder() else { return self.take_signal(peer, inbound) };
        let sequence = inbound.consumed().wrapping_add(1);
        let note = Note::of(Verb::WAIT).with(peer).numbered(sequence);
        let begun = recorder.now();
        if inbound.poll() {
            // It was there already, so the wait took no time that the clock could tell.
            recorder.note_until(begun, begun, note);
            return Ok(());
        }
        let prepared = recorder.prepare(note);
        // A short wait is spent right here: the way back out of a long one would take as long again as noting it.
        if spin_until(self.policy(), || inbound.poll()) {
            recorder.note_prepared(begun, prepared);
            return Ok(());
        }
        let done = self.wait_for_peer("wait", peer, |waiting| inbound.wait(waiting));
        recorder.note_prepared(begun, prepared.failing(done.is_err()));
        done
    }

    /// Hands on what came of that which has begun then, if it did, and notes it.
    #[inline(always)]
    pub(crate) fn ended<T>(&self, begun: Option<u64>, note: Note, done: Result<T>) -> Result<T> {
        match (begun, self.recorder()) {
            (Some(begun), Some(recorder)) => recorder.ended(begun, note, done),
            _ => done,
        }
    }

    /// Runs `wait`, which waits in `operation` for something that `peer` does.
    ///
    /// # Errors
    /// [`Error::Timeout`], [`Error::PeerLost`], [`Error::Revoked`]; those of [`Fabric::present`].
    #[inline]
    pub(crate) fn wait_for_peer(
        &self,
        operation: &'static str,
        peer: Rank,
        wait: impl FnOnce(&Waiting<'_, HostKernel, ChannelWatch<'_>>) -> Result<(), Stop>,
    ) -> Result<()> {
        self.present(operation)?;
        let watch = ChannelWatch { fabric: self, operation, awaited: Some(peer) };
        let waiting = self.waiting(&watch);
        wait(&waiting).map_err(|stop| self.error(&waiting, stop, operation, Some(peer)))
    }

    /// Waits in `operation` for the proxy until `poll` returns something; the proxy wakes `park`. Where it is a thread
    /// of the rank `served_by`, it is gone when that rank has left.
    ///
    /// # Errors
    /// [`crate::Error::Timeout`], [`crate::Error::PeerLost`], [`crate::Error::ProxyLost`], [`crate::Error::Revoked`].
    pub(crate) fn wait_for_proxy<T>(
        &self,
        operation: &'static str,
        served_by: Option<Rank>,
        park: &ParkCell,
        poll: impl FnMut() -> Option<T>,
    ) -> Result<T> {
        let watch = ChannelWatch { fabric: self, operation, awaited: served_by };
        let waiting = self.waiting(&watch);
        wait_until(&waiting, park, poll).map_err(|stop| {
            let stop = match self.settle(stop) {
                // One that the others have given up is told that.
                Stop::PeerLost(rank) if Some(rank) == served_by && self.has_left(rank) => Stop::ProxyLost,
                stop => stop,
            };
            self.error(&waiting, stop, operation, None)
        })
    }

    /// Waits like [`Fabric::wait_for_proxy`] for something that wakes nobody, such as a packet: spins, yields, never sleeps.
    ///
    /// # Errors
    /// Those of [`Fabric::wait_for_proxy`].
    #[cold]
    pub(crate) fn wait_awake<T>(
        &self,
        operation: &'static str,
        awaited: Rank,
        poll: impl FnMut() -> Option<T>,
    ) -> Result<T> {
        self.present(operation)?;
        let watch = ChannelWatch { fabric: self, operation, awaited: Some(awaited) };
        let policy = WaitPolicy { park_after: Duration::MAX, ..self.policy() };
        let waiting = Waiting::new(self.kernel(), &watch, policy, self.timeout);
        let unused = ParkCell::new();
        wait_until(&waiting, &unused, poll)
            .map_err(|stop| self.error(&waiting, stop, operation, Some(awaited)))
    }
}

#[cold]
fn absent(operation: &'static str) -> Error {
    Error::Unavailable {
        operation,
        needs: "a communicator: the last one of this rank was finalized or dropped",
    }
}

/// Watches the epoch, and the life of the peer that is awaited.
#[derive(Debug)]
pub(crate) struct PeerWatch<'a> {
    world: &'a World,
    awaited: Option<Rank>,
}

impl Watch for PeerWatch<'_> {
    fn check(&self) -> Option<Stop> {
        if let Some(stop) = self.world.revocation().check() {
            return Some(stop);
        }
        let rank = self.awaited?;
        match self.world.life(rank).status() {
            LifeStatus::Lost | LifeStatus::Left => Some(Stop::PeerLost(rank)),
            LifeStatus::Absent | LifeStatus::Alive => None,
        }
    }

    fn bell(&self) -> Option<SleepWord<'_>> {
        Some(self.world.revocation().bell())
    }
}

/// The same for a wait on a channel, of which it tells whoever looks on.
#[derive(Debug)]
pub(crate) struct ChannelWatch<'a> {
    fabric: &'a Fabric,
    operation: &'static str,
    awaited: Option<Rank>,
}

impl Watch for ChannelWatch<'_> {
    fn check(&self) -> Option<Stop> {
        self.fabric.watch(self.awaited).check()
    }

    fn bell(&self) -> Option<SleepWord<'_>> {
        Some(self.fabric.world.revocation().bell())
    }

    fn begin(&self, since: Duration) {
        self.fabric.activity().begin_wait(&self.wait(), since);
    }

    fn end(&self, since: Duration, stop: Option<Stop>) {
        self.fabric.tell_end(&self.wait(), since, stop);
    }
}

impl ChannelWatch<'_> {
    fn wait(&self) -> WaitingIn {
        WaitingIn {
            call: None,
            kind: occupation::code_of(self.operation),
            step: 0,
            awaited: self.awaited.into_iter().collect::<RankSet>().bits(),
        }
    }
}
