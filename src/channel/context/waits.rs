//! How a rank waits for its peers and for proxies, and what it makes of a wait that has come to
//! nothing.

use std::time::Duration;

use super::condition::ENDED;
use super::watches::{ChannelWait, EpochWatch};
use super::{Blamed, Inbound, RankContext};
use crate::channel::wait_kind::WaitKind;
use crate::error::{Error, Result};
use crate::rank::Rank;
use crate::shm::HostKernel;
use crate::sync::{
    LifeStatus, ParkCell, Revocation, Stop, WaitPolicy, Waiting, WaitingIn, Watch, plain, spin_until,
    wait_until,
};
use crate::trace::{TraceSpan, Verb};

impl RankContext {
    /// Tells that the `wait` which began at `since` is over, or why it was given up.
    #[cold]
    pub(crate) fn tell_end(&self, wait: &WaitingIn, since: Duration, stop: Option<Stop>) {
        let now = HostKernel::clock();
        if let Some(recorder) = self.recorder() {
            let took = plain::nanos(now.saturating_sub(since));
            let mut awaited = wait.awaited.iter();
            let (first, second) = (awaited.next(), awaited.next());
            let span = TraceSpan::of(Verb::LONG_WAIT);
            let span = first.filter(|_| second.is_none()).map_or(span, |peer| span.with(peer));
            recorder.record(took, span.failing(stop.is_some()));
        }
        match stop {
            Some(stop) => self.activity().give_up_wait(since, now, stop == Stop::Timeout),
            None => self.activity().end_wait(wait, since, now),
        }
    }

    /// Ends the epoch when a wait has come to nothing because a peer died, and returns the reason
    /// that was there first.
    ///
    /// This rank is about to leave in turn. Whoever waits for it then has to learn whom *it* lost,
    /// and so has the launcher: without this the first cause is anybody's guess when a wait notices
    /// before the life lock does. A peer that left of its own accord is lost to whoever waits for
    /// it and to nobody else; that it was is told when this rank leaves.
    ///
    /// A rank that is told of the end makes no collective call from then on. Peers have come to
    /// calls that they gave up, some of them to one that this rank has left by that error: it would
    /// meet them there in its next one, and take that for done.
    #[cold]
    pub(crate) fn settle(&self, stop: Stop) -> Stop {
        if matches!(stop, Stop::Timeout | Stop::Cancelled) {
            return stop;
        }
        if let Stop::PeerLost(rank) = stop {
            match self.mapped.life(rank).status() {
                LifeStatus::Lost => self.mapped.control().revoke(self.kernel(), Revocation::PeerLost(rank)),
                LifeStatus::Left => self.blame(Blamed { rank, is_late: false }),
                LifeStatus::Absent | LifeStatus::Alive => {}
            }
        }
        let Some(reason) = self.mapped.revocation().check() else { return stop };
        plain::set_bits(&self.state.word, ENDED);
        if matches!(stop, Stop::PeerLost(_)) { reason } else { stop }
    }

    /// Notes the first one.
    fn blame(&self, blamed: Blamed) {
        self.blamed.get_or_init(|| blamed);
    }

    /// Returns the rank that the first failed wait of this rank has found to hold it up, unless
    /// that rank was lost.
    pub(crate) fn blamed(&self) -> Option<Blamed> {
        self.blamed.get().copied()
    }

    fn has_left(&self, rank: Rank) -> bool {
        self.mapped.life(rank).status() == LifeStatus::Left
    }

    /// Returns the error of an `operation` that a wait gave up, while it waited for `awaited`; it
    /// names who holds all up, and what everybody is in.
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
            *report = self.observe();
            *straggler =
                report.as_ref().and_then(|report| report.straggler()).filter(|rank| *rank != self.rank);
            if let Some(rank) = *straggler {
                self.blame(Blamed { rank, is_late: true });
            }
        }
        error
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

    /// Returns the error of a member of `operation` when `rank` has told it of a failure: that, or
    /// the end of the epoch, by which `rank` may have failed.
    pub(crate) fn failed_elsewhere(&self, operation: &'static str, rank: Rank) -> Error {
        self.check(operation).err().unwrap_or(Error::FailedElsewhere { operation, rank })
    }

    /// Takes one signal of `peer`: what `wait` is on either kind of channel, be it the program's
    /// own or not.
    ///
    /// # Errors
    /// Fails as [`RankContext::wait_for_peer`] does.
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
        self.wait_for_peer(WaitKind::Wait, peer, |waiting| inbound.wait(waiting))
    }

    // Not `#[cold]`: tracing has to stay cheap.
    #[inline(never)]
    fn take_signal_watched(&self, is_own: bool, peer: Rank, inbound: &mut Inbound) -> Result<()> {
        self.enter_own(is_own, "wait")?;
        let Some(recorder) = self.recorder() else { return self.take_signal(peer, inbound) };
        let sequence = inbound.consumed().wrapping_add(1);
        let span = TraceSpan::of(Verb::WAIT).with(peer).numbered(sequence);
        let begun = recorder.now();
        if inbound.poll() {
            // It was there already, so the wait took no time that the clock could tell.
            recorder.record_until(begun, begun, span);
            return Ok(());
        }
        let reserved = recorder.reserve(span);
        // A short wait is spent right here: the way back out of a long one would take as long again
        // as noting it.
        if spin_until(self.policy(), || inbound.poll()) {
            recorder.record_reserved(begun, reserved);
            return Ok(());
        }
        let done = self.wait_for_peer(WaitKind::Wait, peer, |waiting| inbound.wait(waiting));
        recorder.record_reserved(begun, reserved.failing(done.is_err()));
        done
    }

    /// Hands on what came of that which has begun then, if it did, and notes it.
    #[inline(always)]
    pub(crate) fn ended<T>(&self, begun: Option<u64>, span: TraceSpan, done: Result<T>) -> Result<T> {
        match (begun, self.recorder()) {
            (Some(begun), Some(recorder)) => recorder.ended(begun, span, done),
            _ => done,
        }
    }

    /// Runs `wait`, which is of this `kind`, for something that `peer` does.
    ///
    /// # Errors
    /// [`Error::Timeout`], [`Error::PeerLost`], [`Error::Revoked`]; those of
    /// [`RankContext::present`].
    #[inline]
    pub(crate) fn wait_for_peer(
        &self,
        kind: WaitKind,
        peer: Rank,
        wait: impl FnOnce(&Waiting<'_, HostKernel, EpochWatch<ChannelWait<'_>>>) -> Result<(), Stop>,
    ) -> Result<()> {
        self.present(kind.name())?;
        let watch = EpochWatch(ChannelWait { context: self, kind, awaited: Some(peer) });
        let waiting = self.waiting(&watch);
        wait(&waiting).map_err(|stop| self.error(&waiting, stop, kind.name(), Some(peer)))
    }

    /// Waits for the proxy until `poll` returns something; the proxy wakes `park`. Where it is a
    /// thread of the rank `served_by`, it is gone when that rank has left.
    ///
    /// # Errors
    /// [`crate::Error::Timeout`], [`crate::Error::PeerLost`], [`crate::Error::ProxyLost`],
    /// [`crate::Error::Revoked`].
    pub(crate) fn wait_for_proxy<T>(
        &self,
        kind: WaitKind,
        served_by: Option<Rank>,
        park: &ParkCell,
        poll: impl FnMut() -> Option<T>,
    ) -> Result<T> {
        let watch = EpochWatch(ChannelWait { context: self, kind, awaited: served_by });
        let waiting = self.waiting(&watch);
        wait_until(&waiting, park, poll).map_err(|stop| {
            let stop = match self.settle(stop) {
                // One that the others have given up is told that.
                Stop::PeerLost(rank) if Some(rank) == served_by && self.has_left(rank) => Stop::ProxyLost,
                stop => stop,
            };
            self.error(&waiting, stop, kind.name(), None)
        })
    }

    /// Waits like [`RankContext::wait_for_proxy`] for something that wakes nobody, such as a
    /// packet: spins, yields, never sleeps.
    ///
    /// # Errors
    /// Fails as [`RankContext::wait_for_proxy`] does.
    #[cold]
    pub(crate) fn wait_awake<T>(
        &self,
        kind: WaitKind,
        awaited: Rank,
        poll: impl FnMut() -> Option<T>,
    ) -> Result<T> {
        self.present(kind.name())?;
        let watch = EpochWatch(ChannelWait { context: self, kind, awaited: Some(awaited) });
        let policy = WaitPolicy { park_after: Duration::MAX, ..self.policy() };
        let waiting = Waiting::new(self.kernel(), &watch, policy, self.timeout());
        let unused = ParkCell::default();
        wait_until(&waiting, &unused, poll)
            .map_err(|stop| self.error(&waiting, stop, kind.name(), Some(awaited)))
    }
}
