"""The upper-case names of mpi4py over a communicator of shmccl.

    from shmccl import mpi as MPI

    comm = MPI.COMM_WORLD                   # of the launcher; or MPI.Comm(any communicator of shmccl)
    comm.Allreduce(sendbuf, recvbuf, op=MPI.SUM)

`sendbuf` may be `MPI.IN_PLACE`. A buffer is any operand of shmccl, or a list as mpi4py takes it: `[x, MPI.INT]`,
`[x, count, MPI.INT]`, `[x, count, displacement, MPI.INT]`, `[x, (count, displacement), MPI.INT]`. The calls that end in
v take `[x, counts, displacements, MPI.INT]` and `[x, (counts, displacements), MPI.INT]`. Counts are elements of the type.

A receive takes any source and any tag unless it names them, and as many elements as were sent.
"""

import os as _os
import time as _time

from ._core import Communicator, _Part, group

SUM, PROD, MIN, MAX, BAND, BOR, BXOR = "sum", "prod", "min", "max", "band", "bor", "bxor"
IN_PLACE = type("IN_PLACE", (), {"__repr__": lambda self: "IN_PLACE"})()
ANY_SOURCE, PROC_NULL, UNDEFINED, ANY_TAG = -1, -2, -32766, -1
COMM_TYPE_SHARED = 0


class Datatype(str):
    """A type of elements: its name in shmccl, with its size."""

    @property
    def size(self):
        return 16 if self == "complex128" else 1 if self == "bool" else int("".join(filter(str.isdigit, self))) // 8

    def Get_size(self):
        return self.size

    def Get_extent(self):
        return 0, self.size


BYTE = CHAR = UNSIGNED_CHAR = UINT8_T = Datatype("uint8")
SIGNED_CHAR = INT8_T = Datatype("int8")
SHORT = INT16_T = Datatype("int16")
UNSIGNED_SHORT = UINT16_T = Datatype("uint16")
INT = INTEGER = INT32_T = Datatype("int32")
UNSIGNED = UNSIGNED_INT = UINT32_T = Datatype("uint32")
LONG = LONG_LONG = INT64_T = AINT = OFFSET = COUNT = Datatype("int64")
UNSIGNED_LONG = UNSIGNED_LONG_LONG = UINT64_T = Datatype("uint64")
FLOAT = REAL = Datatype("float32")
DOUBLE = DOUBLE_PRECISION = Datatype("float64")
COMPLEX = FLOAT_COMPLEX = C_FLOAT_COMPLEX = C_COMPLEX = Datatype("complex64")
DOUBLE_COMPLEX = C_DOUBLE_COMPLEX = Datatype("complex128")
BOOL = C_BOOL = CXX_BOOL = Datatype("bool")
# The letters by which mpi4py and array.array name types.
_LETTERS = {"b": "int8", "B": "uint8", "h": "int16", "H": "uint16", "i": "int32", "I": "uint32", "l": "int64", "L": "uint64"}
_LETTERS |= {"q": "int64", "Q": "uint64", "e": "float16", "f": "float32", "d": "float64", "F": "complex64", "D": "complex128"}
_LETTERS |= {"?": "bool", "c": "uint8"}


def __getattr__(name):
    """Joins the job of the launcher when a program first asks for COMM_WORLD."""
    if name != "COMM_WORLD":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ._init import init

    globals()[name] = Comm(init())
    return globals()[name]


def Wtime():
    return _time.perf_counter()


def Wtick():
    return _time.get_clock_info("perf_counter").resolution


def Get_processor_name():
    return _os.uname().nodename


def _is_list(value):
    return isinstance(value, list | tuple)


def _spelled(spec):
    """Returns object, count, displacement and type of what names a buffer; None for what is not said."""
    if not _is_list(spec):
        return spec, None, None, None
    x, *rest = spec or [None]
    dtype = rest.pop() if rest and isinstance(rest[-1], str) else None
    if len(rest) > 2 or not spec:
        raise ValueError(f"{spec!r} names no buffer: give [x, count, displacement, type], or less of it")
    if len(rest) == 1 and isinstance(rest[0], tuple) and len(rest[0]) == 2:
        rest = list(rest[0])
    count, displacement = [*rest, None, None][:2]
    return x, count, displacement, _LETTERS.get(dtype, dtype)


def _buffer(spec):
    """Returns what calls take for a buffer, and its type."""
    if not _is_list(spec):
        return spec, None
    x, count, displacement, dtype = _spelled(spec)
    if count is None and displacement is None:
        return x, dtype
    return _Part(x, dtype, displacement or 0, count), dtype


def _blocks(spec, size):
    """Returns a buffer, the counts and the displacements of its blocks for `size` ranks, and its type."""
    x, counts, displacements, dtype = _spelled(spec)
    if counts is None:
        counts = _Part(x, dtype).count
        if counts % size:
            raise ValueError(f"{counts} elements are no block for each of {size} ranks; give the counts")
        counts //= size
    counts = [int(count) for count in counts] if hasattr(counts, "__len__") else [int(counts)] * size
    if displacements is None:
        displacements = [sum(counts[:rank]) for rank in range(size)]
    displacements = [int(at) for at in displacements]
    if not len(counts) == len(displacements) == size:
        raise ValueError(f"expected a count and a displacement for each of {size} ranks, not {counts} and {displacements}")
    return x, counts, displacements, dtype


class Status:
    """Says which message a receive has taken."""

    def __init__(self):
        self.source, self.tag, self.count, self.error = ANY_SOURCE, ANY_TAG, 0, 0

    def _set(self, source, tag, count):
        """`count` is in bytes, as in mpi4py."""
        self.source, self.tag, self.count = source, tag, count

    def Get_source(self):
        return self.source

    def Get_tag(self):
        return self.tag

    def Get_error(self):
        return self.error

    def Get_count(self, datatype=BYTE):
        size = Datatype(_LETTERS.get(datatype, datatype)).size
        return self.count // size if self.count % size == 0 else UNDEFINED

    Get_elements = Get_count

    def Is_cancelled(self):
        return False


class Request:
    """A call that was begun: `Wait` returns when it is done."""

    def __init__(self, work=None, told=lambda status: None):
        self._work, self._told = work, told

    def Wait(self, status=None):
        if self._work is not None:
            self._work.wait()
        self._told(status)
        return True

    def Test(self, status=None):
        is_done = self._work is None or self._work.is_done()
        return is_done and self.Wait(status)

    wait, test = Wait, Test

    @classmethod
    def Waitall(cls, requests, statuses=None):
        for request, status in zip(requests, statuses or [None] * len(requests), strict=True):
            request.Wait(status)
        return True

    @classmethod
    def Testall(cls, requests, statuses=None):
        return all(request.Test() for request in requests) and cls.Waitall(requests, statuses)

    waitall, testall = Waitall, Testall


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

    def Is_inter(self):
        return False

    def Is_intra(self):
        return True

    # Collective calls ------------------------------------------------------------------------------------------------

    def Barrier(self):
        self.shmccl.barrier()

    def Bcast(self, buf, root=0):
        x, dtype = _buffer(buf)
        self.shmccl.broadcast(x, root, dtype=dtype)

    def _moved(self, call, sendbuf, recvbuf, *arguments, own_block=False):
        out, dtype = (None, None) if recvbuf is None else _buffer(recvbuf)
        if sendbuf is IN_PLACE:
            x, own = (self._own_block(out, dtype), dtype) if own_block else (out, dtype)
        else:
            x, own = _buffer(sendbuf)
        call(x, *arguments, out=out, dtype=own or dtype)

    def Allreduce(self, sendbuf, recvbuf, op=SUM):
        self._moved(self.shmccl.all_reduce, sendbuf, recvbuf, op)

    def Scan(self, sendbuf, recvbuf, op=SUM):
        self._moved(self.shmccl.scan, sendbuf, recvbuf, op)

    def Exscan(self, sendbuf, recvbuf, op=SUM):
        self._moved(self.shmccl.exscan, sendbuf, recvbuf, op)

    def Reduce(self, sendbuf, recvbuf, op=SUM, root=0):
        if self.rank != root and sendbuf is IN_PLACE:
            raise ValueError("Reduce in place is for the root; other ranks pass what they send")
        self._moved(self.shmccl.reduce, sendbuf, recvbuf, op, root)

    def Reduce_scatter_block(self, sendbuf, recvbuf, op=SUM):
        if sendbuf is not IN_PLACE:
            self._moved(self.shmccl.reduce_scatter, sendbuf, recvbuf, op)
            return
        whole, dtype = _buffer(recvbuf)
        block = _Part(whole, dtype, 0, self._block_of(whole, dtype))
        # The result goes to the begin of the buffer, and not to this rank's block of it.
        result = bytearray(block.count * block.itemsize)
        self.shmccl.reduce_scatter(whole, op, out=result, dtype=block.dtype)
        block.write(result)

    def Alltoall(self, sendbuf, recvbuf):
        self._moved(self.shmccl.all_to_all, sendbuf, recvbuf)

    def Allgather(self, sendbuf, recvbuf):
        self._moved(self.shmccl.all_gather, sendbuf, recvbuf, own_block=True)

    def Gather(self, sendbuf, recvbuf, root=0):
        self._moved(self.shmccl.gather, sendbuf, recvbuf, root, own_block=True)

    def Scatter(self, sendbuf, recvbuf, root=0):
        x, dtype = (None, None) if sendbuf is None else _buffer(sendbuf)
        out, own = (self._own_block(x, dtype), dtype) if recvbuf is IN_PLACE else _buffer(recvbuf)
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

    # Blocks of lengths of their own ----------------------------------------------------------------------------------

    def Alltoallv(self, sendbuf, recvbuf):
        out, received, received_at, dtype = _blocks(recvbuf, self.size)
        x, sent, sent_at, own = (out, received, received_at, dtype) if sendbuf is IN_PLACE else _blocks(sendbuf, self.size)
        self._exchange(x, (sent, sent_at), out, (received, received_at), own or dtype)

    def Allgatherv(self, sendbuf, recvbuf):
        out, received, received_at, dtype = _blocks(recvbuf, self.size)
        x = self._sent(sendbuf, (out, received, received_at, dtype))
        self._exchange(x, self._to(range(self.size), x.count), out, (received, received_at), x.dtype)

    def Gatherv(self, sendbuf, recvbuf, root=0):
        if self.rank == root:
            out, received, received_at, dtype = _blocks(recvbuf, self.size)
            x = self._sent(sendbuf, (out, received, received_at, dtype))
        else:
            x, out, (received, received_at) = self._sent(sendbuf, None), bytearray(), self._to([], 0)
        self._exchange(x, self._to([root], x.count), out, (received, received_at), x.dtype)

    def Scatterv(self, sendbuf, recvbuf, root=0):
        x, (sent, sent_at), dtype = b"", self._to([], 0), None
        if self.rank == root:
            x, sent, sent_at, dtype = _blocks(sendbuf, self.size)
        if recvbuf is IN_PLACE:
            kept = _Part(x, dtype, sent_at[root], sent[root])
            out = _Part(bytearray(kept.count * kept.itemsize), kept.dtype)
        else:
            out = _Part(*_buffer(recvbuf))
        self._exchange(x, (sent, sent_at), out, self._to([root], out.count), dtype or out.dtype)

    def _sent(self, sendbuf, whole):
        """Returns what this rank sends; in place, a copy of its own block of `whole`."""
        if sendbuf is not IN_PLACE:
            return _Part(*_buffer(sendbuf))
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

    # Messages --------------------------------------------------------------------------------------------------------

    def Send(self, buf, dest, tag=0):
        if dest != PROC_NULL:
            x, dtype = _buffer(buf)
            self.shmccl.send(x, dest, tag=tag, dtype=dtype)

    def Recv(self, buf, source=ANY_SOURCE, tag=ANY_TAG, status=None):
        """Receives, and returns the source."""
        told = self._recv(buf, source, tag)
        return told(status)

    def _recv(self, buf, source, tag):
        """Receives, at once or where calls are put together. Returns what tells a status, and the source."""
        if source == PROC_NULL:
            return lambda status: _tell(status, (PROC_NULL, ANY_TAG, 0))
        x, dtype = _buffer(buf)
        if source == ANY_SOURCE or tag == ANY_TAG:
            sources = None if source == ANY_SOURCE else source
            receipt = self.shmccl._recv_selected(x, sources, None if tag == ANY_TAG else tag, dtype)
            return lambda status: _tell(status, receipt.told())
        self.shmccl.recv(x, source, tag=tag, dtype=dtype)
        return lambda status: source if status is None else _tell(status, (source, tag, _nbytes(x, dtype)))

    def Sendrecv(self, sendbuf, dest, sendtag=0, recvbuf=None, source=ANY_SOURCE, recvtag=ANY_TAG, status=None):
        own = self.rank
        if source == ANY_SOURCE and self.size == 1:
            source = own
        if source == own and dest == own and recvtag == ANY_TAG:
            recvtag = sendtag
        with group(self.shmccl):
            self.Send(sendbuf, dest, sendtag)
            told = self._recv(recvbuf, source, recvtag)
        return told(status)

    def Sendrecv_replace(self, buf, dest, sendtag=0, source=ANY_SOURCE, recvtag=ANY_TAG, status=None):
        x, dtype = _buffer(buf)
        part = _Part(x, dtype)
        return self.Sendrecv([bytes(part), part.dtype], dest, sendtag, [x, part.dtype], source, recvtag, status)

    # Calls that are begun --------------------------------------------------------------------------------------------

    def _begun(self, call, *arguments, **named):
        with self.shmccl.start() as work:
            told = call(*arguments, **named)
        return Request(work, told if callable(told) else lambda status: None)

    def Isend(self, buf, dest, tag=0):
        return Request() if dest == PROC_NULL else self._begun(self.Send, buf, dest, tag)

    def Irecv(self, buf, source=ANY_SOURCE, tag=ANY_TAG):
        if source == PROC_NULL:
            return Request(told=self._recv(buf, source, tag))
        return self._begun(self._recv, buf, source, tag)

    def Ibcast(self, buf, root=0):
        return self._begun(self.Bcast, buf, root)

    def Iallreduce(self, sendbuf, recvbuf, op=SUM):
        return self._begun(self.Allreduce, sendbuf, recvbuf, op)

    def Iscan(self, sendbuf, recvbuf, op=SUM):
        return self._begun(self.Scan, sendbuf, recvbuf, op)

    def Iexscan(self, sendbuf, recvbuf, op=SUM):
        return self._begun(self.Exscan, sendbuf, recvbuf, op)

    def Ireduce(self, sendbuf, recvbuf, op=SUM, root=0):
        return self._begun(self.Reduce, sendbuf, recvbuf, op, root)

    def Iallgather(self, sendbuf, recvbuf):
        return self._begun(self.Allgather, sendbuf, recvbuf)

    def Igather(self, sendbuf, recvbuf, root=0):
        return self._begun(self.Gather, sendbuf, recvbuf, root)

    def Iscatter(self, sendbuf, recvbuf, root=0):
        return self._begun(self.Scatter, sendbuf, recvbuf, root)

    def Ialltoall(self, sendbuf, recvbuf):
        return self._begun(self.Alltoall, sendbuf, recvbuf)

    # Communicators ---------------------------------------------------------------------------------------------------

    def Split(self, color=0, key=0):
        part = self.shmccl.split(None if color in (UNDEFINED, None) else color, key)
        return None if part is None else Comm(part)

    def Split_type(self, split_type=COMM_TYPE_SHARED, key=0, info=None):
        """All ranks share memory, so they stay together."""
        return self.Split(UNDEFINED if split_type == UNDEFINED else 0, key)

    def Dup(self, info=None):
        return Comm(self.shmccl.duplicate())

    Clone = Dup

    def Abort(self, errorcode=1):
        self.shmccl.revoke()
        raise SystemExit(errorcode)

    def Free(self):
        self.shmccl.close()


Intracomm = Comm


def _nbytes(x, dtype):
    part = _Part(x, dtype)
    return part.count * part.itemsize


def _tell(status, told):
    """Tells `status` which message it was, and returns the source."""
    if told is not None and status is not None:
        status._set(*told)
    return None if told is None else told[0]
