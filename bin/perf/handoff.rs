//! The same-core yield hand-off: two threads on one core pass a flag to each other by giving way.

use shmccl::Result;
use shmccl::shm::HostKernel;
use shmccl::sync::bare::BareFlag;

use super::clock::now_ns;
use super::lane::Lane;

/// Hand-offs in one sample.
const BATCH: u64 = 16;

/// The rank that leads does it with a thread that inherits its core; the other rank has nothing to do.
#[derive(Debug)]
pub(crate) struct YieldHandoff {
    leads: bool,
    kernel: HostKernel,
}

impl YieldHandoff {
    /// On the core of the calling thread, if the process is pinned.
    pub(crate) fn new(leads: bool) -> Self {
        Self { leads, kernel: HostKernel::detect() }
    }
}

impl Lane for YieldHandoff {
    fn slice(&mut self, ops: u64, samples: &mut Vec<f64>) -> Result<()> {
        if !self.leads {
            return Ok(());
        }
        let (here, there) = (BareFlag::new(0), BareFlag::new(0));
        let kernel = &self.kernel;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for turn in 0..=ops / BATCH * BATCH {
                    there.spin_yielding(kernel, turn + 1);
                    here.set(turn + 1);
                }
            });
            let mut turn = 0;
            let mut pass = || {
                turn += 1;
                there.set(turn);
                here.spin_yielding(kernel, turn);
            };
            pass(); // the thread has started
            for _ in 0..ops / BATCH {
                let start = now_ns();
                for _ in 0..BATCH {
                    pass();
                }
                samples.push((now_ns() - start) as f64 / (2 * BATCH) as f64);
            }
        });
        Ok(())
    }

    fn batch(&self) -> u64 {
        BATCH
    }
}
