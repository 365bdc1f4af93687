//! A rank that dies at its N-th operation, for every N: killed by a fault that is injected there.

use std::collections::BTreeMap;
use std::time::Duration;

use shmccl::comm::{JoinedAs, join_job};
use shmccl::error::{DeviceName, ExitCause};
use shmccl::launch::{Launch, Observer, OutputLine};
use shmccl::reduce::ReduceOp;
use shmccl::{Collectives, Communicator, Error, Rank};
use support::Watchdog;

use crate::fault_program::{Scratch, all_operations};
use crate::kill::device::{is_device, say, saying};
use crate::kill::work::{DIRECTORY, told_directory};
use crate::kill::{PATIENCE, this_test};

/// The body of a device process.
pub(crate) fn be_struck() {
    let Ok(Some(JoinedAs::Device(mut comm))) = join_job() else { return };
    let done = all_operations(&mut comm, &told_directory()).and_then(|()| comm.finalize());
    match done {
        Ok(()) => say("done"),
        Err(Error::PeerLost { rank }) => {
            say(&format!("lost {rank}"));
            std::process::exit(1);
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_rank_that_a_fault_kills_in_a_later_epoch_is_said_to_have_died_by_it() {
    let name = "stepwise::a_rank_that_a_fault_kills_in_a_later_epoch_is_said_to_have_died_by_it";
    if is_device() {
        return be_struck_in_later_epochs();
    }
    let _watchdog = Watchdog::start(name, PATIENCE);
    kill_in_later_epochs(name);
}

/// The body of a device process that goes on without those who are lost, until all are there that
/// go on.
fn be_struck_in_later_epochs() {
    let Ok(Some(JoinedAs::Device(comm))) = join_job() else { return };
    let mut comm = *comm;
    let work = |comm: &mut Communicator| {
        (0..5).try_for_each(|_| comm.barrier())?;
        (0..5).try_for_each(|_| comm.all_reduce_in_place(&mut [1_u32], &ReduceOp::Sum))
    };
    while let Err(error) = work(&mut comm) {
        assert!(matches!(error, Error::PeerLost { .. }), "{error}");
        comm = comm.shrink().unwrap().comm;
    }
    comm.finalize().unwrap();
}

/// Runs the test `name`, of whose ranks one dies in the first epoch and another one in the next.
fn kill_in_later_epochs(name: &str) {
    let launch = Launch::new(3).unwrap().program(this_test(name)).capture_output(true).keep_going(true);
    let launch = launch.heap_len(16 << 20).timeout(Duration::from_secs(10)).env("SHMCCL_TUNING", "");
    let plan = "seed=4;kill:rank=0,at=3;kill:rank=1,of=all_reduce,at=2;delay:one_in=1,time=1us";
    let mut said = Said::default();
    let outcome = launch.faults(plan.parse().unwrap()).supervise(&mut said);
    // They are listed as they are seen.
    let lost = outcome.map(|mut outcome| {
        outcome.lost.sort_by_key(|(device, _)| device.to_string());
        outcome.lost
    });
    let named = |number: usize| match lost.as_ref().unwrap_or_else(|error| panic!("{error}"))[number] {
        (device, ExitCause::Injected(strike)) => (device, strike.rank.get(), strike.to_string()),
        other => panic!("{other:?}"),
    };
    let rank = |rank| DeviceName::Rank(Rank::new(rank, 3).unwrap());
    assert_eq!(named(0), (rank(0), 0, "kill at operation 3, barrier (seed 4)".to_owned()));
    assert_eq!(named(1), (rank(1), 1, "kill at all_reduce 2 (seed 4)".to_owned()));
}

/// What survivors say, by rank.
#[derive(Default)]
pub(crate) struct Said {
    pub(crate) lost: BTreeMap<String, String>,
    pub(crate) done: usize,
    pub(crate) output: Vec<u8>,
}

impl Observer for Said {
    fn on_loss(&mut self, _device: DeviceName) {}

    fn on_output(&mut self, line: OutputLine<'_>) {
        line.write_prefixed(&mut self.output).unwrap();
        match saying(&String::from_utf8_lossy(line.text)).as_deref() {
            Some(["lost", who]) => _ = self.lost.insert(line.device.to_string(), (*who).to_owned()),
            Some(["done"]) => self.done += 1,
            _ => {}
        }
    }
}

/// Runs the test `name`, whose rank 1 dies at operation `number`, and looks at who says what.
pub(crate) fn kill_at(name: &str, number: u64) {
    let test = this_test(name);
    let launch = Launch::new(3).unwrap().program(test.clone()).service(test).capture_output(true);
    let launch = launch.heap_len(16 << 20).timeout(Duration::from_secs(10)).env("SHMCCL_TUNING", "");
    let scratch = Scratch::new("stepwise");
    let launch = launch.grace(Duration::from_secs(10)).env(DIRECTORY, scratch.path());
    let launch = launch.faults(format!("seed=9;kill:rank=1,at={number}").parse().unwrap());
    let mut said = Said::default();
    let outcome = launch.supervise(&mut said);
    let context = || format!("operation {number}: {outcome:?}\n{}", String::from_utf8_lossy(&said.output));
    let Err(Error::DeviceFailed { device, cause: ExitCause::Injected(strike) }) = &outcome else {
        panic!("{}", context());
    };
    let victim = Rank::new(1, 3).unwrap();
    assert_eq!((*device, strike.rank, strike.number), (DeviceName::Rank(victim), victim, number));
    let lost = ["rank 0", "rank 2"].map(|by| (by.to_owned(), "1".to_owned()));
    assert_eq!(said.lost, BTreeMap::from(lost), "{}", context());
}
