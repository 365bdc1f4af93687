"""Programs with windows as people write them for mpi4py: `shmccl run -n 3 -- python mpi_windows.py`."""

import numpy as np
import shmccl
from shmccl import mpi as MPI


def refuses(kind, call, *arguments, **named):
    try:
        call(*arguments, **named)
    except kind as error:
        return str(error)
    raise AssertionError(f"{call} did not raise {kind}")


def window(count, dtype="d", comm=None):
    """A window of so many elements of each rank, and this rank's memory."""
    size = np.dtype(dtype).itemsize
    win = MPI.Win.Allocate(count * size, disp_unit=size, comm=comm or MPI.COMM_WORLD)
    return win, np.frombuffer(win.tomemory(), dtype)


def each_rank_puts_into_the_next_and_gets_from_it():
    comm = MPI.COMM_WORLD
    win, mine = window(10)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    win.Fence()
    win.Put(np.full(3, comm.rank + 1.0), right, target=2)
    win.Put([np.arange(8.0), 2, MPI.DOUBLE], right, target=[7, 2, MPI.DOUBLE])
    win.Put([np.full(1, 5.0), MPI.DOUBLE], right)
    win.Fence()
    assert mine.tolist() == [5, 0, left + 1, left + 1, left + 1, 0, 0, 0, 1, 0]
    got = np.zeros(4)
    win.Get([got, 3, MPI.DOUBLE], right, (2,))
    win.Rget([got, 1, 3, MPI.DOUBLE], right, [8]).Wait()
    assert got.tolist() == [comm.rank + 1] * 3 + [1]
    win.Put(np.zeros(99), MPI.PROC_NULL)
    win.Get(np.zeros(99), MPI.PROC_NULL)
    win.Fence(MPI.MODE_NOSUCCEED)
    win.Free()
    assert not win and win == MPI.WIN_NULL
    for call in (win.Free, win.tomemory, win.Fence, lambda: win.Put(np.ones(1), 0), lambda: win.Lock(0)):
        refuses(shmccl.InvalidArgumentError, call)


def a_target_has_the_unit_of_its_own_rank():
    comm = MPI.COMM_WORLD
    win = MPI.Win.Allocate(64, disp_unit=8 if comm.rank % 2 else 4, comm=comm)
    mine = np.frombuffer(win.tomemory(), "i4")
    if comm.rank == 0:
        for rank in range(comm.size):
            win.Put(np.array([7], "i4"), rank, 3)
    win.Fence()
    assert np.flatnonzero(mine).tolist() == [6 if comm.rank % 2 else 3]
    assert win.attrs[1:] == (64, 8 if comm.rank % 2 else 4) and win.Get_attr(MPI.WIN_BASE) == mine.ctypes.data
    assert (win.flavor, win.model) == (MPI.WIN_FLAVOR_ALLOCATE, MPI.WIN_UNIFIED)
    win.Free()


def derived_types_are_moved():
    comm = MPI.COMM_WORLD
    win, mine = window(12)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    column = MPI.DOUBLE.Create_vector(3, 1, 4).Commit()
    win.Put(np.arange(3.0) + 10 * comm.rank, right, [1, 1, column])
    win.Fence()
    assert mine.reshape(3, 4)[:, 1].tolist() == [10 * left, 10 * left + 1, 10 * left + 2] and np.count_nonzero(mine) <= 3
    matrix = np.zeros((3, 4))
    win.Get([matrix, 1, column], right, [1, 1, column])
    assert matrix[:, 0].tolist() == [10 * comm.rank + at for at in range(3)] and not matrix[:, 1:].any()
    win.Get([matrix, 1, column], right, [0, 3, MPI.DOUBLE])
    assert matrix[1, 0] == 10 * comm.rank
    win.Free()


def accumulations_of_all_ranks_are_counted():
    comm = MPI.COMM_WORLD
    size, ranks = comm.size, np.arange(comm.size)
    kinds = {"sum": MPI.SUM, "prod": MPI.PROD, "max": MPI.MAX, "min": MPI.MIN}
    for name in ("int8", "uint8", "int16", "int32", "uint32", "int64", "uint64", "float32", "float64"):
        results = {"sum": ranks.sum() + size, "prod": np.prod(ranks + 1.0), "max": size, "min": 1}
        for op, expected in results.items():
            win, mine = window(3, name)
            mine[:] = [5, 0 if op == "sum" else 1 if op == "prod" else 2 if op == "min" else 0, 6]
            win.Fence()
            for rank in range(size):
                win.Accumulate(np.array([comm.rank + 1], name), rank, 1, op=kinds[op])
            win.Fence()
            assert mine.tolist() == [5, expected, 6], (name, op)
            win.Free()
    win, mine = window(2, "complex128")
    win.Accumulate(np.array([1j, 1]), 0, op=MPI.SUM)
    win.Fence()
    assert comm.rank or mine.tolist() == [size * 1j, size]
    win.Free()


def bits_and_truth_values_are_accumulated():
    comm = MPI.COMM_WORLD
    for name in ("uint8", "int32", "uint64"):
        win, mine = window(6, name)
        mine[:] = [255, 0, 0, 1, 0, 0]
        win.Fence()
        bit = np.array([1 << comm.rank], name)
        for at, (op, value) in enumerate([
            (MPI.BAND, 254), (MPI.BOR, bit), (MPI.BXOR, bit), (MPI.LAND, 5), (MPI.LOR, comm.rank), (MPI.LXOR, 1),
        ]):  # fmt: skip
            win.Accumulate(np.array([value], name).ravel(), 0, at, op)
        win.Fence()
        every = (1 << comm.size) - 1
        assert comm.rank or mine.tolist() == [254, every, every, 1, int(comm.size > 1), comm.size % 2], (name, mine)
        win.Free()


def what_was_there_is_fetched():
    comm = MPI.COMM_WORLD
    for name in ("int16", "int32", "int64", "float64", "float32"):
        win, mine = window(4, name)
        one, got = np.ones(1, name), np.zeros(1, name)
        seen = []
        for _ in range(20):
            win.Fetch_and_op(one, got, 0, 2, MPI.SUM)
            seen.append(int(got[0]))
        everyone = comm.allgather(seen)
        assert sorted(sum(everyone, [])) == list(range(20 * comm.size)) and seen == sorted(seen)
        win.Fetch_and_op(one, got, 0, 2, MPI.NO_OP)
        assert got[0] == 20 * comm.size
        comm.Barrier()
        if comm.rank == comm.size - 1:
            whole = np.zeros(4, name)
            win.Get_accumulate(np.arange(4).astype(name), whole, 0, op=MPI.REPLACE)
            assert whole.tolist() == [0, 0, 20 * comm.size, 0]
            win.Rget_accumulate(np.full(4, 2, name), whole, 0, op=MPI.MAX).Wait()
            assert whole.tolist() == [0, 1, 2, 3]
            win.Raccumulate([np.full(1, 9, name), 1], 0, [3, 1], op=MPI.REPLACE).Wait()
            win.Get_accumulate(whole, whole, 0, op=MPI.NO_OP)
            assert whole.tolist() == [2, 2, 2, 9]
        win.Fence()
        assert comm.rank or mine.tolist() == [2, 2, 2, 9]
        win.Free()


def one_rank_wins_a_compare_and_swap():
    comm = MPI.COMM_WORLD
    for name in ("int8", "uint16", "int32", "uint64"):
        win, mine = window(2, name)
        got = np.zeros(1, name)
        win.Compare_and_swap(np.array([comm.rank + 1], name), np.zeros(1, name), got, 0, 1)
        found = comm.allgather(int(got[0]))
        win.Fence()
        assert found.count(0) == 1 and comm.bcast(mine.tolist(), 0) == [0, found.index(0) + 1]
        win.Free()
    win, _ = window(2)
    refuses(TypeError, win.Compare_and_swap, np.ones(1), np.ones(1), np.ones(1), 0)
    win.Free()


def a_lock_keeps_others_away():
    comm = MPI.COMM_WORLD
    win, mine = window(2, "i8")
    got = np.zeros(1, "i8")
    for _ in range(30):
        win.Lock(comm.size - 1, MPI.LOCK_EXCLUSIVE)
        win.Get(got, comm.size - 1, 1)
        win.Flush(comm.size - 1)
        win.Put(got + 1, comm.size - 1, 1)
        win.Unlock(comm.size - 1)
        # Readers see no change between two looks.
        win.Lock(comm.size - 1, MPI.LOCK_SHARED)
        first, second = np.zeros(1, "i8"), np.zeros(1, "i8")
        win.Get(first, comm.size - 1, 1)
        win.Get(second, comm.size - 1, 1)
        win.Unlock(comm.size - 1)
        assert first == second
    win.Fence()
    assert comm.rank < comm.size - 1 or mine.tolist() == [0, 30 * comm.size]
    # All ranks hold shared locks at the same time.
    win.Lock_all(MPI.MODE_NOCHECK)
    comm.Barrier()
    refuses(shmccl.InvalidArgumentError, win.Lock, 0)
    win.Sync()
    win.Flush_local(0)
    win.Flush_local_all()
    win.Flush_all()
    comm.Barrier()
    win.Unlock_all()
    refuses(shmccl.InvalidArgumentError, win.Unlock, 0)
    refuses(shmccl.InvalidArgumentError, win.Lock, 0, 77)
    refuses(shmccl.InvalidRankError, win.Lock, comm.size)
    win.Lock(MPI.PROC_NULL)
    win.Unlock(MPI.PROC_NULL)
    win.Free()


def shared_memory_is_one_piece():
    comm = MPI.COMM_WORLD
    own = 3 + comm.rank
    win = MPI.Win.Allocate_shared(8 * own, 8, comm=comm)
    mine = np.frombuffer(win.tomemory(), "d")
    mine[:] = comm.rank
    comm.Barrier()
    memory, unit = win.Shared_query(MPI.PROC_NULL)
    assert unit == 8 and memory.nbytes == 24
    at = win.Get_attr(MPI.WIN_BASE)
    for rank in range(comm.size):
        theirs = np.frombuffer(win.Shared_query(rank)[0], "d")
        assert theirs.tolist() == [rank] * (3 + rank)
        # Each begins where the one before it ends.
        assert theirs.ctypes.data - at == 8 * (sum(3 + r for r in range(rank)) - sum(3 + r for r in range(comm.rank)))
    win.Fence()
    win.Put(np.full(1, -1.0), comm.size - 1, 1)
    win.Fence()
    assert np.frombuffer(win.Shared_query(comm.size - 1)[0], "d")[1] == -1
    win.Free()
    # The usual program: one rank has all of it.
    win = MPI.Win.Allocate_shared(80 if comm.rank == 0 else 0, 8, comm=comm)
    memory, _ = win.Shared_query(0)
    array = np.ndarray(buffer=memory, dtype="d", shape=(10,))
    array[comm.rank] = comm.rank
    comm.Barrier()
    assert array[: comm.size].tolist() == list(range(comm.size))
    win.Fence()
    win.Free()


def windows_are_made_of_arrays_of_the_heap():
    comm = MPI.COMM_WORLD
    array = comm.shmccl.zeros(8, "int32", local=True)
    part = array.numpy()[comm.rank % 2 :][:6]
    win = MPI.Win.Create(part, 4, comm=comm)
    win.Fence()
    for rank in range(comm.size):
        win.Accumulate(np.array([1], "i4"), rank, 5)
    win.Fence()
    assert part.tolist() == [0] * 5 + [comm.size] and win.flavor == MPI.WIN_FLAVOR_CREATE
    assert bytes(win.tomemory()) == part.tobytes()
    win.Free()
    # Only some ranks have memory.
    win = MPI.Win.Create(array if comm.rank == 0 else None, 4, comm=comm)
    win.Put(np.array([comm.rank + 1], "i4"), 0, comm.rank)
    win.Fence()
    assert comm.rank or array.numpy()[: comm.size].tolist() == [rank + 1 for rank in range(comm.size)]
    win.Free()
    # All fail where one has memory elsewhere.
    wrong = np.zeros(4) if comm.rank == comm.size - 1 else array
    text = refuses((ValueError, MPI.Exception), MPI.Win.Create, wrong, comm=comm)
    assert "Win.Allocate" in text and (comm.rank == comm.size - 1 or f"rank {comm.size - 1} has no memory" in text)


def a_length_that_is_none_on_one_rank_fails_on_all():
    comm = MPI.COMM_WORLD
    for wrong in (-1, "x"):
        size = wrong if comm.rank == 0 else 8
        for make in (MPI.Win.Allocate, MPI.Win.Allocate_shared):
            refuses((TypeError, ValueError, MPI.Exception), make, size, comm=comm)
    comm.Barrier()


def a_result_has_as_many_bytes_as_are_fetched():
    win, mine = window(4)
    win.Lock(0)
    for short in (np.zeros(1), np.zeros(3)):
        refuses(shmccl.WrongCountError, win.Get_accumulate, np.ones(2), short, 0, [1, 2])
    refuses(shmccl.WrongCountError, win.Fetch_and_op, np.ones(1), np.zeros(1, "f4"), 0)
    win.Unlock(0)
    win.Fence()
    assert not mine.any()
    win.Free()


def targets_outside_are_refused_and_nothing_is_moved():
    comm = MPI.COMM_WORLD
    win, mine = window(4)
    for call in (win.Put, win.Get, win.Accumulate):
        for target in (3, -1, [0, 2, MPI.LONG_LONG] if call == win.Accumulate else [4], [1 << 40]):
            refuses((shmccl.OutOfRangeError, shmccl.WrongCountError), call, np.ones(2), 0, target)
        refuses(shmccl.InvalidRankError, call, np.ones(2), comm.size)
        refuses(ValueError, call, np.ones(2), 0, [0, 2, MPI.DOUBLE, 1])
        refuses(ValueError, call, np.ones(2), 0, "x")
        refuses(shmccl.WrongCountError, call, np.ones(2), 0, [0, 3])
    refuses(TypeError, win.Accumulate, np.ones(1), 0, op=MPI.Op.Create(lambda x, y, _: x))
    refuses(TypeError, win.Accumulate, np.ones(1), 0, op=MPI.MAXLOC)
    assert "Win.Allocate" in refuses(AttributeError, getattr, win, "Attach")
    win.Fence()
    assert not mine.any()
    win.Free()


def ranks_post_and_start():
    comm = MPI.COMM_WORLD
    win, mine = window(comm.size)
    group = comm.Get_group()
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for turn in range(20):
        # The left neighbour writes, and this rank writes to the right one.
        win.Post(group.Incl([left]))
        win.Start(group.Incl([right]))
        win.Put(np.full(1, turn + 0.5), right, comm.rank)
        win.Complete()
        if turn % 2:
            win.Wait()
        else:
            while not win.Test():
                pass
        assert mine[left] == turn + 0.5
    # All ranks write to the first one, which takes part in no access of its own.
    if comm.rank == 0:
        others = group.Excl([0])
        win.Post(others)
        assert win.Wait()
        assert mine[1:].tolist() == [7.0] * (comm.size - 1)
    else:
        win.Start(group.Incl([0]))
        win.Put(np.full(1, 7.0), 0, comm.rank)
        win.Complete()
    win.Free()


def a_long_message_comes_while_its_receiver_waits_for_a_lock():
    comm = MPI.COMM_WORLD
    win, _ = window(1)
    got, last = np.zeros(1 << 18), comm.size - 1
    if comm.size > 1 and comm.rank == last:
        win.Lock(0)
        comm.Barrier()
        # It is done when its receiver, which waits for the lock or the post, has taken it.
        comm.Send(np.full(1 << 18, 1.5), 0)
        win.Unlock(0)
        win.Post(comm.group.Incl([0]))
        comm.Send(np.full(1 << 18, 2.5), 0)
        win.Wait()
    elif comm.size > 1:
        requests = [comm.Irecv(got, last) for _ in range(2 if comm.rank == 0 else 0)]
        comm.Barrier()
        win.Lock(0, MPI.LOCK_SHARED)
        win.Unlock(0)
        if comm.rank == 0:
            win.Start(comm.group.Incl([last]))
            win.Complete()
        MPI.Request.Waitall(requests)
        assert comm.rank or (got == 2.5).all()
    comm.Barrier()
    win.Free()


def parts_of_a_communicator_have_windows_of_their_own():
    comm = MPI.COMM_WORLD
    part = comm.Split(comm.rank % 2, -comm.rank)
    win, mine = window(part.size, "i4", part)
    win.Set_name("half")
    assert win.name == "half" and win.group_size == part.size and win.group_rank == part.rank
    for rank in range(part.size):
        win.Put(np.array([comm.rank], "i4"), rank, part.rank)
    win.Fence()
    assert mine.tolist() == [rank for rank in reversed(range(comm.size)) if rank % 2 == comm.rank % 2]
    win.Free()
    own = MPI.Win.Allocate(8)
    own.Put(np.array([3.5]), 0)
    assert np.frombuffer(own.tomemory(), "d")[0] == 3.5 and own.Get_group().size == 1
    own.Free()
    part.Free()


PROGRAMS = [value for name, value in list(globals().items()) if "_" in name and getattr(value, "__module__", "") == __name__]

if __name__ == "__main__":
    for program in PROGRAMS:
        program()
        MPI.COMM_WORLD.Barrier()
