//! How the messages of a parcel lie in their slots.

use crate::collective::team::Team;

/// The length of a header in bytes.
pub(super) const HEADER_LEN: u64 = 32;

/// The length of a cache line in bytes.
const LINE: u64 = 64;

/// The place of a parcel whose elements are in the slots themselves.
pub(super) const HERE: u64 = u64::MAX;

/// The most bytes of elements in one message.
#[inline]
pub(super) fn capacity(team: &Team) -> u64 {
    team.layout().letter_len() - LINE
}

/// Where the elements start in the messages of a parcel of `len` bytes.
#[inline]
pub(super) fn body_at(len: u64) -> u64 {
    if len <= LINE - HEADER_LEN { HEADER_LEN } else { LINE }
}
