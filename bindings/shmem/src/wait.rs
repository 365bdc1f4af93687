//! How a rank waits for a word in shared memory: by the waiting loop of the engine, which polls,
//! gives way to others, and sleeps in the end.
//!
//! Calls that change words of another rank wake it. A program that stores through a pointer wakes
//! nobody, and is heard up to 20 ms later.

use crate::fail::{look, or_fatal};
use crate::world::world;

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

/// Lets other ranks of this core run. Programs poll with calls that test something.
pub(crate) fn yield_now() {
    std::thread::yield_now();
}

/// Waits until `is_ready`. It ends the program when the job ends, when nobody is left to wait for,
/// and after the timeout of the job.
#[inline]
pub(crate) fn until(awaited: AwaitedWord, mut is_ready: impl FnMut() -> bool) {
    if !is_ready() {
        wait(awaited, &mut is_ready);
    }
}

#[cold]
fn wait(awaited: AwaitedWord, is_ready: &mut dyn FnMut() -> bool) {
    let world = world();
    let one = awaited.rank.map(|rank| world.numbered(rank));
    let needed = one.as_ref().map_or(world.others.as_slice(), std::slice::from_ref);
    let poll = || {
        let is_ready = is_ready().then_some(());
        // A rank that has ended all says so before it leaves: nobody is to be blamed for that.
        is_ready.or_else(|| {
            look();
            None
        })
    };
    or_fatal(world.symmetric.wait_for(needed, poll), awaited.call);
}
