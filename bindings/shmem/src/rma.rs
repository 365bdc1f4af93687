//! Copies from and to the memory of other ranks. They are done when they return, so those that need
//! not be are the same.

use std::ffi::c_int;
use std::sync::atomic::{self, Ordering};

use crate::contexts::Ctx;
use crate::world::world;

/// Copies elements in one piece. One element is one access: others may wait for it.
///
/// # Safety
/// Both ends have as many elements.
#[inline]
pub(crate) unsafe fn copy<T: Copy>(source: *const T, target: *mut T, count: usize) {
    if count == 1 && size_of::<T>() <= 8 && source.is_aligned() && target.is_aligned() {
        // SAFETY: the caller answers for one element, and it is aligned.
        let value = unsafe { source.read_volatile() };
        // SAFETY: as above.
        unsafe { target.write_volatile(value) };
    } else {
        let len = count.wrapping_mul(size_of::<T>());
        // SAFETY: the caller answers for as many bytes; they may overlap.
        unsafe { std::ptr::copy(source.cast::<u8>(), target.cast::<u8>(), len) };
    }
}

/// Copies blocks of `count` elements whose starts are so many elements apart.
///
/// # Safety
/// Both ends have the elements that the strides lead to.
unsafe fn copy_blocks<T: Copy>(ends: CopyEnds<T>, strides: Strides, count: usize, blocks: usize) {
    for block in 0..blocks.cast_signed() {
        let source = ends.source.wrapping_offset(block.wrapping_mul(strides.source));
        let target = ends.target.wrapping_offset(block.wrapping_mul(strides.target));
        // SAFETY: the caller answers for these elements.
        unsafe { copy(source, target, count) };
    }
}

/// Where a copy is from, and where to.
struct CopyEnds<T> {
    source: *const T,
    target: *mut T,
}

/// The distances between blocks, in elements.
struct Strides {
    source: isize,
    target: isize,
}

/// # Safety
/// `dest` has as many elements on `pe`, and `source` here.
#[inline]
pub(crate) unsafe fn put<T: Copy>(ctx: Ctx, dest: *mut T, source: *const T, count: usize, pe: c_int) {
    if count > 0 {
        let (world, rank) = (world(), ctx.rank(pe));
        // SAFETY: the caller answers for both.
        unsafe { copy(source, world.at(dest, rank), count) };
        world.wake(rank);
    }
}

/// # Safety
/// `dest` has an element on `pe`.
#[inline]
pub(crate) unsafe fn p<T: Copy>(ctx: Ctx, dest: *mut T, value: T, pe: c_int) {
    let (world, rank) = (world(), ctx.rank(pe));
    // SAFETY: the caller answers for the element.
    unsafe { copy(&raw const value, world.at(dest, rank), 1) };
    world.wake(rank);
}

/// # Safety
/// `dest` has an element here, and `source` as many on `pe`.
#[inline]
pub(crate) unsafe fn get<T: Copy>(ctx: Ctx, dest: *mut T, source: *const T, count: usize, pe: c_int) {
    if count > 0 {
        // SAFETY: the caller answers for both.
        unsafe { copy(world().at(source, ctx.rank(pe)).cast_const(), dest, count) };
    }
}

/// # Safety
/// `source` has an element on `pe`.
#[inline]
pub(crate) unsafe fn g<T: Copy>(ctx: Ctx, source: *const T, pe: c_int) -> T {
    // SAFETY: the caller answers for the element.
    unsafe { world().at(source, ctx.rank(pe)).read_volatile() }
}

/// # Safety
/// Both ends have the elements that the strides lead to.
pub(crate) unsafe fn iput<T: Copy>(
    ctx: Ctx,
    dest: *mut T,
    source: *const T,
    dst: isize,
    sst: isize,
    count: usize,
    pe: c_int,
) {
    // SAFETY: the caller's duties are the same.
    unsafe { ibput(ctx, dest, source, dst, sst, 1, count, pe) };
}

/// # Safety
/// As for [`iput`].
pub(crate) unsafe fn iget<T: Copy>(
    ctx: Ctx,
    dest: *mut T,
    source: *const T,
    dst: isize,
    sst: isize,
    count: usize,
    pe: c_int,
) {
    // SAFETY: the caller's duties are the same.
    unsafe { ibget(ctx, dest, source, dst, sst, 1, count, pe) };
}

/// # Safety
/// As for [`iput`].
pub(crate) unsafe fn ibput<T: Copy>(
    ctx: Ctx,
    dest: *mut T,
    source: *const T,
    dst: isize,
    sst: isize,
    count: usize,
    blocks: usize,
    pe: c_int,
) {
    if count > 0 && blocks > 0 {
        let (world, rank) = (world(), ctx.rank(pe));
        let ends = CopyEnds { source, target: world.at(dest, rank) };
        // SAFETY: the caller answers for both ends.
        unsafe { copy_blocks(ends, Strides { source: sst, target: dst }, count, blocks) };
        world.wake(rank);
    }
}

/// # Safety
/// As for [`iput`].
pub(crate) unsafe fn ibget<T: Copy>(
    ctx: Ctx,
    dest: *mut T,
    source: *const T,
    dst: isize,
    sst: isize,
    count: usize,
    blocks: usize,
    pe: c_int,
) {
    if count > 0 && blocks > 0 {
        let ends = CopyEnds { source: world().at(source, ctx.rank(pe)).cast_const(), target: dest };
        // SAFETY: the caller answers for both ends.
        unsafe { copy_blocks(ends, Strides { source: sst, target: dst }, count, blocks) };
    }
}

/// Orders the copies before it and those behind it.
pub(crate) fn fence(_: Ctx) {
    atomic::fence(Ordering::SeqCst);
}

/// Completes the copies before it, which are done: what is left is to order them.
pub(crate) fn quiet(_: Ctx) {
    atomic::fence(Ordering::SeqCst);
}

/// Does what [`quiet`] does: copies to all ranks are done.
pub(crate) fn pe_quiet(ctx: Ctx, _targets: *const c_int, _count: usize) {
    quiet(ctx);
}
