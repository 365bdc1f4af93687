//! Executing a group of calls on the memory of a device.
//!
//! A device's memory is its own, and outlives any epoch. So operands are copied out of it, and
//! results into it. An error before the data have moved changes nothing. The coordinator allows no
//! group more operands than twice that memory
//! ([`RequestError::GroupTooLarge`](crate::coordinator::RequestError::GroupTooLarge)).

use super::scratch::Scratch;
use super::undo::Overwritten;
use crate::collective::{Input, Output, Request};
use crate::comm::Submit;
use crate::coordinator::call::{Bytes, DeviceCall};
use crate::error::{Error, Result};
use crate::heap::{DeviceAddress, DeviceMemory};
use crate::{Communicator, Group};

/// The operands of a call, in words, so that elements of every type are aligned.
struct Operands {
    input: Vec<u64>,
    /// Where the input was copied from.
    sent: Operand,
    output: Vec<u64>,
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
    scratch: &mut Scratch,
) -> Result<Vec<Overwritten>> {
    let (rank, n_ranks) = (comm.rank().index(), comm.n_ranks());
    let mut operands =
        calls.iter().map(|call| fetch(call, memory, rank, n_ranks, scratch)).collect::<Result<Vec<_>>>()?;
    let mut group = Group::start();
    let joined = group.join(comm);
    for (call, operands) in calls.iter().zip(&mut operands) {
        let (operation, op) = (call.collective.operation(), call.op.reduce_op());
        let input: &[u8] = bytemuck::cast_slice(&operands.input);
        let output: &mut [u8] = bytemuck::cast_slice_mut(&mut operands.output);
        let (has_input, has_output) = call.sides(rank);
        group.on(joined).submit(Request {
            operation,
            data_type: call.data_type,
            count: call.count,
            root: call.root as usize * usize::from(operation.has_root()),
            tag: 0,
            status: None,
            op: operation.reduces().then_some(&op),
            layout: None,
            input: if has_input { Input::Memory(&input[..operands.sent.len]) } else { Input::None },
            output: if has_output {
                Output::Memory(&mut output[..operands.received.len])
            } else {
                Output::None
            },
        })?;
    }
    group.end()?;
    drop(group);
    let overwritten = keep_inputs(&mut operands, memory, scratch)?;
    for Operands { input, output, received, .. } in operands {
        let bytes: &[u8] = bytemuck::cast_slice(&output);
        memory.copy_host_to_device(received.address, &bytes[..received.len])?;
        [input, output].into_iter().for_each(|words| scratch.give_back(words));
    }
    Ok(overwritten)
}

/// Takes out of `operands` the inputs that results are about to overwrite.
fn keep_inputs(
    operands: &mut [Operands],
    memory: &DeviceMemory,
    scratch: &mut Scratch,
) -> Result<Vec<Overwritten>> {
    let mut overwritten = Vec::new();
    for at in 0..operands.len() {
        let target = operands[at].received;
        let words = if target == operands[at].sent {
            std::mem::take(&mut operands[at].input)
        } else if operands.iter().any(|other| other.sent.overlaps(target)) {
            let mut words = scratch.take(target.len)?;
            let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
            memory.copy_device_to_host(target.address, &mut bytes[..target.len])?;
            words
        } else {
            continue;
        };
        overwritten.push(Overwritten { address: target.address, len: target.len, words });
    }
    Ok(overwritten)
}

impl Operand {
    fn overlaps(self, other: Self) -> bool {
        let (start, end) = (self.address.get(), self.address.get() + self.len as u64);
        start < other.address.get() + other.len as u64 && other.address.get() < end
    }
}

fn fetch(
    call: &DeviceCall,
    memory: &DeviceMemory,
    rank: usize,
    n_ranks: u32,
    scratch: &mut Scratch,
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
    let (mut input, output) = (scratch.take(sent.len)?, scratch.take(received.len)?);
    memory.copy_device_to_host(sent.address, &mut bytemuck::cast_slice_mut(&mut input)[..sent.len])?;
    Ok(Operands { input, sent, output, received })
}
