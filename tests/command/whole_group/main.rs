//! `kill -9` of a whole `shmccl run`, ranks and service process and all, at a random instant:
//! nothing is left, and the next one starts. A `shmccl coordinator -n` is killed likewise; its
//! janitor removes the socket.
//!
//! `SHMCCL_LONG=1` kills 300 times, `SHMCCL_SEED` replays a series, `--nocapture` shows what came
//! of it. The test is alone in this file: whatever a killed job leaves becomes a child of this
//! process, which has to have no others. `device_process` is an entry point.
#![expect(clippy::print_stdout, reason = "devices report on stdout, and the summary is the result")]

mod pools;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{Signal, kill};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use shmccl::channel::Channel;
use shmccl::comm::{JoinedAs, join_job};
use shmccl::reduce::ReduceOp;
use shmccl::{Collectives, Communicator};
use support::{Random, Watchdog, await_all_children, is_running, long, seed};

/// What devices do until they are killed; one that is to `pass` ends in peace.
const PART: &str = "SHMCCL_TEST_GROUP_PART";

/// Marks all processes of a cycle, however they have come to be.
const MARK: &str = "SHMCCL_TEST_GROUP_MARK";

/// One cycle may take so long.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn device_process() {
    let Ok(part) = std::env::var(PART) else { return };
    if std::env::var_os("SHMCCL_RANK").is_none() {
        return;
    }
    let Ok(Some(JoinedAs::Device(mut comm))) = join_job() else { return };
    println!("up");
    let passes = part == "pass";
    loop {
        match work(&mut comm) {
            Ok(()) if passes => break,
            Err(error) if passes => panic!("{error}"),
            // Whoever is killed kills the others as well: how an operation ends is no matter.
            _ => {}
        }
    }
    comm.finalize().unwrap();
}

/// One operation of each kind, by the service where there is one.
fn work(comm: &mut Communicator) -> shmccl::Result<()> {
    let buffer = comm.alloc::<u64>(1 << 14)?;
    let mut channels = [comm.port_channel(comm.right())?, comm.port_channel(comm.left())?];
    if comm.n_ranks() == 2 && comm.rank().get() == 1 {
        // Both neighbours are one rank, which opens its channels in the same order.
        channels.reverse();
    }
    let (here, there) = (buffer.part(0, 1 << 13)?, buffer.part(1 << 13, 1 << 13)?);
    let [right, left] = &mut channels;
    right.put_with_signal(there.offset, here.offset, here.len)?;
    left.wait()?;
    comm.all_reduce_in_place(&mut [1_u64; 100], &ReduceOp::Sum)?;
    comm.free(buffer)
}

#[test]
fn a_whole_group_that_is_killed_leaves_nothing_and_the_next_job_starts() {
    if std::env::var_os(PART).is_some() {
        return;
    }
    set_child_subreaper(true).unwrap();
    let cycles = if long() { 300 } else { 20 };
    let seed = seed();
    println!("{cycles} cycles, SHMCCL_SEED={seed}");
    let mut random = Random(seed);
    let mut summary = Summary::default();
    let scratch = Scratch::new();
    for number in 0..cycles {
        let cycle = Cycle::draw(number, &mut random);
        let _watchdog = Watchdog::start(&format!("{cycle:?}"), PATIENCE);
        cycle.run(&scratch, &mut summary);
    }
    summary.tell();
    for number in 0..cycles {
        let _watchdog = Watchdog::start(&format!("pool {number} of seed {seed}"), PATIENCE);
        pools::kill_and_start_again(&scratch, number, &mut random);
    }
}

/// When a job of which kind is killed.
#[derive(Debug)]
struct Cycle {
    number: u64,
    n_ranks: u64,
    service: bool,
    named: bool,
    /// Further flags of `shmccl run`.
    flags: &'static [&'static str],
    /// How many ranks are to be in the job by then.
    up: u64,
    delay_us: u64,
}

impl Cycle {
    fn draw(number: u64, random: &mut Random) -> Self {
        let flags: [&[&str]; 4] =
            [&[], &["--keep-going"], &["--restart", "2"], &["--hung-after", "5/10", "--heartbeat", "100ms"]];
        let n_ranks = random.below(3) + 2;
        let up = random.below(2) * n_ranks;
        Self {
            number,
            n_ranks,
            service: random.below(3) == 0,
            named: number.is_multiple_of(2),
            flags: flags[usize::try_from(random.below(4)).unwrap()],
            up,
            // A job is up after some 20 ms.
            delay_us: random.below(if up == 0 { 40_000 } else { 4000 }),
        }
    }

    fn prefix(&self) -> String {
        format!("shmccl-group-{}-{}", std::process::id(), self.number)
    }

    fn run(&self, scratch: &Scratch, summary: &mut Summary) {
        let mut job = self.start(scratch, "work", self.flags);
        let mut lines = BufReader::new(job.stdout.take().unwrap()).lines();
        for _ in 0..self.up {
            // The harness of a device prints, too.
            assert!(lines.any(|line| line.unwrap().ends_with("up")), "the job has ended: {self:?}");
        }
        std::thread::park_timeout(Duration::from_micros(self.delay_us));
        let killed = now();
        kill(Pid::from_raw(-i32::try_from(job.id()).unwrap()), Signal::SIGKILL).unwrap();
        let names = names(&self.prefix());
        let parts = marked(&self.prefix()).len();
        if !self.named {
            // Nothing has to be gone for that.
            self.start_next(scratch);
        }
        job.wait().unwrap();
        drop(lines);
        await_all_children();
        summary.note(self, !names.is_empty(), parts, self.named.then(|| now() - killed));
        self.check(scratch);
        if self.named {
            self.start_next(scratch);
            self.check(scratch);
        }
    }

    /// Checks that nothing is left.
    fn check(&self, scratch: &Scratch) {
        assert_eq!(names(&self.prefix()), [""; 0], "left in /dev/shm after {self:?}");
        assert_eq!(marked(&self.prefix()), [], "left after {self:?}");
        assert_eq!(scratch.entries(), [""; 0], "left in the runtime directory after {self:?}");
    }

    /// A job like this one, under the same names, does its work and tells of nothing that it has
    /// found.
    fn start_next(&self, scratch: &Scratch) {
        let mut next = self.start(scratch, "pass", &[]);
        let mut stderr = String::new();
        next.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        let status = next.wait().unwrap();
        assert!(status.success() && stderr.is_empty(), "{status} after {self:?}: {stderr}");
    }

    fn start(&self, scratch: &Scratch, part: &str, flags: &[&str]) -> Child {
        let this = std::env::current_exe().unwrap();
        let (ranks, names) = (self.n_ranks.to_string(), format!("named:{}", self.prefix()));
        let mut command = Command::new(env!("CARGO_BIN_EXE_shmccl"));
        command.args(["run", "-q", "-n", &ranks, "--heap", "4M"]).args(flags);
        command.args(["--proxy", if self.service { "process" } else { "thread" }]);
        command.args(["--segment", if self.named { &names } else { "memfd" }]);
        command.arg("--").arg(this).args(["--exact", "device_process", "--nocapture"]);
        command.env(PART, part).env(MARK, self.prefix()).env("SHMCCL_TUNING", "");
        command.env("XDG_RUNTIME_DIR", &scratch.0).env("TMPDIR", &scratch.0);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        command.spawn().unwrap()
    }
}

/// The runtime directory of all jobs, which is to be empty whenever none runs.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("group-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn entries(&self) -> Vec<String> {
        names_in(&self.0, "")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What came of all cycles.
#[derive(Default)]
struct Summary {
    cycles: u64,
    before_up: u64,
    with_names: u64,
    parts: BTreeSet<usize>,
    times: Vec<u64>,
}

impl Summary {
    fn note(&mut self, cycle: &Cycle, had_names: bool, parts: usize, took: Option<u64>) {
        self.before_up += u64::from(cycle.up == 0);
        self.with_names += u64::from(had_names);
        self.parts.insert(parts);
        self.cycles += 1;
        self.times.extend(took);
    }

    fn tell(mut self) {
        self.times.sort_unstable();
        let last = self.times.len() - 1;
        let [p50, p99, max] = [50, 99, 100].map(|percent| {
            let time = self.times[(self.times.len() * percent / 100).min(last)];
            format!("{:.1} ms", time as f64 / 1e6)
        });
        println!(
            "{} groups killed, {} while they started, {} that had names in /dev/shm at that moment; {:?} of their processes \
             still to be seen right after it; those with names all gone after p50 {p50} p99 {p99} max {max}; nothing left, and \
             each next job done",
            self.cycles, self.before_up, self.with_names, self.parts
        );
    }
}

/// Names in `/dev/shm` that start with `prefix`.
fn names(prefix: &str) -> Vec<String> {
    names_in(Path::new("/dev/shm"), prefix)
}

fn names_in(directory: &Path, prefix: &str) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with(prefix)).collect()
}

/// Processes of this host that have the mark in their environment, and run.
fn marked(mark: &str) -> Vec<Pid> {
    let variable = format!("{MARK}={mark}\0").into_bytes();
    let has_mark = |pid: &Pid| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.windows(variable.len()).any(|window| window == variable)
    };
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).map(Pid::from_raw);
    pids.filter(has_mark).filter(|pid| is_running(*pid)).collect()
}

/// Nanoseconds on the clock that all processes share.
fn now() -> u64 {
    u64::try_from(Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap()).as_nanos()).unwrap()
}
