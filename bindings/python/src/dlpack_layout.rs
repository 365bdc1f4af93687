//! DLPack's structures, names and numbers, as its C header has them.

use std::ffi::{CStr, c_void};

use crate::dtype::COMPLEX;

/// `DLDeviceType` of ordinary memory.
pub const CPU: i32 = 1;

/// The name of a capsule that nobody has taken yet.
pub const NAME: &CStr = c"dltensor";

/// The name of a capsule that tells its version, and whether its memory may be written.
pub const VERSIONED: &CStr = c"dltensor_versioned";

/// The version of DLPack that is asked for.
pub const VERSION: (u32, u32) = (1, 0);

/// `DLPACK_FLAG_BITMASK_READ_ONLY`.
pub const READ_ONLY: u64 = 1;

/// `DLTensor`, of DLPack before 1.0 and since.
#[repr(C)]
pub struct Tensor {
    /// The first byte, less `byte_offset`.
    pub data: *mut c_void,
    /// `DLDeviceType`.
    pub device_type: i32,
    /// The number of the device.
    pub device_id: i32,
    /// How many dimensions.
    pub ndim: i32,
    /// The kind of number.
    pub code: u8,
    /// Bits of an element.
    pub bits: u8,
    /// Numbers in an element.
    pub lanes: u16,
    /// Elements by dimension.
    pub shape: *mut i64,
    /// Steps in elements; null for C's order.
    pub strides: *mut i64,
    /// Bytes from `data` to the first element.
    pub byte_offset: u64,
}

/// `DLManagedTensor`.
#[repr(C)]
pub struct Managed {
    /// The tensor.
    pub tensor: Tensor,
    /// The maker's own.
    pub context: *mut c_void,
    /// Gives it back.
    pub deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
pub struct Versioned {
    /// The version of DLPack that it is of; the rest is another one's where this differs.
    pub major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: *const c_void,
    /// Such as [`READ_ONLY`].
    pub flags: u64,
    /// The tensor.
    pub tensor: Tensor,
}

impl Tensor {
    /// Returns whether an element has two parts.
    #[inline]
    pub fn is_complex(&self) -> bool {
        self.code == COMPLEX
    }
}
