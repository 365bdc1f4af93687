//! Trials in which the launcher is killed while its ranks are on their way from one epoch into the
//! next: they stand behind wrappers, so that the kernel kills these only, and have to find out by
//! themselves that nobody looks after them any more.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use shmccl::comm::{JoinedAs, join_job};
use shmccl::launch::{Launch, Program};
use shmccl::reduce::ReduceOp;
use shmccl::{Collectives, Communicator, Error, Result, UniqueId};
use support::{await_all_children, is_running, wait_until};
use tracing::Event;
use tracing::field::{Field, Visit};

use crate::kill::device::{is_device, say, saying};
use crate::kill::{steps, these_args};

/// What the ranks do on their way: "shrink" or "recover" without rank 2, which a fault kills, or
/// "grow" by one.
const WAY: &str = "ORPHAN_WAY";

/// The test that all processes are told to run.
const TEST: &str = "ORPHAN_TEST";

/// The launcher's process, as it tells its ranks.
const LAUNCHER: &str = "ORPHAN_LAUNCHER";

/// Set in a newcomer: the id by which it joins.
const ID: &str = "ORPHAN_ID";

/// How long a rank computes on that nobody looks after, before it takes it that it would do so for
/// ever.
const FOR_EVER: Duration = Duration::from_secs(10);

/// How long everybody waits for the others. Nobody is to wait so long: that would be another error
/// than that the launcher is gone.
const DEADLINE: Duration = Duration::from_secs(8);

/// Set in the process that has killed the launcher.
static IS_DONE: OnceLock<()> = OnceLock::new();

/// Set in a process that listens to the launcher in an epoch.
static LISTENS: OnceLock<()> = OnceLock::new();

/// Whether this process has heard that the launcher is gone.
static HAS_HEARD: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());

/// Whether this process is of a trial, and is not the test itself.
pub(crate) fn is_of_a_trial() -> bool {
    std::env::var_os(WAY).is_some()
}

/// The body of whatever process this is.
pub(crate) fn be_of_a_trial() {
    if let Ok(id) = std::env::var(ID) {
        return be_a_newcomer(&id.parse().unwrap());
    }
    if is_device() { be_a_rank() } else { be_the_launcher() }
}

/// What starts another process of `test`.
fn this_process(test: &str) -> [String; 5] {
    let own = std::env::current_exe().unwrap().into_os_string().into_string().unwrap();
    let [name, exact, captured, threads] = these_args(test);
    [own, name, exact, captured, threads]
}

fn told(name: &str) -> String {
    std::env::var(name).unwrap()
}

fn be_the_launcher() {
    // A shell that has nothing else to do would become the program.
    let wrapped = ["-c".to_owned(), r#""$0" "$@"; exit $?"#.to_owned()];
    let args = wrapped.into_iter().chain(this_process(&told(TEST)));
    let way = told(WAY);
    let grows = way == "grow";
    let launch = Launch::new(if grows { 2 } else { 3 }).unwrap().program(Program::new("sh", args));
    let launch = launch.heap_len(8 << 20).timeout(DEADLINE).grace(Duration::from_secs(5));
    let launch = launch.env(LAUNCHER, std::process::id().to_string()).keep_going(true);
    let launch = launch.restart(u32::from(way == "recover"));
    let faults = if grows { "" } else { "kill:rank=2,at=3" };
    launch.faults(faults.parse().unwrap()).run(|_| Ok::<_, Error>(())).unwrap();
}

fn be_a_rank() {
    // Who is started again suffers no faults.
    if told(WAY) == "recover" && std::env::var_os("SHMCCL_FAULTS").is_none() {
        steps::count_from("orphan who was started again");
    }
    let comm = match join_job() {
        Ok(Some(JoinedAs::Device(comm))) => *comm,
        // It was started again, and nobody is there to take it back.
        Err(error) => return end(&error),
        other => panic!("{other:?}"),
    };
    let _ = LISTENS.set(());
    // Not that of the rank that dies.
    if comm.rank().get() != 2 || comm.was_restarted() {
        say("up");
    }
    match go_on(comm) {
        Ok(()) => say("through"),
        Err(error) => end(&error),
    }
}

fn end(error: &Error) {
    // Another one, perhaps the host of the meeting, has heard of it before this one, and has left.
    let has_left = match error {
        Error::Unavailable { operation: "recover", .. } => true,
        Error::NoMeeting { .. } => told(WAY) == "grow",
        Error::FailedElsewhere { .. } => told(WAY) != "shrink",
        _ => false,
    };
    assert!(has_left || matches!(error, Error::Revoked { by: None, .. }), "{error}");
    say("told");
}

fn go_on(mut comm: Communicator) -> Result<()> {
    let way = told(WAY);
    let rank = comm.rank();
    let mut is_over = comm.was_restarted();
    loop {
        let done = match way.as_str() {
            "grow" if !is_over => grow(&mut comm),
            _ => work(&mut comm, is_over).map(|()| None),
        };
        match done {
            Ok(None) => return comm.finalize(),
            Ok(Some(grown)) => comm = grown,
            Err(Error::PeerLost { .. }) if way == "grow" => {}
            Err(Error::PeerLost { .. }) => {
                steps::count_from(&format!("orphan {rank}"));
                comm = if way == "shrink" { comm.shrink()?.comm } else { comm.recover(0)? };
            }
            Err(error) => return Err(error),
        }
        is_over = true;
    }
}

/// Works with the others until all have seen that the launcher lives on; where it does not, until
/// they are told.
fn work(comm: &mut Communicator, is_over: bool) -> Result<()> {
    let began = Instant::now();
    loop {
        let mut is_done = [u32::from(IS_DONE.get().is_some())];
        comm.all_reduce_in_place(&mut is_done, &ReduceOp::Max)?;
        if is_over && is_done == [0] {
            return Ok(());
        }
        if began.elapsed() > FOR_EVER {
            say("endless");
            std::process::exit(3);
        }
    }
}

fn grow(comm: &mut Communicator) -> Result<Option<Communicator>> {
    let id = (comm.rank().get() == 0).then(|| UniqueId::new().unwrap());
    comm.barrier()?;
    let newcomer = id.as_ref().map(start_newcomer);
    steps::count_from(&format!("orphan {}", comm.rank()));
    let grown = comm.grow(3, id.as_ref()).map(Some);
    // It ends by itself; whoever this process leaves, the test adopts.
    drop(newcomer);
    grown
}

fn start_newcomer(id: &UniqueId) -> Child {
    let [own, args @ ..] = this_process(&told(TEST));
    let mut command = Command::new(own);
    command.args(args).env(ID, id.to_string()).env_remove(steps::FROM);
    command.spawn().unwrap()
}

fn be_a_newcomer(id: &UniqueId) {
    // Of those who leave the meeting it may see one, or none, before it hears why.
    let joined = Communicator::join_within(id, DEADLINE);
    match joined.and_then(|mut comm| work(&mut comm, true).and_then(|()| comm.finalize())) {
        Ok(()) => {}
        Err(
            Error::Revoked { .. }
            | Error::PeerLost { .. }
            | Error::NoMeeting { .. }
            | Error::FailedElsewhere { .. },
        ) => {}
        Err(error) => panic!("{error}"),
    }
}

/// How long the process that has killed the launcher waits at its step to hear of that: in some
/// steps nobody listens for it.
const HEARING: Duration = Duration::from_secs(1);

/// Kills the launcher, and returns when its sockets are closed, and this process has heard of that,
/// if it listens.
pub(crate) fn kill_the_launcher() {
    let launcher = Pid::from_raw(told(LAUNCHER).parse().unwrap());
    say("killed");
    let _ = IS_DONE.set(());
    kill(launcher, Signal::SIGKILL).unwrap();
    wait_until("the launcher is gone", || !is_running(launcher));
    if LISTENS.get().is_some() {
        let heard = HAS_HEARD.1.wait_timeout_while(has_heard(), HEARING, |has_heard| !*has_heard);
        drop(heard.unwrap_or_else(PoisonError::into_inner));
    }
}

fn has_heard() -> MutexGuard<'static, bool> {
    HAS_HEARD.0.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Hears what this process notes of its epochs.
pub(crate) fn hear(event: &Event<'_>) {
    struct IsOfTheLauncher(bool);
    impl Visit for IsOfTheLauncher {
        fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
            self.0 |= field.name() == "reason" && format!("{value:?}") == "Aborted(None)";
        }
    }
    let mut reason = IsOfTheLauncher(false);
    event.record(&mut reason);
    if reason.0 {
        *has_heard() = true;
        HAS_HEARD.1.notify_all();
    }
}

/// Runs `test` with ranks that go this `way`, of which the one that is called `victim` kills the
/// launcher at its step of this number. Returns whether it did.
pub(crate) fn orphan_at(test: &str, way: &str, victim: &str, number: u64) -> bool {
    // Whatever the launcher leaves becomes a child of this process: so nothing can hide.
    set_child_subreaper(true).unwrap();
    let [own, args @ ..] = this_process(test);
    let mut command = Command::new(own);
    command.args(args).stdout(Stdio::piped()).process_group(0);
    command.envs([(WAY, way), (TEST, test), ("SHMCCL_TUNING", "")]);
    command.env(steps::FROM, format!("orphan {victim}")).env(steps::NUMBER, number.to_string());
    let mut launcher = command.env(steps::ORPHANS, "1").spawn().unwrap();
    let lines = BufReader::new(launcher.stdout.take().unwrap()).lines().map(std::result::Result::unwrap);
    let lines: Vec<_> = lines.collect();
    launcher.wait().unwrap();
    await_all_children();
    let context = || format!("{way}, {victim} at step {number}:\n{}", lines.join("\n"));
    let said =
        |word: &str| lines.iter().filter_map(|line| saying(line)).filter(|said| said[0] == word).count();
    let [up, through, told, killed, endless] = ["up", "through", "told", "killed", "endless"].map(said);
    assert!(endless == 0 && up >= 2, "{}", context());
    if killed == 0 {
        assert_eq!((through, told), (up, 0), "{}", context());
    } else {
        // Who was started again may not have come as far as to say that it is up.
        assert!(through == 0 && told >= up, "{}", context());
    }
    killed > 0
}
