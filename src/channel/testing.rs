//! A world in this process for the tests of this module: memory behind all heaps, tables filled, nobody in it.

use std::sync::Arc;
use std::time::Duration;

use shmccl_proxy::Handler;

use super::control::Control;
use super::fabric::Fabric;
use super::port::{Port, PortChannel, Pusher};
use super::service::{ProxyThread, Reception, Served};
use super::world::{Era, World};
use crate::bootstrap::SegmentBacking;
use crate::heap::layout::HeapShape;
use crate::heap::registered::heap_windows;
use crate::heap::{MemoryRegistrar, Region};
use crate::rank::Rank;
use crate::sync::{WaitPolicy, Watch};

/// How much of each heap is allocated, from its start on.
pub(super) const ALLOCATED: u64 = 2 << 20;

/// The rank whose fifo a [`proxy`] serves and a [`channel`] fills.
pub(super) const OWN: Rank = Rank::known(0);

/// The rank to which a [`channel`] leads.
pub(super) const PEER: Rank = Rank::known(1);

/// Makes a world of `n_ranks`, with heaps twice as long as what is allocated of them.
pub(super) fn world(n_ranks: u32, cut: impl FnOnce(World) -> World) -> Arc<World> {
    let (era, shape) = (Era { job: 7, epoch: 1 }, HeapShape::new(n_ranks, 2 * ALLOCATED).unwrap());
    let (control, _) = Control::create(n_ranks, era).unwrap();
    let create =
        |rank| Arc::new(World::create_segment(era, rank, shape, &SegmentBacking::Anonymous).unwrap());
    let segments = (0..n_ranks).map(Rank::known).map(create).collect();
    let world = Arc::new(cut(World::over(shape, control, segments).unwrap()));
    for rank in (0..n_ranks).map(Rank::known) {
        let mut registrar = MemoryRegistrar::new(world.memory_table(rank).unwrap());
        heap_windows(&mut registrar, world.windows()).unwrap();
    }
    world
}

/// Looks at `world` as `rank`, which has allocated the first [`ALLOCATED`] bytes.
pub(super) fn fabric(world: &Arc<World>, rank: Rank, timeout: Duration) -> Arc<Fabric> {
    let fabric = Fabric::new(Arc::clone(world), rank, 2, timeout).unwrap();
    let region = fabric.heap().plan(ALLOCATED, 64).unwrap();
    fabric.heap().commit(region).unwrap();
    fabric.heap().confirm(region).unwrap();
    assert!(fabric.watch(None).check().is_none());
    Arc::new(fabric)
}

/// The bytes of `region` in the heap of `rank`.
pub(super) fn bytes(fabric: &Fabric, rank: Rank, region: Region) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(region.len).unwrap()];
    fabric.heap().view().span(rank, region).unwrap().copy_out(0, &mut bytes).unwrap();
    bytes
}

/// A proxy of the first fifo of [`OWN`] with a handler.
pub(super) fn proxy(world: &Arc<World>, handler: impl Handler + Send + 'static) -> ProxyThread {
    let served = Served::of(world, [OWN], 1, reception(world)).unwrap();
    ProxyThread::start(world, served, WaitPolicy::OVERSUBSCRIBED, handler).unwrap()
}

/// A channel from [`OWN`], whose fabric it is, to [`PEER`] over that fifo, which it shares with others like it.
pub(super) fn channel(fabric: &Arc<Fabric>) -> PortChannel {
    let fifo = fabric.world().cells(OWN).fifo(0).unwrap();
    let pusher = Pusher::shared(&fifo, OWN).unwrap().unwrap();
    let port = Port::new(pusher, fifo, reception(fabric.world()), Some(OWN));
    PortChannel::open(fabric, PEER, port).unwrap()
}

fn reception(world: &World) -> Reception {
    Reception::of_thread(world, OWN).unwrap()
}
