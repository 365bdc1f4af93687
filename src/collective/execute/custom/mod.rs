//! Algorithms of the user's own.
//!
//! One is a [`CustomAlgorithm`]: told to do its rank's part of a call, it sends, receives, combines
//! and copies by [`Steps`], over whatever channels are chosen. It sees places, not memory: a
//! mistake makes wrong data, a [`crate::Error::Timeout`] or another error, and no more.
//!
//! Tried by its unit tests and `scenarios custom::`.

pub(crate) mod steps;

use std::fmt;
use std::sync::Arc;

use crate::collective::call::Operation;
use crate::collective::rendezvous::post::INLINE_WORDS;
use crate::error::{Error, Result};
use crate::heap::Region;
use crate::rank::Rank;

pub use steps::Steps;
pub(super) use steps::run;

/// A way to do a collective operation, for
/// [`Communicator::register_algorithm`](crate::Communicator::register_algorithm).
pub trait CustomAlgorithm: Send + Sync {
    /// Returns what messages call it: 1 to 48 bytes, the same on all ranks. Ranks that register
    /// different names are told of it.
    fn name(&self) -> &str;

    /// Does the part of this rank in a call, among two ranks or more.
    ///
    /// It is called on all ranks at once, and never for no elements. It is called for each chunk of
    /// a scaled sum, of a reduction of floats of 16 or 8 bits, and of a call whose buffers are not
    /// all in the symmetric heap. What a rank sends has to be received by the other one, in the
    /// same order; the call ends when it was.
    ///
    /// # Errors
    /// Whatever it returns, the call returns. The epoch ends with it, since data were moving.
    fn run(&self, steps: &mut Steps<'_>) -> Result<()>;
}

/// Words that hold a name.
const NAME_WORDS: usize = 6;

/// The longest name, in bytes.
const NAME_LEN: usize = NAME_WORDS * 8;

const _: () = assert!(2 + NAME_WORDS <= INLINE_WORDS);

/// What one rank registers: an algorithm for an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// The operation; `None` when a peer has named none.
    pub operation: Option<Operation>,
    /// The algorithm's name; empty for none.
    pub name: String,
}

impl fmt::Display for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = if self.name.is_empty() { "none" } else { &self.name };
        match self.operation {
            Some(operation) => write!(f, "{name} for {operation}"),
            None => write!(f, "{name} for an unknown operation"),
        }
    }
}

impl Registration {
    /// Registers `algorithm` for an operation that has algorithms to choose from. Its name has to
    /// be one that messages can show.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]; [`Error::Unavailable`] for an operation without algorithms.
    pub(crate) fn new(operation: Operation, algorithm: Option<&dyn CustomAlgorithm>) -> Result<Self> {
        if !crate::collective::call::Algorithm::OneShot.supports(operation) {
            let needs = "an operation that has algorithms, such as all_reduce";
            return Err(Error::Unavailable { operation: "register_algorithm", needs });
        }
        let name = algorithm.map_or("", CustomAlgorithm::name);
        if algorithm.is_some() && !(1..=NAME_LEN).contains(&name.len()) {
            let (value, expected) = (name.len() as u64, "1 to 48 bytes");
            return Err(Error::InvalidArgument {
                name: "the length of an algorithm's name",
                value,
                expected,
            });
        }
        Ok(Self { operation: Some(operation), name: name.to_owned() })
    }

    /// Returns the words in which it is told.
    pub(crate) fn words(&self) -> [u64; 2 + NAME_WORDS] {
        let mut words = [0; 2 + NAME_WORDS];
        words[0] = self.operation.map_or(0, |operation| operation as u64);
        words[1] = self.name.len() as u64;
        bytemuck::cast_slice_mut(&mut words[2..])[..self.name.len()].copy_from_slice(self.name.as_bytes());
        words
    }

    /// Makes what a peer has told.
    pub(crate) fn told(words: &[u64]) -> Self {
        let len = usize::try_from(words[1]).map_or(NAME_LEN, |len| len.min(NAME_LEN));
        let name = &bytemuck::cast_slice::<u64, u8>(&words[2..])[..len];
        let name = String::from_utf8_lossy(name).into_owned();
        Self { operation: Operation::from_code(words[0]), name }
    }
}

/// Two ranks that register different algorithms: what [`Error::AlgorithmMismatch`] says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("ranks register different algorithms: this rank {mine}, rank {rank} {theirs}")]
pub struct AlgorithmMismatch {
    /// What this rank registers.
    pub mine: Registration,
    /// The other rank.
    pub rank: Rank,
    /// What the other rank registers.
    pub theirs: Registration,
}

impl AlgorithmMismatch {
    /// Returns the mismatch by which `outcome` failed, if it did.
    #[must_use]
    pub fn of<T>(outcome: &Result<T>) -> Option<Self> {
        outcome.as_ref().err()?.detail().cloned()
    }
}

impl From<AlgorithmMismatch> for Error {
    fn from(mismatch: AlgorithmMismatch) -> Self {
        Self::AlgorithmMismatch { mismatch: Box::new(mismatch) }
    }
}

/// The algorithms that are registered with a communicator.
#[derive(Clone, Default)]
pub(crate) struct Customs {
    registered: Vec<(Operation, Arc<dyn CustomAlgorithm>)>,
    /// A bit for each operation that has one, by its code: looked at by every call.
    mask: u64,
}

impl Customs {
    /// Returns whether there is one for `operation`.
    #[inline]
    pub(crate) fn has(&self, operation: Operation) -> bool {
        self.mask >> (operation as u8) & 1 == 1
    }

    /// Returns the one for `operation`.
    pub(crate) fn get(&self, operation: Operation) -> Option<&Arc<dyn CustomAlgorithm>> {
        self.registered.iter().find(|(other, _)| *other == operation).map(|(_, algorithm)| algorithm)
    }

    /// Puts `algorithm` in the place of the one for `operation`.
    pub(crate) fn set(&mut self, operation: Operation, algorithm: Option<Arc<dyn CustomAlgorithm>>) {
        self.registered.retain(|(other, _)| *other != operation);
        self.registered.extend(algorithm.map(|algorithm| (operation, algorithm)));
        self.mask = self.registered.iter().fold(0, |mask, (operation, _)| mask | 1 << (*operation as u8));
    }
}

impl fmt::Debug for Customs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.registered.iter().map(|(operation, algorithm)| (operation, algorithm.name()));
        f.debug_map().entries(names).finish()
    }
}

/// A range of bytes that belongs to a call: of its input or output, a message that has come, or one
/// that is being made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub(super) region: Region,
    /// Whether these are elements of some rank's input, as they were.
    pub(super) fresh: bool,
}

impl Place {
    pub(super) fn made(region: Region) -> Self {
        Self { region, fresh: false }
    }

    /// Returns its length in bytes.
    #[must_use]
    pub fn len(self) -> u64 {
        self.region.len
    }

    /// Returns whether it is of no bytes.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Returns `len` bytes of the place, from byte `at` on.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn part(self, at: u64, len: u64) -> Result<Self> {
        Ok(Self { region: self.region.part(at, len)?, ..self })
    }

    /// Returns its parts of `len` bytes, of which the last may be shorter.
    pub fn parts(self, len: u64) -> impl Iterator<Item = Self> {
        let step = usize::try_from(len.max(1)).unwrap_or(usize::MAX);
        let starts = (0..self.len()).step_by(step);
        starts.filter_map(move |at| self.part(at, len.min(self.len() - at)).ok())
    }

    /// Marks the elements as ones that no rank has combined yet: for a message that was sent
    /// straight from an input. Operators that do something to each input do it then: `PreMulSum`,
    /// and averages of floats.
    #[must_use]
    pub fn uncombined(self) -> Self {
        Self { fresh: true, ..self }
    }

    /// Refuses to go on with two places of different lengths.
    pub(super) fn check_len(self, other: Self) -> Result<()> {
        if self.len() == other.len() {
            return Ok(());
        }
        let (name, expected) = ("bytes of a place", "as many as the other place has");
        Err(Error::InvalidArgument { name, value: other.len(), expected })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heap::HeapOffset;

    struct Named(&'static str);

    impl CustomAlgorithm for Named {
        fn name(&self) -> &str {
            self.0
        }

        fn run(&self, _steps: &mut Steps<'_>) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_registration_is_told_in_words() {
        for name in ["a", "exactly8", "a chain with a name of as many as forty-8 bytes"] {
            let told = Registration::new(Operation::Gather, Some(&Named(name))).unwrap();
            assert_eq!(Registration::told(&told.words()), told);
            assert_eq!(told.to_string(), format!("{name} for gather"));
        }
        let none = Registration::new(Operation::Gather, None).unwrap();
        assert_eq!(Registration::told(&none.words()).to_string(), "none for gather");
        assert_eq!(Registration::told(&[99, u64::MAX, u64::MAX, 0, 0, 0, 0, 0]).operation, None);
    }

    #[test]
    fn names_and_operations_that_cannot_be_registered_are_refused() {
        let refused = |operation, name| Registration::new(operation, Some(&Named(name))).is_err();
        assert!(refused(Operation::Gather, ""));
        assert!(refused(Operation::Gather, "x123456789x123456789x123456789x123456789x12345678"));
        assert!(refused(Operation::Barrier, "chain"));
    }

    #[test]
    fn the_last_one_registered_for_an_operation_counts() {
        let mut customs = Customs::default();
        assert!(!customs.has(Operation::Reduce));
        customs.set(Operation::Reduce, Some(Arc::new(Named("one"))));
        customs.set(Operation::Reduce, Some(Arc::new(Named("other"))));
        assert_eq!(customs.get(Operation::Reduce).unwrap().name(), "other");
        assert!(customs.has(Operation::Reduce) && !customs.has(Operation::Broadcast));
        customs.set(Operation::Reduce, None);
        assert!(!customs.has(Operation::Reduce) && customs.get(Operation::Reduce).is_none());
    }

    #[test]
    fn parts_cover_a_place_once_and_reach_no_further() {
        let place = Place::made(Region::new(HeapOffset::new(100), 10));
        let lens: Vec<_> = place.parts(4).map(|part| (part.region.offset.get(), part.len())).collect();
        assert_eq!(lens, [(100, 4), (104, 4), (108, 2)]);
        assert_eq!(place.parts(100).count(), 1);
        assert_eq!(place.part(10, 0).unwrap().parts(4).count(), 0);
        assert!(place.part(9, 2).is_err() && place.part(u64::MAX, 1).is_err());
    }
}
