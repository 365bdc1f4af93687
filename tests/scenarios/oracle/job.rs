//! Runs combinations on the ranks of a job, and looks at what came of them.

use std::time::Duration;

use shmccl::bootstrap::ProxyMode;
use shmccl::collective::ChannelKind;
use shmccl::collective::tuning::Table;
use shmccl::{Communicator, Result};
use support::long;

use crate::harness::{Job, Random, agreed_seed};
use crate::oracle::answer::{Question, Verified};
use crate::oracle::memory::Zone;
use crate::oracle::messages::Exchange;
use crate::oracle::table::{Combination, LONG, most_bytes};
use crate::oracle::turn::{MOST, Turn};
use crate::oracle::values::Pool;

/// How many ranks of a job count as sharing a core, whatever this machine has: the ways differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Crowd {
    /// All of them.
    One,
    /// None.
    Apart,
}

/// A job of `n` ranks.
fn job(n: u32, crowd: Crowd) -> Job {
    // The whole table goes on beside other work, which may stop it for a while.
    let (timeout, patience) = if long() { (600, 4 * 3600) } else { (60, 300) };
    Job::of(n)
        .cores(if crowd == Crowd::One { 1 } else { n })
        .heap_len(24 << 20)
        .timeout(Duration::from_secs(timeout))
        .patience(Duration::from_secs(patience))
}

/// Runs `sample` combinations, or all, among `n` ranks in threads over channels of `kind`.
pub(crate) fn in_threads((n, crowd): (u32, Crowd), kind: ChannelKind, sample: usize) {
    let verified = Verified::default();
    job(n, crowd).threads("oracle", |comm| all(comm, crowd, kind, sample, &verified));
}

/// Like [`in_threads`], but among processes, in the test `name`.
pub(crate) fn in_processes(
    name: &str,
    (n, crowd): (u32, Crowd),
    kind: ChannelKind,
    proxy: ProxyMode,
    sample: usize,
) {
    job(n, crowd).processes(name, proxy, |comm| all(comm, crowd, kind, sample, &Verified::default()));
}

fn all(
    comm: &mut Communicator,
    crowd: Crowd,
    kind: ChannelKind,
    sample: usize,
    verified: &Verified,
) -> Result<()> {
    let seed = agreed_seed(comm)?;
    let (n, me) = (comm.n_ranks() as usize, comm.rank().index());
    let mut random = Random(seed ^ (n as u64) << 32 ^ (kind as u64) << 40 ^ (crowd as u64) << 48);
    let pool = Pool::new(random.next());
    let turns = turns(&mut random, n, sample);
    let mut zones = zones(comm, seed)?;
    let stream = comm.stream()?;
    // Whatever table there is on this machine: the built-in one takes the order of the ranks.
    comm.set_tuning(Table::default())?;
    assert_eq!(comm.is_oversubscribed()?, crowd == Crowd::One && n > 1);
    comm.set_channel_kind(kind)?;
    for (number, turn) in turns.iter().enumerate() {
        let question =
            |(index, call)| Question { call, number: number * MOST + index, n, me, pool: &pool, verified };
        let questions: Vec<_> = turn.calls.iter().enumerate().map(question).collect();
        if let Err(wrong) = turn.run(&questions, comm, &mut zones, &stream) {
            panic!(
                "rank {me} of {n} over {kind} channels: {wrong} in turn {number}: {turn:?} (SHMCCL_SEED={seed})"
            );
        }
    }
    exchange(comm, &mut random, turns.len() / EXCHANGES, &mut zones[0]).map_err(|wrong| {
        panic!("rank {me} of {n} over {kind} channels: {wrong} (SHMCCL_SEED={seed})");
    })
}

/// `sample` turns, or those with all combinations.
fn turns(random: &mut Random, n: usize, sample: usize) -> Vec<Turn> {
    if long() {
        let all = Combination::all(random, n);
        return all.into_iter().map(|call| Turn::with(random, n, call)).collect();
    }
    (0..sample).map(|_| Turn::draw(random, n)).collect()
}

/// The zones for each of the calls of a turn: those for the first are the longest.
fn zones(comm: &mut Communicator, seed: u64) -> Result<Vec<(Zone, Zone)>> {
    let pair = |number: usize| {
        let (seed, most) = (seed ^ (number as u64) << 56, if number == 0 { most_bytes() } else { LONG });
        Ok((Zone::of(comm, seed, most)?, Zone::of(comm, !seed, most)?))
    };
    (0..MOST).map(pair).collect()
}

/// Turns for each exchange.
const EXCHANGES: usize = 6;

/// Makes `sample` exchanges of blocks.
fn exchange(
    comm: &mut Communicator,
    random: &mut Random,
    sample: usize,
    zones: &mut (Zone, Zone),
) -> Result<(), String> {
    for number in 0..sample {
        let exchange = Exchange::draw(random, comm.n_ranks() as usize, number);
        exchange.run(comm, zones).map_err(|wrong| format!("{wrong} in exchange {number}: {exchange:?}"))?;
    }
    Ok(())
}
