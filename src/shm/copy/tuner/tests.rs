use super::super::CacheSizes;
use super::StorePolicy::{Cached, CopyForward, NonTemporal};
use super::*;
use crate::trials::NOISE;

/// A class, and the time that passes while it copies.
struct World {
    record: PolicyTrials,
    copies: u64,
    now: Instant,
}

impl World {
    fn new(first: StorePolicy) -> Self {
        Self {
            record: PolicyTrials::new(StorePurpose::Put, first, SHORT_PAUSE),
            copies: 0,
            now: Instant::now(),
        }
    }

    /// One copy that costs what `cost_of` says of the way that is picked.
    fn copy(&mut self, cost_of: impl Fn(StorePolicy) -> f32) -> StorePolicy {
        self.copies += 1;
        let way = self.record.pick(CopyTiming::First, self.copies, self.now);
        let cost = cost_of(way);
        let took = Duration::from_nanos(1000).mul_f32(cost);
        self.now += took;
        self.record.note(CopyTiming::First, cost, took, self.copies, self.now);
        way
    }

    /// Copies `n` times at the costs of the two ways; tells how often each was used.
    fn live(&mut self, n: usize, costs: [f32; 2]) -> [usize; 2] {
        let mut used = [0; 2];
        for _ in 0..n {
            used[self.copy(|way| costs[way as usize]) as usize] += 1;
        }
        used
    }
}

#[test]
fn whichever_is_best_is_in_use_after_a_trial_of_each() {
    for (first, best) in
        [(Cached, Cached), (Cached, NonTemporal), (NonTemporal, Cached), (NonTemporal, NonTemporal)]
    {
        let mut costs = [1.5; 2];
        costs[best as usize] = 1.0;
        let mut world = World::new(first);
        world.live(2 * usize::from(TRIAL), costs);
        assert_eq!(world.record.trials.in_use(), best);
        let used = world.live(4096, costs);
        assert!(used[best as usize] > 4096 - 100, "{used:?}");
    }
}

#[test]
fn a_change_of_the_machine_is_followed_both_ways() {
    let (near, far) = ([1.0, 1.6], [5.0, 1.6]);
    let mut world = World::new(Cached);
    world.live(10_000, near);
    assert_eq!(world.record.trials.in_use(), Cached);
    // What goes through the cache turns slow: it shows by itself, within a few copies.
    world.live(MEMORY + usize::from(TRIAL), far);
    assert_eq!(world.record.trials.in_use(), NonTemporal);
    world.live(10_000, far);
    assert_eq!(world.record.trials.in_use(), NonTemporal);
    // It turns fast again: the next trial finds out.
    world.live(500, near);
    assert_eq!(world.record.trials.in_use(), Cached);
}

#[test]
fn the_first_copy_into_new_memory_is_not_held_against_a_way() {
    let mut world = World::new(Cached);
    assert_eq!(world.copy(|_| 15.0), Cached);
    world.live(2 * usize::from(TRIAL), [1.0, 1.2]);
    assert_eq!(world.record.trials.in_use(), Cached);
}

#[test]
fn one_or_two_interrupted_copies_change_nothing() {
    let mut world = World::new(Cached);
    let costs = [1.0, 1.2];
    world.live(50, costs);
    for interrupted in 1..MEMORY {
        world.live(interrupted, [1000.0; 2]);
        assert_eq!(world.live(10, costs), [10, 0]);
    }
}

#[test]
fn trials_take_no_more_than_their_part_of_the_time() {
    for other in [1.1_f32, 1.5, 1.9, 5.0] {
        for costs in [[1.0, other], [other, 1.0]] {
            let mut world = World::new(Cached);
            world.live(100, costs);
            let best = world.record.trials.in_use();
            let used = world.live(20_000, costs);
            let tried = used[1 - best as usize];
            let lost = other * f32::from(u16::try_from(tried).unwrap());
            assert!(lost * 100.0 < 20_000.0 * 1.1, "{other}: {used:?}");
            assert!(tried > 20, "{other}: {used:?}");
        }
    }
}

#[test]
fn a_way_that_comes_to_cost_more_than_the_other_is_left_at_once() {
    // Too little to be noticed by itself, and long before the next trial is due.
    let mut world = World::new(Cached);
    world.live(20, [1.0, 1.1]);
    assert_eq!(world.record.trials.in_use(), Cached);
    world.live(MEMORY + usize::from(TRIAL), [1.25, 1.1]);
    assert_eq!(world.record.trials.in_use(), NonTemporal);
}

#[test]
fn what_no_cache_can_keep_is_tried_less_often() {
    let strategy = CopyStrategy::new(CacheSizes { own: 1 << 20, shared: 32 << 20 }, |_| true);
    assert_eq!(past_pause(&strategy, (16 << 20) - 1), SHORT_PAUSE);
    assert_eq!(past_pause(&strategy, 16 << 20), LONG_PAUSE);
    let mut world = World {
        record: PolicyTrials::new(StorePurpose::Put, NonTemporal, LONG_PAUSE),
        ..World::new(NonTemporal)
    };
    world.live(20, [1.3, 1.0]);
    assert_eq!(world.live(100, [1.3, 1.0]), [0, 100]);
}

#[test]
fn a_hopeless_trial_is_one_copy() {
    assert_eq!(World::new(Cached).live(20, [1.0, 5.0]), [19, 1]);
}

#[test]
fn differences_within_the_noise_cause_no_changes() {
    let mut world = World::new(Cached);
    world.live(1000, [1.0, 0.97]);
    assert_eq!(world.record.trials.in_use(), Cached);
}

#[test]
fn a_copy_that_pays_for_the_one_before_is_not_held_against_a_way() {
    let mut world = World::new(NonTemporal);
    let mut last = NonTemporal;
    for _ in 0..100 {
        // Through the cache: slow behind a stream, fast behind itself.
        last = world.copy(|way| match (way, last) {
            (NonTemporal, _) => 1.0,
            (Cached, NonTemporal) => 1.5,
            (_, _) => 0.7,
        });
    }
    assert_eq!(world.record.trials.in_use(), Cached);
}

#[test]
fn a_stream_is_charged_with_what_its_reader_pays() {
    let cost_of = |way, purpose| cost(way, purpose, Duration::from_nanos(3000), 1000);
    for purpose in [StorePurpose::PutReadSoon, StorePurpose::Get] {
        assert!(cost_of(NonTemporal, purpose) > cost_of(Cached, purpose));
    }
    for purpose in [StorePurpose::Put, StorePurpose::Combine] {
        let (past, through) = (cost_of(NonTemporal, purpose), cost_of(Cached, purpose));
        assert!((past - through).abs() < f32::EPSILON);
    }
}

#[test]
fn a_trial_is_never_torn_apart_by_copies_that_are_not_timed() {
    let (class, mut record, mut now) =
        (Class::NEW, PolicyTrials::new(StorePurpose::Put, Cached, SHORT_PAUSE), Instant::now());
    let (mut chosen, mut trials) = (Vec::new(), 0);
    for _ in 0..100_000 {
        now += Duration::from_nanos(1000);
        match class.turn(SHORT, StorePurpose::Put) {
            CopyTiming::Untimed => chosen.push(Cached),
            turn => {
                let picked = record.pick(turn, class.copies.get(), now);
                let cost = [1.0, 1.5][picked as usize];
                record.note(turn, cost, Duration::from_nanos(1000), class.copies.get(), now);
                class.keep(record, Duration::from_nanos(1000));
                chosen.push(picked);
            }
        }
    }
    for run in chosen.chunk_by(|a, b| a == b).filter(|run| run[0] == NonTemporal) {
        assert_eq!(run.len(), usize::from(TRIAL));
        trials += 1;
    }
    assert!(trials > 2);
}

#[test]
fn combinations_that_no_cache_can_keep_always_go_the_first_way() {
    let strategy = CopyStrategy::of_this_machine();
    let Some(len) = (14..48).map(|power| 1 << power).find(|&len| !strategy.stays_in_cache(len)) else {
        return;
    };
    let first = strategy.first(len as u64, StorePurpose::Combine.cache_hint());
    for _ in 0..4 * TRIAL {
        let mut taken = None;
        with_measured_policy(len, len, StorePurpose::Combine, |way| taken = Some(way));
        assert_eq!(taken, Some(first));
    }
}

/// Two ranks that do the same calls, each with what it knows of combinations of one length.
struct Pair {
    ranks: [(Class, PolicyTrials); 2],
    now: Instant,
}

impl Pair {
    fn new(first: StorePolicy) -> Self {
        Self::of(StorePurpose::Combine, first)
    }

    fn of(purpose: StorePurpose, first: StorePolicy) -> Self {
        let rank = || (Class::NEW, PolicyTrials::new(purpose, first, SHORT_PAUSE));
        Self { ranks: [rank(), rank()], now: Instant::now() }
    }

    /// One combination of each, which costs what `cost_of` says of its own way and the other's.
    fn combine(&mut self, cost_of: impl Fn(StorePolicy, StorePolicy) -> f32) -> [StorePolicy; 2] {
        let now = self.now;
        let picked = self.ranks.each_mut().map(|(class, record)| match class.turn(SHORT, record.purpose) {
            CopyTiming::Untimed => (CopyTiming::Untimed, record.trials.in_use()),
            turn => (turn, record.pick(turn, class.copies.get(), now)),
        });
        self.now += Duration::from_micros(4);
        let ways = picked.map(|(_, way)| way);
        for (index, (class, record)) in self.ranks.iter_mut().enumerate() {
            let cost = cost_of(ways[index], ways[1 - index]);
            if picked[index].0 != CopyTiming::Untimed {
                let took = Duration::from_nanos(1000).mul_f32(cost);
                record.note(picked[index].0, cost, took, class.copies.get(), self.now);
                class.keep(*record, took);
            }
        }
        ways
    }

    /// Combines `n` times; tells how often both went past the cache, and how often one of them did.
    fn live(&mut self, n: u64, cost_of: impl Fn(StorePolicy, StorePolicy) -> f32) -> (usize, usize) {
        let ways: Vec<_> = (0..n).map(|_| self.combine(&cost_of)).collect();
        let both = ways.iter().filter(|ways| **ways == [NonTemporal; 2]).count();
        (both, ways.iter().filter(|ways| ways.contains(&NonTemporal)).count() - both)
    }
}

/// Between siblings a stream past the cache is quick as long as the other rank makes none.
fn between_siblings(mine: StorePolicy, others: StorePolicy) -> f32 {
    match (mine, others) {
        (Cached, _) => 0.9,
        (NonTemporal, Cached) => 0.7,
        (NonTemporal | CopyForward, _) => 1.3,
    }
}

fn between_cores(mine: StorePolicy, _: StorePolicy) -> f32 {
    if mine == NonTemporal { 1.4 } else { 3.5 }
}

#[test]
fn what_is_quick_only_until_the_other_rank_does_it_too_is_not_taken_up() {
    for first in [Cached, NonTemporal] {
        let mut pair = Pair::new(first);
        assert_eq!(pair.live(20 * PERIOD, between_siblings), (20 * usize::from(TRIAL), 0));
    }
}

#[test]
fn two_ranks_follow_a_change_of_the_machine_both_ways() {
    let mut pair = Pair::new(Cached);
    pair.live(PERIOD + 100, between_siblings);
    // What goes through the cache turns slow: it shows as soon as it is timed.
    pair.live(sample(SHORT) + 2 * u64::from(TRIAL), between_cores);
    assert_eq!(pair.live(100, between_cores), (100, 0));
    // It turns fast again: the next joint trial finds out.
    pair.live(PERIOD, between_siblings);
    assert_eq!(pair.live(100, between_siblings), (0, 0));
}

#[test]
fn of_three_ways_the_cheapest_is_in_use_whatever_the_first_one_was_and_whatever_comes_after() {
    for purpose_first in [Cached, NonTemporal] {
        for best in [Cached, NonTemporal, CopyForward] {
            let mut pair = Pair::of(StorePurpose::CombineForAll, purpose_first);
            let cost = |mine: StorePolicy, _: StorePolicy| {
                if mine == best { 1.0 } else { 2.0 + f32::from(mine as u8) }
            };
            pair.live(PERIOD, cost);
            assert!((0..300).filter(|_| pair.combine(cost) == [best; 2]).count() >= 290);
            // What was best turns dear: of the others the one that was cheaper is in use soon, long
            // before the next joint trial.
            let turned =
                |mine: StorePolicy, other: StorePolicy| if mine == best { 9.0 } else { cost(mine, other) };
            pair.live(sample(SHORT) + 2 * u64::from(TRIAL), turned);
            let next = [Cached, NonTemporal, CopyForward].into_iter().find(|&way| way != best).unwrap();
            assert_eq!(pair.combine(turned), [next; 2]);
        }
    }
}

#[test]
fn joint_trials_are_the_same_on_every_rank_whatever_it_has_found_out() {
    for (purpose, first, in_turn) in [
        (StorePurpose::Combine, Cached, &[Cached, NonTemporal][..]),
        (StorePurpose::Combine, NonTemporal, &[NonTemporal, Cached]),
        (StorePurpose::CombineForAll, Cached, &[Cached, NonTemporal, CopyForward]),
        (StorePurpose::CombineForAll, NonTemporal, &[NonTemporal, Cached, CopyForward]),
    ] {
        for best in in_turn.iter().copied() {
            let mut record = PolicyTrials::new(purpose, first, SHORT_PAUSE);
            // Each rank has found out something else, and is in the middle of a trial of its own.
            for policy in in_turn {
                record.trials.begin(*policy, 1);
                record.trials.note(if *policy == best { 0.5 } else { 9.0 }, least);
            }
            record.trials.settle_all();
            assert_eq!(record.trials.in_use(), best);
            record.trials.begin(best, 2);
            let numbers = 0..u8::try_from(joint_trial(purpose)).unwrap();
            let ways: Vec<_> =
                numbers.map(|number| record.pick(CopyTiming::Joint(number), 7, Instant::now())).collect();
            let expected: Vec<_> = in_turn.iter().flat_map(|&way| [way; TRIAL as usize]).collect();
            assert_eq!(ways, expected);
        }
    }
}

#[test]
fn joint_trials_begin_where_copies_are_timed_anyway() {
    for len in [SHORT, 256 << 10, 2 << 20, 1 << 30] {
        assert!(PERIOD.is_multiple_of(sample(len)));
        let class = Class::NEW;
        let turns: Vec<_> = (0..2 * PERIOD).map(|_| class.turn(len, StorePurpose::CombineForAll)).collect();
        let joint = (0..3 * TRIAL).map(CopyTiming::Joint).collect::<Vec<_>>();
        for period in turns.chunks(usize::try_from(PERIOD).unwrap()) {
            let (trial, rest) = period.split_at(joint.len());
            assert_eq!(trial, joint);
            assert!(!rest.iter().any(|turn| matches!(turn, CopyTiming::Joint(_))));
        }
    }
}

#[test]
fn every_length_has_a_class() {
    TUNER.with(|tuner| {
        for len in [SHORT, SHORT + 1, 1 << 20, 1 << 40, usize::MAX] {
            for purpose in
                [StorePurpose::PutReadSoon, StorePurpose::Put, StorePurpose::Get, StorePurpose::Combine]
            {
                tuner.class(len, purpose);
            }
        }
        assert!(std::ptr::eq(
            tuner.class(SHORT, StorePurpose::Put),
            tuner.class(2 * SHORT - 1, StorePurpose::Put)
        ));
        assert!(!std::ptr::eq(
            tuner.class(SHORT, StorePurpose::Put),
            tuner.class(2 * SHORT, StorePurpose::Put)
        ));
        assert!(!std::ptr::eq(
            tuner.class(64 << 20, StorePurpose::Put),
            tuner.class(128 << 20, StorePurpose::Put)
        ));
    });
}

#[test]
fn only_a_copy_for_a_peer_takes_until_its_stores_are_out() {
    let waited_for = [StorePurpose::PutReadSoon, StorePurpose::Put];
    let not = [
        StorePurpose::Get,
        StorePurpose::Combine,
        StorePurpose::CombineForAll,
        StorePurpose::CombineForUnlike,
    ];
    assert!(
        waited_for.into_iter().all(StorePurpose::is_for_peer)
            && !not.into_iter().any(StorePurpose::is_for_peer)
    );
}

#[test]
fn with_what_the_reader_pays_the_way_is_found_that_takes_the_least_in_all() {
    // Nanoseconds through the cache and past it, and which way was the quicker one with the reading
    // (AMD Zen 4).
    let siblings = [(2048, 230, 240, Cached), (4096, 391, 290, Cached), (65_536, 6460, 2434, NonTemporal)];
    let apart =
        [(2048, 611, 250, NonTemporal), (4096, 1502, 280, NonTemporal), (8192, 3475, 411, NonTemporal)];
    for (len, through, past, best) in siblings.into_iter().chain(apart) {
        let of = |way, ns| cost(way, StorePurpose::PutReadSoon, Duration::from_nanos(ns), len);
        let found = if of(NonTemporal, past) < of(Cached, through) * NOISE { NonTemporal } else { Cached };
        assert_eq!(found, best, "{len} bytes: {through} and {past} ns");
    }
}
