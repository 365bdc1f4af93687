//! Rust types that have a [`DataType`].

use half::{bf16, f16};

use super::{DataType, F8E4M3, F8E5M2};

/// A type whose values can be reduced.
pub trait Element: bytemuck::Pod + Send + Sync {
    /// The same type as a value.
    const DATA_TYPE: DataType;
}

macro_rules! elements {
    ($($element:ty: $dtype:ident),* $(,)?) => {$(
        impl Element for $element {
            const DATA_TYPE: DataType = DataType::$dtype;
        }

        const _: () = assert!(size_of::<$element>() == DataType::$dtype.size());
    )*};
}

elements! {
    i8: I8,
    u8: U8,
    i32: I32,
    u32: U32,
    i64: I64,
    u64: U64,
    f16: F16,
    bf16: Bf16,
    f32: F32,
    f64: F64,
    F8E4M3: F8E4M3,
    F8E5M2: F8E5M2,
}
