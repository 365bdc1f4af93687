//! The calls themselves, for elements whose type is a value.

use half::{bf16, f16};
use shmccl::collective::Operation;
use shmccl::comm::{RecvBuffer, SendBuffer};
use shmccl::reduce::{CustomOp, DataType, Element, F8E4M3, F8E5M2, ReduceOp, Scalar};
use shmccl::{Collectives, Communicator, Rank, Result};

use crate::memory::Side;
use crate::table::{Combination, Operator};

/// The two sides of a call.
#[derive(Debug)]
pub(crate) enum Sides<'a> {
    Two(Side<'a>, Side<'a>),
    /// In place.
    One(Side<'a>),
}

/// The operator for `T`; `scalar` is what a scaled sum multiplies by.
fn reduce_op_of<T: Element>(operator: Operator, scalar: &[u8]) -> ReduceOp {
    match operator {
        Operator::Sum => ReduceOp::Sum,
        Operator::Prod => ReduceOp::Prod,
        Operator::Min => ReduceOp::Min,
        Operator::Max => ReduceOp::Max,
        Operator::Avg => ReduceOp::Avg,
        Operator::PreMulSum => ReduceOp::PreMulSum(Scalar::new(bytemuck::pod_read_unaligned::<T>(scalar))),
        Operator::Custom => ReduceOp::Custom(CustomOp::new::<T>("first", |first, other| {
            for (first, other) in first.iter_mut().zip(other) {
                if bytemuck::bytes_of(first).iter().all(|&byte| byte == 0) {
                    *first = *other;
                }
            }
        })),
    }
}

pub(crate) fn send_buffer<'a, T: Element>(comm: &Communicator, side: Side<'a>) -> Result<SendBuffer<'a, T>> {
    Ok(match side {
        Side::Heap(region) => (&comm.buffer::<T>(region)?).into(),
        Side::Ordinary(bytes) => bytemuck::cast_slice::<u8, T>(bytes).into(),
    })
}

pub(crate) fn recv_buffer<'a, T: Element>(comm: &Communicator, side: Side<'a>) -> Result<RecvBuffer<'a, T>> {
    Ok(match side {
        Side::Heap(region) => (&comm.buffer::<T>(region)?).into(),
        Side::Ordinary(bytes) => bytemuck::cast_slice_mut::<u8, T>(bytes).into(),
    })
}

/// Executes `call` on elements `T`.
fn run_of<T: Element>(
    comm: &mut Communicator,
    call: &Combination,
    scalar: &[u8],
    sides: Sides<'_>,
) -> Result<()> {
    let op = reduce_op_of::<T>(call.operator, scalar);
    let root = Rank::new(u32::try_from(call.root).unwrap(), comm.n_ranks())?;
    let (send, recv) = match sides {
        Sides::One(side) => {
            let buffer = recv_buffer::<T>(comm, side)?;
            return match call.operation {
                Operation::AllReduce => comm.all_reduce_in_place(buffer, &op),
                Operation::Reduce => comm.reduce_in_place(buffer, &op, root),
                Operation::Broadcast => comm.broadcast_in_place(buffer, root),
                Operation::AllGather => comm.all_gather_in_place(buffer),
                Operation::ReduceScatter => comm.reduce_scatter_in_place(buffer, &op),
                Operation::AllToAll => comm.all_to_all_in_place(buffer),
                Operation::Gather => comm.gather_in_place(buffer, root),
                Operation::Scatter => comm.scatter_in_place(buffer, root),
                operation => unreachable!("{operation} is not in the table"),
            };
        }
        Sides::Two(send, recv) => (send_buffer::<T>(comm, send)?, recv_buffer::<T>(comm, recv)?),
    };
    match call.operation {
        Operation::AllReduce => comm.all_reduce(send, recv, &op),
        Operation::Reduce => comm.reduce(send, recv, &op, root),
        Operation::Broadcast => comm.broadcast(send, recv, root),
        Operation::AllGather => comm.all_gather(send, recv),
        Operation::ReduceScatter => comm.reduce_scatter(send, recv, &op),
        Operation::AllToAll => comm.all_to_all(send, recv),
        Operation::Gather => comm.gather(send, recv, root),
        Operation::Scatter => comm.scatter(send, recv, root),
        operation => unreachable!("{operation} is not in the table"),
    }
}

/// Executes `call`, whose scaled sum multiplies by `scalar`, on `sides`.
pub(crate) fn run(
    comm: &mut Communicator,
    call: &Combination,
    scalar: &[u8],
    sides: Sides<'_>,
) -> Result<()> {
    comm.set_algorithm(call.algorithm);
    let run = match call.dtype {
        DataType::I8 => run_of::<i8>,
        DataType::U8 => run_of::<u8>,
        DataType::I32 => run_of::<i32>,
        DataType::U32 => run_of::<u32>,
        DataType::I64 => run_of::<i64>,
        DataType::U64 => run_of::<u64>,
        DataType::F16 => run_of::<f16>,
        DataType::Bf16 => run_of::<bf16>,
        DataType::F32 => run_of::<f32>,
        DataType::F64 => run_of::<f64>,
        DataType::F8E4M3 => run_of::<F8E4M3>,
        DataType::F8E5M2 => run_of::<F8E5M2>,
    };
    run(comm, call, scalar, sides)
}

/// The operator for elements of `dtype`, to be looked at; the oracle does not call it.
pub(crate) fn reduce_op(dtype: DataType, operator: Operator, scalar: &[u8]) -> ReduceOp {
    let make = match dtype {
        DataType::I8 => reduce_op_of::<i8>,
        DataType::U8 => reduce_op_of::<u8>,
        DataType::I32 => reduce_op_of::<i32>,
        DataType::U32 => reduce_op_of::<u32>,
        DataType::I64 => reduce_op_of::<i64>,
        DataType::U64 => reduce_op_of::<u64>,
        DataType::F16 => reduce_op_of::<f16>,
        DataType::Bf16 => reduce_op_of::<bf16>,
        DataType::F32 => reduce_op_of::<f32>,
        DataType::F64 => reduce_op_of::<f64>,
        DataType::F8E4M3 => reduce_op_of::<F8E4M3>,
        DataType::F8E5M2 => reduce_op_of::<F8E5M2>,
    };
    make(operator, scalar)
}
