"""The life of groups: sequence numbers, works and their futures, hooks, subgroups, derived groups, forks."""

import math
import os
import threading
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch_ranks import TORCH, assert_error, init, run
from torch._C._distributed_c10d import ErrorType, WorkResult
from torch.distributed import _functional_collectives

CPU = torch.device("cpu")


def default():
    return dist.distributed_c10d._get_default_group()


def backend(group=None):
    return (group or default())._get_backend(CPU)


def sequence_numbers(rank, n):
    assert default()._get_sequence_number_for_group() == 0
    for number in range(1, 4):
        work = dist.all_reduce(torch.ones(1), async_op=True)
        assert work._get_sequence_number() == number == default()._get_sequence_number_for_group()
        work.wait()
    group = dist.new_group()
    assert group._get_sequence_number_for_group() == 0
    dist.barrier(group=group)
    assert group._get_sequence_number_for_group() == 1
    with dist._coalescing_manager(device=CPU):
        for _ in range(3):
            dist.all_reduce(torch.ones(1))
    assert default()._get_sequence_number_for_group() == 4
    works = [dist.isend(torch.ones(1), 1 - rank), dist.irecv(torch.ones(1), 1 - rank)]
    [work.wait() for work in works]
    assert default()._get_sequence_number_for_group() == 4


def futures(rank, n):
    tensor = torch.full((4,), rank + 1.0)
    work = dist.all_reduce(tensor, async_op=True)
    doubled = work.get_future().then(lambda future: future.value()[0] * 2)
    assert doubled.wait().tolist() == [6] * 4
    assert work.result()[0].tolist() == tensor.tolist() == [3] * 4
    work.wait()
    work.wait()
    again = work.get_future()
    assert again.done() and again.value()[0] is not None
    assert WorkResult(work.get_future_result().wait()) == WorkResult.SUCCESS
    work = dist.all_reduce(tensor, async_op=True)
    assert WorkResult(work.get_future_result().wait()) == WorkResult.SUCCESS
    assert work.is_completed()


def chained_operations(rank, n):
    """A collective that is started by the end of another one."""
    done = threading.Event()
    second = torch.ones(2)

    def start(future):
        works.append(dist.all_reduce(second, async_op=True))
        done.set()

    works = []
    dist.all_reduce(torch.ones(2), async_op=True).get_future().then(start)
    assert done.wait(30)
    works[0].wait()
    assert second.tolist() == [n, n]


def registry(rank, n):
    with _functional_collectives.allow_inflight_collective_as_graph_input_ctx():
        size = torch._C._distributed_c10d._get_work_registry_size
        assert size() == 0
        work = dist.all_reduce(torch.ones(1), async_op=True)
        assert size() == 1
        work.wait()
        assert size() == 0


def durations(rank, n):
    untimed = dist.all_reduce(torch.ones(4), async_op=True)
    untimed.wait()
    default()._enable_collectives_timing()
    with pytest.raises(RuntimeError, match="was not timed"):
        untimed._get_duration()
    work = dist.all_reduce(torch.ones(1 << 16), async_op=True)
    work.wait()
    assert work._get_duration() > 0 and math.isfinite(work._get_duration())


def subgroups(rank, n):
    whole = dist.new_group(list(range(n)))
    alone = dist.new_group([0])
    pairs = [dist.new_group([0, 1]), dist.new_group([1, 2]), dist.new_group([0, 2])]
    if rank == 0:
        tensor = torch.ones(3)
        dist.all_reduce(tensor, group=alone)
        assert tensor.tolist() == [1, 1, 1]
    for group in pairs:
        members = dist.get_process_group_ranks(group)
        if rank in members:
            tensor = torch.tensor([float(rank)])
            dist.all_reduce(tensor, group=group)
            assert tensor.item() == sum(members)
    dist.barrier(group=whole)
    dist.destroy_process_group(pairs[0])
    dist.barrier()


def many_threads(rank, n):
    """Calls of two groups from two threads at once."""
    groups = [dist.new_group() for _ in range(2)]
    totals = [torch.zeros(1) for _ in groups]

    def work(group, total):
        for i in range(200):
            tensor = torch.tensor([float(i)])
            dist.all_reduce(tensor, group=group)
            total += tensor

    threads = [threading.Thread(target=work, args=pair) for pair in zip(groups, totals)]
    [thread.start() for thread in threads]
    [thread.join(60) for thread in threads]
    assert [total.item() for total in totals] == [sum(range(200)) * n] * 2


def completion_hooks(rank, n):
    seen = []
    default()._register_on_completion_hook(lambda info: seen.append((str(info.op_type), info.seq)))
    works = [dist.all_reduce(torch.ones(1), async_op=True) for _ in range(3)]
    [work.wait() for work in works]
    dist.broadcast(torch.ones(1), 0)
    default()._wait_for_pending_works()
    assert seen == [("OpType.ALLREDUCE", 1), ("OpType.ALLREDUCE", 2), ("OpType.ALLREDUCE", 3), ("OpType.BROADCAST", 4)]


def no_such_luck(*_):
    raise ValueError("no such luck")


def hooks_that_raise(rank, n):
    default()._register_on_completion_hook(no_such_luck)
    dist.all_reduce(torch.ones(1), async_op=True).wait()
    dist.all_reduce(torch.ones(1))
    default()._wait_for_pending_works()
    if not hasattr(backend(), "register_abort_hook"):
        return
    backend().register_abort_hook(0, no_such_luck)
    dist.barrier()
    if rank == 0:
        backend().abort()
    with pytest.raises(dist.DistBackendError, match="shmccl: all_reduce on rank"):
        for _ in range(3):
            dist.all_reduce(torch.ones(1))


def test_a_hook_that_raises_is_heard_of_and_ends_nothing(capfd):
    run(2, hooks_that_raise, timeout=600)
    assert "no such luck" in capfd.readouterr().err


def split_and_merge(rank, n):
    def options(name):
        made = backend().options
        made.group_name = name
        return made

    parts = [[0, 2], [1]]
    mine = next(part for part in parts if rank in part)
    store = dist.PrefixStore(f"part{mine[0]}", default().get_group_store())
    part = backend().split(store, mine, options(f"part{mine[0]}"))
    tensor = torch.tensor([float(rank)])
    part.allreduce([tensor]).wait()
    assert tensor.item() == sum(mine)
    assert (part.rank(), part.size()) == (mine.index(rank), len(mine))


def shrinks(rank, n):
    if rank != 1:
        smaller = backend().shrink([1])
        tensor = torch.tensor([float(rank)])
        smaller.allreduce([tensor]).wait()
        assert tensor.item() == 2 and smaller.size() == 2 and smaller.rank() == rank // 2


def aborts(rank, n):
    called = []
    has_hooks = hasattr(backend(), "register_abort_hook")
    if has_hooks:
        backend().register_abort_hook(0, lambda: called.append(rank))
    dist.barrier()
    if rank == 0:
        backend().abort()
        assert called == ([0] if has_hooks else [])
        assert_error(backend(), ErrorType.SUCCESS)
    with pytest.raises(dist.DistBackendError, match="shmccl: all_reduce on rank"):
        for _ in range(3):
            dist.all_reduce(torch.ones(1))
    if rank != 0:
        assert_error(backend(), ErrorType.COMM_ERROR)


TWO = (sequence_numbers, futures, chained_operations, registry, durations, many_threads, completion_hooks, aborts)
THREE = (subgroups, split_and_merge, shrinks)
if TORCH < (2, 14):
    # It numbers the calls of no backend but its own, and hands Python no way to split one.
    TWO = [program for program in TWO if program is not sequence_numbers]
    THREE = [program for program in THREE if program is not split_and_merge]


@pytest.mark.parametrize("program", TWO, ids=lambda function: function.__name__)
def test_a_group_of_two_lives_as_torch_expects(program):
    run(2, program)


@pytest.mark.parametrize("program", THREE, ids=lambda function: function.__name__)
def test_a_group_of_three_lives_as_torch_expects(program):
    run(3, program)


def made_again(rank, n):
    for _ in range(3):
        store = default().get_group_store()
        dist.barrier()
        dist.destroy_process_group()
        dist.init_process_group("shmccl", rank=rank, world_size=n, store=store, timeout=timedelta(seconds=60))
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        assert tensor.item() == n


def test_a_group_can_be_made_again_with_the_same_store():
    run(2, made_again)


def debug_wrapper(rank, n):
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    dist.all_gather([torch.empty(3) for _ in range(n)], tensor)
    dist.barrier()
    assert tensor.tolist() == [n] * 3


def test_the_wrapper_of_torch_distributed_debug_works(monkeypatch):
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")
    dist.set_debug_level_from_env()
    try:
        run(2, debug_wrapper)
    finally:
        monkeypatch.undo()
        dist.set_debug_level_from_env()


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.tensor([float(index)])


def data_loader(rank, n):
    for _ in range(2):
        loader = torch.utils.data.DataLoader(Numbers(), batch_size=2, num_workers=2)
        for batch in loader:
            dist.all_reduce(batch)
    dist.barrier()


def test_workers_of_a_data_loader_are_forked_over_a_live_group():
    run(2, data_loader)


def child_of_a_fork(rank, n):
    dist.barrier()
    child = os.fork()
    if child == 0:
        try:
            dist.all_reduce(torch.ones(1))
        except RuntimeError as error:
            os._exit(7 if "fork" in str(error) else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    dist.barrier()


def test_a_child_of_a_fork_is_told_that_it_is_no_rank():
    run(2, child_of_a_fork)


def elsewhere(rank, n, path):
    import shmccl.torch

    os.environ.update(SHMCCL_TORCH_HOST=f"host{rank}", SHMCCL_TORCH_HOSTS="deny")
    shmccl.torch._place.cache_clear()
    dist.destroy_process_group()
    with pytest.raises(dist.DistBackendError, match="cannot share memory with this one.*host1" if rank == 0 else "host0"):
        init(rank, n, path, timeout=10)


def test_a_group_of_several_hosts_can_be_forbidden_and_says_where_they_are(tmp_path):
    run(2, elsewhere, str(tmp_path / "store"))


def in_the_dark(rank, n, path):
    import shmccl.torch

    dist.destroy_process_group()
    os.environ["SHMCCL_TORCH_HOSTS"] = "deny"
    if rank == 1:
        # As where there is no /proc.
        shmccl.torch._namespace = lambda kind: f"{kind}:?"
    shmccl.torch._place.cache_clear()
    init(rank, n, path, timeout=30)
    tensor = torch.full((3,), float(rank))
    dist.all_reduce(tensor)
    assert tensor.tolist() == [3.0] * 3


def test_a_rank_that_cannot_tell_where_it_is_may_share_memory_with_the_others(tmp_path):
    run(3, in_the_dark, str(tmp_path / "store"))


def test_what_a_rank_cannot_find_out_is_no_difference(monkeypatch):
    import shmccl.torch
    from shmccl.torch import _meeting

    place = "boot {} net:[{}] pid:[2] user:[3] uid {}".format
    here, there, dark = place("a", 1, 0), place("b", 7, 0), "boot ? net:? pid:? user:? uid {}".format
    resolved = _meeting.resolved
    assert resolved([here, dark(0), here]) == [here] * 3
    assert resolved([dark(0), dark(0)]) == [dark(0)] * 2
    assert resolved([here, here, there, dark(0), there]) == [here, here, there, there, there]
    assert resolved([here, dark(5)]) == [here, dark(5)], "another user is one, whatever else is known"
    assert resolved([here, there]) == [here, there]
    half = "boot a net:? pid:[2] user:[3] uid 0"
    assert resolved([there, half, here]) == [there, here, here]

    def no_file(*_):
        raise FileNotFoundError

    monkeypatch.setattr("builtins.open", no_file)
    assert shmccl.torch._place.__wrapped__().startswith("boot ? net:")


def never_comes(rank, n, path):
    dist.destroy_process_group()
    if rank == 0:
        with pytest.raises(dist.DistBackendError, match="rank 1 has not come"):
            init(rank, n, path, timeout=1)


def test_a_rank_that_does_not_come_is_named(tmp_path):
    run(2, never_comes, str(tmp_path / "store"))
