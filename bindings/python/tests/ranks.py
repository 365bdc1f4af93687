"""Functions that ranks import, and programs that start themselves."""

import os
import signal
import sys
import time

import numpy as np
import shmccl


def sum_of_ranks(comm, factor=1):
    return float(comm.all_reduce(np.array([comm.rank * factor], dtype="float64"))[0])


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
    except shmccl.PeerLost as error:
        rest, lost = comm.shrink()
        return error.rank, lost, rest.size, sum_of_ranks(rest)


def waits_for_ever(comm):
    # At once, as the ranks share the output.
    os.write(1, f"rank {comm.rank} waits\n".encode())
    if comm.rank == 0:
        comm.channel(1).wait()
    else:
        comm.all_reduce(np.zeros(1))


if __name__ == "__main__":
    if sys.argv[1] == "launch":
        shmccl.launch(waits_for_ever, 2, start=sys.argv[2])
    elif sys.argv[1] == "init":
        with shmccl.init(timeout=20) as comm:
            print(comm.rank, comm.size, sum_of_ranks(comm), flush=True)
    elif sys.argv[1] == "alone":
        # Rank 0 of two, whose peer never comes to the call.
        comm, peer = shmccl.init_all(2)
        try:
            begun = time.monotonic()
            print("waits", flush=True)
            {"channel": lambda: comm.channel(1).wait(), "barrier": comm.barrier}[sys.argv[2]]()
        except KeyboardInterrupt:
            print("interrupted", flush=True)
