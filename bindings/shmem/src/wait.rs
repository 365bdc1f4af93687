//! How a rank waits for a word in shared memory: it polls, gives way to others, and sleeps in the
//! end. Words of the program wake nobody, so it takes naps there.

use std::time::{Duration, Instant};

use shmccl::sync::LifeStatus;

use crate::fail::fatal;
use crate::world::world;

/// Polls before a waiter gives its core away, where each rank has a core.
const SPINS: u32 = 2000;

/// Polls with a yield before each, between two looks around.
const YIELDS: u32 = 8;

/// How long a waiter stays awake.
const AWAKE: Duration = Duration::from_micros(100);

/// The first nap.
const FIRST_NAP: Duration = Duration::from_micros(20);

/// The longest nap.
const LONGEST_NAP: Duration = Duration::from_millis(1);

/// How often a waiter looks whether the others are still there.
pub(crate) const LOOK: Duration = Duration::from_millis(100);

/// What a wait is for.
#[derive(Clone, Copy)]
pub(crate) struct AwaitedWord {
    /// The call, as C names it.
    pub(crate) call: &'static str,
    /// The rank that has to come, if it is a certain one.
    pub(crate) rank: Option<usize>,
}

impl AwaitedWord {
    pub(crate) const fn of(call: &'static str) -> Self {
        Self { call, rank: None }
    }
}

/// Returns how often to poll before yielding.
fn spins() -> u32 {
    static SPINS_HERE: std::sync::OnceLock<u32> = std::sync::OnceLock::new();
    *SPINS_HERE.get_or_init(|| {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        if world().n <= cores { SPINS } else { 0 }
    })
}

/// Lets other ranks of this core run. Programs poll with calls that test something.
pub(crate) fn yield_now() {
    std::thread::yield_now();
}

/// Waits until `is_ready`. It ends the program when the job ends, when nobody is left to wait for,
/// and after the timeout of the job.
#[inline]
pub(crate) fn until(awaited: AwaitedWord, mut is_ready: impl FnMut() -> bool) {
    if !is_ready() {
        let mut length = FIRST_NAP;
        out(awaited, &mut is_ready, &mut || {
            #[allow(clippy::disallowed_methods, reason = "this is the wait policy of these programs")]
            std::thread::sleep(length);
            length = (length * 2).min(LONGEST_NAP);
        });
    }
}

/// Waits as [`until`] does. A long wait calls `sleep`, which returns when the word has changed, or
/// after [`LOOK`].
#[inline]
pub(crate) fn until_woken(awaited: AwaitedWord, mut is_ready: impl FnMut() -> bool, mut sleep: impl FnMut()) {
    if !is_ready() {
        out(awaited, &mut is_ready, &mut sleep);
    }
}

#[cold]
fn out(awaited: AwaitedWord, is_ready: &mut dyn FnMut() -> bool, sleep: &mut dyn FnMut()) {
    for _ in 0..spins() {
        std::hint::spin_loop();
        if is_ready() {
            return;
        }
    }
    let begun = Instant::now();
    let mut looked = begun;
    loop {
        for _ in 0..YIELDS {
            std::thread::yield_now();
            if is_ready() {
                return;
            }
        }
        let waited = begun.elapsed();
        if waited > AWAKE {
            sleep();
        }
        if looked.elapsed() > LOOK {
            looked = Instant::now();
            let reason = reason_to_stop(awaited, waited);
            if is_ready() {
                return;
            }
            if let Some(reason) = reason {
                fatal(format_args!("{}: {reason}", awaited.call));
            }
        }
    }
}

/// Returns why nobody should wait any longer, if there is a reason.
fn reason_to_stop(awaited: AwaitedWord, waited: Duration) -> Option<String> {
    let world = world();
    if let Some(reason) = world.aborter.revoked() {
        return Some(format!("the job has ended: {reason:?}"));
    }
    if world.aborter.timeout().is_some_and(|timeout| waited > timeout) {
        return Some(match awaited.rank {
            Some(rank) => format!("waited {} s for rank {rank}", waited.as_secs()),
            None => format!("waited {} s", waited.as_secs()),
        });
    }
    let report = world.aborter.report().ok().flatten()?;
    let is_gone = |rank: usize| {
        report.ranks.get(rank).is_some_and(|rank| matches!(rank.life, LifeStatus::Left | LifeStatus::Lost))
    };
    match awaited.rank {
        Some(rank) => is_gone(rank).then(|| format!("rank {rank} has left the job")),
        None => {
            let mut others = (0..world.n).filter(|rank| *rank != world.me);
            (world.n > 1 && others.all(is_gone)).then(|| "all other ranks have left the job".to_owned())
        }
    }
}
