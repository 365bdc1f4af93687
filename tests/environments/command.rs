//! The command with little stack, interrupted, beside names of another user.

use nix::sys::resource::Resource;
use nix::sys::signal::Signal;
use support::{Surroundings, can_be_played, wait_until};

use crate::job::{Started, end_of, job, shmccl};
use crate::strangers::{STRANGER, executable_by_all, open_scratch};

#[test]
fn a_small_stack_is_enough() {
    let small = || Surroundings::plain().limited(Resource::RLIMIT_STACK, 64 << 10);
    assert_eq!(end_of(small().around(&mut shmccl(&["--help"]))), (0, String::new()));
    let doctor = &mut shmccl(&["doctor", "--heap", "4M"]);
    assert_eq!(end_of(small().around(doctor)), (0, String::new()));
    let run = &mut shmccl(&["run", "-n", "2", "-q", "--", "true"]);
    assert_eq!(end_of(small().around(run)), (0, String::new()));
    // Whoever is left over is found although another thread has started it.
    let leaves = &mut shmccl(&["run", "-n", "1", "-q", "--", "sh", "-c", "sleep 1000 & echo pid $!"]);
    assert_eq!(Started::new(small().around(leaves), 1).end().0, 0);
}

/// A measurement that takes long, and is under way.
fn long_measurement() -> Started {
    let words = ["perf", "put_bandwidth", "--channel", "memory", "-b", "1M", "-e", "1M", "-n", "1000000000"];
    let started = Started::new(&mut shmccl(&words), 0);
    let children = || {
        let path = format!("/proc/{0}/task/{0}/children", started.pid());
        let list = std::fs::read_to_string(path).unwrap();
        list.split_whitespace().count()
    };
    wait_until("both ranks are there", || children() == 2);
    started
}

#[test]
fn an_interrupted_measurement_has_the_exit_code_of_a_shell() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let started = long_measurement();
        started.signal(signal);
        let (code, told, _) = started.end();
        assert_eq!((code, told), (128 + signal as i32, format!("error: interrupted by {signal}\n")));
    }
}

#[test]
fn names_that_another_user_has_are_told_with_the_name_and_the_remedy() {
    if !can_be_played("names_that_another_user_has_are_told_with_the_name_and_the_remedy") {
        return;
    }
    let prefix = format!("shmccl-taken-{}", std::process::id());
    let segment = format!("named:{prefix}");
    let directory = open_scratch("taken");
    let of_root =
        Started::new(&mut job(&["-n", "1", "-q", "--heap", "4M", "--segment", &segment], "wait"), 1);
    let mut second =
        executable_by_all(&shmccl(&["run", "-n", "1", "--segment", &segment, "--", "true"]), &directory);
    let (code, told) = end_of(Surroundings::plain().as_user(STRANGER).around(&mut second));
    of_root.signal(Signal::SIGTERM);
    of_root.end();
    let name = format!("/dev/shm/{prefix}.lock");
    assert!(code == 1 && told.contains(&name) && told.contains("choose another name"), "{told}");
    std::fs::remove_dir_all(directory).unwrap();
}
