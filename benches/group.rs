//! What putting small operations into one group saves: the same all-reduces of 8 bytes in a group,
//! and one by one.
//!
//! Throughput counts operations. Ranks are threads, on cores of their own as long as there are any;
//! the time is that of the last one.
#![allow(missing_docs, reason = "criterion's macros generate undocumented functions")]

mod pin;

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use shmccl::reduce::ReduceOp;
use shmccl::{Collectives, Communicator, Group, Result};

use self::pin::pin;

/// All-reduces in a group: their inputs and what tells of them fit into one post.
const CALLS: usize = 8;

/// The elements that each call reduces.
type Data = [[f32; 2]; CALLS];

/// Makes the calls of one round.
type Round = fn(&mut Communicator, &mut Data) -> Result<()>;

fn one_by_one(comm: &mut Communicator, data: &mut Data) -> Result<()> {
    data.iter_mut().try_for_each(|pair| comm.all_reduce_in_place(pair, &ReduceOp::Sum))
}

fn grouped(comm: &mut Communicator, data: &mut Data) -> Result<()> {
    let mut group = Group::start();
    let joined = group.join(comm);
    for pair in data {
        group.on(joined).all_reduce_in_place(pair, &ReduceOp::Sum)?;
    }
    group.end()
}

/// Times `rounds` of all ranks.
fn timed(comms: &mut [Communicator], rounds: u64, round: Round) -> Duration {
    let run = |index: usize, comm: &mut Communicator| {
        pin(index);
        let mut data = Data::default();
        comm.barrier().unwrap();
        let start = Instant::now();
        for _ in 0..rounds {
            round(comm, black_box(&mut data)).unwrap();
        }
        comm.barrier().unwrap();
        start.elapsed()
    };
    std::thread::scope(|scope| {
        let ranks = comms.iter_mut().enumerate();
        let running: Vec<_> = ranks.map(|(index, comm)| scope.spawn(move || run(index, comm))).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).max().unwrap_or_default()
    })
}

fn small_operations(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("8 all-reduces of 8 bytes");
    group.throughput(Throughput::Elements(CALLS as u64));
    for n_ranks in [2, 4] {
        let mut comms = Communicator::init_all(n_ranks).unwrap();
        for (name, round) in [("one by one", one_by_one as Round), ("in a group", grouped)] {
            group.bench_function(BenchmarkId::new(name, format!("{n_ranks} ranks")), |b| {
                b.iter_custom(|rounds| timed(&mut comms, rounds, round));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, small_operations);
criterion_main!(benches);
