//! Two routes on trial: which one calls take, and when the other one is tried.
//!
//! ```text
//! trial of the first, then of the second ---> the cheaper one is taken
//!                     ^                                |
//!                     '-- it costs more than the other did, or a period has passed
//! ```
//!
//! Members that make the same calls and note the same costs pick the same. A cost may be noted when
//! the route of the next call is known already. Where that ends a trial, one call more goes the
//! same way, and counts only if those after it do, too.

use crate::trials::{Alternative, Trials};

/// Calls from one trial of both routes to the next. It is prime: a loop of several calls meets each
/// trial at another place.
pub(super) const PERIOD: u64 = 257;

/// What the route in use costs is told by so many calls in a row: more than stores are tried out
/// in.
pub(super) const MEMORY: usize = 10;

/// One of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    First,
    Second,
}

impl Route {
    const BOTH: &[Self] = &[Self::First, Self::Second];

    const fn other(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
        }
    }
}

impl Alternative for Route {
    fn index(self) -> usize {
        self as usize
    }
}

/// How long trials are, in calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lengths {
    /// The very first one, of the first route.
    pub(super) first: u8,
    /// Each other one.
    pub(super) other: u8,
    /// How many of the last calls of each count, at most [`MEMORY`]: the first ones find in the
    /// cache what the other route has left there.
    pub(super) counting: usize,
}

/// What is known of two routes.
#[derive(Clone, Debug)]
pub(super) struct RouteTrials {
    lengths: Lengths,
    trials: Trials<Route, 2, MEMORY>,
    calls: u64,
    /// Whether a trial of the other route follows.
    is_first: bool,
    /// Calls since the last trial.
    rested: u64,
    /// How many calls there are to be before the next trial out of turn: twice as many after each
    /// one that has changed nothing.
    rest: u64,
}

impl RouteTrials {
    pub(super) const fn new(lengths: Lengths) -> Self {
        Self {
            lengths,
            trials: Trials::new(Route::BOTH, Route::First, lengths.first),
            calls: 0,
            is_first: true,
            rested: 0,
            rest: MEMORY as u64,
        }
    }

    /// Returns the route of the next call.
    pub(super) fn route(&self) -> Route {
        self.trials.current()
    }

    /// Counts a call: each [`PERIOD`]th begins a trial of both routes.
    pub(super) fn count(&mut self) {
        self.calls = self.calls.wrapping_add(1);
        if self.calls.is_multiple_of(PERIOD) {
            self.try_both(Route::First);
        }
    }

    fn try_both(&mut self, first: Route) {
        self.is_first = true;
        self.trials.begin(first, self.lengths.other);
    }

    /// Takes in what a call cost that went by this `route`: nothing, unless the next one goes
    /// there, too.
    pub(super) fn note(&mut self, route: Route, cost: f32) {
        if route != self.route() {
            return;
        }
        if self.trials.is_trial() {
            let counting = self.lengths.counting;
            if self.trials.note(cost, |costs| typical(&mut costs[..counting])) {
                self.end_trial();
            }
            return;
        }
        self.trials.note(cost, |costs| typical(costs));
        self.rested += 1;
        if self.rested >= self.rest && self.trials.is_beaten() {
            self.rest = (2 * self.rest).min(PERIOD);
            // The route in use, too: some of the calls that count for it were before it slowed
            // down.
            self.try_both(self.trials.in_use());
        }
    }

    fn end_trial(&mut self) {
        if self.is_first {
            self.is_first = false;
            return self.trials.begin(self.trials.tried().other(), self.lengths.other);
        }
        if self.trials.settle_all() {
            self.rest = MEMORY as u64;
        }
        self.rested = 0;
    }
}

/// Returns what is typical of the costs of several calls: the mean of the lower two thirds.
///
/// The best one would not do. The cost of a call depends on what the program did with the buffers
/// since the last one. A loop may go well with a route in one of its calls and badly in the others.
/// The worst ones are those in which a rank was interrupted.
#[expect(clippy::cast_precision_loss, reason = "a few")]
fn typical(costs: &mut [f32]) -> f32 {
    costs.sort_unstable_by(f32::total_cmp);
    let lower = &costs[..costs.len() - costs.len() / 3];
    lower.iter().sum::<f32>() / lower.len() as f32
}
