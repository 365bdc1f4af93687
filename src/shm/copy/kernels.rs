//! The kernels themselves: one block of machine code each.
//!
//! They are written as assembly, so that what they do to memory which other processes see is fixed
//! by the processor's manual and not by a compiler's view of it. Interpreters and other
//! architectures run `memcpy`.

use super::CopyKernel;

#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(super) use x86_64::{is_supported, run};

/// Returns whether this processor can run `kernel`.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(super) fn is_supported(kernel: CopyKernel) -> bool {
    kernel == CopyKernel::Memcpy
}

/// # Safety
/// As for `CopyKernel::run`.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(super) unsafe fn run(_kernel: CopyKernel, source: *const u8, target: *mut u8, len: usize) {
    // SAFETY: the caller's contract.
    unsafe { target.copy_from_nonoverlapping(source, len) };
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86_64 {
    use std::arch::asm;

    use super::CopyKernel;

    /// What the loops move in one turn, in bytes.
    const TURN: usize = 256;
    /// Alignment of the target inside the loops: a cache line, which streaming stores should fill
    /// whole.
    const LINE: usize = 64;

    type Body = unsafe fn(*const u8, *mut u8, usize);

    pub(in super::super) fn is_supported(kernel: CopyKernel) -> bool {
        match kernel {
            CopyKernel::Memcpy => true,
            // `rep movsb` works everywhere; without this feature it is slow.
            CopyKernel::RepMovsb => is_x86_feature_detected!("ermsb"),
            CopyKernel::Avx2 | CopyKernel::Avx2Streaming => is_x86_feature_detected!("avx2"),
        }
    }

    /// # Safety
    /// As for `CopyKernel::run`.
    #[inline]
    pub(in super::super) unsafe fn run(kernel: CopyKernel, source: *const u8, target: *mut u8, len: usize) {
        let body: Body = match kernel {
            // SAFETY: the caller's contract.
            CopyKernel::Memcpy => return unsafe { target.copy_from_nonoverlapping(source, len) },
            // SAFETY: the caller's contract.
            CopyKernel::RepMovsb => return unsafe { rep_movsb(source, target, len) },
            CopyKernel::Avx2 => avx2,
            CopyKernel::Avx2Streaming => avx2_streaming,
        };
        // SAFETY: the caller's contract, which includes that the processor has the instructions of
        // `body`.
        unsafe { with_loop(body, source, target, len) };
    }

    /// Runs `body` over the middle, which starts at a line of the target and is a multiple of
    /// [`TURN`], and `memcpy` over both ends.
    ///
    /// # Safety
    /// As for `CopyKernel::run`; the processor has the instructions of `body`.
    unsafe fn with_loop(body: Body, source: *const u8, target: *mut u8, len: usize) {
        let head = (target.addr().wrapping_neg() % LINE).min(len);
        let middle = (len - head) / TURN * TURN;
        let tail = len - head - middle;
        // The ends first, so that the fence of a streaming body is the last thing that happens.
        // SAFETY: `head <= len`.
        unsafe { target.copy_from_nonoverlapping(source, head) };
        // SAFETY: `head + middle <= len`.
        let source_tail = unsafe { source.add(head + middle) };
        // SAFETY: `head + middle <= len`.
        let target_tail = unsafe { target.add(head + middle) };
        // SAFETY: `tail` bytes are left behind `head + middle`.
        unsafe { target_tail.copy_from_nonoverlapping(source_tail, tail) };
        if middle == 0 {
            return;
        }
        // SAFETY: `head <= len`.
        let source_middle = unsafe { source.add(head) };
        // SAFETY: `head <= len`.
        let target_middle = unsafe { target.add(head) };
        // SAFETY: `middle` bytes lie behind `head`, a multiple of TURN and not zero; the target is
        // aligned to LINE by the choice of `head` (which was not cut short by `len`, or `middle`
        // would be zero).
        unsafe { body(source_middle, target_middle, middle) };
    }

    /// # Safety
    /// As for `CopyKernel::run`.
    unsafe fn rep_movsb(source: *const u8, target: *mut u8, len: usize) {
        // SAFETY: the caller's contract; the direction flag is clear by the ABI; no stack is used.
        unsafe {
            asm!(
                "rep movsb",
                inout("rcx") len => _,
                inout("rsi") source => _,
                inout("rdi") target => _,
                options(nostack, preserves_flags),
            );
        }
    }

    /// A loop over [`TURN`] bytes at a time: eight 32-byte loads and eight stores by the given
    /// instruction.
    macro_rules! loop_of_32_byte_moves {
        ($(#[$doc:meta])* $name:ident, $store:literal, $last:literal) => {
            $(#[$doc])*
            ///
            /// # Safety
            /// `len` is a multiple of TURN and not zero, `target` is aligned to LINE, `len` bytes
            /// are readable and writable and do not overlap; the processor has AVX2.
            #[target_feature(enable = "avx2")]
            unsafe fn $name(source: *const u8, target: *mut u8, len: usize) {
                // SAFETY: the caller's contract; each turn touches TURN bytes at both pointers and
                // `len` counts down to exactly zero; all registers written are declared.
                unsafe {
                    asm!(
                        "2:",
                        "vmovdqu ymm0, [{s}]",
                        "vmovdqu ymm1, [{s} + 32]",
                        "vmovdqu ymm2, [{s} + 64]",
                        "vmovdqu ymm3, [{s} + 96]",
                        "vmovdqu ymm4, [{s} + 128]",
                        "vmovdqu ymm5, [{s} + 160]",
                        "vmovdqu ymm6, [{s} + 192]",
                        "vmovdqu ymm7, [{s} + 224]",
                        concat!($store, " [{t}], ymm0"),
                        concat!($store, " [{t} + 32], ymm1"),
                        concat!($store, " [{t} + 64], ymm2"),
                        concat!($store, " [{t} + 96], ymm3"),
                        concat!($store, " [{t} + 128], ymm4"),
                        concat!($store, " [{t} + 160], ymm5"),
                        concat!($store, " [{t} + 192], ymm6"),
                        concat!($store, " [{t} + 224], ymm7"),
                        "add {s}, 256",
                        "add {t}, 256",
                        "sub {n}, 256",
                        "jnz 2b",
                        $last,
                        "vzeroupper",
                        s = inout(reg) source => _,
                        t = inout(reg) target => _,
                        n = inout(reg) len => _,
                        out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _,
                        out("ymm4") _, out("ymm5") _, out("ymm6") _, out("ymm7") _,
                        out("ymm8") _, out("ymm9") _, out("ymm10") _, out("ymm11") _,
                        out("ymm12") _, out("ymm13") _, out("ymm14") _, out("ymm15") _,
                        options(nostack),
                    );
                }
            }
        };
    }

    loop_of_32_byte_moves! {
        /// Moves through the cache.
        avx2, "vmovdqa", ""
    }
    loop_of_32_byte_moves! {
        /// Stores past the cache, and fences.
        avx2_streaming, "vmovntdq", "sfence"
    }
}
