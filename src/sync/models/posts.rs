//! Models of posts, of how far a rank has come, and of messages of which some are cards and some
//! lie in slots, as `src/collective` sends them.

use super::*;

mod c1_post {
    use super::*;

    /// Two ranks, each with a ring of two posts, go through three operations that wait for each
    /// other.
    struct Board {
        rings: [[PostCell; 2]; 2],
        /// Whether a rank has read the other's words of a sequence.
        read: [[Ghost; 4]; 2],
    }

    fn take_part(board: &Board, me: usize) {
        let peer = 1 - me;
        for sequence in 1..=3_u64 {
            let turn = (sequence % 2) as usize;
            if sequence > 2 {
                // What is overwritten now was read: the post of sequence - 1 carried that.
                assert_eq!(board.read[peer][sequence as usize - 2].read(), 1);
            }
            board.rings[me][turn].post(sequence, [10 * sequence + me as u64], &[]);
            while !board.rings[peer][turn].shows(sequence) {
                thread::yield_now();
            }
            assert_eq!(board.rings[peer][turn].word(0), 10 * sequence + peer as u64);
            board.read[me][sequence as usize].write(1);
        }
    }

    #[test]
    fn a_post_carries_its_words_and_that_older_ones_were_read() {
        model(|| {
            let ring = || [PostCell::default(), PostCell::default()];
            let ghosts = || [Ghost::new(), Ghost::new(), Ghost::new(), Ghost::new()];
            let board = Arc::new(Board { rings: [ring(), ring()], read: [ghosts(), ghosts()] });
            let other = Arc::clone(&board);
            let peer = thread::spawn(move || take_part(&other, 1));
            take_part(&board, 0);
            peer.join().unwrap();
        });
    }
}

mod c2_done {
    use super::*;

    #[test]
    fn progress_carries_what_the_rank_did() {
        model(|| {
            let cell = Arc::new((Ghost::new(), ProgressCell::new(u64::MAX)));
            let other = Arc::clone(&cell);
            let rank = thread::spawn(move || {
                other.0.write(7);
                other.1.publish(0);
            });
            while !cell.1.has_reached(0) {
                thread::yield_now();
            }
            assert_eq!(cell.0.read(), 7);
            rank.join().unwrap();
        });
    }
}

mod c1_c2_staged_ahead {
    use super::*;

    /// Two ranks, each with a slot in which it stages for the other before it posts, and finds what
    /// the other has made of it.
    struct Scratches {
        posts: [[PostCell; 2]; 2],
        done: [ProgressCell; 2],
        slots: [Ghost; 2],
    }

    fn take_part(scratches: &Scratches, me: usize) {
        let Scratches { posts, done, slots } = scratches;
        let (peer, staged) = (1 - me, |call: u64, rank: usize| 10 * call + rank as u64);
        for call in 1..=2_u64 {
            let turn = (call % 2) as usize;
            slots[me].write(staged(call, me));
            posts[me][turn].post(call, [0], &[]);
            while !posts[peer][turn].shows(call) {
                thread::yield_now();
            }
            assert_eq!(slots[peer].read(), staged(call, peer));
            slots[peer].write(100 * call);
            done[me].publish(call);
            while !done[peer].has_reached(call) {
                thread::yield_now();
            }
            assert_eq!(slots[me].read(), 100 * call);
        }
    }

    #[test]
    fn a_post_carries_what_was_staged_and_a_step_that_the_slot_is_free_for_the_next_call() {
        model(|| {
            let ring = || [PostCell::default(), PostCell::default()];
            let scratches = Arc::new(Scratches {
                posts: [ring(), ring()],
                done: [ProgressCell::new(0), ProgressCell::new(0)],
                slots: [Ghost::new(), Ghost::new()],
            });
            let other = Arc::clone(&scratches);
            let peer = thread::spawn(move || take_part(&other, 1));
            take_part(&scratches, 0);
            peer.join().unwrap();
        });
    }
}

/// A pipe with room for two messages at a time.
struct Pipe {
    cards: [PostCell; 2],
    slots: [Ghost; 2],
    signals: SemaphoreCell,
    taken: ProgressCell,
    /// Whether the receiver has read a message.
    read: [Ghost; 3],
    kernel: MockKernel,
}

/// Which of the messages are cards.
type Kinds = [bool; 3];

fn send(pipe: &Pipe, kinds: Kinds) {
    let mut signals = SemaphoreSender::new(&pipe.signals, 0);
    for (number, is_card) in (0_u64..).zip(kinds) {
        let turn = (number % 2) as usize;
        if number >= 2 {
            while !pipe.taken.has_reached(number - 1) {
                thread::yield_now();
            }
            assert_eq!(pipe.read[number as usize - 2].read(), 1, "what is written over was read");
        }
        if is_card {
            pipe.cards[turn].post(number + 1, [10 + number], &[]);
        } else {
            pipe.slots[turn].write(10 + number);
            signals.signal(&pipe.kernel);
        }
    }
}

fn receive(pipe: &Pipe, kinds: Kinds) {
    let mut signals = SemaphoreReceiver::new(&pipe.signals, 0);
    let mut is_signalled = false;
    for (number, is_card) in (0_u64..).zip(kinds) {
        let turn = (number % 2) as usize;
        let message = loop {
            // In this order: a signal that is found may be that of a message behind a card.
            is_signalled = is_signalled || signals.poll();
            if pipe.cards[turn].shows(number + 1) {
                assert!(is_card);
                break pipe.cards[turn].word(0);
            }
            if is_signalled {
                assert!(!is_card, "a signal has overtaken a card");
                is_signalled = false;
                break pipe.slots[turn].read();
            }
            thread::yield_now();
        };
        assert_eq!(message, 10 + number);
        pipe.read[number as usize].write(1);
        pipe.taken.publish(number + 1);
    }
}

fn messages_come_in_order(kinds: Kinds) {
    model(move || {
        let pipe = Arc::new(Pipe {
            cards: [PostCell::default(), PostCell::default()],
            slots: [Ghost::new(), Ghost::new()],
            signals: SemaphoreCell::new(0),
            taken: ProgressCell::new(0),
            read: [Ghost::new(), Ghost::new(), Ghost::new()],
            kernel: MockKernel::new(),
        });
        let other = Arc::clone(&pipe);
        let sender = thread::spawn(move || send(&other, kinds));
        receive(&pipe, kinds);
        sender.join().unwrap();
    });
}

#[test]
fn a_card_is_not_overtaken_by_the_signal_of_the_message_behind_it() {
    messages_come_in_order([true, false, true]);
}

#[test]
fn a_slot_is_not_taken_for_the_card_behind_it() {
    messages_come_in_order([false, true, false]);
}
