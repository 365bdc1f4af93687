//! Tables of algorithms: obeyed for buffers of every kind, and the same on all ranks or refused by
//! all.

use half::bf16;
use shmccl::collective::Algorithm;
use shmccl::collective::CallMismatch;
use shmccl::collective::tuning::{BufferKind, Case, ONE_SHOT_LEN, Step, Table};
use shmccl::reduce::{CustomOp, ReduceOp};
use shmccl::{Collectives, Communicator, Error, Result};

use crate::algorithms::{bits, wide};
use crate::collectives::{Buffers, CallCase, OPERATIONS};
use crate::harness::Job;

/// `algorithm` for everything that it can do in buffers of this kind.
fn cases(comm: &mut Communicator, algorithm: Algorithm, buffers: BufferKind) -> Result<Vec<Case>> {
    let (n_ranks, oversubscribed) = (comm.n_ranks(), comm.is_oversubscribed()?);
    let steps = vec![Step { up_to: None, algorithm: algorithm.into() }];
    let able = Algorithm::OPERATIONS.into_iter().filter(|name| algorithm.supports(*name));
    Ok(able
        .map(|operation| Case { operation, n_ranks, oversubscribed, buffers, steps: steps.clone() })
        .collect())
}

/// Lengths around those where one way gives way to another, and some pieces of ordinary memory.
const COUNTS: [usize; 6] = [0, 1, 700, 2048, 2049, 140_001];

/// Every operation of every length, with buffers in the heap, in ordinary memory, and on rank 0
/// alone in ordinary memory.
pub(crate) fn everything(comm: &mut Communicator) -> Result<()> {
    let (me, n) = (comm.rank().index(), comm.n_ranks() as usize);
    let most = n * COUNTS[5];
    let (heap_send, heap_recv) = (comm.alloc::<f32>(most)?, comm.alloc::<f32>(most)?);
    for (name, (send, recv, run)) in Algorithm::OPERATIONS.into_iter().zip(OPERATIONS) {
        for (round, count) in COUNTS.into_iter().enumerate() {
            let case = CallCase { round, me, n, count };
            let (input, expected) = (send(case), recv(case));
            heap_send.copy_from_slice(0, &input)?;
            let sent = comm.buffer::<f32>(heap_send.part(0, input.len())?)?;
            let received = comm.buffer::<f32>(heap_recv.part(0, expected.len())?)?;
            // The longest is in two pieces in ordinary memory, and nothing else in the heap.
            let places = [false, true, me > 0].into_iter().take(if round == 5 { 1 } else { 3 });
            for in_heap in places {
                let mut slice = vec![f32::NAN; expected.len()];
                if in_heap {
                    received.fill(f32::NAN);
                    run(comm, case, Buffers::Heap(&sent, &received))?;
                    slice = received.to_vec();
                } else {
                    run(comm, case, Buffers::Memory(&input, &mut slice))?;
                }
                assert!(slice == expected, "{name} of {count}");
            }
        }
    }
    comm.free(heap_send)?;
    comm.free(heap_recv)
}

/// Tables that send the two kinds of buffers different ways.
fn all_tables(comm: &mut Communicator) -> Result<()> {
    for algorithm in Algorithm::ALL {
        let mut all = cases(comm, algorithm, BufferKind::Heap)?;
        let other = if algorithm == Algorithm::OneShot { Algorithm::TwoShot } else { Algorithm::OneShot };
        all.extend(cases(comm, other, BufferKind::Ordinary)?);
        comm.set_tuning(Table::new(&all).unwrap())?;
        everything(comm)?;
    }
    Ok(())
}

#[test]
fn three_ranks_do_everything_by_any_table() {
    Job::of(3).heap_len(32 << 20).threads("any table", all_tables);
}

scenario!(a_table_is_obeyed_until_the_caller_says_otherwise, Job::of(4), |comm| {
    let count = 20_011;
    let mine = wide(comm.rank().get().into(), count);
    let by = |comm: &mut Communicator, algorithm| {
        let mut sums = vec![0.0; count];
        comm.set_algorithm(algorithm);
        comm.all_reduce(&mine, &mut sums, &ReduceOp::Sum)?;
        Ok::<_, Error>(bits(&sums))
    };
    let (built_in, ring) = (by(comm, None)?, by(comm, Some(Algorithm::Ring))?);
    assert_ne!(built_in, ring, "the order of the additions is to show");
    let table = Table::new(&cases(comm, Algorithm::Ring, BufferKind::Ordinary)?).unwrap();
    comm.set_tuning(table)?;
    assert_eq!(by(comm, None)?, ring);
    assert_eq!(by(comm, Some(Algorithm::TwoShot))?, built_in);
    for name in Algorithm::OPERATIONS.into_iter().filter(|name| Algorithm::Ring.supports(*name)) {
        assert_eq!(comm.algorithm_for(name, BufferKind::Ordinary, 1 << 20)?, Algorithm::Ring, "{name}");
        assert_eq!(comm.algorithm_for(name, BufferKind::Heap, ONE_SHOT_LEN)?, Algorithm::OneShot, "{name}");
        assert_eq!(comm.algorithm_for(name, BufferKind::Heap, 1 << 20)?, Algorithm::TwoShot, "{name}");
    }
    comm.set_tuning(Table::default())?;
    assert_eq!(by(comm, None)?, built_in);
});

scenario!(
    no_table_passes_partial_results_on_of_short_floats_or_by_operators_that_need_not_be_commutative,
    Job::of(5),
    |comm| {
        let (me, count) = (comm.rank().get(), 20_011);
        let first = ReduceOp::Custom(CustomOp::new::<u32>("the first", |_, _| ()));
        // What the last three add is lost unless the first two cancel out before.
        let mine = [1e12, -1e12, 1.0, 1.0, 1.0].map(bf16::from_f32)[usize::try_from(me).unwrap()];
        let halves = vec![mine; count];
        let sum = |comm: &mut Communicator, algorithm| {
            let mut sums = vec![bf16::ZERO; count];
            comm.set_algorithm(algorithm);
            comm.all_reduce(&halves, &mut sums, &ReduceOp::Sum)?;
            Ok::<_, Error>(sums)
        };
        let built_in = sum(comm, None)?;
        assert_eq!(built_in, vec![bf16::from_f32(3.0); count]);
        assert_ne!(sum(comm, Some(Algorithm::Ring))?, built_in, "the order of the additions is to show");
        let heap = comm.alloc::<u32>(count)?;
        for algorithm in Algorithm::ALL {
            let mut all = cases(comm, algorithm, BufferKind::Ordinary)?;
            all.extend(cases(comm, algorithm, BufferKind::Heap)?);
            comm.set_tuning(Table::new(&all).unwrap())?;
            assert_eq!(sum(comm, None)?, built_in, "{algorithm}");
            let mut kept = vec![me + 7; count];
            comm.all_reduce_in_place(&mut kept, &first)?;
            heap.fill(me + 7);
            comm.all_reduce_in_place(&heap, &first)?;
            assert!(kept == vec![7; count] && heap.to_vec() == kept, "{algorithm}");
        }
    }
);

scenario!(ranks_with_different_tables_all_learn_of_it, Job::of(3).broken(), |comm| {
    let me = comm.rank();
    let algorithm = if me.get() == 1 { Algorithm::Ring } else { Algorithm::Tree };
    let steps = vec![Step { up_to: None, algorithm: algorithm.into() }];
    let operation = Algorithm::OPERATIONS[0];
    let case = Case { operation, n_ranks: 3, oversubscribed: false, buffers: BufferKind::Heap, steps };
    let table = Table::new(&[case]).unwrap();
    let sum = table.checksum();
    let refused = comm.set_tuning(table);
    let Err(Error::TuningMismatch { mine, rank, theirs }) = refused else { panic!("{refused:?}") };
    assert_eq!((mine, rank.get()), (sum, if me.get() == 1 { 0 } else { 1 }));
    assert_ne!(theirs, sum);
    let next = comm.all_reduce_in_place(&mut [0_u64; 4], &ReduceOp::Sum);
    assert!(matches!(next, Err(Error::Revoked { .. } | Error::TuningMismatch { .. })), "{next:?}");
});

/// Rank 1 waits for the others in a barrier, and these for it with a table.
fn beside_a_barrier(comm: &mut Communicator) -> Result<()> {
    let told = match comm.rank().get() {
        1 => comm.barrier(),
        _ => comm.set_tuning(Table::default()),
    };
    let Some(CallMismatch { mine, rank, theirs }) = CallMismatch::of(&told) else { panic!("{told:?}") };
    let names = [mine, theirs].map(|call| call.to_string());
    let expected = if comm.rank().get() == 1 { ["barrier", "set_tuning"] } else { ["set_tuning", "barrier"] };
    assert_eq!(names, expected);
    assert_ne!(comm.rank().get() == 1, rank.get() == 1);
    Ok(())
}

scenario!(a_table_beside_a_barrier_is_a_mismatch, Job::of(3).broken(), |comm| {
    comm.prepare()?;
    comm.barrier()?;
    beside_a_barrier(comm)?;
});
scenario!(a_table_beside_a_barrier_of_a_derived_communicator_is_a_mismatch, Job::of(3).broken(), |comm| {
    beside_a_barrier(&mut comm.duplicate()?)?;
});
