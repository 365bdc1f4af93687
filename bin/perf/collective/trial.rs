//! An operation as a lane: how it is timed, for the library's operation and for its limit alike.
//!
//! The time of an operation is that of the call alone, of data that its own rank has just written and somebody reads next. The
//! clock takes as long as a small operation: those are timed many at a time, with the rewriting and the reading in between, which
//! for so few bytes take next to nothing. If percentiles are asked for, the processor's counter is looked at between any two of a batch:
//! that takes a few nanoseconds, which are subtracted. Where ranks share cores an operation takes microseconds, and is then timed alone.

use std::cell::RefCell;
use std::rc::Rc;

use shmccl::{Communicator, Result};
use shmccl_limits::stopwatch::Stopwatch;

use super::super::clock::now_ns;
use super::super::lane::Lane;
use super::gathering::Gathering;
use super::number::Number;
use super::settings::Memory;
use super::workload::Workload;

/// Up to this many bytes operations are timed in batches.
pub(crate) const BATCH_BYTES: u64 = 8 << 10;

/// Operations of a batch.
const BATCH: u64 = 64;

/// Operations that bring a lane's buffers into the caches: an operation touches all of them, and the first one still drives out
/// others.
const SETTLING: u64 = 2;

/// Up to so many bytes an operation may find what it keeps for itself in the caches.
const WARMED_BYTES: u64 = 4 << 20;

/// One way to do the operation of a [`Workload`].
pub(crate) trait Way<T> {
    /// Does it.
    fn go(&mut self, workload: &mut Workload<T>, gathering: &mut Gathering) -> Result<()>;
}

/// The library's way.
#[derive(Debug)]
pub(crate) struct ByLibrary<'c>(pub(crate) &'c mut Communicator);

impl<T: Number> Way<T> for ByLibrary<'_> {
    #[inline]
    fn go(&mut self, workload: &mut Workload<T>, _gathering: &mut Gathering) -> Result<()> {
        workload.run(self.0)
    }
}

/// An operation that is done again and again in one way.
#[derive(Debug)]
pub(crate) struct Trial<T, W> {
    way: W,
    workload: Workload<T>,
    gathering: Rc<RefCell<Gathering>>,
    batch: u64,
    /// By what each operation of a batch is timed, if it is.
    stopwatch: Option<Stopwatch>,
    /// Operations at the start of a slice that are not timed.
    settling: u64,
}

impl<T: Number, W: Way<T>> Trial<T, W> {
    /// Does the operation of `workload`, of `bytes`, in this `way`.
    pub(crate) fn new(way: W, workload: Workload<T>, gathering: &Rc<RefCell<Gathering>>, bytes: u64) -> Self {
        let is_short = bytes <= BATCH_BYTES && !gathering.borrow().times_one_by_one();
        let batch = if is_short { BATCH } else { 1 };
        let stopwatch = if is_short { gathering.borrow().stopwatch() } else { None };
        Self { way, workload, gathering: Rc::clone(gathering), batch, stopwatch, settling: 0 }
    }

    /// The same, where lanes have buffers of their own: what another lane has left in the caches is driven out before the first
    /// operation is timed.
    pub(crate) fn settled(mut self, memory: Memory) -> Self {
        if memory == Memory::Ordinary && self.batch == 1 {
            self.settling = SETTLING;
        }
        self
    }

    /// The same, where lanes share buffers but not ways: what its own way keeps for itself is brought back into the caches before the
    /// first operation is timed. Of more bytes than caches hold it would be driven out again.
    pub(crate) fn warmed(mut self, bytes: u64) -> Self {
        if bytes <= WARMED_BYTES {
            self.settling = SETTLING;
        }
        self
    }

    /// Lets this trial go on with another workload, and takes its own in exchange.
    pub(crate) fn swap(&mut self, workload: &mut Workload<T>) {
        std::mem::swap(&mut self.workload, workload);
    }

    /// In which way it is done.
    pub(crate) fn way(&mut self) -> &mut W {
        &mut self.way
    }

    fn once(&mut self, gathering: &mut Gathering) -> Result<f64> {
        self.workload.rewrite()?;
        gathering.meet()?;
        let start = now_ns();
        self.way.go(&mut self.workload, gathering)?;
        let took = now_ns() - start;
        self.workload.verify()?;
        Ok(took as f64)
    }

    fn batch_of(&mut self, gathering: &mut Gathering) -> Result<f64> {
        gathering.meet()?;
        let start = now_ns();
        for _ in 0..self.batch {
            self.workload.rewrite()?;
            self.way.go(&mut self.workload, gathering)?;
            self.workload.verify()?;
        }
        Ok((now_ns() - start) as f64 / self.batch as f64)
    }

    /// Does a batch, and appends to `times` that of each operation but the first, by the `stopwatch`: who has just met does not
    /// begin like who comes from the operation before.
    fn laps_of(
        &mut self,
        stopwatch: Stopwatch,
        gathering: &mut Gathering,
        times: &mut Vec<f64>,
    ) -> Result<()> {
        gathering.meet()?;
        let mut before = None;
        for _ in 0..self.batch {
            self.workload.rewrite()?;
            self.way.go(&mut self.workload, gathering)?;
            self.workload.verify()?;
            let now = stopwatch.ticks();
            times.extend(before.map(|before| stopwatch.lap_ns(before, now)));
            before = Some(now);
        }
        Ok(())
    }
}

impl<T: Number, W: Way<T>> Lane for Trial<T, W> {
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
        self.workload.wrong
    }
}
