//! The thread that has a device's communicator, and executes what the device is told.

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};

use nix::sys::signal::SigSet;

use super::calls::execute;
use crate::bootstrap::{Options, resource_error};
use crate::comm::Aborter;
use crate::coordinator::agent::{Outcome, Task};
use crate::coordinator::order::MAX_TEXT;
use crate::error::{Error, Result};
use crate::heap::DeviceMemory;
use crate::{Communicator, UniqueId};

/// The way to the worker and back.
#[derive(Debug)]
pub(super) struct Worker {
    tasks: Sender<Task>,
    outcomes: Receiver<(Outcome, Option<Aborter>)>,
    /// Readable when there may be an outcome.
    bell: UnixStream,
}

/// What the thread has.
struct Hands {
    memory: Arc<DeviceMemory>,
    options: Options,
    comm: Option<Communicator>,
}

impl Worker {
    /// Starts the thread, which ends with the process.
    ///
    /// # Errors
    /// [`Error::ResourceLimit`], [`Error::Os`].
    pub(super) fn start(memory: Arc<DeviceMemory>, options: Options) -> Result<Self> {
        let prepare = || {
            let (bell, rope) = UnixStream::pair()?;
            bell.set_nonblocking(true)?;
            rope.set_nonblocking(true)?;
            Ok((bell, rope))
        };
        let (bell, mut rope) =
            prepare().map_err(|error| resource_error("preparing a device's worker", error))?;
        let (tasks, todo) = channel();
        let (done, outcomes) = channel();
        let work = move || {
            // Signals are for the thread that serves.
            let _ = SigSet::all().thread_block();
            let mut hands = Hands { memory, options, comm: None };
            for task in todo {
                let outcome = hands.work(task);
                if done.send((outcome, hands.comm.as_ref().map(Communicator::aborter))).is_err() {
                    return;
                }
                // A full socket rings already.
                let _ = rope.write(&[0]);
            }
        };
        let thread = std::thread::Builder::new().name("shmccl device".to_owned()).spawn(work);
        thread.map_err(|error| resource_error("starting a device's worker", error))?;
        Ok(Self { tasks, outcomes, bell })
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Gives it a task, when it has none.
    pub(super) fn begin(&self, task: Task) {
        // It ends with the process only.
        let _ = self.tasks.send(task);
    }

    /// What came of the task, when it is done, and what ends the epoch that the worker is in since.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the thread has panicked: a device without a worker is none.
    pub(super) fn finished(&mut self) -> Result<Option<(Outcome, Option<Aborter>)>> {
        let mut rung = [0; 64];
        let _ = self.bell.read(&mut rung);
        match self.outcomes.try_recv() {
            Ok(outcome) => Ok(Some(outcome)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => {
                let (operation, needs) = ("executing an order", "a worker that has not panicked");
                Err(Error::Unavailable { operation, needs })
            }
        }
    }
}

impl Hands {
    fn work(&mut self, task: Task) -> Outcome {
        match task {
            Task::Host => Outcome::Hosted(UniqueId::new().map(|id| id.to_string()).map_err(tell)),
            Task::Join { n_ranks, rank, id } => Outcome::Joined(self.join(n_ranks, rank, &id).map_err(tell)),
            Task::Run { calls } => Outcome::Ran(
                self.comm().and_then(|(comm, memory)| execute(comm, memory, &calls)).map_err(tell),
            ),
            Task::GoOn => Outcome::WentOn(self.go_on().map_err(tell)),
            Task::Leave { gracefully } => {
                self.leave(gracefully);
                Outcome::Left
            }
        }
    }

    fn join(&mut self, n_ranks: u32, rank: u32, id: &str) -> Result<()> {
        self.comm = Some(Communicator::init_rank_with(n_ranks, &id.parse()?, rank, &self.options)?);
        Ok(())
    }

    fn comm(&mut self) -> Result<(&mut Communicator, &DeviceMemory)> {
        let missing =
            Error::Unavailable { operation: "an order", needs: "a device that is in a communicator" };
        Ok((self.comm.as_mut().ok_or(missing)?, &self.memory))
    }

    fn go_on(&mut self) -> Result<Vec<u32>> {
        let shrunk = self.comm()?.0.shrink()?;
        self.comm = Some(shrunk.comm);
        Ok(shrunk.lost.into_iter().map(crate::Rank::get).collect())
    }

    fn leave(&mut self, gracefully: bool) {
        let Some(comm) = self.comm.take() else { return };
        if gracefully {
            // If the others do not come it is left all the same.
            let _ = comm.finalize();
        } else {
            comm.revoke();
        }
    }
}

/// An error in one line, for who asked for it, as far as a report has room for it.
#[allow(clippy::needless_pass_by_value, reason = "it is what errors are mapped by")]
fn tell(error: Error) -> String {
    let mut text = format!("{error:?}");
    text.truncate(text.floor_char_boundary(MAX_TEXT));
    text
}
