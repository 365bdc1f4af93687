//! Compiles the programs of `tests/programs` against an installed library, as a user would, and
//! runs them: under a launcher, or as they are.

mod sweep;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use shmccl::error::DeviceName;
use shmccl::launch::{Launch, Observer, Program};
use shmccl_shmem::table::FAMILIES;
use support::InstalledLibrary;

/// The longest wait in a program. Nothing takes that long unless it hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// The library of this build, which is installed once.
fn library() -> &'static InstalledLibrary {
    static LIBRARY: OnceLock<InstalledLibrary> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join("shmem-prefix");
        InstalledLibrary::install(env!("CARGO_MANIFEST_DIR"), prefix, "shmccl-shmem", "shmccl_shmem")
    })
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name)
}

/// Where the headers of the programs are.
const HEADERS: &str = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/tests/programs");

fn compiled(source: &Path, is_static: bool) -> PathBuf {
    library().compiled(source, is_static, &[HEADERS])
}

#[derive(Default)]
struct Silent;

impl Observer for Silent {
    fn on_loss(&mut self, _: DeviceName) {}
}

fn launch(n_ranks: u32, program: &Path) -> Launch {
    let program = Program::new(program, [""; 0]);
    Launch::new(n_ranks).unwrap().program(program).heap_len(64 << 20).timeout(PATIENCE)
}

/// Runs a program as so many ranks.
fn run_as(n_ranks: u32, program: &Path) {
    let ended = launch(n_ranks, program).supervise(&mut Silent);
    ended.unwrap_or_else(|error| panic!("{n_ranks} ranks: {error:?}"));
}

fn run_as_several(program: &Path) {
    [2, 3, 4].into_iter().for_each(|n_ranks| run_as(n_ranks, program));
}

#[test]
fn setup_memory_and_copies_do_what_the_specification_says() {
    let program = compiled(&source("basics.c"), false);
    run_as_several(&program);
    assert!(Command::new(program).status().unwrap().success(), "a world of one");
}

#[test]
fn teams_and_contexts_number_their_ranks_and_come_in_thousands() {
    run_as_several(&compiled(&source("teams.c"), false));
}

#[test]
fn collectives_give_what_they_promise_over_teams_and_active_sets() {
    run_as_several(&compiled(&source("collectives.c"), false));
}

#[test]
fn waits_signals_and_locks_order_what_ranks_do() {
    run_as_several(&compiled(&source("waits.c"), false));
}

#[test]
fn static_objects_are_symmetric_however_the_library_is_linked() {
    run_as_several(&compiled(&source("statics.c"), false));
    run_as_several(&compiled(&source("statics.c"), true));
}

#[test]
fn the_examples_agree_with_what_a_rank_computes_alone() {
    for name in ["halo_exchange.c", "load_balance.c"] {
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
        run_as_several(&compiled(&examples.join(name), false));
    }
}

#[test]
fn every_typed_call_of_the_table_works() {
    let path = library().prefix().join("sweep.c");
    std::fs::write(&path, sweep::program()).unwrap();
    run_as_several(&compiled(&path, false));
}

#[test]
fn generic_forms_choose_by_type_in_c11_and_in_cpp() {
    run_as(2, &compiled(&source("generics.c"), false));
    run_as(2, &compiled(&source("overloads.cpp"), false));
}

#[test]
fn a_program_may_put_its_own_function_before_any_call() {
    run_as(2, &compiled(&source("profiled.c"), false));
    run_as(2, &compiled(&source("profiled.c"), true));
}

#[test]
fn a_rank_ends_all_with_its_status() {
    let program = compiled(&source("global_exit.c"), false);
    for n_ranks in [2, 3] {
        let error = launch(n_ranks, &program).supervise(&mut Silent).unwrap_err();
        assert!(format!("{error:?}").contains('7'), "{error:?}");
    }
}

#[test]
fn a_rank_ends_all_in_good_order() {
    run_as_several(&compiled(&source("global_success.c"), false));
}

#[test]
fn calls_of_threads_that_come_too_late_fail_nobody() {
    let program = compiled(&source("ends_beside_threads.c"), false);
    for _ in 0..5 {
        run_as_several(&program);
    }
}

#[test]
fn ranks_that_both_end_all_write_what_they_have_printed() {
    let program = compiled(&source("all_end_all.c"), false);
    let printed = library().prefix().join("printed");
    for _ in 0..3 {
        launch(2, &program).program(Program::new(&program, [&printed])).supervise(&mut Silent).unwrap();
        let mut begun = 0;
        for rank in 0..2 {
            let file = printed.with_extension(rank.to_string());
            // The other one may have been quicker than this one's call.
            if std::fs::remove_file(printed.with_extension(format!("{rank}.begun"))).is_ok() {
                assert_eq!(std::fs::read_to_string(&file).unwrap(), "printed", "rank {rank}");
                begun += 1;
            }
            std::fs::remove_file(file).unwrap();
        }
        assert!(begun > 0);
    }
}

#[test]
fn children_of_a_fork_have_memory_as_it_was_and_make_no_calls() {
    run_as_several(&compiled(&source("forked.c"), false));
}

#[test]
fn an_active_set_with_longer_distances_than_numbers_is_an_error() {
    let program = compiled(&source("no_active_set.c"), false);
    let error = launch(3, &program).supervise(&mut Silent).unwrap_err();
    assert!(!format!("{error:?}").contains("Signal"), "{error:?}");
}

#[test]
fn compilers_and_launchers_of_other_libraries_have_their_names_here() {
    let target = library().prefix().join("by_oshcc");
    let bin = library().prefix().join("bin");
    let mut compiler = Command::new(bin.join("oshcc"));
    compiler.arg(source("basics.c")).args([HEADERS, "-D_GNU_SOURCE", "-o"]).arg(&target);
    assert!(compiler.status().unwrap().success());
    assert!(Command::new(&target).status().unwrap().success(), "a world of one");
    let mut compiler = Command::new(bin.join("oshc++"));
    compiler.arg(source("overloads.cpp")).args([HEADERS, "-o"]).arg(&target);
    assert!(compiler.status().unwrap().success());
    assert!(Command::new(&target).status().unwrap().success(), "a world of one");
    // A launcher that says what it was told.
    let path = library().prefix().join("told");
    std::fs::create_dir_all(&path).unwrap();
    std::fs::write(path.join("shmccl"), "#!/bin/sh\necho \"$SHMCCL_HEAP $*\"\n").unwrap();
    std::fs::set_permissions(path.join("shmccl"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut launcher = Command::new(bin.join("oshrun"));
    launcher.args(["-np", "3", "./ring", "-np"]).env("SHMEM_SYMMETRIC_SIZE", "64M").env_remove("SHMCCL_HEAP");
    let path = format!("{}:{}", path.display(), std::env::var("PATH").unwrap());
    let told = launcher.env("PATH", path).output().unwrap().stdout;
    assert_eq!(String::from_utf8_lossy(&told), "64M run -n 3 ./ring -np\n");
}

#[test]
fn a_rank_ends_those_that_have_finalized() {
    run_as_several(&compiled(&source("ended_behind_finalize.c"), false));
}

#[test]
fn a_call_that_fails_ends_the_job_though_its_end_would_be_a_barrier() {
    let program = compiled(&source("fails_at_end.c"), false);
    let begun = std::time::Instant::now();
    let job = launch(3, &program).timeout(10 * PATIENCE);
    assert!(job.supervise(&mut Silent).is_err());
    assert!(begun.elapsed() < 5 * PATIENCE, "a rank has waited for the time-out");
}

#[test]
fn a_rank_that_ends_without_finalize_does_not_hang_the_others() {
    let program = compiled(&source("early.c"), false);
    assert!(launch(2, &program).supervise(&mut Silent).is_err());
}

#[test]
fn a_rank_that_is_killed_ends_the_waits_of_the_others() {
    let program = compiled(&source("killed.c"), false);
    let begun = std::time::Instant::now();
    assert!(launch(4, &program).timeout(10 * PATIENCE).supervise(&mut Silent).is_err());
    assert!(begun.elapsed() < 5 * PATIENCE, "a rank has waited for the time-out");
}

#[test]
fn what_is_not_there_is_an_error_of_the_compiler_that_names_the_section() {
    let (output, _) = library().compile(&source("missing.c"), false, &[HEADERS]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("8.11 of OpenSHMEM 1.3"), "{text}");
}

#[test]
fn the_library_exports_the_functions_of_its_header_and_nothing_else() {
    let mut promised = Vec::new();
    for family in FAMILIES.iter().copied().flatten() {
        for of in family.types {
            let name = family.name.replace("{}", of.name);
            match name.strip_prefix('=') {
                Some(whole) => promised.push(whole.to_owned()),
                None => promised.extend([format!("shmem_{name}"), format!("pshmem_{name}")]),
            }
            if family.has_context {
                promised.extend([format!("shmem_ctx_{name}"), format!("pshmem_ctx_{name}")]);
            }
        }
    }
    promised.sort_unstable();
    assert_eq!(library().exported(), promised);
}
