"""Ranks that die, operations that nobody joins, and what is left behind."""

import gc
import os
import pathlib
import signal
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch_ranks import Killed, assert_error, assert_nothing_left, outcomes, run
from torch._C._distributed_c10d import ErrorType

from shmccl import _core


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


def killed_in_a_subgroup(rank, n):
    group = dist.new_group([1, 2])
    dist.barrier()
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 1:
        for is_async in (False, True):
            with pytest.raises(dist.DistBackendError, match=r"on rank 0 \(global rank 1\) of .*rank 1 of the group is global rank 2"):
                work = dist.all_reduce(torch.ones(4), group=group, async_op=is_async)
                if is_async:
                    work.wait()


def test_ranks_of_a_subgroup_are_named_as_the_program_knows_them():
    for good, result in outcomes(3, killed_in_a_subgroup)[:2]:
        assert good, result


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


def own_deadline(rank, n, is_async):
    dist.barrier()
    if rank == 0:
        options = dist.AllreduceOptions()
        options.timeout = timedelta(milliseconds=300)
        options.asyncOp = is_async
        with pytest.raises(dist.DistBackendError, match="timed out after 300 ms"):
            backend().allreduce([torch.ones(4)], options).wait()
        assert_error(backend(), ErrorType.TIMEOUT)
        over().set("over", "1")
    else:
        over().wait(["over"])


@pytest.mark.parametrize("is_async", (False, True))
def test_an_operation_may_have_a_deadline_of_its_own(is_async):
    good, result = outcomes(2, own_deadline, is_async, timeout=600)[0]
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


def leaves_after_a_kill(rank, n, path):
    killed_in_all_reduce(rank, n, 1, False, path)
    assert_nothing_left()


def test_nothing_is_left_behind_by_a_killed_rank(tmp_path):
    results = outcomes(3, leaves_after_a_kill, str(tmp_path / "killed"))
    for rank, (good, result) in enumerate(results):
        assert isinstance(result, Killed) if rank == 1 else good, result


class Stop(Exception):
    """What a handler of signals raises."""


def stop(number, frame):
    raise Stop("by the handler")


def reduces():
    dist.all_reduce(torch.ones(4))


def waits():
    dist.all_reduce(torch.ones(4), async_op=True).wait()


def receives():
    dist.recv(torch.empty(4), 1)


def alone_in_its_group():
    """A group to which the other rank does not come."""
    store = dist.PrefixStore("lone", over())
    return type(backend())(store=store, rank=0, size=2, timeout=timedelta(seconds=600), name="lone", ranks=[], place="here",
                           reconfigurable=False, id=str(_core.UniqueId._brief(600.0)))


def meets():
    options = dist.AllreduceOptions()
    options.asyncOp = False
    alone_in_its_group().allreduce([torch.ones(4)], options)


def interrupted(rank, n, action, handler, raised):
    dist.barrier()
    if rank == 0:
        signal.signal(signal.SIGINT, handler)
        with pytest.raises(raised):
            over().set("pid", str(os.getpid()))
            action()
        over().set("over", "1")
    else:
        pid = int(over().get("pid"))
        time.sleep(0.3)
        os.kill(pid, signal.SIGINT)
        over().wait(["over"])


@pytest.mark.parametrize("action", (reduces, waits, receives, meets), ids=lambda function: function.__name__)
@pytest.mark.parametrize("handler, raised", ((signal.default_int_handler, KeyboardInterrupt), (stop, Stop)), ids=("ctrl_c", "own"))
def test_an_interrupt_ends_a_wait_while_the_other_rank_does_not_come(action, handler, raised):
    for good, result in outcomes(2, interrupted, action, handler, raised, timeout=600):
        assert good, result


def gone_before_they_meet(rank, n):
    if rank == 0:
        # Its destructor waits for nobody who does not come.
        alone_in_its_group()
        gc.collect()


def test_a_group_that_has_not_met_can_be_dropped():
    run(2, gone_before_they_meet, timeout=600)


def dropped_while_it_runs(rank, n):
    group = dist.new_group(timeout=timedelta(seconds=600))
    tensor = torch.ones(4)
    dist.barrier(group=group)
    if rank == 0:
        # It ends on a thread of the engine, as the last that has the group.
        work = dist.all_reduce(tensor, group=group, async_op=True)
        dist.destroy_process_group(group)
        del work, group
        gc.collect()
        over().set("left to itself", "1")
        over().wait(["over"])
    else:
        over().wait(["left to itself"])
        dist.all_reduce(tensor, group=group)
        with pytest.raises(dist.DistBackendError, match="rank 0"):
            dist.all_reduce(tensor, group=group)
        over().set("over", "1")


def test_a_group_whose_last_operation_ends_after_it_was_destroyed_is_left():
    run(2, dropped_while_it_runs)


def new_deadline(rank, n):
    group = dist.new_group(timeout=timedelta(seconds=600))
    dist.barrier(group=group)
    if rank == 0:
        group._get_backend(torch.device("cpu")).set_timeout(timedelta(milliseconds=300))
        # The engine itself keeps it, and knows who is missing.
        with pytest.raises(dist.DistBackendError, match="timed out.*rank 1"):
            dist.all_reduce(torch.ones(4), group=group)
        over().set("over", "1")
    else:
        over().wait(["over"])


def test_a_group_may_get_another_deadline():
    for good, result in outcomes(2, new_deadline):
        assert good, result
