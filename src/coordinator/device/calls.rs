//! Executing a group of calls on the memory of a device.
//!
//! A device's memory is its own, and outlives any epoch. So operands are copied out of it, and
//! results into it. An error before the data have moved changes nothing. The coordinator allows no
//! group more operands than twice that memory
//! ([`RequestError::GroupTooLarge`](crate::coordinator::RequestError::GroupTooLarge)).

use super::operand::OperandCopy;
use super::undo::Overwritten;
use crate::collective::{Input, Output, Request};
use crate::comm::Submit;
use crate::coordinator::call::{Bytes, DeviceCall};
use crate::error::{Error, Result};
use crate::heap::{Arena, DeviceAddress, DeviceMemory};
use crate::{Communicator, Group};

/// The operands of a call.
struct Operands {
    input: OperandCopy,
    /// Where the input was copied from.
    sent: Operand,
    output: OperandCopy,
    /// Where the output belongs.
    received: Operand,
}

/// Bytes of the device's memory.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Operand {
    address: DeviceAddress,
    len: usize,
}

/// Executes `calls` together. Returns what their results have overwritten of their inputs.
///
/// # Errors
/// [`Error::OutOfRange`], [`Error::ResourceLimit`]; those of the collective operations.
pub(super) fn execute(
    comm: &mut Communicator,
    memory: &DeviceMemory,
    calls: &[DeviceCall],
) -> Result<Vec<Overwritten>> {
    let (rank, n_ranks, arena) = (comm.rank().index(), comm.n_ranks(), comm.arena());
    let mut operands =
        calls.iter().map(|call| fetch(call, (memory, &arena), rank, n_ranks)).collect::<Result<Vec<_>>>()?;
    let mut group = Group::start();
    let joined = group.join(comm);
    for (call, operands) in calls.iter().zip(&mut operands) {
        let (operation, op) = (call.collective.operation(), call.op.reduce_op());
        let Operands { input, sent, output, received } = operands;
        let (has_input, has_output) = call.sides(rank);
        group.on(joined).submit(Request {
            operation,
            data_type: call.data_type,
            count: call.count,
            root: call.root as usize * usize::from(operation.has_root()),
            tag: 0,
            receipt: None,
            op: operation.reduces().then_some(&op),
            layout: None,
            input: if has_input { input.input(sent.len) } else { Input::None },
            output: if has_output { output.output(received.len) } else { Output::None },
        })?;
    }
    group.end()?;
    drop(group);
    let kept = operands.iter().map(|it| keeps_input(it, &operands)).collect::<Vec<_>>();
    let mut overwritten = Vec::new();
    for (Operands { input, sent, output, received }, is_kept) in operands.into_iter().zip(kept) {
        let Operand { address, len } = received;
        if is_kept {
            let copy = if sent == received { input } else { copy_of(received, (memory, &arena))? };
            overwritten.push(Overwritten { address, len, copy });
        }
        output.store(memory, address, len)?;
    }
    Ok(overwritten)
}

/// Whether the output of a call goes where an input of the group was.
fn keeps_input(call: &Operands, all: &[Operands]) -> bool {
    all.iter().any(|other| other.sent.overlaps(call.received))
}

fn copy_of(operand: Operand, (memory, arena): (&DeviceMemory, &Arena)) -> Result<OperandCopy> {
    let mut copy = OperandCopy::new(arena, operand.len)?;
    copy.fetch(memory, operand.address, operand.len)?;
    Ok(copy)
}

impl Operand {
    fn overlaps(self, other: Self) -> bool {
        let (start, end) = (self.address.get(), self.address.get() + self.len as u64);
        start < other.address.get() + other.len as u64 && other.address.get() < end
    }
}

fn fetch(
    call: &DeviceCall,
    (memory, arena): (&DeviceMemory, &Arena),
    rank: usize,
    n_ranks: u32,
) -> Result<Operands> {
    let limit = memory.max_address().get();
    let beyond = |offset, len| Error::OutOfRange { what: "device addresses", offset, len, limit };
    let check = |bytes: Bytes| {
        let address = DeviceAddress::new(bytes.address);
        // An address outside of the memory fails before anything is allocated.
        memory.fill(address, 0, 0)?;
        let len = usize::try_from(bytes.len).ok().filter(|_| bytes.len <= limit);
        Ok::<_, Error>(Operand { address, len: len.ok_or_else(|| beyond(bytes.address, bytes.len))? })
    };
    let (sent, received) = call.operands(rank, n_ranks as usize).ok_or_else(|| beyond(0, call.count))?;
    let (sent, received) = (check(sent)?, check(received)?);
    let input = copy_of(sent, (memory, arena))?;
    Ok(Operands { input, sent, output: OperandCopy::new(arena, received.len)?, received })
}
