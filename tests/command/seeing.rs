//! The commands that look at running jobs, as a user meets them: real jobs, started by the real
//! command from this test binary.
//!
//! `device_process` is an entry point: it does nothing unless the environment tells it its part.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use shmccl::collective::ChannelKind;
use shmccl::collective::tuning::Table;
use shmccl::comm::{JoinedAs, join_job};
use shmccl::observe::Job;
use shmccl::reduce::ReduceOp;
use shmccl::{Blocks, Collectives};
use support::{Watchdog, is_running, wait_until};

const SCENARIO: &str = "SHMCCL_TEST_SCENARIO";
const PATIENCE: Duration = Duration::from_secs(120);

/// No report takes longer to come.
const IN_VAIN: Duration = Duration::from_secs(60);

/// How a report ends while rank 0 is stuck.
const HELD_UP: &str = "held up by rank 0, which waits for nobody\n";

/// How many wait for rank 0, as this report says, in a call that is told as this.
fn wait_in(report: &str, call: &str) -> usize {
    report.matches(&format!("in {call} waits for rank 0 ")).count()
}

/// `shmccl` with these words.
fn shmccl(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shmccl"));
    support::heeding_interrupts(command.args(words).env("SHMCCL_TUNING", "").env("NO_COLOR", "1"));
    command
}

/// What a command prints, which has to end well.
fn stdout(words: &[&str]) -> String {
    let Output { status, stdout, stderr } = shmccl(words).output().unwrap();
    assert!(status.success(), "{words:?}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

/// A job in which rank 0 does nothing until its standard input ends, while the others wait for it.
struct Stuck {
    launcher: Child,
    stderr: BufReader<ChildStderr>,
}

impl Stuck {
    fn start(flags: &[&str]) -> Self {
        Self::start_as("stuck", flags)
    }

    fn start_as(scenario: &str, flags: &[&str]) -> Self {
        Self::start_by(shmccl(&[]), scenario, flags)
    }

    /// As a shell does that has no terminal, for a command that it does not wait for: SIGINT and
    /// SIGQUIT are ignored there.
    fn start_in_background(flags: &[&str]) -> Self {
        let mut shell = Command::new("sh");
        shell.args(["-c", r#"trap "" INT QUIT; exec "$0" "$@""#]).arg(shmccl(&[]).get_program());
        shell.env("SHMCCL_TUNING", "").env("NO_COLOR", "1");
        Self::start_by(shell, "stuck", flags)
    }

    fn start_by(mut command: Command, scenario: &str, flags: &[&str]) -> Self {
        let this = std::env::current_exe().unwrap();
        let program = ["--", this.to_str().unwrap(), "--exact", "seeing::device_process", "--nocapture"];
        command.args([&["run", "--quiet"], flags, &program].concat());
        command.env(SCENARIO, scenario).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut launcher = command.spawn().unwrap();
        let stderr = BufReader::new(launcher.stderr.take().unwrap());
        Self { launcher, stderr }
    }

    fn pid(&self) -> String {
        self.launcher.id().to_string()
    }

    /// What `shmccl report` says of it once all others wait for rank 0 in the call for which it
    /// does not come.
    fn report(&self) -> String {
        self.report_when(|text| {
            let last = "; the last was all_reduce of 1 uint64 by sum";
            wait_in(text, "all_reduce of 1 uint64 by sum, number 2;") == 2 && text.contains(last)
        })
    }

    /// Like [`Stuck::report`], but returns a report once it is `so`: as a job starts there are
    /// waits that pass, in which rank 0 holds all up for a moment.
    fn report_when(&self, so: impl Fn(&str) -> bool) -> String {
        let began = Instant::now();
        loop {
            let output = shmccl(&["report", &self.pid()]).output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            if text.ends_with(HELD_UP) && so(&text) {
                return text;
            }
            let complaint = String::from_utf8_lossy(&output.stderr);
            assert!(began.elapsed() < IN_VAIN, "waited in vain for a report, the last was {text}{complaint}");
            std::thread::yield_now();
        }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.launcher.id().try_into().unwrap()), signal).unwrap();
    }

    /// Lets rank 0 go on.
    fn let_go(&mut self) {
        drop(self.launcher.stdin.take());
    }

    /// Exit code and what is left of stderr, when nobody of it is left.
    fn end(mut self) -> (i32, String) {
        let mut rest = String::new();
        self.stderr.read_to_string(&mut rest).unwrap();
        let launcher = Pid::from_raw(self.launcher.id().try_into().unwrap());
        let code = self.launcher.wait().unwrap().code().unwrap_or(-1);
        assert!(!is_running(launcher));
        (code, rest)
    }
}

#[test]
fn device_process() {
    if std::env::var(SCENARIO).is_err() || std::env::var("SHMCCL_RANK").is_err() {
        return;
    }
    let scenario = std::env::var(SCENARIO).unwrap();
    let done = match scenario.as_str() {
        "stuck" => stuck(),
        "first call" | "many calls" | "many meetings" | "first table" => counted(&scenario),
        _ => bereaved(&scenario),
    };
    let code = match done {
        Ok(()) => 0,
        Err(error) => {
            use std::io::Write;
            let _ = std::io::stderr().write_all(format!("{error}\n").as_bytes());
            3
        }
    };
    std::process::exit(code);
}

fn stuck() -> shmccl::Result<()> {
    let Some(JoinedAs::Device(mut comm)) = join_job()? else { panic!("a device was to be started") };
    let word = comm.alloc::<u64>(1)?;
    comm.all_reduce_in_place(&word, &ReduceOp::Sum)?;
    if comm.rank().get() == 0 {
        std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    }
    comm.all_reduce_in_place(&word, &ReduceOp::Sum)?;
    comm.finalize()
}

/// Makes calls of many kinds, or none, and then one for which rank 0 is awaited.
fn counted(scenario: &str) -> shmccl::Result<()> {
    let Some(JoinedAs::Device(mut comm)) = join_job()? else { panic!("a device was to be started") };
    let mut derived = Vec::new();
    if !scenario.starts_with("first") {
        comm.barrier()?;
        let word = comm.alloc::<u64>(1)?;
        comm.all_reduce_in_place(&word, &ReduceOp::Sum)?;
        comm.all_reduce_in_place(&mut vec![1.0_f32; 1 << 18], &ReduceOp::Sum)?;
        for _ in 0..20 {
            // Not all have room without another part of the workspace.
            derived.push(comm.duplicate()?);
        }
        comm.set_channel_kind(ChannelKind::Port)?;
        comm.broadcast_in_place(&mut [1_u32; 4000], shmccl::Rank::new(1, 3)?)?;
        comm.set_channel_kind(ChannelKind::Memory)?;
        let mut blocks = [0_u32; 3];
        let one_each = Blocks::new(&[1; 3], &[0, 1, 2]);
        comm.all_to_all_v(&[1_u32; 3], one_each, &mut blocks, one_each)?;
        comm.free(word)?;
    }
    if comm.rank().get() == 0 {
        std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    }
    match scenario {
        "many meetings" => comm.barrier()?,
        "first table" => comm.set_tuning(Table::default())?,
        _ => comm.all_reduce_in_place(&mut [1.5_f64; 3], &ReduceOp::Sum)?,
    }
    comm.finalize()
}

/// Rank 2 dies at its first start; the others go on without it, or have it back, and then wait for
/// rank 0.
fn bereaved(scenario: &str) -> shmccl::Result<()> {
    let Some(JoinedAs::Device(mut comm)) = join_job()? else { panic!("a device was to be started") };
    if comm.rank().get() == 2 && !comm.was_restarted() {
        // Not before all have told the launcher that they are there.
        comm.barrier()?;
        std::process::abort();
    }
    let mut next = if comm.was_restarted() {
        *comm
    } else {
        while comm.barrier().is_ok() {}
        if scenario == "shrinks" { comm.shrink()?.comm } else { comm.recover(0)? }
    };
    let word = next.alloc::<u64>(1)?;
    if next.rank().get() == 0 {
        std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    }
    next.all_reduce_in_place(&word, &ReduceOp::Sum)?;
    next.finalize()
}

/// The number of the job that a report tells of.
fn name_in(report: &str) -> &str {
    &report["job ".len()..][..16]
}

fn whoever_looks_on_follows(scenario: &str, flags: &[&str], head: &str, n_waiting: usize) {
    let _watchdog = Watchdog::start("follows", PATIENCE);
    let mut stuck = Stuck::start_as(scenario, flags);
    let first = {
        let mut number = None;
        wait_until("the job has begun", || {
            let launcher = stuck.launcher.id();
            number = Job::all().iter().find(|job| job.processes.contains(&launcher)).map(|job| job.id);
            number.is_some()
        });
        format!("{:016x}", number.unwrap())
    };
    let report = stuck.report_when(|text| {
        let (head_line, name) = (text.lines().next().unwrap(), name_in(text));
        // Those who meet again are a job of another number.
        let is_next = head_line.contains(head) && name != first;
        is_next && wait_in(text, "all_reduce of 1 uint64 by sum, number 1, there in prepare;") == n_waiting
    });
    let name = name_in(&report);
    assert!(stdout(&["report", &first]).contains(name), "it goes by its first number, too");
    // All beat in this epoch, too.
    let beat = |line: &str| line.ends_with("s");
    let mut picture = String::new();
    wait_until("all beat", || {
        picture = stdout(&["top", &stuck.pid(), "--once", "--interval", "20ms"]);
        picture.trim_end().lines().skip(1).all(beat)
    });
    assert_eq!(picture.lines().filter(|line| line.contains(" waits ")).count(), n_waiting, "{picture}");
    stuck.signal(Signal::SIGQUIT);
    let mut told = String::new();
    while !told.ends_with(HELD_UP) {
        assert_ne!(stuck.stderr.read_line(&mut told).unwrap(), 0, "the job ended at SIGQUIT: {told}");
    }
    assert!(told.contains(head) && told.contains(name), "{told}");
    stuck.let_go();
    stuck.end();
}

#[test]
fn whoever_looks_on_sees_those_who_have_gone_on_without_the_dead() {
    whoever_looks_on_follows("shrinks", &["-n", "3", "--keep-going"], "epoch 2, 2 ranks", 1);
}

#[test]
fn whoever_looks_on_sees_those_who_have_the_dead_back() {
    whoever_looks_on_follows("recovers", &["-n", "3", "--restart", "1"], "3 ranks", 2);
}

/// Of a job in which rank 2 is in an all-reduce.
fn told_as_the_text_tells(text: &str, told: &Value) {
    let (rank, line) = (&told["ranks"][2], text.lines().find(|line| line.starts_with("rank 2")).unwrap());
    let call = &rank["call"];
    let words = ["operation", "data_type", "operator", "channel"].map(|name| call[name].as_str().unwrap());
    assert_eq!(words, ["all_reduce", "uint64", "sum", "memory"]);
    assert_eq!((&call["count"], &call["algorithm"], &call["root"]), (&1.into(), &Value::Null, &Value::Null));
    assert_eq!(rank["step"].as_u64().map(|step| format!(", step {step}")), step_in(line), "{line}");
    assert!(text.contains(told["verdict"].as_str().unwrap()) && told["ended"].is_null(), "{told}");
    let help = stdout(&["report", "--help"]);
    let documented: Vec<_> = help.split(|it: char| !it.is_alphanumeric() && it != '_').collect();
    let mut names = Vec::new();
    collect_names(told, &mut names);
    assert!(names.len() > 40 && names.iter().all(|name| documented.contains(&name.as_str())), "{names:?}");
}

/// `, step 3`, if that is in a line.
fn step_in(line: &str) -> Option<String> {
    let number = line.split(", step ").nth(1)?.split(|it: char| !it.is_ascii_digit()).next()?;
    Some(format!(", step {number}"))
}

/// The names of all that an object has, and those within it.
fn collect_names(value: &Value, names: &mut Vec<String>) {
    for value in value.as_array().into_iter().flatten() {
        collect_names(value, names);
    }
    for (name, value) in value.as_object().into_iter().flatten() {
        names.push(name.clone());
        collect_names(value, names);
    }
}

#[test]
fn a_job_is_listed_and_reported_and_asked_by_sigquit_and_goes_on() {
    let _watchdog = Watchdog::start("listed", PATIENCE);
    let mut stuck = Stuck::start(&["-n", "3"]);
    let report = stuck.report();
    let rests = "in no operation for about ";
    wait_until("rank 0 has rested for a while", || stdout(&["report", &stuck.pid()]).contains(rests));

    let id = name_in(&report);
    let listed = stdout(&["ps"]);
    let line = listed.lines().find(|line| line.starts_with(id)).unwrap_or_else(|| panic!("{id}: {listed}"));
    assert!(
        line.contains("running") && line.contains(&stuck.pid()) && line.contains("seeing::device_process"),
        "{line}"
    );
    assert!(stdout(&["report", &id[..8]]).contains(id));
    // Whoever names a communicator of a pool by its number does not mean whatever job begins so.
    for command in ["report", "top"] {
        let refused = shmccl(&[command, &id[..1]]).output().unwrap();
        let error = String::from_utf8(refused.stderr).unwrap();
        assert_eq!((refused.status.code(), refused.stdout.len(), error.lines().count()), (Some(1), 0, 1));
        assert!(error.contains("give 4 digits at least of ") && error.contains(id), "{error}");
    }
    let file = std::env::temp_dir().join(format!("shmccl-report-{}.json", std::process::id()));
    let text = stdout(&["report", id, "--json", file.to_str().unwrap()]);
    let told: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!((told["job"].as_str(), told["text"].as_str()), (Some(id), Some(text.trim_end())));
    assert_eq!((&told["held_up_by"], &told["state"]), (&serde_json::json!([0]), &"running".into()));
    assert_eq!(told["ranks"][1]["awaits"], serde_json::json!([0]));
    assert_eq!(told["ranks"][2]["call"]["call"], "all_reduce of 1 uint64 by sum");
    assert_eq!(told["ranks"][0]["last"]["call"], "all_reduce of 1 uint64 by sum");
    std::fs::remove_file(file).unwrap();
    told_as_the_text_tells(&text, &told);

    stuck.signal(Signal::SIGQUIT);
    let mut line = String::new();
    while !line.contains("held up by rank 0") {
        line.clear();
        assert_ne!(stuck.stderr.read_line(&mut line).unwrap(), 0, "the job ended at SIGQUIT");
    }
    let id = id.to_owned();
    stuck.let_go();
    assert_eq!(stuck.end(), (0, String::new()));
    let gone = shmccl(&["report", &id]).output().unwrap();
    assert_eq!(gone.status.code(), Some(1));
    assert!(String::from_utf8(gone.stderr).unwrap().contains("no job"));
}

#[test]
fn a_launcher_in_the_background_of_a_script_answers_sigquit_and_goes_on_ignoring_sigint() {
    let _watchdog = Watchdog::start("in the background", PATIENCE);
    let mut stuck = Stuck::start_in_background(&["-n", "3"]);
    stuck.report();
    stuck.signal(Signal::SIGINT);
    stuck.signal(Signal::SIGQUIT);
    let mut told = String::new();
    while !told.ends_with(HELD_UP) {
        assert_ne!(stuck.stderr.read_line(&mut told).unwrap(), 0, "the job ended: {told}");
    }
    stuck.let_go();
    assert_eq!(stuck.end(), (0, String::new()));
}

#[test]
fn a_job_that_times_out_says_what_every_rank_was_in() {
    let _watchdog = Watchdog::start("times out", PATIENCE);
    // All that comes before has to be done in time as well.
    let stuck = Stuck::start(&["-n", "2", "--timeout", "5s"]);
    let (code, stderr) = stuck.end();
    assert_eq!(code, 3, "{stderr}");
    assert!(
        stderr.contains("all_reduce timed out after 5s, awaiting rank 0; all is held up by rank 0"),
        "{stderr}"
    );
    assert_eq!(stderr.matches("\nheld up by rank 0, which waits for nobody\n").count(), 1, "{stderr}");
    assert!(stderr.contains("timed out waiting for rank 0"), "{stderr}");
    assert!(
        stderr.contains("in no operation for ") && stderr.contains("; the last was all_reduce"),
        "{stderr}"
    );
}

#[test]
fn the_first_call_is_told_by_its_name_while_what_it_needs_is_prepared() {
    let _watchdog = Watchdog::start("first call", PATIENCE);
    let timing_out = Stuck::start_as("first call", &["-n", "2", "--timeout", "5s"]);
    for (scenario, name) in [("first call", "all_reduce of 3 double by sum"), ("first table", "set_tuning")] {
        let mut stuck = Stuck::start_as(scenario, &["-n", "3"]);
        let call = format!("{name}, number 1, there in prepare;");
        stuck.report_when(|text| wait_in(text, &call) == 2);
        stuck.let_go();
        assert_eq!(stuck.end(), (0, String::new()));
    }
    let (code, stderr) = timing_out.end();
    assert_eq!(code, 3, "{stderr}");
    assert!(stderr.contains("all_reduce timed out after 5s, awaiting rank 0"), "{stderr}");
    assert!(!stderr.contains("alloc"), "nobody has called that: {stderr}");
}

#[test]
fn calls_are_numbered_as_their_caller_counts_them() {
    let _watchdog = Watchdog::start("numbers", PATIENCE);
    let told = |scenario: &str, call: &str| {
        let mut stuck = Stuck::start_as(scenario, &["-n", "3"]);
        let report = stuck.report_when(|text| wait_in(text, call) == 2);
        stuck.let_go();
        assert_eq!(stuck.end(), (0, String::new()));
        report
    };
    let report = told("many calls", "all_reduce of 3 double by sum, number 27;");
    assert!(report.contains("; the last was all_to_all_v of 1 uint32, number 26"), "{report}");
    assert!(report.contains("; 0 of "), "what was pushed and is done: {report}");
    assert!(report.contains(" triggers in its fifo, the last flush"), "{report}");
    told("many meetings", "barrier, number 4;");
}

#[test]
fn a_rank_that_was_stopped_is_named_although_it_waits() {
    let _watchdog = Watchdog::start("stopped", PATIENCE);
    let mut stuck = Stuck::start(&["-n", "3"]);
    let report = stuck.report();
    let input = stuck.launcher.stdin.take();
    let line = report.lines().find(|line| line.starts_with("rank 2")).unwrap();
    let pid = line.split("(process ").nth(1).and_then(|rest| rest.split(')').next()).unwrap();
    let pid = Pid::from_raw(pid.parse().unwrap());
    kill(pid, Signal::SIGSTOP).unwrap();
    let tells = |what: &str| stdout(&["report", &stuck.pid()]).contains(what);
    wait_until("it has stopped", || tells(&format!("{pid}, stopped")));
    drop(input);
    wait_until("rank 2 holds all up", || tells("held up by rank 2,"));
    kill(pid, Signal::SIGCONT).unwrap();
    assert_eq!(stuck.end().0, 0);
}

#[test]
fn an_observer_outlives_jobs_that_end_under_its_eyes() {
    let _watchdog = Watchdog::start("under its eyes", PATIENCE);
    for round in 0..4 {
        let mut stuck = Stuck::start(&["-n", "4"]);
        let launcher = stuck.launcher.id();
        let look = || {
            // One that has ended meanwhile is an error, or an empty picture.
            let is_seen = |job: &Job| job.report().is_ok_and(|report| report.to_string().lines().count() > 4);
            Job::all().iter().filter(|job| is_seen(job)).any(|job| job.processes.contains(&launcher))
        };
        if round == 0 {
            wait_until("it is seen", look);
        }
        stuck.let_go();
        while stuck.launcher.try_wait().unwrap().is_none() {
            look();
        }
    }
}

#[test]
fn whoever_has_a_segment_open_to_look_at_is_no_process_of_the_job() {
    let _watchdog = Watchdog::start("looks on", PATIENCE);
    let mut stuck = Stuck::start(&["-n", "3"]);
    stuck.report();
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", stuck.launcher.id())).unwrap();
    let is_segment = |path: &PathBuf| {
        std::fs::read_link(path).is_ok_and(|target| target.to_string_lossy().starts_with("/memfd:shmccl"))
    };
    let segments = descriptors.map(|entry| entry.unwrap().path()).filter(is_segment);
    let looked_at: Vec<_> = segments.map(|path| File::open(path).unwrap()).collect();
    assert!(!looked_at.is_empty());
    let job = Job::all().into_iter().find(|job| job.processes.contains(&stuck.launcher.id()));
    let processes = job.expect("it is running").processes.clone();
    assert!(!processes.contains(&std::process::id()), "{processes:?}");
    stuck.let_go();
    assert_eq!(stuck.end().0, 0);
}

#[test]
fn top_shows_who_waits_and_for_whom_and_ends_with_its_job() {
    let _watchdog = Watchdog::start("top", PATIENCE);
    let mut stuck = Stuck::start(&["-n", "3"]);
    stuck.report();
    let picture = stdout(&["top", &stuck.pid(), "--once", "--interval", "20ms"]);
    let rows: Vec<Vec<_>> = picture.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0][..5], ["job", "rank", "pid", "state", "in"], "{picture}");
    assert_eq!(rows[0].last(), Some(&"beat"), "{picture}");
    let of = |rank: usize| (rows[rank + 1][1], rows[rank + 1][3], rows[rank + 1][4]);
    assert_eq!(of(0), ("0", "awaited", "(all_reduce)"), "{picture}");
    assert_eq!(of(1), ("1", "waits", "all_reduce"), "{picture}");
    // The last ones are the beat, in some unit.
    assert!(rows[2][..rows[2].len() - 2].ends_with(&["100", "%"]), "{picture}");

    let mut top = shmccl(&["top", &stuck.pid(), "-i", "20ms"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(top.stdout.take().unwrap()).lines();
    let first = lines.by_ref().take(10).collect::<Result<Vec<_>, _>>().unwrap();
    assert_eq!(first.iter().filter(|line| line.starts_with("job")).count(), 2, "{first:?}");
    stuck.let_go();
    assert_eq!(stuck.end().0, 0);
    let rest = lines.collect::<Result<String, _>>().unwrap();
    assert!(top.wait().unwrap().success());
    assert!(!rest.contains('\u{1b}'), "no terminal, no escapes: {rest}");
}

/// The process that removes the names of a job when its launcher cannot.
fn janitor(launcher: &str) -> Pid {
    let children = std::fs::read_to_string(format!("/proc/{launcher}/task/{launcher}/children")).unwrap();
    let name = |pid: &&str| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let found = children.split_whitespace().find(|pid| name(pid) == "shmccl janitor\n");
    Pid::from_raw(found.expect("a job with names has a janitor").parse().unwrap())
}

#[test]
fn clean_removes_what_a_job_has_left_of_which_all_were_killed_and_nothing_before() {
    let _watchdog = Watchdog::start("clean", PATIENCE);
    let prefix = format!("shmccl-clean-{}", std::process::id());
    let names = || {
        let names = std::fs::read_dir("/dev/shm").unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().starts_with(&prefix)).count()
    };
    let stuck = Stuck::start(&["-n", "3", "--segment", &format!("named:{prefix}"), "--heap", "8M"]);
    let report = stuck.report();
    assert!(!stdout(&["clean", &prefix]).contains(&prefix));
    assert_eq!(names(), 4);

    // Ranks that run might learn of the end of their launcher, and tidy up, just before they are
    // killed.
    for pid in report.split("(process ").skip(1).filter_map(|rest| rest.split(')').next()) {
        kill(Pid::from_raw(pid.parse().unwrap()), Signal::SIGSTOP).unwrap();
    }
    wait_until("all have stopped", || stdout(&["report", &stuck.pid()]).matches(", stopped)").count() == 3);
    kill(janitor(&stuck.pid()), Signal::SIGKILL).unwrap();
    stuck.signal(Signal::SIGKILL);
    let pid = stuck.pid();
    stuck.end();
    let mentions = |text: &str| text.lines().filter(|line| line.contains(&prefix)).count();
    wait_until("the ranks have gone, too", || mentions(&stdout(&["clean", &prefix, "--dry-run"])) == 4);
    assert_eq!(names(), 4);
    let removed = stdout(&["clean", &prefix]);
    assert_eq!((mentions(&removed), names()), (4, 0), "{removed}");
    assert!(
        removed.contains(&format!("removed /dev/shm/{prefix}.lock, left by process {pid}\n")),
        "{removed}"
    );
    assert_eq!(mentions(&stdout(&["clean", &prefix])), 0);
}
