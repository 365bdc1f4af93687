//! Atomic operations on words of other ranks. All are done when they return.

use std::ffi::c_int;

use crate::contexts::Ctx;
use crate::words::{CountingWord, Word};
use crate::world::world;

#[inline]
fn at<T>(ctx: Ctx, word: *const T, pe: c_int) -> *mut T {
    world().at(word, ctx.rank(pe))
}

/// Does `change` to the word of a rank, and wakes the rank if it waits.
#[inline]
fn changed<T, R>(ctx: Ctx, word: *const T, pe: c_int, change: impl FnOnce(*mut T) -> R) -> R {
    let (world, rank) = (world(), ctx.rank(pe));
    let word = world.at(word, rank);
    world.symmetric.notify_after(world.numbered(rank), || change(word)).expect("it is a rank")
}

/// Makes the forms of an operation: one that returns what the word was, one that stores it, and one
/// that forgets it.
macro_rules! operations {
    ($($bound:ident, $operation:path, $fetch:ident, $fetch_nbi:ident, $forget:ident, $($value:ident),*);*) => {$(
        /// # Safety
        /// `dest` is a word on `pe` that is accessed by atomic operations alone.
        #[inline]
        pub(crate) unsafe fn $fetch<T: $bound>(ctx: Ctx, dest: *mut T, $($value: T,)* pe: c_int) -> T {
            // SAFETY: the caller answers for the word.
            changed(ctx, dest, pe, |word| unsafe { $operation(word $(, $value)*) })
        }

        /// # Safety
        /// As without `_nbi`; `fetch` can be written.
        #[inline]
        pub(crate) unsafe fn $fetch_nbi<T: $bound>(
            ctx: Ctx,
            fetch: *mut T,
            dest: *mut T,
            $($value: T,)*
            pe: c_int,
        ) {
            // SAFETY: the caller answers for the word.
            let was = changed(ctx, dest, pe, |word| unsafe { $operation(word $(, $value)*) });
            // SAFETY: the caller answers for the place.
            unsafe { fetch.write(was) };
        }

        /// # Safety
        /// `dest` is a word on `pe` that is accessed by atomic operations alone.
        #[allow(dead_code, reason = "some operations have no form that forgets")]
        #[inline]
        pub(crate) unsafe fn $forget<T: $bound>(ctx: Ctx, dest: *mut T, $($value: T,)* pe: c_int) {
            // SAFETY: the caller answers for the word.
            changed(ctx, dest, pe, |word| unsafe { $operation(word $(, $value)*) });
        }
    )*};
}

operations!(
    Word, T::swap, swap, swap_nbi, set_by_swap, value;
    CountingWord, T::compare_swap, compare_swap, compare_swap_nbi, set_if, expected, value;
    CountingWord, increment, fetch_inc, fetch_inc_nbi, inc,;
    CountingWord, T::fetch_add, fetch_add, fetch_add_nbi, add, value;
    CountingWord, T::fetch_and, fetch_and, fetch_and_nbi, and, value;
    CountingWord, T::fetch_or, fetch_or, fetch_or_nbi, or, value;
    CountingWord, T::fetch_xor, fetch_xor, fetch_xor_nbi, xor, value
);

/// # Safety
/// As for [`CountingWord::fetch_add`].
unsafe fn increment<T: CountingWord>(at: *mut T) -> T {
    // SAFETY: the caller's duties are the same.
    unsafe { T::fetch_add(at, T::ONE) }
}

/// # Safety
/// `source` is a word on `pe` that is accessed by atomic operations alone.
#[inline]
pub(crate) unsafe fn fetch<T: Word>(ctx: Ctx, source: *const T, pe: c_int) -> T {
    // SAFETY: the caller answers for the word.
    unsafe { T::load(at(ctx, source, pe)) }
}

/// # Safety
/// As for [`fetch`]; `target` can be written.
pub(crate) unsafe fn fetch_nbi<T: Word>(ctx: Ctx, target: *mut T, source: *const T, pe: c_int) {
    // SAFETY: the caller answers for the word.
    let value = unsafe { T::load(at(ctx, source, pe)) };
    // SAFETY: the caller answers for the place.
    unsafe { target.write(value) };
}

/// # Safety
/// `dest` is a word on `pe` that is accessed by atomic operations alone.
#[inline]
pub(crate) unsafe fn set<T: Word>(ctx: Ctx, dest: *mut T, value: T, pe: c_int) {
    // SAFETY: the caller answers for the word.
    changed(ctx, dest, pe, |word| unsafe { T::store(word, value) });
}
