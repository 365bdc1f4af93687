//! How waits end when what they wait for does not come.

use std::time::Duration;

use shmccl::channel::Channel;
use shmccl::collective::ChannelKind;
use shmccl::shm::packet::{PacketFlag, PacketKind};
use shmccl::{Communicator, Error, Rank, Result};

use crate::harness::{Job, is_lost, leave_together, meet_at_last, rank};

const SHORT: Duration = Duration::from_millis(50);

channel_scenario!(
    a_wait_that_times_out_names_whom_it_awaited_and_can_be_repeated,
    Job::of(2).timeout(SHORT).broken(),
    |comm, open| {
        let peer = comm.right();
        let mut channel = open(comm, peer)?;
        if comm.rank().get() == 0 {
            // The peer signals when it is told to, after the first try has failed.
            let error = channel.wait().unwrap_err();
            let named = matches!(error, Error::Timeout { operation: "wait", awaited: Some(rank), waited, .. } if rank == peer && waited == comm.timeout());
            assert!(named, "{error}");
            channel.signal()?;
        }
        while let Err(error) = channel.wait() {
            assert!(matches!(error, Error::Timeout { .. }), "{error}");
        }
        if comm.rank().get() == 1 {
            channel.signal()?;
        }
        meet_at_last(comm);
        assert!(!channel.poll(), "the failed wait took no signal");
        leave_together(comm);
    }
);

scenario!(
    whoever_was_told_of_the_end_passes_no_barrier_that_others_have_given_up,
    Job::of(2).timeout(SHORT).broken(),
    |comm| {
        let peer = comm.right();
        if comm.rank().get() == 1 {
            let error = comm.barrier().unwrap_err();
            assert!(matches!(error, Error::Timeout { awaited: Some(rank), .. } if rank == peer), "{error}");
            comm.revoke();
            return Ok(());
        }
        let mut channel = comm.memory_channel(peer)?;
        let told = |error: &Error| matches!(error, Error::Revoked { by: Some(rank), .. } if *rank == peer);
        let error = loop {
            match channel.wait().unwrap_err() {
                Error::Timeout { .. } => {}
                error => break error,
            }
        };
        assert!(told(&error), "{error}");
        // Its peer has come to this one.
        let error = comm.barrier().unwrap_err();
        assert!(told(&error), "{error}");
    }
);

scenario!(a_rank_that_was_given_up_is_told_so_by_its_own_proxy_too, Job::of(2).broken(), |comm| {
    let peer = comm.right();
    if comm.rank().get() == 1 {
        comm.give_up(peer)?;
        return Ok(());
    }
    let mut channel = comm.port_channel(peer)?;
    while comm.revoked().is_none() {
        std::thread::yield_now();
    }
    let error = channel.flush().unwrap_err();
    assert!(matches!(error, Error::PeerLost { rank } if rank == comm.rank()), "{error}");
});

/// Waits in the way that the rank's number picks for something that never comes.
fn wait_for_ever(comm: &mut Communicator, way: u32) -> Result<()> {
    let peer = comm.right();
    match way % 5 {
        0 => comm.memory_channel(peer)?.wait(),
        1 => comm.barrier(),
        2 => comm.memory_channel(peer)?.relaxed_wait(),
        3 => comm.port_channel(peer)?.wait(),
        _ => {
            let places = HeapPlaces::of(comm)?;
            let mut channel = comm.memory_channel(peer)?;
            channel.unpack_packets(
                PacketKind::Ll8,
                places.target,
                places.packets,
                8,
                PacketFlag::new(77).unwrap(),
            )
        }
    }
}

/// Two places in the heap that `prepare` has allocated.
struct HeapPlaces {
    target: shmccl::heap::HeapOffset,
    packets: shmccl::heap::HeapOffset,
}

impl HeapPlaces {
    fn of(comm: &Communicator) -> Result<Self> {
        let buffer = comm.buffer::<u64>(shmccl::heap::Region::new(shmccl::heap::HeapOffset::new(0), 64))?;
        Ok(Self { target: buffer.part(0, 1)?.offset, packets: buffer.part(2, 2)?.offset })
    }
}

port_scenario!(revoking_wakes_everybody_whatever_he_waits_in, Job::of(6).broken(), |comm| {
    comm.alloc::<u64>(8)?;
    comm.barrier()?;
    if comm.rank().get() == 5 {
        // The others are asleep by then, or on their way.
        std::thread::park_timeout(Duration::from_millis(30));
        comm.revoke();
        assert!(comm.revoked().is_some());
    } else {
        let error = wait_for_ever(comm, comm.rank().get()).unwrap_err();
        let by = Some(rank(comm, 5));
        assert!(matches!(error, Error::Revoked { by: found, .. } if found == by), "{error}");
    }
    // And so does whatever is tried afterwards.
    let error = wait_for_ever(comm, comm.rank().get()).unwrap_err();
    assert!(matches!(error, Error::Revoked { .. }), "{error}");
});

scenario!(a_rank_that_has_revoked_agrees_to_nothing_and_neither_do_the_others, Job::of(2).broken(), |comm| {
    let buffer = comm.alloc::<u64>(8)?;
    comm.barrier()?;
    if comm.rank().get() == 1 {
        comm.revoke();
    }
    let by = Some(rank(comm, 1));
    let is_revoked = |error: &Error| matches!(error, Error::Revoked { by: found, .. } if *found == by);
    for error in [
        comm.switch_channel(&buffer).map(drop).unwrap_err(),
        comm.duplicate().map(drop).unwrap_err(),
        comm.split(Some(0), 0).map(drop).unwrap_err(),
        comm.set_channel_kind(ChannelKind::Port).unwrap_err(),
    ] {
        assert!(is_revoked(&error), "{error}");
    }
});

port_scenario!(
    a_rank_that_leaves_is_lost_to_whoever_waits_for_it_but_its_signals_are_not,
    Job::of(3).broken(),
    |comm| {
        const SIGNALS: u64 = 20;
        let (source, target) = (comm.alloc::<u64>(1)?, comm.alloc::<u64>(1)?);
        let early = rank(comm, 0);
        let mut direct = comm.memory_channel(comm.right())?;
        let mut proxied = comm.port_channel(comm.right())?;
        if comm.rank() == early {
            for round in 0..SIGNALS {
                source.set(0, round)?;
                direct.put_with_signal(target.region().offset, source.region().offset, 8)?;
                proxied.signal()?;
            }
            return Ok(());
        }
        if comm.left() == early {
            let mut direct = comm.memory_channel(early)?;
            let mut proxied = comm.port_channel(early)?;
            for _ in 0..SIGNALS {
                direct.wait()?;
                proxied.wait()?;
            }
            assert_eq!(target.get(0)?, SIGNALS - 1);
            let error = direct.wait().unwrap_err();
            assert!(is_lost(&error, early), "{error}");
            let error = proxied.wait().unwrap_err();
            assert!(is_lost(&error, early), "{error}");
        }
        let error = comm.barrier().unwrap_err();
        assert!(is_lost(&error, early), "{error}");
    }
);

scenario!(whoever_passed_the_last_barrier_may_leave_before_the_others_look, Job::of(4), |comm| {
    // Ranks leave at once after the harness' finalize; none of them may take another for lost.
    comm.barrier()?;
});

port_scenario!(a_rank_may_leave_while_others_who_do_not_need_it_go_on, Job::of(3).broken(), |comm| {
    let (source, target) = (comm.alloc::<u64>(1)?, comm.alloc::<u64>(1)?);
    if comm.rank().get() == 2 {
        return Ok(());
    }
    let peer = rank(comm, 1 - comm.rank().get());
    let (mut direct, mut proxied) = (comm.memory_channel(peer)?, comm.port_channel(peer)?);
    for round in 0..100 {
        source.set(0, round)?;
        direct.put_with_signal(target.region().offset, source.region().offset, 8)?;
        proxied.put_with_signal_and_flush(target.region().offset, source.region().offset, 8)?;
        direct.wait()?;
        proxied.wait()?;
        assert_eq!(target.get(0)?, round);
        direct.signal()?;
        direct.wait()?;
    }
});

/// A device that panics counts as lost, and the launcher names it.
mod a_device_that_panics_is_lost_to_its_peers {
    use shmccl::bootstrap::Options;
    use shmccl::launch::launch_threads;

    use super::*;
    use crate::harness::{Watchdog, panic_on_purpose, panicked};

    #[test]
    fn threads() {
        let _watchdog = Watchdog::start("a device that panics", Duration::from_secs(60));
        let options = Options { heap_len: 2 << 20, ..Options::default() };
        let seen = std::sync::Mutex::new(Vec::new());
        let victim = Rank::new(1, 3).unwrap();
        let result = launch_threads(3, &options, |comm| {
            if comm.rank() == victim {
                panic_on_purpose();
            }
            let error = wait_for_ever(comm, comm.rank().get() / 2).unwrap_err();
            seen.lock().unwrap().push(is_lost(&error, victim));
            Err::<(), _>(error)
        });
        assert!(panicked(&result.unwrap_err(), victim));
        assert_eq!(seen.into_inner().unwrap(), [true, true]);
    }
}

/// The launcher reports the rank that failed and not those that failed because of it.
mod the_first_cause_is_the_rank_that_failed {
    use shmccl::bootstrap::ProxyMode;
    use shmccl::launch::Launch;

    use super::*;
    use crate::harness::{VICTIMS_CODE, Watchdog, check_exit_of, test_name, this_test};

    #[test]
    fn processes() {
        run("processes", ProxyMode::Thread);
    }

    #[test]
    fn service() {
        run("service", ProxyMode::Process);
    }

    fn run(test: &str, proxy: ProxyMode) {
        let name = test_name(module_path!(), test);
        let _watchdog = Watchdog::start(&name, Duration::from_secs(60));
        let program = this_test(&name);
        let launch = Launch::new(3).unwrap().program(program.clone()).service(program).proxy(proxy);
        let victim = Rank::new(1, 3).unwrap();
        let role = launch.heap_len(2 << 20).capture_output(true).run(|comm| {
            if comm.rank() == victim {
                comm.barrier()?;
                std::process::exit(VICTIMS_CODE);
            }
            comm.barrier()?;
            let error = wait_for_ever(comm, 3 * comm.rank().get() / 2).unwrap_err();
            assert!(is_lost(&error, victim), "{error}");
            Err(error)
        });
        check_exit_of(victim, role);
    }
}
