//! Messages between two ranks, against what was sent: from and to memory of both kinds, over
//! channels of both kinds.

use std::time::Duration;

use shmccl::collective::CallMismatch;
use shmccl::collective::{Algorithm, ChannelKind};
use shmccl::heap::DeviceBuffer;
use shmccl::rank::Rank;
use shmccl::reduce::ReduceOp;
use shmccl::{Collectives, Communicator, Error, Result};

use crate::harness::{Job, is_lost, pattern, rank};

const KINDS: [ChannelKind; 2] = [ChannelKind::Memory, ChannelKind::Port];

/// The longest message, which no number of slots holds.
const LONGEST: usize = 16 << 20;

/// Around what takes no slot, what a receiver gets from the heap, what one message of a pipe holds,
/// and what all slots of a pipe hold.
fn lengths(n: usize) -> Vec<usize> {
    let slot = (64 << 10) / n.next_power_of_two().max(2) * 2;
    let fits = slot - 64;
    let mut lengths = vec![
        0,
        1,
        31,
        32,
        33,
        40,
        41,
        63,
        64,
        65,
        1024,
        4097,
        fits - 1,
        fits,
        fits + 1,
        slot,
        4 * fits,
        4 * fits + 1,
    ];
    lengths.extend([(16 << 10) - 1, 16 << 10, 64 << 10, (64 << 10) + 1, 9 * slot + 5]);
    lengths
}

/// Both buffers of a rank, each in the heap or in ordinary memory.
struct Buffers {
    sent: DeviceBuffer<u8>,
    received: DeviceBuffer<u8>,
}

impl Buffers {
    /// Sends `bytes` to `peer`, from the heap or from where they are.
    fn send(&self, comm: &mut Communicator, bytes: &[u8], from_heap: bool, peer: Rank) -> Result<()> {
        if !from_heap {
            return comm.send(bytes, peer);
        }
        self.sent.copy_from_slice(0, bytes)?;
        let buffer = comm.buffer::<u8>(self.sent.part(0, bytes.len())?)?;
        comm.send(&buffer, peer)?;
        // The source is free: whatever is written now is not what the peer gets.
        self.sent.copy_from_slice(0, &vec![0xee; bytes.len()])
    }

    /// Receives `len` bytes from `peer`, into the heap or not.
    fn recv(&self, comm: &mut Communicator, len: usize, into_heap: bool, peer: Rank) -> Result<Vec<u8>> {
        let mut bytes = vec![0xdd; len];
        if !into_heap {
            comm.recv(&mut bytes, peer)?;
            return Ok(bytes);
        }
        self.received.copy_from_slice(0, &bytes)?;
        let buffer = comm.buffer::<u8>(self.received.part(0, len)?)?;
        comm.recv(&buffer, peer)?;
        Ok(buffer.to_vec())
    }
}

/// Every length once around the ring, from memory of both kinds to memory of both.
fn around_the_ring(comm: &mut Communicator, lengths: &[usize]) -> Result<()> {
    let longest = lengths.iter().copied().max().unwrap_or(0);
    let buffers = Buffers { sent: comm.alloc(longest)?, received: comm.alloc(longest)? };
    let (me, left, right) = (u64::from(comm.rank().get()), comm.left(), comm.right());
    for kind in KINDS {
        comm.set_channel_kind(kind)?;
        for (turn, &len) in lengths.iter().enumerate() {
            for (from_heap, into_heap) in [(false, false), (false, true), (true, false), (true, true)] {
                let bytes = |rank: u64| pattern(rank << 32 | turn as u64, len);
                if me == 0 {
                    buffers.send(comm, &bytes(me), from_heap, right)?;
                }
                let got = buffers.recv(comm, len, into_heap, left)?;
                let heap = (from_heap, into_heap);
                assert!(got == bytes(left.get().into()), "{len} bytes over {kind} channels, heap: {heap:?}");
                if me != 0 {
                    buffers.send(comm, &bytes(me), from_heap, right)?;
                }
            }
        }
    }
    Ok(())
}

port_scenario!(two_ranks_pass_messages_of_all_lengths, Job::of(2).heap_len(64 << 20), |comm| {
    around_the_ring(comm, &lengths(2))?;
});
port_scenario!(three_ranks_pass_messages_of_all_lengths, Job::of(3).heap_len(24 << 20), |comm| {
    around_the_ring(comm, &lengths(3))?;
});
scenario!(eight_ranks_pass_messages_of_all_lengths, Job::of(8).heap_len(24 << 20), |comm| {
    around_the_ring(comm, &lengths(8))?;
});

port_scenario!(a_message_that_no_number_of_slots_holds_arrives, Job::of(2).heap_len(64 << 20), |comm| {
    let words = comm.alloc::<u64>(LONGEST / 8)?;
    let sent: Vec<u64> = (0..LONGEST as u64 / 8).collect();
    for (turn, kind) in [KINDS, KINDS].concat().into_iter().enumerate() {
        comm.set_channel_kind(kind)?;
        words.fill(0);
        let (peer, in_heap) = (comm.right(), turn < 2);
        if comm.rank().get() == 0 {
            words.copy_from_slice(0, &sent)?;
            if in_heap { comm.send(&words, peer)? } else { comm.send(&sent, peer)? }
        } else {
            comm.recv(&words, peer)?;
            assert!(words.to_vec() == sent, "over {kind} channels, from the heap: {in_heap}");
        }
    }
});

#[test]
fn as_many_ranks_as_there_can_be_have_room_for_their_messages() {
    Job::of(64)
        .heap_len(8 << 20)
        .threads("as many ranks", |comm| around_the_ring(comm, &[1, 4064, 4065, 70_000]));
}

port_scenario!(messages_come_in_the_order_in_which_they_were_sent, Job::of(2), |comm| {
    let peer = comm.right();
    for kind in KINDS {
        comm.set_channel_kind(kind)?;
        for count in [4_u64, 5, 100] {
            for number in 0..count {
                if comm.rank().get() == 0 {
                    comm.send(&[number, count], peer)?;
                } else {
                    let mut got = [0; 2];
                    comm.recv(&mut got, peer)?;
                    assert_eq!(got, [number, count]);
                }
            }
        }
    }
});

scenario!(
    short_messages_and_long_ones_between_them_come_in_the_order_in_which_they_were_sent,
    Job::of(2),
    |comm| {
        let peer = comm.right();
        let mut received = vec![0; 9000];
        for turn in 0..2000_u64 {
            for (number, len) in [8, 100, 64, 0, 9000, 1, 65, 41].into_iter().enumerate() {
                let sent = pattern(turn << 8 | number as u64, len);
                if comm.rank().get() == 0 {
                    comm.send(&sent, peer)?;
                } else {
                    comm.recv(&mut received[..len], peer)?;
                    assert!(received[..len] == sent, "message {number} of turn {turn}");
                }
            }
        }
    }
);

port_scenario!(a_small_message_is_sent_before_anybody_receives_it, Job::of(2), |comm| {
    let peer = comm.right();
    let mut got = [[0_u64; 32]; 4];
    for kind in KINDS {
        comm.set_channel_kind(kind)?;
        for number in 0..4_u64 {
            comm.send(&[number; 32], peer)?;
        }
        for (number, got) in (0..4).zip(&mut got) {
            comm.recv(&mut *got, peer)?;
            assert_eq!(*got, [number; 32]);
        }
    }
});

scenario!(ranks_that_no_message_concerns_go_on, Job::of(3), |comm| {
    comm.prepare()?;
    match comm.rank().get() {
        0 => comm.send(&[7_i32; 3000], rank(comm, 1))?,
        1 => {
            let mut got = vec![0_i32; 3000];
            comm.recv(&mut got, rank(comm, 0))?;
            assert_eq!(got, [7; 3000]);
        }
        _ => {}
    }
    let mut all = [1_u32];
    comm.all_reduce_in_place(&mut all, &ReduceOp::Sum)?;
    assert_eq!(all, [3]);
});

port_scenario!(messages_and_operations_take_turns_on_the_same_pipes, Job::of(3).heap_len(16 << 20), |comm| {
    let (left, right, n) = (comm.left(), comm.right(), comm.n_ranks());
    let mut sums = vec![1_u32; 30_000];
    for round in 0..24_u32 {
        comm.set_channel_kind(KINDS[(round / 3 % 2) as usize])?;
        comm.set_algorithm((round % 2 == 0).then_some(Algorithm::Ring));
        comm.send(&[round], right)?;
        let mut got = [u32::MAX];
        comm.recv(&mut got, left)?;
        assert_eq!(got, [round]);
        sums.fill(round);
        comm.all_reduce_in_place(&mut sums, &ReduceOp::Sum)?;
        assert!(sums.iter().all(|&sum| sum == n * round));
    }
});

scenario!(a_message_that_is_left_when_all_use_its_pipe_is_an_error_on_all, Job::of(3), |comm| {
    let mut sums = vec![1_u32; 30_000];
    let (zero, one) = (rank(comm, 0), rank(comm, 1));
    comm.set_algorithm(Some(Algorithm::Ring));
    comm.prepare()?;
    if comm.rank() == zero {
        comm.send(&[5_u8], one)?;
    }
    for refused in
        [comm.all_reduce_in_place(&mut sums, &ReduceOp::Sum), comm.set_channel_kind(ChannelKind::Port)]
    {
        assert!(matches!(refused, Err(Error::InvalidArgument { value: 1, .. })), "{refused:?}");
    }
    if comm.rank() == one {
        let mut got = [0_u8];
        comm.recv(&mut got, zero)?;
        assert_eq!(got, [5]);
    }
    comm.all_reduce_in_place(&mut sums, &ReduceOp::Sum)?;
    assert!(sums.iter().all(|&sum| sum == 3));
});

/// Whether `called` tells of `count` elements sent and of `wanted` ones received, from the point of
/// view of `me`.
fn tells_of(called: &Result<()>, me: Rank, sent: &str, wanted: &str) -> bool {
    let Some(CallMismatch { mine, rank, theirs }) = CallMismatch::of(called) else { return false };
    let (mine, theirs) = (mine.to_string(), theirs.to_string());
    let (first, second) = if me.get() == 0 { (mine, theirs) } else { (theirs, mine) };
    rank.get() == 1 - me.get() && first == sent && second == wanted
}

scenario!(a_message_of_another_count_is_an_error_on_both_ranks, Job::of(2).broken(), |comm| {
    let (me, peer) = (comm.rank(), comm.right());
    comm.prepare()?;
    let mut got = vec![0_f32; 9999];
    // Nobody waits for one so short to be received, so this rank learns of it when it waits next.
    let mut called =
        if me.get() == 0 { comm.send(&[1_f32; 4], peer) } else { comm.recv(&mut got[..3], peer) };
    if me.get() == 0 && called.is_ok() {
        called = comm.recv(&mut got, peer);
    }
    assert!(tells_of(&called, me, "send of 4 float to rank 1", "recv of 3 float from rank 0"), "{called:?}");
});

/// Of two lengths of which one needs a slot and the other does not.
fn lengths_apart(comm: &mut Communicator, sent: usize, wanted: usize) -> Result<()> {
    let (me, peer) = (comm.rank(), comm.right());
    comm.prepare()?;
    let mut got = vec![0_u8; 9999];
    let mut called =
        if me.get() == 0 { comm.send(&vec![1_u8; sent], peer) } else { comm.recv(&mut got[..wanted], peer) };
    if me.get() == 0 && called.is_ok() {
        called = comm.recv(&mut got, peer);
    }
    let (send, recv) =
        (format!("send of {sent} uint8 to rank 1"), format!("recv of {wanted} uint8 from rank 0"));
    assert!(tells_of(&called, me, &send, &recv), "{called:?}");
    Ok(())
}

scenario!(
    a_short_message_where_a_long_one_is_awaited_is_an_error_on_both_ranks,
    Job::of(2).broken(),
    |comm| {
        lengths_apart(comm, 64, 65)?;
    }
);

scenario!(
    a_long_message_where_a_short_one_is_awaited_is_an_error_on_both_ranks,
    Job::of(2).broken(),
    |comm| {
        lengths_apart(comm, 65, 64)?;
    }
);

scenario!(a_long_message_of_another_type_is_an_error_on_both_ranks, Job::of(2).broken(), |comm| {
    let (me, peer) = (comm.rank(), comm.right());
    let (sent, mut got) = (comm.alloc::<f32>(100_000)?, vec![0_i32; 100_000]);
    let called = if me.get() == 0 { comm.send(&sent, peer) } else { comm.recv(&mut got, peer) };
    let (send, recv) = ("send of 100000 float to rank 1", "recv of 100000 int32 from rank 0");
    assert!(tells_of(&called, me, send, recv), "{called:?}");
});

scenario!(a_message_to_nobody_or_to_oneself_is_refused_at_once, Job::of(2), |comm| {
    let me = comm.rank();
    let nobody = Rank::new(2, 3)?;
    let mut byte = [0_u8];
    assert!(matches!(comm.send(&[1_u8], nobody), Err(Error::InvalidRank { rank: 2, n_ranks: 2 })));
    assert!(matches!(comm.recv(&mut byte, nobody), Err(Error::InvalidRank { .. })));
    for refused in [comm.send(&[1_u8], me), comm.recv(&mut byte, me)] {
        let Err(Error::InvalidArgument { expected, .. }) = refused else { panic!("{refused:?}") };
        assert!(expected.contains("one group"), "{expected}");
    }
});

scenario!(
    a_wait_for_a_message_that_nobody_sends_names_the_peer,
    Job::of(2).timeout(Duration::from_secs(2)).broken(),
    |comm| {
        let zero = rank(comm, 0);
        comm.prepare()?;
        if comm.rank() == zero {
            while comm.revoked().is_none() {
                std::thread::yield_now();
            }
        } else {
            let gave_up = comm.recv(&mut [0_u8], zero);
            let Err(Error::Timeout { operation: "recv", awaited, .. }) = gave_up else {
                panic!("{gave_up:?}")
            };
            assert_eq!(awaited, Some(zero));
        }
    }
);

port_scenario!(a_peer_that_leaves_is_lost_to_who_waits_for_it, Job::of(2).broken(), |comm| {
    let one = rank(comm, 1);
    comm.prepare()?;
    if comm.rank() != one {
        let received = comm.recv(&mut [0_u8], one);
        assert!(received.as_ref().is_err_and(|error| is_lost(error, one)), "{received:?}");
        let sent = comm.send(&vec![0_u8; 1 << 20], one);
        assert!(sent.is_err(), "{sent:?}");
    }
});
