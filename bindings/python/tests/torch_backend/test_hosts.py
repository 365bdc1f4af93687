"""Groups whose ranks are on several hosts, which these tests make up."""

import os

import pytest
import torch
import torch.distributed as dist
from torch_ranks import init, run
from torch.distributed import ReduceOp

import shmccl.torch

pytestmark = pytest.mark.skipif(tuple(map(int, torch.__version__.split(".")[:2])) < (2, 14), reason="needs torch 2.14")

# The host of each rank: alike on all hosts, not alike, one rank each.
LAYOUTS = ("aabb", "aab", "abab", "ab")


def on_hosts(program, layout):
    def main(rank, n, path):
        dist.destroy_process_group()
        os.environ["SHMCCL_TORCH_HOST"] = layout[rank]
        shmccl.torch._place.cache_clear()
        init(rank, n, path)
        program(rank, n)

    return main


def value(rank, count, dtype):
    return (torch.arange(count) % 5 + rank + 1).to(dtype)


def reductions(rank, n):
    inputs = {op: fold for op, fold in (
        (ReduceOp.SUM, lambda all_: all_.sum(0)), (ReduceOp.MAX, lambda all_: all_.amax(0)),
        (ReduceOp.MIN, lambda all_: all_.amin(0)), (ReduceOp.PRODUCT, lambda all_: all_.prod(0)),
        (ReduceOp.AVG, lambda all_: all_.sum(0) / n))}
    for dtype in (torch.float32, torch.float64, torch.int32):
        for count in (0, 1, 7, 1 << 10, (1 << 15) + 3):
            for op, fold in inputs.items():
                if op == ReduceOp.AVG and not dtype.is_floating_point:
                    continue
                wanted = fold(torch.stack([value(peer, count, dtype) for peer in range(n)])).to(dtype)
                tensor = value(rank, count, dtype)
                dist.all_reduce(tensor, op)
                assert torch.equal(tensor, wanted), (dtype, count, op)
                for root in range(n):
                    tensor = value(rank, count, dtype)
                    dist.reduce(tensor, root, op)
                    assert torch.equal(tensor, wanted if rank == root else value(rank, count, dtype)), (dtype, count, op, root)


def moves(rank, n):
    for count in (1, 7, 1 << 15):
        mine, every = torch.full((count,), float(rank)), [torch.full((count,), float(peer)) for peer in range(n)]
        for root in range(n):
            tensor = mine.clone()
            dist.broadcast(tensor, root)
            assert torch.equal(tensor, every[root])
            gathered = [torch.empty(count) for _ in range(n)] if rank == root else None
            dist.gather(mine, gathered, root)
            assert rank != root or all(map(torch.equal, gathered, every))
            dist.scatter(tensor, every if rank == root else None, root)
            assert torch.equal(tensor, mine)
        gathered = [torch.empty(count) for _ in range(n)]
        dist.all_gather(gathered, mine)
        assert all(map(torch.equal, gathered, every))
        whole = torch.empty(count * n)
        dist.all_gather_into_tensor(whole, mine)
        assert torch.equal(whole, torch.cat(every))
        share = torch.empty(count)
        dist.reduce_scatter_tensor(share, whole)
        assert torch.equal(share, mine * n)
        dist.reduce_scatter(share, every)
        assert torch.equal(share, mine * n)
        dist.all_to_all_single(torch.empty(count * n), whole)
        dist.barrier()


def messages(rank, n):
    received = [torch.empty(3) for _ in range(n)]
    works = [dist.isend(torch.full((3,), float(rank)), peer, tag=7) for peer in range(n) if peer != rank]
    works += [dist.irecv(received[peer], peer, tag=7) for peer in range(n) if peer != rank]
    [work.wait() for work in works]
    assert all(received[peer].tolist() == [peer] * 3 for peer in range(n) if peer != rank)


def works(rank, n):
    first, second = torch.ones(4), torch.ones(1 << 15)
    begun = [dist.all_reduce(first, async_op=True), dist.all_reduce(second, async_op=True)]
    doubled = begun[1].get_future().then(lambda future: future.value()[0] * 2)
    [work.wait() for work in begun]
    assert first.tolist() == [n] * 4 and doubled.wait()[0].item() == 2 * n
    group = dist.new_group([0, n - 1])
    if rank in (0, n - 1):
        dist.all_reduce(first, group=group)
        assert first.tolist() == [2 * n] * 4


def training(rank, n):
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 300))
    model(torch.full((2, 64), float(rank))).sum().backward()
    assert torch.allclose(model.module.weight.grad, torch.full((300, 64), float(sum(range(n)) * 2 / n)))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("program", (reductions, moves, messages, works, training), ids=lambda function: function.__name__)
def test_a_group_of_several_hosts_computes_what_one_of_one_host_does(program, layout, tmp_path):
    run(len(layout), on_hosts(program, layout), str(tmp_path / "store"))


def any_source(rank, n):
    with pytest.raises(RuntimeError, match="name the source"):
        dist.recv(torch.empty(3))


def test_a_message_from_any_rank_needs_one_host(tmp_path):
    run(2, on_hosts(any_source, "ab"), str(tmp_path / "store"))

