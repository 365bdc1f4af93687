//! The rules of the check, each of which a test can switch off: some verdict changes then.

/// A rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// A read comes after the write of what it reads.
    ReadAfterWrite,
    /// A write comes after the one that it overwrites.
    WriteAfterWrite,
    /// A write comes after the reads of what it overwrites.
    WriteAfterRead,
    /// Threads of a block come after each other where they meet only.
    ThreadsMeet,
    /// What a thread has waited for, others know where they meet only.
    WaitsReachOneThread,
    /// Nothing orders launches of different ranks.
    LaunchesOverlap,
    /// Pushes of threads that do not know of each other come in any order.
    PushesOvertake,
    /// A packet that is overwritten was read before.
    PacketsAreRead,
    /// A packet that comes after one with the same flag is not told from it.
    PacketsComeOnce,
    /// A packet is of the launch of its reader.
    PacketsHaveFlags,
    /// The caller gives a new input before each launch.
    CallersWrite,
    /// The caller reads the result after each launch.
    CallersRead,
    /// A launch does not wait for what its rank has pushed.
    EndsInFlight,
    /// Relaxed signals order no data.
    RelaxedIsNoOrder,
    /// Each input that belongs is in a result.
    InputsAreThere,
    /// Each input counts once.
    InputsCountOnce,
    /// A result is of its launch.
    ResultsAreOfTheirLaunch,
    /// All of a result is combined by one operator.
    OperatorsAgree,
    /// Sendrecv is a permutation.
    ReceiversDiffer,
    /// Each signal is taken.
    SignalsBalance,
    /// Each semaphore ends as it began.
    SemaphoresBalance,
    /// Blocks add to a counter in an order that is no chance.
    AddersAreOrdered,
    /// Blocks take from a counter in an order that is no chance.
    TakersAreOrdered,
    /// All blocks end.
    BlocksEnd,
    /// Memory that holds packets is not read as it is.
    PacketsAreNotPlain,
    /// The two halves of a packet are of one packet.
    PacketsAreWhole,
    /// In some sizes slices lie to each other otherwise.
    SlicesLieOtherwise,
    /// In some sizes pipelines run several times.
    PipelinesRepeat,
    /// In some sizes pipelines run longer than what counters have from outside.
    CreditsRunOut,
    /// Pipelines that begin with what was taken outside are tried with each number of iterations.
    TakesBegin,
    /// The two sides of a counter keep step.
    SidesKeepStep,
    /// Units that differ lie to each other otherwise in some sizes.
    UnitsDiffer,
    /// A plan runs within its limits only.
    LimitsHold,
    /// In some sizes slices are longer than a unit.
    SlicesRepeat,
    /// In some sizes chunks wrap in scratch.
    ChunksWrap,
    /// In some sizes slices wrap in scratch.
    SlicesWrap,
    /// In some sizes chunks overlap in scratch.
    ChunksOverlap,
}

/// Returns whether a rule holds, as it does but in a test that switches it off.
#[cfg(not(test))]
pub(super) const fn holds(_: Rule) -> bool {
    true
}

#[cfg(test)]
pub(super) use tests::holds;

#[cfg(test)]
mod tests;
