//! The proxy: a thread, in a device process or in a service process, that serves fifos until it is
//! told to stop.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use shmccl_proxy::{
    Fifo, FifoHeader, Handler, Position, Roster, Service, Slot, Trigger, TriggerKind, TriggerRefusal,
};

use super::epoch::EpochMapping;
use super::executor::Executor;
use super::inject::ProxyFaults;
use super::slot::MAX_CHANNELS_PER_PEER;
use crate::bootstrap::resource_error;
use crate::error::{Error, Result};
use crate::faults::{Faults, Injector};
use crate::heap::layout::{FIFO_SLOTS, FifoCells, N_FIFOS};
use crate::logs::PROXY;
use crate::rank::Rank;
use crate::shm::undivided::spawn;
use crate::shm::{CellRef, CellSlice};
use crate::sync::{Latch, ParkCell, Revocation, SleepWord, Stop, WaitPolicy, Waiting, Watch, wait_until};
use crate::trace::{Rings, TraceRing, TraceSpan, Verb};

/// A proxy that runs. Dropping it stops it, after everything pushed so far has been executed; when
/// the epoch has ended, after the trigger that it is at.
#[derive(Debug)]
pub(crate) struct ProxyThread {
    mapped: Arc<EpochMapping>,
    doorbell: CellRef<ParkCell>,
    stop: Arc<Latch>,
    thread: Option<JoinHandle<()>>,
}

/// How a proxy learns of producers and what they push.
#[derive(Clone, Debug)]
pub(crate) struct ProxyWaitPoint {
    /// Where it sleeps.
    pub(crate) doorbell: CellRef<ParkCell>,
    /// Where it is told which fifos are in use.
    pub(crate) roster: CellRef<Roster>,
}

impl ProxyWaitPoint {
    /// Returns the wait point of the proxy thread of `rank`.
    ///
    /// # Errors
    /// Does not fail in a job that is intact.
    pub(crate) fn of_thread(mapped: &EpochMapping, rank: Rank) -> Result<Self> {
        let cells = mapped.cells(rank);
        Ok(Self { doorbell: cells.fifo(0)?.doorbell, roster: cells.roster() })
    }

    /// Returns the wait point of the service process.
    pub(crate) fn of_process(mapped: &EpochMapping) -> Self {
        Self { doorbell: mapped.control().proxy_doorbell(), roster: mapped.control().proxy_roster() }
    }
}

/// The fifos that a proxy is there for, with the rank behind each; those of one rank follow each
/// other.
pub(crate) struct ServedFifos {
    pub(crate) owners: Vec<Rank>,
    pub(crate) fifos: Vec<FifoCells>,
    pub(crate) wait_point: ProxyWaitPoint,
}

impl ServedFifos {
    /// Returns the first `n_fifos` fifos of each of `ranks`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for more than there are.
    pub(crate) fn of(
        mapped: &EpochMapping,
        ranks: impl IntoIterator<Item = Rank>,
        n_fifos: u32,
        wait_point: ProxyWaitPoint,
    ) -> Result<Self> {
        let (mut owners, mut fifos) = (Vec::new(), Vec::new());
        for rank in ranks {
            for index in 0..n_fifos {
                owners.push(rank);
                fifos.push(mapped.cells(rank).fifo(index)?);
            }
        }
        Ok(Self { owners, fifos, wait_point })
    }
}

impl ProxyThread {
    /// Starts serving with `handler`, sharing a core as `policy` says.
    ///
    /// # Errors
    /// [`Error::ResourceLimit`] or [`Error::Os`] when there can be no thread; [`Error::Layout`]
    /// when a fifo is damaged.
    pub(crate) fn start<T: Handler + Send + 'static>(
        mapped: &Arc<EpochMapping>,
        served: ServedFifos,
        policy: WaitPolicy,
        handler: T,
    ) -> Result<Self> {
        let stop = Arc::new(Latch::default());
        let doorbell = served.wait_point.doorbell.clone();
        let mut server = Server::new(Arc::clone(mapped), served, Arc::clone(&stop), policy)?;
        let thread = spawn("shmccl-proxy", move || server.run(handler))
            .map_err(|source| resource_error("starting the proxy thread", source))?;
        Ok(Self { mapped: Arc::clone(mapped), doorbell, stop, thread: Some(thread) })
    }
}

impl Drop for ProxyThread {
    fn drop(&mut self) {
        self.stop.open(self.mapped.kernel());
        self.doorbell.wake(self.mapped.kernel());
        if let Some(thread) = self.thread.take() {
            // An error is a panic of the user's handler, which has been reported on its own thread.
            let _ = thread.join();
        }
    }
}

/// Serves every rank's fifos on the calling thread until all ranks have left or the epoch has
/// ended: the body of a service process, whose core `spinners` threads share, and which suffers
/// `faults`, and takes checksums if so. It notes what it does in `rings`, where there are any.
///
/// # Errors
/// Fails as [`ProxyThread::start`] does.
pub(crate) fn serve_all(
    mapped: &Arc<EpochMapping>,
    spinners: u32,
    faults: &Faults,
    checksums: bool,
    rings: Option<&Rings>,
) -> Result<()> {
    let ranks = (0..mapped.n_ranks()).map(Rank::known);
    let served = ServedFifos::of(mapped, ranks.clone(), N_FIFOS, ProxyWaitPoint::of_process(mapped))?;
    let injector = |rank| Injector::new(faults, rank, false).map(Arc::new);
    let of_each_fifo = |injector| std::iter::repeat_n(injector, N_FIFOS as usize);
    let injectors = ranks.map(injector).flat_map(of_each_fifo).collect();
    let handler = Executor::new(mapped, &served.owners)?
        .with_faults(ProxyFaults::new(injectors, true))
        .with_checksums(checksums);
    let lane = |rings| {
        served.owners.iter().map(|rank| TraceRing::of_proxy(rings, *rank, mapped.epoch_id().epoch)).collect()
    };
    let lanes: Option<Vec<_>> = rings.and_then(lane);
    let stop = Arc::new(Latch::default());
    let mut server = Server::new(Arc::clone(mapped), served, stop, WaitPolicy::for_spinners(spinners))?;
    match lanes {
        None => server.run(handler),
        Some(lanes) => server.run(Traced::new(handler, lanes)),
    }
    Ok(())
}

/// A proxy's handler that notes each trigger in the lane of the fifo that it comes from.
#[derive(Debug)]
pub(crate) struct Traced<T> {
    inner: T,
    /// One for each fifo, with the number of triggers so far.
    lanes: Vec<(TraceRing, u64)>,
}

impl<T> Traced<T> {
    pub(crate) fn new(inner: T, lanes: impl IntoIterator<Item = TraceRing>) -> Self {
        Self { inner, lanes: lanes.into_iter().map(|lane| (lane, 0)).collect() }
    }
}

impl<T: Handler> Handler for Traced<T> {
    fn handle(&mut self, fifo: usize, trigger: &Trigger) -> std::result::Result<(), TriggerRefusal> {
        let Some((lane, number)) = self.lanes.get_mut(fifo) else { return self.inner.handle(fifo, trigger) };
        *number += 1;
        let (begun, kind) = (lane.now(), trigger.kind());
        let done = self.inner.handle(fifo, trigger);
        // A trigger that only copies names its peer by the memory.
        let peer = u32::from(trigger.semaphore().get()) / MAX_CHANNELS_PER_PEER;
        let verb = if trigger.word_update().is_some() { Verb::WORD_UPDATE } else { Verb::trigger(kind) };
        let span = TraceSpan::of(verb).numbered(*number);
        let span = if kind.contains(TriggerKind::SIGNAL) { span.with(Rank::known(peer)) } else { span };
        let len = if kind.contains(TriggerKind::DATA) { trigger.transfer().len.get().into() } else { 0 };
        let span = span.of_bytes(len);
        lane.record(begun, lane.now(), span.failing(done.is_err()));
        done
    }

    fn refused(&mut self, fifo: usize, position: Position, trigger: &Trigger, refusal: TriggerRefusal) {
        self.inner.refused(fifo, position, trigger, refusal);
    }

    fn completed(&mut self, fifo: usize) {
        self.inner.completed(fifo);
    }

    fn is_over(&self) -> bool {
        self.inner.is_over()
    }
}

/// Ends a proxy's waits with the epoch, or when nobody is left who could push.
struct ServiceWatch<'a> {
    mapped: &'a EpochMapping,
    ranks: &'a [Rank],
}

impl Watch for ServiceWatch<'_> {
    fn check(&self) -> Option<Stop> {
        let gone = |rank: &Rank| self.mapped.life(*rank).status().is_gone();
        self.mapped
            .revocation()
            .check()
            .or_else(|| self.ranks.iter().all(gone).then_some(Stop::Revoked(None)))
    }

    fn bell(&self) -> Option<SleepWord<'_>> {
        Some(self.mapped.revocation().bell())
    }
}

/// A proxy's handler, as long as the epoch lasts: whoever goes on after it reads and writes the
/// heaps, and is not to find there what was pushed before. It wakes who has flushed in the middle
/// of a turn.
struct WithinEpoch<'a, T> {
    handler: &'a mut T,
    mapped: &'a EpochMapping,
    /// Where the producers of each fifo sleep.
    completions: &'a [CellRef<ParkCell>],
}

impl<T: Handler> Handler for WithinEpoch<'_, T> {
    #[inline]
    fn handle(&mut self, fifo: usize, trigger: &Trigger) -> std::result::Result<(), TriggerRefusal> {
        self.handler.handle(fifo, trigger)
    }

    fn refused(&mut self, fifo: usize, position: Position, trigger: &Trigger, refusal: TriggerRefusal) {
        self.handler.refused(fifo, position, trigger, refusal);
    }

    #[inline]
    fn completed(&mut self, fifo: usize) {
        self.completions[fifo].wake(self.mapped.kernel());
        self.handler.completed(fifo);
    }

    #[inline]
    fn is_over(&self) -> bool {
        self.mapped.revocation().check().is_some() || self.handler.is_over()
    }
}

/// The state of a proxy's thread.
struct Server {
    mapped: Arc<EpochMapping>,
    service: Service<CellRef<FifoHeader>, CellSlice<Slot>>,
    /// The owners of the fifos.
    ranks: Vec<Rank>,
    completions: Vec<CellRef<ParkCell>>,
    wait_point: ProxyWaitPoint,
    stop: Arc<Latch>,
    policy: WaitPolicy,
}

/// Revokes the epoch when the proxy's thread ends by a panic.
struct RevokeOnPanic {
    mapped: Arc<EpochMapping>,
}

impl Drop for RevokeOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.mapped.control().revoke(self.mapped.kernel(), Revocation::ProxyLost);
        }
    }
}

impl Server {
    fn new(
        mapped: Arc<EpochMapping>,
        served: ServedFifos,
        stop: Arc<Latch>,
        policy: WaitPolicy,
    ) -> Result<Self> {
        let ServedFifos { owners: mut ranks, fifos, wait_point } = served;
        ranks.dedup();
        let consumers =
            fifos.iter().map(|cells| Ok(open_fifo(cells)?.consumer())).collect::<Result<Vec<_>>>()?;
        let completions = fifos.into_iter().map(|cells| cells.completion).collect();
        Ok(Self { mapped, service: Service::new(consumers), ranks, completions, wait_point, stop, policy })
    }

    fn run<T: Handler>(&mut self, mut handler: T) {
        // A handler that panics takes the proxy with it: nobody is to wait for it.
        tracing::debug!(target: PROXY, owners = ?self.ranks, "a proxy serves");
        let alarm = RevokeOnPanic { mapped: Arc::clone(&self.mapped) };
        while self.wait(&mut handler) == Ok(true) {
            self.wake_producers(self.service.attended());
            // A proxy that always finds something to do has to look up all the same.
            if self.is_over() {
                break;
            }
        }
        self.drain(&mut handler);
        drop(alarm);
        tracing::debug!(target: PROXY, owners = ?self.ranks, "a proxy stops");
    }

    /// Serves a turn as soon as there is something to serve, be it never. Returns whether it has
    /// served one; otherwise it was told to stop.
    ///
    /// A position that its producer has reserved and not committed is waited for, too: a fifo has
    /// the producers of one process, which die together, and with them the epoch, or whoever could
    /// be kept waiting behind them.
    fn wait<T: Handler>(&mut self, handler: &mut T) -> Result<bool, Stop> {
        let Self { mapped, service, ranks, completions, wait_point, stop, policy } = self;
        let ProxyWaitPoint { doorbell, roster } = wait_point;
        let watch = ServiceWatch { mapped, ranks };
        let waiting = Waiting::new(mapped.kernel(), &watch, *policy, Duration::MAX);
        let mut handler = WithinEpoch { handler, mapped, completions };
        wait_until(&waiting, doorbell, || {
            service.attend(roster);
            if service.poll(&mut handler) > 0 { Some(true) } else { stop.is_open().then_some(false) }
        })
    }

    /// Returns whether it was told to stop, the epoch has ended, or nobody is left who could push.
    fn is_over(&self) -> bool {
        self.stop.is_open() || ServiceWatch { mapped: &self.mapped, ranks: &self.ranks }.check().is_some()
    }

    /// Executes what was pushed before the stop, unless the epoch has ended; what its producers
    /// never committed is given up.
    fn drain<T: Handler>(&mut self, handler: &mut T) {
        let goal = self.service.drain_goal();
        let Self { mapped, service, completions, .. } = self;
        service.drain(&goal, &mut WithinEpoch { handler, mapped, completions });
        self.wake_producers(0..self.completions.len());
    }

    fn wake_producers(&self, fifos: impl Iterator<Item = usize>) {
        for fifo in fifos {
            self.completions[fifo].wake(self.mapped.kernel());
        }
    }
}

/// Returns the fifo in `cells`.
///
/// # Errors
/// [`Error::Layout`] when its shared state makes no sense.
pub(crate) fn open_fifo(cells: &FifoCells) -> Result<Fifo<CellRef<FifoHeader>, CellSlice<Slot>>> {
    let (expected, found) = (FIFO_SLOTS, cells.slots.len() as u64);
    Fifo::new(cells.header.clone(), cells.slots.clone()).map_err(|_| Error::Layout {
        what: "fifo slots",
        expected,
        found,
    })
}

#[cfg(test)]
mod tests;
