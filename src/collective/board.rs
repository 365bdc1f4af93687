//! Where the ranks of a communicator tell each other which operation they are in.
//!
//! Every collective operation begins with a *post* of each member: what it is about to do ([`Summary`]), where its
//! buffers are, and, if the operation is small, the data themselves. Before its post a member touches nothing but what is
//! its own. Who needs a member's part waits for its post and compares the summaries, so that ranks which disagree find out
//! before they touch each other's memory. An operation in which members read or write each other's buffers ends with a
//! *done* of each of them.
//!
//! Operations are numbered from 1; post s goes into slot s mod [`LAP`] of its member's ring. Before a rank posts s it
//! makes sure that every member has posted s - [`LAP`] + 1, and is thus done with the slot (see `src/sync/post.rs`). Most
//! operations wait for all members anyway, and then this costs a comparison.
//!
//! A post also tells, in 16 bits, of all the calls before, for members whose posts nobody had to wait for.
//!
//! Whoever finds that ranks disagree revokes the epoch. All waits end then, and each member that was stopped looks
//! through the ring for the disagreement, so that every rank reports it and not only the one that noticed.

mod discord;
mod mark;
mod telling;
mod waiting;

use std::sync::Arc;

use mark::Mark;

use super::awaits::Awaits;
use super::complaint::Complaints;
use super::elsewhere::Elsewhere;
use super::operation::{Operation, Summary};
use super::region::{LAP, RegionLayout, TURNS};
use super::standoff::Notices;
use crate::channel::RankContext;
use crate::error::Result;
use crate::heap::HeapOffset;
use crate::rank::Rank;
use crate::shm::{CellRef, CellSlice};
use crate::sync::{ParkCell, PostCell, ProgressCell, spin_until};

/// The words of a post that come before its data: summary, and where the input and the output are.
const HEAD: usize = 4;

/// The words of a post that can hold data.
pub(crate) const INLINE_WORDS: usize = crate::sync::POST_WORDS - HEAD;

/// What one member has posted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Post<'a>(&'a PostCell);

impl Post<'_> {
    fn mark(self) -> Mark {
        Mark([self.0.word(0), self.0.word(1)])
    }

    /// The two words about its buffers, whatever the operation takes them for. To be checked before use.
    #[inline]
    pub(crate) fn places(self) -> [u64; 2] {
        [self.0.word(2), self.0.word(3)]
    }

    /// Word number `index` of the data.
    #[inline]
    pub(crate) fn data(self, index: usize) -> u64 {
        self.0.word(HEAD + index)
    }
}

/// One member's side of the board.
#[derive(Debug)]
pub(crate) struct Board {
    context: Arc<RankContext>,
    members: Arc<[Rank]>,
    me: usize,
    posts: Vec<CellSlice<PostCell>>,
    progress: Vec<CellRef<ProgressCell>>,
    /// Which members have left.
    departures: CellSlice<ProgressCell>,
    complaints: Complaints,
    awaits: Awaits,
    notices: Notices,
    /// Where the members may be instead, in the communicator of which some calls do not go by the board.
    elsewhere: Option<Elsewhere>,
    /// What waiting members sleep on.
    park: CellRef<ParkCell>,
    /// The operation that this member is in, or was in last.
    sequence: u64,
    /// The last one that it has posted: not every step of an operation is.
    posted: u64,
    /// Every member is known to have posted this one.
    floor: u64,
    /// What this member posted in each turn of the ring.
    mine: [Mark; TURNS],
    /// Mixed of all calls that this member has posted.
    history: u16,
    /// Where this member's region starts.
    base: HeapOffset,
    /// Which of the caller's operations this member has told of, while it is in one of which it tells.
    large: Option<u64>,
    /// How many of the numbers so far were those of steps within an operation: the same as this member's progress tells.
    aside: u64,
}

impl Board {
    /// The board of `members`, whose regions start at `bases`, for the member `me`, who learns from `departures` which of them
    /// have left.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] and [`Error::Misaligned`] for a base that is not where a region can be.
    pub(crate) fn new(
        context: &Arc<RankContext>,
        members: &Arc<[Rank]>,
        bases: &[HeapOffset],
        me: usize,
        departures: CellSlice<ProgressCell>,
    ) -> Result<Self> {
        let layout = RegionLayout::new(members.len() as u64);
        let view = context.heap().view();
        let both = || members.iter().zip(bases);
        let at = |base: HeapOffset, at, len| layout.part(base, at, len).map(|region| region.offset);
        let posts = both()
            .map(|(&rank, &base)| view.cells(rank, at(base, RegionLayout::POSTS, LAP * 128)?, LAP))
            .collect::<Result<_>>()?;
        let progress = both()
            .map(|(&rank, &base)| view.cell(rank, at(base, RegionLayout::PROGRESS, 128)?))
            .collect::<Result<_>>()?;
        let park = view.cell(members[0], at(bases[0], RegionLayout::PARK, 8)?)?;
        let complaints = Complaints::new(view, members, bases, me)?;
        let awaits = Awaits::new(context, members, bases, me)?;
        let notices = Notices::new(view, members, bases, me)?;
        // Last, since what is shown is to be hidden again by drop.
        let held = context.mapped().hold_boards();
        context.activity().show_board(bases[me].get());
        drop(held);
        Ok(Self {
            context: Arc::clone(context),
            members: Arc::clone(members),
            me,
            posts,
            progress,
            departures,
            complaints,
            awaits,
            notices,
            elsewhere: None,
            park,
            sequence: 0,
            posted: 0,
            floor: 0,
            mine: [Mark([0; 2]); TURNS],
            history: 0,
            base: bases[me],
            large: None,
            aside: 0,
        })
    }

    /// Looks from now on whether members are `elsewhere`.
    pub(crate) fn look_elsewhere(&mut self, elsewhere: Elsewhere) {
        self.elsewhere = Some(elsewhere);
    }

    /// The number of the current operation, or of the last one.
    pub(super) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The turn of the ring that the current operation has.
    #[inline]
    pub(crate) fn turn(&self) -> u64 {
        self.sequence % LAP
    }

    /// Begins the next operation: waits until its slot can be used.
    ///
    /// # Errors
    /// Those of [`Board::await_post`].
    #[inline]
    pub(crate) fn begin(&mut self, operation: Operation) -> Result<()> {
        let has_room = self.has_room();
        self.sequence = self.sequence.wrapping_add(1);
        if has_room { Ok(()) } else { self.make_room(operation) }
    }

    /// Whether the slot of the next operation can be used at once.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.sequence.wrapping_add(1).wrapping_sub(self.floor) < LAP
    }

    /// Waits until every member has posted all but the newest operations that a ring holds.
    #[cold]
    fn make_room(&mut self, operation: Operation) -> Result<()> {
        // The nearest that will do would have this called at every operation; half a lap on, at every fourth.
        let goal = self.sequence.wrapping_sub(LAP / 2);
        for member in 0..self.members.len() {
            self.await_sequence(member, goal, operation)?;
        }
        self.floor = goal;
        Ok(())
    }

    /// Begins the next operation, posts what this member does, and waits until all members have posted the same call.
    ///
    /// # Errors
    /// Those of [`Board::await_post`].
    pub(crate) fn meet(
        &mut self,
        summary: Summary,
        operation: Operation,
        places: [u64; 2],
        data: &[u64],
    ) -> Result<()> {
        self.begin(operation)?;
        self.post(summary, places, data);
        self.await_posts(operation)
    }

    /// Posts what this member does: `summary`, where its buffers are, and `data`.
    // In line whoever calls it: how many words there are is known there as a rule.
    #[inline(always)]
    pub(crate) fn post(&mut self, summary: Summary, places: [u64; 2], data: &[u64]) {
        let mark = Mark::new(summary, self.history);
        self.keep(mark);
        self.put_up(mark, places, data);
    }

    /// Posts as [`Board::post`] does, and keeps its own books only when the others can read it: quicker where they all wait for
    /// it, slower where one of them goes on at once.
    #[inline(always)]
    pub(crate) fn post_first(&mut self, summary: Summary, places: [u64; 2], data: &[u64]) {
        let mark = Mark::new(summary, self.history);
        self.put_up(mark, places, data);
        self.keep(mark);
    }

    /// Keeps what the posts of others are compared with.
    #[inline(always)]
    fn keep(&mut self, mark: Mark) {
        self.history = mark.mixed();
        self.mine[self.turn_index()] = mark;
        self.posted = self.sequence;
    }

    #[inline(always)]
    fn put_up(&self, mark: Mark, places: [u64; 2], data: &[u64]) {
        let head: [u64; HEAD] = [mark.0[0], mark.0[1], places[0], places[1]];
        self.posts[self.me][self.turn_index()].post(self.sequence, head, data);
        self.park.wake(self.context.kernel());
    }

    /// Has the cache line of the next post brought here while the answer to this one is under way: worth it where the next operation
    /// is soon, and waits for all. A member that polls that line already loses time by it.
    #[inline]
    pub(crate) fn fetch_next(&self) {
        let next = index(self.sequence.wrapping_add(1));
        self.posts[self.me][next].fetch(self.mine[next].0[0]);
    }

    /// Waits for the post of `member` and compares it with this member's.
    ///
    /// # Errors
    /// [`Error::CallMismatch`] when they are in different calls; [`Error::Timeout`], [`Error::PeerLost`],
    /// [`Error::ProxyLost`], [`Error::Revoked`].
    ///
    /// # Ordering
    /// Acquires everything the member did before it posted (C1).
    // In line whoever calls it: what comes after the last look is what the next post waits for.
    #[inline(always)]
    pub(crate) fn await_post(&self, member: usize, operation: Operation) -> Result<Post<'_>> {
        let turn = self.turn_index();
        let cell = &self.posts[member][turn];
        // A short wait is spent right here: the way back out of a long one takes as long as a post takes to arrive.
        let shows = || cell.shows(self.sequence);
        if !shows() && !spin_until(self.context.policy(), shows) {
            self.await_sequence(member, self.sequence, operation)?;
        }
        let post = Post(cell);
        if post.mark() == self.mine[turn] { Ok(post) } else { Err(self.disagree(member, turn)) }
    }

    /// Waits for the posts of all members and compares them with this member's.
    ///
    /// # Errors
    /// Those of [`Board::await_post`].
    #[inline]
    pub(crate) fn await_posts(&mut self, operation: Operation) -> Result<()> {
        self.await_each(operation, |_| ())
    }

    /// The same, and hands each post to `visit`, in the order of the members; `None` stands for this member's own.
    ///
    /// It knows what it has posted. Looking it up would fetch the cache line back from the core that is reading it.
    ///
    /// # Errors
    /// Those of [`Board::await_post`].
    #[inline]
    pub(crate) fn await_each(
        &mut self,
        operation: Operation,
        mut visit: impl FnMut(Option<Post<'_>>),
    ) -> Result<()> {
        for member in 0..self.members.len() {
            visit(if member == self.me { None } else { Some(self.await_post(member, operation)?) });
        }
        self.floor = self.sequence;
        Ok(())
    }

    /// The post of `member`, which was awaited.
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

    /// Tells that this member has taken a step of the current operation, and returns the step's number: operations in
    /// several steps count on where they began, all members alike.
    pub(crate) fn step(&mut self) -> u64 {
        self.sequence = self.sequence.wrapping_add(1);
        self.set_aside(1);
        self.done();
        self.sequence
    }

    /// Counts `n` steps of the current operation that this member's post has told of, and returns the number of the first one.
    pub(crate) fn skip_steps(&mut self, n: u64) -> u64 {
        let first = self.sequence.wrapping_add(1);
        self.sequence = self.sequence.wrapping_add(n);
        // Told with the first step that is taken: until then this member's progress says nothing of these.
        self.aside = self.aside.wrapping_add(n);
        first
    }

    /// Waits until all members have taken step number `step`.
    ///
    /// # Errors
    /// Those of [`Board::await_post`].
    ///
    /// # Ordering
    /// Acquires everything they did until then (C2).
    pub(crate) fn await_step(&mut self, step: u64, operation: Operation) -> Result<()> {
        for member in 0..self.members.len() {
            let cell = &self.progress[member];
            if !cell.has_reached(step) {
                self.wait(member, operation, || cell.has_reached(step))?;
            }
        }
        // Who has come so far has posted the operation, and reads no older post.
        self.floor = step;
        Ok(())
    }

    /// Waits until `member` is done with the current operation.
    ///
    /// # Errors
    /// Those of [`Board::await_post`].
    ///
    /// # Ordering
    /// Acquires everything the member did until then (C2).
    #[inline]
    pub(crate) fn await_done(&self, member: usize, operation: Operation) -> Result<()> {
        let cell = &self.progress[member];
        let is_done = || cell.has_reached(self.sequence);
        if is_done() || spin_until(self.context.policy(), is_done) {
            return Ok(());
        }
        self.wait(member, operation, is_done)
    }

    /// Waits until all members are done with the current operation.
    ///
    /// # Errors
    /// Those of [`Board::await_post`].
    #[inline]
    pub(crate) fn await_all_done(&self, operation: Operation) -> Result<()> {
        (0..self.members.len()).try_for_each(|member| self.await_done(member, operation))
    }

    /// Wakes the members that wait.
    #[inline]
    pub(crate) fn wake(&self) {
        self.park.wake(self.context.kernel());
    }

    /// What this member and others tell each other of waits for messages between them.
    pub(crate) fn notices(&self) -> &Notices {
        &self.notices
    }

    /// What the channels of this member stand on.
    pub(crate) fn context(&self) -> &Arc<RankContext> {
        &self.context
    }

    /// Ends the epoch when `done` is an error: peers that come later would take what this member has posted for valid, and what
    /// is left in a pipe for theirs.
    #[inline]
    pub(crate) fn or_revoke(&self, done: Result<()>) -> Result<()> {
        // Written out, so that a success is not copied.
        match done {
            Ok(()) => Ok(()),
            Err(error) => {
                self.revoke();
                Err(error)
            }
        }
    }

    /// Ends the epoch: the members cannot go on together.
    #[cold]
    pub(crate) fn revoke(&self) {
        self.context.abort();
    }

    #[inline]
    fn turn_index(&self) -> usize {
        index(self.sequence)
    }
}

/// The call that a notice is about, whatever it says.
pub(crate) fn post_summary(cell: &PostCell) -> Summary {
    Post(cell).mark().summary()
}

/// The slot of `sequence` in a ring.
#[inline]
fn index(sequence: u64) -> usize {
    // Below LAP, so nothing is lost.
    usize::try_from(sequence % LAP).unwrap_or(0)
}
