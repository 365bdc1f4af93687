"""The collective calls of a communicator on buffers: the names in upper case, at once and begun.

Each is a method of `_Calls`, which makes calls of the engine, and returns what is left to do when these are done, or None.
"""

from array import array

from .._core import _complete, _is_awaiting, _Part
from ._buffers import blocks, buffer, in_place, part
from ._constants import IN_PLACE
from ._ops import SUM, fold, is_folded
from ._requests import Prequest, Request


class _Calls:
    """The calls of the engine that a call of MPI makes."""

    def __init__(self, comm):
        self.shmccl, self.rank, self.size = comm, comm.rank, comm.size

    def barrier(self):
        nothing = bytearray(1)
        self.shmccl.all_reduce(nothing, "max", out=nothing)

    def bcast(self, buf, root=0):
        x, dtype = buffer(buf)
        self.shmccl.broadcast(x, root, dtype=dtype)

    def _moved(self, call, sendbuf, recvbuf, *arguments, has_all=False):
        """Makes a call. With `has_all`, the output has a block for each rank."""
        n_blocks = self.size if has_all else 1
        out, dtype = (None, None) if recvbuf is None else buffer(recvbuf, n_blocks)
        if in_place(sendbuf):
            x, own = (self._own_block(out, dtype), dtype) if has_all else (out, dtype)
        else:
            x, own = buffer(sendbuf)
        call(x, *arguments, out=out, dtype=own or dtype)

    # Reductions -------------------------------------------------------------------------------------------------------

    def allreduce(self, sendbuf, recvbuf, op=SUM):
        if is_folded(op, recvbuf if in_place(sendbuf) else sendbuf):
            return self._folded(op, sendbuf, recvbuf, self.size)
        return self._moved(self.shmccl.all_reduce, sendbuf, recvbuf, op)

    def scan(self, sendbuf, recvbuf, op=SUM):
        if is_folded(op, recvbuf if in_place(sendbuf) else sendbuf):
            return self._folded(op, sendbuf, recvbuf, self.rank + 1)
        return self._moved(self.shmccl.scan, sendbuf, recvbuf, op)

    def exscan(self, sendbuf, recvbuf, op=SUM):
        if is_folded(op, recvbuf if in_place(sendbuf) else sendbuf):
            return self._folded(op, sendbuf, recvbuf, self.rank)
        return self._moved(self.shmccl.exscan, sendbuf, recvbuf, op)

    def reduce(self, sendbuf, recvbuf, op=SUM, root=0):
        is_root = self.rank == root
        if not is_root and in_place(sendbuf):
            raise ValueError("Reduce in place is for the root; other ranks pass what they send")
        if is_folded(op, recvbuf if in_place(sendbuf) else sendbuf):
            return self._folded(op, sendbuf, recvbuf if is_root else None, self.size if is_root else 0)
        return self._moved(self.shmccl.reduce, sendbuf, recvbuf if is_root else None, op, root)

    def reduce_scatter_block(self, sendbuf, recvbuf, op=SUM):
        if not in_place(sendbuf) and not is_folded(op, sendbuf):
            return self._moved(self.shmccl.reduce_scatter, sendbuf, recvbuf, op)
        whole, dtype = buffer(recvbuf if in_place(sendbuf) else sendbuf, self.size if in_place(sendbuf) else 1)
        count = self._block_of(whole, dtype)
        if is_folded(op, recvbuf if in_place(sendbuf) else sendbuf):
            return self._reduced_block(_Part(whole, dtype), recvbuf, op, lambda: count * self.rank, count)
        block = _Part(whole, dtype, 0, count)
        # The result goes to the begin of the buffer, and not to this rank's block of it.
        result = bytearray(block.count * block.itemsize)
        self.shmccl.reduce_scatter(whole, op, out=result, dtype=block.dtype)
        return lambda: block.write(result)

    def reduce_scatter(self, sendbuf, recvbuf, recvcounts=None, op=SUM):
        whole = part(recvbuf if in_place(sendbuf) else sendbuf)
        if recvcounts is None:
            # The counts of the ranks before tell where this rank's block begins.
            count, before = part(recvbuf).count, array("q", [0])
            self.shmccl.exscan(array("q", [count]), "sum", out=before)
            return self._reduced_block(whole, recvbuf, op, lambda: before[0], count)
        counts = [int(count) for count in recvcounts]
        return self._reduced_block(whole, recvbuf, op, lambda: sum(counts[: self.rank]), counts[self.rank])

    def _reduced_block(self, whole, recvbuf, op, first, count):
        """Combines all of a buffer, and leaves so many elements of it at the begin of another one."""
        result, target = _Part(bytearray(bytes(whole)), whole.dtype), part(recvbuf)
        finish = self.allreduce(IN_PLACE, result, op)

        def write():
            if finish is not None:
                finish()
            target.write(bytes(_Part(result, None, first(), count)))

        return write

    def _folded(self, op, sendbuf, recvbuf, n_rows):
        """Gathers what all ranks have, and combines the first rows here."""
        own = part(recvbuf if in_place(sendbuf) else sendbuf)
        row = bytes(own)
        gathered = bytearray(len(row) * self.size)
        self.shmccl.all_gather(row, out=gathered, dtype="uint8")

        def write():
            if n_rows and recvbuf is not None:
                rows = [gathered[len(row) * at : len(row) * (at + 1)] for at in range(n_rows)]
                part(recvbuf).write(fold(op, rows, own.dtype))

        return write

    # Blocks of one length ---------------------------------------------------------------------------------------------

    def alltoall(self, sendbuf, recvbuf):
        out, dtype = buffer(recvbuf, self.size)
        x, own = (out, dtype) if in_place(sendbuf) else buffer(sendbuf, self.size)
        self.shmccl.all_to_all(x, out=out, dtype=own or dtype)

    def allgather(self, sendbuf, recvbuf):
        self._moved(self.shmccl.all_gather, sendbuf, recvbuf, has_all=True)

    def gather(self, sendbuf, recvbuf, root=0):
        recvbuf = recvbuf if self.rank == root else None
        self._moved(self.shmccl.gather, sendbuf, recvbuf, root, has_all=True)

    def scatter(self, sendbuf, recvbuf, root=0):
        x, dtype = buffer(sendbuf, self.size) if self.rank == root else (None, None)
        out, own = (self._own_block(x, dtype), dtype) if in_place(recvbuf) else buffer(recvbuf)
        self.shmccl.scatter(x, root, out=out, dtype=own or dtype)

    def _own_block(self, whole, dtype):
        """Returns this rank's block of a buffer that has one for each rank."""
        block = self._block_of(whole, dtype)
        return _Part(whole, dtype, self.rank * block, block)

    def _block_of(self, whole, dtype):
        count = _Part(whole, dtype).count
        if count % self.size:
            raise ValueError(f"{count} elements are no block for each of {self.size} ranks; pass a multiple")
        return count // self.size

    # Blocks of lengths of their own -----------------------------------------------------------------------------------

    def alltoallv(self, sendbuf, recvbuf):
        out, received, received_at, dtype = blocks(recvbuf, self.size)
        x, sent, sent_at, own = (out, received, received_at, dtype) if in_place(sendbuf) else blocks(sendbuf, self.size)
        self._exchange(x, (sent, sent_at), out, (received, received_at), own or dtype)

    def allgatherv(self, sendbuf, recvbuf):
        out, received, received_at, dtype = blocks(recvbuf, self.size)
        x = self._sent(sendbuf, (out, received, received_at, dtype))
        self._exchange(x, self._to(range(self.size), x.count), out, (received, received_at), x.dtype)

    def gatherv(self, sendbuf, recvbuf, root=0):
        if self.rank == root:
            out, received, received_at, dtype = blocks(recvbuf, self.size)
            x = self._sent(sendbuf, (out, received, received_at, dtype))
        else:
            x, out, (received, received_at) = self._sent(sendbuf, None), bytearray(), self._to([], 0)
        self._exchange(x, self._to([root], x.count), out, (received, received_at), x.dtype)

    def scatterv(self, sendbuf, recvbuf, root=0):
        x, (sent, sent_at), dtype = b"", self._to([], 0), None
        if self.rank == root:
            x, sent, sent_at, dtype = blocks(sendbuf, self.size)
        if in_place(recvbuf):
            kept = _Part(x, dtype, sent_at[root], sent[root])
            out = _Part(bytearray(kept.count * kept.itemsize), kept.dtype)
        else:
            out = part(recvbuf)
        self._exchange(x, (sent, sent_at), out, self._to([root], out.count), dtype or out.dtype)

    def _sent(self, sendbuf, whole):
        """Returns what this rank sends; in place, a copy of its own block of `whole`."""
        if not in_place(sendbuf):
            return part(sendbuf)
        if whole is None:
            raise ValueError("Gatherv in place is for the root; other ranks pass what they send")
        x, counts, displacements, dtype = whole
        block = _Part(x, dtype, displacements[self.rank], counts[self.rank])
        return _Part(bytes(block), block.dtype)

    def _to(self, ranks, count):
        """Returns counts and displacements where each of `ranks` has the same `count` elements."""
        return [count if rank in ranks else 0 for rank in range(self.size)], [0] * self.size

    def _exchange(self, x, sent, out, received, dtype):
        (sent, sent_at), (received, received_at) = sent, received
        self.shmccl.all_to_all_v(x, sent, out, received, sent_at=sent_at, received_at=received_at, dtype=dtype)


def _begin(comm, call, arguments, named):
    """Begins a call of `_Calls`."""
    with comm.shmccl.start() as work:
        finish = call(_Calls(comm.shmccl), *arguments, **named)
    return Request._begun(work, finish)


def run(comm, call, *arguments, **named):
    """Makes a call of `_Calls`. Messages for receives that were posted come meanwhile."""
    if _is_awaiting():
        with comm.shmccl.start() as work:
            finish = call(_Calls(comm.shmccl), *arguments, **named)
        _complete(work)
    else:
        finish = call(_Calls(comm.shmccl), *arguments, **named)
    if finish is not None:
        finish()


class Collectives:
    """Collective calls on buffers: `Name`, `Iname`, which is begun, and `Name_init`, which is begun again and again."""


def _add(name):
    call = getattr(_Calls, name.lower())

    def at_once(self, *arguments, **named):
        run(self, call, *arguments, **named)

    def begun(self, *arguments, **named):
        return _begin(self, call, arguments, named)

    def repeated(self, *arguments, **named):
        return Prequest._made(lambda: _begin(self, call, arguments, named))

    for method, title in ((at_once, name), (begun, f"I{name.lower()}"), (repeated, f"{name}_init")):
        method.__name__, method.__qualname__ = title, f"Collectives.{title}"
        method.__wrapped__ = call
        setattr(Collectives, title, method)


for _name in (
    "Barrier", "Bcast", "Allreduce", "Scan", "Exscan", "Reduce", "Reduce_scatter_block", "Reduce_scatter", "Alltoall",
    "Allgather", "Gather", "Scatter", "Alltoallv", "Allgatherv", "Gatherv", "Scatterv",
):  # fmt: skip
    _add(_name)
