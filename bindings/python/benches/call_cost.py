"""What a call from Python costs above the same call from Rust: all_reduce of 8 bytes between two pinned ranks.

Usage: python bindings/python/benches/call_cost.py [ROUNDS]. All are measured in turn in the same two processes; the
figures are the least of all rounds. The call in Rust is that of ordinary memory, in place.
"""

import os
import sys
import time

import numpy as np
import shmccl

CALLS = 5_000


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


def timed(call, *arguments, **settings):
    start = time.perf_counter()
    for _ in range(CALLS):
        call(*arguments, **settings)
    return time.perf_counter() - start


def measure(comm, rounds):
    least = {}

    def note(name, took):
        least[name] = min(took / CALLS * 1e6, least.get(name, 1e9))

    buffers = buffers_of(comm)
    for _ in range(rounds):
        comm.barrier()
        note("Rust", comm._time_all_reduce(CALLS))
        for name, buffer in buffers.items():
            settings = {"dtype": "float32"} if isinstance(buffer, bytearray) else {}
            comm.barrier()
            note(name, timed(comm.all_reduce, buffer, "max", buffer, **settings))
    return least


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    least = shmccl.launch(measure, 2, rounds)[0]
    print(f"all_reduce of 8 bytes, 2 pinned ranks on {os.cpu_count()} cores, least of {rounds} rounds of {CALLS} calls, us")
    print(f"{'operand':20} {'a call':>8} {'above Rust':>11}")
    for name, took in least.items():
        print(f"{name:20} {took:8.3f} {took - least['Rust']:11.3f}")


if __name__ == "__main__":
    main()
