//! Kills devices, the proxy service and the launcher at random moments, and looks at what the others are told and what
//! is left behind.
//!
//! The test binary is its own device: processes are this binary again, told to run the same test. `SHMCCL_LONG=1` runs
//! 300 trials; `SHMCCL_SEED` replays a series. `--nocapture` shows the table.
#![expect(clippy::print_stdout, reason = "devices report on stdout, and the table is the result")]

mod process;
mod watchdog;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use shmccl::bootstrap::{ProxyMode, SegmentBacking};
use shmccl::channel::Channel;
use shmccl::comm::{Member, join_job};
use shmccl::error::{DeviceName, ExitCause};
use shmccl::heap::DeviceBuffer;
use shmccl::launch::{Launch, Observer, OutputLine, Program};
use shmccl::{Communicator, Error, Rank, Result};

use process::{is_running, wait_until};
use watchdog::Watchdog;

/// What ranks do when one of them is killed.
const PHASES: [&str; 6] = ["init", "put", "wait", "barrier", "flush", "teardown"];

/// Through what they do it.
const MODES: [&str; 3] = ["direct", "thread proxy", "service"];

/// One trial may take so long before the process is aborted.
const PATIENCE: Duration = Duration::from_secs(20);

/// The descriptors and children of this process are counted, so one test runs at a time.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static SERIAL: Mutex<()> = Mutex::new(());
    SERIAL.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn whoever_survives_a_killed_process_is_told_and_nothing_is_left() {
    if is_device() {
        return be_a_device();
    }
    let _alone = one_at_a_time();
    let seed = seed();
    let trials = if long() { 300 } else { 30 };
    println!("{trials} trials, SHMCCL_SEED={seed}");
    let mut random = Random(seed);
    let mut statistics = Statistics::default();
    let mut open = None;
    for number in 0..trials {
        let trial = Trial::draw(number, &mut random);
        let _watchdog = Watchdog::start(&format!("{trial:?}"), PATIENCE);
        let report = trial.run();
        trial.judge(&report, &mut statistics);
        // The first launch of a process opens what it keeps: the pipe behind its signal handlers.
        assert_eq!(
            descriptors(),
            *open.get_or_insert_with(descriptors),
            "descriptors are left open after {trial:?}"
        );
        assert_eq!(
            waitpid(None, Some(WaitPidFlag::WNOHANG)),
            Err(Errno::ECHILD),
            "a child is left after {trial:?}"
        );
        let alive: Vec<_> = report.pids.values().filter(|&&pid| is_running(pid)).collect();
        assert!(alive.is_empty(), "{alive:?} are left after {trial:?}");
        let names = shared_memory(&trial.prefix());
        assert!(names.is_empty(), "{names:?} are left in /dev/shm after {trial:?}");
    }
    println!("{statistics}");
}

#[test]
fn the_names_of_a_killed_ranks_segments_are_removed_and_those_of_others_are_not() {
    let _alone = one_at_a_time();
    let (victim, delay_us) = (DeviceName::Rank(Rank::new(1, 2).unwrap()), 100);
    let trial =
        Trial { number: 1000, n_ranks: 2, phase: "wait", mode: "direct", victim, named: true, delay_us };
    let _watchdog = Watchdog::start(&format!("{trial:?}"), PATIENCE);
    trial.judge(&trial.run(), &mut Statistics::default());
    assert_eq!(shared_memory(&trial.prefix()), [""; 0]);
    // What another job has under these names stays, and the job does not start.
    let name = format!("{}.1", trial.prefix());
    let path = std::path::Path::new("/dev/shm").join(&name);
    std::fs::write(&path, b"of another job").unwrap();
    let report = trial.run();
    let left = std::fs::read(&path);
    std::fs::remove_file(&path).unwrap();
    assert!(
        matches!(&report.result, Err(Error::NameInUse { name: found, holder: None }) if *found == name),
        "{report:?}"
    );
    assert!(report.pids.is_empty());
    assert_eq!(left.unwrap(), b"of another job");
    assert_eq!(shared_memory(&trial.prefix()), [""; 0]);
}

#[test]
fn killing_the_launcher_leaves_no_process() {
    const TEST: &str = "killing_the_launcher_leaves_no_process";
    if is_device() {
        return be_a_device();
    }
    if std::env::var_os("KILL_LAUNCHER").is_some() {
        let service = std::env::var("KILL_MODE").unwrap() == "service";
        let mode = if service { ProxyMode::Process } else { ProxyMode::Thread };
        let _ = Launch::new(3)
            .unwrap()
            .program(this_test(TEST))
            .service(this_test(TEST))
            .proxy(mode)
            .run(|_| Ok::<_, Error>(()));
        return;
    }
    let _alone = one_at_a_time();
    let seed = seed();
    println!("SHMCCL_SEED={seed}");
    let mut random = Random(seed);
    let mut times = Vec::new();
    for _ in 0..if long() { 60 } else { 6 } {
        let (phase, mode) = (random.pick(&PHASES), random.pick(&MODES));
        let _watchdog = Watchdog::start(&format!("the launcher, {phase}, {mode}"), PATIENCE);
        times.push(kill_a_launcher(TEST, phase, mode, &mut random));
    }
    let [p50, p99, max] = percentiles(&mut times);
    println!(
        "launcher killed, {} trials: all its processes gone after p50 {p50} p99 {p99} max {max}",
        times.len()
    );
}

/// Starts a launcher of three ranks, kills it, and returns how long its processes outlived it.
fn kill_a_launcher(test: &str, phase: &str, mode: &str, random: &mut Random) -> u64 {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    command.envs([("KILL_LAUNCHER", "1"), ("KILL_PHASE", phase), ("KILL_MODE", mode)]);
    let mut launcher = command.spawn().unwrap();
    let mut pids = Vec::new();
    let (word, count) = if phase == "init" { ("start", random.below(3) + 1) } else { ("up", 3) };
    let mut seen = 0;
    let mut lines = BufReader::new(launcher.stdout.take().unwrap()).lines();
    while seen < count {
        let line = lines.next().expect("the ranks report").unwrap();
        let Some(said) = saying(&line) else { continue };
        if said[0] == "start" {
            pids.push(pid(said[1]));
        }
        seen += u64::from(said[0] == word);
    }
    doze(random.below(3000));
    let killed = now();
    launcher.kill().unwrap();
    launcher.wait().unwrap();
    // Those that had not reported yet report now, or never; when the last one is gone, the pipe ends.
    for line in lines.map_while(std::io::Result::ok) {
        if let Some(["start", pid]) = saying(&line).as_deref() {
            pids.push(self::pid(pid));
        }
    }
    wait_until("its processes are gone", || !pids.iter().any(|&pid| is_running(pid)));
    now() - killed
}

/// What is killed, when, and in which job.
#[derive(Debug)]
struct Trial {
    number: u64,
    n_ranks: u32,
    phase: &'static str,
    mode: &'static str,
    victim: DeviceName,
    named: bool,
    delay_us: u64,
}

impl Trial {
    fn draw(number: u64, random: &mut Random) -> Self {
        // All combinations come up in turn; the rest is chance.
        let phase = PHASES[usize::try_from(number % 6).unwrap()];
        let mode = MODES[usize::try_from(number / 6 % 3).unwrap()];
        let n_ranks = 2 + u32::try_from(random.below(3)).unwrap();
        let seats = u64::from(n_ranks) + u64::from(mode == "service");
        let victim = match Rank::new(u32::try_from(random.below(seats)).unwrap(), n_ranks) {
            Ok(rank) => DeviceName::Rank(rank),
            Err(_) => DeviceName::Proxy,
        };
        let longest = match phase {
            "init" => 12_000,
            "teardown" => 1500,
            _ => 4000,
        };
        Self {
            number,
            n_ranks,
            phase,
            mode,
            victim,
            named: random.below(4) == 0,
            delay_us: random.below(longest),
        }
    }

    /// What its segments are called, if they have names.
    fn prefix(&self) -> String {
        format!("shmccl-kill-{}-{}", std::process::id(), self.number)
    }

    fn run(&self) -> Report {
        let test = this_test("whoever_survives_a_killed_process_is_told_and_nothing_is_left");
        let mode = if self.mode == "service" { ProxyMode::Process } else { ProxyMode::Thread };
        let mut launch = Launch::new(self.n_ranks).unwrap().program(test.clone()).service(test).proxy(mode);
        launch = launch.heap_len(2 << 20).timeout(Duration::from_secs(10)).capture_output(true);
        launch = launch.env("KILL_PHASE", self.phase).env("KILL_MODE", self.mode);
        if self.named {
            launch = launch.backing(SegmentBacking::Named(self.prefix()));
        }
        let mut watcher = Watcher {
            trial: self,
            pids: BTreeMap::new(),
            told: Vec::new(),
            up: 0,
            killer: None,
            output: Vec::new(),
        };
        let result = launch.supervise(&mut watcher).map(drop);
        let Watcher { pids, told, killer, output, .. } = watcher;
        let killed = killer.map(|killer| killer.join().unwrap());
        Report { result, pids, told, killed, output }
    }

    /// Checks who was told what.
    fn judge(&self, report: &Report, statistics: &mut Statistics) {
        let context =
            || format!("{self:?}: {:?}\n{}", report.result, String::from_utf8_lossy(&report.output));
        let killed = report.killed.unwrap_or_else(|| panic!("nobody was killed in {}", context()));
        let may_end_well = self.phase == "teardown";
        match &report.result {
            Err(Error::DeviceFailed { device, cause: ExitCause::Signal(9) }) if *device == self.victim => {}
            Ok(()) if may_end_well => statistics.too_late += 1,
            _ => panic!("{}", context()),
        }
        for rank in (0..self.n_ranks).map(|rank| Rank::new(rank, self.n_ranks).unwrap()) {
            if self.victim == DeviceName::Rank(rank) {
                continue;
            }
            let told: Vec<_> = report.told.iter().filter(|told| told.by == DeviceName::Rank(rank)).collect();
            match told[..] {
                [Told { lost: Some(lost), at, .. }] if *lost == self.victim => {
                    statistics.add(self.phase, self.mode, at.saturating_sub(killed));
                }
                [Told { lost: None, .. }] if may_end_well => {}
                _ => panic!("rank {rank} was told {told:?} in {}", context()),
            }
        }
    }
}

/// What came of a trial.
#[derive(Debug)]
struct Report {
    result: Result<()>,
    pids: BTreeMap<String, Pid>,
    told: Vec<Told>,
    /// When, on the monotonic clock.
    killed: Option<u64>,
    output: Vec<u8>,
}

/// What a device said at its end.
#[derive(Debug)]
struct Told {
    by: DeviceName,
    lost: Option<DeviceName>,
    at: u64,
}

/// Follows what the devices report, and kills one when the time has come.
struct Watcher<'t> {
    trial: &'t Trial,
    pids: BTreeMap<String, Pid>,
    told: Vec<Told>,
    up: u32,
    killer: Option<JoinHandle<u64>>,
    output: Vec<u8>,
}

impl Observer for Watcher<'_> {
    fn on_loss(&mut self, _device: DeviceName) {}

    fn on_output(&mut self, line: OutputLine<'_>) {
        line.write_prefixed(&mut self.output).unwrap();
        let text = String::from_utf8_lossy(line.text);
        match saying(&text).as_deref() {
            Some(["start", pid]) => {
                self.pids.insert(line.device.to_string(), self::pid(pid));
                if self.trial.phase == "init" && line.device == self.trial.victim {
                    self.strike();
                }
            }
            Some(["up", _]) => {
                self.up += 1;
                if self.trial.phase != "init" && self.up == self.trial.n_ranks {
                    self.strike();
                }
            }
            Some(["lost", who, at]) => {
                let lost = match who.parse() {
                    Ok(rank) => DeviceName::Rank(Rank::new(rank, self.trial.n_ranks).unwrap()),
                    Err(_) => DeviceName::Proxy,
                };
                self.told.push(Told { by: line.device, lost: Some(lost), at: at.parse().unwrap() });
            }
            Some(["done"]) => self.told.push(Told { by: line.device, lost: None, at: 0 }),
            _ => {}
        }
    }
}

impl Watcher<'_> {
    /// Kills the victim a little later.
    fn strike(&mut self) {
        let pid = self.pids[&self.trial.victim.to_string()];
        let delay_us = self.trial.delay_us;
        self.killer = Some(std::thread::spawn(move || {
            doze(delay_us);
            let at = now();
            // It may have ended by itself in a teardown.
            let _ = kill(pid, Signal::SIGKILL);
            at
        }));
    }
}

fn is_device() -> bool {
    std::env::var_os("SHMCCL_SOCKET").is_some()
}

/// The body of a device process. It tells the launcher's observer what becomes of it.
fn be_a_device() {
    let (phase, mode) = (std::env::var("KILL_PHASE").unwrap(), std::env::var("KILL_MODE").unwrap());
    say(&format!("start {}", std::process::id()));
    let outcome = match join_job() {
        Ok(Some(Member::Device(comm))) => work(*comm, &phase, &mode),
        Ok(_) => Ok(()),
        Err(error) => Err(tell(error)),
    };
    match outcome {
        Ok(()) => say("done"),
        Err(Error::PeerLost { .. } | Error::ProxyLost) => std::process::exit(1),
        // The launcher is gone, and nobody listens.
        Err(Error::Revoked { by: None }) => std::process::exit(2),
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
type Neighbours = [Box<dyn Channel>; 2];

fn prepare(comm: &mut Communicator, mode: &str) -> Result<(DeviceBuffer<u8>, Neighbours)> {
    let buffer = comm.alloc::<u8>(1 << 17)?;
    let mut channels: Neighbours = match mode {
        "direct" => {
            [Box::new(comm.memory_channel(comm.right())?), Box::new(comm.memory_channel(comm.left())?)]
        }
        _ => [Box::new(comm.port_channel(comm.right())?), Box::new(comm.port_channel(comm.left())?)],
    };
    // In a ring of two both neighbours are one rank, which opens its channels in the same order.
    if comm.n_ranks() == 2 && comm.rank().get() == 1 {
        channels.reverse();
    }
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

/// Says something to whoever reads the output, in a way that the test harness' own output is not taken for.
fn say(what: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n@ {what}").and_then(|()| out.flush()).unwrap();
}

fn saying(line: &str) -> Option<Vec<&str>> {
    Some(line.strip_prefix("@ ")?.split(' ').collect())
}

fn pid(text: &str) -> Pid {
    Pid::from_raw(text.parse().unwrap())
}

fn this_test(name: &str) -> Program {
    Program::new(std::env::current_exe().unwrap(), [name, "--exact", "--nocapture", "--test-threads=1"])
}

/// Nanoseconds on the clock that all processes share.
fn now() -> u64 {
    u64::try_from(Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap()).as_nanos()).unwrap()
}

/// Lets some time pass: the moment of a kill is drawn by lot.
fn doze(us: u64) {
    std::thread::park_timeout(Duration::from_micros(us));
}

/// How many descriptors this process has open, besides the one that looks.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Names in `/dev/shm` that start with `prefix`.
fn shared_memory(prefix: &str) -> Vec<String> {
    let names =
        std::fs::read_dir("/dev/shm").unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with(prefix)).collect()
}

fn long() -> bool {
    std::env::var_os("SHMCCL_LONG").is_some()
}

fn seed() -> u64 {
    std::env::var("SHMCCL_SEED").map_or_else(|_| now(), |text| text.parse().unwrap())
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

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[usize::try_from(self.below(from.len() as u64)).unwrap()]
    }
}

/// Times from the kill to the error of each survivor, in nanoseconds.
#[derive(Debug, Default)]
struct Statistics {
    times: BTreeMap<(usize, usize), Vec<u64>>,
    /// Trials in which the victim had ended before it was killed.
    too_late: u32,
}

impl Statistics {
    fn add(&mut self, phase: &str, mode: &str, ns: u64) {
        let place = |names: &[&str], name| names.iter().position(|other| *other == name).unwrap();
        self.times.entry((place(&PHASES, phase), place(&MODES, mode))).or_default().push(ns);
    }
}

impl std::fmt::Display for Statistics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(
            f,
            "{:10} {:13} {:>6} {:>10} {:>10} {:>10}",
            "phase", "mode", "errors", "p50", "p99", "max"
        )?;
        let mut row = |phase: &str, mode: &str, mut times: Vec<u64>| {
            let [p50, p99, max] = percentiles(&mut times).map(|time| time.to_string());
            writeln!(f, "{phase:10} {mode:13} {:>6} {p50:>10} {p99:>10} {max:>10}", times.len())
        };
        for ((phase, mode), times) in &self.times {
            row(PHASES[*phase], MODES[*mode], times.clone())?;
        }
        let after_init =
            self.times.iter().filter(|((phase, _), _)| *phase != 0).flat_map(|(_, times)| times.clone());
        row("all but init", "", after_init.collect())?;
        row("all", "", self.times.values().flatten().copied().collect())?;
        write!(f, "in {} teardowns the victim had ended before it was killed", self.too_late)
    }
}

/// Median, 99th percentile and maximum, in microseconds.
fn percentiles(times: &mut [u64]) -> [String; 3] {
    times.sort_unstable();
    let at = |percent: usize| match times.len() {
        0 => "-".to_owned(),
        len => format!("{:.1}us", times[(len * percent / 100).min(len - 1)] as f64 / 1000.0),
    };
    [at(50), at(99), at(100)]
}
