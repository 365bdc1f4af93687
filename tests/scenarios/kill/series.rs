//! What all series of trials have in common: they are drawn from one seed, do not hang, and leave
//! nothing.

use std::fmt::Debug;
use std::process::{Command, Stdio};

use nix::errno::Errno;
use nix::sys::wait::{WaitPidFlag, waitpid};
use support::{Random, Watchdog, seed};

use crate::kill::{PATIENCE, descriptors, these_args};

/// Set in a process that runs one series and nothing else.
const ALONE: &str = "SHMCCL_TEST_SERIES";

/// A series of trials in a process of its own, whose descriptors and children are counted.
pub(crate) struct Series {
    random: Random,
    /// How many descriptors were open after the first trial: the first launch of a process opens
    /// what it keeps, the pipe behind its signal handlers.
    open: Option<usize>,
}

impl Series {
    /// Begins a series of `what` in the test `test`, and says so, with the seed that repeats it.
    ///
    /// The series runs in a process of its own, since the harness runs other tests in this one at
    /// the same time. Returns `None` in the process of the harness, when that one has succeeded.
    ///
    /// # Panics
    /// When the series has failed.
    pub(crate) fn begin(test: &str, what: &str) -> Option<Self> {
        if std::env::var_os(ALONE).is_none() {
            run_alone(test);
            return None;
        }
        let seed = seed();
        println!("{what}, SHMCCL_SEED={seed}");
        Some(Self { random: Random(seed), open: None })
    }

    /// A number below `limit`, drawn by lot.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.random.below(limit)
    }

    /// Draws a trial and runs it.
    ///
    /// # Panics
    /// When descriptors or children of this process are left. When it hangs, the process is
    /// aborted.
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

/// Runs the series of `test` in a process of its own, and passes on what it prints.
fn run_alone(test: &str) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let output = command.args(these_args(test)).env(ALONE, "1").stdin(Stdio::null()).output().unwrap();
    let [out, err] = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(output.status.success(), "{}\n{out}{err}", output.status);
    println!("{out}{err}");
}
