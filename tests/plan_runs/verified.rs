//! Calls by plans, in buffers of every kind, five in a row without a barrier.

use half::f16;
use shmccl::plan::collective::CollectiveKind;
use shmccl::plan::lower::granule;
use shmccl::plan::{ExecutionPlan, senders};
use shmccl::reduce::{Element, ReduceOp};
use shmccl::{Collectives, Communicator, Result};

use crate::corpus::{Listed, of_ranks};

/// A type of elements that small numbers are exact in.
trait Small: Element + PartialEq + std::fmt::Debug {
    fn small(number: u8) -> Self;
}

impl Small for i32 {
    fn small(number: u8) -> Self {
        number.into()
    }
}

impl Small for f32 {
    fn small(number: u8) -> Self {
        number.into()
    }
}

impl Small for f16 {
    fn small(number: u8) -> Self {
        number.into()
    }
}

/// Where the buffers of a call are.
#[derive(Clone, Copy, Debug)]
enum Buffers {
    Ordinary,
    OrdinaryInPlace,
    Heap,
    HeapInPlace,
}

/// The longest message of the short form, in bytes, where the plan lets one choose.
const LONG: u64 = 48 << 10;

const BUFFERS: [Buffers; 4] =
    [Buffers::Heap, Buffers::HeapInPlace, Buffers::Ordinary, Buffers::OrdinaryInPlace];

/// Runs all plans of as many ranks as there are, `count` of them.
pub(crate) fn all(comm: &mut Communicator, count: usize) -> Result<()> {
    let plans = of_ranks(comm.n_ranks());
    assert_eq!(plans.len(), count);
    plans.iter().try_for_each(|listed| one(comm, listed))
}

/// Runs a plan with each type: at its smallest size, at three times that, and at a longer one.
fn one(comm: &mut Communicator, listed: &Listed) -> Result<()> {
    comm.register_plan(&listed.plan)?;
    let unit = granule(&listed.plan).unwrap();
    let longer = |least: u64| (unit * (least / unit).max(1)).max(listed.smallest);
    if support::long() {
        for message in [listed.smallest, 3 * listed.smallest, longer(1 << 20)] {
            launches::<i32>(comm, listed, message, 5)?;
            launches::<f32>(comm, listed, message, 5)?;
            launches::<f16>(comm, listed, message, 5)?;
        }
    } else if listed.smallest > LONG {
        launches::<i32>(comm, listed, listed.smallest, 1)?;
    } else {
        launches::<i32>(comm, listed, listed.smallest, 5)?;
        launches::<f16>(comm, listed, 3 * listed.smallest, 2)?;
        launches::<f32>(comm, listed, longer(LONG), 1)?;
    }
    comm.unregister_plan(&listed.plan.name)
}

/// Calls with messages of so many bytes, if the plan does such, several times without a barrier.
fn launches<T: Small>(comm: &mut Communicator, listed: &Listed, message: u64, count: u64) -> Result<()> {
    if !(listed.plan.min_message..=listed.plan.max_message).contains(&message) {
        return Ok(());
    }
    let elements = usize::try_from(message).unwrap() / size_of::<T>();
    let senders = senders(&listed.plan).unwrap_or_default();
    let case = Case { name: &listed.name, plan: &listed.plan, senders, elements };
    let heap = [comm.alloc::<T>(elements)?, comm.alloc::<T>(elements)?];
    for launch in 0..count {
        let buffers = BUFFERS[usize::try_from(launch % 4).unwrap()];
        case.launch::<T>(comm, launch, buffers, &heap)?;
    }
    let [input, output] = heap;
    comm.free(input)?;
    comm.free(output)
}

struct Case<'a> {
    name: &'a str,
    plan: &'a ExecutionPlan,
    /// By rank, whose input it gets by a sendrecv.
    senders: Vec<usize>,
    /// Those of a message.
    elements: usize,
}

impl Case<'_> {
    fn launch<T: Small>(
        &self,
        comm: &mut Communicator,
        launch: u64,
        buffers: Buffers,
        heap: &[shmccl::heap::DeviceBuffer<T>; 2],
    ) -> Result<()> {
        let (me, n) = (comm.rank().index(), self.plan.ranks.len());
        let (collective, op) = (CollectiveKind::of(self.plan), ReduceOp::Sum);
        let (inputs, outputs) = collective.shares(n);
        let (input_len, output_len) = (self.elements / inputs, self.elements / outputs);
        let input: Vec<T> = (0..input_len).map(|index| T::small(value(me, launch, index))).collect();
        let longest = input_len.max(output_len);
        // Where the input and the output are in a buffer that is both.
        let [input_at, output_at] = match collective {
            CollectiveKind::AllGather => [me * input_len, 0],
            CollectiveKind::ReduceScatter => [0, me * output_len],
            _ => [0, 0],
        };
        let planned = comm.plan(&self.plan.name)?;
        let mut both = vec![T::small(0); longest];
        both[input_at..input_at + input_len].copy_from_slice(&input);
        let mut output = vec![T::small(9); output_len];
        match buffers {
            Buffers::Ordinary => match collective {
                CollectiveKind::AllReduce => comm.all_reduce(&input, &mut output, &op)?,
                CollectiveKind::AllGather => comm.all_gather(&input, &mut output)?,
                CollectiveKind::ReduceScatter => comm.reduce_scatter(&input, &mut output, &op)?,
                CollectiveKind::SendRecv => comm.run_plan(planned, &input, &mut output)?,
                _ => comm.all_to_all(&input, &mut output)?,
            },
            Buffers::OrdinaryInPlace => {
                match collective {
                    CollectiveKind::SendRecv => comm.run_plan_in_place(planned, &mut both)?,
                    CollectiveKind::AllReduce => comm.all_reduce_in_place(&mut both, &op)?,
                    CollectiveKind::AllGather => comm.all_gather_in_place(&mut both)?,
                    CollectiveKind::ReduceScatter => comm.reduce_scatter_in_place(&mut both, &op)?,
                    _ => comm.all_to_all_in_place(&mut both)?,
                }
                output.copy_from_slice(&both[output_at..output_at + output_len]);
            }
            Buffers::Heap => {
                let from = comm.buffer::<T>(heap[0].part(0, input_len)?)?;
                let to = comm.buffer::<T>(heap[1].part(0, output_len)?)?;
                from.copy_from_slice(0, &input)?;
                match collective {
                    CollectiveKind::AllReduce => comm.all_reduce(&from, &to, &op)?,
                    CollectiveKind::AllGather => comm.all_gather(&from, &to)?,
                    CollectiveKind::ReduceScatter => comm.reduce_scatter(&from, &to, &op)?,
                    CollectiveKind::SendRecv => comm.run_plan(planned, &from, &to)?,
                    _ => comm.all_to_all(&from, &to)?,
                }
                to.copy_to_slice(0, &mut output)?;
                assert_eq!(from.to_vec(), input, "{}: the input was changed", self.name);
            }
            Buffers::HeapInPlace => {
                let all = comm.buffer::<T>(heap[1].part(0, longest)?)?;
                all.copy_from_slice(0, &both)?;
                match collective {
                    CollectiveKind::AllReduce => comm.all_reduce_in_place(&all, &op)?,
                    CollectiveKind::AllGather => comm.all_gather_in_place(&all)?,
                    CollectiveKind::ReduceScatter => comm.reduce_scatter_in_place(&all, &op)?,
                    CollectiveKind::SendRecv => comm.run_plan_in_place(planned, &all)?,
                    _ => comm.all_to_all_in_place(&all)?,
                }
                all.copy_to_slice(output_at, &mut output)?;
            }
        }
        for (index, found) in output.iter().enumerate() {
            let expected = T::small(self.expected(me, launch, index));
            let at = || format!("{} of {} at {index}, {buffers:?}", self.name, self.elements);
            assert_eq!(*found, expected, "{}", at());
        }
        Ok(())
    }

    /// Returns what the collective puts at `index` of the output of a rank.
    fn expected(&self, rank: usize, launch: u64, index: usize) -> u8 {
        let n = self.plan.ranks.len();
        let part = self.elements / n;
        let sum = |index| (0..n).map(|rank| value(rank, launch, index)).sum::<u8>();
        match CollectiveKind::of(self.plan) {
            CollectiveKind::AllReduce => sum(index),
            CollectiveKind::AllGather => value(index / part, launch, index % part),
            CollectiveKind::ReduceScatter => sum(rank * part + index),
            CollectiveKind::SendRecv => value(self.senders[rank], launch, index),
            _ => value(index / part, launch, rank * part + index % part),
        }
    }
}

/// Returns a number below 8 that no neighbour, rank or launch has as a rule.
fn value(rank: usize, launch: u64, index: usize) -> u8 {
    let mixed = (rank as u64 * 0x9e37 + launch * 0x79b9 + index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    u8::try_from(mixed >> 61).unwrap()
}
