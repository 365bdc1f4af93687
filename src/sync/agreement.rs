//! A small all-gather of numbers in shared memory, by which ranks agree on a collective call.
//!
//! Each rank owns one cell with two turns. A rank writes its words into the turn that is due, passes the barrier
//! and reads everybody's. One barrier per agreement is enough because of the two turns: a rank that is already
//! in agreement k + 1 writes the other turn, and cannot reach k + 2 before all have entered, and so have read, k + 1.
//!
//! | edge | release | acquire | carries |
//! |---|---|---|---|
//! | B1 arrive | the barrier's `arrive` | the barrier's `wait` | the words |
//!
//! The words themselves are `Relaxed`: the barrier between the writes and the reads orders them.

use std::ops::Deref;

use super::atomic::{AtomicU64, Ordering};

/// How many numbers one rank contributes.
pub const AGREEMENT_WORDS: usize = 6;

/// What one rank contributes to the current and the next agreement.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct AgreementCell {
    turns: [[AtomicU64; AGREEMENT_WORDS]; 2],
}

/// One rank's side of a sequence of agreements.
#[derive(Debug)]
pub struct Agreement<C> {
    cells: C,
    rank: usize,
    turn: usize,
}

impl<C: Deref<Target = [AgreementCell]>> Agreement<C> {
    /// Takes part as number `rank` among `cells`.
    ///
    /// # Panics
    /// When `rank` has no cell.
    pub fn new(cells: C, rank: usize) -> Self {
        assert!(rank < cells.len(), "rank {rank} of {} agreement cells", cells.len());
        Self { cells, rank, turn: 0 }
    }

    /// Publishes this rank's words; the caller passes the barrier next and then calls [`Agreement::theirs`].
    pub fn propose(&mut self, words: [u64; AGREEMENT_WORDS]) {
        self.turn ^= 1;
        for (cell, word) in self.cells[self.rank].turns[self.turn].iter().zip(words) {
            cell.store(word, Ordering::Relaxed); // ordered by the barrier that follows
        }
    }

    /// What `rank` proposed in the agreement whose barrier was passed last.
    pub fn theirs(&self, rank: usize) -> [u64; AGREEMENT_WORDS] {
        // Relaxed: ordered by the barrier that lies between.
        std::array::from_fn(|i| self.cells[rank].turns[self.turn][i].load(Ordering::Relaxed))
    }

    /// How many ranks take part.
    pub fn n_ranks(&self) -> usize {
        self.cells.len()
    }
}
