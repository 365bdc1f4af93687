//! Reduction: types of elements, operators on them, and the step that combines several ranks' data
//! into one.
//!
//! | module | what |
//! |---|---|
//! | [`data_type`] | [`DataType`]: a type as a value; [`Element`]: Rust types; [`Bool`]; complex |
//! | [`short_floats`] | the two 8-bit floats; short floats as `f32`, and back |
//! | [`op`] | [`ReduceOp`]: sum, product, minimum, and more; [`CustomOp`]: the user's own |
//! | [`reducer`] | [`Reducer`]: one type, one operator, ready to run |
//!
//! # Results
//! For each element the sources are combined strictly in the order given:
//! `((s0 op s1) op s2) op ...`. The result is the same to the last bit on every processor, whatever
//! the lengths, alignments and cuts into chunks.
//! - **Integers** wrap. An average is the wrapped sum divided by the number of ranks, truncated
//!   toward zero.
//! - **`f32` and `f64`** follow IEEE 754, rounded to nearest even after each step; no fused
//!   multiply-add. An average is the sum divided (not multiplied by a reciprocal).
//! - **Shorter floats** are computed in `f32` across all sources of one call, and rounded once,
//!   when stored. Collective operations that take several calls, one after the other, widen
//!   elements before the first and round after the last.
//! - **[`Bool`]**: any byte but 0 is true. Sum and maximum are "or", product and minimum are "and",
//!   and results are 0 or 1.
//! - **Complex numbers** are reduced part by part, as twice as many floats.
//! - **Minimum and maximum** are NaN if any source is NaN, and -0 is less than +0.
//! - **A NaN** is stored as the one quiet, positive NaN of its type. A custom operator stores what
//!   it returns.
//!
//! Tried by its unit tests, `lists` and `scenarios oracle::`.

pub mod data_type;
pub mod op;
pub mod reducer;
pub mod short_floats;

pub use crate::shm::reduce::{MAX_PLACES, ReduceKernel, Source, SourcePlace, Target};
pub use data_type::{Bool, Complex64, Complex128, DataType, Element};
pub use op::{CustomOp, ReduceOp, Scalar};
pub use reducer::Reducer;
pub use short_floats::{F8E4M3, F8E5M2};
