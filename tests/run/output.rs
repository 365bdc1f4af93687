//! What `shmccl run` prints, and what of its ranks it hands on.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use shmccl::launch::Launch;

use crate::{run, shmccl, text, told};

#[test]
fn it_says_how_it_pinned_in_one_line_unless_told_to_be_quiet() {
    let plan = Launch::new(2).unwrap().plan().describe() + "\n";
    assert_eq!(told(&run(&["-n", "2", "--", "true"])), (0, plan));
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

#[test]
fn a_reader_that_leaves_ends_ranks_that_print_for_ever() {
    for flags in [&["-n", "2", "-q", "--prefix", "--", "yes"][..], &["-n", "2", "-q", "--", "yes"]] {
        let mut launcher = shmccl(flags).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut stdout = BufReader::new(launcher.stdout.take().unwrap());
        stdout.read_line(&mut String::new()).unwrap();
        drop(stdout);
        launcher.wait().unwrap();
    }
}
