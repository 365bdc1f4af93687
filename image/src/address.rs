//! Numbers as addresses, and offsets as lengths.

use std::ptr::NonNull;

/// Narrows an offset or an address of this process.
pub(crate) fn to_usize(value: u64) -> usize {
    const { assert!(size_of::<usize>() == 8, "shmccl needs a 64-bit machine") };
    #[expect(clippy::cast_possible_truncation, reason = "usize has 64 bits, asserted above")]
    {
        value as usize
    }
}

/// Returns the place of an address where something is, or was, mapped.
pub(crate) fn pointer(address: u64) -> NonNull<u8> {
    NonNull::new(std::ptr::with_exposed_provenance_mut(to_usize(address))).expect("nothing is mapped at null")
}
