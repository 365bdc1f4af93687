//! Runs one body as device threads and as device processes.
//!
//! Processes are this test binary again, told to run the one test; there the same test function
//! finds the launcher's socket in its environment and becomes a device. Every run has a watchdog
//! that aborts the process with a message, so that a hang is a failure with a name.

use std::num::NonZeroU32;
use std::time::Duration;

use shmccl::bootstrap::{Options, ProxyMode};
use shmccl::channel::Channel;
use shmccl::collective::tuning::VARIABLE;
use shmccl::comm::{JoinedAs, join_job};
use shmccl::error::{DeviceName, ExitCause};
use shmccl::launch::{Launch, LaunchedAs, Observer, OutputLine, Program, launch_threads};
use shmccl::{Communicator, Error, Rank, Result};

pub(crate) use support::Watchdog;

/// How a scenario is run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    n_ranks: u32,
    heap_len: u64,
    timeout: Duration,
    patience: Duration,
    broken: bool,
    faults: &'static str,
    checksums: bool,
    cores: Option<NonZeroU32>,
}

impl Job {
    /// A scenario of `n_ranks` ranks that end together.
    pub(crate) const fn of(n_ranks: u32) -> Self {
        let (timeout, patience) = (Duration::from_secs(10), Duration::from_secs(300));
        Self {
            n_ranks,
            heap_len: 8 << 20,
            timeout,
            patience,
            broken: false,
            faults: "",
            checksums: false,
            cores: None,
        }
    }

    /// How long the waits of its ranks may take. Processes get four seconds at least, as joining
    /// the job has to be done in it.
    pub(crate) const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The length of each heap, in bytes.
    pub(crate) const fn heap_len(mut self, heap_len: u64) -> Self {
        self.heap_len = heap_len;
        self
    }

    /// What goes wrong on purpose.
    pub(crate) const fn faults(mut self, faults: &'static str) -> Self {
        self.faults = faults;
        self
    }

    /// Data are checked on their way.
    pub(crate) const fn checksums(mut self) -> Self {
        self.checksums = true;
        self
    }

    /// Its ranks count on so many cores, however many there are.
    pub(crate) const fn cores(mut self, cores: u32) -> Self {
        self.cores = NonZeroU32::new(cores);
        self
    }

    /// When the watchdog bites.
    pub(crate) const fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Ends with the epoch broken: the ranks do not meet at the end. What they have to see they
    /// assert themselves.
    pub(crate) const fn broken(mut self) -> Self {
        self.broken = true;
        self
    }

    /// Runs `body` in threads of this process.
    pub(crate) fn threads(self, name: &str, body: impl Fn(&mut Communicator) -> Result<()> + Sync) {
        let _watchdog = Watchdog::start(name, self.patience);
        let faults = self.faults.parse().unwrap();
        let options = Options {
            heap_len: self.heap_len,
            timeout: self.timeout,
            faults,
            checksums: self.checksums,
            cores: self.cores,
            ..Options::default()
        };
        let whole = |comm: &mut Communicator| {
            let done = body(comm);
            if !self.broken {
                return done;
            }
            assert!(done.is_ok(), "rank {}: {done:?}", comm.rank());
            // So that it leaves at once and does not finalize.
            Err(Error::Revoked { by: None, awaited: None })
        };
        match launch_threads(self.n_ranks, &options, whole) {
            Ok(_) => {}
            Err(Error::DeviceFailed { device, cause }) => panic!("{name}: {device} {cause}"),
            Err(_) if self.broken => {}
            Err(error) => panic!("{name}: {error}"),
        }
    }

    /// Runs `body` in processes. Called from the test named `name` with nothing before it.
    pub(crate) fn processes(
        self,
        name: &str,
        proxy: ProxyMode,
        body: impl FnOnce(&mut Communicator) -> Result<()>,
    ) {
        let _watchdog = Watchdog::start(name, self.patience);
        match join_job().unwrap() {
            Some(JoinedAs::Device(mut comm)) => {
                body(&mut comm).unwrap();
                if !self.broken {
                    comm.finalize().unwrap();
                }
            }
            Some(JoinedAs::Proxy) => {}
            None => self.launch(name, proxy),
        }
    }

    fn launch(self, name: &str, proxy: ProxyMode) {
        let program = this_test(name);
        let launch =
            Launch::new(self.n_ranks).unwrap().program(program.clone()).service(program).proxy(proxy);
        let launch = launch
            .heap_len(self.heap_len)
            .timeout(self.timeout.max(Duration::from_secs(4)))
            // What ranks say of a failure does not depend on how soon they are scheduled.
            .grace(Duration::from_secs(20))
            // Empty, it asks for the built-in table: not for one that was measured on this machine.
            .env(VARIABLE, "")
            .faults(self.faults.parse().unwrap())
            .checksums(self.checksums)
            .capture_output(true);
        let launch = match self.cores {
            Some(cores) => launch.cores(cores),
            None => launch,
        };
        let mut output = Captured(Vec::new());
        if let Err(error) = launch.supervise(&mut output) {
            panic!("{name}: {error}\n{}", String::from_utf8_lossy(&output.0));
        }
    }
}

/// This test binary, told to run the test `name` alone.
pub(crate) fn this_test(name: &str) -> Program {
    let args = [name, "--exact", "--nocapture", "--test-threads=1"];
    Program::new(std::env::current_exe().unwrap(), args)
}

/// The name by which the test harness knows the test `test` of the module at `path`.
pub(crate) fn test_name(path: &str, test: &str) -> String {
    let (_, within) = path.split_once("::").unwrap();
    format!("{within}::{test}")
}

/// Defines a module of tests, one for each way to run the body: `threads`, `processes`.
macro_rules! scenario {
    ($(#[$doc:meta])* $name:ident, $job:expr, |$comm:ident| $body:block) => {
        $(#[$doc])*
        mod $name {
            use super::*;

            fn body($comm: &mut shmccl::Communicator) -> shmccl::Result<()> {
                $body
                Ok(())
            }

            #[test]
            fn threads() {
                $job.threads(&$crate::harness::test_name(module_path!(), "threads"), body);
            }

            #[test]
            fn processes() {
                let name = $crate::harness::test_name(module_path!(), "processes");
                $job.processes(&name, shmccl::bootstrap::ProxyMode::Thread, body);
            }
        }
    };
}

/// Like `scenario!` for a body that uses port channels: also `service`, with a proxy service
/// process.
macro_rules! port_scenario {
    ($(#[$doc:meta])* $name:ident, $job:expr, |$comm:ident| $body:block) => {
        $(#[$doc])*
        mod $name {
            use super::*;

            fn body($comm: &mut shmccl::Communicator) -> shmccl::Result<()> {
                $body
                Ok(())
            }

            #[test]
            fn threads() {
                $job.threads(&$crate::harness::test_name(module_path!(), "threads"), body);
            }

            #[test]
            fn processes() {
                let name = $crate::harness::test_name(module_path!(), "processes");
                $job.processes(&name, shmccl::bootstrap::ProxyMode::Thread, body);
            }

            #[test]
            fn service() {
                let name = $crate::harness::test_name(module_path!(), "service");
                $job.processes(&name, shmccl::bootstrap::ProxyMode::Process, body);
            }
        }
    };
}

/// Like `scenario!` for a body that is the same over either kind of channel, which it opens by
/// `$open(comm, peer)`.
macro_rules! channel_scenario {
    ($(#[$doc:meta])* $name:ident, $job:expr, |$comm:ident, $open:ident| $body:block) => {
        $(#[$doc])*
        mod $name {
            use super::*;

            fn over($comm: &mut shmccl::Communicator, $open: $crate::harness::Open) -> shmccl::Result<()> {
                $body
                Ok(())
            }

            scenario!(memory, $job, |comm| { over(comm, $crate::harness::open_memory)?; });
            port_scenario!(port, $job, |comm| { over(comm, $crate::harness::open_port)?; });
        }
    };
}

/// Opens a channel to a peer.
pub(crate) type Open = fn(&Communicator, Rank) -> Result<Box<dyn Channel + Send>>;

pub(crate) fn open_memory(comm: &Communicator, peer: Rank) -> Result<Box<dyn Channel + Send>> {
    Ok(Box::new(comm.memory_channel(peer)?))
}

pub(crate) fn open_port(comm: &Communicator, peer: Rank) -> Result<Box<dyn Channel + Send>> {
    Ok(Box::new(comm.port_channel(peer)?))
}

/// Rank `value` of the job.
pub(crate) fn rank(comm: &Communicator, value: u32) -> Rank {
    Rank::new(value, comm.n_ranks()).unwrap()
}

/// Meets the others in a barrier, however often waiting for them takes longer than the timeout. The
/// watchdog ends it.
pub(crate) fn meet_at_last(comm: &mut Communicator) {
    while let Err(error) = comm.barrier() {
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
    }
}

/// Leaves the last barrier of a broken job: nobody leaves before the others have come to it, but by
/// now they may have left.
pub(crate) fn leave_together(comm: &mut Communicator) {
    let done = loop {
        match comm.barrier() {
            Err(Error::Timeout { .. }) => {}
            done => break done,
        }
    };
    assert!(matches!(done, Ok(()) | Err(Error::PeerLost { .. })), "{done:?}");
}

/// Keeps what the processes print, for the message of a failure.
struct Captured(Vec<u8>);

impl Observer for Captured {
    fn on_loss(&mut self, _device: DeviceName) {}

    fn on_output(&mut self, line: OutputLine<'_>) {
        line.write_prefixed(&mut self.0).unwrap();
        if let Some(text) = line.text.strip_prefix(FIGURE.as_bytes()) {
            figure(&String::from_utf8_lossy(text));
        }
    }
}

/// Starts a line that the launcher passes on.
const FIGURE: &str = "figure: ";

/// Prints a result that is worth reading, from a device or not.
#[expect(clippy::print_stdout, reason = "for whoever runs the tests with --nocapture")]
pub(crate) fn figure(text: &str) {
    // Within a line of the test harness as a rule.
    println!("\n{FIGURE}{text}");
}

/// A stream of numbers that depends on its seed alone (splitmix64).
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    /// A number below `limit`, which is not zero.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        // Without iterators over bytes, which take most of the time of tests that are not
        // optimised.
        let mut bytes = Vec::with_capacity(len.next_multiple_of(8));
        while bytes.len() < len {
            bytes.extend_from_slice(&self.next().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }
}

/// The seed of this run: from the environment where it names one.
pub(crate) fn seed() -> u64 {
    match std::env::var("SHMCCL_SEED") {
        Ok(text) => text.parse().unwrap(),
        Err(_) => {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
            Random(u64::from(now.subsec_nanos()) ^ now.as_secs()).next() >> 1
        }
    }
}

/// The seed that rank 0 has drawn, told by no more than a few puts.
pub(crate) fn agreed_seed(comm: &mut Communicator) -> Result<u64> {
    let cell = comm.alloc::<u64>(1)?;
    if comm.rank().get() == 0 {
        let seed = seed();
        for peer in 0..comm.n_ranks() {
            comm.memory_channel(rank(comm, peer))?.write(cell.region().offset, seed)?;
        }
    }
    comm.barrier()?;
    let seed = cell.get(0)?;
    comm.free(cell)?;
    Ok(seed)
}

/// Like [`agreed_seed`]; rank 0 prints what the seed is for.
pub(crate) fn seed_of(comm: &mut Communicator, what: &str) -> Result<u64> {
    let seed = agreed_seed(comm)?;
    if comm.rank().get() == 0 {
        figure(&format!("{what}, SHMCCL_SEED={seed}"));
    }
    Ok(seed)
}

/// `len` bytes that tell where they come from.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    Random(seed).bytes(len)
}

/// Whether `error` says that `rank` was lost.
pub(crate) fn is_lost(error: &Error, lost: Rank) -> bool {
    matches!(error, Error::PeerLost { rank } if *rank == lost)
}

/// What a victim exits with.
pub(crate) const VICTIMS_CODE: i32 = 42;

/// Checks that a job ended, for its launcher, by the exit of `victim`. The other devices return its
/// loss.
pub(crate) fn check_exit_of(victim: Rank, job: Result<LaunchedAs>) {
    match job {
        Err(Error::DeviceFailed { device, cause }) => {
            assert_eq!((device, cause), (DeviceName::Rank(victim), ExitCause::Code(VICTIMS_CODE)));
        }
        // In a device: what it returns is its exit code.
        Err(error) => panic!("{error}"),
        Ok(LaunchedAs::Proxy) => {}
        Ok(role) => panic!("{role:?}"),
    }
}

/// Panics without a word: telling where takes longer than a wait under a sanitizer.
pub(crate) fn panic_on_purpose() -> ! {
    std::panic::resume_unwind(Box::new("on purpose"))
}

/// Whether a job ended by a panic of the device `rank`.
pub(crate) fn panicked(error: &Error, lost: Rank) -> bool {
    let device = DeviceName::Rank(lost);
    matches!(error, Error::DeviceFailed { device: d, cause: ExitCause::Panicked } if *d == device)
}
