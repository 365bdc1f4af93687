//! Floats of 16 and 8 bits in the staging area as `f32`: what algorithms that pass partial results
//! on work with, so that elements are rounded once, when all are combined.
//!
//! Elements come into the end of the place that they take up when they are widened, and go from its
//! beginning: so each is read before its place is written.

use crate::collective::call::Call;
use crate::error::Result;
use crate::heap::Region;
use crate::reduce::{DataType, short_floats};
use crate::shm::Span;

/// Bytes of a widened element.
const WIDE: u64 = size_of::<f32>() as u64;

/// Elements that are converted at a time, on the stack.
const STEP: u64 = 512;

const STEP_LEN: usize = 512;

/// Returns `call` on the same elements as `f32`, without its buffers; `None` where they are not
/// widened.
pub(crate) fn widened(call: &Call<'_>) -> Option<Call<'static>> {
    let reducer = call.reducer.as_ref()?.widened()?;
    Some(Call { data_type: DataType::F32, reducer: Some(reducer), ..call.bare() })
}

/// Returns the part of `place`, which has room for some elements as `f32`, into which elements
/// `dtype` come to be widened.
pub(crate) fn entrance(place: Region, dtype: DataType) -> Region {
    let len = place.len / WIDE * dtype.size() as u64;
    Region::new(crate::collective::call::shifted(place.offset, place.len - len), len)
}

/// Widens the elements `dtype` at the [`entrance`] of `place` in the heap `span`.
///
/// # Errors
/// [`crate::Error::OutOfRange`] for a place that is not allocated.
pub(crate) fn widen(span: &Span, place: Region, dtype: DataType) -> Result<()> {
    let (mut short, mut wide) = ([0_u8; 2 * STEP_LEN], [0.0_f32; STEP_LEN]);
    let from = entrance(place, dtype).offset.get();
    steps(place).try_for_each(|(start, count)| {
        let (short, wide) = (&mut short[..count * dtype.size()], &mut wide[..count]);
        span.copy_out(from + start * dtype.size() as u64, short)?;
        short_floats::widen(dtype, short, wide);
        span.copy_in(place.offset.get() + start * WIDE, bytemuck::cast_slice(wide))
    })
}

/// Rounds the elements in `place` of the heap `span` to elements `dtype` at its beginning.
///
/// # Errors
/// [`crate::Error::OutOfRange`] for a place that is not allocated.
pub(crate) fn narrow(span: &Span, place: Region, dtype: DataType) -> Result<()> {
    let (mut short, mut wide) = ([0_u8; 2 * STEP_LEN], [0.0_f32; STEP_LEN]);
    steps(place).try_for_each(|(start, count)| {
        let (short, wide) = (&mut short[..count * dtype.size()], &mut wide[..count]);
        span.copy_out(place.offset.get() + start * WIDE, bytemuck::cast_slice_mut(wide))?;
        short_floats::narrow(dtype, wide, short);
        span.copy_in(place.offset.get() + start * dtype.size() as u64, short)
    })
}

/// Returns the elements in `place`, so many at a time: the first one's number, and how many.
fn steps(place: Region) -> impl Iterator<Item = (u64, usize)> {
    let total = place.len / WIDE;
    (0..total.div_ceil(STEP)).map(move |step| {
        let start = step * STEP;
        (start, usize::try_from(STEP.min(total - start)).unwrap_or(STEP_LEN))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heap::HeapOffset;
    use crate::shm::Mapping;

    #[test]
    fn elements_are_widened_and_rounded_in_the_place_that_they_take_up() {
        for dtype in DataType::ALL.into_iter().filter(|dtype| dtype.is_short_float()) {
            for count in [0, 1, STEP - 1, STEP, STEP + 1, 5 * STEP + 7] {
                let place = Region::new(HeapOffset::new(128), count * WIDE);
                let span = Mapping::boxed(64 + 128 + place.len).unwrap().span(64, 128 + place.len).unwrap();
                let (door, len) = (entrance(place, dtype), count * dtype.size() as u64);
                assert_eq!((door.len, door.offset.get() + len), (len, 128 + place.len));
                // Codes that are numbers in all four types.
                let codes: Vec<u8> = (0..len).map(|at| (at * 7 % 59) as u8).collect();
                span.copy_in(door.offset.get(), &codes).unwrap();
                widen(&span, place, dtype).unwrap();
                let mut wide = vec![0.0; codes.len() / dtype.size()];
                short_floats::widen(dtype, &codes, &mut wide);
                let found: Vec<f32> = (0..count).map(|at| span.read(128 + at * WIDE).unwrap()).collect();
                assert_eq!(found, wide);
                narrow(&span, place, dtype).unwrap();
                let mut back = vec![0; codes.len()];
                span.copy_out(128, &mut back).unwrap();
                assert_eq!(back, codes);
            }
        }
    }
}
