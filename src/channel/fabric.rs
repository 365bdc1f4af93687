//! What all channels of one rank stand on: the mapped heaps, the semaphores, the fifos, and how to wait.

use std::sync::Arc;
use std::time::Duration;

use super::seat::Seats;
use super::world::World;
use crate::error::Result;
use crate::heap::{HeapOffset, Region, SymmetricHeap};
use crate::rank::Rank;
use crate::shm::{CellRef, HostKernel, LifeStatus, Span};
use crate::sync::{ParkCell, SemaphoreCell, SleepWord, Stop, WaitPolicy, Waiting, Watch, wait_until};

/// One rank's view of a [`World`].
#[derive(Debug)]
pub(crate) struct Fabric {
    world: Arc<World>,
    rank: Rank,
    heap: SymmetricHeap,
    seats: Seats,
    policy: WaitPolicy,
    timeout: Duration,
}

/// Watches the epoch, and the life of the peer that is awaited.
#[derive(Debug)]
pub(crate) struct PeerWatch<'a> {
    world: &'a World,
    awaited: Option<Rank>,
}

impl Watch for PeerWatch<'_> {
    fn check(&self) -> Option<Stop> {
        if let Some(stop) = self.world.revoke().check() {
            return Some(stop);
        }
        let rank = self.awaited?;
        match self.world.life(rank).status() {
            LifeStatus::Lost | LifeStatus::Left => Some(Stop::PeerLost(rank)),
            LifeStatus::Unborn | LifeStatus::Alive => None,
        }
    }

    fn bell(&self) -> Option<SleepWord<'_>> {
        Some(self.world.revoke().bell())
    }
}
