//! Pools within a program, which is this one.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use shmccl::collective::Operation;
use shmccl::coordinator::{
    Device, DeviceCall, DeviceEnd, DeviceId, DeviceKind, Fleet, FleetOptions, Pool, PoolOptions,
    RuntimeDirectory,
};
use shmccl::launch::Program;
use shmccl::reduce::{DataType, ReduceOp};

use crate::coordinator::pool::{self, entries};

/// The variable that tells a process with a pool what to do.
const PART: &str = "SHMCCL_TEST_EMBEDDED";

fn options(devices: usize) -> PoolOptions {
    let program =
        Program::new("/proc/self/exe", ["--exact", "coordinator::embedded::device", "--test-threads=1"]);
    PoolOptions { devices: vec![DeviceKind::new(devices)], program, ..PoolOptions::default() }
}

#[test]
fn device() {
    if let Some(device) = Device::from_env().unwrap() {
        let refused = Pool::start(1).unwrap_err().to_string();
        assert!(refused.contains("Device::from_env"), "a device starts no devices: {refused}");
        device.serve().unwrap();
    }
}

/// A program with a pool: it prints the directory and the devices, and works until its input ends.
#[test]
fn program() {
    let Ok(part) = std::env::var(PART) else { return };
    let shared = (part == "shared").then(|| RuntimeDirectory::open().unwrap());
    let pool = Pool::start_with(&PoolOptions { directory: shared, ..options(3) }).unwrap();
    let mut client = pool.client().unwrap();
    let comm = client.init(3, false).unwrap();
    for (device, element) in comm.devices.iter().zip([2.0_f64, 3.0, 7.0]) {
        client.copy_host_to_device(*device, 0x1000, &element.to_ne_bytes()).unwrap();
    }
    let (send, recv) = (vec![0x1000; 3], vec![0x2000; 3]);
    let (operation, data_type, op) = (Operation::AllReduce, DataType::F64, ReduceOp::Prod);
    let call = DeviceCall { operation, data_type, op, root: 0, count: 1, send, recv };
    client.call(comm.comm, None, call).unwrap();
    assert_eq!(client.status(comm.comm, true).unwrap().last.unwrap().failure, None);
    assert_eq!(client.read_device(comm.devices[1], 0x2000, 8).unwrap(), 42.0_f64.to_ne_bytes());
    let devices: Vec<_> = pool.devices().iter().map(ToString::to_string).collect();
    let line = format!("\npool {} {}\n", pool.directory().path().display(), devices.join(" "));
    std::io::Write::write_all(&mut std::io::stdout(), line.as_bytes()).unwrap();
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

/// Starts [`program`]. Returns where its pool is, and its devices.
fn start(parent: &Path, part: &str) -> (Child, BufReader<ChildStdout>, PathBuf, Vec<u32>) {
    let mut command = Command::new("/proc/self/exe");
    command.args(["--exact", "coordinator::embedded::program", "--nocapture", "--test-threads=1"]);
    command.env(PART, part).env("XDG_RUNTIME_DIR", parent).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut lines = stdout.by_ref().lines().map(Result::unwrap);
    let line = lines.find(|line| line.starts_with("pool ")).expect("it says what it has");
    let mut words = line.split(' ').skip(1);
    let directory = PathBuf::from(words.next().unwrap());
    (child, stdout, directory, words.map(|word| word.parse().unwrap()).collect())
}

/// Waits until all processes have ended that had this stream.
fn await_end(mut stdout: impl Read) {
    stdout.read_to_end(&mut Vec::new()).unwrap();
}

fn is_there(device: u32) -> bool {
    kill(Pid::from_raw(device.cast_signed()), None).is_ok()
}

#[test]
fn a_pool_within_a_program_works_and_leaves_nothing_when_it_is_dropped() {
    let outside = pool::Pool::empty("embedded");
    let (mut child, stdout, directory, devices) = start(&outside.parent, "private");
    assert!(directory.join("coordinator").exists() && devices.iter().all(|device| is_there(*device)));
    assert!(outside.ctl("devices").error().contains("no coordinator listens"), "it is the program's own");
    drop(child.stdin.take());
    await_end(stdout);
    assert!(child.wait().unwrap().success());
    assert!(!devices.iter().any(|device| is_there(*device)));
    assert_eq!(entries(&outside.parent.join("shmccl")), 0);
}

#[test]
fn a_program_that_is_killed_takes_its_devices_along_and_its_janitor_removes_its_directory() {
    let outside = pool::Pool::empty("embedded-swept");
    for part in ["private", "shared"] {
        let (mut child, stdout, _, devices) = start(&outside.parent, part);
        outside.await_janitor();
        child.kill().unwrap();
        child.wait().unwrap();
        // Ends with the last of the devices.
        await_end(stdout);
        while !outside.janitors().is_empty() {}
        assert_eq!(devices.len(), 3);
        assert_eq!(entries(&outside.parent.join("shmccl")), 0, "{part}");
    }
}

#[test]
fn a_program_that_is_killed_with_its_janitor_is_cleared_up_after_by_the_next_pool() {
    let outside = pool::Pool::empty("embedded-killed");
    let (mut child, stdout, directory, devices) = start(&outside.parent, "private");
    outside.kill_janitors();
    child.kill().unwrap();
    child.wait().unwrap();
    // Ends with the last of the devices.
    await_end(stdout);
    assert_eq!(devices.len(), 3);
    assert!(directory.exists());
    let told = outside.command().args(["clean", "--dry-run"]).output().unwrap();
    let told = String::from_utf8(told.stdout).unwrap();
    assert!(told.contains(&format!("would remove {}, left by", directory.display())), "{told}");
    let (mut next, stdout, other, _) = start(&outside.parent, "private");
    assert!(!directory.exists() && other.exists());
    drop(next.stdin.take());
    await_end(stdout);
    assert!(next.wait().unwrap().success());
    assert_eq!(entries(&outside.parent.join("shmccl")), 0);
}

#[test]
fn a_pool_in_the_directory_of_the_user_is_asked_from_outside_as_well() {
    let outside = pool::Pool::empty("embedded-shared");
    let (mut child, stdout, directory, devices) = start(&outside.parent, "shared");
    assert_eq!(directory, outside.parent.join("shmccl"));
    let status = outside.ctl("status 1").line();
    assert!(status.ends_with("group 1 succeeded"), "{status}");
    assert_eq!(outside.ctl("devices").line().matches("communicator 1").count(), 3);
    kill(Pid::from_raw(devices[0].cast_signed()), Signal::SIGKILL).unwrap();
    assert!(outside.ctl_until("status 1", |line| line.contains(": failed")).contains("was lost"));
    drop(child.stdin.take());
    await_end(stdout);
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_pool_whose_devices_do_not_come_says_so_and_leaves_nothing() {
    let scratch = pool::Pool::empty("embedded-in-vain");
    let directory = RuntimeDirectory::at(scratch.parent.join("own")).unwrap();
    let program = Program::new("false", [""; 0]);
    let settings = PoolOptions { directory: Some(directory.clone()), program, ..options(2) };
    let refused = Pool::start_with(&settings).unwrap_err().to_string();
    assert!(refused.contains(" exited with code 1; a program that is to be a device calls"), "{refused}");
    let absent = PoolOptions { program: Program::new("/no/such/program", [""; 0]), ..settings };
    assert!(Pool::start_with(&absent).is_err());
    assert_eq!(entries(directory.path()), 0);
    let too_many = Pool::start_with(&PoolOptions { devices: vec![DeviceKind::new(1025)], ..absent });
    assert!(too_many.unwrap_err().to_string().contains("1024 at most"));
}

#[test]
fn a_pool_starts_devices_again_that_die_so_often_in_all_and_as_free_ones() {
    let scratch = pool::Pool::empty("embedded-again");
    let directory = RuntimeDirectory::at(scratch.parent.join("own")).unwrap();
    let pool =
        Pool::start_with(&PoolOptions { directory: Some(directory), restarts: 1, ..options(2) }).unwrap();
    let mut client = pool.client().unwrap();
    client.init(2, false).unwrap();
    let end = |device: DeviceId| kill(Pid::from_raw(device.get().cast_signed()), Signal::SIGKILL).unwrap();
    let mut numbers = || client.devices().unwrap().iter().map(|it| (it.device, it.comm)).collect::<Vec<_>>();
    let [killed, other] = pool.devices() else { panic!("two") };
    end(*killed);
    let next = loop {
        if let Some((next, comm)) = numbers().into_iter().find(|(it, _)| !pool.devices().contains(it)) {
            assert_eq!(comm, None, "it is free");
            break next;
        }
    };
    assert_eq!(client.metrics().unwrap().counts.restarted, 1);
    end(next);
    while client.devices().unwrap().len() != 1 {}
    assert_eq!(client.devices().unwrap()[0].device, *other, "no other one is started");
    assert_eq!(client.metrics().unwrap().counts.restarted, 1);
}

#[test]
fn devices_of_a_program_end_with_a_coordinator_that_is_another_process() {
    let mut outside = pool::Pool::empty("embedded-apart");
    outside.start_coordinator();
    let directory = RuntimeDirectory::at(outside.parent.join("shmccl")).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let options = options(2);
    let on_end = move |end: &DeviceEnd| tell.send(end.to_string()).is_err();
    let (program, kinds) = (&options.program, &options.devices);
    let fleet = Fleet::start(&directory, program, kinds, FleetOptions::default(), on_end).unwrap();
    outside.ctl_until("devices", |table| table.matches("free").count() == 2);
    outside.kill_coordinator();
    let mut ends = [told.recv().unwrap(), told.recv().unwrap()];
    let mut expected: Vec<_> = fleet.devices().iter().map(|it| format!("device {it} has ended")).collect();
    ends.sort();
    expected.sort();
    assert_eq!(ends[..], expected);
}

#[test]
fn a_device_of_the_programs_own_that_is_stopped_is_killed_unless_it_is_spared_and_comes_back() {
    let scratch = pool::Pool::empty("embedded-stopped");
    for spares_hung in [true, false] {
        let directory = RuntimeDirectory::at(scratch.parent.join("own")).unwrap();
        let mut options = PoolOptions { directory: Some(directory), ..options(2) };
        options.settings.hang_rule =
            Some(shmccl::launch::HangRule::new(Duration::from_millis(100), 10, 10).unwrap());
        options.settings.spares_hung = spares_hung;
        let pool = Pool::start_with(&options).unwrap();
        let (mut client, stopped) = (pool.client().unwrap(), pool.devices()[0]);
        let process = Pid::from_raw(stopped.get().cast_signed());
        kill(process, Signal::SIGSTOP).unwrap();
        let mut is_listed = || client.devices().unwrap().iter().any(|it| it.device == stopped);
        while is_listed() {}
        if spares_hung {
            kill(process, Signal::SIGCONT).unwrap();
            while !is_listed() {}
        } else {
            // The pool is its parent, and waits for it.
            while kill(process, None).is_ok() {}
        }
    }
}
