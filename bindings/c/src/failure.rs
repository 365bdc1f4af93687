//! Failures: errors of the engine and of arguments as codes, each with its text and rank.

use std::any::Any;
use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::ScopedJoinHandle;

use shmccl::error::HEAP_OPTION;
use shmccl::shm::statics::StaticsFault;
use shmccl::{Error, Rank};

use crate::types::ResultCode;
use crate::types::shmcclResult_t::{self, *};

/// Why a function failed.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    code: shmcclResult_t,
    text: String,
    /// The rank that the error names, as the job numbers it.
    rank: Option<Rank>,
}

impl Failure {
    pub(crate) const fn new(code: shmcclResult_t, text: String) -> Self {
        Self { code, text, rank: None }
    }

    pub(crate) const fn argument(text: String) -> Self {
        Self::new(shmcclInvalidArgument, text)
    }

    pub(crate) const fn usage(text: String) -> Self {
        Self::new(shmcclInvalidUsage, text)
    }

    /// Returns the error of a null pointer that stands for nothing.
    pub(crate) fn null(name: &str) -> Self {
        Self::argument(format!("{name} is a null pointer"))
    }

    /// Returns the error of a panic, which is a bug of ours.
    pub(crate) fn panicked(panic: &(dyn Any + Send)) -> Self {
        let said = panic.downcast_ref::<&str>().copied();
        let said = said.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic");
        Self::new(shmcclInternalError, format!("{said}; this is a bug of shmccl, please report it"))
    }

    /// Returns the error of a function that the program's own check has ended, which failed by this
    /// one.
    pub(crate) fn interrupted(self) -> Self {
        let text = format!("the interrupt check has ended the wait: {}", self.text);
        Self { code: shmcclInterrupted, text, rank: None }
    }

    pub(crate) const fn code(&self) -> shmcclResult_t {
        self.code
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) const fn rank(&self) -> Option<Rank> {
        self.rank
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::from(&error)
    }
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Self {
        let text = format!("{error:?}").replace(HEAP_OPTION, "heapBytes of shmcclConfig_t");
        Self { code: code_of(error.origin()), rank: rank_of(error.origin()), text }
    }
}

/// Returns the code of an error of the engine.
fn code_of(error: &Error) -> shmcclResult_t {
    match error {
        Error::InvalidArgument { .. }
        | Error::WrongCount { .. }
        | Error::InvalidRank { .. }
        | Error::OutOfRange { .. }
        | Error::Misaligned { .. }
        | Error::Tuning { .. }
        | Error::Plan { .. }
        | Error::FaultSpec { .. } => shmcclInvalidArgument,
        Error::UnsupportedAlgorithm { .. } | Error::UnsupportedOperator { .. } => shmcclUnsupported,
        Error::OutOfMemory { .. } => shmcclOutOfMemory,
        Error::Exhausted { .. } => shmcclExhausted,
        Error::Unavailable { .. } | Error::Environment { .. } | Error::Setting { .. } => shmcclInvalidUsage,
        Error::Mismatch { .. }
        | Error::CallMismatch { .. }
        | Error::AlgorithmMismatch { .. }
        | Error::TuningMismatch { .. }
        | Error::Layout { .. } => shmcclMismatch,
        Error::NotSymmetric { .. } => code_of_statics(error.detail()),
        Error::FailedElsewhere { .. } => shmcclRemoteError,
        Error::Timeout { .. } => shmcclTimeout,
        Error::PeerLost { .. } | Error::DeviceFailed { .. } => shmcclPeerLost,
        Error::ProxyLost => shmcclProxyLost,
        Error::Revoked { .. } => shmcclRevoked,
        Error::Excluded => shmcclExcluded,
        Error::NoMeeting { .. } | Error::RankTaken { .. } | Error::NoPlace { .. } => shmcclNoMeeting,
        Error::Corrupted { .. } | Error::PutCorrupted { .. } => shmcclCorrupted,
        Error::Interrupted { .. } | Error::Cancelled { .. } => shmcclInterrupted,
        Error::Panicked | Error::FaultInjected { .. } => shmcclInternalError,
        // The system has refused, in one way or another.
        _ => shmcclSystemError,
    }
}

fn code_of_statics(fault: Option<&StaticsFault>) -> shmcclResult_t {
    match fault {
        Some(StaticsFault::Differs(_)) => shmcclMismatch,
        Some(StaticsFault::Outside(_)) => shmcclInvalidArgument,
        Some(StaticsFault::Failed(source)) => code_of(source),
        _ => shmcclInvalidUsage,
    }
}

/// Returns the rank that an error of the engine names.
fn rank_of(error: &Error) -> Option<Rank> {
    match error {
        Error::PeerLost { rank }
        | Error::FailedElsewhere { rank, .. }
        | Error::Mismatch { rank, .. }
        | Error::TuningMismatch { rank, .. }
        | Error::RankTaken { rank }
        | Error::Corrupted { rank, .. }
        | Error::PutCorrupted { rank } => Some(*rank),
        Error::Timeout { awaited, straggler, .. } => straggler.or(*awaited),
        Error::Revoked { by, awaited } => awaited.or(*by),
        Error::NotSymmetric { .. } => match error.detail::<StaticsFault>()? {
            StaticsFault::Lacking(rank) => Some(*rank),
            StaticsFault::Differs(difference) => Some(difference.rank),
            _ => None,
        },
        _ => None,
    }
}

/// Waits for the end of a thread. A panic is a failure, and so is a thread that was not to be had.
pub(crate) fn joined<R>(
    thread: shmccl::Result<ScopedJoinHandle<'_, Result<R, Failure>>>,
) -> Result<R, Failure> {
    let thread = thread?;
    thread.join().unwrap_or_else(|panic| Err(Failure::panicked(&*panic)))
}

/// Does `run`. A panic is a failure.
pub(crate) fn attempt<R>(run: impl FnOnce() -> Result<R, Failure>) -> Result<R, Failure> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| Err(Failure::panicked(&*panic)))
}

/// Returns what a code means, in a few words. The text lives as long as the program.
#[unsafe(no_mangle)]
pub extern "C" fn shmcclGetErrorString(result: ResultCode) -> *const c_char {
    let words = ALL.iter().find(|(code, _)| *code as u32 == result);
    words.map_or(c"no result of shmccl", |(_, words)| *words).as_ptr()
}

const ALL: [(shmcclResult_t, &CStr); 19] = [
    (shmcclSuccess, c"success"),
    (shmcclSystemError, c"the operating system refused"),
    (shmcclInternalError, c"a bug of shmccl"),
    (shmcclInvalidArgument, c"an argument is wrong"),
    (shmcclInvalidUsage, c"the function cannot be called here"),
    (shmcclRemoteError, c"the call failed on another rank"),
    (shmcclInProgress, c"not done yet"),
    (shmcclOutOfMemory, c"the heap has no room"),
    (shmcclExhausted, c"a table is full"),
    (shmcclMismatch, c"ranks are in different calls"),
    (shmcclTimeout, c"a wait timed out"),
    (shmcclPeerLost, c"a rank was lost"),
    (shmcclProxyLost, c"the proxy was lost"),
    (shmcclRevoked, c"the communicator was revoked"),
    (shmcclExcluded, c"this rank was given up by the others"),
    (shmcclNoMeeting, c"the ranks did not meet"),
    (shmcclCorrupted, c"data were corrupted"),
    (shmcclUnsupported, c"not for this type, operator or algorithm"),
    (shmcclInterrupted, c"the call was interrupted"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_words_of_its_own_and_others_are_told() {
        let words: std::collections::HashSet<_> = ALL.iter().map(|(_, words)| words).collect();
        assert_eq!(words.len(), ALL.len());
        for wrong in [1, 20, u32::MAX] {
            // SAFETY: the function returns literals.
            let said = unsafe { CStr::from_ptr(shmcclGetErrorString(wrong)) };
            assert_eq!(said, c"no result of shmccl");
        }
    }

    #[test]
    fn an_error_keeps_its_code_text_and_rank_through_a_stream() {
        let lost = Error::PeerLost { rank: Rank::new(2, 3).unwrap() };
        let failed =
            Error::StreamFailed { operation: "all_reduce", number: 4, source: std::sync::Arc::new(lost) };
        let failure = Failure::from(failed);
        assert_eq!((failure.code(), failure.rank().map(Rank::get)), (shmcclPeerLost, Some(2)));
        assert!(failure.text().contains("rank 2 was lost"), "{}", failure.text());
    }
}
