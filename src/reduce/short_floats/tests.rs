use super::*;
use half::{bf16, f16};

/// The value of a code by the definition of the format, in exact arithmetic; `None` for NaN.
fn value(code: u8, mantissa: i32, bias: i32, has_infinity: bool) -> Option<f64> {
    let magnitude = i32::from(code & 0x7F);
    let (exponent, fraction) = (magnitude >> mantissa, magnitude & ((1 << mantissa) - 1));
    let highest = (1 << (7 - mantissa)) - 1;
    let sign = if code >= 0x80 { -1.0 } else { 1.0 };
    let steps = f64::from(1 << mantissa);
    let special = if has_infinity { exponent == highest } else { magnitude == 0x7F };
    match (special, exponent) {
        (true, _) if has_infinity && fraction == 0 => Some(sign * f64::INFINITY),
        (true, _) => None,
        (_, 0) => Some(sign * f64::from(fraction) / steps * 2_f64.powi(1 - bias)),
        _ => Some(sign * (1.0 + f64::from(fraction) / steps) * 2_f64.powi(exponent - bias)),
    }
}

fn e4m3(code: u8) -> Option<f64> {
    value(code, 3, 7, false)
}

fn e5m2(code: u8) -> Option<f64> {
    value(code, 2, 15, true)
}

#[test]
fn every_code_has_the_value_of_its_definition() {
    for code in 0..=u8::MAX {
        for (found, expected) in [(F8E4M3(code).to_f32(), e4m3(code)), (F8E5M2(code).to_f32(), e5m2(code))] {
            match expected {
                Some(expected) => assert_eq!(f64::from(found).to_bits(), expected.to_bits(), "{code:#x}"),
                None => assert!(found.is_nan(), "{code:#x}"),
            }
        }
    }
}

#[test]
fn every_code_survives_the_way_to_f32_and_back() {
    for code in 0..=u8::MAX {
        let expected = if e4m3(code).is_none() { 0x7F } else { code };
        assert_eq!(F8E4M3::from_f32(F8E4M3(code).to_f32()).0, expected);
        let expected = if e5m2(code).is_none() { 0x7E } else { code };
        assert_eq!(F8E5M2::from_f32(F8E5M2(code).to_f32()).0, expected);
    }
}

/// Numbers around everything where rounding turns: all codes, all midpoints, the limit of overflow,
/// each with its two neighbours in `f32`, and numbers far outside.
fn telling_numbers(value: impl Fn(u8) -> Option<f64>) -> Vec<f32> {
    let mut numbers =
        vec![f32::MAX, f32::MIN_POSITIVE, f32::from_bits(1), 1e-30, 1e6, 464.0, 480.0, 61440.0, 65536.0];
    for code in 0..0x7F {
        let Some(one) = value(code).filter(|one| one.is_finite()) else { continue };
        let next = value(code + 1).filter(|next| next.is_finite()).unwrap_or(one);
        #[expect(clippy::cast_possible_truncation, reason = "few digits: exact")]
        numbers.extend([one as f32, ((one + next) / 2.0) as f32]);
    }
    let around = |&number: &f32| [number.next_down(), number, number.next_up()];
    let positive: Vec<_> = numbers.iter().flat_map(around).chain([f32::INFINITY]).collect();
    positive.iter().map(|&number| -number).chain(positive.iter().copied()).collect()
}

/// The nearest code of the same sign by trying all, even mantissa on a tie; beyond the largest as
/// if there were one more.
fn nearest(number: f32, largest: u8, beyond: f64, overflow: u8, value: impl Fn(u8) -> Option<f64>) -> u8 {
    let magnitude = f64::from(number.abs());
    let distance = |code: u8| (value(code).unwrap_or(beyond).min(beyond) - magnitude).abs();
    let best = (0..=largest + 1)
        .min_by(|&a, &b| distance(a).total_cmp(&distance(b)).then((a & 1).cmp(&(b & 1))))
        .expect("not empty");
    let code = if best > largest || magnitude >= beyond { overflow } else { best };
    if number.is_sign_negative() { code | 0x80 } else { code }
}

#[test]
fn conversion_from_f32_rounds_to_the_nearest_code_and_ties_to_even() {
    for number in telling_numbers(e4m3) {
        let expected = nearest(number, 0x7E, 480.0, 0x7E, e4m3);
        assert_eq!(F8E4M3::from_f32(number).0, expected, "{number:e}");
    }
    for number in telling_numbers(e5m2) {
        let expected = nearest(number, 0x7B, 65536.0, 0x7C, e5m2);
        assert_eq!(F8E5M2::from_f32(number).0, expected, "{number:e}");
    }
    assert_eq!(F8E4M3::from_f32(f32::NAN).0, 0x7F);
    assert_eq!(F8E5M2::from_f32(-f32::NAN).0, 0x7E);
}

#[test]
fn half_precision_converts_as_the_half_crate_does() {
    for bits in 0..=u16::MAX {
        let half = f16::from_bits(bits);
        let wide = half.widen();
        assert!(wide.to_bits() == half.to_f32().to_bits() || half.is_nan() && wide.is_nan(), "{bits:#x}");
        let wide = bf16::from_bits(bits).widen();
        assert!(wide.to_bits() == u32::from(bits) << 16);
    }
    for number in (0..=u32::MAX).step_by(65_521).map(f32::from_bits).filter(|number| !number.is_nan()) {
        assert_eq!(
            <f16 as Arithmetic>::narrow(number).to_bits(),
            f16::from_f32(number).to_bits(),
            "{number:e}"
        );
        assert_eq!(<bf16 as Arithmetic>::narrow(number).to_bits(), bf16::from_f32(number).to_bits());
    }
}

#[test]
fn values_compare_as_floats_do() {
    assert_eq!(F8E4M3(0), F8E4M3(0x80));
    assert_ne!(F8E5M2(0x7E), F8E5M2(0x7E));
    assert!(F8E5M2::from_f32(-1.0) < F8E5M2::from_f32(0.5));
    assert_eq!(F8E4M3::from_f32(1.5).to_string(), "1.5");
}

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
