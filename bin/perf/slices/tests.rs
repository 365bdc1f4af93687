use super::*;

/// Slices with a constant probe, test and limit each.
fn slices(parts: &[(usize, f64, f64, f64)]) -> Slices {
    let mut slices = Slices::new();
    for &(count, probe, test, limit) in parts {
        for step in 0..count {
            // A few per cent of noise, the same in every run.
            let noise = 1.0 + 0.01 * f64::from(u32::try_from(step % 7).unwrap());
            slices.push(probe * noise, &[test * noise; 20], &[limit * noise; 20]);
        }
    }
    slices
}

#[test]
fn no_slice_has_no_verdict() {
    assert_eq!(Slices::new().verdict(), None);
    let mut empty = Slices::new();
    empty.push(100.0, &[], &[1.0]);
    assert_eq!(empty.verdict(), None);
}

#[test]
fn slices_that_are_all_alike_stay_together() {
    let verdict = slices(&[(100, 130.0, 150.0, 130.0)]).verdict().unwrap();
    assert_eq!(
        (verdict.kind, verdict.slices, verdict.of, verdict.sibling_share),
        (Kind::Alike, 100, 100, 0.0)
    );
    assert!((verdict.ratio.unwrap().median - 150.0 / 130.0).abs() < 1e-9);
    assert_eq!(verdict.test.count, 2000);
}

#[test]
fn like_is_compared_with_like_when_the_cores_turn_into_siblings() {
    // Pooled, the test would seem as quick as its limit.
    let verdict = slices(&[(60, 130.0, 156.0, 130.0), (40, 20.0, 60.0, 20.0)]).verdict().unwrap();
    assert_eq!((verdict.kind, verdict.slices, verdict.of), (Kind::Separate, 60, 100));
    assert!((verdict.sibling_share - 0.4).abs() < 1e-9);
    assert!((verdict.ratio.unwrap().median - 1.2).abs() < 1e-9);
    assert!(verdict.test.min_ns > 150.0 && verdict.limit.unwrap().min_ns > 129.0);
}

#[test]
fn the_median_of_all_samples_leaves_no_slice_out() {
    let verdict = slices(&[(51, 130.0, 156.0, 130.0), (49, 20.0, 60.0, 20.0)]).verdict().unwrap();
    assert_eq!(verdict.kind, Kind::Separate);
    // Half of all lies among the siblings, so that the quickest of the others is in the middle.
    assert!(verdict.p50_all_ns < verdict.test.p50_ns * 0.99, "{verdict:?}");
    let alike = slices(&[(100, 130.0, 150.0, 130.0)]).verdict().unwrap();
    assert_eq!(alike.p50_all_ns, alike.test.p50_ns);
}

#[test]
fn a_run_that_was_mostly_on_siblings_is_judged_by_those() {
    let verdict = slices(&[(10, 130.0, 156.0, 130.0), (90, 20.0, 22.0, 20.0)]).verdict().unwrap();
    assert_eq!((verdict.kind, verdict.slices), (Kind::Siblings, 90));
    assert!((verdict.ratio.unwrap().median - 1.1).abs() < 1e-9);
    assert!((verdict.sibling_share - 0.9).abs() < 1e-9);
}

#[test]
fn a_few_quick_probes_are_siblings_and_a_few_slow_ones_an_interruption() {
    let verdict = slices(&[(97, 130.0, 150.0, 130.0), (2, 20.0, 25.0, 20.0), (1, 9000.0, 9000.0, 130.0)])
        .verdict()
        .unwrap();
    assert_eq!((verdict.kind, verdict.slices), (Kind::Separate, 97));
    assert!((verdict.sibling_share - 0.02).abs() < 1e-9);
    let slow = slices(&[(98, 130.0, 150.0, 130.0), (2, 600.0, 700.0, 130.0)]).verdict().unwrap();
    assert_eq!((slow.kind, slow.slices, slow.sibling_share), (Kind::Alike, 98, 0.0));
}

#[test]
fn many_interrupted_probes_do_not_make_the_others_siblings() {
    let verdict = slices(&[(80, 130.0, 150.0, 130.0), (20, 50_000.0, 150.0, 130.0)]).verdict().unwrap();
    assert_eq!((verdict.kind, verdict.slices, verdict.sibling_share), (Kind::Alike, 80, 0.0));
}

#[test]
fn a_slow_drift_is_not_torn_apart() {
    let probes: Vec<f64> = (0..100).map(|step| 100.0 + f64::from(step)).collect();
    assert!(classify(&probes).iter().all(|kind| *kind == Kind::Alike));
}

#[test]
fn slices_that_straddle_the_change_do_not_hide_it() {
    // Values in between close every gap, so that looking for a gap would find none.
    let mut probes = vec![20.0; 40];
    probes.extend((0..12).map(|step| 20.0 * 1.17_f64.powi(step)));
    probes.extend([130.0; 48]);
    let kinds = classify(&probes);
    assert_eq!((kinds[0], kinds[99]), (Kind::Siblings, Kind::Separate));
}

#[test]
fn a_single_slice_is_its_own_verdict() {
    let verdict = slices(&[(1, 130.0, 150.0, 100.0)]).verdict().unwrap();
    assert_eq!((verdict.kind, verdict.slices), (Kind::Alike, 1));
    assert_eq!(verdict.ratio.unwrap(), Spread { median: 1.5, p10: 1.5, p90: 1.5 });
}

#[test]
fn cpu_time_is_of_the_kind_that_counts() {
    let mut slices = Slices::new();
    (0..60).for_each(|_| slices.push_charged(130.0, &[150.0], &[130.0], Some(40.0)));
    (0..40).for_each(|_| slices.push_charged(20.0, &[25.0], &[20.0], Some(9.0)));
    let cpu = slices.verdict().unwrap().cpu_ns.unwrap();
    assert_eq!(cpu, Spread { median: 40.0, p10: 40.0, p90: 40.0 });
    slices.push(130.0, &[150.0], &[130.0]);
    assert_eq!(slices.verdict().unwrap().cpu_ns, Some(cpu));
}

#[test]
fn a_test_without_a_limit_has_no_ratio() {
    let mut slices = Slices::new();
    slices.push(130.0, &[5.0, 7.0, 6.0], &[]);
    let verdict = slices.verdict().unwrap();
    assert_eq!((verdict.limit, verdict.ratio), (None, None));
    assert_eq!((verdict.test.min_ns, verdict.test.max_ns), (5.0, 7.0));
}

#[test]
fn the_spread_tells_how_far_the_slices_lie_apart() {
    let mut slices = Slices::new();
    for step in 0..=10 {
        slices.push(130.0, &[100.0 + f64::from(step)], &[100.0]);
    }
    let ratio = slices.verdict().unwrap().ratio.unwrap();
    assert!(
        (ratio.p10 - 1.01).abs() < 1e-9
            && (ratio.median - 1.05).abs() < 1e-9
            && (ratio.p90 - 1.09).abs() < 1e-9
    );
}

#[test]
fn probes_of_zero_and_not_a_number_are_survived() {
    assert_eq!(classify(&[]), []);
    assert_eq!(classify(&[0.0, f64::NAN, 0.0, -1.0]).len(), 4);
    assert_eq!(classify(&[0.0; 5]).len(), 5);
}
