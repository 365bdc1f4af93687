//! Limits of reductions that stage: plain loops between memory of a rank's own and shared buffers.
//!
//! Cache lines are those of the memory to which a rank's sums go. No vector is stored across two of
//! them there, nor in the shared buffers if these begin equally far behind a line.

#![allow(unsafe_code, reason = "vectors are loaded from and stored to memory that other processes map")]

use std::ops::Range;

use shmccl::Result;
use shmccl::shm::Span;

use crate::sum::{Reach, one_by_one, refused, to_usize, vector};

/// Bytes of a cache line.
const LINE: usize = 64;

/// Elements of a line.
const PER_LINE: usize = LINE / size_of::<f32>();

/// A rank's own elements, and where its sums go. No other thread touches them meanwhile.
#[derive(Debug)]
pub enum Own<'a> {
    /// Ordinary memory, which no other rank can reach. Sums go to the second; both are equally
    /// long.
    Apart(&'a [f32], &'a mut [f32]),
    /// Ordinary memory. The sums take the place of the elements.
    InPlace(&'a mut [f32]),
    /// The heap. Sums go to the second; both are equally long.
    Heap(&'a Span, &'a Span),
}

impl Own<'_> {
    /// Returns the number of elements.
    #[must_use]
    pub fn count(&self) -> usize {
        match self {
            Self::Apart(elements, _) => elements.len(),
            Self::InPlace(elements) => elements.len(),
            Self::Heap(elements, _) => to_usize(elements.len()) / size_of::<f32>(),
        }
    }

    /// Returns by how many bytes the elements begin behind a cache line.
    #[must_use]
    pub fn behind_line(&self) -> usize {
        let start = match self {
            Self::Apart(elements, _) => elements.as_ptr(),
            Self::InPlace(elements) => elements.as_ptr(),
            Self::Heap(elements, _) => elements.start().as_ptr().cast_const().cast(),
        };
        start.addr() % LINE
    }

    /// Returns whether there are elements in this range, and room for their sums.
    fn has(&self, range: &Range<usize>) -> bool {
        let is_even = match self {
            Self::Apart(elements, sums) => elements.len() == sums.len(),
            Self::InPlace(_) => true,
            Self::Heap(elements, sums) => [elements, sums].into_iter().all(|span| fits(span, self.count())),
        };
        is_even && range.start <= range.end && range.end <= self.count()
    }

    /// Returns the addresses of the elements and of the sums.
    fn places(&mut self) -> (*const f32, *mut f32) {
        match self {
            Self::Apart(elements, sums) => (elements.as_ptr(), sums.as_mut_ptr()),
            Self::InPlace(elements) => {
                let start = elements.as_mut_ptr();
                (start.cast_const(), start)
            }
            Self::Heap(elements, sums) => {
                (elements.start().as_ptr().cast_const().cast(), sums.start().as_ptr().cast())
            }
        }
    }
}

/// Adds this rank's `own` elements in `range` and those that others have `staged`. Writes the sums
/// to this rank's memory, `past` the cache or through it, and over what was staged.
///
/// # Errors
/// [`Error::InvalidArgument`](shmccl::Error::InvalidArgument) when lengths differ or no element
/// starts where one should; nothing was changed.
pub fn add_returning(own: &mut Own<'_>, range: Range<usize>, staged: &[Span], past: bool) -> Result<()> {
    let count = range.len();
    if !own.has(&range) || !staged.iter().all(|span| fits(span, count)) {
        return refused(count as u64, "buffers of one length, of whole aligned elements");
    }
    let (from, into) = own.places();
    let (from, into) = (from.wrapping_add(range.start).cast_mut(), into.wrapping_add(range.start));
    let head = before_line(into, count);
    let shared =
        |first| staged.iter().map(move |span| span.start().as_ptr().cast::<f32>().wrapping_add(first));
    let places = |own: *mut f32, first| [own.wrapping_add(first)].into_iter().chain(shared(first)).collect();
    let (sources, targets): (Vec<_>, Vec<_>) = (places(from, 0), places(into, 0));
    // SAFETY: each pointer is the aligned start of `count` elements of a slice or a span that is
    // borrowed here, checked just above; what is only read is a source only.
    unsafe { one_by_one(&sources, &targets, 0..head) };
    let (sources, targets): (Vec<_>, Vec<_>) = (places(from, head), places(into, head));
    let done = if vector::is_supported() {
        // SAFETY: the same, `head` elements further on; the processor has the instructions.
        unsafe { vector::add(Reach::widest(), &sources, &targets, usize::from(past), count - head) }
    } else {
        0
    };
    // SAFETY: the same.
    unsafe { one_by_one(&sources, &targets, done..count - head) };
    Ok(())
}

/// Takes the elements of `slot` to this rank's sums from `taken` on, `past` the cache or through
/// it. Puts this rank's elements from `given` on in their place. Does either or both, in one pass;
/// where it does both in one buffer, they lie apart.
///
/// # Errors
/// [`Error::InvalidArgument`](shmccl::Error::InvalidArgument) when there are not so many elements,
/// or none starts where one should, or what is taken would go where what is given is; nothing was
/// changed.
pub fn turn_over(
    slot: &Span,
    own: &mut Own<'_>,
    taken: Option<usize>,
    given: Option<usize>,
    past: bool,
) -> Result<()> {
    let count = to_usize(slot.len()) / size_of::<f32>();
    let range = |start: usize| start..start.saturating_add(count);
    let is_apart = match (taken, given) {
        (Some(taken), Some(given)) => !matches!(own, Own::InPlace(_)) || taken.abs_diff(given) >= count,
        _ => true,
    };
    let has = |start: Option<usize>| start.is_none_or(|start| own.has(&range(start)));
    if !(is_apart && has(taken) && has(given) && fits(slot, count)) {
        return refused(slot.len(), "buffers of one length, of whole aligned elements");
    }
    let slot = slot.start().as_ptr().cast::<f32>();
    let (from, into) = own.places();
    let taken = taken.map(|start| into.wrapping_add(start));
    let turn = TurnAddresses { slot, taken, given: given.map(|start| from.wrapping_add(start)) };
    let head = before_line(turn.taken.unwrap_or(slot), count);
    let lines = (count - head) / PER_LINE;
    let behind = head + lines * PER_LINE;
    // SAFETY: the places are as long as `count` elements, just checked, and borrowed here.
    (0..head).chain(behind..count).for_each(|index| unsafe { turn.one(index) });
    if lines_are_supported() {
        // SAFETY: the same; the lines of what is taken begin `head` elements in; the processor has
        // AVX2.
        unsafe { turn.lines(head, behind, past) };
    } else {
        // SAFETY: the same.
        (head..behind).for_each(|index| unsafe { turn.one(index) });
    }
    Ok(())
}

/// Returns whether `span` has `count` aligned elements.
fn fits(span: &Span, count: usize) -> bool {
    span.len() == (count * size_of::<f32>()) as u64 && span.start().as_ptr().cast::<f32>().is_aligned()
}

/// Returns how many of `count` elements at `start` lie before the first line that begins there.
fn before_line(start: *mut f32, count: usize) -> usize {
    (start.addr().wrapping_neg() % LINE / size_of::<f32>()).min(count)
}

#[cfg(target_arch = "x86_64")]
use lines::lines_are_supported;

/// The addresses of a [`turn_over`].
#[derive(Clone, Copy)]
struct TurnAddresses {
    slot: *mut f32,
    taken: Option<*mut f32>,
    given: Option<*const f32>,
}

impl TurnAddresses {
    /// Turns over element `index`.
    ///
    /// # Safety
    /// There is an element `index` at all addresses.
    unsafe fn one(self, index: usize) {
        let place = self.slot.wrapping_add(index);
        // SAFETY: readable by the caller's contract.
        let old = unsafe { place.read() };
        if let Some(given) = self.given {
            // SAFETY: the caller's contract.
            let new = unsafe { given.wrapping_add(index).read() };
            // SAFETY: the same.
            unsafe { place.write(new) };
        }
        if let Some(taken) = self.taken {
            // SAFETY: the caller's contract.
            unsafe { taken.wrapping_add(index).write(old) };
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod lines {
    use std::arch::x86_64::{_mm_sfence, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_stream_ps};

    use super::{PER_LINE, TurnAddresses};

    /// Elements of a vector.
    const WIDTH: usize = 8;

    pub(super) fn lines_are_supported() -> bool {
        crate::sum::vector::is_supported()
    }

    impl TurnAddresses {
        /// Turns over the elements from `start` to `end`, whole lines.
        ///
        /// # Safety
        /// They are in all places, and begin with a line where they are taken; the processor has
        /// AVX2.
        #[target_feature(enable = "avx2")]
        pub(super) unsafe fn lines(self, start: usize, end: usize, past: bool) {
            match (self.taken, self.given, past) {
                // SAFETY: the caller's contract, here and in each of the following.
                (Some(taken), Some(given), false) => unsafe {
                    both::<false>(self.slot, taken, given, start, end);
                },
                // SAFETY: the same.
                (Some(taken), Some(given), true) => unsafe {
                    both::<true>(self.slot, taken, given, start, end);
                },
                // SAFETY: the same.
                (Some(taken), None, false) => unsafe { copy::<false>(self.slot, taken, start, end) },
                // SAFETY: the same.
                (Some(taken), None, true) => unsafe { copy::<true>(self.slot, taken, start, end) },
                // SAFETY: the same.
                (None, Some(given), _) => unsafe { copy::<false>(given, self.slot, start, end) },
                (None, None, _) => {}
            }
            if past {
                _mm_sfence();
            }
        }
    }

    /// Takes and gives.
    ///
    /// # Safety
    /// As for [`TurnAddresses::lines`].
    #[target_feature(enable = "avx2")]
    unsafe fn both<const PAST: bool>(
        slot: *mut f32,
        taken: *mut f32,
        given: *const f32,
        start: usize,
        end: usize,
    ) {
        for line in (start..end).step_by(PER_LINE) {
            let at = [line, line + WIDTH];
            // SAFETY: two vectors of a line within the places, by the caller's contract.
            let old = at.map(|at| unsafe { _mm256_loadu_ps(slot.wrapping_add(at)) });
            // SAFETY: the same.
            let new = at.map(|at| unsafe { _mm256_loadu_ps(given.wrapping_add(at)) });
            for (index, at) in at.into_iter().enumerate() {
                // SAFETY: the same.
                unsafe { _mm256_storeu_ps(slot.wrapping_add(at), new[index]) };
                // SAFETY: the same; half a line is aligned.
                unsafe { store::<PAST>(taken.wrapping_add(at), old[index]) };
            }
        }
    }

    /// Takes or gives.
    ///
    /// # Safety
    /// As for [`TurnAddresses::lines`]; `target` has the lines.
    #[target_feature(enable = "avx2")]
    unsafe fn copy<const PAST: bool>(source: *const f32, target: *mut f32, start: usize, end: usize) {
        for at in (start..end).step_by(WIDTH) {
            // SAFETY: a vector within the places, by the caller's contract.
            let vector = unsafe { _mm256_loadu_ps(source.wrapping_add(at)) };
            // SAFETY: the same.
            unsafe { store::<PAST>(target.wrapping_add(at), vector) };
        }
    }

    /// Stores a vector, past the cache or through it.
    ///
    /// # Safety
    /// A vector is writable at `place`, and aligned with `PAST`; the processor has AVX2.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn store<const PAST: bool>(place: *mut f32, vector: std::arch::x86_64::__m256) {
        if PAST {
            // SAFETY: the caller's contract.
            unsafe { _mm256_stream_ps(place, vector) };
        } else {
            // SAFETY: the same.
            unsafe { _mm256_storeu_ps(place, vector) };
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn lines_are_supported() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
impl TurnAddresses {
    /// Does nothing: there are no such instructions.
    ///
    /// # Safety
    /// None is needed.
    unsafe fn lines(self, _: usize, _: usize, _: bool) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use shmccl::shm::Mapping;

    /// Makes a buffer of `count` elements that begins `behind` bytes behind a line.
    fn memory(behind: u64, count: usize) -> Span {
        let len = (count * size_of::<f32>()) as u64;
        Mapping::boxed(64 + behind + len).unwrap().span(64 + behind, len).unwrap()
    }

    fn numbered(count: usize, first: f32) -> Vec<f32> {
        (0..count).map(|index| index as f32 + first).collect()
    }

    fn read(span: &Span) -> Vec<f32> {
        let mut found = vec![0.0_f32; to_usize(span.len()) / size_of::<f32>()];
        span.copy_out(0, bytemuck::cast_slice_mut(&mut found)).unwrap();
        found
    }

    #[test]
    fn own_elements_are_added_to_staged_ones_and_the_sums_returned() {
        for (count, past) in [0_usize, 1, 15, 31, 33, 5000].into_iter().flat_map(|n| [(n, false), (n, true)])
        {
            let staged = memory(16, count);
            let own = numbered(count, 0.0);
            staged.copy_in(0, bytemuck::cast_slice(&vec![1.0_f32; count])).unwrap();
            let add = |own: &mut Own<'_>| {
                add_returning(own, 0..count, std::slice::from_ref(&staged), past).unwrap();
            };
            let mut sums = vec![0.0; count];
            add(&mut Own::Apart(&own, &mut sums));
            let mut both = own.clone();
            add(&mut Own::InPlace(&mut both));
            let (elements, shared) = (memory(8, count), memory(0, count));
            elements.copy_in(0, bytemuck::cast_slice(&own)).unwrap();
            add(&mut Own::Heap(&elements, &shared));
            let (shared, returned) = (read(&shared), read(&staged));
            for index in 0..count {
                let times = |n| n * index as f32 + 1.0;
                assert_eq!((sums[index], both[index]), (times(1.0), times(2.0)));
                assert_eq!((shared[index], returned[index]), (times(3.0), times(3.0)));
            }
        }
        let refuses = |mut own: Own<'_>, range, staged: &[Span]| {
            assert!(add_returning(&mut own, range, staged, false).is_err(), "{own:?}");
        };
        refuses(Own::InPlace(&mut [1.0; 3]), 0..3, &[memory(0, 4)]);
        refuses(Own::InPlace(&mut [1.0; 3]), 1..4, &[memory(0, 3)]);
        refuses(Own::Apart(&[1.0; 3], &mut [1.0; 4]), 0..3, &[]);
        refuses(Own::Heap(&memory(0, 3), &memory(0, 4)), 0..3, &[]);
    }

    #[test]
    fn what_is_staged_is_taken_and_the_next_put_in_its_place_wherever_lines_begin() {
        for (count, past) in [0_usize, 1, 15, 16, 33, 5000].into_iter().flat_map(|n| [(n, false), (n, true)])
        {
            for skew in [0, 1, 4] {
                let slot = memory(16, count);
                let (first, second) = (numbered(count, 7.0), numbered(count, -3.0));
                let given = [first.clone(), second.clone(), vec![0.0; skew]].concat();
                let mut taken = vec![0.0; given.len()];
                let own = &mut Own::Apart(&given, &mut taken);
                turn_over(&slot, own, None, Some(0), past).unwrap();
                turn_over(&slot, own, Some(skew), Some(count), past).unwrap();
                assert_eq!(read(&slot), second);
                turn_over(&slot, own, Some(count + skew), None, past).unwrap();
                assert_eq!(taken[skew..], [first, second.clone()].concat());
                assert_eq!(read(&slot), second);
            }
        }
        let refuses = |mut own: Own<'_>, taken, given| {
            assert!(turn_over(&memory(0, 3), &mut own, taken, given, false).is_err(), "{own:?}");
        };
        refuses(Own::Apart(&[0.0; 3], &mut [0.0; 4]), Some(0), None);
        refuses(Own::InPlace(&mut [0.0; 5]), None, Some(3));
        refuses(Own::InPlace(&mut [0.0; 5]), Some(0), Some(2));
        refuses(Own::InPlace(&mut [0.0; 5]), Some(usize::MAX), None);
        refuses(Own::Heap(&memory(0, 2), &memory(0, 2)), Some(0), None);
    }
}
