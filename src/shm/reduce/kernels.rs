//! The kernels: one generic loop, compiled for each set of instructions.
//!
//! A block of elements is held in registers while the loop goes over the sources; then it is stored to every target. The
//! compiler turns the arithmetic on arrays of fixed length into vector instructions. Two sources with one or two targets,
//! the case of every ring and tree, are compiled on their own, so that no loop over places is left in them.
//!
//! Elements that have to be converted go in longer blocks, which the compiler keeps on the stack and treats in three loops:
//! convert, combine, convert. Unrolled into registers, long conversions were left scalar, and took six times as long.
//!
//! All stores go through the cache. Stores past it were measured from 1 to 64 MiB, for two and for eight sources (AMD EPYC,
//! Zen 3), with and without somebody to read the result: for two sources they cost up to twice as much, for eight nothing
//! changed beyond the noise.

use std::marker::PhantomData;

use super::arithmetic::{Arithmetic, Instructions};
use super::number::Number;
use super::operator::Operator;
use super::places::Places;
use super::word::WordKernel;
use super::{MAX_PLACES, ReduceKernel, Supported};
use crate::shm::mapping::to_usize;

/// All that is compiled for one type of element and one operator.
#[derive(Debug)]
pub(crate) struct Kernels {
    /// Combines into partial results.
    pub(crate) partial: Kernel,
    /// Combines, and takes the operator's final step.
    pub(crate) last: Kernel,
    /// The same for sources of one word each.
    pub(crate) word: WordKernel,
}

impl Kernels {
    /// Those for elements `T`, with `P` for partial results and `L` for last ones. They are compiled in: nothing is made here.
    #[inline]
    pub(crate) fn of<T, P, L>(supported: Supported) -> &'static Self
    where
        T: Arithmetic,
        P: Operator<T::Register>,
        L: Operator<T::Register>,
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

    const fn new<T: Arithmetic, L: Operator<T::Register>>(partial: Body, last: Body) -> Self {
        let width = size_of::<T>() as u64;
        let word = WordKernel::of::<T, L>();
        Self { partial: Kernel { body: partial, width }, last: Kernel { body: last, width }, word }
    }
}

/// A compiled loop for one type of element and one operator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernel {
    body: Body,
    /// Bytes of an element.
    width: u64,
}

type Body = unsafe fn(&Job<'_>);

/// Numbers that an operator needs besides its operands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms<R> {
    pub(crate) scalar: R,
    pub(crate) divisor: R,
}

/// One run of a kernel.
struct Job<'a> {
    places: &'a Places<'a>,
    count: usize,
    scalar: [u8; 8],
    divisor: u8,
}

impl Kernel {
    /// Combines the first `count` elements of all sources into all targets.
    ///
    /// `scalar` begins with the bytes of the element to scale by; `divisor` is what an average divides by, not zero.
    #[inline]
    pub(crate) fn run(self, places: &Places<'_>, count: u64, scalar: [u8; 8], divisor: u8) {
        let is_within = count.checked_mul(self.width).is_some_and(|len| len <= places.len() as u64);
        assert!(is_within, "{count} elements reach past {} bytes", places.len());
        assert!(divisor > 0 && usize::from(divisor) <= MAX_PLACES, "an average of {divisor} ranks");
        // SAFETY: `Kernels::of` chose by what the processor was found to have; `count` elements lie within the places,
        // asserted just above.
        unsafe { (self.body)(&Job { places, count: to_usize(count), scalar, divisor }) };
    }
}

/// The architecture's common instructions.
struct Portable;

impl Instructions for Portable {
    const CONVERTS_HALF: bool = false;
}

/// # Safety
/// `count` elements lie within the places of the job.
unsafe fn portable<T: Arithmetic, O: Operator<T::Register>>(job: &Job<'_>) {
    // SAFETY: the caller's contract; every processor has these instructions.
    unsafe { body::<Portable, T, O>(job) }
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn is_supported(kernel: ReduceKernel) -> bool {
    kernel == ReduceKernel::Portable
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86_64::is_supported;

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use super::{Arithmetic, Instructions, Job, Operator, ReduceKernel, body};

    pub(in super::super) fn is_supported(kernel: ReduceKernel) -> bool {
        match kernel {
            ReduceKernel::Portable => true,
            ReduceKernel::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c"),
            ReduceKernel::Avx512 => {
                is_supported(ReduceKernel::Avx2)
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
        }
    }

    /// AVX2 or AVX-512, each with F16C.
    struct WithF16c;

    impl Instructions for WithF16c {
        const CONVERTS_HALF: bool = true;
    }

    /// # Safety
    /// `count` elements lie within the places of the job; the processor has AVX2 and F16C.
    #[target_feature(enable = "avx2,f16c")]
    pub(super) unsafe fn avx2<T: Arithmetic, O: Operator<T::Register>>(job: &Job<'_>) {
        // SAFETY: the caller's contract.
        unsafe { body::<WithF16c, T, O>(job) }
    }

    /// # Safety
    /// `count` elements lie within the places of the job; the processor has AVX2, F16C and AVX-512 F, BW, DQ and VL.
    #[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
    pub(super) unsafe fn avx512<T: Arithmetic, O: Operator<T::Register>>(job: &Job<'_>) {
        // SAFETY: the caller's contract.
        unsafe { body::<WithF16c, T, O>(job) }
    }
}

/// Runs the loop with blocks of the type's length.
///
/// # Safety
/// `count` elements lie within the places of the job; the processor has the instructions `I`.
#[inline(always)]
unsafe fn body<I: Instructions, T: Arithmetic, O: Operator<T::Register>>(job: &Job<'_>) {
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

/// Goes over all elements: in blocks of `L`, then of 8, 4, 2 and 1.
///
/// # Safety
/// As for `body`.
#[inline(always)]
unsafe fn sweep<I: Instructions, T: Arithmetic, O: Operator<T::Register>, const L: usize>(job: &Job<'_>) {
    let terms = Terms::of::<T>(job.scalar, job.divisor);
    let (sources, targets) = (job.places.sources(), job.places.targets());
    let fresh = job.places.fresh();
    let end = job.count;
    let done = match (sources, targets) {
        (&[one, two], &[target]) => {
            let (sources, targets) = ([one, two], [target]);
            let run = Run::<I, T, O>::new(&sources, fresh, &targets, terms);
            // SAFETY: the caller's contract.
            unsafe { run.blocks::<L>(0, end) }
        }
        (&[one, two], &[first, second]) => {
            let (sources, targets) = ([one, two], [first, second]);
            let run = Run::<I, T, O>::new(&sources, fresh, &targets, terms);
            // SAFETY: the caller's contract.
            unsafe { run.blocks::<L>(0, end) }
        }
        // SAFETY: the caller's contract.
        _ => unsafe { Run::<I, T, O>::new(sources, fresh, targets, terms).blocks::<L>(0, end) },
    };
    let run = Run::<I, T, O>::new(sources, fresh, targets, terms);
    // SAFETY: the caller's contract.
    let done = unsafe { run.blocks::<8>(done, end) };
    // SAFETY: the caller's contract.
    let done = unsafe { run.blocks::<4>(done, end) };
    // SAFETY: the caller's contract.
    let done = unsafe { run.blocks::<2>(done, end) };
    // SAFETY: the caller's contract.
    unsafe { run.blocks::<1>(done, end) };
}

impl<R: Number> Terms<R> {
    /// The scalar of which `scalar` begins with the bytes, and the divisor.
    #[inline(always)]
    pub(super) fn of<T: Arithmetic<Register = R>>(scalar: [u8; 8], divisor: u8) -> Self {
        let scalar: T = bytemuck::pod_read_unaligned(&scalar[..size_of::<T>()]);
        Self { scalar: scalar.widen(), divisor: R::small(divisor) }
    }
}

/// Places and terms in the form that the inner loop wants: by value, or of a length known when it is compiled.
struct Run<'a, I, T: Arithmetic, O> {
    sources: &'a [*const u8],
    targets: &'a [*mut u8],
    fresh: u64,
    terms: Terms<T::Register>,
    code: PhantomData<(I, O)>,
}

impl<'a, I: Instructions, T: Arithmetic, O: Operator<T::Register>> Run<'a, I, T, O> {
    #[inline(always)]
    fn new(sources: &'a [*const u8], fresh: u64, targets: &'a [*mut u8], terms: Terms<T::Register>) -> Self {
        Self { sources, targets, fresh, terms, code: PhantomData }
    }

    /// Combines whole blocks of `L` elements from `start` on; returns where less than a block is left before `end`.
    ///
    /// # Safety
    /// `end` elements lie within the places; the processor has the instructions `I`.
    #[inline(always)]
    unsafe fn blocks<const L: usize>(&self, start: usize, end: usize) -> usize {
        let mut index = start;
        while end - index >= L {
            // SAFETY: `index + L <= end`.
            unsafe { self.block::<L>(index * size_of::<T>()) };
            index += L;
        }
        index
    }

    /// # Safety
    /// `L` elements from byte `offset` on lie within the places; the processor has the instructions `I`.
    #[inline(always)]
    unsafe fn block<const L: usize>(&self, offset: usize) {
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
            *number = O::finish(*number, &self.terms).settle();
        }
        // SAFETY: the caller's contract; settled just above.
        let block: [T; L] = unsafe { T::narrow_block::<I, L>(result) };
        for &target in self.targets {
            // SAFETY: `offset` is within the place by the caller's contract.
            let target = unsafe { target.add(offset) };
            // SAFETY: `L` elements are writable there by the caller's contract.
            unsafe { target.cast::<[T; L]>().write_unaligned(block) };
        }
    }

    /// The block of one source, as numbers, scaled if the operator wants that.
    ///
    /// # Safety
    /// As for `block`; there is a source `index`.
    #[inline(always)]
    unsafe fn load<const L: usize>(&self, index: usize, offset: usize) -> [T::Register; L] {
        // SAFETY: `offset` is within the place by the caller's contract.
        let source = unsafe { self.sources[index].add(offset) };
        // SAFETY: `L` elements are readable there by the caller's contract; any bytes are a T (Pod).
        let block = unsafe { source.cast::<[T; L]>().read_unaligned() };
        // SAFETY: the caller's contract.
        let mut numbers = unsafe { T::widen_block::<I, L>(block) };
        if O::SCALES && self.fresh >> index & 1 == 1 {
            for number in &mut numbers {
                *number = number.multiply(self.terms.scalar);
            }
        }
        numbers
    }
}
