//! Every algorithm, over channels of both kinds, against what the operation is to do.

use shmccl::channel::Channel;
use shmccl::collective::CallMismatch;
use shmccl::collective::{Algorithm, ChannelKind, Operation as Name};
use shmccl::reduce::{ReduceOp, Scalar};
use shmccl::{Collectives, Communicator, Error, Result};

use crate::collectives::{Buffers, CallCase, OPERATIONS};
use crate::harness::{Job, Random, rank};

const KINDS: [ChannelKind; 2] = [ChannelKind::Memory, ChannelKind::Port];

/// Around what fits into one message at least and at most, and several turns of the slots of a
/// pipe.
fn counts(n: usize) -> [usize; 7] {
    let slot = match n {
        0..=3 => 16 << 10,
        4..=7 => 8 << 10,
        _ => 4 << 10,
    };
    [0, 1, 77, 1025, slot - 1, slot + 1, 5 * slot + 3]
}

/// Each algorithm that can do `operation`, and none at all.
fn choices(operation: Name) -> impl Iterator<Item = Option<Algorithm>> {
    let able = Algorithm::ALL.into_iter().filter(move |algorithm| algorithm.supports(operation));
    able.map(Some).chain([None])
}

fn everything(comm: &mut Communicator) -> Result<()> {
    let (me, n) = (comm.rank().index(), comm.n_ranks() as usize);
    let most = n * counts(n)[6];
    let (heap_send, heap_recv) = (comm.alloc::<f32>(most)?, comm.alloc::<f32>(most)?);
    for (name, (send, recv, run)) in Algorithm::OPERATIONS.into_iter().zip(OPERATIONS) {
        for (round, count) in counts(n).into_iter().enumerate() {
            let case = CallCase { round, me, n, count };
            let (input, expected) = (send(case), recv(case));
            heap_send.copy_from_slice(0, &input)?;
            let sent = comm.buffer::<f32>(heap_send.part(0, input.len())?)?;
            let received = comm.buffer::<f32>(heap_recv.part(0, expected.len())?)?;
            for (turn, algorithm) in choices(name).enumerate() {
                for kind in KINDS {
                    comm.set_algorithm(algorithm);
                    comm.set_channel_kind(kind)?;
                    let mut slice = vec![f32::NAN; expected.len()];
                    if (turn + round).is_multiple_of(3) {
                        run(comm, case, Buffers::Memory(&input, &mut slice))?;
                    } else {
                        received.fill(f32::NAN);
                        run(comm, case, Buffers::Heap(&sent, &received))?;
                        slice = received.to_vec();
                    }
                    assert!(slice == expected, "{name} of {count} by {algorithm:?} over {kind} channels");
                }
            }
        }
    }
    Ok(())
}

/// Numbers of very different sizes, whose sum depends on the order.
pub(crate) fn wide(seed: u64, count: usize) -> Vec<f32> {
    let mut random = Random(seed);
    let number = |_| {
        let (digits, exponent) = (random.below(1 << 20), random.below(24));
        f32::from(u16::try_from(digits >> 4).unwrap()) * f32::exp2(f32::from(u8::try_from(exponent).unwrap()))
    };
    (0..count).map(number).collect()
}

pub(crate) fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| number.to_bits()).collect()
}

/// The results of every algorithm in place, over both kinds of channel: the same bits on all ranks
/// and in every run.
fn same_bits(comm: &mut Communicator) -> Result<()> {
    let (n, count) = (comm.n_ranks() as usize, 20_011);
    let mine = wide(comm.rank().get().into(), count);
    let buffer = comm.alloc::<f32>(count)?;
    let by_rank = (1..n).fold(wide(0, count), |sum, rank| {
        sum.iter().zip(wide(rank as u64, count)).map(|(sum, number)| sum + number).collect()
    });
    for algorithm in Algorithm::ALL {
        let mut first = None;
        for kind in [ChannelKind::Memory, ChannelKind::Port, ChannelKind::Memory, ChannelKind::Port] {
            comm.set_algorithm(Some(algorithm));
            comm.set_channel_kind(kind)?;
            buffer.copy_from_slice(0, &mine)?;
            comm.all_reduce_in_place(&buffer, &ReduceOp::Sum)?;
            let result = buffer.to_vec();
            let mut all = vec![0.0; n * count];
            comm.set_algorithm(None);
            comm.all_gather(&result, &mut all)?;
            assert!(all.chunks(count).all(|other| bits(other) == bits(&result)), "{algorithm} over {kind}");
            let first = first.get_or_insert_with(|| bits(&result));
            assert!(*first == bits(&result), "{algorithm} over {kind} has changed its mind");
        }
        if matches!(algorithm, Algorithm::OneShot | Algorithm::TwoShot | Algorithm::Naive) {
            assert!(first == Some(bits(&by_rank)), "{algorithm} combines in the order of the ranks");
        }
    }
    Ok(())
}

/// Operators that do something to inputs, or at the end: each to be done once, whichever way data
/// go.
fn first_and_last_steps(comm: &mut Communicator) -> Result<()> {
    let (me, n) = (comm.rank().index(), comm.n_ranks() as usize);
    // Another one on every rank, by which its input is divided before.
    let own = [1.0_f32, 4.0, 0.5, 2.0, 8.0][me % 5];
    let scaled = ReduceOp::PreMulSum(Scalar::new(own));
    for (name, (send, recv, _)) in
        Algorithm::OPERATIONS.into_iter().zip(OPERATIONS).filter(|(name, _)| name.reduces())
    {
        let case = CallCase { round: n - 1, me, n, count: 1027 };
        let (input, sums) = (send(case), recv(case));
        let divided: Vec<f32> = input.iter().map(|value| value / own).collect();
        let ranks = f32::from(u8::try_from(n).unwrap());
        // Two of them together are more than a float can be.
        let (huge, average) = (vec![3e38_f32; input.len()], vec![3e38_f32; sums.len()]);
        for algorithm in choices(name) {
            for (op, input, sums, step) in [
                (&ReduceOp::Avg, &input, &sums, 1.0 / ranks),
                (&ReduceOp::Avg, &huge, &average, 1.0),
                (&scaled, &divided, &sums, 1.0),
            ] {
                comm.set_algorithm(algorithm);
                let mut got = vec![f32::NAN; sums.len()];
                match name {
                    Name::AllReduce => comm.all_reduce(input, &mut got, op),
                    Name::Reduce => comm.reduce(input, &mut got, op, case.root()),
                    _ => comm.reduce_scatter(input, &mut got, op),
                }?;
                let is_right = |(got, sum): (&f32, &f32)| (got - sum * step).abs() <= sum * 1e-6;
                assert!(got.iter().zip(sums).all(is_right), "{op} in {name} by {algorithm:?}");
            }
        }
    }
    Ok(())
}

/// Everything among so many ranks.
macro_rules! each_number {
    ($($name:ident: $n:literal),*) => {
        $(mod $name {
            use super::*;

            fn run(test: &str, body: fn(&mut Communicator) -> Result<()>) {
                Job::of($n).heap_len(24 << 20).threads(test, body);
            }

            #[test]
            fn every_algorithm_does_every_operation_that_it_can() {
                run("everything", everything);
            }

            #[test]
            fn results_are_the_same_bits_on_all_ranks_and_in_every_run() {
                run("same bits", same_bits);
            }

            #[test]
            fn inputs_are_scaled_once_and_sums_divided_once() {
                run("first and last steps", first_and_last_steps);
            }
        })*
    };
}

each_number!(one: 1, two: 2, three: 3, four: 4, five: 5, seven: 7, eight: 8);

/// More peers than a fifo has places, and a number of ranks that suits no recursion.
#[test]
fn many_ranks_reduce_by_every_algorithm() {
    Job::of(37).threads("many ranks", |comm| {
        let case = CallCase { round: 0, me: comm.rank().index(), n: 37, count: 1027 };
        let (send, recv, run) = OPERATIONS[0];
        let (input, expected) = (send(case), recv(case));
        for kind in KINDS {
            comm.set_channel_kind(kind)?;
            for algorithm in Algorithm::ALL {
                comm.set_algorithm(Some(algorithm));
                let mut got = vec![f32::NAN; expected.len()];
                run(comm, case, Buffers::Memory(&input, &mut got))?;
                assert!(got == expected, "{algorithm} over {kind} channels");
            }
        }
        Ok(())
    });
}

// In processes the same code sees other addresses, and, where a service is the proxy, another
// process that copies.
port_scenario!(three_processes_do_everything, Job::of(3).heap_len(24 << 20), |comm| {
    everything(comm)?;
});

scenario!(an_algorithm_that_cannot_do_it_is_refused_on_all_ranks_at_once, Job::of(2), |comm| {
    let mut data = [1.0_f32; 4];
    comm.set_algorithm(Some(Algorithm::RecursiveDoubling));
    let refused = comm.broadcast(&[1.0_f32; 4], &mut data, rank(comm, 0));
    let Err(Error::UnsupportedAlgorithm { algorithm, operation, supported }) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!((algorithm, operation), ("recursive_doubling", "broadcast"));
    assert!(supported.contains("ring"), "{supported}");
    comm.all_reduce_in_place(&mut data, &ReduceOp::Sum)?;
    assert_eq!(data, [2.0; 4]);
});

scenario!(ranks_that_choose_different_algorithms_all_learn_of_it, Job::of(3).broken(), |comm| {
    let mut data = [1.0_f32; 4];
    let last = comm.rank().get() == 2;
    comm.set_algorithm(Some(if last { Algorithm::Ring } else { Algorithm::Tree }));
    let called = comm.all_reduce_in_place(&mut data, &ReduceOp::Sum);
    let Some(CallMismatch { mine, theirs, .. }) = CallMismatch::of(&called) else { panic!("{called:?}") };
    let both = format!("{mine} {theirs}");
    assert!(both.contains("by ring over memory channels") && both.contains("by tree over memory channels"));
});

scenario!(ranks_that_choose_different_channels_all_learn_of_it, Job::of(3).broken(), |comm| {
    let mut data = [1.0_f32; 4];
    comm.all_reduce_in_place(&mut data, &ReduceOp::Sum)?;
    let called = if comm.rank().get() == 0 {
        comm.set_channel_kind(ChannelKind::Port)
    } else {
        comm.set_channel_kind(ChannelKind::Memory)
    };
    assert!(matches!(called, Err(Error::CallMismatch { .. })), "{called:?}");
});

port_scenario!(pipes_and_channels_of_the_users_own_do_not_disturb_each_other, Job::of(3), |comm| {
    let mut data = [1.0_f32; 4];
    let mut before = comm.port_channel(comm.right())?;
    let mut left_before = comm.port_channel(comm.left())?;
    comm.set_channel_kind(ChannelKind::Port)?;
    comm.all_reduce_in_place(&mut data, &ReduceOp::Sum)?;
    let mut after = comm.memory_channel(comm.right())?;
    let mut left_after = comm.memory_channel(comm.left())?;
    for (right, left) in [
        (&mut before as &mut dyn Channel, &mut left_before as &mut dyn Channel),
        (&mut after, &mut left_after),
    ] {
        right.signal()?;
        left.wait()?;
        comm.all_reduce_in_place(&mut data, &ReduceOp::Sum)?;
    }
    assert_eq!(data, [27.0; 4]);
});

scenario!(a_rank_without_channels_left_is_an_error_on_all_and_can_be_mended, Job::of(3), |comm| {
    let mut data = [1.0_f32; 4];
    let (zero, one) = (rank(comm, 0), rank(comm, 1));
    let used: Vec<_> = (0..16).filter(|_| comm.rank() == zero).map(|_| comm.memory_channel(one)).collect();
    match comm.set_channel_kind(ChannelKind::Port) {
        Err(Error::Exhausted { .. }) => assert_eq!(comm.rank(), zero),
        Err(Error::FailedElsewhere { rank, .. }) => assert!(comm.rank() != zero && rank == zero),
        called => panic!("{called:?}"),
    }
    drop(used);
    comm.all_reduce_in_place(&mut data, &ReduceOp::Sum)?;
    comm.set_channel_kind(ChannelKind::Port)?;
    comm.all_reduce_in_place(&mut data, &ReduceOp::Sum)?;
    assert_eq!(data, [9.0; 4]);
});
