//! Which of two routes an all-reduce takes, where only measurement can tell.
//!
//! From buffers of the heap to others it goes where they lie (zero-copy), or by way of the staging
//! areas. Zero-copy stores every byte once, but into lines that others have read. Where that is
//! slow, and above all where many ranks share few cores, it can take twice as long as to
//! [stage](crate::collective::execute::staged) everything, which stores only to lines that it has
//! just loaded.
//!
//! Where some buffer is in ordinary memory, results bypass the cache or go through it. Which is
//! quicker differs between machines where all that members read and write is about as long as the
//! cache that they share.
//!
//! So both are tried out. All members have to go the same way: staging takes all of them, and a
//! bypass of the cache costs the others as much. What one of them has measured is no measure for
//! the others, and of ranks that share a core the last one counts. So each member posts with every
//! call how long the last measured one took it, from when all had posted to its return. A member
//! that goes on has read the posts of all. So all members know the same figures, of the same calls,
//! and follow the same rule. Nothing else is sent, and nobody waits for it.
//!
//! A member that stages does so before it posts, and has to know its route by then. So the route
//! follows from the calls before the last one. What a member stages before it posts counts as often
//! as members may share its core, since they all do it there.
//!
//! # Invariants
//! - The pick follows from the calls of the communicator and from what members have posted, and
//!   from nothing else. Each member asks its own machine how long a call has to be to fill the
//!   cache, and all are on one.
//! - Both routes give the same bits.
//! - Where a member counts or checks what is staged (faults, checksums), nothing is tried out: what
//!   it finds does not depend on time.

use std::time::Instant;

use super::trials::{Lengths, Route, RouteTrials};
use arrayvec::ArrayVec;

use crate::collective::call::{Call, CallSignature, Operation};
use crate::shm::CacheHint;
use crate::shm::copy::fills_cache;

/// Shorter inputs from the heap, in bytes, are always zero-copy.
const MIN_MEASURED_LEN: u64 = 16 << 10;

/// Inputs from the heap of so many bytes and more are, too: their stores bypass the cache.
const MAX_MEASURED_LEN: u64 = 8 << 20;

/// What all members contribute to a call on ordinary memory that may be tried out, in bytes: about
/// as much as shared caches hold.
const TRIED: std::ops::Range<u64> = 4 << 20..512 << 20;

/// So many times what fills the cache goes past it in any case.
const SURELY: u64 = 4;

/// So many kinds of calls are told apart: one more takes the place of the one that was called
/// longest ago.
const MOST_CLASSES: usize = 32;

/// The word that a member posts where nothing is to be tried out.
pub(super) const UNTRIED: u64 = u64::MAX;

/// Between what routes a call can go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RoutePair {
    /// First where buffers of the heap lie, and second by the staging area.
    Heap,
    /// Results in ordinary memory first past the cache, and second through it.
    Ordinary,
}

impl RoutePair {
    const fn lengths(self) -> Lengths {
        match self {
            // Stores are tried out themselves (`shm/copy/tuner.rs`), and have to be through with
            // it. One call more goes the same way, as it is foreseen before the last one's time is
            // known.
            Self::Heap => Lengths { first: 11, other: 7, counting: 6 },
            // The very first call is the one that the system hands memory to.
            Self::Ordinary => Lengths { first: 3, other: 3, counting: 2 },
        }
    }
}

/// What the members of a communicator know of their calls.
#[derive(Debug, Default)]
pub(super) struct MeasuredRoutes {
    classes: ArrayVec<KnownClass, MOST_CLASSES>,
    /// How many calls there have been.
    calls: u64,
    /// The last call, while its time is not known.
    last: Option<Last>,
    /// How many nanoseconds that took this member,
    last_duration: u64,
    /// and what it staged before it posted the call that is under way.
    prestaged: u64,
}

/// A call whose time all members will tell.
#[derive(Clone, Copy, Debug)]
struct Last {
    /// Its place among the kinds.
    kind: usize,
    route: Route,
    len: u64,
}

/// What is known of calls that are alike.
#[derive(Clone, Debug)]
struct KnownClass {
    class: CallClass,
    /// The last call of all that was of this kind.
    latest: u64,
    trials: RouteTrials,
}

/// Calls by one operator of elements of one type, of one length up to a factor of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CallClass {
    pair: RoutePair,
    signature: u64,
    magnitude: u32,
}

impl MeasuredRoutes {
    /// Returns what this member posts; `is_watched` where it counts or checks what it stages.
    pub(super) fn last_duration(&self, is_watched: bool) -> u64 {
        if is_watched { UNTRIED } else { self.last_duration }
    }

    /// Returns the route of `call`, to which all members contribute `len` bytes, if they turn out
    /// to have their buffers apart in the heap; `None` where it is too short or too long to have
    /// the choice.
    pub(super) fn foresee(&mut self, call: &Call<'_>, signature: CallSignature, len: u64) -> Option<Route> {
        self.prestaged = 0;
        if call.operation != Operation::AllReduce || !(MIN_MEASURED_LEN..MAX_MEASURED_LEN).contains(&len) {
            return None;
        }
        Some(self.route(CallClass::new(RoutePair::Heap, signature, len)))
    }

    /// Returns the route of the next call like this, before it is known how long the last one took.
    fn route(&self, class: CallClass) -> Route {
        let known = self.classes.iter().find(|kind| kind.class == class);
        known.map_or(Route::First, |kind| kind.trials.route())
    }

    /// Picks the route of a call with buffers in the heap, of which `route` was foreseen and the
    /// members' durations are at most `longest`; `None` where nothing is tried out.
    pub(super) fn pick(
        &mut self,
        foreseen: Option<Route>,
        signature: CallSignature,
        len: u64,
        longest: impl FnOnce() -> Option<u64>,
    ) -> Option<Route> {
        let foreseen = foreseen?;
        let class = CallClass::new(RoutePair::Heap, signature, len);
        self.next(class, len, longest()?, Some(foreseen))
    }

    /// Picks how results of `call` are stored, of which all members know that not all of its
    /// buffers are in the heap, and to which all `n` contribute `len` bytes; `None` where nothing
    /// is tried out.
    pub(super) fn pick_hint(
        &mut self,
        call: &Call<'_>,
        signature: CallSignature,
        len: u64,
        n: u64,
        longest: impl FnOnce() -> Option<u64>,
    ) -> Option<CacheHint> {
        let all = len.saturating_mul(n);
        if call.operation != Operation::AllReduce || !TRIED.contains(&all) {
            return None;
        }
        // Nothing of it is staged in one way or the other.
        self.prestaged = 0;
        // Counted on all members alike, whatever each of them knows of its caches.
        let class = CallClass::new(RoutePair::Ordinary, signature, len);
        let route = self.next(class, len, longest()?, None)?;
        Some(results(all, route, fills_cache))
    }

    /// Keeps how long it took to stage ahead on the route that this member has foreseen, which it
    /// `started` then, while up to `sharing` members on its core did the same.
    pub(super) fn keep_prestage(&mut self, started: Option<Instant>, sharing: u64) {
        if let Some(started) = started {
            self.prestaged = since(started).saturating_mul(sharing);
        }
    }

    /// Keeps how long the call took that was picked, which `started` then, if it was measured.
    pub(super) fn keep_duration(&mut self, started: Option<Instant>) {
        if let Some(started) = started {
            self.last_duration = since(started).saturating_add(self.prestaged).min(UNTRIED - 1);
        }
    }

    /// Returns the route of a call of `len` bytes, when the last one took `longest`: what was
    /// foreseen before that was known, if it was.
    fn next(&mut self, class: CallClass, len: u64, longest: u64, foreseen: Option<Route>) -> Option<Route> {
        if longest == UNTRIED {
            // Nothing is staged in vain while that lasts, and what was learnt before is forgotten.
            self.classes.clear();
            self.last = None;
            return None;
        }
        if let Some(Last { kind, route, len }) = self.last.take() {
            self.classes[kind].trials.note(route, cost(longest, len));
        }
        let index = self.index_of(class);
        let kind = &mut self.classes[index];
        let route = foreseen.unwrap_or_else(|| kind.trials.route());
        kind.trials.count();
        self.calls = self.calls.wrapping_add(1);
        kind.latest = self.calls;
        self.last = Some(Last { kind: index, route, len });
        Some(route)
    }

    fn index_of(&mut self, class: CallClass) -> usize {
        if let Some(known) = self.classes.iter().position(|kind| kind.class == class) {
            return known;
        }
        if self.classes.try_push(KnownClass::new(class)).is_ok() {
            return self.classes.len() - 1;
        }
        let oldest = self.classes.iter().enumerate().min_by_key(|(_, kind)| kind.latest);
        let index = oldest.map_or(0, |(index, _)| index);
        self.classes[index] = KnownClass::new(class);
        index
    }
}

impl CallClass {
    fn new(pair: RoutePair, signature: CallSignature, len: u64) -> Self {
        let [signature, _] = signature.words();
        Self { pair, signature, magnitude: len.ilog2() }
    }
}

impl KnownClass {
    fn new(class: CallClass) -> Self {
        Self { class, latest: 0, trials: RouteTrials::new(class.pair.lengths()) }
    }
}

/// Nanoseconds since then.
pub(super) fn since(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Nanoseconds per byte.
#[expect(clippy::cast_precision_loss, reason = "a measure")]
pub(super) fn cost(ns: u64, len: u64) -> f32 {
    ns as f32 / len as f32
}

/// Returns whether results will be read before they are driven out of the cache, where members
/// contribute `all` those bytes together.
fn results(all: u64, route: Route, fills_cache: impl Fn(u64) -> bool) -> CacheHint {
    let is_past = fills_cache(all) && (fills_cache(all / SURELY) || route == Route::First);
    if is_past { CacheHint::Bypass } else { CacheHint::Keep }
}

#[cfg(test)]
mod tests {
    use super::super::trials::{MEMORY, PERIOD};
    use super::*;

    const FIRST_TRIAL: u8 = RoutePair::Heap.lengths().first + 1;
    const TRIAL: u8 = RoutePair::Heap.lengths().other + 1;

    fn like(signature: u64, len: u64) -> CallClass {
        CallClass { pair: RoutePair::Heap, signature, magnitude: len.ilog2() }
    }

    /// Makes `n` calls of `len` bytes that take what `cost_of` says; tells how often they went by
    /// the staging area.
    fn live(
        routes: &mut MeasuredRoutes,
        n: usize,
        len: u64,
        last: &mut u64,
        cost_of: impl Fn(Route) -> u64,
    ) -> usize {
        let routes: Vec<_> = (0..n)
            .map(|_| {
                let foreseen = routes.route(like(7, len));
                let route = routes.next(like(7, len), len, *last, Some(foreseen)).unwrap();
                *last = cost_of(route);
                route
            })
            .collect();
        routes.into_iter().filter(|&route| route == Route::Second).count()
    }

    fn costs(directly: u64, scratch: u64) -> impl Fn(Route) -> u64 {
        move |route| if route == Route::First { directly } else { scratch }
    }

    #[test]
    fn the_quicker_route_is_taken_and_the_other_one_tried_once_in_a_period() {
        let period = usize::try_from(PERIOD).unwrap();
        for (directly, scratch, is_scratch) in
            [(10_000, 15_000, false), (15_000, 10_000, true), (10_000, 9_900, false)]
        {
            let (mut routes, mut last) = (MeasuredRoutes::default(), 0);
            for trial in [FIRST_TRIAL, TRIAL, TRIAL] {
                let taken = live(&mut routes, period, 128 << 10, &mut last, costs(directly, scratch));
                let expected = if is_scratch { period - usize::from(trial) } else { usize::from(TRIAL) };
                assert_eq!(taken, expected, "{directly} {scratch}");
            }
        }
    }

    #[test]
    fn a_route_that_turns_slow_is_left_within_a_few_calls() {
        let (mut routes, mut last) = (MeasuredRoutes::default(), 0);
        live(&mut routes, 100, 1 << 20, &mut last, costs(150_000, 270_000));
        let turned = || costs(650_000, 300_000);
        live(&mut routes, MEMORY + 1 + 2 * usize::from(TRIAL), 1 << 20, &mut last, turned());
        assert_eq!(live(&mut routes, 50, 1 << 20, &mut last, turned()), 50);
    }

    #[test]
    fn calls_of_several_lengths_in_turn_are_told_apart() {
        let (mut routes, mut last) = (MeasuredRoutes::default(), 0);
        let (mut short, mut long) = (0, 0);
        for _ in 0..200 {
            short = live(&mut routes, 1, MIN_MEASURED_LEN, &mut last, costs(2_000, 3_000));
            long = live(&mut routes, 1, MAX_MEASURED_LEN - 1, &mut last, costs(900_000, 700_000));
        }
        assert_eq!((short, long), (0, 1));
    }

    #[test]
    fn a_loop_over_long_and_short_calls_of_one_kind_goes_the_better_route_as_a_rule() {
        // A byte costs more in the long ones, by either route: trials that met the loop at the same
        // place each time might compare the direct route in these with the staging area in short
        // ones.
        for (scratch, bounds) in [(13, 0..2000), (8, 6000..8000)] {
            let (mut routes, mut last, mut taken) = (MeasuredRoutes::default(), 0, 0);
            for _ in 0..1000 {
                for (len, per_byte) in [(1_900_000, 10), (1_100_000, 7)] {
                    let direct = len * per_byte / 1000;
                    taken += live(&mut routes, 4, len, &mut last, costs(direct, direct / 10 * scratch));
                }
            }
            assert!(bounds.contains(&taken), "{taken} of 8000 by the scratch, which takes {scratch} for 10");
        }
    }

    #[test]
    fn both_ways_to_ordinary_memory_are_known_after_six_calls_whatever_the_very_first_one_took() {
        for (past, through, second) in [(1000, 700, 1), (700, 1000, 0), (1000, 990, 0)] {
            let (mut routes, mut last) = (MeasuredRoutes::default(), 0);
            let class = CallClass { pair: RoutePair::Ordinary, ..like(7, 8 << 20) };
            let mut call = |number| {
                let route = routes.next(class, 8 << 20, last, None).unwrap();
                last = if route == Route::First { past } else { through };
                last += if number == 0 { 7000 } else { 0 };
                usize::from(route == Route::Second)
            };
            let taken: Vec<_> = (0..20).map(&mut call).collect();
            assert_eq!(taken[..6], [0, 0, 0, 1, 1, 1], "{past} {through}");
            assert_eq!(taken[6..], [second; 14], "{past} {through}");
        }
    }

    #[test]
    fn results_that_fill_the_cache_may_go_past_it_and_those_that_fill_it_four_times_do() {
        let full = 16 << 20;
        let both = |all| [Route::First, Route::Second].map(|route| results(all, route, |len| len >= full));
        assert_eq!(both(full - 1), [CacheHint::Keep; 2]);
        assert_eq!([full, full * SURELY - 1].map(both), [[CacheHint::Bypass, CacheHint::Keep]; 2]);
        assert_eq!(both(full * SURELY), [CacheHint::Bypass; 2]);
    }

    #[test]
    fn nothing_is_tried_out_where_a_member_says_so() {
        let mut routes = MeasuredRoutes::default();
        for turn in 0..40 {
            let told = if turn % 3 == 0 { routes.last_duration(true) } else { 5 };
            assert_eq!(
                routes.next(like(1, MIN_MEASURED_LEN), MIN_MEASURED_LEN, told, None).is_none(),
                turn % 3 == 0
            );
        }
    }

    #[test]
    fn of_more_kinds_than_are_told_apart_the_one_that_was_called_longest_ago_is_forgotten() {
        let (mut routes, mut last) = (MeasuredRoutes::default(), 0);
        live(&mut routes, 100, MIN_MEASURED_LEN, &mut last, costs(2000, 1000));
        let mut others = 100..;
        let mut call_others = |routes: &mut MeasuredRoutes, n| {
            for other in others.by_ref().take(n) {
                routes.next(like(other, MIN_MEASURED_LEN), MIN_MEASURED_LEN, 1000, None).unwrap();
            }
        };
        call_others(&mut routes, MOST_CLASSES - 1);
        assert_eq!(live(&mut routes, 1, MIN_MEASURED_LEN, &mut last, costs(2000, 1000)), 1, "it is kept");
        call_others(&mut routes, MOST_CLASSES);
        assert_eq!(
            live(&mut routes, 1, MIN_MEASURED_LEN, &mut last, costs(2000, 1000)),
            0,
            "it is tried out anew"
        );
    }

    #[test]
    fn within_twenty_calls_both_routes_are_taken_as_the_oracle_counts_on() {
        let (mut routes, mut last) = (MeasuredRoutes::default(), 0);
        let taken = live(&mut routes, 20, 64 << 10, &mut last, costs(1000, 2000));
        assert_eq!(taken, usize::from(TRIAL));
    }

    #[test]
    fn what_was_foreseen_is_taken_whatever_the_last_call_turns_out_to_have_taken() {
        let (mut routes, mut last) = (MeasuredRoutes::default(), 0);
        let (mut taken, mut turned) = ([0; 2], 0);
        for call in 0..3 * PERIOD {
            let foreseen = routes.route(like(7, MIN_MEASURED_LEN));
            last = (last + 7919 * call) % 5000;
            assert_eq!(
                routes.next(like(7, MIN_MEASURED_LEN), MIN_MEASURED_LEN, last, Some(foreseen)),
                Some(foreseen)
            );
            taken[foreseen as usize] += 1;
            turned += usize::from(routes.route(like(7, MIN_MEASURED_LEN)) != foreseen);
        }
        assert!(taken.into_iter().all(|n| n > 100) && turned >= 4, "{taken:?} {turned}");
    }

    #[test]
    fn nothing_is_staged_in_vain_while_a_member_wants_nothing_to_be_tried_out() {
        let (mut routes, mut last) = (MeasuredRoutes::default(), 0);
        live(&mut routes, 100, MIN_MEASURED_LEN, &mut last, costs(2000, 1000));
        assert_eq!(routes.route(like(7, MIN_MEASURED_LEN)), Route::Second);
        assert_eq!(
            routes.next(like(7, MIN_MEASURED_LEN), MIN_MEASURED_LEN, UNTRIED, Some(Route::Second)),
            None
        );
        assert_eq!(routes.route(like(7, MIN_MEASURED_LEN)), Route::First);
    }

    #[test]
    fn any_number_that_is_posted_is_taken_in() {
        let (mut routes, mut last) = (MeasuredRoutes::default(), u64::MAX - 1);
        for cost in [0, 1, u64::MAX - 1, u64::MAX - 2] {
            live(&mut routes, 40, 64 << 10, &mut last, |_| cost);
        }
    }
}
