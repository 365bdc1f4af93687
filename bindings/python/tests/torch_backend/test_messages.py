"""Messages: tags, any source, programs that would deadlock if started operations waited, works that are dropped."""

import time

import pytest
import torch
import torch.distributed as dist
from torch_ranks import IS_SHIM, run

SIZES = (0, 1, 4, 5000, 1 << 18)


def ring(rank, n):
    return (rank + 1) % n, (rank - 1) % n


def in_turn(rank, n):
    following, preceding = ring(rank, n)
    for count in SIZES:
        for dtype in (torch.float32, torch.bool, torch.int16, torch.complex64):
            sent, received = torch.full((count,), rank).to(dtype), torch.empty(count, dtype=dtype)
            if rank == 0:
                dist.send(sent, following)
                dist.recv(received, preceding)
            else:
                dist.recv(received, preceding)
                dist.send(sent, following)
            assert torch.equal(received, torch.full((count,), preceding).to(dtype))


def started(rank, n):
    following, preceding = ring(rank, n)
    for count in SIZES:
        for receive_first in (False, True):
            sent, received = torch.full((count,), float(rank)), torch.empty(count)
            make = [lambda: dist.isend(sent, following), lambda: dist.irecv(received, preceding)]
            works = [start() for start in (reversed(make) if receive_first else make)]
            for work in works:
                work.wait()
            assert torch.equal(received, torch.full((count,), float(preceding)))


def batched(rank, n):
    following, preceding = ring(rank, n)
    for receive_first in (False, True):
        for operations in (1, 2, 5):
            sent = [torch.full((3,), float(rank + i * 100)) for i in range(operations)]
            received = [torch.empty(3) for _ in range(operations)]
            batch = []
            for source, target in zip(sent, received):
                pair = [dist.P2POp(dist.isend, source, following), dist.P2POp(dist.irecv, target, preceding)]
                batch.extend(reversed(pair) if receive_first else pair)
            for work in dist.batch_isend_irecv(batch):
                work.wait()
            for i, target in enumerate(received):
                assert torch.equal(target, torch.full((3,), float(preceding + i * 100)))


def tags(rank, n):
    if rank == 0:
        for tag in (3, 1, 2):
            dist.send(torch.full((2,), float(tag)), 1, tag=tag)
    if rank == 1:
        works, tensors = [], {tag: torch.empty(2) for tag in (1, 2, 3)}
        for tag, tensor in tensors.items():
            works.append(dist.irecv(tensor, 0, tag=tag))
        for work in reversed(works):
            work.wait()
        for tag, tensor in tensors.items():
            assert tensor.tolist() == [tag, tag]
    with pytest.raises(ValueError, match="negative"):
        dist.isend(torch.ones(1), (rank + 1) % n, tag=-1)


def any_source(rank, n):
    if rank == 0:
        seen = []
        for _ in range(n - 1):
            tensor = torch.empty(1)
            source = dist.recv(tensor)
            assert tensor.item() == source
            seen.append(source)
        assert sorted(seen) == list(range(1, n))
    else:
        dist.send(torch.tensor([float(rank)]), 0)
    group = dist.new_group(list(range(1, n)))
    if rank == 1:
        tensor = torch.empty(1)
        assert dist.recv(tensor, group=group) == 2
    if rank == 2:
        dist.send(torch.ones(1), 1, group=group)


def both_receive_first(rank, n):
    received = [torch.empty(4) for _ in range(2)]
    works = [dist.irecv(tensor, 1 - rank) for tensor in received]
    works += [dist.isend(torch.full((4,), float(i)), 1 - rank) for i in range(2)]
    for work in works:
        work.wait()
    assert [tensor[0].item() for tensor in received] == [0, 1]


def message_behind_a_collective(rank, n):
    total, word = torch.ones(1 << 15), torch.full((1,), 7.0)
    if rank == 0:
        work = dist.all_reduce(total, async_op=True)
        dist.send(word, 1)
        work.wait()
    else:
        got = torch.empty(1)
        dist.recv(got, 0)
        assert got.item() == 7
        dist.all_reduce(total)
    assert total[0].item() == n


def collectives_of_two_groups_crosswise(rank, n):
    other = dist.new_group()
    a, b = torch.ones(2), torch.ones(2)
    first, second = (None, other) if rank == 0 else (other, None)
    works = [dist.all_reduce(a, group=first, async_op=True), dist.all_reduce(b, group=second, async_op=True)]
    for work in works:
        work.wait()
    assert a.tolist() == b.tolist() == [n, n]


def waits_in_any_order(rank, n):
    tensors = [torch.full((2,), float(i)) for i in range(10)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in works[::-1] if rank == 0 else works:
        work.wait()
    dist.all_reduce(tensors[0])
    assert tensors[0].tolist() == [0, 0]
    assert tensors[9].tolist() == [9 * n, 9 * n]


def polled(rank, n):
    if rank == 0:
        tensor = torch.empty(3)
        work = dist.irecv(tensor, 1)
        assert not work.is_completed()
        dist.send(torch.ones(1), 1)
        deadline = time.monotonic() + 30
        while not work.is_completed():
            assert time.monotonic() < deadline
        assert tensor.tolist() == [5, 5, 5]
    else:
        dist.recv(torch.empty(1), 0)
        dist.send(torch.full((3,), 5.0), 0)


def dropped(rank, n):
    following, preceding = ring(rank, n)
    received = torch.empty(4)
    if rank == 0:
        dist.isend(torch.full((4,), 9.0), following)
        dist.irecv(received, preceding).wait()
    else:
        work = dist.irecv(received, preceding)
        dist.isend(torch.full((4,), 9.0), following)
        work.wait()
    assert received.tolist() == [9] * 4
    dist.all_reduce(torch.ones(1000), async_op=True)
    dist.barrier()


def leaves_after_sending(rank, n):
    if rank == 0:
        dist.isend(torch.full((6,), 3.0), 1)
        return
    time.sleep(0.5)
    received = torch.empty(6)
    dist.recv(received, 0)
    assert received.tolist() == [3] * 6


NEEDS_SHIM = (polled, any_source)
PAIRS = (in_turn, started, batched, tags, both_receive_first, message_behind_a_collective, collectives_of_two_groups_crosswise,
         waits_in_any_order, polled, dropped, leaves_after_sending)
TRIPLES = (in_turn, started, batched, any_source)


def possible(programs):
    return [program for program in programs if IS_SHIM or program not in NEEDS_SHIM]


@pytest.mark.parametrize("program", possible(PAIRS), ids=lambda function: function.__name__)
def test_a_program_with_messages_ends_with_the_right_data(program):
    run(2, program)


@pytest.mark.parametrize("program", possible(TRIPLES), ids=lambda function: function.__name__)
def test_three_ranks_exchange_messages(program):
    run(3, program)


def only_two_of_three(rank, n):
    if rank < 2:
        tensor = torch.full((3,), float(rank))
        dist.send(tensor, 1) if rank == 0 else dist.recv(tensor, 0)
        assert tensor.tolist() == [0, 0, 0]


def test_the_first_message_of_a_group_concerns_nobody_else():
    run(3, only_two_of_three)


def coalesced_wait_too_early(rank, n):
    group = dist.distributed_c10d._get_default_group()
    group._start_coalescing(torch.device("cpu"))
    work = dist.isend(torch.ones(2), 1 - rank)
    received = torch.empty(2)
    dist.irecv(received, 1 - rank)
    with pytest.raises(RuntimeError, match="end the coalescing block first"):
        work.wait()
    group._end_coalescing(torch.device("cpu")).wait()
    assert received.tolist() == [1, 1]


def test_a_work_of_a_coalescing_block_is_not_waited_for_before_its_end():
    run(2, coalesced_wait_too_early)
