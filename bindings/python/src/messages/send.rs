//! Messages that are sent, and senders that wait until theirs is matched.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use pyo3::prelude::*;
use shmccl::{Rank, Work};

use super::matching::{MessageMatching, NOT_RECEIVED, ended};
use super::progress::BESIDE;
use super::receive::await_work;

/// Whether a synchronous message was matched; or the rank that has ended before.
#[derive(Default)]
pub struct MatchSignal(OnceLock<Option<Rank>>);

impl MatchSignal {
    /// Tells that it was, or who has ended.
    pub fn set(&self, lost: Option<Rank>) {
        let _ = self.0.set(lost);
    }
}

/// A message that is being sent.
#[pyclass(frozen, module = "shmccl._core", name = "_SentMessage")]
pub struct SentMessage {
    matching: Arc<MessageMatching>,
    header: Option<Work>,
    payload: Option<Work>,
    /// Of a synchronous message.
    matched: Option<Arc<MatchSignal>>,
}

impl SentMessage {
    /// Makes that of operations that were started.
    pub fn new(
        matching: &Arc<MessageMatching>,
        header: Option<Work>,
        payload: Option<Work>,
        matched: Option<Arc<MatchSignal>>,
    ) -> Self {
        Self { matching: Arc::clone(matching), header, payload, matched }
    }

    /// Returns the messages among which the acknowledgement of its match is still to come.
    pub fn awaited_in(&self) -> Option<&Arc<MessageMatching>> {
        let matched = self.matched.as_ref()?;
        matched.0.get().is_none().then_some(&self.matching)
    }

    /// Returns the messages among which headers are taken while its own, or its payload, has no
    /// room: its receiver may wait for the same.
    pub fn held_up_in(&self) -> Option<&Arc<MessageMatching>> {
        let mut works = self.header.iter().chain(&self.payload);
        works.any(|work| work.outcome().is_none()).then_some(&self.matching)
    }

    /// Returns whether it has ended, in whatever way.
    pub fn is_complete(&self, py: Python<'_>) -> bool {
        let mut works = self.header.iter().chain(&self.payload);
        self.awaited_in().is_none() && works.all(|work| py.detach(|| work.is_done()))
    }

    /// Waits until it is done, or for so long, with whatever there is to do for it.
    ///
    /// # Errors
    /// Those of its operations; `PeerLost` where its receiver has ended before it was matched.
    pub fn wait_for(&self, py: Python<'_>, timeout: Option<Duration>) -> PyResult<()> {
        if self.awaited_in().is_some() {
            return self.matching.look(py, timeout.unwrap_or(BESIDE)).map(drop);
        }
        for work in self.header.iter().chain(&self.payload) {
            await_work(py, work, timeout)?;
        }
        match self.matched.as_ref().and_then(|matched| matched.0.get()) {
            Some(Some(rank)) => Err(ended(py, *rank, NOT_RECEIVED)),
            _ => Ok(()),
        }
    }
}

#[pymethods]
impl SentMessage {
    /// Returns whether it has ended, in whatever way.
    fn is_done(&self, py: Python<'_>) -> bool {
        self.is_complete(py)
    }

    /// Waits until it is sent, and raises what it has failed by. A match is not waited for.
    fn wait(&self, py: Python<'_>) -> PyResult<()> {
        self.wait_for(py, None)
    }
}
