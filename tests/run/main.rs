//! `shmccl run` as a user meets it: the real command starts this test binary, shells and nonsense.
//!
//! `device_process` is an entry point: it does nothing unless the environment tells it its part.

mod hanging;
mod logging;
#[path = "../process/mod.rs"]
mod process;

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getsid};
use shmccl::channel::Channel;
use shmccl::comm::{Member, join_job};
use shmccl::launch::Launch;
use shmccl::reduce::ReduceOp;
use shmccl::{Collectives, Communicator, Error};

use process::{is_running, wait_until};

const SCENARIO: &str = "SHMCCL_TEST_SCENARIO";

/// `shmccl run` with these flags and program.
fn shmccl(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shmccl"));
    command.arg("run").args(words).stdin(Stdio::null());
    for variable in [
        "NO_COLOR",
        "CLICOLOR",
        "CLICOLOR_FORCE",
        "SHMCCL_HEAP",
        "SHMCCL_LOG",
        "SHMCCL_TRACE",
        "SHMCCL_FAULTS",
    ] {
        command.env_remove(variable);
    }
    // The built-in table, whatever was measured on this machine.
    command.env("SHMCCL_TUNING", "");
    command
}

fn run(words: &[&str]) -> Output {
    shmccl(words).output().unwrap()
}

/// `shmccl run` with these flags, of devices that play `scenario`.
fn job(flags: &[&str], scenario: &str) -> Command {
    let this = std::env::current_exe().unwrap();
    let program = ["--", this.to_str().unwrap(), "--exact", "device_process", "--nocapture"];
    let mut command = shmccl(&[flags, &program].concat());
    command.env(SCENARIO, scenario);
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Exit code and stderr.
fn told(output: &Output) -> (i32, String) {
    (output.status.code().unwrap_or(-1), text(&output.stderr))
}

/// A started job, whose ranks say `pid N` as soon as they are where they are to be.
struct Started {
    launcher: Child,
    stdout: BufReader<ChildStdout>,
    pids: Vec<Pid>,
}

impl Started {
    fn new(mut command: Command, n_pids: usize) -> Self {
        let mut launcher = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(launcher.stdout.take().unwrap());
        let mut started = Self { launcher, stdout, pids: Vec::new() };
        while started.pids.len() < n_pids {
            let mut line = String::new();
            assert_ne!(
                started.stdout.read_line(&mut line).unwrap(),
                0,
                "the job ended before all had spoken"
            );
            // What the test harness of a device prints may stand before it in the line.
            if let Some((_, pid)) = line.split_once("pid ") {
                started.pids.push(Pid::from_raw(pid.trim().parse().unwrap()));
            }
        }
        started
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.launcher.id().try_into().unwrap()), signal).unwrap();
    }

    /// The process that cleans up behind the launcher.
    fn janitor(&self) -> Pid {
        let launcher = self.launcher.id();
        let children = std::fs::read_to_string(format!("/proc/{launcher}/task/{launcher}/children")).unwrap();
        let is_janitor = |pid: &&str| {
            std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default() == "shmccl janitor\n"
        };
        let found = children.split_whitespace().find(is_janitor).expect("a job with names has a janitor");
        Pid::from_raw(found.parse().unwrap())
    }

    /// Awaits the end of the launcher, and sees to it that nobody who has spoken is left.
    fn end(mut self) -> (i32, String) {
        let mut stderr = String::new();
        self.launcher.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        let code = self.launcher.wait().unwrap().code().unwrap_or(-1);
        wait_until("all processes have ended", || !self.pids.iter().any(|&pid| is_running(pid)));
        (code, stderr)
    }
}

fn names_in_dev_shm(prefix: &str) -> Vec<String> {
    let names = std::fs::read_dir("/dev/shm").unwrap().map(|entry| entry.unwrap().file_name());
    names.map(|name| name.into_string().unwrap()).filter(|name| name.starts_with(prefix)).collect()
}

/// A directory for one test, of which nothing is left over from an earlier run.
fn scratch(name: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    directory
}

/// A device whose scenario is one word, with a number behind it where it takes one.
#[test]
fn device_process() {
    let Ok(scenario) = std::env::var(SCENARIO) else { return };
    if std::env::var("SHMCCL_RANK").is_err() {
        return;
    }
    let code = match play(&scenario) {
        Ok(()) => 0,
        Err(error) => {
            // In one write, so that lines of several processes do not mix.
            let _ = std::io::stderr().write_all(format!("{}\n", chain(&error)).as_bytes());
            3
        }
    };
    std::process::exit(code);
}

fn chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

fn say(line: std::fmt::Arguments<'_>) {
    // In one write, so that lines of several processes do not mix.
    std::io::stdout().write_all(format!("{line}\n").as_bytes()).unwrap();
    std::io::stdout().flush().unwrap();
}

fn play(scenario: &str) -> shmccl::Result<()> {
    let (word, number) = scenario.split_once(' ').unwrap_or((scenario, "0"));
    if word == "absent" && std::env::var("SHMCCL_RANK").unwrap() == number {
        return Ok(());
    }
    let Some(Member::Device(mut comm)) = join_job()? else { panic!("a device was to be started") };
    match word {
        "ring" => ring(&mut comm)?,
        "absent" => comm.barrier()?,
        "alloc" => match comm.alloc::<u8>(number.parse().unwrap()) {
            Ok(buffer) => comm.free(buffer)?,
            Err(error) => {
                say(format_args!("refused: {}", chain(&error)));
                assert!(
                    matches!(error, Error::ResourceLimit { .. } | Error::FailedElsewhere { .. }),
                    "{error}"
                );
                // The job goes on.
                let small = comm.alloc::<u8>(1 << 20)?;
                comm.free(small)?;
            }
        },
        "reduce" => {
            let done = comm.all_reduce_in_place(&mut [1_u64; 2], &ReduceOp::Sum);
            if let Err(error) = done {
                // In one write, and answered by no exit code, so that every rank is heard.
                say(format_args!("rank {}: {error}", comm.rank()));
                std::process::exit(0);
            }
        }
        "wait" => {
            say(format_args!("pid {}", std::process::id()));
            let mut channel = comm.memory_channel(comm.right())?;
            channel.wait()?;
        }
        "stop-and-stay" => comm = hanging::stop_and_stay(comm)?,
        "recover" => {
            comm = hanging::stop(comm, 0)?;
            let plans = std::env::var_os("SHMCCL_FAULTS").is_some();
            assert_eq!(plans, !comm.was_restarted(), "those that make communicators of their own, too");
        }
        "stop" => comm = hanging::stop(comm, number.parse().unwrap())?,
        _ => panic!("no such scenario: {scenario}"),
    }
    comm.finalize()
}

/// Passes a number around through the proxy, every rank adding one.
fn ring(comm: &mut Communicator) -> shmccl::Result<()> {
    let (right, left) = (comm.right(), comm.left());
    let slots = comm.alloc::<u64>(2)?;
    let (outgoing, incoming) = (slots.part(0, 1)?.offset, slots.part(1, 1)?.offset);
    let mut to_right = comm.port_channel(right)?;
    let mut from_left = if left == right { None } else { Some(comm.port_channel(left)?) };
    let is_first = comm.rank().get() == 0;
    if is_first {
        slots.set(0, 1)?;
        to_right.put_with_signal(incoming, outgoing, 8)?;
    }
    from_left.as_mut().unwrap_or(&mut to_right).wait()?;
    let sum = slots.get(1)?;
    if is_first {
        assert_eq!(sum, u64::from(comm.n_ranks()));
        say(format_args!("sum {sum}"));
    } else {
        slots.set(0, sum + 1)?;
        to_right.put_with_signal(incoming, outgoing, 8)?;
    }
    to_right.flush()
}

#[test]
fn it_says_how_it_pinned_in_one_line_unless_told_to_be_quiet() {
    let plan = Launch::new(2).unwrap().plan().describe() + "\n";
    assert_eq!(told(&run(&["-n", "2", "--", "true"])), (0, plan));
    assert_eq!(told(&run(&["-n", "2", "-q", "--", "true"])), (0, String::new()));
    assert!(told(&run(&["-n", "2", "--no-pin", "--", "true"])).1.contains("not pinned"));
}

#[test]
fn arguments_arrive_as_they_were_given() {
    let script = r#"[ "$#" = 4 ] && [ "$1" = "a  b" ] && [ "$2" = "c'd\"e" ] && [ "$3" = "" ] && [ "$4" = "--prefix" ]"#;
    let output = run(&["-n", "1", "-q", "--", "sh", "-c", script, "sh", "a  b", "c'd\"e", "", "--prefix"]);
    assert_eq!(told(&output), (0, String::new()));
}

#[test]
fn the_exit_code_is_that_of_the_first_cause_and_one_line_names_it() {
    for (script, code, line) in [
        ("exit $((SHMCCL_RANK * 7))", 7, "error: rank 1 exited with code 7\n"),
        ("[ $SHMCCL_RANK = 0 ] || kill -KILL $$", 137, "error: rank 1 was killed by SIGKILL\n"),
        ("[ $SHMCCL_RANK = 0 ] && kill -SEGV $$; exit 0", 139, "error: rank 0 was killed by SIGSEGV\n"),
        ("exit 0", 0, ""),
    ] {
        let output = run(&["-n", "2", "-q", "--", "sh", "-c", script]);
        assert_eq!(told(&output), (code, line.to_owned()), "{script}");
    }
}

#[test]
fn a_device_that_an_injected_fault_has_killed_is_named_with_the_fault() {
    let (code, error) =
        told(&job(&["-n", "2", "-q", "--faults", "seed=4;kill:rank=1,at=2"], "ring").output().unwrap());
    let named = "error: rank 1 was killed by an injected fault: kill at operation 2, wait (seed 4)\n";
    assert!(code == 137 && error.ends_with(named) && error.contains("rank 1 was lost"), "{code} {error}");
    let mut service = job(&["-n", "2", "-q", "--proxy", "process"], "ring");
    let (code, error) = told(&service.env("SHMCCL_FAULTS", "stop:at=1").output().unwrap());
    let named = "error: the proxy service was killed by an injected fault: stop at trigger 1 (seed 0)\n";
    assert!(code == 137 && error.ends_with(named), "{code} {error}");
}

#[test]
fn a_rank_that_is_started_again_after_a_fault_suffers_none() {
    let flags = ["-n", "2", "-q", "--restart", "2", "--faults", "kill:rank=1,at=1"];
    let (code, error) = told(&job(&flags, "recover").output().unwrap());
    let named =
        "rank 1 was killed by an injected fault: kill at operation 1, barrier (seed 0); started again";
    assert!(code == 0 && error.contains(named) && error.lines().count() == 1, "{code} {error}");
}

#[test]
fn a_plan_of_faults_that_makes_no_sense_is_one_line_that_says_how_it_is_written() {
    let (code, error) = told(&run(&["-n", "2", "--faults", "murder:at=1", "--", "true"]));
    assert!(code == 2 && error.contains("`murder` is no fault; expected CLAUSE[;CLAUSE]"), "{code} {error}");
    let mut by_environment = job(&["-n", "2"], "ring");
    let (code, error) = told(&by_environment.env("SHMCCL_FAULTS", "kill:rank=1").output().unwrap());
    assert!(code == 2 && error.contains("`kill` needs either at or one_in"), "{code} {error}");
    let (code, error) = told(&run(&["-n", "2", "--faults", "kill:rank=2,at=1", "--", "true"]));
    assert!(code == 2 && error.contains("there is no rank 2 in a job of 2"), "{code} {error}");
    let of_service = ["-n", "2", "--proxy", "process", "--faults", "kill:at=1,of=trigger", "--", "true"];
    let (code, error) = told(&run(&of_service));
    assert!(code == 2 && error.contains("which `stop` kills"), "{code} {error}");
}

#[test]
fn a_program_that_cannot_run_is_one_line_and_the_exit_code_of_a_shell() {
    let directory = scratch("programs");
    let plain = directory.join("plain");
    std::fs::write(&plain, "text").unwrap();
    for (program, code, part) in [
        ("no-such-program", 127, "it is not in PATH"),
        ("./no-such-program", 127, "no such file"),
        (plain.to_str().unwrap(), 126, "chmod +x"),
        (directory.to_str().unwrap(), 126, "it is a directory"),
    ] {
        let output = run(&["-n", "64", "--", program]);
        let (found, error) = told(&output);
        assert!(
            error.starts_with(&format!("error: cannot run {program}: ")) && error.contains(part),
            "{error}"
        );
        assert_eq!((found, error.lines().count()), (code, 1), "{error}");
    }
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn wrong_usage_is_one_line_that_names_the_help_of_run() {
    for (words, part) in [
        (&["-n", "65", "--", "true"][..], "65 is not in 1..=64"),
        (&["-n", "0", "--", "true"], "0 is not in 1..=64"),
        (&["--", "true"], "--ranks <N>"),
        (&["-n", "2"], "<PROGRAM>"),
        (&["-n", "2", "--heap", "4Q", "--", "true"], "expected a whole number"),
        (&["-n", "2", "--segment", "disk", "--", "true"], "expected memfd, named:PREFIX"),
        (&["-n", "2", "--segment", "named:a/b", "--", "true"], "expected memfd, named:PREFIX"),
        (&["-n", "2", "--timeout", "0", "--", "true"], "above zero"),
    ] {
        let (code, error) = told(&run(words));
        assert_eq!((code, error.lines().count()), (2, 1), "{words:?}: {error}");
        assert!(error.contains(part) && error.ends_with("; try 'shmccl run --help'\n"), "{words:?}: {error}");
    }
}

#[test]
fn a_heap_beyond_all_bounds_is_refused_before_anything_starts() {
    let (code, error) = told(&run(&["-n", "2", "--heap", "2T", "--", "true"]));
    assert_eq!((code, error.lines().count()), (1, 1), "{error}");
    assert!(error.contains("at most 2 MiB less than 1 TiB"), "{error}");
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

#[test]
fn an_interrupt_is_passed_on_and_becomes_the_exit_code() {
    for (signal, code, line) in [
        (Signal::SIGINT, 130, "error: interrupted by SIGINT\n"),
        (Signal::SIGTERM, 143, "error: interrupted by SIGTERM\n"),
        (Signal::SIGHUP, 129, "error: interrupted by SIGHUP\n"),
    ] {
        let foreign = shmccl(&["-n", "3", "-q", "--", "sh", "-c", "echo pid $$; exec sleep 1000"]);
        let started = Started::new(foreign, 3);
        started.signal(signal);
        assert_eq!(started.end(), (code, line.to_owned()));
        let started = Started::new(job(&["-n", "3", "-q"], "wait"), 3);
        started.signal(signal);
        let (found, error) = started.end();
        assert_eq!((found, error.lines().last()), (code, Some(line.trim())), "{error}");
    }
}

#[test]
fn whoever_ignores_an_interrupt_is_killed_at_the_second_one() {
    let script = "trap '' TERM INT; echo pid $$; while :; do sleep 1000; done";
    let started = Started::new(shmccl(&["-n", "2", "-q", "--", "sh", "-c", script]), 2);
    started.signal(Signal::SIGTERM);
    started.signal(Signal::SIGINT);
    assert_eq!(started.end().0, 143);
}

#[test]
fn a_rank_that_is_killed_is_named_and_its_peers_say_whom_they_lost() {
    for mode in ["thread", "process"] {
        let started = Started::new(job(&["-n", "4", "-q", "--proxy", mode], "wait"), 4);
        kill(started.pids[2], Signal::SIGKILL).unwrap();
        let (code, error) = started.end();
        let last = error.lines().last().unwrap_or_default();
        assert!(code == 137 && last.ends_with("was killed by SIGKILL"), "{error}");
        let lost = last.trim_start_matches("error: ").split(" was ").next().unwrap();
        assert_eq!(error.matches(&format!("{lost} was lost")).count(), 3, "{error}");
    }
}

#[test]
fn killing_the_launcher_takes_all_ranks_along_whether_they_know_the_library_or_not() {
    let foreign = shmccl(&["-n", "3", "-q", "--", "sh", "-c", "echo pid $$; exec sleep 1000"]);
    for command in
        [foreign, job(&["-n", "3", "-q"], "wait"), job(&["-n", "3", "-q", "--proxy", "process"], "wait")]
    {
        let started = Started::new(command, 3);
        started.signal(Signal::SIGKILL);
        assert_eq!(started.end().0, -1);
    }
}

#[test]
fn processes_that_ranks_leave_behind_end_with_the_job() {
    let script = "sleep 1000 & echo pid $!; setsid sleep 1000 & echo pid $!";
    let started = Started::new(shmccl(&["-n", "2", "-q", "--", "sh", "-c", script]), 4);
    assert_eq!(started.end(), (0, String::new()));
}

#[test]
fn a_program_that_ends_well_without_joining_fails_a_job_that_needs_it() {
    let (code, error) = told(&job(&["-n", "3", "-q"], "absent 1").output().unwrap());
    let last = error.lines().last().unwrap_or_default();
    assert!(
        code != 0 && last.starts_with("error: rank 1 exited with code 0 without leaving the job"),
        "{error}"
    );
}

#[test]
fn every_number_of_ranks_works_over_both_kinds_of_proxy_and_segment() {
    let prefix = format!("shmccl-run-{}", std::process::id());
    let named = format!("named:{prefix}");
    for (n_ranks, flags) in [
        ("1", &["--proxy", "thread"][..]),
        ("2", &["--proxy", "process"]),
        ("3", &["--proxy", "process", "--no-pin"]),
        ("8", &["--proxy", "thread", "--timeout", "60s"]),
        ("64", &["--heap", "2M"]),
        ("3", &["--heap", "2M", "--segment", &named]),
    ] {
        let output = job(&[&["-n", n_ranks, "-q"], flags].concat(), "ring").output().unwrap();
        assert_eq!(told(&output), (0, String::new()), "{n_ranks} {flags:?}");
        assert!(text(&output.stdout).contains(&format!("sum {n_ranks}\n")), "{n_ranks} {flags:?}");
    }
    assert_eq!(names_in_dev_shm(&prefix), [""; 0]);
}

#[test]
fn names_are_removed_when_a_rank_is_killed_and_when_the_launcher_is() {
    let prefix = format!("shmccl-kill-{}", std::process::id());
    let named = format!("named:{prefix}");
    let flags = ["-n", "3", "-q", "--heap", "2M", "--segment", &named];
    let started = Started::new(job(&flags, "wait"), 3);
    // One for each rank, and the launcher's lock.
    assert_eq!(names_in_dev_shm(&prefix).len(), 4);
    let (code, error) = told(&job(&flags, "ring").output().unwrap());
    assert!(code == 1 && error.contains("belongs to process") && error.lines().count() == 1, "{error}");
    kill(started.pids[1], Signal::SIGKILL).unwrap();
    assert_eq!(started.end().0, 137);
    assert_eq!(names_in_dev_shm(&prefix), [""; 0]);

    let started = Started::new(job(&flags, "wait"), 3);
    let janitor = started.janitor();
    started.signal(Signal::SIGKILL);
    started.end();
    wait_until("the janitor is done", || !is_running(janitor));
    assert_eq!(names_in_dev_shm(&prefix), [""; 0]);
    assert_eq!(told(&job(&flags, "ring").output().unwrap()), (0, String::new()));
}

#[test]
fn a_janitor_has_a_session_of_its_own_and_no_descriptor_that_is_not_for_it() {
    let named = format!("named:shmccl-janitor-{}", std::process::id());
    let started = Started::new(job(&["-n", "2", "-q", "--heap", "2M", "--segment", &named], "wait"), 2);
    let janitor = started.janitor();
    assert_eq!(getsid(Some(janitor)).unwrap(), janitor);
    // The end of the pipe and the lock.
    assert_eq!(std::fs::read_dir(format!("/proc/{janitor}/fd")).unwrap().count(), 2);
    for signal in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM, Signal::SIGUSR1] {
        kill(janitor, signal).unwrap();
    }
    started.signal(Signal::SIGTERM);
    assert_eq!(started.end().0, 143);
    assert!(!Path::new(&format!("/proc/{janitor}")).exists(), "the launcher has waited for it");
}

#[test]
fn a_job_whose_janitor_is_killed_goes_on_and_a_killed_launchers_names_are_removed_by_the_next_job() {
    let prefix = format!("shmccl-unswept-{}", std::process::id());
    let named = format!("named:{prefix}");
    let flags = ["-n", "3", "-q", "--heap", "2M", "--segment", &named];
    let without_janitor = || {
        let started = Started::new(job(&flags, "wait"), 3);
        kill(started.janitor(), Signal::SIGKILL).unwrap();
        started
    };
    let started = without_janitor();
    started.signal(Signal::SIGTERM);
    assert_eq!(started.end().0, 143);
    assert_eq!(names_in_dev_shm(&prefix), [""; 0]);

    let started = without_janitor();
    let pids = started.pids.clone();
    // Ranks that run might learn of the end of their launcher, and tidy up, just before they are killed.
    let is_stopped =
        |pid: &Pid| std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") T ");
    pids.iter().for_each(|&pid| kill(pid, Signal::SIGSTOP).unwrap());
    wait_until("all have stopped", || pids.iter().all(is_stopped));
    started.signal(Signal::SIGKILL);
    started.end();
    assert_eq!(names_in_dev_shm(&prefix).len(), 4);
    wait_until("init has taken note", || pids.iter().all(|pid| !Path::new(&format!("/proc/{pid}")).exists()));
    let (code, error) = told(&job(&flags, "ring").output().unwrap());
    assert!(code == 0 && error.lines().count() == 3, "{error}");
    assert!(error.lines().all(|line| line.starts_with("removing /dev/shm/")), "{error}");
    assert_eq!(names_in_dev_shm(&prefix), [""; 0]);
}

#[test]
fn of_two_launchers_that_race_for_a_prefix_one_runs_and_the_other_leaves_its_names_alone() {
    let prefix = format!("shmccl-race-{}", std::process::id());
    let named = format!("named:{prefix}");
    let flags = ["-n", "2", "-q", "--heap", "2M", "--segment", &named];
    let start = || job(&flags, "wait").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut racers = [start(), start()];
    let mut lost = None;
    wait_until("one of the two has given up", || {
        lost = racers.iter_mut().position(|racer| racer.try_wait().unwrap().is_some());
        lost.is_some()
    });
    let [first, second] = racers;
    let (loser, winner) = if lost == Some(0) { (first, second) } else { (second, first) };
    let (code, error) = told(&loser.wait_with_output().unwrap());
    assert!(
        code == 1 && error.contains(&format!("/dev/shm/{prefix}.")) && error.lines().count() == 1,
        "{error}"
    );
    wait_until("both ranks of the other have their names", || names_in_dev_shm(&prefix).len() == 3);
    kill(Pid::from_raw(winner.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
    assert_eq!(told(&winner.wait_with_output().unwrap()).0, 143);
    assert_eq!(names_in_dev_shm(&prefix), [""; 0]);
}

#[test]
fn files_are_kept_and_a_missing_directory_is_told_before_anything_starts() {
    let directory = scratch("segments");
    let backing = format!("file:{}", directory.display());
    for _ in 0..2 {
        let output = job(&["-n", "2", "-q", "--heap", "2M", "--segment", &backing], "ring").output().unwrap();
        assert_eq!(told(&output), (0, String::new()));
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 2);
    }
    std::fs::remove_dir_all(&directory).unwrap();
    let (code, error) = told(&job(&["-n", "2", "--segment", &backing], "ring").output().unwrap());
    assert!(
        code == 1 && error.lines().count() == 1 && error.contains("No such file or directory"),
        "{error}"
    );
}

#[test]
fn a_heap_larger_than_memory_is_reserved_and_an_allocation_that_does_not_fit_is_a_typed_error() {
    let heap = (meminfo("MemTotal:") * 3).to_string();
    // More than there is for one rank; what each rank could have if it were alone.
    for len in [meminfo("MemTotal:") * 2, meminfo("MemAvailable:") / 4 * 3] {
        let output = job(&["-n", "2", "-q", "--heap", &heap], &format!("alloc {len}")).output().unwrap();
        assert_eq!(told(&output).0, 0, "{output:?}");
        assert!(text(&output.stdout).contains("refused: not enough memory"), "{output:?}");
    }
}

/// A field of `/proc/meminfo`, in bytes.
fn meminfo(field: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap();
    let kib = text.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    kib.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap() * 1024
}

#[test]
fn the_heap_can_be_told_by_the_environment() {
    let mut command = job(&["-n", "2", "-q"], "alloc 4194304");
    let output = command.env("SHMCCL_HEAP", "2M").output().unwrap();
    assert!(!output.status.success() && text(&output.stderr).contains("--heap"), "{output:?}");
    assert_eq!(told(&command.env("SHMCCL_HEAP", "8M").output().unwrap()).0, 0);
}

/// What a job of two says that begins with an all-reduce, with these tables on its ranks.
fn reduce_by(tables: [&Path; 2]) -> String {
    let script = r#"[ "$SHMCCL_RANK" = 0 ] && SHMCCL_TUNING=$1 || SHMCCL_TUNING=$2; export SHMCCL_TUNING
                    exec "$0" --exact device_process --nocapture"#;
    let this = std::env::current_exe().unwrap();
    let [first, second] = tables.map(|table| table.to_str().unwrap());
    let mut command =
        shmccl(&["-n", "2", "-q", "--", "sh", "-c", script, this.to_str().unwrap(), first, second]);
    text(&command.env(SCENARIO, "reduce").output().unwrap().stdout)
}

#[test]
fn a_table_that_one_rank_cannot_read_or_only_one_rank_has_is_an_error_of_all_ranks() {
    let directory = scratch("tables");
    let [good, bad] = ["good.toml", "bad.toml"].map(|name| directory.join(name));
    let case =
        "[[case]]\noperation = \"all_reduce\"\nranks = 2\ncrowded = false\nbuffers = \"heap\"\nup_to = []\n";
    std::fs::write(&good, format!("version = 1\n{case}algorithms = [\"ring\"]\n")).unwrap();
    std::fs::write(&bad, format!("version = 1\n{case}algorithms = [\"rings\"]\n")).unwrap();
    let nothing = Path::new("");
    assert!(!reduce_by([&good, &good]).contains("rank"));
    assert!(!reduce_by([nothing, nothing]).contains("rank"));
    let told = reduce_by([&bad, &good]);
    assert!(
        told.contains(&format!("rank 0: tuning table {}, line 8: \"rings\" is no such", bad.display())),
        "{told}"
    );
    assert!(told.contains("rank 1: reading the tuning table failed on rank 0"), "{told}");
    let told = reduce_by([nothing, &directory.join("missing.toml")]);
    assert!(told.contains("rank 0: reading the tuning table failed on rank 1"), "{told}");
    assert!(told.contains("missing.toml: cannot be read: No such file"), "{told}");
    let told = reduce_by([&good, nothing]);
    for (rank, other) in [(0, 1), (1, 0)] {
        let line = format!("rank {rank}: ranks have different tuning tables: checksum 0x");
        assert!(told.contains(&line) && told.contains(&format!("on rank {other}; give all ranks")), "{told}");
    }
    std::fs::remove_dir_all(directory).unwrap();
}
