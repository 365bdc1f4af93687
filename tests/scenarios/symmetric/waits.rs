//! Waits for own words, tests of them, and how they end.

use std::time::Duration;

use shmccl::heap::HeapOffset;
use shmccl::symmetric::{Comparison, WantedValues, WordSet};
use shmccl::{Error, Rank, Result, Symmetric};

use crate::harness::{Job, Random, leave_together, meet_at_last, rank, seed_of};

const SHORT: Duration = Duration::from_millis(50);

const ALL: [Comparison; 6] = [
    Comparison::Equal,
    Comparison::NotEqual,
    Comparison::Greater,
    Comparison::GreaterOrEqual,
    Comparison::Less,
    Comparison::LessOrEqual,
];

scenario!(a_wait_ends_with_each_comparison_and_a_test_agrees, Job::of(2), |comm| {
    let word = comm.alloc::<i32>(1)?;
    let (all, peer, at) = (comm.symmetric(), comm.right(), word.region().offset);
    for (round, comparison) in ALL.into_iter().cycle().take(60).enumerate() {
        // What the word is before, and what ends the wait.
        let (before, after, value) = match comparison {
            Comparison::Equal => (1, -5, -5),
            Comparison::NotEqual => (-5, 1, -5),
            Comparison::Greater => (7, 8, 7),
            Comparison::GreaterOrEqual => (6, 7, 7),
            Comparison::Less => (7, -8, 7),
            Comparison::LessOrEqual => (8, 7, 7),
        };
        word.set(0, before)?;
        assert!(!all.test(at, comparison, value)?);
        comm.barrier()?;
        match round % 2 {
            0 => all.set(peer, at, after)?,
            _ => all.add(peer, at, after - before)?,
        }
        if round % 3 == 0 {
            assert_eq!(all.wait_until(at, comparison, value)?, after);
        } else {
            while !all.test(at, comparison, value)? {}
        }
        comm.barrier()?;
    }
});

scenario!(a_token_goes_round_more_ranks_than_cores, Job::of(8), |comm| {
    const LAPS: u64 = 40;
    let word = comm.alloc::<u64>(1)?;
    let (all, right, own) = (comm.symmetric(), comm.right(), u64::from(comm.rank().get()));
    for lap in 0..LAPS {
        if own > 0 || lap > 0 {
            let token = all.wait_until(word.region().offset, Comparison::GreaterOrEqual, lap * 8 + own)?;
            assert_eq!(token, lap * 8 + own);
        }
        all.set(right, word.region().offset, lap * 8 + own + 1)?;
    }
    if own == 0 {
        all.wait_until(word.region().offset, Comparison::Equal, LAPS * 8)?;
    }
});

scenario!(
    /// As programs of OpenSHMEM do.
    a_plain_write_ends_a_wait,
    Job::of(2),
    |comm| {
        let word = comm.alloc::<u64>(1)?;
        let (all, peer, at) = (comm.symmetric(), comm.right(), word.region().offset);
        for round in 1..200_u64 {
            all.write(peer, at, round)?;
            all.wait_until(at, Comparison::Equal, round)?;
            comm.barrier()?;
        }
    }
);

scenario!(
    /// It sleeps by then; nobody wakes it, and it looks up all the same.
    a_plain_store_by_address_ends_a_wait,
    Job::of(2),
    |comm| {
        let word = comm.alloc::<u64>(1)?;
        let theirs = comm.span(comm.right(), word.region())?;
        for round in 1..4_u64 {
            if comm.rank().get() == 0 {
                std::thread::park_timeout(Duration::from_millis(30));
                theirs.write(0, round)?;
            } else {
                comm.symmetric().wait_until(word.region().offset, Comparison::Equal, round)?;
            }
            comm.barrier()?;
        }
    }
);

scenario!(
    /// Whoever stores by address says so, and need not wait until the sleeper looks up.
    a_store_by_address_is_told_to_whoever_waits_for_anything,
    Job::of(2),
    |comm| {
        let words = comm.alloc::<u16>(2)?;
        let (theirs, all) = (comm.span(comm.right(), words.region())?, comm.symmetric());
        let (own, peer) = (comm.span(comm.rank(), words.region())?, comm.right());
        for round in 1..200_u16 {
            theirs.write(2, round)?;
            all.notify(peer)?;
            let seen = || own.read::<u16>(2).ok().filter(|seen| *seen >= round);
            assert!(all.wait_for(&[peer], seen)? <= round + 1);
            comm.barrier()?;
        }
        assert!(all.notify(Rank::new(5, 6)?).is_err());
    }
);

scenario!(a_wait_for_ranks_that_have_all_left_ends, Job::of(3).broken(), |comm| {
    let words = comm.alloc::<u64>(1)?;
    let (all, own) = (comm.symmetric(), comm.span(comm.rank(), words.region())?);
    let [first, others @ ..] = [0, 1, 2].map(|number| rank(comm, number));
    comm.barrier()?;
    if comm.rank() == first {
        let error = all.wait_for(&others, || own.read::<u64>(0).ok().filter(|word| *word > 0)).unwrap_err();
        assert!(matches!(error, Error::PeerLost { rank } if others.contains(&rank)), "{error}");
    }
});

/// A set, and what a loop over its elements says of it.
struct DrawnSet {
    words: Vec<u32>,
    status: Vec<i32>,
    values: Vec<u32>,
    comparison: Comparison,
    is_same: bool,
}

impl DrawnSet {
    fn draw(random: &mut Random) -> Self {
        let count = usize::try_from(random.below(7)).unwrap();
        let mut numbers = |limit| (0..count).map(|_| u32::try_from(random.below(limit)).unwrap()).collect();
        let (words, values, mask): (Vec<u32>, Vec<u32>, Vec<u32>) = (numbers(3), numbers(3), numbers(2));
        let status = mask.into_iter().map(|entry| i32::try_from(entry).unwrap() * 7).collect();
        let status = if random.below(3) == 0 { Vec::new() } else { status };
        let comparison = ALL[usize::try_from(random.below(6)).unwrap()];
        Self { words, status, values, comparison, is_same: random.below(2) == 0 }
    }

    fn set(&self, first: HeapOffset) -> WordSet<'_, u32> {
        let same = self.values.first().copied().unwrap_or(0);
        let values = if self.is_same { WantedValues::Same(same) } else { WantedValues::Each(&self.values) };
        WordSet { first, count: self.words.len(), status: &self.status, comparison: self.comparison, values }
    }

    fn included(&self) -> Vec<usize> {
        (0..self.words.len()).filter(|index| self.status.is_empty() || self.status[*index] == 0).collect()
    }

    fn wanted(&self) -> Vec<usize> {
        let value = |index: usize| if self.is_same { self.values[0] } else { self.values[index] };
        let holds = |index: &usize| self.comparison.holds(self.words[*index], value(*index));
        self.included().into_iter().filter(holds).collect()
    }

    /// Holds tests and waits against the loop. Waits that would not end are left out.
    fn check(&self, all: &Symmetric, first: HeapOffset) -> Result<()> {
        let (set, included, wanted) = (self.set(first), self.included(), self.wanted());
        let mut indices = [9; 7];
        assert_eq!(all.test_any(set)?, wanted.first().copied());
        assert_eq!(all.test_all(set)?, wanted == included);
        assert_eq!(all.test_some(set, &mut indices)?, wanted.len());
        assert_eq!(indices[..wanted.len()], wanted);
        if !wanted.is_empty() || included.is_empty() {
            assert_eq!(all.wait_until_any(set)?, wanted.first().copied());
            assert_eq!(all.wait_until_some(set, &mut indices)?, wanted.len());
            assert_eq!(indices[..wanted.len()], wanted);
        }
        if wanted == included {
            all.wait_until_all(set)?;
        }
        Ok(())
    }
}

scenario!(sets_of_words_are_those_of_a_loop_over_them, Job::of(1), |comm| {
    let seed = seed_of(comm, "sets of words")?;
    let words = comm.alloc::<u32>(7)?;
    let (all, first, mut random) = (comm.symmetric(), words.region().offset, Random(seed));
    for _ in 0..500 {
        let drawn = DrawnSet::draw(&mut random);
        words.copy_from_slice(0, &drawn.words)?;
        drawn.check(&all, first)?;
    }
});

scenario!(sets_of_words_end_as_their_words_are_set, Job::of(3), |comm| {
    const COUNT: usize = 5;
    let words = comm.alloc::<u64>(COUNT)?;
    let (all, own) = (comm.symmetric(), comm.rank().get());
    let (first, at) = (words.region().offset, |index| words.part(index, 1).unwrap().offset);
    let values = [3_u64, 4, 5, 6, 7];
    let set = WordSet {
        first,
        count: COUNT,
        status: &[0, 0, 1, 0, 0],
        comparison: Comparison::GreaterOrEqual,
        values: WantedValues::Each(&values),
    };
    if own == 0 {
        // One after the other, as they come.
        let mut left = vec![0, 1, 3, 4];
        let mut status = [0, 0, 1, 0, 0];
        while !left.is_empty() {
            let mut indices = [0; COUNT];
            let found = match left.len() % 2 {
                0 => vec![all.wait_until_any(WordSet { status: &status, ..set })?.unwrap()],
                _ => {
                    let n = all.wait_until_some(WordSet { status: &status, ..set }, &mut indices)?;
                    indices[..n].to_vec()
                }
            };
            for index in found {
                status[index] = 1;
                left.retain(|other| *other != index);
            }
        }
        assert_eq!(all.wait_until_any(WordSet { status: &[1; COUNT], ..set })?, None);
    } else {
        for index in (0..COUNT).filter(|index| index % 2 == own as usize - 1) {
            std::thread::park_timeout(Duration::from_millis(3));
            all.set(rank(comm, 0), at(index), values[index])?;
        }
    }
    if own == 0 {
        all.wait_until_all(set)?;
    }
});

scenario!(a_wait_that_times_out_says_so_and_can_be_repeated, Job::of(2).timeout(SHORT).broken(), |comm| {
    let word = comm.alloc::<u64>(1)?;
    let (all, peer, at) = (comm.symmetric(), comm.right(), word.region().offset);
    if comm.rank().get() == 0 {
        let error = all.wait_until(at, Comparison::NotEqual, 0_u64).unwrap_err();
        let is_named = matches!(error, Error::Timeout { operation: "wait_until", awaited: None, waited, .. } if waited == comm.timeout());
        assert!(is_named, "{error}");
        all.set(peer, at, 1_u64)?;
    }
    while let Err(error) = all.wait_until(at, Comparison::Equal, 1_u64) {
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
    }
    all.set(peer, at, 1_u64)?;
    meet_at_last(comm);
    leave_together(comm);
});

scenario!(an_epoch_that_ends_ends_waits_and_polling, Job::of(4).broken(), |comm| {
    let word = comm.alloc::<u64>(2)?;
    comm.barrier()?;
    let (all, at) = (comm.symmetric(), word.region().offset);
    let set = WordSet {
        first: at,
        count: 2,
        status: &[],
        comparison: Comparison::Less,
        values: WantedValues::Same(0_u64),
    };
    let polling = |way: u32| match way {
        0 => all.wait_until(at, Comparison::Equal, 1_u64).map(drop),
        1 => all.wait_until_all(set),
        _ => loop {
            match all.test(at, Comparison::Equal, 1_u64) {
                Ok(is_there) => assert!(!is_there),
                Err(error) => break Err(error),
            }
        },
    };
    if comm.rank().get() == 3 {
        std::thread::park_timeout(Duration::from_millis(30));
        comm.revoke();
    } else {
        let error = polling(comm.rank().get()).unwrap_err();
        let by = Some(rank(comm, 3));
        assert!(matches!(error, Error::Revoked { by: found, .. } if found == by), "{error}");
    }
    let error = polling(comm.rank().get() % 3).unwrap_err();
    assert!(matches!(error, Error::Revoked { .. }), "{error}");
});

scenario!(a_set_that_does_not_fit_together_is_an_error, Job::of(1), |comm| {
    let words = comm.alloc::<u64>(4)?;
    let (all, first) = (comm.symmetric(), words.region().offset);
    let set = WordSet {
        first,
        count: 4,
        status: &[],
        comparison: Comparison::Equal,
        values: WantedValues::Same(0_u64),
    };
    let is_wrong = |result: Result<Option<usize>>| matches!(result, Err(Error::WrongCount { .. }));
    assert!(is_wrong(all.test_any(WordSet { status: &[0; 3], ..set })));
    assert!(is_wrong(all.wait_until_any(WordSet { values: WantedValues::Each(&[0; 5]), ..set })));
    assert!(is_wrong(all.test_some(set, &mut [0; 3]).map(Some)));
    assert!(is_wrong(all.wait_until_some(set, &mut [0; 3]).map(Some)));
    let end = HeapOffset::new(comm.heap_usage().len);
    assert!(matches!(all.test_all(WordSet { first: end, ..set }), Err(Error::OutOfRange { .. })));
    assert!(matches!(all.test_all(WordSet { count: usize::MAX, ..set }), Err(Error::OutOfRange { .. })));
    let odd = HeapOffset::new(first.get() + 4);
    assert!(matches!(
        all.wait_until_all(WordSet { first: odd, count: 2, ..set }),
        Err(Error::Misaligned { .. })
    ));
    assert!(matches!(all.wait_until(odd, Comparison::Equal, 0_u64), Err(Error::Misaligned { .. })));
    assert!(matches!(all.test(end, Comparison::Equal, 0_u64), Err(Error::OutOfRange { .. })));
    // Nothing is wanted of no words, wherever they are.
    let empty = WordSet { first: end, count: 0, ..set };
    assert_eq!((all.wait_until_any(empty)?, all.test_all(empty)?), (None, true));
});

/// A rank that waits for a word learns of the death of another, whoever was to write the word.
mod a_death_ends_the_wait_for_a_word {
    use shmccl::bootstrap::ProxyMode;
    use shmccl::launch::Launch;

    use super::*;
    use crate::harness::{VICTIMS_CODE, Watchdog, check_exit_of, is_lost, test_name, this_test};

    #[test]
    fn processes() {
        let name = test_name(module_path!(), "processes");
        let _watchdog = Watchdog::start(&name, Duration::from_secs(60));
        let launch = Launch::new(4).unwrap().program(this_test(&name)).proxy(ProxyMode::Thread);
        let victim = Rank::new(1, 4).unwrap();
        let role = launch.capture_output(true).run(|comm| {
            let word = comm.alloc::<u64>(1)?;
            let (all, at) = (comm.symmetric(), word.region().offset);
            comm.barrier()?;
            if comm.rank() == victim {
                // The others sleep by then, or are on their way.
                std::thread::park_timeout(Duration::from_millis(20));
                std::process::exit(VICTIMS_CODE);
            }
            let error = match comm.rank().get() {
                0 => all.wait_until(at, Comparison::Equal, 1_u64).unwrap_err(),
                _ => loop {
                    if let Err(error) = all.test(at, Comparison::Equal, 1_u64) {
                        break error;
                    }
                },
            };
            assert!(is_lost(&error, victim), "{error}");
            Err(error)
        });
        check_exit_of(victim, role);
    }
}
