//! Delivers messages: any number, between any members, of one communicator or several, all at once.
//!
//! Nothing here waits for one message while another could move. Each pass looks at the first ones
//! of all [queues](super::queues). Only when none can move does the member wait, for whatever comes
//! first. So sends and receives that were put together never block each other, whatever their order
//! here and at the peers.
//!
//! A member waits for several peers on one park cell of its own, which whoever sends to it or makes
//! room for it wakes. A proxy does not know of that cell; so its member flushes when it has nothing
//! else to do, and wakes then.

use std::cell::{Cell, RefCell};

use super::state::ANY_SOURCE;
use super::{InPlaceBlock, MessageEnd, UnexpectedMessages};
use crate::channel::{EpochWatch, LongWait, RankContext};
use crate::collective::call::{CallSignature, ChannelKind};
use crate::collective::rendezvous::members::Members;
use crate::collective::transport::Pipework;
use crate::error::{Error, Result};
use crate::rank::RankSet;
use crate::sync::{Stop, Waiting, WaitingIn, Watch, spin_until, wait_until};

use super::deadlock::PairDeadlock;
use super::queues::MessageQueues;

/// The messages of one communicator.
#[derive(Debug)]
pub(crate) struct MessageBatch<'e, 'p, 'a> {
    pub(crate) members: &'e Members,
    /// The pipes, of which those of `kind` are open.
    pub(crate) pipework: &'e mut Pipework,
    pub(crate) unexpected: &'e mut UnexpectedMessages,
    pub(crate) kind: ChannelKind,
    /// The messages between this member and others, in the order of the calls.
    pub(crate) messages: &'p mut [MessageEnd<'a>],
    /// The blocks that two of them share.
    pub(crate) in_place: &'p [InPlaceBlock<'a>],
}

/// Returns when all messages are done: what is sent is in the receiver's inbox or buffer, what is
/// received in the buffer here.
///
/// # Errors
/// [`crate::Error::CallMismatch`] when something else comes than was called for; those of
/// [`CallBoard::await_post`](crate::collective::rendezvous::board::CallBoard::await_post), naming
/// the operation and the peer of the first message that is not done; [`crate::Error::OutOfRange`]
/// for buffers that are not allocated. The pipes are of no further use then.
pub(crate) fn run(batches: &mut [MessageBatch<'_, '_, '_>]) -> Result<()> {
    match batches {
        [batch] => {
            let mut queues = MessageQueues::new(batch);
            deliver(std::slice::from_mut(&mut queues))
        }
        batches => deliver(&mut batches.iter_mut().map(MessageQueues::new).collect::<Vec<_>>()),
    }
}

/// Does what can be done for `batch` now, without waiting. Returns whether that was anything.
///
/// # Errors
/// Fails as [`run`] does.
pub(crate) fn poll(mut batch: MessageBatch<'_, '_, '_>) -> Result<bool> {
    let mut queues = MessageQueues::new(&mut batch);
    queues.fill();
    let moved = queues.advance().and_then(|has_moved| queues.flush().map(|()| has_moved));
    moved.map_err(|error| explain(std::slice::from_ref(&queues), error))
}

/// Delivers all of `batches`, which are not in queues yet. Whatever finds that the epoch has ended,
/// members that disagree are told of that.
#[inline]
fn deliver(batches: &mut [MessageQueues<'_, '_>]) -> Result<()> {
    batches.iter_mut().for_each(MessageQueues::fill);
    deliver_all(batches).map_err(|error| explain(batches, error))?;
    batches.iter().for_each(|batch| batch.members.board.report_delivered());
    Ok(())
}

fn deliver_all(batches: &mut [MessageQueues<'_, '_>]) -> Result<()> {
    while !batches.iter().all(MessageQueues::are_done) {
        if !advance(batches)? {
            batches.iter_mut().try_for_each(MessageQueues::flush)?;
            await_move(batches)?;
        }
    }
    batches.iter_mut().try_for_each(MessageQueues::flush)
}

/// Waits until something has moved. A short wait is spent right here: the way into a long one and
/// back takes as long as a message.
#[inline]
fn await_move(batches: &mut [MessageQueues<'_, '_>]) -> Result<()> {
    let Some(policy) = batches.first().map(|batch| batch.members.board.context().policy()) else {
        return Ok(());
    };
    let mut failed = Ok(());
    let has_news = || {
        advance(batches).unwrap_or_else(|error| {
            failed = Err(error);
            true
        })
    };
    if spin_until(policy, has_news) { failed } else { wait(batches) }
}

#[inline]
fn advance(batches: &mut [MessageQueues<'_, '_>]) -> Result<bool> {
    let mut has_moved = false;
    for batch in batches {
        has_moved |= batch.advance()?;
    }
    Ok(has_moved)
}

/// Waits until something has moved, however long that takes.
#[inline(never)]
fn wait(batches: &mut [MessageQueues<'_, '_>]) -> Result<()> {
    let first = batches.iter().find_map(|batch| batch.first().map(|message| (batch.members, message)));
    let Some((members, message)) = first else { return Ok(()) };
    let (operation, tag) = (message.state.operation, message.state.signature.tag());
    let (peer, context) = (members.ranks().get(message.state.peer).copied(), members.board.context());
    let batches = RefCell::new(batches);
    let deadlock = PairDeadlock::default();
    let wait = PeersWait { context, batches: &batches, suspect: Cell::new(None), deadlock: &deadlock };
    let watch = EpochWatch(wait);
    let waiting: Waiting<'_, _, _> = context.waiting(&watch);
    let poll = || match advance(&mut batches.borrow_mut()) {
        Ok(false) => None,
        moved => Some(moved.map(drop)),
    };
    let waited = wait_until(&waiting, members.message_park(members.me()), poll);
    deadlock.end(&batches.borrow());
    waited.unwrap_or_else(|stop| {
        let error = context.error(&waiting, stop, operation.name(), peer);
        Err(match tag {
            Some(tag) => error.tagged(tag),
            None => error,
        })
    })
}

/// Returns what `error` is about, if it is about a disagreement in any communicator.
#[cold]
fn explain(batches: &[MessageQueues<'_, '_>], error: Error) -> Error {
    let concerned = batches.iter().filter_map(|batch| Some((batch, batch.first_or_last()?)));
    concerned
        .fold(error, |error, (batch, message)| batch.members.board.explain(message.state.signature, error))
}

/// Returns whether the wait for `message` is in vain, since its peer waits for this member in
/// another call; for one of any member, whether all others do, or have left.
fn is_in_vain(batch: &MessageQueues<'_, '_>, message: &MessageEnd<'_>) -> bool {
    let board = &batch.members.board;
    if message.state.peer != ANY_SOURCE {
        return board.awaited_in(message.state.peer).is_some();
    }
    let mut others = batch.members.others();
    others.all(|(member, _)| board.awaited_in(member).is_some() || board.check_member(member).is_some())
}

/// Watches the epoch, and whether the peers of all messages that are not done live, have not left,
/// and are not in another call in which they wait for this member in turn.
struct PeersWait<'w, 'b, 'r, 'a> {
    context: &'w RankContext,
    /// Borrowed by turns: the wait looks at its watch when it does not poll.
    batches: &'w RefCell<&'b mut [MessageQueues<'r, 'a>]>,
    /// The number of a batch, and of a peer that was found in another call at the last look.
    suspect: Cell<Option<(usize, usize)>>,
    deadlock: &'w PairDeadlock,
}

impl PeersWait<'_, '_, '_, '_> {
    /// Ends the epoch when a peer waits for this member elsewhere.
    ///
    /// The first look proves nothing. All that a peer has done for a message before it went on has
    /// come with the news of that. The poll before the next look finds it, and that look comes
    /// soon.
    fn in_other_call(&self) -> Option<Stop> {
        let batches = self.batches.borrow();
        let all = batches.iter().enumerate();
        let mut open = all.flat_map(|(number, batch)| {
            let open = batch.open_by_peer().chain(batch.open_to_any());
            open.map(move |message| (number, batch, message))
        });
        let found = open.find(|(_, batch, message)| is_in_vain(batch, message));
        let suspect = found.as_ref().map(|(number, _, message)| (*number, message.state.peer));
        let (_, batch, message) = found?;
        if self.suspect.replace(suspect) != suspect {
            // Wakes this member to look again, as a message would.
            batch.members.message_park(batch.members.me()).wake(self.context.kernel());
            return None;
        }
        batch.members.board.report_to_all(message.state.signature);
        self.context.watch(None).check()
    }
}

impl LongWait for PeersWait<'_, '_, '_, '_> {
    fn context(&self) -> &RankContext {
        self.context
    }

    fn stop(&self) -> Option<Stop> {
        let of_batch = |batch: &MessageQueues<'_, '_>| {
            let board = &batch.members.board;
            // A member at the barrier is there for all messages.
            let at_barrier = || batch.first().and_then(|_| board.check_barrier());
            let mut open = batch.open_by_peer().chain(batch.open_to_any());
            open.find_map(|message| message.check(batch.members)).or_else(at_barrier)
        };
        let peers = || self.batches.borrow().iter().find_map(of_batch);
        self.context.watch(None).check().or_else(peers).or_else(|| self.in_other_call()).or_else(|| {
            // A peer waits for a message of this member that waits for one of that peer.
            self.deadlock.look(&self.batches.borrow())?;
            self.context.watch(None).check()
        })
    }

    fn turned_long(&self) {
        self.deadlock.begin(&self.batches.borrow());
    }

    /// Returns the wait, as this member tells of it: in the first message that is not done, for the
    /// peers of all.
    fn seen(&self) -> WaitingIn {
        let batches = self.batches.borrow();
        let open = || batches.iter().flat_map(|batch| batch.open().map(move |message| (batch, message)));
        let awaited = open().flat_map(|(batch, message)| message.awaited(batch.members).iter());
        WaitingIn {
            call: Some((
                open().next().map_or(CallSignature::NONE, |(_, message)| message.state.signature).words(),
                0,
            )),
            kind: 0,
            step: 0,
            awaited: awaited.collect::<RankSet>(),
        }
    }
}
