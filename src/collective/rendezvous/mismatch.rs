//! Members in different calls: how a member finds out, and what it reports.

use super::board::{CallBoard, index};
use super::post::{CallWithHistory, Post};
use crate::collective::call::{CallMismatch, CallSignature, Operation};
use crate::collective::region::LAP;
use crate::error::{Error, Result};
use crate::rank::Rank;
use crate::sync::PostCell;

impl CallBoard {
    /// Returns the error of a wait in the call `mine`. Where members disagree, and the epoch was
    /// ended or the deadline has passed, that is what they disagree on.
    #[cold]
    pub(crate) fn explain(&self, mine: CallSignature, error: Error) -> Error {
        let found = match &error {
            Error::Revoked { .. } => self.known_mismatch(mine),
            Error::Timeout { .. } => self.find_report(mine),
            _ => return error,
        };
        found.or_else(|| self.barrier_mismatch()).or_else(|| self.circle(mine, &error)).unwrap_or(error)
    }

    /// Returns what members are known to disagree on when the epoch has ended. The posts tell of
    /// it, or else what another member has reported about this one, which is in the call `mine`.
    #[cold]
    pub(crate) fn known_mismatch(&self, mine: CallSignature) -> Option<Error> {
        self.first_mismatch().or_else(|| self.find_report(mine))
    }

    /// Returns the circle in which this member, in the call `mine`, and others have waited for each
    /// other, as it seems, until the deadline of one of them. A message that was lost looks the
    /// same: none is, unless that is asked for.
    fn circle(&self, mine: CallSignature, error: &Error) -> Option<Error> {
        let context = &self.context;
        if context.is_faulty() {
            return None;
        }
        let (rank, theirs) = match error {
            Error::Timeout { report, .. } => report.as_ref()?.next_in_circle(context.rank())?,
            _ => context.observe().filter(|report| report.has_timed_out())?.next_in_circle(context.rank())?,
        };
        let theirs = CallSignature::from_words(theirs);
        (!theirs.meets(mine)).then_some(CallMismatch { mine, rank, theirs }.into())
    }

    /// Ends the epoch, since this member is in the call `mine`, and `sender` has sent what does not
    /// answer it.
    #[cold]
    pub(crate) fn report_mismatch(&self, sender: usize, mine: CallSignature, theirs: CallSignature) -> Error {
        self.send_report(sender, mine, theirs);
        self.revoke();
        CallMismatch { mine, rank: self.ranks[sender], theirs }.into()
    }

    /// Ends the epoch, since this member is in the call `mine`, and others wait for it in another
    /// one. All are told.
    #[cold]
    pub(crate) fn report_to_all(&self, mine: CallSignature) {
        for member in (0..self.ranks.len()).filter(|&member| member != self.me) {
            let theirs = self.awaited_in(member).unwrap_or(CallSignature::NONE);
            self.send_report(member, mine, theirs);
        }
        self.revoke();
    }

    /// Returns the call in which `member` waits for this one, which has not come to it: an
    /// operation, or a meeting of all ranks.
    ///
    /// # Ordering
    /// When there is one, acquires everything that member did before (C1, C2, B1).
    pub(crate) fn awaited_in(&self, member: usize) -> Option<CallSignature> {
        let posted = |ahead| {
            let sequence = self.sequence.wrapping_add(ahead);
            let cell = &self.posts[member][index(sequence)];
            cell.shows(sequence).then(|| Post(cell).call().signature())
        };
        let waits = self.waits_for.for_me[member].has_reached(self.sequence.wrapping_add(1));
        // Not every step is posted.
        let operation = || waits.then(|| (1..LAP).rev().find_map(posted)).flatten();
        operation().or_else(|| self.at_barrier.as_ref()?.call_of(self.ranks[member]))
    }

    /// Returns the post of `member`, which is not the same as this member's, if both are in one
    /// operation.
    ///
    /// # Errors
    /// [`Error::CallMismatch`].
    #[cold]
    pub(super) fn reconcile(&self, member: usize, turn: usize) -> Result<Post<'_>> {
        let post = Post(&self.posts[member][turn]);
        if post.call().meets(self.mine[turn]) { Ok(post) } else { Err(self.mismatch_at(member, turn)) }
    }

    /// Ends the epoch, since this member and `member` are in different calls, or have been.
    #[cold]
    pub(super) fn mismatch_at(&self, member: usize, turn: usize) -> Error {
        let (rank, theirs) = (self.ranks[member], Post(&self.posts[member][turn]).call().signature());
        self.end_by_mismatch(rank, self.mine[turn].signature(), theirs)
    }

    /// Ends the epoch, since this member, in the call `mine`, has found `rank` in the call
    /// `theirs`; or since some member differs from this one before that. All members are told, who
    /// may be in messages still; a rank need not be one.
    #[cold]
    pub(crate) fn end_by_mismatch(&self, rank: Rank, mine: CallSignature, theirs: CallSignature) -> Error {
        let mismatch = self.first_difference().unwrap_or(CallMismatch { mine, rank, theirs });
        let CallMismatch { mine, rank, theirs } = mismatch;
        if let Some(odd) = self.ranks.iter().position(|&member| member == rank) {
            self.send_report(odd, mine, theirs);
            let others = (0..self.ranks.len()).filter(|&other| other != self.me && other != odd);
            others.for_each(|other| self.forward_report(other, odd, theirs));
        }
        self.revoke();
        mismatch.into()
    }

    /// Returns the error of the first operation in which some member did something else than this
    /// one, as far back as the ring goes.
    #[cold]
    pub(crate) fn first_mismatch(&self) -> Option<Error> {
        self.first_difference().map(Error::from)
    }

    /// Returns what this member did there, and which rank did what else.
    fn first_difference(&self) -> Option<CallMismatch> {
        let last = (0..LAP).map(|ago| self.sequence.wrapping_sub(ago)).take_while(|&sequence| sequence != 0);
        let both = last.flat_map(|sequence| (0..self.ranks.len()).map(move |member| (sequence, member)));
        both.filter_map(|(sequence, member)| self.difference(sequence, member)).last()
    }

    /// Returns what the posts of this member and of `member` for `sequence` say, if they are up and
    /// differ.
    fn difference(&self, sequence: u64, member: usize) -> Option<CallMismatch> {
        shown(&self.posts[self.me], sequence)?;
        let mine = self.mine[index(sequence)].signature();
        let theirs = kept(&self.posts[member], sequence)?.signature();
        (!theirs.meets(mine)).then_some(CallMismatch { mine, rank: self.ranks[member], theirs })
    }

    /// Returns the error that a member is elsewhere, if one is.
    fn barrier_mismatch(&self) -> Option<Error> {
        let mine = self.last_posted();
        self.member_at_barrier().map(|(rank, theirs)| CallMismatch { mine, rank, theirs }.into())
    }

    pub(super) fn last_posted(&self) -> CallSignature {
        self.mine[index(self.posted)].signature()
    }

    /// Returns a member that is elsewhere, and in which call, before it has come to what this one
    /// has posted last.
    pub(super) fn member_at_barrier(&self) -> Option<(Rank, CallSignature)> {
        let (at_barrier, posted) = (self.at_barrier.as_ref()?, self.posted);
        self.ranks.iter().zip(&self.posts).find_map(|(&rank, posts)| {
            let call = at_barrier.call_of(rank)?;
            (!posts[index(posted)].shows(posted)).then_some((rank, call))
        })
    }

    /// Looks, when all members have come to the end, whether they have done the same until then. A
    /// member that waited for nobody in its last operations, as the root of a broadcast, has not
    /// been told yet.
    ///
    /// # Errors
    /// [`Error::CallMismatch`]; each member has it, as each sees what all have posted.
    pub(crate) fn check_end(&self) -> Result<()> {
        if let Some(error) = self.first_mismatch() {
            return Err(error);
        }
        let end = CallSignature::new(Operation::Finalize);
        if let Some((rank, theirs)) = self.gone_on().next() {
            return Err(CallMismatch { mine: end, rank, theirs }.into());
        }
        let turn = index(self.posted);
        let mut others = self.ranks.iter().zip(&self.posts);
        match others.find(|(_, posts)| self.posted != 0 && !posts[turn].shows(self.posted)) {
            Some((&rank, _)) => {
                Err(CallMismatch { mine: self.mine[turn].signature(), rank, theirs: end }.into())
            }
            None => Ok(()),
        }
    }

    /// Returns the members that have gone on to an operation that this one has not come to, and
    /// what each does there.
    pub(crate) fn gone_on(&self) -> impl Iterator<Item = (Rank, CallSignature)> {
        let next = self.sequence.wrapping_add(1);
        let posts = self.ranks.iter().zip(&self.posts);
        // They stay up: only who has seen a later post of this member would write over them.
        posts
            .filter(move |(_, posts)| posts[index(next)].shows(next))
            .map(move |(&rank, posts)| (rank, Post(&posts[index(next)]).call().signature()))
    }
}

/// Returns the mark of the post for `sequence` in the ring of a member, if it is up there.
fn shown(posts: &[PostCell], sequence: u64) -> Option<CallWithHistory> {
    let cell = &posts[index(sequence)];
    (cell.shows(sequence) && !cell.shows(sequence.wrapping_add(1))).then(|| Post(cell).call())
}

/// Returns the call of a post that is no longer the current one, and that its owner may be writing
/// over: the owner may be a lap ahead if it has waited for nobody since. Its next post tells of the
/// calls before, and not of one that is half written. On processors on which stores overtake each
/// other, that post may not be there yet: then an error may name half of another call.
fn kept(posts: &[PostCell], sequence: u64) -> Option<CallWithHistory> {
    let call = shown(posts, sequence)?;
    let next = || (1..LAP).find_map(|ahead| shown(posts, sequence.wrapping_add(ahead)));
    // Its owner may have posted twice while the first look passed from one slot to the next.
    // A member that sees one post sees those before.
    let is_kept = next().is_none() || next().is_some_and(|next| call.precedes(next));
    is_kept.then_some(call)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::region::TURNS;

    #[test]
    fn a_post_that_is_being_written_over_tells_of_no_call() {
        let posts: [PostCell; TURNS] = std::array::from_fn(|_| PostCell::default());
        let (broadcast, reduce) =
            (CallSignature::new(Operation::Broadcast), CallSignature::new(Operation::Reduce));
        let mut history = 0;
        for sequence in 1..=LAP {
            // A number in between is that of a step.
            if sequence != 3 {
                let call = CallWithHistory::new(broadcast.rooted(0), history);
                posts[index(sequence)].post(sequence, call.0, &[]);
                history = call.mixed();
            }
            let is_kept =
                |number| kept(&posts, number).is_some_and(|call| call.signature() == broadcast.rooted(0));
            assert!((1..=sequence).all(|number| is_kept(number) == (number != 3)), "{sequence}");
        }
        let [first_word, _] = CallWithHistory::new(reduce, history).0;
        posts[index(1)].fetch(first_word);
        assert_ne!(
            shown(&posts, 1).map(CallWithHistory::signature),
            Some(broadcast.rooted(0)),
            "half of the next one"
        );
        assert_eq!(kept(&posts, 1), None);
        posts[index(1)].post(1 + LAP, CallWithHistory::new(reduce, history).0, &[]);
        assert_eq!(
            (kept(&posts, 1), kept(&posts, 1 + LAP).map(CallWithHistory::signature)),
            (None, Some(reduce))
        );
        posts[index(2)].fetch(first_word);
        assert_eq!(kept(&posts, 2), None, "half of what is to follow");
        assert_eq!(kept(&posts, 4).map(CallWithHistory::signature), Some(broadcast.rooted(0)), "untouched");
    }
}
