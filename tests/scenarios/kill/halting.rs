//! Trials in which a survivor of a death is stopped at a step of going on, is given up by the
//! others, and wakes in the midst of it when they have gone on without it.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use shmccl::comm::{JoinedAs, join_job};
use shmccl::error::{DeviceName, ExitCause};
use shmccl::heap::DeviceBuffer;
use shmccl::launch::{Launch, Observer, OutputLine};
use shmccl::{Communicator, Error, Rank, Result};

use crate::kill::device::{pid, say, saying};
use crate::kill::stopped::is_stopped;
use crate::kill::woken::{Signs, Through, live_on, write_to};
use crate::kill::{steps, this_test};

/// One of them is killed, one is stopped, and two go on.
const N_RANKS: u32 = 4;

/// How much the woken rank writes at a time, in words.
const WORDS: usize = 1 << 16;

/// How long the others wait for the one that is stopped, and everybody for anybody else.
const DEADLINE: Duration = Duration::from_secs(3);

/// The body of a device process.
pub(crate) fn be_halted_or_not() {
    say(&format!("start {}", std::process::id()));
    let Ok(Some(JoinedAs::Device(comm))) = join_job() else { return };
    let (first, mut comm) = (comm.rank(), *comm);
    let data = comm.alloc::<u64>(WORDS).unwrap();
    let mut numbers: Vec<_> = (0..N_RANKS).collect();
    let mut outcome = meet(&mut comm);
    while let Err(error) = outcome {
        give_up(&comm, &numbers, &error);
        steps::count_from(&format!("halt {first}"));
        outcome = match comm.shrink() {
            Ok(shrunk) => {
                let lost: Vec<_> = shrunk.lost.iter().map(|rank| numbers[rank.index()]).collect();
                numbers.retain(|number| !lost.contains(number));
                comm = shrunk.comm;
                meet(&mut comm)
            }
            Err(Error::Excluded) => return try_on(comm, &data),
            Err(error) => Err(error),
        };
    }
    drop(data);
    live_on(comm, &numbers);
    say("done");
}

/// Goes on in the epoch that this rank was left behind in.
fn try_on(mut comm: Communicator, data: &DeviceBuffer<u64>) {
    let _through = Through::of_process();
    data.fill(u64::MAX);
    let peers = (0..comm.n_ranks()).map(|rank| Rank::new(rank, comm.n_ranks()).unwrap());
    // In an epoch that they left as soon as they had come to it nothing was allocated.
    let others = peers.filter(|peer| *peer != comm.rank() && comm.span(*peer, data.region()).is_ok());
    others.for_each(|peer| write_to(&comm, peer, data));
    let error = comm.barrier().unwrap_err();
    // The first death ended the first epoch.
    assert!(matches!(error, Error::PeerLost { .. }), "{error}");
    // Nobody waits any longer for it than the launcher does for its end.
    drop(comm);
    say("excluded");
}

fn meet(comm: &mut Communicator) -> Result<()> {
    (0..5).try_for_each(|_| comm.barrier())
}

/// Gives up whom `error` says to be late: the one that is stopped, and nobody else.
fn give_up(comm: &Communicator, numbers: &[u32], error: &Error) {
    match *error {
        Error::PeerLost { .. } => {}
        // Who was awaited has come meanwhile.
        Error::Timeout { awaited: None, .. } => {}
        Error::Timeout { awaited: Some(rank), .. } => {
            assert_eq!(numbers[rank.index()].to_string(), std::env::var("HALT_VICTIM").unwrap(), "{error}");
            comm.give_up(rank).unwrap();
        }
        _ => panic!("{error:?}"),
    }
}

/// Runs the job of `test`, in which `victim` is stopped at step `number` of going on; whether it
/// was.
pub(crate) fn halt_at(test: &str, victim: u32, number: u64) -> bool {
    let signs = Signs::new(
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("halted-{}-{number}", std::process::id())),
    );
    let launch = Launch::new(N_RANKS).unwrap().program(this_test(test)).heap_len(64 << 20);
    let launch =
        launch.timeout(DEADLINE).grace(Duration::from_secs(10)).keep_going(true).capture_output(true);
    let launch = launch.faults("kill:rank=3,at=3".parse().unwrap()).env("SHMCCL_TUNING", "");
    let launch = launch.env(steps::FROM, format!("halt {victim}")).env(steps::NUMBER, number.to_string());
    let launch = signs.tell(launch.env(steps::STOPS, "1").env("HALT_VICTIM", victim.to_string()));
    let mut director = Director { victim, signs: &signs, log: Log::default() };
    let outcome = launch.supervise(&mut director);
    let log = director.log;
    signs.remove();
    let context = || format!("rank {victim}, step {number}: {outcome:?}\n{}", log.text);
    let Ok(outcome) = &outcome else { panic!("{}", context()) };
    let is_right =
        matches!(outcome.lost[..], [(DeviceName::Rank(rank), ExitCause::Injected(_))] if rank.get() == 3);
    assert!(is_right, "{}", context());
    let was_stopped = log.was_stopped;
    for rank in 0..3 {
        let end = if was_stopped && rank == victim { "excluded" } else { "done" };
        assert_eq!(log.said[&rank], end, "stopped: {was_stopped}, {}", context());
    }
    was_stopped
}

/// What the ranks have said.
#[derive(Default)]
struct Log {
    victim: Option<Pid>,
    /// Whether the victim was stopped, as the system says, when two others were in their new epoch.
    was_stopped: bool,
    on: u32,
    /// The last word of each.
    said: BTreeMap<u32, String>,
    text: String,
}

/// Wakes the victim, if it is stopped, when two are in their new epoch.
struct Director<'s> {
    victim: u32,
    signs: &'s Signs,
    log: Log,
}

impl Observer for Director<'_> {
    fn on_loss(&mut self, _device: DeviceName) {}

    fn on_output(&mut self, line: OutputLine<'_>) {
        let text = String::from_utf8_lossy(line.text);
        let DeviceName::Rank(rank) = line.device else { return };
        self.log.text.push_str(&format!("[{rank}] {text}\n"));
        let Some(said) = saying(&text) else { return };
        self.log.said.insert(rank.get(), said[0].to_owned());
        match said[..] {
            ["start", own] if rank.get() == self.victim => self.log.victim = Some(pid(own)),
            ["on"] => {
                self.log.on += 1;
                match self.log.on {
                    2 => {
                        let victim = self.log.victim.expect("all have begun");
                        self.log.was_stopped = is_stopped(victim);
                        kill(victim, Signal::SIGCONT).unwrap();
                    }
                    // It was not stopped.
                    3 => self.signs.give("over"),
                    _ => {}
                }
            }
            _ => {}
        }
    }
}
