"""Groups whose members change: shrinking, growing, merging, splitting, after an abort and after a death."""

import os
import signal

import pytest
import torch
import torch.distributed as dist
from torch_ranks import IS_SHIM, outcomes, run
from torch._C._distributed_c10d import ErrorType

pytestmark = pytest.mark.skipif(not IS_SHIM or not hasattr(dist, "_reconfigure"), reason="needs the shim and torch 2.15")


def backend():
    return dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))


def store():
    return dist.distributed_c10d._get_default_group().get_group_store()


def handles(rank, n, key):
    store().set(f"{key}/{rank}", dist._get_reconfigure_handle())
    return [store().get(f"{key}/{peer}").decode() for peer in range(n)]


def meet(uuid, given):
    dist._reconfigure(uuid, given).wait()


def total(wanted):
    tensor = torch.full((4,), dist.get_rank() + 1.0)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [wanted] * 4


def whole(rank, n, uuid):
    meet(uuid, handles(rank, n, f"whole{uuid}"))
    assert (dist.get_rank(), dist.get_world_size()) == (rank, n)


def basic(rank, n):
    assert dist._supports_reconfigure() and backend().supports_reconfigure
    with pytest.raises(RuntimeError, match="before reconfigure"):
        dist.all_reduce(torch.ones(1))
    whole(rank, n, 1)
    total(6)
    works = [backend().send([torch.full((4,), rank + 1.0)], (rank + 1) % n, 0)]
    received = torch.zeros(4)
    works.append(backend().recv([received], (rank - 1) % n, 0))
    [work.wait() for work in works]
    assert received[0].item() == (rank - 1) % n + 1


def without(excluded):
    def program(rank, n):
        whole(rank, n, 1)
        all_handles = handles(rank, n, "after")
        if rank == excluded:
            return
        meet(2, [handle for peer, handle in enumerate(all_handles) if peer != excluded])
        assert dist.get_world_size() == n - 1
        assert dist.get_rank() == (rank if rank < excluded else rank - 1)
        total(3)
    program.__name__ = f"without_rank_{excluded}"
    return program


def down_and_up(rank, n):
    meet(600 + rank, [dist._get_reconfigure_handle()])
    assert (dist.get_rank(), dist.get_world_size()) == (0, 1)
    total(1)
    whole(rank, n, 603)
    total(6)
    meet(604 + rank, [dist._get_reconfigure_handle()])
    assert (dist.get_rank(), dist.get_world_size()) == (0, 1)


def again(rank, n):
    for uuid in range(3):
        whole(rank, n, uuid)
        total(6)


def late_join(rank, n):
    first = handles(rank, n, "first")
    if rank < 2:
        meet(900, first[:2])
        total(3)
    whole(rank, n, 901)
    total(6)


def merged(rank, n):
    first = handles(rank, n, "first")
    if rank < 1:
        meet(1000, first[:1])
    else:
        meet(1001, first[1:])
    whole(rank, n, 1002)
    total(6)


def unordered(rank, n):
    meet(1, set(handles(rank, n, "set")))
    assert dist.get_world_size() == n
    total(6)


def after_abort(rank, n):
    whole(rank, n, 1200)
    backend().abort()
    assert backend().get_error() == ErrorType.SUCCESS
    whole(rank, n, 1201)
    total(6)


def refused(rank, n):
    meet(1100 + rank, [dist._get_reconfigure_handle()])
    with pytest.raises(RuntimeError, match="already used"):
        meet(1100 + rank, [dist._get_reconfigure_handle()])
    with pytest.raises(ValueError, match="own handle is not among"):
        meet(7, ["x@1@y"])


ALL = (basic, without(2), without(1), without(0), down_and_up, again, late_join, merged, unordered, after_abort, refused)


@pytest.mark.parametrize("program", ALL, ids=lambda function: function.__name__)
def test_members_change(program):
    run(3, program, enable_reconfigure=True)


def after_death(rank, n):
    whole(rank, n, 1)
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(dist.DistBackendError, match="rank 1 was lost"):
        for _ in range(1000):
            dist.all_reduce(torch.ones(1))
    key = rank // 2
    store().set(f"left/{key}", dist._get_reconfigure_handle())
    meet(2, [store().get(f"left/{peer}").decode() for peer in range(2)])
    total(3)


def test_survivors_of_a_death_go_on_with_the_right_sums():
    results = outcomes(3, after_death, enable_reconfigure=True)
    for rank in (0, 2):
        assert results[rank][0], results[rank][1]
