"""The upper-case names of mpi4py."""

import numpy as np
from shmccl import mpi as MPI
from test_collectives import on_ranks


def test_calls_by_the_names_of_mpi4py():
    def body(comm):
        comm = MPI.Comm(comm)
        rank, size = comm.Get_rank(), comm.Get_size()
        total = np.zeros(2)
        comm.Allreduce(np.array([rank, 1.0]), total, op=MPI.SUM)
        assert total.tolist() == [3.0, 3.0]
        comm.Allreduce(MPI.IN_PLACE, [total, MPI.DOUBLE], op=MPI.MAX)
        comm.Bcast(total, root=1)
        rows = np.zeros((size, 2))
        rows[rank] = rank
        comm.Allgather(MPI.IN_PLACE, rows)
        assert rows[:, 1].tolist() == [0.0, 1.0, 2.0]
        part = np.zeros(2)
        comm.Scatter(rows, part, root=0)
        assert part[0] == rank
        comm.Reduce_scatter_block(np.ones((size, 2)), part)
        assert part.tolist() == [3.0, 3.0]
        gathered = np.zeros((size, 2)) if rank == 2 else None
        comm.Gather(part, gathered, root=2)
        summed = np.zeros(2)
        comm.Reduce(part, summed, op=MPI.SUM, root=1)
        assert summed[0] == (9.0 if rank == 1 else 0.0)
        theirs = np.zeros(1, int)
        comm.Sendrecv(np.array([rank]), (rank + 1) % size, 0, theirs, (rank - 1) % size, 0)
        assert theirs[0] == (rank - 1) % size
        if rank == 0:
            assert {comm.Recv(theirs, MPI.ANY_SOURCE, tag=3) for _ in range(2)} == {1, 2}
        else:
            comm.Send(theirs, 0, tag=3)
        assert comm.Split(MPI.UNDEFINED if rank else 0) is None or rank == 0
        comm.Barrier()

    on_ranks(body)
