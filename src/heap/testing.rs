//! Heaps of ranks within one process, for the tests of this directory.

use std::sync::Arc;

use crate::heap::layout::{HeapShape, create_segment};
use crate::heap::offset::Region;
use crate::heap::symmetric::SymmetricHeap;
use crate::heap::view::HeapView;
use crate::rank::Rank;
use crate::shm::{Backing, Identity, Window};

/// Makes the heaps of `n_ranks` ranks that share one window, as in thread mode.
pub(crate) fn heaps(n_ranks: u32, heap_len: u64) -> Vec<SymmetricHeap> {
    let shape = HeapShape::new(n_ranks, heap_len).unwrap();
    let segment = |_| Arc::new(create_segment(&Backing::Anonymous, shape, Identity::default()).unwrap());
    let segments: Vec<_> = (0..n_ranks).map(segment).collect();
    let mut window = Window::reserve(n_ranks, shape.segment_len()).unwrap();
    for (rank, segment) in (0..).zip(&segments) {
        window.map(Rank::known(rank), segment).unwrap();
    }
    let window = Arc::new(window);
    let view = |rank| HeapView::new(Arc::clone(&window), Rank::known(rank), shape).unwrap();
    let heap = |(rank, segment)| SymmetricHeap::new(view(rank), segment).unwrap();
    (0..n_ranks).zip(segments).map(heap).collect()
}

/// Does what the communicator does for `len` bytes at `align`: all steps, on all ranks.
pub(crate) fn allocate(heaps: &[SymmetricHeap], len: u64, align: u64) -> Region {
    let regions: Vec<_> = heaps.iter().map(|heap| heap.plan(len, align).unwrap()).collect();
    assert!(regions.iter().all(|region| *region == regions[0]), "{regions:?}");
    heaps.iter().for_each(|heap| heap.commit(regions[0]).unwrap());
    heaps.iter().for_each(|heap| heap.confirm(regions[0]).unwrap());
    regions[0]
}
