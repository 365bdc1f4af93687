//! Calls that are put together, and executed together.

use std::sync::Arc;

use super::stream::Stream;
use super::submit::{Caller, Submit};
use crate::collective::group::{self, GroupShare};
use crate::collective::{Call, Operation, Request};
use crate::comm::Communicator;
use crate::comm::membership::JobMembership;
use crate::error::{Error, Result};

/// Takes calls of one communicator or several, and executes them at its end, at once or [on a
/// stream](Group::end_on).
///
/// ```no_run
/// # use shmccl::{Collectives, Communicator, Group, Result};
/// # fn exchange(row: &mut Communicator, column: &mut Communicator) -> Result<()> {
/// let (mine, mut theirs, mut sum) = ([1_u32; 8], [0; 8], [0; 8]);
/// let (left, right) = (row.left(), row.right());
/// let mut group = Group::start();
/// let (row, column) = (group.join(row), group.join(column));
/// group.on(row).send(&mine, right)?;
/// group.on(row).recv(&mut theirs, left)?;
/// group.on(column).all_reduce(&mine, &mut sum, &shmccl::reduce::ReduceOp::Sum)?;
/// group.end()
/// # }
/// ```
///
/// All sends and receives of a group move at once, so no order of them blocks. Collective calls run
/// before them, in one order on all ranks, and as one after the other where they share memory.
/// [`semantics`](crate::collective::semantics#groups) has the rules, and the differences to NCCL.
///
/// A group holds up to [`Group::MAX_CALLS`] calls of each communicator; one more is
/// [`Error::Exhausted`]. A wrong argument is an error of the call, which is left out. Everything
/// else is an error of [`Group::end`]. A group that is dropped executes nothing.
#[derive(Debug)]
pub struct Group<'c, 'b> {
    /// Starts that have not ended.
    depth: u32,
    /// How many of them are outside the innermost [`Group::nest`], which cannot end them.
    floor: u32,
    comms: Vec<GroupedComm<'c, 'b>>,
}

/// A communicator in a group, and its calls.
#[derive(Debug)]
struct GroupedComm<'c, 'b> {
    comm: &'c mut Communicator,
    calls: Vec<Call<'b>>,
}

/// Names a communicator that has joined a [`Group`]. It means nothing to other groups.
#[derive(Clone, Copy, Debug)]
pub struct GroupMember {
    index: usize,
    /// The caller, for a group that has ended.
    caller: Caller,
}

/// Puts the calls of one communicator into a group: see [`Group::on`].
#[derive(Debug)]
pub struct OnGroup<'g, 'c, 'b> {
    group: &'g mut Group<'c, 'b>,
    joined: GroupMember,
}

impl<'b> GroupedComm<'_, 'b> {
    /// Returns the calls of the share and what executes them.
    fn share(&mut self) -> Result<GroupShare<'_, 'b>> {
        let Self { comm, calls } = self;
        let choice = comm.choice;
        let engine = comm.engine_for(|| group::signature(calls, choice))?;
        Ok(GroupShare { engine, choice, calls: std::mem::take(calls) })
    }
}

impl<'c, 'b> Group<'c, 'b> {
    /// The most calls of one communicator.
    pub const MAX_CALLS: usize = group::MAX_CALLS;

    /// Starts a group, of nothing yet.
    #[must_use]
    pub const fn start() -> Self {
        Self { depth: 1, floor: 0, comms: Vec::new() }
    }

    /// Lets `put` group calls of its own within this group. An [`Group::end`] in it executes
    /// nothing, and is not needed. So a function can group calls whether its caller does so too or
    /// not. A second end in it is an error.
    ///
    /// # Errors
    /// Fails as `put` does, whose earlier calls stay, or with [`Error::Unavailable`] when
    /// everything has ended already.
    pub fn nest(&mut self, put: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        if self.depth == 0 {
            return Err(ENDED);
        }
        let outer = (self.depth, self.floor);
        (self.depth, self.floor) = (self.depth.saturating_add(1), self.depth);
        let done = put(self);
        (self.depth, self.floor) = outer;
        done
    }

    /// Adds `comm` to the group. It makes its calls through the group until the end, by the
    /// returned name.
    pub fn join(&mut self, comm: &'c mut Communicator) -> GroupMember {
        let joined = GroupMember { index: self.comms.len(), caller: comm.caller() };
        self.comms.push(GroupedComm { comm, calls: Vec::with_capacity(SOME) });
        joined
    }

    /// Takes the calls of `joined`.
    pub const fn on<'g>(&'g mut self, joined: GroupMember) -> OnGroup<'g, 'c, 'b> {
        OnGroup { group: self, joined }
    }

    /// Ends what was started last. The outermost end executes all calls, and returns when they are
    /// done.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`] when the communicators are of different jobs, or of different
    ///   ranks of one. Nothing was executed.
    /// - [`Error::InvalidArgument`] when a message to oneself has no partner in the group. Nothing
    ///   was executed.
    /// - [`Error::InvalidArgument`] for calls that [share
    ///   memory](crate::collective::semantics#calls-that-share-memory) and have no order. Nothing
    ///   was executed.
    /// - [`Error::Unavailable`] when everything has ended already, or everything that was nested.
    /// - Otherwise those of the calls. Those that end the epoch leave open how far the others have
    ///   come.
    pub fn end(&mut self) -> Result<()> {
        let mut comms = self.take()?;
        if let Some(GroupedComm { comm, .. }) = comms.first() {
            comm.context().enter(Operation::Group.name())?;
        }
        match comms.as_mut_slice() {
            [member] => group::run(&mut [member.share()?]),
            comms => {
                let shares: Result<Vec<_>> = comms.iter_mut().map(GroupedComm::share).collect();
                group::run(&mut shares?)
            }
        }
    }

    /// Ends what was started last. Returns the communicators with calls at the outermost end, and
    /// nothing before.
    fn take(&mut self) -> Result<Vec<GroupedComm<'c, 'b>>> {
        if self.depth <= self.floor {
            return Err(ENDED);
        }
        self.depth -= 1;
        if self.depth > 0 {
            return Ok(Vec::new());
        }
        self.check_job()?;
        let mut comms = std::mem::take(&mut self.comms);
        comms.retain(|member| !member.calls.is_empty());
        Ok(comms)
    }

    /// Checks that all communicators are of one rank of one job. Two jobs have no common order of
    /// calls, and one thread cannot wait for two ranks.
    fn check_job(&self) -> Result<()> {
        let mut memberships = self.comms.iter().map(|member| &member.comm.membership);
        let Some(first) = memberships.next() else { return Ok(()) };
        let epoch_id = |membership: &JobMembership| membership.context.mapped().epoch_id();
        let (mut of_other_ranks, mut of_other_jobs) = (0, 0);
        for other in memberships.filter(|other| !Arc::ptr_eq(other, first)) {
            if epoch_id(other) == epoch_id(first) { of_other_ranks += 1 } else { of_other_jobs += 1 }
        }
        let refused = |name, value, expected| Err(Error::invalid(name, value, expected));
        match (of_other_jobs, of_other_ranks) {
            (0, 0) => Ok(()),
            (0, others) => refused(
                "the number of communicators in a group that are of another rank of the job than the first",
                others,
                "none; make a group for each rank, and end it in a thread of its own, or on a stream",
            ),
            (others, _) => refused(
                "the number of communicators in a group that are of another job, or another epoch, than the first",
                others,
                "none; make a group for each",
            ),
        }
    }
}

/// Calls whose buffers are in the symmetric heap, or live for ever.
impl Group<'_, 'static> {
    /// Ends what was started last like [`end`](Self::end), but lets `stream` execute the calls, as
    /// one operation.
    ///
    /// Sends and receives that depend on each other on two ranks belong into one group: by
    /// themselves, a stream executes them in order.
    ///
    /// ```no_run
    /// # use shmccl::{Collectives, Communicator, Group, Result, Stream, heap::DeviceBuffer};
    /// # fn exchange(
    /// #     comm: &mut Communicator,
    /// #     mine: &DeviceBuffer<u32>,
    /// #     theirs: &DeviceBuffer<u32>,
    /// #     stream: &Stream,
    /// # ) -> Result<()> {
    /// let (left, right) = (comm.left(), comm.right());
    /// let mut group = Group::start();
    /// let all = group.join(comm);
    /// group.on(all).send(mine, right)?;
    /// group.on(all).recv(theirs, left)?;
    /// group.end_on(stream)
    /// # }
    /// ```
    ///
    /// A nested end executes nothing either. The outermost end decides how all calls are executed.
    ///
    /// # Errors
    /// - [`Error::Exhausted`] when the stream is full. The group is as it was: synchronise, and end
    ///   it again. If other threads fill the stream at this moment, the calls are gone instead.
    /// - [`Error::StreamFailed`]. It counts as a skipped call, which ends the epoch.
    /// - Those of the first call of a communicator, and [`Error::InvalidArgument`] and
    ///   [`Error::Unavailable`] as for `end`. Nothing is enqueued then.
    /// - Errors of messages to oneself, and of calls that share memory and have no order, are
    ///   errors of the operation.
    pub fn end_on(&mut self, stream: &Stream) -> Result<()> {
        if self.depth == 1 && self.floor == 0 && self.comms.iter().any(|member| !member.calls.is_empty()) {
            stream.check_room()?;
        }
        stream.enqueue_group(self.take()?.into_iter().map(|GroupedComm { comm, calls }| (comm, calls)))
    }
}

/// Calls of a communicator for which there is room without asking for more.
const SOME: usize = 4;

/// The error of a call after the end.
const ENDED: Error = Error::Unavailable { operation: "a call in a group", needs: "one that has not ended" };

/// A call of a group waits for its end.
impl<'b> Submit<'b> for OnGroup<'_, '_, 'b> {
    fn caller(&self) -> Caller {
        self.group.comms.get(self.joined.index).map_or(self.joined.caller, |member| member.comm.caller())
    }

    fn take(&mut self, request: Request<'b, '_>) -> Result<()> {
        let Caller { rank, n_ranks, .. } = self.caller();
        let call = request.check(rank, n_ranks)?;
        let member = self.group.comms.get_mut(self.joined.index).ok_or(ENDED)?;
        call.check_choice(member.comm.choice)?;
        group::push(&mut member.calls, call)
    }
}
