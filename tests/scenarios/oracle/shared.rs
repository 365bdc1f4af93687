//! Calls that share memory: of one communicator, one after the other, however they are submitted.
//!
//! All buffers of a rank are parts of one piece of its heap that is hardly longer than the longest
//! of them. So calls read what earlier ones have written, in whole or in part, and overwrite it; on
//! each rank at other places. Every rank works out in ordinary memory what the calls do to the
//! pieces of *all* ranks, one by one, and compares its own with that.
//!
//! The calls are cut into operations, the same on all ranks. Each rank draws how it submits one of
//! a single call, and one of several, as a group.

use std::sync::Arc;
use std::time::Duration;

use shmccl::collective::{Algorithm, Operation};
use shmccl::comm::{Buffers, CollectiveCall, Submit, Work};
use shmccl::heap::{DeviceBuffer, Region};
use shmccl::plan::{ExecutionPlan, read};
use shmccl::reduce::{DataType, ReduceOp};
use shmccl::{Blocks, Communicator, Group, Result, Stream};
use support::long;

use crate::harness::{Job, Random, agreed_seed, rank};
use crate::oracle::table::{below, one_of};

/// The longest buffer of a call that counts blocks alike, in bytes.
const MOST: usize = 64 << 10;

/// The most calls of a draw, as a rule.
const CALLS: usize = 9;

/// Draws of a job: among 2, 3 and 4 ranks, 10,200 in the long form.
fn n_draws() -> usize {
    if long() { 3400 } else { 60 }
}

/// Where a call has its buffers on one rank: so many bytes into the piece.
#[derive(Clone, Copy, Debug)]
struct Place {
    send: usize,
    recv: usize,
    /// The call is named in place.
    is_named: bool,
}

/// One call of all ranks.
#[derive(Debug)]
struct SharedCall {
    operation: Operation,
    dtype: DataType,
    op: ReduceOp,
    /// Elements of a block.
    count: usize,
    root: usize,
    /// Elements of blocks of their own lengths, by who sends and who receives them.
    counts: Vec<Vec<usize>>,
    places: Vec<Place>,
}

/// How one rank submits an operation.
#[derive(Clone, Copy, Debug)]
enum Way {
    AtOnce,
    OnStream,
    Started,
}

/// Some calls, cut into operations.
#[derive(Debug)]
struct Draw {
    calls: Vec<SharedCall>,
    /// How many calls each operation has.
    operations: Vec<usize>,
    algorithm: Option<Algorithm>,
    /// The length of the piece in bytes.
    len: usize,
}

const OPERATIONS: [Operation; 12] = [
    Operation::AllReduce,
    Operation::AllReduce,
    Operation::Reduce,
    Operation::Broadcast,
    Operation::AllGather,
    Operation::ReduceScatter,
    Operation::AllToAll,
    Operation::AllToAllV,
    Operation::Gather,
    Operation::Scatter,
    Operation::Scan,
    Operation::ExScan,
];

impl SharedCall {
    fn draw(random: &mut Random, n: usize, most: usize) -> Self {
        let operation = one_of(random, &OPERATIONS);
        let dtype = one_of(random, &[DataType::U8, DataType::U32, DataType::U64]);
        let op = [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min, ReduceOp::BitXor][below(random, 4)].clone();
        let (sent, received) = operation.blocks(n as u64);
        let blocks = usize::try_from(sent.max(received)).unwrap().max(1);
        let limit = (most / blocks / dtype.size()).max(1);
        // All lengths of one number of bits are as likely as those of another.
        let bits = below(random, usize::try_from(limit.ilog2()).unwrap() + 1);
        let count = ((1 << bits) + below(random, 1 << bits)).min(limit);
        let mut counts = vec![vec![0; n]; n];
        if operation == Operation::AllToAllV {
            for (from, to) in (0..n).flat_map(|from| (0..=from).map(move |to| (from, to))) {
                // Both ways alike, so that ranks can name it in place.
                counts[from][to] = if random.below(5) == 0 { 0 } else { below(random, count / n + 1) };
                counts[to][from] = counts[from][to];
            }
        }
        Self { operation, dtype, op, count, root: below(random, n), counts, places: Vec::new() }
    }

    /// Bytes of both buffers of `rank`; none of those that it has not.
    fn lengths(&self, rank: usize) -> (usize, usize) {
        let (n, size, is_root) = (self.counts.len(), self.dtype.size(), rank == self.root);
        if self.operation == Operation::AllToAllV {
            let len = self.counts[rank].iter().sum::<usize>() * size;
            return (len, len);
        }
        let (sent, received) = self.operation.blocks(n as u64);
        let len = |blocks: u64, is_there: bool| {
            usize::try_from(blocks).unwrap() * self.count * size * usize::from(is_there)
        };
        let sends = is_root || !matches!(self.operation, Operation::Broadcast | Operation::Scatter);
        let is_left_out = self.operation == Operation::ExScan && rank == 0;
        let gets = is_root || !matches!(self.operation, Operation::Reduce | Operation::Gather);
        let gets = gets && !is_left_out;
        (len(sent, sends), len(received, gets))
    }

    /// Puts the buffers of all ranks somewhere into pieces of `len` bytes; often where those of the
    /// call `before` are.
    fn place(&mut self, random: &mut Random, before: Option<&Self>, len: usize) {
        let size = self.dtype.size();
        for rank in 0..self.counts.len() {
            let (sent, received) = self.lengths(rank);
            let somewhere = |random: &mut Random, room: usize| {
                let earlier = before.map(|call| call.places[rank]);
                let at = match (random.below(4), earlier) {
                    (0, Some(place)) => place.recv / size * size,
                    (1, Some(place)) => place.send / size * size,
                    _ => below(random, (len - room) / size + 1) * size,
                };
                at.min((len - room) / size * size)
            };
            let (mut send, mut recv) = (somewhere(random, sent), somewhere(random, received));
            let mut tries = 0;
            while send < recv + received && recv < send + sent && tries < 20 {
                (send, recv, tries) = (somewhere(random, sent), somewhere(random, received), tries + 1);
            }
            let (chance, start) = (random.below(6), somewhere(random, sent.max(received)));
            let is_in_place = tries == 20 || chance < 2;
            if is_in_place && sent > 0 && received > 0 {
                let own = |len: usize, other: usize| if len < other { start + rank * len } else { start };
                (send, recv) = (own(sent, received), own(received, sent));
            }
            let is_named = sent > 0 && received > 0 && is_in_place && chance != 0;
            self.places.push(Place { send, recv, is_named });
        }
    }

    /// Where the block between `rank` and `peer` is in the buffer of `rank`, in elements.
    fn displacement(&self, rank: usize, peer: usize) -> usize {
        self.counts[rank][..peer].iter().sum()
    }

    /// Does it to the `pieces` of all ranks.
    fn apply(&self, pieces: &mut [Vec<u8>]) {
        let (n, size) = (pieces.len(), self.dtype.size());
        let input = |rank: usize| pieces[rank][self.places[rank].send..][..self.lengths(rank).0].to_vec();
        let inputs: Vec<_> = (0..n).map(input).collect();
        let block = self.count * size;
        let part = |rank: usize, index: usize| inputs[rank][index * block..][..block].to_vec();
        let reduced_up_to =
            |end, index| self.combined(&(0..end).map(|rank| part(rank, index)).collect::<Vec<_>>());
        let reduced = |index| reduced_up_to(n, index);
        let of_all = |index: usize| (0..n).flat_map(|rank| part(rank, index)).collect();
        let output = |rank: usize| match self.operation {
            Operation::AllReduce | Operation::Reduce => reduced(0),
            Operation::ReduceScatter => reduced(rank),
            Operation::Scan => reduced_up_to(rank + 1, 0),
            Operation::ExScan => reduced_up_to(rank, 0),
            Operation::Broadcast => part(self.root, 0),
            Operation::Scatter => part(self.root, rank),
            Operation::AllToAll => of_all(rank),
            Operation::AllToAllV => (0..n)
                .flat_map(|from| {
                    let (at, len) = (self.displacement(from, rank) * size, self.counts[from][rank] * size);
                    inputs[from][at..at + len].to_vec()
                })
                .collect(),
            _ => of_all(0),
        };
        for (rank, piece) in pieces.iter_mut().enumerate() {
            let (at, len) = (self.places[rank].recv, self.lengths(rank).1);
            if len > 0 {
                piece[at..at + len].copy_from_slice(&output(rank));
            }
        }
    }

    fn combined(&self, inputs: &[Vec<u8>]) -> Vec<u8> {
        match self.dtype {
            DataType::U8 => self.combined_as::<u8>(inputs, u8::wrapping_add),
            DataType::U32 => self.combined_as::<u32>(inputs, u32::wrapping_add),
            _ => self.combined_as::<u64>(inputs, u64::wrapping_add),
        }
    }

    fn combined_as<T>(&self, inputs: &[Vec<u8>], add: fn(T, T) -> T) -> Vec<u8>
    where
        T: bytemuck::Pod + Ord + std::ops::BitXor<Output = T>,
    {
        let combine = |one: T, other: T| match self.op {
            ReduceOp::Sum => add(one, other),
            ReduceOp::Max => one.max(other),
            ReduceOp::Min => one.min(other),
            _ => one ^ other,
        };
        let mut sums = inputs[0].clone();
        for other in &inputs[1..] {
            let both = sums.chunks_exact_mut(size_of::<T>()).zip(other.chunks_exact(size_of::<T>()));
            for (sum, other) in both {
                let combined =
                    combine(bytemuck::pod_read_unaligned(sum), bytemuck::pod_read_unaligned(other));
                sum.copy_from_slice(bytemuck::bytes_of(&combined));
            }
        }
        sums
    }

    /// Makes the call of rank `me`, in its piece at `whole`.
    fn submit(
        &self,
        taker: &mut impl Submit<'static>,
        (me, root): (usize, shmccl::Rank),
        whole: Region,
    ) -> Result<()> {
        let (place, (sent, received)) = (self.places[me], self.lengths(me));
        let (send, recv) =
            (whole.part(place.send as u64, sent as u64)?, whole.part(place.recv as u64, received as u64)?);
        let both = if sent > received { send } else { recv };
        let displacements: Vec<_> = (0..self.counts.len()).map(|peer| self.displacement(me, peer)).collect();
        let buffers = if place.is_named { Buffers::in_place(both) } else { Buffers::apart(send, recv) };
        taker.submit(CollectiveCall {
            op: Some(&self.op),
            root,
            blocks: Some(&[Blocks::new(&self.counts[me], &displacements); 2]),
            ..CollectiveCall::new(self.operation, self.dtype, buffers)
        })
    }
}

impl Draw {
    fn new(random: &mut Random, n: usize) -> Self {
        let most = MOST >> below(random, 17);
        // Now and then more than one post has room for.
        let n_calls = if random.below(40) == 0 { 90 } else { 2 + below(random, CALLS - 1) };
        let most = if n_calls > CALLS { most.min(100) } else { most };
        let mut calls: Vec<_> = (0..n_calls).map(|_| SharedCall::draw(random, n, most)).collect();
        let lengths = calls.iter().flat_map(|call| (0..n).map(|rank| call.lengths(rank)));
        let longest = lengths.map(|(sent, received)| sent.max(received)).max().unwrap();
        // Two buffers have room apart, and little more.
        let len = (2 * longest + below(random, longest + 64) + 16).next_multiple_of(8);
        for index in 0..n_calls {
            let (before, rest) = calls.split_at_mut(index);
            rest[0].place(random, before.last(), len);
        }
        let mut operations = Vec::new();
        let mut left = n_calls;
        while left > 0 {
            let several = if random.below(4) == 0 { 1 } else { 1 + below(random, left) };
            operations.push(several);
            left -= several;
        }
        let algorithms = [None, None, None, Some(Algorithm::OneShot), Some(Algorithm::TwoShot)];
        let mut algorithm = one_of(random, &algorithms);
        let can = |call: &SharedCall| {
            call.operation == Operation::AllToAllV
                || algorithm.is_none_or(|algorithm| algorithm.supports(call.operation))
        };
        if !calls.iter().all(can) {
            algorithm = None;
        }
        Self { calls, operations, algorithm, len }
    }

    /// Makes all calls of this rank, each operation in a way that `own` has drawn, and waits.
    fn run(
        &self,
        comm: &mut Communicator,
        (piece, stream): (Region, &Stream),
        own: &mut Random,
    ) -> Result<()> {
        comm.set_algorithm(self.algorithm);
        let me = comm.rank().index();
        let (mut rest, mut works) = (self.calls.as_slice(), Vec::<Work>::new());
        for &n_calls in &self.operations {
            let (now, later) = rest.split_at(n_calls);
            rest = later;
            let with_roots: Vec<_> =
                now.iter().map(|call| (call, rank(comm, u32::try_from(call.root).unwrap()))).collect();
            let way = one_of(own, &[Way::AtOnce, Way::OnStream, Way::Started]);
            match (way, with_roots.as_slice()) {
                (Way::AtOnce, [(call, root)]) => call.submit(comm, (me, *root), piece)?,
                (Way::OnStream, [(call, root)]) => {
                    call.submit(&mut stream.on(comm), (me, *root), piece)?;
                }
                (Way::Started, calls) => works.push(comm.start(
                    |_| (),
                    |starting| {
                        calls.iter().try_for_each(|(call, root)| call.submit(starting, (me, *root), piece))
                    },
                )?),
                (_, calls) => {
                    let mut group = Group::start();
                    let joined = group.join(comm);
                    for (call, root) in calls {
                        call.submit(&mut group.on(joined), (me, *root), piece)?;
                    }
                    if matches!(way, Way::AtOnce) { group.end()? } else { group.end_on(stream)? }
                }
            }
        }
        works.iter().try_for_each(Work::wait)?;
        stream.synchronise()
    }
}

/// Plans that there are for so many ranks.
fn plans(n: usize) -> Vec<ExecutionPlan> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/plans/generated");
    let names = ["ar_pkt", "ar", "ag", "a2a"].map(|name| folder.join(format!("{name}_{n}.json")));
    names.iter().filter(|path| path.exists()).map(|path| read::read_file(path).unwrap().plan).collect()
}

/// Draws calls and compares what came of them; the second half by plans, as far as these fit.
fn all(comm: &mut Communicator) -> Result<()> {
    let seed = agreed_seed(comm)?;
    let (n, me) = (comm.n_ranks() as usize, comm.rank().index());
    let (mut random, mut own) = (Random(seed ^ (n as u64) << 32), Random(!seed ^ me as u64));
    let stream = comm.stream()?;
    let symmetric = comm.alloc::<u8>(4 * MOST)?;
    let in_arena = comm.arena().alloc::<u8>(4 * MOST + me * 8)?;
    for number in 0..n_draws() {
        if number == n_draws() / 2 {
            plans(n).into_iter().try_for_each(|plan| comm.register_plan(&Arc::new(plan)))?;
        }
        let draw = Draw::new(&mut random, n);
        let fill: Vec<_> = (0..n).map(|rank| Random(random.next() ^ rank as u64).bytes(draw.len)).collect();
        let home: &DeviceBuffer<u8> = if own.below(2) == 0 { &symmetric } else { &in_arena };
        home.copy_from_slice(0, &fill[me])?;
        draw.run(comm, (home.part(0, draw.len)?, &stream), &mut own)?;
        let (mut pieces, mut got) = (fill, vec![0; draw.len]);
        draw.calls.iter().for_each(|call| call.apply(&mut pieces));
        home.copy_to_slice(0, &mut got)?;
        let wrong = got.iter().zip(&pieces[me]).position(|(got, right)| got != right);
        assert_eq!(
            wrong, None,
            "first wrong byte on rank {me} of {n} in draw {number} (SHMCCL_SEED={seed}): {draw:?}"
        );
    }
    drop(in_arena);
    Ok(())
}

scenario!(calls_of_two_ranks_that_share_memory_are_done_one_after_the_other, job(2), |comm| {
    all(comm)?;
});
scenario!(calls_of_three_ranks_that_share_memory_are_done_one_after_the_other, job(3), |comm| {
    all(comm)?;
});
scenario!(calls_of_four_ranks_that_share_memory_are_done_one_after_the_other, job(4), |comm| {
    all(comm)?;
});

fn job(n: u32) -> Job {
    let (timeout, patience) = if long() { (600, 4 * 3600) } else { (60, 300) };
    let job = Job::of(n).heap_len(64 << 20);
    job.timeout(Duration::from_secs(timeout)).patience(Duration::from_secs(patience))
}
