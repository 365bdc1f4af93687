//! Collective tests by an execution plan: which test, which sizes, which operators it is for.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use shmccl::Communicator;
use shmccl::collective::Operation;
use shmccl::heap::layout::HeapShape;
use shmccl::reduce::DataType;
use shmccl_harness::case::{CaseData, Planned};
use shmccl_harness::pattern::TestElement;
use shmccl_harness::test::Test;
use shmccl_plan::collective::CollectiveKind;
use shmccl_plan::lower::{granule, smallest};
use shmccl_plan::plan::Operator;
use shmccl_plan::read::{files_in, read_file};
use shmccl_plan::{ExecutionPlan, Lowered, escaped, lower, senders};

use crate::failure::UsageError;
use crate::{execution_plan, flags, output};

/// Operators that do something to each sum, which no plan does.
const LAST_STEPS: [&str; 2] = ["avg", "mulsum"];

/// A plan that a test goes by.
#[derive(Debug)]
pub(crate) struct PlannedTest {
    file: PathBuf,
    plan: ExecutionPlan,
    /// The test of its collective.
    pub(crate) test: Test,
}

/// What devices are told of a plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PlanSettings {
    /// Where it is.
    pub(crate) file: PathBuf,
    /// The bytes of heap that it takes at most.
    pub(crate) heap_len: u64,
}

impl PlannedTest {
    /// Reads a plan.
    ///
    /// # Errors
    /// A file that is no plan; a plan of no operation.
    pub(crate) fn read(file: &Path) -> Result<Self> {
        let plan = execution_plan::read(file)?;
        let Some(test) = test_of(&plan) else {
            let told = "plans of allreduce, allgather, reducescatter, alltoall and sendrecv do calls";
            let what = format!("{}: a plan of {}; {told}", file.display(), escaped(&plan.collective));
            return Err(UsageError::new(what).into());
        };
        Ok(Self { file: std::path::absolute(file)?, plan, test })
    }

    /// Reads the plans in a directory that do calls.
    ///
    /// # Errors
    /// A directory that cannot be read; a file that is no plan.
    pub(crate) fn all(directory: &Path) -> Result<Vec<Self>> {
        let mut found = Vec::new();
        for file in files(directory)? {
            let plan = execution_plan::read(&file)?;
            found.extend(test_of(&plan).map(|test| Self { file, plan, test }));
        }
        Ok(found)
    }

    /// Finds the plan called `name` in a directory: as it calls itself, or as its file is called.
    ///
    /// # Errors
    /// A directory that cannot be read, or has no such plan; those of [`PlannedTest::read`].
    pub(crate) fn find(directory: &Path, name: &str) -> Result<Self> {
        let files = files(directory)?;
        let is_called = |file: &Path| file.file_stem().is_some_and(|stem| stem == name);
        if let Some(file) = files.iter().find(|file| is_called(file)) {
            return Self::read(file);
        }
        for file in &files {
            if execution_plan::read(file)?.name == name {
                return Self::read(file);
            }
        }
        let told = format!("{} has no plan called {name}; `ls` shows what it has", directory.display());
        Err(UsageError::new(told).into())
    }

    /// Returns what the plan calls itself.
    pub(crate) fn name(&self) -> &str {
        &self.plan.name
    }

    /// Returns the ranks that the plan is for.
    pub(crate) fn n_ranks(&self) -> u32 {
        u32::try_from(self.plan.ranks.len()).expect("a plan that was read has 256 ranks at most")
    }

    /// Returns the sizes of which something can be expected: the smallest, three times that, and
    /// about a mebibyte.
    ///
    /// # Errors
    /// A plan that fits no size.
    pub(crate) fn usual_sizes(&self) -> Result<Vec<u64>> {
        let unit = granule(&self.plan).filter(|&unit| unit > 0);
        let Some((unit, least)) = unit.zip(smallest(&self.plan)) else {
            return Err(self.refused("no size fits it; `shmccl plan check` tells why"));
        };
        let long = ((1 << 20) / unit * unit).clamp(least, self.plan.max_message);
        let mut sizes = vec![least, least.saturating_mul(3), long / unit * unit];
        sizes.retain(|&size| self.does(size));
        sizes.sort_unstable();
        sizes.dedup();
        if sizes.is_empty() {
            return Err(self.refused(&self.why_not(least)));
        }
        Ok(sizes)
    }

    /// Returns those of `sizes` that the plan does.
    ///
    /// # Errors
    /// There are none.
    pub(crate) fn fitting(&self, mut sizes: Vec<u64>) -> Result<Vec<u64>> {
        let unfit = sizes.iter().copied().find(|&size| self.fits(size) && !self.does(size));
        sizes.retain(|&size| self.does(size));
        match unfit {
            _ if !sizes.is_empty() => Ok(sizes),
            Some(size) => Err(self.refused(&self.why_not(size))),
            None => Err(self.refused(&format!("none of the sizes is a multiple of {}", self.unit_within()))),
        }
    }

    /// Checks that the plan does all `sizes`, which `flag` has named.
    ///
    /// # Errors
    /// A size that it does not do: all of them are named.
    pub(crate) fn check_sizes(&self, sizes: &[u64], flag: &str) -> Result<()> {
        let others: Vec<_> = sizes.iter().filter(|&&size| !self.fits(size)).map(u64::to_string).collect();
        if others.is_empty() {
            let refused = sizes.iter().find(|&&size| !self.does(size));
            return refused
                .map_or(Ok(()), |&size| Err(self.refused(&format!("{flag}: {}", self.why_not(size)))));
        }
        let (others, fitting) = (others.join(", "), self.unit_within());
        Err(self
            .refused(&format!("{flag}: it does no messages of {others} bytes; give multiples of {fitting}")))
    }

    /// Names the unit of messages, and their limits.
    fn unit_within(&self) -> String {
        let unit = granule(&self.plan).unwrap_or(0);
        match (self.plan.min_message.max(unit), self.plan.max_message) {
            (min, u64::MAX) => format!("{unit} from {min} on"),
            (min, max) => format!("{unit} within {min}..={max}"),
        }
    }

    /// Whether messages of so many bytes are multiples of the unit, and within the limits.
    fn fits(&self, size: u64) -> bool {
        let (unit, limits) =
            (granule(&self.plan).unwrap_or(0), self.plan.min_message..=self.plan.max_message);
        size > 0 && unit > 0 && size.is_multiple_of(unit) && limits.contains(&size)
    }

    /// Says why the plan does no messages of so many bytes.
    fn why_not(&self, size: u64) -> String {
        let problem = lower(&self.plan, size).err().and_then(|problems| problems.into_iter().next());
        let why = problem.map_or_else(String::new, |problem| format!(": {problem}"));
        format!("it does no messages of {size} bytes{why}")
    }

    /// Whether calls of so many bytes go by the plan. None of no bytes does.
    fn does(&self, size: u64) -> bool {
        size > 0 && self.lowered(size).is_some()
    }

    /// Splits names of types into those whose elements the plan does not cut, and others.
    ///
    /// # Errors
    /// A name of no type.
    pub(crate) fn split_types(&self, types: &[&str]) -> Result<[Vec<String>; 2]> {
        let mut split = [Vec::new(), Vec::new()];
        for name in types {
            let data_type: DataType = name.parse()?;
            let is_cut = !self.plan.alignment.is_multiple_of(data_type.size());
            split[usize::from(is_cut)].push((*name).to_owned());
        }
        Ok(split)
    }

    /// Returns those of `types` that the plan does, and notes which ones it does not.
    ///
    /// # Errors
    /// The plan does none of them.
    pub(crate) fn fitting_types(&self, types: &[String]) -> Result<Vec<String>> {
        let [fitting, cut] = self.split_types(&types.iter().map(String::as_str).collect::<Vec<_>>())?;
        let (alignment, cut) = (self.plan.alignment, cut.join(", "));
        if fitting.is_empty() {
            let what = format!("it does no {cut}, as its `buffer_alignment` is {alignment} bytes");
            return Err(self.refused(&format!("{what}; give a type of which that is a multiple")));
        }
        if !cut.is_empty() {
            output::note(&format!("left out, as the plan's `buffer_alignment` is {alignment} bytes: {cut}"));
        }
        Ok(fitting)
    }

    /// Returns those of `operators` that the plan does.
    ///
    /// # Errors
    /// It does none of them.
    pub(crate) fn fitting_operators(&self, operators: &[String]) -> Result<Vec<String>> {
        let fitting: Vec<_> = operators.iter().filter(|name| self.combines_by(name)).cloned().collect();
        if fitting.is_empty() {
            let (test, given, own) = (self.test.name(), operators.join(", "), self.operators().join(", "));
            return Err(self.refused(&format!("it does no {test} of {given}; take such as {own}")));
        }
        Ok(fitting)
    }

    /// Whether the plan does `operator`: its sums stand for all but those with a last step.
    fn combines_by(&self, operator: &str) -> bool {
        self.plan.operators().iter().all(|own| match own {
            Operator::Sum => !LAST_STEPS.contains(&operator),
            own => own.name() == operator,
        })
    }

    /// Checks that ranks can have `heap_len` bytes of heap, for messages of `sizes`.
    ///
    /// # Errors
    /// Too much; `flag`, which has named the sizes, and scratch are named.
    pub(crate) fn check_heap(&self, heap_len: u64, sizes: &[u64], flag: &str) -> Result<()> {
        let Err(error) = HeapShape::new(self.n_ranks(), heap_len) else { return Ok(()) };
        let largest = sizes.iter().copied().max().unwrap_or(0);
        let scratch = self.scratch(largest);
        Err(self.refused(&format!(
            "messages of {largest} bytes ({flag}) and {scratch} bytes of scratch, on each rank: {error}"
        )))
    }

    /// Returns operators that the plan can be held against.
    pub(crate) fn operators(&self) -> Vec<String> {
        let names =
            if self.plan.operators().is_empty() { ["none"].as_slice() } else { &["sum", "max", "min"] };
        let fitting = names.iter().filter(|name| self.combines_by(name));
        fitting.take(2).map(|name| (*name).to_owned()).collect()
    }

    /// Returns what devices are told that do `sizes` by it.
    ///
    /// # Errors
    /// Another test or number of ranks than it is for.
    pub(crate) fn settings(&self, test: Test, n_ranks: u32, sizes: &[u64]) -> Result<PlanSettings> {
        if test != self.test {
            return Err(self.refused(&format!("it does {}, and not {}", self.test.name(), test.name())));
        }
        if n_ranks != self.n_ranks() {
            return Err(self.refused(&format!("it is for {} ranks, and not {n_ranks}", self.n_ranks())));
        }
        let heap_len = self.heap_len(sizes.iter().copied().max().unwrap_or(0)).saturating_add(16 << 20);
        Ok(PlanSettings { file: self.file.clone(), heap_len })
    }

    /// Returns the bytes of heap that the plan takes for messages up to `longest`.
    pub(crate) fn heap_len(&self, longest: u64) -> u64 {
        let unit = granule(&self.plan).unwrap_or(0).max(1);
        let largest = longest.min(self.plan.max_message) / unit * unit;
        // The arena takes three quarters of a heap at most. Both buffers may be staged.
        self.scratch(largest).saturating_add(largest.saturating_mul(2)).saturating_mul(2)
    }

    /// Returns the bytes of scratch of a rank for a message.
    fn scratch(&self, message: u64) -> u64 {
        let most = |lowered: Lowered| lowered.ranks.iter().map(|rank| rank.buffers[2]).max().unwrap_or(0);
        self.lowered(message).map_or(0, most) as u64
    }

    fn lowered(&self, size: u64) -> Option<Lowered> {
        lower(&self.plan, size).ok()
    }

    fn refused(&self, what: &str) -> anyhow::Error {
        UsageError::new(format!("{}: {what}", self.file.display())).into()
    }
}

/// Registers the plan in `file`.
///
/// # Errors
/// A file that is no plan; a plan for other ranks.
pub(crate) fn register(comm: &mut Communicator, file: &Path) -> Result<Planned> {
    let plan = Arc::new(read_file(file)?.plan);
    comm.register_plan(&plan)?;
    let senders = senders(&plan);
    let sender = senders.map(|senders| u32::try_from(senders[comm.rank().index()])).transpose()?;
    Ok(Planned { name: plan.name.clone(), sender })
}

/// Checks that a call on `data`, which `call` describes, goes by `plan`.
///
/// # Errors
/// A call that does not, or fails.
pub(crate) fn check<T: TestElement>(
    plan: &Planned,
    comm: &mut Communicator,
    data: &mut CaseData<T>,
    call: impl FnOnce() -> String,
) -> Result<()> {
    let before = comm.planned_calls(&plan.name);
    data.rewrite()?;
    data.run(comm)?;
    let is_planned = comm.planned_calls(&plan.name) > before;
    ensure!(is_planned, "plan:{} does no {}; leave that out", escaped(&plan.name), call());
    Ok(())
}

/// Returns the test of the collective that `plan` is for, if it does calls.
fn test_of(plan: &ExecutionPlan) -> Option<Test> {
    match CollectiveKind::of(plan) {
        CollectiveKind::AllReduce => Some(Test::Operation(Operation::AllReduce)),
        CollectiveKind::AllGather => Some(Test::Operation(Operation::AllGather)),
        CollectiveKind::ReduceScatter => Some(Test::Operation(Operation::ReduceScatter)),
        CollectiveKind::AllToAll => Some(Test::Operation(Operation::AllToAll)),
        CollectiveKind::SendRecv => Some(Test::Operation(Operation::Send)),
        CollectiveKind::Other => None,
    }
}

/// Returns the files in `directory` that may be plans, by their names.
fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    files_in(directory).map_err(|error| flags::unreadable_plans(directory, &error).into())
}
