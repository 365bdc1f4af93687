//! The number of a device process, and how many of them a communicator can hold.

/// The most ranks of one communicator.
///
/// The limit comes from the trigger: its ten semaphore bits name the target rank (six) and one of
/// sixteen channels per pair (four).
pub const MAX_RANKS: u32 = 64;

/// The number of a device process within its communicator, from 0 to `n_ranks - 1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank(u32);

impl Rank {
    /// Names rank `value` of a communicator of `n_ranks`.
    ///
    /// # Errors
    /// [`RankError::NoSuchRank`] when `value` is not below `n_ranks`.
    pub fn new(value: u32, n_ranks: u32) -> Result<Self, RankError> {
        if value < n_ranks && value < MAX_RANKS {
            Ok(Self(value))
        } else {
            Err(RankError::NoSuchRank { rank: value, n_ranks })
        }
    }

    /// Names a rank that a caller inside the engine has checked against [`MAX_RANKS`] already.
    pub(crate) const fn known(value: u32) -> Self {
        assert!(value < MAX_RANKS, "rank out of range");
        Self(value)
    }

    /// Numbers `items`, of which there is one per rank, in order.
    ///
    /// # Panics
    /// On more than [`MAX_RANKS`].
    pub(crate) fn of_each<I: IntoIterator>(items: I) -> impl Iterator<Item = (Self, I::Item)> {
        // Each number is made behind its item: of 64 ranks none comes after the last.
        items.into_iter().zip(0..).map(|(item, rank)| (Self::known(rank), item))
    }

    /// Returns the next rank in a ring of `n_ranks`.
    pub(crate) const fn right(self, n_ranks: u32) -> Self {
        Self::known((self.0 + 1) % n_ranks)
    }

    /// Returns the previous rank in a ring of `n_ranks`.
    pub(crate) const fn left(self, n_ranks: u32) -> Self {
        Self::known((self.0 + n_ranks - 1) % n_ranks)
    }

    /// Returns the rank as a number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Returns the rank as an index into a table with one entry per rank.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A number that names no rank, or a number of ranks that no communicator has.
///
/// [`Error`](crate::Error) is made from it: [`InvalidRank`](crate::Error::InvalidRank) or
/// [`InvalidArgument`](crate::Error::InvalidArgument).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RankError {
    /// A rank is not below the number of ranks.
    #[error("rank {rank} does not exist: the communicator has {n_ranks} ranks")]
    NoSuchRank {
        /// The rank that was named.
        rank: u32,
        /// The number of ranks.
        n_ranks: u32,
    },
    /// A communicator cannot have this number of ranks.
    #[error("n_ranks is {n_ranks}, expected {EXPECTED_RANKS}")]
    Count {
        /// The number of ranks that was asked for.
        n_ranks: u32,
    },
}

/// The numbers of ranks that a communicator can have, for errors.
pub(crate) const EXPECTED_RANKS: &str = "from 1 to 64 ranks";

impl std::fmt::Display for Rank {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// A set of ranks of a communicator, one bit for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RankSet(u64);

impl RankSet {
    /// Returns the ranks whose bits are set.
    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Returns all ranks of a communicator of `n_ranks`, at most [`MAX_RANKS`].
    pub(crate) fn all(n_ranks: u32) -> Self {
        (0..n_ranks).map(Rank::known).collect()
    }

    pub(crate) const fn bits(self) -> u64 {
        self.0
    }

    pub(crate) const fn contains(self, rank: Rank) -> bool {
        self.0 >> rank.0 & 1 == 1
    }

    /// Returns the number of its ranks.
    pub(crate) const fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// Returns the ranks that are not among `others`.
    pub(crate) const fn without(self, others: Self) -> Self {
        Self(self.0 & !others.0)
    }

    /// Returns the ranks that are among `others` too.
    pub(crate) const fn and(self, others: Self) -> Self {
        Self(self.0 & others.0)
    }

    /// Counts the ranks below `rank`: its place in the set, if it is in it.
    pub(crate) const fn place_of(self, rank: Rank) -> u32 {
        (self.0 & ((1 << rank.0) - 1)).count_ones()
    }

    /// Returns the ranks in order.
    pub(crate) fn iter(self) -> impl Iterator<Item = Rank> {
        (0..MAX_RANKS).map(Rank).filter(move |rank| self.contains(*rank))
    }
}

impl FromIterator<Rank> for RankSet {
    fn from_iter<I: IntoIterator<Item = Rank>>(ranks: I) -> Self {
        Self(ranks.into_iter().fold(0, |bits, rank| bits | 1 << rank.0))
    }
}

/// Checks the size of a communicator.
///
/// # Errors
/// [`RankError::Count`] unless `1 <= n_ranks <= MAX_RANKS`.
#[inline]
pub(crate) fn check_n_ranks(n_ranks: u32) -> Result<(), RankError> {
    if (1..=MAX_RANKS).contains(&n_ranks) { Ok(()) } else { Err(RankError::Count { n_ranks }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_as_many_items_as_there_can_be_ranks_each_has_its_number() {
        let numbered: Vec<_> = Rank::of_each(100..100 + MAX_RANKS).collect();
        assert_eq!(numbered.len(), 64);
        assert!(numbered.into_iter().all(|(rank, item)| item == 100 + rank.get()));
    }

    #[test]
    fn a_rank_is_below_the_number_of_ranks() {
        assert_eq!(Rank::new(2, 3).unwrap().get(), 2);
        assert_eq!(Rank::new(3, 3), Err(RankError::NoSuchRank { rank: 3, n_ranks: 3 }));
        assert_eq!(Rank::new(0, 0), Err(RankError::NoSuchRank { rank: 0, n_ranks: 0 }));
        assert!(Rank::new(64, 65).is_err());
    }

    #[test]
    fn a_set_of_ranks_knows_who_is_in_it_and_at_which_place() {
        let set: RankSet = [63, 0, 5].map(Rank).into_iter().collect();
        assert_eq!(set.iter().map(Rank::get).collect::<Vec<_>>(), [0, 5, 63]);
        assert_eq!(set.iter().map(|rank| set.place_of(rank)).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!((set.len(), RankSet::default().len(), RankSet::all(MAX_RANKS).bits()), (3, 0, u64::MAX));
        assert_eq!(RankSet::all(6).without(set), RankSet::from_bits(0b1_1110));
    }

    #[test]
    fn a_communicator_has_between_one_and_max_ranks() {
        assert!(check_n_ranks(0).is_err());
        assert!(check_n_ranks(1).is_ok());
        assert!(check_n_ranks(MAX_RANKS).is_ok());
        assert!(check_n_ranks(MAX_RANKS + 1).is_err());
    }
}
