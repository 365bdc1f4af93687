//! What a row says of a collective operation, beyond what it says of any test.

use serde::{Deserialize, Serialize};

use super::settings::Memory;

/// The figures that nccl-tests prints, and the circumstances.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Figures {
    /// 10^9 bytes per second of the operation's size.
    pub(crate) algbw: f64,
    /// The same of the links that the operation keeps busy.
    pub(crate) busbw: f64,
    /// Where the buffers were.
    pub(crate) memory: Memory,
    /// Whether the output took the place of the input.
    pub(crate) in_place: bool,
    /// The type of the elements.
    #[serde(rename = "type")]
    pub(crate) data_type: String,
    /// The operator, or `none`.
    pub(crate) redop: String,
    /// The root, or -1.
    pub(crate) root: i64,
    /// Elements of a block.
    pub(crate) count: u64,
    /// The same operation on buffers in the heap, in the same run, where these are not: the median of its times, in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) heap_p50_ns: Option<f64>,
    /// How many times as long this one took in the same slice: the median over slices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) heap_ratio: Option<f64>,
}
