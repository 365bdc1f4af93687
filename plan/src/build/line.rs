//! Which line of a program made an operation.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use super::CollectiveProgram;

/// A line of a program, as its author finds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// A line of a program in Rust.
    Rust(&'static Location<'static>),
    /// A line of another program, in its words.
    Named(Arc<str>),
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rust(location) => location.fmt(f),
            Self::Named(line) => f.write_str(line),
        }
    }
}

impl CollectiveProgram {
    /// Names the line that makes what follows, for programs that are not in Rust.
    pub fn made_at(&mut self, line: &str) {
        self.made_at = Some(line.into());
    }

    #[track_caller]
    pub(super) fn line(&self) -> Line {
        self.made_at.clone().map_or(Line::Rust(Location::caller()), Line::Named)
    }
}
