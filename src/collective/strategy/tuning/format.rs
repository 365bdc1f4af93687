//! The table as TOML.
//!
//! ```toml
//! version = 1
//!
//! [[case]]
//! operation = "all_reduce"
//! ranks = 4
//! oversubscribed = true
//! buffers = "heap"
//! up_to = [8192, 131072]
//! algorithms = ["one_shot", "two_shot", "ring"]
//! ```
//!
//! Sizes are the bytes that a rank contributes at most. The last algorithm is for all that is
//! longer. `plan:NAME` is an execution plan.

use std::fmt;

use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::table::{BufferKind, Case, Step, Table, TuningFault, key};
use crate::collective::call::{Algorithm, AlgorithmName, Operation};
use crate::rank::MAX_RANKS;

/// The version of the format.
pub(super) const VERSION: u32 = 1;

/// What is wrong, and in which line of the text, counted from 1.
pub(super) type TableFault = (Option<usize>, TuningFault);

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Whole {
    version: Spanned<u32>,
    #[serde(default)]
    case: Vec<TableEntry>,
}

/// What all versions have.
#[derive(Deserialize)]
struct Head {
    version: Spanned<u32>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TableEntry {
    operation: Spanned<String>,
    ranks: Spanned<u32>,
    oversubscribed: bool,
    buffers: BufferKind,
    up_to: Spanned<Vec<u64>>,
    algorithms: Vec<Spanned<String>>,
}

/// Reads a table.
///
/// # Errors
/// The first fault and its line.
pub(super) fn parse(content: &str) -> Result<Table, TableFault> {
    let whole: Whole = toml::from_str(content).map_err(|error| {
        // What another version has in it is not for this reader to judge.
        if let Ok(Head { version }) = toml::from_str(content)
            && *version.get_ref() != VERSION
        {
            let line = line_of(content, version.span().start);
            return (Some(line), TuningFault::Version(*version.get_ref()));
        }
        let line = error.span().map(|span| line_of(content, span.start));
        // What is between lines of a longer message is for a terminal.
        let message = error.message().lines().collect::<Vec<_>>().join(", ");
        (line, TuningFault::Malformed(message))
    })?;
    let version = *whole.version.get_ref();
    let at = |place: usize, fault| (Some(line_of(content, place)), fault);
    if version != VERSION {
        return Err(at(whole.version.span().start, TuningFault::Version(version)));
    }
    let mut cases: Vec<Case> = Vec::new();
    for entry in &whole.case {
        let case = entry.check().map_err(|(place, fault)| at(place, fault))?;
        if cases.iter().any(|other| key(other) == key(&case)) {
            return Err(at(entry.operation.span().start, TuningFault::Twice));
        }
        cases.push(case);
    }
    Ok(Table::of(cases))
}

impl TableEntry {
    fn new(case: &Case) -> Self {
        // What is written has no place yet.
        fn placed<T>(value: T) -> Spanned<T> {
            Spanned::new(0..0, value)
        }
        Self {
            operation: placed(case.operation.name().to_owned()),
            ranks: placed(case.n_ranks),
            oversubscribed: case.oversubscribed,
            buffers: case.buffers,
            up_to: placed(case.steps.iter().filter_map(|step| step.up_to).collect()),
            algorithms: case.steps.iter().map(|step| placed(step.algorithm.to_string())).collect(),
        }
    }

    /// Returns the case that it says, or what is wrong with it, and where.
    fn check(&self) -> Result<Case, (usize, TuningFault)> {
        let operation = self.operation().map_err(|fault| (self.operation.span().start, fault))?;
        let n_ranks = *self.ranks.get_ref();
        if !(2..=MAX_RANKS).contains(&n_ranks) {
            return Err((self.ranks.span().start, TuningFault::Ranks(n_ranks)));
        }
        let steps = self.steps(operation)?;
        Ok(Case { operation, n_ranks, oversubscribed: self.oversubscribed, buffers: self.buffers, steps })
    }

    fn operation(&self) -> Result<Operation, TuningFault> {
        let name = self.operation.get_ref();
        let has_choice = |operation: &Operation| Algorithm::OneShot.supports(*operation);
        let found = Operation::ALL.into_iter().filter(has_choice).find(|operation| operation.name() == name);
        found.ok_or_else(|| TuningFault::UnknownOperation(name.clone()))
    }

    fn steps(&self, operation: Operation) -> Result<Vec<Step>, (usize, TuningFault)> {
        let (sizes, place) = (self.up_to.get_ref(), self.up_to.span().start);
        if sizes.len() + 1 != self.algorithms.len() {
            let fault = TuningFault::Count { sizes: sizes.len(), algorithms: self.algorithms.len() };
            return Err((place, fault));
        }
        if !sizes.is_sorted_by(|one, next| one < next) {
            return Err((place, TuningFault::Order));
        }
        let limits = sizes.iter().copied().map(Some).chain([None]);
        let step = |(up_to, name): (_, &Spanned<String>)| {
            let algorithm = name.get_ref().parse::<AlgorithmName>();
            let algorithm = algorithm.map_err(|_| TuningFault::UnknownAlgorithm(name.get_ref().clone()));
            match algorithm {
                Ok(algorithm) if algorithm.supports(operation) => Ok(Step { up_to, algorithm }),
                Ok(algorithm) => Err((name.span().start, TuningFault::Unsupported { algorithm, operation })),
                Err(fault) => Err((name.span().start, fault)),
            }
        };
        limits.zip(&self.algorithms).map(step).collect()
    }
}

impl Table {
    /// Checks and takes `cases` that a measurement has come to.
    ///
    /// # Errors
    /// What [`Table::read`] would find wrong with them.
    pub fn new(cases: &[Case]) -> Result<Self, TuningFault> {
        parse(&write(cases)).map_err(|(_, fault)| fault)
    }
}

/// As TOML.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&write(self.cases()))
    }
}

fn write(cases: &[Case]) -> String {
    let whole =
        Whole { version: Spanned::new(0..0, VERSION), case: cases.iter().map(TableEntry::new).collect() };
    toml::to_string(&whole).expect("numbers, names and lists of them are TOML")
}

/// Returns the line of the byte at `place`.
fn line_of(content: &str, place: usize) -> usize {
    content.bytes().take(place).filter(|byte| *byte == b'\n').count() + 1
}
