//! Runs calls of one communicator or several that were put together.
//!
//! First come the operations that are among all, in the order of the calls of each communicator,
//! and the communicators in one order that is the same on all ranks. So ranks that have put theirs
//! together in different orders meet in the same one. Of all operations that are not done, look at
//! the least in this order: all its members are in it, or on their way. Small ones that follow each
//! other are [fused](crate::collective::execute::fused).
//!
//! Operations of all that are done by messages are announced. Then all messages of all
//! communicators are [delivered](crate::collective::message::progress) at once.
//!
//! # Order
//! Calls of one communicator that share memory on some rank behave as one after the other. Those
//! that are fused see to that themselves. An operation that is done by messages does not wait for
//! the end of the group where a later call shares memory with it. Each member tells with its
//! announcement how many calls of the group may come before its blocks move. All go by the least
//! number: they execute so many calls, deliver the blocks, and go on with the others in the same
//! manner. This announcement is made ahead of those calls. Where the operation is the last one of
//! the group there is nothing to tell.
//!
//! The blocks of the last operations move together with the messages of the group. Where these
//! share memory with them on a rank, that rank delivers the blocks first. No other rank has to
//! know: between two ranks, blocks travel before messages in any case.
//!
//! What can be found wrong before anything has moved is an error then.

pub(crate) use super::order::check_messages;
use super::trace::Together;
use super::{Engine, order};
use crate::collective::call::{Call, CallSignature, Choice, Operation, StatusHandle};
use crate::collective::message::progress::{self, MessageBatch};
use crate::collective::message::{InPlaceBlock, MessageEnd, all_to_all_v};
use crate::collective::rendezvous::members::Members;
use crate::error::{Error, Result};

/// The most calls of one communicator that are put together.
pub(crate) const MAX_CALLS: usize = 1 << 16;

/// Puts `call` to `calls`, which are executed together.
///
/// # Errors
/// [`Error::Exhausted`] when there is no room.
pub(crate) fn push<'a>(calls: &mut Vec<Call<'a>>, call: Call<'a>) -> Result<()> {
    if calls.len() >= MAX_CALLS {
        return Err(Error::Exhausted { what: "places for calls in a group", limit: MAX_CALLS as u64 });
    }
    calls.push(call);
    Ok(())
}

/// The calls of one communicator, in their order.
#[derive(Debug)]
pub(crate) struct GroupShare<'e, 'a> {
    pub(crate) engine: &'e mut Engine,
    pub(crate) choice: Choice,
    pub(crate) calls: Vec<Call<'a>>,
}

/// The messages of one communicator.
#[derive(Debug, Default)]
struct GroupMessages<'a> {
    /// To and from others: those of operations of all ranks first, which every rank puts there.
    ends: Vec<MessageEnd<'a>>,
    /// The blocks that two of them share.
    in_place: Vec<InPlaceBlock<'a>>,
    /// The operations of all ranks that they belong to. What differs between blocks is left to the
    /// messages.
    announced: Vec<Operation>,
    /// What this member sends to itself, and where it goes.
    own: Vec<(MessageEnd<'a>, MessageEnd<'a>)>,
    /// Where those of the ends that come from any member leave their status, in their order.
    statuses: Vec<StatusHandle>,
    /// They share memory with blocks, which have to be there before they move.
    follow_blocks: bool,
}

/// Returns what onlookers are told of `calls`, done in `choice`, before they are executed.
pub(crate) fn signature(calls: &[Call<'_>], choice: Choice) -> CallSignature {
    let of = |call: &Call<'_>| call.signature().with_choice(choice);
    match calls {
        [call] => of(call),
        calls => CallSignature::of_group(calls.iter().map(of)),
    }
}

/// Executes all calls of `shares`, which are of different communicators.
///
/// # Errors
/// [`Error::InvalidArgument`] when what goes from this rank to itself is not both sent and
/// received, before anything has moved; those of [`Engine::run`] and of [`progress::run`].
pub(crate) fn run(shares: &mut [GroupShare<'_, '_>]) -> Result<()> {
    if let [GroupShare { engine, choice, calls }] = &mut *shares
        && let [call] = calls.as_mut_slice()
        && call.operation == Operation::AllToAllV
    {
        return engine.run(call, *choice);
    }
    run_together(shares)
}

/// Executes what [`run`] does, one exchange of blocks by its messages, too.
///
/// # Errors
/// Those of [`run`].
pub(super) fn run_together(shares: &mut [GroupShare<'_, '_>]) -> Result<()> {
    let has_messages =
        shares.iter().any(|share| share.calls.iter().any(|call| call.operation.is_by_messages()));
    if let ([GroupShare { engine, choice, calls }], false) = (&mut *shares, has_messages) {
        return engine.run_all(calls, *choice);
    }
    order::check(shares)?;
    if let [share] = shares {
        let mut messages = GroupMessages::of(share)?;
        let mut blocks = share.run_all()?;
        return deliver_both(shares, std::slice::from_mut(&mut blocks), std::slice::from_mut(&mut messages));
    }
    let mut messages: Vec<_> = shares.iter_mut().map(GroupMessages::of).collect::<Result<_>>()?;
    let mut blocks: Vec<_> = shares.iter().map(|_| GroupMessages::default()).collect();
    let mut order: Vec<usize> = (0..shares.len()).collect();
    order.sort_by_key(|&index| shares[index].engine.identity());
    for index in order {
        blocks[index] = shares[index].run_all()?;
    }
    deliver_both(shares, &mut blocks, &mut messages)
}

/// Delivers `blocks` and `messages`, in the order of `shares`: together, or first the blocks where
/// messages share memory with them.
fn deliver_both<'a>(
    shares: &mut [GroupShare<'_, 'a>],
    blocks: &mut [GroupMessages<'a>],
    messages: &mut [GroupMessages<'a>],
) -> Result<()> {
    if messages.iter().any(|messages| messages.follow_blocks) {
        deliver_noted(shares, blocks)?;
    } else {
        let both = messages.iter_mut().zip(blocks);
        both.for_each(|(messages, blocks)| messages.put_first(std::mem::take(blocks)));
    }
    deliver_noted(shares, messages)
}

/// The calls of a group that are executed before blocks move.
struct Stage {
    n_calls: usize,
    /// The first operation that is done by messages is announced already.
    is_announced: bool,
}

impl<'a> GroupShare<'_, 'a> {
    /// Executes the operations that are among all members, and returns the blocks of the last that
    /// are done by messages.
    fn run_all(&mut self) -> Result<GroupMessages<'a>> {
        let mut calls = std::mem::take(&mut self.calls);
        let mut rest = calls.as_mut_slice();
        loop {
            // Whatever fails here, members of other communicators wait for what does not come any
            // more.
            let stage = self.agree_on_stage(rest)?;
            let (now, later) = rest.split_at_mut(stage.n_calls);
            let mut blocks = GroupMessages::default();
            let done = self.run_stage(now, stage.is_announced, &mut blocks);
            self.engine.members.board.or_revoke(done)?;
            if later.is_empty() {
                return Ok(blocks);
            }
            deliver_noted(std::slice::from_mut(self), std::slice::from_mut(&mut blocks))?;
            rest = later;
        }
    }

    /// Returns how many of `calls` all members execute before blocks move.
    fn agree_on_stage(&mut self, calls: &[Call<'_>]) -> Result<Stage> {
        let n_calls = calls.len();
        let Some(first) = calls.iter().position(|call| call.operation.is_by_messages()) else {
            return Ok(Stage { n_calls, is_announced: false });
        };
        if first + 1 == n_calls {
            return Ok(Stage { n_calls, is_announced: false });
        }
        let mine = order::up_to_conflict(calls, self.engine.members.memory());
        let least = self.announce(calls[first].operation, mine as u64)?;
        let n_calls = usize::try_from(least).map_or(mine, |least| least.clamp(first + 1, mine));
        Ok(Stage { n_calls, is_announced: true })
    }

    /// Executes those of `calls` that are not done by messages, and announces the others, but for
    /// the first where that is announced. Their blocks are put into `messages`.
    fn run_stage(
        &mut self,
        calls: &mut [Call<'a>],
        is_announced: bool,
        messages: &mut GroupMessages<'a>,
    ) -> Result<()> {
        if calls.iter().all(|call| !call.operation.is_by_messages()) {
            return self.engine.run_all(calls, self.choice);
        }
        messages.add_blocks(calls, self.engine.members.me())?;
        let by_posts = calls.iter_mut().filter(|call| !call.operation.is_by_messages());
        let mut by_posts: Vec<_> = by_posts.map(Call::take).collect();
        self.engine.run_all(&mut by_posts, self.choice)?;
        for &operation in messages.announced.iter().skip(usize::from(is_announced)) {
            self.announce(operation, 1)?;
        }
        Ok(())
    }

    /// Waits until all members are in `operation`, which is done by messages, and compares it. This
    /// one goes on to call number `n_calls` before the blocks of that move. Returns the least such
    /// number.
    fn announce(&mut self, operation: Operation, n_calls: u64) -> Result<u64> {
        let signature = CallSignature::new(operation).with_choice(self.choice);
        self.engine.announce_least(signature, operation, n_calls)
    }
}

/// Delivers the blocks of the calls of `share`, which all members have posted.
///
/// # Errors
/// Those of [`run`].
pub(super) fn deliver_posted(share: &mut GroupShare<'_, '_>) -> Result<()> {
    let mut calls = std::mem::take(&mut share.calls);
    let mut blocks = GroupMessages::default();
    let added = blocks.add_blocks(&mut calls, share.engine.members.me());
    share.engine.members.board.or_revoke(added)?;
    deliver_noted(std::slice::from_mut(share), std::slice::from_mut(&mut blocks))
}

/// Delivers `messages`, in the order of `shares`, and notes them if this rank notes what it does.
fn deliver_noted(shares: &mut [GroupShare<'_, '_>], messages: &mut [GroupMessages<'_>]) -> Result<()> {
    let is_noted = shares.iter().any(|share| share.engine.members.board.context().recorder().is_some());
    if !is_noted {
        return deliver(shares, messages);
    }
    let begun: Vec<_> = shares.iter().zip(&*messages).map(|(share, messages)| messages.note(share)).collect();
    let done = deliver(shares, messages);
    for (share, begun) in shares.iter().zip(begun) {
        let choice = Choice { algorithm: None, channel: share.choice.channel };
        begun.end(&share.engine.members, choice, done.is_err());
    }
    done
}

impl<'a> GroupMessages<'a> {
    /// Takes the messages out of the calls of `share`.
    fn of(share: &mut GroupShare<'_, 'a>) -> Result<Self> {
        let follow_blocks = order::messages_follow_blocks(&share.calls, share.engine.members.memory());
        let mut messages =
            Self { ends: Vec::with_capacity(share.calls.len()), follow_blocks, ..Self::default() };
        for call in share.calls.iter_mut().filter(|call| call.operation.has_peer()) {
            messages.ends.push(MessageEnd::of(call)?);
            messages.statuses.extend(call.receipt.take().map(|receipt| receipt.status));
        }
        share.calls.retain(|call| !call.operation.has_peer());
        messages.pair_own(share.engine.members.me())?;
        Ok(messages)
    }

    /// Adds the blocks of those of `calls` that are done by messages.
    fn add_blocks(&mut self, calls: &mut [Call<'a>], me: usize) -> Result<()> {
        // All ranks put these in one order, but each puts sends and receives between them as it
        // likes.
        for call in calls.iter_mut().filter(|call| call.operation.is_by_messages()) {
            self.announced.push(call.operation);
            let ends = all_to_all_v::messages(call, me, &mut self.in_place)?;
            self.ends.extend(ends);
        }
        self.pair_own(me)
    }

    /// Takes out what this member, `me`, sends to itself.
    fn pair_own(&mut self, me: usize) -> Result<()> {
        if self.ends.iter().any(|message| message.state.peer == me) {
            self.own = pair(self.ends.extract_if(.., |message| message.state.peer == me))?;
        }
        Ok(())
    }

    /// Puts `blocks` before these, which are messages that calls are by themselves.
    fn put_first(&mut self, mut blocks: Self) {
        if blocks.announced.is_empty() {
            return;
        }
        blocks.ends.append(&mut self.ends);
        blocks.own.append(&mut self.own);
        blocks.statuses.append(&mut self.statuses);
        *self = blocks;
    }

    /// Returns what delivers those that go between members, if there are any, over what `share`
    /// has.
    fn batch<'s>(
        &'s mut self,
        share: &'s mut GroupShare<'_, '_>,
    ) -> Option<Result<MessageBatch<'s, 's, 'a>>> {
        let Self { ends, in_place, .. } = self;
        let is_empty = ends.is_empty();
        (!is_empty).then(|| share.engine.batch(share.choice.channel, ends, in_place))
    }

    /// Leaves the statuses of those that came from any member.
    fn tell(&self, members: &Members) -> Result<()> {
        let mut from_any = self.ends.iter().filter(|end| end.state.operation == Operation::RecvAny);
        let mut statuses = self.statuses.iter().zip(&mut from_any);
        statuses.try_for_each(|(status, end)| end.status(members).map(|told| status.set(told)))
    }

    /// Begins to note them as those of `share`.
    fn note(&self, share: &GroupShare<'_, '_>) -> Together {
        let members = &share.engine.members;
        let mut begun = Together::begin(members, &[]);
        self.announced.iter().for_each(|operation| begun.add_operation(*operation));
        let own = self.own.iter().flat_map(|(sent, received)| [sent, received]);
        self.ends.iter().chain(own).for_each(|message| begun.add_message(members, message));
        begun
    }
}

/// Returns each message that is sent among `own` with the one that receives it: of those with one
/// tag, the first with the first.
fn pair<'a>(own: impl Iterator<Item = MessageEnd<'a>>) -> Result<Vec<(MessageEnd<'a>, MessageEnd<'a>)>> {
    let (mut sent, mut received): (Vec<_>, Vec<_>) = own.partition(MessageEnd::is_sent);
    let tag = |end: &MessageEnd<'_>| end.state.signature.tag().unwrap_or(0);
    sent.sort_by_key(tag);
    received.sort_by_key(tag);
    check_pairs(sent.iter().map(tag), received.iter().map(tag))?;
    Ok(sent.into_iter().zip(received).collect())
}

/// Checks that what a rank sends to itself with some tags is received with the same ones.
fn check_pairs(sent: impl ExactSizeIterator<Item = u32>, received: impl Iterator<Item = u32>) -> Result<()> {
    let value = sent.len() as u64;
    if sent.eq(received) {
        return Ok(());
    }
    Err(Error::InvalidArgument {
        name: "the number of messages that a rank sends to itself in a group",
        value,
        expected: "as many as it receives from itself in the same group, with the same tags",
    })
}

/// Checks that what goes from member `me` to itself is both sent and received in `calls`.
///
/// # Errors
/// [`Error::InvalidArgument`].
pub(crate) fn check_own(calls: &[Call<'_>], me: usize) -> Result<()> {
    if calls.iter().all(|call| !call.operation.has_peer() || call.root != me) {
        return Ok(());
    }
    let tags = |operation| {
        let own = calls.iter().filter(|call| call.operation == operation && call.root == me);
        let mut tags: Vec<_> = own.map(|call| call.tag).collect();
        tags.sort_unstable();
        tags
    };
    check_pairs(tags(Operation::Send).into_iter(), tags(Operation::Recv).into_iter())
}

/// Returns the messages that `calls` are, sends and receives, to and from others, and where those
/// from any member leave their status. Those of this member to itself are copied.
///
/// # Errors
/// [`Error::InvalidArgument`] when what goes from this rank to itself is not both sent and
/// received, before anything has moved; [`Error::CallMismatch`] where the two differ.
pub(super) fn messages<'a>(
    engine: &Engine,
    calls: &mut [Call<'a>],
) -> Result<Vec<(MessageEnd<'a>, Option<StatusHandle>)>> {
    let members = &engine.members;
    let mut ends = calls.iter_mut().map(MessageEnd::of).collect::<Result<Vec<_>>>()?;
    let statuses: Vec<_> = calls.iter_mut().filter_map(|call| call.receipt.take()).collect();
    for (sent, mut received) in pair(ends.extract_if(.., |end| end.state.peer == members.me()))? {
        members.board.or_revoke(sent.copy_to(members, &mut received))?;
    }
    let mut statuses = statuses.into_iter();
    let mut with_status = |end: MessageEnd<'a>| {
        let is_from_any = end.state.operation == Operation::RecvAny;
        (end, if is_from_any { statuses.next().map(|receipt| receipt.status) } else { None })
    };
    Ok(ends.into_iter().map(&mut with_status).collect())
}

/// Delivers `messages`, in the order of `shares`.
fn deliver(shares: &mut [GroupShare<'_, '_>], messages: &mut [GroupMessages<'_>]) -> Result<()> {
    for (share, GroupMessages { own, .. }) in shares.iter_mut().zip(&mut *messages) {
        let members = &share.engine.members;
        let copied = own.iter_mut().try_for_each(|(sent, received)| sent.copy_to(members, received));
        members.board.or_revoke(copied)?;
    }
    if let ([share], [messages]) = (&mut *shares, &mut *messages) {
        messages.batch(share).map_or(Ok(()), |batch| deliver_batches(&mut [batch?]))?;
    } else {
        let both = shares.iter_mut().zip(&mut *messages);
        let batches = both.filter_map(|(share, messages)| messages.batch(share));
        deliver_batches(&mut batches.collect::<Result<Vec<_>>>()?)?;
    }
    let mut from_any = shares.iter().zip(messages).filter(|(_, messages)| !messages.statuses.is_empty());
    from_any.try_for_each(|(share, messages)| messages.tell(&share.engine.members))
}

fn deliver_batches(batches: &mut [MessageBatch<'_, '_, '_>]) -> Result<()> {
    let done = progress::run(batches);
    match batches.first() {
        Some(MessageBatch { members, .. }) => members.board.or_revoke(done),
        None => done,
    }
}
