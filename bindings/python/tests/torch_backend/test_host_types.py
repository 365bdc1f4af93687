"""Every type over the collectives of a group whose ranks are on several hosts, which these tests make up."""

import functools
import operator

import pytest
import torch
import torch.distributed as dist
from test_hosts import on_hosts, pytestmark  # noqa: F401
from torch.distributed import ReduceOp
from torch_ranks import run

UNSIGNED = (torch.uint8, torch.uint16, torch.uint32, torch.uint64)
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, *UNSIGNED)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2)
COMPLEX = (torch.complex64, torch.complex128)
REDUCED = (torch.bool, *INTEGERS, *FLOATS, *COMPLEX)
FOLDS = {
    ReduceOp.SUM: operator.add, ReduceOp.PRODUCT: operator.mul, ReduceOp.MIN: min, ReduceOp.MAX: max,
    ReduceOp.BAND: operator.and_, ReduceOp.BOR: operator.or_, ReduceOp.BXOR: operator.xor,
}
BITWISE = (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)


def numbers(rank, count, dtype):
    """Numbers that each type holds, and integers of which sums wrap around."""
    if dtype == torch.bool:
        return [(i + rank) % 2 == 0 for i in range(count)]
    if dtype in INTEGERS:
        return [torch.iinfo(dtype).max // (i % 3 + 1) - rank for i in range(count)]
    return [i % 2 + (rank % 2) * (1j if dtype in COMPLEX else 1) for i in range(count)]


def operators(dtype):
    if dtype in COMPLEX:
        return [ReduceOp.SUM]
    return [op for op in FOLDS if dtype not in FLOATS or op not in BITWISE]


def fit(number, dtype):
    """A number as the type holds it."""
    if dtype not in INTEGERS:
        return number
    info = torch.iinfo(dtype)
    return (number - info.min) % (1 << info.bits) + info.min


def divided(number, count, dtype):
    if dtype not in INTEGERS:
        return number / count
    return abs(number) // count * (1 if number >= 0 else -1)


def cases(dtype, n, count):
    """Each operator, and what it makes of the numbers of all ranks."""
    columns = list(zip(*(numbers(rank, count, dtype) for rank in range(n))))
    for op in operators(dtype):
        yield op, [fit(functools.reduce(FOLDS[op], column), dtype) for column in columns]
    if dtype != torch.bool:
        sums = [fit(sum(column), dtype) for column in columns]
        yield ReduceOp.AVG, [divided(number, n, dtype) for number in sums]
        yield dist._make_nccl_premul_sum(2.0), [fit(2 * number, dtype) for number in sums]


def assert_same(tensor, wanted, *case):
    assert tensor.dtype == wanted.dtype and torch.equal(tensor.view(-1).view(torch.uint8), wanted.view(-1).view(torch.uint8)), (
        case, tensor, wanted)


def reductions(dtype):
    def program(rank, n):
        count = 4
        for op, results in cases(dtype, n, n * count):
            mine, wanted = (torch.tensor(of, dtype=dtype) for of in (numbers(rank, n * count, dtype), results))
            tensor = mine.clone()
            dist.all_reduce(tensor, op)
            assert_same(tensor, wanted, "all_reduce", op)
            for root in range(n):
                tensor = mine.clone()
                dist.reduce(tensor, root, op)
                assert_same(tensor, wanted if rank == root else mine, "reduce", op)
            share, part = torch.empty(count, dtype=dtype), wanted[rank * count:][:count]
            dist.reduce_scatter_tensor(share, mine, op)
            assert_same(share, part, "reduce_scatter_tensor", op)
            dist.reduce_scatter(share.zero_(), list(mine.split(count)), op)
            assert_same(share, part, "reduce_scatter", op)

    return program


@pytest.mark.parametrize("dtype", REDUCED, ids=str)
def test_hosts_reduce_each_type_as_one_host_does(dtype, tmp_path):
    run(3, on_hosts(reductions(dtype), "aab"), str(tmp_path / "store"))


def large(rank, n):
    for dtype in REDUCED:
        count = (4 << 20) // dtype.itemsize + 3
        tensor = torch.ones(count, dtype=torch.int8).to(dtype)
        dist.all_reduce(tensor, ReduceOp.SUM)
        assert_same(tensor, torch.full((count,), n, dtype=torch.int8).to(dtype), dtype)


def test_hosts_reduce_each_type_in_shares(tmp_path):
    run(4, on_hosts(large, "aabb"), str(tmp_path / "store"))


def refused(rank, n):
    tensor, share = torch.zeros(2 * n).to(torch.float8_e4m3fnuz), torch.zeros(2).to(torch.float8_e4m3fnuz)
    for call in (dist.all_reduce, lambda tensor: dist.reduce(tensor, 0), lambda tensor: dist.reduce_scatter_tensor(share, tensor)):
        with pytest.raises(TypeError, match="cannot reduce tensors of type.*only move them"):
            call(tensor)
    with pytest.raises(TypeError, match="complex numbers"):
        dist.reduce_scatter_tensor(torch.ones(2, dtype=torch.complex64), torch.ones(2 * n, dtype=torch.complex64), ReduceOp.PRODUCT)


def test_hosts_refuse_to_reduce_what_one_host_does_not_reduce(tmp_path):
    run(3, on_hosts(refused, "aab"), str(tmp_path / "store"))


def mine(rank, dtype, shape=(2, 3)):
    size = torch.Size(shape).numel() * dtype.itemsize
    tensor = ((torch.arange(size) * 7 + rank) % 251).to(torch.uint8)
    return (tensor % 2).to(torch.bool).view(shape) if dtype == torch.bool else tensor.view(dtype).view(shape)


def moves(dtype):
    def program(rank, n):
        every, own = [mine(peer, dtype) for peer in range(n)], mine(rank, dtype)
        blank = functools.partial(torch.zeros_like, own)
        for root in range(n):
            tensor = own.clone()
            dist.broadcast(tensor, root)
            assert_same(tensor, every[root], "broadcast")
            gathered = [blank() for _ in range(n)] if rank == root else None
            dist.gather(own, gathered, root)
            [assert_same(*pair, "gather") for pair in zip(gathered or [], every)]
            tensor = blank()
            dist.scatter(tensor, every if rank == root else None, root)
            assert_same(tensor, own, "scatter")
        gathered = [blank() for _ in range(n)]
        dist.all_gather(gathered, own)
        [assert_same(*pair, "all_gather") for pair in zip(gathered, every)]
        # Not in one row.
        gathered = [blank().t().contiguous().t() for _ in range(n)]
        dist.all_gather(gathered, own)
        [assert_same(one.contiguous(), wanted, "all_gather") for one, wanted in zip(gathered, every)]
        whole = torch.zeros(2 * n, 3).to(dtype)
        dist.all_gather_into_tensor(whole, own)
        assert_same(whole, torch.cat(every), "all_gather_into_tensor")
        exchanges(rank, n, dtype)

    return program


def exchanges(rank, n, dtype):
    """Between all pairs: rank `a` has `b + 1` rows for rank `b`."""
    rows = [mine(rank, dtype, (peer + 1, 3)) for peer in range(n)]
    wanted = [mine(peer, dtype, (rank + 1, 3)) for peer in range(n)]
    received = [torch.zeros_like(tensor) for tensor in wanted]
    dist.all_to_all(received, rows)
    [assert_same(*pair, "all_to_all") for pair in zip(received, wanted)]
    whole = torch.zeros(n * (rank + 1), 3).to(dtype)
    dist.all_to_all_single(whole, torch.cat(rows), [rank + 1] * n, [peer + 1 for peer in range(n)])
    assert_same(whole, torch.cat(wanted), "all_to_all_single")
    received = [torch.zeros_like(tensor) for tensor in wanted]
    works = [dist.isend(rows[peer], peer) for peer in range(n) if peer != rank]
    works += [dist.irecv(received[peer], peer) for peer in range(n) if peer != rank]
    [work.wait() for work in works]
    [assert_same(received[peer], wanted[peer], "recv") for peer in range(n) if peer != rank]


@pytest.mark.parametrize("dtype", (*REDUCED, torch.float8_e4m3fnuz), ids=str)
def test_hosts_move_each_type(dtype, tmp_path):
    run(3, on_hosts(moves(dtype), "aab"), str(tmp_path / "store"))


def edges(rank, n):
    dist.all_gather([torch.empty(0) for _ in range(n)], torch.empty(0))
    dist.all_to_all_single(torch.empty(0, 3), torch.empty(0, 3))
    turned = torch.full((2,), complex(0, rank + 1)).conj()
    gathered = [torch.zeros(2, dtype=torch.complex64).conj() for _ in range(n)] if rank == 0 else None
    dist.gather(turned, gathered)
    assert rank or [one[0].item() for one in gathered] == [complex(0, -peer - 1) for peer in range(n)]
    with pytest.raises((ValueError, RuntimeError), match="divide equally"):
        dist.all_to_all_single(torch.empty(3), torch.empty(3))


def test_hosts_move_what_is_empty_or_conjugate_and_count_rows(tmp_path):
    run(2, on_hosts(edges, "ab"), str(tmp_path / "store"))
