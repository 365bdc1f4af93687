"""A coalesced call reads all its inputs as they are at its begin, and writes its outputs one after the other."""

import pytest
import torch
import torch.distributed as dist
from test_hosts import on_hosts
from torch_ranks import TORCH, run

import shmccl.torch

# Short ones and long ones take different ways.
UNITS = (1, 3, 5000)


def memory(rank, blocks, unit, is_in_heap):
    """Blocks of which each is full of a number of its own."""
    numbers = torch.arange(1.0, blocks + 1).repeat_interleave(unit) + 10 * rank
    return shmccl.torch.empty(blocks * unit).copy_(numbers) if is_in_heap else numbers


def cases(n):
    """For each kind of call, where its inputs and outputs begin, in blocks, within one memory of `2 n + 6` blocks."""
    yield "all_reduce", 1, 1, [0, 0], [0, 0]
    yield "all_reduce", 2, 2, [0, 1, 5, 4], [0, 1, 5, 4]
    yield "all_gather", 1, n, [0, 1], [1, 1]
    yield "all_gather", 1, n, [n, 0], [0, 3]
    yield "all_gather", 2, 2 * n, [1], [0]
    yield "all_gather", 1, n, [0], [0]
    yield "reduce_scatter", n, 1, [0, 1], [1, 0]
    yield "reduce_scatter", n, 1, [1], [n]
    yield "reduce_scatter", n, 1, [0, 3], [3, 0]


def results(kind, read, written, inputs, outputs, unit, n, rank):
    """The memory after the call, by the memories of all ranks before it."""
    before = [memory(peer, 2 * n + 6, unit, False) for peer in range(n)]
    after = before[rank].clone()
    for source, target in zip(inputs, outputs):
        of_all = [whole[source * unit:(source + read) * unit] for whole in before]
        if kind == "all_gather":
            made = torch.cat(of_all)
        else:
            made = torch.stack(of_all).sum(0)
            made = made[rank * unit:(rank + 1) * unit] if kind == "reduce_scatter" else made
        after[target * unit:(target + written) * unit] = made
    return after


def call(kind, output, source):
    if kind == "all_reduce":
        return dist.all_reduce(output)
    return dist.all_gather_into_tensor(output, source) if kind == "all_gather" else dist.reduce_scatter_tensor(output, source)


def coalesced(device):
    def together(kind, outputs, inputs, is_async):
        with dist._coalescing_manager(device=device, async_ops=is_async) as manager:
            for output, source in zip(outputs, inputs):
                call(kind, output, source)
        manager.wait()

    return together


def as_a_list(kind, outputs, inputs, is_async):
    if kind != "all_reduce":
        return coalesced(None)(kind, outputs, inputs, is_async)
    work = dist.all_reduce_coalesced(outputs, async_op=is_async)
    if is_async:
        work.wait()


def one_by_one(kind, outputs, inputs, is_async):
    for output, source in zip(outputs, inputs):
        call(kind, output, source)


def aliases(ways):
    def program(rank, n):
        for unit in UNITS:
            for kind, read, written, inputs, outputs in cases(n):
                for way in ways if len(inputs) > 1 else (*ways, one_by_one):
                    for is_async in (False, True):
                        whole = memory(rank, 2 * n + 6, unit, way is as_a_list and not is_async)
                        sources = [whole[at * unit:(at + read) * unit] for at in inputs]
                        targets = [whole[at * unit:(at + written) * unit] for at in outputs]
                        way(kind, targets, sources, is_async)
                        wanted = results(kind, read, written, inputs, outputs, unit, n, rank)
                        assert torch.equal(whole, wanted), (kind, inputs, outputs, unit, is_async, whole, wanted)

    return program


WAYS = (as_a_list, coalesced(None), coalesced(torch.device("cpu")))


@pytest.mark.parametrize("n", (1, 2, 3))
def test_inputs_and_outputs_that_share_memory_are_read_at_the_begin(n):
    run(n, aliases(WAYS))


@pytest.mark.skipif(TORCH < (2, 14), reason="needs torch 2.14")
def test_inputs_and_outputs_that_share_memory_are_read_at_the_begin_between_hosts(tmp_path):
    run(3, on_hosts(aliases(WAYS[:2]), "aab"), str(tmp_path / "store"))


def one_tensor_twice(rank, n):
    tensor = torch.tensor([rank + 1.0])
    dist.all_reduce_coalesced([tensor, tensor])
    assert tensor.item() == n * (n + 1) / 2
    # On one rank alone.
    both = [tensor, tensor] if rank == 0 else [torch.ones(1), torch.full((1,), 2.0)]
    tensor.fill_(5)
    dist.all_reduce_coalesced(both)
    assert [one.item() for one in both] == ([5 + 2.0 * (n - 1)] * 2 if rank == 0 else [5 + n - 1, 5 + 2.0 * (n - 1)])


def lists_that_share(rank, n):
    mine = torch.tensor([rank + 1.0, rank + 1.5])
    outputs = [mine if peer == 1 else torch.empty(2) for peer in range(n)]
    dist.all_gather(outputs, mine)
    assert [output.tolist() for output in outputs] == [[peer + 1.0, peer + 1.5] for peer in range(n)]
    whole = torch.arange(2.0 * n) + 10 * rank
    dist.all_gather(list(whole.split(2)), whole[:2])
    assert whole.tolist() == [10.0 * peer + i for peer in range(n) for i in range(2)]
    inputs = [torch.tensor([10.0 * rank + peer]) for peer in range(n)]
    dist.all_to_all(inputs, inputs[::-1])
    assert [tensor.item() for tensor in inputs] == [10.0 * peer + n - 1 - rank for peer in range(n)]
    inputs = [torch.tensor([10.0 * rank + peer]) for peer in range(n)]
    dist.reduce_scatter(inputs[0], inputs)
    assert inputs[0].item() == sum(10.0 * peer for peer in range(n)) + n * rank
    whole = torch.arange(2.0 * n) + 10 * rank
    dist.all_to_all_single(whole, whole)
    assert whole.tolist() == [10.0 * peer + 2 * rank + i for peer in range(n) for i in range(2)]
    ring = torch.arange(6.0) + 10 * rank
    ends = [dist.P2POp(dist.isend, ring[:4], (rank + 1) % n), dist.P2POp(dist.irecv, ring[2:], (rank - 1) % n)]
    [work.wait() for work in dist.batch_isend_irecv(ends)]
    assert ring.tolist() == [10.0 * rank, 10.0 * rank + 1, *(10.0 * ((rank - 1) % n) + i for i in range(4))]


@pytest.mark.parametrize("program", (one_tensor_twice, lists_that_share), ids=lambda program: program.__name__)
def test_tensors_of_lists_may_share_memory(program):
    run(3, program)
