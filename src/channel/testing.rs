//! A mapped in this process for the tests of this module: memory behind all heaps, tables filled,
//! nobody in it.

use std::sync::Arc;
use std::time::Duration;

use shmccl_proxy::Handler;

use super::context::RankContext;
use super::control::Control;
use super::epoch::EpochMapping;
use super::port::{Port, PortChannel, Pusher};
use super::service::{ProxyThread, ProxyWaitPoint, ServedFifos};
use crate::bootstrap::SegmentBacking;
use crate::epoch_id::EpochId;
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

/// Makes a mapped of `n_ranks`, with heaps twice as long as what is allocated of them.
pub(super) fn mapped(n_ranks: u32, cut: impl FnOnce(EpochMapping) -> EpochMapping) -> Arc<EpochMapping> {
    let (epoch_id, shape) = (EpochId { job: 7, epoch: 1 }, HeapShape::new(n_ranks, 2 * ALLOCATED).unwrap());
    let (control, _) = Control::create(n_ranks, epoch_id).unwrap();
    let create = |rank| {
        Arc::new(EpochMapping::create_segment(epoch_id, rank, shape, &SegmentBacking::Anonymous).unwrap())
    };
    let segments = (0..n_ranks).map(Rank::known).map(create).collect();
    let mapped = Arc::new(cut(EpochMapping::over(shape, control, segments).unwrap()));
    for rank in (0..n_ranks).map(Rank::known) {
        let mut registrar = MemoryRegistrar::new(mapped.memory_table(rank).unwrap());
        heap_windows(&mut registrar, mapped.windows()).unwrap();
    }
    mapped
}

/// Looks at `mapped` as `rank`, which has allocated the first [`ALLOCATED`] bytes.
pub(super) fn context(mapped: &Arc<EpochMapping>, rank: Rank, timeout: Duration) -> Arc<RankContext> {
    let context = RankContext::new(Arc::clone(mapped), rank, 2, timeout, |_| None).unwrap();
    let region = context.heap().plan(ALLOCATED, 64).unwrap();
    context.heap().commit(region).unwrap();
    context.heap().confirm(region).unwrap();
    assert!(context.watch(None).check().is_none());
    Arc::new(context)
}

/// Returns the bytes of `region` in the heap of `rank`.
pub(super) fn bytes(context: &RankContext, rank: Rank, region: Region) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(region.len).unwrap()];
    context.heap().view().span(rank, region).unwrap().copy_out(0, &mut bytes).unwrap();
    bytes
}

/// Returns a proxy of the first fifo of [`OWN`] with a handler.
pub(super) fn proxy(mapped: &Arc<EpochMapping>, handler: impl Handler + Send + 'static) -> ProxyThread {
    let served = ServedFifos::of(mapped, [OWN], 1, wait_point(mapped)).unwrap();
    ProxyThread::start(mapped, served, WaitPolicy::OVERSUBSCRIBED, handler).unwrap()
}

/// Returns a channel from [`OWN`], whose context it is, to [`PEER`] over that fifo, which it shares
/// with others like it.
pub(super) fn channel(context: &Arc<RankContext>) -> PortChannel {
    let fifo = context.mapped().cells(OWN).fifo(0).unwrap();
    let pusher = Pusher::shared(&fifo).unwrap().unwrap();
    let port = Port::new(pusher, fifo, wait_point(context.mapped()), Some(OWN));
    PortChannel::open(context, PEER, port).unwrap()
}

fn wait_point(mapped: &EpochMapping) -> ProxyWaitPoint {
    ProxyWaitPoint::of_thread(mapped, OWN).unwrap()
}
