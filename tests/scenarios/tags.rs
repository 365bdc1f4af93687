//! Messages with tags, and receives from any rank: which message a receive takes, what becomes of
//! those that it passes over, and what is said where none can come.

use std::time::Duration;

use shmccl::collective::{CallMismatch, ChannelKind};
use shmccl::reduce::ReduceOp;
use shmccl::{Blocks, Collectives, Communicator, Error, Group, Result, StatusHandle};

use crate::harness::{Job, is_lost, pattern, rank};

const KINDS: [ChannelKind; 2] = [ChannelKind::Memory, ChannelKind::Port];

/// Of nothing, of what takes no slot, of one slot, of several, and of more than a pipe has.
const LENGTHS: [usize; 9] = [0, 1, 64, 65, 4097, 16 << 10, 70_000, 300_000, 2 << 20];

/// Rank 0 sends two messages, and rank 1 receives them by tag in either order.
fn cross(comm: &mut Communicator, first: usize, second: usize, in_heap: bool) -> Result<()> {
    let peer = comm.right();
    let bytes = |tag: u32, len| pattern(u64::from(tag) << 32 | len as u64, len);
    for swapped in [false, true] {
        let messages = [(7, first), (8, second)];
        if comm.rank().get() == 0 {
            for (tag, len) in messages {
                if in_heap {
                    let buffer = comm.alloc_local(&bytes(tag, len))?;
                    comm.send_tagged(&buffer, peer, tag)?;
                } else {
                    comm.send_tagged(&bytes(tag, len), peer, tag)?;
                }
            }
            continue;
        }
        for index in if swapped { [1, 0] } else { [0, 1] } {
            let (tag, len) = messages[index];
            let mut got = vec![0xdd; len];
            comm.recv_tagged(&mut got, peer, tag)?;
            assert!(got == bytes(tag, len), "{len} bytes with tag {tag}, swapped: {swapped}");
        }
    }
    Ok(())
}

port_scenario!(tags_cross_in_both_orders, Job::of(2).heap_len(64 << 20), |comm| {
    let heap = comm.alloc::<u8>(4 << 20)?;
    for kind in KINDS {
        comm.set_channel_kind(kind)?;
        for first in LENGTHS {
            for second in [0, 65, 70_000] {
                cross(comm, &heap, (first, second), false)?;
                cross(comm, &heap, (first, second), true)?;
            }
        }
    }
});
