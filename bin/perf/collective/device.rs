//! The device side of a collective test: a contest between the library and the machine for each figure.

mod beside;
mod rivals;
mod turns;

use std::cell::RefCell;
use std::rc::Rc;

use anyhow::{Context, Result};
use shmccl::collective::{ChannelKind, Operation};
use shmccl::reduce::{DataType, ReduceOp};
use shmccl::{Communicator, Rank};
use shmccl_limits::stopwatch::Stopwatch;

use super::super::barrier::{BARRIERS, Ensemble, YieldBarrier};
use super::super::contest::{FEWEST_SLICES, Field, Outcome};
use super::super::cores;
use super::super::duet::Duet;
use super::super::ends::Signals;
use super::super::figures::row_of;
use super::super::lane::{Lane, PingPong};
use super::super::plan::Plan;
use super::super::slices::Verdict;
use super::bare::Share;
use super::figures::Figures;
use super::gathering::{Gathering, flags};
use super::layout::{Layout, bus_factor};
use super::mailed::{Mailed, mail_len};
use super::number::{ForType, Number, with_type};
use super::pattern::operator;
use super::places::{Places, SIZE};
use super::settings::{Memory, Message, Seat, Settings};
use super::staged::{Cut, Staged, stage_len};
use super::trial::{BATCH_BYTES, ByLibrary, Trial, Way};
use super::workload::{Ground, Task, Workload, is_defined};
use crate::output;
use crate::perf::test::{Test, TestChannel};
use beside::Beside;
use rivals::Rivalry;
use turns::race;

/// Up to this many bytes handing over is all that the limit does: data travel in the cache line that tells of them.
const BARE_HAND_OVER: u64 = 64;

/// Measures the operation of `test` as the plan says. Collective.
///
/// # Errors
/// Whatever the job fails with.
pub(crate) fn run(comm: &mut Communicator, plan: &Plan, test: Test, duet: Option<&mut Duet>) -> Result<()> {
    let settings = plan.collective.as_ref().context("the plan does not say what to measure")?;
    let operation = test.operation().context("no collective operation")?;
    send(&Message::Seat(seat(comm)?))?;
    comm.set_algorithm(settings.algorithm.as_deref().map(str::parse).transpose()?);
    comm.set_channel_kind(match settings.channel {
        TestChannel::Memory => ChannelKind::Memory,
        TestChannel::Port => ChannelKind::Port,
    })?;
    let largest = plan.sizes.iter().copied().max().unwrap_or(0);
    let mail = mail_len(comm.n_ranks());
    let mut region = |len| comm.alloc_region(len, 4096);
    let stage = if operation == Operation::AllReduce { stage_len(largest) } else { 0 };
    let ground =
        Ground { send: region(largest)?, recv: region(largest)?, mail: region(mail)?, stage: region(stage)? };
    let is_long = plan.one_core || comm.is_oversubscribed()?;
    let gathering = Gathering::new(comm, settings.average, plan.one_core)?;
    let gathering = gathering.timing_one_by_one(settings.percentiles && is_long);
    let is_brief = settings.percentiles && !is_long;
    let gathering = gathering.timing_within_batches(is_brief.then(Stopwatch::new).flatten());
    let ensemble = Ensemble::new(comm)?;
    let mut bench = Bench {
        comm,
        plan,
        settings,
        test,
        operation,
        ground,
        gathering: Rc::new(RefCell::new(gathering)),
        duet,
        ensemble,
    };
    bench.all()
}

fn seat(comm: &Communicator) -> Result<Seat> {
    let allowed = cores::affinity()?;
    let may_run = |core: &usize| allowed.is_set(*core).unwrap_or(false);
    let core = (0..nix::sched::CpuSet::count()).find(may_run).unwrap_or(0);
    Ok(Seat { rank: comm.rank().get(), pid: std::process::id(), core })
}

/// Prints a line for the launcher.
fn send(message: &Message) -> Result<()> {
    output::print(&format!("{}\n", serde_json::to_string(message)?))
}

struct Bench<'a> {
    comm: &'a mut Communicator,
    plan: &'a Plan,
    settings: &'a Settings,
    test: Test,
    operation: Operation,
    ground: Ground,
    gathering: Rc<RefCell<Gathering>>,
    duet: Option<&'a mut Duet>,
    ensemble: Ensemble,
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

/// What the library is held against.
type Limit<'l> = (String, Box<dyn Lane + 'l>);

/// A figure of elements of some type.
struct Figure<'b, 'a, 'w>(&'b mut Bench<'a>, Wanted<'w>);

impl ForType for Figure<'_, '_, '_> {
    type Outcome = Result<()>;

    fn run<T: Number>(self) -> Result<()> {
        self.0.figure::<T>(self.1)
    }
}

impl Bench<'_> {
    /// Types, operators, roots, sizes, in nccl-tests' order.
    fn all(&mut self) -> Result<()> {
        let settings = self.settings;
        let roots: Vec<_> = match settings.roots.as_slice() {
            [] => vec![None],
            roots => roots.iter().copied().map(Some).collect(),
        };
        for data_type in &settings.types {
            let data_type = data_type.parse()?;
            for op in &settings.ops {
                for &root in &roots {
                    for &bytes in &self.plan.sizes {
                        self.both(Wanted { data_type, op, root, bytes, in_place: false })?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Out of place and in place.
    fn both(&mut self, wanted: Wanted<'_>) -> Result<()> {
        if !self.settings.rivals.is_empty() {
            return with_type(wanted.data_type, Rivalry(self, wanted));
        }
        self.one(wanted)?;
        self.one(Wanted { in_place: true, ..wanted })
    }

    /// What fits into the caches however many take turns is held against its limit alone.
    fn one(&mut self, wanted: Wanted<'_>) -> Result<()> {
        if self.settings.memory == Memory::Ordinary && wanted.bytes > BATCH_BYTES {
            with_type(wanted.data_type, Beside(self, wanted))
        } else {
            with_type(wanted.data_type, Figure(self, wanted))
        }
    }

    fn figure<T: Number>(&mut self, wanted: Wanted<'_>) -> Result<()> {
        let op = self.operation.reduces().then(|| operator::<T>(wanted.op, self.comm.rank())).transpose()?;
        let task = self.task(wanted, op, size_of::<T>() as u64)?;
        let layout = task.layout;
        let mut limits = self.limits(wanted)?;
        let workload = Workload::<T>::new(self.comm, task, self.ground, self.settings.memory)?;
        let mut test = Trial::new(ByLibrary(self.comm), workload, &self.gathering, wanted.bytes);
        let company = (&mut self.duet, &mut self.ensemble);
        let field = Field { tests: 1, fewest_slices: FEWEST_SLICES };
        let race = race(company, vec![&mut test], &mut limits, field, self.plan.effort(self.test, None))?;
        let wrong = self.gathering.borrow_mut().total(test.wrong())?;
        if self.comm.rank().get() == 0 {
            self.report(wanted, layout, &self.settings.algorithm, &limits, race.outcome(0, wrong), None)?;
        }
        Ok(())
    }

    fn task(&self, wanted: Wanted<'_>, op: Option<ReduceOp>, size: u64) -> Result<Task> {
        let n_ranks = self.comm.n_ranks();
        Ok(Task {
            operation: self.operation,
            op,
            root: Rank::new(wanted.root.unwrap_or(0), n_ranks)?,
            layout: Layout::new(self.operation, wanted.bytes, size, n_ranks.into()),
            in_place: wanted.in_place,
            check: self.is_checked(wanted),
        })
    }

    fn is_checked(&self, wanted: Wanted<'_>) -> bool {
        self.plan.check && is_defined(self.operation, wanted.in_place)
    }

    /// The least that the machine can do for this figure, each way of doing it with a name. Collective.
    fn limits(&mut self, wanted: Wanted<'_>) -> Result<Vec<Limit<'static>>> {
        let mut limits = self.bare(wanted)?;
        if wanted.bytes > BARE_HAND_OVER || self.operation.has_root() {
            return Ok(limits);
        }
        limits.push(if self.comm.n_ranks() == 2 {
            let flags = flags(self.comm, self.plan.one_core)?;
            let leads = self.comm.rank().get() == 0;
            ("raw flag ping-pong".to_owned(), Box::new(PingPong::new(Signals(flags), leads)))
        } else {
            ("bare yield barrier".to_owned(), Box::new(YieldBarrier::new(self.comm, BARRIERS)?))
        });
        Ok(limits)
    }

    /// Loops over the buffers of all ranks, written by hand. Of the shortest data only such as hand them over once. Collective.
    fn bare(&mut self, wanted: Wanted<'_>) -> Result<Vec<Limit<'static>>> {
        // Blocks that are exchanged where they lie would be overwritten before they are read: the least is an exchange apart.
        let in_place = wanted.in_place && !self.is_apart(wanted);
        let op = self.operation.reduces().then_some(ReduceOp::Sum);
        let task = self.task(Wanted { in_place, ..wanted }, op, SIZE)?;
        let oversubscribed = self.plan.one_core || self.comm.is_oversubscribed()?;
        let places = Places { comm: self.comm, task: &task, ground: self.ground };
        let mut lanes = Vec::new();
        for (name, ahead) in [("bare loop, mailed", false), ("bare loop, mailed, fetched ahead", true)] {
            let mailed = Mailed::new(&places, &mut self.gathering.borrow_mut(), oversubscribed, ahead)?;
            if let Some(mailed) = mailed {
                lanes.push((name.to_owned(), self.bare_lane(mailed, &task, wanted.bytes)?));
            }
        }
        if wanted.bytes > BARE_HAND_OVER {
            for share in Share::all(&places)? {
                lanes.push((share.name().to_owned(), self.bare_lane(share, &task, wanted.bytes)?));
            }
            for cut in self.heap_cuts(wanted.bytes, in_place) {
                // Buffers on the ground begin with a line.
                let mut staged = Staged::new(self.comm, self.ground, 0)?;
                staged.cut(cut);
                lanes.push((cut.name(), self.bare_lane(staged, &task, wanted.bytes)?));
            }
        }
        let otherwise = self.otherwise(wanted) + self.elsewhere();
        lanes.iter_mut().for_each(|(name, _)| *name += &otherwise);
        Ok(lanes)
    }

    /// In which ways a loop over buffers of the heap stages them; in place that is a detour.
    fn heap_cuts(&self, bytes: u64, in_place: bool) -> Vec<Cut> {
        let is_staged =
            self.operation == Operation::AllReduce && self.settings.memory == Memory::Heap && !in_place;
        if is_staged { Cut::all_of(bytes, in_place) } else { Vec::new() }
    }

    /// Whether the limit of an operation in place is one that is not.
    fn is_apart(&self, wanted: Wanted<'_>) -> bool {
        wanted.in_place
            && matches!(self.operation, Operation::AllToAll | Operation::AllToAllV | Operation::Send)
    }

    /// What hand-written loops do that the operation does not, as it stands behind their names.
    fn otherwise(&self, wanted: Wanted<'_>) -> String {
        let is_float_sum = wanted.data_type == DataType::F32 && wanted.op == ReduceOp::Sum.name();
        let sums = if self.operation.reduces() && !is_float_sum { ", of float sums" } else { "" };
        let apart = if self.is_apart(wanted) { ", out of place" } else { "" };
        format!("{sums}{apart}")
    }

    /// Where hand-written loops have their buffers, which all ranks have to reach, if the operation has its own elsewhere.
    fn elsewhere(&self) -> &'static str {
        match self.settings.memory {
            Memory::Heap => "",
            Memory::Ordinary => ", in the heap",
        }
    }

    fn bare_lane<W: Way<f32> + 'static>(&self, way: W, task: &Task, bytes: u64) -> Result<Box<dyn Lane>> {
        let workload = Workload::<f32>::new(self.comm, task.clone(), self.ground, Memory::Heap)?;
        Ok(Box::new(Trial::new(way, workload, &self.gathering, bytes).settled(self.settings.memory)))
    }

    /// Prints the row of a figure, beside that of the same operation in the heap if there is one.
    fn report(
        &self,
        wanted: Wanted<'_>,
        layout: Layout,
        algorithm: &Option<String>,
        limits: &[Limit<'_>],
        outcome: Outcome,
        heap: Option<&Verdict>,
    ) -> Result<()> {
        let bytes = layout.largest() * wanted.data_type.size() as u64;
        let wrong = outcome.wrong;
        let (best, outcome) = outcome.with_lowest_limit().context("nothing was measured")?;
        let verdict = outcome.verdicts.first().context("nothing was measured")?;
        let n_ranks = self.comm.n_ranks();
        let mut row = row_of(self.test, Some(self.settings.channel), n_ranks, verdict, &limits[best].0);
        row.variant = algorithm.clone();
        row.iterations = outcome.operations;
        row.bytes = Some(bytes);
        row.wrong = self.is_checked(wanted).then_some(wrong);
        row.set_bandwidth(bytes);
        let algbw = row.gb_per_s.unwrap_or(0.0);
        row.collective = Some(Figures {
            algbw,
            busbw: algbw * bus_factor(self.operation, n_ranks),
            memory: self.settings.memory,
            in_place: wanted.in_place,
            data_type: wanted.data_type.name().to_owned(),
            redop: wanted.op.to_owned(),
            root: wanted.root.map_or(-1, i64::from),
            count: layout.block,
            heap_p50_ns: heap.and_then(|verdict| verdict.limit).map(|times| times.p50_ns),
            heap_ratio: heap.and_then(|verdict| verdict.ratio).map(|ratio| ratio.median),
        });
        send(&Message::Figure(Box::new(row)))
    }
}
