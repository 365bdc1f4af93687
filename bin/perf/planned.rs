//! Collective tests by an execution plan: which test, which sizes, which operators it is for.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use shmccl_plan::collective::Collective;
use shmccl_plan::lower::{granule, smallest};
use shmccl_plan::plan::Operator;
use shmccl_plan::read::files_in;
use shmccl_plan::{Lowered, Plan, lower};

use crate::failure::UsageError;
use crate::perf::test::Test;
use crate::plan;

/// A plan that a test goes by.
#[derive(Debug)]
pub(crate) struct PlannedTest {
    file: PathBuf,
    plan: Plan,
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
        let plan = plan::read(file)?;
        let Some(test) = test_of(&plan) else {
            let told = "plans of allreduce, allgather, reducescatter, alltoall and sendrecv do calls";
            let what = format!("{}: a plan of {}; {told}", file.display(), plan.collective);
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
            let plan = plan::read(&file)?;
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
            if plan::read(file)?.name == name {
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
        let mut sizes = vec![least, 3 * least, long / unit * unit];
        sizes.retain(|&size| self.lowered(size).is_some());
        sizes.sort_unstable();
        sizes.dedup();
        Ok(sizes)
    }

    /// Returns those of `sizes` that the plan does.
    ///
    /// # Errors
    /// There are none.
    pub(crate) fn fitting(&self, mut sizes: Vec<u64>) -> Result<Vec<u64>> {
        sizes.retain(|&size| self.lowered(size).is_some());
        if sizes.is_empty() {
            let unit = granule(&self.plan).unwrap_or(0);
            let (min, max) = (self.plan.min_message, self.plan.max_message);
            return Err(
                self.refused(&format!("none of the sizes is a multiple of {unit} within {min}..={max}"))
            );
        }
        Ok(sizes)
    }

    /// Returns operators that the plan can be held against.
    pub(crate) fn operators(&self) -> Vec<String> {
        let names: &[&str] = match self.plan.operators().as_slice() {
            [] => &["none"],
            [Operator::Min, ..] => &["min"],
            [Operator::Max, ..] => &["max"],
            [Operator::Sum, ..] => &["sum", "max"],
        };
        names.iter().map(|name| (*name).to_owned()).collect()
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
        let heap_len = self.heap_len(sizes.iter().copied().max().unwrap_or(0)) + (16 << 20);
        Ok(PlanSettings { file: self.file.clone(), heap_len })
    }

    /// Returns the bytes of heap that the plan takes for messages up to `longest`.
    pub(crate) fn heap_len(&self, longest: u64) -> u64 {
        let unit = granule(&self.plan).unwrap_or(0).max(1);
        let largest = longest.min(self.plan.max_message) / unit * unit;
        let scratch = |lowered: Lowered| lowered.ranks.iter().map(|rank| rank.buffers[2]).max().unwrap_or(0);
        let scratch = self.lowered(largest).map_or(0, scratch) as u64;
        // The arena takes three quarters of a heap at most. Both buffers may be staged.
        2 * (scratch + 2 * largest)
    }

    fn lowered(&self, size: u64) -> Option<Lowered> {
        lower(&self.plan, size).ok()
    }

    fn refused(&self, what: &str) -> anyhow::Error {
        UsageError::new(format!("{}: {what}", self.file.display())).into()
    }
}

/// Returns the test of the collective that `plan` is for, if it does calls.
fn test_of(plan: &Plan) -> Option<Test> {
    match Collective::of(plan) {
        Collective::AllReduce => Some(Test::AllReduce),
        Collective::AllGather => Some(Test::AllGather),
        Collective::ReduceScatter => Some(Test::ReduceScatter),
        Collective::AllToAll => Some(Test::AllToAll),
        Collective::SendRecv => Some(Test::SendRecv),
        Collective::Other => None,
    }
}

/// Returns the files in `directory` that may be plans, by their names.
fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    files_in(directory).with_context(|| format!("cannot read the directory of plans {}", directory.display()))
}
