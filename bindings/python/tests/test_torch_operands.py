"""Tensors of torch as operands."""

import numpy as np
import pytest
import shmccl
import torch
from test_collectives import on_ranks

TYPES = ["bool", "int8", "uint8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "complex64"]


@pytest.mark.parametrize("name", TYPES)
def test_tensors_are_combined_where_they_lie(name):
    def body(comm):
        dtype = getattr(torch, name)
        tensor = torch.arange(10).to(dtype)
        result = comm.all_reduce(tensor, "max" if name != "complex64" else "sum")
        assert isinstance(result, torch.Tensor) and result.dtype == dtype
        expected = tensor if name != "complex64" else tensor * comm.size
        assert torch.equal(result, expected)
        place = tensor.data_ptr()
        assert comm.broadcast(tensor, 1) is tensor and tensor.data_ptr() == place
        rows = comm.all_gather(tensor)
        assert tuple(rows.shape) == (comm.size, 10) and torch.equal(rows[comm.size - 1], tensor)

    on_ranks(body)


def test_short_floats_move_whatever_they_mean():
    def body(comm):
        for name in ["float8_e4m3fn", "float8_e5m2"]:
            tensor = torch.full((33,), comm.rank + 1.0).to(getattr(torch, name))
            comm.broadcast(tensor, 1)
            assert tensor.float()[32] == 2.0

    on_ranks(body)


def test_a_tensor_over_the_heap_is_not_copied_and_others_are():
    def body(comm):
        heap = comm.zeros((2, 50_000), "float32")
        tensor = heap.torch()
        assert tensor.data_ptr() == heap.numpy().ctypes.data and tuple(tensor.shape) == (2, 50_000)
        tensor.fill_(comm.rank + 1.0)
        before = comm.staged_bytes
        assert comm.all_reduce(tensor, out=tensor) is tensor
        comm.all_reduce(tensor[0], out=tensor[0])
        comm.all_gather(tensor[0], out=comm.zeros((comm.size, 50_000), "float32", local=True))
        assert comm.staged_bytes == before
        assert tensor[0, 0] == 18.0 and heap.numpy()[1, 49_999] == 6.0
        ordinary = torch.ones(50_000)
        comm.all_reduce(ordinary, out=ordinary)
        assert comm.staged_bytes == before + 200_000 and ordinary[0] == 3.0
        local = comm.empty(7, "bfloat16", local=True)
        local.torch().fill_(2.0)
        assert comm.all_reduce(local.torch(), "prod").tolist() == [8.0] * 7

    on_ranks(body)


def test_a_started_operation_keeps_its_tensor():
    def body(comm):
        with comm.start() as work:
            result = comm.all_reduce(torch.full((100_000,), float(comm.rank)))
        work.wait()
        assert result[99_999] == 3.0

    on_ranks(body)


def test_tensors_of_any_shape_are_read_as_they_lie():
    comm = shmccl.init_all(1)[0]
    for tensor in [torch.tensor(7.0), torch.ones(0), torch.ones(1, 3).t(), torch.arange(6.0).view(2, 3)[1],
                   torch.nn.Parameter(torch.ones(3)), torch.ones(2, 2).to(memory_format=torch.contiguous_format)]:
        assert torch.equal(comm.all_reduce(tensor), tensor.detach())


def test_a_conjugation_that_is_put_off_is_not_passed_over():
    comm = shmccl.init_all(1)[0]
    numbers = torch.tensor([1 + 2j, 3 - 4j]).conj()
    for tensor in [numbers, numbers[:1].imag]:
        with pytest.raises(ValueError, match="put off"):
            comm.all_reduce(tensor)
    assert torch.equal(comm.all_reduce(numbers.resolve_conj()), numbers)


def test_what_is_no_plain_tensor_is_refused_with_its_remedy():
    comm = shmccl.init_all(1)[0]
    with pytest.raises((RuntimeError, BufferError, NotImplementedError)):
        comm.all_reduce(torch.ones(4).to_sparse())
    with pytest.raises(ValueError, match="contiguous"):
        comm.all_reduce(torch.ones(4, 4).t())
    with pytest.raises(ValueError, match="of float32, and the output of float64"):
        comm.all_reduce(torch.ones(4), out=np.ones(4))
    with pytest.raises(ValueError, match="device"):
        comm.all_reduce(torch.ones(4, device="meta"))
