//! What a rank tells of itself to onlookers.
//!
//! A rank has one [`ActivityCell`] in the control segment. It writes there when a wait has turned
//! out long, when such a wait ends, and when an operation begins and ends that takes microseconds
//! anyway. A shorter operation writes nothing here: it is seen by its post on the board, whose
//! place the cell tells.
//!
//! There is no edge. The words are independent of each other and *approximate*: each is some value
//! that the rank has stored, and together they are a picture with a little motion blur. Threads of
//! one rank that wait at the same time write over each other; a thread that sleeps writes its own
//! words again before each sleep. Nothing is decided by these words, and none of them is believed.
//!
//! Times are nanoseconds of the system's monotonic clock, which all processes of a host share; 0
//! stands for none.

use std::time::Duration;

use super::atomic::{AtomicU64, Ordering, Reserved};
use super::plain::{add, load as get, load_time, nanos, store as set, store_time};
use crate::rank::{RankSet, SET_WORDS};

/// How many communicators a rank can show at a time. What it does in others shows only where it
/// waits.
#[cfg(not(loom))]
pub const MAX_BOARDS: usize = 3;
/// How many communicators a rank can show at a time, in a model.
#[cfg(loom)]
pub const MAX_BOARDS: usize = 1;

/// What one rank tells of itself.
///
/// | field | bytes | what |
/// |---|---|---|
/// | signature, count | 0..16 | its call: the words of a summary; 0 when it is in none |
/// | sequence | 16..24 | the number of that call among the caller's on its communicator |
/// | step | 24..32 | how many steps of it were taken at the last long wait |
/// | kind | 32..40 | the number of what the last long wait was on; 0 for the board |
/// | since | 40..48 | when it began; 0 when it is over |
/// | given up | 48..56 | when it was given up: odd where its deadline had passed, even if in vain |
/// | waits, waited | 56..72 | how many long waits have ended, and how long they took |
/// | operations, bytes | 72..88 | operations that were told here, and what this rank puts in |
/// | gone | 88..96 | operations on boards that were shown and are gone |
/// | awaited | 96..128 | a bit for each rank that the last long wait was for |
/// | boards | 128..152 | where the boards of its communicators are in its heap, plus one |
/// | reserved | 152..256 | |
///
/// All are written by the rank, and read by onlookers.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct ActivityCell {
    signature: AtomicU64,
    count: AtomicU64,
    sequence: AtomicU64,
    step: AtomicU64,
    kind: AtomicU64,
    since: AtomicU64,
    given_up: AtomicU64,
    waits: AtomicU64,
    waited: AtomicU64,
    operations: AtomicU64,
    bytes: AtomicU64,
    gone: AtomicU64,
    awaited: [AtomicU64; SET_WORDS],
    boards: [AtomicU64; MAX_BOARDS],
    reserved: Reserved<26>,
}

#[cfg(not(loom))]
const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<ActivityCell>() == 256 && align_of::<ActivityCell>() == 128);
    assert!(offset_of!(ActivityCell, kind) == 32 && offset_of!(ActivityCell, since) == 40);
    assert!(offset_of!(ActivityCell, operations) == 72 && offset_of!(ActivityCell, awaited) == 96);
    assert!(offset_of!(ActivityCell, boards) == 128 && offset_of!(ActivityCell, reserved) == 152);
};

/// A wait, as a rank tells of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitingIn {
    /// The words of the call that it is in, and its number, where that was not told as the call
    /// began.
    pub call: Option<([u64; 2], u64)>,
    /// The number of what it is on; 0 for the board.
    pub kind: u64,
    /// How many steps of the call were taken.
    pub step: u64,
    /// The ranks that are awaited.
    pub(crate) awaited: RankSet,
}

/// What a cell said at some time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    /// The words of the call that the rank is in; `None` for none.
    pub call: Option<[u64; 2]>,
    /// The number of that call.
    pub sequence: u64,
    /// How many steps of it were taken.
    pub step: u64,
    /// The number of what the last long wait was on; 0 for the board.
    pub kind: u64,
    /// The ranks that it was for.
    pub(crate) awaited: RankSet,
    /// The time of its begin; `None` when it is over.
    pub since: Option<Duration>,
    /// The time when it was given up, if it was.
    pub given_up: Option<Duration>,
    /// Whether that was for its deadline.
    pub timed_out: bool,
    /// How many long waits have ended.
    pub waits: u64,
    /// How long they took together.
    pub waited: Duration,
    /// Operations that were told here.
    pub operations: u64,
    /// How many bytes this rank puts into those.
    pub bytes: u64,
    /// Operations on boards that were shown and are gone.
    pub gone: u64,
    /// Where the boards of its communicators are in its heap.
    pub boards: [Option<u64>; MAX_BOARDS],
}

impl ActivityCell {
    /// Tells that the rank is in the call of these words, with this number.
    pub fn begin_operation(&self, call: [u64; 2], sequence: u64) {
        set(&self.count, call[1]);
        set(&self.sequence, sequence);
        set(&self.step, 0);
        set(&self.given_up, 0);
        set(&self.signature, call[0]);
    }

    /// Tells that nothing comes of the call that the rank was in.
    pub fn drop_operation(&self) {
        set(&self.signature, 0);
    }

    /// Counts a call, and the `bytes` that the rank puts into it.
    pub fn count_operation(&self, bytes: u64) {
        add(&self.operations, 1);
        add(&self.bytes, bytes);
    }

    /// Tells that the call is over.
    pub fn end_operation(&self) {
        self.drop_operation();
        set(&self.given_up, 0);
    }

    /// Tells that the rank waits, and since when.
    pub fn begin_wait(&self, wait: &WaitingIn, since: Duration) {
        if let Some((call, sequence)) = wait.call {
            self.begin_operation(call, sequence);
        }
        set(&self.step, wait.step);
        set(&self.kind, wait.kind);
        for (word, bits) in self.awaited.iter().zip(wait.awaited.words()) {
            set(word, bits);
        }
        set(&self.given_up, 0);
        store_time(&self.since, since);
    }

    /// Tells that the `wait` which began at `since` is over.
    pub fn end_wait(&self, wait: &WaitingIn, since: Duration, now: Duration) {
        self.count_wait(since, now);
        if wait.call.is_some() {
            set(&self.signature, 0);
        }
    }

    /// Tells that a wait which began at `since` was given up, for its deadline or because it was in
    /// vain. The words that say what it was about stay for reports.
    pub fn give_up_wait(&self, since: Duration, now: Duration, timed_out: bool) {
        set(&self.given_up, nanos(now).max(2) & !1 | u64::from(timed_out));
        self.count_wait(since, now);
    }

    fn count_wait(&self, since: Duration, now: Duration) {
        set(&self.since, 0);
        add(&self.waits, 1);
        add(&self.waited, nanos(now.saturating_sub(since)));
    }

    /// Shows the board at `offset` of the heap, if there is room for one more.
    pub fn show_board(&self, offset: u64) {
        let (mark, relaxed) = (offset.saturating_add(1), Ordering::Relaxed); // Relaxed: an approximate word, see the head
        let taken = |board: &AtomicU64| board.compare_exchange(0, mark, relaxed, relaxed).is_ok();
        let _shown = self.boards.iter().any(taken);
    }

    /// Shows the board at `offset` no more, if it was shown. The `operations` that were begun there
    /// stay counted.
    pub fn hide_board(&self, offset: u64, operations: u64) {
        if let Some(board) = self.boards.iter().find(|board| get(board) == offset.saturating_add(1)) {
            set(board, 0);
            add(&self.gone, operations);
        }
    }

    /// Returns what the cell says.
    #[must_use]
    pub fn read(&self) -> Activity {
        Activity {
            call: Some([get(&self.signature), get(&self.count)]).filter(|call| call[0] != 0),
            sequence: get(&self.sequence),
            step: get(&self.step),
            kind: get(&self.kind),
            awaited: RankSet::from_words(std::array::from_fn(|word| get(&self.awaited[word]))),
            since: load_time(&self.since),
            given_up: load_time(&self.given_up),
            timed_out: get(&self.given_up) % 2 == 1,
            waits: get(&self.waits),
            waited: Duration::from_nanos(get(&self.waited)),
            operations: get(&self.operations),
            bytes: get(&self.bytes),
            gone: get(&self.gone),
            boards: std::array::from_fn(|index| get(&self.boards[index]).checked_sub(1)),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Bits in each word.
    const AWAITED: RankSet = RankSet::from_words([0b101, 1 << 63, 1, 1 << 63 | 1]);
    const WAIT: WaitingIn = WaitingIn { call: Some(([2, 3], 7)), kind: 0, step: 1, awaited: AWAITED };

    #[test]
    fn a_wait_that_is_over_leaves_its_time_and_one_that_was_given_up_what_it_was_about() {
        let cell = ActivityCell::default();
        assert_eq!(cell.read(), Activity::default());
        let (begun, now) = (Duration::from_secs(5), Duration::from_secs(7));
        cell.begin_wait(&WAIT, begun);
        let told = cell.read();
        assert_eq!(
            (told.call, told.sequence, told.since, told.awaited),
            (Some([2, 3]), 7, Some(begun), AWAITED)
        );
        cell.end_wait(&WAIT, begun, now);
        let over = cell.read();
        assert_eq!((over.since, over.given_up, over.waits, over.waited), (None, None, 1, now - begun));
        assert_eq!(over.call, None);
        cell.begin_wait(&WAIT, begun);
        cell.give_up_wait(begun, now, false);
        assert_eq!((cell.read().given_up, cell.read().call, cell.read().waits), (Some(now), Some([2, 3]), 2));
        assert!(!cell.read().timed_out);
        cell.give_up_wait(begun, now, true);
        assert!(cell.read().timed_out && cell.read().since.is_none());
        cell.begin_wait(&WAIT, now);
        assert_eq!(cell.read().given_up, None);
    }

    #[test]
    fn an_operation_that_was_told_of_outlives_the_waits_in_it() {
        let cell = ActivityCell::default();
        cell.begin_operation([2, 3], 7);
        let within = WaitingIn { call: None, ..WAIT };
        cell.begin_wait(&within, Duration::from_secs(1));
        cell.end_wait(&within, Duration::from_secs(1), Duration::from_secs(2));
        assert_eq!((cell.read().call, cell.read().step), (Some([2, 3]), 1));
        cell.count_operation(10);
        cell.end_operation();
        assert_eq!((cell.read().call, cell.read().operations, cell.read().bytes), (None, 1, 10));
    }

    #[test]
    fn boards_beyond_those_that_can_be_shown_are_left_out_and_what_was_done_on_others_stays_counted() {
        let cell = ActivityCell::default();
        (0..6).for_each(|board| cell.show_board(board * 4096));
        assert_eq!(cell.read().boards, [Some(0), Some(4096), Some(8192)]);
        cell.hide_board(5 * 4096, 9);
        cell.hide_board(4096, 4);
        assert_eq!((cell.read().boards[1], cell.read().gone), (None, 4));
        cell.show_board(5 * 4096);
        assert_eq!(cell.read().boards[1], Some(5 * 4096));
    }
}
