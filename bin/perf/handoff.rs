//! The same-core yield hand-off: two threads on one core pass a flag to each other by giving way.

use shmccl::Result;
use shmccl_limits::flags::BareFlag;

use super::clock::now_ns;
use super::lane::{BATCH, Lane, timed_together};

/// The rank that leads does it with a thread that inherits its core; the other rank has nothing to do.
#[derive(Debug)]
pub(crate) struct YieldHandoff {
    leads: bool,
    /// Hand-offs there and back in one sample.
    together: u64,
}

impl YieldHandoff {
    /// On the core of the calling thread, if the process is pinned.
    pub(crate) fn new(leads: bool) -> Self {
        Self { leads, together: BATCH }
    }
}

impl Lane for YieldHandoff {
    fn slice(&mut self, ops: u64, samples: &mut Vec<f64>) -> Result<()> {
        if !self.leads {
            return Ok(());
        }
        let (here, there) = (BareFlag::new(0), BareFlag::new(0));
        let together = self.together;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for turn in 0..=ops / together * together {
                    there.spin_yielding(turn + 1);
                    here.set(turn + 1);
                }
            });
            let mut turn = 0;
            let mut pass = || {
                turn += 1;
                there.set(turn);
                here.spin_yielding(turn);
            };
            pass(); // the thread has started
            for _ in 0..ops / together {
                let start = now_ns();
                for _ in 0..together {
                    pass();
                }
                samples.push((now_ns() - start) as f64 / (2 * together) as f64);
            }
        });
        Ok(())
    }

    fn batch(&self) -> u64 {
        BATCH
    }

    fn settle(&mut self, op_ns: f64) {
        self.together = timed_together(op_ns);
    }

    fn per_sample(&self) -> u64 {
        2 * self.together
    }
}
