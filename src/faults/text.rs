//! How a list of faults is written.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::{Fault, FaultKind, Faults, When};
use crate::error::{Error, Result};

/// The grammar of a plan, for errors.
const GRAMMAR: &str = "CLAUSE[;CLAUSE]..., a clause being seed=N or FAULT:KEY=VALUE[,KEY=VALUE]..., with a fault of kill, \
     delay, drop, fail, corrupt, stop and keys of rank=R, at=N or one_in=N, of=WHAT (an operation such as put or all_reduce, trigger, \
     message, stage, post, file, step), time=5ms (of a delay); such as `seed=7;kill:rank=1,at=12;drop:one_in=100`";

impl FromStr for Faults {
    type Err = Error;

    /// Reads a plan as [the module](super) says. Blanks around words, and empty clauses, mean
    /// nothing.
    fn from_str(text: &str) -> Result<Self> {
        let mut plan = Self::default();
        for clause in text.split(';').map(str::trim).filter(|clause| !clause.is_empty()) {
            match clause.split_once('=').map(|(key, value)| (key.trim(), value.trim())) {
                Some(("seed", seed)) => {
                    let wrong = || FaultSpecError::Seed(seed.to_owned());
                    plan.seed = seed.parse().map_err(|_| wrong())?;
                }
                _ => plan = plan.with(fault(clause)?)?,
            }
        }
        Ok(plan)
    }
}

fn fault(clause: &str) -> Result<Fault, FaultSpecError> {
    let (name, keys) = clause.split_once(':').unwrap_or((clause, ""));
    let kind = FaultKind::ALL.into_iter().find(|kind| kind.name() == name.trim());
    let kind = kind.ok_or_else(|| FaultSpecError::Kind(name.trim().to_owned()))?;
    let mut when = None;
    let mut fault = Fault::at(kind, 1);
    let mut seen = Vec::new();
    for key in keys.split(',').map(str::trim).filter(|key| !key.is_empty()) {
        let wrong = || FaultSpecError::Key(key.to_owned());
        let (name, value) =
            key.split_once('=').map(|(name, value)| (name.trim(), value.trim())).ok_or_else(wrong)?;
        if seen.contains(&name) {
            return Err(FaultSpecError::Twice(name.to_owned()));
        }
        seen.push(name);
        match name {
            "rank" => fault.rank = Some(value.parse().map_err(|_| FaultSpecError::Rank)?),
            "at" if when.is_none() => when = Some(When::At(number(value)?)),
            "one_in" if when.is_none() => when = Some(When::OneIn(number(value)?)),
            "of" => fault.of = Some(value.to_owned()),
            "time" => fault.time = Some(time(value).ok_or_else(wrong)?),
            _ => return Err(wrong()),
        }
    }
    fault.when = when.ok_or(FaultSpecError::NoWhen(kind))?;
    Ok(fault)
}

fn number(text: &str) -> Result<u64, FaultSpecError> {
    text.parse().ok().filter(|number| *number > 0).ok_or_else(|| FaultSpecError::Number(text.to_owned()))
}

/// Units of time, the shorter names behind those that end with them.
const UNITS: [(&str, u64); 4] = [("us", 1_000), ("ms", 1_000_000), ("ns", 1), ("s", 1_000_000_000)];

fn time(text: &str) -> Option<Duration> {
    let (number, scale) =
        UNITS.into_iter().find_map(|(unit, scale)| Some((text.strip_suffix(unit)?, scale)))?;
    number.trim().parse::<u64>().ok()?.checked_mul(scale).map(Duration::from_nanos)
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() && self.seed == 0 {
            return Ok(());
        }
        write!(f, "seed={}", self.seed)?;
        self.faults.iter().try_for_each(|fault| write!(f, ";{fault}"))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.kind.name())?;
        if let Some(rank) = self.rank {
            write!(f, "rank={rank},")?;
        }
        match self.when {
            When::At(number) => write!(f, "at={number}")?,
            When::OneIn(n) => write!(f, "one_in={n}")?,
        }
        if let Some(of) = &self.of {
            write!(f, ",of={of}")?;
        }
        match self.time {
            Some(time) => write!(f, ",time={}ns", time.as_nanos()),
            None => Ok(()),
        }
    }
}

/// An error in a plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FaultSpecError {
    /// No such fault.
    #[error("`{0}` is no fault")]
    Kind(String),
    /// No such key.
    #[error("`{0}` is no key with a value")]
    Key(String),
    /// A number that is not from 1 on.
    #[error("`{0}` is no number from 1 on")]
    Number(String),
    /// A seed that is none.
    #[error("the seed `{0}` is no number")]
    Seed(String),
    /// No such rank.
    #[error("the rank is not from 0 to 255")]
    Rank,
    /// A rank that the job does not have.
    #[error("there is no rank {rank} in a job of {n_ranks}")]
    NoSuchRank {
        /// The rank that it was to hit.
        rank: u32,
        /// How many there are.
        n_ranks: u32,
    },
    /// A key that is there twice.
    #[error("`{0}` is given twice")]
    Twice(String),
    /// It does not say when.
    #[error("`{}` needs either at or one_in", .0.name())]
    NoWhen(FaultKind),
    /// A delay without its time.
    #[error("`delay` needs a time, such as 5ms")]
    NoTime,
    /// A time for what takes none.
    #[error("`{}` takes no time", .0.name())]
    Time(FaultKind),
    /// It cannot count this.
    #[error("`{}` does not count `{of}`", kind.name())]
    Of {
        /// The fault.
        kind: FaultKind,
        /// The thing that it was to count.
        of: String,
    },
    /// A rank cannot be killed at its triggers, which another process executes.
    #[error("`kill` does not count `trigger` where the proxy is a process, which `stop` kills")]
    OfService,
    /// More than there can be.
    #[error("there are more than 32 faults")]
    TooMany,
}

impl From<FaultSpecError> for Error {
    fn from(fault: FaultSpecError) -> Self {
        Self::FaultSpec { fault: Box::new(fault), expected: GRAMMAR }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_read_as_it_is_written() {
        let plans = [
            "",
            "seed=7",
            "seed=0;kill:rank=1,at=12",
            "seed=18446744073709551615;drop:one_in=100;fail:rank=63,one_in=1",
            "seed=1;delay:at=3,of=all_reduce,time=5000000ns;corrupt:one_in=2,of=stage;stop:at=9,of=trigger",
        ];
        for text in plans {
            assert_eq!(text.parse::<Faults>().unwrap().to_string(), text);
        }
        let loose: Faults = " seed = 7 ; kill : at = 12 , rank=1 ;; delay:time=2s,at=1; delay:at=1,time=3us "
            .parse()
            .unwrap();
        assert_eq!(
            loose.to_string(),
            "seed=7;kill:rank=1,at=12;delay:at=1,time=2000000000ns;delay:at=1,time=3000ns"
        );
    }

    #[test]
    fn a_plan_that_makes_no_sense_is_one_line_that_says_what_and_how() {
        let wrong = [
            ("murder:at=1", "`murder` is no fault"),
            ("kill", "`kill` needs either at or one_in"),
            ("kill:rank=1", "`kill` needs either at or one_in"),
            ("kill:at=0", "`0` is no number from 1 on"),
            ("kill:at=-1", "`-1` is no number from 1 on"),
            ("kill:at=1,one_in=2", "`one_in=2` is no key with a value"),
            ("kill:rank=0,rank=1,at=1", "`rank` is given twice"),
            ("kill:at=1,of=put, of = get", "`of` is given twice"),
            ("kill:at=1,at=1", "`at` is given twice"),
            ("kill:at", "`at` is no key with a value"),
            ("kill:at=1,color=red", "`color=red` is no key with a value"),
            ("kill:at=1,rank=256", "the rank is not from 0 to 255"),
            ("kill:at=1,rank=x", "the rank is not from 0 to 255"),
            ("kill:at=1,of=lunch", "`kill` does not count `lunch`"),
            ("kill:at=1,of=stage", "`kill` does not count `stage`"),
            ("drop:at=1,of=put", "`drop` does not count `put`"),
            ("corrupt:at=1,of=wait", "`corrupt` does not count `wait`"),
            ("delay:at=1", "`delay` needs a time, such as 5ms"),
            ("delay:at=1,time=5", "`time=5` is no key with a value"),
            ("drop:at=1,time=5ms", "`drop` takes no time"),
            ("seed=x", "the seed `x` is no number"),
        ];
        for (text, told) in wrong {
            let error = text.parse::<Faults>().unwrap_err().to_string();
            assert_eq!(
                error,
                format!("list of faults (--faults, SHMCCL_FAULTS): {told}; expected {GRAMMAR}"),
                "{text}"
            );
            assert!(!error.contains('\n'));
        }
        let many = "kill:at=1;".repeat(33).parse::<Faults>().unwrap_err();
        assert!(many.to_string().contains("more than 32 faults"));
    }
}
