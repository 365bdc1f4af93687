//! Messages as MPI has them, over those of the engine: of any length, to oneself, and found by a
//! probe.
//!
//! | module | what |
//! |---|---|
//! | `header` | what goes before each message |
//! | `queues` | posted receives, unexpected messages, ranks that have ended |
//! | `transport` | headers and payloads over two communicators of the engine |
//! | `receive`, `send` | one receive, one message that is sent |
//! | `matching` | all messages of one communicator |
//! | `progress` | waits in which headers are taken |
//!
//! A message begins with a header. Elements that have room lie in there; others are the payload,
//! with a tag of their own, which is made of the message's number. So a receiver learns source, tag
//! and length before it has to say where the elements go. Payloads go through a communicator of
//! their own, so that nothing else waits behind one.
//!
//! A receiver takes headers in the order in which they come, and matches them by the [`queues`]. A
//! payload goes to the memory of its receive at once. The receiver of a synchronous message sends
//! an acknowledgement of the match, which is a header, too.
//!
//! # Payloads that nobody has called for
//! The payload of an unexpected message stays where it is, in front of those that its sender has
//! sent later. The engine passes over so many bytes of them. Where a receive needs a payload behind
//! more, those in front go to memory of their own first.
//!
//! # The end
//! A receive of a header may be open when nothing is received any more, and a receive from any rank
//! fails where all others have left. So ranks that close a communicator come together first, and
//! send each other a last header. What was sent before has come then, and receives that no message
//! is for fail. A rank that ends without that has a last header for every other, too: nothing is
//! received behind it, and who waits learns of it.
//!
//! # Locks
//! No lock is held where Python is called or a thread waits, but that of the receive of headers,
//! which no thread waits for.
//!
//! Tried by its unit tests, `test_mpi.py` and `test_mpi_programs.py`.

mod header;
mod matching;
mod progress;
mod queues;
mod receive;
mod send;
mod transport;

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use shmccl::{MessageSelector, Rank};

use crate::comm::Communicator;
use crate::error::{refused, refused_of_rank};
use matching::MessageMatching;
use receive::{FoundMessage, PostedReceive, Told};
use send::SentMessage;

/// Any source, and any tag.
const ANY: i64 = -1;

/// The rank that is nobody.
const PROC_NULL: i64 = -2;

/// The largest tag of a message.
const LARGEST_TAG: u32 = u32::MAX >> 1;

/// The messages of one communicator of `shmccl.mpi`.
///
/// Ranks and tags are those of MPI. A place is an operand, or None for memory of the elements' own.
#[pyclass(frozen, module = "shmccl._core", name = "_Messages")]
pub struct Messages(Arc<MessageMatching>);

impl Messages {
    fn selector(&self, py: Python<'_>, source: i64, tag: i64) -> PyResult<MessageSelector> {
        let source = if source == ANY { None } else { Some(self.peer(py, source)?) };
        Ok(MessageSelector { source, tag: if tag == ANY { None } else { Some(tag_of(py, tag)?) } })
    }

    fn peer(&self, py: Python<'_>, rank: i64) -> PyResult<Rank> {
        let size = self.0.transport.size();
        let peer = u32::try_from(rank).ok().and_then(|rank| Rank::new(rank, size).ok());
        let text = || format!("rank {rank} is none of {size} ranks");
        peer.ok_or_else(|| refused_of_rank(py, "InvalidRankError", text(), rank))
    }
}

fn tag_of(py: Python<'_>, tag: i64) -> PyResult<u32> {
    let found = u32::try_from(tag).ok().filter(|tag| *tag <= LARGEST_TAG);
    let text = || format!("tag {tag} is none: tags go from 0 to {LARGEST_TAG}");
    found.ok_or_else(|| refused(py, "InvalidArgumentError", text()))
}

#[pymethods]
impl Messages {
    /// Sends headers and payloads over two communicators of the same ranks.
    #[new]
    fn new(headers: &Bound<'_, Communicator>, payloads: &Bound<'_, Communicator>) -> Self {
        Self(Arc::new(MessageMatching::new(headers.get(), payloads.get())))
    }

    /// Begins to send an operand. Returns what tells when it is sent; None where it is.
    fn send(
        &self,
        py: Python<'_>,
        elements: &Bound<'_, PyAny>,
        dest: i64,
        tag: i64,
        is_synchronous: bool,
    ) -> PyResult<Option<SentMessage>> {
        self.0.send(elements, self.peer(py, dest)?, tag_of(py, tag)?, is_synchronous)
    }

    /// Sends an operand that has room in the header. Returns whether it has: all else is for
    /// `send`.
    fn send_short(&self, py: Python<'_>, elements: &Bound<'_, PyAny>, dest: i64, tag: i64) -> PyResult<bool> {
        if dest == PROC_NULL {
            return Ok(false);
        }
        self.0.send_short(elements, self.peer(py, dest)?, tag_of(py, tag)?)
    }

    /// Posts a receive.
    fn post(
        &self,
        py: Python<'_>,
        source: i64,
        tag: i64,
        place: Option<Py<PyAny>>,
    ) -> PyResult<Py<PostedReceive>> {
        self.0.post(py, self.selector(py, source, tag)?, place)
    }

    /// Receives a short message, and returns what a status tells of it, and its elements where they
    /// have memory of their own. None where it is not the next one: all else is for `post`.
    fn receive_short(
        &self,
        py: Python<'_>,
        source: i64,
        tag: i64,
        place: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<(Told, Option<Py<PyBytes>>)>> {
        if source == PROC_NULL {
            return Ok(None);
        }
        self.0.receive_short(py, &self.selector(py, source, tag)?, place)
    }

    /// Receives a message that a probe has taken.
    fn receive(
        &self,
        py: Python<'_>,
        message: &FoundMessage,
        place: Option<Py<PyAny>>,
    ) -> PyResult<Py<PostedReceive>> {
        self.0.receive(py, &message.0, place)
    }

    /// Returns an unexpected message, if one has come. It stays one unless it is taken.
    fn probe(&self, py: Python<'_>, source: i64, tag: i64, is_taken: bool) -> PyResult<Option<FoundMessage>> {
        self.0.probe(py, &self.selector(py, source, tag)?, is_taken)
    }

    /// Returns an unexpected message when one has come.
    fn wait_for_probe(
        &self,
        py: Python<'_>,
        source: i64,
        tag: i64,
        is_taken: bool,
    ) -> PyResult<FoundMessage> {
        self.0.wait_for_probe(py, &self.selector(py, source, tag)?, is_taken)
    }

    /// Tells the others that nothing more comes from here, as far as there is room for it.
    fn end(&self, py: Python<'_>) -> PyResult<()> {
        self.0.end(py)
    }

    /// Closes it, when all ranks have come here.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.0.close(py)
    }
}

/// Adds what Python uses of this module.
pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Messages>()?;
    module.add_class::<FoundMessage>()?;
    module.add_class::<PostedReceive>()?;
    module.add_class::<SentMessage>()?;
    progress::add_to(module)
}
