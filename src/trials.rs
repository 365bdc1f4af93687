//! Which of several ways to do one thing is in use, by what each of them has turned out to cost.
//!
//! ```text
//! trial of a way: some calls go that way ---> the cheapest way known is in use
//!                   ^                                     |
//!                   '-- what is known is old, or another way is known to cost less
//! ```
//!
//! A [`Trials`] holds what is known of the ways of one class of calls. It counts the calls of a
//! trial, and decides which way is in use afterwards. Its owner decides the rest: when a trial
//! begins, of which way, and for how many calls; and which of several costs is the typical one (the
//! least, a mean).
//!
//! | owner does | when | then |
//! |---|---|---|
//! | [`current`](Trials::current) | before each call | the call goes that way |
//! | [`note`](Trials::note) | after it | `true`: a trial is over, and one of the next two follows |
//! | [`settle`](Trials::settle) | after a trial of one way | in use if it was, or if cheaper |
//! | [`settle_all`](Trials::settle_all) | after trials of all ways | the cheapest way is in use |
//! | [`begin`](Trials::begin) | at any time | the next calls are a trial |
//!
//! # Invariants
//! - Owners that make the same calls and note the same costs pick the same ways: there is no clock
//!   and no chance in here.
//! - A way replaces another one only if it costs less by more than the noise ([`NOISE`]).
//! - Nothing is allocated.
//!
//! Tried by its unit tests.

/// What must be left of the cost for another way to be used: a smaller difference is noise.
pub(crate) const NOISE: f32 = 0.96;

/// One of several ways to do something, numbered from 0.
pub(crate) trait Alternative: Copy + PartialEq + 'static {
    /// Returns its number, less than the `N` of the [`Trials`] that it is part of.
    fn index(self) -> usize;
}

/// What is known of up to `N` ways: what a call costs in each, and what the last `MEMORY` calls
/// did.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trials<W: 'static, const N: usize, const MEMORY: usize> {
    /// The ways that there are.
    ways: &'static [W],
    /// The way in use.
    in_use: W,
    /// The way in trial, or last tried, and how many calls of its trial are left.
    trial: W,
    left: u8,
    /// What the calls of the trial cost, the newest first; infinite where there was none.
    tried: [f32; MEMORY],
    /// What the last calls by the way in use cost, the newest first.
    recent: [f32; MEMORY],
    /// What a call costs in each way; infinite where that is not known.
    costs: [f32; N],
}

impl<W: Alternative, const N: usize, const MEMORY: usize> Trials<W, N, MEMORY> {
    /// Begins with a trial of `first`, of `n_calls` calls. Nothing is known of any of the `ways`.
    pub(crate) const fn new(ways: &'static [W], first: W, n_calls: u8) -> Self {
        let unknown = [f32::INFINITY; MEMORY];
        let costs = [f32::INFINITY; N];
        Self { ways, in_use: first, trial: first, left: n_calls, tried: unknown, recent: unknown, costs }
    }

    /// Returns the way of the next call: the one in trial, or the one in use.
    #[inline]
    pub(crate) fn current(&self) -> W {
        if self.left > 0 { self.trial } else { self.in_use }
    }

    /// Returns the way in use, or that was in use before the trial that is under way.
    #[inline]
    pub(crate) const fn in_use(&self) -> W {
        self.in_use
    }

    /// Returns the way in trial, or last tried.
    pub(crate) const fn tried(&self) -> W {
        self.trial
    }

    /// Returns whether a trial is under way.
    pub(crate) const fn is_trial(&self) -> bool {
        self.left > 0
    }

    /// Returns what a call costs in this way; infinite where that is not known.
    pub(crate) fn cost_of(&self, way: W) -> f32 {
        self.costs[way.index()]
    }

    /// Begins a trial of `n_calls` calls in this way. What was known of it is forgotten.
    pub(crate) fn begin(&mut self, way: W, n_calls: u8) {
        (self.trial, self.left) = (way, n_calls);
        self.tried = [f32::INFINITY; MEMORY];
        self.costs[way.index()] = f32::INFINITY;
    }

    /// Notes what a call in the [current](Self::current) way cost, and returns whether that ends a
    /// trial.
    ///
    /// `typical` picks from the costs of several calls, the newest first: of all those of the trial
    /// so far (infinite where there are fewer than `MEMORY`), or of the last `MEMORY` ones by the
    /// way in use.
    pub(crate) fn note(&mut self, cost: f32, typical: impl FnOnce(&mut [f32; MEMORY]) -> f32) -> bool {
        let is_trial = self.is_trial();
        let (way, costs) =
            if is_trial { (self.trial, &mut self.tried) } else { (self.in_use, &mut self.recent) };
        costs.rotate_right(1);
        costs[0] = cost;
        self.costs[way.index()] = typical(&mut costs.clone());
        self.left = self.left.saturating_sub(1);
        is_trial && self.left == 0
    }

    /// Ends the trial of one way, be it early: the way is in use from now on if it was before, or
    /// costs less.
    pub(crate) fn settle(&mut self) {
        self.left = 0;
        if self.trial == self.in_use || self.cost_of(self.trial) < self.cost_of(self.in_use) * NOISE {
            self.adopt(self.trial);
        }
    }

    /// Ends a row of trials of all ways: the cheapest way is in use from now on. Returns whether
    /// that is another one than before.
    pub(crate) fn settle_all(&mut self) -> bool {
        self.left = 0;
        let is_beaten = self.is_beaten();
        self.adopt(if is_beaten { self.rival() } else { self.in_use });
        is_beaten
    }

    fn adopt(&mut self, way: W) {
        self.in_use = way;
        self.recent = [self.cost_of(way); MEMORY];
    }

    /// Returns the way that may be better than the one in use: one of which nothing is known, or
    /// the cheapest of the others.
    pub(crate) fn rival(&self) -> W {
        let known = |way: &W| if self.cost_of(*way).is_infinite() { 0.0 } else { self.cost_of(*way) };
        let others = self.ways.iter().copied().filter(|way| *way != self.in_use);
        others.min_by(|one, other| f32::total_cmp(&known(one), &known(other))).unwrap_or(self.in_use)
    }

    /// Returns whether another way is known to cost less than the one in use.
    pub(crate) fn is_beaten(&self) -> bool {
        self.cost_of(self.rival()) < self.cost_of(self.in_use) * NOISE
    }

    /// Returns whether another way is known to cost less than the one in use, or not known at all.
    pub(crate) fn may_be_beaten(&self) -> bool {
        self.cost_of(self.rival()).is_infinite() || self.is_beaten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Road {
        Direct,
        Scenic,
        Toll,
    }

    use Road::{Direct, Scenic, Toll};

    impl Alternative for Road {
        fn index(self) -> usize {
            self as usize
        }
    }

    type Roads = Trials<Road, 3, 3>;

    const ALL: &[Road] = &[Direct, Scenic, Toll];

    fn least(costs: &mut [f32; 3]) -> f32 {
        costs.iter().copied().fold(f32::INFINITY, f32::min)
    }

    /// Makes calls that cost what `cost_of` says until a trial is over, or `n` of them; tells their
    /// ways.
    fn calls(roads: &mut Roads, n: usize, cost_of: impl Fn(Road) -> f32) -> Vec<Road> {
        let mut ways = Vec::new();
        while ways.len() < n {
            ways.push(roads.current());
            if roads.note(cost_of(roads.current()), least) {
                break;
            }
        }
        ways
    }

    /// Does what an owner does that tries all ways, two calls each.
    fn try_all(roads: &mut Roads, cost_of: impl Fn(Road) -> f32) -> bool {
        for way in ALL {
            roads.begin(*way, 2);
            assert_eq!(calls(roads, 9, &cost_of), [*way; 2]);
        }
        roads.settle_all()
    }

    const fn costs(of_each: [f32; 3]) -> impl Fn(Road) -> f32 {
        move |road| of_each[road as usize]
    }

    #[test]
    fn the_cheapest_of_all_ways_is_in_use_after_a_trial_of_each() {
        for first in [Direct, Scenic, Toll] {
            for (of_each, best) in
                [([1.0, 2.0, 3.0], Direct), ([2.0, 1.0, 3.0], Scenic), ([3.0, 2.0, 1.0], Toll)]
            {
                let mut roads = Roads::new(ALL, first, 3);
                assert_eq!(calls(&mut roads, 9, costs(of_each)), [first; 3]);
                roads.settle();
                assert_eq!(
                    (roads.in_use(), roads.may_be_beaten()),
                    (first, true),
                    "nothing is known of the others"
                );
                assert_eq!(try_all(&mut roads, costs(of_each)), first != best);
                assert_eq!((roads.current(), roads.may_be_beaten()), (best, false));
            }
        }
    }

    #[test]
    fn a_difference_within_the_noise_changes_nothing() {
        let mut roads = Roads::new(ALL, Scenic, 1);
        assert!(!try_all(&mut roads, costs([0.97, 1.0, 0.98])));
        assert_eq!(roads.in_use(), Scenic);
        roads.begin(Direct, 2);
        calls(&mut roads, 9, costs([0.97, 1.0, 0.98]));
        roads.settle();
        assert_eq!(roads.in_use(), Scenic);
    }

    #[test]
    fn a_way_that_turns_dear_is_beaten_once_all_calls_that_are_remembered_were_dear() {
        let mut roads = Roads::new(ALL, Direct, 1);
        try_all(&mut roads, costs([1.0, 2.0, 3.0]));
        let beaten: Vec<_> = (0..4)
            .map(|_| {
                calls(&mut roads, 1, costs([9.0; 3]));
                roads.is_beaten()
            })
            .collect();
        assert_eq!(beaten, [false, false, true, true]);
        assert_eq!(roads.rival(), Scenic, "the cheaper one of the others");
    }

    #[test]
    fn a_trial_of_one_way_compares_that_way_only_and_leaves_what_is_remembered_of_the_one_in_use() {
        let mut roads = Roads::new(ALL, Direct, 1);
        try_all(&mut roads, costs([2.0, 1.9, 3.0]));
        assert_eq!(roads.in_use(), Scenic);
        roads.begin(Toll, 2);
        assert_eq!(roads.rival(), Toll, "nothing is known of it any more");
        calls(&mut roads, 9, costs([2.0, 1.9, 3.0]));
        roads.settle();
        assert_eq!((roads.in_use(), roads.cost_of(Toll).to_bits()), (Scenic, 3.0_f32.to_bits()));
        roads.begin(Toll, 2);
        calls(&mut roads, 9, costs([2.0, 1.9, 1.0]));
        roads.settle();
        assert_eq!((roads.in_use(), roads.tried(), roads.is_trial()), (Toll, Toll, false));
    }

    #[test]
    fn a_trial_can_end_early_and_another_one_take_its_place() {
        let mut roads = Roads::new(ALL, Direct, 1);
        try_all(&mut roads, costs([1.0, 2.0, 3.0]));
        roads.begin(Scenic, 3);
        calls(&mut roads, 1, costs([1.0, 5.0, 3.0]));
        roads.settle();
        assert_eq!((roads.current(), roads.is_trial()), (Direct, false));
        roads.begin(Scenic, 3);
        calls(&mut roads, 1, costs([1.0, 5.0, 3.0]));
        assert!(try_all(&mut roads, costs([3.0, 2.0, 1.0])));
        assert_eq!(roads.current(), Toll);
    }

    #[test]
    fn ways_that_there_are_not_are_never_taken() {
        let mut roads = Roads::new(&[Direct, Toll], Toll, 1);
        calls(&mut roads, 9, costs([1.0, 0.1, 2.0]));
        roads.settle();
        assert_eq!(roads.rival(), Direct);
        assert!(Roads::new(&[Toll], Toll, 1).rival() == Toll);
    }
}
