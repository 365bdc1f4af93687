//! Whether an all-reduce from buffers of the heap to others goes where they lie, or by way of the scratch.
//!
//! Directly every byte is stored once, but into lines that others have read: where that is slow, and above all where many ranks share
//! few cores, it can take twice as long as to stage everything ([`pipeline`](super::pipeline)), which stores only to lines that it has just
//! loaded. Of 8 ranks on two separate cores (AMD Zen 4) 512 KiB took 650 us directly and 300 by the scratch, 128 KiB 169 and 98; of two
//! such ranks 128 KiB took 10 us and 15. So both are tried out.
//!
//! All members have to go the same way. What one of them has measured is no measure for the others, and of ranks that share a core
//! the last one counts. So each member posts with every call how long the last one that was tried out took it, from when all had
//! posted to its return. Whoever goes on has read the posts of all: all members know the same figures, of the same calls, and follow the
//! same rule. Nothing else is sent, and nobody waits for it.
//!
//! # Invariants
//! - What is picked follows from the calls of the communicator and from what members have posted, and from nothing else.
//! - Both ways give the same bits.

use std::time::{Duration, Instant};

use super::call::Call;
use super::operation::Operation;
use super::team::Team;

/// Shorter inputs, in bytes, go directly;
const FROM: u64 = 16 << 10;

/// and so do those of so many bytes: what no cache keeps is stored past it.
const UP_TO: u64 = 8 << 20;

const FIRST_CLASS: u32 = FROM.ilog2();
const CLASSES: usize = (UP_TO.ilog2() - FIRST_CLASS) as usize;

/// Calls of a class from one trial of both ways to the next.
const PERIOD: u64 = 256;

/// Calls in a trial, of which the best counts.
const TRIAL: u8 = 4;

/// The same in the first one: then stores are tried out themselves (`shm/copy/tuner.rs`), and have to be through with it.
const FIRST_TRIAL: u8 = 12;

/// What must be left of the time for the other way to be taken, in hundredths: a smaller difference is noise.
const NOISE: u64 = 96;

/// The way in use has slowed down when so many calls in a row did: more than stores are tried out in.
const MEMORY: usize = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Where buffers lie.
    Directly,
    /// By the scratch.
    Scratch,
}

impl Way {
    const fn other(self) -> Self {
        match self {
            Self::Directly => Self::Scratch,
            Self::Scratch => Self::Directly,
        }
    }
}

/// What the members of a communicator know of their calls.
#[derive(Debug)]
pub(crate) struct Detours {
    classes: [Class; CLASSES],
    /// The class of the last call, while its time is not known.
    last: Option<usize>,
    /// How long that took this member.
    took: Duration,
}

/// The same of inputs of one length, up to a factor of two.
#[derive(Clone, Copy, Debug)]
struct Class {
    calls: u64,
    best: Way,
    trial: Way,
    /// Calls of the trial that are left.
    left: u8,
    /// Whether a trial of the other way follows.
    is_first: bool,
    /// Nanoseconds by each way, of the member that took longest; the most where not known.
    costs: [u64; 2],
    /// The same of the last calls by the way in use.
    recent: [u64; MEMORY],
}

impl Default for Detours {
    fn default() -> Self {
        Self { classes: [Class::NEW; CLASSES], last: None, took: Duration::ZERO }
    }
}

impl Detours {
    /// What this member posts.
    pub(crate) fn told(&self) -> u64 {
        u64::try_from(self.took.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Whether `call`, to which all members contribute `len` bytes and which they have posted with buffers in the heap, takes the scratch;
    /// `None` where nothing is tried out.
    pub(crate) fn pick(&mut self, team: &Team, call: &Call<'_>, len: u64) -> Option<bool> {
        if call.operation != Operation::AllReduce || !(FROM..UP_TO).contains(&len) {
            return None;
        }
        let post_of = |member| team.board.post_of(member);
        let is_in_place = |member| {
            let [input, output] = post_of(member).places();
            input == output
        };
        let n_members = team.n_members();
        if n_members == 1 || (0..n_members).any(is_in_place) {
            return None;
        }
        let longest = (0..n_members).map(|member| post_of(member).data(TOLD)).max().unwrap_or(0);
        Some(self.next(len, longest) == Way::Scratch)
    }

    /// Does `work`, the call that was picked, and keeps how long it takes.
    pub(crate) fn time<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let done = work();
        self.took = start.elapsed();
        done
    }

    /// The way of a call of `len` bytes, when the last one took `longest`.
    fn next(&mut self, len: u64, longest: u64) -> Way {
        if let Some(last) = self.last {
            self.classes[last].note(longest);
        }
        let class = (len.ilog2() - FIRST_CLASS) as usize;
        self.last = Some(class);
        self.classes[class].pick()
    }
}

/// The word of a post's data that tells how long the last call took.
pub(crate) const TOLD: usize = 2;

impl Class {
    const NEW: Self = Self {
        calls: 0,
        best: Way::Directly,
        trial: Way::Directly,
        left: 0,
        is_first: false,
        costs: [u64::MAX; 2],
        recent: [u64::MAX; MEMORY],
    };

    fn pick(&mut self) -> Way {
        if self.calls.is_multiple_of(PERIOD) {
            self.is_first = true;
            self.begin(Way::Directly);
            self.left = if self.calls == 0 { FIRST_TRIAL } else { TRIAL };
        }
        self.calls = self.calls.wrapping_add(1);
        if self.left > 0 { self.trial } else { self.best }
    }

    fn begin(&mut self, trial: Way) {
        (self.trial, self.left) = (trial, TRIAL);
        self.costs[trial as usize] = u64::MAX;
    }

    /// Takes in how long the call took that was picked last.
    fn note(&mut self, longest: u64) {
        if self.left > 0 {
            return self.note_trial(longest);
        }
        self.recent.rotate_right(1);
        self.recent[0] = longest;
        self.costs[self.best as usize] = self.recent.into_iter().fold(u64::MAX, u64::min);
        if self.is_beaten() {
            self.begin(self.best.other());
        }
    }

    fn note_trial(&mut self, longest: u64) {
        let cost = &mut self.costs[self.trial as usize];
        *cost = longest.min(*cost);
        self.left -= 1;
        if self.left > 0 {
            return;
        }
        if self.is_first {
            self.is_first = false;
            return self.begin(self.trial.other());
        }
        if self.is_beaten() {
            self.best = self.best.other();
        }
        self.recent = [self.costs[self.best as usize]; MEMORY];
    }

    /// Whether the other way is known to take less time than the one in use.
    fn is_beaten(&self) -> bool {
        let [best, other] = [self.best, self.best.other()].map(|way| self.costs[way as usize]);
        other < best / 100 * NOISE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes `n` calls of `len` bytes that take what `cost_of` says; tells how often they went by the scratch.
    fn live(
        detours: &mut Detours,
        n: usize,
        len: u64,
        last: &mut u64,
        cost_of: impl Fn(Way) -> u64,
    ) -> usize {
        let ways: Vec<_> = (0..n)
            .map(|_| {
                let way = detours.next(len, *last);
                *last = cost_of(way);
                way
            })
            .collect();
        ways.into_iter().filter(|&way| way == Way::Scratch).count()
    }

    fn costs(directly: u64, scratch: u64) -> impl Fn(Way) -> u64 {
        move |way| if way == Way::Directly { directly } else { scratch }
    }

    #[test]
    fn the_quicker_way_is_taken_and_the_other_one_tried_once_in_a_period() {
        let period = usize::try_from(PERIOD).unwrap();
        for (directly, scratch, is_scratch) in
            [(10_000, 15_000, false), (15_000, 10_000, true), (10_000, 9_900, false)]
        {
            let (mut detours, mut last) = (Detours::default(), 0);
            for trial in [FIRST_TRIAL, TRIAL, TRIAL] {
                let taken = live(&mut detours, period, 128 << 10, &mut last, costs(directly, scratch));
                let expected = if is_scratch { period - usize::from(trial) } else { usize::from(TRIAL) };
                assert_eq!(taken, expected, "{directly} {scratch}");
            }
        }
    }

    #[test]
    fn a_way_that_turns_slow_is_left_within_a_few_calls() {
        let (mut detours, mut last) = (Detours::default(), 0);
        live(&mut detours, 100, 1 << 20, &mut last, costs(150_000, 270_000));
        let turned = || costs(650_000, 300_000);
        live(&mut detours, MEMORY + 1 + usize::from(TRIAL), 1 << 20, &mut last, turned());
        assert_eq!(live(&mut detours, 50, 1 << 20, &mut last, turned()), 50);
    }

    #[test]
    fn calls_of_several_lengths_in_turn_are_told_apart() {
        let (mut detours, mut last) = (Detours::default(), 0);
        let (mut short, mut long) = (0, 0);
        for _ in 0..200 {
            short = live(&mut detours, 1, FROM, &mut last, costs(2_000, 3_000));
            long = live(&mut detours, 1, UP_TO - 1, &mut last, costs(900_000, 700_000));
        }
        assert_eq!((short, long), (0, 1));
    }

    #[test]
    fn any_number_that_is_posted_is_taken_in() {
        let (mut detours, mut last) = (Detours::default(), u64::MAX);
        for cost in [0, 1, u64::MAX, u64::MAX - 1] {
            live(&mut detours, 40, 64 << 10, &mut last, |_| cost);
        }
    }
}
