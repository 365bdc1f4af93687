//! A fault that was injected, as errors name it: see [`crate::faults`].

use std::fmt;

use crate::rank::Rank;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum FaultKind {
    /// A rank dies.
    Kill = 1,
    /// Something takes longer.
    Delay,
    /// A trigger is taken and not executed.
    Drop,
    /// A trigger is refused.
    Fail,
    /// A bit of what was written flips.
    Corrupt,
    /// A proxy is lost.
    Stop,
}

impl FaultKind {
    pub(crate) const ALL: [Self; 6] =
        [Self::Kill, Self::Delay, Self::Drop, Self::Fail, Self::Corrupt, Self::Stop];

    /// Returns its name in a plan.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Delay => "delay",
            Self::Drop => "drop",
            Self::Fail => "fail",
            Self::Corrupt => "corrupt",
            Self::Stop => "stop",
        }
    }

    /// Returns how much comes to an end by it: a process of the rank is more than a proxy, and that
    /// is more than nothing.
    pub(crate) const fn ends(self) -> u8 {
        match self {
            Self::Kill => 2,
            Self::Stop => 1,
            Self::Delay | Self::Drop | Self::Fail | Self::Corrupt => 0,
        }
    }

    pub(crate) fn from_code(code: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u64 == code)
    }
}

/// A fault that was injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct FaultHit {
    /// The kind of the fault.
    pub kind: FaultKind,
    /// The rank that it hit, as the job numbered it at first.
    pub rank: Rank,
    /// The thing that was counted: the name of an operation, or a word such as `operation` or
    /// `trigger`.
    pub counted: &'static str,
    /// The number of the thing that was counted, from 1 on.
    pub number: u64,
    /// The thing that it hit: the name of an operation, or a word such as `trigger`.
    pub at: &'static str,
    /// The seed of the plan.
    pub seed: u64,
}

/// `kill at operation 12, all_reduce (seed 7)`.
impl fmt::Display for FaultHit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, counted, number, at, seed, .. } = self;
        write!(f, "{} at {counted} {number}", kind.name())?;
        if at != counted {
            write!(f, ", {at}")?;
        }
        write!(f, " (seed {seed})")
    }
}
