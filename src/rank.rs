//! The number of a device process, and how many of them a communicator can hold.
//!
//! Tried by its unit tests and `scenarios rank_sets::`.

/// The most ranks of one communicator.
///
/// The limit comes from what each process keeps of all the others: a part of the control segment, a
/// mapping of their heaps, a row of semaphores. A trigger has room for four times as many.
pub const MAX_RANKS: u32 = 256;

/// The number of a device process within its communicator, from 0 to `n_ranks - 1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank(u32);

impl Rank {
    /// The first rank, which every communicator has.
    pub const ZERO: Self = Self(0);

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
        // Each number is made behind its item: of `MAX_RANKS` none comes after the last.
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
pub(crate) const EXPECTED_RANKS: &str = "from 1 to 256 ranks";

impl std::fmt::Display for Rank {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// How many ranks a word of a set holds.
const WORD_RANKS: u32 = u64::BITS;

/// How many words a set of ranks has.
pub(crate) const SET_WORDS: usize = (MAX_RANKS / WORD_RANKS) as usize;

/// A set of ranks of a communicator, one bit for each: rank r is bit `r % 64` of word `r / 64`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RankSet([u64; SET_WORDS]);

impl RankSet {
    /// Returns the ranks whose bits are set.
    pub(crate) const fn from_words(words: [u64; SET_WORDS]) -> Self {
        Self(words)
    }

    /// Returns all ranks of a communicator of `n_ranks`, at most [`MAX_RANKS`].
    pub(crate) fn all(n_ranks: u32) -> Self {
        (0..n_ranks).map(Rank::known).collect()
    }

    /// Returns the bits.
    pub(crate) const fn words(self) -> [u64; SET_WORDS] {
        self.0
    }

    /// Returns the set of which part `index` of `N`, each of `width` ranks, is in the lowest bits
    /// of `parts[index]`. Bits above those, and parts above [`MAX_RANKS`], do not count.
    ///
    /// `width` divides 64.
    pub(crate) fn from_parts<const N: usize>(parts: [u64; N], width: u32) -> Self {
        let mut set = Self::default();
        for (bits, first) in parts.into_iter().zip((0..MAX_RANKS).step_by(width as usize)) {
            set.0[(first / WORD_RANKS) as usize] |= (bits & low_bits(width)) << (first % WORD_RANKS);
        }
        set
    }

    /// Returns part `index` of the set, of `width` ranks, in the lowest bits: what
    /// [`RankSet::from_parts`] takes.
    pub(crate) const fn part(self, index: usize, width: u32) -> u64 {
        let (first, word_ranks) = (index * width as usize, WORD_RANKS as usize);
        self.0[first / word_ranks] >> (first % word_ranks) & low_bits(width)
    }

    pub(crate) const fn contains(self, rank: Rank) -> bool {
        self.0[rank.word()] & rank.bit() != 0
    }

    /// Adds `rank`; returns whether it was not in the set.
    pub(crate) const fn insert(&mut self, rank: Rank) -> bool {
        let is_new = !self.contains(rank);
        self.0[rank.word()] |= rank.bit();
        is_new
    }

    /// Takes `rank` out; returns whether it was in the set.
    pub(crate) const fn remove(&mut self, rank: Rank) -> bool {
        let was_in = self.contains(rank);
        self.0[rank.word()] &= !rank.bit();
        was_in
    }

    /// Returns whether it has no ranks.
    pub(crate) fn is_empty(self) -> bool {
        self.0 == [0; SET_WORDS]
    }

    /// Returns the number of its ranks.
    pub(crate) fn len(self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// Returns the ranks that are not among `others`.
    pub(crate) fn without(self, others: Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] & !others.0[word]))
    }

    /// Returns the ranks that are among `others` too.
    pub(crate) fn and(self, others: Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] & others.0[word]))
    }

    /// Returns the ranks of both sets.
    pub(crate) fn or(self, others: Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] | others.0[word]))
    }

    /// Counts the ranks below `rank`: its place in the set, if it is in it.
    pub(crate) fn place_of(self, rank: Rank) -> u32 {
        let below = self.0[rank.word()] & (rank.bit() - 1);
        self.0[..rank.word()].iter().chain([&below]).map(|word| word.count_ones()).sum()
    }

    /// Returns the ranks in order.
    pub(crate) fn iter(self) -> impl Iterator<Item = Rank> {
        (0..MAX_RANKS).map(Rank).filter(move |rank| self.contains(*rank))
    }
}

impl FromIterator<Rank> for RankSet {
    fn from_iter<I: IntoIterator<Item = Rank>>(ranks: I) -> Self {
        let mut set = Self::default();
        ranks.into_iter().for_each(|rank| _ = set.insert(rank));
        set
    }
}

impl Rank {
    /// Returns the word of a set that has its bit.
    const fn word(self) -> usize {
        (self.0 / WORD_RANKS) as usize
    }

    /// Returns its bit in that word.
    const fn bit(self) -> u64 {
        1 << (self.0 % WORD_RANKS)
    }
}

const fn low_bits(width: u32) -> u64 {
    u64::MAX >> (WORD_RANKS - width)
}

/// Checks the size of a communicator.
///
/// # Errors
/// [`RankError::Count`] unless `1 <= n_ranks <= MAX_RANKS`.
#[inline]
pub fn check_n_ranks(n_ranks: u32) -> Result<(), RankError> {
    if (1..=MAX_RANKS).contains(&n_ranks) { Ok(()) } else { Err(RankError::Count { n_ranks }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_as_many_items_as_there_can_be_ranks_each_has_its_number() {
        let numbered: Vec<_> = Rank::of_each(100..100 + MAX_RANKS).collect();
        assert_eq!(numbered.len(), 256);
        assert!(numbered.into_iter().all(|(rank, item)| item == 100 + rank.get()));
    }

    #[test]
    fn a_rank_is_below_the_number_of_ranks() {
        assert_eq!(Rank::new(2, 3).unwrap().get(), 2);
        assert_eq!(Rank::new(3, 3), Err(RankError::NoSuchRank { rank: 3, n_ranks: 3 }));
        assert_eq!(Rank::new(0, 0), Err(RankError::NoSuchRank { rank: 0, n_ranks: 0 }));
        assert!(Rank::new(255, 256).is_ok() && Rank::new(256, 257).is_err());
    }

    /// Ranks on both sides of each border between words.
    const AT_BORDERS: [u32; 9] = [0, 1, 63, 64, 65, 127, 128, 192, 255];

    #[test]
    fn a_set_of_ranks_knows_who_is_in_it_and_at_which_place() {
        let set: RankSet = AT_BORDERS.into_iter().rev().map(Rank).collect();
        assert_eq!(set.iter().map(Rank::get).collect::<Vec<_>>(), AT_BORDERS);
        assert!(set.iter().map(|rank| set.place_of(rank)).eq(0..9));
        assert_eq!([2, 62, 126, 129, 254].map(|rank| set.place_of(Rank(rank))), [2, 2, 5, 7, 8]);
        assert_eq!([2, 62, 66, 126, 191, 254].map(|rank| set.contains(Rank(rank))), [false; 6]);
        assert_eq!((set.len(), RankSet::default().len(), RankSet::all(MAX_RANKS).len()), (9, 0, 256));
        assert!(RankSet::default().is_empty() && !set.is_empty());
    }

    #[test]
    fn sets_of_ranks_are_combined_in_every_word() {
        for rank in AT_BORDERS.map(Rank) {
            let (mut one, all) = (RankSet::default(), RankSet::all(MAX_RANKS));
            assert!(one.insert(rank) && !one.insert(rank));
            assert_eq!((one.and(all), one.or(all), one.without(all)), (one, all, RankSet::default()));
            let rest = all.without(one);
            assert_eq!((rest.len(), rest.contains(rank), rest.and(one).is_empty()), (255, false, true));
            assert_eq!((rest.or(one), RankSet::all(rank.get()).contains(rank)), (all, false));
            let mut rest = all;
            assert!(rest.remove(rank) && !rest.remove(rank));
            assert_eq!(rest, all.without(one));
        }
    }

    #[test]
    fn a_set_of_ranks_is_put_together_from_its_parts() {
        fn parts<const N: usize>(set: RankSet) -> RankSet {
            let width = MAX_RANKS / u32::try_from(N).unwrap();
            let parts = std::array::from_fn::<_, N, _>(|part| set.part(part, width));
            let marked = parts.map(|part| if width < 64 { part | 1 << 63 } else { part });
            assert_eq!(RankSet::from_parts(marked, width), RankSet::from_parts(parts, width));
            RankSet::from_parts(parts, width)
        }
        let set: RankSet = AT_BORDERS.map(Rank).into_iter().collect();
        assert_eq!([parts::<4>(set), parts::<8>(set), parts::<128>(set)], [set; 3]);
        assert_eq!((set.part(0, 64), set.part(7, 32), set.part(2, 32)), (1 << 63 | 3, 1 << 31, 3));
        assert_eq!(RankSet::from_words(set.words()), set);
    }

    #[test]
    fn a_communicator_has_between_one_and_max_ranks() {
        assert!(check_n_ranks(0).is_err());
        assert!(check_n_ranks(1).is_ok());
        assert!(check_n_ranks(MAX_RANKS).is_ok());
        assert!(check_n_ranks(MAX_RANKS + 1).is_err());
    }
}
