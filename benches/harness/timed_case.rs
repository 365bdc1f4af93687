//! An operation as a contender: how it is timed, for the library and for its limits alike.
//!
//! The time of an operation is that of the call alone, on data that its own rank has just written
//! and that are read next. Reading the clock takes as long as a small operation, so small ones are
//! timed many at a time. Rewriting and reading in between then count, and take next to nothing. If
//! percentiles are asked for, the processor's counter is read between any two of a batch; the few
//! nanoseconds of that are subtracted. Where ranks share cores, an operation takes microseconds and
//! is timed alone.

use std::cell::RefCell;
use std::rc::Rc;

use shmccl::{Communicator, Result};
use shmccl_limits::eager::MOST_BYTES;
use shmccl_limits::stopwatch::Stopwatch;

use crate::case::CaseData;
use crate::clock::now_ns;
use crate::interleave::Contender;
use crate::pattern::TestElement;
use crate::report::Memory;
use crate::sync::Gathering;

/// Up to this many bytes operations are timed in batches: those that have a bare loop by slots.
pub const BATCH_BYTES: u64 = MOST_BYTES;

/// Operations of a batch.
const BATCH: u64 = 64;

/// Operations that bring a contender's buffers into the caches. An operation touches all of them,
/// and the first one still drives out others.
const SETTLING: u64 = 2;

/// Up to so many bytes the library may find its own memory in the caches.
const WARMED_BYTES: u64 = 4 << 20;

/// A way to do the operation of a [`CaseData`].
pub trait RunCase<T> {
    /// Does the operation.
    fn run(&mut self, data: &mut CaseData<T>, gathering: &mut Gathering) -> Result<()>;
}

/// The operation done by the library.
#[derive(Debug)]
pub struct ByLibrary<'c>(pub &'c mut Communicator);

impl<T: TestElement> RunCase<T> for ByLibrary<'_> {
    #[inline]
    fn run(&mut self, data: &mut CaseData<T>, _gathering: &mut Gathering) -> Result<()> {
        data.run(self.0)
    }
}

/// An operation that is done again and again by one runner.
#[derive(Debug)]
pub struct TimedCase<T, R> {
    runner: R,
    data: CaseData<T>,
    gathering: Rc<RefCell<Gathering>>,
    batch: u64,
    /// The clock of each operation of a batch, if each is timed.
    stopwatch: Option<Stopwatch>,
    /// Operations at the start of a slice that are not timed.
    settling: u64,
}

impl<T: TestElement, R: RunCase<T>> TimedCase<T, R> {
    /// Times the operation of `data`, of `bytes`, done by `runner`.
    pub fn new(runner: R, data: CaseData<T>, gathering: &Rc<RefCell<Gathering>>, bytes: u64) -> Self {
        let is_short = bytes <= BATCH_BYTES && !gathering.borrow().times_one_by_one();
        let batch = if is_short { BATCH } else { 1 };
        let stopwatch = if is_short { gathering.borrow().stopwatch() } else { None };
        Self { runner, data, gathering: Rc::clone(gathering), batch, stopwatch, settling: 0 }
    }

    /// Adds untimed operations at the start of a slice where contenders have buffers of their own.
    /// They drive out of the caches what another contender has left there.
    pub fn settled(mut self, memory: Memory) -> Self {
        if memory == Memory::Ordinary && self.batch == 1 {
            self.settling = SETTLING;
        }
        self
    }

    /// Adds untimed operations where contenders share buffers but not algorithms. They bring the
    /// memory of the algorithm back into the caches, which hold it up to `WARMED_BYTES` only.
    pub fn warmed(mut self, bytes: u64) -> Self {
        if bytes <= WARMED_BYTES {
            self.settling = SETTLING;
        }
        self
    }

    /// Exchanges the data with `data`.
    pub fn swap(&mut self, data: &mut CaseData<T>) {
        std::mem::swap(&mut self.data, data);
    }

    /// Returns what does the operation.
    pub fn runner(&mut self) -> &mut R {
        &mut self.runner
    }

    fn once(&mut self, gathering: &mut Gathering) -> Result<f64> {
        self.data.rewrite()?;
        gathering.meet()?;
        let start = now_ns();
        self.runner.run(&mut self.data, gathering)?;
        let took = now_ns() - start;
        self.data.verify()?;
        Ok(took as f64)
    }

    fn batch_of(&mut self, gathering: &mut Gathering) -> Result<f64> {
        gathering.meet()?;
        let start = now_ns();
        for _ in 0..self.batch {
            self.data.rewrite()?;
            self.runner.run(&mut self.data, gathering)?;
            self.data.verify()?;
        }
        Ok((now_ns() - start) as f64 / self.batch as f64)
    }

    /// Does a batch, and appends to `times` that of each operation but the first, by the
    /// `stopwatch`. The first begins after a meeting, unlike the others.
    fn laps_of(
        &mut self,
        stopwatch: Stopwatch,
        gathering: &mut Gathering,
        times: &mut Vec<f64>,
    ) -> Result<()> {
        gathering.meet()?;
        let mut before = None;
        for _ in 0..self.batch {
            self.data.rewrite()?;
            self.runner.run(&mut self.data, gathering)?;
            self.data.verify()?;
            let now = stopwatch.ticks();
            times.extend(before.map(|before| stopwatch.lap_ns(before, now)));
            before = Some(now);
        }
        Ok(())
    }
}

impl<T: TestElement, R: RunCase<T>> Contender for TimedCase<T, R> {
    fn slice(&mut self, ops: u64, samples: &mut Vec<f64>) -> Result<()> {
        let gathering = Rc::clone(&self.gathering);
        let gathering = &mut *gathering.borrow_mut();
        for _ in 0..self.settling {
            self.once(gathering)?;
        }
        let mut times = Vec::new();
        for _ in 0..ops / self.batch {
            match self.stopwatch {
                Some(stopwatch) => self.laps_of(stopwatch, gathering, &mut times)?,
                None if self.batch > 1 => times.push(self.batch_of(gathering)?),
                None => times.push(self.once(gathering)?),
            }
        }
        gathering.hand_in(&times, samples)
    }

    fn batch(&self) -> u64 {
        self.batch
    }

    fn per_sample(&self) -> u64 {
        if self.stopwatch.is_some() { 1 } else { self.batch }
    }

    fn wrong(&self) -> u64 {
        self.data.wrong
    }
}
