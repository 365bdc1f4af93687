//! Kills devices, the proxy service and the launcher at random moments, and looks at what the
//! others are told, what is left behind, and whether the others can go on.
//!
//! The test binary is its own device and launcher: processes are this binary again, told to run the
//! same test. `SHMCCL_LONG=1` runs 300 trials and more of each kind (1600 of going on without the
//! dead: in 3 of 13 a second one dies, in 3 more while the others shrink), until 300 second deaths,
//! and 300 deaths each while others shrink, join and start again, were seen to be what they are
//! meant to be; in a release build it holds survivors to all the times that the README promises;
//! otherwise times are shown and not judged. `SHMCCL_SEED` replays a series. `--nocapture` shows
//! the table.
#![expect(clippy::print_stdout, reason = "devices report on stdout, and the table is the result")]

mod cores;
mod device;
mod failed_restarts;
mod flood;
mod gathering;
mod halting;
mod joining;
mod launcher;
mod orphaned;
mod recovered_heaps;
mod restarting;
mod returning;
mod series;
mod statistics;
mod steps;
mod stepwise;
mod stopped;
mod survivor;
mod survivors;
mod trial;
mod woken;
mod work;

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::time::{ClockId, clock_gettime};
use shmccl::bootstrap::ProxyMode;
use shmccl::error::{DeviceName, ExitCause};
use shmccl::launch::Program;
use shmccl::{Error, Rank};
use support::{Random, Watchdog, is_running, long};

use crate::fault_program::count_operations;
use cores::Cores;
use device::{be_a_device, is_device};
use failed_restarts::{be_failing, be_shrinking, run_failing, run_shrinking};
use flood::{be_a_flooder, flood};
use launcher::{LauncherTrial, be_a_launcher, is_launcher};
use series::Series;
use statistics::{Statistics, percentiles};
use stepwise::{be_struck, kill_at};
use survivor::be_a_survivor;
use survivors::{SurvivorsTrial, Times};
use trial::Trial;

/// What ranks do when one of them is killed.
const PHASES: [&str; 6] = ["init", "put", "wait", "barrier", "flush", "teardown"];

/// Through what they do it.
const MODES: [&str; 3] = ["direct", "thread proxy", "service"];

/// The series of kills.
const KILLED: &str = "whoever_survives_a_killed_process_is_told_and_nothing_is_left";

/// One trial may take so long before the process is aborted.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn whoever_survives_a_killed_process_is_told_and_nothing_is_left() {
    if is_device() {
        return be_a_device();
    }
    let trials = if long() { 300 } else { 30 };
    let Some(mut series) = Series::begin(KILLED, &format!("{trials} trials")) else { return };
    let mut statistics = Statistics::default();
    for number in 0..trials {
        let draw = |random: &mut Random| Trial::draw(number, random);
        series.trial(draw, |trial| {
            let report = trial.run(KILLED);
            trial.judge(&report, &mut statistics);
            let alive: Vec<_> = report.pids.values().filter(|&&pid| is_running(pid)).collect();
            assert!(alive.is_empty(), "{alive:?} are left after {trial:?}");
            let names = shared_memory(&trial.prefix());
            assert!(names.is_empty(), "{names:?} are left in /dev/shm after {trial:?}");
        });
    }
    println!("{statistics}");
    statistics.hold_the_promise(strict());
}

#[test]
fn whoever_survives_a_crash_that_dumps_core_is_told_as_soon_and_the_dump_is_small() {
    if is_device() {
        return be_a_device();
    }
    let test = "whoever_survives_a_crash_that_dumps_core_is_told_as_soon_and_the_dump_is_small";
    let trials = if long() { 200 } else { 12 };
    let Some(mut series) = Series::begin(test, &format!("{trials} trials")) else { return };
    let cores = Cores::switch_on(test);
    let mut statistics = Statistics::default();
    for number in 0..trials {
        let draw = |random: &mut Random| Trial::draw_crash(number, random);
        series.trial(draw, |trial| trial.judge(&trial.run(test), &mut statistics));
        cores.judge();
    }
    println!("{statistics}\n{cores}");
    statistics.hold_the_promise(strict());
}

#[test]
fn whatever_the_operation_at_which_a_rank_is_killed_the_others_lose_it_and_nothing_is_left() {
    if is_device() {
        return be_struck();
    }
    let name = "whatever_the_operation_at_which_a_rank_is_killed_the_others_lose_it_and_nothing_is_left";
    let Some(mut series) = Series::begin(name, "a kill at each operation") else { return };
    for number in 1..=count_operations() {
        series.trial(|_| number, |number| kill_at(name, *number));
    }
}

#[test]
fn the_names_of_a_killed_ranks_segments_are_removed_and_those_of_others_are_not() {
    let (victim, delay_us) = (DeviceName::Rank(Rank::new(1, 2).unwrap()), 100);
    let trial = Trial {
        number: 1000,
        n_ranks: 2,
        phase: "wait",
        mode: "direct",
        victim,
        named: true,
        delay_us,
        signal: Signal::SIGKILL,
        heap_len: 2 << 20,
    };
    let _watchdog = Watchdog::start(&format!("{trial:?}"), PATIENCE);
    trial.judge(&trial.run(KILLED), &mut Statistics::default());
    assert_eq!(shared_memory(&trial.prefix()), [""; 0]);
    // What another job has under these names stays, and the job does not start.
    let name = format!("{}.1", trial.prefix());
    let path = std::path::Path::new("/dev/shm").join(&name);
    std::fs::write(&path, b"of another job").unwrap();
    let report = trial.run(KILLED);
    let left = std::fs::read(&path);
    std::fs::remove_file(&path).unwrap();
    assert!(
        matches!(&report.result, Err(Error::NameInUse { name: found, holder: None }) if *found == name),
        "{report:?}"
    );
    assert!(report.pids.is_empty());
    assert_eq!(left.unwrap(), b"of another job");
    assert_eq!(shared_memory(&trial.prefix()), [""; 0]);
}

#[test]
fn a_killed_launcher_leaves_no_process_and_no_name() {
    if is_device() {
        return be_a_device();
    }
    if is_launcher() {
        return be_a_launcher();
    }
    let trials = if long() { 300 } else { 8 };
    let test = "a_killed_launcher_leaves_no_process_and_no_name";
    let Some(mut series) = Series::begin(test, &format!("{trials} trials")) else { return };
    let draw = |number| series.trial(|random| LauncherTrial::draw(number, random), LauncherTrial::run);
    let mut times: Vec<_> = (0..trials).map(draw).collect();
    let [p50, p99, max] = percentiles(&mut times);
    println!("launcher killed: all its processes and names gone after p50 {p50} p99 {p99} max {max}");
}

#[test]
fn survivors_of_killed_ranks_agree_on_who_is_lost_and_compute_on() {
    if is_device() {
        return be_a_survivor();
    }
    let (trials, wanted) = if long() { (1600, 300) } else { (208, 0) };
    let test = "survivors_of_killed_ranks_agree_on_who_is_lost_and_compute_on";
    let Some(mut series) = Series::begin(test, &format!("{trials} trials and more")) else { return };
    let mut times = Times::default();
    // How many second deaths come while the others shrink depends on the machine.
    for number in 0..4 * trials {
        if number >= trials && times.have_shown(wanted) {
            break;
        }
        let draw = |random: &mut Random| SurvivorsTrial::draw(number, random);
        series.trial(draw, |trial| trial.judge(&trial.run(), &mut times));
    }
    println!("{times}");
    assert!(times.have_shown(wanted), "fewer than {wanted} of a kind");
    times.hold_the_promise(strict());
}

#[test]
fn whoever_has_filled_its_fifo_with_long_puts_leaves_at_once_when_a_peer_is_killed() {
    if is_device() {
        return be_a_flooder();
    }
    let test = "whoever_has_filled_its_fifo_with_long_puts_leaves_at_once_when_a_peer_is_killed";
    for mode in [ProxyMode::Thread, ProxyMode::Process] {
        let _watchdog = Watchdog::start(test, PATIENCE);
        let left = flood(test, mode);
        println!("{mode:?}: with {left:?} puts left in the fifo");
    }
}

#[test]
fn a_rank_that_dies_again_and_again_ends_the_job_by_its_last_death() {
    if is_device() {
        return be_failing();
    }
    let test = "a_rank_that_dies_again_and_again_ends_the_job_by_its_last_death";
    let _watchdog = Watchdog::start(test, PATIENCE);
    let (outcome, restarted) = run_failing(test, "exits");
    let end = (DeviceName::Rank(Rank::new(1, 2).unwrap()), ExitCause::Code(7));
    assert_eq!(restarted, [end; 2]);
    let error = outcome.unwrap_err();
    assert!(matches!(error, Error::DeviceFailed { device, cause } if (device, cause) == end), "{error}");
}

#[test]
fn who_is_left_is_told_at_once_that_no_restart_is_and_goes_on_without_the_dead() {
    if is_device() {
        return be_shrinking();
    }
    let test = "who_is_left_is_told_at_once_that_no_restart_is_and_goes_on_without_the_dead";
    for restarts in [1, 2] {
        let _watchdog = Watchdog::start(test, PATIENCE);
        let output = run_shrinking(test, restarts);
        let said = |what: &str| output.lines().filter(|line| line.contains(what)).count();
        assert_eq!((said("@ in vain: a restart that is left"), said("@ done")), (2, 2), "{output}");
    }
}

#[test]
fn a_rank_that_leaves_and_ends_with_an_error_is_not_started_again() {
    if is_device() {
        return be_failing();
    }
    let test = "a_rank_that_leaves_and_ends_with_an_error_is_not_started_again";
    let _watchdog = Watchdog::start(test, PATIENCE);
    let (outcome, restarted) = run_failing(test, "leaves");
    assert_eq!(restarted, []);
    let end = (DeviceName::Rank(Rank::new(1, 2).unwrap()), ExitCause::Code(7));
    let error = outcome.unwrap_err();
    assert!(matches!(error, Error::DeviceFailed { device, cause } if (device, cause) == end), "{error}");
}

#[test]
fn a_rank_that_hangs_and_is_given_up_is_killed_and_started_again() {
    if is_device() {
        return be_failing();
    }
    let test = "a_rank_that_hangs_and_is_given_up_is_killed_and_started_again";
    let _watchdog = Watchdog::start(test, PATIENCE);
    let (outcome, restarted) = run_failing(test, "hangs");
    let end = (DeviceName::Rank(Rank::new(1, 2).unwrap()), ExitCause::Signal(9));
    assert_eq!((outcome.unwrap().restarted, restarted), (vec![end], vec![end]));
}

#[test]
fn a_rank_that_a_fault_has_killed_is_said_to_have_died_by_it_and_suffers_none_when_it_is_back() {
    if is_device() {
        return be_failing();
    }
    let test = "a_rank_that_a_fault_has_killed_is_said_to_have_died_by_it_and_suffers_none_when_it_is_back";
    let _watchdog = Watchdog::start(test, PATIENCE);
    let (outcome, restarted) = run_failing(test, "struck");
    assert_eq!(outcome.unwrap().restarted, restarted);
    let [(device, ExitCause::Injected(strike))] = restarted[..] else { panic!("{restarted:?}") };
    assert_eq!((device, strike.number, strike.seed), (DeviceName::Rank(strike.rank), 3, 7));
}

/// Starts this binary with the test `name` of this module.
fn this_test(name: &str) -> Program {
    Program::new(std::env::current_exe().unwrap(), these_args(name))
}

/// Arguments with which this binary runs the test `name` of this module, and no other.
fn these_args(name: &str) -> [String; 4] {
    [&format!("kill::{name}"), "--exact", "--nocapture", "--test-threads=1"].map(str::to_owned)
}

/// Nanoseconds on the clock that all processes share.
fn now() -> u64 {
    u64::try_from(Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap()).as_nanos()).unwrap()
}

/// Lets some time pass: the moment of a kill is drawn by lot.
fn doze(us: u64) {
    std::thread::park_timeout(Duration::from_micros(us));
}

/// How many descriptors this process has open, besides the one that looks. Claims of cores do not
/// count: a launching process keeps them, and the largest of its jobs makes the most of them.
fn descriptors() -> usize {
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
    let claims = sockets.lines().filter(|line| line.contains("@shmccl-core-"));
    let claims: HashSet<_> =
        claims.map(|line| format!("socket:[{}]", line.split_whitespace().nth(6).unwrap())).collect();
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    let is_claim = |path: &Path| claims.contains(&*path.to_string_lossy());
    open.filter(|entry| !std::fs::read_link(entry.as_ref().unwrap().path()).is_ok_and(|path| is_claim(&path)))
        .count()
}

/// Names in `/dev/shm` that start with `prefix`.
fn shared_memory(prefix: &str) -> Vec<String> {
    let names =
        std::fs::read_dir("/dev/shm").unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with(prefix)).collect()
}

/// Whether promises of time are held that a busy machine may break: with many trials, on optimised
/// code.
fn strict() -> bool {
    long() && !cfg!(debug_assertions)
}
