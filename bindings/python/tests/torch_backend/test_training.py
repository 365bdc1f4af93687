"""Training: the same losses as with gloo, and gradients and buffers that lie in the heap."""

import os
import pathlib
import re
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from torch_ranks import IS_SHIM, run

import shmccl.torch

# Torchrun twice, on a machine that may be busy.
pytestmark = pytest.mark.patience(300)
ROOT = pathlib.Path(__file__).resolve().parents[4]
BENCHES = ROOT / "benches" / "torch"
WORKLOAD = BENCHES / "gpt.py"


def torchrun(mode, backend, n=2, **environment):
    """Runs the workload by torchrun and returns what its last rank prints."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "BACKEND": backend, "STEPS": "6", "WIDTH": "64", **environment}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={n}", str(WORKLOAD), mode]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=140, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def loss(mode, backend, **options):
    return re.search(r"loss (\S+)", torchrun(mode, backend, **options)).group(1)


def test_the_losses_of_ddp_are_those_of_gloo_bit_by_bit():
    assert loss("ddp", "shmccl") == loss("ddp", "gloo")


@pytest.mark.parametrize("mode", ("fsdp2", "tp", "pp"))
def test_other_ways_of_training_give_the_losses_of_gloo(mode):
    assert float.fromhex(loss(mode, "shmccl")) == pytest.approx(float.fromhex(loss(mode, "gloo")), rel=1e-4)


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))


def ddp_in_the_heap(rank, n):
    wrapped = shmccl.torch.zero_copy(torch.nn.parallel.DistributedDataParallel(model(), gradient_as_bucket_view=True))
    optimiser = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    sizes = []
    for step in range(200):
        wrapped(torch.full((4, 64), float(rank + step))).sum().backward()
        assert all(shmccl.torch.holds(parameter.grad) for parameter in wrapped.parameters())
        optimiser.step()
        optimiser.zero_grad(set_to_none=False)
        sizes.append(shmccl.torch._backend().memory_stats()["heap_bytes"])
    assert len(set(sizes[5:])) == 1 and sizes[-1] > 0


@pytest.mark.skipif(not IS_SHIM, reason="DDP asks compiled backends only")
def test_all_gradients_of_ddp_lie_in_the_heap_which_does_not_grow():
    run(2, ddp_in_the_heap)


def children_of_ddp(rank, n):
    wrapped = torch.nn.parallel.DistributedDataParallel(model(), gradient_as_bucket_view=True)
    for _ in range(2):
        wrapped.zero_grad()
        wrapped(torch.full((4, 64), float(rank))).sum().backward()
    weight = wrapped.module[0].weight
    before, (told, tell) = weight.grad.clone(), os.pipe()
    child = os.fork()
    if child == 0:
        os.read(told, 1)
        kept = torch.equal(weight.grad, before)
        # An evaluation that measures gradients, clips and clears them.
        wrapped.module(torch.full((4, 64), 5.0)).sum().backward()
        torch.nn.utils.clip_grad_norm_(wrapped.parameters(), 1e-3)
        wrapped.zero_grad(set_to_none=False)
        os._exit(0 if kept and not weight.grad.any() else 7)
    dist.barrier()
    assert torch.equal(weight.grad, before)
    wrapped(torch.full((4, 64), float(rank))).sum().backward()
    after = weight.grad.clone()
    assert not torch.equal(after, before)
    os.write(tell, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert torch.equal(weight.grad, after)
    dist.barrier()


def test_a_forked_child_has_gradients_of_its_own():
    run(2, children_of_ddp)


def fsdp_in_the_heap(rank, n):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    whole = model()
    fully_shard(whole, mesh=init_device_mesh("cpu", (n,)))
    shmccl.torch.zero_copy(whole)
    optimiser = torch.optim.SGD(whole.parameters(), lr=0.1)
    backend = shmccl.torch._backend(dist.distributed_c10d._get_default_group())
    used = []
    for step in range(200):
        whole(torch.full((4, 64), float(rank + step))).sum().backward()
        optimiser.step()
        optimiser.zero_grad()
        used.append(backend.memory_stats())
    assert used[-1]["ordinary_tensors"] == 0
    assert used[-1]["heap_bytes"] == used[3]["heap_bytes"]


@pytest.mark.skipif(not IS_SHIM, reason="the backend in Python counts no heap memory")
def test_the_buffers_of_fsdp_come_from_the_heap():
    run(2, fsdp_in_the_heap)


def heap_tensors(rank, n):
    tensor = shmccl.torch.empty(3, 4, dtype=torch.int64).fill_(rank)
    assert shmccl.torch.holds(tensor) and not shmccl.torch.holds(torch.ones(3))
    dist.all_reduce(tensor)
    assert torch.equal(tensor, torch.full((3, 4), n * (n - 1) // 2))
    padding = [shmccl.torch.empty(7 + rank) for _ in range(rank + 1)]
    gathered = shmccl.torch.empty(n, 5)
    dist.all_gather_into_tensor(gathered, shmccl.torch.empty(5).fill_(rank))
    assert gathered[:, 0].tolist() == list(range(n)) and padding
    kept = tensor.clone(), tensor
    dist.destroy_process_group()
    assert torch.equal(*kept)


def test_heap_tensors_are_operands_at_different_offsets_and_outlive_the_group():
    run(3, heap_tensors)


def full_heap(rank, n):
    tensors = [shmccl.torch.empty(1 << 24) for _ in range(8)]
    assert not all(map(shmccl.torch.holds, tensors))
    assert shmccl.torch.holds(tensors[0])
    dist.all_reduce(tensors[-1].fill_(1))
    assert tensors[-1][-1].item() == n


def test_a_full_heap_gives_ordinary_tensors():
    run(2, full_heap)


def beyond_memory(rank, n):
    for count in ((1 << 60) + 1, (1 << 61) + 1, (1 << 63) - 1):
        with pytest.raises(RuntimeError, match="Storage size calculation overflowed"):
            shmccl.torch.empty(count, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="allocate memory"):
        shmccl.torch.empty(1 << 62, dtype=torch.uint8)


def test_a_tensor_longer_than_memory_is_refused_by_its_size():
    run(2, beyond_memory)


def refuses(rank, n):
    with pytest.raises(ValueError, match="fully_shard"):
        shmccl.torch.zero_copy(model())
    os.environ["DDP_DISABLE_COMM_MEM"] = "1"
    with pytest.raises(ValueError, match="DDP_DISABLE_COMM_MEM"):
        shmccl.torch.zero_copy(torch.nn.parallel.DistributedDataParallel(model()))


def test_zero_copy_refuses_what_it_cannot_help():
    run(2, refuses)


def test_the_benchmark_has_a_figure_of_each_operation_and_a_plot(tmp_path):
    plot = tmp_path / "plot.svg"
    operations = ("all_reduce", "all_gather", "gather", "scatter", "send_recv", "barrier")
    command = [sys.executable, str(BENCHES / "run"), "--sizes", "0,8", "--rounds", "1", "--only", ",".join(operations), "--plot", str(plot)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=140, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [line.split()[1:3] for line in done.stdout.splitlines()[1:]]
    assert rows == [[operation, size] for operation in operations[:-1] for size in ("0", "8")] + [["barrier", "8"]]
    assert "</svg>" in plot.read_text()
