//! Runs calls of one communicator or several that were put together.
//!
//! First come the operations that are among all, in the order of the calls of each communicator, and the communicators in one order
//! that is the same on all ranks. So ranks that have put theirs together in different orders meet in the same one: of all
//! operations that are not done, look at the least in this order; all its members are in it, or on their way. Small ones that follow
//! each other are [fused](super::fused).
//!
//! An operation of all that is done by messages is announced in its turn. Then all messages of all communicators are
//! [delivered](super::delivery) at once.
//!
//! What can be found wrong before anything has moved is an error then.

use super::algorithm::Manner;
use super::blocks;
use super::call::Call;
use super::delivery::{self, Batch};
use super::engine::Engine;
use super::noting::Together;
use super::operation::{Operation, Summary};
use super::parcel::{Parcel, Replaced};
use super::team::Team;
use crate::error::{Error, Result};

/// The most calls of one communicator that are put together.
pub(crate) const MAX_CALLS: usize = 1 << 16;

/// Puts `call` to `calls`, which are executed together.
///
/// # Errors
/// [`Error::Exhausted`] when there is no room.
pub(crate) fn put<'a>(calls: &mut Vec<Call<'a>>, call: Call<'a>) -> Result<()> {
    if calls.len() >= MAX_CALLS {
        return Err(Error::Exhausted { what: "places for calls in a group", limit: MAX_CALLS as u64 });
    }
    calls.push(call);
    Ok(())
}

/// The calls of one communicator, in their order.
#[derive(Debug)]
pub(crate) struct Share<'e, 'a> {
    pub(crate) engine: &'e mut Engine,
    pub(crate) manner: Manner,
    pub(crate) calls: Vec<Call<'a>>,
}

/// The messages of one communicator.
#[derive(Debug, Default)]
struct Messages<'a> {
    /// To and from others: those of operations of all ranks first, which every rank puts there.
    parcels: Vec<Parcel<'a>>,
    /// The blocks that two of them share.
    replaced: Vec<Replaced<'a>>,
    /// The operations of all ranks that they belong to. What differs between blocks is left to the parcels.
    announced: Vec<Operation>,
    /// What this member sends to itself, and where it goes.
    own: Vec<(Parcel<'a>, Parcel<'a>)>,
}

/// What onlookers are told of `calls`, done in `manner`, before they are executed.
pub(crate) fn summary(calls: &[Call<'_>], manner: Manner) -> Summary {
    let of = |call: &Call<'_>| call.summary().in_manner(manner);
    match calls {
        [call] => of(call),
        calls => Summary::of_group(calls.iter().map(of)),
    }
}

/// Executes all calls of `shares`, which are of different communicators.
///
/// # Errors
/// [`Error::InvalidArgument`] when what goes from this rank to itself is not both sent and received, before anything has
/// moved; those of [`Engine::run`] and of [`delivery::run`].
pub(crate) fn run(shares: &mut [Share<'_, '_>]) -> Result<()> {
    let has_messages =
        shares.iter().any(|share| share.calls.iter().any(|call| call.operation.is_by_messages()));
    if let ([Share { engine, manner, calls }], false) = (&mut *shares, has_messages) {
        return engine.run_all(calls, *manner);
    }
    if let [share] = shares {
        let mut messages = Messages::of(share)?;
        share.run_all(&messages)?;
        return deliver_noted(shares, std::slice::from_mut(&mut messages));
    }
    let mut messages: Vec<_> = shares.iter_mut().map(Messages::of).collect::<Result<_>>()?;
    let mut order: Vec<usize> = (0..shares.len()).collect();
    order.sort_by_key(|&index| shares[index].engine.identity());
    for index in order {
        shares[index].run_all(&messages[index])?;
    }
    deliver_noted(shares, &mut messages)
}

impl Share<'_, '_> {
    /// Executes the operations that are among all members, and announces those that are done by `messages`.
    fn run_all(&mut self, messages: &Messages<'_>) -> Result<()> {
        let Self { engine, manner, calls } = self;
        // Whatever fails here, members of other communicators wait for what does not come any more.
        let done = engine.run_all(calls, *manner);
        engine.team().board.or_revoke(done)?;
        for &operation in &messages.announced {
            engine.announce(Summary::new(operation).in_manner(*manner), operation)?;
        }
        Ok(())
    }
}

/// Delivers `messages`, in the order of `shares`, and notes them if this rank notes what it does.
fn deliver_noted(shares: &mut [Share<'_, '_>], messages: &mut [Messages<'_>]) -> Result<()> {
    let is_noted = shares.iter().any(|share| share.engine.team().board.context().recorder().is_some());
    if !is_noted {
        return deliver(shares, messages);
    }
    let begun: Vec<_> = shares.iter().zip(&*messages).map(|(share, messages)| messages.note(share)).collect();
    let done = deliver(shares, messages);
    for (share, begun) in shares.iter().zip(begun) {
        let manner = Manner { algorithm: None, channel: share.manner.channel };
        begun.end(share.engine.team(), manner, done.is_err());
    }
    done
}

impl<'a> Messages<'a> {
    /// Takes the calls out of `share` that are done by messages.
    fn of(share: &mut Share<'_, 'a>) -> Result<Self> {
        let me = share.engine.team().me();
        let mut messages = Self { parcels: Vec::with_capacity(share.calls.len()), ..Self::default() };
        // All ranks put these in one order, but each puts sends and receives between them as it likes.
        for call in share.calls.iter_mut().filter(|call| call.operation == Operation::AllToAllV) {
            messages.announced.push(call.operation);
            let parcels = blocks::parcels(call, me, &mut messages.replaced)?;
            messages.parcels.extend(parcels);
        }
        for call in share.calls.iter_mut().filter(|call| call.operation.has_peer()) {
            messages.parcels.push(Parcel::of(call)?);
        }
        share.calls.retain(|call| !call.operation.is_by_messages());
        if messages.parcels.iter().any(|parcel| parcel.peer() == me) {
            messages.own = pair(messages.parcels.extract_if(.., |parcel| parcel.peer() == me))?;
        }
        Ok(messages)
    }

    /// What delivers those that go between members, if there are any, over what `share` has.
    fn batch<'s>(&'s mut self, share: &'s mut Share<'_, '_>) -> Option<Result<Batch<'s, 's, 'a>>> {
        let Self { parcels, replaced, .. } = self;
        let is_empty = parcels.is_empty();
        (!is_empty).then(|| share.engine.batch(share.manner.channel, parcels, replaced))
    }

    /// Begins to note them as those of `share`.
    fn note(&self, share: &Share<'_, '_>) -> Together {
        let team = share.engine.team();
        let mut begun = Together::begin(team, &[]);
        self.announced.iter().for_each(|operation| begun.add_operation(*operation));
        let own = self.own.iter().flat_map(|(sent, received)| [sent, received]);
        self.parcels.iter().chain(own).for_each(|parcel| begun.add_message(team, parcel));
        begun
    }
}

/// Each parcel that is sent among `own` with the one that receives it.
fn pair<'a>(own: impl Iterator<Item = Parcel<'a>>) -> Result<Vec<(Parcel<'a>, Parcel<'a>)>> {
    let (sent, received): (Vec<_>, Vec<_>) = own.partition(Parcel::is_sent);
    if sent.len() != received.len() {
        return Err(Error::InvalidArgument {
            name: "the number of messages that a rank sends to itself in a group",
            value: sent.len() as u64,
            expected: "as many as it receives from itself in the same group",
        });
    }
    Ok(sent.into_iter().zip(received).collect())
}

/// Delivers `messages`, in the order of `shares`.
fn deliver(shares: &mut [Share<'_, '_>], messages: &mut [Messages<'_>]) -> Result<()> {
    for (share, Messages { own, .. }) in shares.iter_mut().zip(&mut *messages) {
        let team: &Team = share.engine.team();
        let copied = own.iter_mut().try_for_each(|(sent, received)| sent.copy_to(team, received));
        team.board.or_revoke(copied)?;
    }
    if let ([share], [messages]) = (&mut *shares, &mut *messages) {
        return messages.batch(share).map_or(Ok(()), |batch| deliver_batches(&mut [batch?]));
    }
    let batches = shares.iter_mut().zip(messages).filter_map(|(share, messages)| messages.batch(share));
    deliver_batches(&mut batches.collect::<Result<Vec<_>>>()?)
}

fn deliver_batches(batches: &mut [Batch<'_, '_, '_>]) -> Result<()> {
    let done = delivery::run(batches);
    match batches.first() {
        Some(Batch { team, .. }) => team.board.or_revoke(done),
        None => done,
    }
}
