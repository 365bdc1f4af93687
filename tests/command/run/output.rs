//! What `shmccl run` prints, and what of its ranks it hands on.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::run::{run, scratch, shmccl, text, told};

#[test]
fn it_says_how_it_pinned_in_one_line_unless_told_to_be_quiet() {
    let (code, plan) = told(&run(&["-n", "2", "--", "true"]));
    assert!(code == 0 && plan.starts_with("2 ranks on ") && plan.contains(" spinner"), "{plan}");
    assert_eq!(plan.lines().count(), 1, "{plan}");
    assert_eq!(told(&run(&["-n", "2", "-q", "--", "true"])), (0, String::new()));
    assert!(told(&run(&["-n", "2", "--no-pin", "--", "true"])).1.contains("not pinned"));
    // A service has nobody to serve, and needs nobody.
    let beside_service = |program| told(&run(&["-n", "2", "-q", "--proxy", "process", "--", program]));
    assert_eq!(beside_service("true"), (0, String::new()));
    let (code, error) = beside_service("false");
    assert!(code == 1 && error.contains("exited with code 1"), "{error}");
}

#[test]
fn prefixed_lines_keep_their_stream_and_their_order() {
    let script = "echo one; echo two; echo odd >&2; printf last";
    let output = run(&["-n", "3", "-q", "--prefix", "--", "sh", "-c", script]);
    let stdout = text(&output.stdout);
    for rank in 0..3 {
        let name = format!("[rank {rank}] ");
        let lines: Vec<_> = stdout.lines().filter_map(|line| line.strip_prefix(&name)).collect();
        assert_eq!(lines, ["one", "two", "last"]);
        assert!(text(&output.stderr).contains(&format!("{name}odd\n")));
    }
    assert_eq!((stdout.lines().count(), output.stderr.len()), (9, 3 * "[rank 0] odd\n".len()));
}

#[test]
fn prefixes_have_colour_where_it_is_forced_and_none_when_piped() {
    let mut command = shmccl(&["-n", "1", "-q", "--prefix", "--", "echo", "x"]);
    assert_eq!(text(&command.output().unwrap().stdout), "[rank 0] x\n");
    let forced = text(&command.env("CLICOLOR_FORCE", "1").output().unwrap().stdout);
    assert!(forced.starts_with("\u{1b}[") && forced.ends_with(" x\n"), "{forced:?}");
}

/// A job under `--prefix` of which a rank dies by a SIGSEGV when the file `go` is there; once it
/// has been reaped, the other one, which has said something before, prints to a `stdout` that takes
/// no more.
fn job_that_loses_a_rank_and_its_output(directory: &Path, stdout: Stdio) -> Child {
    let script = "cd \"$0\" || exit 9
        until_there() { until [ -s $1 ]; do sleep 0.01; done; }
        if [ $SHMCCL_RANK = 1 ]; then
            until_there go; echo $$ > pid; kill -SEGV $$
        else
            [ -s go ] || echo a; until_there pid
            while kill -0 $(cat pid); do sleep 0.01; done
            echo b
        fi 2>/dev/null";
    let directory = directory.to_str().unwrap();
    let flags = ["-n", "2", "-q", "--prefix", "--grace", "60s", "--", "sh", "-c", script, directory];
    shmccl(&flags).stdout(stdout).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn a_rank_that_died_decides_how_the_job_ends_and_not_that_nobody_read_what_the_others_said_after() {
    let died = "error: rank 1 was killed by SIGSEGV";
    let left = scratch("left");
    let mut launcher = job_that_loses_a_rank_and_its_output(&left, Stdio::piped());
    let mut stdout = BufReader::new(launcher.stdout.take().unwrap());
    stdout.read_line(&mut String::new()).unwrap();
    drop(stdout);
    std::fs::write(left.join("go"), "go").unwrap();
    let (code, error) = told(&launcher.wait_with_output().unwrap());
    assert!(code == 128 + 11 && error.starts_with(died) && error.lines().count() == 1, "{code}: {error}");

    let full = scratch("full");
    std::fs::write(full.join("go"), "go").unwrap();
    let disk = File::options().write(true).open("/dev/full").unwrap();
    let launcher = job_that_loses_a_rank_and_its_output(&full, disk.into());
    let (code, error) = told(&launcher.wait_with_output().unwrap());
    assert!(code == 128 + 11 && error.contains(died), "{code}: {error}");
    assert!(error.contains("No space left"), "{error}");
    for directory in [left, full] {
        std::fs::remove_dir_all(directory).unwrap();
    }
}

#[test]
fn output_that_cannot_be_written_is_an_error_where_nothing_else_went_wrong() {
    let disk = || File::options().write(true).open("/dev/full").unwrap();
    for program in ["echo", "yes"] {
        let output =
            shmccl(&["-n", "2", "-q", "--prefix", "--", program, "x"]).stdout(disk()).output().unwrap();
        let (code, error) = told(&output);
        assert!(code == 1 && error.contains("No space left") && error.lines().count() == 1, "{error}");
    }
}

#[test]
fn a_reader_that_leaves_ends_ranks_that_print_for_ever() {
    for (flags, is_prefixed) in
        [(&["-n", "2", "-q", "--prefix", "--", "yes"][..], true), (&["-n", "2", "-q", "--", "yes"], false)]
    {
        let mut launcher = shmccl(flags).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        // Through the launcher, its own end of the pipe; otherwise that of the ranks.
        assert_eq!(leave_after_a_line(&mut launcher) == 0, is_prefixed);
    }
}

#[test]
fn a_reader_that_leaves_ends_ranks_also_where_signals_to_end_are_ignored() {
    let this = env!("CARGO_BIN_EXE_shmccl");
    let ignoring = format!("trap '' TERM INT HUP; exec {this} run -n 2 -q --prefix -- yes");
    let mut command = Command::new("sh");
    command.args(["-c", &ignoring]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    assert_eq!(leave_after_a_line(&mut command.spawn().unwrap()), 0);
}

/// The exit code of a `launcher` of whose output one line was read.
fn leave_after_a_line(launcher: &mut Child) -> i32 {
    let mut stdout = BufReader::new(launcher.stdout.take().unwrap());
    stdout.read_line(&mut String::new()).unwrap();
    drop(stdout);
    launcher.wait().unwrap().code().unwrap_or(-1)
}
