//! All that is out of the ordinary with a rank, in one word. While the word is as it was at first
//! there is nothing to look up.
//!
//! The upper bits hold how many forks had led to the process that became the rank. They differ from
//! that process's own count in a child of it, which is not the rank.

use std::sync::{Arc, OnceLock};

use super::RankContext;
use crate::error::{Error, Result};
use crate::faults::Injector;
use crate::rank::Rank;
use crate::shm::forks::{self, NEEDS_RANK};
use crate::sync::atomic::AtomicU64;
use crate::sync::{Revocation, plain};
use crate::trace::Recorder;

/// The rank has left the job. Channels may outlive its communicators.
const LEFT: u64 = 1;

/// Faults are planned.
const FAULTY: u64 = 2;

/// The rank is traced.
const TRACED: u64 = 4;

/// This rank knows that the epoch has ended: a collective call of it has failed, and ended it, or a
/// call was told.
pub(super) const ENDED: u64 = 8;

/// Where the number of forks begins.
const FORKS: u32 = 4;

/// All bits of the number of forks.
const FORKED: u64 = u64::MAX << FORKS;

/// What a rank looks up when something is out of the ordinary.
#[derive(Debug)]
pub(super) struct RankState {
    /// What is.
    pub(super) word: AtomicU64,
    /// The faults that are planned.
    injector: OnceLock<Arc<Injector>>,
    /// Where this rank notes what it does.
    recorder: OnceLock<Recorder>,
    /// Whether data are checked on their way.
    checksums: OnceLock<()>,
}

impl RankState {
    /// Returns the state of a rank that this process becomes.
    pub(super) fn ordinary() -> Self {
        Self {
            word: AtomicU64::new(forks::count() << FORKS),
            injector: OnceLock::new(),
            recorder: OnceLock::new(),
            checksums: OnceLock::new(),
        }
    }
}

impl RankContext {
    /// Returns what is out of the ordinary.
    #[inline]
    fn condition(&self) -> u64 {
        plain::load(&self.state.word) ^ (forks::count() << FORKS)
    }

    /// Marks that the rank leaves the job: no channel can do anything from now on.
    pub(crate) fn leave(&self) {
        plain::set_bits(&self.state.word, LEFT);
    }

    /// Injects faults from now on. Not to be called while the rank leaves.
    pub(crate) fn plan_faults(&self, injector: Arc<Injector>) {
        if self.state.injector.set(injector).is_ok() {
            plain::set_bits(&self.state.word, FAULTY);
        }
    }

    /// Returns the injector of faults, if any are planned.
    pub(crate) fn injector(&self) -> Option<&Arc<Injector>> {
        self.state.injector.get()
    }

    /// Notes from now on what this rank does, if it does not already. Not while the rank leaves.
    pub(crate) fn set_recorder(&self, recorder: Recorder) {
        if self.state.recorder.set(recorder).is_ok() {
            plain::set_bits(&self.state.word, TRACED);
        }
    }

    /// Notes from now on what this rank does, or does not, where it was to
    /// [`RankContext::set_recorder`]. Not while the rank leaves.
    pub(crate) fn set_tracing(&self, tracing: bool) {
        match self.state.recorder.get() {
            Some(_) if tracing => plain::set_bits(&self.state.word, TRACED),
            Some(_) => plain::clear_bits(&self.state.word, TRACED),
            None => {}
        }
    }

    /// Returns the recorder of this rank, be it in use or not.
    #[inline]
    pub(crate) fn any_recorder(&self) -> Option<&Recorder> {
        self.state.recorder.get()
    }

    /// Returns the recorder of this rank while it traces.
    #[inline]
    pub(crate) fn recorder(&self) -> Option<&Recorder> {
        if self.condition() & TRACED == 0 { None } else { self.state.recorder.get() }
    }

    /// Has data checked on their way from now on. To be called before anything is moved.
    pub(crate) fn take_checksums(&self) {
        self.state.checksums.get_or_init(|| ());
    }

    /// Returns whether data are checked on their way.
    pub(crate) fn takes_checksums(&self) -> bool {
        self.state.checksums.get().is_some()
    }

    /// Returns whether faults are planned.
    #[inline]
    pub(crate) fn is_faulty(&self) -> bool {
        self.condition() & FAULTY != 0
    }

    /// Returns whether this is the rank, which is in the job and knows of no end of the epoch, and
    /// no faults are planned: then any operation may be entered.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.condition() & (LEFT | FAULTY | ENDED | FORKED) == 0
    }

    /// Ends the epoch as this rank's word: a collective call of it has failed, or the program has
    /// asked for it. It makes no other one then: peers that come late to the call that failed would
    /// take the next one's post for an answer to the one after.
    #[cold]
    pub(crate) fn abort(&self) {
        plain::set_bits(&self.state.word, ENDED);
        self.mapped.control().revoke(self.kernel(), Revocation::Aborted(Some(self.rank)));
    }

    /// Ends the epoch as [`RankContext::abort`] does, because of `error`. Of a timeout the others
    /// are told who was awaited: this rank is not to blame.
    #[cold]
    pub(crate) fn abort_after(&self, error: &Error) {
        match error.origin() {
            Error::Timeout { awaited, straggler, .. } if straggler.or(*awaited).is_some() => {
                let awaited = straggler.or(*awaited).unwrap_or(self.rank);
                self.abort_awaiting(awaited);
            }
            _ => self.abort(),
        }
    }

    /// Ends the epoch as [`RankContext::abort`] does, because a wait for a rank has timed out.
    #[cold]
    pub(crate) fn abort_awaiting(&self, awaited: Rank) {
        plain::set_bits(&self.state.word, ENDED);
        self.mapped.control().revoke(self.kernel(), Revocation::TimedOut { by: self.rank, awaited });
    }

    /// Refuses a collective call when this is not the rank, or knows that the epoch has ended.
    ///
    /// # Errors
    /// Fails as [`RankContext::here`] or [`RankContext::check`] does.
    #[cold]
    pub(crate) fn can_call(&self, operation: &'static str) -> Result<()> {
        self.here(operation)?;
        if self.condition() & ENDED == 0 { Ok(()) } else { self.check(operation) }
    }

    /// Returns whether this is the rank, which is in the job and knows of no end of the epoch, no
    /// faults are planned, and nothing is noted: then there is nothing to look up.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.condition() == 0
    }

    /// Refuses `operation` when this is not the rank, or it has left the job.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    #[inline]
    pub(crate) fn present(&self, operation: &'static str) -> Result<()> {
        if self.condition() & (LEFT | FORKED) == 0 { Ok(()) } else { Err(self.absent(operation)) }
    }

    /// Refuses `operation` in a child that the rank has forked.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    #[inline]
    pub(crate) fn here(&self, operation: &'static str) -> Result<()> {
        if self.condition() & FORKED == 0 { Ok(()) } else { Err(self.absent(operation)) }
    }

    #[cold]
    fn absent(&self, operation: &'static str) -> Error {
        let needs = if self.condition() & FORKED == 0 {
            "a communicator: the last one of this rank was finalized or dropped"
        } else {
            NEEDS_RANK
        };
        Error::Unavailable { operation, needs }
    }

    /// Ends the epoch because this rank unwinds with work enqueued: nobody is to wait for what it
    /// will never do.
    #[cold]
    pub(crate) fn mark_own_loss(&self) {
        self.mapped.life(self.rank).mark_lost(self.kernel());
        self.mapped.control().revoke(self.kernel(), Revocation::PeerLost(self.rank));
    }
}
