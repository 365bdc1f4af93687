//! The numbers that ranks contribute, as bytes of each type.

use half::{bf16, f16};
use shmccl::reduce::{DataType, F8E4M3, F8E5M2};

use crate::harness::Random;

/// What kind of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Values {
    /// Any bits: NaN, infinities and subnormals among them; many zeros.
    Bits,
    /// Floats of sizes near each other, so that every step rounds; any integers.
    Near,
    /// From -2 to 2, or as far as the type has a sign and the digits: reductions are exact in any
    /// order.
    Whole,
}

impl Values {
    pub(crate) const ALL: [Self; 3] = [Self::Bits, Self::Near, Self::Whole];
}

/// Elements that inputs are cut from: a prime number, so that no two pieces of an input are alike
/// where data may be mixed up.
const ELEMENTS: usize = 4099;

/// The elements of every type and kind.
#[derive(Debug)]
pub(crate) struct Pool(Vec<Vec<u8>>);

impl Pool {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let mut strip = |dtype: DataType, values| {
            let mut strip = Vec::with_capacity(ELEMENTS * dtype.size());
            let part = dtype.real_type();
            while strip.len() < ELEMENTS * dtype.size() {
                strip.extend_from_slice(&element(&mut random, part, values)[..part.size()]);
            }
            strip
        };
        let kinds = DataType::ALL.into_iter().flat_map(|dtype| Values::ALL.map(|values| (dtype, values)));
        Self(kinds.map(|(dtype, values)| strip(dtype, values)).collect())
    }

    fn strip(&self, dtype: DataType, values: Values) -> &[u8] {
        &self.0[usize::from(dtype.code()) * Values::ALL.len() + values as usize]
    }

    /// `count` elements; which ones depends on `salt`.
    pub(crate) fn input(&self, dtype: DataType, values: Values, salt: u64, count: usize) -> Vec<u8> {
        let strip = self.strip(dtype, values);
        let first = usize::try_from(salt % ELEMENTS as u64).unwrap() * dtype.size();
        let len = count * dtype.size();
        let mut input = Vec::with_capacity(len + strip.len());
        input.extend_from_slice(&strip[first..]);
        while input.len() < len {
            input.extend_from_slice(strip);
        }
        input.truncate(len);
        input
    }

    /// What a rank multiplies by in a scaled sum.
    pub(crate) fn scalar(&self, dtype: DataType, values: Values, salt: u64) -> Vec<u8> {
        let dtype = dtype.real_type();
        match values {
            Values::Whole => whole(dtype, [-2, -1, 1, 2][(salt % 4) as usize])[..dtype.size()].to_vec(),
            _ => self.input(dtype, values, salt, 1),
        }
    }
}

fn element(random: &mut Random, dtype: DataType, values: Values) -> [u8; 8] {
    let bits = random.next();
    match values {
        Values::Bits if bits >> 62 == 0 => [0; 8],
        Values::Near if !dtype.is_integer() => near(random, dtype),
        Values::Bits | Values::Near => random.next().to_le_bytes(),
        Values::Whole => {
            let most = if dtype == DataType::F8E5M2 { 1 } else { 2 };
            whole(dtype, i8::try_from(bits % (2 * most + 1)).unwrap() - i8::try_from(most).unwrap())
        }
    }
}

/// A float of either sign between 1/64 and 128.
fn near(random: &mut Random, dtype: DataType) -> [u8; 8] {
    let (sign, exponent, digits) = (random.below(2) << 63, random.below(13) + 1023 - 6, random.next() >> 12);
    let wide = f64::from_bits(sign | exponent << 52 | digits);
    #[expect(clippy::cast_possible_truncation, reason = "it is to be rounded")]
    let single = wide as f32;
    match dtype {
        DataType::F16 => padded(f16::from_f32(single).to_le_bytes()),
        DataType::Bf16 => padded(bf16::from_f32(single).to_le_bytes()),
        DataType::F32 => padded(single.to_le_bytes()),
        DataType::F8E4M3 => padded([F8E4M3::from_f32(single).0]),
        DataType::F8E5M2 => padded([F8E5M2::from_f32(single).0]),
        DataType::Bool => padded([u8::from(sign != 0) * 0x80]),
        _ => wide.to_le_bytes(),
    }
}

/// A small whole number; its absolute value where the type has no sign.
fn whole(dtype: DataType, value: i8) -> [u8; 8] {
    match dtype {
        DataType::I8 => padded(value.to_le_bytes()),
        DataType::U8 => padded([value.unsigned_abs()]),
        DataType::I32 => padded(i32::from(value).to_le_bytes()),
        DataType::U32 => padded(u32::from(value.unsigned_abs()).to_le_bytes()),
        DataType::I64 => i64::from(value).to_le_bytes(),
        DataType::U64 => u64::from(value.unsigned_abs()).to_le_bytes(),
        DataType::F16 => padded(f16::from(value).to_le_bytes()),
        DataType::Bf16 => padded(bf16::from(value).to_le_bytes()),
        DataType::F32 => padded(f32::from(value).to_le_bytes()),
        DataType::F64 => f64::from(value).to_le_bytes(),
        DataType::F8E4M3 => padded([F8E4M3::from_f32(value.into()).0]),
        DataType::F8E5M2 => padded([F8E5M2::from_f32(value.into()).0]),
        DataType::I16 => padded(i16::from(value).to_le_bytes()),
        DataType::U16 => padded(u16::from(value.unsigned_abs()).to_le_bytes()),
        DataType::Bool => padded([value.unsigned_abs()]),
        DataType::Complex64 | DataType::Complex128 => unreachable!("made part by part"),
    }
}

fn padded<const N: usize>(bytes: [u8; N]) -> [u8; 8] {
    let mut all = [0; 8];
    all[..N].copy_from_slice(&bytes);
    all
}
