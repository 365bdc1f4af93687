//! Ranks that are started again in vain, or for another reason than that somebody has killed them.

use std::time::Duration;

use shmccl::comm::{Member, join_job};
use shmccl::error::{DeviceName, ExitCause};
use shmccl::launch::{Launch, Observer, Outcome, OutputLine};
use shmccl::{Error, Result};

use crate::device::say;
use crate::returning::{listen, work};
use crate::this_test;

/// The body of a device process in a job of two whose rank 1 exits whenever it is taken back, leaves first, hangs until it is
/// killed, or is struck by a fault.
pub(crate) fn be_hopeless() {
    let mut comm = match join_job() {
        Ok(Some(Member::Device(comm))) => *comm,
        other => return say(&format!("alone {other:?}")),
    };
    let way = std::env::var("RETURN_WAY").unwrap();
    let told = listen(&mut comm);
    let mut completed = told.try_recv().unwrap_or(0);
    if comm.rank().get() == 1 {
        match (way.as_str(), comm.was_restarted()) {
            ("hangs", false) => std::thread::park(),
            ("hangs", true) | ("struck", _) => {}
            ("leaves", _) => {
                drop(comm);
                std::process::exit(7)
            }
            _ => std::process::exit(7),
        }
    }
    while let Err(error) = work(&mut comm, &mut completed) {
        if let Error::Timeout { awaited: Some(rank), .. } = error {
            comm.give_up(rank).unwrap();
        }
        comm = match comm.recover(completed) {
            // The launcher ends it, by the failure of the other one, which may take its time.
            Err(Error::Unavailable { .. }) if way == "leaves" => loop {
                std::thread::park();
            },
            other => other.unwrap(),
        };
        completed = told.try_recv().expect("it was told before");
    }
    comm.finalize().unwrap();
    say("done");
}

/// How the job of `test` ends in which rank 1 is hopeless, and who was started again.
pub(crate) fn run_hopeless(test: &str, way: &str) -> (Result<Outcome>, Vec<(DeviceName, ExitCause)>) {
    let launch = Launch::new(2).unwrap().program(this_test(test)).heap_len(8 << 20).capture_output(true);
    let hangs = way == "hangs";
    let launch = launch.timeout(Duration::from_secs(if hangs { 5 } else { 10 })).env("RETURN_WAY", way);
    let faults = if way == "struck" { "seed=7;kill:rank=1,at=3" } else { "" };
    let launch = launch.faults(faults.parse().unwrap());
    let mut witness = Witness::default();
    let outcome = launch.grace(Duration::from_millis(300)).restart(2).supervise(&mut witness);
    assert!(outcome.is_ok() || !hangs, "{outcome:?}\n{}", String::from_utf8_lossy(&witness.output));
    (outcome, witness.restarted)
}

/// Keeps what happens.
#[derive(Default)]
struct Witness {
    restarted: Vec<(DeviceName, ExitCause)>,
    output: Vec<u8>,
}

impl Observer for Witness {
    fn on_loss(&mut self, _device: DeviceName) {}

    fn on_restart(&mut self, device: DeviceName, cause: ExitCause, left: u32) {
        self.restarted.push((device, cause));
        assert_eq!(left as usize, 2 - self.restarted.len());
    }

    fn on_output(&mut self, line: OutputLine<'_>) {
        line.write_prefixed(&mut self.output).unwrap();
    }
}
