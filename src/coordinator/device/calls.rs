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
    sent: Bytes,
    input: Vec<u64>,
    received: Bytes,
    output: Vec<u64>,
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
        let op = call.op.reduce_op();
        let input: &[u8] = bytemuck::cast_slice(&operands.input);
        let output: &mut [u8] = bytemuck::cast_slice_mut(&mut operands.output);
        let (sent, received) = (length(operands.sent)?, length(operands.received)?);
        let has_root = call.collective.operation().has_root();
        group.on(joined).submit(Request {
            operation: call.collective.operation(),
            data_type: call.data_type,
            count: call.count,
            root: call.root as usize * usize::from(has_root),
            op: call.collective.reduces().then_some(&op),
            layout: None,
            input: if has_root && is_nobodys(call, true, rank) {
                Input::None
            } else {
                Input::Memory(&input[..sent])
            },
            output: if has_root && is_nobodys(call, false, rank) {
                Output::None
            } else {
                Output::Memory(&mut output[..received])
            },
        })?;
    }
    group.end()?;
    drop(group);
    operands.iter().try_for_each(|operands| {
        let output: &[u8] = bytemuck::cast_slice(&operands.output);
        memory.copy_host_to_device(
            DeviceAddress::new(operands.received.address),
            &output[..length(operands.received)?],
        )
    })
}

/// Whether only the root has this operand, and `rank` is another one.
fn is_nobodys(call: &DeviceCall, is_input: bool, rank: usize) -> bool {
    use crate::collective::Operation;
    let at_root = match call.collective.operation() {
        Operation::Broadcast => is_input,
        Operation::Reduce => !is_input,
        _ => false,
    };
    at_root && call.root as usize != rank
}

fn fetch(call: &DeviceCall, memory: &DeviceMemory, rank: usize, n_ranks: u32) -> Result<Operands> {
    let limit = memory.max_address().get();
    let beyond = Error::OutOfRange { what: "device addresses", offset: 0, len: call.count, limit };
    let (sent, received) = call.operands(rank, n_ranks as usize).ok_or(beyond)?;
    for bytes in [sent, received] {
        // An address outside of the memory fails before anything is allocated.
        memory.fill(DeviceAddress::new(bytes.address), 0, 0)?;
        if bytes.len > limit {
            return Err(Error::OutOfRange {
                what: "device addresses",
                offset: bytes.address,
                len: bytes.len,
                limit,
            });
        }
    }
    let mut operands = Operands { sent, input: words(sent)?, received, output: words(received)? };
    let input: &mut [u8] = bytemuck::cast_slice_mut(&mut operands.input);
    memory.copy_device_to_host(DeviceAddress::new(sent.address), &mut input[..length(sent)?])?;
    Ok(operands)
}

fn length(bytes: Bytes) -> Result<usize> {
    let limit = usize::MAX as u64;
    usize::try_from(bytes.len).map_err(|_| Error::OutOfRange {
        what: "device addresses",
        offset: bytes.address,
        len: bytes.len,
        limit,
    })
}

/// Allocates so many bytes, if there is memory.
fn words(bytes: Bytes) -> Result<Vec<u64>> {
    let (count, mut words) = (length(bytes)?.div_ceil(8), Vec::new());
    words.try_reserve_exact(count).map_err(|_| Error::ResourceLimit {
        resource: "memory",
        action: "copying the operands of a call",
        remedy: "call for fewer elements at a time",
        source: std::io::ErrorKind::OutOfMemory.into(),
    })?;
    words.resize(count, 0);
    Ok(words)
}
