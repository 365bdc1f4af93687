//! Signals that the starter has ignored or blocked.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::{Surroundings, Watchdog};

use crate::job::{Started, end_of, job, launching, shmccl};
use crate::scratch;

#[test]
fn a_job_ends_where_nobody_is_told_of_the_end_of_children() {
    let run = &mut shmccl(&["run", "-n", "2", "-q", "--", "true"]);
    assert_eq!(end_of(Surroundings::plain().ignoring(Signal::SIGCHLD).around(run)), (0, String::new()));
}

#[test]
fn signals_that_the_starter_has_blocked_end_a_job_all_the_same() {
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let mut waits = job(&["-n", "2", "-q"], "wait");
        let surroundings = Surroundings::plain().blocking(signal);
        let started = Started::new(surroundings.around(&mut waits), 2);
        started.signal(signal);
        assert_eq!(started.end().0, 128 + signal as i32);
    }
}

#[test]
fn a_command_of_the_tests_heeds_interrupts_though_they_run_in_the_background_of_a_script() {
    for signal in [Signal::SIGINT, Signal::SIGQUIT, Signal::SIGHUP, Signal::SIGTERM] {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("kill -{} $$; exit 3", signal as i32)]);
        // What this process would have been started with.
        Surroundings::plain().ignoring(signal).blocking(signal).around(&mut command);
        let ended = support::heeding_interrupts(&mut command).status().unwrap();
        assert_eq!(ended.signal(), Some(signal as i32), "{ended}");
    }
}

#[test]
fn how_ranks_have_ended_is_known_where_nobody_is_told_of_the_end_of_children() {
    let run = &mut shmccl(&["run", "-n", "2", "-q", "--", "sh", "-c", "exit $((7 * SHMCCL_RANK))"]);
    let told = end_of(Surroundings::plain().ignoring(Signal::SIGCHLD).around(run));
    assert_eq!(told, (7, "error: rank 1 exited with code 7\n".to_owned()));
}

#[test]
fn ranks_begin_with_no_signal_blocked_and_their_children_are_theirs_to_wait_for() {
    let script = "sh -c 'exit 3'; grep -h -e SigBlk -e SigIgn /proc/self/status; echo code $?";
    let run = &mut shmccl(&["run", "-n", "1", "-q", "--", "sh", "-c", script]);
    let odd = Surroundings::plain().blocking(Signal::SIGUSR1).blocking(Signal::SIGTERM);
    let mut started = Started::new(odd.ignoring(Signal::SIGCHLD).around(run), 0);
    let mask = |text: String| u64::from_str_radix(text.trim(), 16).unwrap();
    assert_eq!(mask(started.hear("SigBlk:")), 0);
    assert_eq!(mask(started.hear("SigIgn:")) >> (Signal::SIGCHLD as i32 - 1) & 1, 0);
    assert_eq!(started.end().0, 0);
}

#[test]
fn a_measuring_job_ends_where_nobody_is_told_of_the_end_of_children() {
    let words = ["perf", "launch", "-g", "2", "-n", "1"];
    let (code, stderr) = end_of(Surroundings::plain().ignoring(Signal::SIGCHLD).around(&mut shmccl(&words)));
    assert_eq!(code, 0, "{stderr}");
}

#[test]
fn a_pool_tells_of_its_devices_and_ends_whatever_its_starter_has_blocked_or_ignored() {
    let mut pool = shmccl(&["coordinator", "-n", "1", "--memory", "8M"]);
    pool.env("XDG_RUNTIME_DIR", scratch("pool-signals")).stderr(Stdio::piped());
    let odd = Surroundings::plain().ignoring(Signal::SIGCHLD);
    let mut pool = odd.blocking(Signal::SIGTERM).blocking(Signal::SIGINT).around(&mut pool).spawn().unwrap();
    let _watchdog = Watchdog::start("a pool in odd surroundings", Duration::from_secs(60));
    let mut lines = BufReader::new(pool.stderr.take().unwrap()).lines().map(Result::unwrap);
    let began = lines.find(|line| line.contains("has addresses")).unwrap();
    let device: i32 = began.split_whitespace().nth(1).unwrap().parse().unwrap();
    kill(Pid::from_raw(device), Signal::SIGKILL).unwrap();
    let told = lines.find(|line| line.contains(&device.to_string())).unwrap();
    assert!(told.starts_with(&format!("device {device} was killed by SIGKILL")), "{told}");
    kill(Pid::from_raw(pool.id().cast_signed()), Signal::SIGTERM).unwrap();
    let code = pool.wait().unwrap().code();
    // A device that dies before it has registered ends the pool as well.
    assert!(code == Some(0) || told.contains("before it had registered"), "{code:?} {told}");
}

#[test]
fn a_program_that_launches_itself_ends_whatever_its_starter_has_blocked_or_ignored() {
    let odd = || Surroundings::plain().ignoring(Signal::SIGCHLD).blocking(Signal::SIGTERM);
    assert_eq!(end_of(odd().around(&mut launching("sum"))), (0, String::new()));
    let started = Started::new(odd().around(&mut launching("wait")), 2);
    started.signal(Signal::SIGTERM);
    assert_eq!(started.end().0, 128 + Signal::SIGTERM as i32);
}
