//! The four calls that take or return one long double, which Rust cannot: they are written for the
//! calling convention of x86-64, on top of those that take a pointer.
//!
//! A long double is passed on the stack, above the return address, and returned in the
//! floating-point unit.

use std::arch::naked_asm;
use std::ffi::c_int;

use crate::contexts::Ctx;
use crate::numbers::LongDouble;
use crate::rma;

/// Puts the number at `value`.
///
/// # Safety
/// `dest` has an element on `pe`.
unsafe extern "C" fn put(ctx: Ctx, dest: *mut LongDouble, value: *const LongDouble, pe: c_int) {
    // SAFETY: the caller answers for `dest`, and the number is its own.
    unsafe { rma::put(ctx, dest, value, 1, pe) };
}

/// Gets a number to `value`.
///
/// # Safety
/// `source` has an element on `pe`.
unsafe extern "C" fn get(ctx: Ctx, value: *mut LongDouble, source: *const LongDouble, pe: c_int) {
    // SAFETY: the caller answers for `source`, and the place is its own.
    unsafe { rma::get(ctx, value, source, 1, pe) };
}

macro_rules! put_one {
    ($($name:ident, $($shift:literal),*);*) => {$(
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            naked_asm!($($shift,)* "lea rdx, [rsp + 8]", "jmp {put}", put = sym put)
        }
    )*};
}

macro_rules! get_one {
    ($($name:ident, $($shift:literal),*);*) => {$(
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            naked_asm!(
                $($shift,)* "sub rsp, 24", "mov rsi, rsp", "call {get}", "fld tbyte ptr [rsp]", "add rsp, 24",
                "ret", get = sym get
            )
        }
    )*};
}

// The default context is 1.
put_one!(
    shmem_longdouble_p, "mov ecx, esi", "mov rsi, rdi", "mov edi, 1";
    pshmem_longdouble_p, "mov ecx, esi", "mov rsi, rdi", "mov edi, 1";
    shmem_ctx_longdouble_p, "mov ecx, edx";
    pshmem_ctx_longdouble_p, "mov ecx, edx"
);
get_one!(
    shmem_longdouble_g, "mov ecx, esi", "mov rdx, rdi", "mov edi, 1";
    pshmem_longdouble_g, "mov ecx, esi", "mov rdx, rdi", "mov edi, 1";
    shmem_ctx_longdouble_g, "mov ecx, edx", "mov rdx, rsi";
    pshmem_ctx_longdouble_g, "mov ecx, edx", "mov rdx, rsi"
);
