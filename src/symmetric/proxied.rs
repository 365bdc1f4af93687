//! Atomic operations that a proxy carries out: a channel through a fifo has them beside its puts.
//!
//! None of them returns what the element was before. It would be known behind a flush only.

use shmccl_proxy::{WordLen, WordOp};

use super::IntegerAtom;
use crate::channel::PortChannel;
use crate::error::Result;
use crate::heap::HeapOffset;

/// # Atomic operations
/// The proxy carries them out after all that was pushed before, and before all that is pushed
/// later: whoever has seen one finds the data of the puts before it, as behind a signal. They are
/// atomic towards those of [`Symmetric`](super::Symmetric), and wake the same waits.
impl PortChannel {
    /// Has the element at `target` of the peer's heap written.
    ///
    /// # Errors
    /// [`Error::Misaligned`](crate::Error::Misaligned) unless the offset is a multiple of the size
    /// of the element; otherwise those of [`Channel::put`](crate::channel::Channel::put). Every
    /// atomic operation has these, and has pushed nothing then.
    pub fn atomic_set<T: IntegerAtom>(&mut self, target: HeapOffset, value: T) -> Result<()> {
        self.change(target, WordOp::Set, value)
    }

    /// Has `value` added to the element at `target` of the peer's heap.
    ///
    /// # Errors
    /// Fails as [`PortChannel::atomic_set`] does.
    pub fn atomic_add<T: IntegerAtom>(&mut self, target: HeapOffset, value: T) -> Result<()> {
        self.change(target, WordOp::Add, value)
    }

    /// Has those bits of the element at `target` of the peer's heap kept that `value` has.
    ///
    /// # Errors
    /// Fails as [`PortChannel::atomic_set`] does.
    pub fn atomic_and<T: IntegerAtom>(&mut self, target: HeapOffset, value: T) -> Result<()> {
        self.change(target, WordOp::And, value)
    }

    /// Has those bits of the element at `target` of the peer's heap set that `value` has.
    ///
    /// # Errors
    /// Fails as [`PortChannel::atomic_set`] does.
    pub fn atomic_or<T: IntegerAtom>(&mut self, target: HeapOffset, value: T) -> Result<()> {
        self.change(target, WordOp::Or, value)
    }

    /// Has those bits of the element at `target` of the peer's heap turned over that `value` has.
    ///
    /// # Errors
    /// Fails as [`PortChannel::atomic_set`] does.
    pub fn atomic_xor<T: IntegerAtom>(&mut self, target: HeapOffset, value: T) -> Result<()> {
        self.change(target, WordOp::Xor, value)
    }

    fn change<T: IntegerAtom>(&mut self, target: HeapOffset, op: WordOp, value: T) -> Result<()> {
        let (len, operand) = match bytemuck::try_cast::<T, u64>(value) {
            Ok(operand) => (WordLen::Eight, operand),
            Err(_) => (WordLen::Four, u64::from(bytemuck::cast::<T, u32>(value))),
        };
        self.update(target, len, op, operand)
    }
}
