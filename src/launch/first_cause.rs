//! Which of several failures came first.
//!
//! A death is seen late (a process that maps much memory takes tens of milliseconds to be torn down before its
//! socket hangs up) and what it causes elsewhere early, so the order in which failures are observed is not
//! the order in which they happened. A member that fails because it lost another one says so (`Report`);
//! the inquest follows such reports to their origin.

use crate::bootstrap::Seat;
use crate::error::ExitCause;

/// What is known of the failures of one job.
#[derive(Debug)]
pub(super) struct Inquest {
    members: Vec<Findings>,
    /// Members in trouble in the order of the first sign of it.
    order: Vec<Seat>,
    /// Number of the current round of observations.
    round: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Findings {
    /// Round of the first sign of trouble.
    noticed: Option<u64>,
    verdict: Option<ExitCause>,
    /// How it had failed before it was started again, until it is back.
    before: Option<ExitCause>,
    /// Because of whom this member fails, by its own words.
    blamed: Option<Blamed>,
}

/// Somebody whom a member blames.
#[derive(Clone, Copy, Debug)]
struct Blamed {
    seat: Seat,
    /// It has held others up; otherwise it was lost, or had left.
    is_late: bool,
}

impl Inquest {
    pub(super) fn new(n_members: usize) -> Self {
        Self { members: vec![Findings::default(); n_members], order: Vec::new(), round: 0 }
    }

    /// Begins a round: signs noticed in the same round have no order.
    pub(super) fn next_round(&mut self) {
        self.round += 1;
    }

    /// Notes how a member failed; a later verdict takes the place of an earlier one, unless the launcher had cut
    /// it off, which is why it ended then.
    pub(super) fn fails(&mut self, seat: Seat, verdict: ExitCause) {
        let findings = &mut self.members[seat.0];
        let cut_off =
            |verdict| matches!(verdict, ExitCause::Protocol | ExitCause::Version { .. } | ExitCause::Hung(_));
        if !findings.verdict.is_some_and(cut_off) {
            findings.verdict = Some(verdict);
        }
        if findings.noticed.is_none() {
            findings.noticed = Some(self.round);
            self.order.push(seat);
        }
    }

    /// Notes that a member blames the loss of another; what it blames first counts.
    pub(super) fn blames(&mut self, seat: Seat, lost: Seat) {
        self.members[seat.0].blamed.get_or_insert(Blamed { seat: lost, is_late: false });
    }

    /// Notes that a member was held up by another; what it blames first counts.
    pub(super) fn was_held_up(&mut self, seat: Seat, by: Seat) {
        self.members[seat.0].blamed.get_or_insert(Blamed { seat: by, is_late: true });
    }

    /// Takes note that a member that has failed was started again: that is what others fail by until it is back.
    pub(super) fn suspend(&mut self, seat: Seat) {
        let verdict = self.members[seat.0].verdict;
        self.members[seat.0] = Findings { before: verdict, ..Findings::default() };
        self.order.retain(|noticed| *noticed != seat);
    }

    /// Forgets how a member has failed that is back, and who has blamed it.
    pub(super) fn forgive(&mut self, seat: Seat) {
        self.members[seat.0].before = None;
        for findings in &mut self.members {
            findings.blamed = findings.blamed.filter(|blamed| blamed.seat != seat);
        }
    }

    /// How a member failed, as far as it is known.
    pub(super) fn verdict(&self, seat: Seat) -> Option<ExitCause> {
        self.members[seat.0].verdict
    }

    pub(super) fn is_clean(&self) -> bool {
        self.order.is_empty()
    }

    /// The first cause: the member noticed first (of those noticed at once, one that a signal killed), or the one
    /// at the end of the chain of those who are blamed. Where the chain is a circle, since one that has held up the others found them
    /// gone when it went on, it is that one.
    pub(super) fn first_cause(&self) -> Option<(Seat, ExitCause)> {
        let first = *self.order.first()?;
        let at_once = |seat: &&Seat| self.members[seat.0].noticed == self.members[first.0].noticed;
        let killed = |seat: &&Seat| matches!(self.verdict(**seat), Some(ExitCause::Signal(_)));
        let mut cause = *self.order.iter().filter(at_once).find(killed).unwrap_or(&first);
        let mut seen = vec![cause];
        while let Some(blamed) = self.members[cause.0].blamed.filter(|to| self.failure(to.seat).is_some()) {
            let is_circle = seen.contains(&blamed.seat);
            if blamed.is_late || !is_circle {
                cause = blamed.seat;
            }
            if is_circle {
                break;
            }
            seen.push(cause);
        }
        Some((cause, self.failure(cause)?))
    }

    /// How a member has failed, or its predecessor, if that one is not replaced yet.
    pub(super) fn failure(&self, seat: Seat) -> Option<ExitCause> {
        self.verdict(seat).or(self.members[seat.0].before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_is_at_the_end_of_the_chain_of_reports() {
        let mut inquest = Inquest::new(4);
        inquest.blames(Seat(0), Seat(1));
        inquest.blames(Seat(1), Seat(2));
        inquest.fails(Seat(0), ExitCause::Code(1));
        inquest.next_round();
        inquest.fails(Seat(1), ExitCause::Code(1));
        inquest.next_round();
        inquest.fails(Seat(2), ExitCause::Signal(9));
        assert_eq!(inquest.first_cause(), Some((Seat(2), ExitCause::Signal(9))));
    }

    #[test]
    fn a_report_of_a_member_that_did_not_fail_is_not_followed() {
        let mut inquest = Inquest::new(2);
        inquest.blames(Seat(0), Seat(1));
        inquest.fails(Seat(0), ExitCause::Code(3));
        assert_eq!(inquest.first_cause(), Some((Seat(0), ExitCause::Code(3))));
    }

    #[test]
    fn members_that_blame_each_other_do_not_make_the_inquest_endless() {
        let mut inquest = Inquest::new(2);
        inquest.blames(Seat(0), Seat(1));
        inquest.blames(Seat(1), Seat(0));
        inquest.fails(Seat(0), ExitCause::Code(3));
        inquest.fails(Seat(1), ExitCause::Code(4));
        assert!(inquest.first_cause().is_some());
    }

    #[test]
    fn who_held_up_the_others_is_the_cause_although_it_fails_because_they_have_left() {
        for first in 0..3 {
            let mut inquest = Inquest::new(3);
            inquest.was_held_up(Seat(1), Seat(2));
            inquest.blames(Seat(0), Seat(1));
            inquest.blames(Seat(2), Seat(1));
            inquest.fails(Seat(first), ExitCause::Code(1));
            inquest.next_round();
            (0..3).for_each(|seat| inquest.fails(Seat(seat), ExitCause::Code(1)));
            assert_eq!(inquest.first_cause(), Some((Seat(2), ExitCause::Code(1))), "{first} was seen first");
        }
    }

    #[test]
    fn a_failure_that_is_being_mended_is_the_cause_of_those_it_brings_about_until_it_is_mended() {
        let mut inquest = Inquest::new(3);
        inquest.fails(Seat(1), ExitCause::Signal(9));
        inquest.suspend(Seat(1));
        assert!(inquest.is_clean() && inquest.verdict(Seat(1)).is_none());
        inquest.next_round();
        inquest.blames(Seat(0), Seat(1));
        inquest.fails(Seat(0), ExitCause::Code(3));
        assert_eq!(inquest.first_cause(), Some((Seat(1), ExitCause::Signal(9))));
        assert_eq!(inquest.failure(Seat(1)), Some(ExitCause::Signal(9)));
        inquest.forgive(Seat(1));
        assert_eq!(inquest.failure(Seat(1)), None);
        assert_eq!(inquest.first_cause(), Some((Seat(0), ExitCause::Code(3))));
    }

    #[test]
    fn of_failures_seen_at_once_the_signal_is_the_cause() {
        let mut inquest = Inquest::new(3);
        inquest.fails(Seat(0), ExitCause::HungUp);
        inquest.fails(Seat(2), ExitCause::HungUp);
        inquest.next_round();
        inquest.fails(Seat(0), ExitCause::Code(1));
        inquest.fails(Seat(2), ExitCause::Signal(11));
        assert_eq!(inquest.first_cause(), Some((Seat(2), ExitCause::Signal(11))));
    }

    #[test]
    fn how_a_process_that_hung_was_ended_is_not_how_it_failed() {
        let (mut inquest, hung) = (Inquest::new(1), ExitCause::Hung(std::time::Duration::from_secs(1)));
        inquest.fails(Seat(0), hung);
        inquest.next_round();
        inquest.fails(Seat(0), ExitCause::Signal(9));
        assert_eq!(inquest.first_cause(), Some((Seat(0), hung)));
    }

    #[test]
    fn a_later_signal_is_not_the_cause() {
        let mut inquest = Inquest::new(2);
        inquest.fails(Seat(1), ExitCause::Code(3));
        inquest.next_round();
        inquest.fails(Seat(0), ExitCause::Signal(6));
        assert_eq!(inquest.first_cause(), Some((Seat(1), ExitCause::Code(3))));
    }
}
