//! A rank that has filled its fifo with long puts when a peer is killed: it leaves at once, and
//! leaves the puts where they are.

use std::time::Duration;

use nix::sys::signal::{Signal, raise};
use shmccl::bootstrap::ProxyMode;
use shmccl::channel::Channel;
use shmccl::comm::{JoinedAs, join_job};
use shmccl::error::{DeviceName, ExitCause};
use shmccl::launch::{Launch, Observer, OutputLine};
use shmccl::{Error, Rank, Result};

use crate::kill::device::{say, saying};
use crate::kill::this_test;

/// A put is so long that a fifo of them takes some seconds.
const LEN: u64 = 16 << 20;

/// The body of a device process: rank 0 pushes until it is told that it has lost rank 1, which dies
/// in the middle of it.
pub(crate) fn be_a_flooder() {
    let Some(JoinedAs::Device(mut comm)) = join_job().unwrap() else { return };
    let mut run = || -> Result<()> {
        let (source, target) = (comm.alloc::<u8>(1 << 24)?, comm.alloc::<u8>(1 << 24)?);
        let mut channel = comm.port_channel(comm.right())?;
        comm.barrier()?;
        if comm.rank().get() == 1 {
            channel.wait()?;
            raise(Signal::SIGKILL).unwrap();
        }
        loop {
            channel.put_with_signal(target.region().offset, source.region().offset, LEN)?;
        }
    };
    let error = run().unwrap_err();
    assert!(matches!(error, Error::PeerLost { rank } if rank.get() == 1), "{error}");
    let left = comm.fifo_snapshots().unwrap().iter().map(|fifo| fifo.depth).max().unwrap();
    assert!(left > 0, "the fifo was full");
    drop(comm);
    say(&format!("left {left}"));
    std::process::exit(1);
}

/// Runs the job of `test`, and says what rank 0 has said at its end.
pub(crate) fn flood(test: &str, mode: ProxyMode) -> Option<String> {
    let program = this_test(test);
    let launch = Launch::new(2).unwrap().program(program.clone()).service(program).proxy(mode);
    let mut witness = Witness::default();
    let outcome =
        launch.grace(Duration::from_secs(10)).heap_len(3 * LEN).capture_output(true).supervise(&mut witness);
    let victim = DeviceName::Rank(Rank::new(1, 2).unwrap());
    let killed = ExitCause::Signal(Signal::SIGKILL as i32);
    let output = String::from_utf8_lossy(&witness.output);
    assert!(
        matches!(outcome, Err(Error::DeviceFailed { device, cause }) if (device, cause) == (victim, killed)),
        "{outcome:?}\n{output}"
    );
    assert!(witness.left.is_some(), "rank 0 did not come to leave\n{output}");
    witness.left
}

#[derive(Default)]
struct Witness {
    left: Option<String>,
    output: Vec<u8>,
}

impl Observer for Witness {
    fn on_loss(&mut self, _device: DeviceName) {}

    fn on_output(&mut self, line: OutputLine<'_>) {
        line.write_prefixed(&mut self.output).unwrap();
        if let Some(["left", rest]) = saying(&String::from_utf8_lossy(line.text)).as_deref() {
            self.left = Some((*rest).to_owned());
        }
    }
}
