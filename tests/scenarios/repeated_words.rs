//! Words that are reduced repeatedly: whatever is kept of a call, the next one is done as it is
//! called.

use std::sync::Arc;

use shmccl::collective::CallMismatch;
use shmccl::collective::{Algorithm, Operation};
use shmccl::heap::DeviceBuffer;
use shmccl::reduce::{Element, ReduceOp, Scalar};
use shmccl::{Collectives, Communicator, Result};

use crate::harness::Job;
use crate::keep_algorithm::Keep;

/// Reduces `input` in all elements of `send`, and returns what every element of `recv` is then.
fn reduced<T: Element>(
    comm: &mut Communicator,
    (send, recv): (&DeviceBuffer<T>, &DeviceBuffer<T>),
    op: &ReduceOp,
    input: T,
) -> Result<T> {
    send.copy_from_slice(0, &vec![input; send.len()])?;
    comm.all_reduce(send, recv, op)?;
    let last = recv.get(recv.len() - 1)?;
    assert_eq!(bytemuck::bytes_of(&recv.get(0)?), bytemuck::bytes_of(&last));
    Ok(last)
}

scenario!(a_word_reduced_again_is_right_whatever_changes_from_call_to_call, Job::of(3), |comm| {
    let mine = comm.rank().get() + 1;
    let (pair, other, half) = (comm.alloc::<u32>(2)?, comm.alloc::<u32>(2)?, comm.alloc::<u32>(1)?);
    let (wide, doubled) = (comm.alloc::<f64>(1)?, ReduceOp::PreMulSum(Scalar::new(2_u32)));
    for turn in 1..40 {
        let input = mine * turn;
        for _ in 0..turn % 4 {
            assert_eq!(reduced(comm, (&pair, &pair), &ReduceOp::Sum, input)?, 6 * turn);
        }
        let places = [(&pair, &other), (&other, &pair), (&other, &other), (&half, &half)];
        for (op, expected) in [(&ReduceOp::Sum, 6), (&ReduceOp::Max, 3), (&doubled, 12)] {
            for places in places {
                assert_eq!(reduced(comm, places, op, input)?, expected * turn);
                assert_eq!(reduced(comm, places, op, 2 * input)?, expected * 2 * turn);
            }
        }
        let average = reduced(comm, (&wide, &wide), &ReduceOp::Avg, f64::from(input))?;
        assert_eq!(average.to_bits(), f64::from(2 * turn).to_bits());
        comm.set_algorithm((turn % 3 == 0).then_some(Algorithm::Ring));
    }
});

scenario!(a_word_is_reduced_in_memory_that_was_freed_and_allocated_anew, Job::of(2), |comm| {
    let mine = u64::from(comm.rank().get()) + 1;
    for turn in 1..20 {
        let word = comm.alloc::<u64>(1)?;
        for _ in 0..3 {
            assert_eq!(reduced(comm, (&word, &word), &ReduceOp::Sum, mine * turn)?, 3 * turn);
        }
        comm.free(word)?;
    }
});

scenario!(more_words_are_reduced_in_turn_than_are_kept, Job::of(2), |comm| {
    let mine = u64::from(comm.rank().get()) + 1;
    let words = (0..20).map(|_| comm.alloc::<u64>(1)).collect::<Result<Vec<_>>>()?;
    for turn in 1..10 {
        // Fewer than are kept, as many, more.
        for n_words in [2, 7, 8, 9, 20] {
            for (number, word) in (1..).zip(&words[..n_words]) {
                let sum = reduced(comm, (word, word), &ReduceOp::Sum, mine * turn * number)?;
                assert_eq!(sum, 3 * turn * number);
            }
        }
    }
});

scenario!(an_algorithm_that_is_registered_does_the_word_that_was_reduced_before, Job::of(2), |comm| {
    let mine = u64::from(comm.rank().get()) + 1;
    let word = comm.alloc::<u64>(1)?;
    for _ in 0..3 {
        assert_eq!(reduced(comm, (&word, &word), &ReduceOp::Sum, mine)?, 3);
        assert_eq!(reduced(comm, (&word, &word), &ReduceOp::Sum, mine)?, 3);
        comm.register_algorithm(Operation::AllReduce, Arc::new(Keep))?;
        assert_eq!(reduced(comm, (&word, &word), &ReduceOp::Sum, mine)?, mine);
        comm.unregister_algorithm(Operation::AllReduce)?;
    }
});

scenario!(a_word_reduced_again_beside_another_call_is_a_mismatch, Job::of(3).broken(), |comm| {
    let (word, odd) = (comm.alloc::<u64>(1)?, comm.rank().get() == 1);
    for _ in 0..20 {
        reduced(comm, (&word, &word), &ReduceOp::Sum, 1)?;
    }
    let op = if odd { ReduceOp::Max } else { ReduceOp::Sum };
    let told = reduced(comm, (&word, &word), &op, 1);
    let Some(CallMismatch { mine, theirs, .. }) = CallMismatch::of(&told) else { panic!("{told:?}") };
    let names = ["all_reduce of 1 uint64 by sum", "all_reduce of 1 uint64 by max"];
    let expected = if odd { [names[1], names[0]] } else { names };
    assert_eq!([mine.to_string(), theirs.to_string()], expected);
});
