//! Limits of a process that leave room for a job, and a directory that is gone.

use std::process::Command;

use nix::sys::resource::Resource;
use nix::sys::signal::Signal;
use support::Surroundings;

use crate::job::{Started, job, with_environment_of};
use crate::scratch;

#[test]
fn a_small_job_runs_with_few_descriptors() {
    let run = &mut job(&["-n", "2", "-q"], "sum");
    let few = Surroundings::plain().limited(Resource::RLIMIT_NOFILE, 64);
    let (code, stderr, stdout) = Started::new(few.around(run), 0).end();
    assert_eq!((code, stderr.as_str(), stdout.matches("sum 3\n").count()), (0, "", 2), "{stdout}");
}

#[test]
fn a_job_runs_and_ends_in_a_directory_that_is_gone() {
    let gone = scratch("gone");
    let wait = job(&["-n", "2", "-q"], "wait");
    let mut shell = Command::new("sh");
    shell.args(["-c", "cd \"$0\" && rmdir \"$0\" && exec \"$@\""]).arg(&gone);
    shell.arg(wait.get_program()).args(wait.get_args());
    let started = Started::new(&mut with_environment_of(&wait, shell), 2);
    assert!(!gone.exists());
    started.signal(Signal::SIGTERM);
    assert_eq!(started.end().0, 128 + Signal::SIGTERM as i32);
}
