"""Operations that are started now and waited for later."""

import threading

import numpy as np
import pytest
import shmccl
from test_collectives import on_ranks


def test_started_operations_are_done_in_order_whoever_waits_for_them_and_when():
    def body(comm):
        arrays = [np.full(count, comm.rank, "float32") for count in [1, 1000, 200_000] * 20]
        works, results = [], []
        for array in arrays:
            with comm.start() as work:
                results.append(comm.all_reduce(array))
            works.append(work)
        for work in works[::-7]:
            assert work.wait()
        while not works[1].is_done():
            pass
        assert works[2].wait(20.0)
        # At once, behind all that was started.
        assert comm.all_reduce(np.ones(1)).tolist() == [comm.size]
        assert all(work.is_done() for work in works)
        assert all((result == sum(range(comm.size))).all() for result in results)

    on_ranks(body)


def test_several_calls_of_one_operation_move_together():
    def body(comm):
        mine, left, right = np.full(3, comm.rank), np.empty(3, int), np.empty(3, int)
        with comm.start() as work:
            comm.recv(left, comm.left)
            comm.recv(right, comm.right, tag=1)
            comm.send(mine, comm.right)
            comm.send(mine, comm.left, tag=1)
        work.wait()
        assert (left[0], right[0]) == (comm.left, comm.right)

    on_ranks(body)


def test_receives_that_are_started_first_keep_no_send_waiting():
    def body(comm):
        messages = comm.duplicate()
        got, total = [np.empty(1000) for _ in range(2)], np.empty(1)
        works = []
        for index in (1, 0):
            with messages.start() as work:
                messages.recv(got[index], comm.left, tag=index)
            works.append(work)
        # A started call of all ranks waits for rank 0, which sends before it comes.
        if comm.rank:
            with comm.start() as reduction:
                comm.all_reduce(np.ones(1), out=total)
        for index in range(2):
            with messages.start() as work:
                messages.send(np.full(1000, float(index)), comm.right, tag=index)
            works.append(work)
        assert all(work.wait() for work in works)
        if comm.rank == 0:
            comm.all_reduce(np.ones(1), out=total)
        else:
            reduction.wait()
        assert [array[999] for array in got] == [0, 1] and total[0] == comm.size

    on_ranks(body)


def test_a_wait_for_a_while_says_that_it_is_not_done():
    def body(comm):
        got = np.zeros(1)
        if comm.rank == 0:
            with comm.start() as work:
                comm.recv(got, 1)
            assert not work.is_done() and not work.wait(0.01)
            comm.channel(1).signal()
            assert work.wait(20.0) and work.is_done() and got[0] == 5.0
        else:
            comm.channel(0).wait()
            comm.send(np.full(1, 5.0), 0)

    on_ranks(body, n=2)


def test_arrays_are_kept_until_the_operation_is_done():
    def body(comm):
        for _ in range(20):
            with comm.start() as work:
                comm.all_reduce(np.ones(100_000), "max")
                comm.all_reduce(bytearray(64), dtype="int64")
            del work
            np.full(100_000, 3.0)
        with comm.start() as work:
            kept = bytearray(8)
            comm.all_reduce(kept, out=kept, dtype="int64")
        if not work.is_done():
            with pytest.raises(BufferError):
                kept.append(0)
        work.wait()

    on_ranks(body)


def test_an_operation_that_fails_raises_what_it_has_failed_by():
    def body(comm):
        got = np.empty(1)
        with comm.start() as work:
            comm.recv(got, 1 - comm.rank)
        comm.revoke()
        with pytest.raises(shmccl.RevokedError, match="recv"):
            work.wait()
        comm.close()

    on_ranks(body, n=2)


def test_a_block_that_starts_nothing_says_so():
    comm = shmccl.init_all(1)[0]
    with pytest.raises(ValueError, match="no call"), comm.start():
        pass
    work = comm.start()
    with pytest.raises(RuntimeError, match="block ends"):
        work.wait()
    with pytest.raises(KeyError), work:
        comm.all_reduce(np.ones(1))
        raise KeyError
    with pytest.raises(ValueError, match="overlap"), work:
        array = np.ones(3)
        comm.all_reduce(array[:2], out=array[1:])
    with work:
        result = comm.all_reduce(np.ones(1))
    assert work.wait() and result[0] == 1.0
    with pytest.raises(RuntimeError, match="already"), work:
        pass
    with comm.start() as other, pytest.raises(ValueError, match="returns who has sent"):
        comm.send(np.ones(1), 0)
        comm.recv(result, 0)
        comm.recv_any(np.ones(1))
    other.wait()


def test_threads_start_and_wait():
    comms = shmccl.init_all(3, heap=16 << 20)
    sums = [[] for _ in comms]

    def body(comm):
        for _ in range(50):
            with comm.start() as work:
                result = comm.all_reduce(np.array([comm.rank]))
            waiter = threading.Thread(target=work.wait)
            waiter.start()
            work.wait()
            waiter.join()
            sums[comm.rank].append(result[0])
        comm.finalize()

    threads = [threading.Thread(target=body, args=(comm,)) for comm in comms]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert sums == [[3] * 50] * 3
