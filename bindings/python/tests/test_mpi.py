"""The upper-case names of mpi4py."""

import array
import ctypes
import importlib.util

import ml_dtypes
import numpy as np
import pytest
import shmccl
from shmccl import mpi as MPI
from shmccl._core import _Part
from test_collectives import on_ranks


def test_calls_by_the_names_of_mpi4py():
    def body(comm):
        comm = MPI.Comm(comm)
        rank, size = comm.Get_rank(), comm.Get_size()
        total = np.zeros(2)
        comm.Allreduce(np.array([rank, 1.0]), total, op=MPI.SUM)
        assert total.tolist() == [3.0, 3.0]
        comm.Allreduce(MPI.IN_PLACE, [total, MPI.DOUBLE], op=MPI.MAX)
        comm.Bcast(total, root=1)
        rows = np.zeros((size, 2))
        rows[rank] = rank
        comm.Allgather(MPI.IN_PLACE, rows)
        assert rows[:, 1].tolist() == [0.0, 1.0, 2.0]
        part = np.zeros(2)
        comm.Scatter(rows, part, root=0)
        assert part[0] == rank
        comm.Reduce_scatter_block(np.ones((size, 2)), part)
        assert part.tolist() == [3.0, 3.0]
        gathered = np.zeros((size, 2)) if rank == 2 else None
        comm.Gather(part, gathered, root=2)
        summed = np.zeros(2)
        comm.Reduce(part, summed, op=MPI.SUM, root=1)
        assert summed[0] == (9.0 if rank == 1 else 0.0)
        theirs = np.zeros(1, int)
        comm.Sendrecv(np.array([rank]), (rank + 1) % size, 0, theirs, (rank - 1) % size, 0)
        assert theirs[0] == (rank - 1) % size
        if rank == 0:
            assert {comm.Recv(theirs, MPI.ANY_SOURCE, tag=3) for _ in range(2)} == {1, 2}
        else:
            comm.Send(theirs, 0, tag=3)
        assert comm.Split(MPI.UNDEFINED if rank else 0) is None or rank == 0
        comm.Barrier()

    on_ranks(body)


def test_prefix_reductions():
    def body(comm):
        comm = MPI.Comm(comm)
        rank, own, got = comm.rank, np.array([comm.rank + 1, 10]), np.full(2, -1)
        upto, before = [[1, 10], [3, 20], [6, 30]], [[-1, -1], [1, 10], [3, 20]]
        comm.Scan(own, got)
        assert got.tolist() == upto[rank]
        got[:] = -1
        comm.Exscan([own, MPI.LONG], [got, MPI.LONG], op=MPI.SUM)
        assert got.tolist() == before[rank]
        got = own.copy()
        comm.Scan(MPI.IN_PLACE, got, op=MPI.MAX)
        assert got.tolist() == own.tolist()
        comm.Exscan(MPI.IN_PLACE, got)
        assert got.tolist() == (before[rank] if rank else own.tolist())
        comm.Exscan(own, got if rank else None, MPI.PROD)
        assert got.tolist() == [[1, 10], [1, 10], [2, 100]][rank]
        comm.Iscan(own, got, MPI.SUM).Wait()
        assert got.tolist() == upto[rank]
        requests = [comm.Iexscan(own, got), comm.Iscan(MPI.IN_PLACE, own)]
        MPI.Request.Waitall(requests)
        assert got.tolist() == (before[rank] if rank else upto[0]) and own.tolist() == upto[rank]

    on_ranks(body)


SPECS = [
    (lambda x: x, slice(0, 6)),
    (lambda x: [x], slice(0, 6)),
    (lambda x: [x, MPI.LONG], slice(0, 6)),
    (lambda x: [x, "l"], slice(0, 6)),
    (lambda x: [x, 3, MPI.LONG], slice(0, 3)),
    (lambda x: [x, 3], slice(0, 3)),
    (lambda x: [x, 2, 3, MPI.LONG], slice(3, 5)),
    (lambda x: [x, (2, 3), MPI.LONG], slice(3, 5)),
    (lambda x: (x, (2, 3)), slice(3, 5)),
    (lambda x: [x, 0, MPI.LONG], slice(0, 0)),
    (lambda x: [x, 16, 8, MPI.BYTE], slice(1, 3)),
    (lambda x: [x, None, 4, MPI.LONG], slice(4, 6)),
]


def move(comm, spec, moved):
    sent, expected = np.arange(6), np.full(6, -1)
    expected[moved] = sent[moved]
    got = sent.copy() if comm.rank == 0 else np.full(6, -1)
    comm.Bcast(spec(got), root=0)
    assert got.tolist() == (sent if comm.rank == 0 else expected).tolist()
    got = np.full(6, -1)
    comm.Sendrecv(spec(sent), (comm.rank + 1) % 3, 0, spec(got), (comm.rank + 2) % 3)
    assert got.tolist() == expected.tolist()
    got = np.full(6, -1)
    comm.Allreduce(spec(sent), spec(got), op=MPI.MAX)
    assert got.tolist() == expected.tolist()
    comm.Iallreduce(MPI.IN_PLACE, spec(sent), op=MPI.MIN).Wait()
    comm.Iscan(MPI.IN_PLACE, spec(sent), op=MPI.MIN).Wait()
    assert sent.tolist() == list(range(6))


def test_a_count_and_a_displacement_say_what_is_moved_by_every_kind_of_call():
    def body(comm):
        for spec, moved in SPECS:
            move(MPI.Comm(comm), spec, moved)

    on_ranks(body)


def test_a_buffer_that_is_too_short_for_its_count_is_refused():
    comm = MPI.Comm(shmccl.init_all(1)[0])
    for spec in [[np.arange(6), 7, MPI.LONG], [np.arange(6), 3, 4, MPI.LONG], [np.arange(6), 13, MPI.INT]]:
        with pytest.raises(ValueError, match="elements of int.* has no"):
            comm.Bcast(spec)
    for spec in [[], [np.arange(6), 1, 2, 3, MPI.LONG]]:
        with pytest.raises(ValueError, match="names no buffer"):
            comm.Bcast(spec)


def ones_of_every_kind():
    """Arrays of two ones for each of three ranks."""
    yield from (np.ones((3, 2), dtype) for dtype in ("f8", "c8", "c16", "e", "?", "u2", ml_dtypes.bfloat16))
    yield from (array.array("l", [1] * 6), (ctypes.c_double * 2 * 3)(*[(1, 1)] * 3))
    # The package needs no torch, and neither do these tests.
    if importlib.util.find_spec("torch"):
        import torch

        yield from (torch.ones(3, 2, dtype=dtype) for dtype in (torch.float32, torch.bfloat16, torch.complex64))


def in_place(comm, whole):
    """Each call in place begins with nothing but this rank's own block."""
    ones = bytes(_Part(whole, "uint8"))
    own = _Part(whole, None, 2 * comm.rank, 2)
    one = bytes(own)

    def only_own():
        _Part(whole, "uint8").write(bytes(len(ones)))
        own.write(one)

    only_own()
    comm.Allgather(MPI.IN_PLACE, whole)
    assert bytes(_Part(whole)) == ones
    only_own()
    comm.Gather(MPI.IN_PLACE if comm.rank == 1 else [whole, 2, 2 * comm.rank], whole, root=1)
    assert comm.rank != 1 or bytes(_Part(whole)) == ones
    comm.Scatter(whole, MPI.IN_PLACE if comm.rank == 1 else [whole, 2], root=1)
    assert bytes(_Part(whole))[: len(one)] == one
    _Part(whole, "uint8").write(ones)
    comm.Alltoall(MPI.IN_PLACE, whole)
    comm.Iallgather(MPI.IN_PLACE, whole).Wait()
    assert bytes(_Part(whole)) == ones
    only_own()
    comm.Allreduce(MPI.IN_PLACE, whole, op=MPI.SUM)
    assert bytes(_Part(whole)) == ones
    only_own()
    comm.Reduce_scatter_block(MPI.IN_PLACE, whole)
    assert bytes(_Part(whole))[: len(one)] == one


def test_calls_in_place_take_arrays_of_every_kind():
    def body(comm):
        for whole in ones_of_every_kind():
            in_place(MPI.Comm(comm), whole)

    on_ranks(body)


def test_a_result_in_place_of_reduce_scatter_goes_to_the_begin_of_the_buffer():
    def body(comm):
        rows = np.arange(6.0).reshape(3, 2)
        MPI.Comm(comm).Reduce_scatter_block(MPI.IN_PLACE, rows)
        assert rows.tolist() == [[6.0 * comm.rank, 6.0 * comm.rank + 3.0], [2.0, 3.0], [4.0, 5.0]]

    on_ranks(body)


def test_empty_arrays_are_taken_in_place():
    def body(comm):
        comm, nothing = MPI.Comm(comm), np.empty((3, 0))
        comm.Allgather(MPI.IN_PLACE, nothing)
        comm.Allreduce(MPI.IN_PLACE, nothing)
        comm.Reduce_scatter_block(MPI.IN_PLACE, nothing)
        comm.Gather(MPI.IN_PLACE if comm.rank == 0 else nothing[0], nothing, root=0)

    on_ranks(body)


def test_a_receive_takes_any_source_and_any_tag_unless_it_names_them():
    def body(comm):
        comm, got, status = MPI.Comm(comm), np.zeros(2, "i4"), MPI.Status()
        if comm.rank:
            for number in range(4):
                comm.Send(np.array([comm.rank, number], "i4"), 0, tag=10 * comm.rank + number)
        else:
            comm.Recv(got, 2, 22, status)
            assert (status.Get_source(), status.Get_tag(), status.Get_count(MPI.INT), got.tolist()) == (2, 22, 2, [2, 2])
            # The ones that were passed over come in their order.
            tags = []
            for _ in range(3):
                comm.Recv(got, source=2, status=status)
                tags.append(status.tag)
                assert got.tolist() == [2, status.tag - 20]
            assert tags == [20, 21, 23]
            for number in range(3):
                assert comm.Recv([got, MPI.INT], status=status) == 1 == status.source
                assert (status.tag, status.count) == (10 + number, 8)
            request = comm.Irecv(got)
            request.Wait(status)
            assert (status.source, status.tag, got.tolist()) == (1, 13, [1, 3])
            assert comm.Recv(got, MPI.PROC_NULL, status=status) == MPI.PROC_NULL == status.source

    on_ranks(body)


def test_messages_that_are_begun_cross():
    def body(comm):
        comm, right, left = MPI.Comm(comm), (comm.rank + 1) % 3, (comm.rank + 2) % 3
        for length in (1, 100_000):
            sent, got, status = np.full(length, comm.rank), np.full(length, -1), MPI.Status()
            requests = [comm.Irecv(got, left, 5), comm.Isend(sent, right, 5)]
            MPI.Request.Waitall(requests)
            assert (got == left).all()
            comm.Sendrecv_replace(got, right, 1, MPI.ANY_SOURCE, MPI.ANY_TAG, status)
            assert (got == (left + 2) % 3).all() and (status.source, status.tag) == (left, 1)
            comm.Sendrecv(sent, comm.rank, 2, got, comm.rank)
            assert (got == comm.rank).all()

    on_ranks(body)


def test_blocks_of_lengths_of_their_own():
    def body(comm):
        comm, rank = MPI.Comm(comm), comm.rank
        own, counts, at = np.full(rank + 1, rank), [1, 2, 3], [8, 5, 0]
        expected = [2, 2, 2, -1, -1, 1, 1, -1, 0, -1]
        got = np.full(10, -1)
        comm.Allgatherv(own, [got, counts, at, MPI.LONG])
        assert got.tolist() == expected
        got = np.full(10, -1)
        got[at[rank] : at[rank] + counts[rank]] = rank
        comm.Allgatherv(MPI.IN_PLACE, [got, (counts, at), MPI.LONG])
        assert got.tolist() == expected
        got = np.full(10, -1)
        comm.Gatherv(own, [got, counts, at, MPI.LONG] if rank == 1 else None, root=1)
        assert got.tolist() == (expected if rank == 1 else [-1] * 10)
        part = np.full(rank + 1, -1)
        comm.Scatterv([np.array(expected), counts, at, MPI.LONG] if rank == 1 else None, part, root=1)
        assert part.tolist() == own.tolist()
        rows, theirs = np.repeat([0, 1, 2], counts), np.full(3 * (rank + 1), -1)
        comm.Alltoallv([rows, counts], [theirs, rank + 1])
        assert theirs.tolist() == [rank] * len(theirs)

    on_ranks(body)


def test_a_local_reduction_leaves_out_what_goes_beyond_the_type():
    for dtype, op, before, behind, expected in [
        ("i1", MPI.SUM, 100, 100, -56),
        ("u1", MPI.PROD, 16, 17, 16),
        ("i8", MPI.SUM, 2**63 - 1, 1, -(2**63)),
        ("u8", MPI.SUM, 2**64 - 1, 2, 1),
        ("f4", MPI.PROD, 3e38, 10, np.inf),
        ("f8", MPI.PROD, -1e308, 10, -np.inf),
        ("c8", MPI.SUM, 3e38, 3e38, complex(np.inf, 0)),
        ("?", MPI.SUM, True, True, True),
    ]:
        result = np.array([behind], dtype)
        op.Reduce_local(np.array([before], dtype), result)
        assert result[0] == expected, dtype


def test_what_programs_of_mpi4py_ask_of_the_module():
    assert MPI.Wtime() <= MPI.Wtime() and MPI.Wtick() < 1 and MPI.Get_processor_name()
    assert [kind.Get_size() for kind in (MPI.INT, MPI.DOUBLE, MPI.BOOL, MPI.DOUBLE_COMPLEX, MPI.CHAR)] == [4, 8, 1, 16, 1]
    with pytest.raises(AttributeError, match="COMM_UNIVERSE"):
        MPI.COMM_UNIVERSE
