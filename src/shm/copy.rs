//! Moving payload bytes: the copy kernels, and the rule that picks one.
//!
//! A copy of 8 or 4 bytes is one load and one store, inlined into the caller. Short copies are
//! `memcpy`. Long ones begin with the kernel that [`choose`] names, by their length, by their
//! [`CacheHint`], and by the sizes of the machine's caches. From there `tuner` follows what the
//! copies of this thread turn out to cost.
//!
//! # Invariants
//! - A kernel that stores past the cache fences (`sfence`) before it returns, so that the release
//!   store of a signal that follows covers its stores like any others.
//! - A kernel is run only where the processor has its instructions: [`CopyKernel::is_supported`],
//!   detected at run time.

mod exchange;
mod kernels;
mod strategy;
mod tuner;

pub(super) use exchange::{exchange, exchange_half};
use strategy::CopyStrategy;
pub(crate) use strategy::StorePolicy;
pub(crate) use strategy::fills_cache;
pub use strategy::{CacheSizes, choose, prepare};
pub(super) use tuner::with_measured_policy;

/// Returns whether a copy can take lines over from other cores without reading them, and is worth a
/// try: `bytes`, read and written together, are found in a cache later.
#[inline]
pub(super) fn takes_over(bytes: u64) -> bool {
    CopyKernel::RepMovsb.is_supported() && CopyStrategy::of_this_machine().fits_cache(bytes)
}

/// Whether the target of a copy is read next, by a peer that waits for it.
///
/// If it is, the bytes should stay in a cache that the peer can reach; if not, they had better not
/// drive other data out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CacheHint {
    /// A peer waits for the data.
    Keep,
    /// The data are not read for a while.
    Bypass,
}

/// The purpose of stores, as far as the cost goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StorePurpose {
    /// Into shared memory, for a peer that waits.
    PutReadSoon,
    /// Into shared memory, for later.
    Put,
    /// Out of shared memory, for this thread.
    Get,
    /// Results of a combination.
    Combine,
    /// Results for several receivers, which all combine a share at once.
    CombineForAll,
    /// Like [`CombineForAll`](Self::CombineForAll), where lines of the receivers begin at different
    /// elements.
    CombineForUnlike,
}

impl StorePurpose {
    /// Returns whether a peer waits for the stores, and not only this thread for what it does next.
    const fn is_for_peer(self) -> bool {
        matches!(self, Self::PutReadSoon | Self::Put)
    }

    const fn cache_hint(self) -> CacheHint {
        match self {
            Self::Put => CacheHint::Bypass,
            _ => CacheHint::Keep,
        }
    }

    /// Returns the policies that can be right.
    const fn policies(self) -> &'static [StorePolicy] {
        match self {
            Self::CombineForAll => &[StorePolicy::Cached, StorePolicy::NonTemporal, StorePolicy::CopyForward],
            Self::CombineForUnlike => &[StorePolicy::Cached, StorePolicy::CopyForward],
            _ => &[StorePolicy::Cached, StorePolicy::NonTemporal],
        }
    }

    /// Returns whether all ranks try the ways out at once.
    const fn is_joint(self) -> bool {
        matches!(self, Self::Combine | Self::CombineForAll | Self::CombineForUnlike)
    }
}

impl From<CacheHint> for StorePurpose {
    #[inline]
    fn from(cache_hint: CacheHint) -> Self {
        match cache_hint {
            CacheHint::Keep => Self::PutReadSoon,
            CacheHint::Bypass => Self::Put,
        }
    }
}

/// A way to copy many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CopyKernel {
    /// The C library's.
    Memcpy,
    /// The processor's string instruction.
    RepMovsb,
    /// 32-byte moves through the cache.
    Avx2,
    /// 32-byte stores past the cache.
    Avx2Streaming,
}

impl CopyKernel {
    /// All kernels, supported here or not.
    pub const ALL: [Self; 4] = [Self::Memcpy, Self::RepMovsb, Self::Avx2, Self::Avx2Streaming];

    /// Returns its name in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memcpy => "memcpy",
            Self::RepMovsb => "rep movsb",
            Self::Avx2 => "avx2",
            Self::Avx2Streaming => "avx2 streaming",
        }
    }

    /// Returns whether it stores past the cache.
    #[must_use]
    pub const fn is_streaming(self) -> bool {
        matches!(self, Self::Avx2Streaming)
    }

    /// Returns whether this processor can run it.
    #[must_use]
    pub fn is_supported(self) -> bool {
        kernels::is_supported(self)
    }

    /// Runs the kernel.
    ///
    /// # Safety
    /// `len` bytes are readable at `source` and writable at `target`, the ranges do not overlap,
    /// and the kernel [`is_supported`](Self::is_supported).
    #[inline]
    pub(super) unsafe fn run(self, source: *const u8, target: *mut u8, len: usize) {
        // SAFETY: the caller's contract is the same.
        unsafe { kernels::run(self, source, target, len) }
    }
}

impl std::fmt::Display for CopyKernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// Copies `len` bytes in the way that suits their number.
///
/// # Safety
/// `len` bytes are readable at `source` and writable at `target`, and the ranges do not overlap.
#[inline]
pub(super) unsafe fn copy(source: *const u8, target: *mut u8, len: usize, purpose: StorePurpose) {
    match len {
        // SAFETY: the caller's contract, for 8 bytes.
        8 => unsafe { move_word::<u64>(source, target) },
        // SAFETY: the caller's contract, for 4 bytes.
        4 => unsafe { move_word::<u32>(source, target) },
        // SAFETY: the caller's contract is the same.
        _ => unsafe { copy_any(source, target, len, purpose) },
    }
}

/// Copies `len` bytes between ranges that may overlap.
///
/// # Safety
/// `len` bytes are readable at `source` and writable at `target`.
#[inline]
pub(super) unsafe fn copy_overlapping(source: *const u8, target: *mut u8, len: usize, purpose: StorePurpose) {
    match len {
        // One load before one store: these may overlap.
        // SAFETY: the caller's contract, for 8 bytes.
        8 => unsafe { move_word::<u64>(source, target) },
        // SAFETY: the caller's contract, for 4 bytes.
        4 => unsafe { move_word::<u32>(source, target) },
        // SAFETY: the caller's contract is the same.
        _ => unsafe { copy_any_overlapping(source, target, len, purpose) },
    }
}

/// # Safety
/// As for `copy_overlapping`.
#[inline(never)]
unsafe fn copy_any_overlapping(source: *const u8, target: *mut u8, len: usize, purpose: StorePurpose) {
    if source.addr().abs_diff(target.addr()) >= len {
        // SAFETY: the ranges are at least `len` apart; otherwise the caller's contract.
        unsafe { copy_any(source, target, len, purpose) };
    } else {
        // SAFETY: the caller's contract; `ptr::copy` allows overlap.
        unsafe { std::ptr::copy(source, target, len) };
    }
}

/// Copies any length but the two that `copy` inlines.
///
/// # Safety
/// As for `copy`.
#[inline(never)]
unsafe fn copy_any(source: *const u8, target: *mut u8, len: usize, purpose: StorePurpose) {
    match len {
        // SAFETY: the caller's contract, for 2 bytes.
        2 => unsafe { move_word::<u16>(source, target) },
        // SAFETY: the caller's contract, for 1 byte.
        1 => unsafe { move_word::<u8>(source, target) },
        // SAFETY: the caller's contract.
        _ if len < strategy::SHORT => unsafe { target.copy_from_nonoverlapping(source, len) },
        // SAFETY: the caller's contract.
        _ => unsafe { tuner::run(source, target, len, purpose) },
    }
}

/// Moves one word, aligned or not, by one load and one store.
///
/// # Safety
/// `size_of::<T>()` bytes are readable at `source` and writable at `target`.
#[inline(always)]
unsafe fn move_word<T: bytemuck::Pod>(source: *const u8, target: *mut u8) {
    // SAFETY: readable by the caller's contract; any bytes are a T (Pod).
    let word = unsafe { source.cast::<T>().read_unaligned() };
    // SAFETY: writable by the caller's contract.
    unsafe { target.cast::<T>().write_unaligned(word) };
}

#[cfg(test)]
mod tests;
