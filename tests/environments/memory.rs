//! Systems that count memory strictly, or refuse a call by which memory is had.

use nix::errno::Errno;
use nix::libc;
use nix::sys::resource::Resource;
use support::Surroundings;

use crate::job::{end_of, job, shmccl};
use crate::scratch;

/// How sandboxes and old kernels refuse a call.
const REFUSALS: [Errno; 3] = [Errno::ENOSYS, Errno::EPERM, Errno::EOPNOTSUPP];

#[test]
fn addresses_that_are_only_reserved_count_as_nobodys_data() {
    let run = &mut job(&["-n", "2", "-q", "--heap", "1G"], "sum");
    let little = Surroundings::plain().limited(Resource::RLIMIT_DATA, 128 << 20);
    assert_eq!(end_of(little.around(run)), (0, String::new()));
}

#[test]
fn memory_is_had_where_nothing_can_be_allocated_ahead() {
    let directory = scratch("no-fallocate");
    let name = format!("shmccl-test-no-fallocate-{}", std::process::id());
    for errno in REFUSALS {
        for segment in ["memfd".to_owned(), format!("named:{name}"), format!("file:{}", directory.display())]
        {
            let run = &mut job(&["-n", "2", "-q", "--heap", "8M", "--segment", &segment], "alloc 3");
            let surroundings = Surroundings::plain().refusing(libc::SYS_fallocate, errno);
            assert_eq!(end_of(surroundings.around(run)), (0, String::new()), "{segment}, {errno}");
        }
    }
    // What a file holds is there afterwards.
    let first = directory.join("rank0.shmccl");
    let held = std::fs::read(&first).unwrap();
    assert!(held.windows(8).any(|bytes| bytes == [3; 8]));
    let run = &mut job(
        &["-n", "2", "-q", "--heap", "8M", "--segment", &format!("file:{}", directory.display())],
        "sum",
    );
    let surroundings = Surroundings::plain().refusing(libc::SYS_fallocate, Errno::EOPNOTSUPP);
    assert_eq!(end_of(surroundings.around(run)), (0, String::new()));
    assert!(std::fs::read(&first).unwrap().windows(8).any(|bytes| bytes == [3; 8]));
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn a_file_system_that_cannot_hold_a_segment_is_told_with_its_remedy() {
    let directory = scratch("no-locks");
    let segment = format!("file:{}", directory.display());
    let run = &mut job(&["-n", "1", "-q", "--segment", &segment], "sum");
    let (code, told) = end_of(Surroundings::plain().refusing(libc::SYS_flock, Errno::ENOLCK).around(run));
    let expected = "locking the file of a segment needs locks on files, which is refused here: put the file on another file system";
    assert!(code != 0 && told.contains(expected), "{told}");
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn a_call_that_a_job_cannot_do_without_is_named_with_its_remedy() {
    for (call, name) in [(libc::SYS_memfd_create, "memfd_create"), (libc::SYS_pidfd_open, "pidfd_open")] {
        for errno in [Errno::ENOSYS, Errno::EPERM] {
            let run = &mut shmccl(&["run", "-n", "2", "-q", "--", "true"]);
            let (code, told) = end_of(Surroundings::plain().refusing(call, errno).around(run));
            assert_eq!(code, 1, "{told}");
            let line = format!("needs the system call {name}");
            assert!(told.lines().count() == 1 && told.contains(&line) && told.contains("seccomp"), "{told}");
        }
    }
}

#[test]
fn calls_that_only_help_are_done_without() {
    for call in [
        libc::SYS_madvise,
        libc::SYS_membarrier,
        libc::SYS_futex_waitv,
        libc::SYS_set_robust_list,
        libc::SYS_get_robust_list,
        libc::SYS_sched_setaffinity,
    ] {
        for errno in [Errno::ENOSYS, Errno::EPERM] {
            let run = &mut job(&["-n", "2", "-q"], "sum");
            let ended = end_of(Surroundings::plain().refusing(call, errno).around(run));
            assert_eq!(ended, (0, String::new()), "call {call}, {errno}");
        }
    }
}
