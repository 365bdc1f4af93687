//! Collective operations as nccl-tests measures them, each figure beside the machine's limit.
//!
//! | module | what |
//! |---|---|
//! | [`table`] | the launcher's side: nccl-tests' table, as it grows |
//! | [`device`] | the side of device processes: one interleaved comparison for each figure |

pub(crate) mod device;
pub(crate) mod table;
