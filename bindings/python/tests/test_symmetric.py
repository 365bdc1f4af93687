"""Verbs by rank on arrays of the heap: puts and gets, atomics, signals, waits, locks."""

import gc
import operator
import os
import signal
import threading
import time

import ml_dtypes
import numpy as np
import pytest
import shmccl
from test_collectives import on_ranks

INTEGERS = ["int32", "uint32", "int64", "uint64"]
FLOATS = ["float32", "float64"]
ALL = [
    "bool", "int8", "uint8", "int16", "uint16", *INTEGERS, "float16", "bfloat16", *FLOATS, "float8_e4m3fn", "float8_e5m2",
    "complex64", "complex128",
]  # fmt: skip
COMPARISONS = {"==": operator.eq, "!=": operator.ne, ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}


def two_in_this_process():
    """Two ranks of this process, and the same array of eight numbers of each."""
    comms, arrays = shmccl.init_all(2, heap="16M", timeout=20), [None, None]

    def make(rank):
        arrays[rank] = comms[rank].zeros(8, "int64")

    threads = [threading.Thread(target=make, args=(rank,)) for rank in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return comms, arrays


# Views, puts and gets -------------------------------------------------------------------------------------------------


def test_a_part_of_a_view_is_that_of_numpy():
    comm = shmccl.init_all(1)[0]
    heap = comm.zeros((4, 3, 5), "int32")
    whole, view = np.arange(60, dtype="int32").reshape(4, 3, 5), heap.at(0)
    view.put(whole)
    assert (heap.numpy() == whole).all() and repr(view) == "<shmccl.RemoteView of int32, shape (4, 3, 5), in the heap of rank 0>"
    assert (view.rank, view.dtype, view.shape, view.ndim, view.size, len(view)) == (0, "int32", (4, 3, 5), 3, 60, 4)
    keys = [
        1, -1, slice(None), slice(1, 3), slice(None, None, 2), slice(None, None, -1), slice(3, 0, -2), slice(9, 2), ...,
        (1, 2, 3), (..., 0), (0, ...), (slice(None), 1), (slice(None), slice(1, None), slice(0, 5, 2)), (-1, ..., -2), (1, 2),
        (slice(None, None, -2), 0, slice(None, None, -3)), (..., slice(2, 2)), (np.int64(2), 1), (1, slice(None), 4), (),
    ]  # fmt: skip
    for key in keys:
        part, expected = view[key], whole[key]
        assert part.shape == expected.shape and part.size == expected.size, key
        np.testing.assert_array_equal(part.get(), expected, err_msg=str(key))
        # What is put there goes to the same elements, and nowhere else.
        heap.numpy()[:] = 0
        part.put(expected.copy())
        filled = np.zeros_like(whole)
        filled[key] = expected
        np.testing.assert_array_equal(heap.numpy(), filled, err_msg=str(key))
        view[key] = 7
        filled[key] = 7
        np.testing.assert_array_equal(heap.numpy(), filled, err_msg=str(key))
        view.put(whole)
    assert view[1:][1, :, 2:][0, 1].get() == whole[2, 0, 3]


def test_a_part_that_there_is_not_is_refused_as_by_numpy():
    view = shmccl.init_all(1)[0].zeros((4, 3)).at(0)
    for key in (4, -5, (0, 3), 1 << 70, (0, 0, 0), (..., ...), (0, 0, 0, ...)):
        with pytest.raises(IndexError):
            view[key]
    for key in (1.0, "x", None, True, [0, 1], np.array([1, 2])):
        with pytest.raises(TypeError):
            view[key]
    with pytest.raises(TypeError, match="without dimensions"):
        len(view[0, 0])


@pytest.mark.parametrize("name", ALL)
def test_every_type_is_put_and_got(name):
    def body(comm):
        kind = getattr(ml_dtypes, name, name)
        heap, sent = comm.zeros(8, name), np.arange(4).astype(kind)
        if comm.rank == 0:
            heap.at(1)[2:6].put(sent)
            heap.at(1)[7] = sent[3]
            heap.at(1)[6].put(1)
        comm.barrier()
        if comm.rank == 1:
            assert heap.numpy()[2:6].tolist() == sent.tolist() and heap.numpy()[7] == sent[3] and heap.numpy()[6] == sent[1]
        got = heap.at(1)[2:6].get()
        assert got.dtype == sent.dtype and got.tolist() == sent.tolist()
        assert heap.at(1)[5].get() == sent[3].item() and type(heap.at(1)[5].get()) is type(sent[3].item())
        out = np.zeros(4, kind)
        assert heap.at(1)[2:6].get(out) is out and out.tolist() == sent.tolist()

    on_ranks(body, n=2)


def test_arrays_of_the_heap_and_views_are_copied_from_heap_to_heap():
    def body(comm):
        first, second = comm.zeros(6, "int64"), comm.zeros((6, 2), "int64")
        first[:] = np.arange(6) + 10 * comm.rank
        comm.barrier()
        if comm.rank == 0:
            # From the heap of rank 1 to a column of rank 2, and a part of this rank's heap to the other one.
            second.at(2)[:, 1].put(first.at(1))
            second.at(2)[::2, 0].put(first.numpy()[3:])
            # A view of a peer, by its address.
            second.at(0)[:3, 0].put(first.peer(2).numpy()[:3])
            # An output that lies in the heap.
            first.at(1)[::-1].get(second.at(0).get()[:, 0].copy())
            second.at(2)[:, 1].get(first)
            with pytest.raises(ValueError, match="contiguous"):
                second.at(1)[:, 0].put(second.at(2)[:, 1])
        comm.barrier()
        if comm.rank == 2:
            assert second.numpy().tolist() == [[3, 10], [0, 11], [4, 12], [0, 13], [5, 14], [0, 15]]
        if comm.rank == 0:
            assert second.numpy()[:, 0].tolist() == [20, 21, 22, 0, 0, 0] and first.numpy().tolist() == list(range(10, 16))
        comm.barrier()

    on_ranks(body)


def test_what_does_not_fit_is_refused_and_nothing_is_moved():
    def body(comm):
        heap = comm.zeros(8, "int32")
        view = heap.at(comm.right)
        with pytest.raises(shmccl.InvalidRankError, match="rank 3"):
            heap.at(3)
        with pytest.raises(shmccl.InvalidRankError):
            heap.at(-1)
        for wrong in (np.zeros(7, "int32"), np.zeros(9, "int32"), np.zeros((2, 2), "int32")):
            with pytest.raises(shmccl.WrongCountError, match="elements, and the view 8"):
                view.put(wrong)
            with pytest.raises(shmccl.WrongCountError):
                view.get(wrong)
        for wrong in (np.zeros(8, "int64"), np.zeros(8, "float32"), np.zeros(8, "uint32")):
            with pytest.raises(ValueError, match="and the view of int32"):
                view.put(wrong)
            with pytest.raises(ValueError, match="and the view of int32"):
                view.get(wrong)
        with pytest.raises(ValueError, match="contiguous"):
            view.put(np.zeros(16, "int32")[::2])
        with pytest.raises(ValueError, match="contiguous"):
            view.get(np.zeros(16, "int32")[::2])
        with pytest.raises(ValueError, match="read-only"):
            view.get(bytes(32))
        with pytest.raises(TypeError):
            view.put([1, 2, 3])
        with pytest.raises(ValueError, match="local"):
            comm.zeros(8, local=True).at(0)
        comm.barrier()
        assert not heap.numpy().any()

    on_ranks(body)


# Atomics --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", INTEGERS + FLOATS)
def test_every_atomic_of_every_type_returns_what_was_there(name):
    def body(comm):
        heap = comm.zeros(4, name)
        word, kind = heap.at(1)[2], int if name in INTEGERS else float
        if comm.rank == 0:
            assert word.atomic_fetch() == 0 and type(word.atomic_fetch()) is kind
            word.atomic_set(12)
            assert [word.atomic_swap(10), word.atomic_fetch_add(3), word.atomic_fetch_inc()] == [12, 10, 13]
            word.atomic_add(1)
            word.atomic_inc()
            assert word.atomic_fetch() == 16
            # Scalars of NumPy, and arrays without dimensions, are numbers.
            word.atomic_add(np.array(2, name))
            word.atomic_add(np.dtype(name).type(2))
            if name in INTEGERS:
                assert [word.atomic_compare_swap(19, 5), word.atomic_compare_swap(20, 0b1100)] == [20, 20]
                assert [word.atomic_fetch_and(0b0110), word.atomic_fetch_or(0b0001), word.atomic_fetch_xor(0b0111)] == [12, 4, 5]
                word.atomic_or(0b1000)
                word.atomic_and(0b1010)
                word.atomic_xor(0b0001)
                assert word.atomic_fetch() == 0b1011
                limits = np.iinfo(name)
                word.atomic_set(limits.max)
                assert word.atomic_fetch_inc() == limits.max and word.atomic_fetch() == limits.min
                for wrong in (limits.max + 1, limits.min - 1):
                    with pytest.raises(OverflowError):
                        word.atomic_add(wrong)
                with pytest.raises(TypeError):
                    word.atomic_add(1.5)
                word.atomic_set(11)
            else:
                word.atomic_set(1.5)
                assert word.atomic_fetch_add(0.25) == 1.5
                for bits in (word.atomic_and, word.atomic_fetch_or, word.atomic_xor):
                    with pytest.raises(TypeError, match=f"whole numbers, not {name}"):
                        bits(1)
                with pytest.raises(TypeError, match="whole numbers"):
                    word.atomic_compare_swap(0, 1)
                word.atomic_add(9.25)
        comm.barrier()
        if comm.rank == 1:
            assert heap.numpy().tolist() == [0, 0, 11, 0]

    on_ranks(body, n=2)


def test_atomics_change_each_element_of_a_view():
    def body(comm):
        heap = comm.zeros((3, 4), "int64")
        column = heap.at(0)[:, 1]
        column.atomic_add(np.array([1, 2, 3]))
        comm.barrier()
        assert column.atomic_fetch().tolist() == [3, 6, 9]
        comm.barrier()
        if comm.rank == 0:
            assert heap.numpy().sum() == 18
            swapped = heap.at(1)[1:, ::3].atomic_swap(5)
            assert swapped.dtype == np.int64 and swapped.tolist() == [[0, 0], [0, 0]]
            before = heap.at(1)[:, 3].atomic_compare_swap(np.array([0, 5, 4]), np.array([1, 2, 3]))
            assert before.tolist() == [0, 5, 5]
            assert heap.at(1)[0, :0].atomic_fetch_add(1).tolist() == []
            with pytest.raises(shmccl.WrongCountError):
                column.atomic_add(np.array([1, 2]))
            with pytest.raises(ValueError, match="of float64, and the view of int64"):
                column.atomic_add(np.ones(3))
        comm.barrier()
        if comm.rank == 1:
            assert heap.numpy().tolist() == [[0, 0, 0, 1], [5, 0, 0, 2], [5, 0, 0, 5]]

    on_ranks(body)


def test_atomics_of_all_ranks_and_threads_are_counted():
    def body(comm):
        whole, real = comm.zeros(2, "uint64").at(0), comm.zeros(1, "float64").at(0)

        def count():
            for _ in range(500):
                whole[1].atomic_inc()
                real.atomic_add(0.5)

        threads = [threading.Thread(target=count) for _ in range(2)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        comm.barrier()
        assert (whole[1].atomic_fetch(), real[0].get()) == (3000, 1500.0)
        comm.barrier()

    on_ranks(body)


def test_other_types_have_no_atomics_and_no_waits():
    comm = shmccl.init_all(1)[0]
    for name in sorted(set(ALL) - set(INTEGERS + FLOATS)):
        heap = comm.zeros(2, name)
        for refused in (heap.at(0)[0].atomic_fetch, heap.at(0)[0].atomic_inc, lambda: comm.test(heap.at(0)[0], "==", 0)):
            with pytest.raises(TypeError, match=f"float64, not {name}"):
                refused()


# Signals and waits ----------------------------------------------------------------------------------------------------


def test_a_wait_ends_when_the_data_of_a_put_are_there():
    def body(comm):
        data, flags = comm.zeros((50, 1000)), comm.zeros(2, "uint64")
        if comm.rank == 0:
            for turn in range(50):
                data.at(1)[turn].put_signal(np.full(1000, turn + 1.0), flags.at(1)[0], turn + 1)
                data.at(1)[turn, ::2].put_signal(-1.0, flags.at(1)[1], 1, "add")
            flags.at(1)[1].signal_op(1 << 40, "add")
        else:
            for turn in range(50):
                assert comm.wait_until(flags.numpy()[:1], ">=", turn + 1) > turn
                assert (data.numpy()[turn, 1::2] == turn + 1.0).all()
            assert comm.wait_until(flags.at(1)[1], ">=", 1 << 40) == (1 << 40) + 50
            assert (data.numpy()[:, ::2] == -1.0).all()
        comm.barrier()

    on_ranks(body, n=2)


def test_a_signal_is_one_word_of_the_rank_that_the_data_go_to():
    def body(comm):
        data, flags, small = comm.zeros(4), comm.zeros(3, "int64"), comm.zeros(3, "uint32")
        with pytest.raises(ValueError, match="the data go to rank 1, and the signal to rank 0"):
            data.at(1).put_signal(0.0, flags.at(0)[0], 1)
        for wrong in (flags.at(1), flags.at(1)[:0], small.at(1)[0]):
            with pytest.raises(TypeError, match="one element of uint64 or int64"):
                data.at(1).put_signal(0.0, wrong, 1)
            with pytest.raises(TypeError):
                wrong.signal_op(1)
        with pytest.raises(ValueError, match='"set" or "add", not "max"'):
            flags.at(1)[0].signal_op(1, "max")
        with pytest.raises(TypeError):
            data.at(1).put_signal(0.0, flags, 1)
        flags.at(1)[0].signal_op(-3, "add")
        # An array that another communicator has made lies in the same heap.
        other = comm.duplicate().zeros(1, "int64")
        data.at(1).put_signal(4.0, other.at(1)[0], 1)
        comm.barrier()
        assert flags.at(1)[0].get() == -3 * comm.size and other.at(1)[0].get() == 1

    on_ranks(body, n=2)


@pytest.mark.parametrize("name", INTEGERS + FLOATS)
@pytest.mark.parametrize("text", COMPARISONS)
def test_a_wait_compares_as_it_is_told(text, name):
    comms, _ = two_in_this_process()
    arrays = [None, None]

    def make(rank):
        arrays[rank] = comms[rank].zeros(3, name)

    thread = threading.Thread(target=make, args=(1,))
    thread.start()
    make(0)
    thread.join()
    comm, (heap, _) = comms[0], arrays
    for found in (1, 2, 3):
        heap[1] = found
        assert comm.test(heap.numpy()[1:2], text, 2) == COMPARISONS[text](found, 2)
        assert comm.test_any(heap, text, 2, where=[False, True, False]) == (1 if COMPARISONS[text](found, 2) else None)
    ends, begins = next((e, b) for e in (1, 2, 3) for b in (1, 2, 3) if COMPARISONS[text](e, 2) and not COMPARISONS[text](b, 2))
    heap[1] = begins
    threading.Timer(0.02, lambda: arrays[1].at(0)[1].atomic_set(ends)).start()
    found = comm.wait_until(heap.at(0)[1], text, 2)
    assert found == ends and type(found) is (int if name in INTEGERS else float)
    for wrong in ("=", "===", "", "=>"):
        with pytest.raises(ValueError, match="no comparison"):
            comm.wait_until(heap.at(0)[1], wrong, 2)


def test_words_are_waited_for_together():
    (comm, _), (heap, theirs) = two_in_this_process()
    remote, same = theirs.at(0), heap.numpy()

    def later(*changes):
        def change():
            for at, value in changes:
                remote[at].atomic_set(value)

        threading.Timer(0.02, change).start()

    later((3, 1))
    assert comm.wait_until_any(heap, "==", 1) == 3
    later((5, 2), (6, 2))
    assert comm.wait_until_all(same[5:7], ">=", 2) is None
    assert comm.wait_until_some(heap, ">", 0) == [3, 5, 6]
    assert comm.wait_until_some(heap, ">", 0, where=same != 2) == [3]
    # Each with a value of its own.
    wanted = np.array([9, 9, 9, 1, 9, 9, 2, 9])
    assert comm.test_some(heap, "==", wanted) == [3, 6] and comm.test_any(heap, "==", wanted) == 3
    assert not comm.test_all(heap, "==", wanted) and comm.test_all(heap, "==", wanted, where=[0, 0, 0, 1, 0, 0, 1, 0])
    later((0, 4))
    assert comm.wait_until_any(heap, "==", np.arange(8) + 4) == 0
    # A set of none returns at once.
    nothing = [False] * 8
    assert comm.wait_until_any(heap, "==", 77, where=nothing) is None and comm.wait_until_some(heap, "==", 77, where=nothing) == []
    comm.wait_until_all(heap, "==", 77, where=nothing)
    comm.wait_until_all(same[:0], "==", 77)
    assert comm.test_any(same[:0], "==", 77) is None and comm.test_all(same[:0], "==", 77)
    assert comm.test_any(heap.at(0)[2:4], "==", 1) == 1
    for call in (comm.wait_until_any, comm.wait_until_all, comm.wait_until_some, comm.test_any, comm.test_all, comm.test_some):
        with pytest.raises(ValueError, match="where= has 2 entries for 8 elements"):
            call(heap, "==", 0, where=[1, 1])
        with pytest.raises(shmccl.WrongCountError):
            call(heap, "==", np.zeros(3, "int64"))
        with pytest.raises(ValueError, match="and the view of int64"):
            call(heap, "==", np.zeros(8))


def test_a_wait_is_for_words_of_the_own_heap():
    (comm, _), (heap, _) = two_in_this_process()
    for call in (comm.wait_until, comm.test):
        with pytest.raises(ValueError, match="8 elements: name one of them"):
            call(heap, "==", 0)
        for wrong in (np.zeros(1, "int64"), heap.at(1)[0], heap.peer(1).numpy()[:1]):
            with pytest.raises(ValueError, match="this rank's own heap: an array"):
                call(wrong, "==", 0)
        with pytest.raises(ValueError, match="a copy of one; pass heap"):
            call(heap[0], "==", 0)
        with pytest.raises(ValueError, match="contiguous"):
            call(heap.numpy()[::2], "==", 0)
        with pytest.raises(TypeError):
            call(heap.numpy()[:1], "==", 0.5)


def test_a_wait_that_nothing_ends_raises_at_its_deadline():
    (comm, _), (heap, _) = two_in_this_process()
    comm.timeout = 0.2
    with pytest.raises(TimeoutError) as late:
        comm.wait_until(heap.numpy()[:1], "==", 1)
    assert isinstance(late.value, shmccl.WaitTimeoutError)
    with pytest.raises(TimeoutError):
        comm.wait_until_all(heap, "==", 1)
    # No other rank misses this one in a wait, so the epoch goes on.
    assert not comm.revoked and not comm.test(heap.numpy()[:1], "==", 1)


def test_verbs_of_a_communicator_that_was_left_are_refused():
    (comm, _), (heap, _) = two_in_this_process()
    view = heap.at(1)
    comm.close()
    with pytest.raises(RuntimeError, match="closed"):
        comm.wait_until(heap.numpy()[:1], "==", 1)
    with pytest.raises(RuntimeError, match="closed"):
        comm.quiet()
    for refused in (view[0].atomic_inc, view.get, lambda: view.put(1), shmccl.Lock(view[0]).acquire):
        with pytest.raises(shmccl.UnavailableError):
            refused()


def test_a_peer_that_is_killed_ends_waits_and_its_memory_stays():
    def body(comm):
        heap, flag = comm.zeros(4, "int64"), comm.zeros(1, "uint64")
        heap[0] = comm.rank + 5
        comm.barrier()
        if comm.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        # One begins before the other has died, and one behind that.
        for wait in (lambda: comm.wait_until(flag, "==", 1), lambda: comm.wait_until_any(flag, "==", 1)):
            with pytest.raises(shmccl.PeerLostError) as lost:
                wait()
            assert lost.value.rank == 1
        assert heap.at(1)[0].get() == 6 and heap.at(1)[0].atomic_fetch_add(1) == 6
        return "survived"

    survivor, lost = shmccl.launch(body, 2, start="fork", timeout=20.0, keep_going=True)
    assert isinstance(lost, shmccl.DeviceFailedError)
    assert survivor == "survived" or isinstance(survivor.__cause__, shmccl.PeerLostError)


def test_the_interpreter_goes_on_while_threads_wait():
    (comm, _), (heap, theirs) = two_in_this_process()
    lock, held = shmccl.Lock(heap.at(0)[7]), shmccl.Lock(theirs.at(0)[7])
    held.acquire()
    waits = [
        lambda: comm.wait_until(heap.at(0)[0], "==", 1),
        lambda: comm.wait_until_all(heap.numpy()[:2], "==", 1),
        lambda: comm.wait_until_any(heap.numpy()[:1], "==", 1),
        lambda: comm.wait_until_some(heap.numpy()[:1], "==", 1),
        lock.acquire,
        # Verbs take no turn of the communicator, in which this one is.
        lambda: pytest.raises(shmccl.RevokedError, comm.barrier),
    ]
    threads = [threading.Thread(target=wait) for wait in waits]
    [thread.start() for thread in threads]
    start = time.monotonic()
    time.sleep(0.1)
    assert all(thread.is_alive() for thread in threads) and time.monotonic() - start < 10
    theirs.at(0)[:2].put(1)
    held.release()
    [thread.join(20) for thread in threads[:-1]]
    assert not any(thread.is_alive() for thread in threads[:-1]) and threads[-1].is_alive()
    comm.revoke()
    threads[-1].join(20)
    assert not threads[-1].is_alive()


def test_what_is_written_before_quiet_and_read_behind_it_is_not_missed_by_both():
    def body(comm):
        heap = comm.zeros((2, 300), "int64")
        for turn in range(300):
            heap.at(1 - comm.rank)[comm.rank, turn] = 1
            comm.quiet()
            heap.at(comm.rank)[comm.rank, turn] = 1 + heap.numpy()[1 - comm.rank, turn]
            comm.fence()
        comm.barrier()
        saw = [heap.at(rank)[rank].get() for rank in range(2)]
        assert ((saw[0] == 2) | (saw[1] == 2)).all()
        comm.barrier()

    on_ranks(body, n=2)


# Locks ----------------------------------------------------------------------------------------------------------------


def test_a_lock_is_held_by_one_rank_at_a_time():
    def body(comm):
        heap = comm.zeros((2, 8), "uint64")
        lock, cell = shmccl.Lock(heap.at(comm.size - 1)[1, 3]), heap.at(0)[0, 0]
        for _ in range(100):
            with lock as same:
                assert same is lock and not lock.recovered
                # No atomic: the lock keeps the others away.
                cell.put(cell.get() + 1)
        comm.barrier()
        assert cell.get() == 100 * comm.size
        if comm.rank == 0:
            assert lock.acquire(blocking=False)
        comm.barrier()
        if comm.rank == 1:
            assert not lock.acquire(False)
            with pytest.raises(shmccl.InvalidArgumentError, match="a lock that this rank holds"):
                lock.release()
        comm.barrier()
        if comm.rank == 0:
            lock.release()
        for wrong in (heap.at(0), comm.zeros(1, "int32").at(0)[0], comm.zeros(1).at(0)[:0]):
            with pytest.raises(TypeError, match="one element of uint64 or int64"):
                shmccl.Lock(wrong)

    on_ranks(body)


def test_a_lock_whose_holder_was_killed_is_recovered_once():
    def body(comm):
        lock = shmccl.Lock(comm.zeros(1, "uint64").at(0)[0])
        told = comm.zeros(1, "uint64")
        if comm.rank == 1:
            lock.acquire()
            told.at(0)[0].signal_op(1)
            os.kill(os.getpid(), signal.SIGKILL)
        comm.wait_until(told, "==", 1)
        # It may be waited for in vain until the death is known.
        while not lock.acquire(blocking=False):
            time.sleep(0.01)
        assert lock.recovered
        lock.release()
        assert lock.acquire(blocking=False) and not lock.recovered
        lock.release()
        return "survived"

    survivor, _ = shmccl.launch(body, 2, start="fork", timeout=20.0, keep_going=True)
    assert survivor == "survived"


# Memory ---------------------------------------------------------------------------------------------------------------


def test_an_array_that_is_dropped_waits_for_nobody_and_is_freed_at_the_next_allocation_of_all():
    def body(comm):
        comm.prepare()
        flag = comm.zeros(2, "uint64")
        free = comm.heap_usage()[1]
        cycle = [comm.zeros(1 << 20, "uint8")]
        cycle.append(cycle)
        held = comm.heap_usage()[1]
        gc.disable()
        if comm.rank == 0:
            # The others do not look at the heap meanwhile: they wait for this rank.
            del cycle
            gc.collect()
            flag.at(1)[0].signal_op(1)
        else:
            comm.wait_until(flag.at(comm.rank)[0], "==", 1)
            if comm.rank < comm.size - 1:
                flag.at(comm.rank + 1)[0].signal_op(1)
        # The others still have it, if only by garbage that nobody has collected.
        second = comm.empty(1 << 10, "uint8")
        assert comm.heap_usage()[1] <= held
        if comm.rank:
            del cycle
        third = comm.empty(1 << 10, "uint8")
        assert comm.heap_usage()[1] <= held
        comm.barrier()
        gc.collect()
        # Nothing is freed by the collector, on no rank.
        assert comm.heap_usage()[1] <= held
        fourth = comm.empty(1 << 10, "uint8")
        assert free - comm.heap_usage()[1] <= 3 << 12
        del second, third, fourth

    on_ranks(body, heap="32M")


def test_a_view_keeps_the_memory_of_its_array():
    def body(comm):
        view = comm.zeros(1 << 16, "uint8").at(comm.right)[7:9]
        gc.collect()
        others = [comm.zeros(1 << 16, "uint8") for _ in range(4)]
        for other in others:
            other[:] = 1
        comm.barrier()
        assert view.get().tolist() == [0, 0]
        comm.barrier()

    on_ranks(body)
