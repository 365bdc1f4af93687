//! Two routes on trial: which one calls take, and when the other one is tried.
//!
//! ```text
//! trial of the first, then of the second ---> the cheaper one is taken
//!                     ^                                |
//!                     '-- it costs more than the other did, or a period has passed
//! ```
//!
//! Whoever makes the same calls and notes the same costs picks the same. A cost may be noted when the route of the next call is known
//! already: where that ends a trial, one call more goes the same way, and counts only if those after it do, too.

use arrayvec::ArrayVec;

/// Calls from one trial of both routes to the next. It is prime: a loop of several calls meets each trial at another place.
pub(super) const PERIOD: u64 = 257;

/// What must be left of the cost for the other route to be taken: a smaller difference is noise.
const NOISE: f32 = 0.96;

/// What the route in use costs is told by so many calls in a row: more than stores are tried out in.
pub(super) const MEMORY: usize = 10;

/// The longest trial.
const LONGEST: usize = 12;

/// One of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    First,
    Second,
}

impl Route {
    const fn other(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
        }
    }
}

/// How long trials are, in calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lengths {
    /// The very first one, of the first route; at most [`LONGEST`].
    pub(super) first: u8,
    /// Each other one.
    pub(super) other: u8,
    /// How many of the last calls of each count: the first ones find in the cache what the other route has left there.
    pub(super) counting: usize,
}

/// What is known of two routes.
#[derive(Clone, Debug)]
pub(super) struct Trials {
    lengths: Lengths,
    calls: u64,
    best: Route,
    trial: Route,
    /// Calls of the trial that are left.
    left: u8,
    /// What those took that are over.
    tried: ArrayVec<f32, LONGEST>,
    /// Whether a trial of the other route follows.
    is_first: bool,
    /// What a call costs by each route; infinite where not known.
    costs: [f32; 2],
    /// What the last calls took by the route in use.
    recent: [f32; MEMORY],
    /// Calls since the last trial,
    rested: u64,
    /// and how many there are to be before the next one out of turn: twice as many after each that has changed nothing.
    rest: u64,
}

impl Trials {
    pub(super) fn new(lengths: Lengths) -> Self {
        let mut trials = Self {
            lengths,
            calls: 0,
            best: Route::First,
            trial: Route::First,
            left: 0,
            tried: ArrayVec::new(),
            is_first: true,
            costs: [f32::INFINITY; 2],
            recent: [f32::INFINITY; MEMORY],
            rested: 0,
            rest: MEMORY as u64,
        };
        trials.begin(Route::First, lengths.first);
        trials
    }

    /// The route of the next call.
    pub(super) fn route(&self) -> Route {
        if self.left > 0 { self.trial } else { self.best }
    }

    /// Counts a call: each [`PERIOD`]th begins a trial of both routes.
    pub(super) fn count(&mut self) {
        self.calls = self.calls.wrapping_add(1);
        if self.calls.is_multiple_of(PERIOD) {
            self.is_first = true;
            self.begin(Route::First, self.lengths.other);
        }
    }

    /// Begins a trial of so many calls.
    fn begin(&mut self, trial: Route, n_calls: u8) {
        (self.trial, self.left) = (trial, n_calls);
        self.tried.clear();
        self.costs[trial as usize] = f32::INFINITY;
    }

    /// Takes in what a call cost that went by this `route`: nothing, unless the next one goes there, too.
    pub(super) fn note(&mut self, route: Route, cost: f32) {
        if route != self.route() {
            return;
        }
        if self.left > 0 {
            return self.note_trial(cost);
        }
        self.recent.rotate_right(1);
        self.recent[0] = cost;
        self.costs[self.best as usize] = typical(&mut self.recent.clone());
        self.rested += 1;
        if self.rested >= self.rest && self.is_beaten() {
            self.rest = (2 * self.rest).min(PERIOD);
            // The route in use, too: some of the calls that count for it were before it slowed down.
            self.is_first = true;
            self.begin(self.best, self.lengths.other);
        }
    }

    fn note_trial(&mut self, cost: f32) {
        self.tried.push(cost);
        self.left -= 1;
        if self.left > 0 {
            return;
        }
        let skipped = self.tried.len().saturating_sub(self.lengths.counting);
        self.costs[self.trial as usize] = typical(&mut self.tried[skipped..]);
        if self.is_first {
            self.is_first = false;
            return self.begin(self.trial.other(), self.lengths.other);
        }
        if self.is_beaten() {
            (self.best, self.rest) = (self.best.other(), MEMORY as u64);
        }
        self.rested = 0;
        self.recent = [self.costs[self.best as usize]; MEMORY];
    }

    /// Whether the other route is known to cost less than the one in use.
    fn is_beaten(&self) -> bool {
        let [best, other] = [self.best, self.best.other()].map(|route| self.costs[route as usize]);
        other < best * NOISE
    }
}

/// What is typical of the costs of several calls: the mean of the lower two thirds. The best one would not do: what a call costs depends on
/// what the program did with the buffers since the last one, and a loop may go well with a route in one of its calls and badly in the others.
/// The worst ones are those in which a rank was interrupted.
#[expect(clippy::cast_precision_loss, reason = "a few")]
fn typical(costs: &mut [f32]) -> f32 {
    costs.sort_unstable_by(f32::total_cmp);
    let lower = &costs[..costs.len() - costs.len() / 3];
    lower.iter().sum::<f32>() / lower.len() as f32
}
