//! Devices that hang: found, named, and gone on without.

use std::io::{BufRead, Read, Write};
use std::os::unix::net::UnixStream;

use nix::sys::signal::Signal;
use shmccl::coordinator::VERSION;

use crate::coordinator::pool::{Pool, lists, signal};
use crate::coordinator::strangers::frame;
use crate::coordinator::walk::{group_of_all_reduces, ranks};

#[test]
fn a_device_that_hangs_in_a_group_is_named_long_before_the_others_lose_patience() {
    let mut pool = Pool::empty("hung");
    pool.start_coordinator_with(&["--hung-after", "10/10", "--heartbeat", "300ms", "--patience", "60s"]);
    (0..3).for_each(|_| _ = pool.start_device());
    let members = ranks(&pool.ctl("init 3").line());
    let hung = members[1];
    // The device has its memory, and takes no part.
    signal(hung, Signal::SIGSTOP);
    pool.ctl("call 1 all_reduce -d float64 -n 4 --send 0x1000").line();
    let failed = pool.ctl("status 1 --wait");
    let told = String::from_utf8(failed.stdout).unwrap();
    let why = format!("device {hung} was lost: it hangs, without a sign of life");
    assert!(failed.code == 1 && told.contains(": failed, epoch 1") && told.contains(&why), "{told}");
    assert!(told.contains(&format!("group 1 failed: {why}")), "{told}");
    let rest = ranks(&pool.ctl("go-on 1").line());
    assert_eq!(rest, [members[0], members[2]]);
    group_of_all_reduces(&pool, 1, &rest);
    signal(hung, Signal::SIGCONT);
    pool.ctl_until("devices", |table| table.matches("free").count() == 1);
}

#[test]
fn the_device_that_was_waited_for_in_vain_is_named_by_its_number() {
    let mut pool = Pool::empty("in-vain");
    let file = pool.parent.join("devices.toml");
    std::fs::write(&file, "[[device]]\ncount = 3\ntimeout = \"3s\"\n").unwrap();
    pool.start_fleet(3, &["--devices", file.to_str().unwrap(), "--hung-after", "never", "--patience", "60s"]);
    let members = ranks(&pool.ctl("init 3").line());
    let hung = members[2];
    signal(hung, Signal::SIGSTOP);
    pool.ctl("call 1 all_reduce -d float64 -n 4 --send 0x1000").line();
    // The devices that report only the end may come long before it; until then, that is the
    // failure.
    let told = pool.ctl_until("status 1", |line| line.contains("timed out after 3s"));
    assert!(told.contains(&format!("(device {hung})")), "{told}");
    // The operations of all ranks are reported with it, also after the end.
    signal(hung, Signal::SIGCONT);
    pool.ctl("go-on 1").line();
    let told = pool.ctl("status 1").line();
    let lines: Vec<_> = told.lines().skip(1).collect();
    assert!(lines[0].starts_with("  job ") && lines[0].contains("epoch 1, 3 ranks"), "{told}");
    for (rank, member) in members.iter().enumerate() {
        let line = lines.iter().find(|line| line.contains(&format!("rank {rank} (process {member}")));
        let line = line.unwrap_or_else(|| panic!("{told}"));
        assert!(rank == 2 || line.contains("in all_reduce of 4 double by sum"), "{told}");
    }
    assert!(lines[3].contains("stopped") && lines[4].starts_with("  held up by rank 2"), "{told}");
    assert_eq!(pool.ctl("status").line().lines().count(), 1, "not in a list");
}

#[test]
fn a_copy_with_a_device_that_turns_out_to_be_lost_ends_when_that_is_known() {
    let mut pool = Pool::empty("hung-copy");
    pool.start_coordinator_with(&["--hung-after", "10/10", "--heartbeat", "300ms"]);
    (0..3).for_each(|_| _ = pool.start_device());
    let members = ranks(&pool.ctl("init 3").line());
    signal(members[1], Signal::SIGSTOP);
    std::thread::scope(|scope| {
        // No request would end by itself before the watchdog does.
        let put = scope.spawn(|| {
            let put = format!("--timeout 60m put-h2d {} 0x1000", members[1]);
            pool.ctl_with(&put, &[7; 1 << 20])
        });
        let get = scope.spawn(|| pool.ctl(&format!("--timeout 60m get-d2h {} 0x1000 8", members[1])));
        for copy in [put, get] {
            let told = copy.join().unwrap();
            // A request that begins only now is refused at once.
            let expected =
                ["the device has ended, or has hung up", &format!("there is no device {}", members[1])];
            assert!(expected.iter().any(|it| told.error().contains(it)), "{}", told.stderr);
        }
    });
    // A device of which nothing is known is waited for as long as the flag says.
    let rest = ranks(&pool.ctl("go-on 1").line());
    pool.kill_coordinator();
    pool.start_coordinator_with(&["--hung-after", "never"]);
    pool.ctl_until("devices", |table| table.matches("communicator 1").count() == 2);
    signal(rest[0], Signal::SIGSTOP);
    let short = pool.ctl(&format!("--timeout 1500ms get-d2h {} 0x1000 8", rest[0]));
    let remedy =
        "; it is busy, or stopped and goes on at `kill -CONT` of its process; --timeout gives it longer";
    let late = format!("error: greeting the device timed out after 1.5s{remedy}");
    assert_eq!(short.error(), late);
    signal(rest[0], Signal::SIGCONT);
    signal(members[1], Signal::SIGCONT);
    let coordinator = pool.coordinator().id();
    signal(coordinator, Signal::SIGSTOP);
    let late = pool.ctl("--timeout 200ms status");
    signal(coordinator, Signal::SIGCONT);
    assert_eq!(late.error(), format!("error: greeting the coordinator timed out after 200ms{remedy}"));
}

/// Returns the next message that comes over `stream`.
fn message(stream: &mut UnixStream) -> String {
    let mut head = [0; 4];
    stream.read_exact(&mut head).unwrap();
    let mut body = vec![0; u32::from_le_bytes(head) as usize];
    stream.read_exact(&mut body).unwrap();
    String::from_utf8(body).unwrap()
}

#[test]
fn a_device_that_hears_and_never_does_what_it_is_told_holds_no_answer_up() {
    let mut pool = Pool::empty("stuck");
    pool.start_coordinator_with(&["--hung-after", "never", "--patience", "3s"]);
    let mut device = UnixStream::connect(pool.socket()).unwrap();
    let say = |device: &mut UnixStream, text: &str| device.write_all(&frame(text)).unwrap();
    say(&mut device, &format!(r#"{{"shmccl":"{VERSION}","role":"device"}}"#));
    assert!(message(&mut device).contains(VERSION));
    let report = |version: u32, heard: u32, membership: &str| {
        let range = r#""range":{"min":4096,"max":8192},"socket":"none""#;
        let counts = format!(r#""version":{version},"heard":{heard},"timeout_ms":100"#);
        format!(r#"{{"state":{{{counts},{range},"membership":{membership}}}}}"#)
    };
    say(&mut device, &report(1, 0, "null"));
    pool.ctl_until("devices", |table| table.contains("free"));
    let refused = std::thread::scope(|scope| {
        let asking = scope.spawn(|| pool.ctl("init 1"));
        let order = message(&mut device);
        let formation = order.strip_prefix(r#"{"host":"#).unwrap().strip_suffix('}').unwrap();
        let place = format!(
            r#"{{"formation":{formation},"has_met":false,"groups":0,"phase":{{"hosting":null}},"last":null}}"#
        );
        say(&mut device, &report(2, 1, &place));
        asking.join().unwrap()
    });
    assert!(
        refused.error().contains("was lost: it hangs, and has not done its order in time"),
        "{}",
        refused.stderr
    );
    assert_eq!(device.read(&mut [0]).unwrap(), 0, "it is hung up on, and may come back");
    assert_eq!(pool.ctl("devices").line().lines().count(), 1);
}

/// Flags by which a pool notices soon that one of its three devices hangs, and still allows for a
/// busy machine.
const HASTY: [&str; 8] = ["-n", "3", "--restart", "3", "--patience", "3s", "--heartbeat", "200ms"];

#[test]
fn a_device_of_the_coordinators_own_that_hangs_is_killed_and_started_again() {
    let mut pool = Pool::empty("hung-own");
    let stderr = pool.start_fleet(3, &HASTY);
    let mut lines = stderr.lines().map(Result::unwrap);
    let mut told = |wanted: &str| assert!(lines.any(|line| line.contains(wanted)), "{wanted}");
    let members = ranks(&pool.ctl("init 3").line());
    let [_, idle, stopped] = members[..] else { panic!("{members:?}") };
    signal(stopped, Signal::SIGSTOP);
    told(&format!(
        "device {stopped} is lost: it hangs, without a sign of life in 10 of 10 looks, one in 200ms; "
    ));
    told(&format!("device {stopped} was killed by SIGKILL; started again (2 more times at most)"));
    pool.ctl_until("devices", |table| table.lines().count() == 4);
    assert!(pool.ctl("metrics").line().contains("\nshmccl_devices_restarted_total 1\n"));
    assert!(!std::path::Path::new(&format!("/proc/{stopped}")).exists(), "its parent has waited for it");
    // The same holds for a device that was only just left out of a communicator, and for one that
    // was replaced.
    assert_eq!(ranks(&pool.ctl("go-on 1").line()).len(), 2);
    let three = ranks(&pool.ctl("grow 1").line());
    signal(three[2], Signal::SIGSTOP);
    told(&format!("device {} was killed by SIGKILL; started again (1 more times at most)", three[2]));
    pool.ctl_until("devices", |table| table.lines().count() == 4 && lists(table, idle));
}

#[test]
fn devices_that_were_taken_over_are_under_the_same_policy_as_those_that_a_coordinator_has_started() {
    let mut pool = Pool::empty("hung-inherited");
    pool.start_fleet(3, &HASTY);
    let members = ranks(&pool.ctl("init 3").line());
    pool.kill_coordinator();
    // A device has stopped before the coordinator began that is to miss it.
    signal(members[0], Signal::SIGSTOP);
    let (coordinator, stderr) = pool.spawn_talking(&[&["coordinator"], &HASTY[..]].concat());
    pool.replace_coordinator(coordinator);
    let mut lines = stderr.lines().map(Result::unwrap);
    let mut told = |wanted: &str| assert!(lines.any(|line| line.contains(wanted)), "{wanted}");
    told(&format!("device {} is lost: it hangs, and has not come back in 3000 ms; it is killed", members[0]));
    told("started again (2 more times at most)");
    pool.ctl_until("devices", |table| members[1..].iter().all(|member| lists(table, *member)));
    signal(members[1], Signal::SIGSTOP);
    told(&format!("device {} is lost: it hangs, without a sign of life", members[1]));
    told("started again (1 more times at most)");
    signal(members[2], Signal::SIGKILL);
    told("started again (0 more times at most)");
    pool.ctl_until("devices", |table| {
        table.lines().count() == 4 && !members.iter().any(|member| lists(table, *member))
    });
    assert!(pool.ctl("metrics").line().contains("\nshmccl_devices_restarted_total 3\n"));
}

#[test]
fn an_adopted_device_that_is_told_to_end_is_not_started_again_where_the_system_tells_how_it_ended() {
    let release = nix::sys::utsname::uname().unwrap().release().to_string_lossy().into_owned();
    let mut numbers = release.split('.').map_while(|word| word.parse::<u32>().ok());
    let tells = (numbers.next(), numbers.next()) >= (Some(6), Some(15));
    let mut pool = Pool::empty("told-inherited");
    pool.start_fleet(3, &HASTY);
    pool.kill_coordinator();
    let (coordinator, stderr) = pool.spawn_talking(&[&["coordinator"], &HASTY[..]].concat());
    pool.replace_coordinator(coordinator);
    pool.ctl_until("devices", |table| table.lines().count() == 4);
    // The second answer comes after it has taken over the devices that it has found.
    let table = pool.ctl("devices").line();
    let first: u32 = table.lines().nth(1).unwrap().split_whitespace().next().unwrap().parse().unwrap();
    signal(first, Signal::SIGTERM);
    let wanted = if tells { "has ended; the others go on" } else { "has ended, it is unknown how; started" };
    let wanted = format!("device {first} {wanted}");
    assert!(stderr.lines().map(Result::unwrap).any(|line| line.contains(&wanted)), "{wanted}");
}

#[test]
fn a_device_that_hangs_and_is_spared_comes_back_though_it_is_the_coordinators_own() {
    let mut pool = Pool::empty("hung-spared");
    let stderr = pool.start_fleet(3, &[&HASTY[..], &["--spare-hung"]].concat());
    let stopped = ranks(&pool.ctl("init 3").line())[0];
    signal(stopped, Signal::SIGSTOP);
    let mut lines = stderr.lines().map(Result::unwrap);
    assert!(lines.any(|line| line.ends_with("; it is left as it is, and may come back")));
    pool.ctl_until("devices", |table| table.lines().count() == 3);
    signal(stopped, Signal::SIGCONT);
    pool.ctl_until("devices", |table| table.lines().count() == 4 && lists(table, stopped));
}
