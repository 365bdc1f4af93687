//! The calls themselves, for elements whose type is a value, and for whatever takes calls.

use shmccl::collective::Operation;
use shmccl::comm::{RecvBuffer, SendBuffer, Submit};
use shmccl::reduce::{CustomOp, DataType, Element, ReduceOp, Scalar};
use shmccl::{Collectives, Communicator, Rank, Result};
use support::reduction::take_first;

use crate::oracle::memory::Side;
use crate::oracle::table::{Combination, Operator};

/// The function of this name for elements of the type `$dtype`.
macro_rules! of_type {
    ($dtype:expr, $($function:ident)::+) => {
        match $dtype {
            DataType::I8 => $($function)::+::<i8>,
            DataType::U8 => $($function)::+::<u8>,
            DataType::I32 => $($function)::+::<i32>,
            DataType::U32 => $($function)::+::<u32>,
            DataType::I64 => $($function)::+::<i64>,
            DataType::U64 => $($function)::+::<u64>,
            DataType::F16 => $($function)::+::<half::f16>,
            DataType::Bf16 => $($function)::+::<half::bf16>,
            DataType::F32 => $($function)::+::<f32>,
            DataType::F64 => $($function)::+::<f64>,
            DataType::F8E4M3 => $($function)::+::<shmccl::reduce::F8E4M3>,
            DataType::F8E5M2 => $($function)::+::<shmccl::reduce::F8E5M2>,
            DataType::I16 => $($function)::+::<i16>,
            DataType::U16 => $($function)::+::<u16>,
            DataType::Bool => $($function)::+::<shmccl::reduce::Bool>,
            DataType::Complex64 => $($function)::+::<shmccl::reduce::Complex64>,
            DataType::Complex128 => $($function)::+::<shmccl::reduce::Complex128>,
        }
    };
}
pub(crate) use of_type;

/// The two sides of a call.
#[derive(Debug)]
pub(crate) enum Sides<'a> {
    Two(Side<'a>, Side<'a>),
    /// In place.
    One(Side<'a>),
}

impl Sides<'_> {
    /// Returns the sides for a stream, which takes no ordinary memory but what lives for ever.
    pub(crate) fn lasting(self) -> Sides<'static> {
        match self {
            Self::Two(send, recv) => Sides::Two(send.lasting(), recv.lasting()),
            Self::One(side) => Sides::One(side.lasting()),
        }
    }
}

/// The operator for `T`; `scalar` is what a scaled sum multiplies by.
fn reduce_op_of<T: Element>(operator: Operator, scalar: &[u8]) -> ReduceOp {
    match operator {
        Operator::Sum => ReduceOp::Sum,
        Operator::Prod => ReduceOp::Prod,
        Operator::Min => ReduceOp::Min,
        Operator::Max => ReduceOp::Max,
        Operator::Avg => ReduceOp::Avg,
        Operator::BitAnd => ReduceOp::BitAnd,
        Operator::BitOr => ReduceOp::BitOr,
        Operator::BitXor => ReduceOp::BitXor,
        Operator::PreMulSum => ReduceOp::PreMulSum(match T::DATA_TYPE {
            DataType::Complex64 => Scalar::new(bytemuck::pod_read_unaligned::<f32>(scalar)),
            DataType::Complex128 => Scalar::new(bytemuck::pod_read_unaligned::<f64>(scalar)),
            _ => Scalar::new(bytemuck::pod_read_unaligned::<T>(scalar)),
        }),
        Operator::Custom => ReduceOp::Custom(CustomOp::new::<T>("first", |first, other| {
            let size = size_of::<T>();
            take_first(bytemuck::cast_slice_mut(first), bytemuck::cast_slice(other), size);
        })),
    }
}

pub(crate) fn send_buffer<'a, T: Element>(comm: &Communicator, side: Side<'a>) -> Result<SendBuffer<'a, T>> {
    Ok(match side {
        Side::Heap(region) => (&comm.buffer::<T>(region)?).into(),
        Side::Ordinary(bytes) => bytemuck::cast_slice::<u8, T>(bytes).into(),
        Side::Lasting(bytes) => bytemuck::cast_slice::<u8, T>(bytes).into(),
    })
}

pub(crate) fn recv_buffer<'a, T: Element>(comm: &Communicator, side: Side<'a>) -> Result<RecvBuffer<'a, T>> {
    Ok(match side {
        Side::Heap(region) => (&comm.buffer::<T>(region)?).into(),
        Side::Ordinary(bytes) => bytemuck::cast_slice_mut::<u8, T>(bytes).into(),
        Side::Lasting(_) => unreachable!("nobody could look at what is received there"),
    })
}

/// A call that has all it needs, for whatever takes it.
pub(crate) type Ready<'a> = Box<dyn FnOnce(&mut dyn Submit<'a>) -> Result<()> + 'a>;

/// How elements are combined, and at which rank.
struct Manner {
    operation: Operation,
    op: ReduceOp,
    root: Rank,
}

impl Manner {
    fn in_place<'a, T: Element>(self, taker: &mut dyn Submit<'a>, buffer: RecvBuffer<'a, T>) -> Result<()> {
        let Self { operation, op, root } = self;
        match operation {
            Operation::AllReduce => taker.all_reduce_in_place(buffer, &op),
            Operation::Reduce => taker.reduce_in_place(buffer, &op, root),
            Operation::Broadcast => taker.broadcast_in_place(buffer, root),
            Operation::AllGather => taker.all_gather_in_place(buffer),
            Operation::ReduceScatter => taker.reduce_scatter_in_place(buffer, &op),
            Operation::AllToAll => taker.all_to_all_in_place(buffer),
            Operation::Gather => taker.gather_in_place(buffer, root),
            Operation::Scatter => taker.scatter_in_place(buffer, root),
            Operation::Scan => taker.scan_in_place(buffer, &op),
            Operation::ExScan => taker.exscan_in_place(buffer, &op),
            operation => unreachable!("{operation} is not in the table"),
        }
    }

    fn apart<'a, T: Element>(
        self,
        taker: &mut dyn Submit<'a>,
        send: SendBuffer<'a, T>,
        recv: RecvBuffer<'a, T>,
    ) -> Result<()> {
        let Self { operation, op, root } = self;
        match operation {
            Operation::AllReduce => taker.all_reduce(send, recv, &op),
            Operation::Reduce => taker.reduce(send, recv, &op, root),
            Operation::Broadcast => taker.broadcast(send, recv, root),
            Operation::AllGather => taker.all_gather(send, recv),
            Operation::ReduceScatter => taker.reduce_scatter(send, recv, &op),
            Operation::AllToAll => taker.all_to_all(send, recv),
            Operation::Gather => taker.gather(send, recv, root),
            Operation::Scatter => taker.scatter(send, recv, root),
            Operation::Scan => taker.scan(send, recv, &op),
            Operation::ExScan => taker.exscan(send, recv, &op),
            operation => unreachable!("{operation} is not in the table"),
        }
    }
}

fn ready_of<'a, T: Element>(
    comm: &Communicator,
    call: &Combination,
    scalar: &[u8],
    sides: Sides<'a>,
) -> Result<Ready<'a>> {
    let op = reduce_op_of::<T>(call.operator, scalar);
    let root = Rank::new(u32::try_from(call.root).unwrap(), comm.n_ranks())?;
    let manner = Manner { operation: call.operation, op, root };
    Ok(match sides {
        Sides::One(side) => {
            let buffer = recv_buffer::<T>(comm, side)?;
            Box::new(move |taker| manner.in_place(taker, buffer))
        }
        Sides::Two(send, recv) => {
            let (send, recv) = (send_buffer::<T>(comm, send)?, recv_buffer::<T>(comm, recv)?);
            Box::new(move |taker| manner.apart(taker, send, recv))
        }
    })
}

/// `call`, whose scaled sum multiplies by `scalar`, on `sides`.
pub(crate) fn ready<'a>(
    comm: &Communicator,
    call: &Combination,
    scalar: &[u8],
    sides: Sides<'a>,
) -> Result<Ready<'a>> {
    let ready = of_type!(call.dtype, ready_of);
    ready(comm, call, scalar, sides)
}

/// Executes it at once.
pub(crate) fn run(
    comm: &mut Communicator,
    call: &Combination,
    scalar: &[u8],
    sides: Sides<'_>,
) -> Result<()> {
    comm.set_algorithm(call.algorithm);
    ready(comm, call, scalar, sides)?(comm)
}
