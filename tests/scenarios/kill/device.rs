//! What the devices of a job do until one of them is killed, and what they say about it.

use std::io::Write;

use nix::unistd::Pid;
use shmccl::channel::Channel;
use shmccl::comm::{JoinedAs, join_job};
use shmccl::heap::DeviceBuffer;
use shmccl::{Communicator, Error, Result};

use crate::kill::now;

pub(crate) fn is_device() -> bool {
    std::env::var_os("SHMCCL_SOCKET").is_some()
}

/// The body of a device process. It tells the launcher's observer what becomes of it.
pub(crate) fn be_a_device() {
    let (phase, mode) = (std::env::var("KILL_PHASE").unwrap(), std::env::var("KILL_MODE").unwrap());
    say(&format!("start {}", std::process::id()));
    let outcome = match join_job() {
        Ok(Some(JoinedAs::Device(comm))) => work(*comm, &phase, &mode),
        Ok(_) => Ok(()),
        Err(error) => Err(tell(error)),
    };
    match outcome {
        Ok(()) => say("done"),
        Err(Error::PeerLost { .. } | Error::ProxyLost) => std::process::exit(1),
        // The launcher is gone, and nobody listens.
        Err(Error::Revoked { by: None, .. }) => std::process::exit(2),
        Err(error) => panic!("{error}"),
    }
}

/// Reports a loss at once; closing channels and leaving take their time.
fn tell(error: Error) -> Error {
    match &error {
        Error::PeerLost { rank } => say(&format!("lost {rank} {}", now())),
        Error::ProxyLost => say(&format!("lost proxy {}", now())),
        _ => {}
    }
    error
}

fn work(mut comm: Communicator, phase: &str, mode: &str) -> Result<()> {
    let (buffer, mut channels) = prepare(&mut comm, mode).map_err(tell)?;
    say(&format!("up {}", std::process::id()));
    match phase {
        "teardown" => {
            // So that the kill comes before, in and after the end.
            for _ in 0..300 {
                comm.barrier().map_err(tell)?;
            }
            comm.finalize().map_err(tell)
        }
        _ => repeat(&mut comm, phase, &mut channels, &buffer).map_err(tell),
    }
}

/// A channel to the right and one to the left.
pub(crate) type Neighbours = [Box<dyn Channel>; 2];

pub(crate) fn open(comm: &Communicator, mode: &str) -> Result<Neighbours> {
    let (right, left) = (comm.right(), comm.left());
    let mut channels: Neighbours = match mode {
        "direct" => [Box::new(comm.memory_channel(right)?), Box::new(comm.memory_channel(left)?)],
        _ => [Box::new(comm.port_channel(right)?), Box::new(comm.port_channel(left)?)],
    };
    // In a ring of two both neighbours are one rank, which opens its channels in the same order.
    if comm.n_ranks() == 2 && comm.rank().get() == 1 {
        channels.reverse();
    }
    Ok(channels)
}

fn prepare(comm: &mut Communicator, mode: &str) -> Result<(DeviceBuffer<u8>, Neighbours)> {
    let buffer = comm.alloc::<u8>(1 << 17)?;
    let channels = open(comm, mode)?;
    comm.barrier()?;
    Ok((buffer, channels))
}

fn repeat(
    comm: &mut Communicator,
    phase: &str,
    [right, left]: &mut Neighbours,
    buffer: &DeviceBuffer<u8>,
) -> Result<()> {
    let (source, target) = (buffer.part(0, 1 << 16)?.offset, buffer.part(1 << 16, 1 << 16)?.offset);
    loop {
        match phase {
            "put" => {
                right.put_with_signal(target, source, 1 << 16)?;
                left.wait()?;
            }
            "wait" => left.wait()?,
            "flush" => {
                right.put_with_signal(target, source, 1 << 12)?;
                right.flush()?;
                left.wait()?;
            }
            _ => comm.barrier()?,
        }
    }
}

/// Says something to whoever reads the output, in a way that the test harness' own output is not
/// taken for.
pub(crate) fn say(what: &str) {
    // In one piece: other processes write to the same pipe.
    let line = format!("\n@ {what}\n");
    let mut out = std::io::stdout().lock();
    out.write_all(line.as_bytes()).and_then(|()| out.flush()).unwrap();
}

pub(crate) fn saying(line: &str) -> Option<Vec<&str>> {
    Some(line.strip_prefix("@ ")?.split(' ').collect())
}

pub(crate) fn pid(text: &str) -> Pid {
    Pid::from_raw(text.parse().unwrap())
}
