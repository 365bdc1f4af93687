//! Waits for words of this rank, which others change, and tests of them. A test that fails gives
//! way to the others: programs poll with it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::c_int;

use shmccl::symmetric::Comparison;

use crate::fail::fatal;
use crate::wait::{self, AwaitedWord};
use crate::words::Word;

/// What a word has to be.
#[derive(Clone, Copy)]
pub(crate) struct Condition<T> {
    comparison: Comparison,
    value: T,
}

impl<T: Copy + PartialOrd> Condition<T> {
    /// Returns the condition that a number of `SHMEM_CMP_` and a value make.
    pub(crate) fn new(cmp: c_int, value: T) -> Self {
        Self { comparison: comparison(cmp), value }
    }

    fn holds(&self, word: T) -> bool {
        self.comparison.holds(word, self.value)
    }
}

/// Returns the comparison of which `SHMEM_CMP_` is the number.
fn comparison(cmp: c_int) -> Comparison {
    match cmp {
        0 => Comparison::Equal,
        1 => Comparison::NotEqual,
        2 => Comparison::Greater,
        3 => Comparison::LessOrEqual,
        4 => Comparison::Less,
        5 => Comparison::GreaterOrEqual,
        other => fatal(format_args!("cmp is {other}, which is no SHMEM_CMP_")),
    }
}

/// The most sets whose last words a thread remembers.
const MOST_SETS: usize = 1024;

thread_local! {
    /// Behind which word of a set, by its address, a search for any word begins.
    static BEHIND_LAST: RefCell<HashMap<usize, usize>> = RefCell::default();
}

/// Words of which some are left out, and what each has to be.
struct Set<T> {
    words: *const T,
    count: usize,
    /// Which words are left out, or null.
    status: *const c_int,
    comparison: Comparison,
    values: ComparedWith<T>,
}

/// What words have to be compared with.
enum ComparedWith<T> {
    All(T),
    Each(*const T),
}

impl<T: Word> Set<T> {
    /// # Safety
    /// There are as many words, and as many numbers in `status` and in the values.
    unsafe fn holds(&self, index: usize) -> bool {
        let value = match self.values {
            ComparedWith::All(value) => value,
            // SAFETY: the caller answers for the values.
            ComparedWith::Each(values) => unsafe { values.wrapping_add(index).read() },
        };
        // SAFETY: the caller answers for the words.
        let word = unsafe { T::load(self.words.wrapping_add(index)) };
        self.comparison.holds(word, value)
    }

    /// Returns the words that are not left out.
    ///
    /// # Safety
    /// As for [`Set::holds`].
    unsafe fn members(&self) -> impl Iterator<Item = usize> {
        (0..self.count).filter(|index| {
            // SAFETY: the caller answers for the numbers.
            self.status.is_null() || unsafe { self.status.wrapping_add(*index).read() } == 0
        })
    }

    /// # Safety
    /// As for [`Set::holds`].
    unsafe fn has_all(&self) -> bool {
        // SAFETY: the caller's duties are the same.
        let mut all_have_been = unsafe { self.all_have_been() };
        all_have_been()
    }

    /// Returns what says, whenever it is called, whether each word has been so by then. It looks
    /// at none again that has been.
    ///
    /// # Safety
    /// As for [`Set::holds`], at each call.
    unsafe fn all_have_been(&self) -> impl FnMut() -> bool {
        // SAFETY: the caller's duties are the same.
        let mut left = unsafe { self.members() }.peekable();
        move || {
            // SAFETY: as above.
            while left.next_if(|index| unsafe { self.holds(*index) }).is_some() {}
            left.peek().is_none()
        }
    }

    /// Returns a word that is so. It begins to look behind the one that it has returned last, so
    /// that a program hears of every word.
    ///
    /// # Safety
    /// As for [`Set::holds`].
    unsafe fn any(&self) -> Option<usize> {
        let begin = BEHIND_LAST.with_borrow(|last| last.get(&self.words.addr()).copied().unwrap_or(0));
        // SAFETY: the caller's duties are the same.
        let is_so = |index: &usize| unsafe { self.holds(*index) };
        // SAFETY: the same.
        let members = || unsafe { self.members() };
        let found = members().filter(|index| *index >= begin).find(is_so);
        let found = found.or_else(|| members().take_while(|index| *index < begin).find(is_so));
        if let Some(index) = found {
            BEHIND_LAST.with_borrow_mut(|last| {
                if last.len() >= MOST_SETS {
                    last.clear();
                }
                last.insert(self.words.addr(), index + 1);
            });
        }
        found
    }

    /// Stores which words are so, and returns how many.
    ///
    /// # Safety
    /// As for [`Set::holds`]; `indices` has room for as many.
    unsafe fn some(&self, indices: *mut usize) -> usize {
        let mut found = 0;
        // SAFETY: the caller's duties are the same.
        for index in unsafe { self.members() } {
            // SAFETY: as above.
            if unsafe { self.holds(index) } {
                // SAFETY: the caller answers for the room.
                unsafe { indices.wrapping_add(found).write(index) };
                found += 1;
            }
        }
        found
    }

    /// # Safety
    /// As for [`Set::holds`].
    unsafe fn is_empty(&self) -> bool {
        // SAFETY: the caller's duties are the same.
        unsafe { self.members() }.next().is_none()
    }
}

/// Waits for one word, and returns it.
///
/// # Safety
/// It is a word.
pub(crate) unsafe fn until<T: Word>(call: &'static str, word: *const T, wait: Condition<T>) -> T {
    // SAFETY: the caller's duties are the same.
    let look = || unsafe { T::load(word) };
    let mut seen = look();
    wait::until(AwaitedWord::of(call), || {
        seen = look();
        wait.holds(seen)
    });
    seen
}

/// # Safety
/// It is a word.
pub(crate) unsafe fn wait_until<T: Word>(word: *mut T, cmp: c_int, value: T) {
    // SAFETY: the caller's duties are the same.
    unsafe { until("shmem_wait_until", word, Condition::new(cmp, value)) };
}

/// Waits until a word is another one.
///
/// # Safety
/// It is a word.
pub(crate) unsafe fn wait<T: Word>(word: *mut T, value: T) {
    // SAFETY: the caller's duties are the same.
    unsafe { until("shmem_wait", word, Condition { comparison: Comparison::NotEqual, value }) };
}

/// # Safety
/// It is a word.
pub(crate) unsafe fn test<T: Word>(word: *mut T, cmp: c_int, value: T) -> c_int {
    // SAFETY: the caller's duties are the same.
    let holds = Condition::new(cmp, value).holds(unsafe { T::load(word) });
    if !holds {
        wait::yield_now();
    }
    c_int::from(holds)
}

/// Makes the forms of waits and tests for sets, with one value and with one each.
macro_rules! sets {
    ($($wait_all:ident, $wait_any:ident, $wait_some:ident, $test_all:ident, $test_any:ident, $test_some:ident,
       $values:ident, $kind:ty);*) => {$(
        /// # Safety
        /// As for [`Set::holds`].
        pub(crate) unsafe fn $wait_all<T: Word>(
            words: *mut T, count: usize, status: *const c_int, cmp: c_int, values: $kind,
        ) {
            let set = Set { words, count, status, comparison: comparison(cmp), values: ComparedWith::$values(values) };
            // SAFETY: the caller's duties are the same.
            wait::until(AwaitedWord::of("shmem_wait_until_all"), unsafe { set.all_have_been() });
        }

        /// # Safety
        /// As for [`Set::holds`].
        pub(crate) unsafe fn $wait_any<T: Word>(
            words: *mut T, count: usize, status: *const c_int, cmp: c_int, values: $kind,
        ) -> usize {
            let set = Set { words, count, status, comparison: comparison(cmp), values: ComparedWith::$values(values) };
            // SAFETY: the caller's duties are the same.
            if unsafe { set.is_empty() } {
                return usize::MAX;
            }
            let mut found = None;
            wait::until(AwaitedWord::of("shmem_wait_until_any"), || {
                // SAFETY: as above.
                found = unsafe { set.any() };
                found.is_some()
            });
            found.unwrap_or(usize::MAX)
        }

        /// # Safety
        /// As for [`Set::some`].
        pub(crate) unsafe fn $wait_some<T: Word>(
            words: *mut T, count: usize, indices: *mut usize, status: *const c_int, cmp: c_int, values: $kind,
        ) -> usize {
            let set = Set { words, count, status, comparison: comparison(cmp), values: ComparedWith::$values(values) };
            // SAFETY: the caller's duties are the same.
            if unsafe { set.is_empty() } {
                return 0;
            }
            let mut found = 0;
            wait::until(AwaitedWord::of("shmem_wait_until_some"), || {
                // SAFETY: as above.
                found = unsafe { set.some(indices) };
                found > 0
            });
            found
        }

        /// # Safety
        /// As for [`Set::holds`].
        pub(crate) unsafe fn $test_all<T: Word>(
            words: *mut T, count: usize, status: *const c_int, cmp: c_int, values: $kind,
        ) -> c_int {
            let set = Set { words, count, status, comparison: comparison(cmp), values: ComparedWith::$values(values) };
            // SAFETY: the caller's duties are the same.
            let has_all = unsafe { set.has_all() };
            if !has_all {
                wait::yield_now();
            }
            c_int::from(has_all)
        }

        /// # Safety
        /// As for [`Set::holds`].
        pub(crate) unsafe fn $test_any<T: Word>(
            words: *mut T, count: usize, status: *const c_int, cmp: c_int, values: $kind,
        ) -> usize {
            let set = Set { words, count, status, comparison: comparison(cmp), values: ComparedWith::$values(values) };
            // SAFETY: the caller's duties are the same.
            let found = unsafe { set.any() };
            if found.is_none() {
                wait::yield_now();
            }
            found.unwrap_or(usize::MAX)
        }

        /// # Safety
        /// As for [`Set::some`].
        pub(crate) unsafe fn $test_some<T: Word>(
            words: *mut T, count: usize, indices: *mut usize, status: *const c_int, cmp: c_int, values: $kind,
        ) -> usize {
            let set = Set { words, count, status, comparison: comparison(cmp), values: ComparedWith::$values(values) };
            // SAFETY: the caller's duties are the same.
            let found = unsafe { set.some(indices) };
            if found == 0 {
                wait::yield_now();
            }
            found
        }
    )*};
}

sets!(
    wait_until_all, wait_until_any, wait_until_some, test_all, test_any, test_some, All, T;
    wait_until_all_vector, wait_until_any_vector, wait_until_some_vector, test_all_vector, test_any_vector,
    test_some_vector, Each, *const T
);

#[cfg(test)]
mod tests {
    use shmccl::sync::atomic::AtomicU32;

    use super::*;

    #[test]
    fn a_word_that_has_been_as_wanted_need_not_stay_so() {
        let words = [5, 0, 0, 9].map(AtomicU32::new);
        let status = [0, 0, 1, 0];
        let set = Set {
            words: words.as_ptr().cast::<u32>(),
            count: words.len(),
            status: status.as_ptr(),
            comparison: comparison(2),
            values: ComparedWith::All(4),
        };
        // SAFETY: the set is as long as both arrays, and its words are atomics.
        let mut all_have_been = unsafe { set.all_have_been() };
        assert!(!all_have_been());
        for (index, value) in [(0, 0), (1, 7)] {
            // SAFETY: the word is an atomic.
            unsafe { u32::store(words[index].as_ptr(), value) };
        }
        assert!(all_have_been());
        // SAFETY: as above.
        assert!(!unsafe { set.has_all() });
    }
}
