//! Calls as values, whose type of elements is one, on bytes at any address: they do what the typed
//! calls do.

use shmccl::collective::{Algorithm, ChannelKind, Operation};
use shmccl::comm::{Buffers, CollectiveCall, RecvBytes, SendBytes, Submit};
use shmccl::heap::Region;
use shmccl::reduce::{DataType, ReduceOp};
use shmccl::{Blocks, Collectives, Communicator, Group, Result};

use crate::harness::{Job, rank};

/// Around what fits into a post and into a piece that is staged.
const COUNTS: [usize; 7] = [0, 1, 2, 3, 23, 2049, 100_003];

/// No multiple of the size of an element.
const SHIFT: usize = 3;

/// The bytes of `count` elements, `element` for each.
fn bytes(count: usize, element: impl Fn(usize) -> f32) -> Vec<u8> {
    (0..count).flat_map(|index| element(index).to_ne_bytes()).collect()
}

/// What `rank` contributes to block `block`.
fn value(rank: usize, block: usize) -> f32 {
    u8::try_from(rank * 10 + block + 1).unwrap().into()
}

/// The two buffers of a rank, which start where no element is aligned.
struct Crooked {
    heap: Option<(Region, Region)>,
    sent: Vec<u8>,
    received: Vec<u8>,
}

impl Crooked {
    fn new(comm: &mut Communicator, in_heap: bool, len: usize) -> Result<Self> {
        let heap = match in_heap {
            true => Some((
                comm.alloc_region((len + SHIFT) as u64, 64)?,
                comm.alloc_region((len + SHIFT) as u64, 64)?,
            )),
            false => None,
        };
        Ok(Self { heap, sent: vec![0; len + SHIFT], received: vec![0; len + SHIFT] })
    }

    /// Makes a call that sends `input`, and returns the `len` bytes that it receives.
    fn call(
        &mut self,
        comm: &mut Communicator,
        input: &[u8],
        len: usize,
        run: impl FnOnce(&mut Communicator, SendBytes<'_>, RecvBytes<'_>) -> Result<()>,
    ) -> Result<Vec<u8>> {
        let shift = SHIFT as u64;
        let Some((sent, received)) = self.heap else {
            self.sent[SHIFT..][..input.len()].copy_from_slice(input);
            let (send, recv) = (&self.sent[SHIFT..][..input.len()], &mut self.received[SHIFT..][..len]);
            run(comm, send.into(), recv.into())?;
            return Ok(self.received[SHIFT..][..len].to_vec());
        };
        let (sent, received) = (sent.part(shift, input.len() as u64)?, received.part(shift, len as u64)?);
        comm.buffer::<u8>(sent)?.copy_from_slice(0, input)?;
        run(comm, sent.into(), received.into())?;
        Ok(comm.buffer::<u8>(received)?.to_vec())
    }
}

fn all_calls(comm: &mut Communicator, in_heap: bool) -> Result<()> {
    let (me, n) = (comm.rank().index(), comm.n_ranks() as usize);
    let root = rank(comm, comm.n_ranks() - 1);
    let sum = |block: usize| (0..n).map(|rank| value(rank, block)).sum::<f32>();
    let mut buffers = Crooked::new(comm, in_heap, 4 * n * COUNTS[COUNTS.len() - 1])?;
    for count in COUNTS {
        let one = |element: f32| bytes(count, |_| element);
        let all = |element: &dyn Fn(usize) -> f32| bytes(n * count, |index| element(index / count.max(1)));
        let len = 4 * count;
        let at_root = |bytes: Vec<u8>| if root.index() == me { bytes } else { Vec::new() };
        let (mine, blocks) = (one(value(me, 0)), all(&|block| value(me, block)));
        let (counts, places): (Vec<_>, Vec<_>) = (0..n).map(|peer| (count, peer * count)).unzip();
        let calls = [
            (Operation::AllReduce, mine.clone(), one(sum(0))),
            (Operation::Reduce, mine.clone(), at_root(one(sum(0)))),
            (Operation::Broadcast, at_root(mine.clone()), one(value(n - 1, 0))),
            (Operation::AllGather, mine.clone(), all(&|block| value(block, 0))),
            (Operation::ReduceScatter, blocks.clone(), one(sum(me))),
            (Operation::AllToAll, blocks.clone(), all(&|block| value(block, me))),
            (Operation::Gather, mine.clone(), at_root(all(&|block| value(block, 0)))),
            (Operation::Scatter, at_root(blocks.clone()), one(value(n - 1, me))),
            (Operation::AllToAllV, blocks, all(&|block| value(block, me))),
        ];
        for (operation, input, output) in calls {
            let got = buffers.call(comm, &input, output.len(), |comm, send, recv| {
                comm.submit(CollectiveCall {
                    op: Some(&ReduceOp::Sum),
                    root,
                    blocks: Some(&[Blocks::new(&counts, &places); 2]),
                    ..CollectiveCall::new(operation, DataType::F32, Buffers::apart(send, recv))
                })
            })?;
            assert!(got == output, "{operation} of {count} elements, in the heap: {in_heap}");
        }
        let (left, right) = (comm.left(), comm.right());
        let got = buffers.call(comm, &mine, len, |comm, send, recv| {
            let mut group = Group::start();
            let joined = group.join(comm);
            let ends = [
                (Operation::Send, Buffers::input(send), right),
                (Operation::Recv, Buffers::output(recv), left),
            ];
            for (operation, buffers, root) in ends {
                let call = CollectiveCall::new(operation, DataType::F32, buffers);
                group.on(joined).submit(CollectiveCall { root, ..call })?;
            }
            group.end()
        })?;
        assert!(got == one(value(left.index(), 0)), "a message of {count} elements, in the heap: {in_heap}");
    }
    Ok(())
}

scenario!(calls_on_bytes_of_ordinary_memory_do_what_typed_ones_do, Job::of(3).heap_len(32 << 20), |comm| {
    all_calls(comm, false)?;
    comm.set_channel_kind(ChannelKind::Port)?;
    all_calls(comm, false)?;
});

scenario!(calls_on_bytes_of_the_heap_do_what_typed_ones_do, Job::of(3).heap_len(32 << 20), |comm| {
    all_calls(comm, true)?;
    comm.set_channel_kind(ChannelKind::Port)?;
    all_calls(comm, true)?;
});

scenario!(calls_on_bytes_in_place_do_what_typed_ones_do, Job::of(3), |comm| {
    let (me, n) = (comm.rank().index(), comm.n_ranks() as usize);
    let (root, sum) = (rank(comm, 0), |block| (0..n).map(|rank| value(rank, block)).sum::<f32>());
    for algorithm in [None, Some(Algorithm::TwoShot)] {
        comm.set_algorithm(algorithm);
        for count in [1, 100, 5000] {
            let mut memory = vec![0; SHIFT + 4 * n * count];
            let (own, at) =
                (|block| value(me, block), |here: bool, one: f32, other| if here { one } else { other });
            let calls: [(_, &dyn Fn(usize) -> f32); 6] = [
                (Operation::AllReduce, &sum),
                (Operation::Reduce, &|block| at(me == 0, sum(block), own(block))),
                (Operation::Broadcast, &|block| value(0, block)),
                (Operation::AllGather, &|block| value(block, block)),
                (Operation::ReduceScatter, &|block| at(block == me, sum(block), own(block))),
                (Operation::AllToAll, &|block| value(block, me)),
            ];
            for (operation, expected) in calls {
                memory[SHIFT..].copy_from_slice(&bytes(n * count, |index| own(index / count)));
                let buffers = Buffers::in_place(&mut memory[SHIFT..]);
                let call = CollectiveCall::new(operation, DataType::F32, buffers);
                comm.submit(CollectiveCall { op: Some(&ReduceOp::Sum), root, ..call })?;
                let expected = bytes(n * count, |index| expected(index / count));
                assert!(memory[SHIFT..] == expected, "{operation} of {count} elements");
            }
        }
    }
});

scenario!(a_part_of_an_element_is_refused_by_name_on_this_rank_alone, Job::of(2), |comm| {
    let (heap, peer) = (comm.alloc_region(64, 64)?, comm.right());
    let mut memory = [0_u8; 10];
    let (mut odd, mut short) = ([0_u8; 10], [0_u8; 9]);
    let bad = [
        (Operation::AllReduce, DataType::F64, Buffers::in_place(&mut odd)),
        (Operation::AllReduce, DataType::F32, Buffers::in_place(heap.part(0, 6)?)),
        (Operation::Send, DataType::Bf16, Buffers::input(&[0_u8; 9])),
        (Operation::Recv, DataType::Bf16, Buffers::output(&mut short)),
        (Operation::AllGather, DataType::U64, Buffers::apart(heap.part(0, 8)?, &mut memory)),
    ];
    for (operation, data_type, buffers) in bad {
        let call = CollectiveCall::new(operation, data_type, buffers);
        let refused = comm.submit(CollectiveCall { op: Some(&ReduceOp::Sum), root: peer, ..call });
        let text = refused.unwrap_err().to_string();
        assert!(
            text.starts_with("the number of bytes ") && text.contains("a multiple of the size"),
            "{text}"
        );
    }
    // Bytes of one rank are elements of another.
    memory[..8].copy_from_slice(&7_u64.to_ne_bytes());
    if comm.rank() == rank(comm, 0) {
        let buffers = Buffers::in_place(&mut memory[..8]);
        let call = CollectiveCall::new(Operation::AllReduce, DataType::U64, buffers);
        comm.submit(CollectiveCall { op: Some(&ReduceOp::Sum), ..call })?;
    } else {
        let mut word = [7_u64];
        comm.all_reduce_in_place(&mut word, &ReduceOp::Sum)?;
        memory[..8].copy_from_slice(&word[0].to_ne_bytes());
    }
    assert_eq!(memory[..8], 14_u64.to_ne_bytes());
});

scenario!(a_stream_takes_calls_on_bytes, Job::of(2), |comm| {
    let (stream, words, root) = (comm.stream()?, comm.alloc::<u32>(1000)?, rank(comm, 1));
    words.fill(3);
    let sum = CollectiveCall::new(Operation::AllReduce, DataType::U32, Buffers::in_place(&words));
    stream.on(comm).submit(CollectiveCall { op: Some(&ReduceOp::Sum), ..sum })?;
    let copy = CollectiveCall::new(Operation::Broadcast, DataType::U8, Buffers::in_place(words.region()));
    stream.on(comm).submit(CollectiveCall { root, ..copy })?;
    stream.synchronise()?;
    assert!(words.to_vec().iter().all(|word| *word == 6));
});

scenario!(a_call_that_lacks_what_its_operation_needs_is_refused_by_name, Job::of(2), |comm| {
    let lacks = [
        (Operation::AllReduce, "the number of operators is 0"),
        (Operation::AllToAllV, "the number of lists of blocks is 0"),
        (Operation::RecvAny, "the number of selections of messages is 0"),
        (Operation::RunPlan, "the number of plans is 0"),
        (Operation::Barrier, "the code of an operation is 1"),
    ];
    for (operation, expected) in lacks {
        let mut received = [0_u8; 8];
        let buffers = Buffers::apart(&[0_u8; 8], &mut received);
        let refused = comm.submit(CollectiveCall::new(operation, DataType::U8, buffers));
        let text = refused.unwrap_err().to_string();
        assert!(text.starts_with(expected), "{text}");
    }
    for operation in CollectiveCall::OPERATIONS {
        let mut received = [0_u8; 7];
        let buffers = Buffers::apart(&[0_u8; 3], &mut received);
        let refused = comm.submit(CollectiveCall::new(operation, DataType::F32, buffers));
        assert!(refused.is_err(), "{operation}");
    }
});
