//! A rank that is stopped, is given up by its peers or taken for hung by the launcher, and wakes when the others have gone on.

use std::collections::BTreeMap;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use shmccl::channel::Channel;
use shmccl::comm::{Member, join_job};
use shmccl::error::{DeviceName, ExitCause};
use shmccl::heap::DeviceBuffer;
use shmccl::launch::{HangRule, Launch, Observer, OutputLine, Program};
use shmccl::{Communicator, Error, Rank};

use crate::device::{pid, say, saying};
use crate::survivor::compute;

/// How much the stopped rank writes, over and over.
const WORDS: usize = 1 << 12;

/// The time between two looks of the launcher.
const PERIOD: Duration = Duration::from_millis(50);

/// Who finds out that a rank is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finder {
    /// Its peers, whose waits time out.
    Peers,
    /// The launcher, which leaves it as it is.
    Sparing,
    /// The launcher, which kills it.
    Killing,
}

impl Finder {
    fn rule(self) -> Option<HangRule> {
        let rule = HangRule::new(PERIOD, 10, 20).unwrap();
        match self {
            Self::Peers => None,
            Self::Sparing => Some(rule.sparing()),
            Self::Killing => Some(rule),
        }
    }
}

/// Runs `test` as a job of three of whose ranks the last one is stopped in the midst of it, and woken when the others have
/// gone on, or never.
pub(crate) fn stop_one(test: Program, finder: Finder, wakes: bool) {
    let launch = Launch::new(3).unwrap().program(test).heap_len(4 << 20).capture_output(true);
    let mut director = Director { wakes, ..Director::default() };
    let mut launch = launch.env("STOPPED_WAKES", wakes.to_string()).keep_going(true);
    launch = match finder.rule() {
        // Nobody but the launcher is to end a wait.
        Some(rule) => launch.detect_hangs(rule).timeout(Duration::from_secs(60)),
        None => launch.env("STOPPED_BY_PEERS", "1").timeout(Duration::from_secs(2)),
    };
    let outcome = launch.supervise(&mut director);
    let output = String::from_utf8_lossy(&director.output);
    let lost = outcome.unwrap_or_else(|error| panic!("{error}\n{output}")).lost;
    let stopped = DeviceName::Rank(Rank::new(2, 3).unwrap());
    let ends: Vec<_> = director.last_words.into_values().collect();
    let hung = director.hung.take();
    if finder != Finder::Peers {
        let (device, silent, is_killed) = hung.expect("the launcher has found it");
        assert_eq!((device, is_killed), (stopped, finder == Finder::Killing));
        assert!(silent >= 9 * PERIOD, "{silent:?}");
        assert_eq!(lost, [(stopped, ExitCause::Hung(silent))], "{output}");
        assert_eq!(ends, ["done", "done", if wakes { "excluded" } else { "up" }], "{output}");
    } else if wakes {
        assert!(lost.is_empty(), "{lost:?}\n{output}");
        assert_eq!(ends, ["done", "done", "excluded"], "{output}");
    } else {
        assert_eq!(lost, [(stopped, ExitCause::Signal(9))], "{output}");
        assert_eq!(ends, ["done", "done", "up"], "{output}");
    }
}

/// Stops the last rank when all are up, and wakes it when the others are in their new epoch.
#[derive(Default)]
struct Director {
    wakes: bool,
    pids: BTreeMap<String, Pid>,
    gone_on: u32,
    hung: Option<(DeviceName, Duration, bool)>,
    last_words: BTreeMap<String, String>,
    output: Vec<u8>,
}

impl Director {
    fn stopped(&self) -> Pid {
        self.pids["rank 2"]
    }
}

impl Observer for Director {
    fn on_loss(&mut self, _device: DeviceName) {}

    fn on_hang(&mut self, device: DeviceName, silent: Duration, is_killed: bool) {
        self.hung = Some((device, silent, is_killed));
    }

    fn on_output(&mut self, line: OutputLine<'_>) {
        line.write_prefixed(&mut self.output).unwrap();
        let text = String::from_utf8_lossy(line.text);
        let Some(said) = saying(&text) else { return };
        self.last_words.insert(line.device.to_string(), said[0].to_owned());
        match said[..] {
            ["up", own] => {
                self.pids.insert(line.device.to_string(), pid(own));
                if self.pids.len() == 3 {
                    kill(self.stopped(), Signal::SIGSTOP).unwrap();
                }
            }
            ["on"] => {
                self.gone_on += 1;
                if self.gone_on == 2 && self.wakes {
                    kill(self.stopped(), Signal::SIGCONT).unwrap();
                }
            }
            _ => {}
        }
    }
}

/// The body of a device process in a job of three, the last of which is stopped for so long that the others give it up.
pub(crate) fn be_given_up_or_not() {
    let Ok(Some(Member::Device(mut comm))) = join_job() else { return };
    let given_up = Rank::new(2, 3).unwrap();
    let (data, woken) = (comm.alloc::<u64>(WORDS).unwrap(), comm.alloc::<u64>(1).unwrap());
    comm.barrier().unwrap();
    say(&format!("up {}", std::process::id()));
    if comm.rank() == given_up {
        return write_whatever_happens(*comm, &data, &woken);
    }
    // Until it stops there is a signal for every wait.
    let mut from_given_up = comm.memory_channel(given_up).unwrap();
    let error = loop {
        match from_given_up.wait() {
            Ok(()) => {}
            Err(error) => break error,
        }
    };
    let has_timed_out = matches!(error, Error::Timeout { awaited: Some(rank), .. } if rank == given_up);
    let is_told = matches!(error, Error::PeerLost { rank } if rank == given_up);
    if std::env::var_os("STOPPED_BY_PEERS").is_some() {
        // The other one may have been quicker to give it up.
        assert!(has_timed_out || is_told, "{error}");
        comm.give_up(given_up).unwrap();
    } else {
        assert!(is_told, "{error}");
    }
    let mut shrunk = comm.shrink().unwrap();
    assert_eq!(shrunk.lost, [given_up]);
    let fresh = shrunk.comm.alloc::<u64>(WORDS).unwrap();
    assert_eq!(fresh.region(), data.region(), "where the one that was given up writes");
    (0..WORDS).for_each(|index| fresh.set(index, index as u64).unwrap());
    shrunk.comm.barrier().unwrap();
    // It is stopped until both have said so.
    let before = woken.get(0).unwrap();
    say("on");
    if std::env::var("STOPPED_WAKES").unwrap() == "true" {
        while woken.get(0).unwrap() < before + 1000 {
            std::thread::yield_now();
        }
    }
    assert!(fresh.to_vec().into_iter().eq(0..WORDS as u64), "nothing has changed");
    compute(&mut shrunk.comm, &[0, 1]).unwrap();
    shrunk.comm.finalize().unwrap();
    say("done");
}

/// Writes into its peers' memory and signals them until it has found out that they have gone on without it.
fn write_whatever_happens(mut comm: Communicator, data: &DeviceBuffer<u64>, woken: &DeviceBuffer<u64>) {
    let peers = [0, 1].map(|rank| Rank::new(rank, 3).unwrap());
    let mut channels = peers.map(|peer| comm.memory_channel(peer).unwrap());
    data.fill(u64::MAX);
    let (all, mut rounds) = (data.region(), 0_u64);
    let mut left = None;
    while left.is_none_or(|until| rounds < until) {
        rounds += 1;
        for channel in &mut channels {
            channel.put_with_signal(all.offset, all.offset, all.len).unwrap();
            channel.write(woken.region().offset, rounds).unwrap();
        }
        if comm.revoked().is_some() {
            // It does not look at what it is told, for a while.
            left = left.or(Some(rounds + 2000));
        }
    }
    let own = comm.rank();
    let error = comm.barrier().unwrap_err();
    assert!(matches!(error, Error::PeerLost { rank } if rank == own), "{error}");
    let error = comm.shrink().unwrap_err();
    assert!(matches!(error, Error::Excluded), "{error}");
    say("excluded");
}
