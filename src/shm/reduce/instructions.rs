//! What kernels use of a processor beyond arithmetic that the compiler turns into vector
//! instructions by itself.

use super::store::LINE;

/// What a kernel may use beyond the architecture's common instructions.
pub(crate) trait Instructions: 'static {
    /// Whether half precision is converted by the processor (F16C).
    #[cfg_attr(
        not(target_arch = "x86_64"),
        expect(dead_code, reason = "only x86-64 has kernels of both kinds")
    )]
    const CONVERTS_HALF: bool;

    /// Whether a line can be stored past the cache.
    const STREAMS: bool;

    /// Stores a line past the cache, if it can be.
    ///
    /// # Safety
    /// [`LINE`] bytes are writable at `target`, which is aligned to as many; the processor has
    /// these instructions.
    #[inline(always)]
    unsafe fn store_line(target: *mut u8, line: &[u8; LINE]) {
        // SAFETY: the caller's contract.
        unsafe { target.cast::<[u8; LINE]>().write(*line) };
    }

    /// Comes between lines that were stored past the cache and all later stores.
    #[inline(always)]
    fn fence() {}

    /// Stands in a loop over blocks, and keeps the compiler from making vectors of the same
    /// elements of many blocks.
    #[inline(always)]
    fn by_block() {}
}

/// The architecture's common instructions.
pub(super) struct Portable;

impl Instructions for Portable {
    const CONVERTS_HALF: bool = false;
    const STREAMS: bool = false;
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86_64::WithF16c;

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    #[cfg(not(miri))]
    use std::arch::asm;
    use std::arch::x86_64::{_mm_sfence, _mm256_loadu_si256, _mm256_stream_si256};

    use super::{Instructions, LINE};

    /// AVX2 or AVX-512, each with F16C.
    pub(in super::super) struct WithF16c;

    impl Instructions for WithF16c {
        const CONVERTS_HALF: bool = true;
        // Interpreters know no such stores.
        const STREAMS: bool = cfg!(not(miri));

        #[inline(always)]
        unsafe fn store_line(target: *mut u8, line: &[u8; LINE]) {
            // SAFETY: the caller's contract: the processor has AVX2.
            unsafe { stream_line(target, line) };
        }

        #[inline(always)]
        fn fence() {
            // SAFETY: every processor of the architecture has it.
            unsafe { _mm_sfence() };
        }

        /// Stands in the loop. With AVX-512 there are instructions that gather and scatter
        /// elements. The compiler took them, and a sum of two sources for two targets took ten
        /// times as long. With AVX2 there are none, and nothing changes.
        #[inline(always)]
        #[cfg(not(miri))]
        fn by_block() {
            // SAFETY: no instruction.
            unsafe { asm!("", options(nomem, nostack, preserves_flags)) };
        }
    }

    /// # Safety
    /// `LINE` bytes are writable at `target`, which is aligned to as many; the processor has AVX.
    #[inline]
    #[target_feature(enable = "avx")]
    unsafe fn stream_line(target: *mut u8, line: &[u8; LINE]) {
        let (halves, _) = line.as_chunks::<32>();
        for (index, half) in halves.iter().enumerate() {
            // SAFETY: a half is 32 bytes.
            let half = unsafe { _mm256_loadu_si256(half.as_ptr().cast()) };
            // SAFETY: the half is within the line at `target`, by the caller's contract.
            let target = unsafe { target.add(index * 32) };
            // SAFETY: writable and aligned by the caller's contract.
            unsafe { _mm256_stream_si256(target.cast(), half) };
        }
    }
}
