//! Collective operations as nccl-tests measures them, each figure beside the machine's limit.
//!
//! | module | what |
//! |---|---|
//! | [`table`], [`format`] | the launcher's side: nccl-tests' table |
//! | [`device`] | the side of device processes: one interleaved comparison for each figure |
//! | [`case`], [`layout`] | one operation at one size: buffers, call, check; its algorithms |
//! | [`pattern`] | data whose reduction is exact in every type |
//! | [`timed_case`] | how operations are timed |
//! | [`limit`], [`eager_limit`], [`staged_limit`] | hand-written loops: the machine's limits |

pub(crate) mod case;
pub(crate) mod device;
mod eager_limit;
pub(crate) mod format;
pub(crate) mod layout;
mod limit;
pub(crate) mod pattern;
mod staged_limit;
pub(crate) mod table;
pub(crate) mod timed_case;
