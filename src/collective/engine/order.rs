//! Which calls of a group have an order, because they share bytes that one of them writes.
//!
//! Each rank knows this of its own buffers alone.

use super::group::GroupShare;
use crate::collective::call::footprint::{ByteRange, ByteSet, MemberMemory, RangeSet, Touched};
use crate::collective::call::{Call, Operation};
use crate::error::{Error, Result};

/// Returns how many of `calls`, from the first on, may be executed before the blocks of those move
/// that are done by messages: all before the first that shares bytes with an earlier one of those.
pub(super) fn up_to_conflict(calls: &[Call<'_>], memory: MemberMemory) -> usize {
    fn first<S: ByteSet>(calls: &[Call<'_>], memory: MemberMemory) -> usize {
        let mut pending = Touched::<S>::default();
        for (index, call) in calls.iter().enumerate() {
            if pending.meets(call, memory) {
                return index;
            }
            if call.operation == Operation::AllToAllV {
                pending.add(call, memory);
            }
        }
        calls.len()
    }
    // What is far apart is found so quickly.
    let n_calls = first::<ByteRange>(calls, memory);
    if n_calls == calls.len() { n_calls } else { first::<RangeSet>(calls, memory) }
}

/// Returns whether messages among `calls` share bytes with blocks of those that are done by
/// messages: then the blocks move before them, and not with them.
pub(super) fn messages_follow_blocks(calls: &[Call<'_>], memory: MemberMemory) -> bool {
    fn meet<S: ByteSet>(calls: &[Call<'_>], memory: MemberMemory) -> bool {
        let mut blocks = Touched::<S>::default();
        let exchanges = calls.iter().filter(|call| call.operation == Operation::AllToAllV);
        exchanges.for_each(|call| blocks.add(call, memory));
        let mut messages = calls.iter().filter(|call| call.operation.has_peer());
        messages.any(|call| blocks.meets(call, memory))
    }
    meet::<ByteRange>(calls, memory) && meet::<RangeSet>(calls, memory)
}

/// Refuses calls of `shares` that share bytes and have no order.
///
/// # Errors
/// [`Error::InvalidArgument`], before anything has moved.
pub(super) fn check(shares: &[GroupShare<'_, '_>]) -> Result<()> {
    for share in shares {
        check_messages(&share.calls, share.engine.members.memory())?;
    }
    if shares.len() < 2 || !cross::<ByteRange>(shares) || !cross::<RangeSet>(shares) {
        return Ok(());
    }
    Err(Error::InvalidArgument {
        name: "the number of communicators in a group whose calls share memory that one of them writes",
        value: shares.len() as u64,
        expected: "none, as their calls have no order; make a group for each, or give them memory of their own",
    })
}

/// Refuses a collective call behind a message with which it shares bytes: the message moves later.
///
/// # Errors
/// [`Error::InvalidArgument`].
pub(crate) fn check_messages(calls: &[Call<'_>], memory: MemberMemory) -> Result<()> {
    fn first<S: ByteSet>(calls: &[Call<'_>], memory: MemberMemory) -> Option<usize> {
        let mut messages = Touched::<S>::default();
        calls.iter().position(|call| {
            let is_message = call.operation.has_peer();
            if is_message {
                messages.add(call, memory);
            }
            !is_message && messages.meets(call, memory)
        })
    }
    let found = first::<ByteRange>(calls, memory).and_then(|_| first::<RangeSet>(calls, memory));
    found.map_or(Ok(()), |index| {
        Err(Error::InvalidArgument {
            name: "the number of calls in a group before a collective call that shares memory with a message among them",
            value: index as u64,
            expected: "the collective call before that message, which moves when all collective calls are done, or in another group",
        })
    })
}

/// Returns whether calls of different `shares` share bytes that one of them writes.
fn cross<S: ByteSet>(shares: &[GroupShare<'_, '_>]) -> bool {
    let mut before = Touched::<S>::default();
    shares.iter().any(|GroupShare { engine, calls, .. }| {
        let memory = engine.members.memory();
        let is_met = calls.iter().any(|call| before.meets(call, memory));
        calls.iter().for_each(|call| before.add(call, memory));
        is_met
    })
}
