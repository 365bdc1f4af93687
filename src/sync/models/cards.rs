//! A model of messages of which some are cards and some lie in slots, as `src/collective/parcel/card.rs` sends them.

use super::*;

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
            cards: [PostCell::new(), PostCell::new()],
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
