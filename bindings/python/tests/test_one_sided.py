"""Channels, proxies, streams, events, derived communicators, and what is left after a loss."""

import os
import signal
import threading
import time

import numpy as np
import pytest
import shmccl
from test_collectives import on_ranks


@pytest.mark.parametrize("proxied", [False, True])
def test_a_put_and_its_signal_arrive_at_the_same_place_of_the_peer(proxied):
    def body(comm):
        heap = comm.zeros(8, "int32")
        view = heap.numpy()
        with comm.channel(1 - comm.rank, proxied=proxied) as channel:
            assert (channel.peer, channel.proxied) == (1 - comm.rank, proxied)
            view[comm.rank] = 42 + comm.rank
            # A part of the array, then one place to another.
            channel.put(view[comm.rank : comm.rank + 1], signal=True)
            channel.wait()
            assert view[:2].tolist() == [42, 43]
            channel.put(view[4:6], view[:2], signal=True, flush=True)
            channel.wait()
            assert view[4:6].tolist() == [42, 43]
            assert not channel.poll()
            with pytest.raises(ValueError, match="does not lie in the heap"):
                channel.put(np.zeros(2))
            with pytest.raises(ValueError, match="has 8 bytes, and the target 4"):
                channel.put(view[:1], view[:2])
            with pytest.raises(ValueError, match="the source is of float32, and the target of int32"):
                channel.put(view[:2], view[:2].view("float32"))
            if not proxied:
                comm.barrier()
                here = comm.zeros(8, "int32", local=True)
                channel.get(here, heap)
                assert here.numpy()[4:6].tolist() == [42, 43]
            comm.barrier()
        with pytest.raises(RuntimeError, match="closed"):
            channel.signal()

    on_ranks(body, n=2)


def test_an_array_of_zeros_takes_what_a_peer_puts_at_once():
    def body(comm):
        peer = comm.channel(1 - comm.rank)
        for _ in range(50):
            # So long that a peer would be done before this rank has written its zeros.
            heap = comm.zeros(1 << 20, "uint8")
            heap[:1] = 7
            peer.put(heap.numpy()[-1:], heap.numpy()[:1], signal=True)
            peer.wait()
            assert heap.numpy()[-1] == 7
            comm.barrier()

    on_ranks(body, n=2)


def test_a_handler_of_python_sees_each_trigger_and_may_refuse_it():
    def body(comm):
        seen = []

        def handler(fifo, trigger):
            seen.append((fifo, trigger.data, trigger.signal, trigger.length))
            return trigger.length != 4

        comm.start_proxy(handler)
        heap = comm.zeros(4, "int32")
        channel = comm.channel(1 - comm.rank, proxied=True)
        heap[:2] = 7
        channel.put(heap.numpy()[:1])
        channel.put(heap.numpy()[2:], heap.numpy()[:2], signal=True)
        channel.wait()
        channel.flush()
        assert seen[:2] == [(0, True, False, 4), (0, True, True, 8)]
        assert heap.numpy().tolist() == [7, 7, 7, 7]
        comm.barrier()

    on_ranks(body, n=2)


def test_a_handler_that_makes_a_collective_is_refused_with_what_to_do():
    def body(comm):
        texts = []

        def handler(fifo, trigger):
            try:
                comm.barrier()
            except shmccl.Error as error:
                texts.append(str(error))

        comm.start_proxy(handler)
        block = comm.zeros(8, "uint8")
        channel = comm.channel(1 - comm.rank, proxied=True)
        channel.put(block, signal=True)
        channel.wait()
        channel.flush()
        assert texts and "a thread other than a proxy's" in texts[0]
        comm.barrier()

    shmccl.launch(body, 2, start="fork", timeout=10)


def test_a_channel_that_is_dropped_leaves_the_interpreter_to_its_handler():
    def body(comm):
        comm.start_proxy(lambda fifo, trigger: time.sleep(0.05))
        block = comm.zeros(8, "uint8")
        channel = comm.channel(1 - comm.rank, proxied=True)
        for _ in range(3):
            channel.put(block)
        start = time.monotonic()
        del channel
        assert time.monotonic() - start < 5
        comm.barrier()

    shmccl.launch(body, 2, start="fork", timeout=10)


def test_calls_on_a_stream_go_in_order_while_the_program_does_something_else():
    def body(comm):
        ordinary, heap = np.ones(1000), comm.zeros(1000)
        heap[:] = 2.0
        with comm.stream() as stream:
            first = stream.record()
            for _ in range(3):
                assert comm.all_reduce(ordinary, out=ordinary, stream=stream) is ordinary
            comm.all_reduce(heap, out=heap, stream=stream)
            # Kept by the stream, though nobody else has it.
            comm.all_reduce(np.ones(100_000), stream=stream)
            done = stream.record()
            done.synchronize()
            # The event is reached a moment before the stream counts it as done.
            stream.synchronize()
            assert stream.query() and done.query() and done.elapsed_since(first) >= 0.0
        assert ordinary[0] == 27.0 and heap[0] == 6.0

    on_ranks(body)


def test_a_stream_waits_for_an_event_of_another_and_takes_groups():
    def body(comm):
        mine, theirs, total = np.full(10, comm.rank), np.zeros(10, int), np.zeros(10, int)
        other = comm.duplicate()
        first, second = comm.stream(), comm.stream()
        with comm.group(stream=first):
            comm.send(mine, comm.right)
            comm.recv(theirs, comm.left)
        second.wait(first.record())
        other.all_reduce(theirs, out=total, stream=second)
        second.synchronize()
        assert theirs[0] == comm.left and total[0] == 3
        first.close()
        second.close()

    on_ranks(body)


def test_a_group_of_two_communicators_and_one_that_an_exception_leaves():
    def body(comm):
        other = comm.duplicate()
        a, b = np.full(4, comm.rank), np.zeros(4, int)
        with shmccl.group(comm, other):
            comm.all_reduce(a, out=a)
            other.send(np.full(4, comm.rank), comm.right)
            other.recv(b, comm.left)
        assert a[0] == 3 and b[0] == comm.left
        with pytest.raises(KeyError), comm.group():
            comm.send(np.ones(4), comm.right)
            raise KeyError
        with comm.group(), pytest.raises(RuntimeError, match="already"), comm.group():
            pass
        comm.barrier()

    on_ranks(body)


def test_parts_of_a_communicator_and_copies_of_it():
    def body(comm):
        part = comm.split(comm.rank % 2, key=-comm.rank)
        assert part.members == ([2, 0] if comm.rank % 2 == 0 else [1])
        assert part.all_reduce(np.array([comm.rank])).tolist() == [2 if comm.rank % 2 == 0 else 1]
        assert comm.split(None if comm.rank else 0) is None or comm.rank == 0
        array = comm.duplicate().zeros(3)
        assert comm.all_reduce(array).tolist() == [0.0] * 3

    on_ranks(body)


def test_a_communicator_grows_by_a_rank_that_joins():
    def body(comm):
        id = shmccl.UniqueId() if comm.rank == 0 else None
        text = bytearray(str(id).encode() if id else 39)
        comm.broadcast(text)
        newcomer = []
        if comm.rank == 0:
            thread = threading.Thread(target=lambda: newcomer.append(shmccl.Communicator.join(id)))
            thread.start()
        larger = comm.grow(3, shmccl.UniqueId(bytes(text).decode()))
        assert larger.size == 3 and larger.rank == comm.rank
        if comm.rank == 0:
            thread.join()
            other = threading.Thread(target=lambda: newcomer[0].all_reduce(np.ones(1)))
            other.start()
        assert larger.all_reduce(np.ones(1)).tolist() == [3.0]
        if comm.rank == 0:
            other.join()

    on_ranks(body, n=2)


def test_a_block_ends_with_the_communicator_that_the_program_went_on_with():
    def body(comm):
        with comm.duplicate() as other:
            other.barrier()
        comm.revoke()
        with comm:
            rest, lost = comm.shrink()
            assert lost == [] and not comm.closed
            with pytest.raises(RuntimeError, match="closed"):
                comm.barrier()
            assert rest.all_reduce(np.ones(1)).tolist() == [comm.size]
        assert rest.closed and comm.closed

    on_ranks(body)


def test_a_message_waits_for_no_rank_that_it_does_not_concern():
    def body(comm):
        other = comm.duplicate()
        for first in (comm, other):
            if comm.rank == 2:
                comm.channel(0).wait()
            else:
                received = np.zeros(1)
                with first.group():
                    first.send(np.full(1, 7.0), 1 - comm.rank)
                    first.recv(received, 1 - comm.rank)
                assert received[0] == 7.0
                if comm.rank == 0:
                    comm.channel(2).signal()

    on_ranks(body)


def test_the_heap_is_written_to_disk_and_read_back(tmp_path):
    def body(comm):
        weights = comm.zeros(100)
        weights[:] = comm.rank + 0.5
        assert comm.checkpoint(tmp_path) == 1
        weights[:] = 0.0
        comm.restore(tmp_path)
        assert weights[99] == comm.rank + 0.5
        with pytest.raises(shmccl.CheckpointError, match="no checkpoint"):
            comm.restore(tmp_path / "elsewhere")

    on_ranks(body, n=2)


def test_another_thread_ends_a_wait_by_revoking():
    def body(comm):
        if comm.rank == 0:
            threading.Timer(0.05, comm.revoke).start()
        with pytest.raises(shmccl.RevokedError) as revoked:
            comm.channel(1 - comm.rank).wait()
        assert revoked.value.rank == 0 and comm.revoked
        comm.close()

    on_ranks(body, n=2)


def test_a_timeout_names_the_rank_that_holds_all_up():
    def body(comm):
        if comm.rank == 0:
            with pytest.raises(TimeoutError) as late:
                comm.barrier()
            assert isinstance(late.value, shmccl.WaitTimeoutError) and late.value.rank == 1
            assert "rank 1" in late.value.report
        else:
            time.sleep(1.5)
        comm.close()

    shmccl.launch(body, 2, start="fork", timeout=0.5)


def test_a_dead_rank_is_named_on_a_stream_too():
    def body(comm):
        comm.barrier()
        if comm.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        stream = comm.stream()
        comm.all_reduce(np.zeros(10), stream=stream)
        with pytest.raises(shmccl.StreamFailedError) as failed:
            stream.synchronize()
        assert failed.value.rank == 1 and isinstance(failed.value.__cause__, shmccl.PeerLostError)
        return "survived"

    survivor, lost = shmccl.launch(body, 2, start="fork", keep_going=True)
    assert isinstance(lost, shmccl.DeviceFailedError)
    assert survivor == "survived" or isinstance(survivor.__cause__, shmccl.PeerLostError)


def test_threads_share_the_interpreter_while_they_wait():
    comms = shmccl.init_all(4, heap=8 << 20)
    sums = [None] * 4

    def body(comm):
        for _ in range(100):
            sums[comm.rank] = comm.all_reduce(np.array([comm.rank]))[0]
        comm.finalize()

    threads = [threading.Thread(target=body, args=(comm,)) for comm in comms]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert sums == [6] * 4


def test_the_table_of_the_c_abi_is_a_capsule():
    assert '"shmccl.table"' in repr(shmccl._core.table())
