//! A rank's heartbeat: that its process lives, and when it last did anything.
//!
//! The life thread beats. It wakes twice a second anyway, so no other thread wakes for that, and no
//! call does anything for it. The life thread reads the counters that the rank leaves behind as it
//! works: posts, steps, arrivals, pushes, signals to others, and delivered batches of messages. If
//! none of them has changed since the last beat, the rank has made no progress that others could
//! see. It may be in the middle of a long copy.

use std::sync::Arc;
use std::time::Duration;

use crate::channel::{EpochMapping, MAX_CHANNELS_PER_PEER};
use crate::collective::{CommLayout, TURNS};
use crate::error::{DeviceName, Result};
use crate::heap::HeapOffset;
use crate::heap::layout::N_FIFOS;
use crate::logs::EPOCH;
use crate::rank::Rank;
use crate::shm::{HostKernel, LifeObserver};
use crate::sync::{PostCell, ProgressCell, Revocation};

/// The time between beats.
const PERIOD: Duration = Duration::from_millis(500);

/// The least time between two beats. The life thread may wake for other reasons.
const LEAST: Duration = Duration::from_millis(250);

/// The work of a rank's life thread in an epoch.
#[derive(Debug)]
pub(super) struct Heartbeat {
    mapped: Arc<EpochMapping>,
    rank: Rank,
    /// The time of the last beat, and the rank's counters at that time.
    last: Option<(Duration, u64)>,
}

impl Heartbeat {
    pub(super) const fn new(mapped: Arc<EpochMapping>, rank: Rank) -> Self {
        Self { mapped, rank, last: None }
    }

    /// Returns a number that changes when the rank has done something.
    fn done(&self) -> u64 {
        let (mapped, rank) = (&self.mapped, self.rank);
        let mut done = Mixed(0);
        done.add(mapped.control().barrier().0[rank.index()].arrivals());
        let held = mapped.hold_boards();
        let activity = mapped.activity(rank).read();
        [activity.operations, activity.gone, activity.waits].into_iter().for_each(|word| done.add(word));
        for board in activity.boards.into_iter().flatten() {
            // One that is being closed shows nothing.
            let _closed = self.add_board(&mut done, board);
        }
        drop(held);
        let fifos = (0..N_FIFOS).filter_map(|index| mapped.cells(rank).fifo(index).ok());
        fifos.for_each(|fifo| done.add(fifo.snapshot().pushed));
        let slots = MAX_CHANNELS_PER_PEER as usize;
        for peer in (0..mapped.n_ranks()).map(Rank::known) {
            let sent = mapped.semaphores(peer).iter().skip(rank.index() * slots).take(slots);
            sent.for_each(|semaphore| done.add(semaphore.value()));
        }
        done.0
    }

    /// Adds the counters on the board at `offset` of the rank's heap.
    fn add_board(&self, done: &mut Mixed, offset: u64) -> Result<()> {
        let at = |part: u64| HeapOffset::new(offset.saturating_add(part));
        let view = self.mapped.view(self.rank);
        let progress = view.cell::<ProgressCell>(self.rank, at(CommLayout::PROGRESS))?;
        [progress.done(), progress.delivered()].into_iter().for_each(|word| done.add(word));
        let posts = view.cells::<PostCell>(self.rank, at(CommLayout::POSTS), TURNS as u64)?;
        posts.iter().for_each(|post| done.add(post.sequence()));
        Ok(())
    }
}

impl LifeObserver for Heartbeat {
    fn on_loss(&mut self, lost: Rank) {
        tracing::warn!(target: EPOCH, rank = %self.rank, %lost, "a peer was lost");
        self.mapped.control().revoke(self.mapped.kernel(), Revocation::PeerLost(lost));
    }

    fn beat(&mut self) -> Duration {
        let now = HostKernel::clock();
        if let Some(rest) = self.last.and_then(|(last, _)| too_early(now.saturating_sub(last))) {
            return rest;
        }
        let (cell, done) = (self.mapped.control().beat(DeviceName::Rank(self.rank)), self.done());
        if self.last.is_none_or(|(_, before)| before != done) {
            cell.tell_moved(now);
        }
        cell.beat(now);
        self.last = Some((now, done));
        PERIOD
    }
}

/// Returns the rest of the period, if it is too early for another beat `since` the last one.
fn too_early(since: Duration) -> Option<Duration> {
    (since < LEAST).then(|| PERIOD - since)
}

/// Numbers in one: another one, as good as surely, when one of them is.
struct Mixed(u64);

impl Mixed {
    fn add(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Communicator;
    use crate::channel::Channel;
    use crate::comm::Collectives;
    use crate::reduce::ReduceOp;

    type Act<'a> = &'a mut dyn FnMut(&mut Communicator) -> Result<()>;

    #[test]
    fn whatever_a_rank_does_is_felt_in_its_heart_and_rest_is_rest() {
        let options = crate::bootstrap::Options { heap_len: 8 << 20, ..Default::default() };
        let ran = crate::launch::launch_threads(2, &options, |comm| {
            let mut channel = comm.memory_channel(comm.right())?;
            let mut port = comm.port_channel(comm.right())?;
            let (first, peer) = (comm.rank().get() == 0, comm.right());
            let word = comm.alloc::<u64>(1)?;
            comm.prepare()?;
            let heartbeat = Heartbeat::new(comm.context().mapped().clone(), comm.context().rank());
            let mut is_felt = |what: &str, act: Act<'_>| -> Result<()> {
                let before = heartbeat.done();
                assert_eq!(heartbeat.done(), before, "rest before {what}");
                act(comm)?;
                assert_ne!(heartbeat.done(), before, "{what}");
                Ok(())
            };
            is_felt("barrier", &mut |comm| comm.barrier())?;
            is_felt("a word", &mut |comm| comm.all_reduce_in_place(&word, &ReduceOp::Sum))?;
            is_felt("much", &mut |comm| {
                comm.all_reduce_in_place(&mut vec![1.0_f32; 1 << 16], &ReduceOp::Sum)
            })?;
            is_felt("a message", &mut |comm| {
                if first { comm.send(&[1_u8; 4], peer) } else { comm.recv(&mut [0_u8; 4], peer) }
            })?;
            is_felt("its answer", &mut |comm| {
                let (sent, mut received) = (vec![1_u8; 5000], vec![0_u8; 5000]);
                if first { comm.recv(&mut received, peer) } else { comm.send(&sent, peer) }
            })?;
            is_felt("a signal", &mut |_| channel.signal())?;
            is_felt("a push", &mut |_| port.signal())?;
            channel.wait()?;
            port.wait()?;
            comm.barrier()
        });
        ran.unwrap();
    }

    #[test]
    fn a_beat_that_is_left_out_puts_off_no_other() {
        let ms = Duration::from_millis;
        assert_eq!(too_early(Duration::ZERO), Some(PERIOD));
        assert_eq!(too_early(ms(249)), Some(ms(251)));
        assert_eq!(too_early(ms(250)), None);
        assert_eq!(too_early(Duration::MAX), None);
    }

    #[test]
    fn a_beat_tells_since_when_a_rank_rests() {
        let options = crate::bootstrap::Options { heap_len: 4 << 20, ..Default::default() };
        let ran = crate::launch::launch_threads(1, &options, |comm| {
            let (mapped, rank) = (comm.context().mapped().clone(), comm.context().rank());
            let cell = mapped.control().beat(DeviceName::Rank(rank));
            let mut heartbeat = Heartbeat::new(Arc::clone(&mapped), rank);
            heartbeat.beat();
            let (first, _) = heartbeat.last.expect("it has beaten");
            assert!(cell.last_moved() >= Some(first));
            // As long after that as it takes until it beats again.
            heartbeat.last = Some((Duration::ZERO, heartbeat.done()));
            cell.tell_moved(first);
            heartbeat.beat();
            assert!(cell.last() >= heartbeat.last.map(|(at, _)| at), "it lives");
            comm.barrier()?;
            heartbeat.last = heartbeat.last.map(|(_, before)| (Duration::ZERO, before));
            heartbeat.beat();
            assert!(cell.last_moved() >= heartbeat.last.map(|(at, _)| at), "and has moved");
            Ok(())
        });
        ran.unwrap();
    }
}
