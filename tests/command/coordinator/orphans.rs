//! Devices whose coordinator was killed: their memory is kept for the next one, which takes them
//! over as its own.

use std::io::{BufRead, Read};
use std::os::unix::ffi::OsStrExt;

use nix::sys::signal::Signal;

use crate::coordinator::pool::{Pool, Told, entries, signal};
use crate::coordinator::walk::ranks;

/// Runs `shmccl clean`.
fn clean(pool: &Pool, flags: &[&str]) -> Told {
    let output = pool.command().arg("clean").args(flags).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    Told { code: output.status.code().unwrap(), stdout: output.stdout, stderr }
}

/// Returns the living processes that were started as devices of the pool.
fn living(pool: &Pool) -> Vec<u32> {
    let told = [b"SHMCCL_POOL=", pool.parent.join("shmccl").as_os_str().as_bytes()].concat();
    let processes = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let number = entry.unwrap().file_name().to_str()?.parse().ok()?;
        let environment = std::fs::read(format!("/proc/{number}/environ")).ok()?;
        environment.split(|byte| *byte == 0).any(|entry| entry == told).then_some(number)
    });
    processes.collect()
}

#[test]
fn the_socket_of_a_dead_coordinator_is_kept_for_devices_that_live_and_removed_when_they_are_gone() {
    let mut pool = Pool::empty("orphans-clean");
    let flags = ["-n", "2", "--outlive", "200s"];
    let mut stderr = pool.start_fleet(2, &flags);
    let members = ranks(&pool.ctl("init 2").line());
    pool.ctl_with(&format!("put-h2d {} 0x1000", members[1]), b"kept").line();
    pool.kill_coordinator();
    for flags in [&["--dry-run"][..], &[]] {
        let told = clean(&pool, flags);
        let mut numbers = living(&pool);
        numbers.sort_unstable();
        assert_eq!(numbers.len(), 2);
        let all = numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        let kept = "the socket of a coordinator that is dead stays, since devices";
        assert!(told.stderr.contains(kept), "{}", told.stderr);
        assert!(told.stderr.ends_with(&format!("or end them with `kill {all}`\n")), "{}", told.stderr);
        assert_eq!(told.code, 0);
        assert!(!String::from_utf8(told.stdout).unwrap().contains("coordinator that is dead"));
        assert!(pool.socket().exists());
    }
    let (coordinator, mut more) = pool.spawn_talking(&[&["coordinator"], &flags[..]].concat());
    pool.replace_coordinator(coordinator);
    pool.ctl_until("devices", |table| table.matches("communicator 1").count() == 2);
    assert!(pool.ctl("status 1 --wait").line().contains(": ready, epoch 1"));
    assert_eq!(pool.ctl(&format!("get-d2h {} 0x1000 4", members[1])).stdout, b"kept");

    pool.kill_janitors();
    pool.kill_coordinator();
    living(&pool).into_iter().for_each(|device| signal(device, Signal::SIGKILL));
    // Ends with the last of them.
    stderr.read_to_string(&mut String::new()).unwrap();
    more.read_to_string(&mut String::new()).unwrap();
    let removed = format!("removed {}, left by a coordinator that is dead\n", pool.socket().display());
    assert!(String::from_utf8(clean(&pool, &[]).stdout).unwrap().ends_with(&removed));
    assert_eq!(entries(&pool.parent.join("shmccl")), 0);
}

#[test]
fn the_janitor_of_a_coordinator_waits_for_its_devices_and_those_that_it_has_taken_over_and_for_no_others() {
    let mut pool = Pool::empty("orphans-janitor");
    let flags = ["-n", "2", "--outlive", "200s"];
    let mut stderr = pool.start_fleet(2, &flags);
    let first = pool.await_janitor();
    let all = living(&pool);
    // This device has not registered with the next coordinator when that is killed.
    signal(all[0], Signal::SIGSTOP);
    pool.kill_coordinator();
    let (coordinator, mut more) = pool.spawn_talking(&[&["coordinator", "-n", "3"], &flags[2..]].concat());
    pool.replace_coordinator(coordinator);
    more.read_line(&mut String::new()).unwrap();
    let is_second = |pool: &Pool| matches!(pool.janitors()[..], [janitor] if janitor != first);
    while !is_second(&pool) {}
    let started = living(&pool).into_iter().find(|device| !all.contains(device)).unwrap();
    let coordinator = pool.coordinator().id();
    pool.kill_coordinator();
    for device in [started, all[1]] {
        signal(device, Signal::SIGKILL);
        while living(&pool).contains(&device) {}
        assert!(pool.socket().exists() && is_second(&pool), "{coordinator}: one waits for the next");
    }
    signal(all[0], Signal::SIGKILL);
    pool.await_no_socket();
    while !pool.janitors().is_empty() {}
    [&mut stderr, &mut more].into_iter().for_each(|it| _ = it.read_to_string(&mut String::new()).unwrap());
    assert_eq!(entries(&pool.parent.join("shmccl")), 0);
}

#[test]
fn a_device_that_gives_up_leaves_the_socket_to_those_that_wait_for_longer() {
    let mut pool = Pool::empty("orphans-longer");
    let mut stderr = pool.start_fleet(1, &["-n", "1", "--outlive", "200s"]);
    let patient = living(&pool);
    pool.kill_coordinator();
    let (coordinator, _) = pool.spawn_talking(&["coordinator", "-n", "2", "--outlive", "20ms"]);
    pool.replace_coordinator(coordinator);
    pool.ctl_until("devices", |table| table.lines().count() == 3);
    pool.kill_coordinator();
    while living(&pool) != patient {}
    assert!(pool.socket().exists(), "the other one has gone, and left it");
    pool.start_coordinator();
    pool.ctl_until("devices", |table| table.lines().count() == 2);
    signal(pool.coordinator().id(), Signal::SIGTERM);
    pool.coordinator().wait().unwrap();
    stderr.read_to_string(&mut String::new()).unwrap();
}

#[test]
fn a_device_that_is_stopped_while_the_next_coordinator_begins_is_not_replaced_and_comes_back() {
    let mut pool = Pool::empty("orphans-stopped");
    let flags = ["-n", "2"];
    let mut stderr = pool.start_fleet(2, &flags);
    let mut all = living(&pool);
    signal(all[0], Signal::SIGSTOP);
    pool.kill_coordinator();
    let (coordinator, mut more) = pool.spawn_talking(&[&["coordinator"], &flags[..]].concat());
    pool.replace_coordinator(coordinator);
    pool.ctl_until("devices", |table| table.lines().count() == 2);
    // The second answer comes after it has started its devices.
    assert_eq!(pool.ctl("devices").line().lines().count(), 2);
    signal(all[0], Signal::SIGCONT);
    pool.ctl_until("devices", |table| table.lines().count() == 3);
    let mut now = living(&pool);
    [&mut all, &mut now].into_iter().for_each(|them| them.sort_unstable());
    assert_eq!(now, all);
    signal(pool.coordinator().id(), Signal::SIGTERM);
    assert_eq!(pool.coordinator().wait().unwrap().code(), Some(0));
    [&mut stderr, &mut more].into_iter().for_each(|it| _ = it.read_to_string(&mut String::new()).unwrap());
}
