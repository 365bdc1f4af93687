"""What a call from Python costs above the same call from Rust, and what the heap saves, between two pinned ranks.

Usage: python bindings/python/benches/call_cost.py [ROUNDS]. All are measured in turn in the same two processes; the
figures are the least of all rounds. Calls are all_reduce in place. The call in Rust is that of ordinary memory.
"""

import os
import sys
import time

import numpy as np
import shmccl

CALLS = 5_000
LONG = {1 << 20: 200, 16 << 20: 10}


def buffers_of(comm):
    buffers = {"NumPy": np.ones(2, "float32")}
    try:
        import torch

        torch.set_num_threads(1)
        buffers["torch"] = torch.ones(2)
    except ImportError:
        pass
    heap = comm.zeros(2, "float32")
    return {**buffers, "heap array": heap, "NumPy's view of it": heap.numpy(), "bytes, dtype=": bytearray(8)}


def timed(calls, call, *arguments, **settings):
    """The microseconds of a call."""
    start = time.perf_counter()
    for _ in range(calls):
        call(*arguments, **settings)
    return (time.perf_counter() - start) / calls * 1e6


def short_calls(comm, rounds):
    least, buffers = {}, buffers_of(comm)

    def started(array):
        with comm.start() as work:
            comm.all_reduce(array, "max", array)
        work.wait()

    def note(name, took):
        least[name] = min(took, least.get(name, took))

    for _ in range(rounds):
        comm.barrier()
        note("Rust", comm._time_all_reduce(CALLS) / CALLS * 1e6)
        comm.barrier()
        note("Rust, start + wait", comm._time_all_reduce(CALLS, True) / CALLS * 1e6)
        for name, buffer in buffers.items():
            settings = {"dtype": "float32"} if isinstance(buffer, bytearray) else {}
            comm.barrier()
            note(name, timed(CALLS, comm.all_reduce, buffer, "max", buffer, **settings))
        comm.barrier()
        note("NumPy, start + wait", timed(CALLS, started, buffers["NumPy"]))
    return least


def long_calls(comm, rounds):
    """By length: the least time of ordinary memory and of the heap, and the bytes that each has staged."""
    figures = {}
    for length, calls in LONG.items():
        heap, ordinary = comm.zeros(length // 4, "float32"), np.zeros(length // 4, "float32")
        least, staged = [float("inf")] * 2, [0, 0]
        for _ in range(rounds):
            for way, array in enumerate([ordinary, heap]):
                comm.barrier()
                before = comm.staged_bytes
                least[way] = min(least[way], timed(calls, comm.all_reduce, array, "sum", array))
                staged[way] += comm.staged_bytes - before
        figures[length] = least, staged
    return figures


def measure(comm, rounds):
    return short_calls(comm, rounds), long_calls(comm, rounds)


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    least, figures = shmccl.launch(measure, 2, rounds)[0]
    print(f"all_reduce, 2 pinned ranks on {os.cpu_count()} cores, least of {rounds} rounds, us")
    print(f"{'operand of 8 bytes':20} {'a call':>8} {'above Rust':>11}")
    for name, took in least.items():
        print(f"{name:20} {took:8.3f} {took - least['Rust']:11.3f}")
    print(f"{'length':>8} {'ordinary':>10} {'heap':>10} {'ratio':>6} {'staged: ordinary, heap':>30}")
    for length, ((ordinary, heap), staged) in figures.items():
        print(f"{length >> 20:4} MiB {ordinary:10.1f} {heap:10.1f} {ordinary / heap:6.2f} {staged[0]:20} {staged[1]:9}")


if __name__ == "__main__":
    main()
