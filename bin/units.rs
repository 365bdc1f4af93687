//! Sizes, times and rates as people read and write them, and the ladder of sizes that a test
//! climbs.

use std::time::Duration;

pub(crate) use shmccl_harness::figures::{percent, three_digits};

/// Reads a size such as `8`, `4K`, `1M`, `64MiB` or `2GB`: a number and a unit. Every unit is a
/// power of two, and case does not matter. The number may have decimals where whole bytes come of
/// it: `128.5M`.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let expected = || {
        "expected a whole number with K, M, G or T behind it, or a decimal one that makes whole bytes, such as 4K, 64MiB or 128.5M"
            .to_owned()
    };
    let (number, unit) = split_number(text).ok_or_else(expected)?;
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(expected()),
    };
    let too_large = || "too large: sizes go up to 16 EiB".to_owned();
    let (whole, decimals) = number;
    let whole: u64 = whole.parse().map_err(|_| too_large())?;
    let whole = whole.checked_mul(1 << shift).ok_or_else(too_large)?;
    whole.checked_add(part_of(decimals, 1 << shift).ok_or_else(expected)?).ok_or_else(too_large)
}

/// Splits a number, as its whole and its decimal digits, from the unit behind it.
fn split_number(text: &str) -> Option<((&str, &str), &str)> {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let (whole, rest) = text.split_at(digits(text));
    let (decimals, unit) = match rest.strip_prefix('.') {
        Some(rest) => rest.split_at(digits(rest)),
        None => ("", rest),
    };
    let is_number = !whole.is_empty() && decimals.is_empty() != rest.starts_with('.');
    is_number.then_some(((whole, decimals), unit))
}

/// Returns the part of `unit` that decimals name, if that is whole.
fn part_of(decimals: &str, unit: u64) -> Option<u64> {
    let decimals = decimals.trim_end_matches('0');
    // A power of two of up to 40 has as many decimals at most.
    let places = u32::try_from(decimals.len()).ok().filter(|&places| places <= 20)?;
    let (number, scale) = if places == 0 { (0, 1) } else { (decimals.parse().ok()?, 10_u128.pow(places)) };
    let scaled = u128::checked_mul(number, unit.into()).filter(|part| part.is_multiple_of(scale))?;
    u64::try_from(scaled / scale).ok()
}

/// Writes a size in the largest unit that divides it: `8 B`, `4 KiB`, `64 MiB`; and `1000 B`.
pub(crate) fn format_size(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.into_iter().find(|(shift, _)| bytes != 0 && bytes.is_multiple_of(1 << shift)) {
        Some((shift, unit)) => format!("{} {unit}", bytes >> shift),
        None => format!("{bytes} B"),
    }
}

/// Writes any size with three digits: `1.42 KiB`.
pub(crate) fn format_about(bytes: f64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let scaled = units.into_iter().map(|(shift, unit)| (bytes / f64::from(shift).exp2(), unit));
    let (value, unit) = scaled.into_iter().find(|(value, _)| *value >= 1.0).unwrap_or((bytes, "B"));
    let decimals = match value {
        value if value >= 100.0 => 0,
        value if value >= 10.0 => 1,
        _ => 2,
    };
    without_zeros(&format!("{value:.decimals$} {unit}"))
}

/// Returns the sizes from `min` by a factor to `max`, and `max` itself if the factor steps over it.
pub(crate) fn ladder(min: u64, max: u64, factor: u64) -> Vec<u64> {
    let mut sizes = climb(min, max, factor);
    if sizes.last() != Some(&max) {
        sizes.push(max);
    }
    sizes
}

/// Returns the sizes from `min` by a factor, as far as they do not exceed `max`.
pub(crate) fn climb(min: u64, max: u64, factor: u64) -> Vec<u64> {
    let steps = std::iter::successors(Some(min), |size| size.checked_mul(factor).filter(|next| next > size));
    steps.take_while(|size| *size <= max).collect()
}

/// The longest time that can be asked for.
pub(crate) const LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);

/// Reads a time like [`parse_time`], but refuses zero: no wait could succeed.
pub(crate) fn parse_timeout(text: &str) -> Result<Duration, String> {
    match parse_time(text)? {
        Duration::ZERO => Err("expected a time above zero, such as 500ms or 30s".to_owned()),
        time => Ok(time),
    }
}

/// Reads a time such as `500us`, `20ms`, `30s` or `2m`; a bare number is in seconds.
pub(crate) fn parse_time(text: &str) -> Result<Duration, String> {
    let expected = "expected a whole number with us, ms, s or m behind it, such as 500ms or 30s";
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| expected.to_owned())?;
    let duration = match unit {
        "us" => Duration::from_micros(number),
        "ms" => Duration::from_millis(number),
        "" | "s" => Duration::from_secs(number),
        "m" | "min" => Duration::from_secs(number.saturating_mul(60)),
        _ => return Err(expected.to_owned()),
    };
    if duration > LONGEST {
        return Err(format!("{expected}, and at most a week"));
    }
    Ok(duration)
}

/// Writes a time with three digits in the unit that suits it: `134 ns`, `1.02 us`, `35.5 ms`.
pub(crate) fn format_ns(ns: f64) -> String {
    let scales = [(1e9, "s"), (1e6, "ms"), (1e3, "us")];
    let (value, unit) = match scales.into_iter().find(|(scale, _)| ns >= *scale * 0.9995) {
        Some((scale, unit)) => (ns / scale, unit),
        None => (ns, "ns"),
    };
    format!("{} {unit}", three_digits(value))
}

/// Writes a figure, or a dash if there is none.
pub(crate) fn or_dash<T>(figure: Option<T>, write: impl FnOnce(T) -> String) -> String {
    figure.map_or_else(|| "-".to_owned(), write)
}

/// Removes the zeros behind the point, for the label of an axis: `100 ns`, `2 us`.
pub(crate) fn without_zeros(text: &str) -> String {
    let (digits, unit) =
        text.split_once(' ').map_or((text, String::new()), |(digits, unit)| (digits, format!(" {unit}")));
    let digits =
        if digits.contains('.') { digits.trim_end_matches('0').trim_end_matches('.') } else { digits };
    format!("{digits}{unit}")
}

/// Lists numbers with runs in short, and a dash for an unknown one: `17-20,31,-`.
pub(crate) fn format_runs(numbers: impl IntoIterator<Item = Option<usize>>) -> String {
    let mut runs: Vec<(Option<usize>, Option<usize>)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last == number => {}
            Some((_, last)) if last.is_some_and(|last| number == Some(last + 1)) => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let text = |(first, last): &(Option<usize>, Option<usize>)| match (first, last) {
        (Some(first), Some(last)) if first == last => first.to_string(),
        (Some(first), Some(last)) => format!("{first}-{last}"),
        _ => "-".to_owned(),
    };
    runs.iter().map(text).collect::<Vec<_>>().join(",")
}

/// Returns the powers of ten from `low` to `high`, with twos and fives between them where that
/// gives too few.
pub(crate) fn round_figures(low: f64, high: f64) -> Vec<f64> {
    let steps = |mantissas: &[f64]| -> Vec<f64> {
        let decades = (-5..16).map(|decade| 10_f64.powi(decade));
        let figures = decades.flat_map(|decade| mantissas.iter().map(move |mantissa| decade * mantissa));
        figures.filter(|figure| (low..=high).contains(figure)).collect()
    };
    let tens = steps(&[1.0]);
    if tens.len() >= 3 { tens } else { steps(&[1.0, 2.0, 5.0]) }
}

/// Writes a whole number.
pub(crate) fn whole(value: f64) -> String {
    format!("{value:.0}")
}

/// Writes a share of one as a percentage with three digits, for small shares.
pub(crate) fn fine_percent(share: f64) -> String {
    if share == 0.0 { "0 %".to_owned() } else { format!("{} %", three_digits(share * 100.0)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_powers_of_two_in_every_spelling() {
        for (text, bytes) in [
            ("0", 0),
            ("8", 8),
            ("8B", 8),
            ("4K", 4096),
            ("4k", 4096),
            ("4KB", 4096),
            ("64MiB", 64 << 20),
            ("1m", 1 << 20),
            ("2G", 2 << 30),
            ("1TiB", 1 << 40),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn a_size_may_have_decimals_where_whole_bytes_come_of_it() {
        for (text, bytes) in [
            ("128.5M", (128 << 20) + (1 << 19)),
            ("1.50kib", 1536),
            ("0.5K", 512),
            ("2.0", 2),
            ("1.000b", 1),
            ("0.25G", 256 << 20),
            ("0.0009765625k", 1),
            ("1.5T", 3 << 39),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        assert!(parse_size("16777215.5T").is_ok() && parse_size("16777216.5T").is_err());
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in [
            "",
            "K",
            "-1",
            "+1",
            "1.3K",
            "1.5",
            "1.",
            ".5M",
            "1..5M",
            "1.5.5M",
            "0.0000000001T",
            "1e3",
            "4 K",
            "4KiBs",
            "4X",
            "0x10",
            "99999999999999999999",
            "17179869184T",
        ] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_written_can_be_read_again() {
        for bytes in [0, 1, 8, 1000, 1023, 1024, 1025, 1 << 20, 3 << 20, 64 << 20, 1 << 40, u64::MAX] {
            assert_eq!(parse_size(&format_size(bytes).replace(' ', "")), Ok(bytes));
        }
        assert_eq!(format_size(64 << 20), "64 MiB");
        assert_eq!(format_size(1536), "1536 B");
    }

    #[test]
    fn a_size_that_is_not_round_is_written_to_three_digits() {
        assert_eq!(format_about(8.0), "8 B");
        assert_eq!(format_about(1454.0), "1.42 KiB");
        assert_eq!(format_about(20480.0), "20 KiB");
        assert_eq!(format_about(1048576.0 * 300.0), "300 MiB");
    }

    #[test]
    fn a_ladder_ends_at_the_largest_size_and_a_climb_below_where_the_factor_steps_over_it() {
        assert_eq!(ladder(8, 64, 2), [8, 16, 32, 64]);
        assert_eq!(ladder(8, 100, 4), [8, 32, 100]);
        assert_eq!(ladder(8, 8, 2), [8]);
        assert_eq!(ladder(0, 8, 2), [0, 8]);
        assert_eq!(climb(8, 100, 4), [8, 32]);
        assert_eq!(climb(8, 128, 4), [8, 32, 128]);
        assert_eq!(climb(0, 8, 2), [0]);
        assert_eq!(ladder(u64::MAX - 1, u64::MAX, 2), [u64::MAX - 1, u64::MAX]);
    }

    #[test]
    fn timeouts_are_read_in_every_unit() {
        assert_eq!(parse_timeout("30"), Ok(Duration::from_secs(30)));
        assert_eq!(parse_timeout("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_timeout("2m"), Ok(Duration::from_secs(120)));
        for text in
            ["", "s", "0", "0ms", "-1s", "1.5s", "1h", "99999999999999999999s", "18446744073709551615m"]
        {
            assert!(parse_timeout(text).is_err(), "{text}");
        }
    }

    #[test]
    fn labels_have_no_zeros_behind_their_point() {
        for (text, label) in
            [("10.0 us", "10 us"), ("2.50 s", "2.5 s"), ("100 ns", "100 ns"), ("0.100", "0.1"), ("10", "10")]
        {
            assert_eq!(without_zeros(text), label);
        }
    }

    #[test]
    fn times_have_three_digits_and_never_a_thousand_of_a_unit() {
        for (ns, text) in [
            (0.25, "0.250 ns"),
            (134.2, "134 ns"),
            (999.4, "999 ns"),
            (999.9, "1.00 us"),
            (1_020.0, "1.02 us"),
            (35_500_000.0, "35.5 ms"),
            (2.5e9, "2.50 s"),
        ] {
            assert_eq!(format_ns(ns), text);
        }
    }

    #[test]
    fn runs_are_listed_in_short_and_what_is_unknown_is_a_dash() {
        let list = |numbers: &[usize]| format_runs(numbers.iter().copied().map(Some));
        assert_eq!(list(&[0, 1, 2, 3, 8, 10, 11]), "0-3,8,10-11");
        assert_eq!((list(&[]), list(&[7, 7])), (String::new(), "7".to_owned()));
        assert_eq!(format_runs([Some(17), Some(18), Some(19), Some(31), None, Some(5)]), "17-19,31,-,5");
        assert_eq!(format_runs([None, None]), "-");
    }
}
