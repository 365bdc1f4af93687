"""Ranks share tasks of unequal length by one counter: whoever is free takes the next one. The same tasks are then dealt
out in rounds, each of which an all_reduce ends, and both times are told.

    python load_balance.py [RANKS]
"""

import sys
import time

import numpy as np
import shmccl

TASKS = 400
# Tasks of a rank in a round.
DEALT = 8


def result_of(task):
    """The sum of some squares, one by one. One task in eight takes 30 times as long as the others."""
    total = 0
    for number in range(task, task + (6000 if task % 8 == task // 8 % 8 else 200)):
        total += number * number % 1009
    return total


def main(comm):
    # Rank 0 has the words that count: the next task, the sum of all results, and who is done.
    words = comm.zeros(3, "uint64")
    upcoming, total, done = (words.at(0)[index] for index in range(3))

    comm.barrier()
    start, taken = time.perf_counter(), 0
    while (task := upcoming.atomic_fetch_add(1)) < TASKS:
        total.atomic_add(result_of(task))
        taken += 1
    done.signal_op(1, "add")
    if comm.rank == 0:
        comm.wait_until(done, "==", comm.size)
    by_atomics = time.perf_counter() - start

    comm.barrier()
    start, in_rounds = time.perf_counter(), 0
    for first in range(0, TASKS, DEALT * comm.size):
        mine = range(first + comm.rank * DEALT, min(first + (comm.rank + 1) * DEALT, TASKS))
        in_rounds += int(comm.all_reduce(np.array([sum(map(result_of, mine))], "uint64"))[0])
    by_collectives = time.perf_counter() - start

    shares = comm.all_gather(np.array([taken])).ravel().tolist()
    if comm.rank == 0:
        expected = sum(map(result_of, range(TASKS)))
        assert total.get() == in_rounds == expected, "the sum is not that of one rank alone"
        print(
            f"load balance, {comm.size} ranks have taken {shares} of {TASKS} tasks, sum as computed alone: "
            f"{by_atomics * 1e3:.2f} ms by atomics, {by_collectives * 1e3:.2f} ms in rounds of all_reduce"
        )


if __name__ == "__main__":
    shmccl.launch(main, int(sys.argv[1]) if sys.argv[1:] else 4)
