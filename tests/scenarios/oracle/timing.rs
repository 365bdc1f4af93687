//! Results are the same bits on every rank and in every run, whatever the timing: no rank knows who
//! comes first.
//!
//! Ranks go through the same calls over and over, each delayed between them as chance has it. The
//! numbers are the worst that there are: any bits, so NaN of all kinds, subnormals, both zeros and
//! sizes that swallow each other are among them.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

use shmccl::collective::tuning::{BufferKind, Case, Step, Table};
use shmccl::collective::{Algorithm, ChannelKind, Operation};
use shmccl::reduce::DataType;
use shmccl::{Collectives, Communicator, Result};
use support::long;

use crate::harness::{Job, Random, agreed_seed};
use crate::oracle::call::{Sides, run};
use crate::oracle::memory::Zone;
use crate::oracle::table::{Combination, Memory, Operator};
use crate::oracle::values::{Pool, Values};

/// How often each call is made in each place and over each kind of channel.
const TIMES: usize = 2;

/// Types whose results depend on the order.
const FLOATS: [DataType; 6] =
    [DataType::F16, DataType::Bf16, DataType::F32, DataType::F64, DataType::F8E4M3, DataType::F8E5M2];

/// Elements, a bit more than go into one message, into one eager slot, and into one piece of what
/// is staged.
const COUNTS: [usize; 4] = [13, 1500, 9001, 300_001];

/// Lets some time pass, or none.
fn dawdle(random: &mut Random) {
    match random.below(4) {
        0 => (0..random.below(30)).for_each(|_| std::thread::yield_now()),
        1 => {
            let (began, pause) = (Instant::now(), Duration::from_micros(random.below(100)));
            while began.elapsed() < pause {
                std::hint::spin_loop();
            }
        }
        _ => {}
    }
}

/// An all-reduce of `call` on this rank, in the heap or not.
fn reduce(
    comm: &mut Communicator,
    zone: &mut Zone,
    pool: &Pool,
    call: &Combination,
    in_heap: bool,
) -> Result<Vec<u8>> {
    let me = comm.rank().index() as u64;
    let input = pool.input(call.dtype, call.values, call.chance(me), call.count);
    let mut buffer = zone.lay(call.chance(me + 100), in_heap, call.dtype.size(), input.len());
    buffer.expect(0, &input);
    buffer.put()?;
    let scalar = pool.scalar(call.dtype, call.values, call.salt);
    run(comm, call, &scalar, Sides::One(buffer.side(0, input.len())?))?;
    buffer.contents()
}

/// Makes `call` many times, and returns what came of it each time, which is the same.
fn repeat(
    comm: &mut Communicator,
    zone: &mut Zone,
    pool: &Pool,
    call: &Combination,
    delays: &mut Random,
) -> Result<()> {
    // By whether the buffers are in the heap, where that makes a difference.
    let mut firsts: [Option<Vec<u8>>; 2] = [None, None];
    for time in 0..TIMES {
        for kind in [ChannelKind::Memory, ChannelKind::Port] {
            comm.set_channel_kind(kind)?;
            for in_heap in [true, false] {
                dawdle(delays);
                let result = reduce(comm, zone, pool, call, in_heap)?;
                dawdle(delays);
                let first =
                    firsts[usize::from(in_heap && is_cut(call))].get_or_insert_with(|| result.clone());
                assert!(
                    *first == result,
                    "{call:?} gives something else over {kind} channels the {time}. time"
                );
            }
        }
    }
    firsts.iter().flatten().try_for_each(|first| agree(comm, call, first))
}

/// Bytes that few ranks hand over with their announcement, in a slot of its own, and many with a
/// core each by two shots.
const SHORT: usize = 6000;

/// So many calls are made of one length: by then every way to store results has been tried out, and
/// the way by the scratch (`Lengths` in `src/collective/strategy`).
const STORED: usize = 24;

/// Where a rank has its buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lie {
    /// Apart in the heap.
    Apart,
    /// Apart in ordinary memory.
    Elsewhere,
    /// In one place in the heap.
    InPlace,
}

/// Makes one all-reduce again and again, out of place in the heap and with outputs that begin at
/// the same place in lines on all ranks, so that results go to them in every way that there is.
/// Between these calls one rank is not where the others are, who may have staged ahead.
fn store(
    comm: &mut Communicator,
    (sent, received): (&mut Zone, &mut Zone),
    pool: &Pool,
    call: &Combination,
    delays: &mut Random,
) -> Result<()> {
    let (me, n) = (comm.rank().index() as u64, u64::from(comm.n_ranks()));
    let input = pool.input(call.dtype, call.values, call.chance(me), call.count);
    let scalar = pool.scalar(call.dtype, call.values, call.salt);
    comm.set_channel_kind(ChannelKind::Memory)?;
    let mut first = None;
    for time in 0..STORED {
        let odd = [Lie::Elsewhere, Lie::InPlace][time % 2];
        let is_odd = call.chance(time as u64 + 200) % n == me;
        for lie in [Lie::Apart, odd] {
            dawdle(delays);
            let lie = if is_odd { lie } else { Lie::Apart };
            let result = store_once(comm, (sent, received), (call, &input, &scalar), lie)?;
            assert!(
                *first.get_or_insert_with(|| result.clone()) == result,
                "{call:?} gives something else the {time}. time, {lie:?}"
            );
        }
    }
    first.iter().try_for_each(|first| agree(comm, call, first))
}

fn store_once(
    comm: &mut Communicator,
    (sent, received): (&mut Zone, &mut Zone),
    (call, input, scalar): (&Combination, &[u8], &[u8]),
    lie: Lie,
) -> Result<Vec<u8>> {
    let (me, size, in_heap) = (comm.rank().index() as u64, call.dtype.size(), lie != Lie::Elsewhere);
    let mut from = sent.lay(call.chance(me + 100), in_heap, size, input.len());
    from.expect(0, input);
    from.put()?;
    if lie == Lie::InPlace {
        run(comm, call, scalar, Sides::One(from.side(0, input.len())?))?;
        return from.contents();
    }
    let mut to = received.lay(call.chance(0), in_heap, size, input.len());
    to.put()?;
    run(comm, call, scalar, Sides::Two(from.side(0, input.len())?, to.side(0, input.len())?))?;
    to.contents()
}

/// Whether ordinary memory is staged in pieces of which each is cut for itself, as the
/// documentation of [`Algorithm`] has it.
fn is_cut(call: &Combination) -> bool {
    let cuts = matches!(call.algorithm, Some(Algorithm::Ring | Algorithm::DoubleTree));
    cuts && call.count == COUNTS[3] && !call.dtype.is_short_float()
}

/// Compares `result` with that of the other ranks.
fn agree(comm: &mut Communicator, call: &Combination, result: &[u8]) -> Result<()> {
    let mut hasher = DefaultHasher::new();
    result.hash(&mut hasher);
    let mut all = vec![0; comm.n_ranks() as usize];
    comm.set_algorithm(None);
    comm.all_gather(&[hasher.finish()], &mut all)?;
    assert!(all.iter().all(|&other| other == all[0]), "ranks have different results of {call:?}");
    Ok(())
}

/// A table by which all-reduces go round a ring where such `buffers` decide, and as usual
/// otherwise: which, hangs on where all ranks have theirs.
fn by_ring_in(n_ranks: u32, buffers: BufferKind) -> Table {
    let steps = vec![Step { up_to: None, algorithm: Algorithm::Ring.into() }];
    let case = |oversubscribed| Case {
        operation: Operation::AllReduce,
        n_ranks,
        oversubscribed,
        buffers,
        steps: steps.clone(),
    };
    Table::new(&[case(false), case(true)]).unwrap()
}

fn all(comm: &mut Communicator) -> Result<()> {
    let seed = agreed_seed(comm)?;
    comm.set_tuning(Table::default())?;
    let (mut random, pool) = (Random(seed), Pool::new(seed));
    let mut delays = Random(seed ^ u64::from(comm.rank().get() + 1) << 48);
    let (mut zone, mut other) = (Zone::new(comm, seed)?, Zone::new(comm, seed + 1)?);
    let mut store_all = |comm: &mut Communicator, dtype: DataType, operator, counts: &[usize]| {
        counts.iter().try_for_each(|&count| {
            let (operation, algorithm, memory) = (Operation::AllReduce, None, Memory::Heap);
            let (values, in_place, root, salt) = (Values::Bits, false, 0, random.next());
            let call = Combination {
                operation,
                algorithm,
                dtype,
                operator,
                values,
                count,
                in_place,
                memory,
                root,
                salt,
            };
            store(comm, (&mut zone, &mut other), &pool, &call, &mut delays)
        })
    };
    for (dtype, operator) in [(DataType::F32, Operator::Sum), (DataType::Bf16, Operator::PreMulSum)] {
        store_all(comm, dtype, operator, &[SHORT / dtype.size(), COUNTS[2], 4 * COUNTS[2], COUNTS[3]])?;
    }
    for buffers in BufferKind::ALL {
        comm.set_tuning(by_ring_in(comm.n_ranks(), buffers))?;
        store_all(comm, DataType::I32, Operator::Sum, &[COUNTS[2]])?;
    }
    comm.set_tuning(Table::default())?;
    for algorithm in Algorithm::ALL.into_iter().map(Some).chain([None]) {
        for dtype in FLOATS {
            let operators =
                [Operator::Sum, Operator::Prod, Operator::Max, Operator::Avg, Operator::PreMulSum];
            let chosen = usize::try_from(random.below(5)).unwrap();
            for &operator in if long() { &operators[..] } else { &operators[chosen..=chosen] } {
                // What is long takes long.
                let all = dtype == DataType::F32 || long() && dtype.size() <= 4;
                for &count in if all { &COUNTS[..] } else { &COUNTS[..3] } {
                    let salt = random.next();
                    let call = Combination {
                        operation: Operation::AllReduce,
                        algorithm,
                        dtype,
                        operator,
                        values: if count == COUNTS[1] { Values::Near } else { Values::Bits },
                        count,
                        in_place: true,
                        memory: Memory::Mixed,
                        root: 0,
                        salt,
                    };
                    repeat(comm, &mut zone, &pool, &call, &mut delays)?;
                }
            }
        }
    }
    Ok(())
}

fn among(n: u32, cores: u32) {
    let job = Job::of(n).cores(cores).heap_len(24 << 20).timeout(Duration::from_secs(60));
    job.patience(Duration::from_secs(300)).threads("timing", all);
}

#[test]
fn two_ranks_get_the_same_bits_every_time_over_either_kind_of_channel() {
    among(2, 2);
}

#[test]
fn three_ranks_get_the_same_bits_every_time_over_either_kind_of_channel() {
    among(3, 3);
}

#[test]
fn four_ranks_get_the_same_bits_every_time_over_either_kind_of_channel() {
    among(4, 1);
}

#[test]
fn seven_ranks_get_the_same_bits_every_time_over_either_kind_of_channel() {
    among(7, 7);
}
