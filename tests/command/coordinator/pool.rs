//! Starts coordinators and devices, and sends them requests. Nothing outlives the [`Pool`].

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use shmccl::coordinator::{Client, RuntimeDirectory};
use support::{Watchdog, long};

const WATCHDOG: Duration = Duration::from_secs(60);

/// A directory of sockets, and the processes that use it.
pub(crate) struct Pool {
    pub(crate) parent: PathBuf,
    coordinator: Option<Child>,
    devices: Vec<Child>,
    /// A watchdog, since no wait here has a timeout.
    _guard: Watchdog,
}

/// The output of a command.
pub(crate) struct Told {
    pub(crate) code: i32,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl Told {
    #[track_caller]
    pub(crate) fn line(&self) -> String {
        assert_eq!((self.code, self.stderr.as_str()), (0, ""));
        String::from_utf8(self.stdout.clone()).unwrap().trim_end().to_owned()
    }

    /// Returns the one line with which it failed.
    #[track_caller]
    pub(crate) fn error(&self) -> &str {
        assert_eq!((self.code, self.stdout.len()), (1, 0), "{}", self.stderr);
        assert_eq!(self.stderr.lines().count(), 1, "{}", self.stderr);
        self.stderr.trim_end()
    }
}

impl Pool {
    /// Starts a coordinator and so many devices.
    pub(crate) fn start(name: &str, devices: usize) -> Self {
        let mut pool = Self::empty(name);
        pool.start_coordinator();
        (0..devices).for_each(|_| _ = pool.start_device());
        pool
    }

    /// Connects a client to the coordinator.
    pub(crate) fn client(&self) -> Client {
        let directory = RuntimeDirectory::at(self.parent.join("shmccl")).unwrap();
        Client::connect(&directory, WATCHDOG).unwrap()
    }

    pub(crate) fn empty(name: &str) -> Self {
        let parent = std::env::temp_dir().join(format!("shmccl-coordinator-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&parent);
        std::fs::create_dir(&parent).unwrap();
        let patience = Duration::from_secs(if long() { 1800 } else { 300 });
        let _guard = Watchdog::start(&format!("the test of the pool {name}"), patience);
        Self { parent, coordinator: None, devices: Vec::new(), _guard }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.parent.join("shmccl/coordinator")
    }

    pub(crate) fn command(&self) -> Command {
        self.command_of(env!("CARGO_BIN_EXE_shmccl"))
    }

    fn command_of(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("XDG_RUNTIME_DIR", &self.parent).env("NO_COLOR", "1");
        command
    }

    fn spawn(&self, words: &[&str]) -> Child {
        self.spawn_talking(words).0
    }

    /// Starts a process, waits for its first line, and returns the rest of its output.
    pub(crate) fn spawn_talking(&self, words: &[&str]) -> (Child, BufReader<ChildStderr>) {
        talking(self.command().args(words))
    }

    /// Starts a coordinator with so many devices of its own, and returns its output after all have
    /// registered.
    pub(crate) fn start_fleet(&mut self, devices: usize, flags: &[&str]) -> BufReader<ChildStderr> {
        let (coordinator, mut stderr) = self.spawn_talking(&[&["coordinator"], flags].concat());
        self.coordinator = Some(coordinator);
        for _ in 0..devices {
            let mut line = String::new();
            stderr.read_line(&mut line).unwrap();
            assert!(line.contains("has addresses"), "{line}");
        }
        stderr
    }

    pub(crate) fn start_coordinator(&mut self) {
        self.start_coordinator_with(&[]);
    }

    pub(crate) fn start_coordinator_with(&mut self, flags: &[&str]) {
        self.coordinator = Some(self.spawn(&[&["coordinator"], flags].concat()));
    }

    /// Starts a coordinator from a line of the shell, in which `"$0"` is the program.
    pub(crate) fn start_coordinator_by(&mut self, line: &str) {
        let words = ["-c", line, env!("CARGO_BIN_EXE_shmccl")];
        self.coordinator = Some(talking(self.command_of("sh").args(words)).0);
    }

    /// Starts a device. Returns its number.
    pub(crate) fn start_device(&mut self) -> u32 {
        let device = self.spawn(&["device"]);
        let id = device.id();
        self.devices.push(device);
        id
    }

    /// Starts a device with these faults.
    pub(crate) fn start_faulty_device(&mut self, faults: &str) {
        let mut command = self.command();
        command.arg("device").env("SHMCCL_FAULTS", faults);
        let (device, _) = talking(&mut command);
        self.devices.push(device);
    }

    pub(crate) fn devices(&self) -> Vec<u32> {
        self.devices.iter().map(Child::id).collect()
    }

    pub(crate) fn kill_device(&mut self, index: usize) -> u32 {
        let mut device = self.devices.remove(index);
        device.kill().unwrap();
        device.wait().unwrap();
        device.id()
    }

    pub(crate) fn kill_coordinator(&mut self) {
        let mut coordinator = self.coordinator.take().unwrap();
        coordinator.kill().unwrap();
        coordinator.wait().unwrap();
    }

    /// Returns the janitors of coordinators of the pool, and of pools within its directory.
    pub(crate) fn janitors(&self) -> Vec<u32> {
        let told = [b"XDG_RUNTIME_DIR=", self.parent.as_os_str().as_encoded_bytes()].concat();
        let processes = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
            let number = entry.unwrap().file_name().to_str()?.parse().ok()?;
            let name = std::fs::read_to_string(format!("/proc/{number}/comm")).ok()?;
            let environment = std::fs::read(format!("/proc/{number}/environ")).ok()?;
            let is_its = environment.split(|byte| *byte == 0).any(|entry| entry == told);
            (is_its && name == "shmccl janitor\n").then_some(number)
        });
        processes.collect()
    }

    /// Waits until there is one janitor, with its name.
    pub(crate) fn await_janitor(&self) -> u32 {
        loop {
            if let [janitor] = self.janitors()[..] {
                return janitor;
            }
            std::thread::yield_now();
        }
    }

    /// Kills the janitors, so that processes killed after that leave their files.
    pub(crate) fn kill_janitors(&self) {
        // A janitor that has only just begun has no name yet.
        while self.janitors().is_empty() {}
        for janitor in self.janitors() {
            // The janitor of an earlier coordinator may have ended by itself.
            kill(Pid::from_raw(janitor.cast_signed()), Signal::SIGKILL).ok();
        }
        while !self.janitors().is_empty() {}
    }

    /// Waits until the janitor of the killed coordinator has removed the socket.
    pub(crate) fn await_no_socket(&self) {
        while self.socket().exists() {}
    }

    /// Interrupts the coordinator and all devices. Returns their exit codes.
    pub(crate) fn interrupt(&mut self) -> Vec<Option<i32>> {
        let all = self.coordinator.take().into_iter().chain(self.devices.drain(..));
        all.map(|mut child| {
            kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), Signal::SIGTERM).unwrap();
            child.wait().unwrap().code()
        })
        .collect()
    }

    pub(crate) fn coordinator(&mut self) -> &mut Child {
        self.coordinator.as_mut().unwrap()
    }

    pub(crate) fn replace_coordinator(&mut self, coordinator: Child) {
        self.coordinator = Some(coordinator);
    }

    pub(crate) fn has_coordinator(&mut self) -> bool {
        self.coordinator.as_mut().is_some_and(|coordinator| coordinator.try_wait().unwrap().is_none())
    }

    pub(crate) fn ctl(&self, args: &str) -> Told {
        self.ctl_with(args, b"")
    }

    /// Runs `shmccl ctl` with `args`, split at blanks, and with this input.
    pub(crate) fn ctl_with(&self, args: &str, input: &[u8]) -> Told {
        let mut command = self.command();
        command.arg("ctl").args(args.split_whitespace());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // The command may fail before it has read anything.
        let _ = child.stdin.take().unwrap().write_all(input);
        let (mut stdout, mut stderr) = (Vec::new(), String::new());
        child.stdout.take().unwrap().read_to_end(&mut stdout).unwrap();
        child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        let code = child.wait().unwrap().code().unwrap_or(-1);
        Told { code, stdout, stderr }
    }

    /// Repeats a request until the answer is as wanted.
    #[track_caller]
    pub(crate) fn ctl_until(&self, args: &str, is_wanted: impl Fn(&str) -> bool) -> String {
        let began = Instant::now();
        loop {
            let line = self.ctl(args).line();
            if is_wanted(&line) {
                return line;
            }
            assert!(began.elapsed() < WATCHDOG, "it stays {line}");
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for child in self.coordinator.iter_mut().chain(&mut self.devices) {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.parent);
    }
}

/// Starts a process, waits for its first line, and returns the rest of its output.
pub(crate) fn talking(command: &mut Command) -> (Child, BufReader<ChildStderr>) {
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let (mut line, mut stderr) = (String::new(), BufReader::new(child.stderr.take().unwrap()));
    stderr.read_line(&mut line).unwrap();
    assert!(line.contains("Ctrl-C ends it"), "{line}");
    (child, stderr)
}

/// Whether a table of devices has this one.
pub(crate) fn lists(table: &str, device: u32) -> bool {
    table.lines().any(|row| row.split_whitespace().next() == Some(&device.to_string()))
}

/// Sends `signal`. If it is one that stops, waits until all threads have stopped: the others go on
/// until one has taken it.
pub(crate) fn signal(process: u32, signal: Signal) {
    kill(Pid::from_raw(process.cast_signed()), signal).unwrap();
    while signal == Signal::SIGSTOP && !is_stopped(process) {}
}

/// Whether all threads of a process are stopped, or it is gone.
fn is_stopped(process: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{process}/task")) else { return true };
    let state = |entry: std::fs::DirEntry| std::fs::read_to_string(entry.path().join("stat"));
    let mut states = threads.filter_map(|entry| state(entry.ok()?).ok());
    states.all(|state| state.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['T', 'Z', 'X'])))
}

/// Returns the number of entries of a directory.
pub(crate) fn entries(directory: &Path) -> usize {
    std::fs::read_dir(directory).unwrap().count()
}
