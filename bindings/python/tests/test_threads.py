"""Threads that share a communicator: whose calls a group has, and who waits for whom."""

import contextlib
import threading
import time

import numpy as np
import pytest
import shmccl
from ranks import in_a_call


def on_thread(run):
    """Calls `run` on another thread, and returns what it returns."""
    results = []
    thread = threading.Thread(target=lambda: results.append(run()))
    thread.start()
    thread.join(30)
    return results[0]


@pytest.mark.parametrize("block", ["group", "start"])
def test_calls_of_another_thread_are_no_part_of_a_block(block):
    comm = shmccl.init_all(1)[0]
    mine, theirs = np.zeros(1), np.zeros(1)
    with getattr(comm, block)() as opened:
        comm.all_reduce(np.ones(1), out=mine)
        # Made at once, and not at the end of this block.
        assert on_thread(lambda: comm.all_reduce(np.full(1, 7.0), out=theirs)) is theirs
        assert (mine[0], theirs[0]) == (0.0, 7.0)
    if block == "start":
        opened.wait()
    assert mine[0] == 1.0
    comm.finalize()


def test_threads_have_groups_of_one_communicator_at_the_same_time():
    comm = shmccl.init_all(1)[0]
    inner, outer = np.zeros(1), np.zeros(1)

    def group():
        with comm.group():
            comm.all_reduce(np.full(1, 2.0), out=inner)
            assert inner[0] == 0.0
        return inner[0]

    with comm.group():
        comm.all_reduce(np.ones(1), out=outer)
        assert on_thread(group) == 2.0
        assert outer[0] == 0.0
    assert outer[0] == 1.0


def test_a_group_ends_where_it_began():
    comm = shmccl.init_all(1)[0]
    group = comm.group()
    group.__enter__()

    def leave():
        with pytest.raises(RuntimeError, match="on the thread that it began on"):
            group.__exit__(None, None, None)
        return True

    assert on_thread(leave)
    group.__exit__(None, None, None)
    work = comm.start()
    with work:
        comm.all_reduce(np.ones(1))
        assert on_thread(lambda: pytest.raises(RuntimeError, work.__enter__))
    work.wait()


def test_a_thread_that_ends_in_a_group_keeps_nobody_from_another():
    comm = shmccl.init_all(1)[0]
    assert on_thread(lambda: comm.group().__enter__())
    with comm.group():
        result = comm.all_reduce(np.ones(1))
    assert result[0] == 1.0


@pytest.mark.parametrize("leave", ["close", "finalize"])
def test_the_interpreter_goes_on_while_a_thread_waits_to_leave(leave):
    comm, peer = shmccl.init_all(2, timeout=20)
    calling = in_a_call(comm)

    def leaves():
        with contextlib.suppress(shmccl.Error):
            getattr(comm, leave)()

    leaving = threading.Thread(target=leaves)
    leaving.start()
    # As this thread gets here, and on, nobody waits with the lock of the interpreter.
    start = time.monotonic()
    time.sleep(0.1)
    on_thread(peer.barrier)
    assert time.monotonic() - start < 10
    peer.close()
    for thread in calling, leaving:
        thread.join(30)
        assert not thread.is_alive()


def test_what_needs_no_call_is_told_while_another_thread_is_in_one():
    comm, peer = shmccl.init_all(2, timeout=20)
    calling = in_a_call(comm)
    start = time.monotonic()
    comm.timeout = 30.0
    assert (comm.timeout, comm.revoked, comm.closed, comm.staged_bytes) == (30.0, False, False, 0)
    assert not comm.was_restarted and "rank 1" in comm.report()
    assert calling.is_alive() and time.monotonic() - start < 10
    peer.barrier()
    calling.join()
    comm.close()
    assert comm.closed
    with pytest.raises(RuntimeError, match="closed"):
        comm.timeout  # noqa: B018


def test_a_group_and_a_call_on_one_stream_do_not_wait_for_each_other():
    comm, peer = shmccl.init_all(2, timeout=20)
    stream = comm.stream()

    def call():
        comm.all_reduce(np.ones(1), stream=stream)

    def group():
        with comm.group(stream=stream):
            comm.all_reduce(np.ones(1))

    for _ in range(3):
        calling = in_a_call(comm)
        threads = [threading.Thread(target=run, daemon=True) for run in (call, group)]
        for thread in threads:
            thread.start()
            time.sleep(0.02)
        # Both wait for the call to end, and go on then.
        peer.barrier()
        for thread in [calling, *threads]:
            thread.join(10)
            assert not thread.is_alive()
        for _ in threads:
            assert peer.all_reduce(np.ones(1))[0] == 2.0
    stream.close()


def test_ctrl_c_ends_a_stream_with_its_epoch_and_another_exception_waits_for_it():
    comm, peer = shmccl.init_all(2, timeout=20)
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt), comm.stream() as stream:
        comm.all_reduce(np.ones(1), stream=stream)
        raise KeyboardInterrupt
    assert peer.revoked and time.monotonic() - start < 10
    # Another exception waits for what was enqueued, and ends nothing.
    alone = shmccl.init_all(1)[0]
    result = np.zeros(1)
    with pytest.raises(KeyError), alone.stream() as stream:
        alone.all_reduce(np.ones(1), out=result, stream=stream)
        raise KeyError
    assert result[0] == 1.0 and not alone.revoked
