//! Ranks that wait for long sleep, and the right one wakes.

use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};
use shmccl::bootstrap::ProxyMode;
use shmccl::{Communicator, Result};

use crate::harness::{Job, Open, figure, open_memory, open_port, rank, test_name};

const RANKS: u32 = 8;

/// Processor time that this process has used so far, in nanoseconds.
fn used() -> u64 {
    let time = Duration::from(clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).unwrap());
    u64::try_from(time.as_nanos()).unwrap()
}

fn sleep_and_wake(comm: &mut Communicator, what: &str, open: Open) -> Result<()> {
    let figures = comm.alloc::<u64>(RANKS as usize)?;
    let own = comm.rank().get();
    let mut to_first = open(comm, rank(comm, 0))?;
    let mut to_all = Vec::new();
    if own == 0 {
        // The first of rank 0's channels to itself pairs with itself.
        for peer in 1..comm.n_ranks() {
            to_all.push(open(comm, rank(comm, peer))?);
        }
    }
    comm.barrier()?;
    let (before, start) = (used(), Instant::now());
    if own > 0 {
        to_first.wait()?;
    } else {
        while start.elapsed() < Duration::from_secs(1) {
            std::thread::park_timeout(Duration::from_secs(1).saturating_sub(start.elapsed()));
        }
    }
    let mine = used() - before;
    // One after another: each is woken by its own signal and by no other.
    if own == 0 {
        for peer in [3, 7, 1, 2, 6, 5, 4] {
            let channel = &mut to_all[usize::try_from(peer).expect("a rank") - 1];
            channel.signal()?;
            channel.wait()?;
            assert!(to_all.iter_mut().all(|channel| !channel.poll()), "only rank {peer} was woken");
        }
    } else {
        to_first.signal()?;
    }
    comm.memory_channel(rank(comm, 0))?.write(figures.part(own as usize, 1)?.offset, mine)?;
    comm.barrier()?;
    if own == 0 {
        let total = Duration::from_nanos(figures.to_vec().iter().sum());
        let share = total.as_secs_f64() * 100.0;
        figure(&format!("{RANKS} ranks parked for a second, {what}: {share:.2} % of a core"));
        // The aim is one; processor time is accounted with some tolerance on a shared machine.
        assert!(share < 3.0, "{share:.2} % of a core, {:?}", figures.to_vec());
    }
    Ok(())
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
