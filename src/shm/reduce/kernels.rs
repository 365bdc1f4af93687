//! The kernels: one generic loop, compiled for each set of instructions.
//!
//! A block of elements is held in registers while the loop goes over the sources; then it is stored
//! to every target. The compiler turns the arithmetic on arrays of fixed length into vector
//! instructions. Two sources with one or two targets, the case of every ring and tree, are compiled
//! on their own, so that no loop over operands is left in them.
//!
//! Elements that have to be converted go in longer blocks, which the compiler keeps on the stack
//! and treats in three loops: convert, combine, convert. Unrolled into registers, long conversions
//! were left scalar, and took six times as long.
//!
//! Where results do not fit into the cache beside the sources they go past it. Below that the
//! quicker policy is found by trials ([`store::run`]).

use std::marker::PhantomData;
use std::ops::Range;

use super::MAX_PLACES;
use super::arithmetic::{Arithmetic, WordKernel, scalar_of};
use super::instructions::{Instructions, Portable};
use super::kernel::{ReduceKernel, Supported};
use super::operator::{ElementOperator, Numeric};
use super::places::{FreshSources, OperandAddresses};
use super::store::{self, LINE, PIECE, SHORT, elements_before_line};
use crate::shm::copy::StorePolicy;

/// All that is compiled for one type of element and one operator.
#[derive(Debug)]
pub(crate) struct CombineKernels {
    /// Combines into partial results.
    pub(crate) partial: CombineKernel,
    /// Combines, and takes the operator's final step.
    pub(crate) last: CombineKernel,
    /// Combines sources of one word each, and takes the final step.
    pub(crate) word: WordKernel,
}

impl CombineKernels {
    /// Returns those for elements `T`, with `P` for partial results and `L` for last ones. They are
    /// compiled in: nothing is made here.
    #[inline]
    pub(crate) fn of<T, P, L>(supported: Supported) -> &'static Self
    where
        T: Arithmetic,
        P: ElementOperator<T::Register>,
        L: ElementOperator<T::Register>,
    {
        match supported.kernel() {
            #[cfg(target_arch = "x86_64")]
            ReduceKernel::Avx2 => const { &Self::new::<T, L>(x86_64::avx2::<T, P>, x86_64::avx2::<T, L>) },
            #[cfg(target_arch = "x86_64")]
            ReduceKernel::Avx512 => {
                const { &Self::new::<T, L>(x86_64::avx512::<T, P>, x86_64::avx512::<T, L>) }
            }
            _ => const { &Self::new::<T, L>(portable::<T, P>, portable::<T, L>) },
        }
    }

    const fn new<T: Arithmetic, L: ElementOperator<T::Register>>(partial: Body, last: Body) -> Self {
        Self { partial: CombineKernel(partial), last: CombineKernel(last), word: WordKernel::of::<T, L>() }
    }
}

/// A compiled loop for one type of element and one operator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CombineKernel(Body);

type Body = unsafe fn(&KernelCall<'_>);

/// Numbers that an operator needs besides its operands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms<'a> {
    /// What the operator scales the fresh sources by: a scalar of each source, or one of all. Each
    /// begins with the bytes of an element.
    pub(crate) scalars: &'a [u64],
    /// What an average divides by, not zero.
    pub(crate) divisor: u16,
}

/// One run of a kernel.
struct KernelCall<'a> {
    places: &'a OperandAddresses<'a>,
    /// So many of the targets, the first ones, go past the cache.
    n_past: usize,
    terms: Terms<'a>,
}

impl CombineKernel {
    /// Combines the elements of all sources into all targets, and stores them in the better way.
    #[inline]
    pub(crate) fn run(self, places: &OperandAddresses<'_>, terms: Terms<'_>) {
        store::run(places, |policy| self.run_by(policy, places, terms));
    }

    /// Combines like [`run`](Self::run), for results with several receivers that all combine a
    /// share at once and store it to all. `most_len` is the largest share, in bytes. The first
    /// target is this rank's own.
    #[inline]
    pub(crate) fn run_for_all(self, places: &OperandAddresses<'_>, most_len: u64, terms: Terms<'_>) {
        store::run_for_all(places, most_len, |policy| match policy {
            StorePolicy::CopyForward => self.run_and_copy(places, terms),
            policy => self.run_by(policy, places, terms),
        });
    }

    /// Combines all elements into the first target, from where they are copied to the others.
    pub(crate) fn run_and_copy(self, places: &OperandAddresses<'_>, terms: Terms<'_>) {
        places.in_pieces(PIECE, |piece| self.run_past(0, piece, terms));
    }

    /// Combines by this policy.
    #[inline]
    pub(crate) fn run_by(self, policy: StorePolicy, places: &OperandAddresses<'_>, terms: Terms<'_>) {
        let n_past = if policy == StorePolicy::NonTemporal { places.targets().len() } else { 0 };
        self.run_past(n_past, places, terms);
    }

    /// Combines for a first target that is not read soon, and others that are.
    pub(crate) fn run_keeping_others(self, places: &OperandAddresses<'_>, terms: Terms<'_>) {
        self.run_past(store::n_past_but_others(places), places, terms);
    }

    /// Combines with the first `n_past` targets past the cache.
    #[inline]
    fn run_past(self, n_past: usize, places: &OperandAddresses<'_>, terms: Terms<'_>) {
        let Terms { scalars, divisor } = terms;
        assert!(divisor > 0 && usize::from(divisor) <= MAX_PLACES, "an average of {divisor} ranks");
        let n_sources = places.sources().len();
        let is_for_each = scalars.len() == 1 || scalars.len() == n_sources;
        assert!(is_for_each, "{} scalars of {n_sources} sources", scalars.len());
        // SAFETY: `CombineKernels::of` chose by what the processor was found to have.
        unsafe { (self.0)(&KernelCall { places, n_past, terms }) };
    }
}

fn portable<T: Arithmetic, O: ElementOperator<T::Register>>(job: &KernelCall<'_>) {
    // SAFETY: every processor has these instructions.
    unsafe { body::<Portable, T, O>(job) }
}

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use super::{Arithmetic, ElementOperator, KernelCall, body};
    use crate::shm::reduce::instructions::WithF16c;

    /// # Safety
    /// The processor has AVX2 and F16C.
    #[target_feature(enable = "avx2,f16c")]
    pub(super) unsafe fn avx2<T: Arithmetic, O: ElementOperator<T::Register>>(job: &KernelCall<'_>) {
        // SAFETY: the caller's contract.
        unsafe { body::<WithF16c, T, O>(job) }
    }

    /// # Safety
    /// The processor has AVX2, F16C and AVX-512 F, BW, DQ and VL.
    #[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
    pub(super) unsafe fn avx512<T: Arithmetic, O: ElementOperator<T::Register>>(job: &KernelCall<'_>) {
        // SAFETY: the caller's contract.
        unsafe { body::<WithF16c, T, O>(job) }
    }
}

/// Runs the loop with blocks of the type's length.
///
/// # Safety
/// The processor has the instructions `I`.
#[inline(always)]
unsafe fn body<I: Instructions, T: Arithmetic, O: ElementOperator<T::Register>>(job: &KernelCall<'_>) {
    const { assert!((T::BLOCK * size_of::<T>()).is_multiple_of(LINE), "a block is whole lines") };
    match T::BLOCK {
        // SAFETY: the caller's contract.
        64 => unsafe { sweep::<I, T, O, 64>(job) },
        // SAFETY: the caller's contract.
        32 => unsafe { sweep::<I, T, O, 32>(job) },
        // SAFETY: the caller's contract.
        16 => unsafe { sweep::<I, T, O, 16>(job) },
        // SAFETY: the caller's contract.
        _ => unsafe { sweep::<I, T, O, 128>(job) },
    }
}

/// Goes over all elements: in blocks of `L`, and before and behind those in blocks of 8 and 1.
///
/// # Safety
/// As for `body`.
#[inline(always)]
unsafe fn sweep<I: Instructions, T: Arithmetic, O: ElementOperator<T::Register>, const L: usize>(
    job: &KernelCall<'_>,
) {
    let (sources, targets) = (job.places.sources(), job.places.targets());
    // So many elements lie within each place.
    let end = job.places.len() / size_of::<T>();
    let scalars = job.terms.scalars;
    let (fresh, (share, divisor)) = (job.places.fresh(), T::Register::mean_terms(job.terms.divisor));
    let run = BlockLoop::<I, T, O> { sources, scalars, targets, fresh, share, divisor, code: PhantomData };
    let streamed = if I::STREAMS && job.n_past > 0 {
        // SAFETY: the caller's contract; `end` as counted above.
        unsafe { run.streamed_blocks::<L>(end, job.n_past) }
    } else if job.places.len() >= SHORT {
        // Blocks begin with a line, too: a vector that is stored across two of them takes twice as
        // long.
        let head = elements_before_line(targets, size_of::<T>()).unwrap_or(0).min(end);
        head..head
    } else {
        0..0
    };
    let start = streamed.end;
    let done = match (sources, targets) {
        (&[one, two], &[target]) => {
            let (sources, targets) = ([one, two], [target]);
            let run = BlockLoop { sources: &sources, targets: &targets, ..run };
            // SAFETY: the caller's contract; `end` as counted above.
            unsafe { run.blocks::<L>(start, end) }
        }
        (&[one, two], &[first, second]) => {
            let (sources, targets) = ([one, two], [first, second]);
            let run = BlockLoop { sources: &sources, targets: &targets, ..run };
            // SAFETY: the caller's contract; `end` as counted above.
            unsafe { run.blocks::<L>(start, end) }
        }
        // SAFETY: the caller's contract; `end` as counted above.
        _ => unsafe { run.blocks::<L>(start, end) },
    };
    // One loop for both ends: half the code.
    for rest in [0..streamed.start, done..end] {
        // SAFETY: the caller's contract; `end` as counted above.
        let eights = unsafe { run.blocks::<8>(rest.start, rest.end) };
        // SAFETY: the caller's contract; `end` as counted above.
        unsafe { run.blocks::<1>(eights, rest.end) };
    }
}

/// OperandAddresses and terms in the form that the inner loop wants: by value, or of a length known
/// when it is compiled.
struct BlockLoop<'a, I, T: Arithmetic, O> {
    sources: &'a [*const u8],
    /// One of each source, or one of all.
    scalars: &'a [u64],
    targets: &'a [*mut u8],
    fresh: FreshSources,
    /// What an average multiplies the fresh sources by, and what it divides by at the end.
    share: T::Register,
    divisor: <T::Register as Numeric>::Divisor,
    code: PhantomData<(I, O)>,
}

impl<I: Instructions, T: Arithmetic, O: ElementOperator<T::Register>> BlockLoop<'_, I, T, O> {
    /// Combines whole blocks of `L` elements from `start` on; returns where less than a block is
    /// left before `end`.
    ///
    /// # Safety
    /// `end` elements lie within the places; the processor has the instructions `I`.
    #[inline(always)]
    unsafe fn blocks<const L: usize>(&self, start: usize, end: usize) -> usize {
        let mut index = start;
        while end - index >= L {
            // SAFETY: `index + L <= end`.
            unsafe { self.block::<L>(index * size_of::<T>()) };
            I::by_block();
            index += L;
        }
        index
    }

    /// Combines whole blocks of `L` elements from the first line of the targets on, of which the
    /// first `n_past` go past the cache. Returns the elements that they cover: none where the lines
    /// of these targets begin at different elements, or no line begins with an element.
    ///
    /// # Safety
    /// `end` elements lie within the places; the processor has the instructions `I`.
    #[inline(always)]
    unsafe fn streamed_blocks<const L: usize>(&self, end: usize, n_past: usize) -> Range<usize> {
        let (past, through) = self.targets.split_at(n_past);
        let Some(head) = elements_before_line(past, size_of::<T>()) else { return 0..0 };
        let head = head.min(end);
        let mut index = head;
        while end - index >= L {
            let offset = index * size_of::<T>();
            // SAFETY: `index + L <= end`.
            let block = unsafe { self.combined::<L>(offset) };
            // SAFETY: the same; the first block is `head` elements in, where a line begins, and
            // blocks are whole lines.
            unsafe { store_lines::<I, T, L>(past, offset, &block) };
            // SAFETY: `index + L <= end`.
            unsafe { store_block(through, offset, block) };
            I::by_block();
            index += L;
        }
        I::fence();
        head..index
    }

    /// Combines and stores a block.
    ///
    /// # Safety
    /// `L` elements from byte `offset` on lie within the places; the processor has the instructions
    /// `I`.
    #[inline(always)]
    unsafe fn block<const L: usize>(&self, offset: usize) {
        // SAFETY: the caller's contract.
        let block = unsafe { self.combined::<L>(offset) };
        // SAFETY: the caller's contract.
        unsafe { store_block(self.targets, offset, block) };
    }

    /// Returns the results of a block.
    ///
    /// # Safety
    /// As for `block`.
    #[inline(always)]
    unsafe fn combined<const L: usize>(&self, offset: usize) -> [T; L] {
        // SAFETY: the caller's contract.
        let mut result = unsafe { self.load::<L>(0, offset) };
        for index in 1..self.sources.len() {
            // SAFETY: the caller's contract.
            let other = unsafe { self.load::<L>(index, offset) };
            for lane in 0..L {
                result[lane] = O::combine(result[lane], other[lane]);
            }
        }
        for number in &mut result {
            *number = O::finish(*number, self.divisor).settle();
        }
        // SAFETY: the caller's contract; settled just above.
        unsafe { T::narrow_block::<I, L>(result) }
    }

    /// Returns the block of one source, as numbers, scaled if the operator wants that.
    ///
    /// # Safety
    /// As for `block`; there is a source `index`.
    #[inline(always)]
    unsafe fn load<const L: usize>(&self, index: usize, offset: usize) -> [T::Register; L] {
        // SAFETY: `offset` is within the place by the caller's contract.
        let source = unsafe { self.sources[index].add(offset) };
        // SAFETY: `L` elements are readable there by the caller's contract; any bytes are a T
        // (Pod).
        let block = unsafe { source.cast::<[T; L]>().read_unaligned() };
        // SAFETY: the caller's contract.
        let mut numbers = unsafe { T::widen_block::<I, L>(block) };
        if O::SCALES && self.fresh[index / 64] >> (index % 64) & 1 == 1 {
            let scalar = self.scalars[index.min(self.scalars.len() - 1)];
            let scalar = O::factor(scalar_of::<T>(scalar), self.share);
            for number in &mut numbers {
                *number = number.multiply(scalar);
            }
        }
        numbers
    }
}

/// Stores a block to `targets`.
///
/// # Safety
/// `block` fits at byte `offset` of each of them.
#[inline(always)]
unsafe fn store_block<T: Arithmetic, const L: usize>(targets: &[*mut u8], offset: usize, block: [T; L]) {
    for &target in targets {
        // SAFETY: within the place by the caller's contract.
        let target = unsafe { target.add(offset) };
        // SAFETY: `L` elements are writable there by the caller's contract.
        unsafe { target.cast::<[T; L]>().write_unaligned(block) };
    }
}

/// Stores a block past the cache to `targets`.
///
/// # Safety
/// `block` fits at byte `offset` of each of them, where a line begins; the processor has the
/// instructions `I`.
#[inline(always)]
unsafe fn store_lines<I: Instructions, T: Arithmetic, const L: usize>(
    targets: &[*mut u8],
    offset: usize,
    block: &[T; L],
) {
    for &target in targets {
        for (index, line) in bytemuck::cast_slice::<T, [u8; LINE]>(block).iter().enumerate() {
            // SAFETY: the line is within the block, and so within the place.
            let target = unsafe { target.add(offset + index * LINE) };
            // SAFETY: writable and the start of a line by the caller's contract.
            unsafe { I::store_line(target, line) };
        }
    }
}

#[cfg(test)]
mod tests;
