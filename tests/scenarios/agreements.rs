//! What ranks allocate and free together.

use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use shmccl::channel::Channel;
use shmccl::collective::CallMismatch;
use shmccl::{Communicator, Error, Rank, Result};

use crate::harness::{Job, Random, pattern, seed_of};

scenario!(allocations_stand_at_the_same_offset_on_all_ranks_and_freed_memory_is_reused, Job::of(3), |comm| {
    let words = comm.alloc::<u64>(3)?;
    let odd = comm.alloc::<u8>(1)?;
    let wide = comm.alloc_region(100, 4096)?;
    let empty = comm.alloc::<u32>(0)?;
    assert!(wide.offset.get().is_multiple_of(4096) && empty.is_empty());
    assert_eq!(words.to_vec(), [0; 3], "fresh memory is zero");
    comm.barrier()?;
    // Each rank tells the next where it found things.
    let mut channel = comm.memory_channel(comm.right())?;
    channel.write(words.part(0, 1)?.offset, words.region().offset.get())?;
    channel.write(words.part(1, 1)?.offset, odd.region().offset.get())?;
    channel.write(words.part(2, 1)?.offset, wide.offset.get())?;
    comm.barrier()?;
    assert_eq!(words.to_vec(), [words.region().offset.get(), odd.region().offset.get(), wide.offset.get()]);
    let (before, first) = (comm.heap_usage(), words.region());
    comm.free(words)?;
    let again = comm.alloc::<u64>(3)?;
    assert_eq!(again.region(), first);
    assert_eq!(comm.heap_usage(), before);
    comm.free(again)?;
    comm.free(odd)?;
    comm.free_region(wide)?;
    comm.free(empty)?;
    let usage = comm.heap_usage();
    assert_eq!((usage.free, usage.live), (usage.len, 0));
});

scenario!(random_allocations_agree_and_keep_their_contents, Job::of(3), |comm| {
    let mut random = Random(seed_of(comm, "random allocations")?);
    let mut live: Vec<(u64, shmccl::heap::DeviceBuffer<u8>)> = Vec::new();
    for step in 0..200 {
        if random.below(3) > 0 || live.is_empty() {
            let len = usize::try_from(random.below(200_000)).unwrap();
            match comm.alloc::<u8>(len) {
                Ok(buffer) => {
                    buffer.copy_from_slice(0, &pattern(step, len))?;
                    live.push((step, buffer));
                }
                Err(Error::OutOfMemory { .. }) => {}
                Err(error) => return Err(error),
            }
        } else {
            let index = usize::try_from(random.below(live.len() as u64)).unwrap();
            let (seed, buffer) = live.swap_remove(index);
            assert!(
                buffer.to_vec() == pattern(seed, buffer.len()),
                "allocated in step {seed}, freed in {step}"
            );
            comm.free(buffer)?;
        }
    }
    for (seed, buffer) in live {
        assert!(buffer.to_vec() == pattern(seed, buffer.len()), "allocated in step {seed}");
        comm.free(buffer)?;
    }
    assert_eq!(comm.heap_usage().live, 0);
});

scenario!(
    a_heap_that_is_too_small_says_what_was_asked_and_what_is_free,
    Job::of(2).heap_len(4 << 20),
    |comm| {
        let half = comm.alloc::<u8>(2 << 20)?;
        let error = comm.alloc::<u8>(3 << 20).unwrap_err();
        let told = matches!(error, Error::OutOfMemory { asked, free, contiguous, .. }
        if asked == 3 << 20 && free == 2 << 20 && contiguous == 2 << 20);
        assert!(told, "{error}");
        assert!(comm.alloc::<u64>(usize::MAX).is_err());
        assert!(matches!(comm.alloc_region(8, 3), Err(Error::InvalidArgument { .. })));
        let rest = comm.alloc::<u8>(2 << 20)?;
        assert!(matches!(comm.alloc::<u8>(1), Err(Error::OutOfMemory { .. })));
        comm.free(half)?;
        comm.free(rest)?;
    }
);

scenario!(ranks_that_ask_for_different_things_are_all_told, Job::of(3), |comm| {
    let own = comm.rank().get();
    let (buffer, other) = (comm.alloc::<u8>(100)?, comm.alloc::<u8>(100)?);
    let before = comm.heap_usage();
    let differs = |result: Result<()>, what: &str, mine: u64, theirs: u64| {
        // Rank 1 is the one that differs: the others name it, and it names the first of them.
        let expected_rank = if own == 1 { 0 } else { 1 };
        match result {
            Err(Error::Mismatch { what: w, mine: m, rank, theirs: t }) => {
                let expected = if own == 1 { (theirs, mine) } else { (mine, theirs) };
                assert_eq!((w, rank.get(), (m, t)), (what, expected_rank, expected));
            }
            other => panic!("{other:?}"),
        }
    };
    let len = if own == 1 { 65 } else { 64 };
    differs(comm.alloc::<u8>(len).map(drop), "the length of an allocation, in bytes", 64, 65);
    let align = if own == 1 { 128 } else { 64 };
    differs(comm.alloc_region(64, align).map(drop), "the alignment of an allocation", 64, 128);
    let (first, second) = (buffer.region(), other.region());
    let freed = if own == 1 { second } else { first };
    differs(comm.free_region(freed), "the offset of what is freed", first.offset.get(), second.offset.get());
    assert_eq!(comm.heap_usage(), before, "nothing was allocated and nothing freed");
    comm.free(buffer)?;
    comm.free(other)?;
    assert!(matches!(comm.free_region(first), Err(Error::InvalidArgument { .. })), "freed twice");
    comm.alloc::<u8>(100)?;
});

/// A call, and how messages name it.
type Called = (&'static str, fn(&mut Communicator) -> Result<()>);

/// Calls of the first communicator that all ranks meet in.
const MET: [Called; 3] = [
    ("barrier", Communicator::barrier),
    ("alloc", |comm| comm.alloc::<u8>(64).map(drop)),
    ("free", |comm| comm.free_region(shmccl::heap::Region::default())),
];

/// Rank `odd` makes the second of two calls, the others the first: all are told both, and by name.
fn meet_in_different_calls(comm: &mut Communicator, odd: u32, calls: [usize; 2]) -> Result<()> {
    // The same call twice, so that a look at stale words would find agreement.
    for _ in 0..2 {
        let buffer = comm.alloc::<u8>(64)?;
        comm.free(buffer)?;
    }
    comm.barrier()?; // nobody is left in the last one
    let before = comm.heap_usage();
    let is_odd = comm.rank().get() == odd;
    let [mine, theirs] = if is_odd { [calls[1], calls[0]] } else { calls }.map(|call| MET[call]);
    let told = (mine.1)(comm);
    let Some(CallMismatch { mine: called, rank, theirs: other }) = CallMismatch::of(&told) else {
        panic!("{} beside {}: {told:?}", mine.0, theirs.0);
    };
    assert_eq!((called.to_string(), other.to_string()), (mine.0.into(), theirs.0.into()));
    assert_ne!(rank.get() == odd, is_odd, "{rank}");
    assert_eq!(comm.heap_usage(), before);
    assert!(matches!(comm.barrier(), Err(Error::Revoked { .. })), "the epoch has ended");
    Ok(())
}

#[test]
fn ranks_that_meet_in_different_calls_are_all_told_both() {
    for (calls, odd) in [[0, 1], [1, 0], [1, 2], [2, 1], [0, 2], [2, 0]].into_iter().zip([0, 1, 2].repeat(2))
    {
        Job::of(3).broken().threads("meeting", |comm| meet_in_different_calls(comm, odd, calls));
    }
}

scenario!(an_allocation_beside_a_barrier_is_a_mismatch_on_both_ranks, Job::of(2).broken(), |comm| {
    meet_in_different_calls(comm, 1, [0, 1])?;
});

scenario!(an_allocation_beside_a_free_is_a_mismatch_that_names_both, Job::of(3).broken(), |comm| {
    meet_in_different_calls(comm, 1, [1, 2])?;
});

/// One rank has no memory for it: nobody gets any, and all can go on. The limit is the process's,
/// so there are no threads.
mod an_allocation_that_fails_on_one_rank_fails_on_all {
    use shmccl::bootstrap::ProxyMode;

    use super::*;

    #[test]
    fn processes() {
        let name = crate::harness::test_name(module_path!(), "processes");
        Job::of(3).processes(&name, ProxyMode::Thread, |comm| {
            let small = comm.alloc::<u8>(100)?;
            let before = comm.heap_usage();
            let (_, hard) = getrlimit(Resource::RLIMIT_FSIZE).unwrap();
            let poor = Rank::new(1, 3)?;
            if comm.rank() == poor {
                setrlimit(Resource::RLIMIT_FSIZE, 4 << 20, hard).unwrap();
            }
            let error = comm.alloc::<u8>(4 << 20).unwrap_err();
            if comm.rank() == poor {
                assert!(matches!(error, Error::ResourceLimit { .. }), "{error}");
            } else {
                let told =
                    matches!(error, Error::FailedElsewhere { operation: "alloc", rank } if rank == poor);
                assert!(told, "{error}");
            }
            let after = comm.heap_usage();
            assert_eq!((after.free, after.live), (before.free, before.live), "nothing is allocated");
            // What is not backed on every rank cannot be reached.
            let mut channel = comm.memory_channel(comm.right())?;
            let there = shmccl::heap::HeapOffset::new(3 << 20);
            assert!(matches!(channel.put(there, small.region().offset, 1), Err(Error::OutOfRange { .. })));
            if comm.rank() == poor {
                setrlimit(Resource::RLIMIT_FSIZE, hard, hard).unwrap();
            }
            let large = comm.alloc::<u8>(4 << 20)?;
            channel.put(large.part((4 << 20) - 1, 1)?.offset, small.region().offset, 1)?;
            comm.free(large)?;
            comm.free(small)
        });
    }
}

scenario!(
    a_rank_that_gives_up_an_allocation_does_not_leave_the_others_with_it,
    Job::of(2).broken().timeout(Duration::from_millis(400)),
    |comm| {
        let mut channel = comm.memory_channel(comm.right())?;
        if comm.rank().get() == 0 {
            let error = comm.alloc::<u8>(64).unwrap_err();
            assert!(matches!(error, Error::Timeout { operation: "alloc", .. }), "{error}");
            assert_eq!(comm.heap_usage().live, 0);
            channel.signal()?;
        } else {
            let mut told = channel.wait();
            while matches!(told, Err(Error::Timeout { .. })) {
                told = channel.wait();
            }
            // Either way it learns that this epoch agrees on nothing any more.
            let result = comm.alloc::<u8>(64);
            assert!(result.is_err(), "rank 0 has given up this allocation");
            assert_eq!(comm.heap_usage().live, 0);
        }
    }
);
