//! Algorithms of the user's own: as good as built-in ones where they are right, and no danger to
//! others where they are wrong.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use half::bf16;
use shmccl::collective::AlgorithmMismatch;
use shmccl::collective::{Algorithm, ChannelKind, CustomAlgorithm, Operation, Steps};
use shmccl::reduce::{ReduceOp, Scalar};
use shmccl::{Collectives, Communicator, Error, Result};

use crate::collectives::{Buffers, CallCase, OPERATIONS};
use crate::harness::{Job, panic_on_purpose, rank};

/// A body with a name.
struct Named<F>(&'static str, F);

impl<F: Fn(&mut Steps<'_>) -> Result<()> + Send + Sync> CustomAlgorithm for Named<F> {
    fn name(&self) -> &str {
        self.0
    }

    fn run(&self, steps: &mut Steps<'_>) -> Result<()> {
        (self.1)(steps)
    }
}

fn register(
    comm: &mut Communicator,
    operation: Operation,
    name: &'static str,
    body: impl Fn(&mut Steps<'_>) -> Result<()> + Send + Sync + 'static,
) -> Result<()> {
    comm.register_algorithm(operation, Arc::new(Named(name, body)))
}

/// Partial sums go along a chain, made on the bench from raw inputs and those before; the result
/// comes back.
fn chain(steps: &mut Steps<'_>) -> Result<()> {
    let (left, right) = (steps.left(), steps.right());
    let (is_first, is_last) = (left > steps.rank(), right < steps.rank());
    let len = steps.longest_message();
    for (mine, sum) in steps.input().parts(len).zip(steps.output().parts(len)) {
        let mut operands = Vec::new();
        if !is_first {
            let so_far = steps.receive(left, mine.len())?;
            // What the first one sends is its input.
            operands.push(if left.get() == 0 { so_far.uncombined() } else { so_far });
        }
        operands.push(mine);
        if is_first {
            steps.send(right, mine)?;
        } else if is_last {
            steps.combine(&operands, sum, true)?;
        } else {
            let partial = steps.send_staging(right, mine.len())?;
            steps.combine(&operands, partial, false)?;
            steps.send(right, partial)?;
        }
        if !is_last {
            let result = steps.receive(right, sum.len())?;
            steps.copy(result, sum)?;
        }
        if !is_first {
            steps.send(left, sum)?;
        }
    }
    Ok(())
}

/// Everybody sends the block of each rank to it: as many messages as there are blocks, so the pipes
/// have room for all.
fn exchange(steps: &mut Steps<'_>) -> Result<()> {
    let (me, n) = (steps.rank(), u64::from(steps.n_ranks()));
    let block = steps.output().len() / n;
    let others: Vec<_> = (1..steps.n_ranks()).map(|distance| peer(steps, distance)).collect();
    let (input, output) = (steps.input(), steps.output());
    let of = |rank: shmccl::Rank| u64::from(rank.get()) * block;
    steps.copy(input.part(of(me), block)?, output.part(of(me), block)?)?;
    let mut at = 0;
    while at < block {
        let len = steps.longest_message().min(block - at);
        for &to in &others {
            steps.send(to, input.part(of(to) + at, len)?)?;
        }
        for &from in &others {
            let message = steps.receive(from, len)?;
            steps.copy(message, output.part(of(from) + at, len)?)?;
            steps.release(from)?;
        }
        at += len;
    }
    Ok(())
}

/// The root sends to all.
fn star(steps: &mut Steps<'_>) -> Result<()> {
    let (root, len) = (steps.root().expect("a broadcast has a root"), steps.longest_message());
    for (index, part) in steps.output().parts(len).enumerate() {
        if steps.rank() != root {
            let message = steps.receive(root, part.len())?;
            steps.copy(message, part)?;
            continue;
        }
        let mine = steps.input().part(index as u64 * len, part.len())?;
        for distance in 1..steps.n_ranks() {
            let to = peer(steps, distance);
            steps.send(to, mine)?;
        }
        steps.copy(mine, part)?;
    }
    Ok(())
}

fn peer(steps: &Steps<'_>, distance: u32) -> shmccl::Rank {
    let n_ranks = steps.n_ranks();
    shmccl::Rank::new((steps.rank().get() + distance) % n_ranks, n_ranks).expect("within")
}

/// The three of them over both kinds of channels, on buffers of both kinds.
fn right_ones(comm: &mut Communicator) -> Result<()> {
    register(comm, Operation::AllReduce, "chain", chain)?;
    register(comm, Operation::AllToAll, "exchange", exchange)?;
    register(comm, Operation::Broadcast, "star", star)?;
    let (me, n) = (comm.rank().index(), comm.n_ranks() as usize);
    let (heap_send, heap_recv) = (comm.alloc::<f32>(n * 50_003)?, comm.alloc::<f32>(n * 50_003)?);
    for kind in [ChannelKind::Memory, ChannelKind::Port, ChannelKind::Memory] {
        comm.set_channel_kind(kind)?;
        for (name, (send, recv, run)) in Algorithm::OPERATIONS.into_iter().zip(OPERATIONS) {
            for (round, count) in [0, 1, 1027, 50_003].into_iter().enumerate() {
                let case = CallCase { round, me, n, count };
                let (input, expected) = (send(case), recv(case));
                let mut slice = vec![f32::NAN; expected.len()];
                run(comm, case, Buffers::Memory(&input, &mut slice))?;
                assert!(slice == expected, "{name} of {count} in ordinary memory over {kind} channels");
                heap_send.copy_from_slice(0, &input)?;
                let sent = comm.buffer::<f32>(heap_send.part(0, input.len())?)?;
                let received = comm.buffer::<f32>(heap_recv.part(0, expected.len())?)?;
                received.fill(f32::NAN);
                run(comm, case, Buffers::Heap(&sent, &received))?;
                assert!(received.to_vec() == expected, "{name} of {count} in the heap over {kind} channels");
            }
        }
        means_and_products(comm)?;
    }
    Ok(())
}

/// What operators do to inputs and at the end is done once.
fn means_and_products(comm: &mut Communicator) -> Result<()> {
    let n = f64::from(comm.n_ranks());
    let mine = vec![f64::from(comm.rank().get() + 1); 3000];
    let sum = n * (n + 1.0) / 2.0;
    // Each rank by its own: the sum of the squares of the first n.
    let scaled = (ReduceOp::PreMulSum(Scalar::new(mine[0])), sum * (2.0 * n + 1.0) / 3.0);
    for (op, expected) in [(ReduceOp::Avg, sum / n), scaled] {
        let mut got = vec![0.0; mine.len()];
        comm.all_reduce(&mine, &mut got, &op)?;
        assert!(got.iter().all(|got| *got == expected), "{op}: {} and not {expected}", got[0]);
    }
    Ok(())
}

scenario!(short_floats_are_accumulated_in_wide_ones_by_whatever_is_registered, Job::of(3), |comm| {
    register(comm, Operation::AllReduce, "chain", chain)?;
    // Rounded after each step, 256 and 1 would be 256 again.
    let mine = bf16::from_f32(if comm.rank().get() == 0 { 256.0 } else { 1.0 });
    for count in [1, 1027] {
        let (mut ordinary, heap) = (vec![mine; count], comm.alloc::<bf16>(count)?);
        comm.all_reduce_in_place(&mut ordinary, &ReduceOp::Sum)?;
        heap.fill(mine);
        comm.all_reduce_in_place(&heap, &ReduceOp::Sum)?;
        for got in ordinary.into_iter().chain(heap.to_vec()) {
            assert_eq!(got, bf16::from_f32(258.0));
        }
    }
});

#[test]
fn two_and_three_and_five_ranks_call_what_they_have_registered() {
    for n_ranks in [2, 3, 5] {
        Job::of(n_ranks).heap_len(24 << 20).threads("custom algorithms", right_ones);
    }
}

port_scenario!(three_processes_call_what_they_have_registered, Job::of(3).heap_len(24 << 20), |comm| {
    right_ones(comm)?;
});

/// Fails with a number that tells that it was called.
fn telltale(_steps: &mut Steps<'_>) -> Result<()> {
    Err(Error::InvalidArgument { name: "the tale", value: 4711, expected: "to be told" })
}

fn told(outcome: &Result<()>) -> bool {
    matches!(outcome, Err(Error::InvalidArgument { value: 4711, .. }))
}

scenario!(what_the_caller_chooses_goes_before_what_is_registered, Job::of(2), |comm| {
    register(comm, Operation::AllReduce, "telltale", telltale)?;
    comm.set_algorithm(Some(Algorithm::Ring));
    comm.all_reduce_in_place(&mut [1_u64; 9], &ReduceOp::Sum)?;
    comm.set_algorithm(None);
    // Other operations are not concerned, and one of no elements calls nobody.
    comm.broadcast(&[1_u64; 9], &mut [0; 9], rank(comm, 0))?;
    comm.all_reduce_in_place(&mut [0_u64; 0], &ReduceOp::Sum)?;
    comm.unregister_algorithm(Operation::AllReduce)?;
    comm.all_reduce_in_place(&mut [1_u64; 9], &ReduceOp::Sum)?;
});

scenario!(an_error_of_the_algorithm_is_that_of_the_call_and_ends_the_epoch, Job::of(2).broken(), |comm| {
    let body = |steps: &mut Steps<'_>| {
        if steps.rank().get() == 0 { telltale(steps) } else { steps.receive(steps.left(), 8).map(drop) }
    };
    register(comm, Operation::AllReduce, "half", body)?;
    let mut child = comm.duplicate()?;
    let outcome = child.all_reduce_in_place(&mut [1_u64; 9], &ReduceOp::Sum);
    if comm.rank().get() == 0 {
        assert!(told(&outcome), "derived communicators have it too: {outcome:?}");
    } else {
        assert!(matches!(outcome, Err(Error::Revoked { .. })), "{outcome:?}");
    }
    assert!(comm.revoked().is_some());
});

scenario!(a_panic_that_is_caught_ends_the_epoch_as_well, Job::of(2).broken(), |comm| {
    register(comm, Operation::AllReduce, "panics", |steps| {
        if steps.rank().get() == 1 {
            panic_on_purpose()
        }
        steps.receive(steps.right(), 8).map(drop)
    })?;
    let mut data = [1_u64; 9];
    let outcome = catch_unwind(AssertUnwindSafe(|| comm.all_reduce_in_place(&mut data, &ReduceOp::Sum)));
    assert_eq!(outcome.is_err(), comm.rank().get() == 1);
    if let Ok(outcome) = outcome {
        assert!(matches!(outcome, Err(Error::Revoked { .. })), "{outcome:?}");
    }
});

scenario!(ranks_that_register_different_ones_are_told_both_and_go_on, Job::of(3), |comm| {
    let me = comm.rank();
    let name = if me.get() == 2 { "ring of mine" } else { "chain" };
    let refused = register(comm, Operation::AllReduce, name, telltale);
    let Some(AlgorithmMismatch { mine, rank, theirs }) = AlgorithmMismatch::of(&refused) else {
        panic!("{refused:?}")
    };
    assert_eq!((mine.name.as_str(), rank.get()), (name, if me.get() == 2 { 0 } else { 2 }));
    assert_ne!(theirs.name, name);
    let message = AlgorithmMismatch { mine, rank, theirs }.to_string();
    assert!(
        message.contains("ring of mine for all_reduce") && message.contains("chain for all_reduce"),
        "{message}"
    );
    comm.all_reduce_in_place(&mut [1_u64; 9], &ReduceOp::Sum)?;
    let refused = register(comm, Operation::Barrier, "chain", telltale);
    assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
    comm.barrier()?;
});

scenario!(
    what_nobody_receives_is_a_timeout_and_not_the_next_calls_data,
    Job::of(2).timeout(Duration::from_secs(2)).broken(),
    |comm| {
        register(comm, Operation::AllReduce, "sends too much", |steps| {
            steps.send(steps.right(), steps.input())
        })?;
        let outcome = comm.all_reduce_in_place(&mut [1_u64; 9], &ReduceOp::Sum);
        assert!(matches!(outcome, Err(Error::Timeout { .. } | Error::Revoked { .. })), "{outcome:?}");
    }
);

scenario!(steps_that_make_no_sense_are_refused_and_harm_nobody, Job::of(2), |comm| {
    register(comm, Operation::AllGather, "nonsense", |steps| {
        let (me, right, input) = (steps.rank(), steps.right(), steps.input());
        let stranger = shmccl::Rank::new(7, 8)?;
        for refused in [
            steps.send(me, input),
            steps.send(stranger, input),
            steps.receive(me, 8).map(drop),
            steps.receive(right, steps.longest_message() + 1).map(drop),
            steps.send_staging(right, u64::MAX).map(drop),
            steps.release(stranger),
            steps.flush(me),
            input.part(1, input.len()).map(drop),
            steps.copy(input, steps.output()),
            steps.combine(&[input], input, true),
        ] {
            assert!(refused.is_err());
        }
        // Nothing to give back, and nothing to send.
        steps.release(right)?;
        steps.send(right, input.part(0, 0)?)?;
        steps.receive(right, 0)?;
        Ok(())
    })?;
    comm.all_gather(&[1_u32; 6], &mut [0_u32; 12])?;
    register(comm, Operation::AllReduce, "crooked", |steps| {
        let (input, output) = (steps.input(), steps.output());
        let part = input.part(0, 6)?;
        assert!(steps.combine(&[part, part], output.part(0, 6)?, true).is_err(), "no whole elements");
        assert!(steps.combine(&[], output, true).is_err());
        assert!(steps.combine(&[input; 257], output, true).is_err());
        assert!(steps.combine(&[part], output, true).is_err());
        steps.combine(&[input, input], output, true)
    })?;
    let mut sums = [0_u32; 6];
    comm.all_reduce(&[21_u32; 6], &mut sums, &ReduceOp::Sum)?;
    assert_eq!(sums, [42; 6]);
});
