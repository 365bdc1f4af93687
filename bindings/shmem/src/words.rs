//! Words of the program that several ranks change and wait for.

use std::sync::atomic::{AtomicI16, AtomicI32, AtomicI64, AtomicU16, Ordering};

use shmccl::sync::atomic::{AtomicU32, AtomicU64};

/// A type that is read and written in one piece.
pub(crate) trait Word: Copy + PartialOrd {
    /// Reads it, and acquires what its last writer had written before.
    ///
    /// # Safety
    /// It is aligned, mapped, and accessed by atomic operations alone.
    unsafe fn load(at: *const Self) -> Self;

    /// Writes it, and releases what this rank has written before.
    ///
    /// # Safety
    /// As for [`Word::load`].
    unsafe fn store(at: *mut Self, value: Self);

    /// Writes it, and returns what it was.
    ///
    /// # Safety
    /// As for [`Word::load`].
    unsafe fn swap(at: *mut Self, value: Self) -> Self;
}

/// A word that is changed by what it holds.
pub(crate) trait CountingWord: Word {
    const ONE: Self;

    /// Writes `value` if it is `expected`, and returns what it was.
    ///
    /// # Safety
    /// As for [`Word::load`].
    unsafe fn compare_swap(at: *mut Self, expected: Self, value: Self) -> Self;

    /// Adds, and returns what it was. It wraps around.
    ///
    /// # Safety
    /// As for [`Word::load`].
    unsafe fn fetch_add(at: *mut Self, value: Self) -> Self;

    /// Combines it by `and`, and returns what it was.
    ///
    /// # Safety
    /// As for [`Word::load`].
    unsafe fn fetch_and(at: *mut Self, value: Self) -> Self;

    /// Combines it by `or`, and returns what it was.
    ///
    /// # Safety
    /// As for [`Word::load`].
    unsafe fn fetch_or(at: *mut Self, value: Self) -> Self;

    /// Combines it by `xor`, and returns what it was.
    ///
    /// # Safety
    /// As for [`Word::load`].
    unsafe fn fetch_xor(at: *mut Self, value: Self) -> Self;
}

macro_rules! words {
    ($($type:ty, $atomic:ty);*) => {$(
        impl Word for $type {
            #[inline]
            unsafe fn load(at: *const Self) -> Self {
                // SAFETY: the caller's duties are the same.
                unsafe { <$atomic>::from_ptr(at.cast_mut()) }.load(Ordering::Acquire)
            }

            #[inline]
            unsafe fn store(at: *mut Self, value: Self) {
                // SAFETY: the caller's duties are the same.
                unsafe { <$atomic>::from_ptr(at) }.store(value, Ordering::Release);
            }

            #[inline]
            unsafe fn swap(at: *mut Self, value: Self) -> Self {
                // SAFETY: the caller's duties are the same.
                unsafe { <$atomic>::from_ptr(at) }.swap(value, Ordering::AcqRel)
            }
        }

        impl CountingWord for $type {
            const ONE: Self = 1;

            #[inline]
            unsafe fn compare_swap(at: *mut Self, expected: Self, value: Self) -> Self {
                // SAFETY: the caller's duties are the same.
                let word = unsafe { <$atomic>::from_ptr(at) };
                let swapped = word.compare_exchange(expected, value, Ordering::AcqRel, Ordering::Acquire);
                swapped.unwrap_or_else(|found| found)
            }

            #[inline]
            unsafe fn fetch_add(at: *mut Self, value: Self) -> Self {
                // SAFETY: the caller's duties are the same.
                unsafe { <$atomic>::from_ptr(at) }.fetch_add(value, Ordering::AcqRel)
            }

            #[inline]
            unsafe fn fetch_and(at: *mut Self, value: Self) -> Self {
                // SAFETY: the caller's duties are the same.
                unsafe { <$atomic>::from_ptr(at) }.fetch_and(value, Ordering::AcqRel)
            }

            #[inline]
            unsafe fn fetch_or(at: *mut Self, value: Self) -> Self {
                // SAFETY: the caller's duties are the same.
                unsafe { <$atomic>::from_ptr(at) }.fetch_or(value, Ordering::AcqRel)
            }

            #[inline]
            unsafe fn fetch_xor(at: *mut Self, value: Self) -> Self {
                // SAFETY: the caller's duties are the same.
                unsafe { <$atomic>::from_ptr(at) }.fetch_xor(value, Ordering::AcqRel)
            }
        }
    )*};
}

words!(
    i16, AtomicI16; u16, AtomicU16; i32, AtomicI32; u32, AtomicU32; i64, AtomicI64; u64, AtomicU64
);

macro_rules! floats {
    ($($type:ty, $bits:ty);*) => {$(
        impl Word for $type {
            #[inline]
            unsafe fn load(at: *const Self) -> Self {
                // SAFETY: the caller's duties are the same.
                Self::from_bits(unsafe { <$bits>::load(at.cast()) })
            }

            #[inline]
            unsafe fn store(at: *mut Self, value: Self) {
                // SAFETY: the caller's duties are the same.
                unsafe { <$bits>::store(at.cast(), value.to_bits()) };
            }

            #[inline]
            unsafe fn swap(at: *mut Self, value: Self) -> Self {
                // SAFETY: the caller's duties are the same.
                Self::from_bits(unsafe { <$bits>::swap(at.cast(), value.to_bits()) })
            }
        }
    )*};
}

floats!(f32, u32; f64, u64);
