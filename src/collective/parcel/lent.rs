//! Which parcels are lent: those that take less to copy once than to copy twice, the wait of their sender included.

use super::slot::capacity;
use crate::collective::region::PIPE_SLOTS;
use crate::collective::team::Team;

/// The shortest parcel in the heap that is lent by who has a core of its own. One that is lent is copied once and not twice, but its
/// sender waits until it is told that it was taken.
///
/// Lent from 1 KiB on against never, medians one way in microseconds, of `shmccl perf sendrecv -g N -b 1K -e 256K -f 2` on two cores:
/// two ranks on hyper-thread siblings and on separate cores, then ranks that share them: two (`taskset -c 0`), four, eight.
///
/// | KiB | siblings: lent | copied | separate | copied | 2 on one | copied | 4 on two | copied | 8 on two | copied |
/// |---|---|---|---|---|---|---|---|---|---|---|
/// | 1 | 0.51 | 0.44 | 1.23 | 0.89 | 4.2 | 2.5 | 5.3 | 2.4 | 9.9 | 5.5 |
/// | 8 | 0.93 | 0.80 | 2.83 | 1.50 | 4.7 | 3.0 | 8.7 | 3.7 | 14 | 7.2 |
/// | 16 | 0.73 | 0.84 | 1.61 | 1.83 | 4.4 | 2.8 | 7.0 | 4.2 | 12 | 6.3 |
/// | 32 | 1.00 | 1.31 | 2.05 | 2.65 | 4.8 | 3.4 | 8.9 | 5.4 | 15 | 8.2 |
/// | 64 | 1.50 | 2.29 | 2.90 | 4.35 | 5.5 | 4.6 | 13 | 6.9 | 22 | 22 |
/// | 128 | 2.52 | 4.11 | 4.66 | 7.97 | 7.3 | 7.9 | 20 | 20 | 30 | 43 |
/// | 256 | 4.86 | 8.32 | 8.97 | 15.8 | 12 | 21 | 35 | 42 | 56 | 87 |
const LENT_FROM: u64 = 16 << 10;

/// The longest parcel in the heap that is copied by who shares its core, which it has to give away to be told of anything: so only if
/// its pipe holds all of it at once.
const COPIED_UP_TO: u64 = 64 << 10;

/// Whether a parcel of `len` bytes in the heap is lent.
#[inline]
pub(super) fn is_lent(team: &Team, len: u64) -> bool {
    let is_crowded = team.board.context().crowded();
    len >= LENT_FROM && (!is_crowded || len > COPIED_UP_TO.min(PIPE_SLOTS * capacity(team)))
}
