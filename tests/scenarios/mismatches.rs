//! Ranks that are in different calls: each is told its own and that of a rank that differs.

use std::time::{Duration, Instant};

use shmccl::collective::CallMismatch;
use shmccl::collective::tuning::Table;
use shmccl::collective::{Algorithm, ChannelKind};
use shmccl::reduce::{CustomOp, ReduceOp, Scalar};
use shmccl::{Blocks, Collectives, Communicator, Error, Group, Rank, Result};

use crate::harness::{Job, rank};

/// A call, and how messages name it.
type Called = (&'static str, fn(&mut Communicator) -> Result<()>);

const FOUR: [f32; 4] = [1.0; 4];

const THIRDS: Blocks<'_> = Blocks { counts: &[1, 2, 1], displacements: &[0, 1, 3] };

/// Each operation once.
const OPERATIONS: [Called; 10] = [
    SUM,
    ("reduce of 4 float by sum with root 0", |comm| {
        comm.reduce(&FOUR, &mut FOUR.clone(), &ReduceOp::Sum, rank(comm, 0))
    }),
    FROM_ZERO,
    ("all_gather of 4 float", |comm| comm.all_gather(&FOUR, &mut [0.0; 12])),
    ("reduce_scatter of 4 float by sum", |comm| {
        comm.reduce_scatter(&[1.0; 12], &mut FOUR.clone(), &ReduceOp::Sum)
    }),
    ("all_to_all of 4 float", |comm| comm.all_to_all(&[1.0_f32; 12], &mut [0.0; 12])),
    ("all_to_all_v", |comm| comm.all_to_all_v(&FOUR, THIRDS, &mut FOUR.clone(), THIRDS)),
    ("gather of 4 float with root 0", |comm| comm.gather(&FOUR, &mut [0.0; 12], rank(comm, 0))),
    ("scatter of 4 float with root 0", |comm| comm.scatter(&[1.0; 12], &mut FOUR.clone(), rank(comm, 0))),
    ("set_tuning", |comm| comm.set_tuning(Table::default())),
];

const SUM: Called = ("all_reduce of 4 float by sum", |comm| all_reduce(comm, &ReduceOp::Sum));
const FROM_ZERO: Called =
    ("broadcast of 4 float with root 0", |comm| comm.broadcast(&FOUR, &mut FOUR.clone(), rank(comm, 0)));

/// Calls of one operation that differ in what follows it.
const VARIANTS: [(Called, Called); 9] = [
    (
        SUM,
        ("all_reduce of 3 float by sum", |comm| comm.all_reduce_in_place(&mut [1.0_f32; 3], &ReduceOp::Sum)),
    ),
    (
        SUM,
        ("all_reduce of 4 double by sum", |comm| comm.all_reduce_in_place(&mut [1.0_f64; 4], &ReduceOp::Sum)),
    ),
    (SUM, ("all_reduce of 4 float by max", |comm| all_reduce(comm, &ReduceOp::Max))),
    (
        ("all_reduce of 4 float by mulsum", |comm| all_reduce(comm, &scaled(2.0))),
        ("all_reduce of 4 float by an operator of the program's own (0x", |comm| {
            all_reduce(comm, &named("scaled"))
        }),
    ),
    (SUM, ("all_reduce of 4 float by mulsum", |comm| all_reduce(comm, &scaled(2.0)))),
    (
        ("all_reduce of 4 float by an operator of the program's own (0x", |comm| {
            all_reduce(comm, &named("first"))
        }),
        ("all_reduce of 4 float by an operator of the program's own (0x", |comm| {
            all_reduce(comm, &named("last"))
        }),
    ),
    (
        FROM_ZERO,
        ("broadcast of 4 float with root 1", |comm| comm.broadcast(&FOUR, &mut FOUR.clone(), rank(comm, 1))),
    ),
    (
        SUM,
        ("all_reduce of 4 float by sum by ring", |comm| {
            comm.set_algorithm(Some(Algorithm::Ring));
            all_reduce(comm, &ReduceOp::Sum)
        }),
    ),
    (
        SUM,
        ("all_reduce of 100000 float by sum", |comm| {
            comm.all_reduce_in_place(&mut vec![1.0_f32; 100_000], &ReduceOp::Sum)
        }),
    ),
];

fn all_reduce(comm: &mut Communicator, op: &ReduceOp) -> Result<()> {
    comm.all_reduce_in_place(&mut FOUR.clone(), op)
}

fn scaled(factor: f32) -> ReduceOp {
    ReduceOp::PreMulSum(Scalar::new(factor))
}

fn named(name: &str) -> ReduceOp {
    ReduceOp::Custom(CustomOp::new::<f32>(name, |_, _| ()))
}

/// Rank 1 makes the call `odd`, the others `usual`.
fn disagree(comm: &mut Communicator, kind: ChannelKind, usual: Called, odd: Called) -> Result<()> {
    comm.set_channel_kind(kind)?;
    all_reduce(comm, &ReduceOp::Sum)?;
    comm.barrier()?; // nobody is left in that one
    let (mine, other) = if comm.rank().get() == 1 { (odd, usual) } else { (usual, odd) };
    // Who waits for nobody, like the root of a broadcast, learns of it from its next call.
    let told = (mine.1)(comm).and_then(|()| all_reduce(comm, &ReduceOp::Sum));
    expect(comm, &told, mine.0, other.0);
    Ok(())
}

/// Comes to its next call so much later.
fn give_way(time: Duration) {
    let started = Instant::now();
    while started.elapsed() < time {
        std::thread::yield_now();
    }
}

/// Looks whether `told` names the call `mine` and the other one, and a rank that is in that.
fn expect(comm: &Communicator, told: &Result<()>, mine: &str, other: &str) {
    let Some(CallMismatch { mine: own, rank, theirs }) = CallMismatch::of(told) else {
        panic!("{mine} beside {other}: {told:?}");
    };
    let (own, theirs) = (own.to_string(), theirs.to_string());
    assert!(
        own.starts_with(mine) && theirs.starts_with(other) && own != theirs,
        "{mine} beside {other}: {told:?}"
    );
    assert_ne!(comm.rank().get() == 1, rank.get() == 1, "{mine} beside {other}: {told:?}");
}

fn in_threads(kind: ChannelKind, pairs: impl IntoIterator<Item = (Called, Called)>) {
    for (usual, odd) in pairs {
        let name = format!("{} beside {}", usual.0, odd.0);
        Job::of(3).broken().threads(&name, |comm| disagree(comm, kind, usual, odd));
    }
}

fn pairs_of_operations() -> impl Iterator<Item = (Called, Called)> {
    (0..OPERATIONS.len()).flat_map(|one| {
        (0..OPERATIONS.len())
            .filter(move |&other| other != one)
            .map(move |other| (OPERATIONS[one], OPERATIONS[other]))
    })
}

#[test]
fn every_operation_beside_every_other_is_a_mismatch_over_direct_channels() {
    in_threads(ChannelKind::Memory, pairs_of_operations());
}

#[test]
fn every_operation_beside_every_other_is_a_mismatch_over_proxied_channels() {
    in_threads(ChannelKind::Port, pairs_of_operations());
}

#[test]
fn calls_that_differ_in_an_argument_are_a_mismatch_over_direct_channels() {
    in_threads(ChannelKind::Memory, VARIANTS);
}

#[test]
fn calls_that_differ_in_an_argument_are_a_mismatch_over_proxied_channels() {
    in_threads(ChannelKind::Port, VARIANTS);
}

scenario!(ranks_with_different_operators_are_told_both, Job::of(3).broken(), |comm| {
    let (usual, odd) = VARIANTS[2];
    disagree(comm, ChannelKind::Memory, usual, odd)?;
});

port_scenario!(ranks_with_different_operations_by_proxies_are_told_both, Job::of(3).broken(), |comm| {
    disagree(comm, ChannelKind::Port, OPERATIONS[3], OPERATIONS[5])?;
});

/// Calls of the first communicator that do not go by the board.
const MET: [Called; 3] = [
    ("barrier", Communicator::barrier),
    ("alloc", |comm| comm.alloc::<u8>(64).map(drop)),
    ("free", |comm| comm.free_region(shmccl::heap::Region::default())),
];

/// Some ranks meet while the others reduce, after all have reduced once.
fn meet_beside(
    comm: &mut Communicator,
    kind: ChannelKind,
    met: Called,
    meets: fn(u32) -> bool,
) -> Result<()> {
    comm.set_channel_kind(kind)?;
    all_reduce(comm, &ReduceOp::Sum)?;
    comm.barrier()?;
    let own = meets(comm.rank().get());
    let (mine, other) = if own { (met, SUM) } else { (SUM, met) };
    match (mine.1)(comm) {
        Err(error @ Error::CallMismatch { .. }) => {
            let &CallMismatch { mine: called, rank, theirs } = error.detail().expect("it says which");
            let (called, theirs) = (called.to_string(), theirs.to_string());
            assert!(called.starts_with(mine.0) && theirs.starts_with(other.0), "{called} beside {theirs}");
            assert_ne!(meets(rank.get()), own);
        }
        told => panic!("{} beside {}: {told:?}", mine.0, other.0),
    }
    Ok(())
}

#[test]
fn a_meeting_of_all_ranks_beside_an_operation_is_a_mismatch_whoever_is_alone() {
    for kind in [ChannelKind::Memory, ChannelKind::Port] {
        for met in MET {
            for meets in [|rank| rank == 1, |rank| rank != 1] as [fn(u32) -> bool; 2] {
                Job::of(3).broken().threads(met.0, |comm| meet_beside(comm, kind, met, meets));
            }
        }
    }
}

scenario!(a_barrier_beside_an_operation_is_a_mismatch_and_no_timeout, Job::of(3).broken(), |comm| {
    meet_beside(comm, ChannelKind::Memory, MET[0], |rank| rank == 0)?;
});

port_scenario!(an_allocation_beside_an_operation_by_proxies_is_a_mismatch, Job::of(3).broken(), |comm| {
    meet_beside(comm, ChannelKind::Port, MET[1], |rank| rank == 0)?;
});

/// Who has made all its calls is in the last barrier when the others wait for one more.
#[test]
fn a_rank_that_finalizes_a_call_early_is_a_mismatch() {
    let _watchdog = crate::harness::Watchdog::start("finalizes early", Duration::from_secs(60));
    let told: Vec<_> = std::thread::scope(|scope| {
        let comms = Communicator::init_all(3).unwrap();
        let run = |mut comm: Communicator| {
            all_reduce(&mut comm, &ReduceOp::Sum).unwrap();
            comm.barrier().unwrap();
            if comm.rank().get() == 2 { comm.finalize() } else { all_reduce(&mut comm, &ReduceOp::Sum) }
        };
        let running: Vec<_> = comms.into_iter().map(|comm| scope.spawn(move || run(comm))).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for (told, (mine, other)) in
        told.iter().zip([(SUM.0, "finalize"), (SUM.0, "finalize"), ("finalize", SUM.0)])
    {
        let Some(CallMismatch { mine: called, theirs, .. }) = CallMismatch::of(told) else {
            panic!("{told:?}")
        };
        assert!(called.to_string().starts_with(mine) && theirs.to_string().starts_with(other), "{told:?}");
    }
}

/// Rank 1 leaves a call out, and is in the next one when the others are in that.
fn skip(comm: &mut Communicator, kind: ChannelKind) -> Result<()> {
    comm.set_channel_kind(kind)?;
    let calls = [OPERATIONS[3], OPERATIONS[5], OPERATIONS[4]];
    let odd = comm.rank().get() == 1;
    all_reduce(comm, &ReduceOp::Sum)?;
    comm.barrier()?; // nobody is left in that one
    let told =
        calls[usize::from(odd)..].iter().map(|call| call.1(comm)).find(Result::is_err).unwrap_or(Ok(()));
    let (mine, other) = if odd { (calls[1], calls[0]) } else { (calls[0], calls[1]) };
    expect(comm, &told, mine.0, other.0);
    Ok(())
}

scenario!(a_rank_that_leaves_a_call_out_is_told_so_with_the_others, Job::of(3).broken(), |comm| {
    skip(comm, ChannelKind::Memory)?;
});

port_scenario!(a_rank_that_leaves_a_call_out_is_told_so_by_proxies_too, Job::of(3).broken(), |comm| {
    skip(comm, ChannelKind::Port)?;
});

/// Calls of rank 1 that rank 0 would have to answer, and does not.
const UNANSWERED: [Called; 2] = [
    ("recv of 4 float from rank 0", |comm| comm.recv(&mut FOUR.clone(), rank(comm, 0))),
    // More than goes before it is received.
    ("send of 1000000 float to rank 0", |comm| comm.send(&vec![1.0_f32; 1_000_000], rank(comm, 0))),
];

/// Rank 1 waits for rank 0 in a call of its own, and the others for rank 1 in `other`, rank 2 as
/// the last one to come.
fn message_beside(comm: &mut Communicator, kind: ChannelKind, message: Called, other: Called) -> Result<()> {
    comm.set_channel_kind(kind)?;
    all_reduce(comm, &ReduceOp::Sum)?;
    comm.barrier()?;
    let told = match comm.rank().get() {
        0 => (other.1)(comm),
        1 => (message.1)(comm),
        _ => {
            give_way(Duration::from_millis(5));
            (other.1)(comm)
        }
    };
    let is_message = comm.rank().get() == 1;
    // Who waits for nobody in a call does in the next.
    let waits = told.is_err();
    let told = told.and_then(|()| all_reduce(comm, &ReduceOp::Sum));
    let Some(CallMismatch { mine, rank, theirs }) = CallMismatch::of(&told) else {
        panic!("{} beside {}: {told:?}", message.0, other.0);
    };
    let (own, theirs) = (mine.to_string(), theirs.to_string());
    let (one, all) = if is_message { (&own, &theirs) } else { (&theirs, &own) };
    let is_all = all.starts_with(other.0) || (is_message || !waits) && all.starts_with(SUM.0);
    assert!(one.starts_with(message.0) && is_all, "{} beside {}: {told:?}", message.0, other.0);
    assert_ne!(is_message, rank.get() == 1, "{} beside {}: {told:?}", message.0, other.0);
    Ok(())
}

fn messages_beside_all(kind: ChannelKind) {
    for message in UNANSWERED {
        for other in OPERATIONS.into_iter().chain(MET) {
            let name = format!("{} beside {}", message.0, other.0);
            Job::of(3).broken().threads(&name, |comm| message_beside(comm, kind, message, other));
        }
    }
}

#[test]
fn a_message_beside_an_operation_is_a_mismatch_over_direct_channels() {
    messages_beside_all(ChannelKind::Memory);
}

#[test]
fn a_message_beside_an_operation_is_a_mismatch_over_proxied_channels() {
    messages_beside_all(ChannelKind::Port);
}

port_scenario!(a_message_beside_an_operation_is_a_mismatch_by_proxies_too, Job::of(3).broken(), |comm| {
    message_beside(comm, ChannelKind::Port, UNANSWERED[0], SUM)?;
});

// Rank 1 waits in one communicator for rank 0, which is late, and in the other for rank 2, which
// waits for it there.
scenario!(a_group_is_told_of_a_mismatch_in_any_of_its_communicators, Job::of(3).broken(), |comm| {
    comm.prepare()?;
    let mut other = comm.duplicate()?;
    comm.barrier()?;
    let me = comm.rank().get();
    let told = match me {
        0 => {
            // If it came before the others have found out, it would be astray itself.
            while comm.revoked().is_none() {
                std::thread::yield_now();
            }
            comm.recv(&mut FOUR.clone(), rank(comm, 1))
        }
        1 => {
            let (zero, two) = (rank(comm, 0), rank(comm, 2));
            let (mut from_zero, mut from_two) = (FOUR, FOUR);
            let mut group = Group::start();
            let (one, another) = (group.join(comm), group.join(&mut other));
            group.on(one).recv(&mut from_zero, zero)?;
            group.on(another).recv(&mut from_two, two)?;
            group.end()
        }
        _ => other.broadcast(&FOUR, &mut FOUR.clone(), rank(comm, 1)),
    };
    match (me, told) {
        (0, Err(Error::Revoked { by: Some(by), .. })) => assert_eq!(by.get(), 1),
        (1 | 2, Err(error @ Error::CallMismatch { .. })) => {
            let mismatch: &CallMismatch = error.detail().expect("it says which");
            assert_eq!(mismatch.rank.get(), 3 - me);
        }
        (_, told) => panic!("{told:?}"),
    }
});

// Rank 1 receives what rank 0 sends before it waits for rank 1 elsewhere, again and again.
scenario!(who_goes_on_after_a_message_is_not_taken_for_astray, Job::of(3), |comm| {
    for round in 0..2000_u32 {
        comm.set_channel_kind(if round % 100 < 50 { ChannelKind::Memory } else { ChannelKind::Port })?;
        let mut message = [round as f32; 4];
        match comm.rank().get() {
            0 => comm.send(&message, rank(comm, 1))?,
            1 => {
                message.fill(-1.0);
                comm.recv(&mut message, rank(comm, 0))?;
                assert_eq!(message, [round as f32; 4]);
            }
            _ => {}
        }
        all_reduce(comm, &ReduceOp::Sum)?;
    }
});

// Rank 0 is at the barrier by right while rank 1 still waits for a message, after an operation that
// went on in steps which nobody posts.
scenario!(who_waits_for_a_message_takes_nobody_at_the_next_barrier_for_astray, Job::of(3), |comm| {
    let many = vec![1.0_f32; 3 * 40_000];
    comm.all_to_all(&many, &mut many.clone())?;
    match comm.rank().get() {
        1 => comm.recv(&mut FOUR.clone(), rank(comm, 2))?,
        2 => {
            // Long enough for rank 1 to look around.
            give_way(Duration::from_millis(20));
            comm.send(&FOUR, rank(comm, 1))?;
        }
        _ => {}
    }
    comm.barrier()?;
});

/// Calls of two ranks that have nothing to do with the third, and that wait for somebody or more
/// than have room.
const ELSEWHERE: [Called; 3] = [
    ("recv of 4 float from rank", |comm| comm.recv(&mut FOUR.clone(), comm.left())),
    ("send of 1000000 float to rank", |comm| comm.send(&vec![1.0_f32; 1_000_000], comm.right())),
    RING,
];

/// Sends to the right, and receives from the left.
const RING: Called = ("", |comm| {
    let (left, right, mut four) = (comm.left(), comm.right(), FOUR);
    let mut group = Group::start();
    let comm = group.join(comm);
    group.on(comm).send(&FOUR, right)?;
    group.on(comm).recv(&mut four, left)?;
    group.end()
});

/// Rank 1 makes one of both calls, and the others the other one. All are told by the deadline at
/// the latest.
fn disagree_by_the_deadline(
    comm: &mut Communicator,
    kind: ChannelKind,
    message: Called,
    other: Called,
    is_message: fn(u32) -> bool,
) -> Result<()> {
    comm.set_channel_kind(kind)?;
    all_reduce(comm, &ReduceOp::Sum)?;
    comm.barrier()?;
    let mine = if is_message(comm.rank().get()) { message } else { other };
    let told = (mine.1)(comm).and_then(|()| all_reduce(comm, &ReduceOp::Max)).and_then(|()| comm.barrier());
    let Some(CallMismatch { mine: own, theirs, .. }) = CallMismatch::of(&told) else {
        panic!("{} beside {} on rank {}: {told:?}", message.0, other.0, comm.rank());
    };
    assert_ne!(own, theirs, "{} beside {} on rank {}", message.0, other.0, comm.rank());
    Ok(())
}

fn messages_of_others_beside_all(kind: ChannelKind) {
    let barrier = MET[0];
    let one_or_others: [fn(u32) -> bool; 2] = [|rank| rank == 1, |rank| rank != 1];
    for message in ELSEWHERE {
        // All at once, as each takes as long as its ranks may wait.
        std::thread::scope(|scope| {
            for other in OPERATIONS.into_iter().chain([barrier]) {
                for is_message in one_or_others {
                    let job = Job::of(3).broken().timeout(Duration::from_secs(5));
                    let name = format!("{} beside {}", message.0, other.0);
                    let disagree = move |comm: &mut Communicator| {
                        disagree_by_the_deadline(comm, kind, message, other, is_message)
                    };
                    scope.spawn(move || job.threads(&name, disagree));
                }
            }
        });
    }
}

#[test]
fn messages_between_others_beside_an_operation_are_a_mismatch_over_direct_channels() {
    messages_of_others_beside_all(ChannelKind::Memory);
}

#[test]
fn messages_between_others_beside_an_operation_are_a_mismatch_over_proxied_channels() {
    messages_of_others_beside_all(ChannelKind::Port);
}

scenario!(
    ranks_that_receive_in_a_circle_are_told_so_by_the_deadline,
    Job::of(3).broken().timeout(Duration::from_secs(2)),
    |comm| {
        let (left, right) = (comm.left(), comm.right());
        let told = comm.recv(&mut FOUR.clone(), left);
        let Some(CallMismatch { mine, rank, theirs }) = CallMismatch::of(&told) else { panic!("{told:?}") };
        assert_eq!(mine.to_string(), format!("recv of 4 float from rank {left}"));
        assert_eq!((rank, theirs.to_string()), (left, format!("recv of 4 float from rank {right}")));
    }
);

// All receive before they leave what was sent to them, but rank 1.
scenario!(a_message_that_nobody_receives_is_told_of_when_all_leave, Job::of(3).broken(), |comm| {
    for mut comm in [comm.split(Some(0), 0)?.unwrap(), comm.duplicate()?] {
        let (zero, one) = (rank(&comm, 0), rank(&comm, 1));
        match comm.rank().get() {
            0 => comm.send(&[1_u8], one)?,
            2 => comm.send(&[1_u8], zero)?,
            _ => {}
        }
        if comm.rank() == zero {
            comm.recv(&mut [0_u8], Rank::new(2, 3).unwrap())?;
        }
        let told = comm.finalize();
        assert!(matches!(told, Err(Error::InvalidArgument { value: 1, .. })), "{told:?}");
    }
});

/// Ranks 0 and 1 exchange the first message of the job, while rank 2 is in `beside`, which is
/// called `other`.
fn first_message_beside(comm: &mut Communicator, beside: fn(&mut Communicator) -> Result<()>, other: &str) {
    let told = match comm.rank().get() {
        0 => comm.send(&[1_u8], rank(comm, 1)),
        1 => comm.recv(&mut [0_u8], rank(comm, 0)),
        _ => beside(comm),
    };
    let Some(CallMismatch { mine, theirs, .. }) = CallMismatch::of(&told) else { panic!("{told:?}") };
    let (mine, theirs) = (mine.to_string(), theirs.to_string());
    let is_first = |call: &str| call.contains("(the first collective call or message of a job");
    let named = match comm.rank().get() {
        0 => {
            mine.starts_with("send of 1 ")
                && mine.contains("to rank 1 ")
                && is_first(&mine)
                && theirs == other
        }
        1 => {
            mine.starts_with("recv of 1 ")
                && mine.contains("from rank 0 ")
                && is_first(&mine)
                && theirs == other
        }
        _ => {
            let is_theirs = |call: &str| theirs.starts_with(call) && is_first(&theirs);
            mine == other && (is_theirs("send") || is_theirs("recv"))
        }
    };
    assert!(named, "{mine} beside {theirs}");
}

scenario!(the_first_message_of_a_job_is_named_as_such_beside_an_allocation, Job::of(3).broken(), |comm| {
    first_message_beside(comm, |comm| comm.alloc::<u8>(1).map(drop), "alloc");
});

scenario!(the_first_message_of_a_job_is_named_as_such_beside_a_barrier, Job::of(3).broken(), |comm| {
    first_message_beside(comm, Communicator::barrier, "barrier");
});
