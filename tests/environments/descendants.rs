//! Programs that a rank starts, and forks of it: they have the environment of the rank, and are not
//! the rank.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus};

use nix::sys::wait::WaitStatus;
use nix::unistd::{ForkResult, fork};
use shmccl::channel::Channel;
use shmccl::comm::join_job;
use shmccl::coordinator::{Device, DeviceKind, Pool, PoolOptions};
use shmccl::{Collectives, Communicator, Error};

use crate::job::{Started, alone, job, say, this_program};

#[test]
fn a_program_that_a_rank_starts_is_no_rank_and_goes_on() {
    let (code, stderr, stdout) = Started::new(&mut job(&["-n", "2", "-q"], "parent"), 0).end();
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert_eq!(stdout.matches("alone").count(), 6, "{stdout}");
}

/// Starts a program of this library: without the number of the rank's socket, with nothing under
/// that number, and with something else.
pub(crate) fn parent(mut comm: Communicator) -> shmccl::Result<()> {
    comm.barrier()?;
    let socket = std::env::var("SHMCCL_SOCKET").unwrap().parse().unwrap();
    for number in [None, Some(-1), Some(socket)] {
        let mut child = alone("lone");
        match number {
            None => _ = child.env_remove("SHMCCL_SOCKET"),
            Some(number) => {
                let replace = move || {
                    // SAFETY: the child has nothing else under the number; -1 is refused.
                    _ = unsafe { nix::libc::dup2(0, number) };
                    Ok(())
                };
                // SAFETY: what runs between fork and exec makes one system call.
                unsafe { child.pre_exec(replace) };
            }
        }
        assert!(child.status().unwrap().success(), "{number:?}");
    }
    comm.barrier()?;
    comm.finalize()
}

/// Joins no job, and makes one of its own.
pub(crate) fn lone() -> shmccl::Result<()> {
    assert!(join_job()?.is_none());
    Communicator::init_all(1)?.remove(0).barrier()?;
    say(format_args!("alone"));
    Ok(())
}

#[test]
fn a_fork_of_a_rank_may_drop_what_it_has_and_is_no_rank() {
    for proxy in ["thread", "process"] {
        let flags = ["-n", "2", "-q", "--proxy", proxy];
        let (code, stderr, stdout) = Started::new(&mut job(&flags, "fork"), 0).end();
        assert_eq!((code, stderr.as_str()), (0, ""), "{stdout}");
        assert_eq!(stdout.matches("sum 3").count(), 4, "{stdout}");
    }
}

/// Forks a child that drops everything, and goes on.
pub(crate) fn forks(mut comm: Communicator) -> shmccl::Result<()> {
    let cells = comm.alloc::<u64>(2)?;
    let (arena, local) = (comm.arena(), comm.arena().alloc::<u64>(2)?);
    let other = comm.split(Some(0), 0)?;
    let stream = comm.stream()?;
    let (mut direct, mut proxied) = (comm.memory_channel(comm.left())?, comm.port_channel(comm.left())?);
    let region = cells.region();
    proxied.put_with_signal(region.offset, region.offset, region.len)?;
    crate::job::sum(&mut comm)?;
    // A message that is on its way, and a thread that sees to it.
    let mut messages = comm.duplicate()?;
    let left = comm.left();
    let work = messages.start(|_| (), |calls| calls.recv(&cells, left))?;
    let idle = messages.start(|_| (), |_| Ok(()))?;
    idle.wait()?;
    // SAFETY: the child drops what it has, which takes no lock of another thread, and ends.
    if matches!(unsafe { fork() }.unwrap(), ForkResult::Child) {
        let is_none = join_job().is_ok_and(|joined| joined.is_none());
        let is_refused = matches!(arena.alloc::<u64>(2), Err(Error::Unavailable { .. }));
        drop((direct, proxied, other, messages, comm, cells, stream, work, idle));
        drop((local, arena));
        // SAFETY: nothing of this process is to run any more.
        unsafe { nix::libc::_exit(if is_none && is_refused { 0 } else { 7 }) };
    }
    let status = nix::sys::wait::wait().unwrap();
    assert!(matches!(status, WaitStatus::Exited(_, 0)), "{status:?}");
    assert_ne!(arena.alloc::<u64>(2)?.region(), local.region());
    proxied.flush()?;
    proxied.wait()?;
    direct.signal()?;
    direct.wait()?;
    let right = comm.right();
    messages.start(|_| (), |calls| calls.send(&cells, right))?.wait()?;
    work.wait()?;
    crate::job::sum(&mut comm)?;
    drop((direct, proxied, other, messages));
    comm.finalize()
}

#[test]
fn a_program_that_a_device_of_a_pool_starts_is_no_device() {
    let (code, stderr, stdout) = Started::new(&mut alone("pool"), 0).end();
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert_eq!(stdout.matches("no device").count(), 1, "{stdout}");
}

/// Has a pool of one device, which starts another program as it begins.
pub(crate) fn pool() -> shmccl::Result<()> {
    let [program, args @ ..] = this_program();
    if let Some(device) = Device::from_env().unwrap() {
        let child = Command::new(program).args(args).env("SHMCCL_TEST_SCENARIO", "no device").status();
        assert!(child.as_ref().is_ok_and(ExitStatus::success), "{child:?}");
        device.serve().unwrap();
        return Ok(());
    }
    let options = PoolOptions { devices: vec![DeviceKind::new(1)], ..PoolOptions::default() };
    drop(Pool::start_with(&options).unwrap());
    Ok(())
}

/// Is started by a device.
pub(crate) fn no_device() -> shmccl::Result<()> {
    assert!(Device::from_env().unwrap().is_none());
    say(format_args!("no device"));
    Ok(())
}
