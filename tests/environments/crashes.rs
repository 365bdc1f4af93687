//! Crashes with core dumps on.

use std::path::Path;
use std::process::Command;

use nix::sys::resource::{RLIM_INFINITY, Resource};
use nix::sys::signal::Signal;
use support::Surroundings;

use crate::job::{end_of, job};
use crate::scratch;

/// Jobs that allocate little dump no more.
const MOST: u64 = 64 << 20;

#[test]
fn a_core_dump_holds_no_shared_memory_but_the_ranks_own_where_it_is_asked_for() {
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    for asked in [false, true] {
        let directory = scratch(if asked { "core-with-heap" } else { "core" });
        let mut run = job(&["-n", "4", "-q", "--heap", "1G"], "abort 1");
        run.current_dir(&directory).env("SHMCCL_DUMP_HEAP", if asked { "1" } else { "" });
        let (code, told) = end_of(dumping(&mut run));
        assert_eq!(code, 128 + Signal::SIGABRT as i32, "{told}");
        assert_eq!(told.matches("rank 1 was lost").count(), 3, "{told}");
        // Elsewhere, or handed to a program, the dump is not for this test to find.
        if !pattern.contains(['/', '|']) {
            let core = core_in(&directory);
            assert!(core.len() as u64 <= MOST, "{} bytes", core.len());
            for mark in [0xA7, 0xA8] {
                let of_heap =
                    core.chunks_exact(4096).filter(|page| page.iter().all(|byte| *byte == mark)).count();
                // What has filled it had a few of them.
                assert!(if asked { of_heap >= 256 } else { of_heap < 16 }, "{of_heap} pages of {mark:x}");
            }
        }
        std::fs::remove_dir_all(directory).unwrap();
    }
}

/// Has the system write the memory of a process that crashes to a file.
fn dumping(command: &mut Command) -> &mut Command {
    Surroundings::plain().limited(Resource::RLIMIT_CORE, RLIM_INFINITY).around(command)
}

fn core_in(directory: &Path) -> Vec<u8> {
    let mut files = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    std::fs::read(files.next().expect("there is a core")).unwrap()
}
