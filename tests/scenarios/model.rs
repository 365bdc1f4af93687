//! Random traffic against a plain model of it.
//!
//! All ranks draw the same operations from one seed. The operations form a chain: whoever is next
//! waits for the signal of whoever was last, so the outcome is determined; every rank plays the
//! whole chain on vectors and compares its own heap.

use shmccl::channel::Channel;
use shmccl::{Communicator, Result};

use crate::harness::{Job, Random, seed};

const LEN: usize = 20_000;
const STEPS: usize = 400;

#[derive(Clone, Copy, Debug)]
enum Step {
    Put { target: usize, from: usize, to: usize, len: usize, proxied: bool },
    Get { source: usize, from: usize, to: usize, len: usize },
    Fill { from: usize, len: usize, byte: u8 },
}

fn draw(random: &mut Random, n_ranks: usize) -> (usize, Step) {
    let mut below = |limit: usize| usize::try_from(random.below(limit as u64)).unwrap();
    let actor = below(n_ranks);
    let longest = [1, 16, 300, 5000, LEN][below(5)];
    let len = below(longest + 1);
    let (from, to) = (below(LEN - len + 1), below(LEN - len + 1));
    let step = match below(5) {
        0 => Step::Fill { from, len, byte: u8::try_from(below(256)).unwrap() },
        1 | 2 => Step::Get { source: below(n_ranks), from, to, len },
        _ => Step::Put { target: below(n_ranks), from, to, len, proxied: below(2) == 0 },
    };
    (actor, step)
}

/// What a step does to the model.
fn play(heaps: &mut [Vec<u8>], actor: usize, step: Step) {
    match step {
        Step::Put { target, from, to, len, .. } => {
            let bytes = heaps[actor][from..from + len].to_vec();
            heaps[target][to..to + len].copy_from_slice(&bytes);
        }
        Step::Get { source, from, to, len } => {
            let bytes = heaps[source][from..from + len].to_vec();
            heaps[actor][to..to + len].copy_from_slice(&bytes);
        }
        Step::Fill { from, len, byte } => heaps[actor][from..from + len].fill(byte),
    }
}

fn random_traffic(comm: &mut Communicator) -> Result<()> {
    let n_ranks = usize::try_from(comm.n_ranks()).unwrap();
    let own = usize::try_from(comm.rank().get()).unwrap();
    let (buffer, seeds) = (comm.alloc::<u8>(LEN)?, comm.alloc::<u64>(1)?);
    let peers: Vec<_> = (0..comm.n_ranks()).map(|peer| crate::harness::rank(comm, peer)).collect();
    let mut direct = peers.iter().map(|peer| comm.memory_channel(*peer)).collect::<Result<Vec<_>>>()?;
    let mut proxied = peers.iter().map(|peer| comm.port_channel(*peer)).collect::<Result<Vec<_>>>()?;
    if own == 0 {
        let seed = seed();
        for channel in &mut direct {
            channel.write(seeds.region().offset, seed)?;
        }
    }
    comm.barrier()?;
    let seed = seeds.get(0)?;
    let mut random = Random(seed);
    let mut heaps: Vec<_> = (0..n_ranks).map(|_| random.bytes(LEN)).collect();
    buffer.copy_from_slice(0, &heaps[own])?;
    comm.barrier()?;
    let at = |index: usize| buffer.part(index, 0).map(|region| region.offset);
    let mut last: Option<(usize, bool)> = None;
    for number in 0..STEPS {
        let (actor, step) = draw(&mut random, n_ranks);
        if let Some((before, by_proxy)) = last.filter(|(before, _)| *before != actor) {
            // The signal of the last actor, over the channel that its step took, carries its puts.
            match (own, by_proxy) {
                (own, true) if own == before => proxied[actor].signal()?,
                (own, false) if own == before => direct[actor].signal()?,
                (own, true) if own == actor => proxied[before].wait()?,
                (own, false) if own == actor => direct[before].wait()?,
                _ => {}
            }
        }
        if own == actor {
            let mine = buffer.to_vec();
            assert!(mine == heaps[own], "SHMCCL_SEED={seed}, before step {number}, {step:?} of rank {actor}");
            match step {
                Step::Put { target, from, to, len, proxied: false } => {
                    direct[target].put(at(to)?, at(from)?, len as u64)?
                }
                Step::Put { target, from, to, len, proxied: true } => {
                    proxied[target].put(at(to)?, at(from)?, len as u64)?;
                    proxied[target].flush()?;
                }
                Step::Get { source, from, to, len } => direct[source].get(at(to)?, at(from)?, len as u64)?,
                Step::Fill { from, len, byte } => buffer.copy_from_slice(from, &vec![byte; len])?,
            }
        }
        play(&mut heaps, actor, step);
        last = Some((actor, matches!(step, Step::Put { proxied: true, .. })));
    }
    comm.barrier()?;
    assert!(buffer.to_vec() == heaps[own], "SHMCCL_SEED={seed}, rank {own} at the end");
    comm.barrier()
}

port_scenario!(random_traffic_of_two_ranks_ends_as_the_model_says, Job::of(2), |comm| {
    random_traffic(comm)?;
});
port_scenario!(random_traffic_of_three_ranks_ends_as_the_model_says, Job::of(3), |comm| {
    random_traffic(comm)?;
});
port_scenario!(random_traffic_of_five_ranks_ends_as_the_model_says, Job::of(5), |comm| {
    random_traffic(comm)?;
});
