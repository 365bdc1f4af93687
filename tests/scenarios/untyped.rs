//! Calls whose type of elements is a value, on bytes at any address: they do what the typed calls
//! do.

use shmccl::collective::{Algorithm, ChannelKind};
use shmccl::comm::{RecvBytes, SendBytes};
use shmccl::heap::Region;
use shmccl::reduce::{DataType, ReduceOp};
use shmccl::{Blocks, Collectives, Communicator, Error, Group, Result};

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
        let (len, total, op) = (4 * count, 4 * n * count, ReduceOp::Sum);
        let at_root = |bytes: Vec<u8>| if root.index() == me { bytes } else { Vec::new() };
        let (mine, blocks) = (one(value(me, 0)), all(&|block| value(me, block)));
        let told = |call: &str| format!("{call} of {count} elements, in the heap: {in_heap}");
        let got = buffers.call(comm, &mine, len, |comm, send, recv| {
            comm.untyped(DataType::F32).all_reduce(send, recv, &op)
        })?;
        assert!(got == one(sum(0)), "{}", told("all_reduce"));
        let got = buffers.call(comm, &mine, at_root(mine.clone()).len(), |comm, send, recv| {
            comm.untyped(DataType::F32).reduce(send, recv, &op, root)
        })?;
        assert!(got == at_root(one(sum(0))), "{}", told("reduce"));
        let got = buffers.call(comm, &at_root(mine.clone()), len, |comm, send, recv| {
            comm.untyped(DataType::F32).broadcast(send, recv, root)
        })?;
        assert!(got == one(value(n - 1, 0)), "{}", told("broadcast"));
        let got = buffers.call(comm, &mine, total, |comm, send, recv| {
            comm.untyped(DataType::F32).all_gather(send, recv)
        })?;
        assert!(got == all(&|block| value(block, 0)), "{}", told("all_gather"));
        let got = buffers.call(comm, &blocks, len, |comm, send, recv| {
            comm.untyped(DataType::F32).reduce_scatter(send, recv, &op)
        })?;
        assert!(got == one(sum(me)), "{}", told("reduce_scatter"));
        let got = buffers.call(comm, &blocks, total, |comm, send, recv| {
            comm.untyped(DataType::F32).all_to_all(send, recv)
        })?;
        assert!(got == all(&|block| value(block, me)), "{}", told("all_to_all"));
        let got = buffers.call(comm, &mine, at_root(blocks.clone()).len(), |comm, send, recv| {
            comm.untyped(DataType::F32).gather(send, recv, root)
        })?;
        assert!(got == at_root(all(&|block| value(block, 0))), "{}", told("gather"));
        let got = buffers.call(comm, &at_root(blocks.clone()), len, |comm, send, recv| {
            comm.untyped(DataType::F32).scatter(send, recv, root)
        })?;
        assert!(got == one(value(n - 1, me)), "{}", told("scatter"));
        let (counts, places): (Vec<_>, Vec<_>) = (0..n).map(|peer| (count, peer * count)).unzip();
        let got = buffers.call(comm, &blocks, total, |comm, send, recv| {
            let blocks = Blocks::new(&counts, &places);
            comm.untyped(DataType::F32).all_to_all_v(send, blocks, recv, blocks)
        })?;
        assert!(got == all(&|block| value(block, me)), "{}", told("all_to_all_v"));
        let (left, right) = (comm.left(), comm.right());
        let got = buffers.call(comm, &mine, len, |comm, send, recv| {
            let mut group = Group::start();
            let joined = group.join(comm);
            group.on(joined).untyped(DataType::F32).send(send, right)?;
            group.on(joined).untyped(DataType::F32).recv(recv, left)?;
            group.end()
        })?;
        assert!(got == one(value(left.index(), 0)), "{}", told("a message"));
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
            let mut check = |comm: &mut Communicator,
                             run: &dyn Fn(&mut Communicator, &mut [u8]) -> Result<()>,
                             expected: &dyn Fn(usize) -> f32| {
                memory[SHIFT..].copy_from_slice(&bytes(n * count, |index| value(me, index / count)));
                run(comm, &mut memory[SHIFT..])?;
                assert!(
                    memory[SHIFT..] == bytes(n * count, |index| expected(index / count)),
                    "{count} elements"
                );
                Ok::<_, Error>(())
            };
            let (own, op) = (|block| value(me, block), ReduceOp::Sum);
            let at = |at_root: bool, one: f32, other: f32| if at_root { one } else { other };
            check(comm, &|comm, bytes| comm.untyped(DataType::F32).all_reduce_in_place(bytes, &op), &sum)?;
            check(
                comm,
                &|comm, bytes| comm.untyped(DataType::F32).reduce_in_place(bytes, &op, root),
                &|block| at(me == 0, sum(block), own(block)),
            )?;
            check(
                comm,
                &|comm, bytes| comm.untyped(DataType::F32).broadcast_in_place(bytes, root),
                &|block| value(0, block),
            )?;
            check(comm, &|comm, bytes| comm.untyped(DataType::F32).all_gather_in_place(bytes), &|block| {
                value(block, block)
            })?;
            check(
                comm,
                &|comm, bytes| comm.untyped(DataType::F32).reduce_scatter_in_place(bytes, &op),
                &|block| at(block == me, sum(block), own(block)),
            )?;
            check(comm, &|comm, bytes| comm.untyped(DataType::F32).all_to_all_in_place(bytes), &|block| {
                value(block, me)
            })?;
        }
    }
});

scenario!(a_part_of_an_element_is_refused_by_name_on_this_rank_alone, Job::of(2), |comm| {
    let (heap, peer) = (comm.alloc_region(64, 64)?, comm.right());
    let mut memory = [0_u8; 10];
    let refused = [
        comm.untyped(DataType::F64).all_reduce_in_place(&mut memory, &ReduceOp::Sum),
        comm.untyped(DataType::F32).all_reduce_in_place(heap.part(0, 6)?, &ReduceOp::Sum),
        comm.untyped(DataType::Bf16).send(&memory[..9], peer),
        comm.untyped(DataType::Bf16).recv(&mut memory[..9], peer),
        comm.untyped(DataType::U64).all_gather(heap.part(0, 8)?, &mut memory),
    ];
    for refused in refused {
        let text = refused.unwrap_err().to_string();
        assert!(
            text.starts_with("the number of bytes ") && text.contains("a multiple of the size"),
            "{text}"
        );
    }
    // Bytes of one rank are elements of another.
    memory[..8].copy_from_slice(&7_u64.to_ne_bytes());
    if comm.rank() == rank(comm, 0) {
        comm.untyped(DataType::U64).all_reduce_in_place(&mut memory[..8], &ReduceOp::Sum)?;
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
    stream.on(comm).untyped(DataType::U32).all_reduce_in_place(&words, &ReduceOp::Sum)?;
    stream.on(comm).untyped(DataType::U8).broadcast_in_place(words.region(), root)?;
    stream.synchronise()?;
    assert!(words.to_vec().iter().all(|word| *word == 6));
});
