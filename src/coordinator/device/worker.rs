//! The thread that has a device's communicator, and executes the orders to the device.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};

use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::SigSet;

use super::calls::execute;
use super::undo::Undo;
use crate::bootstrap::{CancelToken, Options, resource_error};
use crate::comm::Aborter;
use crate::coordinator::agent::{GroupFailure, TaskOutcome};
use crate::coordinator::call::GroupWork;
use crate::coordinator::id::DeviceId;
use crate::coordinator::order::{CommFormation, DeviceOrder, FailureKind, MAX_REPORT, MAX_TEXT};
use crate::epoch_id::FIRST_EPOCH;
use crate::error::{Error, Result};
use crate::heap::DeviceMemory;
use crate::shm::undivided::spawn;
use crate::{Communicator, UniqueId};

/// The channels to the worker thread and back.
#[derive(Debug)]
pub(super) struct DeviceWorker {
    orders: Sender<(DeviceOrder, CancelToken)>,
    outcomes: Receiver<(TaskOutcome, Option<Aborter>)>,
    /// Readable when there may be an outcome.
    wakeup: Arc<EventFd>,
    /// Cancels the present order where that is to meet others.
    off: CancelToken,
}

/// Makes the descriptor readable when it is told to, and when it is dropped.
struct Waker(Arc<EventFd>);

/// The state of the thread.
struct WorkerThread {
    device: DeviceId,
    memory: Arc<DeviceMemory>,
    options: Options,
    comm: Option<Communicator>,
    undo: Undo,
}

impl DeviceWorker {
    /// Starts the thread, which ends with the process. It keeps in `undo` what the newest group has
    /// overwritten.
    ///
    /// # Errors
    /// [`Error::ResourceLimit`], [`Error::Os`].
    pub(super) fn start(
        device: DeviceId,
        memory: Arc<DeviceMemory>,
        options: Options,
        undo: Undo,
    ) -> Result<Self> {
        let mut thread_state = WorkerThread { device, memory, options, comm: None, undo };
        Self::run(move |order, off| {
            let outcome = thread_state.work(order, off);
            (outcome, thread_state.comm.as_ref().map(Communicator::aborter))
        })
    }

    /// Starts a thread that has `work` done for each order.
    fn run(
        mut work: impl FnMut(DeviceOrder, CancelToken) -> (TaskOutcome, Option<Aborter>) + Send + 'static,
    ) -> Result<Self> {
        let wakeup = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC);
        let wakeup = wakeup.map_err(|errno| resource_error("preparing a device's worker", errno.into()))?;
        let wakeup = Arc::new(wakeup);
        let waker = Waker(Arc::clone(&wakeup));
        let (orders, todo) = channel();
        let (done, outcomes) = channel();
        let serve = move || {
            // Dropped in the opposite order, also by a panic: the sender is gone when the waker
            // says so.
            let waker = waker;
            let done = done;
            // Signals are for the thread that serves.
            let _ = SigSet::all().thread_block();
            for (order, off) in todo {
                if done.send(work(order, off)).is_err() {
                    return;
                }
                waker.wake();
            }
        };
        spawn("shmccl device", serve).map_err(|error| resource_error("starting a device's worker", error))?;
        Ok(Self { orders, outcomes, wakeup, off: CancelToken::default() })
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.wakeup.as_fd()
    }

    /// Gives the thread an order. It must have none.
    pub(super) fn begin(&mut self, order: DeviceOrder) {
        self.off = CancelToken::default();
        // The receiver lives as long as the process.
        let _ = self.orders.send((order, self.off.clone()));
    }

    /// Cancels the order, if that is to meet others and they have not come together yet.
    pub(super) fn call_off(&self) {
        self.off.cancel();
    }

    /// Returns the outcome of the order, when it is done, and what aborts the epoch that the worker
    /// is in since.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the thread has panicked.
    pub(super) fn finished(&mut self) -> Result<Option<(TaskOutcome, Option<Aborter>)>> {
        let _ = self.wakeup.read();
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

impl Waker {
    fn wake(&self) {
        // A full counter is readable already.
        let _ = self.0.write(1);
    }
}

impl Drop for Waker {
    fn drop(&mut self) {
        self.wake();
    }
}

impl WorkerThread {
    fn work(&mut self, order: DeviceOrder, off: CancelToken) -> TaskOutcome {
        match order {
            DeviceOrder::Host(_) => TaskOutcome::Hosted(self.host().map_err(one_line)),
            DeviceOrder::Join { formation, id, .. } => {
                TaskOutcome::Met(self.join(&formation, &id, off).map_err(one_line))
            }
            DeviceOrder::Grow { formation, id, .. } => self.grow(formation.n_ranks(), &id, off),
            DeviceOrder::Run { work, group, .. } => TaskOutcome::Ran(self.run(group, &work)),
            DeviceOrder::GoOn { last, .. } => {
                let failed = last.filter(|last| last.failure.is_some()).map(|last| last.group);
                TaskOutcome::WentOn(self.go_on(failed).map_err(one_line))
            }
            DeviceOrder::Leave { gracefully, .. } => {
                self.leave(gracefully);
                TaskOutcome::Left
            }
        }
    }

    /// Makes an id under which no device waits for ever, even if the others never learn of it.
    fn host(&self) -> Result<String> {
        UniqueId::good_for(self.options.timeout, FIRST_EPOCH).map(|id| id.to_string())
    }

    /// Meets the others under `id`, as a newcomer if it is not their first epoch. Its memory is
    /// zero then, whatever an earlier communicator has left there.
    fn join(&mut self, formation: &CommFormation, id: &str, off: CancelToken) -> Result<Vec<DeviceId>> {
        self.undo.forget();
        self.memory.clear()?;
        let id = id.parse()?;
        let comm = match formation.rank_of(self.device) {
            Some(rank) if formation.epoch == 1 => {
                Communicator::init_rank_until(formation.n_ranks(), &id, rank, &self.options, Some(off))
            }
            _ => Communicator::join_until(&id, self.options.timeout, Some(off)),
        };
        Ok(self.enter(comm?))
    }

    /// Enters `comm`, and leaves its present communicator. Returns the members.
    fn enter(&mut self, comm: Communicator) -> Vec<DeviceId> {
        let number = |pid: u64| DeviceId::new(u32::try_from(pid).unwrap_or_default());
        let members = comm.processes().into_iter().map(number).collect();
        self.comm = Some(comm);
        members
    }

    fn grow(&mut self, n_ranks: u32, id: &str, off: CancelToken) -> TaskOutcome {
        let grown =
            member(&mut self.comm).and_then(|comm| comm.grow_until(n_ranks, Some(&id.parse()?), Some(off)));
        match grown {
            Ok(grown) => TaskOutcome::Met(Ok(self.enter(grown))),
            Err(error) if self.comm.as_ref().is_none_or(Communicator::has_ended) => {
                TaskOutcome::Ended(one_line(error))
            }
            Err(error) => TaskOutcome::Met(Err(one_line(error))),
        }
    }

    fn run(&mut self, group: u64, work: &GroupWork) -> std::result::Result<Option<u64>, GroupFailure> {
        self.undo.forget();
        let Self { undo, memory, comm, .. } = self;
        let comm = member(comm).map_err(failure_by)?;
        let outcome = match work {
            GroupWork::Calls(calls) => execute(comm, memory, calls).map(|overwritten| {
                undo.keep(group, overwritten);
                None
            }),
            GroupWork::Checkpoint(directory) => comm.checkpoint_memory(memory, directory).map(Some),
            GroupWork::Restore(directory) => comm.restore_memory(memory, directory).map(Some),
        };
        let is_undone = !matches!(work, GroupWork::Calls(_)) && !comm.has_ended();
        outcome.map_err(|error| GroupFailure { is_undone, ..failure_by(error) })
    }

    /// Goes on with the others that are left, after what this device has done of the `failed` group
    /// was taken back.
    fn go_on(&mut self, failed: Option<u64>) -> Result<Vec<u32>> {
        let comm = member(&mut self.comm)?;
        failed.map_or(Ok(()), |failed| self.undo.take_back(failed, &self.memory))?;
        let shrunk = comm.shrink()?;
        self.comm = Some(shrunk.comm);
        Ok(shrunk.lost.into_iter().map(crate::Rank::get).collect())
    }

    fn leave(&mut self, gracefully: bool) {
        self.undo.forget();
        let Some(comm) = self.comm.take() else { return };
        if gracefully {
            // If the others do not come, it is left all the same.
            let _ = comm.finalize();
        } else {
            comm.revoke();
        }
    }
}

/// # Errors
/// [`Error::Unavailable`] for a device that is in no communicator.
fn member(comm: &mut Option<Communicator>) -> Result<&mut Communicator> {
    comm.as_mut()
        .ok_or(Error::Unavailable { operation: "an order", needs: "a device that is in a communicator" })
}

/// Returns the failure of a group by `error`, with what that says of the cause.
fn failure_by(error: Error) -> GroupFailure {
    let mut report = None;
    let (kind, rank) = match error.origin() {
        Error::Timeout { awaited, straggler, report: told, .. } => {
            report = told.as_ref().map(|told| shorten(&told.to_string()));
            (FailureKind::Timeout, straggler.or(*awaited))
        }
        Error::PeerLost { rank } | Error::FailedElsewhere { rank, .. } => {
            (FailureKind::PeerLost, Some(*rank))
        }
        Error::Revoked { .. } => (FailureKind::Revoked, None),
        Error::Corrupted { rank, .. } => (FailureKind::Other, Some(*rank)),
        _ => (FailureKind::Other, None),
    };
    GroupFailure { why: one_line(error), kind, rank: rank.map(crate::Rank::get), is_undone: false, report }
}

/// Returns an error in one line, as far as a report has room for it.
#[allow(clippy::needless_pass_by_value, reason = "it is what errors are mapped by")]
fn one_line(error: Error) -> String {
    let mut text = format!("{error:?}");
    text.truncate(text.floor_char_boundary(MAX_TEXT));
    text
}

/// Returns as many whole lines of a report as there is room for, and its last one, which names the
/// straggler.
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
    use std::time::Duration;

    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::*;

    #[test]
    fn a_worker_that_panics_wakes_its_device() {
        let mut worker = DeviceWorker::run(|_, _| panic!("as the test has it")).unwrap();
        assert!(worker.finished().unwrap().is_none());
        worker.begin(DeviceOrder::Leave { comm: crate::coordinator::CommId::new(1), gracefully: true });
        let patience = PollTimeout::try_from(Duration::from_secs(60)).unwrap();
        let mut polled = [PollFd::new(worker.descriptor(), PollFlags::POLLIN)];
        assert_eq!(poll(&mut polled, patience), Ok(1));
        assert!(matches!(worker.finished(), Err(Error::Unavailable { .. })));
    }

    #[test]
    fn a_report_that_is_too_long_keeps_whole_lines_and_the_one_that_names_the_straggler() {
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
