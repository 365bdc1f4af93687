//! Types of elements: by NumPy's names, by the codes of the buffer protocol and of DLPack.

use std::ffi::CStr;
use std::sync::LazyLock;

use pyo3::exceptions::{PyImportError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyString, PyType};
use shmccl::reduce::DataType;

/// A type of elements.
#[derive(Debug)]
pub struct Dtype {
    /// The place among all.
    index: usize,
    /// NumPy's name.
    pub name: &'static str,
    /// Bytes of an element.
    pub size: usize,
    /// The code of the buffer protocol. Where that has none, the code of integers as wide.
    pub format: &'static CStr,
    /// The type as `__array_interface__` spells it.
    pub typestr: &'static str,
    /// The code of the kind of number in DLPack.
    pub dlpack: u8,
}

const INT: u8 = 0;
const UINT: u8 = 1;
const FLOAT: u8 = 2;
const BFLOAT: u8 = 4;
/// DLPack's code of complex numbers.
pub const COMPLEX: u8 = 5;
const BOOL: u8 = 6;
const E4M3FN: u8 = 10;
const E5M2: u8 = 12;

#[rustfmt::skip]
/// All of them.
pub static ALL: [Dtype; 17] = [
    Dtype { index: 0, name: "bool", size: 1, format: c"?", typestr: "|b1", dlpack: BOOL },
    Dtype { index: 1, name: "int8", size: 1, format: c"b", typestr: "|i1", dlpack: INT },
    Dtype { index: 2, name: "uint8", size: 1, format: c"B", typestr: "|u1", dlpack: UINT },
    Dtype { index: 3, name: "int16", size: 2, format: c"h", typestr: "<i2", dlpack: INT },
    Dtype { index: 4, name: "uint16", size: 2, format: c"H", typestr: "<u2", dlpack: UINT },
    Dtype { index: 5, name: "int32", size: 4, format: c"i", typestr: "<i4", dlpack: INT },
    Dtype { index: 6, name: "uint32", size: 4, format: c"I", typestr: "<u4", dlpack: UINT },
    Dtype { index: 7, name: "int64", size: 8, format: c"q", typestr: "<i8", dlpack: INT },
    Dtype { index: 8, name: "uint64", size: 8, format: c"Q", typestr: "<u8", dlpack: UINT },
    Dtype { index: 9, name: "float16", size: 2, format: c"e", typestr: "<f2", dlpack: FLOAT },
    Dtype { index: 10, name: "bfloat16", size: 2, format: c"H", typestr: "<V2", dlpack: BFLOAT },
    Dtype { index: 11, name: "float32", size: 4, format: c"f", typestr: "<f4", dlpack: FLOAT },
    Dtype { index: 12, name: "float64", size: 8, format: c"d", typestr: "<f8", dlpack: FLOAT },
    Dtype { index: 13, name: "float8_e4m3fn", size: 1, format: c"B", typestr: "<V1", dlpack: E4M3FN },
    Dtype { index: 14, name: "float8_e5m2", size: 1, format: c"B", typestr: "<V1", dlpack: E5M2 },
    Dtype { index: 15, name: "complex64", size: 8, format: c"Zf", typestr: "<c8", dlpack: COMPLEX },
    Dtype { index: 16, name: "complex128", size: 16, format: c"Zd", typestr: "<c16", dlpack: COMPLEX },
];

/// The types as the engine knows them.
static ENGINE: LazyLock<[DataType; 17]> =
    LazyLock::new(|| ALL.each_ref().map(|dtype| dtype.name.parse().unwrap_or(DataType::U8)));

impl Dtype {
    /// Returns the type that `object` names: a name, a type of NumPy, torch or ml_dtypes, or
    /// `bool`, `int`, `float` and `complex` for NumPy's types of these names.
    ///
    /// # Errors
    /// `TypeError` for what names none.
    pub fn of(object: &Bound<'_, PyAny>) -> PyResult<&'static Self> {
        if let Ok(name) = object.cast::<PyString>() {
            // As NCCL calls it. The type of `ml_dtypes` that is called so is another one.
            return Self::named(match name.to_str()? {
                "float8_e4m3" => "float8_e4m3fn",
                name => name,
            });
        }
        if object.getattr_opt("isnative")?.is_some_and(|is| !is.is_truthy().unwrap_or(true)) {
            return Err(PyTypeError::new_err(format!(
                "{object} is of the other byte order; pass dtype.newbyteorder(\"=\"), or its name"
            )));
        }
        // NumPy's and ml_dtypes' descriptors have a name; so have all classes.
        let name = match object.getattr("name") {
            Ok(name) if name.is_instance_of::<PyString>() => name,
            _ if object.is_instance_of::<PyType>() => object.getattr("__name__")?,
            _ => object.str()?.into_any(),
        };
        Self::named(name.cast::<PyString>()?.to_str()?)
    }

    /// Returns the type of this name, as NumPy or torch writes it.
    ///
    /// # Errors
    /// `TypeError` for another name.
    pub fn named(name: &str) -> PyResult<&'static Self> {
        let name = match name.strip_prefix("torch.").unwrap_or(name) {
            "bool_" => "bool",
            "int" => "int64",
            "float" => "float64",
            "complex" => "complex128",
            name => name,
        };
        ALL.iter().find(|dtype| dtype.name == name).ok_or_else(|| {
            let names: Vec<_> = ALL.iter().map(|dtype| dtype.name).collect();
            PyTypeError::new_err(format!("no data type {name:?}; expected one of {}", names.join(", ")))
        })
    }

    /// Returns the type of a descriptor of NumPy, of either byte order, that another package has
    /// added to NumPy; `None` for others.
    ///
    /// # Errors
    /// Returns the errors of the descriptor.
    pub fn of_described(descriptor: &Bound<'_, PyAny>) -> PyResult<Option<&'static Self>> {
        let name = descriptor.getattr("name")?.to_string();
        Ok(ALL.iter().find(|dtype| dtype.is_foreign_to_numpy() && dtype.name == name))
    }

    /// Returns the type of numbers that `__array_interface__` spells so, of either byte order;
    /// `None` for others.
    pub fn of_typestr(typestr: &str) -> Option<&'static Self> {
        let code = typestr.strip_prefix(['<', '>', '|', '='])?;
        ALL.iter().find(|dtype| !dtype.is_foreign_to_numpy() && &dtype.typestr[1..] == code)
    }

    /// Returns the type of bytes, by which elements of all types can be moved.
    pub fn bytes() -> &'static Self {
        &ALL[2]
    }

    /// Returns the type of buffer elements of `size` bytes with this code.
    ///
    /// # Errors
    /// `TypeError` for records, strings and the other byte order.
    pub fn of_format(format: &[u8], size: usize) -> PyResult<&'static Self> {
        let (is_other_order, code) = match format {
            [b'@' | b'=' | b'<', code @ ..] => (false, code),
            [b'>' | b'!', code @ ..] => (size > 1, code),
            code => (false, code),
        };
        let kind = match code {
            b"?" => "bool",
            b"b" | b"h" | b"i" | b"l" | b"q" | b"n" => "int",
            b"B" | b"H" | b"I" | b"L" | b"Q" | b"N" | b"c" => "uint",
            b"e" | b"f" | b"d" => "float",
            b"Zf" | b"Zd" => "complex",
            _ => "",
        };
        let is_it =
            |dtype: &&Self| dtype.size == size && dtype.name.trim_end_matches(char::is_numeric) == kind;
        let found = ALL.iter().find(is_it);
        found
            .filter(|_| !is_other_order)
            .ok_or_else(|| Unknown::of(&String::from_utf8_lossy(format), found).refused())
    }

    /// Returns the type of DLPack's code, of elements with so many numbers of so many bits.
    ///
    /// # Errors
    /// `TypeError` for what there is none of here.
    pub fn of_dlpack(code: u8, bits: u8, lanes: u16) -> PyResult<&'static Self> {
        let is_it = |dtype: &&Self| dtype.dlpack == code && dtype.size * 8 == usize::from(bits);
        ALL.iter().find(is_it).filter(|_| lanes == 1).ok_or_else(|| {
            let text = format!("DLPack's code {code}, {lanes} times {bits} bits");
            Unknown::Type(&text).refused()
        })
    }

    /// Returns what NumPy takes for it: its name, or a type of `ml_dtypes`.
    ///
    /// # Errors
    /// `ImportError` without `ml_dtypes`.
    pub fn for_numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        if !self.is_foreign_to_numpy() {
            return Ok(PyString::new(py, self.name).into_any());
        }
        let types = py.import("ml_dtypes").map_err(|_| {
            PyImportError::new_err(format!(
                "NumPy has no {}; install ml_dtypes, use torch(), or view the bits: numpy.asarray(array)",
                self.name
            ))
        })?;
        types.getattr(self.name)
    }

    /// Returns the type as the engine knows it.
    #[inline]
    pub fn data_type(&'static self) -> DataType {
        ENGINE[self.index]
    }

    /// Returns whether an element has two parts.
    pub fn is_complex(&self) -> bool {
        self.dlpack == COMPLEX
    }

    /// Returns whether NumPy needs another package for it.
    pub fn is_foreign_to_numpy(&self) -> bool {
        matches!(self.dlpack, BFLOAT | E4M3FN | E5M2)
    }
}

/// Elements that the engine cannot reckon with, as their owner names them.
pub enum Unknown<'a> {
    /// Numbers of the other byte order.
    Order(&'a str),
    /// Records, dates, text, and numbers of other widths.
    Type(&'a str),
}

impl<'a> Unknown<'a> {
    /// Names elements that their owner calls `name`. In this machine's order they would be `found`.
    #[cold]
    pub fn of(name: &'a str, found: Option<&'static Dtype>) -> Self {
        if found.is_some() { Self::Order(name) } else { Self::Type(name) }
    }

    /// Returns the error for them, with what can be done.
    #[cold]
    pub fn refused(&self) -> PyErr {
        PyTypeError::new_err(match self {
            Self::Order(type_) => format!(
                "cannot take elements of type {type_:?}, in the other byte order; convert them with \
                 x.astype(x.dtype.newbyteorder(\"=\")), or move them as bytes with dtype=\"uint8\""
            ),
            Self::Type(type_) => format!(
                "cannot take elements of type {type_:?}; convert them with astype to a type of numbers that all know, \
                 or move them as bytes with dtype=\"uint8\""
            ),
        })
    }
}
