//! The life lock: a thread per device that the operating system reports on when the device dies.
//!
//! The thread takes its rank's [`LifeCell`] as a robust futex and then sleeps on the cells of all
//! peers at once. When a process is killed, the system walks each of its threads' robust lists
//! while the thread exits, before the memory of the process is torn down. So peers hear of it
//! within a fraction of a millisecond however much is mapped, whereas sockets and pidfds report
//! once everything is unmapped.
//!
//! The list is the thread's own: one node in private memory whose word is found at
//! `node + futex_offset`, in the shared cell. No pointer is ever stored in shared memory, and no
//! word that a peer writes is followed. It replaces the list of the C library for this thread,
//! which locks no robust mutex of that kind.
//!
//! The system wakes only one of the sleepers on a dead rank's word. So the rank that finds another
//! one dead wakes the rest before it does anything else. If it dies in between, another thread is
//! woken by *its* death, looks at all cells, and finds both. And each thread looks at all cells
//! twice a second anyway; that is when it beats ([`LifeObserver`]).
//!
//! The ranks may be threads of one process: each has its own thread here, hence its own list. A
//! process without `futex_waitv` looks every 20 ms instead.
//!
//! An emulator or a sandbox may refuse robust lists. Then the rank holds a lock instead
//! (`presence.rs`), which the system takes back when it closes the files of the dead. Peers look
//! at such locks every 20 ms.

#![allow(unsafe_code, reason = "robust futex list of the life thread")]

mod presence;

use std::{
    io,
    ops::Deref,
    os::fd::AsFd,
    sync::{Arc, mpsc},
    thread::JoinHandle,
    time::Duration,
};

use nix::sys::signal::SigSet;

use self::presence::{PresenceLock, is_present};
use super::Segment;
use super::kernel::HostKernel;
use super::limits::{self, Store};
use super::undivided::spawn;
use crate::{
    error::{Error, Result},
    rank::{MAX_RANKS, Rank, RankSet},
    sync::{Kernel, Latch, LifeCell, LifeStatus, SleepWord},
};

/// How often the life thread looks at all cells even if nothing wakes it.
const LOOK_ANYWAY: Duration = Duration::from_millis(500);

/// How often it looks at the locks of ranks that live by one.
const LOOK_AT_LOCKS: Duration = Duration::from_millis(20);

/// What the life thread does for its rank.
pub trait LifeObserver: Send + 'static {
    /// Learns that a peer is lost: killed, crashed, exited without good-bye, or given up. Called
    /// once for each.
    fn on_loss(&mut self, lost: Rank);

    /// Beats, as the process lives: called twice a second at least, and again as soon as the time
    /// is over that it returns.
    fn beat(&mut self) -> Duration {
        LOOK_ANYWAY
    }
}

impl<F: FnMut(Rank) + Send + 'static> LifeObserver for F {
    fn on_loss(&mut self, lost: Rank) {
        self(lost);
    }
}

/// One rank's presence among its peers, for as long as this value lives. Dropping it says good-bye.
#[derive(Debug)]
pub struct LifeLock {
    stop: Arc<Latch>,
    kernel: HostKernel,
    thread: Option<JoinHandle<()>>,
}

impl LifeLock {
    /// Takes the cell of `rank` and watches all others of `cells`, one per rank. Ranks that the
    /// system cannot watch lock `segment`, which all have.
    ///
    /// `vital` is called on a thread of its own.
    ///
    /// # Errors
    /// [`Error::InvalidRank`] when `cells` has none for `rank` or more than there can be ranks;
    /// [`Error::Layout`] when the cell has been used; [`Error::ResourceLimit`] or [`Error::Os`]
    /// when the thread cannot be started.
    pub fn take<C, F>(
        kernel: HostKernel,
        cells: C,
        segment: Option<Arc<Segment>>,
        rank: Rank,
        vital: F,
    ) -> Result<Self>
    where
        C: Deref<Target = [LifeCell]> + Send + 'static,
        F: LifeObserver,
    {
        let n_ranks = u32::try_from(cells.len()).unwrap_or(u32::MAX);
        if rank.index() >= cells.len() || n_ranks > MAX_RANKS {
            return Err(Error::InvalidRank { rank: rank.get(), n_ranks });
        }
        let stop = Arc::new(Latch::default());
        let (taken, outcome) = mpsc::sync_channel(1);
        let watcher = Watcher {
            kernel,
            cells,
            segment,
            rank,
            stop: Arc::clone(&stop),
            lost: RankSet::default(),
            vital,
        };
        let thread = spawn("shmccl-life", move || watcher.run(&taken))
            .map_err(|source| limits::refused("starting the life thread", Store::Memory, source))?;
        let lock = Self { stop, kernel, thread: Some(thread) };
        match outcome.recv() {
            Ok(Ok(())) => Ok(lock),
            Ok(Err(found)) => Err(Error::Layout { what: "life cell", expected: 0, found: u64::from(found) }),
            Err(_) => unreachable!("the life thread reports before it ends"),
        }
    }
}

impl Drop for LifeLock {
    fn drop(&mut self) {
        self.stop.open(&self.kernel);
        if let Some(thread) = self.thread.take() {
            // An error is a panic of the caller's [`LifeObserver`], which has been reported on its
            // own thread.
            let _ = thread.join();
        }
    }
}

/// What the life thread runs on.
struct Watcher<C, F> {
    kernel: HostKernel,
    cells: C,
    segment: Option<Arc<Segment>>,
    rank: Rank,
    stop: Arc<Latch>,
    /// A bit for each rank with a loss that has been reported.
    lost: RankSet,
    vital: F,
}

impl<C: Deref<Target = [LifeCell]>, F: LifeObserver> Watcher<C, F> {
    fn run(mut self, taken: &mpsc::SyncSender<Result<(), u32>>) {
        // Signals are the application's: none of its handlers runs here. It cannot fail with a
        // valid set.
        let _ = SigSet::all().thread_block();
        let cells = &*self.cells;
        let own = RobustLock::take(self.kernel, cells, self.segment.as_deref(), self.rank);
        // The receiver may be gone: then there is no one to report to either.
        let heard = taken.send(own.as_ref().map(|_| ()).map_err(|found| *found)).is_ok();
        while own.is_ok() && heard && !self.stop.is_open() {
            let by_lock = self.look_at_locks();
            let words = look(&self.kernel, cells, &self.stop, self.rank, &mut self.lost, &mut self.vital);
            let rest = self.vital.beat();
            self.kernel.sleep(&words, rest.min(if by_lock { LOOK_AT_LOCKS } else { LOOK_ANYWAY }));
        }
    }

    /// Gives up the peers whose locks are free, and returns whether any lives by a lock.
    fn look_at_locks(&self) -> bool {
        let Some(segment) = &self.segment else { return false };
        let peers = Rank::of_each(self.cells.iter()).filter(|(rank, _)| *rank != self.rank);
        let mut by_lock = false;
        for (rank, cell) in peers.filter(|(_, cell)| cell.lives_by_lock()) {
            by_lock = true;
            // One that has left has said so before it let go.
            if !is_present(segment.as_fd(), rank) && cell.status() == LifeStatus::Alive {
                cell.mark_lost(&self.kernel);
            }
        }
        by_lock
    }
}

/// Looks at all peers, reports those newly lost, and returns what to sleep on until something
/// changes.
fn look<'a>(
    kernel: &HostKernel,
    cells: &'a [LifeCell],
    stop: &'a Latch,
    own: Rank,
    lost: &mut RankSet,
    vital: &mut impl LifeObserver,
) -> Vec<SleepWord<'a>> {
    let mut words = Vec::with_capacity(cells.len());
    words.push(stop.until_open());
    let peers = Rank::of_each(cells.iter()).filter(|(rank, _)| *rank != own);
    for (rank, cell) in peers {
        let (status, word) = cell.observe();
        match status {
            LifeStatus::Absent | LifeStatus::Alive => words.push(word),
            LifeStatus::Lost if lost.insert(rank) => {
                kernel.wake_all(word.word); // the others first: the system woke one of us
                vital.on_loss(rank);
            }
            LifeStatus::Lost | LifeStatus::Left => {}
        }
    }
    words
}

/// A cell held as a robust futex by the calling thread. It must be dropped on the same thread.
struct RobustLock<'a> {
    kernel: HostKernel,
    cell: &'a LifeCell,
    thread: u32,
    list: *mut RobustList,
    /// The list that the C library had registered for this thread.
    previous: *mut RobustHead,
    /// What the rank lives by where the system refuses the list.
    _presence: Option<PresenceLock>,
}

/// What the system is told to walk: `struct robust_list_head` of its interface.
#[repr(C)]
struct RobustHead {
    first: *const RobustNode,
    /// Where the futex is, seen from its node.
    futex_offset: libc::c_long,
    pending: *const RobustNode,
}

/// `struct robust_list` of the interface.
#[repr(C)]
struct RobustNode {
    next: *const RobustNode,
}

/// A circle of the head and one node.
#[repr(C)]
struct RobustList {
    head: RobustHead,
    node: RobustNode,
}

impl<'a> RobustLock<'a> {
    fn take(
        kernel: HostKernel,
        cells: &'a [LifeCell],
        segment: Option<&Segment>,
        rank: Rank,
    ) -> Result<Self, u32> {
        let cell = &cells[rank.index()];
        let list = RobustList::around(cell);
        let previous = robust_list();
        // Listed first, taken second: a thread that is killed in between holds a word without its
        // id, which the system leaves alone.
        let is_listed = set_robust_list(list.cast()).is_ok();
        let file = segment.filter(|_| !is_listed);
        let presence = file.and_then(|segment| PresenceLock::take(segment.as_fd(), rank).ok());
        if presence.is_some() && cell.status() == LifeStatus::Absent {
            cell.live_by_lock();
        }
        let thread = u32::try_from(nix::unistd::gettid().as_raw()).unwrap_or(0);
        let lock = Self { kernel, cell, thread, list, previous, _presence: presence };
        // Where it fails, the drop of `lock` leaves a cell alone that holds another id.
        cell.take(&kernel, thread).map(|()| lock)
    }
}

impl Drop for RobustLock<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.cell.mark_lost(&self.kernel);
        } else {
            self.cell.leave(&self.kernel, self.thread);
        }
        let _ = set_robust_list(self.previous);
        // SAFETY: `list` came from Box::into_raw in `RobustList::around`, and since the line above
        // the system does not know it any more.
        drop(unsafe { Box::from_raw(self.list) });
    }
}

impl RobustList {
    /// Returns a list of one lock, the word of `cell`. To be freed by `Box::from_raw`.
    fn around(cell: &LifeCell) -> *mut Self {
        let mut list = Box::new(Self {
            head: RobustHead { first: std::ptr::null(), futex_offset: 0, pending: std::ptr::null() },
            node: RobustNode { next: std::ptr::null() },
        });
        let node = &raw const list.node;
        let futex = std::ptr::from_ref(cell).addr();
        list.head.first = node;
        // The head is the first field: the circle closes at the list itself.
        list.node.next = (&raw const list.head).cast();
        list.head.futex_offset = futex.wrapping_sub(node.addr()).cast_signed() as libc::c_long;
        Box::into_raw(list)
    }
}

/// Returns whether the system watches over the ranks of this process, by what it says when it is
/// asked to.
///
/// # Errors
/// The system's, such as ENOSYS of an emulator. A rank then lives by a lock on a file, for which it
/// needs `/proc`.
pub fn check_robust_list() -> io::Result<()> {
    set_robust_list(robust_list())
}

fn set_robust_list(head: *mut RobustHead) -> io::Result<()> {
    // SAFETY: the system only keeps the address; it reads the list when this thread ends, and
    // `RobustLock` puts the former list back before it frees its own.
    let done = unsafe { libc::syscall(libc::SYS_set_robust_list, head, size_of::<RobustHead>()) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn robust_list() -> *mut RobustHead {
    let (mut head, mut len) = (std::ptr::null_mut::<RobustHead>(), 0usize);
    // SAFETY: the call writes a pointer and a length into the two places given, of those sizes.
    unsafe { libc::syscall(libc::SYS_get_robust_list, 0, &raw mut head, &raw mut len) };
    head
}

#[cfg(test)]
mod tests;
