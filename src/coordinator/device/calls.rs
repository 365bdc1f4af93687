//! Executing a group of calls on the memory of a device.
//!
//! A device's memory is its own, and outlives any epoch. So operands are copied out of it, and
//! results into it. An error leaves all inputs as they were. The coordinator allows no group more
//! operands than twice that memory
//! ([`RequestError::GroupTooLarge`](crate::coordinator::RequestError::GroupTooLarge)).
//!
//! Calls behave as one after the other. Where one reads on some device what an earlier one writes,
//! the group is executed in parts, each of which is copied out when the one before is copied back.
//! Every device knows the addresses of all, so they cut the group alike.

use super::operand::OperandCopy;
use super::undo::{Overwritten, take_back};
use crate::comm::{Buffers, CollectiveCall, Submit};
use crate::coordinator::call::{Bytes, DeviceCall};
use crate::error::{Error, Result};
use crate::heap::{Arena, DeviceAddress, DeviceMemory};
use crate::{Communicator, Group, Rank};

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

/// Executes `calls`, one after the other or together. Returns what their results have overwritten
/// of their inputs.
///
/// # Errors
/// [`Error::OutOfRange`], [`Error::ResourceLimit`]; those of the collective operations.
pub(super) fn execute(
    comm: &mut Communicator,
    memory: &DeviceMemory,
    calls: &[DeviceCall],
) -> Result<Vec<Overwritten>> {
    let (rank, n_ranks) = (comm.rank().index(), comm.n_ranks() as usize);
    let inputs = calls.iter().map(|call| Ok(operands(call, memory, rank, n_ranks)?.0));
    let inputs = inputs.collect::<Result<Vec<_>>>()?;
    let (mut rest, mut overwritten) = (calls, Vec::new());
    while !rest.is_empty() {
        let (now, later) = rest.split_at(apart(rest, n_ranks));
        let done = execute_apart(comm, memory, now, &inputs, &mut overwritten);
        if let Err(error) = done {
            take_back(&overwritten, memory)?;
            return Err(error);
        }
        rest = later;
    }
    Ok(overwritten)
}

/// Returns how many of `calls`, from the first on, read on no device what an earlier one writes.
fn apart(calls: &[DeviceCall], n_ranks: usize) -> usize {
    let on_rank = |rank: usize| {
        let mut written = Vec::<Bytes>::with_capacity(calls.len());
        let reads_result = |call: &DeviceCall| {
            let Some((sent, received)) = call.operands(rank, n_ranks) else { return true };
            let is_found = written.iter().any(|written| written.overlaps(sent));
            written.push(received);
            is_found
        };
        calls.iter().position(reads_result)
    };
    // The first reads no result; one that has no operands there fails by itself.
    (0..n_ranks).filter_map(on_rank).min().map_or(calls.len(), |index| index.max(1))
}

/// Executes `calls`, of which none reads what an earlier one writes, together. What their results
/// overwrite of the `inputs` of the whole group is added to `overwritten`.
fn execute_apart(
    comm: &mut Communicator,
    memory: &DeviceMemory,
    calls: &[DeviceCall],
    inputs: &[Operand],
    overwritten: &mut Vec<Overwritten>,
) -> Result<()> {
    let (rank, n_ranks, arena) = (comm.rank().index(), comm.n_ranks(), comm.arena());
    let mut operands = calls
        .iter()
        .map(|call| fetch(call, memory, &arena, rank, n_ranks as usize))
        .collect::<Result<Vec<_>>>()?;
    let mut group = Group::start();
    let joined = group.join(comm);
    for (call, operands) in calls.iter().zip(&mut operands) {
        let Operands { input, sent, output, received } = operands;
        let buffers = Buffers::apart(input.input(sent.len), output.output(received.len));
        let root = Rank::new(call.root, n_ranks)?;
        let (operation, op) = (call.operation, Some(&call.op));
        group.on(joined).submit(CollectiveCall {
            op,
            root,
            ..CollectiveCall::new(operation, call.data_type, buffers)
        })?;
    }
    group.end()?;
    drop(group);
    for Operands { input, sent, output, received } in operands {
        let Operand { address, len } = received;
        if inputs.iter().any(|input| input.overlaps(received)) {
            let copy = if sent == received { input } else { copy_of(received, memory, &arena)? };
            overwritten.push(Overwritten { address, len, copy });
        }
        output.store(memory, address, len)?;
    }
    Ok(())
}

fn copy_of(operand: Operand, memory: &DeviceMemory, arena: &Arena) -> Result<OperandCopy> {
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

/// Returns what `rank` of `n_ranks` reads and writes in `call`.
fn operands(
    call: &DeviceCall,
    memory: &DeviceMemory,
    rank: usize,
    n_ranks: usize,
) -> Result<(Operand, Operand)> {
    let limit = memory.max_address().get();
    let beyond = |offset, len| Error::OutOfRange { what: "device addresses", offset, len, limit };
    let check = |bytes: Bytes| {
        let address = DeviceAddress::new(bytes.address);
        // An address outside of the memory fails before anything is allocated.
        memory.fill(address, 0, 0)?;
        let len = usize::try_from(bytes.len).ok().filter(|_| bytes.len <= limit);
        Ok::<_, Error>(Operand { address, len: len.ok_or_else(|| beyond(bytes.address, bytes.len))? })
    };
    let (sent, received) = call.operands(rank, n_ranks).ok_or_else(|| beyond(0, call.count))?;
    Ok((check(sent)?, check(received)?))
}

fn fetch(
    call: &DeviceCall,
    memory: &DeviceMemory,
    arena: &Arena,
    rank: usize,
    n_ranks: usize,
) -> Result<Operands> {
    let (sent, received) = operands(call, memory, rank, n_ranks)?;
    let input = copy_of(sent, memory, arena)?;
    Ok(Operands { input, sent, output: OperandCopy::new(arena, received.len)?, received })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::Operation;
    use crate::reduce::{DataType, ReduceOp};
    use crate::shm::{Backing, Identity};

    const MIN: u64 = 0x1000;

    /// A sum of 10 bytes of two devices, from and to these addresses.
    fn sum(send: [u64; 2], recv: [u64; 2]) -> DeviceCall {
        DeviceCall {
            operation: Operation::AllReduce,
            data_type: DataType::U8,
            op: ReduceOp::Sum,
            root: 0,
            count: 10,
            send: send.into(),
            recv: recv.into(),
        }
    }

    #[test]
    fn a_group_is_cut_before_a_call_that_reads_a_result_on_any_device() {
        let first = || sum([100; 2], [200; 2]);
        for next in [sum([190; 2], [300; 2]), sum([210; 2], [200; 2]), sum([300; 2], [100; 2])] {
            assert_eq!(apart(&[first(), next], 2), 2);
        }
        for next in [sum([200, 300], [300; 2]), sum([300, 191], [300; 2]), sum([300, 209], [300; 2])] {
            assert_eq!(apart(&[first(), first(), next, first()], 2), 2);
        }
        assert_eq!(apart(&[sum([100; 2], [100; 2]), first()], 2), 1);
        assert_eq!(apart(&[sum([100; 2], [100; 2])], 2), 1);
    }
    /// Executes `calls` on `n` devices that have `before` from [`MIN`] on; what each has then, and
    /// what it has once that was taken back.
    fn executed(n: u32, before: fn(usize) -> Vec<u8>, calls: &[DeviceCall]) -> Vec<[Vec<u8>; 2]> {
        let device = |mut comm: Communicator| {
            let rank = comm.rank().index();
            let (end, bytes) = (DeviceAddress::new(0x20_0000), before(rank));
            let identity = Identity { job: 7, epoch: 0, owner: rank as u64 };
            let memory = DeviceMemory::create(&Backing::Anonymous, end, identity).unwrap();
            let read = || {
                let mut now = vec![0; bytes.len()];
                memory.copy_device_to_host(DeviceAddress::new(MIN), &mut now).unwrap();
                now
            };
            memory.copy_host_to_device(DeviceAddress::new(MIN), &bytes).unwrap();
            let overwritten = execute(&mut comm, &memory, calls).unwrap();
            let after = read();
            take_back(&overwritten, &memory).unwrap();
            [after, read()]
        };
        let comms = Communicator::init_all(n).unwrap();
        let threads: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = comms.into_iter().map(|comm| scope.spawn(|| device(comm))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        threads
    }

    #[test]
    fn calls_of_a_group_on_the_same_memory_are_done_one_after_the_other_and_taken_back() {
        let before = |rank: usize| vec![u8::try_from(rank).unwrap() + 1; 60_000];
        for (n, count) in [(2, 1), (2, 64), (3, 64), (3, 1000), (2, 60_000)] {
            let places = |at: u64| vec![MIN + at; n as usize];
            let on = |op, send: Vec<u64>, recv: Vec<u64>| DeviceCall {
                op,
                count,
                send,
                recv,
                ..sum([0; 2], [0; 2])
            };
            let calls = [
                on(ReduceOp::Min, places(0), places(0)),
                on(ReduceOp::Sum, places(0), places(0)),
                on(ReduceOp::Sum, places(0), places(0)),
            ];
            for (rank, [after, taken_back]) in executed(n, before, &calls).into_iter().enumerate() {
                let count = usize::try_from(count).unwrap();
                assert!(
                    after[..count].iter().all(|&sum| u32::from(sum) == n * n),
                    "{count} on {n}: {}",
                    after[0]
                );
                assert_eq!(after[count..], before(rank)[count..]);
                assert_eq!(taken_back, before(rank));
            }
        }
    }

    #[test]
    fn prefixes_and_blocks_of_a_root_on_the_same_memory_are_done_in_order_and_taken_back() {
        let before = |rank: usize| vec![u8::try_from(rank).unwrap() + 1; 90];
        let on = |operation, send: u64, recv: u64| DeviceCall {
            operation,
            root: 1,
            send: vec![MIN + send; 3],
            recv: vec![MIN + recv; 3],
            ..sum([0; 2], [0; 2])
        };
        let calls = [
            on(Operation::Scan, 0, 30),
            on(Operation::ExScan, 30, 0),
            on(Operation::Gather, 0, 60),
            on(Operation::Scatter, 60, 30),
            on(Operation::Scan, 30, 30),
        ];
        let found = executed(3, before, &calls);
        let places = |at: usize| found.iter().map(|[after, _]| after[at]).collect::<Vec<_>>();
        // Rank 0 keeps what it has where all others get the prefix of 1, 3 and 6 before them.
        assert_eq!(places(0), [1, 1, 4]);
        assert_eq!(found[1][0][60..], [[1; 10], [1; 10], [4; 10]].concat());
        assert_eq!(places(30), [1, 2, 6]);
        for (rank, [_, taken_back]) in found.iter().enumerate() {
            assert_eq!(*taken_back, before(rank));
        }
    }

    #[test]
    fn what_only_one_device_passes_on_from_call_to_call_is_seen_by_all() {
        let before = |rank: usize| vec![u8::try_from(rank).unwrap() + 1; 400];
        // The second call begins on the second device amid what the first one has written.
        let calls = [
            DeviceCall { count: 100, ..sum([MIN; 2], [MIN + 100; 2]) },
            DeviceCall { count: 100, ..sum([MIN, MIN + 150], [MIN + 300; 2]) },
        ];
        for [after, _] in executed(2, before, &calls) {
            assert_eq!(after[300..350], [1 + 3; 50]);
            assert_eq!(after[350..], [1 + 2; 50]);
        }
    }
}
