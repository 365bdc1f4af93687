//! A launcher that is killed, alone or with its whole process group, and what it leaves: nothing.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};

use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use shmccl::Error;
use shmccl::bootstrap::{ProxyMode, SegmentBacking};
use shmccl::launch::Launch;
use support::{Random, await_all_children};

use crate::kill::device::saying;
use crate::kill::{MODES, PHASES, descriptors, doze, now, shared_memory, these_args, this_test};

/// The test that the launcher and its devices are told to run.
const TEST: &str = "a_killed_launcher_leaves_no_process_and_no_name";

const N_RANKS: u64 = 3;

/// Whether this process is a launcher that is going to be killed.
pub(crate) fn is_launcher() -> bool {
    std::env::var_os("KILL_LAUNCHER").is_some()
}

/// The body of the launcher.
pub(crate) fn be_a_launcher() {
    let service = std::env::var("KILL_MODE").unwrap() == "service";
    let mode = if service { ProxyMode::Process } else { ProxyMode::Thread };
    let n_ranks = u32::try_from(N_RANKS).unwrap();
    let mut launch = Launch::new(n_ranks).unwrap().program(this_test(TEST)).service(this_test(TEST));
    if let Ok(prefix) = std::env::var("KILL_NAMES") {
        launch = launch.backing(SegmentBacking::Named(prefix));
    }
    let _ = launch.proxy(mode).heap_len(2 << 20).run(|_| Ok::<_, Error>(()));
}

/// When and how a launcher of three ranks is killed.
#[derive(Debug)]
pub(crate) struct LauncherTrial {
    number: u64,
    /// What its ranks do; `None`: the launcher itself has hardly begun.
    phase: Option<&'static str>,
    mode: &'static str,
    named: bool,
    /// Launcher and ranks at once.
    whole_group: bool,
    /// Of how many ranks it is awaited that they start; all of them work in a later phase than
    /// "init".
    started: u64,
    delay_us: u64,
}

impl LauncherTrial {
    pub(crate) fn draw(number: u64, random: &mut Random) -> Self {
        let phase = PHASES.get(usize::try_from(number % 7).unwrap()).copied();
        Self {
            number,
            phase,
            mode: random.pick(&MODES),
            named: number.is_multiple_of(2),
            whole_group: number % 8 < 2,
            started: random.below(N_RANKS) + 1,
            delay_us: random.below(if phase.is_none() { 12_000 } else { 3000 }),
        }
    }

    /// Runs the trial, and returns how long it took from the kill until its last process was gone.
    pub(crate) fn run(&self) -> u64 {
        // Whatever the launcher leaves becomes a child of this process: so nothing can hide.
        set_child_subreaper(true).unwrap();
        let before = descriptors();
        let (mut launcher, lines) = self.start();
        doze(self.delay_us);
        let killed = now();
        let pid = Pid::from_raw(launcher.id().try_into().unwrap());
        kill(if self.whole_group { Pid::from_raw(-pid.as_raw()) } else { pid }, Signal::SIGKILL).unwrap();
        launcher.wait().unwrap();
        await_all_children();
        let took = now() - killed;
        drop((launcher, lines));
        assert_eq!(shared_memory(&self.prefix()), [""; 0], "left in /dev/shm after {self:?}");
        assert_eq!(descriptors(), before, "descriptors are left open after {self:?}");
        took
    }

    fn prefix(&self) -> String {
        format!("shmccl-kill-launcher-{}-{}", std::process::id(), self.number)
    }

    /// Starts the launcher, and returns when its ranks are where they are to be.
    fn start(&self) -> (Child, BufReader<ChildStdout>) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(these_args(TEST));
        command.stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
        let phase = self.phase.unwrap_or("barrier");
        command.envs([("KILL_LAUNCHER", "1"), ("KILL_PHASE", phase), ("KILL_MODE", self.mode)]);
        if self.named {
            command.env("KILL_NAMES", self.prefix());
        }
        let mut launcher = command.spawn().unwrap();
        let mut lines = BufReader::new(launcher.stdout.take().unwrap());
        let (word, count) = match self.phase {
            None => ("", 0),
            Some("init") => ("start", self.started),
            Some(_) => ("up", N_RANKS),
        };
        let mut seen = 0;
        while seen < count {
            let mut line = String::new();
            assert_ne!(lines.read_line(&mut line).unwrap(), 0, "the ranks have ended in {self:?}");
            seen += u64::from(saying(line.trim_end()).is_some_and(|said| said[0] == word));
        }
        (launcher, lines)
    }
}
