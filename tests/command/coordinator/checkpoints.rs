//! The memory of a communicator's devices, written to a directory and read back.

use std::path::PathBuf;
use std::process::Command;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::long;

use crate::coordinator::pool::Pool;
use crate::coordinator::walk::ranks;

/// An address in the third chunk of 2 MiB.
const FAR: u64 = 0x50_0000;

fn saved(pool: &Pool) -> PathBuf {
    pool.parent.join("saved")
}

/// Returns what each rank has near and far, in a state of this number.
fn words(state: usize, rank: usize) -> [Vec<u8>; 2] {
    [format!("near {state} {rank}"), format!("far {state} {rank}")].map(String::into_bytes)
}

fn set(pool: &Pool, members: &[u32], state: usize) {
    for (rank, device) in members.iter().enumerate() {
        let [near, far] = words(state, rank);
        pool.ctl_with(&format!("put-h2d {device} 0x1000"), &near).line();
        pool.ctl_with(&format!("put-h2d {device} {FAR}"), &far).line();
    }
}

#[track_caller]
fn assert_state(pool: &Pool, members: &[u32], state: usize) {
    for (rank, device) in members.iter().enumerate() {
        for (address, word) in [0x1000, FAR].into_iter().zip(words(state, rank)) {
            let found = pool.ctl(&format!("get-d2h {device} {address} {}", word.len())).stdout;
            assert_eq!(found, word, "rank {rank}, address {address:#x}");
        }
    }
}

fn write(pool: &Pool) -> String {
    pool.ctl(&format!("checkpoint 1 {}", saved(pool).display())).line()
}

fn read_by(pool: &Pool, comm: u32) -> crate::coordinator::pool::Told {
    pool.ctl(&format!("restore {comm} {}", saved(pool).display()))
}

#[test]
fn a_checkpoint_is_read_back_by_another_pool_and_memory_used_since_is_zero() {
    let pool = Pool::start("checkpoints", 2);
    let members = ranks(&pool.ctl("init 2").line());
    set(&pool, &members, 1);
    assert_eq!(
        write(&pool),
        format!("communicator 1: checkpoint 1 is written to {}", saved(&pool).display())
    );
    set(&pool, &members, 2);
    assert!(write(&pool).contains("checkpoint 2 is written"));
    assert!(pool.ctl("status 1").line().ends_with("; group 2 succeeded, as checkpoint 2"));
    set(&pool, &members, 3);
    pool.ctl_with(&format!("put-h2d {} 0x300000", members[1]), b"since").line();
    assert!(read_by(&pool, 1).line().contains("checkpoint 2 is read back from"));
    assert_state(&pool, &members, 2);
    assert_eq!(pool.ctl(&format!("get-d2h {} 0x300000 5", members[1])).stdout, [0; 5]);
    pool.ctl("call 1 all_reduce -n 4 --send 0x1000").line();
    assert!(pool.ctl("status 1 --wait").line().ends_with("group 4 succeeded"), "it works on");

    let mut other = Pool::empty("checkpoints-other");
    let mut stderr = other.start_fleet(2, &["-n", "2"]);
    let newer = ranks(&other.ctl("init 2").line());
    let told = other.ctl(&format!("restore 1 {}", saved(&pool).display())).line();
    assert!(told.contains("checkpoint 2 is read back from"), "{told}");
    assert_state(&other, &newer, 2);
    kill(Pid::from_raw(other.coordinator().id().cast_signed()), Signal::SIGTERM).unwrap();
    std::io::Read::read_to_string(&mut stderr, &mut String::new()).unwrap();
}

#[test]
fn a_checkpoint_that_cannot_be_read_is_refused_in_one_line_and_nothing_changes() {
    let pool = Pool::start("checkpoints-wrong", 5);
    let members = ranks(&pool.ctl("init 2").line());
    set(&pool, &members, 1);
    let refused = |told: &crate::coordinator::pool::Told, expected: &str| {
        assert!(told.error().contains(expected), "{}", told.stderr);
        assert!(pool.ctl("status 1").line().starts_with("communicator 1: ready, epoch 1, "));
        assert_state(&pool, &members, 1);
    };
    refused(&read_by(&pool, 1), "there is no checkpoint; write one first, or name another directory");
    refused(&pool.ctl("restore 1 /proc/version"), "failed");
    refused(&pool.ctl("checkpoint 1 /proc/none/there"), "making the directory failed: No such file");
    write(&pool);
    pool.ctl("init 3").line();
    assert!(read_by(&pool, 2).error().contains("it is of 2 ranks, and this job has 3; start as many"));
    pool.ctl("destroy 2").line();

    let path = saved(&pool).join("generation-1/rank1");
    let whole = std::fs::read(&path).unwrap();
    let mut flipped = whole.clone();
    *flipped.last_mut().unwrap() ^= 1;
    for (damaged, what) in [
        (&flipped[..], "a chunk of data is not what was written"),
        (&whole[..whole.len() - 1], "the length of the file is not what was written"),
        (&whole[..20], "the length of the file is not what was written"),
    ] {
        std::fs::write(&path, damaged).unwrap();
        refused(&read_by(&pool, 1), what);
    }
    for bit in 0..80 * 8 {
        // The head of the file: any damage is reported.
        if bit % 37 == 0 {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(&path, flipped).unwrap();
            refused(&read_by(&pool, 1), "/generation-1/rank1: ");
        }
    }
    std::fs::write(&path, whole).unwrap();
    read_by(&pool, 1).line();
}

#[test]
fn a_checkpoint_of_devices_with_other_memory_is_refused_with_both_ends() {
    let mut pool = Pool::empty("checkpoints-size");
    let mut stderr = pool.start_fleet(1, &["-n", "1", "--memory", "8M"]);
    pool.ctl("init 1").line();
    write(&pool);
    kill(Pid::from_raw(pool.coordinator().id().cast_signed()), Signal::SIGTERM).unwrap();
    std::io::Read::read_to_string(&mut stderr, &mut String::new()).unwrap();
    pool.coordinator().wait().unwrap();
    let _stderr = pool.start_fleet(1, &["-n", "1", "--memory", "4M"]);
    pool.ctl("init 1").line();
    let refused = read_by(&pool, 1);
    let both = "it is of a device with addresses up to 0x801000, and this one has them up to 0x401000";
    assert!(refused.error().contains(both), "{}", refused.stderr);
}

#[test]
fn a_pipe_with_the_name_of_a_checkpoint_keeps_no_device_waiting() {
    let pool = Pool::start("checkpoints-pipe", 1);
    pool.ctl("init 1").line();
    let directory = saved(&pool);
    std::fs::create_dir(&directory).unwrap();
    assert!(Command::new("mkfifo").arg(directory.join("CURRENT")).status().unwrap().success());
    let refused = read_by(&pool, 1);
    assert!(refused.error().contains("it is no regular file; remove it"), "{}", refused.stderr);
    assert!(pool.ctl("status 1").line().contains("ready"));
}

/// The number of steps of a checkpoint on the first rank: its beginning, the directory of the
/// generation, its part, a step for each MiB of two chunks, the end of its part, and three in which
/// the new checkpoint takes the place of the old one.
const STEPS: u64 = 11;

/// The number of steps on other ranks, which neither make a directory nor replace the old
/// checkpoint.
const STEPS_OF_OTHERS: u64 = 8;

#[test]
fn a_device_that_dies_in_the_middle_fails_the_communicator_and_the_old_checkpoint_is_whole() {
    let all = [(0, STEPS), (1, STEPS_OF_OTHERS)];
    let cases = all.into_iter().flat_map(|(rank, steps)| (1..=steps).map(move |step| (rank, step, steps)));
    for (rank, step, steps) in cases {
        if long() || rank == 0 && step >= steps - 2 || step == steps / 2 {
            die_in_the_second_checkpoint(rank, step, steps);
        }
    }
}

/// Kills the device of `rank` in this step of its second checkpoint, which has so many.
fn die_in_the_second_checkpoint(rank: usize, step: u64, steps: u64) {
    let name = format!("{rank}-{step}");
    let mut pool = Pool::empty(&format!("checkpoints-killed-{name}"));
    pool.start_coordinator();
    let faults = format!("kill:rank={rank},at={},of=step", steps + step);
    (0..2).for_each(|_| pool.start_faulty_device(&faults));
    let members = ranks(&pool.ctl("init 2").line());
    set(&pool, &members, 1);
    write(&pool);
    set(&pool, &members, 2);
    let told = pool.ctl(&format!("checkpoint 1 {}", saved(&pool).display()));
    // The coordinator or the other device reports it, whichever is first.
    let lost = format!("device {}", members[rank]);
    assert!(told.error().contains("was lost") && told.error().contains(&lost), "{name}: {}", told.stderr);
    assert!(pool.ctl("status 1").line().contains(": failed, epoch 1"), "{name}");
    let left = ranks(&pool.ctl("go-on 1").line());
    assert_eq!(left, [members[1 - rank]], "{name}");

    // Other devices read all of the old one, or all of the new one.
    let next = Pool::start(&format!("checkpoints-after-{name}"), 2);
    let newer = ranks(&next.ctl("init 2").line());
    let read = next.ctl(&format!("restore 1 {}", saved(&pool).display())).line();
    let state = if read.contains("checkpoint 1 ") { 1 } else { 2 };
    assert!(state == 1 || step >= steps - 1, "{name}: {read}");
    assert!(state == 2 || (rank, step) != (0, STEPS), "{name}: {read}");
    assert_state(&next, &newer, state);
    let again = next.ctl(&format!("checkpoint 1 {}", saved(&pool).display())).line();
    assert!(again.contains(&format!("checkpoint {} is written", state + 1)), "{name}: {again}");
}

#[test]
fn the_process_that_has_locked_the_directory_is_named_with_a_remedy() {
    let pool = Pool::start("checkpoints-held", 1);
    pool.ctl("init 1").line();
    write(&pool);
    let held = std::fs::File::open(saved(&pool)).unwrap();
    held.lock().unwrap();
    let told = pool.ctl(&format!("checkpoint 1 {}", saved(&pool).display()));
    let me = std::process::id();
    // Some file systems have no number by which the system lists their locks.
    let known = format!(
        "another job writes a checkpoint there by process {me}; wait for it, `kill {me}` if it hangs, or name another directory"
    );
    let unknown =
        "another job writes a checkpoint there; wait for it, end it if it hangs, or name another directory";
    assert!(told.error().contains(&known) || told.error().contains(unknown), "{}", told.stderr);
    drop(held);
    assert!(write(&pool).contains("checkpoint 2 is written"), "nothing has changed");
}
