//! How headers and payloads go from rank to rank: over two communicators of the engine.
//!
//! Headers have one tag, so a rank takes those of another in the order in which they were sent. A
//! header is sent at once, by a call that waits for nothing, as long as
//!
//! - the receiver is known to have taken all but a few of this rank's headers: each header tells
//!   how many its sender has taken;
//! - nothing that was started on the communicator is left, for which such a call would wait: what
//!   is started is noted in the turn in which it starts, and the call looks in a turn of its own;
//! - no thread takes headers, for the same reason.
//!
//! Otherwise the header is started, and goes by itself. Headers are received alike: by a call where
//! the thread has nothing else to do, and by an operation that was started where it only looks.

use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes};
use shmccl::collective::Operation;
use shmccl::{Collectives, MessageSelector, Rank, StatusHandle, Work};

use super::header::{EagerHeader, HEADER_LEN};
use crate::collectives::message_of_bytes;
use crate::comm::Communicator;
use crate::error::closed;
use crate::interrupt::detached;
use crate::lock::lock;
use crate::work;

/// The tag of headers.
const HEADERS: u32 = 0;

/// So many headers have room in front of a receiver who takes none: the slots of a pipe.
const AHEAD: u32 = 4;

/// Past so many operations that were started and are not done, the sender of a short message waits.
const COPIES: usize = 256;

/// Numbers of payloads begin anew past these, which are tags.
const NUMBERS: u64 = 1 << 30;

/// The two communicators, and what was started on them.
pub struct MessageTransport {
    headers: Communicator,
    payloads: Communicator,
    /// What was started, and may not be done.
    started: Mutex<Vec<Work>>,
    /// The receive of a header that was started. Held by the thread that takes headers.
    incoming: Mutex<Option<StartedHeader>>,
    counts: Mutex<Vec<HeaderCounts>>,
}

struct StartedHeader {
    work: Work,
    bytes: Py<PyByteArray>,
}

/// How many headers have gone between this rank and another.
#[derive(Clone, Copy, Default)]
struct HeaderCounts {
    sent: u32,
    /// Of those, the other rank has told that it has taken so many.
    taken: u32,
    received: u32,
}

impl MessageTransport {
    /// Sends headers and payloads over these.
    pub fn new(headers: &Communicator, payloads: &Communicator) -> Self {
        let counts = vec![HeaderCounts::default(); headers.shared.size as usize];
        Self {
            headers: headers.clone(),
            payloads: payloads.clone(),
            started: Mutex::default(),
            incoming: Mutex::default(),
            counts: Mutex::new(counts),
        }
    }

    /// Returns this rank.
    pub fn rank(&self) -> Rank {
        self.headers.shared.rank
    }

    /// Returns how many ranks there are.
    pub fn size(&self) -> u32 {
        self.headers.shared.size
    }

    /// Sends a header. Returns the operation that does, if it is not sent yet.
    ///
    /// # Errors
    /// Those of a send.
    pub fn send(&self, py: Python<'_>, mut header: EagerHeader, dest: Rank) -> PyResult<Option<Work>> {
        let ahead = self.stamp(&mut header, dest);
        if ahead <= AHEAD
            && let Some(_idle) = self.idle()
            && self.send_at_once(py, &header, dest)?
        {
            return Ok(None);
        }
        let bytes = PyBytes::new(py, &header.0);
        self.start(&self.headers, Operation::Send, bytes.as_any(), dest, HEADERS).map(Some)
    }

    /// Sends a header by a call, unless another thread has started something meanwhile. Returns
    /// whether it is sent.
    fn send_at_once(&self, py: Python<'_>, header: &EagerHeader, dest: Rank) -> PyResult<bool> {
        self.headers.shared.with(py, |comm| {
            let is_first = lock(&self.started).is_empty();
            if is_first { comm.send_tagged(&header.0, dest, HEADERS).map(|()| true) } else { Ok(false) }
        })
    }

    /// Begins to send or to receive a payload, whose sender has given it a number.
    ///
    /// # Errors
    /// Those of a send or a receive, and of an object that is no operand.
    pub fn start_payload(
        &self,
        operation: Operation,
        bytes: &Bound<'_, PyAny>,
        peer: Rank,
        number: u64,
    ) -> PyResult<Work> {
        // The tag is below the number of tags.
        let tag = u32::try_from(number % NUMBERS).unwrap_or(0);
        self.start(&self.payloads, operation, bytes, peer, tag)
    }

    /// Waits for a header, of `source` if that is given, and has it read. `None` where a call would
    /// wait for something else, too.
    ///
    /// # Errors
    /// Those of a receive, and of `read`.
    pub fn receive_at_once<R>(
        &self,
        py: Python<'_>,
        source: Option<Rank>,
        read: impl FnOnce(&EagerHeader) -> PyResult<R>,
    ) -> PyResult<Option<R>> {
        let Some(_idle) = self.idle() else { return Ok(None) };
        let mut header = EagerHeader([0; HEADER_LEN]);
        let bytes = &mut header.0;
        self.headers.shared.with(py, |comm| match source {
            Some(source) => comm.recv_tagged(bytes, source, HEADERS),
            None => comm.recv_any(bytes, HEADERS).map(drop),
        })?;
        self.count(&header);
        read(&header).map(Some)
    }

    /// Takes a header that has come, or comes within `timeout`, and has it read. Returns whether
    /// one has; `None` where another thread takes headers.
    ///
    /// # Errors
    /// Those of a receive, and of `read`.
    pub fn receive(
        &self,
        py: Python<'_>,
        timeout: Duration,
        read: impl FnOnce(&EagerHeader) -> PyResult<()>,
    ) -> PyResult<Option<bool>> {
        let Some(mut incoming) = free(&self.incoming) else { return Ok(None) };
        let started = match incoming.take() {
            Some(started) => started,
            None => self.start_header(py)?,
        };
        let work = &started.work;
        let has_come = match timeout {
            Duration::ZERO => Ok(py.detach(|| work.is_done())),
            timeout => detached(py, || work.wait_timeout(timeout)),
        };
        if !matches!(has_come, Ok(true)) {
            *incoming = Some(started);
            return has_come.map(Some);
        }
        detached(py, || work.wait())?;
        let mut header = EagerHeader([0; HEADER_LEN]);
        header.0.copy_from_slice(&started.bytes.bind(py).to_vec());
        self.count(&header);
        read(&header).map(|()| Some(true))
    }

    /// Returns whether a header may go by itself, and nobody waits for it.
    pub fn has_room_for_copies(&self) -> bool {
        let n_started = lock(&self.started).len();
        n_started < COPIES || {
            self.is_busy();
            lock(&self.started).len() < COPIES
        }
    }

    /// Waits for all that was started, but for the receive of a header.
    ///
    /// # Errors
    /// Those of what was started.
    pub fn finish(&self, py: Python<'_>) -> PyResult<()> {
        let started = std::mem::take(&mut *lock(&self.started));
        detached(py, || started.iter().try_for_each(Work::wait))
    }

    /// Fails where it is closed.
    ///
    /// # Errors
    /// `RuntimeError`.
    pub fn refuse_closed(&self) -> PyResult<()> {
        if self.headers.shared.is_closed() { Err(closed("communicator")) } else { Ok(()) }
    }

    /// Closes both communicators.
    ///
    /// # Errors
    /// `KeyboardInterrupt`.
    pub fn close(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, || self.headers.shared.leave())?;
        detached(py, || self.payloads.shared.leave())
    }

    /// Returns a guard while nothing that was started is left, nor any thread takes headers.
    fn idle(&self) -> Option<MutexGuard<'_, Option<StartedHeader>>> {
        free(&self.incoming).filter(|incoming| incoming.is_none() && !self.is_busy())
    }

    /// Returns whether something that was started is not done.
    fn is_busy(&self) -> bool {
        let started = lock(&self.started).clone();
        if started.is_empty() {
            return false;
        }
        // Without the lock: what ends here may drop objects of the program, whose code may send.
        // One look moves all of them as far as they go.
        let is_open = started.iter().any(|work| !work.is_done());
        lock(&self.started).retain(|work| work.outcome().is_none());
        is_open
    }

    fn start(
        &self,
        comm: &Communicator,
        operation: Operation,
        bytes: &Bound<'_, PyAny>,
        peer: Rank,
        tag: u32,
    ) -> PyResult<Work> {
        let call = message_of_bytes(comm, operation, bytes, peer, tag)?;
        let mut n_started = 0;
        let work = work::start_noted(bytes.py(), &comm.shared, vec![call], |work| {
            let mut started = lock(&self.started);
            started.push(work.clone());
            n_started = started.len();
        })?;
        // Each time that there are twice as many, those that are done are forgotten.
        if n_started >= 64 && n_started.is_power_of_two() {
            self.is_busy();
        }
        Ok(work)
    }

    fn start_header(&self, py: Python<'_>) -> PyResult<StartedHeader> {
        let bytes = PyByteArray::new(py, &[0; HEADER_LEN]);
        let mut header =
            message_of_bytes(&self.headers, Operation::RecvAny, bytes.as_any(), Rank::ZERO, HEADERS)?;
        header.call.selected =
            Some((MessageSelector { source: None, tag: Some(HEADERS) }, StatusHandle::default()));
        let work = work::start(py, &self.headers.shared, vec![header])?;
        Ok(StartedHeader { work, bytes: bytes.unbind() })
    }

    /// Writes the counts into a header. Returns how many of this rank's the receiver may not have
    /// taken, this one included.
    fn stamp(&self, header: &mut EagerHeader, dest: Rank) -> u32 {
        let mut counts = lock(&self.counts);
        let counts = &mut counts[dest.index()];
        counts.sent = counts.sent.wrapping_add(1);
        header.stamp(self.rank().get(), counts.received);
        counts.sent.wrapping_sub(counts.taken)
    }

    /// Counts a header that was received, and reads the counts in there.
    fn count(&self, header: &EagerHeader) {
        let mut counts = lock(&self.counts);
        let Some(counts) = counts.get_mut(header.source() as usize) else { return };
        counts.received = counts.received.wrapping_add(1);
        // Threads of the sender may have sent headers in another order than they have stamped them.
        if header.taken().wrapping_sub(counts.taken) <= counts.sent.wrapping_sub(counts.taken) {
            counts.taken = header.taken();
        }
    }
}

/// Locks `mutex` if no other thread has it. Whoever has it may call Python, and wait.
fn free<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
