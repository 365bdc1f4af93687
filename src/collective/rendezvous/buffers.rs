//! Where members' buffers are, as they post it.

use super::members::Members;
use crate::collective::call::{Call, Input, Operation, Output};

/// A member posts this as the place of a buffer that is in no heap, less the bytes by which that begins behind a cache line, and less a
/// whole line for an input that is a part of the output.
const ELSEWHERE: u64 = u64::MAX;

/// Bytes of a cache line.
const LINE: u64 = 64;

/// Where this member's buffers are, as it posts them.
#[inline]
pub(crate) fn places(call: &Call<'_>) -> [u64; 2] {
    let start = match &call.output {
        Output::Memory(bytes) | Output::Within(bytes, _) => bytes.as_ptr().addr() as u64,
        Output::Heap(_) | Output::None => 0,
    };
    let input = match &call.input {
        Input::Heap(offset) => offset.get(),
        Input::Memory(bytes) => elsewhere(bytes.as_ptr().addr() as u64),
        Input::InOutput(at) => elsewhere(start.wrapping_add(*at)) - LINE,
        Input::None => 0,
    };
    let output = match call.output {
        Output::Heap(offset) => offset.get(),
        Output::Memory(_) => elsewhere(start),
        Output::Within(_, at) => elsewhere(start.wrapping_add(at)),
        Output::None => 0,
    };
    [input, output]
}

/// What is posted of a buffer at `address`.
#[inline]
fn elsewhere(address: u64) -> u64 {
    ELSEWHERE - address % LINE
}

#[inline]
fn is_elsewhere(place: u64) -> bool {
    place > ELSEWHERE - 2 * LINE
}

/// Whether the input of some member, as posted, is its output or a part of that.
pub(crate) fn some_are_in_place(members: &Members) -> bool {
    (0..members.n_members()).any(|member| is_in_place(members.board.post_of(member).places()))
}

/// Whether the input at these `places`, one member's, is its output or a part of that.
pub(crate) fn is_in_place([input, output]: [u64; 2]) -> bool {
    if is_elsewhere(input) { input <= ELSEWHERE - LINE } else { input == output }
}

/// By how many bytes the buffer at `place`, as it was posted, begins behind a cache line.
pub(crate) fn behind_line(place: u64) -> u64 {
    if is_elsewhere(place) { (ELSEWHERE - place) % LINE } else { place % LINE }
}

/// Whether all members' buffers, as posted, can be worked on where they lie.
pub(crate) fn applies(members: &Members, operation: Operation) -> bool {
    (0..members.n_members()).all(|member| is_in_heap(members.board.post_of(member).places(), operation))
}

/// Whether the buffers at these `places`, one member's, can be worked on where they lie.
pub(crate) fn is_in_heap([input, output]: [u64; 2], operation: Operation) -> bool {
    // Blocks that are exchanged in place would be overwritten before they are read.
    let is_exchanged = operation == Operation::AllToAll && input == output;
    !(is_elsewhere(input) || is_elsewhere(output) || is_exchanged)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_posted_of_ordinary_memory_tells_its_lines_and_is_no_offset() {
        for address in [0, 16, 63, 64, 0x7fff_ffff_f010, u64::MAX] {
            let place = elsewhere(address);
            assert!(is_elsewhere(place));
            assert_eq!(behind_line(place), address % LINE);
            let within = place - LINE;
            assert!(is_elsewhere(within) && is_in_place([within, place]) && !is_in_place([place, place]));
            assert_eq!(behind_line(within), address % LINE);
        }
        // Offsets end below the length of a heap, 1 TiB at most.
        for offset in [0, 128, 192 + 16, 1 << 40] {
            assert!(!is_elsewhere(offset));
            assert_eq!(behind_line(offset), offset % LINE);
            assert!(is_in_place([offset, offset]) && !is_in_place([offset, offset + 1]));
        }
    }
}
