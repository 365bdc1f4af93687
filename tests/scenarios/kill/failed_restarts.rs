//! Ranks that are started again in vain, or for another reason than that somebody has killed them.

use std::time::Duration;

use shmccl::comm::{JoinedAs, join_job};
use shmccl::error::{DeviceName, ExitCause};
use shmccl::launch::{JobOutcome, Launch, Observer, OutputLine};
use shmccl::{Error, Rank, Result};

use crate::kill::device::say;
use crate::kill::returning::{listen, work};
use crate::kill::this_test;

/// The body of a device process in a job of two whose rank 1 exits whenever it is taken back,
/// leaves first, hangs until it is killed, or is struck by a fault.
pub(crate) fn be_failing() {
    let mut comm = match join_job() {
        Ok(Some(JoinedAs::Device(comm))) => *comm,
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
            Err(Error::Unavailable { .. }) if way == "leaves" || way == "exits" => loop {
                std::thread::park();
            },
            other => other.unwrap(),
        };
        completed = told.try_recv().expect("it was told before");
    }
    comm.finalize().unwrap();
    say("done");
}

/// The body of a device process in a job of three whose rank 2 exits whenever it is there: the
/// others take it back as long as it is started again, and go on without it when they are told that
/// it is not.
pub(crate) fn be_shrinking() {
    let mut comm = match join_job() {
        Ok(Some(JoinedAs::Device(comm))) => *comm,
        other => panic!("{other:?}"),
    };
    let told = listen(&mut comm);
    let mut completed = told.try_recv().unwrap_or(0);
    if comm.rank().get() == 2 {
        std::process::exit(7);
    }
    while let Err(error) = work(&mut comm, &mut completed) {
        assert!(matches!(error, Error::PeerLost { .. }), "{error}");
        comm = match comm.recover(completed) {
            Err(Error::Unavailable { operation: "recover", needs }) => {
                say(&format!("in vain: {needs}"));
                comm.shrink().unwrap().comm
            }
            other => other.unwrap(),
        };
        completed = told.try_recv().unwrap_or(completed);
    }
    comm.finalize().unwrap();
    say("done");
}

/// Runs the job of `test` whose rank 2 is started again as often as told, and dies each time;
/// returns what all have printed.
pub(crate) fn run_shrinking(test: &str, restarts: u32) -> String {
    let launch = Launch::new(3).unwrap().program(this_test(test)).heap_len(8 << 20).capture_output(true);
    let launch = launch.timeout(Duration::from_secs(10)).keep_going(true).restart(restarts);
    let mut witness = Witness { restarts, ..Witness::default() };
    let outcome = launch.supervise(&mut witness);
    let output = String::from_utf8_lossy(&witness.output).into_owned();
    let end = (DeviceName::Rank(Rank::new(2, 3).unwrap()), ExitCause::Code(7));
    let outcome = outcome.unwrap_or_else(|error| panic!("{error}\n{output}"));
    assert_eq!(outcome.restarted, vec![end; restarts as usize], "{output}");
    assert_eq!(outcome.lost, [end], "{output}");
    output
}

/// How the job of `test` ends in which rank 1 fails, and who was started again.
pub(crate) fn run_failing(test: &str, way: &str) -> (Result<JobOutcome>, Vec<(DeviceName, ExitCause)>) {
    let launch = Launch::new(2).unwrap().program(this_test(test)).heap_len(8 << 20).capture_output(true);
    let hangs = way == "hangs";
    let launch = launch.timeout(Duration::from_secs(if hangs { 5 } else { 10 })).env("RETURN_WAY", way);
    let faults = if way == "struck" { "seed=7;kill:rank=1,at=3" } else { "" };
    let launch = launch.faults(faults.parse().unwrap());
    let mut witness = Witness { restarts: 2, ..Witness::default() };
    let outcome = launch.grace(Duration::from_millis(300)).restart(2).supervise(&mut witness);
    assert!(outcome.is_ok() || !hangs, "{outcome:?}\n{}", String::from_utf8_lossy(&witness.output));
    (outcome, witness.restarted)
}

/// Keeps what happens.
#[derive(Default)]
struct Witness {
    /// How often ranks may be started again.
    restarts: u32,
    restarted: Vec<(DeviceName, ExitCause)>,
    output: Vec<u8>,
}

impl Observer for Witness {
    fn on_loss(&mut self, _device: DeviceName) {}

    fn on_restart(&mut self, device: DeviceName, cause: ExitCause, left: u32) {
        self.restarted.push((device, cause));
        assert_eq!(left as usize, self.restarts as usize - self.restarted.len());
    }

    fn on_output(&mut self, line: OutputLine<'_>) {
        line.write_prefixed(&mut self.output).unwrap();
    }
}
