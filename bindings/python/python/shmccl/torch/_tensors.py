"""Tensors as operands: what the backends that are written in Python take."""

import torch


def check(tensor, operation):
    if tensor.layout != torch.strided:
        raise RuntimeError(f"shmccl: {operation} takes no sparse tensors; use to_dense()")
    if not tensor.is_cpu:
        raise ValueError(f"shmccl: {operation} takes tensors on the CPU, not on {tensor.device}")
    if not tensor.is_contiguous():
        raise ValueError(f"Tensors must be contiguous: {operation}")
    return tensor


def only(tensors, operation):
    if len(tensors) != 1:
        raise ValueError(f"shmccl: {operation} takes one tensor per rank, not {len(tensors)}")
    return check(tensors[0], operation)


def in_one_piece(tensor, operation):
    """An input as the engine reads it. One that does not lie in one piece is copied."""
    return check(tensor if tensor.layout != torch.strided else tensor.contiguous(), operation)


def only_input(tensors, operation):
    if len(tensors) != 1:
        raise ValueError(f"shmccl: {operation} takes one tensor per rank, not {len(tensors)}")
    return in_one_piece(tensors[0], operation)


def check_same_type(a, b, operation):
    if a.dtype != b.dtype:
        raise TypeError(f"shmccl: {operation}: input is {b.dtype}, output {a.dtype}")


def check_blocks(whole, block, size, operation):
    check(whole, operation)
    check(block, operation)
    check_same_type(whole, block, operation)
    if whole.numel() != block.numel() * size:
        raise ValueError(
            f"shmccl: {operation} needs {block.numel() * size} elements in the larger tensor, which has {whole.numel()}"
        )


def check_list(tensors, like, size, operation):
    if len(tensors) != size:
        raise ValueError(f"shmccl: {operation} needs a list of {size} tensors, not {len(tensors)}")
    for tensor in tensors:
        check_same_type(tensor, like, operation)
        if tensor.numel() != like.numel():
            raise ValueError(f"shmccl: {operation}: tensors of the list differ in size")


def flat(tensors):
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def copy_out(source, tensors):
    at = 0
    for tensor in tensors:
        tensor.copy_(source[at:at + tensor.numel()].view(tensor.shape))
        at += tensor.numel()
