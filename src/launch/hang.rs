//! Finds ranks that hang without dying, and tells them from slow ones.
//!
//! With a [`HangRule`] every member beats twice in a period, in shared memory. Its thread that
//! listens to the launcher beats, so neither its device thread nor a wait delays a beat. Once in a
//! period the launcher looks. A look that finds no new beat is a miss, and a member with enough
//! misses among its last looks hangs.
//!
//! A member that hangs is lost, as if it had died: its epoch ends, the others shrink or recover,
//! and it can be killed. If it wakes, it learns that it was lost. It has never mapped what the
//! others share by then.
//!
//! A hanging process is stopped, frozen, or waits for a disk that does not answer. A device thread
//! in an endless loop is found by the deadlines of its peers, which name it.

use std::fmt;
use std::time::{Duration, Instant};

use super::supervise::SupervisedJob;
use crate::bootstrap::MemberId;
use crate::channel::Control;
use crate::error::{Error, ExitCause, Result};
use crate::shm::{CellSlice, HostKernel};
use crate::sync::HeartbeatCell;

/// The most looks that a rule can look back on.
const MAX_LOOKS: u32 = u64::BITS;

/// The shortest period. Below it, a look says more of the scheduler than of a rank.
const SHORTEST: Duration = Duration::from_millis(1);

/// The longest period, a week. It keeps the time of the next look representable.
const LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);

/// A rule that says when a rank hangs, and whether it is killed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HangRule {
    period: Duration,
    misses: u32,
    looks: u32,
    spares: bool,
}

impl HangRule {
    /// Looks for a heartbeat once in a `period`. A rank hangs when `misses` of its last `looks`
    /// looks found none, and is killed then.
    ///
    /// A rank that is silent for less than `misses - 1` periods never counts as hanging.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless 1 <= `misses` <= `looks` <= 64 and `period` is from 1 ms
    /// to a week.
    pub fn new(period: Duration, misses: u32, looks: u32) -> Result<Self> {
        let refuse = |name, value, expected| Err(Error::InvalidArgument { name, value, expected });
        if !(1..=MAX_LOOKS).contains(&looks) {
            return refuse("looks for a heartbeat", looks.into(), "1 to 64");
        }
        if !(1..=looks).contains(&misses) {
            return refuse(
                "missed heartbeats",
                misses.into(),
                "at least 1, and at most as many as there are looks",
            );
        }
        if !(SHORTEST..=LONGEST).contains(&period) {
            let value = u64::try_from(period.as_micros()).unwrap_or(u64::MAX);
            return refuse("period of heartbeats in us", value, "at least 1000, and at most a week");
        }
        Ok(Self { period, misses, looks, spares: false })
    }

    /// Leaves a hanging rank alive, for a debugger. It is killed when all others have ended or, to
    /// be restarted, after the time of grace.
    #[must_use]
    pub fn sparing(mut self) -> Self {
        self.spares = true;
        self
    }

    /// Returns how often members beat: twice between two looks, so that a punctual member is never
    /// missed.
    pub(crate) fn beat(&self) -> Duration {
        self.period / 2
    }

    /// Returns the time between two looks.
    #[cfg(feature = "coordinator")]
    pub(crate) fn period(&self) -> Duration {
        self.period
    }

    /// Returns whether a member with these misses hangs. A member that has just beaten does not.
    pub(crate) fn is_broken_by(&self, record: BeatHistory) -> bool {
        record.misses(1) == 1 && record.misses(self.looks) >= self.misses
    }
}

/// The last looks at one member, one bit each, the latest lowest. A set bit is a miss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BeatHistory(u64);

impl BeatHistory {
    pub(crate) fn after(self, missed: bool) -> Self {
        Self(self.0 << 1 | u64::from(missed))
    }

    /// Counts the misses of the last `looks` looks, 1 to 64 of them.
    fn misses(self, looks: u32) -> u32 {
        (self.0 << (u64::BITS - looks)).count_ones()
    }
}

impl fmt::Display for HangRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} looks, one in {:?}", self.misses, self.looks, self.period)
    }
}

/// The launcher's looks at the heartbeats of all members.
#[derive(Debug)]
pub(super) struct HangWatch {
    rule: HangRule,
    beats: CellSlice<HeartbeatCell>,
    next: Instant,
    heartbeats: Vec<Option<LastBeat>>,
}

/// The last heartbeat that was seen of one member.
#[derive(Clone, Copy, Debug)]
struct LastBeat {
    beat: Option<Duration>,
    /// The time of the first look at it.
    since: Duration,
    record: BeatHistory,
}

impl HangWatch {
    /// Looks at the heartbeats of `n_members` in `control` by `rule`.
    pub(super) fn new(rule: HangRule, control: &Control, n_members: usize) -> Self {
        // There may be no service process; nobody beats in its cell then.
        let heartbeats = vec![None; n_members];
        Self { rule, beats: control.beats(), next: Instant::now(), heartbeats }
    }

    /// Returns the time until the next look.
    pub(super) fn patience(&self) -> Duration {
        self.next.saturating_duration_since(Instant::now())
    }

    /// Forgets a member that is restarted. Its successor has missed nothing, and may be there by
    /// the next look.
    pub(super) fn forget(&mut self, id: MemberId) {
        self.heartbeats[id.0] = None;
    }

    /// Looks at all members that have to beat, if it is time. Returns those that hang, each with
    /// the time since its last beat.
    fn look(&mut self, beats: impl Fn(MemberId) -> bool) -> Vec<(MemberId, Duration)> {
        if !self.patience().is_zero() {
            return Vec::new();
        }
        // A late look counts once: a pause of the launcher may have paused the members too.
        self.next = Instant::now() + self.rule.period;
        let now = HostKernel::clock();
        let mut hung = Vec::new();
        for (index, (cell, seen)) in self.beats.iter().zip(&mut self.heartbeats).enumerate() {
            let beat = cell.last();
            let Some(before) = seen.filter(|_| beats(MemberId(index))) else {
                *seen = beats(MemberId(index)).then(|| LastBeat {
                    beat,
                    since: now,
                    record: BeatHistory::default(),
                });
                continue;
            };
            let record = before.record.after(beat == before.beat);
            *seen = Some(LastBeat { beat, record, ..before });
            if self.rule.is_broken_by(record) {
                let last = beat.unwrap_or(before.since).max(before.since);
                hung.push((MemberId(index), now.saturating_sub(last)));
                *seen = None;
            }
        }
        hung
    }
}

impl SupervisedJob<'_> {
    /// Takes those for lost that hang.
    pub(super) fn find_hung(&mut self) {
        let Some(watch) = &mut self.hangs else { return };
        let (root, rule) = (&self.root, watch.rule);
        let hung = watch.look(|id| root.is_running(id));
        for (id, silent) in hung {
            self.note_failure(id, ExitCause::Hung(silent));
            self.observer.on_hang(self.root.device(id), silent, !rule.spares);
            if !rule.spares {
                self.processes[id.0].kill_as_failure();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::epoch_id::EpochId;
    use crate::error::DeviceName;
    use crate::rank::Rank;

    fn rule(misses: u32, looks: u32) -> HangRule {
        HangRule::new(Duration::from_millis(10), misses, looks).unwrap()
    }

    /// Returns the looks after which a member would count as hanging.
    fn found(rule: HangRule, looks: impl IntoIterator<Item = bool>) -> impl Iterator<Item = usize> {
        let mut record = BeatHistory::default();
        let hangs = move |(index, missed)| {
            record = record.after(missed);
            rule.is_broken_by(record).then_some(index)
        };
        looks.into_iter().enumerate().filter_map(hangs)
    }

    /// Returns the look after which a member counts as hanging, if it does.
    fn found_after(rule: HangRule, looks: impl IntoIterator<Item = bool>) -> Option<usize> {
        found(rule, looks).next()
    }

    /// Looks at the beats of both ranks of a job, whatever the time, and returns who hangs.
    fn look_at_both(watch: &mut HangWatch) -> Vec<usize> {
        watch.next = Instant::now();
        watch.look(|id| id.0 < 2).into_iter().map(|(id, _)| id.0).collect()
    }

    #[test]
    fn a_successor_has_missed_nothing_though_no_look_fell_between() {
        let (control, _segment) = Control::create(2, EpochId { job: 1, epoch: 1 }).unwrap();
        let [first, second] = [0, 1].map(|rank| control.beat(DeviceName::Rank(Rank::known(rank))));
        let mut watch = HangWatch::new(rule(3, 8), &control, 2);
        let mut now = 0;
        let mut looks = |watch: &mut HangWatch, beats: &[bool]| -> Vec<Vec<usize>> {
            let look = |beats: &bool| {
                now += 1;
                first.beat(Duration::from_nanos(now));
                if *beats {
                    second.beat(Duration::from_nanos(now));
                }
                look_at_both(watch)
            };
            beats.iter().map(look).collect()
        };
        let (none, beaten) = (Vec::<usize>::new(), [true; 10]);
        assert_eq!(looks(&mut watch, &[true, false, false, false]).concat(), [1]);
        assert_eq!(looks(&mut watch, &beaten).concat(), none, "it was found, and is another one now");
        assert_eq!(looks(&mut watch, &[false, false]).concat(), none);
        watch.forget(MemberId(1));
        assert_eq!(
            looks(&mut watch, &[true, false, false, true]).concat(),
            none,
            "it has died, and is another one"
        );
        assert_eq!(looks(&mut watch, &[false]).concat(), [1], "three of eight, in its own time");
    }

    #[test]
    fn a_member_hangs_when_so_many_of_its_last_looks_were_misses() {
        assert_eq!(found_after(rule(3, 3), [true; 5]), Some(2));
        assert_eq!(found_after(rule(3, 5), [true, false, true, false, true]), Some(4));
        assert_eq!(found_after(rule(3, 4), [true, false, true, false, true, false, true]), None);
        assert_eq!(found_after(rule(1, 1), [false, false, true]), Some(2));
        assert_eq!(found_after(rule(64, 64), [true; 64]), Some(63));
        assert_eq!(found_after(rule(64, 64), [true; 63]), None);
    }

    #[test]
    fn rules_that_can_never_or_always_be_broken_are_refused() {
        let told = |misses, looks, ms| {
            HangRule::new(Duration::from_millis(ms), misses, looks).map_err(|error| error.to_string())
        };
        assert!(told(0, 5, 10).unwrap_err().contains("missed heartbeats"));
        assert!(told(6, 5, 10).unwrap_err().contains("missed heartbeats"));
        assert!(told(1, 0, 10).unwrap_err().contains("looks for a heartbeat"));
        assert!(told(1, 65, 10).unwrap_err().contains("1 to 64"));
        assert!(told(1, 1, 0).unwrap_err().contains("period"));
        assert!(told(1, 1, u64::MAX).unwrap_err().contains("at most a week"));
        assert!(HangRule::new(Duration::MAX, 1, 1).is_err());
        assert!(told(64, 64, 1).is_ok());
    }

    proptest! {
        /// Compares with the plainest rule: count the misses in the last looks.
        #[test]
        fn the_detector_does_what_a_count_over_the_last_looks_does(
            looks in prop::collection::vec(any::<bool>(), 0..200),
            of in 1..=64_u32,
            misses in 1..=64_u32,
        ) {
            prop_assume!(misses <= of);
            let hangs = |end: &usize| {
                let last = &looks[(end + 1).saturating_sub(of as usize)..=*end];
                last.iter().filter(|missed| **missed).count() >= misses as usize
            };
            prop_assert_eq!(found_after(rule(misses, of), looks.iter().copied()), (0..looks.len()).find(hangs));
        }

        /// Checks that a look that has found a beat never declares a hang.
        #[test]
        fn who_has_just_beaten_is_not_found_to_hang(looks in prop::collection::vec(any::<bool>(), 1..200)) {
            prop_assert!(found(rule(3, 7), looks.iter().copied()).all(|at| looks[at]));
        }
    }
}
