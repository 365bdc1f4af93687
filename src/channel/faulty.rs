//! What faults do that are injected: to a rank in its operations, to what it writes, and to triggers.
//!
//! Whoever may be struck asks here only where faults are planned ([`Fabric::is_faulty`], or an executor that was given some).

use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::fabric::Fabric;
use super::world::World;
use crate::error::{Error, Result};
use crate::faults::{Event, FaultKind, Injector, Strike, Struck};
use crate::heap::{HeapPlace, HeapView, Region};
use crate::rank::Rank;
use crate::sync::{ParkCell, Revocation, WaitPolicy, Waiting, wait_until};

impl Fabric {
    /// Counts the collective call `operation`, which the program has made, and has it suffer what is planned.
    ///
    /// # Errors
    /// Those of [`Fabric::enter_verb`] and of [`Fabric::can_call`].
    #[inline]
    pub(crate) fn enter(&self, operation: &'static str) -> Result<()> {
        if self.is_open() { Ok(()) } else { self.enter_slowly(operation) }
    }

    #[cold]
    fn enter_slowly(&self, operation: &'static str) -> Result<()> {
        self.can_call(operation)?;
        self.enter_verb(operation)
    }

    /// Counts `operation` on a channel of the program's own, as [`Fabric::enter_verb`] does, but not whether the rank has left: what has
    /// come by then can be taken, and what is done is done.
    ///
    /// # Errors
    /// [`Error::FaultInjected`].
    #[inline]
    pub(crate) fn enter_own(&self, is_own: bool, operation: &'static str) -> Result<()> {
        if !self.is_faulty() || !is_own { Ok(()) } else { self.undergo(Event::Operation(operation)) }
    }

    /// Counts `operation` on a channel, and has it suffer what is planned.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the rank has left the job; [`Error::FaultInjected`] when it is killed and is a thread.
    #[cold]
    pub(crate) fn enter_verb(&self, operation: &'static str) -> Result<()> {
        self.present(operation)?;
        self.undergo(Event::Operation(operation))
    }

    /// Has this rank suffer what is planned for `event`.
    ///
    /// # Errors
    /// [`Error::FaultInjected`].
    #[cold]
    pub(crate) fn undergo(&self, event: Event) -> Result<()> {
        let Some(injector) = self.injector() else { return Ok(()) };
        for struck in injector.draw(event)? {
            tell(self.world(), self.rank(), injector, struck.strike);
            match struck.strike.kind {
                FaultKind::Kill => self.die(injector, struck.strike)?,
                FaultKind::Delay => pause(self.world(), struck.time),
                _ => {}
            }
        }
        Ok(())
    }

    fn die(&self, injector: &Injector, strike: Strike) -> Result<()> {
        if !injector.is_thread() {
            kill_process();
        }
        injector.note_kill(strike);
        self.mark_own_loss();
        Err(Error::FaultInjected { strike })
    }

    /// Flips a bit of the `len` bytes at `place`, which were just written, where that is planned of what is written by this `name`.
    #[cold]
    pub(crate) fn damage(&self, name: &'static str, place: HeapPlace, len: u64) {
        if let Some(injector) = self.injector() {
            damage(self.world(), self.rank(), (injector, name), self.heap().view(), (place, len));
        }
    }
}

impl Fabric {
    /// Flips a bit of `bytes`, which are about to be written somewhere, where that is planned of what is written by this `name`.
    pub(crate) fn spoil(&self, name: &'static str, bytes: &mut [u8]) {
        let Some(injector) = self.injector().filter(|_| !bytes.is_empty()) else { return };
        for struck in injector.draw(Event::Write(name)).unwrap_or_default() {
            let bit = struck.lot % (bytes.len() as u64 * 8);
            bytes[usize::try_from(bit / 8).unwrap_or(0)] ^= 1 << (bit % 8);
            tell(self.world(), self.rank(), injector, struck.strike);
        }
    }
}

/// Flips a bit of what was written for `rank`, if a fault strikes it.
fn damage(
    world: &World,
    rank: Rank,
    (injector, name): (&Injector, &'static str),
    heaps: &HeapView,
    (place, len): (HeapPlace, u64),
) {
    if len == 0 {
        return;
    }
    // Only operations fail by a draw, writes do not.
    for struck in injector.draw(Event::Write(name)).unwrap_or_default() {
        let HeapPlace { rank: target, offset } = place;
        let bit = struck.lot % len.saturating_mul(8);
        let at = offset.get() + bit / 8;
        let Ok(span) = heaps.reach(target, Region::new(offset, len)) else { return };
        let flipped = span.read::<u8>(at).and_then(|byte| span.write(at, byte ^ 1 << (bit % 8)));
        if flipped.is_ok() {
            tell(world, rank, injector, struck.strike);
        }
    }
}

/// Tells whoever looks on, and the launcher.
fn tell(world: &World, rank: Rank, injector: &Injector, strike: Strike) {
    injector.tell(strike, &world.control().faults(rank));
}

/// Lets `time` pass, unless the epoch ends before.
fn pause(world: &World, time: Duration) {
    let policy = WaitPolicy { spins: 0, park_after: Duration::ZERO };
    let waiting = Waiting::new(world.kernel(), world.revocation(), policy, time);
    // That it times out is what it is for.
    let _over = wait_until(&waiting, &ParkCell::new(), || None::<()>);
}

/// What a crash does that nobody can catch.
fn kill_process() -> ! {
    let _killed = kill(Pid::this(), Signal::SIGKILL);
    std::process::abort()
}

/// What a proxy suffers, for the ranks that push into its fifos.
#[derive(Debug)]
pub(crate) struct ProxyFaults {
    /// By fifo.
    injectors: Vec<Option<Arc<Injector>>>,
    /// Whether the proxy is a process, which a stop ends.
    is_process: bool,
    is_stopped: bool,
}

/// What becomes of a trigger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Executed,
    Dropped,
    Refused,
}

impl ProxyFaults {
    /// Those of `injectors`, one for each fifo; `None` where nothing is planned.
    pub(crate) fn new(injectors: Vec<Option<Arc<Injector>>>, is_process: bool) -> Option<Self> {
        let any = injectors.iter().any(Option::is_some);
        any.then_some(Self { injectors, is_process, is_stopped: false })
    }

    fn of(&self, fifo: usize) -> Option<&Arc<Injector>> {
        self.injectors.get(fifo).and_then(Option::as_ref)
    }

    /// Counts a trigger of `rank` in `fifo`, and says what becomes of it.
    pub(super) fn strike(&mut self, world: &World, rank: Rank, fifo: usize) -> Fate {
        let Some(injector) = self.of(fifo).map(Arc::clone) else { return Fate::Executed };
        let mut fate = if self.is_stopped { Fate::Dropped } else { Fate::Executed };
        for Struck { strike, time, .. } in injector.draw(Event::Trigger).unwrap_or_default() {
            tell(world, rank, &injector, strike);
            match strike.kind {
                FaultKind::Delay => pause(world, time),
                FaultKind::Drop => fate = Fate::Dropped,
                FaultKind::Fail => fate = Fate::Refused,
                FaultKind::Stop | FaultKind::Kill => {
                    self.end(world, rank, &injector, strike);
                    fate = Fate::Dropped;
                }
                FaultKind::Corrupt => {}
            }
        }
        fate
    }

    /// Ends the proxy, or the rank whose thread it is.
    fn end(&mut self, world: &World, rank: Rank, injector: &Injector, strike: Strike) {
        let is_kill = strike.kind == FaultKind::Kill;
        if self.is_process || is_kill && !injector.is_thread() {
            kill_process();
        }
        self.is_stopped = true;
        let reason = if is_kill {
            injector.note_kill(strike);
            world.life(rank).mark_lost(world.kernel());
            Revocation::PeerLost(rank)
        } else {
            Revocation::ProxyLost
        };
        world.control().revoke(world.kernel(), reason);
    }

    /// Flips a bit of what a trigger of `rank` in `fifo` has written, where that is planned.
    pub(super) fn damage(
        &self,
        world: &World,
        rank: Rank,
        fifo: usize,
        heaps: &HeapView,
        (place, len): (HeapPlace, u64),
    ) {
        if let Some(injector) = self.of(fifo) {
            damage(world, rank, (injector, crate::faults::TRIGGER), heaps, (place, len));
        }
    }
}
