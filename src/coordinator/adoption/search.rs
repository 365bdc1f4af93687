//! What a device does when nobody listens any more where its coordinator did.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use crate::error::Error;

/// How long the socket of a coordinator may be missing before that has ended in order, and is not started again at once.
const MISSING: Duration = Duration::from_secs(1);

/// How a device depends on its coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnCoordinatorLoss {
    /// It was started by hand, and waits for the next coordinator for ever.
    Free,
    /// It ends with its coordinator.
    Owned,
    /// It waits so long for the next coordinator when its own was killed, which has left its socket then; and ends with one that ends in
    /// order.
    Waits(Duration),
}

impl OnCoordinatorLoss {
    /// How long it waits for the next coordinator, if it does and not for ever.
    pub(super) fn limit(self) -> Option<Duration> {
        match self {
            Self::Waits(limit) => Some(limit),
            Self::Free | Self::Owned => None,
        }
    }
}

/// For how long a device has had no coordinator.
#[derive(Clone, Copy, Debug)]
pub(super) struct Absence {
    since: Instant,
    /// Since when there has been no socket either.
    missing: Option<Instant>,
}

impl Absence {
    pub(super) fn new() -> Self {
        Self { since: Instant::now(), missing: None }
    }

    /// Takes note that somebody listens, or may.
    pub(super) fn is_answered(&mut self) {
        self.missing = None;
    }

    /// Takes note of how the way to a coordinator has failed. Returns whether a device of this bond gives up.
    pub(super) fn is_over(&mut self, bond: OnCoordinatorLoss, error: &Error) -> bool {
        let kind = match error {
            Error::Os { source, .. } => source.kind(),
            _ => ErrorKind::Other,
        };
        if kind != ErrorKind::NotFound {
            self.missing = None;
        }
        match (bond, kind) {
            (OnCoordinatorLoss::Owned, ErrorKind::NotFound | ErrorKind::ConnectionRefused) => true,
            (OnCoordinatorLoss::Waits(_), ErrorKind::NotFound) => {
                self.missing.get_or_insert_with(Instant::now).elapsed() >= MISSING
            }
            (OnCoordinatorLoss::Waits(limit), ErrorKind::ConnectionRefused) => self.since.elapsed() >= limit,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(kind: ErrorKind) -> Error {
        Error::os("connecting", std::io::Error::from(kind))
    }

    #[test]
    fn a_device_gives_up_as_its_bond_says_and_never_where_somebody_listens() {
        let (missing, refused, busy) =
            (error(ErrorKind::NotFound), error(ErrorKind::ConnectionRefused), error(ErrorKind::WouldBlock));
        let long_ago = Instant::now().checked_sub(Duration::from_secs(60)).unwrap();
        let absence = Absence { since: long_ago, missing: None };
        for (bond, expected) in [
            (OnCoordinatorLoss::Free, [false, false]),
            (OnCoordinatorLoss::Owned, [true, true]),
            (OnCoordinatorLoss::Waits(Duration::from_secs(59)), [false, true]),
            (OnCoordinatorLoss::Waits(Duration::from_secs(3600)), [false, false]),
        ] {
            let told = [&missing, &refused].map(|error| absence.clone().is_over(bond, error));
            assert_eq!(told, expected, "{bond:?}");
            assert!(!absence.clone().is_over(bond, &busy));
        }
        // A coordinator that is started again at once is there at the next look.
        let bond = OnCoordinatorLoss::Waits(Duration::from_secs(3600));
        let mut replaced = Absence { since: long_ago, missing: Some(long_ago) };
        assert!(replaced.clone().is_over(bond, &missing), "it is gone for good");
        assert!(!replaced.is_over(bond, &refused) && !replaced.is_over(bond, &missing));
    }
}
