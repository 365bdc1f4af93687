//! What does a call, as tables and users name it: an algorithm, or an execution plan.

use std::fmt;
use std::str::FromStr;

use super::algorithm::{Algorithm, UnknownAlgorithm};
use super::operation::Operation;

/// What the name of an execution plan begins with.
const PLAN: &str = "plan:";

/// An algorithm of the library's, or an execution plan that is registered.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum AlgorithmName {
    /// One of the library's.
    BuiltIn(Algorithm),
    /// `plan:NAME`: see [`Communicator::register_plan`](crate::Communicator::register_plan).
    Plan(String),
}

impl AlgorithmName {
    /// Returns whether it may do `operation`. Of a plan its collective decides.
    #[must_use]
    pub const fn supports(&self, operation: Operation) -> bool {
        use Operation::{AllGather, AllReduce, AllToAll, ReduceScatter};
        match self {
            Self::BuiltIn(algorithm) => algorithm.supports(operation),
            Self::Plan(_) => matches!(operation, AllReduce | AllGather | ReduceScatter | AllToAll),
        }
    }
}

impl From<Algorithm> for AlgorithmName {
    fn from(algorithm: Algorithm) -> Self {
        Self::BuiltIn(algorithm)
    }
}

impl fmt::Display for AlgorithmName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BuiltIn(algorithm) => algorithm.fmt(f),
            Self::Plan(name) => f.pad(&format!("{PLAN}{name}")),
        }
    }
}

impl FromStr for AlgorithmName {
    type Err = UnknownAlgorithm;

    fn from_str(name: &str) -> Result<Self, UnknownAlgorithm> {
        match name.strip_prefix(PLAN) {
            Some("") => Err(UnknownAlgorithm),
            Some(plan) => Ok(Self::Plan(plan.to_owned())),
            None => name.parse().map(Self::BuiltIn),
        }
    }
}
