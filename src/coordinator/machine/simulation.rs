//! Simulated histories: a coordinator, devices and clients, with all events that are possible, in
//! an order drawn from a seed.
//!
//! Devices are the real `Agent`; the network between them is a model. After each step the rules are
//! checked. `SHMCCL_LONG=1` runs 100,000 histories. Each has a seed of its own, counted from one
//! that the clock gives. `SHMCCL_SEED=N` runs that history alone, and
//! prints its events if it fails.

mod network;
mod rules;
mod world;

use support::{long, seed, told_seed};
use world::{Broken, World};

/// The number of steps of a history until it is left to come to rest.
const STEPS: u64 = 120;

/// The number of steps in which it has to come to rest.
const REST: u64 = 400;

/// Events that happen in one history of two hundred at the least. The rarest happens in one of
/// sixty.
const EXPECTED: [&str; 29] = [
    "ready",
    "group",
    "open group",
    "no such group",
    "failed",
    "next epoch",
    "finalized",
    "destroyed",
    "restart",
    "adopted",
    "hang",
    "no sign of life",
    "stuck",
    "hung and killed",
    "hung and spared",
    "not enough",
    "located",
    "not formed",
    "out of range",
    "grown",
    "not grown",
    "death while growing",
    "restart while growing",
    "checkpoint",
    "checkpoint failed",
    "death in a checkpoint",
    "restart in a checkpoint",
    "repeated",
    "loss in an open group",
];

/// Numbers drawn from a seed (SplitMix64, by Steele, Lea and Flood).
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// Draws a number below `end`.
    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Draws true once in `n` times.
    fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Draws one of `all`, if there are any.
    fn pick<T: Copy>(&mut self, all: &[T]) -> Option<T> {
        let index = usize::try_from(self.below(all.len().max(1) as u64)).unwrap_or_default();
        all.get(index).copied()
    }
}

/// # Errors
/// The rule that was broken, and when.
fn live_through(seed: u64, broken: Option<Broken>) -> Result<World, Box<(String, World)>> {
    let mut world = World::new(seed, broken);
    for step in 0..STEPS + REST {
        let done = if step < STEPS { world.step() } else { world.rest() };
        if let Err(rule) = done.and_then(|()| rules::always(&world)) {
            return Err(Box::new((format!("step {step}: {rule}"), world)));
        }
        if step >= STEPS && rules::at_rest(&world).is_ok() {
            return Ok(world);
        }
    }
    match rules::at_rest(&world) {
        Ok(()) => Ok(world),
        Err(rule) => Err(Box::new((format!("at the end: {rule}"), world))),
    }
}

#[test]
#[allow(clippy::print_stdout, reason = "a long test says what it has done")]
fn whatever_happens_the_rules_are_kept() {
    let (first, is_one) = (seed(), told_seed().is_some());
    let histories = match () {
        () if is_one => 1,
        () if long() => 100_000,
        () => 1_500,
    };
    println!("{histories} histories from seed {first} on");
    let mut seen = std::collections::BTreeMap::<&str, u64>::new();
    for seed in first..first + histories {
        match live_through(seed, None) {
            Ok(world) => world.seen.iter().for_each(|what| *seen.entry(what).or_default() += 1),
            Err(failure) => panic!(
                "seed {seed}, {}; replay it with SHMCCL_SEED={seed}\n{}",
                failure.0,
                failure.1.log.join("\n")
            ),
        }
    }
    println!("histories in which there was: {seen:?}");
    if !is_one {
        // Histories in which an event never happens do not test it.
        for what in EXPECTED {
            let times = seen.get(what).copied().unwrap_or_default();
            assert!(times * 200 > histories, "{what} in {times} of {histories} histories only");
        }
    }
}

#[test]
fn a_rule_that_is_broken_is_found_out() {
    let first = seed();
    for broken in Broken::ALL {
        let found = (first..first + 2000).find_map(|seed| live_through(seed, Some(broken)).err());
        assert!(found.is_some(), "{broken:?} was not found out in 2000 histories from seed {first} on");
    }
}
