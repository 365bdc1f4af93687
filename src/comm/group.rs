//! Calls that are put together, and executed together.

use std::sync::Arc;

use super::Communicator;
use super::membership::JobMembership;
use super::stream::Stream;
use super::submit::{Caller, Submit};
use crate::collective::group::{self, Share};
use crate::collective::{Call, Operation};
use crate::error::{Error, Result};

/// Takes calls, of one communicator or several, and executes them at its end, at once or [on a stream](Group::end_on).
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
/// The rules are those of NCCL, but for three:
///
/// - A call that fails at once is left out, and the end executes the others; `ncclGroupEnd` returns that error then, and executes nothing.
///   Here the call itself has returned it: who hands it on by `?` drops the group, which executes nothing either. Who goes on has to
///   see to it that all ranks leave out the same operation of all. If they do not, this rank's next one takes its place: they are told when
///   the two differ ([`Error::CallMismatch`]), and two that are alike have a result that nobody meant.
/// - A group is of one rank. So is the thread that ends groups by [`Group::end`]: it executes them, and would wait for itself. On streams
///   ([`Group::end_on`]) one thread may end groups of several ranks.
/// - The communicators are of one job. Between two jobs there is no order in which all ranks come to their operations.
///
/// Sends and receives of a group never wait for each other, whatever their order: all move at once. Between two ranks, what is sent
/// first is received first. Operations of all ranks are executed in the order in which they were put in, which is the same on all
/// ranks of a communicator, before sends and receives; of several communicators each rank may put in what it likes first. Small ones
/// that follow each other cost little more than one. So all ranks put the same operations into a group: one that makes them one by
/// one is in other calls ([`Error::CallMismatch`]) wherever some of them are small.
///
/// So a message of a group moves when the operations of all ranks in that group are done, those of other communicators too. A peer that
/// waits for the message before it comes to such an operation waits for ever: it puts the two into a group as well.
///
/// A group has room for [`Group::MAX_CALLS`] calls of each communicator; one more is [`Error::Exhausted`]. End it, and start another.
///
/// Calls of a group are independent: none reads what another one of it writes. An argument that is wrong is an error of the call,
/// which is not put in then; everything else is one of [`Group::end`]. A group that is dropped executes nothing.
#[derive(Debug)]
pub struct Group<'c, 'b> {
    /// Starts that have not ended.
    depth: u32,
    /// So many of them are outside of what is being nested, and not for it to end.
    floor: u32,
    comms: Vec<GroupedComm<'c, 'b>>,
}

/// A communicator in a group, and its calls.
#[derive(Debug)]
struct GroupedComm<'c, 'b> {
    comm: &'c mut Communicator,
    calls: Vec<Call<'b>>,
}

/// Names a communicator that has joined a [`Group`]: so many joined before. Means nothing to other groups.
#[derive(Clone, Copy, Debug)]
pub struct GroupMember {
    index: usize,
    /// Who calls, where the group has ended.
    caller: Caller,
}

/// Puts the calls of one communicator into a group: see [`Group::on`].
#[derive(Debug)]
pub struct OnGroup<'g, 'c, 'b> {
    group: &'g mut Group<'c, 'b>,
    joined: GroupMember,
}

impl<'b> GroupedComm<'_, 'b> {
    /// Its calls and what executes them.
    fn share(&mut self) -> Result<Share<'_, 'b>> {
        let Self { comm, calls } = self;
        let manner = comm.manner;
        let engine = comm.engine_for(|| group::summary(calls, manner))?;
        Ok(Share { engine, manner, calls: std::mem::take(calls) })
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

    /// Has `put` group calls of its own within this group: an [`Group::end`] in it executes nothing, and none has to be there. For
    /// functions that group calls whether their caller does so too or not. A second end in it is one too many, and an error.
    ///
    /// # Errors
    /// Those of `put`; what it has put in until then stays. [`Error::Unavailable`] when everything has ended already.
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

    /// Has `comm` join. It makes its calls through the group until the end, by the name that is returned.
    pub fn join(&mut self, comm: &'c mut Communicator) -> GroupMember {
        let joined = GroupMember { index: self.comms.len(), caller: comm.caller() };
        self.comms.push(GroupedComm { comm, calls: Vec::with_capacity(SOME) });
        joined
    }

    /// Takes the calls of `joined`.
    pub const fn on<'g>(&'g mut self, joined: GroupMember) -> OnGroup<'g, 'c, 'b> {
        OnGroup { group: self, joined }
    }

    /// Ends what was started last. The outermost end executes all calls, and returns when they are done.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when the communicators are of different jobs, or of different ranks of one: nothing has been executed
    /// then.
    /// [`Error::InvalidArgument`] when a rank sends itself what it does not receive, or the other way round: nothing has been
    /// executed then. [`Error::Unavailable`] when everything has ended already, or everything that was nested. Otherwise those of the
    /// calls; those that end the epoch leave it open how far the others have come.
    pub fn end(&mut self) -> Result<()> {
        let mut comms = self.take()?;
        if let Some(GroupedComm { comm, .. }) = comms.first() {
            comm.fabric().enter(Operation::Group.name())?;
        }
        match comms.as_mut_slice() {
            [member] => group::run(&mut [member.share()?]),
            comms => {
                let shares: Result<Vec<_>> = comms.iter_mut().map(GroupedComm::share).collect();
                group::run(&mut shares?)
            }
        }
    }

    /// Ends what was started last, and returns what is to be done: at the outermost end all calls, of communicators that have any.
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

    /// Jobs have no order between them in which all their ranks could come to their operations; and ranks of one job wait for each
    /// other, which a single thread does not do for two of them.
    fn check_job(&self) -> Result<()> {
        let mut memberships = self.comms.iter().map(|member| &member.comm.membership);
        let Some(first) = memberships.next() else { return Ok(()) };
        let era = |membership: &JobMembership| membership.fabric.world().era();
        let (mut of_other_ranks, mut of_other_jobs) = (0, 0);
        for other in memberships.filter(|other| !Arc::ptr_eq(other, first)) {
            if era(other) == era(first) { of_other_ranks += 1 } else { of_other_jobs += 1 }
        }
        let refused = |name, value, expected| Err(Error::InvalidArgument { name, value, expected });
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
    /// Ends what was started last as [`end`](Self::end) does, and has `stream` execute the calls, as one operation. Sends and receives that
    /// depend on each other on two ranks have to be in one group: on a stream by themselves they are executed in order.
    ///
    /// ```no_run
    /// # use shmccl::{Collectives, Communicator, Group, Result, Stream, heap::DeviceBuffer};
    /// # fn exchange(comm: &mut Communicator, mine: &DeviceBuffer<u32>, theirs: &DeviceBuffer<u32>, stream: &Stream) -> Result<()> {
    /// let (left, right) = (comm.left(), comm.right());
    /// let mut group = Group::start();
    /// let all = group.join(comm);
    /// group.on(all).send(mine, right)?;
    /// group.on(all).recv(theirs, left)?;
    /// group.end_on(stream)
    /// # }
    /// ```
    ///
    /// Where it is nested it executes nothing either, and the outermost end says how all is executed.
    ///
    /// # Errors
    /// [`Error::Exhausted`] when the stream is full: the group is as it was, so synchronise, and end it again. Where other threads fill
    /// the stream in this moment, the calls are gone instead.
    /// [`Error::StreamFailed`]: it counts as a call that is skipped, which ends the epoch. Those of the first call of a communicator, and
    /// [`Error::InvalidArgument`] and [`Error::Unavailable`] as `end` has them: nothing is enqueued then. What is wrong with messages to
    /// oneself is an error of the operation.
    pub fn end_on(&mut self, stream: &Stream) -> Result<()> {
        if self.depth == 1 && self.floor == 0 && self.comms.iter().any(|member| !member.calls.is_empty()) {
            stream.check_room()?;
        }
        stream.enqueue_group(self.take()?.into_iter().map(|GroupedComm { comm, calls }| (comm, calls)))
    }
}

/// Calls of a communicator for which there is room without asking for more.
const SOME: usize = 4;

/// What is wrong with a call after the end.
const ENDED: Error = Error::Unavailable { operation: "a call in a group", needs: "one that has not ended" };

/// A call of a group waits for its end.
impl<'b> Submit<'b> for OnGroup<'_, '_, 'b> {
    fn caller(&self) -> Caller {
        self.group.comms.get(self.joined.index).map_or(self.joined.caller, |member| member.comm.caller())
    }

    fn submit(&mut self, call: Call<'b>) -> Result<()> {
        let member = self.group.comms.get_mut(self.joined.index).ok_or(ENDED)?;
        call.check_manner(member.comm.manner)?;
        group::put(&mut member.calls, call)
    }
}
