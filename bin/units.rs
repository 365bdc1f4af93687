//! Times and rates as people read and write them.

use std::time::Duration;

/// Reads what [`parse_time`] does. Zero is refused: nothing could ever be waited for.
pub(crate) fn parse_timeout(text: &str) -> Result<Duration, String> {
    match parse_time(text)? {
        Duration::ZERO => Err("expected a time above zero, such as 500ms or 30s".to_owned()),
        time => Ok(time),
    }
}

/// Reads `500us`, `20ms`, `30s`, `2m`; a bare number is in seconds.
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
    if duration > Duration::from_secs(7 * 24 * 3600) {
        return Err(format!("{expected}, and at most a week"));
    }
    Ok(duration)
}

/// Writes a time to three digits in the unit that suits it: `134 ns`, `1.02 us`, `35.5 ms`.
pub(crate) fn format_ns(ns: f64) -> String {
    let scales = [(1e9, "s"), (1e6, "ms"), (1e3, "us")];
    let (value, unit) = match scales.into_iter().find(|(scale, _)| ns >= *scale * 0.9995) {
        Some((scale, unit)) => (ns / scale, unit),
        None => (ns, "ns"),
    };
    format!("{} {unit}", three_digits(value))
}

/// Writes a figure that may not exist; a dash stands for one that does not.
pub(crate) fn or_dash<T>(figure: Option<T>, write: impl FnOnce(T) -> String) -> String {
    figure.map_or_else(|| "-".to_owned(), write)
}

/// Writes a number to three digits without an exponent: `0.123`, `1.23`, `12.3`, `1234`.
pub(crate) fn three_digits(value: f64) -> String {
    let decimals = match value.abs() {
        value if value >= 99.95 => 0,
        value if value >= 9.995 => 1,
        value if value >= 0.9995 => 2,
        _ => 3,
    };
    format!("{value:.decimals$}")
}

/// A round figure without the zeros behind its point, for the label of an axis: `100 ns`, `2 us`.
pub(crate) fn without_zeros(text: &str) -> String {
    let (digits, unit) =
        text.split_once(' ').map_or((text, String::new()), |(digits, unit)| (digits, format!(" {unit}")));
    let digits =
        if digits.contains('.') { digits.trim_end_matches('0').trim_end_matches('.') } else { digits };
    format!("{digits}{unit}")
}

/// Writes a share of one as a whole percentage.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// The same to three digits, for a share that may be far below one per cent.
pub(crate) fn fine_percent(share: f64) -> String {
    if share == 0.0 { "0 %".to_owned() } else { format!("{} %", three_digits(share * 100.0)) }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
