//! The thread that executes what was started and nobody waits for.
//!
//! A program that starts an operation and then waits for it has the quickest core for it. To wake
//! another thread costs as much as a short operation, and then two threads compete. So the worker
//! is not called for each operation. While some are started it looks by itself: it takes up what
//! was there at its last look already. When nothing was started for a while it goes to sleep, and
//! the next start wakes it.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::{CallQueue, CallStage, QueueState, StartedCalls, Turn};
use crate::bootstrap::resource_error;
use crate::error::Result;
use crate::shm::undivided::spawn;

/// How long the worker waits between two looks at first. It waits twice as long after each that has
/// found nothing for it.
const SHORTEST_NAP: Duration = Duration::from_micros(100);

/// How long it waits at most.
const LONGEST_NAP: Duration = Duration::from_millis(1);

/// How many looks at an empty queue send the worker to sleep.
const IDLE_LOOKS: u32 = 16;

/// A call of so many bytes takes far longer than to wake the worker.
const LONG: u64 = 256 << 10;

/// What others know of the worker.
#[derive(Debug, Default)]
pub(super) struct WorkerState {
    thread: Option<JoinHandle<()>>,
    /// It sleeps until it is called, and does not look by itself.
    is_asleep: bool,
    /// It is to take up at once what it finds.
    is_urged: bool,
    /// It is to end.
    pub(super) is_over: bool,
}

/// What the worker remembers from look to look.
struct Looks {
    /// The number of the call whose turn it was.
    seen: Option<u64>,
    nap: Duration,
    n_idle: u32,
}

/// What it does next.
enum Next {
    Do(Turn<()>),
    Nap,
    Sleep,
    End,
}

impl StartedCalls {
    /// Returns whether they take far longer than to wake the worker.
    pub(super) fn is_long(&self) -> bool {
        let mut calls = self.calls.first.iter().chain(&self.calls.several);
        calls.any(|call| call.block_len().is_ok_and(|len| len >= LONG))
    }
}

impl WorkerState {
    /// Starts the worker of `queue`, if there is none.
    ///
    /// # Errors
    /// [`crate::Error::ResourceLimit`], [`crate::Error::Os`].
    pub(super) fn begin(&mut self, queue: &Arc<CallQueue>) -> Result<()> {
        if self.thread.is_none() {
            let queue = Arc::clone(queue);
            let started = spawn("shmccl-work", move || queue.serve());
            let action = "starting the thread of a communicator";
            self.thread = Some(started.map_err(|source| resource_error(action, source))?);
        }
        Ok(())
    }

    /// Has the worker look soon, or at once.
    pub(super) fn call(&mut self, is_urgent: bool) {
        self.is_urged |= is_urgent;
        let Some(thread) = &self.thread else { return };
        if std::mem::take(&mut self.is_asleep) || is_urgent {
            thread.thread().unpark();
        }
    }
}

impl QueueState {
    /// Leaves to the worker what is left.
    pub(super) fn call_worker(&mut self) {
        if !self.calls.is_empty() {
            self.worker.call(false);
        }
    }

    /// Has the worker begin what is not begun.
    pub(super) fn urge_worker(&mut self) {
        let front = self.calls.front().map(|call| &call.stage);
        if matches!(front, Some(CallStage::Started(_))) {
            self.worker.call(true);
        }
    }

    fn next(&mut self, looks: &mut Looks) -> Next {
        if self.worker.is_over {
            return Next::End;
        }
        let is_urged = std::mem::take(&mut self.worker.is_urged);
        let front = self.calls.front().map(|call| call.number);
        let is_due = front.is_some() && (is_urged || front == looks.seen);
        looks.seen = front;
        let is_left = self.n_waiting == 0;
        if is_due
            && is_left
            && let Some(turn) = self.turn()
        {
            (looks.nap, looks.n_idle) = (SHORTEST_NAP, 0);
            return Next::Do(turn);
        }
        looks.n_idle = if front.is_some() && is_left { 0 } else { looks.n_idle + 1 };
        if looks.n_idle < IDLE_LOOKS {
            return Next::Nap;
        }
        looks.n_idle = 0;
        self.worker.is_asleep = true;
        Next::Sleep
    }
}

impl CallQueue {
    /// Ends the worker, if there is one. Nothing is left to be done.
    pub(super) fn end_worker(&self) {
        let mut state = self.state.lock();
        state.worker.is_over = true;
        state.worker.call(true);
        let thread = state.worker.thread.take();
        drop(state);
        self.message_park.wake(self.context().kernel());
        match thread {
            // A function of the program may drop the communicator on that thread itself.
            Some(thread) if thread.thread().id() != std::thread::current().id() => drop(thread.join()),
            _ => {}
        }
    }

    fn serve(self: &Arc<Self>) {
        let mut looks = Looks { seen: None, nap: SHORTEST_NAP, n_idle: 0 };
        loop {
            let next = self.state.lock().next(&mut looks);
            match next {
                Next::Do(Turn::Run(number, engine, started)) => {
                    self.context().add_spinner();
                    self.run(number, engine, *started);
                    self.context().remove_spinner();
                }
                Next::Do(_) => self.see_to_messages(),
                Next::Nap => {
                    std::thread::park_timeout(looks.nap);
                    looks.nap = LONGEST_NAP.min(2 * looks.nap);
                }
                Next::Sleep => std::thread::park(),
                Next::End => return,
            }
        }
    }
}
