//! Operators of reductions.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyString;
use shmccl::reduce::{DataType, F8E4M3, F8E5M2, ReduceOp, Scalar};

/// Multiplies each rank's input by a factor of that rank, then adds: `op=PreMulSum(0.5)`.
#[pyclass(frozen, module = "shmccl", name = "PreMulSum")]
pub struct PreMulSum {
    /// The factor of this rank.
    #[pyo3(get)]
    factor: f64,
}

#[pymethods]
impl PreMulSum {
    #[new]
    fn new(factor: f64) -> Self {
        Self { factor }
    }

    fn __repr__(&self) -> String {
        format!("PreMulSum({})", self.factor)
    }
}

/// Returns the operator that `object` names, for elements of `data_type`. Adds for `None`.
///
/// # Errors
/// `ValueError` for another name, `TypeError` for something else.
#[inline]
pub fn reduce_op(object: Option<&Bound<'_, PyAny>>, data_type: DataType) -> PyResult<ReduceOp> {
    let Some(object) = object else { return Ok(ReduceOp::Sum) };
    if let Ok(name) = object.cast::<PyString>() {
        return named(name.to_str()?);
    }
    match object.cast::<PreMulSum>() {
        Ok(op) => scaled(op.get().factor, data_type),
        Err(_) => Err(PyTypeError::new_err("op: expected a name such as \"sum\", or PreMulSum(factor)")),
    }
}

fn named(name: &str) -> PyResult<ReduceOp> {
    Ok(match name {
        "sum" => ReduceOp::Sum,
        "prod" | "product" => ReduceOp::Prod,
        "min" => ReduceOp::Min,
        "max" => ReduceOp::Max,
        "avg" | "mean" => ReduceOp::Avg,
        "band" => ReduceOp::BitAnd,
        "bor" => ReduceOp::BitOr,
        "bxor" => ReduceOp::BitXor,
        _ => {
            return Err(PyValueError::new_err(format!(
                "no operator {name:?}; expected sum, prod, min, max, avg, band, bor, bxor, or PreMulSum(factor)"
            )));
        }
    })
}

/// Returns the operator that multiplies by `factor` first. Of complex types it is a real number.
fn scaled(factor: f64, data_type: DataType) -> PyResult<ReduceOp> {
    let scalar = match data_type.real_type() {
        DataType::F32 => Scalar::new(factor as f32),
        DataType::F64 => Scalar::new(factor),
        DataType::F16 => Scalar::new(half::f16::from_f64(factor)),
        DataType::Bf16 => Scalar::new(half::bf16::from_f64(factor)),
        DataType::F8E4M3 => Scalar::new(F8E4M3::from_f32(factor as f32)),
        DataType::F8E5M2 => Scalar::new(F8E5M2::from_f32(factor as f32)),
        DataType::I8 => Scalar::new(whole::<i8>(factor, data_type)?),
        DataType::U8 => Scalar::new(whole::<u8>(factor, data_type)?),
        DataType::I16 => Scalar::new(whole::<i16>(factor, data_type)?),
        DataType::U16 => Scalar::new(whole::<u16>(factor, data_type)?),
        DataType::I32 => Scalar::new(whole::<i32>(factor, data_type)?),
        DataType::U32 => Scalar::new(whole::<u32>(factor, data_type)?),
        DataType::I64 => Scalar::new(whole::<i64>(factor, data_type)?),
        DataType::U64 => Scalar::new(whole::<u64>(factor, data_type)?),
        other => {
            return Err(PyValueError::new_err(format!("PreMulSum takes numbers, not {other}; use \"sum\"")));
        }
    };
    Ok(ReduceOp::PreMulSum(scalar))
}

/// Returns the factor as a whole number of the type.
fn whole<T: TryFrom<i128>>(factor: f64, data_type: DataType) -> PyResult<T> {
    // A cast saturates, which is out of range as well.
    let number = Some(factor as i128).filter(|_| factor.fract() == 0.0);
    number.and_then(|number| T::try_from(number).ok()).ok_or_else(|| {
        PyValueError::new_err(format!(
            "PreMulSum of {data_type} takes a whole factor of its range, not {factor}"
        ))
    })
}
