//! Collective operations as nccl-tests measures them, each figure beside the machine's limit.
//!
//! | module | what |
//! |---|---|
//! | [`settings`], [`figures`] | what device processes are told, and what they tell |
//! | [`table`], [`format`] | starting them; nccl-tests' table |
//! | [`device`] | what they do: a interleave for each figure |
//! | [`workload`], [`words`], [`layout`] | one operation at one size: buffers, call, verification |
//! | [`pattern`], [`number`] | data whose reduction is exact in every type |
//! | [`trial`], [`gathering`] | how operations are timed; how ranks meet in between |
//! | [`bare`], [`mailed`] | the limit of buffers in the heap: where ranks meet, and where data are mailed |
//! | [`places`] | where these are |
//! | [`staged`] | a limit that stages |

mod bare;
pub(crate) mod device;
pub(crate) mod figures;
mod format;
pub(crate) mod gathering;
pub(crate) mod layout;
pub(crate) mod mailed;
mod number;
mod pattern;
mod places;
pub(crate) mod settings;
mod staged;
pub(crate) mod table;
pub(crate) mod trial;
pub(crate) mod ways;
mod words;
pub(crate) mod workload;
