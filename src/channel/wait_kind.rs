//! The waits of a rank besides those in collective operations.

/// A wait on a channel or a proxy, or the one of a call that prepares memory. Its number is what
/// observers read; all collective operations have lower ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum WaitKind {
    Wait = 128,
    RelaxedWait,
    UnpackPackets,
    Push,
    Flush,
    /// What a call needs is made first: see
    /// [`Communicator::prepare`](crate::Communicator::prepare).
    Prepare,
    WaitUntil,
    Lock,
}

impl WaitKind {
    const ALL: [Self; 8] = [
        Self::Wait,
        Self::RelaxedWait,
        Self::UnpackPackets,
        Self::Push,
        Self::Flush,
        Self::Prepare,
        Self::WaitUntil,
        Self::Lock,
    ];

    /// Returns its name, as errors give it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Wait => "wait",
            Self::RelaxedWait => "relaxed_wait",
            Self::UnpackPackets => "unpack_packets",
            Self::Push => "push",
            Self::Flush => "flush",
            Self::Prepare => "prepare",
            Self::WaitUntil => "wait_until",
            Self::Lock => "lock",
        }
    }

    /// Returns the kind with this number, if there is one.
    pub(crate) fn from_code(code: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u64 == code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::Operation;

    #[test]
    fn kinds_are_found_by_their_numbers_which_no_operation_has() {
        for kind in WaitKind::ALL {
            assert_eq!(WaitKind::from_code(kind as u64), Some(kind));
            assert!(Operation::ALL.iter().all(|operation| *operation as u64 != kind as u64));
        }
        assert_eq!([0, 127, 136, u64::MAX].map(WaitKind::from_code), [None; 4]);
        assert_eq!(WaitKind::Prepare.name(), Operation::Prepare.name());
    }
}
