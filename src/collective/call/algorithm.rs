//! The algorithms of collective operations, as users name them, and the kinds of channels.

use super::operation::{Operation, firsts};
use crate::error::{Error, Result};

/// An algorithm for collective operations.
///
/// # By what it moves data
/// All but two are written once, over the [`Channel`](crate::channel::Channel) trait, for channels
/// of either [kind](ChannelKind). Those two have a way of their own where channels are direct:
///
/// | algorithm | over direct channels | over proxied channels |
/// |---|---|---|
/// | one_shot | up to 8 KiB goes with each rank's post of the call; more in messages | messages |
/// | two_shot | ranks read and write each other's heaps, or what each has staged | messages |
/// | all others | messages | messages |
///
/// So a comparison of the two kinds of channel by these two compares two bodies of code; by the
/// others, one.
///
/// # Order of reduction
/// The order in which inputs are combined follows from the call and the algorithm, never from which
/// rank comes first. A result is the same bit for bit on every rank, and in every run that does the
/// same call by the same algorithm. With n ranks:
///
/// | algorithm | combines elements in the order | [stays in it](Self::keeps_rank_order) |
/// |---|---|---|
/// | one_shot, two_shot, naive | of the ranks, all at one place | yes |
/// | ring | of the ring: block b as b + 1, b + 2, ..., b (modulo n), many blocks in turns | no |
/// | recursive_doubling | pairs, pairs of pairs, ...; the lower rank's side first (*) | no |
/// | halving_doubling | the same with partners at decreasing distances | no |
/// | tree | at each node: of the ranks that it and its children have | no |
/// | double_tree | as tree, by one tree for each half of the elements | no |
///
/// (*) Before that, each rank past the largest power of two is combined with one below.
///
/// (A reduce-scatter by halving among a number of ranks that is no power of two goes by the ring.)
/// Those that do not stay in the order of the ranks pass partial results on. So a custom operator
/// that is associative but not **commutative** is wrong with all of them. **16-bit and 8-bit
/// floats** go as `f32`, through the staging area. They are accumulated in `f32` all the way and
/// rounded once, at the price of two to four times the bytes. Elements of a custom operator stay
/// what they are.
///
/// The blocks of the ring, and the halves of the double tree, depend on the number of ranks, the
/// count and the length of an element. They also depend on whether *all* ranks have their buffers
/// in the heap. Otherwise, and where elements are widened, the call is done in chunks of as much as
/// the staging area holds, each of which is cut for itself. So these two may give other bits in the
/// heap than in ordinary memory. The other algorithms do with each element what they do with the
/// first.
///
/// Where the caller has not chosen an algorithm, the [tuning
/// table](crate::collective::tuning) decides that the ranks have agreed upon. Its choice may differ
/// between lengths, numbers of ranks, kinds of memory, and ranks that share their cores or do not.
/// By the built-in table it is always one that stays in the order of the ranks.
///
/// A tuning table alone never has a reduction by a custom operator, or of 16-bit or 8-bit floats,
/// leave the order of the ranks. Two_shot does it instead, unless the caller has chosen by
/// [`set_algorithm`](crate::Communicator::set_algorithm).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Algorithm {
    /// Every rank gives what it has to whoever needs it, who combines it: one hop.
    OneShot = 1,
    /// Every rank combines its share of the elements for all: two hops for an all-reduce. Where
    /// buffers lie, if they lie in the heap; an all-reduce out of place by way of the staging area,
    /// where that turns out to be quicker.
    TwoShot,
    /// Data go round from each rank to the next.
    Ring,
    /// Ranks exchange all that they have with partners at distances 1, 2, 4 and so on.
    RecursiveDoubling,
    /// Ranks exchange halves, quarters and so on of the elements, and then the same backwards.
    HalvingDoubling,
    /// Up a binary tree and down again.
    Tree,
    /// Like `Tree`, but on two trees at once, half of the elements each. An inner node in one is a
    /// leaf in the other.
    DoubleTree,
    /// Everything goes through one rank.
    Naive,
}

impl Algorithm {
    /// All of them with their names, in the order of their codes.
    const NAMED: &[(Self, &'static str); 8] = &[
        (Self::OneShot, "one_shot"),
        (Self::TwoShot, "two_shot"),
        (Self::Ring, "ring"),
        (Self::RecursiveDoubling, "recursive_doubling"),
        (Self::HalvingDoubling, "halving_doubling"),
        (Self::Tree, "tree"),
        (Self::DoubleTree, "double_tree"),
        (Self::Naive, "naive"),
    ];

    /// All of them, in the order of their codes.
    pub const ALL: [Self; 8] = firsts(Self::NAMED);

    /// The operations that there are algorithms for, in the order of their codes.
    pub const OPERATIONS: [Operation; Operation::with_buffers::<0>(true).1] = Operation::with_buffers(true).0;

    /// Returns its name, as users type it and tables print it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        Self::NAMED[self as usize - 1].1
    }

    /// Returns whether it can do `operation`. Two algorithms need as many ranks as a power of two
    /// for one operation, and leave it to the ring otherwise. These are recursive doubling for an
    /// all-gather, and halving and doubling for a reduce-scatter.
    #[must_use]
    pub const fn supports(self, operation: Operation) -> bool {
        match operation {
            Operation::AllReduce => true,
            Operation::Reduce => matches!(self, Self::OneShot | Self::TwoShot | Self::Tree | Self::Naive),
            Operation::Broadcast => {
                matches!(self, Self::OneShot | Self::TwoShot | Self::Ring | Self::Tree | Self::Naive)
            }
            Operation::AllGather => {
                matches!(self, Self::OneShot | Self::TwoShot | Self::Ring | Self::RecursiveDoubling)
            }
            Operation::ReduceScatter => {
                matches!(self, Self::OneShot | Self::TwoShot | Self::Ring | Self::HalvingDoubling)
            }
            _ => operation.has_algorithms() && matches!(self, Self::OneShot | Self::TwoShot),
        }
    }

    /// Returns whether it combines the inputs of all ranks at one place, in the order of the ranks:
    /// nothing is rounded between, and an operator need not be commutative.
    #[must_use]
    pub const fn keeps_rank_order(self) -> bool {
        matches!(self, Self::OneShot | Self::TwoShot | Self::Naive)
    }

    /// Refuses `operation` unless this algorithm can do it.
    ///
    /// # Errors
    /// [`Error::UnsupportedAlgorithm`], naming those that can.
    pub(crate) fn check(self, operation: Operation) -> Result<()> {
        if self.supports(operation) {
            return Ok(());
        }
        let (algorithm, operation, supported) = (self.name(), operation.name(), supported(operation));
        Err(Error::UnsupportedAlgorithm { algorithm, operation, supported })
    }
}

/// Returns those that can do `operation`, in words. A test holds it against
/// [`Algorithm::supports`].
const fn supported(operation: Operation) -> &'static str {
    match operation {
        Operation::AllReduce => "any algorithm",
        Operation::Reduce => "one_shot, two_shot, tree or naive",
        Operation::Broadcast => "one_shot, two_shot, ring, tree or naive",
        Operation::AllGather => "one_shot, two_shot, ring or recursive_doubling",
        Operation::ReduceScatter => "one_shot, two_shot, ring or halving_doubling",
        _ if operation.has_algorithms() => "one_shot or two_shot",
        _ => "none: there is one way to do it",
    }
}

impl std::fmt::Display for Algorithm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// A name that no algorithm has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no such algorithm, expected one_shot, two_shot, ring, recursive_doubling, halving_doubling, tree, double_tree or naive"
)]
pub struct UnknownAlgorithm;

impl std::str::FromStr for Algorithm {
    type Err = UnknownAlgorithm;

    fn from_str(name: &str) -> Result<Self, UnknownAlgorithm> {
        Self::ALL.into_iter().find(|algorithm| algorithm.name() == name).ok_or(UnknownAlgorithm)
    }
}

/// The kind of channel that collective operations run over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ChannelKind {
    /// Each rank's own core copies.
    #[default]
    Memory,
    /// Each rank's proxy copies.
    Port,
}

impl ChannelKind {
    /// Returns its name, as users type it and tables print it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Port => "port",
        }
    }
}

impl std::fmt::Display for ChannelKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// How operations are to be done, as far as the caller has said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Choice {
    /// `None`: whatever suits the call.
    pub(crate) algorithm: Option<Algorithm>,
    pub(crate) channel: ChannelKind,
}

impl Choice {
    /// Makes the choice of `algorithm` over direct channels.
    pub(crate) const fn direct(algorithm: Algorithm) -> Self {
        Self { algorithm: Some(algorithm), channel: ChannelKind::Memory }
    }

    /// The bit of a code that says port.
    const PORT: u8 = 0x80;

    /// Returns one byte that tells it from other choices; 0 where nothing was said.
    #[inline]
    pub(crate) const fn code(self) -> u8 {
        let algorithm = match self.algorithm {
            Some(algorithm) => algorithm as u8,
            None => 0,
        };
        match self.channel {
            ChannelKind::Memory => algorithm,
            ChannelKind::Port => algorithm | Self::PORT,
        }
    }

    /// Returns the choice with this code; what a peer has posted may be none.
    pub(crate) fn from_code(code: u8) -> Option<Self> {
        let channel = if code & Self::PORT == 0 { ChannelKind::Memory } else { ChannelKind::Port };
        let algorithm = match code & !Self::PORT {
            0 => None,
            number => Some(*Algorithm::ALL.get(usize::from(number) - 1)?),
        };
        Some(Self { algorithm, channel })
    }
}

impl std::fmt::Display for Choice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.algorithm {
            Some(algorithm) => write!(f, "{algorithm} over {} channels", self.channel),
            None => write!(f, "any algorithm over {} channels", self.channel),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_unknown_ones_are_refused() {
        for algorithm in Algorithm::ALL {
            assert_eq!(algorithm.to_string().parse(), Ok(algorithm));
        }
        assert_eq!("rings".parse::<Algorithm>(), Err(UnknownAlgorithm));
    }

    #[test]
    fn there_are_algorithms_for_the_operations_that_are_listed() {
        let supported = |operation: &Operation| Algorithm::ALL.iter().any(|one| one.supports(*operation));
        let all: Vec<_> = Operation::ALL.into_iter().filter(supported).collect();
        assert_eq!(all, Algorithm::OPERATIONS);
    }

    #[test]
    fn every_manner_has_a_code_of_its_own() {
        for code in 0..=u8::MAX {
            match Choice::from_code(code) {
                Some(choice) => assert_eq!(choice.code(), code),
                None => assert!(code & 0x7f > 8),
            }
        }
        assert_eq!(Choice::default().code(), 0);
    }

    #[test]
    fn a_refusal_names_those_that_would_do() {
        for operation in Operation::ALL {
            for algorithm in Algorithm::ALL {
                let words = supported(operation);
                let named = words.split([' ', ',']).any(|word| word == algorithm.name());
                assert_eq!(
                    named || words.starts_with("any"),
                    algorithm.supports(operation),
                    "{algorithm}: {words}"
                );
                assert_eq!(algorithm.check(operation).is_ok(), algorithm.supports(operation));
            }
        }
    }
}
