"""Functions of the program that the backend calls: callbacks of futures and hooks. No operation depends on their threads."""

import contextlib
import threading
import time

import pytest
import torch
import torch.distributed as dist
from test_hosts import on_hosts
from torch_ranks import IS_SHIM, run

TIMEOUT = 20


def reduced(value):
    return dist.all_reduce(torch.full((2,), value), async_op=True)


def first(future):
    value = future.value()
    return value[0] if isinstance(value, list) else value


def nested(rank, n, depth):
    """Each callback makes a collective, chains the next callback to it, and waits for that."""

    def then(left):
        def call(future):
            made = reduced(first(future)[0].item()).get_future()
            return (made.then(then(left - 1)) if left > 1 else made.then(first)).wait()

        return call

    result = reduced(1.0).get_future().then(then(depth)).wait()
    assert result.tolist() == [float(n ** (depth + 1))] * 2


@pytest.mark.parametrize("depth", range(1, 6))
def test_a_callback_waits_for_a_collective_whose_callback_does_the_same(depth):
    run(2, nested, depth, timeout=TIMEOUT)


def several_at_once(rank, n):
    """The collectives of callbacks have one order on all ranks, for callbacks are called one after the other."""

    def then(future):
        return reduced(first(future)[0].item()).get_future().wait()[0]

    futures = [reduced(float(i)).get_future() for i in range(8)]
    chained = [future.then(then) for future in futures]
    assert [future.wait()[0].item() for future in chained] == [float(i * n * n) for i in range(8)]


def slow(rank, n, pause, makes):
    """On one rank a callback takes its time before each of its collectives, which have the size of the next callback's."""
    threads = set()

    def then(number):
        def call(future):
            threads.add(threading.get_ident())
            sums = []
            for part in range(makes):
                if rank == 1 and number == 0:
                    pause()
                sums.append(reduced(float(10 ** (2 * number + part))).get_future().wait()[0])
            return sums

        return call

    # One that is chained to an operation that has ended is called at once, and has no order: then it is done again.
    was_here = True
    while was_here:
        works = [dist.all_reduce(torch.ones(1 << 18), async_op=True) for _ in range(2)]
        futures = [work.get_future().then(then(number)) for number, work in enumerate(works)]
        values = [[tensor[0].item() for tensor in future.wait()] for future in futures]
        any_here = torch.tensor([threading.get_ident() in threads], dtype=torch.int32)
        dist.all_reduce(any_here, dist.ReduceOp.MAX)
        was_here = bool(any_here)
        threads.clear()
    assert values == [[float(n * 10 ** (2 * number + part)) for part in range(makes)] for number in range(2)]


def computes():
    end = time.thread_time() + 0.2
    while time.thread_time() < end:
        sum(range(1000))


def sleeps():
    time.sleep(0.2)


@pytest.mark.parametrize("makes", (1, 2))
@pytest.mark.parametrize("pause", (computes, sleeps), ids=lambda pause: pause.__name__)
def test_a_slow_callback_makes_its_operations_before_the_next_one_does(pause, makes):
    run(2, slow, pause, makes, timeout=TIMEOUT)


@contextlib.contextmanager
def before(rank, late):
    """What one of two ranks begins inside cannot end inside: rank `late` begins its own after the other has left."""
    store, key = dist.distributed_c10d._get_default_store(), f"begun before rank {late}"
    if rank == late:
        store.wait([key])
    yield
    store.set(key, "1")


def a_later_one(rank, n):
    """A callback waits for an operation that the program has begun, and that ends behind its own."""
    for late in range(n):
        others = []
        with before(rank, late):
            future = reduced(1.0).get_future()
            result = future if rank == late else future.then(lambda _: others[0].wait())
            others.append(reduced(2.0).get_future())
        assert result.wait()[0].tolist() == [n if rank == late else 2.0 * n] * 2
        assert others[0].wait()[0].tolist() == [2.0 * n] * 2


def an_event(rank, n):
    """A callback waits for the program, which polls meanwhile and waits for the future of another operation."""
    for late in range(n):
        go, called = threading.Event(), threading.Event()

        def then(future):
            called.set()
            return go.wait(TIMEOUT)

        with before(rank, late):
            future = reduced(1.0).get_future()
            result = future if rank == late else future.then(then)
        assert rank == late or called.wait(TIMEOUT)
        dist.all_reduce(torch.ones(2))
        assert reduced(2.0).wait()
        assert reduced(3.0).get_future().wait()[0].tolist() == [3.0 * n] * 2
        go.set()
        assert result.wait()


def its_own(rank, n):
    """A callback waits for the work that it belongs to, as `wait` of that work does for the callback."""
    seen = []
    work = reduced(1.0)
    work.get_future().add_done_callback(lambda future: seen.append(work.wait()))
    work.wait()
    assert seen == [True]


def raises(rank, n):
    def then(future):
        raise ValueError("on purpose")

    failed = reduced(1.0).get_future().then(then)
    with pytest.raises(RuntimeError, match="on purpose"):
        failed.wait()
    assert reduced(1.0).get_future().wait()[0].tolist() == [n] * 2


def another_group(rank, n):
    other = dist.new_group()

    def then(future):
        inner = first(future)
        dist.all_reduce(inner, group=other)
        dist.barrier(group=other)
        return inner

    result = reduced(1.0).get_future().then(then)
    dist.all_reduce(torch.ones(1))
    assert result.wait().tolist() == [n * n] * 2


def destroys(rank, n):
    other = dist.new_group()
    tensor = torch.ones(2)

    def then(future):
        dist.destroy_process_group(other)
        return tensor

    assert dist.all_reduce(tensor, group=other, async_op=True).get_future().then(then).wait().tolist() == [n] * 2
    dist.barrier()


PROGRAMS = (several_at_once, a_later_one, an_event, its_own, raises, another_group, destroys)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_nothing_depends_on_the_thread_of_a_callback(program):
    run(2, program, timeout=TIMEOUT)


def in_hook(rank, n):
    """A hook of completion makes a collective, of which it hears as well."""
    group, results = dist.distributed_c10d._get_default_group(), []

    def hook(info):
        if info.seq == 1:
            inner = torch.ones(2)
            dist.all_reduce(inner)
            results.append(inner.tolist())

    group._register_on_completion_hook(hook)
    dist.all_reduce(torch.ones(2))
    group._wait_for_pending_works()
    assert results == [[n] * 2]


@pytest.mark.skipif(not IS_SHIM, reason="the backend in Python has no hooks")
def test_a_hook_of_completion_makes_a_collective():
    run(2, in_hook, timeout=TIMEOUT)


def modes(rank, n):
    with torch.inference_mode():
        parts = [torch.zeros(3) for _ in range(n)]
        work = dist.all_gather(parts, torch.full((3,), float(rank)), async_op=True)
        states = work.get_future().then(lambda _: (torch.is_inference_mode_enabled(), torch.is_grad_enabled())).wait()
        assert states == (True, False)
        assert [part[0].item() for part in parts] == [0, 1]
    leaves = [torch.zeros(3, requires_grad=True) for _ in range(n)]
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        work = dist.all_gather(leaves, torch.full((3,), float(rank)), async_op=True)
        states = work.get_future().then(lambda _: (torch.is_autocast_enabled("cpu"), torch.is_grad_enabled())).wait()
    assert states == (True, False)
    assert [leaf[0].item() for leaf in leaves] == [0, 1]


def test_the_modes_of_torch_go_along_with_an_operation_to_whoever_ends_it():
    run(2, modes, timeout=TIMEOUT)


@pytest.mark.parametrize("program", (a_later_one, an_event, raises, modes), ids=lambda program: program.__name__)
def test_between_hosts_nothing_depends_on_the_thread_of_a_callback_either(program, tmp_path):
    run(2, on_hosts(program, "ab", TIMEOUT), str(tmp_path / "store"))
