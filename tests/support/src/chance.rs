//! Chance that can be repeated.

use std::time::{SystemTime, UNIX_EPOCH};

/// The seed that is to be replayed: what `SHMCCL_SEED` says.
///
/// # Panics
/// When that is no number.
pub fn told_seed() -> Option<u64> {
    let told = std::env::var("SHMCCL_SEED").ok()?;
    Some(told.parse().unwrap_or_else(|_| panic!("SHMCCL_SEED={told} is no number")))
}

/// The seed of this run: the one that is told, or else one that no other run has, by the clock.
///
/// # Panics
/// When the one that is told is no number.
pub fn seed() -> u64 {
    told_seed().unwrap_or_else(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // So many that a table of them is readable, and that a series may count on from there.
        Random(now.as_secs() ^ u64::from(now.subsec_nanos()) << 32).below(1 << 40)
    })
}

/// A stream of numbers that depends on its seed alone (splitmix64).
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next number, below `limit`, which is not zero.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ word >> 31) % limit
    }

    /// The next one of these.
    pub fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[usize::try_from(self.below(from.len() as u64)).unwrap()]
    }
}
