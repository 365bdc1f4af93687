//! Numbers drawn from a seed (SplitMix64, by Steele, Lea and Flood).

/// Draws numbers.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// A number below `end`.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// True once in `n` times.
    pub(super) fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// One of `all`, if there are any.
    pub(super) fn pick<T: Copy>(&mut self, all: &[T]) -> Option<T> {
        let index = usize::try_from(self.below(all.len().max(1) as u64)).unwrap_or_default();
        all.get(index).copied()
    }
}
