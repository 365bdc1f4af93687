//! The fifo as a port channel sees it: full, lap after lap, shared by channels and threads.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use shmccl::channel::{Channel, Executor};
use shmccl_proxy::{Handler, Trigger, TriggerKind, TriggerRefusal};

use support::wait_until;

use crate::harness::Job;
use crate::refused_triggers::sharing;

/// How many slots a fifo has.
const SLOTS: usize = 512;

port_scenario!(more_puts_than_the_fifo_holds_arrive_in_order_over_several_laps, Job::of(2), |comm| {
    const MOST: usize = 3 * SLOTS + 1;
    let (source, target) = (comm.alloc::<u64>(MOST)?, comm.alloc::<u64>(MOST)?);
    let mut channel = comm.port_channel(comm.right())?;
    for count in [1, SLOTS - 1, SLOTS, SLOTS + 1, 2 * SLOTS, MOST] {
        for index in 0..count {
            source.set(index, (count * 10_000 + index) as u64)?;
        }
        for index in 0..count {
            let (to, from) = (target.part(index, 1)?.offset, source.part(index, 1)?.offset);
            channel.put_with_signal(to, from, 8)?;
        }
        for index in 0..count {
            channel.wait()?;
            assert_eq!(target.get(index)?, (count * 10_000 + index) as u64);
        }
        channel.flush()?;
        comm.barrier()?;
    }
    // A flush ends as soon as its trigger is done, which is popped after that.
    wait_until("the fifo is empty", || {
        comm.fifo_snapshots().is_ok_and(|fifos| fifos[0].pushed == fifos[0].served)
    });
    let fifo = &comm.fifo_snapshots()?[0];
    assert_eq!((fifo.refused, fifo.skipped), (0, 0));
});

/// Holds triggers back until it is let go, and counts those that carry data.
struct Gate {
    inner: Executor,
    opened: mpsc::Receiver<()>,
    open: bool,
    copied: Arc<AtomicUsize>,
}

impl Gate {
    fn new(inner: Executor) -> (Self, mpsc::Sender<()>, Arc<AtomicUsize>) {
        let (opener, opened) = mpsc::channel();
        let copied = Arc::new(AtomicUsize::new(0));
        (Self { inner, opened, open: false, copied: Arc::clone(&copied) }, opener, copied)
    }
}

impl Handler for Gate {
    fn handle(&mut self, fifo: usize, trigger: &Trigger) -> Result<(), TriggerRefusal> {
        if !self.open {
            let _ = self.opened.recv();
            self.open = true;
        }
        let done = self.inner.handle(fifo, trigger);
        if trigger.kind().contains(TriggerKind::DATA) {
            self.copied.fetch_add(1, Ordering::SeqCst);
        }
        done
    }
}

scenario!(a_full_fifo_makes_the_producer_wait_and_loses_nothing, Job::of(2), |comm| {
    const COUNT: usize = SLOTS + 200;
    let (source, target) = (comm.alloc::<u64>(COUNT)?, comm.alloc::<u64>(COUNT)?);
    let mut ends = None;
    comm.start_proxy(1, |executor| {
        let (gate, opener, copied) = Gate::new(executor);
        ends = Some((opener, copied));
        gate
    })?;
    let (opener, copied) = ends.unwrap();
    let mut channel = comm.port_channel(comm.right())?;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (done, source, target) = (&done, &source, &target);
        let pusher = scope.spawn(move || {
            for index in 0..COUNT {
                source.set(index, index as u64 + 1).unwrap();
                let (to, from) =
                    (target.part(index, 1).unwrap().offset, source.part(index, 1).unwrap().offset);
                channel.put_with_signal(to, from, 8).unwrap();
            }
            done.store(true, Ordering::SeqCst);
            channel
        });
        // The proxy holds the first trigger, so the producer comes to a halt after as many as there
        // are slots.
        while comm.fifo_snapshots().unwrap()[0].stalls == 0 {
            std::thread::yield_now();
        }
        let fifo = &comm.fifo_snapshots().unwrap()[0];
        assert_eq!((fifo.pushed, fifo.served, fifo.depth), (SLOTS as u64, 0, SLOTS as u64));
        assert!(!done.load(Ordering::SeqCst));
        assert_eq!(copied.load(Ordering::SeqCst), 0);
        opener.send(()).unwrap();
        let mut channel = pusher.join().unwrap();
        for index in 0..COUNT {
            channel.wait().unwrap();
            assert_eq!(target.get(index).unwrap(), index as u64 + 1);
        }
        channel.flush().unwrap();
        assert_eq!(copied.load(Ordering::SeqCst), COUNT);
    });
    comm.barrier()?;
});

scenario!(a_flush_waits_for_its_own_position_and_not_for_an_idle_proxy, Job::of(1), |comm| {
    const PUTS: usize = 100;
    let (source, target) = (comm.alloc::<u64>(2)?, comm.alloc::<u64>(2)?);
    let mut ends = None;
    comm.start_proxy(1, |executor| {
        let (gate, opener, copied) = Gate::new(executor);
        ends = Some((opener, copied));
        gate
    })?;
    let (opener, copied) = ends.unwrap();
    let (mut quiet, mut busy) = (comm.port_channel(comm.rank())?, comm.port_channel(comm.rank())?);
    let (first, second) = (source.part(0, 1)?.offset, source.part(1, 1)?.offset);
    let (to_first, to_second) = (target.part(0, 1)?.offset, target.part(1, 1)?.offset);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (stop, quiet, busy) = (&stop, &mut quiet, &mut busy);
        for _ in 0..PUTS {
            quiet.put(to_first, first, 8).unwrap();
        }
        // From here on the proxy has always something to do.
        let noise = scope.spawn(move || {
            while !stop.load(Ordering::SeqCst) {
                busy.put(to_second, second, 8).unwrap();
            }
        });
        let opens = scope.spawn(move || opener.send(()).unwrap());
        quiet.flush().unwrap();
        assert!(copied.load(Ordering::SeqCst) >= PUTS, "flushed before its puts were done");
        assert!(!noise.is_finished());
        stop.store(true, Ordering::SeqCst);
        // Joined one by one, here and below: a sanitizer sees that, and not the end of a scope.
        opens.join().unwrap();
        noise.join().unwrap();
    });
});

port_scenario!(flushes_of_many_channels_of_one_fifo_all_return, Job::of(2), |comm| {
    const THREADS: usize = 8;
    let (source, target) = (comm.alloc::<u64>(THREADS)?, comm.alloc::<u64>(THREADS)?);
    let peer = comm.right();
    let (first, _others) = sharing(comm, peer)?;
    let more = (1..THREADS).map(|_| comm.port_channel(peer));
    let channels: Result<Vec<_>, _> = std::iter::once(Ok(first)).chain(more).collect();
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (index, mut channel) in channels.unwrap().into_iter().enumerate() {
            let (to, from) = (target.part(index, 1).unwrap().offset, source.part(index, 1).unwrap().offset);
            let source = &source;
            threads.push(scope.spawn(move || {
                for round in 0..300 {
                    source.set(index, round).unwrap();
                    channel.put(to, from, 8).unwrap();
                    channel.flush().unwrap();
                }
            }));
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    comm.barrier()?;
    assert_eq!(target.to_vec(), [299; THREADS]);
});

/// What the fifos have served since they had served `before`.
fn served_since(comm: &shmccl::Communicator, before: &mut Vec<u64>) -> shmccl::Result<Vec<u64>> {
    // A trigger that a flush waited for is popped a moment after it was completed.
    let started = Instant::now();
    let all = loop {
        let all = comm.fifo_snapshots()?;
        if all.iter().all(|fifo| fifo.served == fifo.pushed) {
            break all;
        }
        assert!(started.elapsed() < Duration::from_secs(20), "triggers that nobody pops: {all:?}");
        std::thread::yield_now();
    };
    let now: Vec<_> = all.iter().map(|fifo| fifo.served).collect();
    let since = now.iter().zip(before.iter()).map(|(now, before)| now - before).collect();
    *before = now;
    Ok(since)
}

port_scenario!(
    a_channel_has_a_fifo_to_itself_as_long_as_there_is_one_and_gives_it_back,
    Job::of(2),
    |comm| {
        let peer = comm.right();
        let mut before = vec![0; 8];
        let (eighth, mut channels) = sharing(comm, peer)?;
        channels.push(eighth);
        channels.push(comm.port_channel(peer)?);
        channels.iter_mut().try_for_each(Channel::flush)?;
        assert_eq!(served_since(comm, &mut before)?, [1, 1, 1, 1, 1, 1, 1, 2]);
        // Idle proxies sleep when the fourth fifo changes hands, with a trigger in it
        // that nobody has flushed.
        let mut fourth = channels.remove(3);
        fourth.signal()?;
        drop(fourth);
        assert_eq!(served_since(comm, &mut before)?, [0, 0, 0, 2, 0, 0, 0, 0]);
        channels[7].flush()?;
        assert_eq!(served_since(comm, &mut before)?, [0, 0, 0, 0, 0, 0, 0, 1], "who shares stays");
        let mut reopened = comm.port_channel(peer)?;
        reopened.signal()?;
        reopened.flush()?;
        assert_eq!(served_since(comm, &mut before)?, [0, 0, 0, 2, 0, 0, 0, 0]);
        channels.drain(..6);
        for _ in 0..2 {
            channels.iter_mut().chain([&mut reopened]).try_for_each(Channel::flush)?;
        }
        assert_eq!(served_since(comm, &mut before)?, [0, 0, 0, 2, 0, 0, 0, 4]);
        (0..2).try_for_each(|_| reopened.wait())?;
        comm.barrier()?;
    }
);

port_scenario!(channels_to_several_peers_share_the_last_fifo_and_leave_it, Job::of(3), |comm| {
    let (right, left) = (comm.right(), comm.left());
    let mut channels: Vec<_> = (0..30)
        .map(|turn| comm.port_channel(if turn % 2 == 0 { right } else { left }))
        .collect::<Result<_, _>>()?;
    channels.iter_mut().try_for_each(Channel::signal)?;
    channels.iter_mut().try_for_each(Channel::wait)?;
    comm.barrier()?;
    channels.truncate(9);
    channels.iter_mut().try_for_each(Channel::flush)?;
    let mut before = vec![0; 8];
    served_since(comm, &mut before)?;
    channels.push(comm.port_channel(right)?);
    channels.iter_mut().try_for_each(Channel::flush)?;
    assert_eq!(served_since(comm, &mut before)?, [1, 1, 1, 1, 1, 1, 1, 3]);
    comm.barrier()?;
});
