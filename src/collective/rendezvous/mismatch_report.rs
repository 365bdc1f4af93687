//! Where a receiver reports that a message was not the one that it called for.
//!
//! The sender may be long gone on when its message is looked at. So the receiver writes down what
//! both have called, and ends the epoch. The sender finds the report, as its next wait ends with
//! the epoch. One member reports at most once about another, since that is the end.
//!
//! A member reports likewise, about all, when it waits for a message of a peer that waits for it in
//! an operation of all: members that have not come to that operation will not get through it. A
//! member that finds on the board that another one has made a different call tells the rest, which
//! may still be in messages.

use super::board::CallBoard;
use crate::collective::call::{CallMismatch, CallSignature};
use crate::error::Error;
use crate::shm::CellRef;
use crate::sync::PostCell;

impl CallBoard {
    /// Tells `member` that this one is in the call `mine`, which `theirs` does not answer. The
    /// first complaint stays.
    pub(super) fn send_report(&self, member: usize, mine: CallSignature, theirs: CallSignature) {
        self.put_up_report(member, MismatchReport { who: self.me, call: mine, called: theirs });
    }

    /// Tells `member`, whatever it is in, that `odd` is in the call `theirs`, which is not what
    /// others are in.
    pub(super) fn forward_report(&self, member: usize, odd: usize, theirs: CallSignature) {
        self.put_up_report(member, MismatchReport { who: odd, call: theirs, called: CallSignature::NONE });
    }

    fn put_up_report(&self, member: usize, report: MismatchReport) {
        let MismatchReport { who, call, called } = report;
        let cell = &self.mismatch_reports.mine[member];
        if !cell.shows(1) {
            let [first, second] = called.words();
            cell.post(1, call.words(), &[first, second, who as u64]);
        }
    }

    /// Returns the complaint of some member about this one, which is in the call `mine`, or of this
    /// one.
    pub(super) fn find_report(&self, mine: CallSignature) -> Option<Error> {
        let about_me = reports(&self.mismatch_reports.for_me).map(|(_, report)| {
            let mine = if report.called == CallSignature::NONE { mine } else { report.called };
            (mine, report.who, report.call)
        });
        let is_own = |report: &MismatchReport| report.who == self.me && report.called != CallSignature::NONE;
        let own = reports(&self.mismatch_reports.mine).filter(|(_, report)| is_own(report));
        let of_mine = own.map(|(member, report)| (report.call, member, report.called));
        let mut differing = about_me.chain(of_mine).filter(|(mine, _, theirs)| mine != theirs);
        differing.find_map(|(mine, member, theirs)| {
            Some(CallMismatch { mine, rank: *self.ranks.get(member)?, theirs }.into())
        })
    }
}

/// Returns the complaints in `cells`, by the number of the other member.
fn reports(cells: &[CellRef<PostCell>]) -> impl Iterator<Item = (usize, MismatchReport)> {
    let lodged = cells.iter().enumerate().filter(|(_, cell)| cell.shows(1));
    lodged.map(|(member, cell)| (member, MismatchReport::read(cell)))
}

/// What a member is told.
#[derive(Clone, Copy, Debug)]
struct MismatchReport {
    /// Who is in the call that is told of.
    who: usize,
    call: CallSignature,
    /// What the member that is told has called itself; [`CallSignature::NONE`] where only it knows.
    called: CallSignature,
}

impl MismatchReport {
    fn read(cell: &PostCell) -> Self {
        let call = |word| CallSignature::from_words([cell.word(word), cell.word(word + 1)]);
        let who = usize::try_from(cell.word(4)).unwrap_or(usize::MAX);
        Self { who, call: call(0), called: call(2) }
    }
}
