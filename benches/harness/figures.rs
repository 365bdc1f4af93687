//! Figures as they are written.

/// Writes a number with three digits and no exponent: `0.123`, `1.23`, `12.3`, `1234`.
pub fn three_digits(value: f64) -> String {
    let decimals = match value.abs() {
        value if value >= 99.95 => 0,
        value if value >= 9.995 => 1,
        value if value >= 0.9995 => 2,
        _ => 3,
    };
    format!("{value:.decimals$}")
}

/// Writes a share of one as a whole percentage.
pub fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}
