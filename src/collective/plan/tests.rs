use super::*;
use crate::collective::call::{Input, Output};
use crate::collective::plan::tuning::{Case, Step, Table};
use crate::heap::HeapOffset;
use crate::reduce::{DataType, ReduceOp};
use crate::rank::MAX_RANKS;
use crate::sync::PostCell;
use crate::collective::rendezvous::post::{LargePost, Post};

/// Buffers apart in the heap, in place there, and apart in ordinary memory.
fn three_buffers() -> [Buffers; 3] {
    let heap = |offset| BufferPlace::heap(HeapOffset::new(offset));
    let elsewhere = BufferPlace::elsewhere(0);
    [(heap(0), heap(4096)), (heap(4096), heap(4096)), (elsewhere, elsewhere)]
        .map(|(input, output)| Buffers { input, output })
}
