//! Messages with tags, and receives from any rank: which message a receive takes, what becomes of
//! those that it passes over, and what is said where none can come.

use std::time::Duration;

use shmccl::collective::{CallMismatch, ChannelKind, Operation};
use shmccl::comm::{Buffers, CollectiveCall, Submit};
use shmccl::heap::DeviceBuffer;
use shmccl::reduce::{DataType, ReduceOp};
use shmccl::{Blocks, Collectives, Communicator, Error, Group, MessageSelector, Result, StatusHandle};

use crate::harness::{Job, is_lost, pattern, rank};

const KINDS: [ChannelKind; 2] = [ChannelKind::Memory, ChannelKind::Port];

/// Of nothing, of what takes no slot, of one slot, of several, and of more than a pipe has.
const LENGTHS: [usize; 9] = [0, 1, 64, 65, 4097, 16 << 10, 70_000, 300_000, 2 << 20];

/// Sends `bytes` with `tag`, from `heap` if there is one.
fn send(
    comm: &mut Communicator,
    heap: Option<&DeviceBuffer<u8>>,
    bytes: &[u8],
    to: u32,
    tag: u32,
) -> Result<()> {
    let peer = rank(comm, to);
    let Some(heap) = heap else { return comm.send_tagged(bytes, peer, tag) };
    heap.copy_from_slice(0, bytes)?;
    let buffer = comm.buffer::<u8>(heap.part(0, bytes.len())?)?;
    comm.send_tagged(&buffer, peer, tag)
}

/// Receives `len` bytes with `tag`, from rank `from` or from any, and says from whom.
fn recv(comm: &mut Communicator, len: usize, from: Option<u32>, tag: u32) -> Result<(u32, Vec<u8>)> {
    let mut bytes = vec![0xdd; len];
    let source = match from {
        Some(from) => comm.recv_tagged(&mut bytes, rank(comm, from), tag).map(|()| from)?,
        None => {
            let status = comm.recv_any(&mut bytes, tag)?;
            assert_eq!((status.tag, status.count, status.bytes()), (tag, len as u64, len as u64));
            status.source.get()
        }
    };
    Ok((source, bytes))
}

/// Rank 0 sends two messages, and rank 1 receives them by tag in either order.
fn cross(comm: &mut Communicator, heap: Option<&DeviceBuffer<u8>>, lens: [usize; 2]) -> Result<()> {
    let bytes = |index: usize| pattern((index as u64) << 32 | lens[index] as u64, lens[index]);
    for order in [[0, 1], [1, 0]] {
        for index in order {
            if comm.rank().get() == 0 {
                let sent = usize::from(index == order[1]);
                send(comm, heap, &bytes(sent), 1, 7 + u32::try_from(sent).unwrap())?;
            } else {
                let (_, got) = recv(comm, lens[index], Some(0), 7 + u32::try_from(index).unwrap())?;
                assert!(got == bytes(index), "{lens:?} bytes in the order {order:?}");
            }
        }
    }
    Ok(())
}

port_scenario!(tags_cross_in_both_orders, Job::of(2).heap_len(32 << 20), |comm| {
    let heap = comm.alloc::<u8>(2 << 20)?;
    for kind in KINDS {
        comm.set_channel_kind(kind)?;
        for lens in LENGTHS.iter().flat_map(|&first| [[first, 0], [first, 65], [first, 70_000]]) {
            cross(comm, None, lens)?;
            cross(comm, Some(&heap), lens)?;
        }
    }
});

scenario!(tags_cross_where_checksums_are_taken, Job::of(2).heap_len(32 << 20).checksums(), |comm| {
    let heap = comm.alloc::<u8>(2 << 20)?;
    for lens in LENGTHS.map(|first| [first, 65]) {
        cross(comm, None, lens)?;
        cross(comm, Some(&heap), lens)?;
    }
});

scenario!(many_tags_go_through_few_slots_in_any_order, Job::of(2), |comm| {
    const N: u32 = 400;
    let bytes = |tag: u32| pattern(tag.into(), 8 + tag as usize * 3);
    // Every tag once: the steps have no divisor in common with N.
    for step in [1, 3, N - 1] {
        for number in 0..N {
            if comm.rank().get() == 0 {
                send(comm, None, &bytes(number), 1, number)?;
            } else {
                let tag = (number + 1) * step % N;
                assert!(recv(comm, bytes(tag).len(), Some(0), tag)?.1 == bytes(tag), "tag {tag}");
            }
        }
    }
});

scenario!(messages_of_one_tag_are_never_overtaken, Job::of(2), |comm| {
    const LENS: [usize; 3] = [8, 3000, 90];
    for round in 0..20_u32 {
        for number in 0..60_u32 {
            let (is_sender, order) = (comm.rank().get() == 0, 2 - number / 20 + number % 20 * 3);
            // They are received by tag: all of the last one first.
            let number = if is_sender { number } else { order };
            let len = LENS[(number * round % 3) as usize];
            let bytes = pattern(u64::from(round << 8 | number), len);
            if is_sender {
                send(comm, None, &bytes, 1, number % 3)?;
            } else {
                let (_, got) = recv(comm, len, Some(0), number % 3)?;
                assert!(got == bytes, "message {number} of round {round}");
            }
        }
    }
});

/// Receives what `source`, or any rank, has sent first with whatever tag.
fn recv_any_tag(comm: &mut Communicator, len: usize, source: Option<u32>) -> Result<(u32, u32, Vec<u8>)> {
    let (mut bytes, status) = (vec![0xdd; len], StatusHandle::new());
    let source = source.map(|source| rank(comm, source));
    comm.recv_selected_into(&mut bytes, MessageSelector { source, tag: None }, &status)?;
    let status = status.get().unwrap();
    assert_eq!(status.bytes(), len as u64);
    Ok((status.source.get(), status.tag, bytes))
}

port_scenario!(
    receives_of_any_tag_take_the_messages_of_a_rank_in_order,
    Job::of(3).heap_len(32 << 20),
    |comm| {
        let me = comm.rank().get();
        for kind in KINDS {
            comm.set_channel_kind(kind)?;
            for len in LENGTHS {
                let bytes = |tag: u32| pattern(tag.into(), len);
                if me == 0 {
                    // The one of tag 5 is passed over, and found again in its place.
                    assert!(recv(comm, len, Some(1), 6)?.1 == bytes(6));
                    for tag in [5, u32::MAX, 0] {
                        assert!(recv_any_tag(comm, len, Some(1))? == (1, tag, bytes(tag)), "{len} bytes");
                    }
                    assert!(recv_any_tag(comm, len, Some(2))? == (2, 9, bytes(9)));
                    let (source, tag, got) = recv_any_tag(comm, len, None)?;
                    assert!((source, tag) == (2, 10) && got == bytes(10), "{len} bytes");
                } else {
                    for tag in if me == 1 { &[5, 6, u32::MAX, 0][..] } else { &[9, 10] } {
                        send(comm, None, &bytes(*tag), 0, *tag)?;
                    }
                }
                comm.barrier()?;
            }
        }
    }
);

scenario!(a_receive_of_any_tag_in_a_group_leaves_to_later_ones_what_is_theirs, Job::of(2), |comm| {
    let (me, peer) = (comm.rank().get(), rank(comm, 1 - comm.rank().get()));
    let (mut named, mut first, status) = ([0_u32; 4], [0_u32; 4], StatusHandle::new());
    let mut group = Group::start();
    let member = group.join(comm);
    let selector = MessageSelector { source: Some(peer), tag: None };
    group.on(member).recv_tagged(&mut named, peer, 3)?;
    group.on(member).recv_selected_into(&mut first, selector, &status)?;
    let sent = [[me; 4], [me + 10; 4]];
    group.on(member).send_tagged(&sent[0], peer, 8)?;
    group.on(member).send_tagged(&sent[1], peer, 3)?;
    group.end()?;
    drop(group);
    assert_eq!((first, named), ([1 - me; 4], [11 - me; 4]));
    assert_eq!(status.get().unwrap().tag, 8);
    // A rank does not receive from itself like this.
    let own = MessageSelector { source: Some(rank(comm, me)), tag: None };
    let refused = comm.recv_selected_into(&mut first, own, &status);
    assert!(matches!(refused, Err(Error::InvalidArgument { .. })));
});

port_scenario!(ranks_that_have_sent_are_received_from_in_turn, Job::of(3), |comm| {
    let me = comm.rank().get();
    for (turn, kind) in (0_u32..).zip(KINDS) {
        comm.set_channel_kind(kind)?;
        for len in [0, 8, 500] {
            let bytes = |source: u32, number: u32| pattern(u64::from(source << 8 | number), len);
            for number in 0..4 {
                if me != 0 {
                    send(comm, None, &bytes(me, number), 0, turn)?;
                }
            }
            comm.barrier()?;
            let mut seen = [0; 3];
            for number in 0..if me == 0 { 8 } else { 0 } {
                let (source, got) = recv(comm, len, None, turn)?;
                assert!(got == bytes(source, seen[source as usize]), "{len} bytes of rank {source}");
                seen[source as usize] += 1;
                assert!(seen[1].abs_diff(seen[2]) <= 1, "{seen:?} after {number} receives");
            }
            comm.barrier()?;
        }
    }
});

scenario!(messages_that_were_passed_over_do_not_come_before_those_of_others, Job::of(3), |comm| {
    let me = comm.rank().get();
    let (zero, one) = (rank(comm, 0), rank(comm, 1));
    for _ in 0..8 {
        match me {
            1 => [5, 5, 5, 5, 6].into_iter().try_for_each(|tag| comm.send_tagged(&[me], zero, tag))?,
            2 => [5, 5, 5, 5].into_iter().try_for_each(|tag| comm.send_tagged(&[me], zero, tag))?,
            _ => comm.recv_tagged(&mut [0_u32], one, 6)?,
        }
        comm.barrier()?;
        let mut seen = [0_u32; 3];
        for _ in 0..if me == 0 { 8 } else { 0 } {
            let mut got = [0_u32];
            let source = comm.recv_any(&mut got, 5)?.source;
            assert_eq!(got, [source.get()]);
            seen[source.index()] += 1;
            assert!(seen[1].abs_diff(seen[2]) <= 1, "{seen:?}");
        }
        comm.barrier()?;
    }
});

scenario!(long_messages_are_received_from_any_rank, Job::of(3).heap_len(32 << 20), |comm| {
    let heap = comm.alloc::<u8>(2 << 20)?;
    let me = comm.rank().get();
    for len in LENGTHS {
        let bytes = |source: u32| pattern(u64::from(source) << 32, len);
        for in_heap in [false, true] {
            // Nobody is a turn ahead.
            comm.barrier()?;
            if me != 0 {
                send(comm, in_heap.then_some(&heap), &bytes(me), 0, 9)?;
                send(comm, in_heap.then_some(&heap), &bytes(me), 0, 10)?;
                continue;
            }
            // Of the second tag first, so that the others are passed over.
            for tag in [10, 9] {
                let mut from = [0; 2];
                for from in &mut from {
                    let (source, got) = recv(comm, len, None, tag)?;
                    assert!(got == bytes(source), "{len} bytes of rank {source}");
                    *from = source;
                }
                assert_ne!(from[0], from[1]);
            }
        }
    }
});

scenario!(a_group_finds_each_message_by_its_tag, Job::of(3).heap_len(16 << 20), |comm| {
    const TAGS: [u32; 5] = [3, u32::MAX, 0, 1 << 31, 4];
    let (me, n) = (comm.rank().get(), comm.n_ranks());
    let len = |tag: u32| [0, 40, 9000, 80_000][tag as usize % 4];
    let bytes = |from: u32, tag: u32| pattern(u64::from(from) << 32 | u64::from(tag), len(tag));
    for turn in 0..10 {
        // Nobody is a turn ahead.
        comm.barrier()?;
        let sent: Vec<_> = TAGS.map(|tag| bytes(me, tag)).into();
        let mut got: Vec<Vec<u8>> = (0..n as usize * 5).map(|at| vec![0; len(TAGS[at % 5])]).collect();
        let (right, left) = (comm.right(), comm.left());
        let mut any = [vec![0; len(4)], vec![0; len(4)]];
        let statuses = [StatusHandle::new(), StatusHandle::new()];
        let mut group = Group::start();
        let all = group.join(comm);
        for (bytes, tag) in any.iter_mut().zip(&statuses) {
            group.on(all).recv_any_into(bytes, 4, tag)?;
        }
        assert_eq!(statuses[0].get(), None, "before the end");
        for (at, got) in got.iter_mut().enumerate().rev() {
            let (from, tag) = (rank_of(n, at / 5), TAGS[at % 5]);
            if tag != 4 || from.get() == me {
                group.on(all).recv_tagged(got, from, tag)?;
            }
        }
        for index in 0..5 {
            let index = (index * 2 + turn) % 5;
            for to in [right, rank_of(n, me as usize), left] {
                group.on(all).send_tagged(&sent[index], to, TAGS[index])?;
            }
        }
        group.end()?;
        drop(group);
        for (at, got) in got.iter().enumerate() {
            let (from, tag) = (rank_of(n, at / 5).get(), TAGS[at % 5]);
            assert!(tag == 4 && from != me || *got == bytes(from, tag), "tag {tag} of rank {from}");
        }
        let mut sources: Vec<_> = statuses.iter().map(|status| status.get().unwrap().source.get()).collect();
        assert!(any.iter().zip(&sources).all(|(got, &source)| *got == bytes(source, 4)));
        sources.sort_unstable();
        assert_eq!(sources, (0..n).filter(|&other| other != me).collect::<Vec<_>>());
    }
});

fn rank_of(n: u32, index: usize) -> shmccl::Rank {
    shmccl::Rank::new(u32::try_from(index).unwrap(), n).unwrap()
}

scenario!(a_stream_receives_by_tag_and_from_any_rank, Job::of(2), |comm| {
    let (peer, stream) = (comm.right(), comm.stream()?);
    let (sent, got) = (comm.alloc::<u32>(2)?, comm.alloc::<u32>(2)?);
    sent.copy_from_slice(0, &[comm.rank().get(), 40])?;
    let one = |buffer: &DeviceBuffer<u32>, at| comm.buffer::<u32>(buffer.part(at, 1)?);
    let (first, second, into) = (one(&sent, 0)?, one(&sent, 1)?, [one(&got, 0)?, one(&got, 1)?]);
    let status = StatusHandle::new();
    stream.on(comm).send_tagged(&first, peer, 1)?;
    stream.on(comm).send_tagged(&second, peer, 2)?;
    stream.on(comm).recv_tagged(&into[1], peer, 2)?;
    stream.on(comm).recv_any_into(&into[0], 1, &status)?;
    stream.synchronise()?;
    assert_eq!(got.to_vec(), [peer.get(), 40]);
    assert_eq!(status.get().map(|status| (status.source, status.tag, status.count)), Some((peer, 1, 1)));
});

scenario!(
    messages_are_passed_over_before_and_behind_operations_of_all,
    Job::of(3).heap_len(16 << 20),
    |comm| {
        let (left, right, n) = (comm.left(), comm.right(), comm.n_ranks());
        let me = comm.rank().get();
        for round in 0..20_u32 {
            // Taken behind all that follows.
            comm.send_tagged(&[me, round], right, 7)?;
            let mut sum = [1_u32];
            comm.all_reduce_in_place(&mut sum, &ReduceOp::Sum)?;
            assert_eq!(sum, [n]);
            let (sent, mut got) = ([me; 3], [9_u32; 3]);
            comm.all_to_all_v(
                &sent,
                Blocks::new(&[1; 3], &[0, 1, 2]),
                &mut got,
                Blocks::new(&[1; 3], &[0, 1, 2]),
            )?;
            assert_eq!(got, [0, 1, 2]);
            comm.send_tagged(&[round], right, 8)?;
            let mut word = [0_u32];
            comm.recv_tagged(&mut word, left, 8)?;
            assert_eq!(word, [round]);
            // No pipe holds any by now.
            let mut sums = vec![round; 30_000];
            comm.set_algorithm(Some(shmccl::collective::Algorithm::Ring));
            comm.all_reduce_in_place(&mut sums, &ReduceOp::Sum)?;
            comm.set_algorithm(None);
            assert!(sums.iter().all(|&sum| sum == n * round));
            let mut late = [0; 2];
            comm.recv_tagged(&mut late, left, 7)?;
            assert_eq!(late, [left.get(), round]);
        }
    }
);

/// Whether both ranks are told of the calls `first` of rank 0 and `second` of rank 1.
fn are_told(comm: &Communicator, told: &Result<()>, first: &str, second: &str) -> bool {
    let Some(CallMismatch { mine, theirs, .. }) = CallMismatch::of(told) else { return false };
    let (zero, one) = if comm.rank().get() == 0 { (mine, theirs) } else { (theirs, mine) };
    (zero.to_string().as_str(), one.to_string().as_str()) == (first, second)
}

scenario!(
    a_message_that_was_passed_over_and_has_another_count_is_an_error_on_both,
    Job::of(2).broken(),
    |comm| {
        let peer = comm.right();
        comm.prepare()?;
        let told = if comm.rank().get() == 0 {
            comm.send_tagged(&[1_u8; 3], peer, 1)?;
            comm.send_tagged(&[1_u8; 3], peer, 2)?;
            comm.recv(&mut [0_u8], peer)
        } else {
            comm.recv_tagged(&mut [0_u8; 3], peer, 2)?;
            comm.recv_tagged(&mut [0_u8; 4], peer, 1)
        };
        let (sent, wanted) =
            ("send of 3 uint8 to rank 1 with tag 1", "recv of 4 uint8 from rank 0 with tag 1");
        assert!(are_told(comm, &told, sent, wanted), "{told:?}");
    }
);

scenario!(a_message_from_any_rank_that_has_another_type_is_an_error_on_both, Job::of(3).broken(), |comm| {
    comm.prepare()?;
    let zero = rank(comm, 0);
    let told = match comm.rank().get() {
        0 => comm.recv_any(&mut [0_i32], 1).map(drop),
        1 => comm.send_tagged(&[1_f32], zero, 1).and_then(|()| comm.recv(&mut [0_u8], zero)),
        _ => comm.recv(&mut [0_u8], zero),
    };
    match comm.rank().get() {
        2 => assert!(told.is_err()),
        _ => assert!(
            are_told(comm, &told, "recv_any of 1 int32 with tag 1", "send of 1 float to rank 0 with tag 1"),
            "{told:?}"
        ),
    }
});

scenario!(as_much_as_there_is_room_for_is_passed_over, Job::of(2), |comm| {
    let (bytes, peer) = (vec![3_u8; 1 << 20], comm.right());
    for tag in [1; 31].into_iter().chain([2]) {
        if comm.rank().get() == 0 {
            comm.send_tagged(&bytes, peer, tag)?;
        } else if tag == 2 {
            for tag in [2].into_iter().chain([1; 31]) {
                assert!(recv(comm, bytes.len(), Some(0), tag)?.1 == bytes);
            }
        }
    }
});

scenario!(more_than_that_is_told_to_both_ranks_by_tag, Job::of(2).broken(), |comm| {
    let (bytes, peer) = (vec![3_u8; 1 << 20], comm.right());
    comm.prepare()?;
    let told = if comm.rank().get() == 0 {
        [1; 40].into_iter().try_for_each(|tag| comm.send_tagged(&bytes, peer, tag))
    } else {
        comm.recv_tagged(&mut [0_u8; 5], peer, 2)
    };
    let (sent, wanted) =
        ("send of 1048576 uint8 to rank 1 with tag 1", "recv of 5 uint8 from rank 0 with tag 2");
    assert!(are_told(comm, &told, sent, wanted), "{told:?}");
});

scenario!(a_sender_for_whose_messages_there_is_no_room_waits_for_it, Job::of(3), |comm| {
    let (bytes, me) = (vec![3_u8; 1 << 20], comm.rank().get());
    comm.prepare()?;
    match me {
        0 => [1; 40].into_iter().try_for_each(|tag| send(comm, None, &bytes, 2, tag))?,
        1 => {
            // Long after there is no room.
            std::iter::repeat_with(std::thread::yield_now).take(2000).for_each(drop);
            send(comm, None, &[1], 2, 2)?;
        }
        _ => {
            let from_any = recv(comm, 1, None, 2)?;
            assert_eq!(from_any, (1, vec![1]));
            for _ in 0..40 {
                assert!(recv(comm, bytes.len(), Some(0), 1)?.1 == bytes);
            }
        }
    }
});

scenario!(a_message_that_nobody_has_received_is_an_error_at_the_end, Job::of(2).broken(), |comm| {
    let mut twin = comm.duplicate()?;
    let peer = comm.right();
    twin.send_tagged(&[1_u8], peer, 1)?;
    twin.send_tagged(&[2_u8], peer, 2)?;
    twin.recv_tagged(&mut [0_u8], peer, 2)?;
    let left = twin.finalize();
    assert!(matches!(left, Err(Error::InvalidArgument { value: 2, .. })), "{left:?}");
});

scenario!(
    a_wait_for_a_tag_that_nobody_sends_names_it,
    Job::of(3).timeout(Duration::from_secs(2)).broken(),
    |comm| {
        let zero = rank(comm, 0);
        comm.prepare()?;
        let told = match comm.rank().get() {
            0 => {
                comm.send_tagged(&[1_u8], rank(comm, 1), 6)?;
                while comm.revoked().is_none() {
                    std::thread::yield_now();
                }
                return Ok(());
            }
            1 => comm.recv_tagged(&mut [0_u8], zero, 7),
            _ => comm.recv_any(&mut [0_u8], 8).map(drop),
        };
        let (named, words) = match comm.rank().get() {
            1 => ((Some(zero), Some(7)), "awaiting rank 0 with tag 7"),
            _ => ((None, Some(8)), "awaiting any rank with tag 8"),
        };
        match told {
            Err(Error::Timeout { awaited, tag, .. }) => {
                assert_eq!((awaited, tag), named);
                assert!(told.unwrap_err().to_string().contains(words));
            }
            // The other one was first.
            Err(Error::Revoked { by, .. }) => assert!(by.is_some_and(|by| by != zero && by != comm.rank())),
            told => panic!("{told:?}"),
        }
    }
);

scenario!(ranks_that_have_left_are_lost_to_a_receive_from_any_once_all_have, Job::of(3).broken(), |comm| {
    let mut twin = comm.duplicate()?;
    match twin.rank().get() {
        0 => {
            assert_eq!(recv(&mut twin, 1, None, 1)?, (2, vec![5]));
            let lost = twin.recv_any(&mut [0_u8], 1);
            assert!(matches!(lost, Err(Error::PeerLost { .. })), "{lost:?}");
        }
        1 => drop(twin),
        _ => {
            std::iter::repeat_with(std::thread::yield_now).take(5000).for_each(drop);
            send(&mut twin, None, &[5], 0, 1)?;
            drop(twin);
        }
    }
});

/// The one rank that could send ends: whoever waits for it, or for any, is told its name.
mod a_sender_that_dies_is_named_to_whoever_receives_from_any {
    use shmccl::bootstrap::ProxyMode;
    use shmccl::launch::Launch;
    use shmccl::rank::Rank;

    use super::*;
    use crate::harness::{VICTIMS_CODE, Watchdog, check_exit_of, test_name, this_test};

    #[test]
    fn processes() {
        let name = test_name(module_path!(), "processes");
        let _watchdog = Watchdog::start(&name, Duration::from_secs(60));
        let launch = Launch::new(3).unwrap().program(this_test(&name)).proxy(ProxyMode::Thread);
        let victim = Rank::new(1, 3).unwrap();
        let role = launch.capture_output(true).run(|comm| {
            comm.prepare()?;
            if comm.rank() == victim {
                comm.send_tagged(&[1_u8], rank(comm, 0), 1)?;
                comm.send_tagged(&[1_u8], rank(comm, 2), 1)?;
                std::process::exit(VICTIMS_CODE);
            }
            // What it has sent before it ended arrives.
            assert_eq!(recv(comm, 1, None, 1)?, (1, vec![1]));
            let error = comm.recv_any(&mut [0_u8], 1).unwrap_err();
            assert!(is_lost(&error, victim), "{error}");
            Err(error)
        });
        check_exit_of(victim, role);
    }

    #[test]
    fn threads() {
        let _watchdog = Watchdog::start("a sender that panics", Duration::from_secs(60));
        let result = shmccl::launch::launch_threads(3, &Default::default(), |comm| {
            comm.prepare()?;
            if comm.rank().get() == 1 {
                crate::harness::panic_on_purpose()
            }
            let error = comm.recv_any(&mut [0_u8], 1).unwrap_err();
            assert!(is_lost(&error, rank(comm, 1)), "{error}");
            Err::<(), _>(error)
        });
        assert!(crate::harness::panicked(&result.unwrap_err(), Rank::new(1, 3).unwrap()));
    }
}

scenario!(a_rank_that_all_others_wait_for_receives_from_none, Job::of(3).broken(), |comm| {
    comm.prepare()?;
    let told = match comm.rank().get() {
        0 => comm.recv_any(&mut [0_u8], 4).map(drop),
        _ => comm.all_reduce_in_place(&mut [1_u8], &ReduceOp::Sum),
    };
    let CallMismatch { mine, theirs, .. } = CallMismatch::of(&told).unwrap();
    let named = [mine.to_string(), theirs.to_string()];
    assert!(named.iter().any(|call| call == "recv_any of 1 uint8 with tag 4"), "{named:?}");
});

#[test]
fn a_rank_that_is_alone_receives_from_nobody() {
    Job::of(1).threads("alone", |comm| {
        let refused = comm.recv_any(&mut [0_u8], 1);
        assert!(matches!(refused, Err(Error::InvalidArgument { value: 0, .. })), "{refused:?}");
        let (me, mut got) = (comm.rank(), [[0_u8]; 3]);
        let mut group = Group::start();
        let all = group.join(comm);
        for (got, tag) in got.iter_mut().zip([8, 9, 8]) {
            group.on(all).recv_tagged(got, me, tag)?;
        }
        for (sent, tag) in [(&[1_u8], 8), (&[2], 8), (&[3], 9)] {
            group.on(all).send_tagged(sent, me, tag)?;
        }
        group.end()?;
        drop(group);
        assert_eq!(got, [[1], [3], [2]]);
        let mut group = Group::start();
        let all = group.join(comm);
        group.on(all).send_tagged(&[1_u8], me, 8)?;
        group.on(all).recv_tagged(&mut got[0], me, 9)?;
        let unpaired = group.end();
        assert!(matches!(unpaired, Err(Error::InvalidArgument { value: 1, .. })), "{unpaired:?}");
        Ok(())
    });
}

scenario!(bytes_of_a_type_that_is_a_value_have_tags, Job::of(2), |comm| {
    let (peer, status) = (comm.right(), StatusHandle::new());
    let (sent, mut first, mut second) = ([1_u8, 2, 3, 4, 5, 6, 7, 8], [0_u8; 4], [0_u8; 4]);
    let mut group = Group::start();
    let all = group.join(comm);
    let from_any = Some((MessageSelector { source: None, tag: Some(1) }, &status));
    let ends = [
        (Operation::Send, Buffers::input(&sent[..4]), 1),
        (Operation::Send, Buffers::input(&sent[4..]), 2),
        (Operation::Recv, Buffers::output(&mut second[..]), 2),
        (Operation::RecvAny, Buffers::output(&mut first[..]), 1),
    ];
    for (operation, buffers, tag) in ends {
        let call = CollectiveCall::new(operation, DataType::F32, buffers);
        group.on(all).submit(CollectiveCall { root: peer, tag, selected: from_any, ..call })?;
    }
    group.end()?;
    drop(group);
    assert_eq!((&first[..], &second[..]), (&sent[..4], &sent[4..]));
    let told = status.get().unwrap();
    assert_eq!((told.source, told.count, told.data_type, told.bytes()), (peer, 1, DataType::F32, 4));
});

scenario!(started_messages_are_matched_by_tag_and_come_from_any_rank, Job::of(3), |comm| {
    let (me, n) = (comm.rank().get(), comm.n_ranks());
    comm.prepare()?;
    let (sent, got) = (comm.alloc::<u32>(3)?, comm.alloc::<u32>(5)?);
    sent.copy_from_slice(0, &[me, 10 + me, 20 + me])?;
    let one = |buffer: &DeviceBuffer<u32>, at| buffer.part(at, 1).and_then(|part| comm.buffer::<u32>(part));
    let [same, seven, eight] = [one(&sent, 0)?, one(&sent, 1)?, one(&sent, 2)?];
    let places = (0..5).map(|at| one(&got, at)).collect::<Result<Vec<_>>>()?;
    let (right, left, statuses) = (comm.right(), comm.left(), [StatusHandle::new(), StatusHandle::new()]);
    let mut works = Vec::new();
    // Received from the last to the first, two of them by whoever has sent.
    works.push(comm.start(|_| (), |calls| calls.recv_tagged(&places[3], left, 8))?);
    works.push(comm.start(|_| (), |calls| calls.recv_tagged(&places[2], left, 7))?);
    for (place, status) in places.iter().zip(&statuses) {
        works.push(comm.start(|_| (), |calls| calls.recv_any_into(place, 6, status))?);
    }
    for peer in [right, left] {
        works.push(comm.start(|_| (), |calls| calls.send_tagged(&same, peer, 6))?);
    }
    works.push(comm.start(|_| (), |calls| calls.send_tagged(&seven, right, 7))?);
    works.push(comm.start(|_| (), |calls| calls.send_tagged(&eight, right, 8))?);
    works.iter().rev().try_for_each(|work| work.wait())?;
    let got = got.to_vec();
    assert_eq!(got[2..4], [10 + left.get(), 20 + left.get()]);
    let sources = statuses.map(|status| status.get().unwrap().source.get());
    assert_eq!(got[..2], sources);
    assert_eq!(sources[0] + sources[1] + me, n * (n - 1) / 2);
});
