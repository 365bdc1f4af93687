"""Arrays in the heap: views of the same memory, and what becomes of it."""

import gc

import numpy as np
import pytest
import shmccl
from test_collectives import on_ranks


def test_an_array_is_memory_of_the_heap_for_numpy_and_for_calls():
    def body(comm):
        heap = comm.zeros((2, 3), "float32")
        assert (heap.shape, heap.dtype, heap.nbytes, len(heap)) == ((2, 3), "float32", 24, 2)
        view = heap.numpy()
        view[:] = comm.rank
        heap[0, 0] = 5.0
        assert view[0, 0] == 5.0
        comm.all_reduce(heap, out=heap)
        assert view.tolist() == [[15.0, 3.0, 3.0], [3.0, 3.0, 3.0]]
        # A part of it is an operand where it lies.
        comm.all_reduce(view[1], out=view[1])
        assert view[1].tolist() == [9.0, 9.0, 9.0]
        assert np.asarray(heap).ctypes.data == np.from_dlpack(heap).ctypes.data == view.ctypes.data
        assert heap.__array_interface__["data"] == (view.ctypes.data, False)

    on_ranks(body)


def test_a_peer_sees_what_is_written_into_its_array():
    def body(comm):
        heap = comm.zeros(4, "int64")
        comm.barrier()
        heap.peer(comm.right).numpy()[0] = comm.rank + 1
        comm.barrier()
        assert heap[0] == comm.left + 1

    on_ranks(body)


def test_memory_of_arrays_that_all_ranks_have_dropped_is_used_again():
    def body(comm):
        comm.prepare()
        free = comm.heap_usage()[1]
        for _ in range(50):
            comm.zeros(1 << 20, "uint8")
        gc.collect()
        kept = comm.zeros(1 << 20, "uint8")
        assert free - comm.heap_usage()[1] <= 2 << 20
        del kept

    on_ranks(body, heap="32M")


def test_memory_that_one_rank_still_uses_stays():
    def body(comm):
        first = comm.zeros(8)
        view = first.numpy()
        if comm.rank == 1:
            first = None
            del view
        second = comm.zeros(8)
        second[:] = 7.0
        if comm.rank == 0:
            assert view.tolist() == [0.0] * 8

    on_ranks(body)


def test_local_arrays_lie_where_they_like_and_are_freed_by_their_rank_alone():
    def body(comm):
        comm.prepare()
        others = [comm.empty(100, local=True) for _ in range(comm.rank)]
        mine = comm.zeros(1000, "float64", local=True)
        mine[:] = comm.rank
        comm.all_reduce(mine, out=mine)
        assert (mine.numpy() == 3.0).all()
        with pytest.raises(ValueError, match="local"):
            mine.peer(0)
        del others

    on_ranks(body)


def test_an_array_outlives_its_communicator():
    def body(comm):
        heap = comm.zeros(5)
        heap[:] = 2.0
        comm.finalize()
        assert heap.numpy().sum() == 10.0

    on_ranks(body)


def test_types_that_numpy_lacks_are_viewed_by_ml_dtypes():
    def body(comm):
        heap = comm.zeros(3, "bfloat16")
        heap[:] = 1.5
        comm.all_reduce(heap, out=heap)
        assert heap.numpy().astype(float).tolist() == [4.5] * 3
        assert np.asarray(heap).dtype == np.uint16

    on_ranks(body)


def test_a_heap_that_is_too_small_says_how_to_have_a_larger_one():
    def body(comm):
        with pytest.raises(shmccl.OutOfMemoryError, match="larger heap"):
            comm.zeros(1 << 40)
        with pytest.raises(MemoryError):
            comm.zeros((1 << 40, 1 << 40))

    on_ranks(body)


def test_a_copy_by_dlpack_is_its_own_and_other_devices_are_refused():
    comm = shmccl.init_all(1)[0]
    array = comm.zeros((2, 300), "float32")
    array[1, 299] = 5.0
    same, copy = np.from_dlpack(array), np.from_dlpack(array, copy=True)
    array[0, 0] = 1.0
    assert same[0, 0] == 1.0 and copy[0, 0] == 0.0 and copy[1, 299] == 5.0
    assert np.from_dlpack(array, device="cpu", copy=False)[0, 0] == 1.0
    assert array.__dlpack__(dl_device=(1, 0), stream=None, max_version=(1, 0))
    with pytest.raises(BufferError, match="not on"):
        array.__dlpack__(dl_device=(2, 0))
    del same, array
    # The copy needs neither the array nor the heap.
    comm.close()
    assert copy[1, 299] == 5.0
    assert np.from_dlpack(shmccl.init_all(1)[0].zeros(0), copy=True).size == 0
