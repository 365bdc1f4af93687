//! Links: the channels of either kind that a pipe goes over, bare or [checked](super::checked).
//!
//! A pipe tells its link of each message. A bare link does nothing with that, at no cost.

use std::marker::PhantomData;

use super::pipe::{FragmentArrival, Pipes};
use crate::channel::Channel;
use crate::collective::call::{Input, Output};
use crate::error::Result;
use crate::heap::HeapOffset;

/// Carries the bytes of pipes between this member and the others.
pub(crate) trait Link: Sized {
    /// Moves what does not go by this member's own stores.
    type Channel: Channel + std::fmt::Debug;

    /// Whether short messages may go inline, without a slot.
    const HAS_INLINE: bool = true;

    /// Hears of `message` before the next message to `to` is sent, which it is.
    ///
    /// # Errors
    /// [`crate::Error::OutOfRange`] for an input that is not allocated.
    #[inline(always)]
    fn before_send(_pipes: &Pipes<'_, Self>, _to: usize, _message: &Outgoing<'_, '_>) -> Result<()> {
        Ok(())
    }

    /// Hears that this member has stored `len` bytes at `at` of the heap of `to`, which are not
    /// signalled yet.
    #[inline(always)]
    fn stored(_pipes: &Pipes<'_, Self>, _to: usize, _at: HeapOffset, _len: u64) {}

    /// Hears of a message that lies at `at` of this member's heap, before anything is made of it.
    ///
    /// # Errors
    /// [`crate::Error::Corrupted`]; [`crate::Error::Mismatch`] when its sender does not check.
    #[inline(always)]
    fn arrived(_pipes: &Pipes<'_, Self>, _arrival: FragmentArrival, _at: HeapOffset) -> Result<()> {
        Ok(())
    }

    /// Hears that this member has copied to `output` the `len` bytes that a message has told of.
    ///
    /// # Errors
    /// [`crate::Error::Corrupted`].
    #[inline(always)]
    fn fetched(
        _pipes: &Pipes<'_, Self>,
        _arrival: FragmentArrival,
        _output: &Output<'_>,
        _len: u64,
    ) -> Result<()> {
        Ok(())
    }
}

/// A message that is about to be sent.
#[derive(Debug)]
pub(crate) struct Outgoing<'p, 'a> {
    pub(crate) header: Option<[u64; 4]>,
    /// Where the elements go in the slot.
    pub(crate) body: u64,
    pub(crate) input: &'p Input<'a>,
    /// The message has `len` bytes of the input from here on.
    pub(crate) at: u64,
    pub(crate) len: u64,
    /// How many bytes of the input the receiver fetches by itself, if it does.
    pub(crate) fetched: Option<u64>,
}

/// A link by channels of one kind.
#[derive(Debug)]
pub(crate) struct Bare<C>(PhantomData<C>);

impl<C: Channel + std::fmt::Debug> Link for Bare<C> {
    type Channel = C;
}
