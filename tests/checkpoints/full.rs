//! Checkpoints that there is no room for: on a disk that is full, or past the length that a file
//! may have.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::geteuid;
use shmccl::comm::{CheckpointFault, JoinedAs, join_job};
use shmccl::error::DeviceName;
use shmccl::launch::{Launch, Observer, OutputLine};
use shmccl::reduce::ReduceOp;
use shmccl::{Collectives, Communicator, Error, Result};
use support::Watchdog;

use crate::keeper::{DIRECTORY, State};
use crate::{PATIENCE, names, this_test};

/// Says where a small disk is mounted, in a process that sees it.
pub(crate) const DISK: &str = "SHMCCL_TEST_SMALL_DISK";

/// The length of that disk: enough for two checkpoints, the old and the new one.
const DISK_LEN: u64 = 12 << 20;

const WAY: &str = "FULL_WAY";

const N_RANKS: u32 = 3;

/// Runs a job for each of `ways` in which there is no room, all in directories of their own.
pub(crate) fn fill_up(test: &str, place: &Path, ways: &[&str]) {
    for way in ways {
        let _watchdog = Watchdog::start(&format!("no room: {way}"), PATIENCE);
        let directory = place.join(way.replace(' ', "-"));
        let launch = Launch::new(N_RANKS).unwrap().program(this_test(test)).heap_len(8 << 20);
        let launch = launch.timeout(Duration::from_secs(20)).env(DIRECTORY, &directory).env(WAY, *way);
        let launch = launch.env("SHMCCL_TUNING", "");
        let mut heard = Heard::default();
        let outcome = launch.capture_output(true).supervise(&mut heard);
        assert!(outcome.is_ok(), "{way}: {outcome:?}\n{}", String::from_utf8_lossy(&heard.0));
        std::fs::remove_dir_all(directory).unwrap();
    }
}

/// What devices print.
#[derive(Default)]
struct Heard(Vec<u8>);

impl Observer for Heard {
    fn on_loss(&mut self, _device: DeviceName) {}

    fn on_output(&mut self, line: OutputLine<'_>) {
        line.write_prefixed(&mut self.0).unwrap();
    }
}

/// Runs the test `name` in a process that has a small disk mounted at `place`, which nobody else
/// sees, where that may be: as root, or in a name space of its own. Where neither is allowed,
/// limits have to do.
pub(crate) fn with_a_small_disk(name: &str, place: &Path) {
    let spaces = if geteuid().is_root() { &["--mount"][..] } else { &["--mount", "--map-root-user"] };
    if !may_mount(spaces) {
        println!("a disk that is full: mounting is not allowed here, limits were tried");
        return;
    }
    let disk = place.join("disk");
    std::fs::create_dir(&disk).unwrap();
    let mount = format!("mount -t tmpfs -o size={DISK_LEN} none \"$0\" && exec \"$@\"");
    let mut command = Command::new("unshare");
    command.args(spaces).args(["sh", "-c", &mount]).arg(&disk).arg(std::env::current_exe().unwrap());
    command.args([name, "--exact", "--nocapture", "--test-threads=1"]).env(DISK, &disk);
    assert!(command.status().unwrap().success());
    println!("a disk that is full: seen");
}

fn may_mount(spaces: &[&str]) -> bool {
    let probe = Command::new("unshare").args(spaces).args(["mount", "-t", "tmpfs", "none", "/mnt"]).status();
    probe.is_ok_and(|status| status.success())
}

/// The body of a device process.
pub(crate) fn be_short_of_space() {
    let Ok(Some(JoinedAs::Device(mut comm))) = join_job() else { return };
    // What the kernel sends to who writes too much; the write fails then.
    SigSet::from(Signal::SIGXFSZ).thread_block().unwrap();
    live_through(&mut comm).unwrap();
    comm.finalize().unwrap();
}

fn live_through(comm: &mut Communicator) -> Result<()> {
    let way = std::env::var(WAY).unwrap();
    let directory = PathBuf::from(std::env::var_os(DIRECTORY).unwrap());
    // With nothing allocated what names the checkpoint is longer than any part of it.
    let state = if way == "last" { None } else { Some(State::allocate(comm)?) };
    let write =
        |comm: &Communicator, version| state.as_ref().map_or(Ok(()), |state| state.write(comm, version));
    let holds = |comm: &Communicator, version| state.as_ref().is_none_or(|state| state.holds(comm, version));
    write(comm, 1)?;
    assert_eq!(comm.checkpoint(&directory)?, 1);
    write(comm, 2)?;
    for _ in 0..2 {
        let shortage = Shortage::begin(comm, &way, &directory);
        comm.barrier()?;
        let error = comm.checkpoint(&directory).expect_err("there is no room");
        comm.barrier()?;
        let is_short = shortage.end();
        is_told(comm, &error, is_short, &way);
        comm.barrier()?;
        assert_eq!(names(&directory), ["CURRENT", "generation-1"], "nothing is left of it: {way}");
        assert!(holds(comm, 2), "what was to be kept is as it was");
        let mut sum = vec![1_u32; 5000];
        comm.all_reduce_in_place(&mut sum, &ReduceOp::Sum)?;
        assert!(sum.iter().all(|sum| *sum == N_RANKS), "all go on");
    }
    assert_eq!(comm.restore(&directory)?, 1);
    assert!(holds(comm, 1), "the old one counts");
    write(comm, 3)?;
    assert_eq!(comm.checkpoint(&directory)?, 2, "there is room again");
    write(comm, 4)?;
    assert_eq!(comm.restore(&directory)?, 2);
    assert!(holds(comm, 3));
    comm.barrier()
}

/// Looks whether `error` names the file and says what is wrong where it was, and elsewhere who has
/// failed.
fn is_told(comm: &Communicator, error: &Error, is_short: bool, way: &str) {
    let text = error.to_string();
    match error {
        Error::Checkpoint { fault, .. } => {
            assert!(is_short, "{text}");
            let Some(CheckpointFault::Io { source, .. }) = fault.downcast_ref() else { panic!("{text}") };
            let (errno, remedy) = if way == "disk" {
                (Errno::ENOSPC, "free space there")
            } else {
                (Errno::EFBIG, "`ulimit -f`")
            };
            assert!(source.raw_os_error() == Some(errno as i32) && text.contains(remedy), "{text}");
        }
        Error::FailedElsewhere { operation: "checkpoint", rank } => {
            assert!(!is_short || way == "disk", "rank {}: {text}", comm.rank());
            let first = if way == "rank 2" { 2 } else { 0 };
            assert!(way == "disk" || rank.get() == first, "{text}");
        }
        _ => panic!("{text}"),
    }
}

/// That there is no room, for as long as this lives.
enum Shortage {
    /// The limit that there was.
    Limit(u64),
    Disk(PathBuf),
    /// Others have it.
    None,
}

impl Shortage {
    fn begin(comm: &Communicator, way: &str, directory: &Path) -> Self {
        let rank = comm.rank().get();
        let limit = match way {
            "all" => 1 << 20,
            "rank 0" if rank == 0 => 100,
            "rank 2" if rank == 2 => 1 << 19,
            "last" if rank == 0 => 64,
            "disk" if rank == 0 => {
                let path = directory.with_file_name("filler");
                let filler = std::fs::write(&path, vec![1; usize::try_from(DISK_LEN).unwrap()]);
                assert_eq!(filler.unwrap_err().raw_os_error(), Some(Errno::ENOSPC as i32));
                // Some of it is left: not all of the files fail at their first byte.
                std::fs::File::options()
                    .write(true)
                    .open(&path)
                    .unwrap()
                    .set_len(DISK_LEN - (6 << 20))
                    .unwrap();
                return Self::Disk(path);
            }
            _ => return Self::None,
        };
        let (soft, hard) = getrlimit(Resource::RLIMIT_FSIZE).unwrap();
        setrlimit(Resource::RLIMIT_FSIZE, limit, hard).unwrap();
        Self::Limit(soft)
    }

    /// Makes room again; whether this rank had none.
    fn end(self) -> bool {
        match self {
            Self::Limit(soft) => {
                let (_, hard) = getrlimit(Resource::RLIMIT_FSIZE).unwrap();
                setrlimit(Resource::RLIMIT_FSIZE, soft, hard).unwrap();
                true
            }
            Self::Disk(path) => {
                std::fs::remove_file(path).unwrap();
                true
            }
            Self::None => std::env::var(WAY).as_deref() == Ok("disk"),
        }
    }
}
