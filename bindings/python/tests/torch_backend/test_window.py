"""One-sided windows: put, signal, wait, mapped memory, and what is refused."""

import sys
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch_ranks import IS_SHIM, run

import shmccl.torch

pytestmark = pytest.mark.skipif(not IS_SHIM or not hasattr(dist, "_new_window"), reason="windows need the shim and torch 2.15")


def full(count, value, dtype=torch.float32):
    return shmccl.torch.empty(count, dtype=dtype).fill_(value)


def ring(count, dtype, is_async, at_once):
    def program(rank, n):
        assert dist._supports_window()
        following, preceding = (rank + 1) % n, (rank - 1) % n
        source, memory = full(count, rank, dtype), full(count * n, 1, dtype)
        if at_once:
            window = dist._new_window(memory)
        else:
            window = dist._new_window()
            window.tensor_register(memory)
        for turn in range(4):
            source.fill_(rank + turn * n)
            work = window.put(source, following, following * count, is_async)
            if is_async:
                work.wait()
            work = window.wait_signal(preceding, is_async)
            if is_async:
                work.wait()
            received = window.map_remote_tensor(rank)[rank * count:(rank + 1) * count]
            assert torch.equal(received, torch.full((count,), preceding + turn * n).to(dtype))
            dist.barrier()
        window.tensor_deregister()
    return program


@pytest.mark.parametrize("at_once", (False, True))
@pytest.mark.parametrize("is_async", (False, True))
@pytest.mark.parametrize("count, dtype", ((4, torch.float32), (1024, torch.int32), (1 << 16, torch.int8)))
def test_puts_go_round_a_ring(count, dtype, is_async, at_once):
    run(3, ring(count, dtype, is_async, at_once))


def mapped(rank, n):
    memory = shmccl.torch.empty(3, 5).fill_(rank)
    window = dist._new_window(memory)
    dist.barrier()
    for peer in range(n):
        theirs = window.map_remote_tensor(peer)
        assert theirs.shape == (3, 5) and theirs.dtype == memory.dtype
        assert torch.equal(theirs, torch.full((3, 5), float(peer)))
        assert window.get_attr(peer).access_type is not None
    window.tensor_deregister()
    dist.barrier()
    kept = theirs
    del window, memory, theirs
    dist.destroy_process_group()
    assert kept.sum().item() == 15 * (n - 1)


def test_the_memory_of_a_peer_can_be_mapped_and_outlives_the_group():
    run(2, mapped)


def signals(rank, n):
    windows = [dist._new_window(full(1, 0)) for _ in range(2)]
    for window in windows:
        window.signal((rank + 1) % n, False)
        window.signal(rank, False)
    for window in reversed(windows):
        window.wait_signal((rank - 1) % n, False)
        window.wait_signal(rank, False)
    [window.tensor_deregister() for window in windows]


def test_signals_of_two_windows_are_told_apart():
    run(2, signals)


def polled(work):
    """Whether a wait has succeeded, once it is over."""
    while not work.is_completed():
        time.sleep(0.001)
    return work.is_success()


def waits(rank, n):
    store = dist.distributed_c10d._get_default_group().get_group_store()
    window = dist._new_window(full(1, 0))
    if rank == 0:
        work = window.wait_signal(1, True)
        with pytest.raises(dist.DistBackendError, match="timed out after 200 ms"):
            work.wait(timedelta(milliseconds=200))
        assert not work.is_completed() and not work.is_success()
        store.set("first", "1")
        work.wait()
        assert work.is_completed() and work.is_success()
        work = window.wait_signal(1, True)
        assert not work.is_completed()
        store.set("second", "1")
        assert polled(work) and work.wait()
    else:
        for turn in ("first", "second"):
            store.wait([turn])
            window.signal(0, False)
    work = window.wait_signal(rank, True)
    assert not polled(work)
    with pytest.raises(RuntimeError, match="has not raised"):
        work.wait()
    window.tensor_deregister()


def test_a_wait_for_a_signal_may_be_short_and_be_polled():
    run(2, waits)


def leaves_while_it_waits(rank, n):
    window = dist._new_window(full(1, 0))
    work = window.wait_signal(1 - rank, True)
    assert not work.is_completed()
    dist.barrier()


def test_a_group_may_end_before_a_signal_comes():
    run(2, leaves_while_it_waits)


def refused(rank, n):
    window = dist._new_window()
    plain = torch.ones(16)
    with pytest.raises(RuntimeError, match="MemPool"):
        window.tensor_register(plain)
    with pytest.raises(RuntimeError, match="not registered"):
        window.put(plain, 0, 0, False)
    with pytest.raises(RuntimeError, match="not registered"):
        window.signal(0, False)
    memory = full(16 + rank, rank + 10)
    window.tensor_register(memory)
    with pytest.raises(RuntimeError, match="double registration"):
        window.tensor_register(memory)
    peer = (rank + 1) % n
    with pytest.raises(RuntimeError, match="exceeds the window size"):
        window.put(full(16, 0), peer, 8, False)
    with pytest.raises(RuntimeError, match="nonnegative"):
        window.put(memory[:1], peer, -1, False)
    with pytest.raises(RuntimeError, match="exceeds|overflows"):
        window.put(memory[:1], peer, sys.maxsize, False)
    with pytest.raises(RuntimeError, match="does not match"):
        window.put(full(1, 1, torch.int32), peer, 0, False)
    if rank == 0:
        with pytest.raises(RuntimeError, match="not in a registered"):
            window.put(plain[:1], peer, 0, False)
    dist.barrier()
    # The last element of the peer's window, which has another length than this rank's.
    window.put(memory[:1], peer, 16 + peer - 1, False)
    window.wait_signal((rank - 1) % n, False)
    assert memory[-1].item() == (rank - 1) % n + 10
    window.tensor_deregister()


def test_what_does_not_fit_is_refused_on_its_rank_alone():
    run(2, refused)
