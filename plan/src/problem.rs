//! What is wrong with a plan, and where.

use std::fmt;

use serde_json::{Value, json};

use crate::escape::escaped;
use crate::plan::{BlockOperation, Code};

/// Names a place in a plan, as exactly as it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// The rank.
    pub rank: Option<usize>,
    /// The thread block of the rank.
    pub block: Option<usize>,
    /// The operation of the block, and that of a pipeline within it.
    pub operation: Option<(usize, Option<usize>)>,
    /// The name of the operation.
    pub code: Option<Code>,
}

impl Place {
    /// Names the plan as a whole.
    pub const PLAN: Self = Self { rank: None, block: None, operation: None, code: None };

    /// Names a rank.
    #[must_use]
    pub fn rank(rank: usize) -> Self {
        Self { rank: Some(rank), ..Self::PLAN }
    }

    /// Names a thread block of a rank.
    #[must_use]
    pub fn block(rank: usize, block: usize) -> Self {
        Self { block: Some(block), ..Self::rank(rank) }
    }

    /// Names operation `index` of this block, or of this pipeline.
    #[must_use]
    pub fn operation(self, index: usize, code: Option<Code>) -> Self {
        let operation = match self.operation {
            Some((pipeline, _)) => (pipeline, Some(index)),
            None => (index, None),
        };
        Self { operation: Some(operation), code, ..self }
    }

    /// Returns the place in JSON.
    #[must_use]
    pub fn to_json(&self) -> Value {
        json!({
            "rank": self.rank,
            "block": self.block,
            "operation": self.operation.map(|(index, _)| index),
            "inner": self.operation.and_then(|(_, inner)| inner),
            "name": self.code.map(Code::name),
        })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(rank) = self.rank else { return f.write_str("the plan") };
        write!(f, "rank {rank}")?;
        if let Some(block) = self.block {
            write!(f, " block {block}")?;
        }
        match self.operation {
            Some((index, Some(inner))) => write!(f, " operation {index}.{inner}")?,
            Some((index, None)) => write!(f, " operation {index}")?,
            None => {}
        }
        self.code.map_or(Ok(()), |code| write!(f, " ({code})"))
    }
}

/// Visits operations and those of pipelines, with their places.
pub(crate) fn each_operation(
    operations: &[BlockOperation],
    at: Place,
    visit: &mut impl FnMut(&BlockOperation, Place),
) {
    for (index, operation) in operations.iter().enumerate() {
        let at = at.operation(index, Some(operation.code));
        visit(operation, at);
        each_operation(operation.inner(), at, visit);
    }
}

/// Says what breaks a rule of the format, where, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where.
    pub place: Place,
    /// What is wrong, and the remedy behind a semicolon.
    pub what: String,
}

impl Problem {
    /// Makes a problem.
    pub fn new(place: Place, what: impl Into<String>) -> Self {
        Self { place, what: what.into() }
    }

    /// Returns the problem in JSON: the fields of its place, and `what`.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut json = self.place.to_json();
        json["what"] = self.what.clone().into();
        json
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // It may quote the file.
        write!(f, "{}: {}", self.place, escaped(&self.what))
    }
}

/// Says why a file is no plan that can be run: all that is wrong with it, as far as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedPlan {
    /// The name of the file.
    pub file: String,
    /// What is wrong, at least one thing.
    pub problems: Vec<Problem>,
}

impl RefusedPlan {
    /// Returns all problems in JSON, in the place of the report that a check would have made.
    #[must_use]
    pub fn to_json(&self) -> Value {
        json!({
            "file": self.file,
            "clean": false,
            "verdict": "refused",
            "problems": self.problems.iter().map(Problem::to_json).collect::<Vec<_>>(),
        })
    }
}

impl fmt::Display for RefusedPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", escaped(&self.file))?;
        if let Some(first) = self.problems.first() {
            write!(f, ": {first}")?;
        }
        match self.problems.len() {
            0 | 1 => Ok(()),
            more => write!(f, " (and {} more)", more - 1),
        }
    }
}

impl std::error::Error for RefusedPlan {}
