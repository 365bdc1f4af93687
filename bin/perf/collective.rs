//! Collective operations as nccl-tests measures them, each figure beside the machine's limit.
//!
//! | module | what |
//! |---|---|
//! | [`table`] | the launcher's side: nccl-tests' table, as it grows |
//! | [`device`] | the side of device processes: one interleaved comparison for each figure |
//! | [`limit`], [`eager_limit`], [`staged_limit`] | hand-written loops: the machine's limits |

pub(crate) mod device;
mod eager_limit;
mod limit;
mod staged_limit;
pub(crate) mod table;
