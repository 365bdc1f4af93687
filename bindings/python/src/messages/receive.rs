//! Receives that were posted, and the messages that come for them.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::sync::OnceLockExt;
use pyo3::types::{PyByteArray, PyBytes};
use shmccl::collective::Operation;
use shmccl::{MessageSelector, Work};

use super::matching::MessageMatching;
use super::queues::Envelope;
use super::send::{MatchSignal, SentMessage};
use super::transport::MessageTransport;
use crate::error::refused;
use crate::interrupt::detached;
use crate::operand::part::Part;
use crate::operand::{Access, Operand};

/// What a status tells of a message: source, tag and length in bytes. Any is -1.
pub type Told = (i64, i64, u64);

/// A message that has come: what its header tells, and its elements if they came along.
pub struct ArrivedMessage<'a> {
    /// By what it is found.
    pub envelope: Envelope,
    /// The length of its elements in bytes.
    pub len: u64,
    /// Its number among those of its sender.
    pub number: u64,
    /// Its elements; `None` where they are a payload that is still to be received.
    pub elements: Option<Cow<'a, [u8]>>,
    /// What to do when it is matched.
    pub sender: AwaitingSender,
    /// The receive of its payload, once one has begun.
    pub payload: OnceLock<PyResult<StartedPayload>>,
}

/// A payload that is being received.
pub struct StartedPayload {
    work: Work,
    /// Memory of its own, unless it goes where a receive has room for it.
    memory: Option<Py<PyAny>>,
}

/// Who waits for the match of a message.
#[derive(Clone)]
pub enum AwaitingSender {
    /// Nobody.
    Nobody,
    /// The rank that has sent it.
    Peer,
    /// A thread of this rank.
    Own(Arc<MatchSignal>),
}

/// A message that a probe has found.
#[pyclass(frozen, module = "shmccl._core", name = "_ArrivedMessage")]
pub struct FoundMessage(pub Arc<ArrivedMessage<'static>>);

/// A receive that was posted.
#[pyclass(frozen, module = "shmccl._core", name = "_PostedReceive")]
pub struct PostedReceive {
    matching: Arc<MessageMatching>,
    selector: MessageSelector,
    /// The operand for the elements; `None` for memory of their own.
    place: Option<Py<PyAny>>,
    outcome: OnceLock<ReceiveOutcome>,
    /// What is sent by the same call.
    beside: OnceLock<Py<SentMessage>>,
}

/// What has become of a receive.
struct ReceiveOutcome {
    told: Told,
    payload: Option<Work>,
    /// Memory of the elements' own.
    memory: Option<Py<PyAny>>,
    failure: Option<PyErr>,
}

impl ArrivedMessage<'_> {
    /// Returns what a status tells of it.
    pub fn told(&self) -> Told {
        (self.envelope.source.get().into(), self.envelope.tag.into(), self.len)
    }

    /// Returns whether it is for `selector`, and nothing is left to be done for it.
    pub fn is_short_for(&self, selector: &MessageSelector) -> bool {
        let is_untold = matches!(self.sender, AwaitingSender::Nobody);
        is_untold && self.elements.is_some() && self.envelope.is_for(selector)
    }

    /// Returns it with elements of its own.
    pub fn into_owned(self) -> ArrivedMessage<'static> {
        let Self { envelope, len, number, elements, sender, payload } = self;
        let elements = elements.map(|elements| Cow::Owned(elements.into_owned()));
        ArrivedMessage { envelope, len, number, elements, sender, payload }
    }

    /// Returns whether it has a payload that nobody receives yet.
    pub fn is_in_pipe(&self) -> bool {
        self.elements.is_none() && self.payload.get().is_none()
    }

    /// Begins to receive its payload, unless that has begun: to an operand that has room for it, or
    /// to memory of its own.
    pub fn start_payload(
        &self,
        py: Python<'_>,
        transport: &MessageTransport,
        place: Option<&Bound<'_, PyAny>>,
    ) -> &PyResult<StartedPayload> {
        self.payload.get_or_init_py_attached(py, || {
            let len = usize::try_from(self.len)?;
            let (bytes, memory) = match place {
                Some(place) => (Bound::new(py, Part::first_bytes(place, len))?.into_any(), None),
                None => {
                    let memory = PyByteArray::new_with(py, len, |_| Ok(()))?.into_any();
                    (memory.clone(), Some(memory.unbind()))
                }
            };
            let source = self.envelope.source;
            let work = transport.start_payload(Operation::Recv, &bytes, source, self.number)?;
            Ok(StartedPayload { work, memory })
        })
    }
}

#[pymethods]
impl FoundMessage {
    /// Returns the source, the tag, and the length in bytes.
    fn told(&self) -> Told {
        self.0.told()
    }
}

impl PostedReceive {
    /// Makes one that no message has come for.
    pub fn new(matching: &Arc<MessageMatching>, selector: MessageSelector, place: Option<Py<PyAny>>) -> Self {
        let (matching, outcome, beside) = (Arc::clone(matching), OnceLock::new(), OnceLock::new());
        Self { matching, selector, place, outcome, beside }
    }

    /// Takes a message, and begins to receive its payload. What fails is for whoever waits for the
    /// receive.
    pub fn take(&self, py: Python<'_>, message: &ArrivedMessage<'_>) {
        let mut outcome = ReceiveOutcome { told: message.told(), payload: None, memory: None, failure: None };
        let taken = self.fill(py, message, &mut outcome);
        let told = self.matching.tell_sender(py, message);
        outcome.failure = taken.and(told).err();
        // From here on, another thread may see that it is done.
        let _ = self.outcome.set(outcome);
    }

    /// Ends it without a message.
    pub fn fail(&self, failure: PyErr) {
        let source = self.selector.source.map_or(-1, |source| source.get().into());
        let tag = self.selector.tag.map_or(-1, Into::into);
        let (told, payload, memory) = ((source, tag, 0), None, None);
        let _ = self.outcome.set(ReceiveOutcome { told, payload, memory, failure: Some(failure) });
    }

    /// Returns the messages among which its own is still to come.
    pub fn awaited_in(&self) -> Option<&Arc<MessageMatching>> {
        self.outcome.get().is_none().then_some(&self.matching)
    }

    /// Returns the messages among which headers are taken for what is sent beside it.
    pub fn held_up_in(&self) -> Option<&Arc<MessageMatching>> {
        self.beside.get().and_then(|beside| beside.get().held_up_in())
    }

    fn fill(
        &self,
        py: Python<'_>,
        message: &ArrivedMessage<'_>,
        outcome: &mut ReceiveOutcome,
    ) -> PyResult<()> {
        let Some(elements) = &message.elements else { return self.start_payload(py, message, outcome) };
        match &self.place {
            Some(place) => put(py, &Operand::of(place.bind(py), Access::Write, None)?, elements),
            None => {
                outcome.memory = Some(PyBytes::new(py, elements).into_any().unbind());
                Ok(())
            }
        }
    }

    fn start_payload(
        &self,
        py: Python<'_>,
        message: &ArrivedMessage<'_>,
        outcome: &mut ReceiveOutcome,
    ) -> PyResult<()> {
        self.matching.receive_early(py, message);
        let place = self.place.as_ref().map(|place| place.bind(py));
        let room = place.map_or(Ok(()), |place| room_for(place, message.len));
        // The message has to be taken, even where none of it is of use.
        let place = place.filter(|_| room.is_ok());
        let started = message.start_payload(py, &self.matching.transport, place);
        let StartedPayload { work, memory } = started.as_ref().map_err(|error| error.clone_ref(py))?;
        outcome.payload = Some(work.clone());
        outcome.memory = memory.as_ref().map(|memory| memory.clone_ref(py));
        room
    }

    /// Returns whether it has ended, in whatever way.
    pub fn is_complete(&self, py: Python<'_>) -> bool {
        let Some(ReceiveOutcome { payload, .. }) = self.outcome.get() else { return false };
        let is_received = payload.as_ref().is_none_or(|payload| py.detach(|| payload.is_done()));
        is_received && self.beside.get().is_none_or(|beside| beside.get().is_complete(py))
    }

    /// Waits until it is done, or for so long, with whatever there is to do for it.
    ///
    /// # Errors
    /// Those of its payload, and of what was sent beside it.
    pub fn wait_for(&self, py: Python<'_>, timeout: Option<Duration>) -> PyResult<()> {
        let Some(ReceiveOutcome { payload, .. }) = self.outcome.get() else {
            return self.matching.look(py, timeout.unwrap_or(super::progress::BESIDE)).map(drop);
        };
        if let Some(payload) = payload {
            await_work(py, payload, timeout)?;
        }
        self.beside.get().map_or(Ok(()), |beside| beside.get().wait_for(py, timeout))
    }
}

#[pymethods]
impl PostedReceive {
    /// Returns whether it has ended, in whatever way.
    pub fn is_done(&self, py: Python<'_>) -> bool {
        self.is_complete(py)
    }

    /// Has it end with what is sent by the same call.
    fn send_beside(&self, sent: Py<SentMessage>) {
        let _ = self.beside.set(sent);
    }

    /// Returns source, tag and bytes of the message that has come.
    fn told(&self) -> Option<Told> {
        self.outcome.get().map(|outcome| outcome.told)
    }

    /// Withdraws it. Returns whether no message had come for it.
    fn withdraw(slf: &Bound<'_, Self>) -> bool {
        slf.get().matching.withdraw(slf)
    }

    /// Raises what it has failed by. Returns the elements that have memory of their own.
    fn finish(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let Some(ReceiveOutcome { memory, failure, .. }) = self.outcome.get() else { return Ok(None) };
        if let Some(failure) = failure {
            return Err(failure.clone_ref(py));
        }
        self.wait_for(py, None)?;
        if let (Some(place), Some(memory)) = (&self.place, memory) {
            let place = Operand::of(place.bind(py), Access::Write, None)?;
            put(py, &place, Operand::of(memory.bind(py), Access::Read, None)?.read())?;
        }
        Ok(memory.as_ref().map(|memory| memory.clone_ref(py)))
    }
}

/// Copies elements to the begin of an operand.
///
/// # Errors
/// `WrongCount` for more than it has room for.
pub fn put(py: Python<'_>, place: &Operand<'_>, elements: &[u8]) -> PyResult<()> {
    let has = place.bytes().len;
    if elements.len() > has {
        return Err(too_long(py, elements.len() as u64, has));
    }
    place.copy(&Operand::over(elements));
    Ok(())
}

/// Fails where an operand has no room for `len` bytes.
fn room_for(place: &Bound<'_, PyAny>, len: u64) -> PyResult<()> {
    let has = Operand::of(place, Access::Write, None)?.bytes().len;
    if len > has as u64 { Err(too_long(place.py(), len, has)) } else { Ok(()) }
}

/// Waits for an operation of the engine, for so long at most.
///
/// # Errors
/// Those of the operation.
pub fn await_work(py: Python<'_>, work: &Work, timeout: Option<Duration>) -> PyResult<()> {
    detached(py, || match timeout {
        Some(timeout) => work.wait_timeout(timeout).map(drop),
        None => work.wait(),
    })
}

#[cold]
fn too_long(py: Python<'_>, len: u64, has: usize) -> PyErr {
    let text =
        format!("a message of {len} bytes was received into a buffer of {has} bytes: pass a longer one");
    refused(py, "WrongCountError", text)
}
