"""Groups whose ranks are on several hosts, which these tests make up."""

import concurrent.futures
import datetime
import gc
import os
import threading
import time

import pytest
import torch
import torch.distributed as dist
from torch_ranks import init, run
from torch.distributed import ReduceOp

import shmccl.torch
from shmccl.torch import _meeting

pytestmark = pytest.mark.skipif(tuple(map(int, torch.__version__.split(".")[:2])) < (2, 14), reason="needs torch 2.14")

# The host of each rank: alike on all hosts, not alike, one rank each.
LAYOUTS = ("aabb", "aab", "abab", "ab")


def on_hosts(program, layout, timeout=60):
    def main(rank, n, path):
        dist.destroy_process_group()
        os.environ["SHMCCL_TORCH_HOST"] = layout[rank]
        shmccl.torch._place.cache_clear()
        init(rank, n, path, timeout=timeout)
        program(rank, n)

    return main


def looks_late(rank, n, path):
    """Rank 1 looks for the text of rank 0 only when that has all texts, and goes on."""
    dist.destroy_process_group()
    os.environ["SHMCCL_TORCH_HOST"] = "ab"[rank]
    shmccl.torch._place.cache_clear()
    store = dist.PrefixStore("late", dist.FileStore(path, n))
    if rank == 0:
        come = _meeting.come

        def tells(*arguments, **named):
            meeting = come(*arguments, **named)
            store.set("rank 0 has all", "1")
            return meeting

        _meeting.come = tells
    else:
        have = _meeting.Keys.have
        _meeting.Keys.have = lambda keys, ranks: store.check(["rank 0 has all"]) and have(keys, ranks)
    init(rank, n, path, timeout=60)
    dist.barrier()


def test_a_rank_that_looks_late_for_the_first_one_of_another_host_finds_it(tmp_path):
    run(2, looks_late, str(tmp_path / "store"))


def value(rank, count, dtype):
    return (torch.arange(count) % 5 + rank + 1).to(dtype)


def reductions(rank, n):
    inputs = {op: fold for op, fold in (
        (ReduceOp.SUM, lambda all_: all_.sum(0)), (ReduceOp.MAX, lambda all_: all_.amax(0)),
        (ReduceOp.MIN, lambda all_: all_.amin(0)), (ReduceOp.PRODUCT, lambda all_: all_.prod(0)),
        (ReduceOp.AVG, lambda all_: all_.sum(0) / n))}
    for dtype in (torch.float32, torch.float64, torch.int32):
        for count in (0, 1, 7, 1 << 10, (1 << 19) + 3):
            for op, fold in inputs.items():
                if op == ReduceOp.AVG and not dtype.is_floating_point:
                    continue
                wanted = fold(torch.stack([value(peer, count, dtype) for peer in range(n)])).to(dtype)
                tensor = value(rank, count, dtype)
                dist.all_reduce(tensor, op)
                assert torch.equal(tensor, wanted), (dtype, count, op)
                for root in range(n):
                    tensor = value(rank, count, dtype)
                    dist.reduce(tensor, root, op)
                    assert torch.equal(tensor, wanted if rank == root else value(rank, count, dtype)), (dtype, count, op, root)


def moves(rank, n):
    for count in (1, 7, 1 << 19):
        mine, every = torch.full((count,), float(rank)), [torch.full((count,), float(peer)) for peer in range(n)]
        for root in range(n):
            tensor = mine.clone()
            dist.broadcast(tensor, root)
            assert torch.equal(tensor, every[root])
            gathered = [torch.empty(count) for _ in range(n)] if rank == root else None
            dist.gather(mine, gathered, root)
            assert rank != root or all(map(torch.equal, gathered, every))
            dist.scatter(tensor, every if rank == root else None, root)
            assert torch.equal(tensor, mine)
        gathered = [torch.empty(count) for _ in range(n)]
        dist.all_gather(gathered, mine)
        assert all(map(torch.equal, gathered, every))
        whole = torch.empty(count * n)
        dist.all_gather_into_tensor(whole, mine)
        assert torch.equal(whole, torch.cat(every))
        share = torch.empty(count)
        dist.reduce_scatter_tensor(share, whole)
        assert torch.equal(share, mine * n)
        dist.reduce_scatter(share, every)
        assert torch.equal(share, mine * n)
        dist.all_to_all_single(torch.empty(count * n), whole)
        dist.barrier()


def messages(rank, n):
    received = [torch.empty(3) for _ in range(n)]
    works = [dist.isend(torch.full((3,), float(rank)), peer, tag=7) for peer in range(n) if peer != rank]
    works += [dist.irecv(received[peer], peer, tag=7) for peer in range(n) if peer != rank]
    [work.wait() for work in works]
    assert all(received[peer].tolist() == [peer] * 3 for peer in range(n) if peer != rank)


def works(rank, n):
    first, second = torch.ones(4), torch.ones(1 << 19)
    begun = [dist.all_reduce(first, async_op=True), dist.all_reduce(second, async_op=True)]
    doubled = begun[1].get_future().then(lambda future: future.value()[0] * 2)
    [work.wait() for work in begun]
    assert first.tolist() == [n] * 4 and doubled.wait()[0].item() == 2 * n
    group = dist.new_group([0, n - 1])
    if rank in (0, n - 1):
        dist.all_reduce(first, group=group)
        assert first.tolist() == [2 * n] * 4


def training(rank, n):
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 300))
    model(torch.full((2, 64), float(rank))).sum().backward()
    assert torch.allclose(model.module.weight.grad, torch.full((300, 64), float(sum(range(n)) * 2 / n)))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("program", (reductions, moves, messages, works, training), ids=lambda function: function.__name__)
def test_a_group_of_several_hosts_computes_what_one_of_one_host_does(program, layout, tmp_path):
    run(len(layout), on_hosts(program, layout), str(tmp_path / "store"))


def in_detail(rank, n, path):
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    on_hosts(moves, "aab")(rank, n, path)
    assert shmccl.torch.holds(shmccl.torch.empty(3)) == (rank < 2)


def test_a_group_of_several_hosts_works_within_the_one_by_which_torch_checks_calls(tmp_path):
    run(3, in_detail, str(tmp_path / "store"))


def any_source(rank, n):
    with pytest.raises(RuntimeError, match="name the source"):
        dist.recv(torch.empty(3))


def test_a_message_from_any_rank_needs_one_host(tmp_path):
    run(2, on_hosts(any_source, "ab"), str(tmp_path / "store"))



def group():
    return dist.distributed_c10d._get_default_group()


def backend():
    return group()._get_backend(torch.device("cpu"))


class Watched:
    """A gloo group that tells when it has begun an all-reduce."""

    def __init__(self, gloo):
        self._gloo, self.has_begun = gloo, threading.Event()

    def allreduce(self, *arguments):
        work = self._gloo.allreduce(*arguments)
        self.has_begun.set()
        return work

    def __getattr__(self, name):
        return getattr(self._gloo, name)


def ends(begun):
    here = backend()
    watched = here._across = Watched(here._across)
    works = begun() + [dist.all_reduce(torch.ones(4), async_op=True)]
    if begun is reductions_begun:
        watched.has_begun.wait()
    here.abort()
    for work in works:
        with pytest.raises(dist.DistBackendError, match="was aborted"):
            work.wait()
    with pytest.raises(dist.DistBackendError, match="was aborted"):
        here.allreduce([torch.ones(4)], dist.AllreduceOptions())


def reductions_begun():
    return [dist.all_reduce(torch.ones(4), async_op=True)]


def others_begun():
    return [dist.reduce_scatter_tensor(torch.ones(4), torch.ones(8), async_op=True),
            dist.all_gather_into_tensor(torch.ones(8), torch.ones(4), async_op=True)]


def ended(begun):
    """Rank 1 is on another host, and does not come. The deadline lies beyond the watchdog's."""

    def main(rank, n):
        store = group().get_group_store()
        dist.barrier()
        if rank == 1:
            return store.wait(["over"])
        ends(begun)
        # A group that is gone holds nobody.
        gc.collect()
        store.set("over", "1")

    return main


@pytest.mark.parametrize("begun", (reductions_begun, others_begun), ids=lambda function: function.__name__)
def test_a_collective_that_the_other_host_does_not_join_ends_as_its_group_is_aborted(begun, tmp_path):
    run(2, on_hosts(ended(begun), "ab", timeout=600), str(tmp_path / "store"))


def left_in_the_middle(rank, n):
    tensor = torch.ones(4)
    if rank == 1:
        time.sleep(0.3)
    work = dist.all_reduce(tensor, async_op=True)
    here = backend()
    dist.destroy_process_group()
    assert tensor.tolist() == [n] * 4
    work.wait()
    with pytest.raises(dist.DistBackendError, match="was shut down"):
        here.allreduce([tensor], dist.AllreduceOptions())


def test_a_group_finishes_what_was_begun_before_it_is_destroyed(tmp_path):
    run(2, on_hosts(left_in_the_middle, "ab"), str(tmp_path / "store"))


def left_alone(rank, n):
    store = group().get_group_store()
    dist.barrier()
    if rank == 1:
        return store.wait(["over"])
    work = dist.all_reduce(torch.ones(4), async_op=True)
    dist.destroy_process_group()
    with pytest.raises(RuntimeError):
        work.wait()
    store.set("over", "1")


def test_a_group_is_destroyed_once_the_time_is_over_of_what_the_other_host_does_not_join(tmp_path):
    run(2, on_hosts(left_alone, "ab", timeout=2), str(tmp_path / "store"))


def polled(rank, n):
    store = group().get_group_store()
    if rank == 1:
        store.wait(["polled"])
        return dist.all_reduce(torch.ones(4))
    work = backend().allreduce([torch.ones(4)], dist.AllreduceOptions())
    assert not work.is_completed() and not work.is_success() and work.exception() is None
    store.set("polled", "1")
    work.wait()
    assert work.is_completed() and work.is_success() and work.exception() is None


def test_the_backends_own_works_can_be_polled(tmp_path):
    run(2, on_hosts(polled, "ab"), str(tmp_path / "store"))


def own_deadline(rank, n):
    store = group().get_group_store()
    dist.barrier()
    if rank == 1:
        # Whoever goes before all others have seen their deadlines is lost to them.
        return store.wait([f"over {peer}" for peer in range(n) if peer != rank])
    options = dist.AllreduceOptions()
    options.timeout = datetime.timedelta(milliseconds=300)
    # Rank 2 may see first that rank 0 has gone.
    with pytest.raises(RuntimeError, match="[Tt]imed out" if rank == 0 else ""):
        backend().allreduce([torch.ones(4)], options).wait()
    store.set(f"over {rank}", "1")


@pytest.mark.parametrize("layout", ("aab", "ab"))
def test_a_collective_may_have_a_deadline_of_its_own(layout, tmp_path):
    run(len(layout), on_hosts(own_deadline, layout, timeout=600), str(tmp_path / "store"))


def aborted_by_another_thread(rank, n):
    store = group().get_group_store()
    dist.barrier()
    if rank == 1:
        return store.wait(["over"])
    here = backend()
    watched = here._across = Watched(here._across)

    def abort():
        watched.has_begun.wait()
        here.abort()

    aborting = threading.Thread(target=abort)
    aborting.start()
    with pytest.raises(dist.DistBackendError, match="was aborted"):
        dist.all_reduce(torch.ones(4))
    aborting.join()
    store.set("over", "1")


def test_a_thread_in_a_collective_is_ended_by_the_abort_of_another(tmp_path):
    run(2, on_hosts(aborted_by_another_thread, "ab", timeout=600), str(tmp_path / "store"))


def leaves_after_its_last(rank, n):
    tensor = torch.ones(1 << 19)
    dist.all_reduce(tensor, async_op=True).wait()
    dist.destroy_process_group()
    assert tensor[0].item() == n


def test_a_rank_that_goes_after_its_last_collective_ends_nothing(tmp_path):
    run(4, on_hosts(leaves_after_its_last, "aabb"), str(tmp_path / "store"))


def slowly(make):
    """Lets other threads go on before something is made."""

    def made(*arguments):
        time.sleep(0.001)
        return make(*arguments)

    return made


def one_at_a_time(rank, n):
    here, options, together = backend(), dist.AllreduceOptions(), threading.Barrier(2)
    options.asyncOp = False
    inside, overlaps = [], []

    def collective():
        overlaps.extend(inside)
        inside.append("two collectives at once")
        time.sleep(0.001)
        inside.pop()

    def calls():
        for _ in range(50):
            together.wait()
            here._run(collective, (), options, [])

    threads = [threading.Thread(target=calls) for _ in range(2)]
    [thread.start() for thread in threads]
    # A step in the line makes these while it is taken.
    threading.Event, concurrent.futures.Future = slowly(threading.Event), slowly(concurrent.futures.Future)
    [thread.join() for thread in threads]
    assert not overlaps


def test_two_threads_call_at_once_and_one_collective_is_executed_at_a_time(tmp_path):
    run(2, on_hosts(one_at_a_time, "ab"), str(tmp_path / "store"))


def nested(rank, n):
    store = group().get_group_store()
    inner = torch.ones(3)
    if rank == 1:
        # The other rank's first collective waits until its second is queued.
        store.wait(["queued"])
    first = dist.all_reduce(torch.ones(1), async_op=True)
    called = first.get_future().then(lambda _: dist.all_reduce(inner))
    second = dist.all_reduce(torch.ones(2), async_op=True)
    if rank == 0:
        store.set("queued", "1")
    called.wait()
    second.wait()
    assert inner.tolist() == [n] * 3


@pytest.mark.parametrize("layout", ("ab", "aab"))
def test_a_callback_calls_a_collective_with_another_queued_behind_it(layout, tmp_path):
    run(len(layout), on_hosts(nested, layout, timeout=600), str(tmp_path / "store"))


def before_the_next(rank, n):
    here, options = backend(), dist.AllreduceOptions()
    begun, next_comes, order = threading.Event(), threading.Event(), []

    def callback(_):
        begun.set()
        next_comes.wait()
        here._run(order.append, ("callback's",), options, [])

    options.asyncOp = True
    gate = threading.Event()
    called = here._run(gate.wait, (), options, []).get_future().then(callback)
    gate.set()
    begun.wait()
    options.asyncOp = False
    next_comes.set()
    here._run(order.append, ("next",), options, [])
    called.wait()
    assert order == ["callback's", "next"]


def test_a_callback_belongs_to_the_turn_of_its_collective(tmp_path):
    run(2, on_hosts(before_the_next, "ab"), str(tmp_path / "store"))
