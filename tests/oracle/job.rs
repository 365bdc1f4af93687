//! Runs combinations on the ranks of a job, and looks at what came of them.

use std::time::Duration;

use shmccl::bootstrap::ProxyMode;
use shmccl::collective::ChannelKind;
use shmccl::collective::tuning::Table;
use shmccl::{Communicator, Result};
use support::long;

use crate::answer::{Question, Verified};
use crate::harness::{Job, Random, agreed_seed};
use crate::memory::Zone;
use crate::messages::Exchange;
use crate::plan::Plan;
use crate::table::Combination;
use crate::values::Pool;

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

/// The same among processes, in the test `name`.
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
    let calls = match long() {
        true => Combination::all(&mut random, n),
        false => (0..sample).map(|_| Combination::draw(&mut random, n)).collect(),
    };
    let mut zones = (Zone::new(comm, seed)?, Zone::new(comm, !seed)?);
    // Whatever table there is on this machine: the built-in one takes the order of the ranks.
    comm.set_tuning(Table::default())?;
    assert_eq!(comm.is_crowded()?, crowd == Crowd::One && n > 1);
    comm.set_channel_kind(kind)?;
    for (number, call) in calls.iter().enumerate() {
        let question = Question { call, number, n, me, pool: &pool, verified };
        if let Err(wrong) = Plan::of(&question).run(comm, &mut zones) {
            panic!(
                "rank {me} of {n} over {kind} channels: {wrong} in call {number}: {call:?} (SHMCCL_SEED={seed})"
            );
        }
    }
    exchange(comm, &mut random, calls.len() / EXCHANGES, &mut zones).map_err(|wrong| {
        panic!("rank {me} of {n} over {kind} channels: {wrong} (SHMCCL_SEED={seed})");
    })
}

/// Combinations for each exchange.
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
