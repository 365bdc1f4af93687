//! How often devices of a fleet may be started again, and how soon: no clock, no process.

use std::time::Duration;

/// How long a device has to have lived for the next one to be started at once.
const STEADY: Duration = Duration::from_secs(10);

/// How long it takes otherwise, at first and at most.
const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);

/// What is left of them.
#[derive(Debug)]
pub(super) struct RestartBudget {
    left: u32,
    /// How long the newest one is waited for.
    pause: Duration,
}

impl RestartBudget {
    pub(super) fn new(left: u32) -> Self {
        Self { left, pause: Duration::ZERO }
    }

    pub(super) fn left(&self) -> u32 {
        self.left
    }

    /// Takes one, which there is, in the place of a device that has lived so long. Returns how long to wait before it.
    pub(super) fn take(&mut self, lived: Duration) -> Duration {
        self.left -= 1;
        self.pause = if lived < STEADY { (2 * self.pause).clamp(FIRST, LONGEST) } else { Duration::ZERO };
        self.pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_dies_at_once_again_and_again_is_waited_for_longer_and_longer_and_not_for_ever() {
        let mut restarts = RestartBudget::new(9);
        let pauses: Vec<_> = (0..8).map(|_| restarts.take(Duration::from_millis(3)).as_millis()).collect();
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(restarts.take(STEADY), Duration::ZERO, "one that has lived is followed at once");
        assert_eq!(restarts.left(), 0);
    }
}
