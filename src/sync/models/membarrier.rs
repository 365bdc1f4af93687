//! A kernel whose barriers are as lopsided as `membarrier`, and models on it.
//!
//! Each thread of a model has a core of its own, and each core a word on which nothing is ever
//! decided. The heavy barrier, which interrupts all cores, is a read-modify-write of each core's
//! word in turn. The light one is a read-modify-write of the word of the thread's own core: the
//! moment at which an interruption finds the thread either before it or past it.
//!
//! - The interruption comes first: the thread acquires what the sleeper did before its heavy
//!   barrier, so its next look sees it.
//! - The thread comes first: the sleeper acquires what the thread did before its light barrier, so
//!   its last look sees it.
//!
//! One of the two is what the system call promises, and nothing more is given: two light barriers
//! touch different words and order nothing between their threads, and one without a heavy barrier
//! orders nothing at all. A real interruption also brings out what a thread stored since its last
//! light barrier; a model that passes does not need it.

use super::*;
use crate::sync::{Kernel, atomic::AtomicU32};

const CORES: usize = 3;

/// The machine that a model runs on.
#[derive(Debug)]
struct Machine {
    futexes: MockKernel,
    cores: [AtomicU64; CORES],
}

/// One core, and the kernel as the one thread on it meets it.
#[derive(Debug)]
pub(super) struct Core {
    machine: Arc<Machine>,
    number: usize,
}

impl Core {
    /// All cores of a machine.
    pub(super) fn all() -> [Self; CORES] {
        let cores = [AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0)];
        let machine = Arc::new(Machine { futexes: MockKernel::new(), cores });
        [0, 1, 2].map(|number| Self { machine: Arc::clone(&machine), number })
    }

    fn interrupt(&self, core: usize) {
        self.machine.cores[core].fetch_add(1, Ordering::AcqRel);
    }
}

impl Kernel for Core {
    fn light_barrier(&self) {
        self.interrupt(self.number);
    }

    fn heavy_barrier(&self) {
        (0..CORES).for_each(|core| self.interrupt(core));
    }

    fn sleep(&self, words: &[SleepWord<'_>], timeout: Duration) {
        self.machine.futexes.sleep(words, timeout);
    }

    fn wake_all(&self, word: &AtomicU32) {
        self.machine.futexes.wake_all(word);
    }

    fn yield_now(&self) {
        self.machine.futexes.yield_now();
    }

    fn now(&self) -> Duration {
        self.machine.futexes.now()
    }
}

/// What the threads of a model share.
struct Host {
    cores: [Core; CORES],
    revoke: RevokeCell,
    semaphore: SemaphoreCell,
    park: ParkCell,
    ghosts: [Ghost; CORES],
    cells: [BarrierCell; CORES],
}

impl Host {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            cores: Core::all(),
            revoke: RevokeCell::default(),
            semaphore: SemaphoreCell::new(0),
            park: ParkCell::default(),
            ghosts: [Ghost::new(), Ghost::new(), Ghost::new()],
            cells: [BarrierCell::new(0), BarrierCell::new(0), BarrierCell::new(0)],
        })
    }

    /// Sleeps on `core` until `poll` returns something.
    fn sleep(&self, core: &Core, poll: impl FnMut() -> Option<()>) {
        wait_until(&self.waiting(core), &self.park, poll).unwrap();
    }

    fn waiting<'a>(&'a self, core: &'a Core) -> Waiting<'a, Core, RevokeCell> {
        Waiting::new(core, &self.revoke, PARK, Duration::MAX)
    }
}

type Body = fn(&Host, &Core);

/// Runs each of `bodies` on a core of its own, the first on the model's own thread.
fn on_cores(bodies: &[Body]) {
    let host = Host::new();
    let others: Vec<_> = (1..bodies.len())
        .map(|number| {
            let body = bodies[number];
            let host = Arc::clone(&host);
            thread::spawn(move || body(&host, &host.cores[number]))
        })
        .collect();
    bodies[0](&host, &host.cores[0]);
    for other in others {
        other.join().unwrap();
    }
}

/// Sleeps until the ghost `0` is written.
fn sleep_for_a_ghost(host: &Host, core: &Core) {
    host.sleep(core, || (host.ghosts[0].read() != 0).then_some(()));
}

fn write_a_ghost(host: &Host, core: &Core) {
    host.ghosts[0].write(1);
    host.park.wake(core);
}

fn write_own_ghost(host: &Host, core: &Core) {
    host.ghosts[core.number].write(1);
    host.park.wake(core);
}

/// Comes to the barrier as the member of its core's number, and stays until all have.
fn meet(host: &Host, core: &Core) {
    let mut barrier = Barrier::new(&host.cells[..], &host.park, core.number, 0);
    barrier.barrier(&host.waiting(core)).unwrap();
}

/// Comes to the barrier, and goes.
fn arrive(host: &Host, core: &Core) {
    Barrier::new(&host.cells[..], &host.park, core.number, 0).arrive(core);
}

#[test]
fn no_wake_is_missed_though_the_waker_has_no_fence() {
    model(|| on_cores(&[sleep_for_a_ghost, write_a_ghost]));
}

#[test]
fn two_sleepers_hear_of_one_waker_that_has_no_fence() {
    model(|| on_cores(&[sleep_for_a_ghost, write_a_ghost, sleep_for_a_ghost]));
}

#[test]
fn who_waits_for_two_things_hears_of_both_from_wakers_without_fences() {
    model(|| {
        on_cores(&[
            |host: &Host, core: &Core| {
                let both = || (host.ghosts[1].read() & host.ghosts[2].read() == 1).then_some(());
                host.sleep(core, both);
            },
            write_own_ghost,
            write_own_ghost,
        ]);
    });
}

#[test]
fn who_waits_for_words_hears_of_changes_by_ranks_without_fences() {
    fn add(host: &Host, core: &Core) {
        word::change_words(&host.park, core, || AtomicWord::fetch_add(&host.ghosts[0].0, 1));
    }
    model(|| {
        on_cores(&[
            |host: &Host, core: &Core| {
                host.sleep(core, || (AtomicWord::fetch(&host.ghosts[0].0) == 2).then_some(()));
            },
            add,
            add,
        ]);
    });
}

#[test]
fn two_that_arrive_at_the_same_moment_do_not_leave_the_waking_to_each_other() {
    model(|| on_cores(&[meet, arrive, arrive]));
}

#[test]
fn the_last_of_three_members_wakes_the_others() {
    model(|| on_cores(&[meet, meet, meet]));
}

#[test]
fn a_relaxed_signal_carries_on_what_the_one_before_has_published() {
    model(|| {
        on_cores(&[
            |host: &Host, core: &Core| {
                let mut sender = SemaphoreSender::new(&host.semaphore, 0);
                host.ghosts[0].write(7);
                sender.signal(core);
                sender.relaxed_signal(core);
            },
            |host: &Host, _: &Core| {
                if SemaphoreReceiver::new(&host.semaphore, 0).poll() {
                    assert_eq!(host.ghosts[0].read(), 7);
                }
            },
        ]);
    });
}
