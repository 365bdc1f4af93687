//! Collective operations against a slow oracle: combinations of all that a call depends on, drawn
//! by chance.
//!
//! A job of so many ranks over one kind of channel runs its combinations one after the other, and
//! counts as having one core, or one for each rank, whatever this machine has. Each rank draws all
//! of them from one seed, so nobody has to be told anything. Three of eight are not made at once
//! but go to a stream, or into a group with others, or both. Exchanges of blocks and groups of
//! messages come after that. What an operation has to give is worked out from the *documented*
//! order of reduction, element by element, and compared bit by bit, together with the bytes around
//! the buffers and those that nobody is to write.
//!
//! `SHMCCL_SEED=n` repeats a run; a failure prints its seed. `SHMCCL_LONG=1` goes through the whole
//! table instead of a sample.

use shmccl::bootstrap::ProxyMode;
use shmccl::collective::ChannelKind;

mod answer;
mod call;
mod job;
mod memory;
mod messages;
mod order;
mod plan;
mod reduction;
mod shared;
mod table;
mod timing;
mod turn;
mod values;

use job::Crowd;

/// Combinations in each job of several ranks in threads, of which there are 12 that share a core,
/// and as many that do not. Those that go with others in a group or on a stream are not counted.
const SAMPLE: usize = 220;

/// Combinations in each job of one rank, which has nobody to agree with.
const ALONE: usize = 80;

/// Combinations in each job in processes.
const IN_PROCESSES: usize = 120;

/// Jobs of all numbers of ranks in threads.
macro_rules! jobs {
    ($kind:ident of $channel:ident, $crowd:ident: $($name:ident $n:literal),*) => {
        mod $kind {
            use super::*;

            $(#[test]
            fn $name() {
                let sample = if $n == 1 { ALONE } else { SAMPLE };
                job::in_threads(($n, Crowd::$crowd), ChannelKind::$channel, sample);
            })*
        }
    };
}

jobs!(direct of Memory, One: one_rank_agrees 1, two_ranks_agree 2, three_ranks_agree 3, four_ranks_agree 4, five_ranks_agree 5,
      seven_ranks_agree 7, eight_ranks_agree 8);
jobs!(proxied of Port, One: one_rank_agrees 1, two_ranks_agree 2, three_ranks_agree 3, four_ranks_agree 4, five_ranks_agree 5,
      seven_ranks_agree 7, eight_ranks_agree 8);
jobs!(direct_apart of Memory, Apart: two_ranks_agree 2, three_ranks_agree 3, four_ranks_agree 4, five_ranks_agree 5,
      seven_ranks_agree 7, eight_ranks_agree 8);
jobs!(proxied_apart of Port, Apart: two_ranks_agree 2, three_ranks_agree 3, four_ranks_agree 4, five_ranks_agree 5,
      seven_ranks_agree 7, eight_ranks_agree 8);

#[test]
fn two_processes_agree() {
    let name = "oracle::two_processes_agree";
    job::in_processes(name, (2, Crowd::One), ChannelKind::Memory, ProxyMode::Thread, IN_PROCESSES);
}

#[test]
fn three_processes_agree_by_their_proxies() {
    let name = "oracle::three_processes_agree_by_their_proxies";
    job::in_processes(name, (3, Crowd::Apart), ChannelKind::Port, ProxyMode::Thread, IN_PROCESSES);
}

#[test]
fn four_processes_agree_by_a_proxy_service() {
    let name = "oracle::four_processes_agree_by_a_proxy_service";
    job::in_processes(name, (4, Crowd::Apart), ChannelKind::Port, ProxyMode::Process, IN_PROCESSES);
}
