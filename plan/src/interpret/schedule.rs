//! Who takes the next turn.

use super::Machine;

/// The longest run of turns of one actor.
const LONGEST: usize = 400;

/// A stream of drawn numbers: splitmix64, which needs no more than to be reproducible.
#[derive(Clone, Debug)]
pub struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    /// Makes the stream of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Draws a number.
    pub fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Draws a number below a bound, which is above 0.
    #[expect(clippy::cast_possible_truncation, reason = "the number is below a bound that fits")]
    pub fn below(&mut self, bound: usize) -> usize {
        (self.draw() % bound as u64) as usize
    }
}

/// Lets actors take turns, drawn ones in runs of drawn lengths, until none can do anything.
pub(super) fn run(machine: &mut Machine<'_>) {
    let mut ready = machine.actors();
    let mut idle = Vec::new();
    while !ready.is_empty() {
        let chosen = machine.random.below(ready.len());
        let turns = match machine.random.below(4) {
            0 => 1 + machine.random.below(LONGEST),
            _ => 1 + machine.random.below(8),
        };
        let mut has_moved = false;
        for _ in 0..turns {
            if !machine.turn(ready[chosen]) {
                idle.push(ready.swap_remove(chosen));
                break;
            }
            has_moved = true;
        }
        if has_moved {
            ready.append(&mut idle);
        }
    }
}
