//! Finds which of several failures came first.
//!
//! The order in which failures are observed is not the order in which they happened. A death is
//! seen late: a process that maps much memory takes tens of milliseconds to be torn down before its
//! socket hangs up. Its consequences elsewhere are seen early. A member that fails because it lost
//! another one says so (`Report`), and the search follows such reports to their origin.

use crate::bootstrap::MemberId;
use crate::error::ExitCause;

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

/// A member that another one blames.
#[derive(Clone, Copy, Debug)]
struct BlamedMember {
    id: MemberId,
    /// Whether that member held others up; otherwise it was lost, or had left.
    is_late: bool,
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

    /// Notes that a member blames the loss of another; what it blames first counts.
    pub(super) fn record_blame(&mut self, id: MemberId, lost: MemberId) {
        self.members[id.0].blamed.get_or_insert(BlamedMember { id: lost, is_late: false });
    }

    /// Notes that a member was held up by another; what it blames first counts.
    pub(super) fn record_held_up(&mut self, id: MemberId, by: MemberId) {
        self.members[id.0].blamed.get_or_insert(BlamedMember { id: by, is_late: true });
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_is_at_the_end_of_the_chain_of_reports() {
        let mut first_cause = FirstCause::new(4);
        first_cause.record_blame(MemberId(0), MemberId(1));
        first_cause.record_blame(MemberId(1), MemberId(2));
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
        first_cause.record_blame(MemberId(0), MemberId(1));
        first_cause.record_failure(MemberId(0), ExitCause::Code(3));
        assert_eq!(first_cause.first_cause(), Some((MemberId(0), ExitCause::Code(3))));
    }

    #[test]
    fn members_that_blame_each_other_do_not_make_the_inquest_endless() {
        let mut first_cause = FirstCause::new(2);
        first_cause.record_blame(MemberId(0), MemberId(1));
        first_cause.record_blame(MemberId(1), MemberId(0));
        first_cause.record_failure(MemberId(0), ExitCause::Code(3));
        first_cause.record_failure(MemberId(1), ExitCause::Code(4));
        assert!(first_cause.first_cause().is_some());
    }

    #[test]
    fn who_held_up_the_others_is_the_cause_although_it_fails_because_they_have_left() {
        for first in 0..3 {
            let mut first_cause = FirstCause::new(3);
            first_cause.record_held_up(MemberId(1), MemberId(2));
            first_cause.record_blame(MemberId(0), MemberId(1));
            first_cause.record_blame(MemberId(2), MemberId(1));
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
        first_cause.record_blame(MemberId(0), MemberId(1));
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
}
