//! The type of elements: as a value that ranks can compare and users can name, and as a Rust type.

use bytemuck::{Pod, Zeroable};
use half::{bf16, f16};
use serde::{Deserialize, Serialize};

use super::{F8E4M3, F8E5M2};
use crate::shm::reduce::Arithmetic;

/// Declares the data types. A row has the code, which never changes, the Rust type, and the names:
/// first as nccl-tests spells it, then synonyms.
macro_rules! data_types {
    ($($(#[$doc:meta])* $dtype:ident = $code:literal, $element:ty, $names:expr;)*) => {
        /// The type of the elements that a collective moves or reduces.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        #[repr(u8)]
        pub enum DataType {
            $($(#[$doc])* $dtype = $code,)*
        }

        impl DataType {
            /// All of them, in the order of their codes.
            pub const ALL: [Self; 17] = [$(Self::$dtype,)*];

            /// Returns bytes of one element.
            #[must_use]
            pub const fn size(self) -> usize {
                match self {
                    $(Self::$dtype => size_of::<$element>(),)*
                }
            }

            /// Returns its name, then its synonyms.
            const fn names(self) -> &'static [&'static str] {
                match self {
                    $(Self::$dtype => &$names,)*
                }
            }
        }

        $(impl Element for $element {
            const DATA_TYPE: DataType = DataType::$dtype;
        })*
    };
}

data_types! {
    /// `i8`.
    I8 = 0, i8, ["int8", "i8", "char"];
    /// `u8`.
    U8 = 1, u8, ["uint8", "u8"];
    /// `i32`.
    I32 = 2, i32, ["int32", "i32", "int"];
    /// `u32`.
    U32 = 3, u32, ["uint32", "u32"];
    /// `i64`.
    I64 = 4, i64, ["int64", "i64"];
    /// `u64`.
    U64 = 5, u64, ["uint64", "u64"];
    /// IEEE 754 binary16.
    F16 = 6, f16, ["half", "f16", "fp16", "float16"];
    /// The upper half of an `f32`.
    Bf16 = 7, bf16, ["bfloat16", "bf16"];
    /// `f32`.
    F32 = 8, f32, ["float", "f32", "fp32", "float32"];
    /// `f64`.
    F64 = 9, f64, ["double", "f64", "fp64", "float64"];
    /// [`F8E4M3`].
    F8E4M3 = 10, F8E4M3, ["f8e4m3", "fp8_e4m3", "float8_e4m3fn", "float8e4m3"];
    /// [`F8E5M2`].
    F8E5M2 = 11, F8E5M2, ["f8e5m2", "fp8_e5m2", "float8_e5m2", "float8e5m2"];
    /// `i16`.
    I16 = 12, i16, ["int16", "i16", "short"];
    /// `u16`.
    U16 = 13, u16, ["uint16", "u16"];
    /// [`Bool`].
    Bool = 14, Bool, ["bool", "bool_"];
    /// [`Complex64`].
    Complex64 = 15, Complex64, ["complex64", "cfloat"];
    /// [`Complex128`].
    Complex128 = 16, Complex128, ["complex128", "cdouble"];
}

/// A truth value of one byte, as NumPy and PyTorch store it.
///
/// Any byte but 0 counts as true. Reductions store 0 or 1; what is only moved stays as it is.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(transparent)]
pub struct Bool(pub u8);

impl From<bool> for Bool {
    fn from(value: bool) -> Self {
        Self(value.into())
    }
}

impl From<Bool> for bool {
    #[inline(always)]
    fn from(value: Bool) -> Self {
        value.0 != 0
    }
}

/// Compares the truth of both.
impl PartialEq for Bool {
    fn eq(&self, other: &Self) -> bool {
        bool::from(*self) == bool::from(*other)
    }
}

impl Eq for Bool {}

impl Arithmetic for Bool {
    type Register = u8;

    const BLOCK: usize = 64;

    #[inline(always)]
    fn widen(self) -> u8 {
        bool::from(self).into()
    }

    #[inline(always)]
    fn narrow(number: u8) -> Self {
        Self(number)
    }
}

/// A complex number of two `f32`, which NumPy and PyTorch call `complex64`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Complex64 {
    /// The real part.
    pub re: f32,
    /// The imaginary part.
    pub im: f32,
}

/// A complex number of two `f64`, which NumPy and PyTorch call `complex128`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Complex128 {
    /// The real part.
    pub re: f64,
    /// The imaginary part.
    pub im: f64,
}

impl DataType {
    /// Returns its name, as nccl-tests spells it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.names()[0]
    }

    /// Returns the number that stands for it between ranks; never changes.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Returns the type of that code.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// Returns whether its elements are integers.
    #[must_use]
    pub const fn is_integer(self) -> bool {
        matches!(
            self,
            Self::I8 | Self::U8 | Self::I16 | Self::U16 | Self::I32 | Self::U32 | Self::I64 | Self::U64
        )
    }

    /// Returns the type of the numbers that an element consists of: that of the real part of a
    /// complex one, and otherwise this one.
    #[must_use]
    pub const fn real_type(self) -> Self {
        match self {
            Self::Complex64 => Self::F32,
            Self::Complex128 => Self::F64,
            real => real,
        }
    }

    /// Returns whether it is computed in a wider type, and rounded when it is stored: floats of 16
    /// bits and fewer.
    #[must_use]
    pub const fn is_short_float(self) -> bool {
        matches!(self, Self::F16 | Self::Bf16 | Self::F8E4M3 | Self::F8E5M2)
    }
}

impl std::fmt::Display for DataType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// A name that no data type has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no such data type, expected int8, uint8, int16, uint16, int32, uint32, int64, uint64, half, bfloat16, float, \
     double, f8e4m3, f8e5m2, bool, complex64 or complex128"
)]
pub struct UnknownDataType;

impl std::str::FromStr for DataType {
    type Err = UnknownDataType;

    /// Accepts names and usual synonyms (`f32`, `float32`, `fp32`), in either case.
    fn from_str(name: &str) -> Result<Self, UnknownDataType> {
        let is_named = |dtype: &Self| dtype.names().iter().any(|known| known.eq_ignore_ascii_case(name));
        Self::ALL.into_iter().find(is_named).ok_or(UnknownDataType)
    }
}

/// A type whose values can be reduced.
pub trait Element: bytemuck::Pod + Send + Sync {
    /// The type as a value.
    const DATA_TYPE: DataType;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_and_synonym_names_one_type_only() {
        let mut seen = std::collections::HashSet::new();
        for dtype in DataType::ALL {
            for name in dtype.names() {
                assert!(seen.insert(name), "{name} twice");
                assert_eq!(name.parse(), Ok(dtype));
                assert_eq!(name.to_uppercase().parse(), Ok(dtype));
            }
        }
        assert_eq!("float128".parse::<DataType>(), Err(UnknownDataType));
        assert_eq!("".parse::<DataType>(), Err(UnknownDataType));
    }

    #[test]
    fn codes_lead_back_to_their_types_and_the_error_names_all() {
        for (index, dtype) in DataType::ALL.into_iter().enumerate() {
            assert_eq!(usize::from(dtype.code()), index);
            assert_eq!(DataType::from_code(dtype.code()), Some(dtype));
            assert!(UnknownDataType.to_string().contains(dtype.name()));
        }
        assert_eq!(DataType::from_code(17), None);
        assert_eq!(DataType::from_code(u8::MAX), None);
    }
}
