//! The device side of a collective test: for each figure the library takes turns with its limits.

mod shared;

use std::cell::RefCell;
use std::rc::Rc;

use anyhow::{Context, Result};
use shmccl::collective::{ChannelKind, Operation};
use shmccl::reduce::{DataType, ReduceOp};
use shmccl::{Communicator, Rank};
use shmccl_harness::bare_case::rank_buffers;
use shmccl_harness::case::{CaseData, CaseSpec, CollectiveBuffers, Planned, is_defined};
use shmccl_harness::interleave::{Contender, Measured, NamedLimit, Participants, interleave_with_limits};
use shmccl_harness::layout::CaseLayout;
use shmccl_harness::lines::{DeviceLine, RankPlacement};
use shmccl_harness::pattern::{ForType, TestElement, check_operator, operator, with_type};
use shmccl_harness::report::{CollectiveFigures, Memory, PerfRow, row_of};
use shmccl_harness::slices::SliceComparison;
use shmccl_harness::sync::{AllSync, Gathering, PairSync, flags};
use shmccl_harness::test::{Test, TestChannel};
use shmccl_harness::timed_case::{BATCH_BYTES, ByLibrary, RunCase, TimedCase};
use shmccl_limits::eager::{EagerLimit, eager_len};
use shmccl_limits::heap::HeapLimit;
use shmccl_limits::rank_buffers::SIZE;
use shmccl_limits::staged_sum::{StagedLimit, StagedVariant, staging_len};
use shmccl_limits::stopwatch::Stopwatch;

use crate::perf::barrier::YieldBarrier;
use crate::perf::links::SignalEnd;
use crate::perf::ping_pong::PingPong;
use crate::perf::spec::{CollectiveSettings, PerfSpec};
use crate::{output, planned};
use shared::{BetweenAlgorithms, InBothMemories};

/// Up to this many bytes data travel in the cache line of their flag, so that a flag is a limit.
const FLAG_BYTES: u64 = 64;

/// Measures the operation of `test` as the spec says. Collective.
///
/// # Errors
/// Whatever the job fails with.
pub(crate) fn run(
    comm: &mut Communicator,
    spec: &PerfSpec,
    test: Test,
    sync: Option<&mut PairSync>,
) -> Result<()> {
    let settings = spec.collective.as_ref().context("the spec does not say what to measure")?;
    let operation = test.operation().context("no collective operation")?;
    output::print_json(&DeviceLine::Placement(RankPlacement::of(comm)))?;
    comm.set_algorithm(settings.algorithm.as_deref().map(str::parse).transpose()?);
    comm.set_channel_kind(match settings.channel {
        TestChannel::Memory => ChannelKind::Memory,
        TestChannel::Port => ChannelKind::Port,
    })?;
    let planned = settings.plan.as_ref().map(|plan| planned::register(comm, &plan.file)).transpose()?;
    let largest = spec.sizes.iter().copied().max().unwrap_or(0);
    let staging = if operation == Operation::AllReduce { staging_len(largest) } else { 0 };
    let buffers = CollectiveBuffers::alloc(comm, largest, eager_len(comm.n_ranks()), staging)?;
    let is_long = spec.one_core || comm.is_oversubscribed()?;
    let gathering = Gathering::new(comm, settings.average, spec.one_core)?;
    let gathering = gathering.timing_one_by_one(settings.percentiles && is_long);
    let is_brief = settings.percentiles && !is_long;
    let gathering = gathering.timing_within_batches(is_brief.then(Stopwatch::new).flatten());
    let all = AllSync::new(comm)?;
    let mut bench = CollectiveBench {
        comm,
        spec,
        settings,
        test,
        operation,
        buffers,
        gathering: Rc::new(RefCell::new(gathering)),
        sync,
        all,
        planned,
    };
    let measured = bench.figures();
    if let Some(line) = measured.as_ref().err().and_then(DeviceLine::of_stalled) {
        output::print_json(&line)?;
    }
    measured
}

struct CollectiveBench<'a> {
    comm: &'a mut Communicator,
    spec: &'a PerfSpec,
    settings: &'a CollectiveSettings,
    test: Test,
    operation: Operation,
    buffers: CollectiveBuffers,
    gathering: Rc<RefCell<Gathering>>,
    sync: Option<&'a mut PairSync>,
    all: AllSync,
    /// The execution plan that is measured.
    planned: Option<Planned>,
}

/// One figure that is wanted.
#[derive(Clone, Copy)]
struct Wanted<'w> {
    data_type: DataType,
    op: &'w str,
    root: Option<u32>,
    bytes: u64,
    in_place: bool,
}

/// A figure in one memory, of elements of some type.
struct InOneMemory<'b, 'a, 'w>(&'b mut CollectiveBench<'a>, Wanted<'w>);

impl ForType for InOneMemory<'_, '_, '_> {
    type Outcome = Result<()>;

    fn run<T: TestElement>(self) -> Result<()> {
        self.0.in_one_memory::<T>(self.1)
    }
}

impl CollectiveBench<'_> {
    /// Measures types, the operators that are defined on them, roots and sizes, in nccl-tests'
    /// order.
    fn figures(&mut self) -> Result<()> {
        let settings = self.settings;
        let roots: Vec<_> = match settings.roots.as_slice() {
            [] => vec![None],
            roots => roots.iter().copied().map(Some).collect(),
        };
        for data_type in &settings.types {
            let data_type = data_type.parse()?;
            for op in &settings.ops {
                if self.operation.reduces() && check_operator(data_type, op).is_err() {
                    continue;
                }
                for &root in &roots {
                    for &bytes in &self.spec.sizes {
                        self.both_places(Wanted { data_type, op, root, bytes, in_place: false })?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Measures out of place and in place.
    fn both_places(&mut self, wanted: Wanted<'_>) -> Result<()> {
        if !self.settings.algorithms.is_empty() {
            return with_type(wanted.data_type, BetweenAlgorithms(self, wanted));
        }
        self.figure(wanted)?;
        self.figure(Wanted { in_place: true, ..wanted })
    }

    /// Measures one figure. Operations that fit into the caches, however many contenders there are,
    /// are compared with their limits alone.
    fn figure(&mut self, wanted: Wanted<'_>) -> Result<()> {
        if self.settings.memory == Memory::Ordinary && wanted.bytes > BATCH_BYTES {
            with_type(wanted.data_type, InBothMemories(self, wanted))
        } else {
            with_type(wanted.data_type, InOneMemory(self, wanted))
        }
    }

    fn in_one_memory<T: TestElement>(&mut self, wanted: Wanted<'_>) -> Result<()> {
        let spec = self.spec_of::<T>(wanted)?;
        let mut limits = self.limits(wanted)?;
        let data = CaseData::<T>::new(self.comm, spec.clone(), self.buffers, self.settings.memory)?;
        let mut data = data.by_plan(self.planned.as_ref());
        self.check_plan(&mut data, wanted)?;
        let mut test = TimedCase::new(ByLibrary(self.comm), data, &self.gathering, wanted.bytes);
        let participants = Participants::of(self.sync.as_deref_mut(), &mut self.all);
        let effort = self.spec.effort(self.test, None);
        let run = interleave_with_limits(participants, vec![&mut test], &mut limits, 1, effort)?;
        let wrong = self.gathering.borrow_mut().total(test.wrong())?;
        if self.comm.rank().get() == 0 {
            let measured = run.against_limits(0, 1, wrong);
            self.report(wanted, &spec, &self.settings.algorithm, &limits, measured, None)?;
        }
        Ok(())
    }

    /// Checks that the execution plan does what is wanted, where one is measured.
    fn check_plan<T: TestElement>(&mut self, data: &mut CaseData<T>, wanted: Wanted<'_>) -> Result<()> {
        let Some(plan) = &self.planned else { return Ok(()) };
        let Wanted { bytes, op, data_type, .. } = wanted;
        let test = self.test.name();
        planned::check(plan, self.comm, data, || format!("{test} of {bytes} bytes of {data_type} ({op})"))
    }

    /// Returns the case of what is wanted, on elements of type `T`.
    fn spec_of<T: TestElement>(&self, wanted: Wanted<'_>) -> Result<CaseSpec> {
        let reduces = self.operation.reduces();
        let op = reduces.then(|| operator::<T>(wanted.op, self.comm.rank())).transpose()?;
        self.spec(wanted, op, size_of::<T>() as u64)
    }

    fn spec(&self, wanted: Wanted<'_>, op: Option<ReduceOp>, size: u64) -> Result<CaseSpec> {
        let n_ranks = self.comm.n_ranks();
        Ok(CaseSpec {
            operation: self.operation,
            op,
            root: Rank::new(wanted.root.unwrap_or(0), n_ranks)?,
            layout: CaseLayout::new(self.operation, wanted.bytes, size, n_ranks.into()),
            in_place: wanted.in_place,
            check: self.is_checked(wanted),
        })
    }

    fn is_checked(&self, wanted: Wanted<'_>) -> bool {
        self.spec.check && is_defined(self.operation, wanted.in_place)
    }

    /// Returns the limits of a figure: hand-written loops and flags. Collective.
    fn limits(&mut self, wanted: Wanted<'_>) -> Result<Vec<NamedLimit<'static>>> {
        let mut limits = self.loops(wanted)?;
        if wanted.bytes > FLAG_BYTES || self.operation.has_root() {
            return Ok(limits);
        }
        limits.push(if self.comm.n_ranks() == 2 {
            let flags = flags(self.comm, self.spec.one_core)?;
            let leads = self.comm.rank().get() == 0;
            ("raw flag ping-pong".to_owned(), Box::new(PingPong::new(SignalEnd(flags), leads)))
        } else {
            ("bare yield barrier".to_owned(), Box::new(YieldBarrier::new(self.comm)?))
        });
        Ok(limits)
    }

    /// Returns hand-written loops over the buffers of all ranks; for the shortest data only those
    /// that hand every byte over once. Collective.
    fn loops(&mut self, wanted: Wanted<'_>) -> Result<Vec<NamedLimit<'static>>> {
        // Blocks exchanged in place would be overwritten before they are read, so the limit is an
        // exchange out of place.
        let in_place = wanted.in_place && !self.is_apart(wanted);
        let op = self.operation.reduces().then_some(ReduceOp::Sum);
        let spec = self.spec(Wanted { in_place, ..wanted }, op, SIZE)?;
        let oversubscribed = self.spec.one_core || self.comm.is_oversubscribed()?;
        let all = rank_buffers(self.comm, &spec, self.buffers)?;
        let mut limits: Vec<NamedLimit<'static>> = Vec::new();
        for (name, ahead) in [("bare loop, mailed", false), ("bare loop, mailed, fetched ahead", true)] {
            let eager = EagerLimit::new(&all, || self.gathering.borrow_mut().meet(), oversubscribed, ahead)?;
            if let Some(eager) = eager {
                limits.push((name.to_owned(), self.timed_limit(eager, &spec, wanted.bytes)?));
            }
        }
        if wanted.bytes > FLAG_BYTES {
            for limit in HeapLimit::all(&all)? {
                limits.push((limit.name().to_owned(), self.timed_limit(limit, &spec, wanted.bytes)?));
            }
            for variant in self.staged_variants(wanted.bytes, in_place) {
                // These buffers begin with a cache line.
                let mut staged = StagedLimit::new(self.comm, self.buffers.staging, 0)?;
                staged.set_variant(variant);
                limits.push((variant.name(), self.timed_limit(staged, &spec, wanted.bytes)?));
            }
        }
        let deviation = self.deviation(wanted) + self.deviating_memory();
        limits.iter_mut().for_each(|(name, _)| *name += &deviation);
        Ok(limits)
    }

    /// Returns how a loop over buffers of the heap stages them: not at all in place, where staging
    /// is one copy too many.
    fn staged_variants(&self, bytes: u64, in_place: bool) -> Vec<StagedVariant> {
        let is_staged =
            self.operation == Operation::AllReduce && self.settings.memory == Memory::Heap && !in_place;
        if is_staged { StagedVariant::all_of(bytes, in_place) } else { Vec::new() }
    }

    /// Returns whether the limit of an operation in place is an operation out of place.
    fn is_apart(&self, wanted: Wanted<'_>) -> bool {
        wanted.in_place
            && matches!(self.operation, Operation::AllToAll | Operation::AllToAllV | Operation::Send)
    }

    /// Returns how hand-written loops deviate from the operation, as it stands behind their names.
    fn deviation(&self, wanted: Wanted<'_>) -> String {
        let is_float_sum = wanted.data_type == DataType::F32 && wanted.op == ReduceOp::Sum.name();
        let sums = if self.operation.reduces() && !is_float_sum { ", of float sums" } else { "" };
        let apart = if self.is_apart(wanted) { ", out of place" } else { "" };
        format!("{sums}{apart}")
    }

    /// Returns where hand-written loops have their buffers, if not in the memory of the operation.
    fn deviating_memory(&self) -> &'static str {
        match self.settings.memory {
            Memory::Heap => "",
            Memory::Ordinary => ", in the heap",
        }
    }

    fn timed_limit<R: RunCase<f32> + 'static>(
        &self,
        runner: R,
        spec: &CaseSpec,
        bytes: u64,
    ) -> Result<Box<dyn Contender>> {
        let data = CaseData::<f32>::new(self.comm, spec.clone(), self.buffers, Memory::Heap)?;
        let case = TimedCase::new(runner, data, &self.gathering, bytes);
        Ok(Box::new(case.settled(self.settings.memory)))
    }

    /// Prints the row of a figure, with the figures of that operation in the heap if there are any.
    fn report(
        &self,
        wanted: Wanted<'_>,
        spec: &CaseSpec,
        algorithm: &Option<String>,
        limits: &[NamedLimit<'_>],
        measured: Measured,
        heap: Option<&SliceComparison>,
    ) -> Result<()> {
        let bytes = spec.layout.largest() * wanted.data_type.size() as u64;
        let wrong = measured.wrong;
        let (best, measured) = measured.with_lowest_limit();
        let comparison = measured.comparisons.first().context("nothing was measured")?;
        let n_ranks = self.comm.n_ranks();
        let channel = Some(self.settings.channel);
        let mut row = row_of(self.test, channel, n_ranks, comparison, &limits[best].0);
        row.iterations = measured.operations;
        let is_timed = self.spec.iters != Some(0);
        if !is_timed {
            row = PerfRow { channel, ..PerfRow::new(self.test, n_ranks) };
        }
        let heap = heap.filter(|_| is_timed);
        row.variant =
            self.planned.as_ref().map(|plan| format!("plan:{}", plan.name)).or_else(|| algorithm.clone());
        row.bytes = Some(bytes);
        row.wrong = self.is_checked(wanted).then_some(wrong);
        row.set_bandwidth(bytes);
        row.collective = Some(CollectiveFigures {
            heap_p50_ns: heap.and_then(|found| found.limit).map(|times| times.p50_ns),
            heap_ratio: heap.and_then(|found| found.ratio).map(|ratio| ratio.median),
            ..spec.figures(&row, wanted.data_type, wanted.op, self.settings.memory)
        });
        output::print_json(&DeviceLine::Figure(Box::new(row)))
    }
}
