//! Executing a group of calls on the memory of a device.
//!
//! A device's memory is its own, and outlives any epoch. So operands are copied out of it, and
//! results into it. An error before the data have moved changes nothing. The coordinator allows no
//! group more operands than twice that memory
//! ([`RequestError::GroupTooLarge`](crate::coordinator::RequestError::GroupTooLarge)).

use crate::collective::{Input, Output, Request};
use crate::comm::Submit;
use crate::coordinator::call::{Bytes, DeviceCall};
use crate::error::{Error, Result};
use crate::heap::{DeviceAddress, DeviceMemory};
use crate::{Communicator, Group};

/// The operands of a call, in words, so that elements of every type are aligned.
struct Operands {
    input: Vec<u64>,
    /// The number of bytes of the input.
    sent: usize,
    output: Vec<u64>,
    /// The number of bytes of the output.
    received: usize,
    /// Where the output belongs.
    target: DeviceAddress,
}

/// Executes `calls` together.
///
/// # Errors
/// [`Error::OutOfRange`], [`Error::ResourceLimit`]; those of the collective operations.
pub(super) fn execute(comm: &mut Communicator, memory: &DeviceMemory, calls: &[DeviceCall]) -> Result<()> {
    let (rank, n_ranks) = (comm.rank().index(), comm.n_ranks());
    let mut operands =
        calls.iter().map(|call| fetch(call, memory, rank, n_ranks)).collect::<Result<Vec<_>>>()?;
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
            input: if has_input { Input::Memory(&input[..operands.sent]) } else { Input::None },
            output: if has_output { Output::Memory(&mut output[..operands.received]) } else { Output::None },
        })?;
    }
    group.end()?;
    drop(group);
    operands.iter().try_for_each(|operands| {
        let output: &[u8] = bytemuck::cast_slice(&operands.output);
        memory.copy_host_to_device(operands.target, &output[..operands.received])
    })
}

fn fetch(call: &DeviceCall, memory: &DeviceMemory, rank: usize, n_ranks: u32) -> Result<Operands> {
    let limit = memory.max_address().get();
    let beyond = |offset, len| Error::OutOfRange { what: "device addresses", offset, len, limit };
    let check = |bytes: Bytes| {
        let address = DeviceAddress::new(bytes.address);
        // An address outside of the memory fails before anything is allocated.
        memory.fill(address, 0, 0)?;
        let len = usize::try_from(bytes.len).ok().filter(|_| bytes.len <= limit);
        Ok::<_, Error>((address, len.ok_or_else(|| beyond(bytes.address, bytes.len))?))
    };
    let (sent, received) = call.operands(rank, n_ranks as usize).ok_or_else(|| beyond(0, call.count))?;
    let ((source, sent), (target, received)) = (check(sent)?, check(received)?);
    let (mut input, output) = (words(sent)?, words(received)?);
    memory.copy_device_to_host(source, &mut bytemuck::cast_slice_mut(&mut input)[..sent])?;
    Ok(Operands { input, sent, output, received, target })
}

/// Allocates `len` bytes, if there is memory.
fn words(len: usize) -> Result<Vec<u64>> {
    let (count, mut words) = (len.div_ceil(8), Vec::new());
    words.try_reserve_exact(count).map_err(|_| Error::ResourceLimit {
        resource: "memory",
        action: "copying the operands of a call",
        remedy: "call for fewer elements at a time",
        source: std::io::ErrorKind::OutOfMemory.into(),
    })?;
    words.resize(count, 0);
    Ok(words)
}
