//! The shortest combination: sources of one word each, which have been loaded already.
//!
//! What leads up to a kernel (places, addresses, blocks of four lengths) takes several times as
//! long as the arithmetic on one word. The result is the same to the last bit.

use super::arithmetic::Arithmetic;
use super::kernels::scalar_of;
use super::operator::{ElementOperator, Numeric};

/// Combines words of one type of element by one operator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WordKernel(fn(&[u64], u64, u8) -> u64);

impl WordKernel {
    pub(super) const fn of<T: Arithmetic, O: ElementOperator<T::Register>>() -> Self {
        Self(combine::<T, O>)
    }

    /// Combines `words`, original inputs each, lane by lane. Words that are partly used give a word
    /// of which the same part can be used.
    ///
    /// `scalar` begins with the bytes of the element to scale all of them by; `divisor` is what an
    /// average divides by, not zero.
    #[inline]
    pub(crate) fn run(self, words: &[u64], scalar: u64, divisor: u8) -> u64 {
        (self.0)(words, scalar, divisor)
    }
}

fn combine<T: Arithmetic, O: ElementOperator<T::Register>>(words: &[u64], scalar: u64, divisor: u8) -> u64 {
    let (scalar, divisor) = (scalar_of::<T>(scalar), T::Register::small(divisor));
    match *words {
        // Of a length that is known here, or there are loops of several kinds for each lane.
        [first, second] => combine_among::<T, O>(&[first, second], scalar, divisor),
        _ => combine_among::<T, O>(words, scalar, divisor),
    }
}

#[inline(always)]
fn combine_among<T: Arithmetic, O: ElementOperator<T::Register>>(
    words: &[u64],
    scalar: T::Register,
    divisor: T::Register,
) -> u64 {
    let mut result = [0; size_of::<u64>()];
    for (lane, place) in result.chunks_exact_mut(size_of::<T>()).enumerate() {
        let number = |word: &u64| {
            let bytes = word.to_ne_bytes();
            let element: T = bytemuck::pod_read_unaligned(&bytes[lane * size_of::<T>()..][..size_of::<T>()]);
            let number = element.widen();
            if O::SCALES { number.multiply(scalar) } else { number }
        };
        if let Some(combined) = words.iter().map(number).reduce(O::combine) {
            place.copy_from_slice(bytemuck::bytes_of(&T::narrow(O::finish(combined, divisor).settle())));
        }
    }
    u64::from_ne_bytes(result)
}
