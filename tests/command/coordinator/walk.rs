//! The life of a pool from the first device to the last, by commands alone.

use nix::sys::signal::Signal;

use crate::coordinator::pool::{Pool, entries, signal};

/// Applies an operator to two elements.
type Combine = fn(f64, f64) -> f64;

/// Returns element `index` of a call with so many elements on a rank: small whole numbers, so that
/// every operator is exact.
fn element(count: usize, rank: usize, index: usize) -> f64 {
    1.0 + ((count + 3 * rank + 5 * index) % 4) as f64
}

fn bytes(elements: impl Iterator<Item = f64>) -> Vec<u8> {
    elements.flat_map(f64::to_ne_bytes).collect()
}

/// Returns the devices of a communicator by rank, from its status.
pub(crate) fn ranks(status: &str) -> Vec<u32> {
    let list = status.split("devices ").nth(1).unwrap().split([';', ',']).next().unwrap();
    list.split(' ').map(|id| id.parse().unwrap()).collect()
}

/// Runs three calls of four operators each as one group, on addresses that differ from rank to
/// rank.
pub(crate) fn group_of_all_reduces(pool: &Pool, comm: u32, devices: &[u32]) {
    let operators: [(&str, Combine); 4] =
        [("sum", |a, b| a + b), ("prod", |a, b| a * b), ("min", f64::min), ("max", f64::max)];
    let calls: Vec<_> = operators.iter().flat_map(|op| [3_usize, 4, 17].map(|count| (op, count))).collect();
    let address = |call: usize, rank: usize| 0x1_0000 + 0x1000 * call as u64 + 0x100 * rank as u64;
    let group = pool.ctl(&format!("group start {comm}")).line();
    assert!(!group.is_empty() && !group.contains(char::is_whitespace), "{group}");
    for (call, ((name, _), count)) in calls.iter().enumerate() {
        let mut send = Vec::new();
        for (rank, device) in devices.iter().enumerate() {
            let data = bytes((0..*count).map(|index| element(*count, rank, index)));
            pool.ctl_with(&format!("put-h2d {device} {:#x}", address(call, rank)), &data).line();
            send.push(format!("{:#x}", address(call, rank)));
        }
        let call = format!(
            "call {comm} all_reduce -d float64 -n {count} --op {name} --send {} --group {group}",
            send.join(",")
        );
        let queued = pool.ctl(&call).line();
        assert!(queued.contains(&format!(" of group {group}, which is open; ")), "{queued}");
    }
    assert!(pool.ctl(&format!("group end {comm}")).line().ends_with("in progress"));
    let status = pool.ctl_until(&format!("status {comm}"), |line| !line.contains("in progress"));
    assert!(status.contains(": ready") && status.ends_with("succeeded"), "{status}");
    for (call, ((_, combine), count)) in calls.iter().enumerate() {
        let result =
            |index| (0..devices.len()).map(|rank| element(*count, rank, index)).reduce(combine).unwrap();
        for (rank, device) in devices.iter().enumerate() {
            let found = pool.ctl(&format!("get-d2h {device} {} {}", address(call, rank), 8 * count)).stdout;
            assert_eq!(found, bytes((0..*count).map(result)), "call {call} on rank {rank}");
        }
    }
}

/// Kills the device at `index` while all work on an all-reduce of communicator 1, its `group`. It
/// cannot be over by then, since another device is stopped until the group has failed. Returns the
/// killed device.
fn kill_in_the_middle(pool: &mut Pool, index: usize, group: &str) -> u32 {
    let stopped = pool.devices()[index + 1];
    signal(stopped, Signal::SIGSTOP);
    let call = pool.ctl("call 1 all_reduce -d float64 -n 100000 --send 0x10000").line();
    assert!(call.ends_with(&format!("{group} in progress")), "{call}");
    let killed = pool.kill_device(index);
    pool.ctl_until("status 1", |line| line.contains(&format!("{group} failed: ")));
    signal(stopped, Signal::SIGCONT);
    killed
}

#[test]
fn a_pool_is_walked_through_by_ctl_alone() {
    let mut pool = Pool::start("walk", 3);
    let devices = pool.devices();
    assert!(pool.ctl("init 3").line().starts_with("communicator 1: ready, epoch 1, devices "));
    let refused = pool.ctl("init 10");
    assert!(refused.error().contains("10 devices were asked for, and 0 of 3 are free"), "{}", refused.stderr);

    let greeting = b"greetings from the host\n\0\xff";
    for device in &devices {
        assert_eq!(pool.ctl_with(&format!("put-h2d {device} 0x1000"), greeting).line(), "");
        assert_eq!(pool.ctl(&format!("get-d2h {device} 0x1000 {}", greeting.len())).stdout, greeting);
        assert_eq!(pool.ctl(&format!("put-h2d {device} 0x1000")).line(), "", "nothing at all is copied");
        assert_eq!(pool.ctl(&format!("get-d2h {device} 0x4001000 0")).line(), "", "not even from the end");
    }
    let device = devices[1];
    for beyond in ["0xfff", "0x4000fff", "18446744073709551615"] {
        let refused = pool.ctl_with(&format!("put-h2d {device} {beyond}"), b"ab");
        assert!(
            refused.error().contains("out of range: its addresses are 0x1000 to 0x4001000"),
            "{}",
            refused.stderr
        );
    }
    assert!(
        pool.ctl(&format!("get-d2h {device} 0x1000 18446744073709551615")).error().contains("out of range")
    );
    assert_eq!(pool.ctl(&format!("get-d2h {device} 0x4000fff 1")).stdout, [0], "nothing has changed");
    let past = pool.ctl("call 1 all_reduce -d float64 -n 3 --send 0x4000ff8");
    assert!(past.error().contains("out of range"), "{}", past.stderr);

    let ranks = ranks(&pool.ctl("status 1").line());
    group_of_all_reduces(&pool, 1, &ranks);

    let lost = kill_in_the_middle(&mut pool, 1, "group 2");
    let failed = pool.ctl_until("status 1", |line| line.contains(": failed"));
    assert!(failed.contains(&format!("device {lost} was lost")), "{failed}");
    assert!(failed.contains("; group 2 failed: "), "{failed}");
    assert!(pool.ctl("call 1 all_reduce -n 1 --send 0x1000").error().contains("`shmccl ctl go-on 1`"));
    assert!(pool.ctl("finalize 1").error().contains("has failed"));
    assert_eq!(pool.ctl(&format!("get-d2h {} 0x1000 {}", devices[0], greeting.len())).stdout, greeting);
    assert!(pool.ctl("go-on 1").line().starts_with("communicator 1: ready, epoch 2, "));
    let rest: Vec<u32> = ranks.into_iter().filter(|rank| *rank != lost).collect();
    group_of_all_reduces(&pool, 1, &rest);

    let refused = pool.ctl("grow 1");
    assert!(refused.error().contains("1 devices were asked for, and 0 of 2 are free"), "{}", refused.stderr);
    let fourth = pool.start_device();
    assert_eq!(
        pool.ctl("grow 1").line().split(';').next(),
        Some(format!("communicator 1: ready, epoch 3, devices {} {} {fourth}", rest[0], rest[1]).as_str())
    );
    assert_eq!(pool.ctl(&format!("get-d2h {} 0x1000 {}", devices[0], greeting.len())).stdout, greeting);
    group_of_all_reduces(&pool, 1, &[rest[0], rest[1], fourth]);

    assert_eq!(pool.ctl("finalize 1").line(), "");
    let ended = pool.ctl("status 1").line();
    assert!(ended.starts_with("communicator 1: finalized, epoch 3, devices "), "{ended}");
    assert!(ended.ends_with("; group 4 succeeded"), "{ended}");
    for late in
        ["finalize 1", "destroy 1", "group start 1", "grow 1", "call 1 all_reduce -n 1 --send 0x1000,0x1000"]
    {
        assert!(pool.ctl(late).error().contains("communicator 1 has ended"), "{late}");
    }
    assert!(
        pool.ctl(&format!("get-d2h {} 0x1000 1", devices[0])).error().contains("belongs to no communicator")
    );
    assert!(pool.ctl("init 2").line().starts_with("communicator 2: ready"), "its devices are back");
    assert_eq!(pool.interrupt(), [Some(0); 4]);
    assert_eq!(entries(pool.socket().parent().unwrap()), 0);
}

#[test]
fn a_device_that_is_killed_in_the_middle_fails_the_group_and_the_rest_go_on_by_themselves_if_told() {
    let mut pool = Pool::start("middle", 3);
    pool.ctl("init 3 --keep-going").line();
    let lost = kill_in_the_middle(&mut pool, 0, "group 1");
    let status = pool.ctl_until("status 1", |line| line.contains("ready, epoch 2"));
    assert!(!ranks(&status).contains(&lost), "{status}");
    assert!(status.contains("; group 1 failed: "), "{status}");
    pool.ctl("call 1 all_reduce -d int32 -n 1 --send 0x1000").line();
    assert!(pool.ctl("status 1 --wait").line().ends_with("group 2 succeeded"));
    assert_eq!(pool.ctl("destroy 1").line(), "");
}

#[test]
fn several_communicators_live_on_devices_of_their_own() {
    let pool = Pool::start("several", 4);
    pool.ctl("init 2").line();
    pool.ctl("init 2").line();
    assert!(pool.ctl("init 1").error().contains("0 of 4 are free"));
    for comm in [1, 2] {
        for operation in ["all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all"] {
            let call = format!("call {comm} {operation} -d int32 -n 5 --send 0x1000 --recv 0x2000");
            let rooted = pool.ctl(&format!("{call} --root 1"));
            if ["reduce", "broadcast"].contains(&operation) {
                rooted.line();
            } else {
                assert_eq!(rooted.code, 2);
                assert!(
                    rooted.stderr.contains("--root has no effect with"),
                    "{operation}: {}",
                    rooted.stderr
                );
                pool.ctl(&call).line();
            }
            assert!(pool.ctl(&format!("status {comm} --wait")).line().ends_with("succeeded"), "{operation}");
        }
    }
    assert_eq!(pool.ctl("destroy 1").line(), "");
    assert_eq!(pool.ctl("devices").line().matches("free").count(), 2);
    assert!(pool.ctl("status 2").line().contains("ready"));
}
