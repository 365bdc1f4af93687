//! The operators, as kernels are generic over them.

use super::number::Numeric;

/// What is done to the operands of one element.
pub(crate) trait ElementOperator<R: Numeric>: 'static {
    /// Whether original inputs are multiplied by scalars first.
    const SCALES: bool = false;

    fn combine(one: R, other: R) -> R;

    /// The last step, before the result is stored.
    #[inline(always)]
    fn finish(result: R, _divisor: R) -> R {
        result
    }
}

/// Adds.
#[derive(Debug)]
pub(crate) struct Sum;
/// Multiplies.
#[derive(Debug)]
pub(crate) struct Product;
/// Takes the least.
#[derive(Debug)]
pub(crate) struct Minimum;
/// Takes the greatest.
#[derive(Debug)]
pub(crate) struct Maximum;
/// Adds, and divides the sum by the number of ranks.
#[derive(Debug)]
pub(crate) struct Mean;
/// Adds inputs that are multiplied by scalars.
#[derive(Debug)]
pub(crate) struct ScaledSum;

impl<R: Numeric> ElementOperator<R> for Sum {
    #[inline(always)]
    fn combine(one: R, other: R) -> R {
        one.add(other)
    }
}

impl<R: Numeric> ElementOperator<R> for Product {
    #[inline(always)]
    fn combine(one: R, other: R) -> R {
        one.multiply(other)
    }
}

impl<R: Numeric> ElementOperator<R> for Minimum {
    #[inline(always)]
    fn combine(one: R, other: R) -> R {
        one.least(other)
    }
}

impl<R: Numeric> ElementOperator<R> for Maximum {
    #[inline(always)]
    fn combine(one: R, other: R) -> R {
        one.greatest(other)
    }
}

impl<R: Numeric> ElementOperator<R> for Mean {
    #[inline(always)]
    fn combine(one: R, other: R) -> R {
        one.add(other)
    }

    #[inline(always)]
    fn finish(result: R, divisor: R) -> R {
        result.divide(divisor)
    }
}

impl<R: Numeric> ElementOperator<R> for ScaledSum {
    const SCALES: bool = true;

    #[inline(always)]
    fn combine(one: R, other: R) -> R {
        one.add(other)
    }
}
