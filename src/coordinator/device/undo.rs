//! What the newest group has overwritten of its own input, until the next one.
//!
//! A device that dies fails the group for all, also for those that had executed it already. As they
//! go on, these take it back. So the input of a failed group is on every survivor what it was, and
//! the group can be executed again without the dead.
//!
//! A client that copies to the device has begun something new, so nothing is taken back then.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::operand::OperandCopy;
use crate::error::Result;
use crate::heap::{DeviceAddress, DeviceMemory};

/// Bytes that were overwritten.
#[derive(Debug)]
pub(super) struct Overwritten {
    pub(super) address: DeviceAddress,
    pub(super) len: usize,
    pub(super) copy: OperandCopy,
}

/// The newest group, if it can be taken back. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(super) struct Undo(Arc<Mutex<Option<ExecutedGroup>>>);

/// A group that was executed.
#[derive(Debug)]
struct ExecutedGroup {
    number: u64,
    overwritten: Vec<Overwritten>,
}

impl Undo {
    /// Keeps what a group has overwritten.
    pub(super) fn keep(&self, number: u64, overwritten: Vec<Overwritten>) {
        *self.kept() = Some(ExecutedGroup { number, overwritten });
    }

    /// Forgets the group.
    pub(super) fn forget(&self) {
        *self.kept() = None;
    }

    /// Takes a group back, if it is the one that is kept.
    ///
    /// # Errors
    /// Those of [`DeviceMemory::copy_host_to_device`].
    pub(super) fn take_back(&self, number: u64, memory: &DeviceMemory) -> Result<()> {
        let Some(group) = self.kept().take_if(|group| group.number == number) else { return Ok(()) };
        take_back(&group.overwritten, memory)
    }

    fn kept(&self) -> MutexGuard<'_, Option<ExecutedGroup>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Puts back what was `overwritten`, the last first.
///
/// # Errors
/// Those of [`DeviceMemory::copy_host_to_device`].
pub(super) fn take_back(overwritten: &[Overwritten], memory: &DeviceMemory) -> Result<()> {
    overwritten.iter().rev().try_for_each(|it| it.copy.store(memory, it.address, it.len))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::{Backing, Identity};

    #[test]
    fn the_failed_group_is_taken_back_once_and_no_other_one() {
        let identity = Identity { job: 7, epoch: 0, owner: 0 };
        let memory = DeviceMemory::create(&Backing::Anonymous, DeviceAddress::new(0x2000), identity).unwrap();
        let (address, undo) = (DeviceAddress::new(0x1000), Undo::default());
        let read = || {
            let mut bytes = [0; 3];
            memory.copy_device_to_host(address, &mut bytes).unwrap();
            bytes
        };
        let before = u64::from_ne_bytes(*b"abcdefgh");
        undo.keep(7, vec![Overwritten { address, len: 2, copy: OperandCopy::Ordinary(vec![before]) }]);
        undo.take_back(8, &memory).unwrap();
        assert_eq!(read(), [0; 3]);
        undo.take_back(7, &memory).unwrap();
        assert_eq!(&read(), b"ab\0");
        memory.copy_host_to_device(address, b"xyz").unwrap();
        undo.take_back(7, &memory).unwrap();
        assert_eq!(&read(), b"xyz");
        undo.keep(9, Vec::new());
        undo.forget();
        assert!(undo.kept().is_none());
    }
}
