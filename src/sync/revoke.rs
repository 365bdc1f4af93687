//! The one reason why everybody stops waiting.
//!
//! A [`RevokeCell`] holds 0 while its epoch lives. The first reason that anyone writes stays, and
//! all ranks report that one. So a cascade of failures names its first cause.
//!
//! | edge | release | acquire | carries |
//! |---|---|---|---|
//! | R1 revoke | `revoke`: the word | `read` | everything that the revoker knew |
//!
//! R1 makes a last look worth while. A waiter that finds the epoch revoked polls its own condition
//! once more, and finds there every signal that a rank had sent before it was found dead.
//!
//! The bell is a second word, for the futex. Sleepers name it beside their own
//! [`ParkCell`](super::park::ParkCell), so that one wake reaches all of them. A woken sleeper reads
//! the word again, and a sleep on a bell that has rung ends at once, so it cannot miss the reason
//! either. A revoker that dies before it rings is itself found dead by the others, who then revoke
//! in vain but ring.

use super::{
    atomic::{AtomicU64, Ordering, Reserved},
    kernel::{Kernel, SleepWord},
    park::Latch,
    wait::{Stop, Watch},
};
use crate::rank::{MAX_RANKS, Rank};

/// Why an epoch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Revocation {
    /// A rank died, or left while it was needed.
    PeerLost(Rank),
    /// The proxy service process died, or the handler of a proxy thread panicked.
    ProxyLost,
    /// A rank aborted the epoch; `None` when it was the launcher.
    Aborted(Option<Rank>),
    /// What a proxy has copied for a rank is not what was to be copied.
    Corrupted(Rank),
    /// A wait of a rank has timed out, which ended the epoch.
    TimedOut {
        /// The rank that has waited.
        by: Rank,
        /// The rank that held it up.
        awaited: Rank,
    },
}

const PEER_LOST: u64 = 1;
const PROXY_LOST: u64 = 2;
const ABORTED: u64 = 3;
const CORRUPTED: u64 = 4;
const TIMED_OUT: u64 = 5;
const KIND_MASK: u64 = 0xff;
const RANK_SHIFT: u32 = 8;
const AWAITED_SHIFT: u32 = 40;

impl Revocation {
    /// Bits 0..8 the kind, never 0; bits 8..40 the rank plus one, or 0 for none; bits 40..64 the
    /// rank that was awaited plus one, likewise.
    fn to_word(self) -> u64 {
        let with = |kind: u64, rank: Option<Rank>| {
            kind | rank.map_or(0, |rank| u64::from(rank.get()) + 1) << RANK_SHIFT
        };
        match self {
            Self::PeerLost(rank) => with(PEER_LOST, Some(rank)),
            Self::ProxyLost => with(PROXY_LOST, None),
            Self::Aborted(by) => with(ABORTED, by),
            Self::Corrupted(rank) => with(CORRUPTED, Some(rank)),
            Self::TimedOut { by, awaited } => {
                with(TIMED_OUT, Some(by)) | (u64::from(awaited.get()) + 1) << AWAITED_SHIFT
            }
        }
    }

    /// Reads any word: one that no `revoke` wrote still ends the epoch, by no rank in particular.
    fn from_word(word: u64) -> Option<Self> {
        let rank_of = |bits: u64| Rank::new(u32::try_from(bits.checked_sub(1)?).ok()?, MAX_RANKS).ok();
        let rank = rank_of((word & ((1 << AWAITED_SHIFT) - 1)) >> RANK_SHIFT);
        match (word & KIND_MASK, rank) {
            _ if word == 0 => None,
            (PEER_LOST, Some(rank)) => Some(Self::PeerLost(rank)),
            (PROXY_LOST, _) => Some(Self::ProxyLost),
            (CORRUPTED, Some(rank)) => Some(Self::Corrupted(rank)),
            (TIMED_OUT, Some(by)) => Some(match rank_of(word >> AWAITED_SHIFT) {
                Some(awaited) => Self::TimedOut { by, awaited },
                None => Self::Aborted(Some(by)),
            }),
            (_, by) => Some(Self::Aborted(by)),
        }
    }
}

impl From<Revocation> for Stop {
    fn from(reason: Revocation) -> Self {
        match reason {
            Revocation::PeerLost(rank) => Self::PeerLost(rank),
            Revocation::ProxyLost => Self::ProxyLost,
            Revocation::Aborted(by) => Self::Revoked(by),
            Revocation::Corrupted(rank) => Self::Corrupted(rank),
            Revocation::TimedOut { by, awaited } => Self::TimedOut(by, awaited),
        }
    }
}

/// Whether an epoch still lives, and the bell that tells its sleepers when it does not.
///
/// | field | bytes | written by | read by |
/// |---|---|---|---|
/// | word | 0..8 | the first revoker | every waiter, on its slow path |
/// | bell | 8..12 | every revoker | the operating system, for sleepers |
/// | reserved | 12..128 | nobody | nobody |
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct RevokeCell {
    word: AtomicU64,
    bell: Latch,
    reserved: Reserved<29>,
}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<RevokeCell>() == 128 && align_of::<RevokeCell>() == 128);
    assert!(std::mem::offset_of!(RevokeCell, word) == 0 && std::mem::offset_of!(RevokeCell, bell) == 8);
};

impl RevokeCell {
    /// Ends the epoch and wakes all its sleepers. Returns the reason that stands: the first one
    /// given.
    pub fn revoke<K: Kernel + ?Sized>(&self, kernel: &K, reason: Revocation) -> Revocation {
        // On failure nothing is read but the word itself, which carries its whole meaning: Relaxed.
        let (ok, failed) = (
            Ordering::Release, // R1 revoke
            Ordering::Relaxed,
        );
        let stands = match self.word.compare_exchange(0, reason.to_word(), ok, failed) {
            Ok(_) => reason,
            Err(word) => Revocation::from_word(word).unwrap_or(reason),
        };
        // Rung again for a first revoker that died before ringing.
        self.bell.open(kernel);
        stands
    }

    /// Returns the reason why the epoch ended, if it has.
    #[must_use]
    pub fn read(&self) -> Option<Revocation> {
        Revocation::from_word(self.word.load(Ordering::Acquire)) // R1 revoke
    }

    /// Returns the word that sleepers of this epoch name beside their own.
    #[must_use]
    pub fn bell(&self) -> SleepWord<'_> {
        self.bell.until_open()
    }
}

impl Watch for RevokeCell {
    fn check(&self) -> Option<Stop> {
        self.read().map(Stop::from)
    }

    fn bell(&self) -> Option<SleepWord<'_>> {
        Some(Self::bell(self))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::kernel::mock::MockKernel;
    use super::*;

    #[test]
    fn every_reason_survives_its_word() {
        let ranks = [0, 1, MAX_RANKS - 1].map(Rank::known);
        let mut reasons = vec![Revocation::ProxyLost, Revocation::Aborted(None)];
        reasons.extend(ranks.map(Revocation::PeerLost));
        reasons.extend(ranks.map(Revocation::Corrupted));
        let timed_out = |by| ranks.map(|awaited| Revocation::TimedOut { by, awaited });
        reasons.extend(ranks.into_iter().flat_map(timed_out));
        reasons.extend(ranks.map(|rank| Revocation::Aborted(Some(rank))));
        for reason in reasons {
            assert_ne!(reason.to_word(), 0);
            assert_eq!(Revocation::from_word(reason.to_word()), Some(reason));
        }
    }

    #[test]
    fn a_forged_word_still_ends_the_epoch() {
        for word in [PEER_LOST, PEER_LOST | 257 << RANK_SHIFT, 77, u64::MAX, 1 << 63, 3 << RANK_SHIFT] {
            assert!(matches!(Revocation::from_word(word), Some(Revocation::Aborted(_))), "{word:#x}");
        }
        assert_eq!(Revocation::from_word(0), None);
    }

    #[test]
    fn the_first_reason_stands_and_every_revocation_rings() {
        let (kernel, cell) = (MockKernel::new(), RevokeCell::default());
        assert_eq!((cell.read(), cell.check()), (None, None));
        let first = Revocation::PeerLost(Rank::known(3));
        assert_eq!(cell.revoke(&kernel, first), first);
        assert_eq!(cell.revoke(&kernel, Revocation::ProxyLost), first);
        assert_eq!(cell.check(), Some(Stop::PeerLost(Rank::known(3))));
        assert!(!RevokeCell::bell(&cell).is_unchanged());
    }
}
