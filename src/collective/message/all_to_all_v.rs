//! The messages of a call in which every rank sends every other a block of its own length.

use super::{InPlaceBlock, MessageContents, MessageEnd};
use crate::collective::call::{BlockLayout, Call, CallBlock, CallSignature, Input, Output, part, shifted};
use crate::error::{Error, Result};
use crate::heap::HeapOffset;

/// Returns the messages of `call`, whose buffers they take, of member `me`. There are two for each
/// member, also where blocks are empty, as both ends have to learn when they disagree about that.
/// There are none for a block that stays in its place. Blocks that are replaced join those of other
/// calls in `replaced`.
///
/// # Errors
/// [`Error::OutOfRange`] for blocks that are not in the buffers.
pub(crate) fn messages<'a>(
    call: &mut Call<'a>,
    me: usize,
    in_place: &mut Vec<InPlaceBlock<'a>>,
) -> Result<Vec<MessageEnd<'a>>> {
    let Some(layout) = call.layout.take() else { return Ok(Vec::new()) };
    let BlockLayout { sent, received } = *layout;
    let (n, size) = (sent.len(), call.data_type.size() as u64);
    let stays: Vec<_> = (0..n).map(|peer| is_in_place(call, sent[peer], received[peer], size)).collect();
    let mut outputs = outputs(std::mem::replace(&mut call.output, Output::None), &received, size)?;
    let mut take = |peer: usize| std::mem::replace(&mut outputs[peer], Output::None);
    let mut share = |peer: usize| {
        in_place.push(InPlaceBlock::new(take(peer)));
        in_place.len() - 1
    };
    let shared: Vec<_> = (0..n).map(|peer| stays[peer].then(|| share(peer))).collect();
    let signature = |block: CallBlock| CallSignature::new(call.operation).of(block.count, call.data_type);
    let mut messages = Vec::with_capacity(2 * n);
    let mut put = |block: CallBlock, peer: usize, contents| {
        messages.push(MessageEnd::new(call.operation, signature(block), peer, block.count * size, contents));
    };
    // A block that a member keeps in its place goes nowhere.
    let first = usize::from(stays[me]);
    for distance in first..n {
        // Each begins with the next one, so that they do not all begin with the same.
        let (to, from) = ((me + distance) % n, (me + n - distance) % n);
        let source = match shared[to] {
            Some(block) => MessageContents::SentInPlace(block),
            None => MessageContents::Sent(input(&call.input, sent[to], size)?),
        };
        put(sent[to], to, source);
        let target = match shared[from] {
            Some(block) => MessageContents::ReceivedInPlace(block),
            None => MessageContents::Received(take(from)),
        };
        put(received[from], from, target);
    }
    Ok(messages)
}

/// Returns whether the block that is `received` from a member takes the place of the one that is
/// `sent` to it.
fn is_in_place(call: &Call<'_>, sent: CallBlock, received: CallBlock, size: u64) -> bool {
    match (&call.input, &call.output) {
        (Input::InOutput(_), _) => true,
        (Input::Heap(source), Output::Heap(target)) => {
            let place = |offset: HeapOffset, block: CallBlock| shifted(offset, block.at.saturating_mul(size));
            sent.count > 0 && sent.count == received.count && place(*source, sent) == place(*target, received)
        }
        _ => false,
    }
}

/// Returns `block` of `input`, where elements have `size` bytes.
fn input<'a>(input: &Input<'a>, block: CallBlock, size: u64) -> Result<Input<'a>> {
    let (at, len) = (block.at.saturating_mul(size), block.count.saturating_mul(size));
    Ok(match *input {
        Input::Heap(offset) => Input::Heap(shifted(offset, at)),
        Input::Memory(bytes) => Input::Memory(part(bytes, at, len)?),
        Input::InOutput(_) | Input::None => Input::None,
    })
}

/// Cuts `output` into pieces: each of `blocks`, which lie apart.
fn outputs<'a>(output: Output<'a>, blocks: &[CallBlock], size: u64) -> Result<Vec<Output<'a>>> {
    let mut memory = match output {
        Output::Heap(offset) => {
            return Ok(blocks.iter().map(|block| Output::Heap(shifted(offset, block.at * size))).collect());
        }
        Output::Memory(bytes) => bytes,
        // Where a call of this kind is in place, every block is.
        Output::Within(..) | Output::None => &mut [],
    };
    let limit = memory.len() as u64;
    let mut order: Vec<usize> = (0..blocks.len()).filter(|&index| blocks[index].count > 0).collect();
    order.sort_by_key(|&index| blocks[index].at);
    let mut pieces: Vec<_> = blocks.iter().map(|_| Output::Memory(&mut [])).collect();
    let mut start = 0;
    for index in order {
        let (at, len) = (blocks[index].at.saturating_mul(size), blocks[index].count.saturating_mul(size));
        let wrong = || Error::OutOfRange { what: "memory of a collective call", offset: at, len, limit };
        let skipped =
            at.checked_sub(start).and_then(|skipped| usize::try_from(skipped).ok()).ok_or_else(wrong)?;
        let (_, rest) = std::mem::take(&mut memory).split_at_mut_checked(skipped).ok_or_else(wrong)?;
        let length = usize::try_from(len).map_err(|_| wrong())?;
        let (piece, rest) = rest.split_at_mut_checked(length).ok_or_else(wrong)?;
        (pieces[index], memory, start) = (Output::Memory(piece), rest, at + len);
    }
    Ok(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_is_cut_into_blocks_in_any_order_with_gaps_between_them() {
        let block = |at, count| CallBlock { at, count };
        let mut bytes: Vec<u8> = (0..20).collect();
        let blocks = [block(5, 2), block(0, 0), block(0, 2), block(8, 1)];
        let pieces = outputs(Output::Memory(&mut bytes), &blocks, 2).unwrap();
        let of = |piece: &Output<'_>| match piece {
            Output::Memory(bytes) => bytes.to_vec(),
            _ => panic!("{piece:?}"),
        };
        let pieces: Vec<_> = pieces.iter().map(of).collect();
        assert_eq!(pieces, [vec![10, 11, 12, 13], vec![], vec![0, 1, 2, 3], vec![16, 17]]);
    }

    #[test]
    fn blocks_that_overlap_or_reach_past_the_output_are_refused() {
        let block = |at, count| CallBlock { at, count };
        for blocks in
            [[block(0, 3), block(2, 2)], [block(0, 3), block(9, 2)], [block(0, 1), block(u64::MAX, 2)]]
        {
            let mut bytes = [0_u8; 10];
            let cut = outputs(Output::Memory(&mut bytes), &blocks, 1);
            assert!(matches!(cut, Err(Error::OutOfRange { .. })), "{blocks:?}");
        }
    }
}
