//! Finds which of several failures came first.
//!
//! The order in which failures are observed is not the order in which they happened. A death is
//! seen late: a process that maps much memory takes tens of milliseconds to be torn down before its
//! socket hangs up. Its consequences elsewhere are seen early. A member that fails because it lost
//! another one says so (`Report`), and the search follows such reports to their origin.

use nix::sys::signal::Signal;

use crate::bootstrap::{BlamedMember, MemberId};
use crate::channel::Control;
use crate::error::{DeviceName, ExitCause};
use crate::faults::{FaultHit, FaultKind};
use crate::rank::Rank;

/// The observed failures of one job.
#[derive(Debug)]
pub(super) struct FirstCause {
    members: Vec<Observations>,
    /// Members in trouble in the order of the first sign of it.
    order: Vec<MemberId>,
    /// Number of the current round of observations.
    round: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Observations {
    /// Round of the first sign of trouble.
    noticed: Option<u64>,
    cause: Option<ExitCause>,
    /// The failure of its last process, from the restart until the new process is back.
    before: Option<ExitCause>,
    /// The member that this one blames, by its own report.
    blamed: Option<BlamedMember>,
}

impl FirstCause {
    pub(super) fn new(n_members: usize) -> Self {
        Self { members: vec![Observations::default(); n_members], order: Vec::new(), round: 0 }
    }

    /// Begins a round: signs noticed in the same round have no order.
    pub(super) fn next_round(&mut self) {
        self.round += 1;
    }

    /// Records how a member failed. A later cause replaces an earlier one, unless the launcher cut
    /// the member off: its end follows from that.
    pub(super) fn record_failure(&mut self, id: MemberId, cause: ExitCause) {
        let observations = &mut self.members[id.0];
        let cut_off =
            |cause| matches!(cause, ExitCause::Protocol | ExitCause::Version { .. } | ExitCause::Hung(_));
        if !observations.cause.is_some_and(cut_off) {
            observations.cause = Some(cause);
        }
        if observations.noticed.is_none() {
            observations.noticed = Some(self.round);
            self.order.push(id);
        }
    }

    /// Notes which other member a member blames; what it blames first counts.
    pub(super) fn record_blame(&mut self, id: MemberId, blamed: BlamedMember) {
        self.members[id.0].blamed.get_or_insert(blamed);
    }

    /// Records that a failed member was restarted. Until it is back, others may fail because of the
    /// old failure.
    pub(super) fn suspend(&mut self, id: MemberId) {
        let cause = self.members[id.0].cause;
        self.members[id.0] = Observations { before: cause, ..Observations::default() };
        self.order.retain(|noticed| *noticed != id);
    }

    /// Forgets how a member has failed that is back, and who has blamed it.
    pub(super) fn clear(&mut self, id: MemberId) {
        self.members[id.0].before = None;
        for observations in &mut self.members {
            observations.blamed = observations.blamed.filter(|blamed| blamed.id != id);
        }
    }

    /// Returns how a member failed, as far as it is known.
    pub(super) fn cause(&self, id: MemberId) -> Option<ExitCause> {
        self.members[id.0].cause
    }

    pub(super) fn is_clean(&self) -> bool {
        self.order.is_empty()
    }

    /// Returns the first cause.
    ///
    /// That is the member noticed first; of several noticed at once, one that a signal killed. From
    /// there the search follows the chain of blame to its end. A chain that is a circle contains a
    /// member that held others up and found them gone when it went on: that member is the cause.
    pub(super) fn first_cause(&self) -> Option<(MemberId, ExitCause)> {
        let first = *self.order.first()?;
        let at_once = |id: &&MemberId| self.members[id.0].noticed == self.members[first.0].noticed;
        let killed = |id: &&MemberId| matches!(self.cause(**id), Some(ExitCause::Signal(_)));
        let mut cause = *self.order.iter().filter(at_once).find(killed).unwrap_or(&first);
        let mut seen = vec![cause];
        while let Some(blamed) = self.members[cause.0].blamed.filter(|to| self.failure(to.id).is_some()) {
            let is_circle = seen.contains(&blamed.id);
            if blamed.is_late || !is_circle {
                cause = blamed.id;
            }
            if is_circle {
                break;
            }
            seen.push(cause);
        }
        Some((cause, self.failure(cause)?))
    }

    /// Returns how a member failed, or how its predecessor did that is not replaced yet.
    pub(super) fn failure(&self, id: MemberId) -> Option<ExitCause> {
        self.cause(id).or(self.members[id.0].before)
    }
}

/// Names the injected faults that killed devices of the first epoch. Each is named once, because a
/// restarted rank suffers no faults.
#[derive(Debug)]
pub(super) struct FaultNaming {
    control: Control,
    named: Vec<Rank>,
}

impl FaultNaming {
    pub(super) fn new(control: Control) -> Self {
        Self { control, named: Vec::new() }
    }

    /// Returns the fault behind `cause`, or `cause` itself.
    pub(super) fn name(&mut self, device: DeviceName, cause: ExitCause) -> ExitCause {
        if cause != ExitCause::Signal(Signal::SIGKILL as i32) {
            return cause;
        }
        let killed = |rank, kind| {
            let (last, _) = FaultHit::told(&self.control.faults(rank))?;
            (last.kind == kind).then_some(ExitCause::Injected(last))
        };
        match device {
            DeviceName::Rank(rank) if self.named.contains(&rank) => cause,
            DeviceName::Rank(rank) => {
                let named = killed(rank, FaultKind::Kill);
                self.named.push(rank);
                named.unwrap_or(cause)
            }
            DeviceName::Proxy => {
                let mut ranks = (0..self.control.n_ranks()).map(Rank::known);
                // A rank's own death is not the service's, which is stopped by another fault.
                ranks.find_map(|rank| killed(rank, FaultKind::Stop)).unwrap_or(cause)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::epoch_id::EpochId;

    fn lost(id: usize) -> BlamedMember {
        BlamedMember { id: MemberId(id), is_late: false }
    }

    #[test]
    fn the_cause_is_at_the_end_of_the_chain_of_reports() {
        let mut first_cause = FirstCause::new(4);
        first_cause.record_blame(MemberId(0), lost(1));
        first_cause.record_blame(MemberId(1), lost(2));
        first_cause.record_failure(MemberId(0), ExitCause::Code(1));
        first_cause.next_round();
        first_cause.record_failure(MemberId(1), ExitCause::Code(1));
        first_cause.next_round();
        first_cause.record_failure(MemberId(2), ExitCause::Signal(9));
        assert_eq!(first_cause.first_cause(), Some((MemberId(2), ExitCause::Signal(9))));
    }

    #[test]
    fn a_report_of_a_member_that_did_not_fail_is_not_followed() {
        let mut first_cause = FirstCause::new(2);
        first_cause.record_blame(MemberId(0), lost(1));
        first_cause.record_failure(MemberId(0), ExitCause::Code(3));
        assert_eq!(first_cause.first_cause(), Some((MemberId(0), ExitCause::Code(3))));
    }

    #[test]
    fn members_that_blame_each_other_do_not_make_the_inquest_endless() {
        let mut first_cause = FirstCause::new(2);
        first_cause.record_blame(MemberId(0), lost(1));
        first_cause.record_blame(MemberId(1), lost(0));
        first_cause.record_failure(MemberId(0), ExitCause::Code(3));
        first_cause.record_failure(MemberId(1), ExitCause::Code(4));
        assert!(first_cause.first_cause().is_some());
    }

    #[test]
    fn who_held_up_the_others_is_the_cause_although_it_fails_because_they_have_left() {
        for first in 0..3 {
            let mut first_cause = FirstCause::new(3);
            first_cause.record_blame(MemberId(1), BlamedMember { is_late: true, ..lost(2) });
            first_cause.record_blame(MemberId(0), lost(1));
            first_cause.record_blame(MemberId(2), lost(1));
            first_cause.record_failure(MemberId(first), ExitCause::Code(1));
            first_cause.next_round();
            (0..3).for_each(|id| first_cause.record_failure(MemberId(id), ExitCause::Code(1)));
            assert_eq!(
                first_cause.first_cause(),
                Some((MemberId(2), ExitCause::Code(1))),
                "{first} was seen first"
            );
        }
    }

    #[test]
    fn a_failure_that_is_being_mended_is_the_cause_of_those_it_brings_about_until_it_is_mended() {
        let mut first_cause = FirstCause::new(3);
        first_cause.record_failure(MemberId(1), ExitCause::Signal(9));
        first_cause.suspend(MemberId(1));
        assert!(first_cause.is_clean() && first_cause.cause(MemberId(1)).is_none());
        first_cause.next_round();
        first_cause.record_blame(MemberId(0), lost(1));
        first_cause.record_failure(MemberId(0), ExitCause::Code(3));
        assert_eq!(first_cause.first_cause(), Some((MemberId(1), ExitCause::Signal(9))));
        assert_eq!(first_cause.failure(MemberId(1)), Some(ExitCause::Signal(9)));
        first_cause.clear(MemberId(1));
        assert_eq!(first_cause.failure(MemberId(1)), None);
        assert_eq!(first_cause.first_cause(), Some((MemberId(0), ExitCause::Code(3))));
    }

    #[test]
    fn of_failures_seen_at_once_the_signal_is_the_cause() {
        let mut first_cause = FirstCause::new(3);
        first_cause.record_failure(MemberId(0), ExitCause::HungUp);
        first_cause.record_failure(MemberId(2), ExitCause::HungUp);
        first_cause.next_round();
        first_cause.record_failure(MemberId(0), ExitCause::Code(1));
        first_cause.record_failure(MemberId(2), ExitCause::Signal(11));
        assert_eq!(first_cause.first_cause(), Some((MemberId(2), ExitCause::Signal(11))));
    }

    #[test]
    fn how_a_process_that_hung_was_ended_is_not_how_it_failed() {
        let (mut first_cause, hung) =
            (FirstCause::new(1), ExitCause::Hung(std::time::Duration::from_secs(1)));
        first_cause.record_failure(MemberId(0), hung);
        first_cause.next_round();
        first_cause.record_failure(MemberId(0), ExitCause::Signal(9));
        assert_eq!(first_cause.first_cause(), Some((MemberId(0), hung)));
    }

    #[test]
    fn a_later_signal_is_not_the_cause() {
        let mut first_cause = FirstCause::new(2);
        first_cause.record_failure(MemberId(1), ExitCause::Code(3));
        first_cause.next_round();
        first_cause.record_failure(MemberId(0), ExitCause::Signal(6));
        assert_eq!(first_cause.first_cause(), Some((MemberId(1), ExitCause::Code(3))));
    }

    #[test]
    fn the_death_of_a_rank_by_a_fault_names_no_other() {
        let (control, _segment) = Control::create(2, EpochId { job: 1, epoch: 1 }).unwrap();
        let mut naming = FaultNaming::new(control.clone());
        let (killed, rank) = (ExitCause::Signal(Signal::SIGKILL as i32), Rank::known(1));
        let hit = |kind, at: &'static str| {
            let hit = FaultHit { kind, rank, counted: at, number: 3, at, seed: 7 };
            hit.tell(&control.faults(rank));
            ExitCause::Injected(hit)
        };
        let kill = hit(FaultKind::Kill, "wait");
        assert_eq!(naming.name(DeviceName::Proxy, killed), killed, "killed by somebody else");
        assert_eq!(naming.name(DeviceName::Rank(Rank::known(0)), killed), killed);
        assert_eq!(naming.name(DeviceName::Rank(rank), ExitCause::Code(1)), ExitCause::Code(1));
        assert_eq!(naming.name(DeviceName::Rank(rank), killed), kill);
        assert_eq!(naming.name(DeviceName::Rank(rank), killed), killed, "its successor");
        let at = "trigger";
        let stop =
            FaultHit { kind: FaultKind::Stop, rank: Rank::known(0), counted: at, number: 3, at, seed: 7 };
        stop.tell(&control.faults(stop.rank));
        // Its rank goes on until it learns of it, and may be struck.
        FaultHit { kind: FaultKind::Delay, ..stop }.tell(&control.faults(stop.rank));
        assert_eq!(naming.name(DeviceName::Proxy, killed), ExitCause::Injected(stop));
    }
}
