"""Heat spreads over a plate. Each rank owns a block of it, in a grid of ranks. At every step it puts its edges straight
into the memory of its neighbours, which never ask for data. The same is done by an all_to_all, and both times are told.
Each rank compares its block, bit for bit, with the whole plate computed by itself.

    python halo_exchange.py [RANKS, up to 240]
"""

import sys
import time

import numpy as np
import shmccl

SIZE, STEPS = 240, 60
INNER = slice(1, -1)
# Above, below, left, right: what a block has of its neighbours around it, and its own edges.
BORDERS = [(0, INNER), (-1, INNER), (INNER, 0), (INNER, -1)]
EDGES = [(1, INNER), (-2, INNER), (INNER, 1), (INNER, -2)]


def begin(rows, columns):
    """A block within a border of one cell. That of the plate is hot above and cold elsewhere."""
    block = np.zeros((len(rows) + 2, len(columns) + 2))
    if rows.start == 0:
        block[0, INNER] = np.array(columns) % 7 * 10.0
    return block


def step(block):
    """Every cell becomes the mean of its four neighbours."""
    block[INNER, INNER] = 0.25 * (block[:-2, INNER] + block[2:, INNER] + block[INNER, :-2] + block[INNER, 2:])


class ByPuts:
    """Puts edges into the memory of neighbours, and raises a word of theirs behind each."""

    def __init__(self, comm, neighbours):
        self.comm, self.neighbours = comm, neighbours
        # Twice: a neighbour may be in its next step while this rank still reads what came in this one.
        self.edges, self.arrived = comm.zeros((2, 4, SIZE)), comm.zeros(4, "uint64")

    def exchange(self, turn, block):
        for side, rank in self.neighbours.items():
            edge, its_side = np.ascontiguousarray(block[EDGES[side]]), side ^ 1
            target = self.edges.at(rank)[turn % 2, its_side, : edge.size]
            target.put_signal(edge, self.arrived.at(rank)[its_side], turn)
        for side in self.neighbours:
            self.comm.wait_until(self.arrived.at(self.comm.rank)[side], ">=", turn)
            border = block[BORDERS[side]]
            border[:] = self.edges.numpy()[turn % 2, side, : border.size]


class ByCollective:
    """Lets a collective move the edges: a place for each rank, of which most stay unused."""

    def __init__(self, comm, neighbours):
        self.comm, self.neighbours = comm, neighbours
        self.sent, self.came = comm.zeros((comm.size, SIZE)), comm.zeros((comm.size, SIZE))

    def exchange(self, turn, block):
        sent, came = self.sent.numpy(), self.came.numpy()
        for side, rank in self.neighbours.items():
            edge = block[EDGES[side]]
            sent[rank, : edge.size] = edge
        self.comm.all_to_all(self.sent, self.came)
        for side, rank in self.neighbours.items():
            border = block[BORDERS[side]]
            border[:] = came[rank, : border.size]


def main(comm):
    if comm.size > SIZE:
        raise ValueError(f"{comm.size} ranks, at most {SIZE}, so that each has a column of cells")
    down = max(down for down in range(1, comm.size + 1) if comm.size % down == 0 and down * down <= comm.size)
    across = comm.size // down
    row, column = divmod(comm.rank, across)
    rows = range(row * SIZE // down, (row + 1) * SIZE // down)
    columns = range(column * SIZE // across, (column + 1) * SIZE // across)
    beside = [(row > 0, -across), (row + 1 < down, across), (column > 0, -1), (column + 1 < across, 1)]
    neighbours = {side: comm.rank + by for side, (is_there, by) in enumerate(beside) if is_there}

    plate = begin(range(SIZE), range(SIZE))
    for _ in range(STEPS):
        step(plate)
    expected = plate[INNER, INNER][rows.start : rows.stop, columns.start : columns.stop]

    us_of_step = []
    for way in ByPuts(comm, neighbours), ByCollective(comm, neighbours):
        block = begin(rows, columns)
        comm.barrier()
        start = time.perf_counter()
        for turn in range(1, STEPS + 1):
            step(block)
            way.exchange(turn, block)
        comm.barrier()
        us_of_step.append((time.perf_counter() - start) * 1e6 / STEPS)
        assert np.array_equal(block[INNER, INNER], expected), f"rank {comm.rank} differs from the plate computed alone"
    if comm.rank == 0:
        puts, collective = us_of_step
        print(
            f"halo exchange, {down} x {across} ranks, {SIZE} x {SIZE} cells, every bit as computed alone: "
            f"a step takes {puts:.1f} us by puts, {collective:.1f} us by all_to_all"
        )


if __name__ == "__main__":
    shmccl.launch(main, int(sys.argv[1]) if sys.argv[1:] else 4)
