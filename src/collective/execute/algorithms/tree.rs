//! Up a tree and down again: reduce, broadcast, or both for an all-reduce.
//!
//! | shape | who is above member v, counted from the root | for |
//! |---|---|---|
//! | star | the root | short data and few members |
//! | chain | v - 1 | long broadcasts: each member sends everything once |
//! | binary | v without its lowest bit b, and with 2 b set if that is one | both: log2 n deep |
//!
//! The binary tree and the double one are those of NCCL 2.4 (`src/graph/trees.h` there; Sanders,
//! Speck and Träff 2009 tell of two trees). Below the root every odd member is a leaf and every
//! even one an inner node. The second tree numbers the members backwards, or from the second one on
//! where their number is odd. So the inner nodes of one are leaves of the other. Each carries half
//! of the elements.
//!
//! # Order
//! A node combines what its children have and its own in the order of the members' numbers. On a
//! star that is the order of all ranks.
//!
//! # No deadlock
//! Pieces go in a pipeline. With D the depth of the tree, a node at depth d sends piece k up at
//! time k + D - d, after it has received it from its children, and takes it down at time k + D + d.
//! So what is sent at one time is received at the next. On the two trees there are at most two
//! fragments to one peer at a time, which both ends take in the order of the trees.
//!
//! # Overwriting
//! Partial results are made on the send staging: all of them go to one peer, as nobody is an inner
//! node twice (a test says so). What a leaf sends from its input is overwritten only by the result
//! for it, and what goes down, not at all.

use arrayvec::ArrayVec;

use super::pieces::PieceCut;
use super::worker::{Operand, PipeWorker};
use crate::collective::call::Operation;
use crate::collective::rendezvous::members::PerMember;
use crate::collective::transport::link::Link;
use crate::collective::transport::pipe::Transport;
use crate::error::Result;
use crate::heap::HeapOffset;

/// How members are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Star,
    Chain,
    Binary,
}

/// How members are numbered in a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Numbering {
    /// Members count from this one on.
    From(usize),
    /// Members count from the last one backwards.
    Backwards,
}

impl Numbering {
    /// Returns the number of `member` in the tree.
    fn number(self, member: usize, n: usize) -> usize {
        match self {
            Self::From(root) => (member + n - root) % n,
            Self::Backwards => n - 1 - member,
        }
    }

    /// Returns the member with this number in the tree.
    fn member(self, number: usize, n: usize) -> usize {
        match self {
            Self::From(root) => (number + root) % n,
            Self::Backwards => n - 1 - number,
        }
    }
}

/// Returns the number of who is above `number`, which is not 0, in a tree of `n`.
fn above(shape: Shape, number: usize, n: usize) -> usize {
    match shape {
        Shape::Star => 0,
        Shape::Chain => number - 1,
        Shape::Binary => {
            let bit = 1 << number.trailing_zeros();
            let up = number ^ bit | bit << 1;
            if up < n { up } else { number ^ bit }
        }
    }
}

fn depth(shape: Shape, mut number: usize, n: usize) -> u64 {
    let mut depth = 0;
    while number != 0 {
        number = above(shape, number, n);
        depth += 1;
    }
    depth
}

/// A tree as one member sees it.
#[derive(Clone, Debug)]
struct Tree {
    parent: Option<usize>,
    /// The children in the order of their numbers, and whether they are leaves.
    children: PerMember<(usize, bool)>,
    depth: u64,
    /// The depth of the deepest member.
    height: u64,
}

impl Tree {
    fn new(shape: Shape, numbering: Numbering, n: usize, me: usize) -> Self {
        let mine = numbering.number(me, n);
        let is_below = |number: usize, other: usize| number != 0 && above(shape, number, n) == other;
        let is_leaf = |other: usize| !(0..n).any(|number| is_below(number, other));
        let child = |number| (numbering.member(number, n), is_leaf(number));
        let mut children: PerMember<_> = (0..n).filter(|&number| is_below(number, mine)).map(child).collect();
        children.sort_unstable();
        Self {
            parent: (mine != 0).then(|| numbering.member(above(shape, mine, n), n)),
            children,
            depth: depth(shape, mine, n),
            height: (0..n).map(|number| depth(shape, number, n)).max().unwrap_or(0),
        }
    }
}

/// Does a reduce, a broadcast or an all-reduce on one tree.
pub(super) fn run<L: Link>(worker: &mut PipeWorker<'_, L>, shape: Shape, numbering: Numbering) -> Result<()> {
    let tree = Tree::new(shape, numbering, worker.n(), worker.me());
    let whole = TreePart::new(worker, tree, 0, worker.call.block_len()?);
    run_parts(worker, &[whole])
}

/// Does an all-reduce on two trees.
pub(super) fn run_double<L: Link>(worker: &mut PipeWorker<'_, L>) -> Result<()> {
    let (me, n, len) = (worker.me(), worker.n(), worker.call.block_len()?);
    let size = worker.call.data_type.size() as u64;
    let half = worker.call.count.div_ceil(2) * size;
    let tree = |which| Tree::new(Shape::Binary, numbering_of(which, n), n, me);
    let parts = [TreePart::new(worker, tree(0), 0, half), TreePart::new(worker, tree(1), half, len - half)];
    run_parts(worker, &parts)
}

/// Returns how the `n` members are numbered in either of two trees.
fn numbering_of(which: usize, n: usize) -> Numbering {
    match which {
        0 => Numbering::From(0),
        _ if n.is_multiple_of(2) => Numbering::Backwards,
        _ => Numbering::From(1),
    }
}

fn run_parts<L: Link>(worker: &mut PipeWorker<'_, L>, parts: &[TreePart]) -> Result<()> {
    let end = parts.iter().map(TreePart::end).max().unwrap_or(0);
    for time in 0..end {
        for part in parts {
            part.at(worker, time)?;
        }
    }
    Ok(())
}

/// A part of the data, and the tree that it goes over.
#[derive(Debug)]
struct TreePart {
    tree: Tree,
    start: u64,
    cut: PieceCut,
    goes_up: bool,
    goes_down: bool,
}

impl TreePart {
    fn new<L: Link>(worker: &PipeWorker<'_, L>, tree: Tree, start: u64, len: u64) -> Self {
        let cut = PieceCut::for_pipeline(len, worker.pipes.slot_len());
        let operation = worker.call.operation;
        let (goes_up, goes_down) = (operation != Operation::Broadcast, operation != Operation::Reduce);
        Self { tree, start, cut, goes_up, goes_down }
    }

    /// Returns the step at which all is over.
    fn end(&self) -> u64 {
        self.cut.n() + 2 * self.tree.height
    }

    /// Does what this member has to do at `time`.
    fn at<L: Link>(&self, worker: &mut PipeWorker<'_, L>, time: u64) -> Result<()> {
        let Tree { depth, height, .. } = self.tree;
        if self.goes_up {
            self.piece(time, height - depth).map_or(Ok(()), |(at, len)| self.up(worker, at, len))?;
        }
        if self.goes_down {
            self.piece(time, height + depth).map_or(Ok(()), |(at, len)| self.down(worker, at, len))?;
        }
        Ok(())
    }

    /// Returns the piece whose turn is at `time`, where the first one's is at `begin`.
    fn piece(&self, time: u64, begin: u64) -> Option<(u64, u64)> {
        let (at, len) = self.cut.piece(time.checked_sub(begin)?);
        (len > 0).then_some((self.start + at, len))
    }

    /// Combines `len` bytes at `at` of what the children have with this member's own, and sends
    /// them to the parent.
    fn up<L: Link>(&self, worker: &mut PipeWorker<'_, L>, at: u64, len: u64) -> Result<()> {
        let source = match self.tree.parent {
            Some(_) if self.tree.children.is_empty() => worker.input(at),
            Some(parent) => {
                let send_staging = worker.pipes.reserve(parent)?;
                self.combine(worker, at, len, send_staging)?;
                send_staging
            }
            None => {
                let output = worker.output(at);
                return self.combine(worker, at, len, output);
            }
        };
        self.tree.parent.map_or(Ok(()), |parent| worker.pipes.send(parent, source, len))
    }

    fn combine<L: Link>(
        &self,
        worker: &mut PipeWorker<'_, L>,
        at: u64,
        len: u64,
        target: HeapOffset,
    ) -> Result<()> {
        let children = &self.tree.children;
        let own = (worker.me(), Operand { at: worker.input(at), fresh: true });
        let mut parts: PerMember<(usize, Operand)> = ArrayVec::new();
        parts.push(own);
        for &(child, is_leaf) in children {
            parts.push((child, Operand { at: worker.pipes.receive(child)?, fresh: is_leaf }));
        }
        parts.sort_unstable_by_key(|&(member, _)| member);
        let mut operands = PerMember::new();
        operands.extend(parts.iter().map(|&(_, operand)| operand));
        worker.combine(&operands, target, len, self.tree.parent.is_none())?;
        children.iter().for_each(|&(child, _)| worker.pipes.release(child));
        Ok(())
    }

    /// Takes `len` bytes at `at` of the result from the parent, and sends them to the children.
    fn down<L: Link>(&self, worker: &mut PipeWorker<'_, L>, at: u64, len: u64) -> Result<()> {
        let output = worker.output(at);
        if let Some(parent) = self.tree.parent {
            let slot = worker.pipes.receive(parent)?;
            worker.copy(slot, output, len)?;
            worker.pipes.release(parent);
        } else if !self.goes_up {
            worker.copy(worker.input(at), output, len)?;
        }
        self.tree.children.iter().try_for_each(|&(child, _)| worker.pipes.send(child, output, len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_member_hangs_below_its_parent_and_the_root_below_nobody() {
        for n in 1..=64 {
            for shape in [Shape::Star, Shape::Chain, Shape::Binary] {
                for numbering in [Numbering::From(0), Numbering::From(n - 1), Numbering::Backwards] {
                    let trees: Vec<_> = (0..n).map(|me| Tree::new(shape, numbering, n, me)).collect();
                    assert_eq!(trees.iter().filter(|tree| tree.parent.is_none()).count(), 1);
                    for (me, tree) in trees.iter().enumerate() {
                        for &(child, is_leaf) in &tree.children {
                            assert_eq!((trees[child].parent, trees[child].depth), (Some(me), tree.depth + 1));
                            assert_eq!(is_leaf, trees[child].children.is_empty());
                        }
                        assert!(tree.depth <= tree.height);
                    }
                    let below: usize = trees.iter().map(|tree| tree.children.len()).sum();
                    assert_eq!(below, n - 1);
                }
            }
        }
    }

    #[test]
    fn a_binary_tree_is_as_deep_as_the_logarithm_and_nobody_has_more_than_two_below() {
        for n in 2..=64 {
            let tree = |me| Tree::new(Shape::Binary, Numbering::From(0), n, me);
            assert!((0..n).all(|me| tree(me).children.len() <= 2));
            assert!(tree(0).height <= u64::from((n - 1).ilog2()) + 1, "{n}: {}", tree(0).height);
        }
    }

    #[test]
    fn nobody_makes_partial_results_in_both_of_two_trees() {
        for n in 1..=64 {
            for me in 0..n {
                let makes = |which| {
                    let tree = Tree::new(Shape::Binary, numbering_of(which, n), n, me);
                    tree.parent.is_some() && !tree.children.is_empty()
                };
                assert!(!(makes(0) && makes(1)), "{me} of {n}");
            }
        }
    }
}
