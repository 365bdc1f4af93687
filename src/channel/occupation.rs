//! What a rank can wait in besides collective operations, as numbers that observers read.
//!
//! The numbers of collective operations are those of [`Operation`](crate::collective::Operation), all lower than these.

/// The names, as errors give them; the first one has the number [`FIRST`].
const NAMES: [&str; 6] = ["wait", "relaxed_wait", "unpack_packets", "push", "flush", PREPARING];

/// What a call is in while what it needs is made: see [`Communicator::prepare`](crate::Communicator::prepare).
pub(crate) const PREPARING: &str = "prepare";

const FIRST: usize = 128;

/// The number of `operation`; 0 for one that has none.
pub(crate) fn code_of(operation: &str) -> u64 {
    NAMES.iter().position(|name| *name == operation).map_or(0, |index| (FIRST + index) as u64)
}

/// The name with this number, if it is one.
pub(crate) fn name_of(code: u64) -> Option<&'static str> {
    let index = usize::try_from(code).ok()?.checked_sub(FIRST)?;
    NAMES.get(index).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::Operation;

    #[test]
    fn names_are_found_by_their_numbers_which_no_operation_has() {
        for name in NAMES {
            assert_eq!(name_of(code_of(name)), Some(name));
            assert!(Operation::ALL.iter().all(|operation| *operation as u64 != code_of(name)));
        }
        assert_eq!(
            (code_of("lunch"), name_of(0), name_of(127), name_of(134), name_of(u64::MAX)),
            (0, None, None, None, None)
        );
    }
}
