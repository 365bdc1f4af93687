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

/// Compiles a program of static objects as `name`, by a command line of its own, against the shared
/// library or the static one. Returns `None` where the machine has not what that takes.
fn built(name: &str, compiler: &[&str], is_static: bool) -> Option<PathBuf> {
    let prefix = library().prefix();
    let target = prefix.join(name);
    let mut command = Command::new(compiler[0]);
    command.args(["-Wall", "-Wextra", "-g", "-D_GNU_SOURCE"]).args(&compiler[1..]);
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/statics.c"));
    command.args(["-x", "none", "-o"]).arg(&target).args(library().flags(&["--cflags"]));
    if is_static {
        command.arg(prefix.join("lib/libshmccl.a")).args(["-lpthread", "-ldl", "-lm", "-lrt"]);
    } else {
        let path = format!("-Wl,-rpath,{}", prefix.join("lib").display());
        command.args(library().flags(&["--libs"])).arg(path);
    }
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let is_missing = ["cannot find -l", "cannot find 'ld'", "cannot find libasan", "No such file"];
    assert!(output.status.success() || is_missing.iter().any(|words| said.contains(words)), "{said}");
    output.status.success().then_some(target)
}

/// Runs a shell command as so many ranks.
fn run_line(n_ranks: u32, line: &str) {
    let program = Program::new("/bin/sh", ["-c", line]);
    let launch = Launch::new(n_ranks).unwrap().program(program).heap_len(64 << 20).timeout(PATIENCE);
    launch.supervise(&mut Silent).unwrap_or_else(|error| panic!("{n_ranks} ranks, {line}: {error:?}"));
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
fn static_objects_are_symmetric_however_the_program_was_built() {
    let cpp = ["c++", "-x", "c++", "-std=c++17"];
    let ways: &[(&str, &[&str], bool)] = &[
        ("statics-pie", &["cc", "-O2"], false),
        ("statics-no-pie", &["cc", "-no-pie", "-fno-pie"], false),
        ("statics-norelro", &["cc", "-O2", "-Wl,-z,norelro"], false),
        ("statics-lazy", &["cc", "-O2", "-Wl,-z,lazy"], false),
        ("statics-gold", &["cc", "-O2", "-fuse-ld=gold"], false),
        ("statics-large", &["cc", "-O2", "-DBSS=(1ul<<30)"], false),
        ("statics-asan", &["cc", "-O1", "-fsanitize=address"], false),
        ("statics-cpp", &cpp, false),
        ("statics-cpp-no-pie", &[&cpp[..], &["-no-pie", "-fno-pie"]].concat(), false),
        // The library's own objects are among them.
        ("statics-inside", &["cc", "-O2"], true),
        ("statics-inside-lazy", &["cc", "-O2", "-Wl,-z,lazy,-z,norelro"], true),
    ];
    for (name, compiler, is_static) in ways {
        let Some(program) = built(name, compiler, *is_static) else { continue };
        [2, 3]
            .into_iter()
            .for_each(|n_ranks| run_line(n_ranks, &format!("exec {} forks", program.display())));
    }
}

#[test]
fn static_objects_of_a_program_without_shared_libraries_are_symmetric_and_no_childs() {
    for kind in ["-static", "-static-pie"] {
        let name = format!("statics{kind}");
        let Some(program) = built(&name, &["cc", "-O2", kind, "-Wl,--gc-sections"], true) else { continue };
        run_line(2, &format!("exec {} forks-statically", program.display()));
    }
}

#[test]
fn threads_of_a_constructor_lose_nothing_as_static_objects_are_mapped_over() {
    let program = built("statics-threads", &["cc", "-O2"], false).unwrap();
    run_line(3, &format!("STATICS_TICK=1 exec {}", program.display()));
}

#[test]
fn static_objects_do_not_need_random_addresses() {
    let program = built("statics-fixed", &["cc", "-O2"], false).unwrap();
    // Where the sandbox refuses it, it is no news.
    let is_there = Command::new("setarch").args(["-R", "true"]).status().is_ok_and(|status| status.success());
    let prefix = if is_there { "setarch -R" } else { "" };
    run_line(2, &format!("exec {prefix} {} forks", program.display()));
}

#[test]
fn what_is_no_static_object_is_named() {
    let program = built("statics-strangers", &["cc", "-O2"], false).unwrap();
    run_line(2, &format!("exec {} strangers", program.display()));
}

#[test]
fn static_objects_are_left_alone_where_the_environment_says_so() {
    let program = built("statics-off", &["cc", "-O2"], false).unwrap();
    run_line(2, &format!("SHMCCL_STATICS=0 exec {} off", program.display()));
    run_line(2, &format!("SHMCCL_STATICS=$SHMCCL_RANK exec {} one-off", program.display()));
}

#[test]
fn programs_with_other_layouts_are_named_with_the_object_that_differs() {
    let first = built("statics-differs-0", &["cc", "-O1"], false).unwrap();
    built("statics-differs-1", &["cc", "-O1", "-DMORE=4096"], false).unwrap();
    let name = first.display().to_string();
    let common = name.strip_suffix('0').unwrap();
    for (n_ranks, which) in [(2, "SHMCCL_RANK"), (3, "SHMCCL_RANK / 2")] {
        // All ranks are told, and leave a word of it. The job fails.
        let told = |rank| PathBuf::from(format!("{common}told-{n_ranks}-{rank}"));
        (0..n_ranks).for_each(|rank| drop(std::fs::remove_file(told(rank))));
        let line = format!("{common}$(({which})) differs && touch {common}told-{n_ranks}-$SHMCCL_RANK");
        let program = Program::new("/bin/sh", ["-c", &line]);
        let launch = Launch::new(n_ranks).unwrap().program(program).heap_len(64 << 20).timeout(PATIENCE);
        launch.grace(PATIENCE).supervise(&mut Silent).unwrap_err();
        assert!((0..n_ranks).all(|rank| told(rank).exists()), "{line}");
    }
}

#[test]
fn static_objects_outlive_an_epoch_and_a_rank_that_comes_back_has_its_own() {
    let program = built("statics-recover", &["cc", "-O2"], false).unwrap();
    let run = |mode| {
        let program = Program::new(&program, [mode]);
        Launch::new(3).unwrap().program(program).heap_len(64 << 20).timeout(PATIENCE)
    };
    let outcome = run("shrink").keep_going(true).supervise(&mut Silent).unwrap();
    assert_eq!(outcome.lost.len(), 1);
    run("recover").restart(1).supervise(&mut Silent).unwrap();
}

#[test]
fn static_objects_are_those_of_all_who_meet_by_an_id() {
    let program = built("statics-meet", &["cc", "-O2"], false).unwrap();
    let alone = Command::new(&program).arg("id").env("SHMCCL_STATICS", "1").output().unwrap();
    assert!(alone.status.success(), "{}", String::from_utf8_lossy(&alone.stderr));
    run_line(2, &format!("exec {} grow", program.display()));
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
