//! The algorithms, each written once for channels of both kinds. Over direct channels most calls
//! never come here: `two_shot` goes by [`zero_copy`](super::zero_copy) or
//! [`staged`](super::staged) then, `one_shot` of up to 8 KiB by [`eager`](super::eager). These need
//! no pipes.
//!
//! | module | does |
//! |---|---|
//! | [`pairwise`] | `one_shot`, `two_shot` |
//! | [`ring`] | `ring` |
//! | [`doubling`] | `recursive_doubling` |
//! | [`halving`] | `halving_doubling` |
//! | [`tree`] | `tree`, `naive`, `double_tree`; `ring` and shots of a broadcast, and of a reduce |
//!
//! In which order each of them combines elements [`Algorithm`] tells.
//!
//! One member makes an element of a result for all, or the two that exchange make it alike. So all
//! ranks get the same bits. The order depends on the number of ranks, the count, the length of an
//! element and the root only. So the bits are the same in every run. (A call that goes through the
//! staging area in several chunks is several operations in this respect. That shows where elements
//! of one operation go different ways: in the ring and in the double tree.)
//!
//! A [`PipeWorker`] is one member in one operation. Fragments of no bytes are not sent; both ends
//! know their lengths.
//!
//! Tried by its unit tests and `scenarios algorithms:: oracle::`.

pub(crate) mod doubling;
pub(crate) mod exchange;
pub(crate) mod halving;
pub(crate) mod pairwise;
pub(crate) mod pieces;
pub(crate) mod ring;
pub(crate) mod tree;
pub(crate) mod worker;

use crate::collective::call::{Algorithm, Operation};
use crate::collective::transport::link::Link;
use crate::error::Result;
use tree::{Numbering, Shape};
use worker::PipeWorker;

/// Executes the worker's call by `algorithm`, which can do it, among two members or more.
///
/// # Errors
/// Fails as [`crate::collective::rendezvous::board::CallBoard::await_post`] does, or with
/// [`crate::Error::OutOfRange`] for buffers that are not allocated. The pipes are of no further use
/// then.
pub(crate) fn run<L: Link>(worker: &mut PipeWorker<'_, L>, algorithm: Algorithm) -> Result<()> {
    let (operation, root) = (worker.call.operation, Numbering::From(worker.call.root));
    let is_power = worker.n().is_power_of_two();
    let has_tree = matches!(operation, Operation::Broadcast | Operation::Reduce);
    match algorithm {
        Algorithm::OneShot | Algorithm::TwoShot if has_tree => tree::run(worker, Shape::Star, root),
        Algorithm::TwoShot if operation == Operation::AllReduce => pairwise::two_shot(worker),
        Algorithm::OneShot | Algorithm::TwoShot => pairwise::one_shot(worker),
        Algorithm::Ring if has_tree => tree::run(worker, Shape::Chain, root),
        Algorithm::RecursiveDoubling if operation == Operation::AllReduce => doubling::all_reduce(worker),
        Algorithm::RecursiveDoubling if is_power => doubling::all_gather(worker),
        Algorithm::HalvingDoubling if operation == Operation::AllReduce => halving::all_reduce(worker),
        Algorithm::HalvingDoubling if is_power => halving::reduce_scatter(worker),
        Algorithm::Ring | Algorithm::RecursiveDoubling | Algorithm::HalvingDoubling => ring::run(worker),
        Algorithm::Tree => tree::run(worker, Shape::Binary, root),
        Algorithm::DoubleTree => tree::run_double(worker),
        Algorithm::Naive => tree::run(worker, Shape::Star, root),
    }?;
    worker.pipes.flush_all()
}
