//! Arguments as they come from C, read and checked.

use std::ffi::c_int;

use shmccl::bootstrap::ProcessMark;
use shmccl::reduce::DataType;

use crate::failure::Failure;
use crate::types::{DataTypeCode, shmcclProcess_t};

/// Reads a data type.
pub(crate) fn data_type(code: DataTypeCode) -> Result<DataType, Failure> {
    let known = u8::try_from(code).ok().and_then(DataType::from_code);
    known.ok_or_else(|| Failure::argument(format!("datatype is {code}, which is no shmcclDataType_t")))
}

/// Reads the name of a process.
pub(crate) fn process_mark(process: &shmcclProcess_t) -> Result<ProcessMark, Failure> {
    let bytes: Vec<_> =
        process.internal.iter().map(|byte| byte.cast_unsigned()).take_while(|byte| *byte != 0).collect();
    Ok(String::from_utf8_lossy(&bytes).parse::<ProcessMark>()?)
}

/// Returns what a pointer from C leads to.
pub(crate) fn required<'a, T>(pointer: Option<&'a mut T>, name: &str) -> Result<&'a mut T, Failure> {
    pointer.ok_or_else(|| Failure::null(name))
}

/// Reads a count, a rank or the like, which is not negative.
pub(crate) fn unsigned(value: c_int, name: &str) -> Result<u32, Failure> {
    u32::try_from(value)
        .map_err(|_| Failure::argument(format!("{name} is {value}, expected a number that is not negative")))
}

/// Views `len` elements at a pointer from C. No elements may be anywhere.
///
/// # Safety
/// Unless it is null, `len` elements at `start` can be read while `'a` lasts, and nobody writes
/// them.
pub(crate) unsafe fn elements<'a, T>(start: *const T, len: usize, name: &str) -> Result<&'a [T], Failure> {
    if len == 0 {
        return Ok(&[]);
    }
    if start.is_null() {
        return Err(Failure::null(name));
    }
    if !start.is_aligned() {
        return Err(Failure::argument(format!("{name} is {start:p}, expected an aligned pointer")));
    }
    #[allow(clippy::disallowed_methods, reason = "it is memory of the caller's, not payload of a heap")]
    // SAFETY: not null and aligned, checked above; the caller answers for the rest.
    Ok(unsafe { std::slice::from_raw_parts(start, len) })
}

/// Writes `values` one behind the other to where a pointer from C leads. NULL takes none.
///
/// # Safety
/// Unless it is null, as many values can be written at `target`, which are none of these.
pub(crate) unsafe fn store_all<T: Copy>(target: *mut T, values: &[T]) {
    if !target.is_null() {
        // SAFETY: the caller answers for the room.
        unsafe { target.copy_from_nonoverlapping(values.as_ptr(), values.len()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_data_type_of_the_engine_has_its_code_in_the_header() {
        let header = include_str!("types.rs");
        for known in DataType::ALL {
            let line = format!(" = {},", known.code());
            let types =
                header.split("pub enum shmcclDataType_t").nth(1).unwrap().split("\n}\n").next().unwrap();
            assert!(types.contains(&line), "{known} has code {}", known.code());
            assert_eq!(data_type(known.code().into()).unwrap(), known);
        }
        assert!(data_type(200).is_err() && data_type(u32::MAX).is_err());
    }
}
