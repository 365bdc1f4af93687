//! Why a meeting fails as a whole, as its root tells those who came.

use std::time::Duration;

use super::message::{ControlMessage, Rejected};
use super::socket::resource_error;
use crate::error::Error;
use crate::rank::{MAX_RANKS, Rank};

/// What everybody awaits in a meeting, as a timeout names it.
pub(super) const MEETING: &str = "meeting the other ranks";

/// What all who meet have to agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Term {
    NRanks,
    HeapLen,
    Backing,
    Members,
}

impl Term {
    pub(super) const ALL: [Self; 4] = [Self::NRanks, Self::HeapLen, Self::Backing, Self::Members];

    const fn what(self) -> &'static str {
        match self {
            Self::NRanks => "the number of ranks",
            Self::HeapLen => "the length of the heap",
            Self::Backing => "the kind of segment backing",
            Self::Members => "the number of ranks that are no newcomers",
        }
    }
}

/// The reason, as one of those who came has to see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rejection {
    /// Two processes claim this rank.
    Taken(Rank),
    /// This rank had not come when the first one's patience was at its end.
    Missing(Rank),
    /// The root cannot go on, for this `errno`.
    Failed(i32),
    /// There are joiners already for as many ranks as are for them.
    Full(u32),
    /// Another rank has come with other terms.
    Differs { term: Term, mine: u64, rank: Rank, theirs: u64 },
}

/// The numbers of the reasons; a term's number is added to the last.
const TAKEN: u32 = 0;
const MISSING: u32 = 1;
const FAILED: u32 = 2;
const FULL: u32 = 3;
const DIFFERS: u32 = 4;

impl Rejection {
    /// The root's own failure, as far as a number can tell it.
    pub(super) fn of_error(error: &Error) -> Self {
        let errno = match error {
            Error::Os { source, .. } | Error::ResourceLimit { source, .. } => source.raw_os_error(),
            _ => None,
        };
        Self::Failed(errno.unwrap_or(0))
    }

    pub(super) fn message(self, job_id: u64) -> Rejected {
        let (reason, rank, mine, theirs) = match self {
            Self::Taken(rank) => (TAKEN, rank.get(), 0, 0),
            Self::Missing(rank) => (MISSING, rank.get(), 0, 0),
            Self::Failed(errno) => (FAILED, 0, 0, u64::from(errno.unsigned_abs())),
            Self::Full(places) => (FULL, 0, 0, places.into()),
            Self::Differs { term, mine, rank, theirs } => (DIFFERS + term as u32, rank.get(), mine, theirs),
        };
        Rejected { header: Rejected::header(job_id), reason, rank, mine, theirs }
    }

    /// Reads a message; `None` when it says nothing that is known here.
    pub(super) fn from_message(message: Rejected) -> Option<Self> {
        let Rejected { reason, mine, theirs, .. } = message;
        let rank = Rank::new(message.rank, MAX_RANKS).ok()?;
        match reason {
            TAKEN => Some(Self::Taken(rank)),
            MISSING => Some(Self::Missing(rank)),
            FAILED => Some(Self::Failed(i32::try_from(theirs).ok()?)),
            FULL => Some(Self::Full(u32::try_from(theirs).ok()?)),
            _ => {
                let term = *Term::ALL.get(reason.checked_sub(DIFFERS)? as usize)?;
                Some(Self::Differs { term, mine, rank, theirs })
            }
        }
    }

    /// The error for a member that has waited so long.
    pub(super) fn into_error(self, waited: Duration) -> Error {
        match self {
            Self::Taken(rank) => Error::RankTaken { rank },
            Self::Missing(rank) => Error::timed_out(MEETING, Some(rank), waited),
            Self::Failed(errno) => {
                resource_error("hosting the meeting", std::io::Error::from_raw_os_error(errno))
            }
            Self::Full(places) => Error::NoPlace { places },
            Self::Differs { term, mine, rank, theirs } => {
                Error::Mismatch { what: term.what(), mine, rank, theirs }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_survives_the_socket() {
        let rank = Rank::known(63);
        let differs = Term::ALL.map(|term| Rejection::Differs { term, mine: 1, rank, theirs: u64::MAX });
        let others =
            [Rejection::Taken(rank), Rejection::Missing(rank), Rejection::Failed(24), Rejection::Full(1)];
        for reason in others.into_iter().chain(differs) {
            assert_eq!(Rejection::from_message(reason.message(7)), Some(reason));
        }
    }

    #[test]
    fn a_reason_that_nobody_knows_and_a_rank_that_cannot_be_are_not_believed() {
        let message = Rejection::Taken(Rank::known(0)).message(7);
        assert_eq!(Rejection::from_message(Rejected { reason: 8, ..message }), None);
        assert_eq!(Rejection::from_message(Rejected { rank: 64, ..message }), None);
        assert_eq!(Rejection::from_message(Rejected { reason: 2, theirs: u64::MAX, ..message }), None);
    }
}
