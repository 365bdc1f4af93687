//! Packets: data that carry their own flag.

use std::time::Duration;

use shmccl::Error;
use shmccl::heap::HeapOffset;
use shmccl::shm::packet::{PacketFlag, PacketKind};

use crate::harness::{Job, leave_together, meet_at_last, pattern};

const KINDS: [PacketKind; 2] = [PacketKind::Ll8, PacketKind::Ll16];

/// Lengths around a packet of either kind, around a chunk of the copy loop, and larger ones.
const SIZES: [usize; 18] = [0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 511, 512, 513, 1023, 4097, 50_001];

scenario!(packets_of_every_size_arrive_whole, Job::of(2), |comm| {
    const LEN: usize = 50_001;
    let (source, target) = (comm.alloc::<u8>(LEN)?, comm.alloc::<u8>(LEN + 1)?);
    // Two turns, so that a rank may send the next message while the peer still reads the last.
    let inbox = comm.alloc_region(4 * (LEN as u64 + 8), 16)?;
    let turns = [inbox.offset, HeapOffset::new(inbox.offset.get() + (inbox.len / 2).next_multiple_of(16))];
    let mut channel = comm.memory_channel(comm.right())?;
    let mut flag = PacketFlag::FIRST;
    for kind in KINDS {
        for len in SIZES {
            source.copy_from_slice(
                0,
                &pattern(u64::from(flag.get()) * 2 + u64::from(comm.rank().get()), len),
            )?;
            target.fill(0x77);
            let packets = turns[flag.get() as usize % 2];
            channel.put_packets(kind, packets, source.region().offset, len as u64, flag)?;
            channel.unpack_packets(kind, target.region().offset, packets, len as u64, flag)?;
            let got = target.to_vec();
            let peer = u64::from(channel_peer(comm));
            assert!(got[..len] == pattern(u64::from(flag.get()) * 2 + peer, len), "{kind:?}, {len} bytes");
            assert!(got[len..].iter().all(|byte| *byte == 0x77), "{kind:?}, {len} bytes");
            flag = flag.next();
            if len == 0 {
                // Nothing was waited for.
                comm.barrier()?;
            }
        }
        // The other kind puts its flags in the same words.
        comm.barrier()?;
    }
});

fn channel_peer(comm: &shmccl::Communicator) -> u32 {
    comm.right().get()
}

scenario!(a_buffer_is_reused_over_many_rounds_by_flags_alone, Job::of(2), |comm| {
    const WORDS: usize = 6;
    let (source, target) = (comm.alloc::<u64>(WORDS)?, comm.alloc::<u64>(WORDS)?);
    let boxes = [comm.alloc_region(96, 16)?.offset, comm.alloc_region(96, 16)?.offset];
    let mut channel = comm.memory_channel(comm.right())?;
    let len = (WORDS * 8) as u64;
    // Passes the wrap of the flag.
    let mut flag = PacketFlag::new(u32::MAX - 1000).unwrap();
    for round in 0..3000_u64 {
        let kind = KINDS[usize::from(round % 2 == 1)];
        source.fill(round);
        let packets = boxes[usize::try_from(round % 2).unwrap()];
        channel.put_packets(kind, packets, source.region().offset, len, flag)?;
        channel.unpack_packets(kind, target.region().offset, packets, len, flag)?;
        assert_eq!(target.to_vec(), [round; WORDS]);
        flag = flag.next();
    }
});

scenario!(packets_out_of_range_or_misaligned_are_refused, Job::of(2), |comm| {
    let buffer = comm.alloc_region(64, 16)?;
    let mut channel = comm.memory_channel(comm.right())?;
    let end = comm.heap_usage().committed;
    let at = HeapOffset::new;
    for kind in KINDS {
        let here = buffer.offset;
        let out = |result| matches!(result, Err(Error::OutOfRange { .. }));
        assert!(out(channel.put_packets(
            kind,
            at(end - kind.bytes()),
            here,
            kind.data_bytes() + 1,
            PacketFlag::FIRST
        )));
        assert!(out(channel.put_packets(kind, here, at(end), 1, PacketFlag::FIRST)));
        assert!(out(channel.put_packets(kind, here, here, u64::MAX, PacketFlag::FIRST)));
        assert!(out(channel.unpack_packets(kind, at(end), here, 1, PacketFlag::FIRST)));
        assert!(out(channel.unpack_packets(
            kind,
            here,
            at(end - kind.bytes()),
            kind.data_bytes() + 1,
            PacketFlag::FIRST
        )));
        let crooked = at(here.get() + 4);
        let misaligned = |result| matches!(result, Err(Error::Misaligned { .. }));
        assert!(misaligned(channel.put_packets(kind, crooked, here, 4, PacketFlag::FIRST)));
        assert!(misaligned(channel.unpack_packets(kind, here, crooked, 4, PacketFlag::FIRST)));
    }
    comm.barrier()?;
});

scenario!(
    packets_that_never_come_time_out_and_name_the_sender,
    Job::of(2).timeout(Duration::from_secs(4)).broken(),
    |comm| {
        let buffer = comm.alloc_region(64, 16)?;
        let target = comm.alloc_region(64, 16)?;
        let peer = comm.right();
        let mut channel = comm.memory_channel(peer)?;
        let error = channel
            .unpack_packets(PacketKind::Ll8, target.offset, buffer.offset, 8, PacketFlag::FIRST)
            .unwrap_err();
        let named = matches!(error, Error::Timeout { operation: "unpack_packets", awaited: Some(rank), .. } if rank == peer);
        assert!(named, "{error}");
        // Whoever leaves first is not to be what ends the wait of the other one.
        meet_at_last(comm);
        leave_together(comm);
    }
);
