//! Segments of every kind, the names they have, and who removes them.

use std::path::Path;
use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getsid};
use support::{is_running, wait_until};

use crate::run::{Started, job, scratch, text, told};

fn names_in_dev_shm(prefix: &str) -> Vec<String> {
    let names = std::fs::read_dir("/dev/shm").unwrap().map(|entry| entry.unwrap().file_name());
    names.map(|name| name.into_string().unwrap()).filter(|name| name.starts_with(prefix)).collect()
}

#[test]
fn every_number_of_ranks_works_over_both_kinds_of_proxy_and_segment() {
    let prefix = format!("shmccl-run-{}", std::process::id());
    let named = format!("named:{prefix}");
    for (n_ranks, flags) in [
        ("1", &["--proxy", "thread"][..]),
        ("2", &["--proxy", "process"]),
        ("3", &["--proxy", "process", "--no-pin"]),
        ("8", &["--proxy", "thread", "--timeout", "60s"]),
        ("64", &["--heap", "2M"]),
        ("3", &["--heap", "2M", "--segment", &named]),
    ] {
        let output = job(&[&["-n", n_ranks, "-q"], flags].concat(), "ring").output().unwrap();
        assert_eq!(told(&output), (0, String::new()), "{n_ranks} {flags:?}");
        assert!(text(&output.stdout).contains(&format!("sum {n_ranks}\n")), "{n_ranks} {flags:?}");
    }
    assert_eq!(names_in_dev_shm(&prefix), [""; 0]);
}

#[test]
fn names_are_removed_when_a_rank_is_killed_and_when_the_launcher_is() {
    let prefix = format!("shmccl-kill-{}", std::process::id());
    let named = format!("named:{prefix}");
    let flags = ["-n", "3", "-q", "--heap", "2M", "--segment", &named];
    let started = Started::new(job(&flags, "wait"), 3);
    // One for each rank, and the launcher's lock.
    assert_eq!(names_in_dev_shm(&prefix).len(), 4);
    let (code, error) = told(&job(&flags, "ring").output().unwrap());
    assert!(code == 1 && error.contains("belongs to process") && error.lines().count() == 1, "{error}");
    kill(started.pids[1], Signal::SIGKILL).unwrap();
    assert_eq!(started.end().0, 137);
    assert_eq!(names_in_dev_shm(&prefix), [""; 0]);

    let started = Started::new(job(&flags, "wait"), 3);
    let janitor = started.janitor();
    started.signal(Signal::SIGKILL);
    started.end();
    wait_until("the janitor is done", || !is_running(janitor));
    assert_eq!(names_in_dev_shm(&prefix), [""; 0]);
    assert_eq!(told(&job(&flags, "ring").output().unwrap()), (0, String::new()));
}

#[test]
fn a_janitor_has_a_session_of_its_own_and_no_descriptor_that_is_not_for_it() {
    let named = format!("named:shmccl-janitor-{}", std::process::id());
    let started = Started::new(job(&["-n", "2", "-q", "--heap", "2M", "--segment", &named], "wait"), 2);
    let janitor = started.janitor();
    assert_eq!(getsid(Some(janitor)).unwrap(), janitor);
    // It closes the others as it begins.
    wait_until("it has the end of the pipe and the lock alone", || {
        std::fs::read_dir(format!("/proc/{janitor}/fd")).unwrap().count() == 2
    });
    for signal in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM, Signal::SIGUSR1] {
        kill(janitor, signal).unwrap();
    }
    started.signal(Signal::SIGTERM);
    assert_eq!(started.end().0, 143);
    assert!(!Path::new(&format!("/proc/{janitor}")).exists(), "the launcher has waited for it");
}

#[test]
fn a_job_whose_janitor_is_killed_goes_on_and_a_killed_launchers_names_are_removed_by_the_next_job() {
    let prefix = format!("shmccl-unswept-{}", std::process::id());
    let named = format!("named:{prefix}");
    let flags = ["-n", "3", "-q", "--heap", "2M", "--segment", &named];
    let without_janitor = || {
        let started = Started::new(job(&flags, "wait"), 3);
        kill(started.janitor(), Signal::SIGKILL).unwrap();
        started
    };
    let started = without_janitor();
    started.signal(Signal::SIGTERM);
    assert_eq!(started.end().0, 143);
    assert_eq!(names_in_dev_shm(&prefix), [""; 0]);

    let started = without_janitor();
    let pids = started.pids.clone();
    // Ranks that run might learn of the end of their launcher, and tidy up, just before they are
    // killed.
    let is_stopped =
        |pid: &Pid| std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") T ");
    pids.iter().for_each(|&pid| kill(pid, Signal::SIGSTOP).unwrap());
    wait_until("all have stopped", || pids.iter().all(is_stopped));
    started.signal(Signal::SIGKILL);
    started.end();
    assert_eq!(names_in_dev_shm(&prefix).len(), 4);
    wait_until("init has taken note", || pids.iter().all(|pid| !Path::new(&format!("/proc/{pid}")).exists()));
    let (code, error) = told(&job(&flags, "ring").output().unwrap());
    assert!(code == 0 && error.lines().count() == 3, "{error}");
    assert!(error.lines().all(|line| line.starts_with("removing /dev/shm/")), "{error}");
    assert_eq!(names_in_dev_shm(&prefix), [""; 0]);
}

#[test]
fn of_two_launchers_that_race_for_a_prefix_one_runs_and_the_other_leaves_its_names_alone() {
    let prefix = format!("shmccl-race-{}", std::process::id());
    let named = format!("named:{prefix}");
    let flags = ["-n", "2", "-q", "--heap", "2M", "--segment", &named];
    let start = || job(&flags, "wait").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut racers = [start(), start()];
    let mut lost = None;
    wait_until("one of the two has given up", || {
        lost = racers.iter_mut().position(|racer| racer.try_wait().unwrap().is_some());
        lost.is_some()
    });
    let [first, second] = racers;
    let (loser, winner) = if lost == Some(0) { (first, second) } else { (second, first) };
    let (code, error) = told(&loser.wait_with_output().unwrap());
    assert!(
        code == 1 && error.contains(&format!("/dev/shm/{prefix}.")) && error.lines().count() == 1,
        "{error}"
    );
    wait_until("both ranks of the other have their names", || names_in_dev_shm(&prefix).len() == 3);
    kill(Pid::from_raw(winner.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
    assert_eq!(told(&winner.wait_with_output().unwrap()).0, 143);
    assert_eq!(names_in_dev_shm(&prefix), [""; 0]);
}

#[test]
fn files_are_kept_and_a_missing_directory_is_told_before_anything_starts() {
    let directory = scratch("segments");
    let backing = format!("file:{}", directory.display());
    for _ in 0..2 {
        let output = job(&["-n", "2", "-q", "--heap", "2M", "--segment", &backing], "ring").output().unwrap();
        assert_eq!(told(&output), (0, String::new()));
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 2);
    }
    std::fs::remove_dir_all(&directory).unwrap();
    let (code, error) = told(&job(&["-n", "2", "--segment", &backing], "ring").output().unwrap());
    assert!(
        code == 1 && error.lines().count() == 1 && error.contains("No such file or directory"),
        "{error}"
    );
}

#[test]
fn a_heap_larger_than_memory_is_reserved_and_an_allocation_that_does_not_fit_is_a_typed_error() {
    let heap = (meminfo("MemTotal:") * 3).to_string();
    // More than there is for one rank; what one could have on a machine with nothing else on it,
    // and never both, so that none gets any. Not a part of what is available: as others end there
    // may be room for both, which would be taken.
    for len in [meminfo("MemTotal:") * 2, meminfo("MemTotal:") / 4 * 3] {
        let case = if len < meminfo("MemAvailable:") { "fits one rank, not both" } else { "fits none" };
        let output = job(&["-n", "2", "-q", "--heap", &heap], &format!("alloc {len}")).output().unwrap();
        assert_eq!(told(&output).0, 0, "{case}: {output:?}");
        assert!(text(&output.stdout).contains("refused: not enough memory"), "{case}: {output:?}");
    }
}

/// A field of `/proc/meminfo`, in bytes.
fn meminfo(field: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap();
    let kib = text.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    kib.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap() * 1024
}
