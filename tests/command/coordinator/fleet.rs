//! Coordinators that start devices of their own.

use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use shmccl::coordinator::VERSION;
use support::long;

use crate::coordinator::pool::{Pool, Told, entries, signal, talking};
use crate::coordinator::strangers::frame;
use crate::coordinator::walk::{group_of_all_reduces, ranks};

fn pid(number: u32) -> Pid {
    Pid::from_raw(i32::try_from(number).unwrap())
}

/// Returns the numbers and the last addresses of all devices.
fn devices(pool: &Pool) -> Vec<(u32, String)> {
    let table = pool.ctl("devices").line();
    let rows = table.lines().skip(1).map(|row| row.split_whitespace().collect::<Vec<_>>());
    rows.map(|row| (row[0].parse().unwrap(), row[3].to_owned())).collect()
}

/// Returns the one line with which a coordinator is refused.
fn refused(pool: &Pool, flags: &[&str]) -> String {
    let output = pool.command().arg("coordinator").args(flags).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    Told { code: output.status.code().unwrap(), stdout: output.stdout, stderr }.error().to_owned()
}

#[test]
fn one_command_is_a_pool_that_tells_of_a_device_that_dies_and_ends_as_a_whole() {
    let mut pool = Pool::empty("fleet");
    let stderr = pool.start_fleet(3, &["-n", "3", "--memory", "32M"]);
    let members = ranks(&pool.ctl("init 3").line());
    let all = devices(&pool);
    assert!(all.iter().all(|(_, last)| last == "0x2001000"), "{all:?}");
    group_of_all_reduces(&pool, 1, &members);

    kill(pid(members[1]), Signal::SIGKILL).unwrap();
    let wanted = format!("device {} was killed by SIGKILL; the others go on", members[1]);
    let mut lines = stderr.lines().map(Result::unwrap);
    assert!(lines.any(|line| line == wanted), "it is told");
    assert!(pool.ctl_until("status 1", |line| line.contains(": failed")).contains("was lost"));
    assert!(pool.ctl("go-on 1").line().contains("ready, epoch 2"));
    kill(pid(members[2]), Signal::SIGTERM).unwrap();
    let wanted = format!("device {} has ended; the others go on", members[2]);
    assert!(lines.any(|line| line == wanted), "it is told, too, when it was asked to");
    pool.ctl_until("devices", |table| table.lines().count() == 2);

    kill(pid(pool.coordinator().id()), Signal::SIGTERM).unwrap();
    assert_eq!(pool.coordinator().wait().unwrap().code(), Some(0));
    // All of them had this stream; it ends with the last.
    assert_eq!(lines.collect::<Vec<_>>(), Vec::<String>::new());
}

/// Returns the numbers of all devices, in their order.
fn numbers(pool: &Pool) -> Vec<u32> {
    devices(pool).into_iter().map(|(number, _)| number).collect()
}

#[test]
fn devices_that_a_coordinator_has_started_go_on_when_it_is_killed_and_the_next_one_takes_them_over() {
    let mut pool = Pool::empty("fleet-adopted");
    let flags = ["-n", "3", "--memory", "8M"];
    let mut stderr = pool.start_fleet(3, &flags);
    let members = ranks(&pool.ctl("init 3").line());
    let all = numbers(&pool);
    for kill in 1..=if long() { 50 } else { 4 } {
        for (rank, device) in (1_u32..).zip(&members) {
            let element = f64::from(kill * rank).to_ne_bytes();
            pool.ctl_with(&format!("put-h2d {device} 0x1000"), &element).line();
        }
        pool.ctl(&format!("call 1 all_reduce -d float64 -n {} --send 0x1000", 1 + kill * 7919)).line();
        pool.kill_coordinator();
        assert!(pool.ctl("status 1").error().contains("is dead; start one with `shmccl coordinator`"));
        let (coordinator, _) = pool.spawn_talking(&[&["coordinator"], &flags[..]].concat());
        pool.replace_coordinator(coordinator);
        pool.ctl_until("devices", |table| table.matches("communicator 1").count() == 3);
        let status = pool.ctl("status 1 --wait").line();
        assert!(
            status.contains("ready, epoch 1") && status.ends_with(&format!("group {kill} succeeded")),
            "{status}"
        );
        assert_eq!(numbers(&pool), all, "nobody is lost, and no other device was started");
        let sum = pool.ctl(&format!("get-d2h {} 0x1000 8", members[1])).stdout;
        assert_eq!(sum, f64::from(6 * kill).to_ne_bytes());
    }
    // A coordinator that has fewer devices than it should starts the missing ones.
    kill(pid(all[0]), Signal::SIGKILL).unwrap();
    pool.ctl_until("status 1", |line| line.contains(": failed"));
    pool.kill_coordinator();
    let (coordinator, mut line) = pool.spawn_talking(&[&["coordinator"], &flags[..]].concat());
    pool.replace_coordinator(coordinator);
    line.read_line(&mut String::new()).unwrap();
    // It takes a moment until all devices that are left have come back and reported.
    pool.ctl_until("devices", |table| table.lines().count() == 4);
    pool.ctl_until("status 1", |line| line.contains(": failed"));
    assert!(ranks(&pool.ctl("go-on 1").line()).iter().all(|member| all[1..].contains(member)));
    // At an end in order all devices end: its own, and those that it has taken over.
    kill(pid(pool.coordinator().id()), Signal::SIGTERM).unwrap();
    assert_eq!(pool.coordinator().wait().unwrap().code(), Some(0));
    stderr.read_to_string(&mut String::new()).unwrap();
    line.read_to_string(&mut String::new()).unwrap();
}

#[test]
fn devices_that_were_taken_over_end_with_their_new_coordinator_and_the_next_one_has_none_of_them() {
    let mut pool = Pool::empty("fleet-inherited");
    let flags = ["-n", "2", "--memory", "8M"];
    let mut stderr = pool.start_fleet(2, &flags);
    let members = ranks(&pool.ctl("init 2").line());
    pool.ctl_with(&format!("put-h2d {} 0x1000", members[0]), b"old").line();
    // A stopped device cannot take the signal, and has never registered with the coordinator that
    // ends it.
    for stopped in [None, Some(members[1])] {
        stopped.into_iter().for_each(|device| signal(device, Signal::SIGSTOP));
        pool.kill_coordinator();
        let (coordinator, _) = pool.spawn_talking(&[&["coordinator"], &flags[..]].concat());
        pool.replace_coordinator(coordinator);
        // It has taken them over.
        pool.ctl_until("status", |list| list.lines().count() == 1);
    }
    kill(pid(pool.coordinator().id()), Signal::SIGTERM).unwrap();
    assert_eq!(pool.coordinator().wait().unwrap().code(), Some(0));
    // All of them had this stream, and the stopped one was killed.
    let mut more = pool.start_fleet(2, &flags);
    assert!(numbers(&pool).iter().all(|device| !members.contains(device)));
    assert_eq!(pool.ctl("status").line(), "");
    let fresh = ranks(&pool.ctl("init 2").line());
    assert_eq!(pool.ctl(&format!("get-d2h {} 0x1000 3", fresh[0])).stdout, [0; 3]);
    stderr.read_to_string(&mut String::new()).unwrap();
    kill(pid(pool.coordinator().id()), Signal::SIGTERM).unwrap();
    assert_eq!(pool.coordinator().wait().unwrap().code(), Some(0));
    more.read_to_string(&mut String::new()).unwrap();
}

#[test]
fn devices_that_no_coordinator_takes_over_end_by_themselves_and_nothing_is_left() {
    let mut pool = Pool::empty("fleet-orphans");
    let mut stderr = pool.start_fleet(2, &["-n", "2", "--outlive", "300ms"]);
    pool.ctl("init 2").line();
    kill(pid(pool.coordinator().id()), Signal::SIGKILL).unwrap();
    assert_eq!(pool.coordinator().wait().unwrap().signal(), Some(9));
    // All of them had this stream.
    stderr.read_to_string(&mut String::new()).unwrap();
    assert_eq!(entries(&pool.parent.join("shmccl")), 0, "the last one has removed the socket");
    let idle = pool.command().args(["coordinator", "--outlive", "1s"]).output().unwrap();
    assert_eq!(idle.status.code(), Some(2), "without devices it means nothing");
}

#[test]
fn a_coordinator_that_is_asked_by_a_signal_tells_what_its_devices_do_and_all_goes_on() {
    let mut pool = Pool::empty("fleet-asked");
    let stderr = pool.start_fleet(2, &["-n", "2"]);
    let mut lines = stderr.lines().map(Result::unwrap);
    let coordinator = pid(pool.coordinator().id());
    kill(coordinator, Signal::SIGQUIT).unwrap();
    assert_eq!(lines.next().unwrap(), "no device of the pool is in a communicator");
    let members = ranks(&pool.ctl("init 2").line());
    // A terminal asks all processes of the job.
    members.iter().for_each(|member| kill(pid(*member), Signal::SIGQUIT).unwrap());
    kill(coordinator, Signal::SIGQUIT).unwrap();
    assert!(lines.any(|line| line.contains("rank 1")), "both are told of");
    group_of_all_reduces(&pool, 1, &members);
    let refused = |number: u32| {
        let refused = pool.command().args(["report", &number.to_string()]).output().unwrap();
        String::from_utf8(refused.stderr).unwrap()
    };
    let stderr = refused(coordinator.as_raw().cast_unsigned());
    assert!(stderr.contains("and no process of one, as a coordinator is not; see `shmccl ps`"), "{stderr}");
    let own = std::process::id();
    // A number of three digits cannot be a job's.
    let why = if own < 1000 { "is no process of a job, and too short" } else { "and no process of one; see" };
    let stderr = refused(own);
    assert!(stderr.contains(why) && stderr.contains("see `shmccl ps`"), "{stderr}");
}

#[test]
fn a_pool_that_was_killed_is_reported_with_a_remedy_and_the_next_one_starts_at_once() {
    let mut pool = Pool::empty("fleet-dead");
    assert!(pool.ctl("status").error().contains("no coordinator listens at "));
    let mut stderr = pool.start_fleet(2, &["-n", "2"]);
    pool.ctl("init 2").line();
    let kill_all = |pool: &mut Pool, stderr: &mut BufReader<std::process::ChildStderr>| {
        let all = devices(pool);
        pool.kill_janitors();
        pool.kill_coordinator();
        all.into_iter().for_each(|(device, _)| kill(pid(device), Signal::SIGKILL).unwrap());
        // Ends with the last of its devices.
        stderr.read_to_string(&mut String::new()).unwrap();
    };
    kill_all(&mut pool, &mut stderr);
    let dead = format!(
        "error: the coordinator that listened at {} is dead; start one with `shmccl coordinator` and the same flags: \
         it takes the place of the dead one, and takes over those of its devices that live",
        pool.socket().display()
    );
    for ask in ["status", "devices", "init 1"] {
        assert_eq!(pool.ctl(ask).error(), dead);
    }
    let mut stderr = pool.start_fleet(1, &["-n", "1"]);
    assert!(pool.ctl("init 1").line().starts_with("communicator 1: ready, epoch 1, "), "at once");
    kill_all(&mut pool, &mut stderr);
    let cleaned = pool.command().arg("clean").output().unwrap();
    let removed = format!("removed {}, left by a coordinator that is dead\n", pool.socket().display());
    assert!(String::from_utf8(cleaned.stdout).unwrap().ends_with(&removed));
    assert!(pool.ctl("status").error().contains("no coordinator listens at "));
}

#[test]
fn a_file_lists_devices_of_several_kinds_and_what_is_wrong_with_it_is_told_before_anything_starts() {
    let mut pool = Pool::empty("fleet-file");
    let file = pool.parent.join("devices.toml");
    let flags = ["--devices", file.to_str().unwrap()];
    std::fs::write(
        &file,
        "[[device]]\nname = \"small\"\nmemory = \"1M\"\ncount = 2\n[[device]]\ncores = 1\n",
    )
    .unwrap();
    let error = refused(&pool, &flags);
    assert!(error.contains("devices.toml:6: cores: unknown field `cores`, expected one of"), "{error}");
    std::fs::write(&file, "[[device]]\ncount = 2\ncore = 999\n").unwrap();
    let error = refused(&pool, &flags);
    assert!(error.contains("devices.toml:3: core: expected a core that this process may run on"), "{error}");
    std::fs::write(&file, "[[device]]\nname = \"small\"\nmemory = \"1M\"\ncount = 2\n[[device]]\ncore = 0\n")
        .unwrap();
    assert_eq!(entries(&pool.parent), 1, "nothing was started");
    let stderr = pool.start_fleet(3, &flags);
    pool.ctl("init 3").line();
    let mut lasts: Vec<_> = devices(&pool).into_iter().map(|(_, last)| last).collect();
    lasts.sort();
    assert_eq!(lasts, ["0x101000", "0x101000", "0x4001000"]);
    let small = devices(&pool).into_iter().find(|(_, last)| last == "0x101000").unwrap().0;
    kill(pid(small), Signal::SIGKILL).unwrap();
    let wanted = format!("device {small} (small) was killed by SIGKILL; the others go on");
    assert!(stderr.lines().map(Result::unwrap).any(|line| line == wanted));
}

#[test]
fn a_pool_whose_devices_cannot_begin_ends_and_one_that_has_taken_others_over_goes_on_and_says_so() {
    let mut pool = Pool::empty("fleet-in-vain");
    let flags = ["coordinator", "-n", "2"];
    // Only devices read this variable.
    let failing = |pool: &Pool| {
        let mut command = pool.command();
        command.args(flags).env("SHMCCL_FAULTS", "nonsense");
        command
    };
    let output = failing(&pool).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    let last = stderr.lines().last().unwrap();
    assert!(last.starts_with("error: device ") && last.contains(" exited with code 2 before it"), "{stderr}");
    assert!(
        last.ends_with("registered, so the pool has ended; what was wrong it has told above"),
        "{stderr}"
    );
    assert_eq!(entries(&pool.parent.join("shmccl")), 0);

    let mut stderr = pool.start_fleet(2, &flags[1..]);
    let left = numbers(&pool);
    pool.kill_coordinator();
    kill(pid(left[0]), Signal::SIGKILL).unwrap();
    let (coordinator, lines) = talking(&mut failing(&pool));
    pool.replace_coordinator(coordinator);
    let lines = until_it_goes_on(lines);
    assert_eq!(numbers(&pool), left[1..]);
    ends_in_order(&mut pool, lines);
    stderr.read_to_string(&mut String::new()).unwrap();
}

#[test]
fn a_pool_that_counts_on_a_stopped_device_goes_on_though_the_one_that_it_starts_cannot_begin() {
    let mut pool = Pool::empty("fleet-stopped");
    let flags = ["-n", "2", "--outlive", "200s"];
    let mut stderr = pool.start_fleet(2, &flags);
    let left = numbers(&pool);
    signal(left[1], Signal::SIGSTOP);
    pool.kill_coordinator();
    kill(pid(left[0]), Signal::SIGKILL).unwrap();
    // Only devices read this variable, when they begin.
    let mut command = pool.command();
    let (coordinator, lines) =
        talking(command.arg("coordinator").args(flags).env("SHMCCL_FAULTS", "nonsense"));
    pool.replace_coordinator(coordinator);
    let lines = until_it_goes_on(lines);
    kill(pid(left[1]), Signal::SIGCONT).unwrap();
    pool.ctl_until("devices", |table| table.lines().count() == 2);
    assert_eq!(numbers(&pool), left[1..]);
    ends_in_order(&mut pool, lines);
    stderr.read_to_string(&mut String::new()).unwrap();
}

/// Reads what a coordinator says until it goes on without a device that could not begin.
fn until_it_goes_on(said: impl BufRead) -> impl Iterator<Item = String> {
    let mut lines = said.lines().map(Result::unwrap);
    assert!(lines.any(|line| line.ends_with(" before it had registered, and the pool goes on without it")));
    lines
}

/// Ends the coordinator, which prints nothing more.
fn ends_in_order(pool: &mut Pool, lines: impl Iterator<Item = String>) {
    kill(pid(pool.coordinator().id()), Signal::SIGTERM).unwrap();
    assert_eq!(pool.coordinator().wait().unwrap().code(), Some(0));
    assert_eq!(lines.count(), 0);
}

#[test]
fn a_directory_that_has_a_coordinator_gets_no_devices_of_another_one() {
    let mut pool = Pool::empty("fleet-second");
    pool.start_coordinator();
    let error = refused(&pool, &["-n", "2"]);
    assert!(error.contains("running already"), "{error}");
    assert_eq!(devices(&pool).len(), 0);
}

#[test]
fn a_coordinator_takes_more_connections_than_its_soft_limit_of_descriptors_has_room_for() {
    let mut pool = Pool::empty("descriptors");
    pool.start_coordinator_by("ulimit -Sn 32 && exec \"$0\" coordinator");
    // Peers that do not greet are disconnected after five seconds, which makes room. That does not
    // answer the question, but may happen where the machine is slow.
    let is_answered_among = |peers: &[UnixStream]| {
        assert_eq!(pool.ctl("status").line(), "");
        peers.iter().all(is_open)
    };
    let mut batches =
        (0..3).map(|_| (0..64).map(|_| UnixStream::connect(pool.socket()).unwrap()).collect::<Vec<_>>());
    assert!(
        batches.any(|peers| is_answered_among(&peers)),
        "no request is answered before other peers are disconnected"
    );
}

/// Whether the other side has not hung up.
fn is_open(mut stream: &UnixStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    loop {
        match stream.read(&mut [0; 64]) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) => return error.kind() == ErrorKind::WouldBlock,
        }
    }
}

#[test]
fn clients_that_ask_nothing_make_room_for_others_and_keep_no_device_out() {
    let mut pool = Pool::start("idle", 0);
    // As many as there is room for, and some more.
    let idle: Vec<_> = (0..460)
        .map(|_| {
            let mut stream = UnixStream::connect(pool.socket()).unwrap();
            let greeting = frame(&format!(r#"{{"shmccl":"{VERSION}","role":"client"}}"#));
            std::io::Write::write_all(&mut stream, &greeting).unwrap();
            stream.read_exact(&mut [0; 4]).unwrap();
            stream
        })
        .collect();
    assert_eq!(pool.ctl("status").line(), "");
    let left = idle.iter().filter(|stream| is_open(stream)).count();
    assert!((440..=448).contains(&left), "{left} are left");
    assert!(!is_open(&idle[0]), "who was idle for longest goes first");
    pool.start_device();
    assert!(pool.ctl("init 1").line().contains("ready"));
}
