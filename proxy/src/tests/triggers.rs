//! What a trigger looks like in its two words.

use super::*;

fn memory(id: u32) -> MemoryId {
    MemoryId::new(id).unwrap()
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded(
        kind in 1_u8..8,
        len in 0..TransferLen::LIMIT,
        offsets in any::<[u32; 2]>(),
        source in 0..MemoryId::LIMIT,
        target in 0..MemoryId::LIMIT,
        semaphore in 0..SemaphoreId::LIMIT,
    ) {
        let [source_offset, target_offset] = offsets;
        let len = TransferLen::new(len).unwrap();
        let transfer =
            Transfer { len, source: memory(source), source_offset, target: memory(target), target_offset };
        let semaphore = SemaphoreId::new(semaphore).unwrap();
        let kind = [TriggerKind::DATA, TriggerKind::SIGNAL, TriggerKind::FLUSH]
            .into_iter()
            .enumerate()
            .filter(|(bit, _)| kind >> bit & 1 == 1)
            .fold(TriggerKind::NONE, |all, (_, one)| all | one);
        let trigger = Trigger::new(kind, transfer, semaphore).unwrap();
        prop_assert_eq!(trigger.kind(), kind);
        prop_assert_eq!(trigger.transfer(), transfer);
        prop_assert_eq!(trigger.semaphore(), semaphore);
        prop_assert_eq!(trigger.words()[1] & COMMIT_BIT, 0);
        prop_assert_eq!(Trigger::from_words(trigger.words()), trigger);
    }

    #[test]
    fn a_change_of_a_word_is_encoded_and_decoded(
        op in 0_usize..5,
        is_long in any::<bool>(),
        operand in any::<u64>(),
        target in 0..MemoryId::LIMIT,
        target_offset in any::<u32>(),
    ) {
        let op = [WordOp::Add, WordOp::And, WordOp::Or, WordOp::Xor, WordOp::Set][op];
        let len = if is_long { WordLen::Eight } else { WordLen::Four };
        let update = WordUpdate { op, len, operand, target: memory(target), target_offset };
        let trigger = Trigger::update(update);
        prop_assert_eq!(trigger.word_update(), Some(update));
        prop_assert!(trigger.kind().is_none() && !trigger.is_nothing());
        prop_assert_eq!(trigger.words()[1] & COMMIT_BIT, 0);
        prop_assert_eq!(Trigger::from_words(trigger.words()), trigger);
    }

    #[test]
    fn a_trigger_with_a_kind_changes_no_word(words in any::<[u64; 2]>(), kind in 1_u64..8) {
        let trigger = Trigger::from_words([words[0], words[1] & !(7 << 60) | kind << 60]);
        prop_assert!(trigger.word_update().is_none() && !trigger.is_nothing());
    }

    #[test]
    fn any_words_decode_and_encode_to_themselves_but_for_the_commit_bit(words in any::<[u64; 2]>()) {
        let trigger = Trigger::from_words(words);
        prop_assert_eq!(trigger.words(), [words[0], words[1] & !COMMIT_BIT]);
        match Trigger::new(trigger.kind(), trigger.transfer(), trigger.semaphore()) {
            Ok(again) => prop_assert_eq!(again, trigger),
            Err(error) => {
                prop_assert!(trigger.kind().is_none());
                prop_assert_eq!(error, TriggerError::NoKind);
            }
        }
    }

    #[test]
    fn a_trigger_comes_out_of_the_ring_as_it_went_in(words in any::<[u64; 2]>(), start in any::<u64>()) {
        let trigger = Trigger::from_words([words[0], words[1] | 1 << 60]);
        with_each_producer(4, start, |ring, producer| {
            let mut consumer = ring.fifo().consumer();
            for _ in 0..9 {
                producer.try_push(trigger).unwrap();
                assert_eq!(pop(&mut consumer).unwrap().1, trigger);
            }
        });
    }
}

#[test]
fn ids_that_do_not_fit_are_errors() {
    assert_eq!(memory(511).get(), 511);
    for value in [512, 513, 1 << 16, u32::MAX] {
        let error = MemoryId::new(value).unwrap_err();
        assert_eq!(error, TriggerError::OutOfRange { field: "memory id", value, limit: 512 });
    }
    assert_eq!(SemaphoreId::new(16383).unwrap().get(), 16383);
    let error = SemaphoreId::new(16384).unwrap_err();
    assert_eq!(error.to_string(), "semaphore id 16384 does not fit a trigger: it has to be below 16384");
    assert_eq!(TransferLen::new((1 << 28) - 1).unwrap().get(), (1 << 28) - 1);
    for value in [1 << 28, u32::MAX] {
        let error = TransferLen::new(value).unwrap_err();
        assert_eq!(error, TriggerError::OutOfRange { field: "length", value, limit: 1 << 28 });
    }
}

#[test]
fn a_trigger_names_sixteen_channels_to_each_of_1024_ranks() {
    assert_eq!(SemaphoreId::LIMIT, 1024 * 16);
    let longest = Transfer { len: TransferLen::new(TransferLen::LIMIT - 1).unwrap(), ..Transfer::default() };
    for id in [0, 1023, 1024, 1025, 4095, 1 << 13, 16383] {
        let semaphore = SemaphoreId::new(id).unwrap();
        for transfer in [Transfer::default(), longest] {
            let trigger = Trigger::put_with_signal(transfer, semaphore);
            assert_eq!((trigger.semaphore(), trigger.transfer()), (semaphore, transfer));
        }
    }
}

#[test]
fn the_layout_of_the_words_is_the_documented_one() {
    let transfer = Transfer {
        len: TransferLen::new(0x11).unwrap(),
        source_offset: 0x22,
        target_offset: 0x33,
        source: memory(0x144),
        target: memory(0x155),
    };
    let trigger = Trigger::put_with_signal_and_flush(transfer, SemaphoreId::new(0x2a66).unwrap());
    assert_eq!(trigger.words()[0], 0x22_a000_0011);
    assert_eq!(trigger.words()[1], 0x33 | 0x144 << 32 | 0x155 << 41 | 0x266 << 50 | 7 << 60);
}

#[test]
fn a_change_of_a_word_has_its_fields_where_a_copy_has_them() {
    let update = WordUpdate {
        op: WordOp::Set,
        len: WordLen::Eight,
        operand: 0x1122_3344_5566_7788,
        target: memory(0x155),
        target_offset: 0x33,
    };
    let words = Trigger::update(update).words();
    assert_eq!(words, [0x1122_3344_5566_7788, 0x33 | 0x155 << 41 | 0x25 << 50]);
    assert!((6..32).all(|op| Trigger::from_words([1, op << 50]).is_nothing()), "there are five operations");
}

#[test]
fn the_shorthands_carry_their_kinds() {
    let (transfer, semaphore) = (Transfer::default(), SemaphoreId::default());
    assert_eq!(Trigger::put(transfer).kind(), TriggerKind::DATA);
    assert_eq!(Trigger::signal(semaphore).kind(), TriggerKind::SIGNAL);
    assert_eq!(Trigger::flush().kind(), TriggerKind::FLUSH);
    assert_eq!(Trigger::put_with_signal(transfer, semaphore).kind(), TriggerKind::DATA | TriggerKind::SIGNAL);
    let all = Trigger::put_with_signal_and_flush(transfer, semaphore).kind();
    assert!(all.contains(TriggerKind::DATA | TriggerKind::SIGNAL | TriggerKind::FLUSH) && !all.is_none());
}
