//! Devices that join a communicator, and some that do not come.

use nix::sys::signal::Signal;

use crate::coordinator::pool::{Pool, signal};
use crate::coordinator::walk::{group_of_all_reduces, ranks};

#[test]
fn several_devices_join_at_once_and_each_has_the_rank_that_the_status_tells() {
    let pool = Pool::start("several-join", 5);
    pool.ctl("init 1").line();
    let one = pool.ctl("grow 1 3");
    let four = ranks(&one.line());
    assert_eq!(four.len(), 4);
    assert!(one.line().starts_with("communicator 1: ready, epoch 2, "), "{}", one.line());
    group_of_all_reduces(&pool, 1, &four);
    let refused = pool.ctl("grow 1 2");
    assert!(refused.error().contains("2 devices were asked for, and 1 of 5 are free"), "{}", refused.stderr);
    let five = ranks(&pool.ctl("grow 1").line());
    assert_eq!(five[..4], four, "members keep their ranks");
    group_of_all_reduces(&pool, 1, &five);
    assert_eq!(pool.ctl("finalize 1").line(), "");
    assert_eq!(pool.ctl("devices").line().matches("free").count(), 5);
}

#[test]
fn a_communicator_grows_only_when_it_is_ready_and_there_are_not_too_many() {
    let mut pool = Pool::start("refused", 3);
    pool.ctl("init 2").line();
    let too_many = pool.ctl("grow 1 255");
    assert!(too_many.error().contains("a communicator of 257 devices was asked for, expected 1 to 256"));
    pool.ctl("group start 1").line();
    assert!(pool.ctl("grow 1").error().contains("has a group that has not ended"));
    pool.ctl("call 1 all_reduce -n 8 --send 0x1000").line();
    let members = ranks(&pool.ctl("status 1").line());
    signal(members[1], Signal::SIGSTOP);
    pool.ctl("group end 1").line();
    let busy = pool.ctl("grow 1");
    signal(members[1], Signal::SIGCONT);
    assert!(busy.error().contains("communicator 1 is in progress, and this takes one that is ready"));
    pool.ctl("status 1 --wait").line();
    let lost = pool.devices().iter().position(|device| *device == members[0]).unwrap();
    pool.kill_device(lost);
    pool.ctl_until("status 1", |line| line.contains(": failed"));
    assert!(pool.ctl("grow 1").error().contains("communicator 1 has failed"));
    assert!(pool.ctl("grow 7").error().contains("there is no communicator 7"));
}

#[test]
fn a_newcomer_that_hangs_does_not_come_and_the_members_go_on_as_they_were() {
    let mut pool = Pool::empty("hangs");
    pool.start_coordinator_with(&["--patience", "3s", "--hung-after", "never"]);
    (0..2).for_each(|_| _ = pool.start_device());
    let members = ranks(&pool.ctl("init 2").line());
    let (host, guest) = (pool.start_device(), pool.start_device());
    for newcomer in [host.max(guest), host.min(guest)] {
        signal(newcomer, Signal::SIGSTOP);
        let in_vain = pool.ctl("grow 1 2");
        assert!(
            in_vain
                .error()
                .contains(&format!("communicator 1 did not grow: device {newcomer} was lost: it hangs, ")),
            "{}",
            in_vain.stderr
        );
        assert!(pool.ctl("status 1").line().contains("ready, epoch 1, "));
        group_of_all_reduces(&pool, 1, &members);
        signal(newcomer, Signal::SIGCONT);
        pool.ctl_until("devices", |table| table.matches("free").count() == 2);
    }
    let four = ranks(&pool.ctl_until("grow 1 2", |line| line.contains("ready, epoch 2, ")));
    group_of_all_reduces(&pool, 1, &four);
}

#[test]
fn a_member_that_hangs_while_it_grows_is_lost_and_the_newcomer_is_free_again() {
    let mut pool = Pool::empty("member-hangs");
    pool.start_coordinator_with(&["--patience", "3s", "--hung-after", "never"]);
    (0..3).for_each(|_| _ = pool.start_device());
    let members = ranks(&pool.ctl("init 2").line());
    signal(members[1], Signal::SIGSTOP);
    let in_vain = pool.ctl("grow 1");
    assert!(in_vain.error().contains(&format!("device {} was lost", members[1])), "{}", in_vain.stderr);
    pool.ctl_until("status 1", |line| line.contains(": failed"));
    pool.ctl_until("devices", |table| table.matches("free").count() == 1);
    assert!(pool.ctl("go-on 1").line().starts_with("communicator 1: ready, epoch 2, "));
    let two = ranks(&pool.ctl("grow 1").line());
    group_of_all_reduces(&pool, 1, &two);
    signal(members[1], Signal::SIGCONT);
    pool.ctl_until("devices", |table| table.matches("free").count() == 1);
}

#[test]
fn members_that_meet_are_not_kept_waiting_by_one_that_has_died() {
    let mut pool = Pool::empty("meeting");
    pool.start_coordinator_with(&["--patience", "3s", "--hung-after", "never"]);
    (0..3).for_each(|_| _ = pool.start_device());
    let mut devices = pool.devices();
    devices.sort_unstable();
    // This device is not the host, and does not come to the meeting.
    signal(devices[2], Signal::SIGSTOP);
    let in_vain = pool.ctl("init 3");
    assert!(in_vain.error().contains(&format!("device {} was lost", devices[2])), "{}", in_vain.stderr);
    // This is long before their timeout of half a minute, which is longer than that of this
    // request.
    let free = pool.ctl_until("devices", |table| table.matches("free").count() == 2);
    assert!(!free.contains("communicator"), "{free}");
    pool.ctl("init 2 --timeout 20s").line();
    signal(devices[2], Signal::SIGCONT);
}
