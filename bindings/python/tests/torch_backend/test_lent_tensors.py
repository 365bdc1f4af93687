"""Tensors that the backend lends behave as those that torch makes, whatever their type."""

import copy
import io
import pickle
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing  # noqa: F401  teaches the pickler of multiprocessing tensors
from torch.nn.parallel import DistributedDataParallel
from torch_ranks import IS_SHIM, init, run

import shmccl.torch

PLAIN = (torch.float32, torch.bool, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.int8, torch.float16)
ODD = (torch.float8_e8m0fnu, torch.float4_e2m1fn_x2, torch.complex32, torch.uint1, torch.int4, torch.bits8)
QUANTISED = (torch.qint8, torch.quint8, torch.qint32, torch.quint4x2)


def bytes_of(tensor):
    return bytes(tensor.contiguous().view(torch.uint8).flatten().tolist()) if tensor.numel() else b""


def described(tensor):
    return tensor.dtype, tensor.shape, tensor.stride(), tensor.device, tensor.requires_grad, bytes_of(tensor)


def resized(count):
    def behaviour(tensor):
        tensor.resize_(count)
        return described(tensor[:5]), tensor.untyped_storage().nbytes()

    return behaviour


def freed_and_taken_again(tensor):
    storage, before = tensor.untyped_storage(), bytes_of(tensor)
    storage.resize_(0)
    storage.resize_(len(before))
    return storage.nbytes(), tensor.fill_(1).shape


def shared(tensor):
    resizable = IS_SHIM and tensor.share_memory_().untyped_storage().resizable()
    return tensor.is_shared(), resizable, described(tensor.share_memory_())


def saved(tensor):
    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    return described(torch.load(file))


def sent_to_a_process(tensor):
    return described(pickle.loads(ForkingPickler.dumps(tensor)))


def replaced(tensor):
    tensor.set_(torch.ones(9, dtype=tensor.dtype))
    return described(tensor)


def a_parameter(tensor):
    return described(copy.deepcopy(torch.nn.Parameter(tensor, requires_grad=tensor.is_floating_point())))


RESIZES = (resized(2), resized(0), resized(300), freed_and_taken_again)
BEHAVIOURS = (
    shared, saved, sent_to_a_process, replaced, a_parameter, lambda tensor: described(pickle.loads(pickle.dumps(tensor))),
    lambda tensor: described(copy.deepcopy(tensor)), lambda tensor: described(tensor.clone()), lambda tensor: tensor.pin_memory(),
    lambda tensor: tensor.is_pinned(), lambda tensor: tensor.is_shared(), lambda tensor: described(tensor.to(torch.float64)),
    lambda tensor: tensor.to("meta").shape, lambda tensor: tensor.cuda(), lambda tensor: bytes(tensor.numpy()),
    lambda tensor: tensor.numpy().resize((2, 2)), lambda tensor: described(torch.from_dlpack(tensor)),
    lambda tensor: described(tensor.view(torch.uint8)), lambda tensor: tensor.as_strided((9,), (1,)),
    lambda tensor: described(tensor.data), lambda tensor: tensor.layout, lambda tensor: tensor.is_inference(),
)


def outcome(behaviour, tensor):
    try:
        return behaviour(tensor)
    except Exception as error:
        return type(error), str(error).splitlines()[0]


def filled(tensor):
    tensor.view(torch.uint8).copy_(torch.arange(tensor.nbytes, dtype=torch.uint8) % 2)
    return tensor


def behave_alike(rank, n):
    behaviours = (*BEHAVIOURS, *RESIZES) if IS_SHIM else BEHAVIOURS
    for dtype in PLAIN:
        for number, behaviour in enumerate(behaviours):
            lent, ordinary = filled(shmccl.torch.empty(5, dtype=dtype)), filled(torch.empty(5, dtype=dtype))
            assert shmccl.torch.holds(lent)
            assert outcome(behaviour, lent) == outcome(behaviour, ordinary), (dtype, number)
    with torch.inference_mode():
        assert shmccl.torch.empty(3).is_inference() == torch.empty(3).is_inference()


def test_a_lent_tensor_does_what_an_ordinary_one_does():
    run(2, behave_alike)


def grow(rank, n):
    tensor = shmccl.torch.empty(4).fill_(rank)
    view = tensor[1:3]
    tensor.resize_(1 << 16)
    assert not shmccl.torch.holds(tensor) and tensor[:4].tolist() == [rank] * 4
    tensor.fill_(rank + 1)
    dist.all_reduce(tensor)
    assert tensor[0] == tensor[-1] == view[0] == n * (n + 1) / 2
    kept = shmccl.torch._backend().memory_stats()["heap_tensors"]
    assert kept == 0
    window = dist._new_window(shmccl.torch.empty(4).fill_(rank)) if hasattr(dist, "_new_window") else None
    if window:
        dist.barrier()
        mapped = window.map_remote_tensor(1 - rank)
        assert mapped.resize_(8)[:4].tolist() == [1 - rank] * 4
        dist.barrier()


@pytest.mark.skipif(not IS_SHIM, reason="the backend in Python lends tensors that do not grow")
def test_a_tensor_that_grows_leaves_the_heap_and_gives_its_memory_back():
    run(2, grow)


def every_type(rank, n):
    for dtype in (*PLAIN, *ODD):
        for shape in ((), (0,), (3,), (7, 3)):
            tensor = shmccl.torch.empty(shape, dtype=dtype)
            assert tensor.dtype == dtype and tensor.shape == shape
            assert shmccl.torch.holds(tensor) == (tensor.numel() > 0)
    for dtype in QUANTISED:
        tensor, ordinary = shmccl.torch.empty(3, dtype=dtype), torch.empty(3, dtype=dtype)
        assert tensor.dtype == dtype and tensor.untyped_storage().nbytes() == ordinary.untyped_storage().nbytes()
        assert not shmccl.torch.holds(tensor)


def test_the_allocator_takes_every_type_and_gives_ordinary_memory_where_it_has_to():
    run(2, every_type)


class Filter(torch.nn.Module):
    """Parameters of several types, as a model with a Fourier transform has them."""

    def __init__(self, *dtypes):
        super().__init__()
        torch.manual_seed(0)
        self.weights = torch.nn.ParameterList(torch.randn(3, 5, dtype=dtype) for dtype in dtypes)

    def forward(self, x):
        return sum((weight * x).abs().square().sum() for weight in self.weights)


def gradients(group, dtypes, **options):
    ddp = DistributedDataParallel(Filter(*dtypes), process_group=group, **options)
    for step in range(3):
        ddp(torch.full((5,), dist.get_rank() + 1 + step * 1j)).backward()
    return [parameter.grad for parameter in ddp.parameters()]


def complex_parameters(rank, n):
    gloo = dist.new_group(backend="gloo")
    for dtypes in ((torch.cfloat,), (torch.cdouble, torch.float32), (torch.float64, torch.cfloat, torch.cfloat, torch.cdouble)):
        for is_view in (False, True):
            mine, wanted = (gradients(group, dtypes, gradient_as_bucket_view=is_view) for group in (None, gloo))
            for gradient, other in zip(mine, wanted):
                assert gradient.dtype == other.dtype and torch.equal(gradient, other)
                # Of complex parameters torch keeps no views.
                assert not (is_view and IS_SHIM) or gradient.is_complex() or shmccl.torch.holds(gradient)


def test_complex_parameters_have_the_gradients_of_gloo():
    run(2, complex_parameters)


def in_detail(program):
    """The program in a group that torch wraps in one that checks its calls."""
    def main(rank, n, path):
        dist.destroy_process_group()
        dist.set_debug_level(dist.DebugLevel.DETAIL)
        init(rank, n, path)
        program(rank, n)

    return main


def helpers(rank, n):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    tensor = shmccl.torch.empty(3, dtype=torch.cfloat).fill_(rank + 1)
    assert shmccl.torch.holds(tensor) and not shmccl.torch.holds(torch.ones(3))
    dist.all_reduce(tensor)
    assert tensor.tolist() == [n * (n + 1) / 2] * 3
    pair = dist.new_group([0, 1])
    assert shmccl.torch.holds(shmccl.torch.empty(2, 2, group=pair), group=pair)
    wrapped = shmccl.torch.zero_copy(DistributedDataParallel(torch.nn.Linear(8, 8), gradient_as_bucket_view=True))
    wrapped(torch.ones(8)).sum().backward()
    assert not IS_SHIM or all(shmccl.torch.holds(parameter.grad) for parameter in wrapped.parameters())
    sharded = torch.nn.Linear(8, 8)
    fully_shard(sharded, mesh=init_device_mesh("cpu", (n,)))
    shmccl.torch.zero_copy(sharded)(torch.ones(2, 8)).sum().backward()
    with pytest.raises(ValueError, match="is gloo, expected shmccl"):
        shmccl.torch.empty(3, group=dist.new_group(backend="gloo"))


def test_helpers_see_through_the_groups_that_torch_wraps_to_check_them(tmp_path):
    run(2, in_detail(helpers), str(tmp_path / "store"))
