//! The queue of a stream, and the thread that executes it.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

use super::StreamStatus;
use crate::bootstrap::resource_error;
use crate::channel::RankContext;
use crate::comm::calls::monitor::Monitor;
use crate::error::{Error, Result};
use crate::shm::undivided::spawn;
use crate::sync::Watch;

/// The most operations that wait in a stream.
pub const MAX_ENQUEUED: usize = 1 << 16;

/// The error for a full stream.
const FULL: Error = Error::Exhausted {
    what: "operations in a stream (synchronise it, then enqueue more)",
    limit: MAX_ENQUEUED as u64,
};

/// Executes an operation. After a failure it gets that failure instead, and only informs its
/// waiters.
type StreamWork = dyn FnOnce(Option<&Failure>) -> Result<()> + Send;

/// One operation of a stream.
pub(super) struct StreamTask {
    /// The name of the operation.
    pub(super) operation: &'static str,
    /// Whose epoch it belongs to.
    pub(super) context: Arc<RankContext>,
    pub(super) work: Box<StreamWork>,
}

impl std::fmt::Debug for StreamTask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.operation)
    }
}

/// The first operation of a stream that failed, and why.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    operation: &'static str,
    number: u64,
    source: Arc<Error>,
}

impl Failure {
    pub(super) fn error(&self) -> Error {
        let Self { operation, number, source } = self;
        Error::StreamFailed { operation, number: *number, source: Arc::clone(source) }
    }
}

/// The tasks of a stream, between the threads that enqueue them and its worker.
#[derive(Debug)]
pub(super) struct StreamQueue(Monitor<StreamQueueState>);

#[derive(Debug, Default)]
struct StreamQueueState {
    tasks: VecDeque<StreamTask>,
    enqueued: u64,
    done: u64,
    failure: Option<Failure>,
    /// Nothing will be enqueued any more.
    is_closed: bool,
}

impl StreamQueueState {
    fn failed(&self) -> Result<()> {
        self.failure.as_ref().map_or(Ok(()), |failure| Err(failure.error()))
    }
}

impl StreamQueue {
    pub(super) fn new(context: &Arc<RankContext>) -> Arc<Self> {
        Arc::new(Self(Monitor::new(context, StreamQueueState::default())))
    }

    /// Starts the thread that executes the tasks in order, until the queue is closed and empty.
    ///
    /// # Errors
    /// [`Error::ResourceLimit`], [`Error::Os`].
    pub(super) fn start(self: &Arc<Self>) -> Result<JoinHandle<()>> {
        let queue = Arc::clone(self);
        spawn("shmccl-stream", move || queue.serve())
            .map_err(|source| resource_error("starting the thread of a stream", source))
    }

    /// Checks that one more task can wait.
    ///
    /// # Errors
    /// [`Error::Exhausted`].
    pub(super) fn check_room(&self) -> Result<()> {
        self.0.look(|state| if state.tasks.len() < MAX_ENQUEUED { Ok(()) } else { Err(FULL) })
    }

    /// Appends `task`. It returns an earlier failure at once, but the task is in the queue, since
    /// others may wait for it.
    ///
    /// # Errors
    /// [`Error::StreamFailed`]; [`Error::Exhausted`] where there is no room, and the task is
    /// dropped.
    pub(super) fn push(&self, task: StreamTask) -> Result<()> {
        let (refused, pushed) = self.0.change(|state| {
            if state.tasks.len() >= MAX_ENQUEUED {
                return (Some(task), Err(FULL));
            }
            state.tasks.push_back(task);
            state.enqueued += 1;
            (None, state.failed())
        });
        // It may wait for the worker as it is dropped, which needs the lock.
        drop(refused);
        pushed
    }

    /// Returns whether everything enqueued is done.
    ///
    /// # Errors
    /// [`Error::StreamFailed`].
    pub(super) fn query(&self) -> Result<StreamStatus> {
        self.0.look(|state| {
            state.failed()?;
            let is_done = state.done == state.enqueued;
            Ok(if is_done { StreamStatus::Success } else { StreamStatus::InProgress })
        })
    }

    /// Waits until all is done that has been enqueued by now.
    ///
    /// # Errors
    /// [`Error::StreamFailed`]; [`Error::Cancelled`].
    pub(super) fn synchronise(&self) -> Result<()> {
        let goal = self.0.look(|state| state.enqueued);
        self.0.wait_cancellable("synchronise", |state| (state.done >= goal).then(|| state.failed()))?
    }

    /// Lets the worker end when everything is done. A thread that unwinds ends the epoch before
    /// that: peers may never come to those operations.
    pub(super) fn close(&self) {
        if std::thread::panicking() && !matches!(self.query(), Ok(StreamStatus::Success)) {
            self.0.context.mark_own_loss();
        }
        self.0.change(|state| state.is_closed = true);
    }

    fn serve(&self) {
        self.0.context.add_spinner();
        let mut number = 0;
        let mut failure = None;
        while let Some((task, is_closed)) = self.next() {
            number += 1;
            if failure.is_none() && is_closed {
                failure = end_of_epoch(&task.context).map(|source| failed(task.operation, number, source));
            }
            let operation = task.operation;
            let run = || (task.work)(failure.as_ref());
            let outcome = catch_unwind(AssertUnwindSafe(run)).unwrap_or(Err(Error::Panicked));
            if let (None, Err(source)) = (&failure, outcome) {
                failure = Some(failed(operation, number, source));
            }
            self.0.change(|state| {
                state.done = number;
                state.failure.clone_from(&failure);
            });
        }
        self.0.context.remove_spinner();
    }

    /// Returns the next task, and whether it is one of the last; `None` when there will be none.
    /// The worker does not count as a spinner while it sleeps.
    fn next(&self) -> Option<(StreamTask, bool)> {
        let take = |state: &mut StreamQueueState| match state.tasks.pop_front() {
            Some(task) => Some(Some((task, state.is_closed))),
            None => state.is_closed.then_some(None),
        };
        if let Some(next) = self.0.wait_awake(take) {
            return next;
        }
        self.0.context.remove_spinner();
        let next = self.0.wait_asleep(take);
        self.0.context.add_spinner();
        next
    }
}

/// Returns why an operation of this epoch is not worth doing any more, if so.
fn end_of_epoch(context: &RankContext) -> Option<Error> {
    let watch = context.watch(None);
    let stop = watch.check()?;
    Some(context.waiting(&watch).error(stop, "stream", None))
}

fn failed(operation: &'static str, number: u64, source: Error) -> Failure {
    Failure { operation, number, source: Arc::new(source) }
}
