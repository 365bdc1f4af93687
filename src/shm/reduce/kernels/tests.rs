use std::cell::RefCell;

use half::bf16;

use super::super::{Source, SourcePlace, Sum, Target, with_addresses};
use super::*;

/// What a kernel does past the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// A line is stored at this address.
    Line(usize),
    Fence,
}

thread_local! {
    static EVENTS: RefCell<Vec<Event>> = const { RefCell::new(Vec::new()) };
}

/// The instructions `I`, of which it notes what goes past the cache.
struct Noted<I>(PhantomData<I>);

impl<I: Instructions> Instructions for Noted<I> {
    const CONVERTS_HALF: bool = I::CONVERTS_HALF;
    const STREAMS: bool = I::STREAMS;

    unsafe fn store_line(target: *mut u8, line: &[u8; LINE]) {
        EVENTS.with_borrow_mut(|events| events.push(Event::Line(target.addr())));
        // SAFETY: the caller's contract is the same.
        unsafe { I::store_line(target, line) };
    }

    fn fence() {
        EVENTS.with_borrow_mut(|events| events.push(Event::Fence));
        I::fence();
    }
}

/// CombineKernels take the way past the cache, though the lines go through it: for processors and
/// interpreters that know no other.
struct AsIfPast;

impl Instructions for AsIfPast {
    const CONVERTS_HALF: bool = false;
    const STREAMS: bool = true;
}

/// More than there are targets.
const ALL: usize = usize::MAX;

/// Targets that begin so many bytes behind a line each, and how many elements they have.
#[derive(Clone, Copy, Debug)]
struct Shape {
    count: usize,
    behind_line: &'static [usize],
}

/// Adds elements that are all one, of two sources, and stores the first `n_past` targets past the
/// cache, if there are so many; returns what went there, and where the targets were.
///
/// # Safety
/// The processor has the instructions `I`.
unsafe fn sum<I: Instructions, T: Arithmetic>(shape: Shape, n_past: usize) -> (Vec<Event>, Vec<usize>) {
    let Shape { count, behind_line } = shape;
    let len = count * size_of::<T>();
    let one = vec![T::narrow(T::Register::mean_terms(1).0); count];
    let two = vec![T::narrow(T::Register::mean_terms(1).0.add(T::Register::mean_terms(1).0)); count];
    let mut memory = vec![vec![0; len + 2 * LINE]; behind_line.len()];
    let mut targets: Vec<_> = memory
        .iter_mut()
        .zip(behind_line)
        .map(|(bytes, behind)| {
            let start = bytes.as_ptr().addr().wrapping_neg() % LINE + behind;
            &mut bytes[start..start + len]
        })
        .collect();
    let addresses = targets.iter().map(|target| target.as_ptr().addr()).collect();
    let source = Source::fresh(SourcePlace::Slice(bytemuck::cast_slice(&one)));
    let mut places: Vec<_> = targets.iter_mut().map(|target| Target::Slice(target)).collect();
    EVENTS.take();
    with_addresses(&[source, source], &mut places, len as u64, |places| {
        let n_past = n_past.min(places.targets().len());
        let job = KernelCall { places, n_past, terms: Terms { scalars: &[0], divisor: 1 } };
        // SAFETY: the caller's contract is the same.
        unsafe { body::<Noted<I>, T, Sum>(&job) }
    })
    .unwrap();
    for target in targets {
        assert!(*target == *bytemuck::cast_slice::<T, u8>(&two), "{shape:?}");
    }
    (EVENTS.take(), addresses)
}

/// Checks that `n_lines` lines of each of the first `n_past` targets go past the cache, one behind
/// the other from the first on that begins within it, and that one fence follows them all.
///
/// # Safety
/// The processor has the instructions `I`.
unsafe fn check<I: Instructions, T: Arithmetic>(shape: Shape, n_past: usize, n_lines: usize) {
    // SAFETY: the caller's contract is the same.
    let (events, targets) = unsafe { sum::<I, T>(shape, n_past) };
    let mut lines: Vec<_> = events
        .iter()
        .filter_map(|event| if let Event::Line(address) = event { Some(*address) } else { None })
        .collect();
    lines.sort_unstable();
    let lines_of = |target: &usize| {
        let first = target.next_multiple_of(LINE);
        (0..n_lines).map(move |index| first + index * LINE)
    };
    let mut expected: Vec<_> = targets.iter().take(n_past).flat_map(lines_of).collect();
    expected.sort_unstable();
    assert_eq!(lines, expected, "{shape:?}");
    if n_lines > 0 {
        let n_fences = events.iter().filter(|&&event| event == Event::Fence).count();
        assert_eq!((n_fences, events.last()), (1, Some(&Event::Fence)), "{shape:?}");
    }
}

/// Blocks of `f32` are two lines, those of `bf16`, which are converted, four.
///
/// # Safety
/// The processor has the instructions `I`.
unsafe fn check_all<I: Instructions>() {
    let shape = |count, behind_line| Shape { count, behind_line };
    for (count, behind_line, n_lines) in [
        (0, &[0][..], 0),
        (31, &[0], 0),
        (32, &[0], 2),
        (63, &[0], 2),
        (1000, &[0], 62),
        // Elements before the first line: 15, 1 and 1.
        (1000, &[4], 60),
        (32, &[60], 0),
        (33, &[60], 2),
        (1000, &[0, 0], 62),
        (1000, &[8, 8, 8], 60),
        // Lines that begin within an element, and elsewhere in one target than in the other.
        (1000, &[1], 0),
        (1000, &[0, 4], 0),
    ] {
        // SAFETY: the caller's contract is the same.
        unsafe { check::<I, f32>(shape(count, behind_line), ALL, n_lines) };
    }
    for (count, behind_line, n_lines) in [(127, &[0], 0), (128, &[0], 4), (1000, &[0], 28), (1000, &[62], 28)]
    {
        // SAFETY: the caller's contract is the same.
        unsafe { check::<I, bf16>(shape(count, behind_line), ALL, n_lines) };
    }
    for (behind_line, n_past, n_lines) in
        [(&[0, 0][..], 1, 62), (&[4, 0], 1, 60), (&[8, 8, 1], 2, 60), (&[1, 0], 1, 0)]
    {
        // SAFETY: the caller's contract is the same.
        unsafe { check::<I, f32>(shape(1000, behind_line), n_past, n_lines) };
    }
}

#[test]
fn whole_blocks_of_lines_go_past_the_cache_and_one_fence_follows_the_last() {
    // SAFETY: every processor has what these do.
    unsafe { check_all::<AsIfPast>() };
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[test]
fn a_processor_with_avx2_stores_lines_past_the_cache() {
    if ReduceKernel::Avx2.is_supported() {
        // SAFETY: supported, as just asked.
        unsafe { check_all::<super::super::instructions::WithF16c>() };
    }
}

#[test]
fn results_for_the_cache_all_go_through_it() {
    for behind_line in [&[0][..], &[4], &[0, 0]] {
        let shape = Shape { count: 1000, behind_line };
        // SAFETY: every processor has what these do.
        assert_eq!(unsafe { sum::<AsIfPast, f32>(shape, 0) }.0, []);
        // SAFETY: the same.
        assert_eq!(unsafe { sum::<Portable, f32>(shape, ALL) }.0, []);
    }
}

#[test]
fn long_results_for_the_cache_are_right_wherever_their_lines_begin() {
    for behind_line in [&[0][..], &[4], &[1], &[60, 60], &[16, 0], &[16, 16, 16]] {
        for count in [SHORT / 4 - 1, SHORT / 4, SHORT / 4 + 33] {
            let shape = Shape { count, behind_line };
            // SAFETY: every processor has what this does.
            assert_eq!(unsafe { sum::<Portable, f32>(shape, 0) }.0, []);
        }
    }
}
