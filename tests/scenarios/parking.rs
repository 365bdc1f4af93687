//! Ranks that wait for long sleep, and the right one wakes.

use std::time::{Duration, Instant};

use shmccl::bootstrap::ProxyMode;
use shmccl::{Communicator, Result};
use support::long;

use crate::harness::{Job, Open, figure, open_memory, open_port, rank, test_name};

const RANKS: u32 = 8;

/// How often a sleeper looks up by itself at most: so often where the kernel refuses `membarrier`,
/// and rarely elsewhere.
const LOOKS_UP: Duration = Duration::from_millis(20);

/// What all of them may use together while they sleep, in per cent of a core: what is promised
/// where that is held (`SHMCCL_LONG=1`, on optimised code). Elsewhere what shows that none of them
/// polls, which would take tens: whoever wakes by itself now and then takes longer in code that is
/// not optimised, and beside other tests.
fn limit() -> f64 {
    if long() && !cfg!(debug_assertions) { 1.0 } else { 4.0 }
}

/// What the kernel says about each thread of a process, in the file `name`.
fn of_threads(pid: u64, name: &str) -> Vec<String> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    // A thread may end between the two looks.
    threads.filter_map(|thread| std::fs::read_to_string(thread.unwrap().path().join(name)).ok()).collect()
}

/// Processor time that a process has used so far, in nanoseconds.
fn used(pid: u64) -> u64 {
    let time = |line: &String| line.split(' ').next().unwrap().parse::<u64>().unwrap();
    of_threads(pid, "schedstat").iter().map(time).sum()
}

fn is_asleep(pid: u64) -> bool {
    of_threads(pid, "stat").iter().all(|line| line.rsplit(") ").next().unwrap().starts_with('S'))
}

/// How often each thread of a process has gone to sleep so far.
fn sleeps(pid: u64) -> Vec<u64> {
    let count = |status: &String| {
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.unwrap().trim().parse::<u64>().unwrap()
    };
    of_threads(pid, "status").iter().map(count).collect()
}

/// Processor time that all of `pids` use in a second, once all but the first, which is this
/// process, are asleep.
fn used_in_a_second(pids: &[u64]) -> Duration {
    while !pids[1..].iter().all(|&pid| is_asleep(pid)) {
        std::thread::yield_now();
    }
    let total = || pids.iter().map(|&pid| used(pid)).sum::<u64>();
    let (before, start) = (total(), Instant::now());
    // Not a wait for anything: the second is what is measured.
    while let Some(rest) = Duration::from_secs(1).checked_sub(start.elapsed()) {
        std::thread::park_timeout(rest);
    }
    Duration::from_nanos(total() - before)
}

/// Puts all ranks but the first to sleep, sees that they use next to nothing, and wakes them.
fn sleep_and_wake(comm: &mut Communicator, what: &str, open: Open) -> Result<()> {
    let pids = comm.alloc::<u64>(RANKS as usize)?;
    let own = comm.rank().get();
    let mut to_first = open(comm, rank(comm, 0))?;
    let mut to_all = Vec::new();
    if own == 0 {
        // The first of rank 0's channels to itself pairs with itself.
        for peer in 1..comm.n_ranks() {
            to_all.push(open(comm, rank(comm, peer))?);
        }
    }
    let me = u64::from(std::process::id());
    // A stream without work costs nothing either.
    let stream = comm.stream()?;
    stream.call(|| {})?;
    stream.synchronise()?;
    comm.memory_channel(rank(comm, 0))?.write(pids.part(own as usize, 1)?.offset, me)?;
    comm.barrier()?;
    if own == 0 {
        // What else the machine has to do may cost a second of them something, and not three.
        let mut share = f64::INFINITY;
        for _ in 0..3 {
            if share >= limit() {
                share = used_in_a_second(&pids.to_vec()).as_secs_f64() * 100.0;
            }
        }
        figure(&format!("{RANKS} ranks parked for a second, {what}: {share:.2} % of a core"));
        assert!(share < limit(), "{share:.2} % of a core");
    } else {
        to_first.wait()?;
    }
    // One after another: each is woken by its own signal and by no other.
    if own == 0 {
        let pids = pids.to_vec();
        let (start, before) = (Instant::now(), pids.iter().map(|&pid| sleeps(pid)).collect::<Vec<_>>());
        for peer in [3, 7, 1, 2, 6, 5, 4] {
            // The signals of those who came before have not woken it. The last one has slept
            // through six.
            let now = sleeps(pids[peer]);
            let awoke = now.iter().zip(&before[peer]).map(|(now, before)| now - before).max().unwrap();
            let alone = 1 + start.elapsed().as_nanos() / LOOKS_UP.as_nanos();
            assert!(u128::from(awoke) <= alone, "rank {peer} awoke {awoke} times before its own signal");
            let channel = &mut to_all[peer - 1];
            channel.signal()?;
            channel.wait()?;
            assert!(to_all.iter_mut().all(|channel| !channel.poll()), "only rank {peer} was woken");
        }
    } else {
        to_first.signal()?;
    }
    comm.barrier()
}

/// Processor time is the process's, so there are no threads.
mod eight_parked_ranks_use_next_to_nothing_and_the_right_one_wakes {
    use super::*;

    #[test]
    fn processes() {
        let name = test_name(module_path!(), "processes");
        Job::of(RANKS)
            .processes(&name, ProxyMode::Thread, |comm| sleep_and_wake(comm, "direct", open_memory));
    }
}

mod eight_parked_ranks_with_idle_proxies_use_next_to_nothing {
    use super::*;

    #[test]
    fn processes() {
        let name = test_name(module_path!(), "processes");
        Job::of(RANKS).processes(&name, ProxyMode::Thread, |comm| {
            sleep_and_wake(comm, "with proxy threads", open_port)
        });
    }

    #[test]
    fn service() {
        let name = test_name(module_path!(), "service");
        Job::of(RANKS)
            .processes(&name, ProxyMode::Process, |comm| sleep_and_wake(comm, "beside a service", open_port));
    }
}
