"""The upper-case names of mpi4py over a communicator of shmccl.

    from shmccl import mpi as MPI

    comm = MPI.Comm(shmccl.init())
    comm.Allreduce(sendbuf, recvbuf, op=MPI.SUM)

`sendbuf` may be `MPI.IN_PLACE`. Buffers are operands of shmccl; `[buffer, MPI.FLOAT]` is taken, too. Counts follow from
the buffers.
"""

from ._core import Communicator, group

SUM, PROD, MIN, MAX, BAND, BOR, BXOR = "sum", "prod", "min", "max", "band", "bor", "bxor"
IN_PLACE = type("IN_PLACE", (), {"__repr__": lambda self: "IN_PLACE"})()
ANY_SOURCE, PROC_NULL, UNDEFINED = -1, -2, None
INT, LONG, FLOAT, DOUBLE, BYTE = "int32", "int64", "float32", "float64", "uint8"


def _buffer(spec):
    """Returns a buffer and its type, of `buffer` or `[buffer, type]`."""
    if isinstance(spec, list | tuple):
        return spec[0], spec[-1] if isinstance(spec[-1], str) else None
    return spec, None


class Comm:
    """A communicator with the names of mpi4py's `Comm`; `shmccl` is the one below."""

    def __init__(self, comm: Communicator):
        self.shmccl = comm

    @property
    def rank(self):
        return self.shmccl.rank

    @property
    def size(self):
        return self.shmccl.size

    def Get_rank(self):
        return self.shmccl.rank

    def Get_size(self):
        return self.shmccl.size

    def Barrier(self):
        self.shmccl.barrier()

    def Bcast(self, buf, root=0):
        x, dtype = _buffer(buf)
        self.shmccl.broadcast(x, root, dtype=dtype)

    def _reduced(self, call, sendbuf, recvbuf, *arguments):
        out, dtype = _buffer(recvbuf)
        x, own = (out, dtype) if sendbuf is IN_PLACE else _buffer(sendbuf)
        call(x, *arguments, out=out, dtype=own or dtype)

    def Allreduce(self, sendbuf, recvbuf, op=SUM):
        self._reduced(self.shmccl.all_reduce, sendbuf, recvbuf, op)

    def Reduce(self, sendbuf, recvbuf, op=SUM, root=0):
        self._reduced(self.shmccl.reduce, sendbuf, recvbuf, op, root)

    def Reduce_scatter_block(self, sendbuf, recvbuf, op=SUM):
        self._reduced(self.shmccl.reduce_scatter, sendbuf, recvbuf, op)

    def Alltoall(self, sendbuf, recvbuf):
        self._reduced(self.shmccl.all_to_all, sendbuf, recvbuf)

    def Allgather(self, sendbuf, recvbuf):
        out, dtype = _buffer(recvbuf)
        x, own = (self._own_block(out), dtype) if sendbuf is IN_PLACE else _buffer(sendbuf)
        self.shmccl.all_gather(x, out=out, dtype=own or dtype)

    def Gather(self, sendbuf, recvbuf, root=0):
        out, dtype = _buffer(recvbuf)
        x, own = (self._own_block(out), dtype) if sendbuf is IN_PLACE else _buffer(sendbuf)
        self.shmccl.gather(x, root, out=out, dtype=own or dtype)

    def Scatter(self, sendbuf, recvbuf, root=0):
        x, dtype = _buffer(sendbuf)
        out, own = (self._own_block(x), dtype) if recvbuf is IN_PLACE else _buffer(recvbuf)
        self.shmccl.scatter(x, root, out=out, dtype=own or dtype)

    def _own_block(self, whole):
        view = memoryview(whole).cast("B")
        length = len(view) // self.size
        own = view[self.rank * length : (self.rank + 1) * length]
        return own.cast(memoryview(whole).format)

    def Send(self, buf, dest, tag=0):
        if dest != PROC_NULL:
            x, dtype = _buffer(buf)
            self.shmccl.send(x, dest, tag=tag, dtype=dtype)

    def Recv(self, buf, source=ANY_SOURCE, tag=0):
        x, dtype = _buffer(buf)
        if source == ANY_SOURCE:
            return self.shmccl.recv_any(x, tag=tag, dtype=dtype)
        if source != PROC_NULL:
            self.shmccl.recv(x, source, tag=tag, dtype=dtype)
        return source

    def Sendrecv(self, sendbuf, dest, sendtag=0, recvbuf=None, source=None, recvtag=0):
        (x, sent), (out, received) = _buffer(sendbuf), _buffer(recvbuf)
        with group(self.shmccl):
            if dest != PROC_NULL:
                self.shmccl.send(x, dest, tag=sendtag, dtype=sent)
            if source != PROC_NULL:
                self.shmccl.recv(out, source, tag=recvtag, dtype=received)

    def Split(self, color=0, key=0):
        part = self.shmccl.split(color, key)
        return None if part is None else Comm(part)

    def Dup(self):
        return Comm(self.shmccl.duplicate())

    def Abort(self, errorcode=1):
        self.shmccl.revoke()
        raise SystemExit(errorcode)

    def Free(self):
        self.shmccl.close()
