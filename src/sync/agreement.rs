//! A small all-gather of numbers in shared memory, by which ranks agree on a collective call.
//!
//! Each rank owns one cell with two slots. A rank writes its words into the slot that is due, with
//! the generation of the barrier that it passes next. It passes that barrier and reads the words of
//! all. The slot is the generation's parity. One barrier per agreement is enough because there are
//! two slots. A rank that is already in generation g + 1 writes the other slot. It cannot reach g +
//! 2 before all have entered g + 1, and so have read the proposals for g.
//!
//! A rank that passed the same barrier without proposing anything left older words in the slot;
//! their generation tells.
//!
//! | edge | release | acquire | carries |
//! |---|---|---|---|
//! | B1 arrive | the barrier's `arrive` | the barrier's `wait` | the words |
//!
//! The words themselves are `Relaxed`: the barrier between the writes and the reads orders them.

use std::ops::Deref;

use super::atomic::{AtomicU64, Ordering};

/// How many numbers one rank contributes.
pub const AGREEMENT_WORDS: usize = 5;

/// What one rank contributes to the current and the next agreement.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct AgreementCell {
    turns: [ProposalSlot; 2],
}

#[repr(C)]
#[derive(Debug, Default)]
struct ProposalSlot {
    /// One past the generation for which the words were proposed; zero for never.
    proposed: AtomicU64,
    words: [AtomicU64; AGREEMENT_WORDS],
}

impl AgreementCell {
    /// Returns what its rank proposed for the barrier of number `generation`; `None` when it passes
    /// that without a proposal.
    ///
    /// The caller has acquired the rank's arrival in that barrier (B1), and has not passed the one
    /// after it.
    #[must_use]
    pub fn proposal(&self, generation: u64) -> Option<[u64; AGREEMENT_WORDS]> {
        let turn = self.turn(generation);
        // Relaxed: ordered by the arrival. Without a proposal the words may change while they are
        // read.
        let proposed = turn.proposed.load(Ordering::Relaxed);
        (proposed == generation.wrapping_add(1))
            .then(|| std::array::from_fn(|i| turn.words[i].load(Ordering::Relaxed))) // Relaxed: as above
    }

    fn turn(&self, generation: u64) -> &ProposalSlot {
        &self.turns[usize::from(generation % 2 == 1)]
    }
}

/// One rank's side of a sequence of agreements.
#[derive(Debug)]
pub struct Agreement<C> {
    cells: C,
    rank: usize,
    /// The barrier generation that the last proposal was made for.
    generation: u64,
}

impl<C: Deref<Target = [AgreementCell]>> Agreement<C> {
    /// Takes part as number `rank` among `cells`.
    ///
    /// # Panics
    /// When `rank` has no cell.
    pub fn new(cells: C, rank: usize) -> Self {
        assert!(rank < cells.len(), "rank {rank} of {} agreement cells", cells.len());
        Self { cells, rank, generation: 0 }
    }

    /// Publishes this rank's words; the caller passes the barrier next, for which that is number
    /// `generation`, and then calls [`Agreement::theirs`].
    pub fn propose(&mut self, generation: u64, words: [u64; AGREEMENT_WORDS]) {
        self.generation = generation;
        let turn = self.cells[self.rank].turn(generation);
        // Relaxed: ordered by the barrier that follows.
        turn.proposed.store(generation.wrapping_add(1), Ordering::Relaxed);
        for (cell, word) in turn.words.iter().zip(words) {
            cell.store(word, Ordering::Relaxed); // ordered by the barrier that follows
        }
    }

    /// Returns the proposal of `rank` for the barrier that was passed last; `None` when `rank`
    /// passed it without a proposal.
    pub fn theirs(&self, rank: usize) -> Option<[u64; AGREEMENT_WORDS]> {
        self.cells[rank].proposal(self.generation)
    }

    /// Returns how many ranks take part.
    pub fn n_ranks(&self) -> usize {
        self.cells.len()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn cells<const N: usize>() -> [AgreementCell; N] {
        std::array::from_fn(|_| AgreementCell::default())
    }

    #[test]
    fn everybody_reads_what_everybody_proposed_turn_after_turn() {
        let cells = cells::<3>();
        let mut ranks: Vec<_> = (0..3).map(|rank| Agreement::new(&cells[..], rank)).collect();
        for generation in [0, 1, 2, 7, 8, u64::MAX - 1, u64::MAX] {
            for (rank, own) in (0..).zip(&mut ranks) {
                own.propose(generation, [rank, generation, 0, 0, 0]);
            }
            for own in &ranks {
                let all: Vec<_> = (0..3).map(|rank| own.theirs(rank)).collect();
                assert_eq!(all, [0, 1, 2].map(|rank| Some([rank, generation, 0, 0, 0])));
            }
        }
    }

    #[test]
    fn a_rank_that_proposed_nothing_is_told_from_one_that_proposed_the_same_before() {
        let cells = cells::<2>();
        let (mut own, mut other) = (Agreement::new(&cells[..], 0), Agreement::new(&cells[..], 1));
        own.propose(0, [1; AGREEMENT_WORDS]);
        assert_eq!(own.theirs(1), None, "a fresh cell is no proposal");
        other.propose(0, [1; AGREEMENT_WORDS]);
        assert_eq!(own.theirs(1), Some([1; AGREEMENT_WORDS]));
        own.propose(2, [1; AGREEMENT_WORDS]);
        assert_eq!(own.theirs(1), None, "the words of generation 0 are in the same turn");
    }

    #[test]
    fn a_rank_that_is_one_agreement_ahead_leaves_the_last_one_readable() {
        let cells = cells::<2>();
        let (mut own, mut other) = (Agreement::new(&cells[..], 0), Agreement::new(&cells[..], 1));
        own.propose(4, [4; AGREEMENT_WORDS]);
        other.propose(4, [40; AGREEMENT_WORDS]);
        other.propose(5, [50; AGREEMENT_WORDS]);
        assert_eq!(own.theirs(1), Some([40; AGREEMENT_WORDS]));
    }
}
