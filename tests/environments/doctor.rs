//! `shmccl doctor` says of every machine whether `shmccl run` starts a job there, and what helps
//! where it does not.

use nix::errno::Errno;
use nix::libc;
use nix::sys::resource::Resource;
use nix::sys::signal::Signal;
use support::{Surroundings, can_be_played};

use crate::job::{Started, end_of, job, shmccl};
use crate::strangers::{executable_by_all, open_scratch};

/// What `run` and `doctor` say in the same surroundings: exit codes, stderr of one and table of the
/// other.
fn both(surroundings: impl Fn() -> Surroundings) -> [(i32, String); 2] {
    let flags = ["-n", "2", "-q", "--heap", "16M", "--timeout", "20s"];
    let run = end_of(surroundings().around(&mut job(&flags, "sum")));
    let doctor = &mut shmccl(&["doctor", "--heap", "16M"]);
    let (code, stderr, table) = Started::new(surroundings().around(doctor), 0).end();
    assert!(stderr.is_empty(), "{stderr}");
    [run, (code, table)]
}

/// Checks that neither starts, and that both name what is missing and `remedy`. Where ranks are
/// started and cannot join, their program says so.
fn neither(what: &str, remedy: &str, surroundings: impl Fn() -> Surroundings) {
    let [(code, told), (of_doctor, table)] = both(surroundings);
    let errors = told.lines().filter(|line| line.starts_with("error: ")).count();
    assert!(of_doctor == 1 && (code == 1 && errors == 1 || code == 3), "{what}: {told}{table}");
    for said in [&told, &table] {
        assert!(said.contains(what) && said.contains(remedy), "{what}, {remedy}: {said}");
    }
}

#[test]
fn a_call_without_which_no_job_starts_is_named_with_its_remedy() {
    for (call, number) in [
        ("pidfd_open", libc::SYS_pidfd_open),
        ("memfd_create", libc::SYS_memfd_create),
        ("ftruncate", libc::SYS_ftruncate),
        ("fcntl", libc::SYS_fcntl),
        ("pipe2", libc::SYS_pipe2),
        ("socketpair", libc::SYS_socketpair),
        ("setsockopt", libc::SYS_setsockopt),
        ("getsockopt", libc::SYS_getsockopt),
        ("sendmsg", libc::SYS_sendmsg),
        ("recvmsg", libc::SYS_recvmsg),
        // The C library does without it where it is missing.
        ("clone3", libc::SYS_clone3),
    ] {
        for errno in [Errno::EPERM, Errno::ENOSYS] {
            if (call, errno) != ("clone3", Errno::ENOSYS) {
                neither(call, "(seccomp)", || Surroundings::plain().refusing(number, errno));
            }
        }
    }
}

#[test]
fn a_call_that_jobs_can_do_without_is_named_and_they_start() {
    for (call, number) in [
        ("fallocate", libc::SYS_fallocate),
        ("set_robust_list", libc::SYS_set_robust_list),
        ("membarrier", libc::SYS_membarrier),
        ("futex_waitv", libc::SYS_futex_waitv),
        ("prctl", libc::SYS_prctl),
        ("sched_setaffinity", libc::SYS_sched_setaffinity),
        ("sched_setaffinity", libc::SYS_sched_getaffinity),
    ] {
        can_be_done_without(call, || Surroundings::plain().refusing(number, Errno::ENOSYS));
    }
    for command in [libc::F_ADD_SEALS, libc::F_GET_SEALS] {
        let refused = || Surroundings::plain().refusing_command(libc::SYS_fcntl, command, Errno::EPERM);
        match command {
            libc::F_ADD_SEALS => can_be_done_without("fcntl (seals)", refused),
            _ => assert_eq!(both(refused).map(|(code, _)| code), [0, 0]),
        }
    }
}

fn can_be_done_without(call: &str, surroundings: impl Fn() -> Surroundings) {
    let [(code, told), (of_doctor, table)] = both(surroundings);
    assert_eq!((code, of_doctor), (0, 0), "{call}: {told}{table}");
    assert!(table.contains(&format!("warn {call}: ")), "{table}");
}

#[test]
fn calls_that_serve_speed_or_words_only_can_all_be_refused() {
    let words = ["perf", "all_reduce", "-b", "8", "-e", "8", "-n", "1", "-w", "1", "--heap", "4M"];
    for errno in [Errno::ENOSYS, Errno::EPERM] {
        let refused = || {
            [
                libc::SYS_uname,
                libc::SYS_sched_getaffinity,
                libc::SYS_sched_setaffinity,
                libc::SYS_prlimit64,
                libc::SYS_getuid,
                libc::SYS_shutdown,
                // The last, as it makes the filters.
                libc::SYS_prctl,
            ]
            .into_iter()
            .fold(Surroundings::plain(), |surroundings, call| surroundings.refusing(call, errno))
        };
        let (code, told) = end_of(refused().around(&mut shmccl(&words)));
        assert_eq!((code, told.contains("error")), (0, false), "{told}");
        let [run, (of_doctor, table)] = both(refused);
        assert_eq!((run, of_doctor), ((0, String::new()), 0), "{table}");
    }
}

#[test]
fn doctor_is_content_only_where_an_all_reduce_works() {
    for (fault, said) in [
        ("kill:rank=1,at=1,of=all_reduce", "bad a job: rank 1 was killed by an injected fault"),
        ("corrupt:rank=1,at=1,of=stage", "all_reduce gave wrong sums"),
    ] {
        let mut doctor = shmccl(&["doctor", "--heap", "4M"]);
        doctor.env("SHMCCL_FAULTS", fault);
        let (code, told, table) = Started::new(&mut doctor, 0).end();
        assert!(code == 1 && table.contains(said), "{told}{table}");
    }
}

#[test]
fn a_limit_that_keeps_a_job_from_starting_is_named_with_its_remedy() {
    for (resource, limit, remedy) in [
        (Resource::RLIMIT_NOFILE, 10, "ulimit -n"),
        (Resource::RLIMIT_AS, 40 << 20, "ulimit -v"),
        (Resource::RLIMIT_DATA, 2 << 20, "ulimit -d"),
        (Resource::RLIMIT_FSIZE, 1 << 20, "ulimit -f"),
        (Resource::RLIMIT_FSIZE, 512, "ulimit -f"),
        (Resource::RLIMIT_FSIZE, 0, "ulimit -f"),
    ] {
        neither(remedy, "raise", || Surroundings::plain().limited(resource, limit));
    }
}

#[test]
fn a_limit_on_cpu_time_is_named_by_doctor_and_where_it_kills_a_rank() {
    let doctor = &mut shmccl(&["doctor", "--heap", "4M"]);
    let limited = Surroundings::plain().limited(Resource::RLIMIT_CPU, 1000);
    let (code, told, table) = Started::new(limited.around(doctor), 0).end();
    assert!(code == 0 && table.contains("warn CPU time: ") && table.contains("ulimit -t"), "{told}{table}");
    for (limit, signal) in [("ulimit -t 1", Signal::SIGKILL), ("ulimit -S -t 1", Signal::SIGXCPU)] {
        let script = "while :; do :; done";
        let mut run = shmccl(&["run", "-n", "1", "-q", "--", "sh", "-c", script]);
        if signal == Signal::SIGXCPU {
            run = shmccl(&["run", "-n", "1", "-q", "--", "sh", "-c", &format!("{limit}; {script}")]);
        } else {
            Surroundings::plain().limited(Resource::RLIMIT_CPU, 1).around(&mut run);
        }
        let (code, told) = end_of(&mut run);
        assert_eq!(code, 128 + signal as i32, "{told}");
        assert!(told.contains(signal.as_str()) && told.contains("`ulimit -t`"), "{told}");
    }
}

#[test]
fn a_user_who_may_start_no_more_processes_is_told_so() {
    if !can_be_played("a_user_who_may_start_no_more_processes_is_told_so") {
        return;
    }
    // Somebody who runs nothing else.
    let user = 60_000 + std::process::id() % 5000;
    let directory = open_scratch("no-processes");
    let few = || Surroundings::plain().limited(Resource::RLIMIT_NPROC, 2).as_user(user);
    let mut run = executable_by_all(&job(&["-n", "2", "-q", "--timeout", "20s"], "sum"), &directory);
    let (code, told) = end_of(few().around(&mut run));
    assert!(code == 1 && told.contains("ulimit -u") && told.lines().count() == 1, "{told}");
    let mut doctor = executable_by_all(&shmccl(&["doctor", "--heap", "16M"]), &directory);
    let (code, told, table) = Started::new(few().around(&mut doctor), 0).end();
    assert!(code == 1 && table.contains("ulimit -u"), "{told}{table}");
    std::fs::remove_dir_all(directory).unwrap();
}
