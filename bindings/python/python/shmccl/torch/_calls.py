"""What a call of c10d asks of the engine, for the backend that is written in Python.

The engine's numbers come from ``shmccl._core._table``, which has those of the header.
"""

import bisect
import ctypes
import functools
import itertools

import torch
from torch._C._distributed_c10d import ReduceOp

from shmccl._core import _table

TYPES = {getattr(torch, name): code for name, code in _table.TYPES.items()}
ITEMSIZES = {code: dtype.itemsize for dtype, code in TYPES.items()}
# Both buffers of these have one length.
WITH_EQUAL_BUFFERS = (_table.OpAllReduce, _table.OpReduce, _table.OpBroadcast)
# These read, or write, a block for each rank.
READING_ALL, WRITING_ALL = (_table.OpReduceScatter, _table.OpScatter), (_table.OpAllGather, _table.OpGather)
PREMUL_SUM = "PREMUL_SUM"
# By the value of torch's operator, which is its hash as well: what else tells it makes an object.
OPERATORS = {
    int(kind): code for kind, code in (
        (ReduceOp.SUM, _table.Sum), (ReduceOp.PRODUCT, _table.Prod), (ReduceOp.MIN, _table.Min), (ReduceOp.MAX, _table.Max),
        (ReduceOp.AVG, _table.Avg), (ReduceOp.BAND, _table.BitAnd), (ReduceOp.BOR, _table.BitOr), (ReduceOp.BXOR, _table.BitXor),
        (ReduceOp.PREMUL_SUM, PREMUL_SUM))
}
BITWISE = (_table.BitAnd, _table.BitOr, _table.BitXor)


def make(operation, send=0, recv=0, count=0, root=0):
    return _table.Call(operation, _table.Uint8, 0, root, send, recv, count)


@functools.cache
def reduction(dtype, operator, operation):
    """The engine's numbers of a type and of an operator for it."""
    kind, code = TYPES.get(dtype), OPERATORS[operator]
    if kind is None:
        raise TypeError(f"shmccl: {operation} cannot reduce tensors of type {dtype}; it can only move them")
    is_scaled = code in (_table.Avg, PREMUL_SUM)
    if code in BITWISE and (dtype.is_floating_point or dtype.is_complex):
        raise TypeError(f"shmccl: {operation}: BAND, BOR and BXOR need integers or booleans, not {dtype}")
    if dtype == torch.bool and is_scaled:
        raise TypeError(f"shmccl: {operation} of booleans takes no AVG and no PREMUL_SUM")
    if dtype.is_complex and code != _table.Sum and not is_scaled:
        raise TypeError(f"shmccl: {operation} of complex numbers takes SUM, AVG and PREMUL_SUM only")
    return kind, code


def reducing(code, source, target, tensor, op, operation, root=0):
    """A call that reduces as many elements of the tensor's type."""
    kind, operator = reduction(tensor.dtype, hash(op), operation)
    if operator is not PREMUL_SUM:
        return _table.Call(code, kind, operator, root, source, target, tensor.numel())
    call = _table.Call(code, kind, _table.Sum, root, source, target, tensor.numel())
    # The call keeps the factor, of which the engine is told where it lies.
    call.factor = torch.full((1,), float(op.factor), dtype=tensor.dtype.to_real())
    call.scalar = call.factor.data_ptr()
    return call


def exchanging(source, target, sent, received):
    """A call that exchanges blocks of these lengths in bytes, which lie one behind the other."""
    call = make(_table.OpAlltoAllv, source.data_ptr(), target.data_ptr())
    call.sendcounts, call.sdispls = sent, offsets(sent)
    call.recvcounts, call.rdispls = received, offsets(received)
    return call


def run_alone(call):
    """Does a call in a group of one."""
    length = call.count * ITEMSIZES[call.datatype]
    if call.operation == _table.OpAlltoAllv:
        length = call.sendcounts[0]
    if length and call.sendbuff and call.recvbuff and call.sendbuff != call.recvbuff:
        ctypes.memmove(call.recvbuff, call.sendbuff, length)
    if call.scalar and length:
        factor = call.factor
        result = torch.frombuffer((ctypes.c_char * length).from_address(call.recvbuff), dtype=factor.dtype)
        # Torch multiplies no numbers of 8 bits with a point.
        wide = torch.float32 if factor.dtype.is_floating_point and factor.dtype.itemsize == 1 else factor.dtype
        result.copy_(result.to(wide).mul_(factor.to(wide)))


def offsets(counts):
    return [0, *itertools.accumulate(counts)][:-1]


def spans(call, size):
    """The addresses at which a call's input and output begin and end."""
    block = call.count * ITEMSIZES[call.datatype]
    read = block * (size if call.operation in READING_ALL else 1)
    written = block * (size if call.operation in WRITING_ALL else 1)
    if call.operation == _table.OpAlltoAllv:
        read, written = sum(call.sendcounts), sum(call.recvcounts)
    return [(at, at + (length if at else 0)) for at, length in ((call.sendbuff, read), (call.recvbuff, written))]


def is_in_place(call, source, target, rank):
    """Whether both buffers are one, or one is this rank's block of the other."""
    if call.sendcounts != call.recvcounts:
        return False
    read, written = source[1] - source[0], target[1] - target[0]
    if read == written:
        return source[0] == target[0]
    return source[0] == target[0] + rank * read if read < written else target[0] == source[0] + rank * written


def detach_inputs(calls, connection):
    """Copies the inputs that the calls would write before they have read them, and returns the copies.

    Torch's calls, and blocks of calls, read all their inputs as these are at the begin.
    """
    if len(calls) == 1 and calls[0].operation in WITH_EQUAL_BUFFERS and calls[0].sendbuff == calls[0].recvbuff:
        return []
    pairs = [spans(call, connection.size) for call in calls]
    written = sorted(target for _, target in pairs if target[0] < target[1])
    starts, reach = [start for start, _ in written], list(itertools.accumulate((end for _, end in written), max))
    are_apart = all(end <= start for end, start in zip(reach, starts[1:]))
    copies = []
    for call, (source, target) in zip(calls, pairs):
        before = bisect.bisect_left(starts, source[1])
        is_written = source[0] < source[1] and before and reach[before - 1] > source[0]
        if is_written and not (are_apart and is_in_place(call, source, target, connection.rank)):
            source_bytes = (ctypes.c_char * (source[1] - source[0])).from_address(source[0])
            copies.append(torch.frombuffer(source_bytes, dtype=torch.uint8).clone())
            call.sendbuff = copies[-1].data_ptr()
    return copies
