//! A rank that dies at its N-th operation, for every N: killed by a fault that is injected there.

use std::collections::BTreeMap;
use std::time::Duration;

use shmccl::comm::{Member, join_job};
use shmccl::error::{DeviceName, ExitCause};
use shmccl::launch::{Launch, Observer, OutputLine};
use shmccl::{Error, Rank};

use crate::device::{say, saying};
use crate::sorts::all_sorts;
use crate::this_test;

/// The body of a device process.
pub(crate) fn be_struck() {
    let Ok(Some(Member::Device(mut comm))) = join_job() else { return };
    let done = all_sorts(&mut comm).and_then(|()| comm.finalize());
    match done {
        Ok(()) => say("done"),
        Err(Error::PeerLost { rank }) => {
            say(&format!("lost {rank}"));
            std::process::exit(1);
        }
        Err(error) => panic!("{error}"),
    }
}

/// What survivors say, by rank.
#[derive(Default)]
struct Said {
    lost: BTreeMap<String, String>,
    output: Vec<u8>,
}

impl Observer for Said {
    fn on_loss(&mut self, _device: DeviceName) {}

    fn on_output(&mut self, line: OutputLine<'_>) {
        line.write_prefixed(&mut self.output).unwrap();
        if let Some(["lost", who]) = saying(&String::from_utf8_lossy(line.text)).as_deref() {
            self.lost.insert(line.device.to_string(), (*who).to_owned());
        }
    }
}

/// Runs the test `name`, whose rank 1 dies at operation `number`, and looks at who says what.
pub(crate) fn kill_at(name: &str, number: u64) {
    let test = this_test(name);
    let launch = Launch::new(3).unwrap().program(test.clone()).service(test).capture_output(true);
    let launch = launch.heap_len(16 << 20).timeout(Duration::from_secs(10)).env("SHMCCL_TUNING", "");
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
