//! A rank that writes whatever it likes into its own fifo, over and over, while the proxy serves
//! it.
//!
//! The memory table of that rank names small regions only; around them, in the control structures
//! and in the heaps of both ranks, and in what all ranks share, nothing may change. `SHMCCL_LONG=1`
//! makes it a minute.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use shmccl::channel::{Channel, Executor};
use shmccl::heap::layout::{COMPLETIONS, DOORBELLS, FIFO_SLOTS, HEAP, ROSTER, SEMAPHORES};
use shmccl::heap::{HeapOffset, MemoryRegistrar, MemoryTable, Region};
use shmccl::shm::segment::AttachAs;
use shmccl::shm::{Expected, HostKernel, Identity, Mapping, Segment, SegmentHeader};
use shmccl::sync::atomic::AtomicU64;
use shmccl::sync::plain;
use shmccl::{Communicator, Result};
use shmccl_proxy::{Handler, MemoryId, SemaphoreId, Transfer, TransferLen, Trigger};
use support::long;

use crate::harness::{Job, Random, figure, rank, seed};
use crate::refused_triggers::{cells, push, raw_producer};

/// Where a rank's fifos start, and how far they are apart; see the table of `heap::layout`.
const FIFOS: u64 = 0x5000;
const FIFO_STRIDE: u64 = 0x4000;
const SLOTS_AT: u64 = 0x2000;

/// Words of a semaphore.
const PLACE_WORDS: u64 = 128 / 8;

/// How long the control segment is.
const CONTROL_LEN: u64 = 311_296;

const ARENA: usize = 1 << 20;
const GUARD: u8 = 0xc3;
/// How many triggers are forged between two looks at the clock.
const BURST: u64 = 1024;

fn duration() -> Duration {
    Duration::from_secs(if long() { 60 } else { 2 })
}

/// The regions that the hostile rank's triggers may name, the same in both heaps: between guards.
fn named(arena: Region) -> Vec<Region> {
    let lens = [1, 8, 64, 777, 4096, 10_000, 32_768, 65_535];
    let at = |index: usize| {
        HeapOffset::new(arena.offset.get() + index as u64 * (ARENA / 8) as u64 + 13 * index as u64)
    };
    lens.into_iter().enumerate().map(|(index, len)| Region::new(at(index), len)).collect()
}

/// Everything that must stay as it is: of a rank's segment, whose heap has `payload` that is
/// written to, and of what all share.
fn fingerprint(comm: &Communicator, owner: u32, payload: &[Region]) -> Vec<u64> {
    let mapping = mapping(comm, owner);
    let mut all = words_but(&mapping, changing(payload));
    let shared = control_segment(&mapping);
    all.extend(words_but(&shared, changing_in_control(comm.n_ranks())));
    all
}

/// What legitimately changes in a rank's segment.
fn changing(payload: &[Region]) -> Vec<Range<u64>> {
    let mut ranges = vec![
        // Rank 0 sends to itself, over its third channel.
        places(SEMAPHORES + 2 * 128, 1),
        // What the hostile rank, number 1, sends it may raise as it likes.
        places(SEMAPHORES + 16 * 128, 16),
        // Three port channels are open at most, and one proxy sleeps.
        FIFOS..FIFOS + 3 * FIFO_STRIDE,
        places(DOORBELLS, 1),
        places(COMPLETIONS, 3),
        places(ROSTER, 1),
    ];
    ranges.extend(payload.iter().map(|region| {
        let start = HEAP + region.offset.get();
        start..start + region.len
    }));
    ranges
}

/// Like the places in a heap, but in the control segment; see the table of `channel::control`.
fn changing_in_control(n_ranks: u32) -> Vec<Range<u64>> {
    let each = u64::from(n_ranks);
    vec![
        places(4224, 1),           // where those sleep who wait in a barrier
        places(4352, 1),           // where the service process sleeps
        places(37248, each),       // arrivals: there are barriers between two looks
        places(201_600, 2 * each), // what ranks tell of long waits
        places(267_136, each + 1), // heartbeats, that of the service process last
        places(308_224, 1),        // how often a producer has come or gone
    ]
}

fn places(at: u64, count: u64) -> Range<u64> {
    at..at + count * 128
}

/// The words of `mapping` outside `ranges`, which end at whole words.
fn words_but(mapping: &Mapping, mut ranges: Vec<Range<u64>>) -> Vec<u64> {
    let mut all = Vec::new();
    let mut next = 0;
    ranges.sort_unstable_by_key(|range| range.start);
    for range in ranges.into_iter().chain(std::iter::once(mapping.len()..mapping.len())) {
        let cells = mapping.cells::<AtomicU64>(next, (range.start - next) / 8).unwrap();
        all.extend(cells.iter().map(plain::load));
        next = range.end;
    }
    all
}

/// The control segment of the epoch that the segment behind `mapping` belongs to, found among the
/// descriptors of this process.
fn control_segment(mapping: &Mapping) -> Mapping {
    let identity = Identity { owner: 0, ..mapping.cell::<SegmentHeader>(0).unwrap().identity() };
    let expected = Expected { len: Some(CONTROL_LEN), identity: Some(identity) };
    let paths = std::fs::read_dir("/proc/self/fd").unwrap().flatten().map(|entry| entry.path());
    let segments = paths.filter(|path| {
        std::fs::read_link(path).is_ok_and(|target| target.to_string_lossy().starts_with("/memfd:shmccl"))
    });
    let mut opened = segments.filter_map(|path| {
        let file = std::fs::File::options().read(true).write(true).open(path).ok()?;
        Segment::attach(OwnedFd::from(file), AttachAs::Sealed, &expected).ok()
    });
    opened.next().expect("kept open").map().unwrap()
}

/// What rank 1 has sent over all of its channels to all ranks, as their semaphores count it.
fn sent_by_the_hostile_rank(comm: &Communicator) -> u64 {
    let of_rank = |owner| {
        let cells = mapping(comm, owner).cells::<AtomicU64>(SEMAPHORES + 16 * 128, 16 * PLACE_WORDS).unwrap();
        cells.iter().step_by(16).map(plain::load).fold(0, u64::wrapping_add)
    };
    (0..comm.n_ranks()).map(of_rank).fold(0, u64::wrapping_add)
}

fn mapping(comm: &Communicator, owner: u32) -> Mapping {
    comm.heap().view().window().mapping(rank(comm, owner)).unwrap().clone()
}

/// Replaces the memory table of this rank by one that names `regions` of both heaps only.
fn narrow_the_table(comm: &Communicator, regions: &[Region]) -> Result<Vec<MemoryId>> {
    let table = MemoryTable::new(cells(comm).memory_table(), comm.n_ranks(), comm.heap_usage().len)?;
    let mut registrar = MemoryRegistrar::new(table);
    for id in 0..comm.n_ranks() {
        registrar.unregister(MemoryId::new(id).unwrap())?;
    }
    let owners = (0..comm.n_ranks()).map(|owner| rank(comm, owner));
    owners
        .flat_map(|owner| regions.iter().map(move |region| (owner, *region)))
        .map(|(owner, region)| registrar.register(owner, region))
        .collect()
}

/// Writes triggers, some nearly right and some mere noise, and forged positions, into fifo number
/// `index`.
fn attack(comm: &Communicator, index: u32, random: &mut Random, mut between: impl FnMut()) {
    let at = FIFOS + u64::from(index) * FIFO_STRIDE;
    let own = mapping(comm, comm.rank().get());
    let header = own.cells::<AtomicU64>(at, SLOTS_AT / 8).unwrap();
    let slots = own.cells::<AtomicU64>(at + SLOTS_AT, 2 * FIFO_SLOTS).unwrap();
    let (fifo, kernel) = (cells(comm).fifo(0).unwrap(), HostKernel::detect());
    let end = Instant::now() + duration();
    while Instant::now() < end {
        // Either all slots in their order, committed in one lap or the other, or any slot in any
        // lap.
        let (in_order, lap) = (random.below(2) == 0, random.next() & 1 << 63);
        for turn in 0..BURST {
            let [first, mut second] = trigger(random);
            let mut slot = usize::try_from(2 * random.below(FIFO_SLOTS)).unwrap();
            if in_order {
                slot = usize::try_from(2 * (turn % FIFO_SLOTS)).unwrap();
                second = second & !(1 << 63) | lap;
            }
            plain::store(&slots[slot], first);
            plain::store(&slots[slot + 1], second);
            if random.below(20) == 0 {
                let word = match random.below(3) {
                    0 => usize::try_from(16 * random.below(4)).unwrap(),
                    _ => usize::try_from(random.below(header.len() as u64)).unwrap(),
                };
                let value = match random.below(3) {
                    0 => random.below(2000),
                    1 => u64::MAX - random.below(2000),
                    _ => random.next(),
                };
                plain::store(&header[word], value);
            }
        }
        fifo.doorbell.wake(&kernel);
        between();
    }
}

fn trigger(random: &mut Random) -> [u64; 2] {
    if random.below(4) == 0 {
        return [random.next(), random.next()];
    }
    // Ids of about as many as there are, offsets and lengths of about the right size.
    let (source, target) = (random.below(20), random.below(20));
    let longest = 1 << random.below(18);
    let (len, from, to) = (random.below(longest), random.below(longest), random.below(longest));
    let (semaphore, kind) = (random.below(40), random.next() >> 60);
    [len | from << 32, to | source << 32 | target << 41 | semaphore << 50 | kind << 60]
}

port_scenario!(a_hostile_fifo_harms_nobody, Job::of(2).patience(Duration::from_secs(600)), |comm| {
    let arena = comm.alloc::<u8>(ARENA)?;
    let (stopped, honest) = (comm.alloc::<u64>(1)?, comm.alloc::<u64>(2)?);
    let regions = named(arena.region());
    arena.fill(GUARD);
    let own = comm.rank().get();
    let hostile = own == 1;
    // Its own proxy serves two fifos, where it has one: then the second is attacked, and the first
    // used honestly.
    let executed = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&executed);
    let counting = |mut executor: Executor| {
        move |fifo: usize, trigger: &Trigger| {
            let done = executor.handle(fifo, trigger);
            if fifo == 1 && done.is_ok() {
                counted.fetch_add(1, Ordering::Relaxed);
            }
            done
        }
    };
    let two_fifos = hostile && comm.start_proxy(2, counting).is_ok();
    // Proxies look at fifos that have producers, and sleep when there are none.
    let _in_use = [comm.port_channel(comm.rank())?, comm.port_channel(comm.rank())?];
    let ids = if hostile { narrow_the_table(comm, &regions)? } else { Vec::new() };
    comm.barrier()?;
    let payload = [arena.region(), stopped.region(), honest.region()];
    let before = fingerprint(comm, own, &payload);
    comm.barrier()?;
    let mut rounds = 0;
    if hostile {
        let seed = seed();
        let mut random = Random(seed);
        let mut producer = two_fifos.then(|| raw_producer(comm, 0));
        attack(comm, u32::from(two_fifos), &mut random, || {
            if let Some(producer) = &mut producer {
                serve_honestly(comm, producer, &ids, rounds);
            }
            rounds += 1;
        });
        plain::store(&*comm.cell::<AtomicU64>(rank(comm, 0), stopped.region().offset)?, 1);
        let executed = executed.load(Ordering::Relaxed);
        // In a service process nobody can count what is executed; but what of it raises semaphores
        // does so there, too.
        let raised = sent_by_the_hostile_rank(comm);
        assert!(if two_fifos { executed > 0 } else { raised > 0 }, "the attack reached nothing");
        let counted = if two_fifos { executed.to_string() } else { format!("{raised} signals of them") };
        figure(&format!(
            "hostile fifo, SHMCCL_SEED={seed}: {rounds} bursts of {BURST} forged triggers, {counted} executed"
        ));
    } else {
        let mut channel = comm.port_channel(comm.rank())?;
        let (from, to) = (honest.part(0, 1)?.offset, honest.part(1, 1)?.offset);
        // Whatever its neighbour does, this rank is served.
        loop {
            honest.set(0, rounds)?;
            channel.put_with_signal_and_flush(to, from, 8)?;
            channel.wait()?;
            assert_eq!(honest.get(1)?, rounds);
            rounds += 1;
            if plain::load(&*comm.cell::<AtomicU64>(comm.rank(), stopped.region().offset)?) != 0 {
                break;
            }
        }
    }
    assert!(rounds > 0);
    comm.barrier()?;
    check_guards(&arena.to_vec(), arena.region(), &regions);
    let after = fingerprint(comm, own, &payload);
    let changed = before.iter().zip(&after).position(|(before, after)| before != after);
    assert!(
        before.len() == after.len() && changed.is_none(),
        "word {changed:?} of what rank {own} sees has changed"
    );
    comm.barrier()?;
    if !hostile {
        // A proxy that has gone through this serves on.
        let mut channel = comm.port_channel(comm.rank())?;
        channel.put_with_signal_and_flush(honest.part(1, 1)?.offset, honest.part(0, 1)?.offset, 8)?;
        channel.wait()?;
    }
    comm.barrier()?;
});

/// Has the attacked proxy do something useful through its other fifo.
fn serve_honestly(
    comm: &Communicator,
    producer: &mut crate::refused_triggers::Raw,
    ids: &[MemoryId],
    round: u64,
) {
    // Within the eighth region, which is the longest; the attack writes there too, so only
    // completion counts.
    let transfer = {
        let len = TransferLen::new(64).unwrap();
        Transfer { len, source: ids[7], source_offset: 0, target: ids[7], target_offset: 128 }
    };
    push(producer, Trigger::put(transfer));
    let position = shmccl_proxy::Push::try_push(
        producer,
        Trigger::put_with_signal_and_flush(transfer, SemaphoreId::new(16).unwrap()),
    );
    let position = position.unwrap();
    let fifo = cells(comm).fifo(0).unwrap();
    fifo.doorbell.wake(&HostKernel::detect());
    while !position.is_completed(&fifo.header) {
        std::thread::yield_now();
    }
    assert_eq!(fifo.snapshot().refused, 0, "round {round}");
}

fn check_guards(bytes: &[u8], arena: Region, regions: &[Region]) {
    let mut next = 0;
    let start = |region: &Region| usize::try_from(region.offset.get() - arena.offset.get()).unwrap();
    let ends =
        regions.iter().map(|region| (start(region), start(region) + usize::try_from(region.len).unwrap()));
    for (from, to) in ends.chain([(bytes.len(), bytes.len())]) {
        let hit = bytes[next..from].iter().position(|byte| *byte != GUARD);
        assert!(hit.is_none(), "byte {} of the guard at {next} was written", hit.unwrap_or(0));
        next = to;
    }
}
