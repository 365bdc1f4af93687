"""Every collective, with every count, type and operator, at once and asynchronously."""

import itertools

import pytest
import torch
import torch.distributed as dist
from torch_ranks import IS_SHIM, run
from torch.distributed import ReduceOp

COUNTS = (0, 4, 7)
FLOATS = (torch.float16, torch.float32, torch.float64, torch.bfloat16)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
TYPES = (*FLOATS, *INTEGERS, torch.bool)
PLAIN = (ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX)
BITS = (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)
BOTH = (False, True)
ONLY_MOVED = (torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)


def value(rank, dtype):
    return rank % 2 if dtype == torch.bool else rank + 1


def mine(rank, count, dtype):
    return torch.full((count,), value(rank, dtype), dtype=torch.float32).to(dtype)


def expected(n, count, dtype, op):
    values = torch.tensor([value(rank, dtype) for rank in range(n)])
    if dtype == torch.bool:
        some, every = bool(values.any()), bool(values.all())
        result = {ReduceOp.SUM: some, ReduceOp.MAX: some, ReduceOp.BOR: some, ReduceOp.PRODUCT: every, ReduceOp.MIN: every,
                  ReduceOp.BAND: every, ReduceOp.BXOR: bool(values.sum() % 2)}[op]
        return torch.full((count,), result)
    result = values[0].clone()
    for other in values[1:]:
        if op in (ReduceOp.SUM, ReduceOp.AVG):
            result += other
        elif op == ReduceOp.PRODUCT:
            result *= other
        elif op == ReduceOp.MIN:
            result = torch.minimum(result, other)
        elif op == ReduceOp.MAX:
            result = torch.maximum(result, other)
        elif op == ReduceOp.BAND:
            result &= other
        elif op == ReduceOp.BOR:
            result |= other
        else:
            result ^= other
    if op == ReduceOp.AVG:
        result = result.double() / n
    return torch.full((count,), result.item(), dtype=torch.float64).to(dtype)


def finished(work, is_async):
    if is_async:
        assert work.wait()
        assert not IS_SHIM or work.is_completed() and work.is_success()
    else:
        assert work is None


def operators(dtype):
    if dtype in FLOATS:
        return (*PLAIN, ReduceOp.AVG)
    return (*PLAIN, *BITS)


def reducing(test):
    """Calls `test(count, dtype, op, is_async)` for all that can be reduced."""
    for count, dtype in itertools.product(COUNTS, TYPES):
        for op, is_async in itertools.product(operators(dtype), BOTH):
            test(count, dtype, op, is_async)


def moving(test):
    for count, dtype, is_async in itertools.product(COUNTS, (*TYPES, torch.complex64, *ONLY_MOVED), BOTH):
        test(count, dtype, is_async)


def equal(a, b, *what):
    assert a.dtype == b.dtype and a.shape == b.shape, what
    if a.dtype in ONLY_MOVED:
        a, b = a.view(torch.uint8), b.view(torch.uint8)
    assert torch.equal(a, b), (what, a, b)


def all_reduce(rank, n):
    def one(count, dtype, op, is_async):
        tensor = mine(rank, count, dtype)
        finished(dist.all_reduce(tensor, op, async_op=is_async), is_async)
        equal(tensor, expected(n, count, dtype, op), dtype, op)
    reducing(one)


def reduce(rank, n):
    def one(count, dtype, op, is_async):
        for root in range(n):
            tensor = mine(rank, count, dtype)
            finished(dist.reduce(tensor, root, op, async_op=is_async), is_async)
            if rank == root:
                equal(tensor, expected(n, count, dtype, op), dtype, op)
    reducing(one)


def reduce_scatter(rank, n):
    def one(count, dtype, op, is_async):
        output = torch.empty(count, dtype=dtype)
        inputs = [mine(rank, count, dtype) for _ in range(n)]
        finished(dist.reduce_scatter(output, inputs, op, async_op=is_async), is_async)
        equal(output, expected(n, count, dtype, op), dtype, op)
        output = torch.empty(count, dtype=dtype)
        finished(dist.reduce_scatter_tensor(output, torch.cat(inputs), op, async_op=is_async), is_async)
        equal(output, expected(n, count, dtype, op), dtype, op)
    reducing(one)


def broadcast(rank, n):
    def one(count, dtype, is_async):
        for root in range(n):
            tensor = mine(rank, count, dtype)
            finished(dist.broadcast(tensor, root, async_op=is_async), is_async)
            equal(tensor, mine(root, count, dtype), dtype)
    moving(one)


def all_gather(rank, n):
    def one(count, dtype, is_async):
        outputs = [torch.empty(count, dtype=dtype) for _ in range(n)]
        finished(dist.all_gather(outputs, mine(rank, count, dtype), async_op=is_async), is_async)
        for peer, output in enumerate(outputs):
            equal(output, mine(peer, count, dtype), dtype)
        flat = torch.empty(count * n, dtype=dtype)
        finished(dist.all_gather(list(flat.chunk(n)) if count else outputs, mine(rank, count, dtype), async_op=is_async), is_async)
        whole = torch.empty(count * n, dtype=dtype)
        finished(dist.all_gather_into_tensor(whole, mine(rank, count, dtype), async_op=is_async), is_async)
        for tensor in (flat, whole):
            for peer in range(n):
                equal(tensor[peer * count:(peer + 1) * count], mine(peer, count, dtype), dtype)
    moving(one)


def all_gather_in_place(rank, n):
    for count in (1, 5, 1 << 14):
        whole = torch.full((n * count,), -1.0)
        block = whole.narrow(0, rank * count, count).fill_(rank)
        dist.all_gather_into_tensor(whole, block)
        equal(whole, torch.arange(float(n)).repeat_interleave(count))
        whole = torch.arange(float(n)).repeat_interleave(count)
        dist.reduce_scatter_tensor(whole.narrow(0, rank * count, count), whole)
        equal(whole.narrow(0, rank * count, count), torch.full((count,), float(rank * n)))


def gather_and_scatter(rank, n):
    def one(count, dtype, is_async):
        for root in range(n):
            outputs = [torch.empty(count, dtype=dtype) for _ in range(n)] if rank == root else None
            finished(dist.gather(mine(rank, count, dtype), outputs, root, async_op=is_async), is_async)
            for peer, output in enumerate(outputs or []):
                equal(output, mine(peer, count, dtype), dtype)
            inputs = [mine(peer, count, dtype) for peer in range(n)] if rank == root else None
            output = torch.empty(count, dtype=dtype)
            finished(dist.scatter(output, inputs, root, async_op=is_async), is_async)
            equal(output, mine(rank, count, dtype), dtype)
    moving(one)


def gather_single(rank, n):
    for is_async, root in itertools.product(BOTH, range(n)):
        output = torch.empty(n * 5) if rank == root else None
        finished(dist.gather_single(mine(rank, 5, torch.float32), output, dst=root, async_op=is_async), is_async)
        if rank == root:
            equal(output, torch.cat([mine(peer, 5, torch.float32) for peer in range(n)]))
    if rank == 0 and n > 1:
        with pytest.raises((RuntimeError, ValueError)):
            dist.gather_single(torch.ones(4), torch.empty(4), dst=0)


def all_to_all(rank, n):
    def one(count, dtype, is_async):
        inputs = [mine(rank * n + peer, count, dtype) for peer in range(n)]
        outputs = [torch.empty(count, dtype=dtype) for _ in range(n)]
        finished(dist.all_to_all(outputs, inputs, async_op=is_async), is_async)
        for peer, output in enumerate(outputs):
            equal(output, mine(peer * n + rank, count, dtype), dtype)
        whole = torch.empty(count * n, dtype=dtype)
        finished(dist.all_to_all_single(whole, torch.cat(inputs), async_op=is_async), is_async)
        equal(whole, torch.cat(outputs), dtype)
    moving(one)


def uneven_splits(rank, n):
    for is_async, width in itertools.product(BOTH, (1, 3)):
        sent = [rank + peer for peer in range(n)]
        received = [peer + rank for peer in range(n)]
        source = torch.full((sum(sent), width), float(rank))
        target = torch.empty(sum(received), width)
        finished(dist.all_to_all_single(target, source, received, sent, async_op=is_async), is_async)
        wanted = torch.tensor([float(peer) for peer, count in enumerate(received) for _ in range(count)])
        equal(target, wanted[:, None].expand(-1, width).contiguous())
        lists = [torch.full((peer + 1,), float(rank)) for peer in range(n)]
        outputs = [torch.empty(rank + 1) for _ in range(n)]
        finished(dist.all_to_all(outputs, lists, async_op=is_async), is_async)
        for peer, output in enumerate(outputs):
            equal(output, torch.full((rank + 1,), float(peer)))


def complex_numbers(rank, n):
    for dtype, is_async in itertools.product((torch.complex64, torch.complex128), BOTH):
        for op in (ReduceOp.SUM, ReduceOp.AVG):
            tensor = torch.full((5,), complex(rank + 1, -rank), dtype=dtype)
            finished(dist.all_reduce(tensor, op, async_op=is_async), is_async)
            total = complex(sum(range(1, n + 1)), -sum(range(n)))
            equal(tensor, torch.full((5,), total / (n if op == ReduceOp.AVG else 1), dtype=dtype))


def premultiplied(rank, n):
    for factor in (2.0, torch.tensor([2.0])):
        tensor = torch.full((6,), float(rank + 1))
        dist.all_reduce(tensor, dist._make_nccl_premul_sum(factor))
        equal(tensor, torch.full((6,), 2.0 * sum(range(1, n + 1))))


def put_together(rank, n):
    for is_async in BOTH:
        tensors = [torch.full((i + 1,), float(rank + i)) for i in range(3)]
        work = dist.all_reduce_coalesced(tensors, async_op=is_async)
        if is_async:
            work.wait()
        for i, tensor in enumerate(tensors):
            equal(tensor, torch.full((i + 1,), float(sum(range(n)) + i * n)))
        for device in (None, torch.device("cpu")):
            inputs = [torch.full((i + 1,), float(rank + i)) for i in range(3)]
            outputs = [torch.empty((i + 1) * n) for i in range(3)]
            with dist._coalescing_manager(device=device, async_ops=is_async) as manager:
                for output, source in zip(outputs, inputs):
                    dist.all_gather_into_tensor(output, source)
            manager.wait()
            assert len(manager.works) == is_async
            for i, output in enumerate(outputs):
                equal(output, torch.arange(float(i), n + i).repeat_interleave(i + 1))
            inputs = [torch.full(((i + 1) * n,), float(rank + i)) for i in range(3)]
            outputs = [torch.empty(i + 1) for i in range(3)]
            with dist._coalescing_manager(device=device, async_ops=is_async) as manager:
                for output, source in zip(outputs, inputs):
                    dist.reduce_scatter_tensor(output, source)
            manager.wait()
            for i, output in enumerate(outputs):
                equal(output, torch.full((i + 1,), float(sum(range(n)) + i * n)))


def not_in_one_piece(rank, n):
    """Inputs of which gloo takes columns, too, and outputs."""
    def column(rank, count=2 * n):
        return torch.arange(2.0 * count).add(100 * rank).view(count, 2)[:, 0]

    every = [column(peer).contiguous() for peer in range(n)]
    outputs = [torch.empty(2 * n) for _ in range(n)]
    dist.all_gather(outputs, column(rank))
    equal(torch.stack(outputs), torch.stack(every))
    whole = torch.empty(2 * n * n, 2)[:, 0]
    dist.all_gather_into_tensor(whole, column(rank))
    equal(whole.contiguous(), torch.cat(every))
    outputs = [torch.empty(2 * n) for _ in range(n)]
    dist.all_gather_coalesced([[output] for output in outputs], [column(rank)])
    equal(torch.stack(outputs), torch.stack(every))
    outputs = [torch.empty(2 * n) for _ in range(n)]
    dist.gather(column(rank), outputs if rank == 0 else None)
    assert rank > 0 or torch.equal(torch.stack(outputs), torch.stack(every))
    share = torch.empty(2)
    dist.reduce_scatter_tensor(share, column(rank))
    equal(share, sum(every)[2 * rank:2 * rank + 2])
    total = column(rank)
    dist.all_reduce_coalesced([total, torch.ones(1)])
    equal(total.contiguous(), sum(every))


def objects(rank, n):
    gathered = [None] * n
    dist.all_gather_object(gathered, {"rank": rank, "text": "x" * rank})
    assert gathered == [{"rank": peer, "text": "x" * peer} for peer in range(n)]
    things = [rank, "from", rank] if rank == 0 else [None] * 3
    dist.broadcast_object_list(things, src=0)
    assert things == [0, "from", 0]


def large(rank, n):
    for count in (1 << 14, (1 << 18) + 3, 1 << 20):
        generator = torch.Generator().manual_seed(count)
        all_inputs = [torch.randint(-1000, 1000, (count,), generator=generator) for _ in range(n)]
        for is_async in BOTH:
            tensor = all_inputs[rank].clone()
            finished(dist.all_reduce(tensor, async_op=is_async), is_async)
            equal(tensor, sum(all_inputs))
        outputs = [torch.empty(count, dtype=torch.int64) for _ in range(n)]
        dist.all_gather(outputs, all_inputs[rank])
        for output, source in zip(outputs, all_inputs):
            equal(output, source)


ALL = (all_reduce, reduce, reduce_scatter, broadcast, all_gather, all_gather_in_place, gather_and_scatter, gather_single, all_to_all,
       uneven_splits, complex_numbers, premultiplied, put_together, not_in_one_piece, objects, large)
# Torch hands gather_single to no backend in Python, and had none before 2.14.
HAS_GATHER_SINGLE = IS_SHIM and hasattr(dist, "gather_single")
ALL = [collective for collective in ALL if HAS_GATHER_SINGLE or collective is not gather_single]


@pytest.mark.parametrize("n", (1, 2, 3))
@pytest.mark.parametrize("collective", ALL, ids=lambda function: function.__name__)
def test_a_collective_gives_what_it_promises_for_every_count_type_and_operator(collective, n):
    run(n, collective)


def refuse(rank, n):
    def refused(error, text, function, *arguments, **options):
        with pytest.raises(error, match=text):
            function(*arguments, **options)

    square = torch.ones(n, n)
    refused(ValueError, "Tensors must be contiguous", dist.all_to_all_single, torch.empty(n, n), square.t())
    refused(ValueError, "Tensors must be contiguous", dist.all_reduce, torch.ones(4, 4)[:, 1])
    wide, narrow = torch.empty(4 * n, dtype=torch.float64), torch.ones(4)
    refused((RuntimeError, TypeError, ValueError), "", dist.all_gather_into_tensor, wide, narrow)
    refused((RuntimeError, TypeError, ValueError), "", dist.reduce_scatter_tensor, narrow, wide)
    refused((RuntimeError, TypeError, ValueError), "", dist.all_to_all_single, torch.empty(n, dtype=torch.float64), torch.ones(n))
    refused((RuntimeError, ValueError), "elements", dist.all_gather_into_tensor, torch.empty(4 * n + 1), narrow)
    refused(TypeError, "need integers", dist.all_reduce, narrow, op=ReduceOp.BAND)
    refused(TypeError, "AVG", dist.all_reduce, torch.ones(2, dtype=torch.bool), op=ReduceOp.AVG)
    refused(TypeError, "cannot reduce", dist.all_reduce, torch.zeros(2, dtype=torch.float8_e4m3fnuz))
    refused(RuntimeError, "sparse", dist.all_reduce, torch.eye(2).to_sparse())
    # None of these has reached another rank: the group works on.
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    equal(tensor, torch.full((3,), float(n)))


def test_wrong_arguments_are_refused_on_their_rank_and_the_group_works_on():
    run(2, refuse)
