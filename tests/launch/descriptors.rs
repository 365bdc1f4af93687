//! Descriptors that launching leaves open or hands on.

use std::process::{Command, Stdio};
use std::time::Duration;

use shmccl::bootstrap::ProxyMode;
use shmccl::launch::Program;

use crate::device::inheritable;
use crate::{launch, rank, run};

/// Runs alone in a process, because the tests of one process share its descriptors.
#[test]
fn no_descriptor_is_left_and_none_reaches_a_sibling() {
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "descriptors::descriptors_process", "--nocapture"])
        .env("SHMCCL_TEST_DESCRIPTORS", "1")
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
}

#[test]
fn descriptors_process() {
    if std::env::var("SHMCCL_TEST_DESCRIPTORS").is_err() {
        return;
    }
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    // The first launch opens the pipe for interrupts and claims cores, both of which are kept.
    run(&launch(3, "")).0.unwrap();
    let (before, inherited) = (open(), inheritable());
    for scenario in ["", "die:welcomed:9@1 wait", "garbage:before-join@0 wait", "exit:before-join:0"] {
        let scenario = launch(3, scenario).proxy(ProxyMode::Process).grace(Duration::from_millis(50));
        let _ = run(&scenario);
        assert_eq!(open(), before, "{scenario:?}");
    }
    let _ = run(&launch(3, "").program(Program::new::<&str>("/nonexistent/program", [])));
    assert_eq!(open(), before);
    // Four launchers at once.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let (result, record) = run(&launch(3, "descriptors:before-join"));
                result.unwrap();
                for index in 0..3 {
                    let said = record.said(rank(index));
                    let text = said.iter().find_map(|text| text.strip_prefix("descriptors ")).unwrap();
                    let count = text.split(',').count();
                    // Besides what this process had inherited itself: the control socket.
                    assert_eq!(count, inherited.len() + 1, "{text}, inherited {inherited:?}");
                }
            });
        }
    });
    assert_eq!(open(), before);
}
