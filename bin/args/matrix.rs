//! Flags of the test that measures every pair of ranks.

use std::path::PathBuf;

use clap::Args;

use crate::sizes::parse_size;

/// Flags that only `p2p` heeds: one size for each kind of figure, as a matrix has no room for more.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Options for p2p")]
pub(crate) struct MatrixArgs {
    /// Size of the puts whose bandwidth is measured, and of all that a rank sends when all send at once
    #[arg(long, value_name = "SIZE", value_parser = parse_some, default_value = "1MiB")]
    pub(crate) bandwidth_bytes: u64,
    /// Size of the puts whose latency is measured
    #[arg(long, value_name = "SIZE", value_parser = parse_some, default_value = "8")]
    pub(crate) latency_bytes: u64,
    /// Draw the matrix as a heat map as well
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}

/// Reads a size of at least a byte.
pub(super) fn parse_some(text: &str) -> Result<u64, String> {
    match parse_size(text)? {
        0 => Err("expected at least a byte".to_owned()),
        size => Ok(size),
    }
}
