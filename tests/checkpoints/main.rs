//! Checkpoints of real processes: ranks are killed at any moment and at every step, disks are full,
//! and the next job finds one state, whole and the same on all ranks.
//!
//! The test binary is its own device and launcher: processes are this binary again, told to run the
//! same test. `SHMCCL_LONG=1` kills 300 times at random, `SHMCCL_SEED` replays a series,
//! `--nocapture` shows what came of it.
#![expect(clippy::print_stdout, reason = "devices report on stdout, and the summary is the result")]

mod full;
mod job;
mod keeper;

use std::path::{Path, PathBuf};
use std::time::Duration;

use shmccl::launch::Program;
use support::{Random, Watchdog, long, seed};

use full::{be_short_of_space, fill_up, with_a_small_disk};
use job::{Summary, Trial};
use keeper::be_a_keeper;

/// One job may take so long before the process is aborted.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn whoever_is_killed_at_whatever_moment_the_next_job_finds_one_state_on_all_ranks() {
    if is_device() {
        return be_a_keeper();
    }
    let test = "whoever_is_killed_at_whatever_moment_the_next_job_finds_one_state_on_all_ranks";
    let (seed, trials) = (seed(), if long() { 300 } else { 12 });
    println!("{trials} trials, SHMCCL_SEED={seed}");
    let (mut random, scratch) = (Random(seed), Scratch::new("moments"));
    let mut summary = Summary::default();
    for _ in 0..trials {
        let trial = Trial::draw(&mut random);
        let _watchdog = Watchdog::start(&format!("{trial:?}"), PATIENCE);
        trial.run(test, &scratch.0, &mut summary);
    }
    Trial::in_peace(3).run(test, &scratch.0, &mut summary);
    summary.end(&scratch.0, 3);
    println!("{summary}");
}

#[test]
fn whoever_is_killed_at_whatever_step_the_next_job_finds_one_state_on_all_ranks() {
    if is_device() {
        return be_a_keeper();
    }
    let test = "whoever_is_killed_at_whatever_step_the_next_job_finds_one_state_on_all_ranks";
    for victim in [Some(0), Some(1), None] {
        let scratch = Scratch::new("steps");
        let mut summary = Summary::default();
        Trial::in_peace(2).run(test, &scratch.0, &mut summary);
        let mut steps = 0;
        for number in 1.. {
            let _watchdog = Watchdog::start(&format!("step {number} of {victim:?}"), PATIENCE);
            if Trial::at_step(victim, number).run(test, &scratch.0, &mut summary) {
                break;
            }
            steps = number;
        }
        summary.end(&scratch.0, 2);
        println!("killed {victim:?} at each of {steps} steps: {summary}");
        assert!(steps > 8, "{steps}");
        // The rename is a step of the first rank.
        summary.expect_both(victim != Some(1));
    }
}

#[test]
fn where_there_is_no_room_all_ranks_are_told_the_old_checkpoint_counts_and_all_go_on() {
    if is_device() {
        return be_short_of_space();
    }
    let test = "where_there_is_no_room_all_ranks_are_told_the_old_checkpoint_counts_and_all_go_on";
    if let Some(disk) = std::env::var_os(full::DISK) {
        return fill_up(test, Path::new(&disk), &["disk"]);
    }
    let scratch = Scratch::new("full");
    fill_up(test, &scratch.0, &["all", "rank 0", "rank 2", "last"]);
    with_a_small_disk(test, &scratch.0);
}

/// A directory of a test's own that goes with this.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("kept-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

fn is_device() -> bool {
    std::env::var_os("SHMCCL_SOCKET").is_some()
}

fn this_test(name: &str) -> Program {
    Program::new(std::env::current_exe().unwrap(), [name, "--exact", "--nocapture", "--test-threads=1"])
}

/// The names in `directory`, in order.
fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
