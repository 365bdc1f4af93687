//! Where the ranks of a communicator tell each other which operation they are in.
//!
//! Every collective operation begins with a *post* of each member: what it is about to do
//! ([`CallSignature`]), and either where its buffers lie or, if the call is eager, the data. Before
//! its post a member touches nothing but what is its own. A member that needs another one's part
//! waits for that one's post and compares the signatures. So ranks that disagree find out before
//! they touch each other's memory. An operation in which members read or write each other's buffers
//! ends with a *done* of each of them.
//!
//! Operations are numbered from 1. Post s goes into slot s mod [`LAP`] of its member's ring. Before
//! a rank posts s it makes sure that every member has posted s - [`LAP`] + 1, and is thus done with
//! the slot (see `src/sync/post.rs`). Most operations wait for all members anyway, and then this
//! costs a comparison.
//!
//! A post also tells, in 16 bits, of all the calls before ([`post`](super::post)), since some
//! operations wait for nobody.
//!
//! A member that finds a disagreement revokes the epoch. All waits end then. Each member that was
//! stopped looks through the ring for the disagreement, so that every rank reports it.

use std::sync::Arc;

use super::at_barrier::AtBarrier;
use super::deadlock::DeadlockNotices;
use super::post::{CallWithHistory, EagerPost, HEAD, LargePost, Post};
use crate::channel::RankContext;
use crate::collective::call::{CallSignature, Operation};
use crate::collective::region::{CellsBetween, CommLayout, LAP, TURNS};
use crate::error::{Error, Result};
use crate::heap::HeapOffset;
use crate::rank::Rank;
use crate::shm::{CellRef, CellSlice};
use crate::sync::{ParkCell, PostCell, ProgressCell, spin_until};

/// One member's side of the board.
#[derive(Debug)]
pub(crate) struct CallBoard {
    pub(super) context: Arc<RankContext>,
    pub(super) ranks: Arc<[Rank]>,
    pub(super) me: usize,
    pub(super) posts: Vec<CellSlice<PostCell>>,
    pub(super) progress: Vec<CellRef<ProgressCell>>,
    /// Which members have left.
    pub(super) departures: CellSlice<ProgressCell>,
    /// What members report of messages that were not called for.
    pub(super) mismatch_reports: CellsBetween<PostCell>,
    /// The last operation in which a member has waited for the other one for a while.
    pub(super) waits_for: CellsBetween<ProgressCell>,
    /// What this member and others tell each other of waits for messages between them.
    pub(crate) notices: DeadlockNotices,
    /// Where the members may be instead, in the communicator of which some calls do not go by the
    /// board.
    pub(super) at_barrier: Option<AtBarrier>,
    /// What waiting members sleep on.
    pub(super) park: CellRef<ParkCell>,
    /// The operation that this member is in, or was in last.
    pub(super) sequence: u64,
    /// The last one that it has posted: not every step of an operation is.
    pub(super) posted: u64,
    /// Every member is known to have posted this one.
    pub(super) posted_by_all: u64,
    /// What this member posted in each turn of the ring.
    pub(super) mine: [CallWithHistory; TURNS],
    /// Mixed of all calls that this member has posted.
    pub(super) history: u16,
    /// Where this member's region starts.
    pub(super) base: HeapOffset,
    /// Which of the caller's operations this member has told of, while it is in one of which it
    /// tells.
    pub(super) reported_call: Option<u64>,
    /// Sequence numbers that steps within an operation have used so far; reports subtract them.
    pub(super) inner_steps: u64,
}

impl CallBoard {
    /// Makes the board of `members`, whose regions start at `bases`, for the member `me`, who
    /// learns from `departures` which of them have left.
    ///
    /// # Errors
    /// [`crate::Error::OutOfRange`] and [`crate::Error::Misaligned`] for a base that is not where a
    /// region can be.
    pub(crate) fn new(
        context: &Arc<RankContext>,
        ranks: &Arc<[Rank]>,
        bases: &[HeapOffset],
        me: usize,
        departures: CellSlice<ProgressCell>,
    ) -> Result<Self> {
        let layout = CommLayout::new(ranks.len() as u64);
        let view = context.heap().view();
        let both = || ranks.iter().zip(bases);
        let at = |base: HeapOffset, at, len| layout.part(base, at, len).map(|region| region.offset);
        let posts = both()
            .map(|(&rank, &base)| view.cells(rank, at(base, CommLayout::POSTS, LAP * 128)?, LAP))
            .collect::<Result<_>>()?;
        let progress = both()
            .map(|(&rank, &base)| view.cell(rank, at(base, CommLayout::PROGRESS, 128)?))
            .collect::<Result<_>>()?;
        let park = view.cell(ranks[0], at(bases[0], CommLayout::PARK, 8)?)?;
        let mismatch_reports = CellsBetween::new(view, ranks, bases, me, CommLayout::mismatch_report)?;
        let waits_for = CellsBetween::new(view, ranks, bases, me, CommLayout::waits_for)?;
        let notices = DeadlockNotices(CellsBetween::new(view, ranks, bases, me, CommLayout::notice)?);
        // Last, since what is shown is to be hidden again by drop.
        let held = context.mapped().hold_boards();
        context.activity().show_board(bases[me].get());
        drop(held);
        Ok(Self {
            context: Arc::clone(context),
            ranks: Arc::clone(ranks),
            me,
            posts,
            progress,
            departures,
            mismatch_reports,
            waits_for,
            notices,
            at_barrier: None,
            park,
            sequence: 0,
            posted: 0,
            posted_by_all: 0,
            mine: [CallWithHistory([0; 2]); TURNS],
            history: 0,
            base: bases[me],
            reported_call: None,
            inner_steps: 0,
        })
    }

    /// Makes every wait look whether members are in a barrier of the job: for the communicator
    /// whose barriers are those.
    pub(crate) fn watch_barrier(&mut self) {
        self.at_barrier = Some(AtBarrier::new(&self.context));
    }

    /// Returns the number of the current operation, or of the last one.
    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Returns the turn of the ring that the current operation has.
    #[inline]
    pub(crate) fn turn(&self) -> u64 {
        self.sequence % LAP
    }

    /// Begins the next operation: waits until its slot can be used.
    ///
    /// # Errors
    /// Fails as [`CallBoard::await_post`] does.
    #[inline]
    pub(crate) fn begin(&mut self, operation: Operation) -> Result<()> {
        let has_room = self.has_room();
        self.sequence = self.sequence.wrapping_add(1);
        if has_room { Ok(()) } else { self.make_room(operation) }
    }

    /// Returns whether the slot of the next operation can be used at once.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.sequence.wrapping_add(1).wrapping_sub(self.posted_by_all) < LAP
    }

    /// Waits until every member has posted all but the newest operations that a ring holds.
    #[cold]
    fn make_room(&mut self, operation: Operation) -> Result<()> {
        // The nearest that will do would have this called at every operation; half a lap on, at
        // every fourth.
        let goal = self.sequence.wrapping_sub(LAP / 2);
        for member in 0..self.ranks.len() {
            self.await_sequence(member, goal, operation)?;
        }
        self.posted_by_all = goal;
        Ok(())
    }

    /// Begins the next operation, posts `words`, and waits until all members have posted the same
    /// call.
    ///
    /// # Errors
    /// Fails as [`CallBoard::await_post`] does.
    pub(crate) fn meet(
        &mut self,
        signature: CallSignature,
        operation: Operation,
        words: &[u64],
    ) -> Result<()> {
        self.meet_each(signature, operation, words, |_| ())
    }

    /// Meets as [`CallBoard::meet`] does, and hands the posts of the others to `visit`.
    ///
    /// # Errors
    /// Fails as [`CallBoard::await_post`] does.
    pub(crate) fn meet_each(
        &mut self,
        signature: CallSignature,
        operation: Operation,
        words: &[u64],
        mut visit: impl FnMut(Post<'_>),
    ) -> Result<()> {
        self.begin(operation)?;
        self.post(signature, EagerPost::of(words));
        self.await_each(operation, |post| {
            if let Some(post) = post {
                visit(post);
            }
        })
    }

    /// Posts an eager call.
    // Always inlined: most callers know how many words there are.
    #[inline(always)]
    pub(crate) fn post(&mut self, signature: CallSignature, post: EagerPost<'_>) {
        let call = CallWithHistory::new(signature, self.history);
        self.keep(call);
        self.put_up(call, post.head(), post.data);
    }

    /// Posts as [`CallBoard::post`] does, and keeps its own books only when the others can read it:
    /// quicker where they all wait for it, slower where one of them goes on at once.
    #[inline(always)]
    pub(crate) fn post_first(&mut self, signature: CallSignature, post: EagerPost<'_>) {
        let call = CallWithHistory::new(signature, self.history);
        self.put_up(call, post.head(), post.data);
        self.keep(call);
    }

    /// Posts a call that is not eager, and keeps its own books afterwards.
    #[inline(always)]
    pub(crate) fn post_large(&mut self, signature: CallSignature, post: LargePost) {
        let call = CallWithHistory::new(signature, self.history);
        let (head, data) = post.to_words();
        self.put_up(call, head, &data);
        self.keep(call);
    }

    /// Keeps what the posts of others are compared with.
    #[inline(always)]
    fn keep(&mut self, call: CallWithHistory) {
        self.history = call.mixed();
        self.mine[self.turn_index()] = call;
        self.posted = self.sequence;
    }

    #[inline(always)]
    fn put_up(&self, call: CallWithHistory, own: [u64; 2], data: &[u64]) {
        let head: [u64; HEAD] = [call.0[0], call.0[1], own[0], own[1]];
        self.posts[self.me][self.turn_index()].post(self.sequence, head, data);
        self.park.wake(self.context.kernel());
    }

    /// Has the cache line of the next post brought here while the answer to this one is under way:
    /// worth it where the next operation is soon, and waits for all. A member that polls that line
    /// already loses time by it.
    #[inline]
    pub(crate) fn fetch_next(&self) {
        let next = index(self.sequence.wrapping_add(1));
        self.posts[self.me][next].fetch(self.mine[next].0[0]);
    }

    /// Waits for the post of `member` and compares it with this member's.
    ///
    /// # Errors
    /// [`crate::Error::CallMismatch`] when they are in different calls; [`crate::Error::Timeout`],
    /// [`crate::Error::PeerLost`], [`crate::Error::ProxyLost`], [`crate::Error::Revoked`].
    ///
    /// # Ordering
    /// Acquires everything the member did before it posted (C1).
    // Always inlined: the next post waits for all that comes after the last look.
    #[inline(always)]
    pub(crate) fn await_post(&self, member: usize, operation: Operation) -> Result<Post<'_>> {
        let turn = self.turn_index();
        let cell = &self.posts[member][turn];
        // A short wait is spent right here: the way back out of a long one takes as long as a post
        // takes to arrive.
        let shows = || cell.shows(self.sequence);
        if !shows() && !spin_until(self.context.policy(), shows) {
            self.await_sequence(member, self.sequence, operation)?;
        }
        let post = Post(cell);
        if post.call() == self.mine[turn] { Ok(post) } else { self.reconcile(member, turn) }
    }

    /// Waits for the posts of all members and compares them with this member's.
    ///
    /// # Errors
    /// Fails as [`CallBoard::await_post`] does.
    #[inline]
    pub(crate) fn await_posts(&mut self, operation: Operation) -> Result<()> {
        self.await_each(operation, |_| ())
    }

    /// Waits for the posts of all members, compares them, and hands each to `visit`, in the order
    /// of the members; `None` stands for this member's own.
    ///
    /// It knows what it has posted. Looking it up would fetch the cache line back from the core
    /// that is reading it.
    ///
    /// # Errors
    /// Fails as [`CallBoard::await_post`] does.
    #[inline]
    pub(crate) fn await_each(
        &mut self,
        operation: Operation,
        mut visit: impl FnMut(Option<Post<'_>>),
    ) -> Result<()> {
        for member in 0..self.ranks.len() {
            visit(if member == self.me { None } else { Some(self.await_post(member, operation)?) });
        }
        self.posted_by_all = self.sequence;
        Ok(())
    }

    /// Waits for the posts of all members, and looks whether they count. The last member to come
    /// has waited for nobody, and is about to write where others may have given up.
    ///
    /// # Errors
    /// Fails as [`CallBoard::await_post`] does.
    pub(crate) fn await_all(&mut self, operation: Operation) -> Result<()> {
        self.await_posts(operation)?;
        self.check_epoch(operation)
    }

    /// Refuses to go on in `operation`, which all members have posted, when the epoch has ended:
    /// some of them may have given it up since.
    ///
    /// # Errors
    /// Fails as a [`CallBoard::await_post`] that began now would.
    pub(crate) fn check_epoch(&self, operation: Operation) -> Result<()> {
        let checked = self.context.check(operation.name());
        checked.map_err(|error| self.explain(self.call(operation), error))
    }

    /// Returns whether some member has announced blocks of any lengths in the current operation,
    /// where this one has posted even ones, and has awaited all posts.
    pub(crate) fn meets_blocks(&self) -> bool {
        (0..self.ranks.len()).any(|member| member != self.me && self.post_of(member).announces_blocks())
    }

    /// Returns the post of `member`, which was awaited.
    #[inline]
    pub(crate) fn post_of(&self, member: usize) -> Post<'_> {
        Post(&self.posts[member][self.turn_index()])
    }

    /// Tells that this member no longer touches other members' buffers in the current operation.
    #[inline]
    pub(crate) fn done(&self) {
        self.progress[self.me].publish(self.sequence);
        self.park.wake(self.context.kernel());
    }

    /// Tells that this member has taken a step of the current operation, and returns the step's
    /// number: operations in several steps count on where they began, all members alike.
    pub(crate) fn step(&mut self) -> u64 {
        self.sequence = self.sequence.wrapping_add(1);
        self.count_inner_steps(1);
        self.done();
        self.sequence
    }

    /// Counts `n` steps of the current operation that this member's post has told of, and returns
    /// the number of the first one.
    pub(crate) fn skip_steps(&mut self, n: u64) -> u64 {
        let first = self.sequence.wrapping_add(1);
        self.sequence = self.sequence.wrapping_add(n);
        // Told with the first step that is taken: until then this member's progress says nothing of
        // these.
        self.inner_steps = self.inner_steps.wrapping_add(n);
        first
    }

    /// Waits until all members have taken step number `step`.
    ///
    /// # Errors
    /// Fails as [`CallBoard::await_post`] does.
    ///
    /// # Ordering
    /// Acquires everything they did until then (C2).
    pub(crate) fn await_step(&mut self, step: u64, operation: Operation) -> Result<()> {
        for member in 0..self.ranks.len() {
            let cell = &self.progress[member];
            if !cell.has_reached(step) {
                self.wait(member, operation, || cell.has_reached(step))?;
            }
        }
        // A member that has come so far has posted the operation, and reads no older post.
        self.posted_by_all = step;
        Ok(())
    }

    /// Waits until all members are done with the current operation.
    ///
    /// # Errors
    /// Fails as [`CallBoard::await_post`] does.
    ///
    /// # Ordering
    /// Acquires everything they did until then (C2).
    #[inline]
    pub(crate) fn await_all_done(&self, operation: Operation) -> Result<()> {
        (0..self.ranks.len()).try_for_each(|member| {
            let cell = &self.progress[member];
            let is_done = || cell.has_reached(self.sequence);
            if is_done() || spin_until(self.context.policy(), is_done) {
                return Ok(());
            }
            self.wait(member, operation, is_done)
        })
    }

    /// Wakes the members that wait.
    #[inline]
    pub(crate) fn wake(&self) {
        self.park.wake(self.context.kernel());
    }

    /// Returns what the channels of this member stand on.
    pub(crate) fn context(&self) -> &Arc<RankContext> {
        &self.context
    }

    /// Ends the epoch when `done` is an error: peers that come later would take what this member
    /// has posted for valid, and what is left in a pipe for theirs.
    #[inline]
    pub(crate) fn or_revoke(&self, done: Result<()>) -> Result<()> {
        // Written out, so that a success is not copied.
        match done {
            Ok(()) => Ok(()),
            Err(error) => {
                self.revoke_after(&error);
                Err(error)
            }
        }
    }

    /// Tells that a large call is over, or ends the epoch when `done` is an error.
    pub(crate) fn conclude(&mut self, done: Result<()>) -> Result<()> {
        if done.is_ok() {
            self.report_done();
        }
        self.or_revoke(done)
    }

    /// Ends the epoch: the members cannot go on together.
    #[cold]
    pub(crate) fn revoke(&self) {
        self.context.abort();
    }

    /// Ends the epoch as [`Board::revoke`] does, because of `error`.
    #[cold]
    pub(crate) fn revoke_after(&self, error: &Error) {
        self.context.abort_after(error);
    }

    #[inline]
    fn turn_index(&self) -> usize {
        index(self.sequence)
    }
}

/// Returns the call that a notice is about, whatever it says.
pub(crate) fn posted_signature(cell: &PostCell) -> CallSignature {
    Post(cell).call().signature()
}

/// Returns the slot of `sequence` in a ring.
#[inline]
pub(super) fn index(sequence: u64) -> usize {
    // Below LAP, so nothing is lost.
    usize::try_from(sequence % LAP).unwrap_or(0)
}
