//! Models of the protocols: loom runs each in every interleaving (up to a number of forced
//! switches) and lets every load return every value that the orderings allow.
//!
//! What one thread hands to another is a [`Ghost`]: a relaxed atomic that starts at 0. If the edge
//! under test does not carry it, loom lets the reader find the 0, and the assertion on it fails.
//! For an edge that says "I have read, you may overwrite", the reader leaves a ghost after reading:
//! it happens before the overwriting all the same. A missed wake leaves a thread asleep, which loom
//! reports as a deadlock: time never passes in a model.
//!
//! The barriers of [`MockKernel`] are sequentially consistent fences on both sides, as on a system
//! without `membarrier`. They are stronger than the pair that signallers have elsewhere. They order
//! two wakers with each other, and the acts of a waker before a fence with its acts after it. What
//! must hold without that is shown in `membarrier` and `regroup`, whose kernel has the asymmetric
//! pair.

use std::time::Duration;

use loom::{sync::Arc, thread};

use super::{
    atomic::{AtomicU64, Ordering},
    kernel::mock::MockKernel,
    *,
};
use crate::rank::Rank;

mod barriers;
mod endings;
mod locks;
mod membarrier;
mod posts;
mod regroup;
mod signals;
mod words;

/// Gives up the processor at every failed poll; never gets as far as sleeping within a model.
const POLL: WaitPolicy = WaitPolicy { spins: 0, park_after: Duration::MAX };

/// Sleeps as soon as the first poll has failed.
const PARK: WaitPolicy = WaitPolicy { spins: 0, park_after: Duration::ZERO };

/// Enough forced switches for each protocol's worst case, which needs two; one more for good
/// measure.
fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(body);
}

/// Something written before an edge and read after it.
struct Ghost(AtomicU64);

impl Ghost {
    fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    fn write(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed); // Relaxed: the edge under test has to carry it
    }

    fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed) // Relaxed: the edge under test has to carry it
    }
}

struct World {
    kernel: MockKernel,
    revoke: RevokeCell,
    semaphore: SemaphoreCell,
    park: ParkCell,
    life: LifeCell,
    ghosts: [Ghost; 3],
}

impl World {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            kernel: MockKernel::new(),
            revoke: RevokeCell::default(),
            semaphore: SemaphoreCell::new(0),
            park: ParkCell::default(),
            life: LifeCell::default(),
            ghosts: [Ghost::new(), Ghost::new(), Ghost::new()],
        })
    }

    fn waiting(&self, policy: WaitPolicy) -> Waiting<'_, MockKernel, RevokeCell> {
        Waiting::new(&self.kernel, &self.revoke, policy, Duration::MAX)
    }

    /// Waits for the ghost `index` to be written.
    fn wait_for_ghost(&self, index: usize, policy: WaitPolicy) -> Result<(), Stop> {
        wait_until(&self.waiting(policy), &self.park, || (self.ghosts[index].read() != 0).then_some(()))
    }
}

/// Runs `body` on another thread of the model.
fn spawn<T: 'static>(world: &Arc<World>, body: impl FnOnce(&World) -> T + 'static) -> thread::JoinHandle<T> {
    let world = Arc::clone(world);
    thread::spawn(move || body(&world))
}

fn known(rank: u32) -> Rank {
    Rank::known(rank)
}
