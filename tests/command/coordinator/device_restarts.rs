//! Devices that a coordinator starts again.

use std::io::{BufRead, Read};
use std::sync::mpsc::channel;
use std::time::Duration;

use nix::sys::signal::Signal;
use shmccl::coordinator::{DeviceEnd, DeviceKind, Fleet, FleetOptions, RuntimeDirectory};
use shmccl::launch::Program;

use crate::coordinator::pool::{Pool, lists, signal};
use crate::coordinator::walk::{group_of_all_reduces, ranks};

/// Returns the number and the last address of each device, and whether it is free.
fn devices(pool: &Pool) -> Vec<(u32, String, bool)> {
    let table = pool.ctl("devices").line();
    let rows = table.lines().skip(1).map(|row| row.split_whitespace().collect::<Vec<_>>());
    rows.map(|row| (row[0].parse().unwrap(), row[3].to_owned(), row.contains(&"free"))).collect()
}

/// Waits for a device besides `known`. Returns it with its last address.
fn another(pool: &Pool, known: &[u32]) -> (u32, String) {
    loop {
        if let Some((device, last, is_free)) =
            devices(pool).into_iter().find(|(device, ..)| !known.contains(device))
        {
            assert!(is_free, "it belongs to nothing");
            return (device, last);
        }
    }
}

/// Returns the signals that a process has blocked.
fn blocked(process: u32) -> String {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    status.lines().find(|line| line.starts_with("SigBlk:")).unwrap().to_owned()
}

#[test]
fn a_device_that_dies_is_started_again_as_a_free_one_of_its_kind_and_so_many_are_in_all() {
    let mut pool = Pool::empty("restarted");
    let file = pool.parent.join("devices.toml");
    let kinds = "[[device]]\nname = \"small\"\nmemory = \"1M\"\n[[device]]\nmemory = \"8M\"\ncount = 2\n";
    std::fs::write(&file, kinds).unwrap();
    let stderr = pool.start_fleet(3, &["--devices", file.to_str().unwrap(), "--restart", "2"]);
    let mut lines = stderr.lines().map(Result::unwrap);
    let mut told = |wanted: String| assert!(lines.any(|line| line == wanted), "{wanted}");
    let members = ranks(&pool.ctl("init 3").line());
    let small = devices(&pool).into_iter().find(|(_, last, _)| last == "0x101000").unwrap().0;
    let large: Vec<_> = members.iter().copied().filter(|member| *member != small).collect();

    signal(small, Signal::SIGKILL);
    told(format!("device {small} (small) was killed by SIGKILL; started again (1 more times at most)"));
    let (new, last) = another(&pool, &members);
    assert_eq!(last, "0x101000", "it is of the same kind");
    assert_eq!(blocked(new), blocked(large[0]), "it hears the same signals");
    // The communicator stays failed, and goes on without that device.
    pool.ctl_until("status 1", |line| line.contains(": failed"));
    assert_eq!(ranks(&pool.ctl("go-on 1").line()).len(), 2);
    let three = ranks(&pool.ctl("grow 1").line());
    assert_eq!(three[2], new);
    group_of_all_reduces(&pool, 1, &three);

    signal(new, Signal::SIGABRT);
    told(format!("device {new} (small) was killed by SIGABRT; started again (0 more times at most)"));
    let known = [&members[..], &[new]].concat();
    let (newest, _) = another(&pool, &known);
    assert!(pool.ctl("metrics").line().contains("\nshmccl_devices_restarted_total 2\n"));
    signal(newest, Signal::SIGKILL);
    told(format!("device {newest} (small) was killed by SIGKILL; the others go on"));
    pool.ctl_until("devices", |table| table.lines().count() == 3);

    signal(pool.coordinator().id(), Signal::SIGTERM);
    assert_eq!(pool.coordinator().wait().unwrap().code(), Some(0));
    assert_eq!(
        lines.filter(|line| !line.contains("has addresses")).collect::<Vec<_>>(),
        Vec::<String>::new()
    );
}

#[test]
fn a_device_that_is_told_to_end_is_not_started_again_and_flags_without_devices_are_refused() {
    let mut pool = Pool::empty("restarted-told");
    let stderr = pool.start_fleet(2, &["-n", "2", "--restart", "9"]);
    let mut lines = stderr.lines().map(Result::unwrap);
    let all = devices(&pool);
    signal(all[0].0, Signal::SIGTERM);
    assert_eq!(lines.next().unwrap(), format!("device {} has ended; the others go on", all[0].0));
    signal(all[1].0, Signal::SIGKILL);
    let (new, _) = another(&pool, &[all[0].0, all[1].0]);
    pool.ctl_until("devices", |table| table.lines().count() == 2);
    // A device that was started again outlives a killed coordinator like any other, and the next
    // one counts it.
    pool.kill_coordinator();
    let (coordinator, mut line) = pool.spawn_talking(&["coordinator", "-n", "2", "--restart", "9"]);
    pool.replace_coordinator(coordinator);
    line.read_line(&mut String::new()).unwrap();
    pool.ctl_until("devices", |table| table.lines().count() == 3 && lists(table, new));
    signal(pool.coordinator().id(), Signal::SIGTERM);
    assert_eq!(pool.coordinator().wait().unwrap().code(), Some(0));
    // All devices had one of these streams.
    line.read_to_string(&mut String::new()).unwrap();
    assert!(
        lines.all(|line| line.contains("SIGKILL; started again (8 more") || line.contains("has addresses"))
    );
    let idle = pool.command().args(["coordinator", "--restart", "1"]).output().unwrap();
    assert_eq!(idle.status.code(), Some(2), "without devices it means nothing");
}

#[test]
fn devices_that_cannot_begin_end_the_pool_however_often_they_might_be_started_again() {
    let pool = Pool::empty("restarted-in-vain");
    let mut command = pool.command();
    let output = command
        .args(["coordinator", "-n", "2", "--restart", "1000000"])
        .env("SHMCCL_FAULTS", "nonsense")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        stderr.contains("registered, so the pool has ended") && !stderr.contains("started again"),
        "{stderr}"
    );
}

#[test]
fn a_device_that_dies_at_once_again_and_again_is_started_so_often_and_a_fleet_that_ends_does_not_wait() {
    let scratch = Pool::empty("restarted-at-once");
    let directory = RuntimeDirectory::at(scratch.parent.join("own")).unwrap();
    let program = Program::new("sh", ["-c", "exit 3"]);
    let (tell, told) = channel();
    let follow = move |end: &DeviceEnd| tell.send(end.clone()).is_ok();
    let start = |restarts, follow| {
        let options = FleetOptions { restarts, ..FleetOptions::default() };
        Fleet::start(&directory, &program, &[DeviceKind::new(1)], options, follow).unwrap()
    };
    let fleet = start(3, Box::new(follow.clone()) as Box<dyn FnMut(&DeviceEnd) -> bool + Send>);
    let ends: Vec<_> = (0..4).map(|_| told.recv().unwrap()).collect();
    let found: Vec<_> = ends.iter().map(|end| (end.was_restarted, end.restarts, end.can_restart())).collect();
    assert_eq!(found, [(false, 3, true), (true, 2, true), (true, 1, true), (true, 0, false)]);
    assert!(ends.iter().all(|end| end.status.is_some_and(|status| status.code() == Some(3))));
    assert!(told.recv_timeout(Duration::from_millis(50)).is_err(), "that was the last");
    drop(fleet);
    let fleet = start(u32::MAX, Box::new(follow));
    (0..3).for_each(|_| _ = told.recv().unwrap());
    drop(fleet);
    // Drains the ends that were reported by then.
    told.try_iter().for_each(drop);
    assert!(told.recv().is_err(), "nobody is left who could tell");
}
