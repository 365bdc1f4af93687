//! The effects of injected faults: on a rank in its operations, on what it writes, and on triggers.
//!
//! Whoever may be struck asks here only where faults are planned ([`RankContext::is_faulty`], or an
//! executor that was given some).

use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::context::RankContext;
use super::epoch::EpochMapping;
use crate::error::{Error, Result};
use crate::faults::{DrawnFault, FaultHit, FaultKind, FaultPoint, Injector, TRIGGER};
use crate::heap::{HeapPlace, Region};
use crate::rank::Rank;
use crate::sync::{ParkCell, Revocation, WaitPolicy, Waiting, wait_until};

impl RankContext {
    /// Counts the collective call `operation`, which the program has made, and has it suffer what
    /// is planned.
    ///
    /// # Errors
    /// Fails as [`RankContext::enter_verb`] or [`RankContext::can_call`] does.
    #[inline]
    pub(crate) fn enter(&self, operation: &'static str) -> Result<()> {
        if self.is_open() { Ok(()) } else { self.enter_slowly(operation) }
    }

    #[cold]
    fn enter_slowly(&self, operation: &'static str) -> Result<()> {
        self.can_call(operation)?;
        self.enter_verb(operation)
    }

    /// Counts `operation` on a channel of the program's own, as [`RankContext::enter_verb`] does,
    /// but not whether the rank has left: what has come by then can be taken, and what is done is
    /// done.
    ///
    /// # Errors
    /// [`Error::FaultInjected`]; those of [`RankContext::here`].
    #[inline]
    pub(crate) fn enter_own(&self, is_own: bool, operation: &'static str) -> Result<()> {
        self.here(operation)?;
        if !self.is_faulty() || !is_own { Ok(()) } else { self.inject(FaultPoint::Operation(operation)) }
    }

    /// Counts `operation` on a channel, and has it suffer what is planned.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the rank has left the job; [`Error::FaultInjected`] when it is
    /// killed and is a thread.
    #[cold]
    pub(crate) fn enter_verb(&self, operation: &'static str) -> Result<()> {
        self.present(operation)?;
        self.inject(FaultPoint::Operation(operation))
    }

    /// Injects the faults that are planned for `event`.
    ///
    /// # Errors
    /// [`Error::FaultInjected`].
    #[cold]
    pub(crate) fn inject(&self, event: FaultPoint) -> Result<()> {
        let Some(injector) = self.injector() else { return Ok(()) };
        for drawn in injector.draw(event)? {
            tell(self.mapped(), self.rank(), injector, drawn.hit);
            match drawn.hit.kind {
                FaultKind::Kill => self.die(injector, drawn.hit)?,
                FaultKind::Delay => pause(self.mapped(), drawn.time),
                _ => {}
            }
        }
        Ok(())
    }

    fn die(&self, injector: &Injector, hit: FaultHit) -> Result<()> {
        if !injector.is_thread() {
            kill_process();
        }
        injector.record_kill(hit);
        self.mark_own_loss();
        Err(Error::FaultInjected { hit })
    }

    /// Flips a bit of the `len` bytes at `place`, which were just written, where that is planned of
    /// what is written by this `name`.
    #[cold]
    pub(crate) fn damage(&self, name: &'static str, place: HeapPlace, len: u64) {
        if let Some(injector) = self.injector() {
            damage(self.mapped(), self.rank(), injector, name, place, len);
        }
    }
}

impl RankContext {
    /// Flips a bit of `bytes`, which are about to be written somewhere, where that is planned of
    /// what is written by this `name`.
    pub(crate) fn spoil(&self, name: &'static str, bytes: &mut [u8]) {
        let Some(injector) = self.injector().filter(|_| !bytes.is_empty()) else { return };
        for drawn in injector.draw(FaultPoint::Write(name)).unwrap_or_default() {
            let bit = drawn.random % (bytes.len() as u64 * 8);
            bytes[usize::try_from(bit / 8).unwrap_or(0)] ^= 1 << (bit % 8);
            tell(self.mapped(), self.rank(), injector, drawn.hit);
        }
    }
}

/// Flips a bit of what was written for `rank`, if a fault strikes it.
fn damage(
    mapped: &EpochMapping,
    rank: Rank,
    injector: &Injector,
    name: &'static str,
    place: HeapPlace,
    len: u64,
) {
    if len == 0 {
        return;
    }
    // Only operations fail by a draw, writes do not.
    for drawn in injector.draw(FaultPoint::Write(name)).unwrap_or_default() {
        let HeapPlace { rank: target, offset } = place;
        let bit = drawn.random % len.saturating_mul(8);
        let at = offset.get() + bit / 8;
        let Ok(span) = mapped.view(rank).reach(target, Region::new(offset, len)) else { return };
        let flipped = span.read::<u8>(at).and_then(|byte| span.write(at, byte ^ 1 << (bit % 8)));
        if flipped.is_ok() {
            tell(mapped, rank, injector, drawn.hit);
        }
    }
}

/// Tells observers and the launcher of `hit`.
fn tell(mapped: &EpochMapping, rank: Rank, injector: &Injector, hit: FaultHit) {
    injector.tell(hit, &mapped.control().faults(rank));
}

/// Lets `time` pass, unless the epoch ends before.
fn pause(mapped: &EpochMapping, time: Duration) {
    let policy = WaitPolicy { spins: 0, park_after: Duration::ZERO };
    let waiting = Waiting::new(mapped.kernel(), mapped.revocation(), policy, time);
    // This wait is for its time-out.
    let _over = wait_until(&waiting, &ParkCell::default(), || None::<()>);
}

/// Ends the process as a crash does that nobody can catch.
fn kill_process() -> ! {
    let _killed = kill(Pid::this(), Signal::SIGKILL);
    std::process::abort()
}

/// The faults of a proxy, by the ranks that push into its fifos.
#[derive(Debug)]
pub(crate) struct ProxyFaults {
    /// The injector of each fifo; `None` where nothing is planned.
    injectors: Vec<Option<Arc<Injector>>>,
    /// Whether the proxy is a process, which a stop ends.
    is_process: bool,
    is_stopped: bool,
}

/// The outcome of a trigger that a fault may have hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TriggerOutcome {
    Executed,
    Dropped,
    Refused,
}

impl ProxyFaults {
    /// Holds `injectors`, one for each fifo; `None` where nothing is planned.
    pub(crate) fn new(injectors: Vec<Option<Arc<Injector>>>, is_process: bool) -> Option<Self> {
        let any = injectors.iter().any(Option::is_some);
        any.then_some(Self { injectors, is_process, is_stopped: false })
    }

    fn of(&self, fifo: usize) -> Option<&Arc<Injector>> {
        self.injectors.get(fifo).and_then(Option::as_ref)
    }

    /// Counts a trigger of `rank` in `fifo`, and says what becomes of it.
    pub(super) fn inject(&mut self, mapped: &EpochMapping, rank: Rank, fifo: usize) -> TriggerOutcome {
        let Some(injector) = self.of(fifo).map(Arc::clone) else { return TriggerOutcome::Executed };
        let mut outcome = if self.is_stopped { TriggerOutcome::Dropped } else { TriggerOutcome::Executed };
        for DrawnFault { hit, time, .. } in injector.draw(FaultPoint::Trigger).unwrap_or_default() {
            tell(mapped, rank, &injector, hit);
            match hit.kind {
                FaultKind::Delay => pause(mapped, time),
                FaultKind::Drop => outcome = TriggerOutcome::Dropped,
                FaultKind::Fail => outcome = TriggerOutcome::Refused,
                FaultKind::Stop | FaultKind::Kill => {
                    self.end(mapped, rank, &injector, hit);
                    outcome = TriggerOutcome::Dropped;
                }
                FaultKind::Corrupt => {}
            }
        }
        outcome
    }

    /// Ends the proxy, or the rank whose thread it is.
    fn end(&mut self, mapped: &EpochMapping, rank: Rank, injector: &Injector, hit: FaultHit) {
        let is_kill = hit.kind == FaultKind::Kill;
        if self.is_process || is_kill && !injector.is_thread() {
            kill_process();
        }
        self.is_stopped = true;
        let reason = if is_kill {
            injector.record_kill(hit);
            mapped.life(rank).mark_lost(mapped.kernel());
            Revocation::PeerLost(rank)
        } else {
            Revocation::ProxyLost
        };
        mapped.control().revoke(mapped.kernel(), reason);
    }

    /// Flips a bit of what a trigger of `rank` in `fifo` has written, where that is planned.
    pub(super) fn damage(&self, mapped: &EpochMapping, rank: Rank, fifo: usize, place: HeapPlace, len: u64) {
        if let Some(injector) = self.of(fifo) {
            damage(mapped, rank, injector, TRIGGER, place, len);
        }
    }
}
