//! What `shmccl run` logs, by subsystem and level.

use crate::run::{job, told};

/// The lines of subsystem `name` that a ring of two ranks logs with this filter, with these flags.
fn logged(filter: &str, flags: &[&str], name: &str) -> Vec<String> {
    let (code, stderr) =
        told(&job(&[&["-n", "2", "-q"], flags].concat(), "ring").env("SHMCCL_LOG", filter).output().unwrap());
    assert_eq!(code, 0, "{stderr}");
    let target = format!("shmccl::{name}:");
    stderr.lines().filter(|line| line.contains(&target)).map(str::to_owned).collect()
}

fn count(lines: &[String], text: &str) -> usize {
    lines.iter().filter(|line| line.contains(text)).count()
}

#[test]
fn subsystems_log_at_the_level_that_is_asked_for() {
    let lines = logged("launch=info", &[], "launch");
    assert_eq!(["INFO", "DEBUG", "starting a job"].map(|text| count(&lines, text)), [3, 0, 1], "{lines:?}");
    let lines = logged("launch=debug,off", &[], "launch");
    assert_eq!(
        ["joined device", "all members are ready"].map(|text| count(&lines, text)),
        [2, 1],
        "{lines:?}"
    );
    assert_eq!(logged("info,launch=off", &[], "launch"), [""; 0]);
    assert_eq!(logged("", &[], "launch"), [""; 0]);
    // The service process is the command as well.
    let proxies = logged("warn,proxy=debug", &["--proxy", "process"], "proxy");
    assert_eq!(["a proxy serves", "a proxy stops"].map(|text| count(&proxies, text)), [1, 1], "{proxies:?}");
    assert_eq!(logged("warn,proxy=debug", &["--proxy", "process"], "launch"), [""; 0]);
}

#[test]
fn a_filter_that_makes_no_sense_is_one_error() {
    let (code, stderr) = told(&job(&["-n", "2"], "ring").env("SHMCCL_LOG", "lunch=debug").output().unwrap());
    assert_eq!((code, stderr.lines().count()), (2, 1), "{stderr}");
    assert!(stderr.starts_with("error: SHMCCL_LOG has \"lunch=debug\"; expected"), "{stderr}");
}
