//! The command as a user meets it: each test starts the real `shmccl`.
//!
//! Tests whose jobs need programs of their own start this binary again, told to run one test that
//! is an entry point: `device_process` of a module does nothing unless its environment says so.

mod cli;
mod compare_op;
mod coordinator;
mod nccl_tests;
mod p2p;
mod plan;
mod plan_refusals;
mod run;
mod seeing;
mod trace;
mod tune;

use std::path::{Path, PathBuf};

/// A directory for one test, of which nothing is left over from an earlier run.
fn scratch(name: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    directory
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Returns what a command says on stderr, without the remark that the machine was too busy for its
/// figures: whether that is so depends on what else the machine does.
fn remarks(stderr: &[u8]) -> String {
    let lines = text(stderr);
    let depends_on_machine = |line: &&str| line.starts_with("the machine was busy, or its cores drifted: ");
    lines.split_inclusive('\n').filter(|line| !depends_on_machine(line)).collect()
}
