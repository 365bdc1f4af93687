"""How gloo moves and reduces every type, of which it knows but a few."""

import math

import torch
from torch._C._distributed_c10d import ReduceOp

from ._calls import reduction

# A type in which a result, made narrow again, is that of the narrow one: sums of integers wrap alike.
WIDER = {
    torch.int16: torch.int32, torch.uint16: torch.int32, torch.uint32: torch.int64, torch.float8_e4m3fn: torch.float32,
    torch.float8_e5m2: torch.float32,
}
# Booleans are added by `or` and multiplied by `and`.
OF_BOOLEANS = {
    ReduceOp.SUM: ReduceOp.MAX, ReduceOp.BOR: ReduceOp.MAX, ReduceOp.PRODUCT: ReduceOp.MIN, ReduceOp.BAND: ReduceOp.MIN,
}
LEAST = -(1 << 63)


# Moving ---------------------------------------------------------------------------------------------------------------


def as_bytes(tensors, stand_ins):
    """The bytes of tensors, in lists as they are. A tensor whose bytes are not in a row gets a stand-in, which is noted."""
    if isinstance(tensors, (list, tuple)):
        return [as_bytes(tensor, stand_ins) for tensor in tensors]
    plain = tensors
    if not tensors.is_contiguous() or tensors.is_conj() or tensors.is_neg():
        plain = torch.empty(tensors.shape, dtype=tensors.dtype).copy_(tensors)
        stand_ins.append((tensors, plain))
    return plain.view(-1).view(torch.uint8)


def as_rows(tensor, stand_ins):
    """The bytes of a tensor, with a row for each that it has."""
    rows = tensor.shape[0] if tensor.dim() else 1
    return as_bytes(tensor, stand_ins).view(rows, math.prod(tensor.shape[1:]) * tensor.element_size())


# Reducing -------------------------------------------------------------------------------------------------------------


def check_reduction(dtype, op, operation):
    """Raises what a group of one host would."""
    reduction(dtype, hash(op), operation)


def carry(tensor, op):
    """What gloo is to reduce for a tensor, and by which operator. It may be the tensor's own memory."""
    kind = getattr(op, "op", op)
    if tensor.dtype == torch.bool:
        return tensor.view(torch.uint8), OF_BOOLEANS.get(kind, op)
    if tensor.dtype == torch.uint64:
        return in_order(tensor.view(torch.int64), kind), op
    if tensor.is_complex():
        return torch.view_as_real(tensor), op
    return tensor.to(WIDER.get(tensor.dtype, tensor.dtype)), op


def take(tensor, carried, op):
    """Makes what gloo has reduced the value of the tensor for which it was carried."""
    if tensor.dtype == torch.uint64:
        tensor, carried = tensor.view(torch.int64), in_order(carried, getattr(op, "op", op))
    elif tensor.dtype not in WIDER:
        return
    tensor.copy_(carried)


def in_order(signed, kind):
    """Integers whose order is that of the unsigned ones of the same bits, where an operator asks for it."""
    return signed ^ LEAST if kind in (ReduceOp.MIN, ReduceOp.MAX) else signed


def scale(carried, dtype, factor):
    """The product of what is carried for a type with a factor, as PREMUL_SUM has it."""
    factor = torch.full((), float(factor), dtype=dtype.to_real())
    return carried * carry(factor, ReduceOp.SUM)[0]


def divide(tensor, count):
    """Divides a sum by the number of ranks. Integers lose their fraction."""
    if tensor.dtype == torch.uint64:
        signed = tensor.view(torch.int64)
        # Of all bits but the last, which is then made up for.
        quotient = (((signed >> 1) & ~LEAST) // count) * 2
        signed.copy_(quotient + (signed - quotient * count >= count))
        return
    is_exact = tensor.is_floating_point() or tensor.is_complex()
    wide = tensor.to(WIDER.get(tensor.dtype, tensor.dtype))
    tensor.copy_(wide.div_(count, rounding_mode=None if is_exact else "trunc"))
