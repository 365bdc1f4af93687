//! Traces: what `shmccl run --trace` writes, and programs without a launcher.
//!
//! `device_process` is an entry point: it does nothing unless the environment tells it its part.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use nix::sys::signal::{Signal, kill, raise};
use nix::unistd::Pid;
use serde_json::Value;
use shmccl::bootstrap::Options;
use shmccl::channel::Channel;
use shmccl::comm::{JoinedAs, join_job};
use shmccl::reduce::{ReduceOp, Scalar};
use shmccl::{Collectives, Communicator, Group};
use support::wait_until;

const PART: &str = "SHMCCL_TEST_TRACE";

/// How many puts a device makes in the part "many".
const MANY: usize = 3000;

#[test]
fn device_process() {
    let Ok(part) = std::env::var(PART) else { return };
    if part == "threads" {
        threads();
        return threads();
    }
    let Some(JoinedAs::Device(mut comm)) = join_job().unwrap() else { panic!("a launcher starts this") };
    match part.as_str() {
        "some" => some(&mut comm).unwrap(),
        "many" => many(&comm).unwrap(),
        "partly" => partly(&comm).unwrap(),
        "dies" => {
            comm.all_reduce_in_place(&mut [1_u64; 100], &ReduceOp::Sum).unwrap();
            if comm.rank().get() == 1 {
                raise(Signal::SIGKILL).unwrap();
            }
            let _lost = comm.barrier();
            return;
        }
        _ => panic!("no such part: {part}"),
    }
    comm.finalize().unwrap();
}

/// Two device threads, which nobody launches.
fn threads() {
    let options = Options { heap_len: 4 << 20, ..Options::default() };
    let comms = Communicator::init_all_with(2, &options).unwrap();
    let run = |mut comm: Communicator| {
        comm.all_reduce_in_place(&mut [1_u64; 100], &ReduceOp::Sum).unwrap();
        comm.finalize().unwrap();
    };
    let threads: Vec<_> = comms.into_iter().map(|comm| std::thread::spawn(move || run(comm))).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// A few calls of each kind, of which the test knows how many.
fn some(comm: &mut Communicator) -> shmccl::Result<()> {
    let buffer = comm.alloc::<u64>(1 << 16)?;
    for _ in 0..5 {
        comm.all_reduce_in_place(&mut [1_u64; 100], &ReduceOp::Sum)?;
    }
    comm.all_reduce_in_place(&buffer, &ReduceOp::Sum)?;
    let word = comm.buffer::<u64>(buffer.part(0, 1)?)?;
    for _ in 0..3 {
        comm.all_reduce_in_place(&word, &ReduceOp::Sum)?;
    }
    // Done in pieces.
    comm.all_reduce_in_place(&mut vec![1.0_f32; 500_000], &ReduceOp::PreMulSum(Scalar::new(0.5_f32)))?;
    let (here, there) = (buffer.part(0, 512)?, buffer.part(512, 512)?);
    let mut direct = [comm.memory_channel(comm.right())?, comm.memory_channel(comm.left())?];
    let mut proxied = [comm.port_channel(comm.right())?, comm.port_channel(comm.left())?];
    for _ in 0..7 {
        direct[0].put_with_signal(there.offset, here.offset, here.len)?;
        direct[1].wait()?;
        proxied[0].put_with_signal(there.offset, here.offset, here.len)?;
        proxied[1].wait()?;
    }
    proxied[0].flush()?;
    let (sent, mut received, mut sums) = ([1_u8; 64], [0_u8; 64], [[1_u32; 2]; 2]);
    let [first, second] = &mut sums;
    let (right, left) = (comm.right(), comm.left());
    let mut group = Group::start();
    let joined = group.join(comm);
    group.on(joined).all_reduce_in_place(first, &ReduceOp::Sum)?;
    group.on(joined).all_reduce_in_place(second, &ReduceOp::Sum)?;
    group.on(joined).send(&sent, right)?;
    group.on(joined).recv(&mut received, left)?;
    group.end()?;
    comm.barrier()
}

fn many(comm: &Communicator) -> shmccl::Result<()> {
    let mut right = comm.memory_channel(comm.right())?;
    (0..MANY).try_for_each(|_| right.signal())
}

/// Signals of which the first five and the last two are noted.
fn partly(comm: &Communicator) -> shmccl::Result<()> {
    let mut right = comm.memory_channel(comm.right())?;
    for (count, is_noted) in [(5, true), (7, false), (2, true)] {
        comm.set_tracing(is_noted);
        (0..count).try_for_each(|_| right.signal())?;
    }
    Ok(())
}

/// A directory for one test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// `shmccl run` of devices that play `part`, tracing to `file`.
fn run(part: &str, file: &Path, flags: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shmccl"));
    command.args(["run", "-q", "-n", "3", "--heap", "4M", "--trace"]).arg(file).args(flags).arg("--");
    command.arg(std::env::current_exe().unwrap()).args(["--exact", "trace::device_process", "--nocapture"]);
    command.env(PART, part).env("SHMCCL_TUNING", "").stdin(Stdio::null());
    command.output().unwrap()
}

fn done(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A span: rank, thread, name, nanoseconds from its begin to its end, and the rest.
#[derive(Debug)]
struct Span {
    rank: u64,
    thread: u64,
    name: String,
    begun: i64,
    ended: i64,
    args: Value,
}

struct Trace {
    other: Value,
    spans: Vec<Span>,
    /// Names of ranks and of threads.
    names: BTreeMap<(u64, Option<u64>), String>,
}

impl Trace {
    fn read(file: &Path) -> Self {
        let mut json: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        let nanos = |event: &Value, field: &str| {
            let micros = event[field].as_f64().unwrap();
            assert!((0.0..1e12).contains(&micros), "{event}");
            // Written in microseconds with all digits that there are.
            format!("{:.0}", micros * 1000.0).parse::<i64>().unwrap()
        };
        let (mut spans, mut names) = (Vec::new(), BTreeMap::new());
        for event in json["traceEvents"].as_array().unwrap() {
            let (rank, thread) = (event["pid"].as_u64().unwrap(), event.get("tid").and_then(Value::as_u64));
            match event["ph"].as_str().unwrap() {
                "X" => spans.push(Span {
                    rank,
                    thread: thread.unwrap(),
                    name: event["name"].as_str().unwrap().to_owned(),
                    begun: nanos(event, "ts"),
                    ended: nanos(event, "ts") + nanos(event, "dur"),
                    args: event["args"].clone(),
                }),
                "M" => {
                    let name = event["args"]["name"].as_str();
                    names.extend(name.map(|name| ((rank, thread), name.to_owned())));
                }
                other => panic!("no such phase: {other}"),
            }
        }
        Self { other: json["otherData"].take(), spans, names }
    }

    fn of<'t>(&'t self, rank: u64, name: &'t str) -> impl Iterator<Item = &'t Span> {
        self.spans.iter().filter(move |span| span.rank == rank && span.name == name)
    }

    fn count(&self, rank: u64, name: &str) -> usize {
        self.of(rank, name).count()
    }

    /// Checks that of two spans of a thread one is in the other, or they do not touch.
    fn check_nesting(&self) {
        let mut threads: BTreeMap<_, Vec<&Span>> = BTreeMap::new();
        for span in &self.spans {
            threads.entry((span.rank, span.thread)).or_default().push(span);
        }
        for spans in threads.values_mut() {
            spans.sort_by_key(|span| (span.begun, -span.ended));
            let mut open: Vec<&Span> = Vec::new();
            for span in spans {
                open.retain(|outer| outer.ended > span.begun);
                if let Some(outer) = open.last() {
                    assert!(span.ended <= outer.ended, "{span:?} reaches out of {outer:?}");
                }
                open.push(span);
            }
        }
    }
}

#[test]
fn every_call_and_every_trigger_of_every_rank_is_in_the_trace() {
    let scratch = Scratch::new("trace-some");
    for proxy in ["thread", "process"] {
        let file = scratch.file(proxy);
        done(&run("some", &file, &["--proxy", proxy]));
        let trace = Trace::read(&file);
        trace.check_nesting();
        let none = Value::Object(serde_json::Map::new());
        assert_eq!([&trace.other["overwritten"], &trace.other["unfinished"]], [&none; 2]);
        assert_eq!(trace.spans.iter().map(|span| span.rank).collect::<BTreeSet<_>>(), (0..3).collect());
        for rank in 0..3 {
            let count = |name| trace.count(rank, name);
            assert_eq!([count("alloc"), count("barrier"), count("finalize")].map(|n| n >= 1), [true; 3]);
            assert_eq!([count("all_reduce"), count("send"), count("recv")], [5 + 1 + 3 + 1 + 2, 1, 1]);
            assert_eq!(
                [count("put_with_signal"), count("wait"), count("flush")],
                [14, 14, 2],
                "a flush and its trigger"
            );
            assert_eq!([count("data, signal")], [7], "triggers of rank {rank} in {:?}", trace.names);
            let small = trace.of(rank, "all_reduce").filter(|span| span.args["bytes"] == 800).count();
            let large = trace.of(rank, "all_reduce").find(|span| span.args["bytes"] == 8 << 16).unwrap();
            assert_eq!(
                (small, &large.args["algorithm"], &large.args["channel"]),
                (5, &"two_shot".into(), &"memory".into())
            );
            let pieced = trace.of(rank, "all_reduce").filter(|span| span.args["bytes"] == 2_000_000).count();
            assert_eq!(pieced, 1, "noted as a whole");
            let trigger = trace.of(rank, "data, signal").next().unwrap();
            assert_eq!(
                (&trigger.args["bytes"], &trigger.args["peer"]),
                (&4096.into(), &((rank + 1) % 3).into())
            );
            assert_eq!(trace.names[&(rank, Some(trigger.thread))], "proxy");
            assert_eq!(trace.names[&(rank, None)], format!("rank {rank}"));
            let sequences: Vec<_> =
                trace.of(rank, "put_with_signal").filter_map(|span| span.args["sequence"].as_u64()).collect();
            assert_eq!(sequences, (1..=7).collect::<Vec<_>>(), "those of the direct channel");
        }
    }
}

#[test]
fn what_was_overwritten_is_counted_in_the_file() {
    let scratch = Scratch::new("trace-many");
    let file = scratch.file("trace.json");
    done(&run("many", &file, &["--trace-records", "1024"]));
    let trace = Trace::read(&file);
    trace.check_nesting();
    for rank in 0..3 {
        let of_rank: Vec<_> = trace.spans.iter().filter(|span| span.rank == rank).collect();
        let overwritten = trace.other["overwritten"][format!("rank {rank} threads")].as_u64().unwrap();
        assert_eq!(of_rank.len(), 1024);
        assert!(overwritten + 1024 > MANY as u64, "{overwritten}");
        let newest = trace.of(rank, "signal").filter_map(|span| span.args["sequence"].as_u64()).max();
        assert_eq!(newest, Some(MANY as u64), "the newest are kept");
    }
}

#[test]
fn a_program_leaves_out_of_the_trace_what_it_likes() {
    let scratch = Scratch::new("trace-partly");
    let file = scratch.file("trace.json");
    done(&run("partly", &file, &[]));
    let trace = Trace::read(&file);
    for rank in 0..3 {
        let sequences: Vec<_> =
            trace.of(rank, "signal").map(|span| span.args["sequence"].as_u64().unwrap()).collect();
        assert_eq!(sequences, [1, 2, 3, 4, 5, 13, 14]);
    }
}

#[test]
fn a_rank_that_is_killed_leaves_what_it_had_noted() {
    let scratch = Scratch::new("trace-dies");
    let file = scratch.file("trace.json");
    let output = run("dies", &file, &["--grace", "60s"]);
    assert_eq!(output.status.code(), Some(128 + 9), "{}", String::from_utf8_lossy(&output.stderr));
    let trace = Trace::read(&file);
    assert_eq!([0, 1, 2].map(|rank| trace.count(rank, "all_reduce")), [1; 3]);
    assert!(trace.of(0, "barrier").any(|span| span.args["failed"] == true), "{:?}", trace.spans);
}

#[test]
fn a_file_that_cannot_be_made_is_told_before_anything_starts() {
    let output = run("some", Path::new("/no/such/directory/trace.json"), &[]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(
        stderr.contains("cannot write the trace to /no/such/directory/trace.json: No such file"),
        "{stderr}"
    );
    assert_eq!((stderr.lines().count(), output.stdout.len()), (1, 0), "{stderr}");
    let output = run("some", Path::new("/dev/null"), &["--trace-records", "1000"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && stderr.contains("a power of two from 1024"), "{stderr}");
}

#[test]
fn a_disk_that_is_full_is_told_when_all_is_over() {
    let output = run("dies", Path::new("/dev/full"), &[]);
    assert_eq!(output.status.code(), Some(128 + 9), "the job's own failure counts");
    let output = run("many", Path::new("/dev/full"), &[]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("cannot write the trace to /dev/full: No space left"), "{stderr}");
}

#[test]
fn ranks_that_are_threads_write_the_file_that_the_environment_names() {
    let scratch = Scratch::new("trace-threads");
    let file = scratch.file("trace.json");
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "trace::device_process"]).env(PART, "threads").env("SHMCCL_TRACE", &file);
    done(&command.output().unwrap());
    let trace = Trace::read(&file);
    trace.check_nesting();
    assert_eq!([0, 1].map(|rank| trace.count(rank, "all_reduce")), [1; 2]);
    let second = Trace::read(&scratch.file("trace-2.json"));
    assert_eq!([0, 1].map(|rank| second.count(rank, "all_reduce")), [1; 2], "of the next communicators");
}

/// A process that is told to end with the test.
struct Ending(Child);

impl Drop for Ending {
    fn drop(&mut self) {
        let pid = Pid::from_raw(self.0.id().try_into().unwrap());
        kill(pid, Signal::SIGTERM).unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn devices_of_a_pool_leave_what_others_of_it_have_traced_and_the_next_pool_takes_the_same_names() {
    let scratch = Scratch::new("trace-pool");
    let runtime = std::env::temp_dir().join(format!("shmccl-trace-{}", std::process::id()));
    std::fs::create_dir_all(&runtime).unwrap();
    let shmccl = |words: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_shmccl"));
        command.args(words.split(' ')).env("XDG_RUNTIME_DIR", &runtime).env("SHMCCL_TUNING", "");
        command.env("SHMCCL_TRACE", scratch.file("tr.json")).stdin(Stdio::null()).stderr(Stdio::null());
        command
    };
    let ctl = |words: &str| shmccl(&format!("ctl {words}")).output().unwrap().status.success();
    let call = |comm: u32| {
        assert!(ctl(&format!("call {comm} all_reduce -n 4 --send 0x1000")), "{comm}");
        assert!(ctl(&format!("status {comm} --wait")) && ctl(&format!("finalize {comm}")), "{comm}");
    };
    let are_written = |names: &[&str]| {
        names.iter().all(|name| {
            let text = std::fs::read_to_string(scratch.file(name)).unwrap_or_default();
            // It may be about to be written.
            serde_json::from_str::<Value>(&text).is_ok() && text.contains(r#""name":"all_reduce""#)
        })
    };
    let (first, others) =
        (["tr.0.json", "tr.1.json", "tr.2.json"], ["tr.json", "tr.0-2.json", "tr.1-2.json"]);
    for _ in 0..2 {
        let _coordinator = Ending(shmccl("coordinator -n 3").spawn().unwrap());
        wait_until("the devices have come", || ctl("init 3"));
        call(1);
        wait_until("the first are written", || are_written(&first));
        // One alone, which has no rank to be told from others, and two of whom each has another
        // rank than before.
        assert!(ctl("init 1") && ctl("init 2"));
        call(3);
        call(2);
        wait_until("the others are written", || are_written(&others));
        assert!(are_written(&first));
    }
    assert_eq!(std::fs::read_dir(&scratch.0).unwrap().count(), first.len() + others.len());
    std::fs::remove_dir_all(runtime).unwrap();
}
