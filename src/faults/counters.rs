//! The words in which a rank tells others of the faults that have hit it.
//!
//! The last fault that has hit a rank, and how many have. One that has killed the rank stays,
//! whatever hits it afterwards, and so does one that has stopped its proxy, unless the rank is
//! killed.
//!
//! | word | what |
//! |---|---|
//! | 0 | how many; 0 for none |
//! | 1 | the seed |
//! | 2 | bits 0..8 the fault, 8..16 what was counted, 16..24 what was struck, 24..32 the rank |
//! | 3 | its number |
//!
//! The threads of a rank and its proxy may tell at a time: then it is a mixture, which is checked
//! and believed by nobody but people.

use super::{FaultHit, FaultKind, known, words};
use crate::sync::atomic::AtomicU64;
use crate::sync::plain;

/// The number of words in which a rank tells of its faults.
pub(crate) const FAULT_WORDS: usize = 4;

impl FaultHit {
    /// Tells of this fault in `words`, unless they tell of one that has ended more.
    pub(crate) fn tell(&self, words: &[AtomicU64]) {
        if Self::told(words).is_none_or(|(last, _)| last.kind.ends() <= self.kind.ends()) {
            let what = self.kind as u64
                | code_of(self.counted) << 8
                | code_of(self.at) << 16
                | u64::from(self.rank.get()) << 24;
            for (word, value) in words[1..].iter().zip([self.seed, what, self.number]) {
                plain::store(word, value);
            }
        }
        plain::add(&words[0], 1);
    }

    /// Reads `words`, if a fault has hit.
    pub(crate) fn told(words: &[AtomicU64]) -> Option<(Self, u64)> {
        let word = |index: usize| words.get(index).map(plain::load);
        let (count, what) = (word(0)?, word(2)?);
        let last = Self {
            kind: FaultKind::from_code(what & 0xff)?,
            rank: known(what >> 24 & 0xff)?,
            counted: name_of(what >> 8 & 0xff)?,
            number: word(3)?,
            at: name_of(what >> 16 & 0xff)?,
            seed: word(1)?,
        };
        (count > 0).then_some((last, count))
    }
}

fn code_of(word: &str) -> u64 {
    words().position(|known| known == word).map_or(0, |index| index as u64 + 1)
}

fn name_of(code: u64) -> Option<&'static str> {
    words().nth(usize::try_from(code).ok()?.checked_sub(1)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rank::Rank;

    #[test]
    fn what_is_told_of_a_strike_is_what_others_read() {
        let told: Vec<_> = (0..FAULT_WORDS).map(|_| AtomicU64::new(0)).collect();
        assert_eq!(FaultHit::told(&told), None);
        for (kind, at) in FaultKind::ALL.into_iter().zip(words()) {
            // Nothing has ended what this is told of.
            told.iter().skip(1).for_each(|word| plain::store(word, 0));
            for counted in words() {
                let last = FaultHit {
                    kind,
                    rank: Rank::known(255),
                    counted,
                    number: u64::MAX,
                    at,
                    seed: u64::MAX - 1,
                };
                last.tell(&told);
                assert_eq!(FaultHit::told(&told).map(|(last, _)| last), Some(last));
            }
        }
        assert_eq!(FaultHit::told(&told).map(|(_, count)| count), Some(6 * words().count() as u64));
        assert!(words().count() < 255);
    }

    #[test]
    fn what_has_killed_a_rank_stays_whatever_strikes_afterwards() {
        let told: Vec<_> = (0..FAULT_WORDS).map(|_| AtomicU64::new(0)).collect();
        let hit =
            |kind| FaultHit { kind, rank: Rank::known(1), counted: "put", number: 1, at: "put", seed: 0 };
        let kinds = [FaultKind::Delay, FaultKind::Stop, FaultKind::Corrupt, FaultKind::Kill, FaultKind::Stop];
        let stand = kinds.map(|kind| {
            hit(kind).tell(&told);
            FaultHit::told(&told).unwrap().0.kind
        });
        assert_eq!(
            stand,
            [FaultKind::Delay, FaultKind::Stop, FaultKind::Stop, FaultKind::Kill, FaultKind::Kill]
        );
        assert_eq!(FaultHit::told(&told).map(|(_, count)| count), Some(5));
    }

    #[test]
    fn garbage_tells_of_nothing() {
        for garbage in
            [[1, 0, 0, 0], [1, 0, 7, 1], [1, 0, 0xff << 8 | 1, 1], [1, 0, u64::MAX, 1], [u64::MAX; 4]]
        {
            assert_eq!(FaultHit::told(&garbage.map(AtomicU64::new)), None, "{garbage:?}");
        }
    }

    #[test]
    fn a_strike_names_what_was_counted_what_was_struck_and_the_seed() {
        let hit = FaultHit {
            kind: FaultKind::Kill,
            rank: Rank::known(1),
            counted: "operation",
            number: 12,
            at: "all_reduce",
            seed: 7,
        };
        assert_eq!(hit.to_string(), "kill at operation 12, all_reduce (seed 7)");
        let hit = FaultHit { kind: FaultKind::Drop, counted: "trigger", at: "trigger", ..hit };
        assert_eq!(hit.to_string(), "drop at trigger 12 (seed 7)");
    }
}
