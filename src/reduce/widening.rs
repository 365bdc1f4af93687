//! Floats of 16 and 8 bits as `f32` and back: for reductions that pass partial results on, which would otherwise be rounded each time.

use half::{bf16, f16};

use super::{DataType, F8E4M3, F8E5M2};
use crate::shm::reduce::Arithmetic;

/// Writes the elements `dtype` in `short`, a type of short floats, to `wide`: as many as both have.
pub(crate) fn widen(dtype: DataType, short: &[u8], wide: &mut [f32]) {
    match dtype {
        DataType::F16 => widen_all::<f16>(short, wide),
        DataType::Bf16 => widen_all::<bf16>(short, wide),
        DataType::F8E4M3 => widen_all::<F8E4M3>(short, wide),
        DataType::F8E5M2 => widen_all::<F8E5M2>(short, wide),
        other => unreachable!("{other} is not widened"),
    }
}

/// Rounds the elements in `wide` to those of `dtype`, a type of short floats, in `short`: as many as both have.
pub(crate) fn narrow(dtype: DataType, wide: &[f32], short: &mut [u8]) {
    match dtype {
        DataType::F16 => narrow_all::<f16>(wide, short),
        DataType::Bf16 => narrow_all::<bf16>(wide, short),
        DataType::F8E4M3 => narrow_all::<F8E4M3>(wide, short),
        DataType::F8E5M2 => narrow_all::<F8E5M2>(wide, short),
        other => unreachable!("{other} is not widened"),
    }
}

fn widen_all<T: Arithmetic<Register = f32>>(short: &[u8], wide: &mut [f32]) {
    for (bytes, wide) in short.chunks_exact(size_of::<T>()).zip(wide) {
        *wide = bytemuck::pod_read_unaligned::<T>(bytes).widen();
    }
}

fn narrow_all<T: Arithmetic<Register = f32>>(wide: &[f32], short: &mut [u8]) {
    for (bytes, wide) in short.chunks_exact_mut(size_of::<T>()).zip(wide) {
        bytes.copy_from_slice(bytemuck::bytes_of(&T::narrow(*wide)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_the_same_after_the_way_there_and_back() {
        for dtype in DataType::ALL.into_iter().filter(|dtype| dtype.is_short_float()) {
            let codes: Vec<u8> = match dtype.size() {
                1 => (0..=u8::MAX).collect(),
                _ => (0..=u16::MAX).flat_map(u16::to_ne_bytes).collect(),
            };
            let mut wide = vec![0.0; codes.len() / dtype.size()];
            widen(dtype, &codes, &mut wide);
            let mut back = vec![0; codes.len()];
            narrow(dtype, &wide, &mut back);
            let pairs = codes.chunks_exact(dtype.size()).zip(back.chunks_exact(dtype.size()));
            for ((code, back), wide) in pairs.zip(&wide) {
                assert!(code == back || wide.is_nan(), "{dtype} {code:02x?}: {wide}, {back:02x?}");
            }
        }
    }
}
