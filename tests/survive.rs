//! Kills ranks at random moments in the midst of every kind of operation; the others find out who, shrink, and compute on.
//!
//! The test binary is its own device: processes are this binary again, told to run the same test. `SHMCCL_LONG=1` runs 1000
//! trials; `SHMCCL_SEED` replays a series. `--nocapture` shows the times.
#![expect(clippy::print_stdout, reason = "devices report on stdout, and the table is the result")]

mod process;
mod watchdog;

use std::collections::BTreeMap;
use std::io::Write;
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use shmccl::bootstrap::ProxyMode;
use shmccl::channel::Channel;
use shmccl::collective::ChannelKind;
use shmccl::comm::{Collectives, Group, Member, join_job};
use shmccl::error::{DeviceName, ExitCause};
use shmccl::heap::DeviceBuffer;
use shmccl::launch::{Launch, Observer, OutputLine, Program};
use shmccl::reduce::ReduceOp;
use shmccl::{Communicator, Error, Rank, Result};

use process::is_running;
use watchdog::Watchdog;

/// What ranks do when one of them is killed.
const KINDS: [&str; 8] =
    ["all_reduce", "large all_reduce", "ordinary", "all_to_all", "send_recv", "put", "barrier", "alloc"];

/// One trial may take so long before the process is aborted.
const PATIENCE: Duration = Duration::from_secs(20);

const TEST: &str = "survivors_of_killed_ranks_agree_on_who_is_lost_and_compute_on";

#[test]
fn survivors_of_killed_ranks_agree_on_who_is_lost_and_compute_on() {
    if std::env::var_os("SHMCCL_SOCKET").is_some() {
        return be_a_device();
    }
    let seed = std::env::var("SHMCCL_SEED").map_or_else(|_| now(), |text| text.parse().unwrap());
    let trials = if std::env::var_os("SHMCCL_LONG").is_some() { 1000 } else { 48 };
    println!("{trials} trials, SHMCCL_SEED={seed}");
    let mut random = Random(seed);
    let mut times = Times::default();
    for number in 0..trials {
        let trial = Trial::draw(number, &mut random);
        let _watchdog = Watchdog::start(&format!("{trial:?}"), PATIENCE);
        trial.judge(&trial.run(), &mut times);
    }
    println!("{times}");
}

/// Who is killed, when, in which operation.
#[derive(Debug)]
struct Trial {
    n_ranks: u32,
    kind: &'static str,
    mode: &'static str,
    victims: Vec<u32>,
    /// The first after the start of the operations, the others after the first, so that they come while the rest goes on.
    delays_us: Vec<u64>,
}

impl Trial {
    fn draw(number: u64, random: &mut Random) -> Self {
        let kind = KINDS[usize::try_from(number % KINDS.len() as u64).unwrap()];
        let mode = ["direct", "thread proxy", "service"][usize::try_from(number / 8 % 3).unwrap()];
        let n_ranks = 2 + u32::try_from(random.below(7)).unwrap();
        // At least one survives.
        let n_victims = (1 + u32::try_from(random.below(2)).unwrap()).min(n_ranks - 1);
        let first = u32::try_from(random.below(n_ranks.into())).unwrap();
        let victims = (0..n_victims).map(|index| (first + index) % n_ranks).collect();
        let delays_us = vec![random.below(4000), random.below(12_000)];
        Self { n_ranks, kind, mode, victims, delays_us }
    }

    fn run(&self) -> Report {
        let test = Program::new(
            std::env::current_exe().unwrap(),
            [TEST, "--exact", "--nocapture", "--test-threads=1"],
        );
        let mode = if self.mode == "service" { ProxyMode::Process } else { ProxyMode::Thread };
        let launch = Launch::new(self.n_ranks).unwrap().program(test.clone()).service(test).proxy(mode);
        let launch = launch.heap_len(32 << 20).timeout(Duration::from_secs(10)).capture_output(true);
        let launch = launch.keep_going(true).env("SURVIVE_KIND", self.kind).env("SURVIVE_MODE", self.mode);
        let mut watcher = Watcher::new(self);
        let lost = launch.supervise(&mut watcher).map(|outcome| outcome.lost);
        let Watcher { killer, pids, histories, output, .. } = watcher;
        let killed = killer.map(|killer| killer.join().unwrap()).unwrap_or_default();
        Report { lost, pids, killed, histories, output }
    }

    /// Checks that the survivors were told the same, and the right thing, and got the right sums.
    fn judge(&self, report: &Report, times: &mut Times) {
        let context = || format!("{self:?}: {:?}\n{}", report.lost, String::from_utf8_lossy(&report.output));
        let lost = report.lost.as_ref().unwrap_or_else(|_| panic!("{}", context()));
        let mut killed: Vec<_> = lost
            .iter()
            .filter(|(_, cause)| *cause == ExitCause::Signal(9))
            .map(|(device, _)| *device)
            .collect();
        killed.sort_unstable_by_key(ToString::to_string);
        let mut victims: Vec<_> = self
            .victims
            .iter()
            .map(|rank| DeviceName::Rank(Rank::new(*rank, self.n_ranks).unwrap()))
            .collect();
        victims.sort_unstable_by_key(ToString::to_string);
        assert_eq!(killed, victims, "{}", context());
        assert_eq!(lost.len(), victims.len(), "nobody else is lost: {}", context());
        let survivors: Vec<_> = (0..self.n_ranks).filter(|rank| !self.victims.contains(rank)).collect();
        let histories: Vec<_> = survivors.iter().map(|rank| &report.histories[rank]).collect();
        for history in &histories {
            assert!(history.done, "{}", context());
            assert_eq!(history.epochs, histories[0].epochs, "the same for all: {}", context());
            assert!(self.victims.contains(&history.told.expect("a loss").0), "{}", context());
            times.told.push(history.told.unwrap().1.saturating_sub(report.killed[0]));
            // With a second death the clock starts anew.
            times.computed.push(history.computed.saturating_sub(*report.killed.last().unwrap()));
        }
        let gone: Vec<_> = histories[0].epochs.iter().flat_map(|(lost, _)| lost.clone()).collect();
        assert!(gone.iter().all(|rank| self.victims.contains(rank)), "{}", context());
        assert!(!report.pids.values().any(|pid| is_running(*pid)), "{}", context());
    }
}

/// What came of a trial.
#[derive(Debug)]
struct Report {
    lost: Result<Vec<(DeviceName, ExitCause)>>,
    pids: BTreeMap<u32, Pid>,
    /// When, in order.
    killed: Vec<u64>,
    histories: BTreeMap<u32, History>,
    output: Vec<u8>,
}

/// What one rank has lived through.
#[derive(Debug, Default)]
struct History {
    /// Whose loss it was told first, and when.
    told: Option<(u32, u64)>,
    /// Of each new epoch: who was lost before, by their first numbers, and the bits of the sum there, if it came to that.
    epochs: Vec<(Vec<u32>, String)>,
    /// When the last sum was there.
    computed: u64,
    done: bool,
}

struct Watcher<'t> {
    trial: &'t Trial,
    killer: Option<JoinHandle<Vec<u64>>>,
    pids: BTreeMap<u32, Pid>,
    histories: BTreeMap<u32, History>,
    output: Vec<u8>,
}

impl Observer for Watcher<'_> {
    fn on_loss(&mut self, _device: DeviceName) {}

    fn on_output(&mut self, line: OutputLine<'_>) {
        line.write_prefixed(&mut self.output).unwrap();
        let text = String::from_utf8_lossy(line.text);
        let (Some(said), DeviceName::Rank(rank)) = (text.strip_prefix("@ "), line.device) else { return };
        let said: Vec<_> = said.split(' ').collect();
        let history = self.histories.entry(rank.get()).or_default();
        match said[..] {
            ["up", pid] => {
                self.pids.insert(rank.get(), Pid::from_raw(pid.parse().unwrap()));
                if self.pids.len() == self.trial.n_ranks as usize {
                    self.strike();
                }
            }
            ["lost", who, at] if history.told.is_none() => {
                history.told = Some((who.parse().unwrap(), at.parse().unwrap()));
            }
            ["on", lost] => {
                let lost = lost
                    .split(',')
                    .filter(|rank| !rank.is_empty())
                    .map(|rank| rank.parse().unwrap())
                    .collect();
                history.epochs.push((lost, String::new()));
            }
            ["sum", bits, at] => {
                history.epochs.last_mut().unwrap().1 = bits.to_owned();
                history.computed = at.parse().unwrap();
            }
            ["done"] => history.done = true,
            _ => {}
        }
    }
}

impl<'t> Watcher<'t> {
    fn new(trial: &'t Trial) -> Self {
        let (pids, histories) = (BTreeMap::new(), BTreeMap::new());
        Self { trial, killer: None, pids, histories, output: Vec::new() }
    }

    /// Kills the victims, one after the other.
    fn strike(&mut self) {
        let victims: Vec<_> = self.trial.victims.iter().map(|victim| self.pids[victim]).collect();
        let delays_us = self.trial.delays_us.clone();
        let strike = move |(pid, delay_us): (Pid, u64)| {
            std::thread::park_timeout(Duration::from_micros(delay_us));
            let at = now();
            kill(pid, Signal::SIGKILL).unwrap();
            at
        };
        self.killer =
            Some(std::thread::spawn(move || victims.into_iter().zip(delays_us).map(strike).collect()));
    }
}

/// The body of a device process.
fn be_a_device() {
    let Ok(Some(Member::Device(comm))) = join_job() else { return };
    let (kind, mode) = (std::env::var("SURVIVE_KIND").unwrap(), std::env::var("SURVIVE_MODE").unwrap());
    // Who this and the others were in the beginning.
    let mut numbers: Vec<_> = (0..comm.n_ranks()).collect();
    let mut comm = *comm;
    say(&format!("up {}", std::process::id()));
    let mut outcome = work(&mut comm, &kind, &mode);
    loop {
        match outcome {
            Err(Error::PeerLost { rank }) => say(&format!("lost {} {}", numbers[rank.index()], now())),
            // In the service's job, the loss of a rank's proxy may be seen first.
            Err(error) => panic!("{error}"),
            Ok(()) => break,
        }
        let shrunk = comm.shrink().unwrap();
        let lost: Vec<_> = shrunk.lost.iter().map(|rank| numbers[rank.index()]).collect();
        say(&format!("on {}", lost.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")));
        numbers.retain(|number| !lost.contains(number));
        comm = shrunk.comm;
        outcome = compute(&mut comm, &numbers);
    }
    say("done");
    std::process::exit(0);
}

/// A channel to the right and one to the left.
type Neighbours = [Box<dyn Channel>; 2];

/// Does one kind of operation until it fails.
fn work(comm: &mut Communicator, kind: &str, mode: &str) -> Result<()> {
    if mode != "direct" {
        comm.set_channel_kind(ChannelKind::Port)?;
    }
    let mut channels = open(comm, mode)?;
    let buffer = comm.alloc::<f32>(1 << 19)?;
    loop {
        operate(comm, kind, &mut channels, &buffer)?;
    }
}

fn open(comm: &Communicator, mode: &str) -> Result<Neighbours> {
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

fn operate(
    comm: &mut Communicator,
    kind: &str,
    [right, left]: &mut Neighbours,
    buffer: &DeviceBuffer<f32>,
) -> Result<()> {
    let (here, there) = (buffer.part(0, 1 << 14)?, buffer.part(1 << 18, 1 << 14)?);
    match kind {
        "all_reduce" => comm.all_reduce_in_place(&comm.buffer::<f32>(buffer.part(0, 2)?)?, &ReduceOp::Sum),
        "large all_reduce" => comm.all_reduce_in_place(buffer, &ReduceOp::Sum),
        "ordinary" => comm.all_reduce_in_place(&mut vec![1.0_f32; 1 << 17], &ReduceOp::Sum),
        "all_to_all" => {
            let blocks = vec![1.0_f32; 1000 * comm.n_ranks() as usize];
            comm.all_to_all(&blocks, &mut vec![0.0_f32; blocks.len()])
        }
        "send_recv" => {
            let (sent, mut received) = ([1.0_f32; 5000], [0.0_f32; 5000]);
            let (next, previous) = (comm.right(), comm.left());
            let mut group = Group::start();
            let joined = group.join(comm);
            group.on(joined).send(&sent, next)?;
            group.on(joined).recv(&mut received, previous)?;
            group.end()
        }
        "put" => {
            right.put_with_signal(there.offset, here.offset, here.len)?;
            left.wait()
        }
        "alloc" => {
            let buffer = comm.alloc::<u64>(1000)?;
            comm.free(buffer)
        }
        _ => comm.barrier(),
    }
}

/// Adds up in the new epoch, so that the bits tell who takes part and in which order.
fn compute(comm: &mut Communicator, numbers: &[u32]) -> Result<()> {
    const COUNT: usize = 1000;
    let term = |number: u32, index: usize| 0.1_f32 * (number + 1) as f32 + index as f32 / 7.0;
    let mut sums: Vec<_> = (0..COUNT).map(|index| term(numbers[comm.rank().index()], index)).collect();
    comm.all_reduce_in_place(&mut sums, &ReduceOp::Sum)?;
    for (index, sum) in sums.iter().enumerate() {
        let exact: f64 = numbers.iter().map(|number| f64::from(term(*number, index))).sum();
        assert!((f64::from(*sum) - exact).abs() <= 1e-5 * exact, "{sum} at {index}, expected {exact}");
    }
    let bits = sums
        .iter()
        .fold(0_u64, |hash, sum| hash.rotate_left(5) ^ u64::from(sum.to_bits()).wrapping_mul(0x9e37_79b9));
    say(&format!("sum {bits:x} {}", now()));
    comm.barrier()
}

/// Says something to whoever reads the output, in a way that the test harness' own output is not taken for.
fn say(what: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n@ {what}").and_then(|()| out.flush()).unwrap();
}

/// Nanoseconds on the clock that all processes share.
fn now() -> u64 {
    u64::try_from(Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap()).as_nanos()).unwrap()
}

/// A stream of numbers that depends on its seed alone (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ word >> 31) % limit
    }
}

/// Times of all survivors, in nanoseconds: from the first kill to the error, and from the last one to the sum in the new epoch.
#[derive(Debug, Default)]
struct Times {
    told: Vec<u64>,
    computed: Vec<u64>,
}

impl std::fmt::Display for Times {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (what, times) in [("killed to PeerLost", &self.told), ("killed to the next sum", &self.computed)]
        {
            let mut times = times.clone();
            times.sort_unstable();
            let at = |percent: usize| {
                Duration::from_nanos(times[(times.len() * percent / 100).min(times.len() - 1)])
            };
            writeln!(
                f,
                "{what:24} {:5} times: p50 {:?} p99 {:?} max {:?}",
                times.len(),
                at(50),
                at(99),
                at(100)
            )?;
        }
        Ok(())
    }
}
