//! Compiles the programs of `tests/programs` against an installed library, as a user would, and
//! runs them: under a launcher, or as they are.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use shmccl::error::DeviceName;
use shmccl::launch::{Launch, Observer, Program};
use support::InstalledLibrary;

/// The longest wait in a program. Nothing takes that long unless it hangs.
const PATIENCE: Duration = Duration::from_secs(30);

/// The library of this build, which is installed once.
fn library() -> &'static InstalledLibrary {
    static LIBRARY: OnceLock<InstalledLibrary> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join("prefix");
        InstalledLibrary::install(env!("CARGO_MANIFEST_DIR"), prefix, "shmccl", "shmccl")
    })
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name)
}

/// Compiles a program, and returns the path of the executable.
fn compiled(name: &str) -> PathBuf {
    library().compiled(&source(name), false, &["-lm"])
}

#[derive(Default)]
struct Silent;

impl Observer for Silent {
    fn on_loss(&mut self, _: DeviceName) {}
}

/// Runs a program as so many ranks.
fn run_as(n_ranks: u32, program: &Path) {
    let launch = launch(n_ranks, program);
    launch.supervise(&mut Silent).unwrap_or_else(|error| panic!("{n_ranks} ranks: {error:?}"));
}

fn launch(n_ranks: u32, program: &Path) -> Launch {
    let program = Program::new(program, [""; 0]);
    Launch::new(n_ranks).unwrap().program(program).heap_len(64 << 20).timeout(PATIENCE)
}

#[test]
fn every_operation_gives_what_it_promises_on_any_memory_now_in_groups_and_on_streams() {
    let program = compiled("collectives.c");
    [1, 2, 3].into_iter().for_each(|n_ranks| run_as(n_ranks, &program));
}

#[test]
fn each_rank_gets_what_the_ranks_up_to_it_or_before_it_have() {
    let program = compiled("prefixes.c");
    [1, 2, 3, 5].into_iter().for_each(|n_ranks| run_as(n_ranks, &program));
}

#[test]
fn wrong_arguments_are_told_and_change_nothing() {
    let program = compiled("arguments.c");
    [2, 3].into_iter().for_each(|n_ranks| run_as(n_ranks, &program));
}

#[test]
fn communicators_are_split_grown_revoked_shrunk_and_left() {
    let program = compiled("communicators.c");
    [2, 3].into_iter().for_each(|n_ranks| run_as(n_ranks, &program));
}

#[test]
fn started_operations_are_done_in_order_and_messages_together() {
    let program = compiled("requests.c");
    [2, 3].into_iter().for_each(|n_ranks| run_as(n_ranks, &program));
}

#[test]
fn calls_of_a_group_that_share_memory_are_done_one_after_the_other() {
    let program = compiled("order.c");
    [2, 3].into_iter().for_each(|n_ranks| run_as(n_ranks, &program));
}

#[test]
fn puts_come_with_their_signals_and_stay_in_their_window() {
    let program = compiled("windows.c");
    [1, 2, 3].into_iter().for_each(|n_ranks| run_as(n_ranks, &program));
}

#[test]
fn a_killed_rank_is_named_and_the_others_go_on() {
    let program = compiled("lost.c");
    for n_ranks in [2, 3] {
        let outcome = launch(n_ranks, &program).keep_going(true).supervise(&mut Silent).unwrap();
        let lost: Vec<_> = outcome.lost.iter().map(|(device, _)| *device).collect();
        let last = shmccl::Rank::new(n_ranks - 1, n_ranks).unwrap();
        assert_eq!(lost, [DeviceName::Rank(last)]);
    }
}

#[test]
fn a_killed_rank_comes_back_and_goes_on_where_the_others_are() {
    let program = compiled("recover.c");
    for n_ranks in [2, 3] {
        let outcome = launch(n_ranks, &program).restart(1).supervise(&mut Silent);
        outcome.unwrap_or_else(|error| panic!("{n_ranks} ranks: {error:?}"));
    }
}

#[test]
fn a_check_of_the_program_ends_waits_and_started_operations_go_on() {
    let program = compiled("interrupts.c");
    [2, 3].into_iter().for_each(|n_ranks| run_as(n_ranks, &program));
}

#[test]
fn streams_wait_for_events_and_a_communicator_tells_what_it_has_staged() {
    let program = compiled("events.c");
    [2, 3].into_iter().for_each(|n_ranks| run_as(n_ranks, &program));
}

#[test]
fn a_plan_that_is_registered_does_the_calls_that_it_fits() {
    run_as(2, &compiled("plans.c"));
}

#[test]
fn one_process_can_be_all_ranks() {
    assert!(Command::new(compiled("threads.c")).status().unwrap().success());
}

#[test]
fn the_training_loop_of_a_course_on_nccl_runs_and_learns() {
    assert!(Command::new(compiled("training.c")).status().unwrap().success());
}

#[test]
fn a_program_in_cpp_uses_the_names_of_nccl_and_the_table() {
    let program = compiled("ranks.cpp");
    [2, 3].into_iter().for_each(|n_ranks| run_as(n_ranks, &program));
}

#[test]
fn the_header_is_enough_for_a_program_that_links_statically() {
    let target = library().compiled(&source("threads.c"), true, &[]);
    assert!(Command::new(target).status().unwrap().success());
}

#[test]
fn the_library_exports_the_functions_of_its_header_and_nothing_else() {
    let mut promised: Vec<_> = shmccl_c::TABLE_NAMES.to_vec();
    promised.push("shmcclGetTable");
    promised.sort_unstable();
    assert_eq!(library().exported(), promised);
    let output =
        Command::new("readelf").arg("-d").arg(library().prefix().join("lib/libshmccl.so")).output().unwrap();
    let dynamic = String::from_utf8(output.stdout).unwrap();
    assert!(dynamic.contains("soname: [libshmccl.so.0]"), "{dynamic}");
}
