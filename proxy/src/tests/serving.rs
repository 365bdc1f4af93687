//! The service: turns, batches, refusals, flushes, drains, counters.

use super::*;

fn signal(id: u32) -> Trigger {
    Trigger::signal(SemaphoreId::new(id).unwrap())
}

#[test]
fn every_fifo_gets_its_turn_and_a_batch_is_bounded() {
    let rings: Vec<_> = (0..3).map(|_| Ring::new(256)).collect();
    let mut service = Service::new(rings.iter().map(|ring| ring.fifo().consumer()));
    for ring in &rings {
        let mut producer = ring.fifo().producer().unwrap();
        for i in 0..100 {
            producer.try_push(numbered(i)).unwrap();
        }
    }
    let mut served = [0; 3];
    let mut firsts = Vec::new();
    for expected in [3 * BATCH, 3 * (100 - BATCH), 0] {
        let mut first = None;
        let turn = service.poll(&mut |fifo: usize, _: &Trigger| {
            first.get_or_insert(fifo);
            served[fifo] += 1;
            Ok(())
        });
        assert_eq!(turn, expected);
        firsts.extend(first);
    }
    assert_eq!(served, [100; 3]);
    assert_eq!(firsts, [0, 1]);
}

#[test]
fn turns_go_to_fifos_in_use_as_the_roster_tells() {
    let rings: Vec<_> = (0..4).map(|_| Ring::new(4)).collect();
    let roster = Roster::default();
    let mut service = Service::new(rings.iter().map(|ring| ring.fifo().consumer()));
    assert!(service.attended().eq(0..4), "without a roster it is all of them");
    let mut served = Vec::new();
    let mut turn = |service: &mut Service<_, _>| {
        service.attend(&roster);
        service.poll(&mut |fifo: usize, _: &Trigger| {
            served.push(fifo);
            Ok(())
        });
        let attended: Vec<_> = service.attended().collect();
        (std::mem::take(&mut served), attended)
    };
    assert_eq!(turn(&mut service), (vec![], vec![]));
    let mut third = rings[2].fifo().producer().unwrap();
    third.try_push(numbered(1)).unwrap();
    assert_eq!(turn(&mut service), (vec![], vec![]), "nobody has told of it");
    roster.count_change();
    let mut first = rings[0].fifo().shared_producer().unwrap();
    roster.count_change();
    assert_eq!(turn(&mut service), (vec![2], vec![0, 2]));
    // One that goes leaves its triggers behind, and its fifo is attended to until somebody tells
    // once more.
    first.try_push(numbered(2)).unwrap();
    drop(first);
    roster.count_change();
    assert_eq!(turn(&mut service), (vec![0], vec![0, 2]));
    let fourth = rings[3].fifo().producer().unwrap();
    roster.count_change();
    assert_eq!(turn(&mut service), (vec![], vec![2, 3]));
    drop((third, fourth));
    roster.count_change();
    assert_eq!(turn(&mut service), (vec![], vec![]));
}

#[test]
fn a_drain_reaches_fifos_that_turns_do_not_go_to() {
    let rings: Vec<_> = (0..3).map(|_| Ring::new(4)).collect();
    let roster = Roster::default();
    let mut service = Service::new(rings.iter().map(|ring| ring.fifo().consumer()));
    let _idle = rings[2].fifo().producer().unwrap();
    service.attend(&roster);
    assert!(service.attended().eq([2]));
    rings[1].fifo().producer().unwrap().try_push(numbered(1)).unwrap();
    let mut dying = rings[0].fifo().shared_producer().unwrap();
    std::mem::forget(dying.reserve().unwrap());
    let goal = service.drain_goal();
    let mut served = Vec::new();
    let left = service.drain(&goal, &mut |fifo: usize, _: &Trigger| {
        served.push(fifo);
        Ok(())
    });
    assert_eq!((left, served), (1, vec![1]));
}

#[test]
fn a_service_without_fifos_has_nothing_to_do() {
    let mut service = Service::<&FifoHeader, &[Slot]>::new([]);
    let mut handler = |_: usize, _: &Trigger| Ok(());
    assert_eq!(service.poll(&mut handler), 0);
    let goal = service.drain_goal();
    assert_eq!(service.drain(&goal, &mut handler), 0);
}

#[test]
fn only_a_flush_publishes_the_completed_position() {
    let ring = Ring::new(8);
    let mut producer = ring.fifo().producer().unwrap();
    let mut service = Service::new([ring.fifo().consumer()]);
    let mut handler = |_: usize, _: &Trigger| Ok(());
    let before = producer.try_push(numbered(1)).unwrap();
    service.poll(&mut handler);
    assert!(!before.is_completed(producer.header()));
    let flush = producer.try_push(Trigger::flush()).unwrap();
    let after = producer.try_push(numbered(1)).unwrap();
    service.poll(&mut handler);
    assert!(before.is_completed(producer.header()) && flush.is_completed(producer.header()));
    assert!(!after.is_completed(producer.header()));
}

#[derive(Default)]
struct Picky {
    handled: u32,
    refused: Vec<(usize, u64, u32)>,
}

impl Handler for Picky {
    fn handle(&mut self, _: usize, trigger: &Trigger) -> Result<(), TriggerRefusal> {
        if trigger.kind().contains(TriggerKind::DATA) {
            return Err(refusal(17));
        }
        self.handled += 1;
        Ok(())
    }

    fn refused(&mut self, fifo: usize, position: Position, _: &Trigger, refusal: TriggerRefusal) {
        self.refused.push((fifo, position.get(), refusal.code()));
    }
}

#[test]
fn a_refused_trigger_is_counted_told_and_popped_and_its_flush_completes() {
    let ring = Ring::new(8);
    let mut producer = ring.fifo().producer().unwrap();
    let mut service = Service::new([ring.fifo().consumer()]);
    let mut handler = Picky::default();
    producer.try_push(signal(3)).unwrap();
    let bad = Trigger::put_with_signal_and_flush(
        Transfer { source_offset: 9, ..Transfer::default() },
        SemaphoreId::default(),
    );
    let refused = producer.try_push(bad).unwrap();
    producer.try_push(signal(4)).unwrap();
    assert_eq!(service.poll(&mut handler), 3);
    assert_eq!(handler.handled, 2);
    assert_eq!(handler.refused, [(0, 1, 17)]);
    assert!(refused.is_completed(producer.header()));
    let snapshot = ring.snapshot();
    assert_eq!(snapshot.refused, 1);
    assert_eq!(snapshot.last_refused, Some(RefusedTrigger { position: 1, trigger: bad, code: 17 }));
}

/// Is over once it has served so many.
struct Mortal(u32);

impl Handler for Mortal {
    fn handle(&mut self, _: usize, _: &Trigger) -> Result<(), TriggerRefusal> {
        self.0 -= 1;
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.0 == 0
    }
}

#[test]
fn a_handler_that_is_over_leaves_the_next_trigger_and_those_behind_it() {
    for lives in [0, 1, 2, 15, 16, 17, 40] {
        let rings = [Ring::new(64), Ring::new(64)];
        let mut service = Service::new(rings.iter().map(|ring| ring.fifo().consumer()));
        let mut producers = rings.each_ref().map(|ring| ring.fifo().producer().unwrap());
        producers.iter_mut().for_each(|end| (0..40).for_each(|i| assert!(end.try_push(numbered(i)).is_ok())));
        let last = producers[0].try_push(Trigger::flush()).unwrap();
        let mut handler = Mortal(lives);
        assert_eq!(service.poll(&mut handler), u64::from(lives));
        let goal = service.drain_goal();
        assert_eq!(service.drain(&goal, &mut handler), 81 - u64::from(lives), "nor does a drain go on");
        assert_eq!((service.poll(&mut handler), last.is_completed(producers[0].header())), (0, false));
        let mut seen = Vec::new();
        service.drain(&goal, &mut |fifo: usize, trigger: &Trigger| {
            seen.push((fifo, *trigger));
            Ok(())
        });
        assert_eq!(seen.len(), 81 - lives as usize);
        assert_eq!(seen[0], (0, if lives == 40 { Trigger::flush() } else { numbered(lives) }));
    }
}

#[test]
fn a_handler_hears_of_a_flush_once_it_is_published_and_before_the_next_trigger() {
    struct Listener<'r>(&'r Ring, Vec<(usize, u64)>);
    impl Handler for Listener<'_> {
        fn handle(&mut self, _: usize, trigger: &Trigger) -> Result<(), TriggerRefusal> {
            let behind = u64::from(self.0.snapshot().completed > 0);
            assert_eq!(self.1.len() as u64, behind, "{trigger:?}");
            Ok(())
        }

        fn completed(&mut self, fifo: usize) {
            self.1.push((fifo, self.0.snapshot().completed));
        }
    }
    let ring = Ring::new(8);
    let mut producer = ring.fifo().producer().unwrap();
    for trigger in [signal(1), Trigger::flush(), signal(2), signal(3)] {
        producer.try_push(trigger).unwrap();
    }
    let mut handler = Listener(&ring, Vec::new());
    assert_eq!(Service::new([ring.fifo().consumer()]).poll(&mut handler), 4);
    assert_eq!(handler.1, [(0, 2)]);
}

#[test]
fn words_that_ask_for_nothing_are_refused() {
    let ring = Ring::new(8);
    let mut producer = ring.fifo().producer().unwrap();
    producer.try_push(Trigger::from_words([1, 1])).unwrap();
    let mut handler = Picky::default();
    assert_eq!(Service::new([ring.fifo().consumer()]).poll(&mut handler), 1);
    assert_eq!(handler.refused, [(0, 0, TriggerRefusal::NO_KIND.code())]);
}

#[test]
fn a_drain_serves_what_was_pushed_before_it_and_no_more() {
    for start in STARTS {
        let ring = Ring::starting_at(256, start);
        let mut producer = ring.fifo().producer().unwrap();
        let mut service = Service::new([ring.fifo().consumer()]);
        for i in 0..200 {
            producer.try_push(numbered(i)).unwrap();
        }
        let goal = service.drain_goal();
        producer.try_push(numbered(200)).unwrap();
        let mut served = 0;
        let mut handler = |_: usize, trigger: &Trigger| {
            assert_eq!(number(trigger), served);
            served += 1;
            Ok(())
        };
        assert_eq!(service.drain(&goal, &mut handler), 0);
        assert_eq!(service.drain(&goal, &mut handler), 0);
        assert_eq!(served, 200);
    }
}

#[test]
fn a_service_steps_over_positions_without_a_trigger_and_counts_them_as_progress() {
    for start in STARTS {
        let ring = Ring::starting_at(4, start);
        let mut producer = ring.fifo().shared_producer().unwrap();
        let mut service = Service::new([ring.fifo().consumer()]);
        for lap in 0..5 {
            drop(producer.reserve().unwrap());
            producer.try_push(numbered(lap)).unwrap();
            drop(producer.reserve().unwrap());
            let mut seen = Vec::new();
            let popped = service.poll(&mut |_: usize, trigger: &Trigger| {
                seen.push(number(trigger));
                Ok(())
            });
            assert_eq!((popped, seen), (3, vec![lap]));
        }
        assert_eq!(ring.snapshot().skipped, 10);
    }
}

#[test]
fn a_handler_that_panics_leaves_its_trigger_and_those_after_it() {
    for victim in [0, 1, 2, 15, 16, 17, 40] {
        let ring = Ring::new(64);
        let mut producer = ring.fifo().producer().unwrap();
        let mut service = Service::new([ring.fifo().consumer()]);
        (0..victim + 2).for_each(|i| assert!(producer.try_push(numbered(i)).is_ok()));
        let mut broken = |_: usize, trigger: &Trigger| {
            assert!(number(trigger) != victim, "this handler cannot do that one");
            Ok(())
        };
        let turn = std::panic::AssertUnwindSafe(|| service.poll(&mut broken));
        assert!(std::panic::catch_unwind(turn).is_err());
        assert_eq!(ring.snapshot().served, u64::from(victim));
        let mut seen = Vec::new();
        service.poll(&mut |_: usize, trigger: &Trigger| {
            seen.push(number(trigger));
            Ok(())
        });
        assert_eq!(seen, [victim, victim + 1]);
    }
}

#[test]
fn a_producer_without_room_learns_of_a_pop_within_a_stretch() {
    let ring = Ring::starting_at(64, 5);
    let mut producer = ring.fifo().producer().unwrap();
    let mut service = Service::new([ring.fifo().consumer()]);
    while producer.try_push(numbered(1)).is_ok() {}
    let mut popped = 0;
    let served = service.poll(&mut |_: usize, _: &Trigger| {
        let published = ring.snapshot().served - 5;
        assert!(published <= popped && popped - published < STRETCH as u64);
        popped += 1;
        Ok(())
    });
    assert_eq!((served, ring.snapshot().served), (64, 69));
}

#[test]
fn a_sample_of_the_triggers_is_timed() {
    let ring = Ring::new(64);
    let mut producer = ring.fifo().producer().unwrap();
    let mut service = Service::new([ring.fifo().consumer()]);
    let mut served = 0;
    while served < 3 * u64::from(SAMPLE_EVERY) {
        while producer.try_push(Trigger::flush()).is_ok() {}
        served += service.poll(&mut |_: usize, _: &Trigger| Ok(()));
    }
    let snapshot = ring.snapshot();
    let timed = served.div_ceil(u64::from(SAMPLE_EVERY));
    assert_eq!(snapshot.service_time.count(), timed);
    assert!(snapshot.service_time.percentile_ns(50) <= snapshot.service_time.percentile_ns(99));
    assert_eq!(snapshot.depth_high_water, 64);
}

#[test]
fn the_depth_of_every_batch_counts() {
    for start in STARTS {
        let ring = Ring::starting_at(16, start);
        let mut producer = ring.fifo().producer().unwrap();
        let mut service = Service::new([ring.fifo().consumer()]);
        let high_water = || ring.snapshot().depth_high_water;
        service.poll(&mut |_: usize, _: &Trigger| Ok(()));
        assert_eq!(high_water(), 0);
        for (burst, expected) in [(1, 1), (7, 7), (2, 7), (16, 16)] {
            (0..burst).for_each(|i| assert!(producer.try_push(numbered(i)).is_ok()));
            assert_eq!(service.poll(&mut |_: usize, _: &Trigger| Ok(())), u64::from(burst));
            assert_eq!(high_water(), expected, "after a burst of {burst}");
        }
    }
}

#[test]
fn a_snapshot_shows_no_more_than_there_are_slots_whatever_it_reads() {
    let ring = Ring::new(8);
    // As if the consumer had gone on for a lap and more between the two reads, or somebody had
    // forged them.
    for (head, tail, depth) in [(9, 0, 8), (512, 3, 8), (5, 1, 4), (3, 9, 0), (u64::MAX, 0, 0)] {
        ring.header.head.store(head, Ordering::Relaxed);
        ring.header.tail.store(tail, Ordering::Relaxed);
        ring.header.service.depth_high_water.store(head, Ordering::Relaxed);
        let snapshot = ring.snapshot();
        assert_eq!((snapshot.depth, snapshot.depth_high_water), (depth, head.min(8)));
        assert_eq!(snapshot.pushed, tail + depth);
    }
}

#[test]
fn percentiles_name_the_end_of_their_bucket() {
    let mut histogram = Histogram { buckets: [0; BUCKETS] };
    assert_eq!(histogram.percentile_ns(50), None);
    histogram.buckets[3] = 99;
    histogram.buckets[10] = 1;
    assert_eq!(histogram.percentile_ns(0), Some(16));
    assert_eq!(histogram.percentile_ns(99), Some(16));
    assert_eq!(histogram.percentile_ns(100), Some(2048));
}
