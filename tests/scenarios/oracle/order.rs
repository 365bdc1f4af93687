//! In which order an operation combines the inputs, as the documents of `src/collective/algorithms`
//! have it.

use shmccl::collective::{Algorithm, Operation};

/// What is combined, and in which order: sources from left to right.
#[derive(Clone, Debug)]
pub(crate) enum Term {
    /// The input of a rank.
    Input(usize),
    Node(Vec<Term>),
}

/// The orders that elements may be combined in.
#[derive(Debug)]
pub(crate) struct Orders {
    pub(crate) terms: Vec<Term>,
    /// So many bytes in a row are combined in one of them, counted from the start.
    pub(crate) grain: usize,
}

/// Pieces that go different ways start at multiples of so many bytes.
const ALIGN: usize = 128;

impl Orders {
    fn one(term: Term) -> Self {
        Self { terms: vec![term], grain: usize::MAX }
    }

    /// How many of `len` bytes were combined in one order that gives the first `same` of them.
    pub(crate) fn grains(&self, same: usize, len: usize) -> usize {
        if same == len { len } else { same / self.grain * self.grain }
    }

    /// The order of the ranks, in one step.
    pub(crate) fn by_rank(n: usize) -> Self {
        Self::one(Term::Node((0..n).map(Term::Input).collect()))
    }

    /// Those of `operation` among `n` ranks by `algorithm`, for the result of rank `me`, of
    /// elements of `size` bytes.
    pub(crate) fn of(
        operation: Operation,
        algorithm: Option<Algorithm>,
        n: usize,
        root: usize,
        me: usize,
        size: usize,
    ) -> Self {
        let scatters = operation == Operation::ReduceScatter;
        match algorithm {
            _ if n == 1 => Self::by_rank(n),
            None | Some(Algorithm::OneShot | Algorithm::TwoShot | Algorithm::Naive) => Self::by_rank(n),
            Some(Algorithm::Ring) if scatters => Self::one(around(n, me)),
            Some(Algorithm::HalvingDoubling) if scatters && !n.is_power_of_two() => Self::one(around(n, me)),
            Some(Algorithm::Ring) => {
                // Short floats go as `f32`: what is aligned of these is less of them.
                let grain = ALIGN * size.min(4) / 4;
                Self { terms: (0..n).map(|block| around(n, block)).collect(), grain }
            }
            Some(Algorithm::RecursiveDoubling) => Self::one(folded(n, (0..n.ilog2()).collect())),
            Some(Algorithm::HalvingDoubling) => Self::one(folded(n, (0..n.ilog2()).rev().collect())),
            Some(Algorithm::Tree) => Self::one(tree(n, |number| (number + root) % n)),
            Some(Algorithm::DoubleTree) => {
                Self { terms: vec![tree(n, |number| number), other_tree(n)], grain: size }
            }
        }
    }
}

/// Block `block` of a ring: it starts one further on, and each rank adds its own.
fn around(n: usize, block: usize) -> Term {
    let input = |step: usize| Term::Input((block + step) % n);
    (2..=n).fold(input(1), |term, step| Term::Node(vec![term, input(step)]))
}

/// Ranks exchange with partners at distances of 2 to the power of `rounds`, the lower one's first;
/// ranks past the largest power of two are combined with those so many below before.
fn folded(n: usize, rounds: Vec<u32>) -> Term {
    let size = 1 << n.ilog2();
    let start = |rank| match rank + size {
        extra if extra < n => Term::Node(vec![Term::Input(rank), Term::Input(extra)]),
        _ => Term::Input(rank),
    };
    let mut terms: Vec<Term> = (0..size).map(start).collect();
    for round in rounds {
        let pair = |rank: usize| {
            let peer = rank ^ 1 << round;
            Term::Node(vec![terms[rank.min(peer)].clone(), terms[rank.max(peer)].clone()])
        };
        terms = (0..size).map(pair).collect();
    }
    terms.swap_remove(0)
}

/// Up a binary tree in which the member numbered `number` is `member(number)`.
fn tree(n: usize, member: impl Fn(usize) -> usize + Copy) -> Term {
    fn below(n: usize, member: impl Fn(usize) -> usize + Copy, number: usize) -> Term {
        let children = (1..n).filter(|&child| above(child, n) == number);
        let mut parts: Vec<_> = children.map(|child| (member(child), below(n, member, child))).collect();
        parts.push((member(number), Term::Input(member(number))));
        parts.sort_by_key(|part| part.0);
        match parts.len() {
            1 => parts.swap_remove(0).1,
            _ => Term::Node(parts.into_iter().map(|part| part.1).collect()),
        }
    }
    below(n, member, 0)
}

/// Who is above `number`: it without its lowest bit, and with the next one if there is such a
/// member.
fn above(number: usize, n: usize) -> usize {
    let bit = number & number.wrapping_neg();
    let up = (number - bit) | (bit << 1);
    if up < n { up } else { number - bit }
}

/// The second of two trees: numbered backwards, or from the second member on where their number is
/// odd.
fn other_tree(n: usize) -> Term {
    if n.is_multiple_of(2) { tree(n, |number| n - 1 - number) } else { tree(n, |number| (number + 1) % n) }
}
