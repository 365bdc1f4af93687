//! Several words of this rank's own heap, waited for and tested together.

use super::waits::TEST;
use super::{Atom, Comparison, Symmetric};
use crate::channel::WaitKind;
use crate::error::{Error, Result};
use crate::heap::{HeapOffset, Region};
use crate::sync::AtomicWord;
use crate::trace::Verb;

/// What the words of a set are compared with.
#[derive(Clone, Copy, Debug)]
pub enum WantedValues<'a, T> {
    /// All of them with one value.
    Same(T),
    /// Each with a value of its own, as many as there are words.
    Each(&'a [T]),
}

/// Elements in a row of this rank's own heap, and what each of them has to become.
#[derive(Clone, Copy, Debug)]
pub struct WordSet<'a, T> {
    /// The place of the first element.
    pub first: HeapOffset,
    /// How many elements there are.
    pub count: usize,
    /// The elements that are left out: those whose entry is not 0. Without entries there are none.
    pub status: &'a [i32],
    /// How an element has to stand to its value.
    pub comparison: Comparison,
    /// The values.
    pub values: WantedValues<'a, T>,
}

/// A set whose words are there.
struct FoundWords<'a, T: Atom> {
    words: &'a [T::Word],
    set: WordSet<'a, T>,
}

impl<'a, T: Atom> FoundWords<'a, T> {
    /// Returns the numbers of the elements that are not left out.
    fn included(&self) -> impl Iterator<Item = usize> + use<'a, T> {
        let status = self.set.status;
        (0..self.set.count).filter(move |index| status.get(*index).is_none_or(|status| *status == 0))
    }

    fn holds(&self, index: usize) -> bool {
        let value = match self.set.values {
            WantedValues::Same(value) => value,
            WantedValues::Each(values) => values[index],
        };
        self.set.comparison.holds(T::from_bits(self.words[index].fetch()), value)
    }

    fn is_empty(&self) -> bool {
        self.included().next().is_none()
    }

    /// Returns the first element that is as wanted.
    fn any(&self) -> Option<usize> {
        self.included().find(|index| self.holds(*index))
    }

    /// Writes down the elements that are as wanted, and returns how many they are.
    fn some(&self, indices: &mut [usize]) -> usize {
        let found = indices.iter_mut().zip(self.included().filter(|index| self.holds(*index)));
        found.map(|(place, index)| *place = index).count()
    }
}

impl Symmetric {
    /// Waits until an element of the set is as wanted, and returns the number of the first that is.
    /// A set without elements, or with none but those left out, is `None` at once.
    ///
    /// # Errors
    /// [`Error::WrongCount`] when there are not as many entries or values as elements; otherwise
    /// those of [`Symmetric::wait_until`].
    pub fn wait_until_any<T: Atom>(&self, set: WordSet<'_, T>) -> Result<Option<usize>> {
        self.verb(Verb::WAIT_UNTIL, self.rank, 0, |all| {
            let found = all.find(set)?;
            if found.is_empty() { Ok(None) } else { all.until(WaitKind::WaitUntil, || found.any()).map(Some) }
        })
    }

    /// Waits until each element of the set has been as wanted.
    ///
    /// # Errors
    /// Fails as [`Symmetric::wait_until_any`] does.
    pub fn wait_until_all<T: Atom>(&self, set: WordSet<'_, T>) -> Result<()> {
        self.verb(Verb::WAIT_UNTIL, self.rank, 0, |all| {
            let found = all.find(set)?;
            let mut left = found.included().peekable();
            all.until(WaitKind::WaitUntil, || {
                while left.next_if(|index| found.holds(*index)).is_some() {}
                left.peek().is_none().then_some(())
            })
        })
    }

    /// Waits until some elements of the set are as wanted, writes their numbers into `indices`, and
    /// returns how many they are. Of a set without elements they are none, at once.
    ///
    /// # Errors
    /// [`Error::WrongCount`] when `indices` has not room for all elements; otherwise those of
    /// [`Symmetric::wait_until_any`].
    pub fn wait_until_some<T: Atom>(&self, set: WordSet<'_, T>, indices: &mut [usize]) -> Result<usize> {
        self.verb(Verb::WAIT_UNTIL, self.rank, 0, |all| {
            let found = all.find_with_room(set, indices)?;
            if found.is_empty() {
                return Ok(0);
            }
            all.until(WaitKind::WaitUntil, || Some(found.some(indices)).filter(|count| *count > 0))
        })
    }

    /// Returns the number of the first element of the set that is as wanted, if there is one.
    ///
    /// # Errors
    /// [`Error::WrongCount`] as [`Symmetric::wait_until_any`]; otherwise those of
    /// [`Symmetric::test`].
    pub fn test_any<T: Atom>(&self, set: WordSet<'_, T>) -> Result<Option<usize>> {
        self.tested(TEST, None, |all| Ok(all.find(set)?.any()))
    }

    /// Returns whether all elements of the set are as wanted.
    ///
    /// # Errors
    /// Fails as [`Symmetric::test_any`] does.
    pub fn test_all<T: Atom>(&self, set: WordSet<'_, T>) -> Result<bool> {
        self.tested(TEST, false, |all| {
            let found = all.find(set)?;
            Ok(found.included().all(|index| found.holds(index)))
        })
    }

    /// Writes the numbers of the elements of the set that are as wanted into `indices`, and returns
    /// how many they are.
    ///
    /// # Errors
    /// [`Error::WrongCount`] as [`Symmetric::wait_until_some`]; otherwise those of
    /// [`Symmetric::test`].
    pub fn test_some<T: Atom>(&self, set: WordSet<'_, T>, indices: &mut [usize]) -> Result<usize> {
        self.tested(TEST, 0, |all| Ok(all.find_with_room(set, indices)?.some(indices)))
    }

    /// Finds the words of a set.
    fn find<'a, T: Atom>(&'a self, set: WordSet<'a, T>) -> Result<FoundWords<'a, T>> {
        if !set.status.is_empty() {
            check_count("status entries", set.status.len(), set.count)?;
        }
        if let WantedValues::Each(values) = set.values {
            check_count("values", values.len(), set.count)?;
        }
        if set.count == 0 {
            return Ok(FoundWords { words: &[], set });
        }
        let len = (set.count as u64).saturating_mul(size_of::<T>() as u64);
        let heap = &self.reach(self.rank, Region::new(set.first, len))?.heap;
        Ok(FoundWords { words: heap.atomics(set.first.get(), set.count as u64)?, set })
    }

    fn find_with_room<'a, T: Atom>(
        &'a self,
        set: WordSet<'a, T>,
        indices: &[usize],
    ) -> Result<FoundWords<'a, T>> {
        if indices.len() < set.count {
            check_count("places for indices", indices.len(), set.count)?;
        }
        self.find(set)
    }
}

fn check_count(name: &'static str, count: usize, expected: usize) -> Result<()> {
    let (count, expected) = (count as u64, expected as u64);
    if count == expected { Ok(()) } else { Err(Error::WrongCount { name, count, expected }) }
}
