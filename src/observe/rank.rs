//! A report of one rank.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::copy::copy_of;
use super::straggler::WaitState;
use crate::channel::WaitKind;
use crate::collective::{CallSignature, CommLayout, TURNS, posted_signature};
use crate::error::Result;
use crate::faults::FaultHit;
use crate::heap::layout::{FifoCells, HEAP, N_FIFOS, SegmentCells, control_len};
use crate::process;
use crate::proxy::Trigger;
use crate::rank::{Rank, RankSet};
use crate::shm::SegmentHeader;
use crate::sync::header::{Creator, HEADER_LEN};
use crate::sync::{Activity, LifeCell, LifeStatus, PostCell, ProgressCell};

/// A call of a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObservedCall {
    /// The call.
    pub signature: CallSignature,
    /// Which of the caller's operations of its communicator it is, from 1 on; 0 for a message.
    /// Where the job's first communicator only meets (barrier, allocation, release), it counts
    /// these, and those that data are posted for apart.
    pub sequence: u64,
}

/// A long wait of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wait {
    /// The kind of the wait, where it is on a channel or a proxy.
    pub(super) on: Option<WaitKind>,
    /// The ranks that it waits for.
    pub(super) awaited: RankSet,
    /// How long it lasts, or, where it was given up, how long ago that was.
    pub(super) lasts: Duration,
    pub(super) given_up: bool,
    pub(super) timed_out: bool,
    /// How many steps of the call were taken.
    pub(super) step: u64,
}

/// A wait that has lasted for as long is no passing one.
const SETTLED: Duration = Duration::from_millis(100);

impl Wait {
    /// Returns whether it is hardly one that ends while others are looked at.
    pub(super) fn is_settled(&self) -> bool {
        self.given_up || self.lasts >= SETTLED
    }
}

/// One of the fifos of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FifoView {
    /// Triggers in flight.
    pub depth: u64,
    /// Triggers that were pushed.
    pub pushed: u64,
    /// Triggers that the proxy has refused.
    pub refused: u64,
    /// The last one that was pushed.
    pub last: Trigger,
}

/// The work of a rank since the epoch began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RankWork {
    /// Collective operations that it has begun; messages, and what goes by channels alone, are not
    /// among them.
    pub operations: u64,
    /// Bytes that it puts into those of them that take microseconds at least; refused ones count,
    /// too.
    pub large_bytes: u64,
    /// How many operations those bytes are of.
    pub large_operations: u64,
    /// Bytes that it has put into one of the others, at the mean of the last few.
    pub small_len: u64,
    /// Signals that it was sent.
    pub signals: u64,
    /// How long it has waited in waits that were long, the present one included.
    pub waited: Duration,
}

/// One rank of a [`Report`](super::Report).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RankReport {
    /// Which one.
    pub rank: Rank,
    /// Whether it lives.
    pub life: LifeStatus,
    /// The process of the rank, where that can be told.
    pub pid: Option<u32>,
    /// Whether the process was stopped, and does nothing until it is told to go on.
    pub is_stopped: bool,
    /// The call that it is in, as far as that can be told.
    pub call: Option<ObservedCall>,
    /// The last operation that it has told the others of.
    pub last: Option<ObservedCall>,
    /// The fifos of the rank that were used.
    pub fifos: Vec<FifoView>,
    /// The work that it has done.
    pub work: RankWork,
    /// How long ago it has beaten, which it does twice a second; `None` where it has not come yet.
    pub heartbeat: Option<Duration>,
    /// How long ago it was found, as it beat, to have done something since the beat before.
    pub moved: Option<Duration>,
    /// The last fault that was injected, and how many there were.
    pub last_fault: Option<(FaultHit, u64)>,
    pub(super) wait: Option<Wait>,
    /// How many communicators show their boards.
    pub(super) n_boards: usize,
}

impl RankReport {
    /// Looks at `rank` of `n_ranks`, which tells `activity` at the time `now`, and at its segment,
    /// where that can be had.
    pub(super) fn new(
        rank: Rank,
        n_ranks: u32,
        life: &LifeCell,
        activity: &Activity,
        segment: Option<BorrowedFd<'_>>,
        now: Duration,
    ) -> Self {
        let creator = segment.and_then(|segment| creator_in(segment).ok());
        // The numbers of threads are those of the rank's own PID namespace, too.
        let is_here = creator.is_none_or(|creator| creator.pid_here().is_some());
        let pid = life.thread().filter(|_| is_here).and_then(process::of_thread);
        let wait = Wait::of(activity, now);
        let running = activity.since.map_or(Duration::ZERO, |since| now.saturating_sub(since));
        let call = activity.call.map(|words| ObservedCall {
            signature: CallSignature::from_words(words),
            sequence: activity.sequence,
        });
        let mut report = Self {
            rank,
            life: life.status(),
            pid,
            is_stopped: pid.is_some_and(process::is_stopped),
            call,
            last: None,
            fifos: Vec::new(),
            last_fault: None,
            work: RankWork { waited: activity.waited.saturating_add(running), ..RankWork::default() },
            heartbeat: None,
            moved: None,
            wait,
            n_boards: activity.boards.iter().flatten().count(),
        };
        // A segment that cannot be read shows nothing; the rest is told all the same.
        let _unreadable = segment.map(|segment| report.look_into(segment, n_ranks, activity));
        report
    }

    fn look_into(&mut self, segment: BorrowedFd<'_>, n_ranks: u32, activity: &Activity) -> Result<()> {
        let cells = SegmentCells::new(copy_of(segment, 0, control_len(n_ranks))?)?;
        self.work.signals =
            cells.semaphores().iter().fold(0, |sum, semaphore| sum.wrapping_add(semaphore.value()));
        for index in 0..N_FIFOS {
            self.fifos.extend(FifoView::of(&cells.fifo(index)?));
        }
        let boards: Vec<_> = activity
            .boards
            .iter()
            .flatten()
            .filter_map(|offset| Posts::read(segment, *offset).ok())
            .collect();
        self.last = boards.iter().max_by_key(|posts| posts.newest).and_then(Posts::last);
        let shown = boards.iter().map(Posts::number);
        self.work.operations = shown.fold(activity.gone, u64::saturating_add);
        self.work.large_bytes = activity.bytes;
        self.work.large_operations = activity.operations;
        self.work.small_len = boards.iter().map(Posts::small_len).max().unwrap_or(0);
        Ok(())
    }

    /// Returns what it is doing, as far as others are concerned.
    pub(super) fn wait_state(&self) -> WaitState {
        WaitState::new(self.life, self.wait.as_ref().map(|wait| wait.awaited), || self.is_stopped)
    }

    /// Returns whether it waits, or has given up waiting, in a call of the only communicator that
    /// it has used.
    pub(super) fn waits_in_only_call(&self) -> bool {
        let is_call = |wait: &Wait| matches!(wait.on, None | Some(WaitKind::Prepare));
        self.n_boards <= 1 && self.call.is_some() && self.wait.as_ref().is_some_and(is_call)
    }

    /// Returns the ranks that it waits for, or has given up waiting for; itself when that is its
    /// own proxy.
    #[must_use]
    pub fn awaits(&self) -> Vec<Rank> {
        self.wait.as_ref().map(|wait| wait.awaited.iter().collect()).unwrap_or_default()
    }

    /// Returns the channel call that it waits in, or has given up waiting in, where it is one.
    #[must_use]
    pub fn waits_on(&self) -> Option<&'static str> {
        self.wait.as_ref().and_then(|wait| wait.on).map(WaitKind::name)
    }

    /// Returns how many steps of its call were taken when its wait began, where it has any.
    #[must_use]
    pub fn step(&self) -> Option<u64> {
        let wait = self.call.and(self.wait.as_ref())?;
        Some(wait.step).filter(|step| *step > 0)
    }

    /// Returns how long ago it has given up its last long wait, by its deadline or otherwise;
    /// `None` when it has not, or has begun another one.
    #[must_use]
    pub fn gave_up(&self) -> Option<Duration> {
        self.wait.as_ref().filter(|wait| wait.given_up).map(|wait| wait.lasts)
    }

    /// Returns how long it has waited; `None` when it does not.
    #[must_use]
    pub fn waits_for(&self) -> Option<Duration> {
        self.wait.as_ref().filter(|wait| !wait.given_up).map(|wait| wait.lasts)
    }

    /// Returns whether the deadline of its last long wait has passed, and it has not begun another
    /// one.
    #[must_use]
    pub fn has_timed_out(&self) -> bool {
        self.wait.as_ref().is_some_and(|wait| wait.timed_out)
    }
}

fn creator_in(segment: BorrowedFd<'_>) -> Result<Creator> {
    Ok(copy_of(segment, 0, HEADER_LEN)?.cell::<SegmentHeader>(0)?.creator())
}

impl FifoView {
    /// Returns a fifo that was used.
    fn of(fifo: &FifoCells) -> Option<Self> {
        let snapshot = fifo.snapshot();
        let last = snapshot.pushed.checked_sub(1)? % fifo.slots.len() as u64;
        Some(Self {
            depth: snapshot.depth,
            pushed: snapshot.pushed,
            refused: snapshot.refused,
            last: fifo.slots.get(usize::try_from(last).ok()?)?.read_any_lap(),
        })
    }
}

impl Wait {
    fn of(activity: &Activity, now: Duration) -> Option<Self> {
        let begun = activity.since.or(activity.given_up)?;
        Some(Self {
            on: WaitKind::from_code(activity.kind),
            awaited: activity.awaited,
            lasts: now.saturating_sub(begun),
            given_up: activity.since.is_none(),
            timed_out: activity.since.is_none() && activity.timed_out,
            step: activity.step,
        })
    }
}

/// The posts of a rank on one board.
struct Posts {
    /// Those that are up.
    calls: Vec<ObservedCall>,
    /// The number that it has come to, steps within operations included.
    newest: u64,
    /// How many of the numbers were those of such steps.
    aside: u64,
}

impl Posts {
    /// Reads the board at `offset` of the heap: how far the rank has come, and behind it the posts.
    fn read(segment: BorrowedFd<'_>, offset: u64) -> Result<Self> {
        const CELL: u64 = size_of::<PostCell>() as u64;
        const { assert!(CommLayout::PROGRESS + CELL == CommLayout::POSTS) };
        let start = HEAP.saturating_add(offset).saturating_add(CommLayout::PROGRESS);
        let copy = copy_of(segment, start, CELL + TURNS as u64 * CELL)?;
        let cells = copy.cells::<PostCell>(CELL, TURNS as u64)?;
        let call =
            |cell: &PostCell| ObservedCall { signature: posted_signature(cell), sequence: cell.sequence() };
        let calls: Vec<_> = cells.iter().map(call).filter(|call| call.sequence != 0).collect();
        let posted = calls.iter().map(|call| call.sequence).max().unwrap_or(0);
        let progress = copy.cell::<ProgressCell>(0)?;
        Ok(Self { newest: posted.max(progress.done()), aside: progress.inner_steps(), calls })
    }

    /// Returns how many operations were begun; 0 where that was read as it changed.
    fn number(&self) -> u64 {
        u64::try_from(self.newest.wrapping_sub(self.aside).cast_signed()).unwrap_or(0)
    }

    fn last(&self) -> Option<ObservedCall> {
        let last = self.calls.iter().copied().max_by_key(|call| call.sequence)?;
        // Whatever steps there were since belong to it.
        Some(ObservedCall { sequence: self.number(), ..last })
    }

    /// Returns the mean length of what was put into the small ones, in bytes.
    fn small_len(&self) -> u64 {
        let lens = self.calls.iter().filter_map(|call| {
            let size = call.signature.data_type()?.size() as u64;
            Some(call.signature.count().saturating_mul(size)).filter(|len| *len <= CommLayout::EAGER)
        });
        let (sum, count) = lens.fold((0_u64, 0), |(sum, count), len| (sum + len, count + 1));
        sum.checked_div(count).unwrap_or(0)
    }
}
