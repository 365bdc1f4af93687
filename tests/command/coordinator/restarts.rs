//! Coordinators that die while devices work, and others that take their place.

use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use shmccl::collective::Operation;
use shmccl::coordinator::{Client, CommId, CommState, CommStatus, DeviceCall, DeviceId, RuntimeDirectory};
use shmccl::observe::Job;
use shmccl::reduce::{DataType, ReduceOp};
use support::{Random, long, seed};

use crate::coordinator::pool::{Pool, entries, signal};

/// The number of calls in a group of the traffic, each on elements of its own.
const CALLS: u64 = 8;

/// The number of elements of each: all calls of a group together fit into the memory of a device.
const COUNT: u64 = 1 << 19;

/// The timeout of everything.
const PATIENCE: Duration = Duration::from_secs(60);

/// Groups of long all-reduces in succession, observed from outside.
struct Traffic {
    directory: RuntimeDirectory,
    client: Client,
    devices: Vec<DeviceId>,
    comm: CommId,
    job: Job,
    /// The number of groups so far.
    groups: u64,
}

impl Traffic {
    /// Makes a communicator of all devices of the pool.
    fn begin(pool: &Pool) -> Self {
        let directory = RuntimeDirectory::at(pool.parent.join("shmccl")).unwrap();
        let mut client = Client::connect(&directory, PATIENCE).unwrap();
        let n_devices = u32::try_from(pool.devices().len()).unwrap();
        let CommStatus { comm, devices, .. } = client.init(n_devices, false).unwrap();
        let is_ours = |job: &Job| devices.iter().all(|device| job.processes.contains(&device.get()));
        let job = Job::all().into_iter().find(is_ours).unwrap();
        Self { directory, client, devices, comm, job, groups: 0 }
    }

    /// Copies the first elements to all devices.
    fn fill(&mut self) {
        for (rank, device) in (0_u64..).zip(&self.devices) {
            for place in (0..CALLS).map(|call| call * COUNT) {
                let elements: Vec<_> = (place..place + COUNT).map(|index| first(rank, index)).collect();
                let bytes = bytemuck::cast_slice(&elements);
                self.client.copy_host_to_device(*device, ADDRESS + 8 * place, bytes).unwrap();
            }
        }
    }

    /// Begins a group: each element becomes the sum over all ranks.
    fn start(&mut self) {
        self.client.start_group(self.comm).unwrap();
        for call in 0..CALLS {
            let addresses = vec![ADDRESS + 8 * COUNT * call; self.devices.len()];
            let call = DeviceCall {
                operation: Operation::AllReduce,
                data_type: DataType::U64,
                op: ReduceOp::Sum,
                root: 0,
                count: COUNT,
                send: addresses.clone(),
                recv: addresses,
            };
            self.client.call(self.comm, None, call).unwrap();
        }
        self.groups += 1;
        assert_eq!(self.client.end_group(self.comm, None).unwrap(), self.groups);
    }

    /// Waits until the group is over, and checks that it has not failed.
    fn end(&mut self) {
        let status = self.client.status(self.comm, true).unwrap();
        let last = status.last.clone().unwrap();
        let is_well = last.group == self.groups && last.failure.is_none();
        assert!((status.state, status.epoch) == (CommState::Ready, 1) && is_well, "{status:?}");
    }

    /// Returns how many operations each rank has done.
    fn done(&self) -> Vec<u64> {
        self.job.report().unwrap().ranks.iter().map(|rank| rank.work.operations).collect()
    }

    /// Waits until each rank has done `calls` operations since `before`.
    fn await_calls(&self, before: &[u64], calls: u64) {
        let began = Instant::now();
        while !self.done().iter().zip(before).all(|(done, before)| done - before >= calls) {
            assert!(began.elapsed() < PATIENCE, "{:?} is where it was, {before:?}, or nearly", self.done());
            std::thread::park_timeout(Duration::from_micros(50));
        }
    }

    /// Connects with the next coordinator, and waits until all devices have.
    fn reconnect(&mut self) {
        self.client = Client::connect(&self.directory, PATIENCE).unwrap();
        while self.client.devices().unwrap().len() < self.devices.len() {}
    }

    /// Checks that elements of `call` on `rank` are the result of all groups.
    fn check(&mut self, rank: usize, call: u64, elements: std::ops::Range<u64>) {
        let (device, n) = (self.devices[rank], self.devices.len() as u64);
        let address = ADDRESS + 8 * (COUNT * call + elements.start);
        let bytes = self.client.read_device(device, address, 8 * (elements.end - elements.start)).unwrap();
        // After the first group all ranks have the same elements. Each further group multiplies
        // them by the number of ranks.
        let factor = (1..self.groups).fold(1_u64, |factor, _| factor.wrapping_mul(n));
        for (index, bytes) in elements.zip(bytes.chunks_exact(8)) {
            let sum: u64 = (0..n).map(|rank| first(rank, COUNT * call + index)).sum();
            let expected = sum.wrapping_mul(factor);
            let found = u64::from_ne_bytes(bytes.try_into().unwrap());
            assert_eq!(
                found, expected,
                "element {index} of call {call} on rank {rank} after {} groups",
                self.groups
            );
        }
    }
}

/// Returns the address of the elements in each device.
const ADDRESS: u64 = 0x1000;

/// Returns the first elements of `rank`.
fn first(rank: u64, index: u64) -> u64 {
    (index + 1) * (2 * rank + 1)
}

#[test]
fn no_group_fails_when_the_coordinator_is_killed_in_the_middle_of_its_traffic() {
    let mut pool = Pool::start("traffic", 3);
    let mut traffic = Traffic::begin(&pool);
    traffic.fill();
    let seed = seed();
    let (wanted, mut random) = (if long() { 200 } else { 5 }, Random(seed));
    let (mut kills, mut in_the_middle) = (0, 0);
    println!("SHMCCL_SEED={seed}");
    while in_the_middle < wanted {
        kills += 1;
        assert!(kills <= 60 * wanted, "{in_the_middle} of {kills} kills were in the middle of a group");
        let before = traffic.done();
        traffic.start();
        traffic.await_calls(&before, 1 + random.below(CALLS / 2));
        pool.kill_coordinator();
        let killed = traffic.done();
        assert!(pool.ctl("status 1").error().contains("start one with `shmccl coordinator`"));
        pool.start_coordinator();
        traffic.reconnect();
        traffic.end();
        let after = traffic.done();
        // All ranks have done some of the group's calls when the coordinator is killed, and have
        // others to do when it is dead.
        let is_in_the_middle = killed.iter().zip(&after).all(|(killed, after)| killed < after);
        in_the_middle += u64::from(is_in_the_middle);
        if is_in_the_middle && in_the_middle.is_multiple_of(20) {
            println!("{in_the_middle} of {kills} kills in the middle");
        }
        let (rank, call) = (usize::try_from(random.below(3)).unwrap(), random.below(CALLS));
        for index in [0, COUNT / 2, COUNT - 1] {
            traffic.check(rank, call, index..index + 1);
        }
    }
    (0..3).for_each(|rank| traffic.check(rank, random.below(CALLS), 0..COUNT));
    traffic.client.finalize(traffic.comm).unwrap();
    println!(
        "{kills} coordinators killed, {in_the_middle} while all devices were in the middle of a group; none failed"
    );
}

#[test]
fn a_group_that_a_stopped_device_has_yet_to_begin_or_to_end_succeeds_when_the_coordinator_is_killed() {
    let mut pool = Pool::start("restarts", 3);
    pool.ctl("init 3").line();
    let mut ranks = pool.devices();
    ranks.sort_unstable();
    let kills: u32 = if long() { 40 } else { 4 };
    for kill in 1..=kills {
        for (rank, device) in (1..).zip(&ranks) {
            let element = f64::from(kill + rank).to_ne_bytes();
            pool.ctl_with(&format!("put-h2d {device} {:#x}", 0x1000 * rank), &element).line();
        }
        // A device that was stopped before the call cannot have its order when the coordinator is
        // killed. One that was stopped after it may not have reported its end.
        let (device, is_before) = (ranks[usize::try_from(kill % 3).unwrap()], kill % 2 == 0);
        if is_before {
            signal(device, Signal::SIGSTOP);
        }
        pool.ctl("call 1 all_reduce -d float64 -n 300000 --send 0x1000,0x2000,0x3000").line();
        signal(device, Signal::SIGSTOP);
        let status = pool.ctl("status 1").line();
        assert!(status.contains(": in progress") || !is_before, "kill {kill}: {status}");
        pool.kill_coordinator();
        // It wakes before the others have reported to the next coordinator, or after that.
        if kill % 4 < 2 {
            signal(device, Signal::SIGCONT);
            pool.start_coordinator();
        } else {
            pool.start_coordinator();
            pool.ctl_until("devices", |table| table.matches("communicator 1").count() == 2);
            signal(device, Signal::SIGCONT);
        }
        pool.ctl_until("devices", |table| table.matches("communicator 1").count() == 3);
        let status = pool.ctl("status 1 --wait").line();
        let succeeded = format!("group {kill} succeeded");
        assert!(status.contains("ready, epoch 1") && status.ends_with(&succeeded), "kill {kill}: {status}");
        let result = pool.ctl(&format!("get-d2h {} 0x2000 8", ranks[1])).stdout;
        assert_eq!(result, f64::from(3 * kill + 6).to_ne_bytes(), "kill {kill}");
    }
    pool.ctl("finalize 1").line();
    assert_eq!(pool.ctl("devices").line().matches("free").count(), 3);
}

#[test]
fn a_second_coordinator_is_refused_and_a_device_needs_one_to_begin_with() {
    let pool = Pool::start("second", 0);
    let run = |pool: &Pool, word: &str| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_shmccl"));
        let output =
            command.env("XDG_RUNTIME_DIR", &pool.parent).env("NO_COLOR", "1").arg(word).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(run(&pool, "coordinator").contains("a coordinator is running already at"));
    let empty = Pool::empty("empty");
    assert!(run(&empty, "device").contains("start one with `shmccl coordinator`"));
    assert_eq!(entries(&empty.parent.join("shmccl")), 0);
    for (variable, value) in
        [("SHMCCL_FAULTS", "nonsense"), ("SHMCCL_CHECKSUMS", "maybe"), ("SHMCCL_CORES", "0")]
    {
        let output = pool.command().arg("device").env(variable, value).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && stderr.contains(variable), "{stderr}");
    }
}

#[test]
fn a_coordinator_that_accepts_no_connection_is_waited_for_until_the_timeout() {
    let mut pool = Pool::start("backlog", 0);
    let coordinator = pool.coordinator().id();
    signal(coordinator, Signal::SIGSTOP);
    let address = UnixAddr::new(&pool.socket()).unwrap();
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    // A peer that hangs up stays in the backlog until it is accepted.
    let full = loop {
        let stream = socket(AddressFamily::Unix, SockType::Stream, flags, None).unwrap();
        if let Err(errno) = connect(stream.as_raw_fd(), &address) {
            break errno;
        }
    };
    assert_eq!(full, Errno::EAGAIN);
    let refused = pool.ctl("--timeout 200ms status");
    assert!(refused.error().contains("connecting with the coordinator timed out"), "{}", refused.stderr);
    signal(coordinator, Signal::SIGCONT);
    assert_eq!(pool.ctl("status").line(), "");
}

#[test]
fn a_device_does_not_wait_for_a_coordinator_that_does_not_greet() {
    let mut pool = Pool::start("no-greeting", 1);
    pool.kill_coordinator();
    pool.await_no_socket();
    let listener = UnixListener::bind(pool.socket()).unwrap();
    let (mut knocking, _) = listener.accept().unwrap();
    knocking.read_exact(&mut [0; 10]).unwrap();
    let began = Instant::now();
    assert_eq!(pool.interrupt(), [Some(0)]);
    assert!(began.elapsed() < Duration::from_secs(20), "it has waited for the greeting, half a minute");
}

#[test]
fn a_call_for_a_group_that_is_gone_with_its_coordinator_is_not_executed_alone() {
    let mut pool = Pool::start("open", 2);
    pool.ctl("init 2").line();
    let group = pool.ctl("group start 1").line();
    let call = format!("call 1 all_reduce -n 4 --send 0x1000 --group {group}");
    let queued = format!(
        "communicator 1: call 1 of group {group}, which is open; `shmccl ctl group end 1` executes it"
    );
    assert_eq!(pool.ctl(&call).line(), queued);
    pool.kill_coordinator();
    pool.start_coordinator();
    pool.ctl_until("devices", |table| table.matches("communicator 1").count() == 2);
    for late in [&call, &format!("group end 1 --group {group}"), &format!("group cancel 1 --group {group}")] {
        let refused = pool.ctl(late);
        assert!(refused.error().contains(&format!("has no open group {group}: ")), "{}", refused.stderr);
    }
    assert!(pool.ctl("group cancel 1").error().contains("has no group to end"));
    assert!(!pool.ctl("status 1").line().contains("group"), "nothing was executed");
    // The process that has it open may be gone: it is not in the way for ever.
    pool.ctl("group start 1").line();
    assert!(pool.ctl("finalize 1").error().contains("end or cancel it first"));
    assert_eq!(pool.ctl("group cancel 1").line(), "");
    assert_eq!(pool.ctl("finalize 1").line(), "");
}
