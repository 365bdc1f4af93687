//! Models of atomic operations on words of the heap, and of what is ordered around them.

use super::*;
use crate::sync::word::{change_words, full_fence, release_fence};

/// A word that two threads share, beside the rest of the world.
fn shared_word(value: u64) -> Arc<AtomicU64> {
    Arc::new(AtomicU64::new(value))
}

mod w1_word {
    use super::*;

    /// What one thread did before `write` is there for the other once `read` returns a value that
    /// `write` has made of 12.
    fn carries(write: fn(&AtomicU64), read: fn(&AtomicU64) -> u64) {
        model(move || {
            let (world, word) = (World::new(), shared_word(12));
            let writer = {
                let word = Arc::clone(&word);
                spawn(&world, move |world| {
                    world.ghosts[0].write(7);
                    write(&word);
                })
            };
            if read(&word) != 12 {
                assert_eq!(world.ghosts[0].read(), 7);
            }
            writer.join().unwrap();
        });
    }

    fn set(word: &AtomicU64) {
        AtomicWord::set(word, 5);
    }

    fn fetch(word: &AtomicU64) -> u64 {
        AtomicWord::fetch(word)
    }

    #[test]
    fn a_set_carries_to_a_fetch() {
        carries(set, fetch);
    }

    #[test]
    fn a_swap_carries_either_way() {
        carries(|word| _ = AtomicWord::swap(word, 5), fetch);
        carries(set, |word| AtomicWord::swap(word, 12));
    }

    #[test]
    fn a_compare_swap_that_writes_carries_either_way() {
        carries(|word| _ = word.compare_swap(12, 5), fetch);
        // It finds 5 or does nothing.
        carries(set, |word| if word.compare_swap(5, 6) == 5 { 5 } else { 12 });
    }

    #[test]
    fn a_compare_swap_that_finds_another_value_acquires_what_its_writer_did() {
        carries(set, |word| word.compare_swap(9, 6));
    }

    #[test]
    fn an_add_carries_either_way() {
        carries(|word| _ = AtomicWord::fetch_add(word, 5), fetch);
        carries(set, |word| AtomicWord::fetch_add(word, 5));
    }

    #[test]
    fn bitwise_operations_carry_either_way() {
        carries(|word| _ = AtomicWord::fetch_and(word, 4), fetch);
        carries(set, |word| AtomicWord::fetch_and(word, 4));
        carries(|word| _ = AtomicWord::fetch_or(word, 1), fetch);
        carries(set, |word| AtomicWord::fetch_or(word, 1));
        carries(|word| _ = AtomicWord::fetch_xor(word, 1), fetch);
        carries(set, |word| AtomicWord::fetch_xor(word, 1));
    }
}

#[test]
fn a_plain_store_behind_a_fence_carries_what_came_before_the_fence() {
    model(|| {
        let (world, word) = (World::new(), shared_word(0));
        let writer = {
            let word = Arc::clone(&word);
            spawn(&world, move |world| {
                world.ghosts[0].write(7);
                release_fence();
                AtomicWord::write(&*word, 1);
            })
        };
        if AtomicWord::fetch(&*word) == 1 {
            assert_eq!(world.ghosts[0].read(), 7);
        }
        writer.join().unwrap();
    });
}

#[test]
fn two_that_write_and_are_quiet_do_not_both_miss_the_other() {
    model(|| {
        let world = World::new();
        let write_and_look = |world: &World, own: usize| {
            world.ghosts[own].write(1);
            full_fence();
            world.ghosts[1 - own].read()
        };
        let other = spawn(&world, move |world| write_and_look(world, 1));
        let seen = write_and_look(&world, 0);
        assert!(seen + other.join().unwrap() > 0);
    });
}

#[test]
fn whoever_sleeps_until_a_word_changes_is_woken_by_the_rank_that_changes_it() {
    model(|| {
        let (world, word) = (World::new(), shared_word(0));
        let writer = {
            let word = Arc::clone(&word);
            spawn(&world, move |world| {
                world.ghosts[0].write(7);
                change_words(&world.park, &world.kernel, || AtomicWord::set(&*word, 1));
            })
        };
        let poll = || (AtomicWord::fetch(&*word) == 1).then_some(());
        wait_until(&world.waiting(PARK), &world.park, poll).unwrap();
        assert_eq!(world.ghosts[0].read(), 7);
        writer.join().unwrap();
    });
}

#[test]
fn many_that_add_to_words_of_a_rank_wake_it_by_its_one_cell() {
    model(|| {
        let (world, words) = (World::new(), Arc::new([AtomicU64::new(0), AtomicU64::new(0)]));
        let writers = [0, 1].map(|number| {
            let words = Arc::clone(&words);
            spawn(&world, move |world| {
                change_words(&world.park, &world.kernel, || AtomicWord::fetch_add(&words[number], 1));
            })
        });
        let poll = || words.iter().all(|word| AtomicWord::fetch(word) == 1).then_some(());
        wait_until(&world.waiting(PARK), &world.park, poll).unwrap();
        for writer in writers {
            writer.join().unwrap();
        }
    });
}
