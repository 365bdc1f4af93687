//! The number of a device process, and how many of them a communicator can hold.

use crate::error::{Error, Result};

/// The most ranks that one communicator can hold.
///
/// The limit comes from the trigger: its ten semaphore bits name the target rank (six) and one of sixteen
/// channels per pair (four).
pub const MAX_RANKS: u32 = 64;

/// The number of a device process within its communicator, from 0 to `n_ranks - 1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank(u32);

impl Rank {
    /// Names rank `value` of a communicator of `n_ranks`.
    ///
    /// # Errors
    /// [`Error::InvalidRank`] when `value` is not below `n_ranks`.
    pub fn new(value: u32, n_ranks: u32) -> Result<Self> {
        if value < n_ranks && value < MAX_RANKS {
            Ok(Self(value))
        } else {
            Err(Error::InvalidRank { rank: value, n_ranks })
        }
    }

    /// Names a rank that a caller inside the engine has checked against [`MAX_RANKS`] already.
    pub(crate) const fn known(value: u32) -> Self {
        assert!(value < MAX_RANKS, "rank out of range");
        Self(value)
    }

    /// The rank after this one, in a ring of `n_ranks`.
    pub(crate) const fn right(self, n_ranks: u32) -> Self {
        Self::known((self.0 + 1) % n_ranks)
    }

    /// The rank before this one, in a ring of `n_ranks`.
    pub(crate) const fn left(self, n_ranks: u32) -> Self {
        Self::known((self.0 + n_ranks - 1) % n_ranks)
    }

    /// The rank as a number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The rank as an index into a table with one entry per rank.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl std::fmt::Display for Rank {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// Checks the size of a communicator.
///
/// # Errors
/// [`Error::InvalidArgument`] unless `1 <= n_ranks <= MAX_RANKS`.
#[inline]
pub(crate) fn check_n_ranks(n_ranks: u32) -> Result<()> {
    if (1..=MAX_RANKS).contains(&n_ranks) {
        Ok(())
    } else {
        Err(Error::InvalidArgument {
            name: "n_ranks",
            value: u64::from(n_ranks),
            expected: "from 1 to 64 ranks",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_is_below_the_number_of_ranks() {
        assert_eq!(Rank::new(2, 3).unwrap().get(), 2);
        assert!(matches!(Rank::new(3, 3), Err(Error::InvalidRank { rank: 3, n_ranks: 3 })));
        assert!(matches!(Rank::new(0, 0), Err(Error::InvalidRank { .. })));
        assert!(Rank::new(64, 65).is_err());
    }

    #[test]
    fn a_communicator_has_between_one_and_max_ranks() {
        assert!(check_n_ranks(0).is_err());
        assert!(check_n_ranks(1).is_ok());
        assert!(check_n_ranks(MAX_RANKS).is_ok());
        assert!(check_n_ranks(MAX_RANKS + 1).is_err());
    }
}
