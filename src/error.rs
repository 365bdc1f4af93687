//! The one error type of the engine: a variant for each thing that a caller can do about it.
//!
//! Tried by its unit tests and `command cli::`.

mod detail;
mod ending;
mod fault_hit;
mod words;

use std::time::Duration;

use nix::errno::Errno;

pub use detail::{Detail, EpochReport};
pub use ending::{DeviceName, ExitCause};
pub use fault_hit::{FaultHit, FaultKind};
use words::{
    awaiting, held_up, in_gone_directory, in_line, name_holder, revoked, signal_name, why_no_meeting,
};

use crate::rank::{EXPECTED_RANKS, Rank, RankError};

/// The result of the operations of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What Rust calls the length of heaps. A binding tells its own name instead.
pub const HEAP_OPTION: &str = "`Launch::heap_len`";

/// The remedy for a system call that is refused.
pub(crate) const ALLOW_CALL: &str =
    "allow it in the profile of the sandbox or container (seccomp), or leave the emulator";

/// Why an operation failed, with the values that tell.
///
/// The data path (put, get, signal, wait, flush, barrier) returns only [`Error::Timeout`],
/// [`Error::PeerLost`], [`Error::ProxyLost`] and [`Error::Revoked`] once its arguments are in
/// range; and [`Error::Unavailable`], where a channel has outlived the communicators of its rank.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument has a value that the operation cannot take.
    #[error("{name} is {value}, expected {expected}")]
    InvalidArgument {
        /// The argument.
        name: &'static str,
        /// The value of the argument.
        value: u64,
        /// The values that would have been accepted.
        expected: &'static str,
    },
    /// An algorithm cannot do the operation that it was chosen for.
    #[error("algorithm `{algorithm}` cannot do {operation}; use {supported}")]
    UnsupportedAlgorithm {
        /// The algorithm.
        algorithm: &'static str,
        /// The operation.
        operation: &'static str,
        /// The algorithms that can do it, in words.
        supported: &'static str,
    },
    /// An operator is not defined on the type of the elements. Nothing has changed.
    #[error("operator {operator} is not defined on {data_type}; use {supported}")]
    UnsupportedOperator {
        /// The operator.
        operator: &'static str,
        /// The type.
        data_type: &'static str,
        /// What can be done on elements of the type, in words.
        supported: &'static str,
    },
    /// A buffer has another number of elements than the call needs.
    #[error("the number of {name} is {count}, expected {expected}")]
    WrongCount {
        /// Which elements.
        name: &'static str,
        /// How many there are.
        count: u64,
        /// How many there have to be.
        expected: u64,
    },
    /// A rank is not part of the communicator.
    #[error("rank {rank} does not exist: the communicator has {n_ranks} ranks")]
    InvalidRank {
        /// The rank that was named.
        rank: u32,
        /// How many there are.
        n_ranks: u32,
    },
    /// A range of bytes (or slots, or elements) reaches past the end of what it names. Nothing was
    /// changed.
    #[error("{what}: {len} at {offset} reaches past {limit}")]
    OutOfRange {
        /// The thing that was indexed.
        what: &'static str,
        /// Where the range starts.
        offset: u64,
        /// How long it is.
        len: u64,
        /// The end of what exists.
        limit: u64,
    },
    /// An address or offset is not a multiple of the alignment that the operation needs.
    #[error("{what}: offset {offset} is not a multiple of {align}")]
    Misaligned {
        /// The thing that was indexed.
        what: &'static str,
        /// Where.
        offset: u64,
        /// The multiple it has to be, in bytes.
        align: u64,
    },
    /// The heap cannot satisfy an allocation, symmetric or from its arena.
    #[error(
        "out of device memory: asked for {asked} bytes, {free} of {len} free, {contiguous} contiguous; \
         start with a larger heap ({HEAP_OPTION}, or --heap or SHMCCL_HEAP of the command)"
    )]
    OutOfMemory {
        /// Bytes asked for.
        asked: u64,
        /// Bytes that such allocations can have in all.
        len: u64,
        /// Bytes free in all.
        free: u64,
        /// The longest free run, in bytes.
        contiguous: u64,
    },
    /// A table of fixed size is full.
    #[error("no {what} left: all {limit} are in use")]
    Exhausted {
        /// The thing that ran out.
        what: &'static str,
        /// How many there are.
        limit: u64,
    },
    /// The operation does not exist in this kind of job, or not any more at this point of it.
    #[error("{operation} needs {needs}")]
    Unavailable {
        /// The operation that was called.
        operation: &'static str,
        /// The kind of job, or the point in it, where it can be called.
        needs: &'static str,
    },
    /// A name in `/dev/shm` that the job needs is somebody else's.
    #[error("/dev/shm/{name} {}", name_holder(*.holder))]
    NameInUse {
        /// The name.
        name: String,
        /// The living process that it belongs to; `None` when that cannot be told.
        holder: Option<u64>,
    },
    /// Static objects of the program, or what lies at an address, are not symmetric.
    #[error(transparent)]
    NotSymmetric {
        /// A [`StaticsFault`](crate::shm::statics::StaticsFault): why.
        fault: Detail,
    },
    /// The operating system refused for want of a resource that the user can raise.
    #[error("not enough {resource} for {action}: {remedy}")]
    ResourceLimit {
        /// The thing that ran out.
        resource: &'static str,
        /// The action that was attempted.
        action: &'static str,
        /// How to get more of it.
        remedy: &'static str,
        /// The system's own error.
        #[source]
        source: std::io::Error,
    },
    /// The operating system, a sandbox or a file system has not what an action needs.
    #[error("{action} needs {needs}, which is refused here: {remedy}")]
    Refused {
        /// The action that was attempted.
        action: &'static str,
        /// What was refused, such as a system call.
        needs: &'static str,
        /// How to have it.
        remedy: &'static str,
        /// The system's own error.
        #[source]
        source: std::io::Error,
    },
    /// The operating system refused.
    #[error("{action} failed")]
    Os {
        /// The action that was attempted.
        action: &'static str,
        /// The system's own error.
        #[source]
        source: std::io::Error,
    },
    /// A shared object is not what this process takes it for: magic, layout version, epoch, job id,
    /// size, or state.
    #[error("{what} does not match: expected {expected:#x}, found {found:#x}")]
    Layout {
        /// The field.
        what: &'static str,
        /// The value that this process expects.
        expected: u64,
        /// The value in the shared object.
        found: u64,
    },
    /// Ranks called a collective operation with different arguments.
    #[error("ranks disagree on {what}: this rank has {mine}, rank {rank} has {theirs}")]
    Mismatch {
        /// The argument that they disagree on.
        what: &'static str,
        /// This rank's value.
        mine: u64,
        /// The other rank.
        rank: Rank,
        /// The other rank's value.
        theirs: u64,
    },
    /// Ranks are in different collective calls, or in the same one with different arguments, or
    /// wait for each other, one in such a call and one for a message, or both for messages. The
    /// epoch has ended.
    ///
    /// Most are told at once. Where no two ranks can tell for certain that they will not come
    /// together, as three that wait for messages in a circle, all are told by the deadline. And
    /// ranks that are in operations of two *different* communicators, as they may be in different
    /// threads, are told [`Error::Timeout`]; [`Communicator::report`](crate::Communicator::report)
    /// tells then who waits for whom.
    #[error("{mismatch}")]
    CallMismatch {
        /// A [`collective::CallMismatch`](crate::collective::CallMismatch).
        mismatch: Detail,
    },
    /// Ranks have registered different algorithms of their own. Nothing has changed.
    #[error("{mismatch}")]
    AlgorithmMismatch {
        /// A [`collective::AlgorithmMismatch`](crate::collective::AlgorithmMismatch).
        mismatch: Detail,
    },
    /// Another rank failed in a collective operation that can only succeed on all.
    #[error("{operation} failed on rank {rank}")]
    FailedElsewhere {
        /// The operation.
        operation: &'static str,
        /// The rank that failed.
        rank: Rank,
    },
    /// A wait passed its deadline although nobody died.
    #[error("{operation} timed out after {waited:?}{}{}", awaiting(*.awaited, *.tag), held_up(*.straggler, .report.as_deref()))]
    Timeout {
        /// The operation that waited.
        operation: &'static str,
        /// The rank that was awaited, where it is one.
        awaited: Option<Rank>,
        /// The tag of the message that was awaited, unless that is 0 and of a known rank.
        tag: Option<u32>,
        /// How long it waited.
        waited: Duration,
        /// The rank that holds the others up, where the report tells that: it is awaited, be it by
        /// way of others, and does not wait itself.
        straggler: Option<Rank>,
        /// A report of what all ranks of the job were in at that moment. `{:#?}` of the error
        /// prints it.
        report: Option<Box<dyn EpochReport>>,
    },
    /// A file, or what was made of it, is no execution plan that can be run.
    #[error("{refusal}")]
    Plan {
        /// A [`RefusedPlan`](shmccl_plan::RefusedPlan): all that is wrong with it.
        refusal: Detail,
    },
    /// Thread blocks of an execution plan have waited in vain, as the deadline passed.
    #[error("{plan} timed out: {blocks}; {cause}")]
    PlanStalled {
        /// The plan.
        plan: String,
        /// Which blocks of this rank wait, in which operations, for what, and how much of it they
        /// have had.
        blocks: String,
        /// Where blocks of whatever ranks wait for each other in a circle, or for what nobody does:
        /// all that is known of why.
        cause: String,
        /// The timeout.
        #[source]
        source: std::sync::Arc<Error>,
    },
    /// An operation of a stream failed, and those behind it were not executed.
    #[error("operation {number} of the stream, {operation}, failed")]
    StreamFailed {
        /// Which operation.
        operation: &'static str,
        /// How many operations of the stream there were up to it, itself included.
        number: u64,
        /// Why.
        #[source]
        source: std::sync::Arc<Error>,
    },
    /// An operation that was [started](crate::Communicator::start) failed.
    #[error("{operation}, which was started, failed")]
    WorkFailed {
        /// The operation.
        operation: &'static str,
        /// Why.
        #[source]
        source: std::sync::Arc<Error>,
    },
    /// A function that the program has handed over panicked.
    #[error("a function of the program's own panicked")]
    Panicked,
    /// A rank of this epoch died or left while it was needed.
    #[error("rank {rank} was lost")]
    PeerLost {
        /// The rank.
        rank: Rank,
    },
    /// The other ranks have given this one up, and have gone on without it.
    #[error(
        "this rank was given up, and the others have gone on without it; leave the job, or start this rank anew"
    )]
    Excluded,
    /// The proxy service process died, or the handler of a proxy thread panicked.
    #[error("the proxy was lost")]
    ProxyLost,
    /// The epoch was aborted.
    #[error("{}", revoked(*.by, *.awaited))]
    Revoked {
        /// The rank that aborted it; `None` when it was the launcher.
        by: Option<Rank>,
        /// The rank that held that one up, where a wait of it has timed out.
        awaited: Option<Rank>,
    },
    /// The process was not started by a launcher, or its environment is damaged.
    #[error("{variable}: {expected}; start the program with `shmccl run -n N -- PROGRAM`")]
    Environment {
        /// The variable.
        variable: &'static str,
        /// The value that it should have held.
        expected: &'static str,
    },
    /// A variable by which the user says what is wanted has a value that says nothing.
    #[error("{variable}: expected {expected}; set it to that, or not at all")]
    Setting {
        /// The variable.
        variable: &'static str,
        /// The values that it may hold.
        expected: &'static str,
    },
    /// A table of algorithms cannot be used: see [`crate::collective::tuning`].
    #[error(
        "tuning table {}{}: {fault}; mend it, measure one with `shmccl tune`, or set SHMCCL_TUNING to another file, or to \
         nothing for the built-in table", file.display(), in_line(*.line)
    )]
    Tuning {
        /// The file that the table was read from.
        file: std::path::PathBuf,
        /// The line that is at fault, where it is one.
        line: Option<usize>,
        /// A [`TuningFault`](crate::collective::tuning::TuningFault): what is wrong with it.
        fault: Detail,
    },
    /// Ranks of a job have different tables of algorithms. The epoch has ended.
    #[error(
        "ranks have different tuning tables: checksum {mine:#018x} on this rank, {theirs:#018x} on rank {rank}; give all ranks \
         the same file (SHMCCL_TUNING)"
    )]
    TuningMismatch {
        /// The checksum of this rank's table.
        mine: u64,
        /// The other rank.
        rank: Rank,
        /// The checksum of the other rank's table.
        theirs: u64,
    },
    /// A trace cannot be written.
    #[error("cannot write the trace to {}{}", file.display(), in_gone_directory(file))]
    Trace {
        /// The file that it was to go to.
        file: std::path::PathBuf,
        /// The system's own error.
        #[source]
        source: std::io::Error,
    },
    /// Nobody receives under a [`UniqueId`](crate::UniqueId): it has served its meeting, nobody has
    /// come in time, the process that made it has ended, or it was made elsewhere.
    ///
    /// Or a process ended on its way into the meeting, before it was known which rank it is.
    #[error("no meeting under this unique id: {}", why_no_meeting(source))]
    NoMeeting {
        /// The system's own error.
        #[source]
        source: std::io::Error,
    },
    /// Two processes came to a meeting as the same rank. Everybody who came is told.
    #[error("rank {rank} was claimed by two processes")]
    RankTaken {
        /// The rank.
        rank: Rank,
    },
    /// A newcomer is one too many, or those whom it has come to wait for none. Nobody else is
    /// concerned.
    #[error(
        "no place for this newcomer: there are {places} for newcomers, all taken; make the members grow by more, or join them \
         when they grow again"
    )]
    NoPlace {
        /// How many ranks are for newcomers.
        places: u32,
    },
    /// A list of faults cannot be used: see [`crate::faults`].
    #[error("list of faults (--faults, SHMCCL_FAULTS): {fault}; expected {expected}")]
    FaultSpec {
        /// A [`FaultSpecError`](crate::faults::FaultSpecError): what is wrong with it.
        fault: Detail,
        /// How a plan is written.
        expected: &'static str,
    },
    /// This rank, a thread, was killed by a fault that was injected. A rank that is a process is
    /// killed outright.
    #[error("rank {} was killed by an injected fault: {hit}", hit.rank)]
    FaultInjected {
        /// The fault.
        hit: FaultHit,
    },
    /// A checkpoint cannot be written or read. See
    /// [`Communicator::checkpoint`](crate::Communicator::checkpoint) and
    /// [`restore`](crate::Communicator::restore) for what counts then.
    #[error("checkpoint {}: {fault}", path.display())]
    Checkpoint {
        /// The directory, or the file that is concerned.
        path: std::path::PathBuf,
        /// A [`CheckpointFault`](crate::comm::CheckpointFault): what is wrong.
        fault: Detail,
    },
    /// Data that came from another rank differ from what it has sent, by their checksums
    /// ([`Options::checksums`](crate::bootstrap::Options::checksums)). They were not used, or are
    /// not to be. The epoch has ended.
    #[error(
        "{operation}: chunk {chunk} from rank {rank} was corrupted on its way: its checksum is {found:#010x}, not {expected:#010x}; \
         test the memory of this machine, or look for who writes where it must not"
    )]
    Corrupted {
        /// The operation.
        operation: &'static str,
        /// The rank that has sent them.
        rank: Rank,
        /// The number of the message in the pipe between the two, or of the piece of the operation
        /// that was staged.
        chunk: u64,
        /// The checksum of what was sent.
        expected: u32,
        /// The checksum of what has arrived.
        found: u32,
    },
    /// A copy that a proxy has made for a rank differs from its source, by checksums. The epoch has
    /// ended; nobody was signalled.
    #[error(
        "a put of rank {rank} through its proxy was corrupted; test the memory of this machine, or look for who writes where it must \
         not, or into a source before its flush"
    )]
    PutCorrupted {
        /// The rank. Its [`fifo_snapshots`](crate::Communicator::fifo_snapshots) name the trigger,
        /// as one that was refused.
        rank: Rank,
    },
    /// A device process ended before its work was done: the first one that did.
    #[error("{device} {cause}")]
    DeviceFailed {
        /// Which process.
        device: DeviceName,
        /// How it ended.
        cause: ExitCause,
    },
    /// The program ended a wait of its own thread: see
    /// [`sync::interrupt`](crate::sync::interrupt).
    #[error("{operation} was cancelled by the program")]
    Cancelled {
        /// The operation that waited.
        operation: &'static str,
    },
    /// The launcher was told to stop by a signal.
    #[error("interrupted by {}", signal_name(*.signal))]
    Interrupted {
        /// The signal's number.
        signal: i32,
    },
}

/// The message and its causes in one line: what a `main` that returns a [`Result`] shows its user.
impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let message = self.to_string();
        f.write_str(&message)?;
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            // Some messages say their cause.
            let text = error.to_string();
            if !message.ends_with(&text) {
                write!(f, ": {text}")?;
            }
            cause = error.source();
        }
        if let Self::Timeout { report: Some(report), .. } = self.origin()
            && f.alternate()
        {
            write!(f, "\n{report}")?;
        }
        Ok(())
    }
}

impl From<RankError> for Error {
    #[inline]
    fn from(error: RankError) -> Self {
        match error {
            RankError::NoSuchRank { rank, n_ranks } => Self::InvalidRank { rank, n_ranks },
            RankError::Count { n_ranks } => {
                Self::InvalidArgument { name: "n_ranks", value: n_ranks.into(), expected: EXPECTED_RANKS }
            }
        }
    }
}

impl From<shmccl_plan::RefusedPlan> for Error {
    fn from(refusal: shmccl_plan::RefusedPlan) -> Self {
        Self::Plan { refusal: Box::new(refusal) }
    }
}

impl Error {
    /// Returns the error of taking back lost ranks where there is one that the launcher does not
    /// start again.
    pub(crate) const fn not_restarted() -> Self {
        let needs = "a restart that is left for every lost rank; call shrink to go on without them";
        Self::Unavailable { operation: "recover", needs }
    }

    /// Returns the error that made an operation fail, of a stream or started, or else this one.
    #[must_use]
    pub fn origin(&self) -> &Self {
        match self {
            Self::StreamFailed { source, .. }
            | Self::WorkFailed { source, .. }
            | Self::PlanStalled { source, .. } => source.origin(),
            _ => self,
        }
    }

    /// Returns what the part of the crate that this error is about says of it, where that is a `T`:
    /// a [`CallMismatch`](crate::collective::CallMismatch), for example.
    #[must_use]
    pub fn detail<T: std::error::Error + 'static>(&self) -> Option<&T> {
        match self.origin() {
            Self::CallMismatch { mismatch: detail }
            | Self::AlgorithmMismatch { mismatch: detail }
            | Self::Tuning { fault: detail, .. }
            | Self::Plan { refusal: detail }
            | Self::FaultSpec { fault: detail, .. }
            | Self::NotSymmetric { fault: detail }
            | Self::Checkpoint { fault: detail, .. } => detail.downcast_ref(),
            _ => None,
        }
    }

    /// Returns the error of a meeting that has failed, as this process ended before it had a rank
    /// there.
    pub(crate) fn died_on_its_way(pid: u32) -> Self {
        let died = format!("process {pid} ended on its way into it, before it had a rank");
        Self::NoMeeting { source: std::io::Error::other(died) }
    }

    /// Returns the error of a wait in `operation`, for `awaited` if for a rank, that has lasted for
    /// as long as it may.
    pub(crate) fn timed_out(operation: &'static str, awaited: Option<Rank>, waited: Duration) -> Self {
        Self::Timeout { operation, awaited, tag: None, waited, straggler: None, report: None }
    }

    /// Says of a timeout that its wait was for a message with this `tag`.
    pub(crate) fn tagged(mut self, tag: u32) -> Self {
        if let Self::Timeout { awaited, tag: named, .. } = &mut self {
            *named = Some(tag).filter(|&tag| tag != 0 || awaited.is_none());
        }
        self
    }

    /// Says of a timeout that its wait was part of `operation`.
    pub(crate) fn within(mut self, operation: &'static str) -> Self {
        if let Self::Timeout { operation: waited_in, .. } = &mut self {
            *waited_in = operation;
        }
        self
    }

    /// Refuses the `value` of the argument called `name`.
    pub(crate) const fn invalid(name: &'static str, value: u64, expected: &'static str) -> Self {
        Self::InvalidArgument { name, value, expected }
    }

    /// Wraps the current `errno` of a failed system call. Any call may find no descriptor left.
    pub(crate) fn os(action: &'static str, source: impl Into<std::io::Error>) -> Self {
        let (source, resource) = (source.into(), "file descriptors");
        let remedy = match source.raw_os_error().map(Errno::from_raw) {
            Some(Errno::EMFILE | Errno::ETOOMANYREFS) => "raise `ulimit -n`",
            Some(Errno::ENFILE) => "raise the sysctl fs.file-max",
            Some(Errno::ENOSYS) => {
                return Self::Refused { action, needs: "a system call", remedy: ALLOW_CALL, source };
            }
            _ => return Self::Os { action, source },
        };
        Self::ResourceLimit { resource, action, remedy, source }
    }
}

/// Checks a value on which two sides have agreed.
///
/// # Errors
/// [`Error::Layout`] when `found` is not `expected`.
pub(crate) fn check_layout(what: &'static str, expected: u64, found: u64) -> Result<()> {
    if expected == found { Ok(()) } else { Err(Error::Layout { what, expected, found }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_lower_case_and_carry_their_values() {
        let timeout = Error::timed_out("wait", Some(Rank::known(3)), Duration::from_millis(1500));
        assert_eq!(timeout.to_string(), "wait timed out after 1.5s, awaiting rank 3");
        let tagged =
            |awaited| Error::timed_out("recv", awaited, Duration::from_secs(2)).tagged(7).to_string();
        assert_eq!(tagged(Some(Rank::known(3))), "recv timed out after 2s, awaiting rank 3 with tag 7");
        assert_eq!(tagged(None), "recv timed out after 2s, awaiting any rank with tag 7");
        assert_eq!(Error::PeerLost { rank: Rank::known(1) }.to_string(), "rank 1 was lost");
        assert_eq!(
            Error::Revoked { by: None, awaited: None }.to_string(),
            "the communicator was revoked by the launcher"
        );
        let died =
            Error::DeviceFailed { device: DeviceName::Rank(Rank::known(2)), cause: ExitCause::Signal(9) };
        assert_eq!(died.to_string(), "rank 2 was killed by SIGKILL");
        let range = Error::OutOfRange { what: "symmetric heap", offset: 8, len: 4, limit: 10 };
        assert_eq!(range.to_string(), "symmetric heap: 4 at 8 reaches past 10");
        let wrong = Error::WrongCount { name: "elements received", count: 3, expected: 4 };
        assert_eq!(wrong.to_string(), "the number of elements received is 3, expected 4");
    }
}
