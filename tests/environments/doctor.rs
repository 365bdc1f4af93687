//! `shmccl doctor` says of every machine whether `shmccl run` starts a job there, and what helps
//! where it does not.

use nix::errno::Errno;
use nix::libc;
use nix::sys::resource::Resource;
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
    assert!(of_doctor == 1 && (code == 1 && told.lines().count() == 1 || code == 3), "{what}: {told}{table}");
    for said in [&told, &table] {
        assert!(said.contains(what) && said.contains(remedy), "{what}, {remedy}: {said}");
    }
}

#[test]
fn a_call_without_which_no_job_starts_is_named_with_its_remedy() {
    for (call, number) in [("pidfd_open", libc::SYS_pidfd_open), ("memfd_create", libc::SYS_memfd_create)] {
        for errno in [Errno::ENOSYS, Errno::EPERM] {
            neither(call, "(seccomp)", || Surroundings::plain().refusing(number, errno));
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
    ] {
        let refused = || Surroundings::plain().refusing(number, Errno::ENOSYS);
        let [(code, told), (of_doctor, table)] = both(refused);
        assert_eq!((code, of_doctor), (0, 0), "{call}: {told}{table}");
        assert!(table.contains(&format!("warn {call}: ")), "{table}");
    }
}

#[test]
fn a_limit_that_keeps_a_job_from_starting_is_named_with_its_remedy() {
    for (resource, limit, remedy) in [
        (Resource::RLIMIT_NOFILE, 10, "ulimit -n"),
        (Resource::RLIMIT_AS, 40 << 20, "ulimit -v"),
        (Resource::RLIMIT_DATA, 2 << 20, "ulimit -d"),
        (Resource::RLIMIT_FSIZE, 1 << 20, "ulimit -f"),
    ] {
        neither(remedy, "raise", || Surroundings::plain().limited(resource, limit));
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
