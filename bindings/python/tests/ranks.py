"""Functions that ranks import, and programs that start themselves."""

import contextlib
import os
import signal
import sys
import threading
import time

import numpy as np
import shmccl


def sum_of_ranks(comm, factor=1):
    return float(comm.all_reduce(np.array([comm.rank * factor], dtype="float64"))[0])


def puts_its_rank(comm, queue):
    queue.put(comm.rank)


def fails_on_rank_1(comm):
    if comm.rank == 1:
        raise ValueError("no such luck")
    comm.barrier()


def is_killed_on_rank_1(comm):
    comm.barrier()
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        comm.all_reduce(np.zeros(1))
    except shmccl.PeerLostError as error:
        rest, lost = comm.shrink()
        return error.rank, lost, rest.size, sum_of_ranks(rest)


def differ(comm):
    """Makes a call that the other rank does not make."""
    try:
        comm.all_reduce(np.ones(1 + comm.rank))
    except shmccl.CallMismatchError as error:
        return type(error).__name__


def differ_and_go_on(comm):
    try:
        comm.all_reduce(np.ones(1 + comm.rank))
    except shmccl.CallMismatchError as error:
        comm, lost = comm.shrink()
        return str(error), lost, comm.all_reduce(np.ones(1))[0]


def comes_back(comm):
    """Adds in steps. The last rank is killed in the fourth, and all go on where the slowest was."""
    last, was_lost, step = comm.size - 1, comm.was_restarted, comm.recovered_step or 0
    mine = comm.zeros(2, local=True).numpy()
    while step < 6:
        if comm.rank == last and step == 3 and not was_lost:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            # An array of the epoch before is ordinary memory to this one.
            assert comm.all_reduce(np.full(2, step)).tolist() == [step * comm.size] * 2
            mine[:] = step
            comm.all_reduce(mine, out=mine)
            assert mine.tolist() == [step * comm.size] * 2
            step += 1
        except shmccl.PeerLostError as error:
            assert error.rank == last
            comm = comm.recover(step)
            step, was_lost = comm.recovered_step, True
            assert step <= 3 and not comm.was_restarted
    mine = comm.zeros(1000, "float32")
    mine[:] = 1.0
    staged = comm.staged_bytes
    assert comm.all_reduce(mine, out=mine).numpy()[999] == comm.size
    assert comm.staged_bytes == staged
    comm.barrier()
    return was_lost


def waits_for_ever(comm):
    # At once, as the ranks share the output.
    os.write(1, f"rank {comm.rank} waits\n".encode())
    if comm.rank == 0:
        comm.channel(1).wait()
    else:
        comm.all_reduce(np.zeros(1))


def streamed(comm):
    """Enqueues a call that nobody else comes to, and leaves the block."""
    with comm.stream() as stream:
        comm.all_reduce(np.zeros(1), stream=stream)


def closes_a_stream(comm):
    stream = comm.stream()
    comm.all_reduce(np.zeros(1), stream=stream)
    stream.close()


def sleeps_with_a_stream(comm):
    with comm.stream() as stream:
        comm.all_reduce(np.zeros(1), stream=stream)
        time.sleep(30)


def shares_with_a_thread(comm):
    """Waits for the turn of this thread, while another one is in a call."""
    in_a_call(comm)
    comm.heap_usage()


def in_a_call(comm):
    """Has a thread begin a call that nobody else comes to, and returns it."""

    def call():
        with contextlib.suppress(shmccl.Error):
            comm.barrier()

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    # Longer than the thread needs to get there.
    time.sleep(0.1)
    return thread


def started(comm):
    """Starts a receive that nothing comes for."""
    with comm.start() as work:
        comm.recv(np.empty(1), 1)
    return work


def locks_twice(comm):
    """Waits for a lock that its own rank holds."""
    words = comm.zeros(1, "uint64", local=True)
    lock = shmccl.Lock(comm._at(0, words.offset, "uint64", 1))
    lock.acquire()
    lock.acquire()


WAITS = {
    "channel": lambda comm: comm.channel(1).wait(),
    "barrier": lambda comm: comm.barrier(),
    "word": lambda comm: comm.wait_until(comm.zeros(1, "int64", local=True), "==", 1),
    "words": lambda comm: comm.wait_until_all(comm.zeros(9, local=True), ">", 1),
    "lock": locks_twice,
    "work": lambda comm: started(comm).wait(),
    "stream's block": streamed,
    "stream": closes_a_stream,
    "program": sleeps_with_a_stream,
    "thread": shares_with_a_thread,
}

if __name__ == "__main__":
    if sys.argv[1] == "launch":
        shmccl.launch(waits_for_ever, 2, start=sys.argv[2])
    elif sys.argv[1] == "init":
        with shmccl.init(timeout=20) as comm:
            # At once, as the ranks share the output.
            os.write(1, f"{comm.rank} {comm.size} {sum_of_ranks(comm)}\n".encode())
    elif sys.argv[1] == "alone":
        # Rank 0 of two, whose peer never comes to the call.
        comm, peer = shmccl.init_all(2)
        try:
            begun = time.monotonic()
            print("waits", flush=True)
            WAITS[sys.argv[2]](comm)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    elif sys.argv[1] == "recover":
        with shmccl.init(timeout=20) as comm:
            # Its successor leaves when the process ends.
            os.write(1, f"{comm.rank} {comes_back(comm)}\n".encode())
