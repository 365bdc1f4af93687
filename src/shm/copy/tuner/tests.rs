use super::*;

const LEN: usize = 1 << 20;

/// Copies `n` times in a world where candidate i costs `costs[i]`; tells how often each was used.
fn live(record: &mut Record, plan: &Plan, n: usize, costs: [f32; MAX_CANDIDATES]) -> [usize; MAX_CANDIDATES] {
    let mut used = [0; MAX_CANDIDATES];
    for _ in 0..n {
        let chosen = record.pick(plan, LEN, Purpose::Put, Turn::First);
        used[chosen] += 1;
        record.note(plan, chosen, costs[chosen]);
    }
    used
}

fn plan_of(count: usize) -> Plan {
    let supported = &CopyKernel::ALL[..[0, 1, 2, 4][count]];
    let plan =
        Plan::new(super::super::CacheSizes { own: 1 << 19, shared: 1 << 25 }, |k| supported.contains(&k));
    assert_eq!(plan.candidates().len(), count);
    plan
}

#[test]
fn whichever_is_best_is_found_within_twenty_copies_and_then_used() {
    let plan = plan_of(3);
    for best in 0..3 {
        let mut costs = [2.0; MAX_CANDIDATES];
        costs[best] = 1.0;
        let mut record = Record::NEW;
        live(&mut record, &plan, 20, costs);
        assert_eq!(usize::from(record.best), best);
        let used = live(&mut record, &plan, 4096, costs);
        assert!(used[best] > 4096 - 100, "{used:?}");
    }
}

#[test]
fn a_change_of_the_machine_is_followed_both_ways() {
    let plan = plan_of(3);
    let (near, far) = ([1.0, 1.2, 1.6], [5.0, 5.0, 1.6]);
    let mut record = Record::NEW;
    live(&mut record, &plan, 10_000, near);
    assert_eq!(record.best, 0);
    // What is in use turns slow: noticed at once, whatever the pause between trials has grown to.
    let used = live(&mut record, &plan, 20, far);
    assert_eq!(record.best, 2, "{used:?}");
    live(&mut record, &plan, 10_000, far);
    assert_eq!(record.best, 2);
    // Something else turns fast: noticed at its next trial.
    live(&mut record, &plan, 1010, near);
    assert_eq!(record.best, 0);
}

#[test]
fn one_interrupted_copy_changes_nothing() {
    let plan = plan_of(2);
    let mut record = Record::NEW;
    live(&mut record, &plan, 100, [1.0, 1.2, 0.0]);
    let before = record.best;
    record.note(&plan, before.into(), 1000.0);
    assert_eq!(record.best, before);
}

#[test]
fn trials_cost_no_more_than_their_budget() {
    let plan = plan_of(3);
    for other in [1.1, 1.5, 2.0, 5.0] {
        let mut record = Record::NEW;
        let costs = [1.0, other, other];
        live(&mut record, &plan, 100, costs);
        let used = live(&mut record, &plan, 10_000, costs);
        let lost = u16::try_from(used[1] + used[2]).unwrap();
        assert!(f32::from(lost) * (other - 1.0) < 10_000.0 * 2.2 * BUDGET, "{other}: {used:?}");
        assert!(lost >= 2 * u16::from(TRIAL) * 9);
    }
}

#[test]
fn differences_within_the_noise_cause_no_changes() {
    let plan = plan_of(2);
    let mut record = Record::NEW;
    live(&mut record, &plan, 10, [1.0, 0.95, 0.0]);
    assert_eq!(record.best, 0);
    live(&mut record, &plan, 1000, [1.0, 0.95, 0.0]);
    assert_eq!(record.best, 0);
}

#[test]
fn a_copy_that_pays_for_the_one_before_is_not_held_against_a_candidate() {
    let plan = plan_of(3);
    let mut record = Record::NEW;
    let mut last = 2;
    for _ in 0..100 {
        let chosen = record.pick(&plan, LEN, Purpose::Put, Turn::First);
        // Through the cache: slow behind a stream, fast behind itself.
        let cost = match (chosen, last) {
            (2, _) => 1.0,
            (_, 2) => 2.0,
            _ => 0.7,
        };
        record.note(&plan, chosen, cost);
        last = chosen;
    }
    assert_ne!(record.best, 2);
}

#[test]
fn a_stream_is_charged_with_what_its_reader_pays() {
    let cost_of = |kernel, purpose| cost(kernel, purpose, 3000, 1000);
    for purpose in [Purpose::PutReadSoon, Purpose::Get] {
        assert!(cost_of(CopyKernel::Avx2Streaming, purpose) > cost_of(CopyKernel::Avx2, purpose));
    }
    let (stream, plain) =
        (cost_of(CopyKernel::Avx2Streaming, Purpose::Put), cost_of(CopyKernel::Avx2, Purpose::Put));
    assert!((stream - plain).abs() < f32::EPSILON);
}

#[test]
fn a_trial_is_never_torn_apart_by_copies_that_are_not_timed() {
    let plan = plan_of(3);
    let (class, mut record) = (Class::NEW, Record::NEW);
    let (mut chosen, mut trials) = (Vec::new(), 0);
    for _ in 0..10_000 {
        match class.turn(TUNED) {
            Turn::Untimed => chosen.push(0),
            turn => {
                chosen.push(record.pick(&plan, TUNED, Purpose::Put, turn));
                record.note(&plan, *chosen.last().unwrap(), [1.0, 2.0, 2.0][*chosen.last().unwrap()]);
            }
        }
    }
    for run in chosen.chunk_by(|a, b| a == b).filter(|run| run[0] != 0) {
        assert_eq!(run.len(), usize::from(TRIAL));
        trials += 1;
    }
    assert!(trials > 2);
}

#[test]
fn every_length_has_a_class() {
    TUNER.with(|tuner| {
        for len in [TUNED, TUNED + 1, 1 << 20, 1 << 40, usize::MAX] {
            for purpose in [Purpose::PutReadSoon, Purpose::Put, Purpose::Get] {
                tuner.class(len, purpose);
            }
        }
        assert!(std::ptr::eq(tuner.class(TUNED, Purpose::Put), tuner.class(2 * TUNED - 1, Purpose::Put)));
        assert!(!std::ptr::eq(tuner.class(TUNED, Purpose::Put), tuner.class(2 * TUNED, Purpose::Put)));
    });
}
