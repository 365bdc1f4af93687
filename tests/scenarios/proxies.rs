//! Proxies with handlers of the user's own, and over several fifos.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use shmccl::Error;
use shmccl::bootstrap::ProxyMode;
use shmccl::channel::{Channel, Executor};
use shmccl_proxy::{Handler, Trigger, TriggerRefusal};

use crate::harness::{Job, test_name};

/// Passes everything on and notes through which fifo it came.
struct Noting {
    inner: Executor,
    seen: Arc<Mutex<Vec<usize>>>,
}

impl Handler for Noting {
    fn handle(&mut self, fifo: usize, trigger: &Trigger) -> Result<(), TriggerRefusal> {
        self.seen.lock().unwrap().push(fifo);
        self.inner.handle(fifo, trigger)
    }
}

/// Channels are dealt out over the fifos in turn, and each works.
fn over_fifos(comm: &mut shmccl::Communicator, n_fifos: u32) -> shmccl::Result<()> {
    const ROUNDS: u64 = 50;
    let count = 10_usize;
    let (source, target) = (comm.alloc::<u64>(count)?, comm.alloc::<u64>(count)?);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let own = comm.rank();
    comm.start_proxy(n_fifos, |inner| {
        assert_eq!((inner.producer(0), inner.producer(n_fifos as usize)), (Some(own), None));
        Noting { inner, seen: Arc::clone(&seen) }
    })?;
    let peer = comm.right();
    let mut channels = (0..count).map(|_| comm.port_channel(peer)).collect::<shmccl::Result<Vec<_>>>()?;
    for round in 0..ROUNDS {
        for (index, channel) in channels.iter_mut().enumerate() {
            source.set(index, round * 100 + index as u64)?;
            channel.put_with_signal(target.part(index, 1)?.offset, source.part(index, 1)?.offset, 8)?;
        }
        for (index, channel) in channels.iter_mut().enumerate() {
            channel.wait()?;
            assert_eq!(target.get(index)?, round * 100 + index as u64);
            channel.flush()?;
        }
        comm.barrier()?;
    }
    let seen = seen.lock().unwrap();
    let mut used = vec![0_u64; n_fifos as usize];
    seen.iter().for_each(|fifo| used[*fifo] += 1);
    let share = |fifo: u32| (count as u64 + u64::from(n_fifos - 1 - fifo)) / u64::from(n_fifos) * 2 * ROUNDS;
    assert_eq!(used, (0..n_fifos).map(share).collect::<Vec<_>>());
    let served: Vec<_> = comm.fifo_snapshots()?.iter().map(|fifo| fifo.served).collect();
    assert_eq!(served[..n_fifos as usize], used);
    Ok(())
}

scenario!(a_proxy_serves_one_fifo, Job::of(2), |comm| {
    over_fifos(comm, 1)?;
});
scenario!(a_proxy_serves_two_fifos, Job::of(2), |comm| {
    over_fifos(comm, 2)?;
});
scenario!(a_proxy_serves_three_fifos, Job::of(2), |comm| {
    over_fifos(comm, 3)?;
});
scenario!(a_proxy_serves_eight_fifos, Job::of(2), |comm| {
    over_fifos(comm, 8)?;
});

scenario!(a_proxy_is_started_once_and_over_one_to_eight_fifos, Job::of(2), |comm| {
    for n_fifos in [0, 9, u32::MAX] {
        let refused = comm.start_proxy(n_fifos, |executor| executor);
        assert!(matches!(refused, Err(Error::InvalidArgument { name: "n_fifos", .. })), "{refused:?}");
    }
    let _channel = comm.port_channel(comm.right())?;
    let refused = comm.start_proxy(1, |executor| executor).unwrap_err();
    let told = "start_proxy needs a proxy that does not run yet; call it before the first port channel";
    assert_eq!(refused.to_string(), told);
    comm.barrier()?;
});

mod a_job_with_a_service_process_has_no_proxy_to_start {
    use super::*;

    #[test]
    fn service() {
        let name = test_name(module_path!(), "service");
        Job::of(2).processes(&name, ProxyMode::Process, |comm| {
            let refused = comm.start_proxy(1, |executor| executor).unwrap_err();
            let told = "start_proxy needs a job whose proxies are threads; this one has a service process";
            assert_eq!(refused.to_string(), told);
            Ok(())
        });
    }
}

scenario!(a_stopped_proxy_has_executed_all_that_was_pushed, Job::of(2).broken(), |comm| {
    const COUNT: usize = 400;
    let (source, target) = (comm.alloc::<u64>(COUNT)?, comm.alloc::<u64>(COUNT)?);
    let mut channel = comm.port_channel(comm.right())?;
    for index in 0..COUNT {
        source.set(index, index as u64 + 7)?;
        channel.put_with_signal(target.part(index, 1)?.offset, source.part(index, 1)?.offset, 8)?;
    }
    if comm.rank().get() == 0 {
        // Leaves at once; neither it nor its proxy stays for the peer.
        return Ok(());
    }
    for index in 0..COUNT {
        channel.wait()?;
        assert_eq!(target.get(index)?, index as u64 + 7);
    }
});

/// A handler that panics takes the proxy with it, and nobody waits for it.
mod a_handler_that_panics_ends_the_epoch {
    use shmccl::bootstrap::Options;
    use shmccl::launch::launch_threads;

    use super::*;
    use crate::harness::Watchdog;

    #[test]
    fn threads() {
        let _watchdog = Watchdog::start("a handler that panics", Duration::from_secs(60));
        let options = Options { heap_len: 2 << 20, ..Options::default() };
        let result = launch_threads(2, &options, |comm| {
            let own = comm.rank().get();
            comm.start_proxy(1, |_| {
                move |_: usize, _: &Trigger| -> Result<(), TriggerRefusal> {
                    panic!("the proxy of rank {own}, on purpose")
                }
            })?;
            let mut channel = comm.port_channel(comm.right())?;
            let error = if own == 0 {
                channel.signal()?;
                channel.flush().unwrap_err()
            } else {
                channel.wait().unwrap_err()
            };
            assert!(matches!(error, Error::ProxyLost), "{error}");
            Ok(())
        });
        assert!(matches!(result, Err(Error::ProxyLost)), "{result:?}");
    }
}

scenario!(a_refusal_of_a_handler_is_counted_and_the_rest_goes_on, Job::of(2), |comm| {
    const ROUNDS: u64 = 30;
    let mut turn = 0;
    comm.start_proxy(1, |mut inner| {
        move |fifo: usize, trigger: &Trigger| {
            turn += 1;
            if turn % 3 == 0 {
                Err(TriggerRefusal::new(99.try_into().unwrap()))
            } else {
                inner.handle(fifo, trigger)
            }
        }
    })?;
    let mut channel = comm.port_channel(comm.right())?;
    for _ in 0..3 * ROUNDS {
        channel.signal()?;
    }
    channel.flush()?;
    for _ in 0..2 * ROUNDS {
        channel.wait()?;
    }
    comm.barrier()?;
    assert!(!channel.poll());
    let fifo = &comm.fifo_snapshots()?[0];
    assert_eq!((fifo.refused, fifo.last_refused.unwrap().code), (ROUNDS, 99));
    comm.barrier()?;
});

scenario!(signals_that_a_handler_swallowed_are_not_sent_by_the_next_channel, Job::of(2), |comm| {
    comm.start_proxy(1, |mut inner| {
        let mut turn = 0;
        move |fifo: usize, trigger: &Trigger| {
            turn += 1;
            if turn <= 2 {
                Err(TriggerRefusal::new(99.try_into().unwrap()))
            } else {
                inner.handle(fifo, trigger)
            }
        }
    })?;
    let mut proxied = comm.port_channel(comm.right())?;
    (0..3).try_for_each(|_| proxied.signal())?;
    proxied.wait()?;
    assert!(!proxied.poll(), "two of three were refused");
    drop(proxied);
    comm.barrier()?;
    let mut direct = comm.memory_channel(comm.right())?;
    direct.signal()?;
    direct.wait()?;
    comm.barrier()?;
    assert!(!direct.poll(), "one signal was sent");
});
