//! What a call has to give.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use shmccl::collective::Operation;

use crate::oracle::order::Orders;
use crate::oracle::reduction::{Mistake, Reduction};
use crate::oracle::table::{Combination, Operator};
use crate::oracle::turn::MOST;
use crate::oracle::values::{Pool, Values};

/// Results that were found right on some rank, by the number of their call: they are the same on
/// all.
#[derive(Debug, Default)]
pub(crate) struct Verified(Mutex<HashMap<usize, Arc<OnceLock<Vec<u8>>>>>);

/// Results are kept for so many calls: no rank is as far behind another.
const KEPT: usize = 64 * MOST;

impl Verified {
    fn of(&self, number: usize) -> Arc<OnceLock<Vec<u8>>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|&other, _| other + KEPT > number);
        Arc::clone(all.entry(number).or_default())
    }
}

/// One call among so many ranks.
#[derive(Debug)]
pub(crate) struct Question<'a> {
    pub(crate) call: &'a Combination,
    pub(crate) number: usize,
    pub(crate) n: usize,
    pub(crate) me: usize,
    pub(crate) pool: &'a Pool,
    pub(crate) verified: &'a Verified,
}

impl Question<'_> {
    fn size(&self) -> usize {
        self.call.dtype.size()
    }

    /// Blocks in the input and in the output of a rank that has them.
    pub(crate) fn blocks(&self) -> (usize, usize) {
        let (sent, received) = self.call.operation.blocks(self.n as u64);
        (usize::try_from(sent).unwrap(), usize::try_from(received).unwrap())
    }

    /// The length of a block in bytes.
    pub(crate) fn block_len(&self) -> usize {
        self.call.count * self.size()
    }

    /// What `rank` sends, if it sends anything.
    pub(crate) fn input(&self, rank: usize) -> Vec<u8> {
        let count = self.blocks().0 * self.call.count;
        self.pool.input(self.call.dtype, self.call.values, self.call.chance(rank as u64), count)
    }

    /// What `rank` multiplies by in a scaled sum.
    pub(crate) fn scalar(&self, rank: usize) -> Vec<u8> {
        self.pool.scalar(self.call.dtype, self.call.values, self.call.chance(u64::MAX - rank as u64))
    }

    /// What this rank has to get, where the operation moves bytes only.
    fn moved(&self) -> Vec<u8> {
        let block = |rank: usize, index: usize| {
            let len = self.block_len();
            self.input(rank)[index * len..][..len].to_vec()
        };
        match self.call.operation {
            Operation::Broadcast => self.input(self.call.root),
            Operation::Scatter => block(self.call.root, self.me),
            Operation::AllToAll => (0..self.n).map(|rank| block(rank, self.me)).collect::<Vec<_>>().concat(),
            _ => (0..self.n).map(|rank| self.input(rank)).collect::<Vec<_>>().concat(),
        }
    }

    /// Where `result`, which this rank got, is wrong, and what belongs there.
    pub(crate) fn first_mistake(&self, result: &[u8]) -> Option<Mistake> {
        match self.call.operation {
            Operation::AllReduce => {
                let shared = self.verified.of(self.number);
                let mut mistake = None;
                let other = shared.get_or_init(|| {
                    mistake = self.first_misreduced(result);
                    result.to_vec()
                });
                mistake.or_else(|| Mistake::first(result, other, self.size()))
            }
            operation if operation.reduces() => self.first_misreduced(result),
            _ => Mistake::first(result, &self.moved(), self.size()),
        }
    }

    /// Where `result` is no reduction of the inputs in any order that may have been taken there.
    fn first_misreduced(&self, result: &[u8]) -> Option<Mistake> {
        let (call, len) = (self.call, self.block_len());
        let at = if call.operation == Operation::ReduceScatter { self.me * len } else { 0 };
        let combined = self.n_combined();
        let inputs = (0..combined).map(|rank| self.input(rank)[at..at + len].to_vec()).collect();
        let operators = (0..combined).map(|rank| call.operator.plain(&self.scalar(rank))).collect();
        Reduction { dtype: call.dtype, operators, inputs }.first_mistake(result, &self.orders())
    }

    /// Of how many ranks, from the first on, the inputs are combined for this one.
    fn n_combined(&self) -> usize {
        match self.call.operation {
            Operation::Scan => self.me + 1,
            Operation::ExScan => self.me,
            _ => self.n,
        }
    }

    fn orders(&self) -> Orders {
        let (call, n) = (self.call, self.n_combined());
        if call.values == Values::Whole && call.operator != Operator::Custom {
            // Whatever the order is: this does not depend on what is known about it.
            return Orders::by_rank(n);
        }
        let root = if call.operation == Operation::Reduce { call.root } else { 0 };
        Orders::of(call.operation, call.algorithm, n, root, self.me, self.size())
    }
}
