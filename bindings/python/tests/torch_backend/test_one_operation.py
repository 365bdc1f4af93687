"""What torch calls one operation is one, whichever way each rank writes it."""

import itertools

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from test_hosts import on_hosts
from torch_ranks import TORCH, run

COUNTS = (0, 3)


def numbers(rank, count, peer=0):
    return torch.arange(float(count)) + 100 * rank + 10 * peer


def apart(tensors):
    return [tensor.clone() for tensor in tensors]


def in_one(tensors):
    """Tensors that lie one behind the other."""
    return list(torch.cat(tensors).split([len(tensor) for tensor in tensors]))


def finish(work):
    if work is not None:
        work.wait()


# Each operation by the ways to write it. A way gets what this rank sends and the lengths of what it is to receive, and
# returns what it has received.


def single(sizes, is_async=False):
    def way(sent, lengths):
        output, counts = torch.empty(sum(lengths)), (lengths, [len(tensor) for tensor in sent])
        finish(dist.all_to_all_single(output, torch.cat(sent), *(counts if sizes else ()), async_op=is_async))
        return output.split(lengths)

    return way


def lists(arranged):
    def way(sent, lengths):
        outputs = arranged([torch.empty(length) for length in lengths])
        dist.all_to_all(outputs, arranged(sent))
        return outputs

    return way


def functional_all_to_all(sent, lengths):
    output = functional.all_to_all_single(torch.cat(sent), lengths, [len(tensor) for tensor in sent], dist.group.WORLD)
    return functional.wait_tensor(output).split(lengths)


ALL_TO_ALL = (single(False), single(True), single(True, True), lists(apart), lists(in_one), functional_all_to_all)


def all_gather_lists(arranged):
    def way(mine, n):
        outputs = arranged([torch.empty(len(mine)) for _ in range(n)])
        dist.all_gather(outputs, mine)
        return torch.cat(outputs)

    return way


def all_gather_single(put_together):
    def way(mine, n):
        output = torch.empty(n * len(mine))
        put_together(lambda: dist.all_gather_into_tensor(output, mine))
        return output

    return way


def plainly(call):
    call()


def in_a_block(device):
    def together(call):
        with dist._coalescing_manager(device=device, async_ops=True) as manager:
            call()
        manager.wait()

    return together


def functional_all_gather(mine, n):
    return functional.wait_tensor(functional.all_gather_tensor(mine, 0, dist.group.WORLD))


ALL_GATHER = (all_gather_lists(apart), all_gather_lists(in_one), all_gather_single(plainly), all_gather_single(in_a_block(None)),
              functional_all_gather)


def reduce_scatter_lists(arranged):
    def way(sent):
        output = torch.empty_like(sent[0])
        dist.reduce_scatter(output, arranged(sent))
        return output

    return way


def reduce_scatter_single(put_together):
    def way(sent):
        output, source = torch.empty_like(sent[0]), torch.cat(sent)
        put_together(lambda: dist.reduce_scatter_tensor(output, source))
        return output

    return way


REDUCE_SCATTER = (reduce_scatter_lists(apart), reduce_scatter_lists(in_one), reduce_scatter_single(plainly),
                  reduce_scatter_single(in_a_block(None)))


def all_reduce(put_together):
    def way(tensor):
        put_together(lambda: dist.all_reduce(tensor))
        return tensor

    return way


def all_reduce_coalesced(tensor):
    dist.all_reduce_coalesced([tensor])
    return tensor


def functional_all_reduce(tensor):
    return functional.wait_tensor(functional.all_reduce(tensor, "sum", dist.group.WORLD))


ALL_REDUCE = (all_reduce(plainly), all_reduce(in_a_block(None)), all_reduce_coalesced, functional_all_reduce)


def scatter(arranged):
    def way(mine, every, root, rank):
        output = torch.empty_like(mine)
        dist.scatter(output, arranged(every) if rank == root else None, root)
        return output

    return way


def mixed(ways, rank, n):
    """The way of this rank, for each two ways of which one is that of rank 0 and one that of the others."""
    return [pair[min(rank, 1)] for pair in itertools.product(ways, repeat=2)]


def exchanges(rank, n):
    for count in COUNTS:
        for way in mixed(ALL_TO_ALL, rank, n):
            received = way([numbers(rank, count, peer) for peer in range(n)], [count] * n)
            assert all(torch.equal(tensor, numbers(peer, count, rank)) for peer, tensor in enumerate(received))


def exchanges_of_which_one_rank_has_even_blocks_by_chance(rank, n):
    counts = [[2, 2, 2], [2, 1, 3], [2, 4, 0]]
    for way in ALL_TO_ALL if rank == 0 else [ALL_TO_ALL[1]] * len(ALL_TO_ALL):
        lengths = [counts[peer][rank] for peer in range(n)]
        received = way([numbers(rank, counts[rank][peer], peer) for peer in range(n)], lengths)
        assert all(torch.equal(tensor, numbers(peer, counts[peer][rank], rank)) for peer, tensor in enumerate(received))


def gathers(rank, n):
    for count in COUNTS:
        for way in mixed(ALL_GATHER, rank, n):
            assert torch.equal(way(numbers(rank, count), n), torch.cat([numbers(peer, count) for peer in range(n)]))


def sums(rank, n):
    for count in COUNTS:
        total = sum(numbers(peer, count, rank) for peer in range(n))
        for way in mixed(REDUCE_SCATTER, rank, n):
            assert torch.equal(way([numbers(rank, count, peer) for peer in range(n)]), total)
        for way in mixed(ALL_REDUCE, rank, n):
            assert torch.equal(way(numbers(rank, count)), sum(numbers(peer, count) for peer in range(n)))


def scatters(rank, n):
    for count, root in itertools.product(COUNTS, range(n)):
        for way in (scatter(apart), scatter(in_one)):
            every = [numbers(root, count, peer) for peer in range(n)]
            assert torch.equal(way(torch.empty(count), every, root, rank), every[rank])


PROGRAMS = (exchanges, exchanges_of_which_one_rank_has_even_blocks_by_chance, gathers, sums, scatters)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_ranks_that_write_one_operation_in_different_ways_are_in_one(program):
    run(3, program)


@pytest.mark.skipif(TORCH < (2, 14), reason="needs torch 2.14")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_ranks_of_several_hosts_that_write_one_operation_in_different_ways_are_in_one(program, tmp_path):
    run(3, on_hosts(program, "aab"), str(tmp_path / "store"))
