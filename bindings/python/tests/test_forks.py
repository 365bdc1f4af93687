"""Forks of a rank: child and parent each have memory of their own, and the child is no rank."""

import multiprocessing
import os
import signal
import threading

import numpy as np
import shmccl
from test_collectives import on_ranks


def child(body):
    """Forks a child, of which `body` returns what it has found wrong, if anything."""
    pid = os.fork()
    if pid:
        return pid
    wrong = "nothing"
    try:
        wrong = body()
    except BaseException as error:
        wrong = repr(error)
    if wrong:
        os.write(2, f"in the child: {wrong}\n".encode())
    os._exit(7 if wrong else 0)


def assert_ends_well(pid):
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_child_and_parent_each_have_arrays_of_their_own():
    def body(comm):
        shared, own = comm.zeros(1000, "int64"), comm.zeros(1000, "int64", local=True)
        views = [shared.numpy(), own.numpy(), shared.peer(1 - comm.rank).numpy()]
        views[0][:], views[1][:] = 1 + comm.rank, 1 + comm.rank
        comm.barrier()
        (told, tell), expected = os.pipe(), [1 + comm.rank, 1 + comm.rank, 2 - comm.rank]

        def in_child():
            os.read(told, 1)
            found = [int(view[0]) for view in views] + [int(shared[999]), int(shared.numpy()[999])]
            for view in views:
                view[:] = -1
            kept = found[:3] == expected and found[3:] == expected[:1] * 2
            return None if kept and all((view == -1).all() for view in views) else found

        pid = child(in_child)
        comm.barrier()
        # This rank writes, and then its peer does.
        views[0][:], views[1][:] = 10, 20
        comm.barrier()
        views[2][0] = 30
        comm.barrier()
        os.write(tell, b"x")
        assert_ends_well(pid)
        comm.barrier()
        assert views[0].tolist() == [30] + [10] * 999 and (views[1] == 20).all()
        assert comm.all_reduce(views[0])[0] == 60

    on_ranks(body, n=2)


def is_refused(call):
    try:
        call()
    except shmccl.UnavailableError as error:
        return "forked" in str(error)
    return False


def test_a_child_is_refused_every_operation_also_amid_a_call_a_stream_and_started_work():
    def body(comm):
        mine, peer = comm.zeros(4, "int64"), 1 - comm.rank
        channel, messages, other = comm.channel(peer), comm.split(0), comm.split(0)
        stream, view = other.stream(), mine.at(peer)
        with messages.start() as work:
            messages.recv(np.zeros(4, "int64"), peer)
        other.all_reduce(np.ones(4), stream=stream)
        waiting = threading.Thread(target=comm.barrier)
        if comm.rank == 0:
            waiting.start()

        def in_child():
            calls = {
                "barrier": comm.barrier, "all_reduce": lambda: comm.all_reduce(mine),
                "zeros": lambda: comm.zeros(1), "local": lambda: comm.zeros(1, local=True),
                "split": lambda: comm.split(0), "send": lambda: comm.send(mine, peer),
                "stream": comm.stream, "channel": lambda: comm.channel(peer).signal(),
                "signal": channel.signal, "put": lambda: channel.put(mine, signal=True),
                "wait": channel.wait, "shrink": comm.shrink, "started": work.wait,
                "enqueued": lambda: other.all_reduce(np.ones(4), stream=stream),
                "finalize": lambda: comm.finalize(), "view": lambda: view.put(1), "get": view.get,
                "atomic": view[0].atomic_inc, "wait_until": lambda: comm.wait_until(mine.numpy()[:1], "==", 0),
                "test": lambda: comm.test(mine.numpy()[:1], "==", 0), "lock": shmccl.Lock(view[0]).acquire,
            }
            return [name for name, call in calls.items() if not is_refused(call)]

        assert_ends_well(child(in_child))
        if comm.rank == 1:
            waiting.start()
        waiting.join()
        with messages.start() as sent:
            messages.send(mine, peer)
        assert work.wait() and sent.wait()
        stream.synchronize()
        assert not channel.poll()
        assert comm.all_reduce(np.ones(1))[0] == 2
        channel.close()

    on_ranks(body, n=2)


def test_a_pool_of_forked_workers_computes_on_copies_of_arrays():
    def body(comm):
        array = comm.zeros(100, "int64").numpy()
        array[:] = comm.rank

        def spoil(index):
            array[index] += 1
            return int(array[index])

        with multiprocessing.get_context("fork").Pool(2, initializer=keep, initargs=(spoil,)) as pool:
            assert pool.map(call_kept, range(10)) == [comm.rank + 1] * 10
        assert (array == comm.rank).all()
        comm.barrier()

    on_ranks(body, n=2)


KEPT = []


def keep(function):
    KEPT.append(function)


def call_kept(argument):
    return KEPT[-1](argument)


def mapped():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmSize:"))


def test_children_that_are_killed_at_once_leave_the_parent_its_memory_and_nothing_else():
    def body(comm):
        array = comm.zeros(4 << 20, "uint8").numpy()
        array[:] = 7
        comm.barrier()
        before = 0
        for count in range(12):
            pid = os.fork()
            if pid == 0:
                array[:] = 9
                signal.pause()
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            assert (array == 7).all()
            # The first forks may take memory for good.
            before = mapped() if count < 4 else before
        assert mapped() <= before + 1024
        comm.barrier()

    on_ranks(body, n=2)


def test_children_become_ranks_while_threads_of_the_parent_do():
    def alone():
        shmccl._core.Communicator.init_rank(1, shmccl.UniqueId(), 0, heap=1 << 20, timeout=20.0).close()

    def body(comm):
        is_over = threading.Event()

        def become():
            while not is_over.is_set():
                alone()

        threads = [threading.Thread(target=become) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(250):
                # It starts threads, where those of the parent have ended.
                assert_ends_well(child(lambda: alone() or alone()))
        finally:
            is_over.set()
            for thread in threads:
                thread.join()

    on_ranks(body, n=1)
