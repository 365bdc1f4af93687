"""Every collective call on arrays of NumPy, of the heap, and of the buffer protocol."""

import array

import ml_dtypes
import numpy as np
import pytest
import shmccl

SIZES = [0, 1, 3, 1000, 70_001]
TYPES = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]


def on_ranks(body, n=3, **settings):
    """Runs `body` on `n` ranks that are processes."""
    return shmccl.launch(body, n, start="fork", timeout=20.0, **settings)


def test_all_reduce_of_every_type_and_size_is_what_numpy_computes():
    def body(comm):
        for name in TYPES:
            for count in SIZES:
                own = (np.arange(count) % 7 + comm.rank).astype(name)
                expected = sum((np.arange(count) % 7 + rank).astype(name) for rank in range(comm.size))
                np.testing.assert_array_equal(comm.all_reduce(own), expected, err_msg=f"{name} {count}")
                comm.all_reduce(own, "sum", own)
                np.testing.assert_array_equal(own, expected)

    on_ranks(body)


@pytest.mark.parametrize("op, combine", [("sum", np.add), ("prod", np.multiply), ("min", np.minimum), ("max", np.maximum)])
def test_all_reduce_combines_as_it_is_told(op, combine):
    def body(comm):
        ranks = [np.array([rank + 1, -rank, 2], dtype="int32") for rank in range(comm.size)]
        expected = combine.reduce(ranks)
        np.testing.assert_array_equal(comm.all_reduce(ranks[comm.rank], op), expected)

    on_ranks(body)


def test_bits_averages_and_factors():
    def body(comm):
        bits = np.array([1 << comm.rank, 3], dtype="uint8")
        assert comm.all_reduce(bits, "bor").tolist() == [7, 3]
        assert comm.all_reduce(bits, "band").tolist() == [0, 3]
        assert comm.all_reduce(bits, "bxor").tolist() == [7, 3]
        assert comm.all_reduce(np.array([float(comm.rank)]), "avg").tolist() == [1.0]
        assert comm.all_reduce(np.array([1.0, 2.0]), shmccl.PreMulSum(0.5)).tolist() == [1.5, 3.0]

    on_ranks(body)


def test_truth_values_and_complex_numbers():
    def body(comm):
        assert comm.all_reduce(np.array([comm.rank == 1, False])).tolist() == [True, False]
        assert comm.all_reduce(np.array([1 + 2j], "complex64")).tolist() == [3 + 6j]

    on_ranks(body)


def test_short_floats_by_the_names_of_ml_dtypes_and_by_an_explicit_type_over_bytes():
    def body(comm):
        for kind in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2):
            own = np.array([1.5, 2.0], dtype=kind)
            comm.all_reduce(own, out=own)
            assert own.astype(float).tolist() == [4.5 if kind is ml_dtypes.bfloat16 else float(kind(4.5)), 6.0]
        bits = np.array([1.5], dtype=ml_dtypes.bfloat16).view("uint16")
        comm.all_reduce(bits, out=bits, dtype="bfloat16")
        assert bits.view(ml_dtypes.bfloat16).astype(float).tolist() == [4.5]

    on_ranks(body)


def test_what_rank_r_gets_of_every_other_call():
    def body(comm):
        rank, n = comm.rank, comm.size
        own = np.array([rank, 10 * rank])
        assert comm.all_gather(own).tolist() == [[r, 10 * r] for r in range(n)]
        assert (comm.gather(own, root=1) is None) == (rank != 1)
        blocks = np.arange(n * 2).reshape(n, 2) + 100 * rank
        assert comm.reduce_scatter(blocks).tolist() == [6 * rank + 300, 6 * rank + 303]
        assert comm.all_to_all(blocks).tolist() == [[2 * rank + 100 * r, 2 * rank + 1 + 100 * r] for r in range(n)]
        got = comm.scatter(blocks if rank == 2 else None, root=2, out=np.empty(2, int))
        assert got.tolist() == [2 * rank + 200, 2 * rank + 201]
        summed = comm.reduce(own, root=2)
        assert summed is None if rank != 2 else summed.tolist() == [3, 30]
        told = np.full(3, rank)
        assert comm.broadcast(told, root=1).tolist() == [1, 1, 1]

    on_ranks(body)


def prefix(values, op=np.add):
    """What each rank gets by a scan, and by an exclusive one, of which the first gets nothing."""
    upto = [op.reduce(values[: rank + 1]) for rank in range(len(values))]
    return upto, [None, *upto[:-1]]


def test_each_rank_gets_what_the_ranks_up_to_it_or_before_it_have():
    def body(comm):
        rank, n = comm.rank, comm.size
        for name in TYPES:
            for count in SIZES:
                ranks = [(np.arange(count) % 7 + r).astype(name) for r in range(n)]
                upto, before = prefix(ranks)
                np.testing.assert_array_equal(comm.scan(ranks[rank]), upto[rank], err_msg=f"{name} {count}")
                got, kept = comm.exscan(ranks[rank]), np.full(count, 9, name)
                assert (got is None) == (rank == 0)
                assert comm.exscan(ranks[rank], out=kept) is (kept if rank else None)
                for result in [kept] if rank == 0 else [got, kept]:
                    np.testing.assert_array_equal(result, np.full(count, 9, name) if rank == 0 else before[rank])
                for call, expected in (comm.scan, upto[rank]), (comm.exscan, before[rank] if rank else ranks[0]):
                    own = ranks[rank].copy()
                    assert call(own, out=own) is (own if rank or call == comm.scan else None)
                    np.testing.assert_array_equal(own, expected, err_msg=f"{name} {count} in place")

    on_ranks(body)
    on_ranks(body, 1)


@pytest.mark.parametrize("op, combine", [("prod", np.multiply), ("min", np.minimum), ("max", np.maximum), ("bxor", np.bitwise_xor)])
def test_prefixes_combine_as_they_are_told(op, combine):
    def body(comm):
        upto, before = prefix([np.array([5 - rank, rank + 2], "int32") for rank in range(comm.size)], combine)
        own = np.array([5 - comm.rank, comm.rank + 2], "int32")
        assert comm.scan(own, op).tolist() == upto[comm.rank].tolist()
        got = comm.exscan(own, op)
        assert got is None if comm.rank == 0 else got.tolist() == before[comm.rank].tolist()

    on_ranks(body, 4)


def test_prefixes_of_averages_factors_truth_values_short_floats_and_complex_numbers():
    def body(comm):
        rank = comm.rank
        assert comm.scan(np.array([2.0 * rank]), "avg").tolist() == [float(rank)]
        averaged = comm.exscan(np.array([2.0 * rank]), "avg")
        assert averaged is None if rank == 0 else averaged.tolist() == [rank - 1.0]
        assert comm.scan(np.array([1.0]), shmccl.PreMulSum(rank + 0.5)).tolist() == [[0.5, 2.0, 4.5][rank]]
        assert comm.scan(np.array([rank == 1, False])).tolist() == [rank > 0, False]
        assert comm.scan(np.array([1 + 2j * rank], "complex64")).tolist() == [[1, 2 + 2j, 3 + 6j][rank]]
        for kind in ("float16", ml_dtypes.bfloat16):
            own = np.array([1.5, rank], dtype=kind)
            comm.scan(own, out=own)
            assert own.astype(float).tolist() == [1.5 * (rank + 1), [0.0, 1.0, 3.0][rank]]
        bits = np.array([1.5], dtype=ml_dtypes.bfloat16).view("uint16")
        comm.scan(bits, out=bits, dtype="bfloat16")
        assert bits.view(ml_dtypes.bfloat16).astype(float).tolist() == [1.5 * (rank + 1)]

    on_ranks(body)


def test_prefixes_of_heap_arrays_in_groups_on_streams_and_started():
    def body(comm):
        rank, n = comm.rank, comm.size
        heap, result = comm.zeros(70_001, "int64"), comm.zeros(70_001, "int64")
        heap.numpy()[:] = rank + 1
        upto = (rank + 1) * (rank + 2) // 2
        staged = comm.staged_bytes
        comm.scan(heap, out=result)
        assert (result.numpy() == upto).all()
        comm.exscan(heap, out=heap)
        assert (heap.numpy() == (upto - rank - 1 if rank else 1)).all() and comm.staged_bytes == staged
        own, first, last = np.full(1000, rank + 1), np.full(1000, -1), np.empty(1000, int)
        # The third call reads what the first one leaves.
        with comm.group():
            comm.scan(own, out=own)
            comm.exscan(np.full(1000, rank + 1), out=first)
            comm.all_reduce(own, "max", out=last)
        assert (own == upto).all() and (first == (upto - rank - 1 if rank else -1)).all()
        assert (last == n * (n + 1) // 2).all()
        with comm.stream() as stream:
            comm.scan(np.full(1000, 2), out=first, stream=stream)
            comm.exscan(np.full(1000, 2), out=last, stream=stream)
        assert (first == 2 * rank + 2).all() and (last == (2 * rank if rank else n * (n + 1) // 2)).all()
        with comm.start() as work:
            comm.scan(own, "max", out=own)
        work.wait()
        assert (own == upto).all()

    on_ranks(body)


def test_prefixes_refuse_outputs_of_other_lengths_and_types_and_no_input():
    def body(comm):
        x = np.ones(4)
        for told, error, call in [
            ("2 elements, expected 4", ValueError, lambda: comm.scan(x, out=x[:2])),
            ("overlap", ValueError, lambda: comm.scan(x[:2], out=x[1:3])),
            ("output of", ValueError, lambda: comm.scan(x, out=np.ones(4, "float32"))),
            ("bxor", ValueError, lambda: comm.scan(x, "bxor")),
        ]:
            with pytest.raises(error, match=told):
                call()
        with pytest.raises(TypeError):
            comm.exscan(None)
        assert comm.scan(x)[0] == comm.rank + 1

    on_ranks(body)


def test_calls_in_place_use_this_ranks_block_of_the_longer_array():
    def body(comm):
        rank, n = comm.rank, comm.size
        whole = np.zeros((n, 2))
        whole[rank] = rank
        comm.all_gather(whole[rank], out=whole)
        assert whole[:, 0].tolist() == [0, 1, 2]
        sums = np.ones((n, 2))
        comm.reduce_scatter(sums, out=sums[rank])
        assert sums[rank].tolist() == [3, 3] and sums.sum() == 6 + 4
        with pytest.raises(ValueError, match="overlap"):
            comm.all_reduce(whole.reshape(-1)[:3], out=whole.reshape(-1)[1:4])
        comm.barrier()

    on_ranks(body)


def test_whether_a_call_is_in_place_is_told_by_lengths_too_and_alike_on_all_ranks():
    def body(comm):
        def calls(x, heap):
            yield "4 elements, expected 8", lambda: comm.all_gather(x, out=x)
            yield "4 elements, expected 8", lambda: comm.all_gather(x, out=x.reshape(2, 2))
            yield "4 elements, expected 2", lambda: comm.reduce_scatter(x, out=x)
            yield "3 elements, expected 2", lambda: comm.reduce_scatter(x, out=x[:3])
            yield "2 elements, expected 4", lambda: comm.all_gather(x[:2], out=x[1:3])
            yield "input has 3 elements, expected a multiple of the 2", lambda: comm.reduce_scatter(x[:3], out=x[:1])
            yield "2 elements, expected 4", lambda: comm.all_reduce(x, out=x[:2])
            yield "4 elements, expected 2", lambda: comm.all_to_all(x[:2], out=x)
            yield "lie apart", lambda: comm.all_to_all(x[:2], out=x[1:3])
            yield "lie apart", lambda: comm.all_to_all_v(x, [1, 3], x, [2, 2])
            yield "lie apart", lambda: comm.all_to_all_v(x, [2, 2], x, [2, 2], sent_at=[2, 0])
            yield "lie apart", lambda: comm.all_gather(x[2 - 2 * comm.rank :][:2], out=x)
            yield "4 elements, expected 8", lambda: comm.all_gather(heap, out=heap)
            yield "4 elements, expected 2", lambda: comm.reduce_scatter(heap.numpy(), out=heap)
            yield "8 elements, expected 16", lambda: comm.all_gather(x, out=x, dtype="float32")

        heap = comm.zeros(4)
        for x in np.arange(4.0) + comm.rank, np.asarray(heap):
            before = x.copy()
            for told, call in calls(x, heap):
                with pytest.raises(ValueError, match=told):
                    call()
                with pytest.raises(ValueError, match=told), comm.group():
                    call()
            assert (x == before).all()
            if comm.rank == 0:
                with pytest.raises(ValueError, match="4 elements, expected 8"):
                    comm.gather(x, 0, out=x)
                with pytest.raises(ValueError, match="4 elements, expected 2"):
                    comm.scatter(x, 0, out=x)
            # Nothing has begun.
            comm.all_to_all_v(x, [2, 2], x, [2, 2])
            assert comm.all_gather(x[2 * comm.rank :][:2], out=x) is x

    on_ranks(body, 2)


def test_any_tag_is_received_from_any_rank():
    def body(comm):
        if comm.rank == 0:
            got = {comm.recv_any(np.zeros(1), tag=None) for _ in range(2)}
            assert got == {1, 2}
        else:
            comm.send(np.ones(1), 0, tag=comm.rank + 70)
        comm.barrier()
        assert comm.rank != 0 or comm.recv_any(np.zeros(1, "int8"), tag=None) == 1
        if comm.rank == 1:
            comm.send(np.zeros(1, "int8"), 0, tag=4294967295)

    on_ranks(body)


def test_numbers_that_are_none_are_refused_by_name():
    comm = shmccl.init_all(1)[0]
    for told, call in [
        ("shape -1 is none", lambda: comm.zeros(-1)),
        (r"shape \(3, -2\) is none", lambda: comm.empty((3, -2))),
        ("color -1 is none", lambda: comm.split(-1)),
        ("a list of .-1. of elements", lambda: comm.all_to_all_v(np.ones(1), [-1], np.ones(1), [1])),
        ("a list of .-1. of elements", lambda: comm.all_to_all_v(np.ones(1), [1], np.ones(1), [1], sent_at=[-1])),
        ("a count of -1", lambda: comm.start_proxy(print, -1)),
        ("step -1 is none", lambda: comm.recover(-1)),
        ("heap= takes", lambda: shmccl.init_all(1, heap=-1)),
        ("heap= takes", lambda: shmccl.init_all(1, heap=True)),
    ]:
        with pytest.raises(ValueError, match=told):
            call()
    for shape in "3", 2.5, None, [1.5]:
        with pytest.raises(TypeError):
            comm.zeros(shape)


def test_blocks_of_different_lengths():
    def body(comm):
        rank, n = comm.rank, comm.size
        sent = [to + 1 for to in range(n)]
        out = np.zeros(n * (rank + 1), dtype="int32")
        comm.all_to_all_v(np.full(sum(sent), rank, "int32"), sent, out, [rank + 1] * n)
        assert out.tolist() == [r for r in range(n) for _ in range(rank + 1)]

    on_ranks(body)


def test_messages_and_groups_of_them():
    def body(comm):
        rank = comm.rank
        if rank == 0:
            comm.send(np.array([1.0, 2.0]), 1)
        elif rank == 1:
            assert comm.recv(np.zeros(2), 0).tolist() == [1.0, 2.0]
        if rank == 2:
            sources = {comm.recv_any(np.zeros(1), tag=7) for _ in range(2)}
            assert sources == {0, 1}
        else:
            comm.send(np.ones(1), 2, tag=7)
        mine, theirs = np.full(50_000, rank), np.zeros(50_000, int)
        with comm.group():
            comm.send(mine, comm.right)
            comm.recv(theirs, comm.left)
        assert (theirs == comm.left).all()

    on_ranks(body)


def test_bytes_arrays_and_views_without_numpy_are_operands_too():
    def body(comm):
        numbers = array.array("d", [comm.rank, 1.0])
        comm.all_reduce(numbers, out=numbers)
        assert numbers.tolist() == [3.0, 3.0]
        text = bytearray(b"rank?")
        if comm.rank == 0:
            text[:] = b"zero!"
        comm.broadcast(memoryview(text))
        assert bytes(text) == b"zero!"

    on_ranks(body)


def test_wrong_arguments_name_the_remedy_and_leave_the_job_as_it_was():
    def body(comm):
        for wrong, message in [
            (lambda: comm.all_reduce(np.zeros((4, 4))[:, 1]), "ascontiguousarray"),
            (lambda: comm.recv(np.zeros((4, 4))[:, 1], 0), "pass one that is, and copy from it"),
            (lambda: comm.broadcast(LentByDlpack(np.zeros((4, 4))[:, 1])), "pass one that is, and copy from it"),
            (lambda: comm.all_reduce(np.array([None, 1])), 'pickle them'),
            (lambda: comm.all_reduce(b"read only", out=b"read only"), "read-only"),
            (lambda: comm.all_reduce(np.zeros(2), "median"), "expected sum"),
            (lambda: comm.all_reduce(np.zeros(2), out=np.zeros(3)), "elements received is 3"),
            (lambda: comm.all_reduce(np.zeros(2), out=np.zeros(2, "float32")), "float32"),
            (lambda: comm.all_reduce(np.array(["text"])), "dtype="),
            (lambda: comm.all_reduce(3.0, out=np.zeros(1)), "expected an array"),
            (lambda: comm.broadcast(np.zeros(2), root=7), "rank 7 does not exist"),
            (lambda: comm.broadcast(np.zeros(2), root=-1), "rank -1 does not exist"),
            (lambda: comm.send(np.zeros(2), 1 << 40), "does not exist"),
            (lambda: comm.send(np.zeros(2), 0, tag=-1), "tag -1 is none"),
            (lambda: comm.channel(-2), "rank -2 does not exist"),
            (lambda: comm.grow(-2), "-2 is out of range"),
        ]:
            with pytest.raises((ValueError, TypeError), match=message):
                wrong()
        assert comm.all_reduce(np.ones(1)).tolist() == [3.0]

    on_ranks(body)


def test_ranks_in_different_calls_are_told_so():
    def body(comm):
        with pytest.raises(shmccl.CallMismatchError, match="all_reduce"):
            if comm.rank == 0:
                comm.all_reduce(np.zeros(4))
            else:
                comm.broadcast(np.zeros(4))
        comm.close()

    on_ranks(body, n=2)


class LentByDlpack:
    """Has its elements to lend by DLPack, and nothing else."""

    def __init__(self, elements):
        self.elements = elements

    def __dlpack__(self, **wishes):
        return self.elements.__dlpack__(**wishes)

    def __dlpack_device__(self):
        return self.elements.__dlpack_device__()


def test_what_is_lent_by_dlpack_only_has_results_as_well():
    def body(comm):
        own = np.arange(4, dtype="float32") + comm.rank
        np.testing.assert_array_equal(comm.all_reduce(LentByDlpack(own)), np.arange(4, dtype="float32") * comm.size + 3)
        gathered = comm.all_gather(LentByDlpack(own))
        np.testing.assert_array_equal(gathered, comm.all_gather(own))

    on_ranks(body)


@pytest.mark.parametrize("count", [1, 64, 1000, 100_000])
def test_calls_of_a_group_that_share_memory_are_done_one_after_the_other(count):
    def body(comm):
        n = comm.size
        cases = [("min", "sum", n), ("sum", "max", n * (n + 1) // 2), ("sum", "sum", n * n * (n + 1) // 2)]
        for x in (comm.zeros(count, "float64").numpy(), np.zeros(count)):
            for first, second, expected in cases:
                x[:] = comm.rank + 1
                with comm.group():
                    comm.all_reduce(x, first, out=x)
                    comm.all_reduce(x, second, out=x)
                assert (x == expected).all(), (first, second, x[0])
                x[:] = comm.rank + 1
                with comm.start() as work:
                    comm.all_reduce(x, first, out=x)
                    comm.all_reduce(x, second, out=x)
                work.wait()
                assert (x == expected).all(), (first, second, x[0])

    on_ranks(body)


def test_parts_of_an_array_are_passed_from_call_to_call_of_a_group_on_one_rank_alone():
    def body(comm):
        for count in (2, 50, 5000, 60_000):
            heap = comm.zeros(4 * count, "int64").numpy()
            both = heap if comm.rank == 1 else np.zeros(4 * count, "int64")
            own, total, copy, rest = np.split(both, 4)
            own[:], total[:] = comm.rank + 1, 100
            sent = both[count // 2 : count // 2 + count] if comm.rank == 1 else own
            with comm.group():
                comm.all_reduce(own, out=total)
                comm.all_reduce(sent, "max", out=copy)
                comm.all_reduce(copy, "max", out=rest)
            expected = np.full(count, 6)
            expected[: count - count // 2] = 3
            assert (total == 6).all() and (copy == expected).all() and (rest == expected).all()

    on_ranks(body)


def test_blocks_of_their_own_lengths_come_in_their_turn_in_a_group():
    def body(comm):
        n, rank = comm.size, comm.rank
        for count in (1, 100, 20_000):
            blocks, turned = np.repeat(np.arange(n) + 10 * rank, count), np.zeros(n * count, int)
            with comm.group():
                comm.all_to_all_v(blocks, [count] * n, turned, [count] * n)
                comm.all_reduce(turned, out=turned)
            assert (turned == np.repeat(10 * n * np.arange(n) + n * (n - 1) // 2, count)).all()

    on_ranks(body)


def test_calls_of_a_group_that_share_memory_and_have_no_order_are_refused():
    def body(comm):
        other, x, y = comm.duplicate(), np.ones(8), np.zeros(4)
        with pytest.raises(ValueError, match="shares memory with a message"), comm.group():
            comm.recv(x, comm.left)
            comm.all_reduce(x[4:], out=y)
            comm.send(y, comm.right)
        with pytest.raises(ValueError, match="share memory"), shmccl.group(comm, other):
            comm.all_reduce(x, out=x)
            other.all_reduce(x[:4], out=y)
        assert (x == 1).all() and (y == 0).all()
        with shmccl.group(comm, other):
            comm.all_reduce(x, out=np.zeros(8))
            other.all_reduce(x[:4], out=y)
        assert (y == comm.size).all()

    on_ranks(body)
