//! The messages of one communicator of MPI: sent, received, matched and probed.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use shmccl::collective::Operation;
use shmccl::{MessageSelector, Rank};

use super::header::{EagerHeader, HeaderKind, ROOM};
use super::progress::{self, ALONE};
use super::queues::{Envelope, ReceiveQueues};
use super::receive::{ArrivedMessage, AwaitingSender, FoundMessage, PostedReceive, Told, await_work, put};
use super::send::{MatchSignal, SentMessage};
use super::transport::MessageTransport;
use crate::comm::Communicator;
use crate::error::{refused, refused_of_rank};
use crate::interrupt::detached;
use crate::lock::lock;
use crate::operand::{Access, Operand};

/// How long a rank that ends waits for its last headers.
const FAREWELL: Duration = Duration::from_millis(100);

/// The most bytes of a rank's payloads that another of its payloads passes. The engine keeps twice
/// as many.
const PASSED_OVER: u64 = 16 << 20;

/// What a rank that has ended has not done.
pub const NOT_RECEIVED: &str = "has not received what was sent to it";

/// So many headers of each rank are taken by a call that waits for something else.
const SHARE: u32 = 4;

/// The messages of one communicator.
pub struct MessageMatching {
    /// How they go.
    pub transport: MessageTransport,
    queues: Mutex<ReceiveQueues<Py<PostedReceive>, Arc<ArrivedMessage<'static>>>>,
    /// Synchronous messages that are not matched, by their numbers, and to whom they go.
    unmatched: Mutex<HashMap<u64, (Rank, Arc<MatchSignal>)>>,
    n_sent: AtomicU64,
    /// How many ranks have sent the last header of a communicator that is closed.
    n_last: AtomicU32,
    /// Where threads wait for what others take.
    gate: Mutex<()>,
    changed: Condvar,
}

impl MessageMatching {
    pub(super) fn new(headers: &Communicator, payloads: &Communicator) -> Self {
        let transport = MessageTransport::new(headers, payloads);
        Self {
            queues: Mutex::new(ReceiveQueues::new(transport.rank(), transport.size())),
            transport,
            unmatched: Mutex::default(),
            n_sent: AtomicU64::new(0),
            n_last: AtomicU32::new(0),
            gate: Mutex::new(()),
            changed: Condvar::new(),
        }
    }

    /// Returns whether no header can come.
    pub fn is_alone(&self) -> bool {
        lock(&self.queues).is_alone()
    }

    /// Returns the most headers that a call takes that waits for something else.
    pub fn share(&self) -> u32 {
        SHARE * self.transport.size()
    }

    // What is sent

    pub(super) fn send(
        self: &Arc<Self>,
        elements: &Bound<'_, PyAny>,
        dest: Rank,
        tag: u32,
        is_synchronous: bool,
    ) -> PyResult<Option<SentMessage>> {
        let operand = Operand::of(elements, Access::Read, None)?;
        self.refuse_ended(elements.py(), dest)?;
        let matched = is_synchronous.then(Arc::<MatchSignal>::default);
        if dest == self.transport.rank() {
            self.send_to_self(elements.py(), operand.read(), tag, matched.clone());
            return Ok(matched.map(|matched| SentMessage::new(self, None, None, Some(matched))));
        }
        let header = self.header_of(operand.read(), tag, is_synchronous);
        let (number, has_payload) = (header.number(), header.elements().is_none());
        if let Some(matched) = &matched {
            self.await_match(number, dest, matched);
        }
        let header = self.transport.send(elements.py(), header, dest)?;
        let start_payload = || self.transport.start_payload(Operation::Send, elements, dest, number);
        let payload = has_payload.then(start_payload).transpose()?;
        // A header is a copy, and goes by itself.
        let is_copied = payload.is_none() && matched.is_none();
        let is_sent = is_copied && (header.is_none() || self.transport.has_room_for_copies());
        Ok((!is_sent).then(|| SentMessage::new(self, header, payload, matched)))
    }

    /// Fails where a rank receives nothing any more.
    fn refuse_ended(&self, py: Python<'_>, dest: Rank) -> PyResult<()> {
        let has_ended = lock(&self.queues).has_ended(dest);
        if has_ended { Err(ended(py, dest, NOT_RECEIVED)) } else { Ok(()) }
    }

    fn await_match(self: &Arc<Self>, number: u64, dest: Rank, matched: &Arc<MatchSignal>) {
        lock(&self.unmatched).insert(number, (dest, Arc::clone(matched)));
        // Behind that: a thread that hears of an end meanwhile finds it there.
        if lock(&self.queues).has_ended(dest) {
            self.lose(dest);
        }
        self.note_awaiting();
    }

    /// Tells those who wait for a match by a rank that has ended.
    fn lose(&self, rank: Rank) {
        let lost = lock(&self.unmatched).extract_if(|_, (dest, _)| *dest == rank).collect::<Vec<_>>();
        lost.into_iter().for_each(|(_, (_, matched))| matched.set(Some(rank)));
    }

    fn send_to_self(
        self: &Arc<Self>,
        py: Python<'_>,
        elements: &[u8],
        tag: u32,
        matched: Option<Arc<MatchSignal>>,
    ) {
        let envelope = Envelope { source: self.transport.rank(), tag };
        let sender = matched.map_or(AwaitingSender::Nobody, AwaitingSender::Own);
        let (len, elements) = (elements.len() as u64, Some(Cow::Borrowed(elements)));
        self.arrive(
            py,
            ArrivedMessage { envelope, len, number: 0, elements, sender, payload: OnceLock::new() },
        );
    }

    /// Sends elements that have room in the header. Returns whether that was so.
    pub(super) fn send_short(&self, elements: &Bound<'_, PyAny>, dest: Rank, tag: u32) -> PyResult<bool> {
        let Ok(operand) = Operand::of(elements, Access::Read, None) else { return Ok(false) };
        if operand.bytes().len > ROOM
            || dest == self.transport.rank()
            || !self.transport.has_room_for_copies()
        {
            return Ok(false);
        }
        self.refuse_ended(elements.py(), dest)?;
        self.transport.send(elements.py(), self.header_of(operand.read(), tag, false), dest)?;
        Ok(true)
    }

    fn header_of(&self, elements: &[u8], tag: u32, is_synchronous: bool) -> EagerHeader {
        // Relaxed: numbers need only differ.
        let number = self.n_sent.fetch_add(1, Ordering::Relaxed);
        let mut header = EagerHeader::of_message(is_synchronous, number, tag, elements.len());
        if let Some(room) = header.room(elements.len()) {
            room.copy_from_slice(elements);
        }
        header
    }

    /// Tells whoever waits for the match of a message that it was matched.
    ///
    /// # Errors
    /// Those of a send.
    pub fn tell_sender(&self, py: Python<'_>, message: &ArrivedMessage<'_>) -> PyResult<()> {
        match &message.sender {
            AwaitingSender::Nobody => {}
            AwaitingSender::Own(matched) => matched.set(None),
            AwaitingSender::Peer => {
                let header = EagerHeader::new(HeaderKind::Acknowledgement, message.number);
                self.transport.send(py, header, message.envelope.source)?;
            }
        }
        Ok(())
    }

    // What is received

    /// Posts a receive, which takes the first unexpected message that is for it.
    pub(super) fn post(
        self: &Arc<Self>,
        py: Python<'_>,
        selector: MessageSelector,
        place: Option<Py<PyAny>>,
    ) -> PyResult<Py<PostedReceive>> {
        self.transport.refuse_closed()?;
        let receive = Py::new(py, PostedReceive::new(self, selector, place))?;
        let mut queues = lock(&self.queues);
        if let Some(message) = queues.take(&selector) {
            drop(queues);
            receive.get().take(py, &message);
        } else if let Some(lost) = queues.lost(&selector) {
            drop(queues);
            receive.get().fail(nothing_comes(py, lost));
        } else {
            queues.post(selector, receive.clone_ref(py));
            drop(queues);
            self.note_awaiting();
        }
        Ok(receive)
    }

    /// Receives a message that a probe has taken.
    pub(super) fn receive(
        self: &Arc<Self>,
        py: Python<'_>,
        message: &ArrivedMessage<'static>,
        place: Option<Py<PyAny>>,
    ) -> PyResult<Py<PostedReceive>> {
        let Envelope { source, tag } = message.envelope;
        let selector = MessageSelector { source: Some(source), tag: Some(tag) };
        let receive = Py::new(py, PostedReceive::new(self, selector, place))?;
        receive.get().take(py, message);
        Ok(receive)
    }

    /// Receives the message that comes next, if it is for `selector` and its elements come along.
    /// `None` where other receives, messages or threads are to be seen to, or another message came.
    pub(super) fn receive_short(
        self: &Arc<Self>,
        py: Python<'_>,
        selector: &MessageSelector,
        place: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<(Told, Option<Py<PyBytes>>)>> {
        let Ok(place) = place.map(|place| Operand::of(place, Access::Write, None)).transpose() else {
            return Ok(None);
        };
        if !self.may_be_next(selector) || progress::is_awaiting() || !progress::is_only_thread(py)? {
            return Ok(None);
        }
        let received = self.transport.receive_at_once(py, selector.source, |header| {
            let Some(message) = self.message_in(header).filter(|message| message.is_short_for(selector))
            else {
                return self.read(py, header).map(|()| None);
            };
            let elements = message.elements.as_deref().unwrap_or_default();
            let memory = match &place {
                Some(place) => put(py, place, elements).map(|()| None)?,
                None => Some(PyBytes::new(py, elements).unbind()),
            };
            Ok(Some((message.told(), memory)))
        });
        received.map(Option::flatten)
    }

    /// Returns whether the header that comes next may be of a message for `selector`.
    fn may_be_next(&self, selector: &MessageSelector) -> bool {
        let queues = lock(&self.queues);
        let is_from_here = selector.source == Some(self.transport.rank()) || queues.is_alone();
        !is_from_here && queues.find(selector).is_none() && queues.lost(selector).is_none()
    }

    /// Receives the payloads that its rank has sent before that of `message` to memory of their
    /// own, where they are so long that it could not pass them.
    pub fn receive_early(&self, py: Python<'_>, message: &ArrivedMessage<'_>) {
        let is_before = |other: &&Arc<ArrivedMessage<'static>>| {
            let is_of_same = other.envelope.source == message.envelope.source;
            is_of_same && other.number < message.number && other.is_in_pipe()
        };
        let before: Vec<_> = lock(&self.queues).unexpected().filter(is_before).map(Arc::clone).collect();
        if before.iter().map(|other| other.len).sum::<u64>() > PASSED_OVER {
            for other in before {
                // What fails is for whoever receives it.
                let _ = other.start_payload(py, &self.transport, None);
            }
        }
    }

    /// Withdraws a receive. Returns whether no message had come for it.
    pub fn withdraw(self: &Arc<Self>, receive: &Bound<'_, PostedReceive>) -> bool {
        let withdrawn = lock(&self.queues).withdraw(|_, posted| posted.is(receive));
        self.note_awaiting();
        !withdrawn.is_empty()
    }

    /// Returns an unexpected message, if one has come. It stays one unless it is taken.
    pub(super) fn probe(
        self: &Arc<Self>,
        py: Python<'_>,
        selector: &MessageSelector,
        is_taken: bool,
    ) -> PyResult<Option<FoundMessage>> {
        let mut found = self.unexpected(selector, is_taken);
        for _ in 0..self.share() {
            if found.is_some() || !self.look(py, Duration::ZERO)? {
                break;
            }
            found = self.unexpected(selector, is_taken);
        }
        Ok(found.map(FoundMessage))
    }

    /// Returns an unexpected message when one has come.
    pub(super) fn wait_for_probe(
        self: &Arc<Self>,
        py: Python<'_>,
        selector: &MessageSelector,
        is_taken: bool,
    ) -> PyResult<FoundMessage> {
        self.transport.refuse_closed()?;
        loop {
            if let Some(message) = self.probe(py, selector, is_taken)? {
                return Ok(message);
            }
            // In one look: another thread may hear of a message, and of the end behind it.
            let lost = {
                let queues = lock(&self.queues);
                queues.lost(selector).filter(|_| queues.find(selector).is_none())
            };
            if let Some(lost) = lost {
                return Err(nothing_comes(py, lost));
            }
            py.check_signals()?;
            progress::look_for_others(py, Some(self))?;
            self.look(py, progress::pause(py, Some(self))?)?;
        }
    }

    fn unexpected(&self, selector: &MessageSelector, is_taken: bool) -> Option<Arc<ArrivedMessage<'static>>> {
        let mut queues = lock(&self.queues);
        if is_taken { queues.take(selector) } else { queues.find(selector).cloned() }
    }

    // Headers

    /// Takes a header that has come, or comes within `timeout`. Returns whether one has.
    ///
    /// # Errors
    /// Those of a receive.
    pub fn look(self: &Arc<Self>, py: Python<'_>, timeout: Duration) -> PyResult<bool> {
        if !self.is_alone()
            && let Some(has_come) = self.transport.receive(py, timeout, |header| self.read(py, header))?
        {
            return Ok(has_come);
        }
        if !timeout.is_zero() {
            detached(py, || {
                let gate = lock(&self.gate);
                drop(self.changed.wait_timeout(gate, timeout).unwrap_or_else(PoisonError::into_inner));
                Ok(())
            })?;
        }
        Ok(false)
    }

    /// Takes headers that have come; not all, as other ranks may send more and more.
    ///
    /// # Errors
    /// Those of a receive.
    pub fn take_share(self: &Arc<Self>, py: Python<'_>) -> PyResult<()> {
        for _ in 0..SHARE * self.transport.size() {
            if !self.look(py, Duration::ZERO)? {
                break;
            }
        }
        Ok(())
    }

    /// Waits for a header, where nothing else is to be done meanwhile. Returns whether that is so.
    ///
    /// # Errors
    /// Those of a receive.
    pub fn look_at_once(self: &Arc<Self>, py: Python<'_>) -> PyResult<bool> {
        if self.is_alone() || !progress::is_awaiting_only(self) || !progress::is_only_thread(py)? {
            return Ok(false);
        }
        Ok(self.transport.receive_at_once(py, None, |header| self.read(py, header))?.is_some())
    }

    fn read(self: &Arc<Self>, py: Python<'_>, header: &EagerHeader) -> PyResult<()> {
        if let Some(message) = self.message_in(header) {
            self.arrive(py, message);
            return Ok(());
        }
        match header.kind() {
            HeaderKind::Acknowledgement => {
                if let Some((_, matched)) = lock(&self.unmatched).remove(&header.number()) {
                    matched.set(None);
                }
                self.note_awaiting();
            }
            // Relaxed: the thread that waits for it takes the headers.
            HeaderKind::Last => drop(self.n_last.fetch_add(1, Ordering::Relaxed)),
            HeaderKind::Ended => self.note_end(py, self.source_of(header)),
            HeaderKind::Message | HeaderKind::Synchronous => {}
        }
        self.changed.notify_all();
        Ok(())
    }

    fn source_of(&self, header: &EagerHeader) -> Option<Rank> {
        Rank::new(header.source(), self.transport.size()).ok()
    }

    fn message_in<'a>(&self, header: &'a EagerHeader) -> Option<ArrivedMessage<'a>> {
        let sender = match header.kind() {
            HeaderKind::Message => AwaitingSender::Nobody,
            HeaderKind::Synchronous => AwaitingSender::Peer,
            _ => return None,
        };
        let envelope = Envelope { source: self.source_of(header)?, tag: header.tag() };
        let elements = header.elements().map(Cow::Borrowed);
        let (len, number, payload) = (header.len(), header.number(), OnceLock::new());
        Some(ArrivedMessage { envelope, len, number, elements, sender, payload })
    }

    /// Takes a message that has come: for the first receive that it is for, or as an unexpected
    /// one.
    fn arrive(self: &Arc<Self>, py: Python<'_>, message: ArrivedMessage<'_>) {
        let mut queues = lock(&self.queues);
        let receive = queues.matched(message.envelope);
        if let Some(receive) = receive {
            drop(queues);
            self.note_awaiting();
            receive.get().take(py, &message);
        } else {
            queues.keep(message.envelope, Arc::new(message.into_owned()));
            drop(queues);
        }
        self.changed.notify_all();
    }

    fn note_end(self: &Arc<Self>, py: Python<'_>, rank: Option<Rank>) {
        let Some(rank) = rank else { return };
        let lost = lock(&self.queues).end(rank);
        lost.iter().for_each(|receive| receive.get().fail(nothing_comes(py, rank)));
        self.lose(rank);
        self.note_awaiting();
    }

    /// Notes whether it has to take headers while this rank waits for something else.
    fn note_awaiting(self: &Arc<Self>) {
        progress::note_awaiting(self, || {
            lock(&self.queues).has_posted() || !lock(&self.unmatched).is_empty()
        });
    }

    // Its end

    /// Tells the others that nothing more comes from here, as far as there is room for it.
    pub(super) fn end(&self, py: Python<'_>) -> PyResult<()> {
        let mut ends = Vec::new();
        for rank in self.others() {
            ends.extend(self.transport.send(py, EagerHeader::new(HeaderKind::Ended, 0), rank)?);
        }
        let begun = Instant::now();
        ends.iter().try_for_each(|work| await_work(py, work, Some(FAREWELL.saturating_sub(begun.elapsed()))))
    }

    /// Closes it, when all ranks have come here. Receives take what was sent before; those that no
    /// message has come for fail.
    pub(super) fn close(self: &Arc<Self>, py: Python<'_>) -> PyResult<()> {
        let mut sent = Vec::new();
        for rank in self.others() {
            sent.extend(self.transport.send(py, EagerHeader::new(HeaderKind::Last, 0), rank)?);
        }
        while !self.is_alone() && (self.n_last.load(Ordering::Relaxed) as usize) < self.others().len() {
            self.look(py, ALONE)?;
        }
        sent.iter().try_for_each(|sent| await_work(py, sent, None))?;
        self.transport.finish(py)?;
        let open = lock(&self.queues).withdraw(|_, _| true);
        open.iter().for_each(|receive| {
            let text = "the communicator was freed, and no message has come for this receive";
            receive.get().fail(refused(py, "UnavailableError", text.to_owned()));
        });
        lock(&self.unmatched).clear();
        self.note_awaiting();
        self.transport.close(py)
    }

    /// Returns the other ranks that have not ended.
    fn others(&self) -> Vec<Rank> {
        let (size, queues) = (self.transport.size(), lock(&self.queues));
        let ranks = (0..size).filter_map(|rank| Rank::new(rank, size).ok());
        ranks.filter(|rank| *rank != self.transport.rank() && !queues.has_ended(*rank)).collect()
    }
}

/// Returns the error of a rank that has ended, and of what it has not done.
#[cold]
pub fn ended(py: Python<'_>, rank: Rank, what: &str) -> PyErr {
    refused_of_rank(py, "PeerLostError", format!("rank {rank} has ended, and {what}"), rank.get().into())
}

fn nothing_comes(py: Python<'_>, rank: Rank) -> PyErr {
    ended(py, rank, "has sent no message that this receive is for")
}
