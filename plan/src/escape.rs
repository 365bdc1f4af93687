//! Text from a file as a line of a terminal.

/// Writes a text from a file for a line of a terminal: control characters, which that would obey,
/// are escaped as in Rust.
#[must_use]
pub fn escaped(text: &str) -> String {
    text.chars().fold(String::new(), |mut line, c| {
        match c.is_control() {
            true => line.extend(c.escape_default()),
            false => line.push(c),
        }
        line
    })
}
