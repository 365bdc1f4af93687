"""Ranks that die, operations that nobody joins, and what is left behind."""

import os
import pathlib
import signal
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch_ranks import Killed, assert_error, outcomes, run
from torch._C._distributed_c10d import ErrorType


def backend():
    return dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))


def over():
    return dist.distributed_c10d._get_default_group().get_group_store()


def killed_in_all_reduce(rank, n, victim, is_async, path):
    dist.barrier()
    if rank == victim:
        dist.all_reduce(torch.ones(1 << 12))
        pathlib.Path(path).write_text(str(time.monotonic()))
        os.kill(os.getpid(), signal.SIGKILL)
    tensor = torch.ones(1 << 12)
    with pytest.raises(dist.DistBackendError, match=f"rank {victim} was lost"):
        for _ in range(1000):
            work = dist.all_reduce(tensor, async_op=is_async)
            if is_async:
                work.wait()
    late = time.monotonic() - float(pathlib.Path(path).read_text())
    assert_error(backend(), ErrorType.COMM_ERROR)
    return late


@pytest.mark.parametrize("is_async", (False, True))
@pytest.mark.parametrize("victim", (0, 2))
def test_a_killed_rank_is_named_by_all_others(victim, is_async, tmp_path):
    results = outcomes(3, killed_in_all_reduce, victim, is_async, str(tmp_path / "killed"))
    for rank, (good, result) in enumerate(results):
        assert isinstance(result, Killed) if rank == victim else good, result


def killed_before_a_message(rank, n):
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    tensor = torch.empty(3)
    with pytest.raises(dist.DistBackendError, match="rank 1 was lost"):
        dist.recv(tensor, 1)


def test_a_message_from_a_killed_rank_is_an_error():
    results = outcomes(2, killed_before_a_message)
    assert results[0][0], results[0][1]


def deadline(rank, n):
    dist.barrier()
    if rank == 0:
        started = time.monotonic()
        with pytest.raises(dist.DistBackendError, match="timed out"):
            dist.all_reduce(torch.ones(4))
        assert time.monotonic() - started >= 1.9
        assert_error(backend(), ErrorType.TIMEOUT)
        over().set("over", "1")
    else:
        over().wait(["over"])


def test_an_operation_that_nobody_joins_ends_at_the_deadline_of_the_group():
    good, result = outcomes(2, deadline, timeout=2)[0]
    assert good, result


def own_deadline(rank, n):
    dist.barrier()
    if rank == 0:
        options = dist.AllreduceOptions()
        options.timeout = timedelta(milliseconds=300)
        work = backend().allreduce([torch.ones(4)], options)
        with pytest.raises(dist.DistBackendError, match="timed out after 300 ms"):
            work.wait()
        over().set("over", "1")
    else:
        over().wait(["over"])


def test_an_operation_may_have_a_deadline_of_its_own():
    good, result = outcomes(2, own_deadline)[0]
    assert good, result


def waits_shortly(rank, n):
    tensor = torch.ones(4)
    if rank == 0:
        work = dist.all_reduce(tensor, async_op=True)
        with pytest.raises(dist.DistBackendError, match="timed out after 200 ms"):
            work.wait(timedelta(milliseconds=200))
        dist.distributed_c10d._get_default_group().get_group_store().set("come", "1")
        work.wait()
    else:
        dist.distributed_c10d._get_default_group().get_group_store().wait(["come"])
        dist.all_reduce(tensor)
    assert tensor.tolist() == [n] * 4


def test_a_wait_may_be_shorter_than_the_operation_and_be_repeated():
    run(2, waits_shortly)


def mismatch(rank, n):
    dist.barrier()
    with pytest.raises(dist.DistBackendError):
        dist.all_reduce(torch.ones(4 + rank))
        dist.barrier()


def test_ranks_in_different_calls_are_told():
    run(2, mismatch)


def shared_memory():
    return {path.name for path in pathlib.Path("/dev/shm").iterdir()}


def test_nothing_is_left_behind_by_a_killed_rank(tmp_path):
    before = shared_memory()
    outcomes(3, killed_in_all_reduce, 1, False, str(tmp_path / "killed"))
    assert not {name for name in shared_memory() - before if "shmccl" in name}


def interrupted(rank, n):
    dist.barrier()
    if rank == 0:
        with pytest.raises(KeyboardInterrupt):
            dist.all_reduce(torch.ones(4))
        return
    time.sleep(0.5)
    store = dist.distributed_c10d._get_default_group().get_group_store()
    os.kill(int(store.get("pid")), signal.SIGINT)


def interruptible(rank, n):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if rank == 0:
        dist.distributed_c10d._get_default_group().get_group_store().set("pid", str(os.getpid()))
    interrupted(rank, n)


def test_an_interrupt_ends_a_wait():
    good, result = outcomes(2, interruptible)[0]
    assert good, result
