//! How a job under `shmccl run` ends, and with which exit code.

use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{MsgFlags, recv, send};
use shmccl::sync::header::LAYOUT_VERSION;

use crate::run::{Started, job, run, shmccl, told};

#[test]
fn the_exit_code_is_that_of_the_first_cause_and_one_line_names_it() {
    for (script, code, line) in [
        ("exit $((SHMCCL_RANK * 7))", 7, "error: rank 1 exited with code 7\n"),
        ("[ $SHMCCL_RANK = 0 ] || kill -KILL $$", 137, "error: rank 1 was killed by SIGKILL\n"),
        ("[ $SHMCCL_RANK = 0 ] && kill -SEGV $$; exit 0", 139, "error: rank 0 was killed by SIGSEGV\n"),
        ("exit 0", 0, ""),
    ] {
        let output = run(&["-n", "2", "-q", "--", "sh", "-c", script]);
        assert_eq!(told(&output), (code, line.to_owned()), "{script}");
    }
}

#[test]
fn an_interrupt_is_passed_on_and_becomes_the_exit_code() {
    for (signal, code, line) in [
        (Signal::SIGINT, 130, "error: interrupted by SIGINT\n"),
        (Signal::SIGTERM, 143, "error: interrupted by SIGTERM\n"),
        (Signal::SIGHUP, 129, "error: interrupted by SIGHUP\n"),
    ] {
        let foreign = shmccl(&["-n", "3", "-q", "--", "sh", "-c", "echo pid $$; exec sleep 1000"]);
        let started = Started::new(foreign, 3);
        started.signal(signal);
        assert_eq!(started.end(), (code, line.to_owned()));
        let started = Started::new(job(&["-n", "3", "-q"], "wait"), 3);
        started.signal(signal);
        let (found, error) = started.end();
        assert_eq!((found, error.lines().last()), (code, Some(line.trim())), "{error}");
    }
}

#[test]
fn whoever_ignores_an_interrupt_is_killed_at_the_second_one() {
    let script = "trap 'echo heard' TERM; trap '' INT; echo pid $$; while :; do sleep 1000 & wait; done";
    let mut started = Started::new(shmccl(&["-n", "2", "-q", "--grace", "60m", "--", "sh", "-c", script]), 2);
    started.signal(Signal::SIGTERM);
    // Of two signals that wait together the kernel hands out the lower one first, whichever came
    // first.
    started.hear("heard");
    started.signal(Signal::SIGINT);
    assert_eq!(started.end().0, 143);
}

#[test]
fn ranks_have_as_long_to_end_after_an_interrupt_as_they_are_given() {
    let heeds = "trap 'sleep 3; echo saved; exit 0' TERM; echo pid $$; while :; do sleep 1000 & wait; done";
    // Longer than without the flag.
    let mut started = Started::new(shmccl(&["-n", "2", "-q", "--grace", "60s", "--", "sh", "-c", heeds]), 2);
    started.signal(Signal::SIGTERM);
    started.hear("saved");
    started.hear("saved");
    assert_eq!(started.end().0, 143);
}

#[test]
fn a_rank_that_is_killed_is_named_and_its_peers_say_whom_they_lost() {
    for mode in ["thread", "process"] {
        let started = Started::new(job(&["-n", "4", "-q", "--grace", "60s", "--proxy", mode], "wait"), 4);
        kill(started.pids[2], Signal::SIGKILL).unwrap();
        let (code, error) = started.end();
        let last = error.lines().last().unwrap_or_default();
        assert!(code == 137 && last.ends_with("was killed by SIGKILL"), "{error}");
        let lost = last.trim_start_matches("error: ").split(" was ").next().unwrap();
        assert_eq!(error.matches(&format!("{lost} was lost")).count(), 3, "{error}");
    }
}

#[test]
fn killing_the_launcher_takes_all_ranks_along_whether_they_know_the_library_or_not() {
    let foreign = shmccl(&["-n", "3", "-q", "--", "sh", "-c", "echo pid $$; exec sleep 1000"]);
    for command in
        [foreign, job(&["-n", "3", "-q"], "wait"), job(&["-n", "3", "-q", "--proxy", "process"], "wait")]
    {
        let started = Started::new(command, 3);
        started.signal(Signal::SIGKILL);
        assert_eq!(started.end().0, -1);
    }
}

#[test]
fn processes_that_ranks_leave_behind_end_with_the_job() {
    let script = "sleep 1000 & echo pid $!; setsid sleep 1000 & echo pid $!";
    let started = Started::new(shmccl(&["-n", "2", "-q", "--", "sh", "-c", script]), 4);
    assert_eq!(started.end(), (0, String::new()));
}

#[test]
fn a_program_that_ends_well_without_joining_fails_a_job_that_needs_it() {
    let (code, error) = told(&job(&["-n", "3", "-q"], "absent 1").output().unwrap());
    let last = error.lines().last().unwrap_or_default();
    assert!(
        code != 0 && last.starts_with("error: rank 1 exited with code 0 without leaving the job"),
        "{error}"
    );
}

/// Says Hello as a program does whose shared layouts have another version, and waits for the
/// answer.
pub(crate) fn come_with_layout_version(version: u32) {
    let variable = |name: &str| std::env::var(name).unwrap();
    let (socket, rank) = (variable("SHMCCL_SOCKET").parse().unwrap(), variable("SHMCCL_RANK"));
    let job = u64::from_str_radix(&variable("SHMCCL_JOB"), 16).unwrap();
    // Magic, version of the messages, kind; the job; the version, the process, the rank.
    let head = [u32::from_le_bytes(*b"SMCB"), 7, 1, 0].map(u32::to_ne_bytes).concat();
    let body = [version, std::process::id(), rank.parse().unwrap(), 0].map(u32::to_ne_bytes).concat();
    send(socket, &[head, job.to_ne_bytes().to_vec(), body].concat(), MsgFlags::empty()).unwrap();
    let refused = recv(socket, &mut [0; 4096], MsgFlags::empty());
    assert!(refused.is_ok_and(|len| len > 0), "the launcher says why");
}

#[test]
fn a_program_of_another_version_is_named_with_both_versions_and_what_to_do() {
    let (code, error) = told(&job(&["-n", "1", "-q"], "misfit 99").output().unwrap());
    let last = error.lines().last().unwrap_or_default();
    let expected = format!(
        "error: rank 0 has layout version 99, the launcher {LAYOUT_VERSION}; build both from the same version of shmccl"
    );
    assert_eq!((code, last), (1, expected.as_str()), "{error}");
}
