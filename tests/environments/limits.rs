//! Limits of a process that leave room for a job, and a directory that is gone.

use std::process::Command;

use nix::sys::resource::Resource;
use nix::sys::signal::Signal;
use support::Surroundings;

use crate::job::{DIRECTORY, Started, end_of, job, shmccl, with_environment_of};
use crate::scratch;

#[test]
fn a_small_job_runs_with_few_descriptors() {
    let run = &mut job(&["-n", "2", "-q"], "sum");
    let few = Surroundings::plain().limited(Resource::RLIMIT_NOFILE, 64);
    let (code, stderr, stdout) = Started::new(few.around(run), 0).end();
    assert_eq!((code, stderr.as_str(), stdout.matches("sum 3\n").count()), (0, "", 2), "{stdout}");
}

/// `command` in a directory that is removed before.
fn in_a_gone_directory(name: &str, command: &Command) -> Command {
    let gone = scratch(name);
    let mut shell = Command::new("sh");
    shell.args(["-c", "cd \"$0\" && rmdir \"$0\" && exec \"$@\""]).arg(&gone);
    shell.arg(command.get_program()).args(command.get_args());
    with_environment_of(command, shell)
}

#[test]
fn a_file_in_a_directory_that_is_gone_is_refused_with_the_remedy() {
    for words in [
        &["compare", "--json", "x.json"][..],
        &["compare", "--csv", "x.csv"],
        &["perf", "all_reduce", "--json", "x.json"],
        &["tune", "-o", "x.toml"],
        &["doctor", "--json", "x.json"],
        &["run", "-q", "-n", "1", "--trace", "x.json", "--", "true"],
    ] {
        let (code, told) = end_of(&mut in_a_gone_directory("gone-file", &shmccl(words)));
        let remedy = "the working directory was removed; change to another one";
        assert!(code == 1 && told.lines().count() == 1 && told.contains(remedy), "{words:?}: {told}");
    }
}

#[test]
fn a_file_that_would_grow_past_its_limit_is_an_error_with_the_remedy_and_not_the_end() {
    let directory = scratch("no-file-size");
    let at = |name: &str| directory.join(name).into_os_string().into_string().unwrap();
    let (report, output) = (at("report.json"), at("output"));
    let none = || Surroundings::plain().limited(Resource::RLIMIT_FSIZE, 0);
    let (code, told) = end_of(none().around(&mut shmccl(&["ps", "--json", &report])));
    assert!(code == 1 && told.lines().count() == 1 && told.contains("raise `ulimit -f`"), "{told}");
    for words in [&["--help"][..], &["doctor", "--heap", "4M"]] {
        let mut command = shmccl(words);
        let ended = none().around(&mut command).stdout(std::fs::File::create(&output).unwrap()).output();
        let ended = ended.unwrap();
        let told = String::from_utf8(ended.stderr).unwrap();
        assert!(ended.status.code() == Some(1) && told.contains("raise `ulimit -f`"), "{words:?}: {told}");
    }
    // Of a rank, whose segments are there when the limit comes.
    let (code, told) =
        end_of(job(&["-n", "2", "-q", "--heap", "4M"], "checkpoint").env(DIRECTORY, &directory));
    assert!(code == 3 && told.contains("`ulimit -f`"), "{told}");
    // What `run` starts is not spared.
    let script = "exec cat /proc/self/status >&2";
    let run = &mut shmccl(&["run", "-n", "1", "-q", "--", "sh", "-c", script]);
    let (code, status) = end_of(Surroundings::plain().limited(Resource::RLIMIT_FSIZE, 1 << 30).around(run));
    let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
    assert_eq!((code, blocked.map(str::trim)), (0, Some("0000000000000000")), "{status}");
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn a_job_runs_and_ends_in_a_directory_that_is_gone() {
    let wait = job(&["-n", "2", "-q"], "wait");
    let started = Started::new(&mut in_a_gone_directory("gone", &wait), 2);
    let directory = std::fs::read_link(format!("/proc/{}/cwd", started.pid())).unwrap();
    assert!(directory.to_string_lossy().ends_with(" (deleted)"), "{directory:?}");
    started.signal(Signal::SIGTERM);
    assert_eq!(started.end().0, 128 + Signal::SIGTERM as i32);
}

#[test]
fn a_rank_that_a_small_stack_has_ended_is_told_with_the_remedy_and_doctor_has_a_row() {
    let small = || Surroundings::plain().limited(Resource::RLIMIT_STACK, 64 << 10);
    let mut run = shmccl(&["run", "-n", "1", "-q", "--", "sh", "-c", "kill -ABRT $$"]);
    let (code, told) = end_of(small().around(&mut run));
    assert_eq!((code, told.lines().count()), (134, 1), "{told}");
    assert!(told.contains("perhaps as its stack went past `ulimit -s`"), "{told}");
    let doctor = small().around(&mut shmccl(&["doctor", "--heap", "4M"])).output().unwrap();
    let told = String::from_utf8(doctor.stdout).unwrap();
    assert!(told.contains("warn stack: ") && told.contains("raise it: ulimit -s 8192"), "{told}");
}
