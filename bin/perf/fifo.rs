//! The fifo between threads of this process: triggers pushed on one core and served on another, per
//! second.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sched::CpuSet;
use shmccl::proxy::{BATCH, Fifo, FifoHeader, Push, Service, Slot, Transfer, Trigger, TriggerRefusal};
use shmccl_harness::clock::now_ns;
use shmccl_harness::cores::{affinity, move_to, pin};
use shmccl_harness::interleave::Effort;
use shmccl_harness::report::{PerfRow, row_of};
use shmccl_harness::slices::Slices;
use shmccl_harness::stats::ENOUGH_FOR_P99;
use shmccl_harness::test::Test;
use shmccl_limits::flags::{BareConsumer, BareFlag, BareProducer, BareSlot};

/// Slots of every ring, as in a rank's segment.
const SLOTS: usize = 512;

/// Triggers in a slice.
const SLICE: u32 = 32_768;

/// Pauses of a consumer after a look that found no more.
const PAUSE: u32 = 20;

/// Looks in vain after which the clock is read.
const LOOKS: u32 = 4096;

/// The cores of the two ends: the same one where there is only one.
#[derive(Clone, Copy, Debug)]
struct FifoCores {
    producers: usize,
    consumer: usize,
}

impl FifoCores {
    /// Returns whether both ends share a core, so that a waiting one has to yield.
    fn is_one(self) -> bool {
        self.producers == self.consumer
    }

    /// Leaves the ring alone for a moment: polling without a pause takes the line away from its
    /// writer.
    ///
    /// The fifo and its limit pause as often: after each look that found the next slot empty.
    fn pause(self) {
        if self.is_one() {
            std::thread::yield_now();
        } else {
            (0..PAUSE).for_each(|_| std::hint::spin_loop());
        }
    }
}

/// The producers and the fifos of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Setup {
    producers: u32,
    fifos: u32,
    /// One producer that has its fifo to itself, instead of producers that share.
    exclusive: bool,
}

const SETUPS: [Setup; 5] = [
    Setup { producers: 1, fifos: 1, exclusive: true },
    Setup { producers: 1, fifos: 1, exclusive: false },
    Setup { producers: 2, fifos: 1, exclusive: false },
    Setup { producers: 4, fifos: 1, exclusive: false },
    Setup { producers: 4, fifos: 4, exclusive: true },
];

/// Measures every setup against a bare two-word ring.
///
/// # Errors
/// When a thread cannot be pinned, or nothing has come out of a fifo for `patience`.
pub(crate) fn measure(effort: Effort, patience: Duration) -> Result<Vec<PerfRow>> {
    let mask = affinity();
    let cores = ends_of(&mask)?;
    let rows = SETUPS.iter().map(|setup| measure_one(*setup, cores, effort, patience)).collect();
    // This thread was moved about; device processes inherit its mask.
    move_to(&mask).context("restoring the affinity mask")?;
    rows
}

fn measure_one(setup: Setup, cores: FifoCores, effort: Effort, patience: Duration) -> Result<PerfRow> {
    let mut slices = Slices::of_means(SLICE.into());
    let mut wrong = 0;
    let started = now_ns();
    let mut pushed = 0;
    for slice in 0.. {
        let enough = match effort.iters {
            Some(iters) => pushed >= iters,
            None => {
                let spent = Duration::from_nanos(now_ns() - started);
                slice >= effort.fewest_slices
                    && spent >= effort.time
                    && (slice >= ENOUGH_FOR_P99 || spent >= effort.time + effort.patience)
            }
        };
        if enough {
            break;
        }
        let probe = probe(cores)?;
        let bare = bare_ring(cores)?;
        let (fifo, misordered) =
            fifo(setup, cores, patience).with_context(|| format!("{}: {setup}", Test::FifoRate.name()))?;
        wrong += misordered;
        pushed += u64::from(SLICE);
        slices.push(probe, &[fifo], &[bare]);
    }
    let comparison = slices.compare().context("nothing was measured")?;
    let mut row = row_of(Test::FifoRate, None, 1, &comparison, "raw two-word ring");
    row.iterations = pushed;
    row.variant = Some(setup.to_string());
    row.set_rate();
    row.wrong = Some(wrong);
    Ok(row)
}

impl std::fmt::Display for Setup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let plural = |n: u32, word: &str| format!("{n} {word}{}", if n == 1 { "" } else { "s" });
        let kind = if self.exclusive { "exclusive" } else { "shared" };
        write!(f, "{}, {}, {kind}", plural(self.producers, "producer"), plural(self.fifos, "fifo"))
    }
}

/// Pushes a slice through fifos. Returns nanoseconds per trigger, and how many came out of order or
/// twice.
fn fifo(setup: Setup, cores: FifoCores, patience: Duration) -> Result<(f64, u64)> {
    let rings: Vec<(FifoHeader, Vec<Slot>)> = (0..setup.fifos)
        .map(|_| (FifoHeader::default(), (0..SLOTS).map(|_| Slot::default()).collect()))
        .collect();
    let fifos = rings
        .iter()
        .map(|(header, slots)| Fifo::new(header, slots.as_slice()))
        .collect::<Result<Vec<_>, _>>()?;
    let mut service = Service::new(fifos.iter().map(Fifo::consumer));
    let share = SLICE / setup.producers;
    let mut ledger = ArrivalCheck::new(setup.producers);
    let mut handler = |_: usize, trigger: &Trigger| -> Result<(), TriggerRefusal> {
        ledger.note(trigger);
        Ok(())
    };
    let start_line = Barrier::new(setup.producers as usize + 1);
    let oversubscribed = setup.producers > 1 || cores.is_one();
    // Set when nobody serves any more, however full the fifos are.
    let given_up = BareFlag::new(0);
    let took = std::thread::scope(|scope| {
        let mut handles = Vec::new();
        for producer in 0..setup.producers {
            let fifo = &fifos[(producer % setup.fifos) as usize];
            let run =
                ProducerRun { producer, share, oversubscribed, start_line: &start_line, given_up: &given_up };
            handles.push(scope.spawn(move || -> Result<()> {
                pin(cores.producers)?;
                if setup.exclusive {
                    produce(fifo.producer()?, run);
                } else {
                    produce(fifo.shared_producer()?, run);
                }
                Ok(())
            }));
        }
        pin(cores.consumer)?;
        start_line.wait();
        let start = now_ns();
        let all = u64::from(share * setup.producers);
        let served = serve(all, patience, || service.poll(&mut handler), || cores.pause());
        let took = now_ns() - start;
        given_up.set(1);
        for handle in handles {
            handle.join().expect("producers do not panic")?;
        }
        match served {
            Ok(()) => Ok(took),
            Err(served) => {
                bail!("{served} of {all} triggers came out, and then none for {patience:?}: some are lost")
            }
        }
    })?;
    Ok((took as f64 / f64::from(SLICE), ledger.wrong(share)))
}

/// Serves `all` triggers by `poll`, which serves some and returns how many, and pauses when it has
/// found no more.
///
/// # Errors
/// The number of triggers that had come when none came for `patience`.
#[inline]
fn serve(
    all: u64,
    patience: Duration,
    mut poll: impl FnMut() -> u64,
    pause: impl Fn(),
) -> std::result::Result<(), u64> {
    let (mut served, mut looks, mut since) = (0, 0_u32, None);
    while served < all {
        let turn = poll();
        served += turn;
        if turn < BATCH {
            pause();
        }
        if turn > 0 {
            (looks, since) = (0, None);
            continue;
        }
        looks = looks.wrapping_add(1);
        if looks.is_multiple_of(LOOKS) && since.get_or_insert_with(Instant::now).elapsed() >= patience {
            return Err(served);
        }
    }
    Ok(())
}

/// The part of one producer.
struct ProducerRun<'r> {
    producer: u32,
    share: u32,
    oversubscribed: bool,
    start_line: &'r Barrier,
    given_up: &'r BareFlag,
}

/// Pushes a share of triggers that carry their producer and their number, until nobody takes them
/// any more.
fn produce(end: impl Push, run: ProducerRun<'_>) {
    run.start_line.wait();
    if run.oversubscribed {
        push_all(end, run, std::thread::yield_now);
    } else {
        push_all(end, run, std::hint::spin_loop);
    }
}

/// Pushes in a loop of its own, so that only the fifo is in it. The producer is a local there.
#[inline(never)]
fn push_all(end: impl Push, run: ProducerRun<'_>, give_way: impl Fn()) {
    let mut end = end;
    for seq in 0..run.share {
        let trigger = trigger(run.producer, seq);
        while end.try_push(trigger).is_err() {
            if run.given_up.shows(1) {
                return;
            }
            give_way();
        }
    }
}

/// Tries until it works. Threads that share a core yield in between; others spin.
#[inline]
fn insist(oversubscribed: bool, mut attempt: impl FnMut() -> bool) {
    while !attempt() {
        if oversubscribed { std::thread::yield_now() } else { std::hint::spin_loop() }
    }
}

/// A check that the triggers of each producer come in order, completely, and once.
struct ArrivalCheck {
    next: Vec<u64>,
    wrong: u64,
}

impl ArrivalCheck {
    fn new(producers: u32) -> Self {
        Self { next: vec![0; producers as usize], wrong: 0 }
    }

    #[inline]
    fn note(&mut self, trigger: &Trigger) {
        let transfer = trigger.transfer();
        match self.next.get_mut(transfer.source_offset as usize) {
            Some(expected) => {
                self.wrong += u64::from(u64::from(transfer.target_offset) != *expected);
                *expected += 1;
            }
            None => self.wrong += 1,
        }
    }

    /// Returns how many were out of order, plus how far each producer is from its `share`.
    fn wrong(&self, share: u32) -> u64 {
        self.wrong + self.next.iter().map(|count| u64::from(share).abs_diff(*count)).sum::<u64>()
    }
}

/// Makes trigger number `seq` of `producer`.
fn trigger(producer: u32, seq: u32) -> Trigger {
    Trigger::put(Transfer { target_offset: seq, source_offset: producer, ..Transfer::default() })
}

/// Pushes a slice of such triggers through a bare ring. Returns nanoseconds per trigger.
fn bare_ring(cores: FifoCores) -> Result<f64> {
    let slots: Vec<BareSlot> = (0..SLOTS).map(|_| BareSlot::new()).collect();
    let tail = BareFlag::new(0);
    let mut ledger = ArrivalCheck::new(1);
    let start_line = Barrier::new(2);
    std::thread::scope(|scope| {
        let producer = scope.spawn(|| -> Result<()> {
            pin(cores.producers)?;
            let end = BareProducer::new(&*slots, &tail);
            start_line.wait();
            if cores.is_one() {
                produce_bare(end, |end| insist(true, || end.has_room()));
            } else {
                produce_bare(end, |_| ());
            }
            Ok(())
        });
        pin(cores.consumer)?;
        let mut end = BareConsumer::new(&*slots, &tail);
        start_line.wait();
        let start = now_ns();
        let mut served = 0;
        let ledger = std::hint::black_box(&mut ledger);
        while served < SLICE {
            if let Some((first, second)) = end.peek() {
                ledger.note(&Trigger::from_words([first, second]));
                end.pop();
                served += 1;
            } else {
                cores.pause();
            }
        }
        let took = now_ns() - start;
        producer.join().expect("producers do not panic")?;
        anyhow::ensure!(ledger.wrong(SLICE) == 0, "the bare ring lost its order");
        Ok(took as f64 / f64::from(SLICE))
    })
}

/// A bare ring's producer, whose slots another thread holds.
type BareEnd<'r> = BareProducer<&'r [BareSlot], &'r BareFlag>;

/// Pushes a slice of such triggers, each after `make_room`, in a loop of its own.
#[inline(never)]
fn produce_bare(mut end: BareEnd<'_>, mut make_room: impl FnMut(&mut BareEnd<'_>)) {
    for seq in 0..SLICE {
        let [first, second] = trigger(0, seq).words();
        make_room(&mut end);
        end.push(first, second);
    }
}

/// Measures the nanoseconds of a bare flag one way between the two cores.
fn probe(cores: FifoCores) -> Result<f64> {
    const ROUNDS: u64 = 256;
    let (there, back) = (BareFlag::new(0), BareFlag::new(0));
    std::thread::scope(|scope| {
        let echo = scope.spawn(|| -> Result<()> {
            pin(cores.producers)?;
            (1..=ROUNDS + 1).for_each(|turn| {
                insist(cores.is_one(), || there.shows(turn));
                back.set(turn);
            });
            Ok(())
        });
        pin(cores.consumer)?;
        there.set(1);
        insist(cores.is_one(), || back.shows(1));
        let start = now_ns();
        (2..=ROUNDS + 1).for_each(|turn| {
            there.set(turn);
            insist(cores.is_one(), || back.shows(turn));
        });
        let took = now_ns() - start;
        echo.join().expect("the echo does not panic")?;
        Ok(took as f64 / (2 * ROUNDS) as f64)
    })
}

/// Returns the first and the last core that this process may use, for producers and the consumer.
fn ends_of(allowed: &CpuSet) -> Result<FifoCores> {
    let mut cores = (0..CpuSet::count()).filter(|&core| allowed.is_set(core).unwrap_or(false));
    let first = cores.next().context("no core to run on")?;
    Ok(FifoCores { producers: first, consumer: cores.next_back().unwrap_or(first) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_trigger_is_told_and_waited_for_no_longer_than_agreed() {
        let mut turns = [3, 0, 4].into_iter();
        let lost = serve(8, Duration::from_millis(5), || turns.next().unwrap_or(0), || ());
        assert_eq!(lost, Err(7));
        let mut turns = [3, 0, 5].into_iter();
        assert_eq!(serve(8, Duration::ZERO, || turns.next().unwrap(), || ()), Ok(()));
    }
}
