//! Counted signals from one sender to one receiver.
//!
//! The cell holds how many signals were ever sent: it only grows, and nobody resets it. The
//! receiver remembers how many it has consumed. So a signal is never lost, and a wait never sees
//! the same one twice. As the cell has one sender, signalling is a store, not a read-modify-write.
//!
//! | edge | release | acquire | carries |
//! |---|---|---|---|
//! | S1 signal | `signal`, `signal_next`, `publish` | `wait`, `poll`, `counts` | all before |
//!
//! `relaxed_signal` and `relaxed_wait` order execution only: they say *when*, and publish nothing.
//! But a wait for an earlier signal may find the count of a relaxed one, which therefore carries on
//! what the earlier signal has published.
//!
//! A sender is of one kind, by type. A [`SemaphoreSender`] keeps the count to itself and never
//! reads the cell. A proxy serves many semaphores from triggers and keeps no state for any: it
//! takes the count from the cell by [`SemaphoreCell::signal_next`]. Mixing the two loses signals.

use std::ops::Deref;

use super::{
    atomic::{AtomicU64, Ordering, Reserved},
    kernel::Kernel,
    park::ParkCell,
    wait::{Stop, Waiting, Watch, wait_until},
};

/// Where signals are counted; one per inbound semaphore, alone in its two cache lines.
///
/// | field | bytes | written by | read by |
/// |---|---|---|---|
/// | value | 0..8 | the sender | the receiver |
/// | reserved | 8..64 | nobody | nobody |
/// | park | 64..72 | the receiver before it sleeps, the sender when it wakes it | the sender |
/// | reserved_too | 72..128 | nobody | nobody |
///
/// The sender looks at `park` right after it has stored `value`. In the same line that look would
/// fetch the line for reading while the store wants it for writing (`benches/RESULTS.md`,
/// "Semaphore"). In a line of its own, which changes only when a waiter sleeps, the sender finds
/// `park` in its own cache.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct SemaphoreCell {
    value: AtomicU64,
    reserved: Reserved<14>,
    park: ParkCell,
    reserved_too: Reserved<14>,
}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<SemaphoreCell>() == 128 && align_of::<SemaphoreCell>() == 128);
    assert!(
        std::mem::offset_of!(SemaphoreCell, value) == 0 && std::mem::offset_of!(SemaphoreCell, park) == 64
    );
};

impl SemaphoreCell {
    /// Returns a cell that starts at `count`; at 0 the same as all zero bytes.
    #[must_use]
    pub fn new(count: u64) -> Self {
        Self { value: AtomicU64::new(count), ..Self::default() }
    }

    /// Returns how many signals were sent, now or a moment ago; for reports.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.value.load(Ordering::Relaxed) // Relaxed: a number to print
    }

    /// Sends one signal, as the sender that keeps no count of its own. There must be no other
    /// sender.
    ///
    /// # Ordering
    /// Publishes everything before it (S1).
    #[inline]
    pub fn signal_next<K: Kernel + ?Sized>(&self, kernel: &K) {
        let sent = self.value.load(Ordering::Relaxed); // Relaxed: its only writer is the caller
        self.value.store(sent.wrapping_add(1), Ordering::Release); // S1 signal
        self.park.wake(kernel);
    }
}

/// The sending side of a semaphore.
#[derive(Debug)]
pub struct SemaphoreSender<C> {
    cell: C,
    sent: u64,
}

impl<C: Deref<Target = SemaphoreCell>> SemaphoreSender<C> {
    /// Takes the sending side of a cell to which `sent` signals have been sent. There must be no
    /// other sender.
    pub fn new(cell: C, sent: u64) -> Self {
        Self { cell, sent }
    }

    /// Returns how many signals were sent.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Sends one signal.
    ///
    /// # Ordering
    /// Publishes everything before it (S1). Non-temporal stores need their own fence first.
    #[inline]
    pub fn signal<K: Kernel + ?Sized>(&mut self, kernel: &K) {
        self.sent = self.sent.wrapping_add(1);
        self.cell.value.store(self.sent, Ordering::Release); // S1 signal
        self.cell.park.wake(kernel);
    }

    /// Sends one signal that publishes nothing of its own.
    ///
    /// # Ordering
    /// Carries on what earlier signals have published (S1): a wait for one of those may find this
    /// count instead.
    #[inline]
    pub fn relaxed_signal<K: Kernel + ?Sized>(&mut self, kernel: &K) {
        // A relaxed store would not carry on.
        self.signal(kernel);
    }
}

/// The receiving side of a semaphore.
#[derive(Debug)]
pub struct SemaphoreReceiver<C> {
    cell: C,
    expected: u64,
}

impl<C: Deref<Target = SemaphoreCell>> SemaphoreReceiver<C> {
    /// Takes the receiving side of a cell of which `consumed` signals have been waited for.
    pub fn new(cell: C, consumed: u64) -> Self {
        Self { cell, expected: consumed.wrapping_add(1) }
    }

    /// Returns how many signals have been waited for: what a later receiver of the same cell starts
    /// from.
    pub fn consumed(&self) -> u64 {
        self.expected.wrapping_sub(1)
    }

    /// Consumes one signal if there is one.
    ///
    /// # Ordering
    /// Acquires everything the sender wrote before that signal (S1).
    #[inline]
    pub fn poll(&mut self) -> bool {
        let there = reached(self.cell.value.load(Ordering::Acquire), self.expected); // S1 signal
        self.expected = self.expected.wrapping_add(u64::from(there));
        there
    }

    /// Waits for one signal and consumes it.
    ///
    /// # Errors
    /// Why the wait was given up; no signal was consumed and the wait can be repeated.
    ///
    /// # Ordering
    /// Acquires everything the sender wrote before that signal (S1).
    #[inline]
    pub fn wait<K, W>(&mut self, context: &Waiting<'_, K, W>) -> Result<(), Stop>
    where
        K: Kernel + ?Sized,
        W: Watch + ?Sized,
    {
        let (cell, expected) = (&*self.cell, self.expected);
        wait_until(context, &cell.park, || {
            reached(cell.value.load(Ordering::Acquire), expected).then_some(()) // S1 signal
        })?;
        self.expected = expected.wrapping_add(1);
        Ok(())
    }

    /// Waits for one signal and consumes it, without acquiring what the sender wrote.
    ///
    /// # Errors
    /// As for [`wait`](Self::wait).
    #[inline]
    pub fn relaxed_wait<K, W>(&mut self, context: &Waiting<'_, K, W>) -> Result<(), Stop>
    where
        K: Kernel + ?Sized,
        W: Watch + ?Sized,
    {
        let (cell, expected) = (&*self.cell, self.expected);
        wait_until(context, &cell.park, || {
            // Relaxed: asked for; the caller reads nothing that the sender wrote.
            reached(cell.value.load(Ordering::Relaxed), expected).then_some(())
        })?;
        self.expected = expected.wrapping_add(1);
        Ok(())
    }
}

/// Says in `word`, which the caller alone writes, how many signals were sent. Wakes nobody.
///
/// # Ordering
/// Publishes everything before it (S1).
#[inline]
pub(crate) fn publish_count(word: &AtomicU64, sent: u64) {
    word.store(sent, Ordering::Release); // S1 signal
}

/// Returns whether `word` says that the `expected` signal was sent.
///
/// # Ordering
/// Acquires everything the sender wrote before that signal (S1).
#[inline]
pub(crate) fn counts(word: &AtomicU64, expected: u64) -> bool {
    reached(word.load(Ordering::Acquire), expected) // S1 signal
}

/// Returns whether a counter has come to `expected`, both counted modulo 2^64 and never half a turn
/// apart.
#[inline]
pub(crate) fn reached(value: u64, expected: u64) -> bool {
    value.wrapping_sub(expected) < 1 << 63
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::{WaitPolicy, kernel::mock::MockKernel, revoke::RevokeCell};
    use super::*;
    use std::time::Duration;

    #[test]
    fn signals_are_counted_and_none_is_consumed_twice() {
        let (kernel, cell) = (MockKernel::new(), SemaphoreCell::default());
        let mut sender = SemaphoreSender::new(&cell, 0);
        let mut receiver = SemaphoreReceiver::new(&cell, 0);
        assert!(!receiver.poll());
        sender.signal(&kernel);
        sender.relaxed_signal(&kernel);
        assert_eq!((receiver.poll(), receiver.poll(), receiver.poll()), (true, true, false));
        assert_eq!((sender.sent(), receiver.consumed(), cell.value()), (2, 2, 2));
    }

    #[test]
    fn counts_pass_through_the_end_of_u64() {
        let start = u64::MAX - 2;
        let (kernel, cell) = (MockKernel::new(), SemaphoreCell::new(start));
        let mut sender = SemaphoreSender::new(&cell, start);
        let mut receiver = SemaphoreReceiver::new(&cell, start);
        for _ in 0..6 {
            assert!(!receiver.poll());
            sender.signal(&kernel);
            assert!(receiver.poll());
        }
        assert_eq!(cell.value(), 3);
        for _ in 0..2 {
            cell.signal_next(&kernel);
        }
        assert_eq!(cell.value(), 5);
    }

    #[test]
    fn a_wait_that_times_out_consumes_nothing_and_can_be_repeated() {
        let (kernel, revoke, cell) = (MockKernel::new(), RevokeCell::default(), SemaphoreCell::default());
        let context = Waiting::new(&kernel, &revoke, WaitPolicy::OVERSUBSCRIBED, Duration::from_millis(3));
        let mut receiver = SemaphoreReceiver::new(&cell, 0);
        assert_eq!(receiver.wait(&context), Err(Stop::Timeout));
        assert_eq!(receiver.relaxed_wait(&context), Err(Stop::Timeout));
        SemaphoreSender::new(&cell, 0).signal(&kernel);
        assert_eq!(receiver.wait(&context), Ok(()));
        assert_eq!(receiver.consumed(), 1);
    }

    #[test]
    fn a_forged_count_is_at_worst_an_early_or_a_late_signal() {
        for forged in [0, 1, u64::MAX, 1 << 63, (1 << 63) - 1] {
            let cell = SemaphoreCell::new(forged);
            let mut receiver = SemaphoreReceiver::new(&cell, 5);
            assert_eq!(receiver.poll(), forged.wrapping_sub(6) < 1 << 63);
        }
    }
}
