//! What all series of trials have in common: they are drawn from one seed, do not hang, and leave nothing.

use std::fmt::Debug;
use std::sync::MutexGuard;

use nix::errno::Errno;
use nix::sys::wait::{WaitPidFlag, waitpid};
use support::{Random, Watchdog, seed};

use crate::{PATIENCE, descriptors, one_at_a_time};

/// A series of trials. No other one runs meanwhile.
pub(crate) struct Series {
    _alone: MutexGuard<'static, ()>,
    random: Random,
    /// How many descriptors were open after the first trial: the first launch of a process opens what it keeps, the pipe behind its
    /// signal handlers.
    open: Option<usize>,
}

impl Series {
    /// Begins a series of `what`, and says so, with the seed that repeats it.
    pub(crate) fn begin(what: &str) -> Self {
        let alone = one_at_a_time();
        let seed = seed();
        println!("{what}, SHMCCL_SEED={seed}");
        Self { _alone: alone, random: Random(seed), open: None }
    }

    /// A number below `limit`, drawn by lot.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.random.below(limit)
    }

    /// Draws a trial and runs it.
    ///
    /// # Panics
    /// When descriptors or children of this process are left. When it hangs, the process is aborted.
    pub(crate) fn trial<T: Debug, R>(
        &mut self,
        draw: impl FnOnce(&mut Random) -> T,
        run: impl FnOnce(&T) -> R,
    ) -> R {
        let trial = draw(&mut self.random);
        let _watchdog = Watchdog::start(&format!("{trial:?}"), PATIENCE);
        let outcome = run(&trial);
        let before = *self.open.get_or_insert_with(descriptors);
        assert_eq!(descriptors(), before, "descriptors are left open after {trial:?}");
        let children = waitpid(None, Some(WaitPidFlag::WNOHANG));
        assert_eq!(children, Err(Errno::ECHILD), "a child is left after {trial:?}");
        outcome
    }
}
