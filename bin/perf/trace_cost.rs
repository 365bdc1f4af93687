//! What a trace costs: a traced operation against an untraced one, in one process, on one memory.
//!
//! The launcher has a trace written, to nowhere. Three contenders take turns: traced, untraced, and
//! untraced once more. The difference of the last two is what this machine cannot tell. A slice is
//! one sample: the mean of the middle half of what it has timed.

use std::cell::RefCell;
use std::rc::Rc;

use anyhow::Result;
use shmccl::collective::Operation;
use shmccl::reduce::ReduceOp;
use shmccl_harness::case::{CaseData, CaseSpec, CollectiveBuffers};
use shmccl_harness::interleave::{Contender, Effort, Interleaved, Measured, Participants, take_turns};
use shmccl_harness::layout::CaseLayout;
use shmccl_harness::report::Memory;
use shmccl_harness::sync::{AllSync, Gathering, PairSync, RankAverage};
use shmccl_harness::timed_case::{ByLibrary, TimedCase};

use super::bench::TestBench;
use super::buffers::PairBuffers;
use super::ping_pong::PingPong;

/// Whether each contender is traced. The first and the third are compared with the second.
const TRACED: [bool; 3] = [true, false, false];

/// The contenders that are compared with the second one, and their names.
const COMPARED: [(usize, &str); 2] = [(0, "traced"), (2, "untraced, too")];

/// One of the contenders that share an operation, traced or not.
struct MaybeTraced<'t, C, S> {
    contender: &'t RefCell<C>,
    set_tracing: S,
    is_traced: bool,
}

impl<C: Contender, S: Fn(&mut C, bool)> Contender for MaybeTraced<'_, C, S> {
    fn slice(&mut self, ops: u64, samples: &mut Vec<f64>) -> shmccl::Result<()> {
        let mut contender = self.contender.borrow_mut();
        (self.set_tracing)(&mut contender, self.is_traced);
        let mut all = Vec::new();
        let done = contender.slice(ops, &mut all);
        (self.set_tracing)(&mut contender, true);
        samples.extend(midmean(all));
        done
    }

    fn batch(&self) -> u64 {
        self.contender.borrow().batch()
    }
}

impl TestBench<'_> {
    /// Measures what a trace costs puts with signal, and all-reduces.
    pub(crate) fn trace_cost(&mut self, mut sync: Option<&mut PairSync>) -> Result<()> {
        let sizes = self.spec.sizes.as_slice();
        self.pair_measures(sync.as_deref_mut(), sizes, Self::traced_puts)?;
        sizes.iter().try_for_each(|len| self.traced_sums(sync.as_deref_mut(), *len))
    }

    /// Measures a put with a signal, one way, and the wait for it.
    fn traced_puts(&mut self, sync: &mut PairSync, buffers: &PairBuffers) -> Result<()> {
        let channel = self.comm.memory_channel(buffers.peer())?;
        let (leads, len) = (buffers.leads(), buffers.len());
        let puts = PingPong::of_messages(buffers.put(self.comm, channel)?, leads, len);
        let puts = RefCell::new(puts);
        sync.meet();
        let set_tracing = |_: &mut _, is_traced| self.comm.set_tracing(is_traced);
        let effort = self.spec.effort(self.test, None);
        let run = with_and_without(Participants::Two(sync), &puts, set_tracing, effort)?;
        let wrong = puts.borrow().wrong();
        let wrong = wrong + sync.share_back(wrong);
        self.report_cost("put_with_signal", len, leads, &run, wrong)
    }

    /// Measures an all-reduce of buffers in the heap, timed as `shmccl perf all_reduce` does.
    fn traced_sums(&mut self, sync: Option<&mut PairSync>, len: u64) -> Result<()> {
        let (n_ranks, leads) = (self.comm.n_ranks(), self.comm.rank().get() == 0);
        let buffers = CollectiveBuffers::alloc(self.comm, len, 0, 0)?;
        let gathering = Gathering::new(self.comm, RankAverage::Mean, self.spec.one_core)?;
        let gathering = Rc::new(RefCell::new(gathering));
        let mut all = AllSync::new(self.comm)?;
        let spec = CaseSpec {
            operation: Operation::AllReduce,
            op: Some(ReduceOp::Sum),
            root: self.comm.rank(),
            layout: CaseLayout::new(Operation::AllReduce, len, size_of::<f32>() as u64, n_ranks.into()),
            in_place: false,
            check: self.spec.check,
        };
        let data = CaseData::<f32>::new(self.comm, spec, buffers, Memory::Heap)?;
        let sums = RefCell::new(TimedCase::new(ByLibrary(self.comm), data, &gathering, len));
        let set_tracing =
            |sums: &mut TimedCase<_, ByLibrary<'_>>, is_traced| sums.runner().0.set_tracing(is_traced);
        let effort = self.spec.effort(self.test, None);
        let run = with_and_without(Participants::of(sync, &mut all), &sums, set_tracing, effort)?;
        let wrong = sums.borrow().wrong();
        let wrong = gathering.borrow_mut().total(wrong)?;
        drop(sums);
        self.report_cost("all_reduce", len, leads, &run, wrong)
    }

    /// Prints the rows of an `operation` on `len` bytes.
    fn report_cost(
        &self,
        operation: &str,
        len: u64,
        leads: bool,
        run: &Interleaved,
        wrong: u64,
    ) -> Result<()> {
        for (contender, name) in COMPARED {
            let comparisons = run.compare(contender, |samples| samples[1].clone()).into_iter().collect();
            let measured = Measured { comparisons, operations: run.operations, wrong };
            self.report(leads, &measured, Some(len), "untraced", |row| {
                row.variant = Some(format!("{operation}, {name}"));
            })?;
        }
        Ok(())
    }
}

/// Returns the mean of the middle half of `samples`. Medians would be a tick of the clock apart,
/// which may be a hundredth of an operation.
fn midmean(mut samples: Vec<f64>) -> Option<f64> {
    samples.sort_unstable_by(f64::total_cmp);
    let quarter = samples.len() / 4;
    let middle = &samples[quarter..samples.len() - quarter];
    (!middle.is_empty()).then(|| middle.iter().sum::<f64>() / middle.len() as f64)
}

/// Lets one `contender` take turns with itself, traced and untraced.
fn with_and_without<C: Contender>(
    participants: Participants<'_>,
    contender: &RefCell<C>,
    set_tracing: impl Fn(&mut C, bool),
    effort: Effort,
) -> Result<Interleaved> {
    let set_tracing = &set_tracing;
    let mut all = TRACED.map(|is_traced| MaybeTraced { contender, set_tracing, is_traced });
    let mut all: Vec<&mut dyn Contender> = all.iter_mut().map(|each| each as &mut dyn Contender).collect();
    Ok(take_turns(participants, &mut all, TRACED.len(), effort)?)
}
