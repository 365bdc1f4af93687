//! Launchers that are interrupted or killed.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::launcher::Launcher;
use crate::{WATCHDOG, say};

#[test]
fn an_interrupt_of_a_job_that_keeps_going_is_the_result_whatever_came_before() {
    let launcher = Launcher::start("exit:up:3@1 go-on hang:left", Duration::from_millis(300), false);
    launcher.wait_for("gone on", 2);
    launcher.signal(Signal::SIGINT);
    let (lines, _) = launcher.end();
    assert_eq!(lines.last().unwrap(), "result interrupted by SIGINT");
}

#[test]
fn an_interrupt_ends_everyone_and_is_the_result() {
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let launcher = Launcher::start("hang:up", Duration::from_secs(20), false);
        launcher.wait_for("all ready", 1);
        launcher.signal(signal);
        let (lines, status) = launcher.end();
        assert_eq!(lines.last().unwrap(), &format!("result interrupted by {signal}"));
        assert!(status.success());
    }
}

#[test]
fn whoever_ignores_an_interrupt_is_killed_after_the_time_of_grace_or_at_the_second_one() {
    for grace in [Duration::from_millis(50), Duration::from_secs(3600)] {
        let launcher = Launcher::start("deaf:before-join", grace, false);
        launcher.wait_for("deaf", 3);
        launcher.signal(Signal::SIGINT);
        if grace > WATCHDOG {
            // Two of the same in a row may be merged into one.
            launcher.signal(Signal::SIGTERM);
        }
        let (lines, _) = launcher.end();
        assert!(lines.last().unwrap().starts_with("result interrupted by SIG"), "{lines:?}");
    }
}

/// Twenty random moments, from before the processes start until after they are up.
#[test]
fn killing_the_launcher_leaves_no_process() {
    let seed = std::process::id();
    say(format_args!("seed {seed}"));
    let mut state = u64::from(seed);
    for _ in 0..20 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let launcher = Launcher::start("hang:up", Duration::from_secs(3600), false);
        let (told, timer) = std::sync::mpsc::channel::<()>();
        let _ = timer.recv_timeout(Duration::from_micros((state >> 33) % 40_000));
        drop(told);
        launcher.signal(Signal::SIGKILL);
        launcher.end();
    }
}

#[test]
fn killing_the_launcher_leaves_no_process_that_never_joins_when_there_is_a_trampoline() {
    let launcher = Launcher::start("", Duration::from_secs(3600), true);
    wait_until("three processes sleep", || sleepers_of(launcher.child.id()) == 3);
    launcher.signal(Signal::SIGKILL);
    launcher.end();
}

/// How many processes that descend from `parent` at first hand have become `sleep`.
fn sleepers_of(parent: u32) -> usize {
    let processes = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let stats = processes.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
    stats
        .filter(|stat| stat.contains("(sleep)") && stat.split(' ').nth(3) == Some(&parent.to_string()))
        .count()
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < WATCHDOG, "waited in vain until {what}");
        std::thread::yield_now();
    }
}
