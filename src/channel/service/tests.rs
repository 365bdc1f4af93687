//! Proxies in a mapped of this process: when they count, when they stop, whom they wake.

use std::time::Duration;

use super::super::Channel;
use super::super::context::RankContext;
use super::super::testing::{OWN, channel, context, mapped, proxy};
use super::*;
use crate::testing::wait_until;
use shmccl_proxy::TriggerKind;

use crate::sync::atomic::AtomicU64;
use crate::sync::plain;

#[test]
fn a_service_process_counts_as_a_spinner_while_it_is_awake() {
    let mapped = mapped(2, |mapped| mapped);
    let alone = || RankContext::new(Arc::clone(&mapped), OWN, 1, Duration::from_secs(20), |_| None).unwrap();
    let (beside, elsewhere) = (alone().beside_service(), alone());
    let doorbell = mapped.control().proxy_doorbell();
    let policies = || (beside.policy(), elsewhere.policy());
    assert_eq!(policies(), (WaitPolicy::OVERSUBSCRIBED, WaitPolicy::DEDICATED));
    doorbell.announce(mapped.kernel());
    assert_eq!(policies(), (WaitPolicy::DEDICATED, WaitPolicy::DEDICATED));
    // What whoever pushes does, before it waits.
    doorbell.wake(mapped.kernel());
    assert_eq!(policies(), (WaitPolicy::OVERSUBSCRIBED, WaitPolicy::DEDICATED));
    assert!(!beside.oversubscribed(), "what is tuned for leaves proxies aside");
}

#[test]
fn a_proxy_whose_epoch_ends_executes_nothing_more_and_whoever_waits_for_it_is_told() {
    let mapped = mapped(2, |mapped| mapped);
    let context = context(&mapped, OWN, Duration::from_secs(20));
    let (mut flushing, mut pushing) = (channel(&context), channel(&context));
    (0..500).for_each(|_| pushing.signal().unwrap());
    let executed = Arc::new(AtomicU64::new(0));
    let (ours, count) = (Arc::clone(&mapped), Arc::clone(&executed));
    let proxy = proxy(&mapped, move |_: usize, _: &Trigger| {
        plain::add(&count, 1);
        if plain::load(&count) == 3 {
            ours.control().revoke(ours.kernel(), Revocation::PeerLost(Rank::known(1)));
        }
        Ok(())
    });
    let is_told = |done| matches!(done, Err(Error::PeerLost { rank }) if rank.get() == 1);
    assert!(is_told(flushing.flush()));
    // The proxy that has revoked the epoch may still be about to count that trigger as served.
    let has_served = || mapped.cells(OWN).fifo(0).unwrap().snapshot().served >= 3;
    wait_until("the third trigger counts as served", has_served);
    let mut pushed = Ok(());
    while pushed.is_ok() {
        pushed = pushing.signal();
    }
    assert!(is_told(pushed), "nobody makes room any more");
    drop(proxy);
    assert_eq!(plain::load(&executed), 3);
    let fifo = mapped.cells(OWN).fifo(0).unwrap().snapshot();
    assert_eq!((fifo.served, fifo.depth, fifo.completed), (3, 512, 0));
}

#[test]
fn a_stop_that_comes_after_the_end_of_the_epoch_drains_nothing() {
    let mapped = mapped(2, |mapped| mapped);
    let context = context(&mapped, OWN, Duration::from_secs(20));
    let mut channel = channel(&context);
    mapped.control().revoke(mapped.kernel(), Revocation::Aborted(None));
    channel.signal().unwrap();
    drop(proxy(&mapped, |_: usize, _: &Trigger| panic!("this one was not to be executed")));
    assert_eq!(mapped.semaphores(Rank::known(1))[0].value(), 0);
}

#[test]
fn whoever_sleeps_in_a_flush_is_woken_before_the_next_trigger_is_executed() {
    let mapped = mapped(2, |mapped| mapped);
    let context = context(&mapped, OWN, Duration::from_secs(20));
    let completion = mapped.cells(OWN).fifo(0).unwrap().completion;
    let (mut flushing, mut pushing) = (channel(&context), channel(&context));
    let flusher = std::thread::spawn(move || flushing.flush().map(|()| flushing));
    wait_until("the flush sleeps", || completion.is_slept_on());
    // All of them are within the turn that begins with the flush.
    (0..60).for_each(|_| pushing.signal().unwrap());
    let wakes = Arc::new(AtomicU64::new(0));
    let woken = Arc::clone(&wakes);
    let proxy = proxy(&mapped, move |_: usize, trigger: &Trigger| {
        if trigger.kind().contains(TriggerKind::SIGNAL) {
            plain::add(&woken, completion.wakes().into());
        }
        Ok(())
    });
    let flushing = flusher.join().unwrap().unwrap();
    drop(proxy);
    assert_eq!(plain::load(&wakes), 60, "each of those behind has found that the flush was told of, once");
    std::mem::forget((pushing, flushing));
}
