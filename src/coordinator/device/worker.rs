//! The thread that has a device's communicator, and executes what the device is told.

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};

use nix::sys::signal::SigSet;

use super::calls::execute;
use crate::bootstrap::{CancelToken, Options, resource_error};
use crate::comm::Aborter;
use crate::coordinator::agent::{Outcome, Task, Trouble};
use crate::coordinator::id::DeviceId;
use crate::coordinator::order::{FailureKind, MAX_REPORT, MAX_TEXT};
use crate::coordinator::work::Work;
use crate::epoch_id::FIRST_EPOCH;
use crate::error::{Error, Result};
use crate::heap::DeviceMemory;
use crate::{Communicator, UniqueId};

/// The way to the worker and back.
#[derive(Debug)]
pub(super) struct Worker {
    tasks: Sender<(Task, CancelToken)>,
    outcomes: Receiver<(Outcome, Option<Aborter>)>,
    /// Readable when there may be an outcome.
    bell: UnixStream,
    /// Ends the present task where that is to meet others.
    off: CancelToken,
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
            for (task, off) in todo {
                let outcome = hands.work(task, off);
                if done.send((outcome, hands.comm.as_ref().map(Communicator::aborter))).is_err() {
                    return;
                }
                // A full socket rings already.
                let _ = rope.write(&[0]);
            }
        };
        let thread = std::thread::Builder::new().name("shmccl device".to_owned()).spawn(work);
        thread.map_err(|error| resource_error("starting a device's worker", error))?;
        Ok(Self { tasks, outcomes, bell, off: CancelToken::default() })
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Gives it a task, when it has none.
    pub(super) fn begin(&mut self, task: Task) {
        self.off = CancelToken::default();
        // It ends with the process only.
        let _ = self.tasks.send((task, self.off.clone()));
    }

    /// Ends its task, if that is to meet others and they have not come together yet.
    pub(super) fn call_off(&self) {
        self.off.cancel();
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
    fn work(&mut self, task: Task, off: CancelToken) -> Outcome {
        match task {
            Task::Host => Outcome::Hosted(self.host().map_err(tell)),
            Task::Meet { n_ranks, rank, id } => Outcome::Met(
                id.parse()
                    .and_then(|id| {
                        Communicator::init_rank_until(n_ranks, &id, rank, &self.options, Some(off))
                    })
                    .map(|comm| self.enter(comm))
                    .map_err(tell),
            ),
            Task::Join { id } => Outcome::Met(
                id.parse()
                    .and_then(|id| Communicator::join_until(&id, self.options.timeout, Some(off)))
                    .map(|comm| self.enter(comm))
                    .map_err(tell),
            ),
            Task::Grow { n_ranks, id } => self.grow(n_ranks, &id, off),
            Task::Run { work } => Outcome::Ran(self.run(&work)),
            Task::GoOn => Outcome::WentOn(self.go_on().map_err(tell)),
            Task::Leave { gracefully } => {
                self.leave(gracefully);
                Outcome::Left
            }
        }
    }

    /// An id that nobody waits under for ever, should the others not be told of it.
    fn host(&self) -> Result<String> {
        UniqueId::good_for(self.options.timeout, FIRST_EPOCH).map(|id| id.to_string())
    }

    /// Is in `comm` from now on, and leaves what it was in. Returns who is in it.
    fn enter(&mut self, comm: Communicator) -> Vec<DeviceId> {
        let number = |pid: u64| DeviceId::new(u32::try_from(pid).unwrap_or_default());
        let members = comm.processes().into_iter().map(number).collect();
        self.comm = Some(comm);
        members
    }

    fn grow(&mut self, n_ranks: u32, id: &str, off: CancelToken) -> Outcome {
        let grown = self.comm().and_then(|(comm, _)| comm.grow_until(n_ranks, Some(&id.parse()?), Some(off)));
        match grown {
            Ok(grown) => Outcome::Met(Ok(self.enter(grown))),
            Err(error) if self.comm.as_ref().is_none_or(Communicator::has_ended) => {
                Outcome::Ended(tell(error))
            }
            Err(error) => Outcome::Met(Err(tell(error))),
        }
    }

    fn comm(&mut self) -> Result<(&mut Communicator, &DeviceMemory)> {
        let missing =
            Error::Unavailable { operation: "an order", needs: "a device that is in a communicator" };
        Ok((self.comm.as_mut().ok_or(missing)?, &self.memory))
    }

    fn run(&mut self, work: &Work) -> std::result::Result<Option<u64>, Trouble> {
        let (comm, memory) = self.comm().map_err(blame)?;
        let outcome = match work {
            Work::Calls(calls) => execute(comm, memory, calls).map(|()| None),
            Work::Checkpoint(directory) => comm.checkpoint_memory(memory, directory).map(Some),
            Work::Restore(directory) => comm.restore_memory(memory, directory).map(Some),
        };
        let is_undone = !matches!(work, Work::Calls(_)) && !comm.has_ended();
        outcome.map_err(|error| Trouble { is_undone, ..blame(error) })
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

/// What an error of a group says of its cause.
fn blame(error: Error) -> Trouble {
    let (kind, rank) = kind_of(&error);
    let report = match error.origin() {
        Error::Timeout { report: Some(report), .. } => Some(shorten(&report.to_string())),
        _ => None,
    };
    Trouble { why: tell(error), kind, rank: rank.map(crate::Rank::get), is_undone: false, report }
}

fn kind_of(error: &Error) -> (FailureKind, Option<crate::Rank>) {
    match error.origin() {
        Error::Timeout { awaited, straggler, .. } => (FailureKind::Timeout, straggler.or(*awaited)),
        Error::PeerLost { rank } | Error::FailedElsewhere { rank, .. } => {
            (FailureKind::PeerLost, Some(*rank))
        }
        Error::Revoked { .. } => (FailureKind::Revoked, None),
        Error::Corrupted { rank, .. } => (FailureKind::Other, Some(*rank)),
        _ => (FailureKind::Other, None),
    }
}

/// An error in one line, for who asked for it, as far as a report has room for it.
#[allow(clippy::needless_pass_by_value, reason = "it is what errors are mapped by")]
fn tell(error: Error) -> String {
    let mut text = format!("{error:?}");
    text.truncate(text.floor_char_boundary(MAX_TEXT));
    text
}

/// As many whole lines of a report as there is room for, and its last one, which says who holds the others up.
fn shorten(report: &str) -> String {
    if report.len() <= MAX_REPORT {
        return report.to_owned();
    }
    let (ranks, verdict) = report.rsplit_once('\n').unwrap_or(("", report));
    let verdict = &verdict[..verdict.floor_char_boundary(MAX_TEXT)];
    let room = MAX_REPORT.saturating_sub(verdict.len() + "...\n\n".len());
    let cut = &ranks[..ranks.floor_char_boundary(room)];
    let whole = cut.rfind('\n').map_or("", |end| &cut[..end]);
    format!("{whole}\n...\n{verdict}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_that_is_too_long_keeps_whole_lines_and_who_holds_the_others_up() {
        let lines = |n: usize| (0..n).map(|rank| format!("rank {rank}: in ä {}\n", "b".repeat(rank % 300)));
        let report = |n| lines(n).collect::<String>() + "held up by rank 7";
        assert_eq!(shorten(&report(64)), report(64));
        for n in 100..400 {
            let told = shorten(&report(n));
            assert!(told.len() <= MAX_REPORT && told.ends_with("\nheld up by rank 7"), "{}", told.len());
            let whole = told.lines().zip(report(n).lines()).take_while(|(told, line)| told == line).count();
            assert!(told.len() == report(n).len() || told.lines().nth(whole) == Some("..."), "{n}");
        }
        let one = shorten(&"x".repeat(MAX_REPORT + 1));
        assert!(one.len() <= MAX_REPORT);
    }
}
