//! Limits of reductions: the plainest loops that add `f32` elements of shared buffers, as fast as
//! they can be written.
//!
//! They know one type and one operator, and promise nothing about the order of additions.

#![allow(unsafe_code, reason = "vectors are loaded from and stored to memory that other processes map")]

use std::ops::Range;

use arrayvec::ArrayVec;
use shmccl::rank::MAX_RANKS;
use shmccl::shm::{CopyKernel, Span};
use shmccl::{Error, Result};

/// The most buffers that are added or written at a time: one of each rank.
const MOST: usize = MAX_RANKS as usize;

/// A loop that adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SumKernel {
    /// All sources at once, two cache lines at a time.
    Direct,
    /// Like [`Self::Direct`], but with stores past the cache.
    Streaming,
    /// Like [`Self::Direct`], but by vectors of a whole line.
    Wide,
    /// Like [`Self::Wide`], but with stores past the cache.
    WideStreaming,
    /// One source after the other, a page at a time, by way of the cache.
    Paged,
    /// By the widest vectors into the first target, 128 KiB at a time. The string instruction
    /// copies the sums from there to the others.
    Copied,
}

impl SumKernel {
    /// All kernels.
    pub const ALL: [Self; 6] =
        [Self::Direct, Self::Streaming, Self::Wide, Self::WideStreaming, Self::Paged, Self::Copied];

    /// Returns the name in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Streaming => "streaming",
            Self::Wide => "avx512",
            Self::WideStreaming => "avx512 streaming",
            Self::Paged => "paged",
            Self::Copied => "copied on",
        }
    }

    /// Returns whether this processor can run the kernel.
    #[must_use]
    pub fn is_supported(self) -> bool {
        match self {
            Self::Direct | Self::Paged => true,
            Self::Streaming => vector::is_supported(),
            Self::Wide | Self::WideStreaming => vector::is_wide(),
            Self::Copied => vector::is_supported() && CopyKernel::RepMovsb.is_supported(),
        }
    }

    /// Returns the kernels with the widest vectors of this processor, through the cache and past
    /// it.
    #[must_use]
    pub fn by_widest() -> [Self; 2] {
        if vector::is_wide() { [Self::Wide, Self::WideStreaming] } else { [Self::Direct, Self::Streaming] }
    }
}

/// A width of vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Half a cache line.
    Half,
    /// A whole cache line.
    Wide,
}

impl Reach {
    /// Returns the widest that the processor has, where it has vectors at all.
    pub(crate) fn widest() -> Self {
        if vector::is_wide() { Self::Wide } else { Self::Half }
    }
}

/// Adds the elements of all `sources`, and writes the sums into each of the `targets`. All have one
/// length, of whole elements. A target may be the very bytes of a source.
///
/// # Errors
/// [`Error::InvalidArgument`] when lengths differ, elements are not aligned, there is no source,
/// the processor lacks the kernel's instructions, or targets of [`SumKernel::Copied`] overlap.
/// Nothing was changed then.
pub fn add(kernel: SumKernel, sources: &[Span], targets: &[Span]) -> Result<()> {
    let Some(len) = sources.first().map(Span::len) else {
        return refused(0, "at least one source");
    };
    let fits = |span: &Span| span.len() == len && span.start().as_ptr().cast::<f32>().is_aligned();
    if !len.is_multiple_of(size_of::<f32>() as u64) || !sources.iter().chain(targets).all(fits) {
        return refused(len, "buffers of one length, of whole aligned elements");
    }
    if !kernel.is_supported() {
        return refused(kernel as u64, "a kernel that this processor supports");
    }
    if sources.len().max(targets.len()) > MOST {
        return refused(sources.len() as u64, "at most 256 sources and as many targets");
    }
    if kernel == SumKernel::Copied && have_common_bytes(targets) {
        return refused(
            targets.len() as u64,
            "targets apart from each other, where one's sums are copied to the others",
        );
    }
    if kernel == SumKernel::Copied {
        return copied(sources, targets, len);
    }
    // On the stack: a few elements are added in less time than it takes to allocate.
    let starts = |spans: &[Span]| -> ArrayVec<_, MOST> {
        spans.iter().map(|span| span.start().as_ptr().cast::<f32>()).collect()
    };
    let (from, into) = (starts(sources), starts(targets));
    let count = to_usize(len) / size_of::<f32>();
    // SAFETY: each pointer is the aligned start of `count` mapped elements of a span that is
    // borrowed here, checked just above; the kernel is supported. Racing writers are the trust
    // model's business.
    unsafe { run(kernel, &from, &into, count) };
    Ok(())
}

/// Returns whether two of `spans`, all of one length, overlap.
fn have_common_bytes(spans: &[Span]) -> bool {
    let start = |span: &Span| span.start().as_ptr().addr() as u64;
    let overlap = |one: &Span, other: &Span| start(one).abs_diff(start(other)) < one.len();
    spans.iter().enumerate().any(|(index, span)| spans[..index].iter().any(|other| overlap(span, other)))
}

/// Converts `value` into a length in memory.
pub(crate) fn to_usize(value: u64) -> usize {
    usize::try_from(value).expect("lengths of mapped memory fit a pointer")
}

pub(crate) fn refused(value: u64, expected: &'static str) -> Result<()> {
    Err(Error::InvalidArgument { name: "buffers to add", value, expected })
}

/// Runs the kernel.
///
/// # Safety
/// `count` elements are readable at each of `sources` and writable at each of `targets`, all of
/// them aligned; the kernel is supported.
unsafe fn run(kernel: SumKernel, sources: &[*mut f32], targets: &[*mut f32], count: usize) {
    let by_vectors = |reach, n_past| {
        // SAFETY: the caller's contract; instructions as `is_supported` found them.
        unsafe { vector::add(reach, sources, targets, n_past, count) }
    };
    let done = match kernel {
        // SAFETY: the caller's contract is the same.
        SumKernel::Paged => unsafe { paged(sources, targets, count) },
        SumKernel::Direct if vector::is_supported() => by_vectors(Reach::Half, 0),
        // `copied` sums up by one of the others.
        SumKernel::Direct | SumKernel::Copied => 0,
        SumKernel::Streaming => by_vectors(Reach::Half, targets.len()),
        SumKernel::Wide => by_vectors(Reach::Wide, 0),
        SumKernel::WideStreaming => by_vectors(Reach::Wide, targets.len()),
    };
    // SAFETY: the caller's contract.
    unsafe { one_by_one(sources, targets, done..count) };
}

/// Adds the elements in `range` one by one.
///
/// # Safety
/// As for [`run`], with the end of `range` for `count`.
pub(crate) unsafe fn one_by_one(sources: &[*mut f32], targets: &[*mut f32], range: Range<usize>) {
    for index in range {
        // SAFETY: within the range; otherwise the caller's contract.
        let sum = sources.iter().map(|source| unsafe { source.wrapping_add(index).read() }).sum::<f32>();
        for target in targets {
            // SAFETY: as above.
            unsafe { target.wrapping_add(index).write(sum) };
        }
    }
}

/// Elements that are summed up in a local page at a time.
const PAGE: usize = 1024;

/// Adds as many whole pages as there are, and returns the number of their elements.
///
/// # Safety
/// As for [`run`].
unsafe fn paged(sources: &[*mut f32], targets: &[*mut f32], count: usize) -> usize {
    let (mut page, mut next) = ([0.0_f32; PAGE], [0.0_f32; PAGE]);
    let pages = count / PAGE;
    for start in (0..pages).map(|page| page * PAGE) {
        // SAFETY: a whole page is left at `start`; the local page is no part of shared memory.
        unsafe { page.as_mut_ptr().copy_from_nonoverlapping(sources[0].wrapping_add(start), PAGE) };
        for source in &sources[1..] {
            // SAFETY: the same.
            unsafe { next.as_mut_ptr().copy_from_nonoverlapping(source.wrapping_add(start), PAGE) };
            page.iter_mut().zip(&next).for_each(|(sum, summand)| *sum += summand);
        }
        for target in targets {
            // SAFETY: the same, the other way round.
            unsafe { target.wrapping_add(start).copy_from_nonoverlapping(page.as_ptr(), PAGE) };
        }
    }
    pages * PAGE
}

/// Bytes that are summed up before they are copied on.
const PIECE: u64 = 128 << 10;

/// Adds a piece of the sources into the first target, and copies it from there to the others, piece
/// by piece.
fn copied(sources: &[Span], targets: &[Span], len: u64) -> Result<()> {
    let Some((first, others)) = targets.split_first() else { return Ok(()) };
    let [through_cache, _] = SumKernel::by_widest();
    let mut start = 0;
    while start < len {
        let piece = |span: &Span| span.part(start, PIECE.min(len - start));
        let mut from = ArrayVec::<_, MOST>::new();
        for source in sources {
            from.push(piece(source)?);
        }
        let sum = piece(first)?;
        add(through_cache, &from, std::slice::from_ref(&sum))?;
        for other in others {
            sum.copy_with(CopyKernel::RepMovsb, &piece(other)?)?;
        }
        start += PIECE;
    }
    Ok(())
}

#[cfg(target_arch = "x86_64")]
pub(crate) mod vector {
    use std::arch::x86_64::_mm_sfence;

    use super::Reach;

    /// The loop by vectors of one width.
    macro_rules! vectors {
        (
            $(#[$doc:meta])* $module:ident: $feature:literal, $width:literal, $load:ident, $zero:ident, $add:ident, $store:ident,
            $stream:ident
        ) => {
            $(#[$doc])*
            mod $module {
                use std::arch::x86_64::{$add, $load, $store, $stream, $zero};

                use super::SumBuffers;

                /// Elements of a vector.
                pub(super) const WIDTH: usize = $width;

                /// Adds as many steps of so many vectors as there are from `done` on, and returns
                /// up to where.
                ///
                /// # Safety
                /// As for [`super::super::run`]; the processor has the instructions, and the
                /// targets that are written `past` the cache have their alignment.
                #[inline]
                #[target_feature(enable = $feature)]
                pub(super) unsafe fn add<const VECTORS: usize>(
                    buffers: SumBuffers<impl AsRef<[*mut f32]>, impl AsRef<[*mut f32]>, impl AsRef<[*mut f32]>>,
                    done: usize,
                    count: usize,
                ) -> usize {
                    let SumBuffers { sources, past, through } = &buffers;
                    let (sources, past, through) = (sources.as_ref(), past.as_ref(), through.as_ref());
                    let steps = (count - done) / (WIDTH * VECTORS);
                    for start in (0..steps).map(|step| done + step * WIDTH * VECTORS) {
                        let mut sums = [$zero(); VECTORS];
                        for (vector, sum) in sums.iter_mut().enumerate() {
                            // SAFETY: a whole step is left at `start`, by the caller's contract.
                            *sum = unsafe { $load(sources[0].wrapping_add(start + vector * WIDTH)) };
                        }
                        for source in &sources[1..] {
                            for (vector, sum) in sums.iter_mut().enumerate() {
                                // SAFETY: as above.
                                let summand = unsafe { $load(source.wrapping_add(start + vector * WIDTH)) };
                                *sum = $add(*sum, summand);
                            }
                        }
                        for target in past {
                            for (vector, sum) in sums.iter().enumerate() {
                                // SAFETY: as above; aligned by the caller's contract.
                                unsafe { $stream(target.wrapping_add(start + vector * WIDTH), *sum) };
                            }
                        }
                        for target in through {
                            for (vector, sum) in sums.iter().enumerate() {
                                // SAFETY: as above.
                                unsafe { $store(target.wrapping_add(start + vector * WIDTH), *sum) };
                            }
                        }
                    }
                    done + steps * WIDTH * VECTORS
                }
            }
        };
    }

    vectors! {
        /// Half a cache line at a time.
        half: "avx2", 8, _mm256_loadu_ps, _mm256_setzero_ps, _mm256_add_ps, _mm256_storeu_ps, _mm256_stream_ps
    }

    vectors! {
        /// A cache line at a time.
        line: "avx512f", 16, _mm512_loadu_ps, _mm512_setzero_ps, _mm512_add_ps, _mm512_storeu_ps, _mm512_stream_ps
    }

    pub(crate) fn is_supported() -> bool {
        is_x86_feature_detected!("avx2")
    }

    pub(crate) fn is_wide() -> bool {
        is_supported() && is_x86_feature_detected!("avx512f")
    }

    /// Adds as many whole vectors as there are, two cache lines at a time and then what is left,
    /// and returns how many elements that was. The first `n_past` targets go past the cache, and
    /// are fenced; nothing is added where they lack the alignment for that.
    ///
    /// # Safety
    /// As for [`super::run`]; the processor has AVX2, and AVX-512 where `reach` is wide.
    pub(crate) unsafe fn add(
        reach: Reach,
        sources: &[*mut f32],
        targets: &[*mut f32],
        n_past: usize,
        count: usize,
    ) -> usize {
        let (past, through) = targets.split_at(n_past);
        let width = if reach == Reach::Wide { line::WIDTH } else { half::WIDTH };
        if !past.iter().all(|target| target.addr().is_multiple_of(width * 4)) {
            return 0;
        }
        // As arrays, the pointers are known not to lie in what is written, and stay in registers.
        match (sources, past, through) {
            // SAFETY: the caller's contract; aligned, checked just above.
            (&[one, other], &[], &[target]) => unsafe {
                go(reach, SumBuffers::of([one, other], [], [target]), count)
            },
            (&[one, other], &[], &[first, second]) => {
                // SAFETY: the same.
                unsafe { go(reach, SumBuffers::of([one, other], [], [first, second]), count) }
            }
            // SAFETY: the same.
            (&[one, other], &[target], &[]) => unsafe {
                go(reach, SumBuffers::of([one, other], [target], []), count)
            },
            (&[one, other], &[first], &[second]) => {
                // SAFETY: the same.
                unsafe { go(reach, SumBuffers::of([one, other], [first], [second]), count) }
            }
            (&[one, other], &[first, second], &[]) => {
                // SAFETY: the same.
                unsafe { go(reach, SumBuffers::of([one, other], [first, second], []), count) }
            }
            // SAFETY: the same.
            _ => unsafe { go(reach, SumBuffers::of(sources, past, through), count) },
        }
    }

    /// The sources, and the targets past the cache and through it.
    #[derive(Clone, Copy)]
    struct SumBuffers<S, P, T> {
        sources: S,
        past: P,
        through: T,
    }

    impl<S, P, T> SumBuffers<S, P, T> {
        fn of(sources: S, past: P, through: T) -> Self {
            Self { sources, past, through }
        }
    }

    /// Adds by vectors of one width.
    ///
    /// # Safety
    /// As for [`add`]; targets past the cache are aligned to a vector.
    unsafe fn go<S, P, T>(reach: Reach, buffers: SumBuffers<S, P, T>, count: usize) -> usize
    where
        S: AsRef<[*mut f32]> + Copy,
        P: AsRef<[*mut f32]> + Copy,
        T: AsRef<[*mut f32]> + Copy,
    {
        match reach {
            // SAFETY: the caller's contract.
            Reach::Wide => unsafe { by_lines(buffers, count) },
            // SAFETY: the same.
            Reach::Half => unsafe { by_halves(buffers, count) },
        }
    }

    /// Adds by vectors of a whole line.
    ///
    /// # Safety
    /// As for [`go`]; the processor has AVX-512.
    #[target_feature(enable = "avx512f")]
    unsafe fn by_lines<S, P, T>(buffers: SumBuffers<S, P, T>, count: usize) -> usize
    where
        S: AsRef<[*mut f32]> + Copy,
        P: AsRef<[*mut f32]> + Copy,
        T: AsRef<[*mut f32]> + Copy,
    {
        // SAFETY: the caller's contract.
        let done = unsafe { line::add::<2>(buffers, 0, count) };
        // SAFETY: the same.
        let done = unsafe { line::add::<1>(buffers, done, count) };
        // SAFETY: the same; the one has the instructions of the other.
        unsafe { rest(buffers, done, count) }
    }

    /// Adds by vectors of half a line.
    ///
    /// # Safety
    /// As for [`go`].
    #[target_feature(enable = "avx2")]
    unsafe fn by_halves<S, P, T>(buffers: SumBuffers<S, P, T>, count: usize) -> usize
    where
        S: AsRef<[*mut f32]> + Copy,
        P: AsRef<[*mut f32]> + Copy,
        T: AsRef<[*mut f32]> + Copy,
    {
        // SAFETY: the caller's contract.
        let done = unsafe { half::add::<4>(buffers, 0, count) };
        // SAFETY: the same.
        unsafe { rest(buffers, done, count) }
    }

    /// Adds what is left from `done` on, and fences.
    ///
    /// # Safety
    /// As for [`go`].
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn rest<S, P, T>(buffers: SumBuffers<S, P, T>, done: usize, count: usize) -> usize
    where
        S: AsRef<[*mut f32]> + Copy,
        P: AsRef<[*mut f32]> + Copy,
        T: AsRef<[*mut f32]> + Copy,
    {
        // SAFETY: the caller's contract.
        let done = unsafe { half::add::<1>(buffers, done, count) };
        if !buffers.past.as_ref().is_empty() {
            _mm_sfence();
        }
        done
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) mod vector {
    use super::Reach;

    pub(crate) fn is_supported() -> bool {
        false
    }

    pub(crate) fn is_wide() -> bool {
        false
    }

    /// Adds nothing: there are no such instructions.
    ///
    /// # Safety
    /// None is needed.
    pub(crate) unsafe fn add(_: Reach, _: &[*mut f32], _: &[*mut f32], _: usize, _: usize) -> usize {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shmccl::shm::Mapping;

    fn memory(len: u64) -> Span {
        Mapping::boxed(64 + len).unwrap().span(64, len).unwrap()
    }

    #[test]
    fn every_kernel_adds_what_the_others_add_in_place_and_apart() {
        for kernel in SumKernel::ALL.into_iter().filter(|kernel| kernel.is_supported()) {
            for count in [0_u64, 1, 8, 31, 32, 33, 47, 1023, 1024, 5000] {
                let buffers: Vec<_> = (0..4).map(|_| memory(4 * count)).collect();
                for (rank, buffer) in buffers.iter().enumerate() {
                    for index in 0..count {
                        buffer.write(4 * index, (rank as u64 * 3 + index) as f32).unwrap();
                    }
                }
                add(kernel, &buffers[..3], &[buffers[3].clone(), buffers[0].clone()]).unwrap();
                for index in 0..count {
                    let sum = (9 + 3 * index) as f32;
                    for target in [3, 0] {
                        assert_eq!(
                            buffers[target].read::<f32>(4 * index).unwrap(),
                            sum,
                            "{kernel:?} {index}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn buffers_of_different_lengths_are_refused() {
        let (short, long) = (memory(64), memory(128));
        assert!(add(SumKernel::Direct, std::slice::from_ref(&short), &[long]).is_err());
        assert!(add(SumKernel::Direct, &[], std::slice::from_ref(&short)).is_err());
        assert!(
            add(SumKernel::Direct, &vec![short.clone(); MOST + 1], std::slice::from_ref(&short)).is_err()
        );
        assert!(add(SumKernel::Direct, &[short.part(0, 3).unwrap()], &[]).is_err());
    }

    #[test]
    fn sums_are_not_copied_on_to_where_they_are_already() {
        let both = memory(128);
        let [one, other, between] = [0, 64, 32].map(|at| both.part(at, 64).unwrap());
        let copy_on = |targets: &[Span]| add(SumKernel::Copied, std::slice::from_ref(&one), targets);
        if SumKernel::Copied.is_supported() {
            copy_on(&[one.clone(), other.clone()]).unwrap();
        }
        for overlapping in [[&one, &one], [&one, &between], [&between, &other]] {
            assert!(copy_on(&overlapping.map(Clone::clone)).is_err());
        }
    }
}
