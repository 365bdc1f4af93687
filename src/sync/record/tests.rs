use super::*;

fn slots(len: usize) -> Vec<RecordCell> {
    let zero = || RecordCell { words: [0; RECORD_WORDS].map(AtomicU64::new) };
    (0..len).map(|_| zero()).collect()
}

fn cursors(len: usize) -> Vec<CursorCell> {
    (0..len).map(|_| CursorCell { next: AtomicU64::new(0), reserved: Reserved::default() }).collect()
}

/// Memory for a ring.
struct Memory {
    taken: AtomicU64,
    cursors: Vec<CursorCell>,
    slots: Vec<RecordCell>,
}

impl Memory {
    fn new(n_writers: usize, len: usize) -> Self {
        Self { taken: AtomicU64::new(0), cursors: cursors(n_writers), slots: slots(len) }
    }

    fn ring(&self) -> RecordRing<'_> {
        RecordRing { taken: &self.taken, cursors: &self.cursors, slots: &self.slots }
    }

    /// Takes the next position of `writer`.
    fn advance(&self, writer: usize) -> u64 {
        let (ring, cursor) = (self.ring(), &self.cursors[writer]);
        ring.advance(cursor).unwrap_or_else(|| ring.take_block(cursor))
    }

    fn note(&self, writer: usize, number: u64) {
        self.ring().fill(self.advance(writer), [number, 1, 2, number << 8]);
    }

    /// The numbers that were noted and are kept, in their order.
    fn numbers(&self) -> Vec<u64> {
        let mut numbers: Vec<_> = self.ring().kept().records.iter().map(|words| words[0]).collect();
        numbers.sort_unstable();
        numbers
    }

    fn missing(&self) -> (u64, u64) {
        let KeptRecords { overwritten, unfinished, .. } = self.ring().kept();
        (overwritten, unfinished)
    }
}

#[test]
fn the_newest_records_are_kept_and_the_others_counted() {
    let memory = Memory::new(1, 128);
    assert_eq!((memory.numbers(), memory.missing()), (vec![], (0, 0)));
    // More laps than the lowest bits tell apart.
    for number in 0..40_000_u64 {
        memory.note(0, number);
        if number < 300 || number.is_multiple_of(997) {
            let first = (number + 1).saturating_sub(128);
            assert_eq!(memory.numbers(), (first..=number).collect::<Vec<_>>());
            assert_eq!(memory.missing(), (first, 0));
        }
    }
}

#[test]
fn a_record_that_was_begun_and_not_finished_is_not_there() {
    let memory = Memory::new(1, 64);
    (0..70).for_each(|number| memory.note(0, number));
    // The writer was killed when it had taken a position and stored a word.
    let position = memory.advance(0);
    store(&memory.slots[6].words[0], 99);
    assert_eq!((position, memory.numbers(), memory.missing()), (70, (7..70).collect(), (7, 1)));
}

#[test]
fn a_writer_that_was_killed_as_it_took_a_block_has_left_nothing_unfinished() {
    let memory = Memory::new(2, 1024);
    memory.note(0, 5);
    let _block = memory.ring().next_block();
    memory.note(1, 6);
    assert_eq!((memory.numbers(), memory.missing()), (vec![5, 6], (0, 0)));
}

#[test]
fn writers_do_not_disturb_each_other() {
    let memory = Memory::new(3, 1024);
    for number in 0..300 {
        memory.note(0, number);
        memory.note(1, 1000 + number);
    }
    memory.note(2, 5000);
    let all: Vec<_> = (0..300).chain(1000..1300).chain([5000]).collect();
    assert_eq!((memory.numbers(), memory.missing()), (all, (0, 0)));
}

#[test]
fn a_writer_that_has_paused_for_a_lap_overwrites_nothing_that_is_newer() {
    let memory = Memory::new(2, 128);
    memory.note(0, 1);
    (100..228).for_each(|number| memory.note(1, number));
    memory.note(0, 2);
    let numbers = memory.numbers();
    assert!(numbers.contains(&2) && !numbers.contains(&1), "{numbers:?}");
    assert_eq!(numbers.len(), 128, "only what lay under the new record is gone");
    memory.note(0, 3);
    assert!(memory.numbers().contains(&3));
}

#[test]
fn writers_that_share_a_cursor_get_a_position_each() {
    let memory = Memory::new(1, 4096);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let memory = &memory;
            scope.spawn(move || {
                for number in 0..500 {
                    let position = memory.ring().advance_shared(&memory.cursors[0]);
                    memory.ring().fill(position, [thread * 1000 + number, 0, 0, 0]);
                }
            });
        }
    });
    let all: Vec<_> = (0..4).flat_map(|thread| thread * 1000..thread * 1000 + 500).collect();
    assert_eq!(memory.numbers(), all);
}
