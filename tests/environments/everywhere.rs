//! Every command in every kind of surroundings ends well, or with one line that has the remedy.
//! With `--nocapture` the table of what happened is printed.
#![expect(clippy::print_stdout, reason = "the table is the result")]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;
use nix::sys::resource::Resource;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::{Surroundings, Watchdog, can_be_played};

use crate::job::{Started, job, shmccl, with_environment_of};
use crate::strangers::{STRANGER, executable_by_all, open_scratch};

/// The commands that are tried, by name.
const COMMANDS: [&str; 5] = ["run", "perf", "compare", "doctor", "coordinator"];

/// A part of each remedy that there is.
const REMEDIES: [&str; 9] =
    ["ulimit", "raise ", "mount ", "; set ", "seccomp", "choose ", "name those", "--heap", "pids limit"];

/// Surroundings by name, and how they are put around a command; nothing where this machine cannot.
type Place = (&'static str, fn(Command, &Path) -> Option<Command>);

/// Those that everybody can make.
const OF_ALL: [Place; 11] = [
    ("one core", |command, _| Some(around(Surroundings::plain().on_one_core(), command))),
    ("stack of 64 KiB", |command, _| limited(Resource::RLIMIT_STACK, 64 << 10, command)),
    ("16 descriptors", |command, _| limited(Resource::RLIMIT_NOFILE, 16, command)),
    // Otherwise the C library reserves 128 MiB for a moment as each thread starts, and where that
    // fails the standard library aborts, or not, as the threads happen to start.
    ("256 MiB of addresses", |mut command, _| {
        command.env("MALLOC_ARENA_MAX", "1");
        limited(Resource::RLIMIT_AS, 256 << 20, command)
    }),
    ("2 MiB of data", |command, _| limited(Resource::RLIMIT_DATA, 2 << 20, command)),
    ("no file sizes", |command, _| limited(Resource::RLIMIT_FSIZE, 0, command)),
    ("no memfd_create", |command, _| refused(libc::SYS_memfd_create, Errno::EPERM, command)),
    ("no getsockopt", |command, _| refused(libc::SYS_getsockopt, Errno::EPERM, command)),
    ("no pidfd_open", |command, _| refused(libc::SYS_pidfd_open, Errno::ENOSYS, command)),
    ("no fallocate", |command, _| refused(libc::SYS_fallocate, Errno::EOPNOTSUPP, command)),
    ("no robust lists", |command, _| refused(libc::SYS_set_robust_list, Errno::ENOSYS, command)),
];

/// Those that only root can make.
const OF_ROOT: [Place; 10] = [
    ("another user", |command, directory| {
        let command = executable_by_all(&command, directory);
        Some(around(Surroundings::plain().as_user(STRANGER), command))
    }),
    ("another one's home", |command, directory| {
        let mut command = executable_by_all(&command, directory);
        command.env("HOME", "/root").env_remove("SHMCCL_TUNING").env("XDG_RUNTIME_DIR", "/run/user/0");
        Some(around(Surroundings::plain().as_user(STRANGER), command))
    }),
    ("read-only", |command, _| {
        mounted(
            "for each in $(cut -d' ' -f2 /proc/mounts); do mount -o remount,ro,bind $each || true; done",
            command,
        )
    }),
    ("no /dev/shm", |command, _| {
        let nodes = "mknod -m 666 /dev/null c 1 3; mknod -m 666 /dev/urandom c 1 9";
        mounted(&format!("mount -t tmpfs tmpfs /dev; {nodes}"), command)
    }),
    ("empty /dev", |command, _| mounted("mount -t tmpfs tmpfs /dev", command)),
    ("64 MiB of /dev/shm", |command, _| mounted("mount -t tmpfs -o size=64m tmpfs /dev/shm", command)),
    ("no /proc", |command, _| mounted("mount -t tmpfs -o ro tmpfs /proc", command)),
    ("3 processes", |command, _| grouped("pids", &[("pids.max", "3")], command)),
    ("32 MiB of memory", |command, _| grouped("memory", &[("memory.limit_in_bytes", "33554432")], command)),
    ("half a core", |command, _| {
        grouped("cpu", &[("cpu.cfs_period_us", "20000"), ("cpu.cfs_quota_us", "10000")], command)
    }),
];

fn around(surroundings: Surroundings, mut command: Command) -> Command {
    surroundings.around(&mut command);
    command
}

fn limited(resource: Resource, limit: u64, command: Command) -> Option<Command> {
    Some(around(Surroundings::plain().limited(resource, limit), command))
}

fn refused(call: i64, errno: Errno, command: Command) -> Option<Command> {
    Some(around(Surroundings::plain().refusing(call, errno), command))
}

/// Returns `command` behind a shell that does `first` and becomes it.
fn behind(shell: &[&str], first: &str, command: &Command) -> Command {
    let mut behind = Command::new(shell[0]);
    behind.args(&shell[1..]).args(["-c", &format!("{first}; exec \"$@\""), "sh"]);
    behind.arg(command.get_program()).args(command.get_args()).stdin(Stdio::null());
    command.get_current_dir().into_iter().for_each(|directory| _ = behind.current_dir(directory));
    with_environment_of(command, behind)
}

/// Puts mounts of its own around a command.
fn mounted(script: &str, command: Command) -> Option<Command> {
    let private = format!("mount --make-rprivate /; {{ {script}; }} 2>&1 >/dev/null");
    Some(behind(&["unshare", "-m", "sh"], &private, &command))
}

/// Puts a control group around a command, where there are groups of the first version.
fn grouped(controller: &str, limits: &[(&str, &str)], command: Command) -> Option<Command> {
    let group = group(controller);
    std::fs::create_dir_all(&group).ok()?;
    for (file, limit) in limits {
        std::fs::write(group.join(file), limit).ok()?;
    }
    let enter = format!("echo $$ > {}", group.join("cgroup.procs").display());
    Some(behind(&["sh"], &enter, &command))
}

fn group(controller: &str) -> PathBuf {
    format!("/sys/fs/cgroup/{controller}/shmccl-test-{}", std::process::id()).into()
}

/// What each command does, in few words.
fn command(name: &str, directory: &Path) -> Command {
    let sizes = ["-b", "8", "-e", "8", "-n", "1", "-w", "1", "--heap", "4M", "--timeout", "20s"];
    let mut command = match name {
        "run" => job(&["-n", "2", "-q", "--heap", "4M", "--timeout", "20s"], "sum"),
        "perf" => shmccl(&[&["perf", "all_reduce"], &sizes[..]].concat()),
        "compare" => shmccl(&[&["compare"], &sizes[..]].concat()),
        "doctor" => shmccl(&["doctor", "--heap", "4M"]),
        _ => shmccl(&["coordinator", "-n", "1", "--memory", "4M"]),
    };
    command.current_dir(directory).env("XDG_RUNTIME_DIR", directory);
    command
}

/// Starts a command, and returns its exit code, stderr and stdout. A coordinator is ended when its
/// device is there.
fn outcome(name: &str, mut command: Command) -> (i32, String, String) {
    if name != "coordinator" {
        return Started::new(&mut command, 0).end();
    }
    let _watchdog = Watchdog::start("coordinator", Duration::from_secs(60));
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut told = String::new();
    for line in BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap) {
        if line.contains(" has addresses ") {
            kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM).unwrap();
        }
        told.push_str(&format!("{line}\n"));
    }
    (child.wait().unwrap().code().unwrap_or(128), told, String::new())
}

/// Returns what happened, in one line.
///
/// # Panics
/// Where it was neither a good end nor an error with its remedy.
fn judge(place: &str, name: &str, (code, stderr, stdout): &(i32, String, String)) -> String {
    let errors: Vec<_> = stderr.lines().filter(|line| line.starts_with("error: ")).collect();
    let context = format!("{place}, {name}: {code}\n{stderr}{stdout}");
    assert!(!stderr.contains("panicked") && !stderr.contains("overflow"), "{context}");
    match (code, name) {
        (0, _) => {
            assert!(errors.is_empty(), "{context}");
            "well".to_owned()
        }
        (1, "doctor") => {
            assert!(errors.is_empty() && stdout.contains("\nbad "), "{context}");
            let bad = stdout
                .lines()
                .filter_map(|line| line.strip_prefix("bad "))
                .filter(|line| line.contains(": "));
            bad.map(|line| line.split(": ").next().unwrap_or_default()).collect::<Vec<_>>().join(", ")
        }
        (1, _) | (3, "run") => {
            // A device of a pool has an error of its own.
            assert!((1..=if name == "coordinator" { 2 } else { 1 }).contains(&errors.len()), "{context}");
            assert!(REMEDIES.iter().any(|remedy| stderr.contains(remedy)), "{context}");
            errors[0].to_owned()
        }
        _ => panic!("{context}"),
    }
}

fn try_all(test: &str, places: &[Place]) {
    for (place, put) in places {
        let directory = open_scratch(test);
        let mut codes = Vec::new();
        for name in COMMANDS {
            let Some(command) = put(command(name, &directory), &directory) else {
                println!("{place:22} not tried: this machine has no such control groups");
                break;
            };
            let outcome = outcome(name, command);
            println!("{place:22} {name:12} {}", judge(place, name, &outcome));
            codes.push(outcome.0);
        }
        if let [run, .., doctor, _] = codes[..] {
            assert!(run == 0 || doctor == 1, "{place}: doctor is content where run does not start");
        }
        std::fs::remove_dir_all(directory).unwrap();
    }
    for controller in ["pids", "memory", "cpu"] {
        let _ = std::fs::remove_dir(group(controller));
    }
}

#[test]
fn every_command_ends_well_or_with_its_remedy_within_limits() {
    try_all("within-limits", &OF_ALL);
}

#[test]
fn every_command_ends_well_or_with_its_remedy_wherever_root_can_put_it() {
    if can_be_played("every_command_ends_well_or_with_its_remedy_wherever_root_can_put_it") {
        try_all("everywhere", &OF_ROOT);
    }
}
