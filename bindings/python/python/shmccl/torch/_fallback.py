"""The backend without a compiler: a Python subclass of c10d's Backend over the engine's table of functions.

It does the collectives and messages of the compiled one, at 5 to 8 us more for a call. Torch hands it no
gather_single. It has no windows and no reconfigure, does not put DDP's buckets into the heap, its tensors of the heap do
not grow, and its works can neither be polled nor tell sequence numbers, durations and sources.
"""

import bisect
import contextlib
import ctypes
import datetime
import functools
import itertools
import math
import os
import pathlib
import re
import sys
import threading
import time
import warnings

import torch
from torch._C._distributed_c10d import ErrorType, ReduceOp, Work
from torch.distributed import DistBackendError

from shmccl import _core
from shmccl._core import _Call as Call

from .._end import at_end
from . import _callers
from ._in_python import InPython
from ._meeting import bounded

HEADER = pathlib.Path(__file__).absolute().parent.parent / "include" / "shmccl.h"
VERSION = 1

SUCCESS, INTERNAL_ERROR, INVALID_ARGUMENT, IN_PROGRESS, TIMEOUT, INTERRUPTED = 0, 3, 4, 7, 11, 19
(ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, GATHER, SCATTER, ALL_TO_ALL_V, SEND, RECV) = range(11)
# Both buffers of these have one length.
WITH_EQUAL_BUFFERS = (ALL_REDUCE, REDUCE, BROADCAST)
ANY_SOURCE = -1
UINT8, MAX = 1, 3
NO_TIMEOUT = datetime.timedelta(0)
# What the options of an operation have that nobody has given a time.
UNSET = datetime.timedelta(milliseconds=-1)

TYPES = {
    torch.int8: 0, torch.uint8: UINT8, torch.int32: 2, torch.uint32: 3, torch.int64: 4, torch.uint64: 5, torch.float16: 6,
    torch.bfloat16: 7, torch.float32: 8, torch.float64: 9, torch.float8_e4m3fn: 10, torch.float8_e5m2: 11, torch.int16: 12,
    torch.uint16: 13, torch.bool: 14, torch.complex64: 15, torch.complex128: 16,
}
# Tensors of these are more than memory.
QUANTISED = (torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4)
ITEMSIZES = {code: dtype.itemsize for dtype, code in TYPES.items()}
SUM, AVG, PREMUL_SUM = 0, 4, "PREMUL_SUM"
# By the value of torch's operator, which is its hash as well: what else tells it makes an object.
OPERATORS = {
    int(kind): code for kind, code in (
        (ReduceOp.SUM, SUM), (ReduceOp.PRODUCT, 1), (ReduceOp.MIN, 2), (ReduceOp.MAX, MAX), (ReduceOp.AVG, AVG), (ReduceOp.BAND, 5),
        (ReduceOp.BOR, 6), (ReduceOp.BXOR, 7), (ReduceOp.PREMUL_SUM, PREMUL_SUM))
}
BITWISE = (5, 6, 7)


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * 128)]


class Process(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * 64)]


class Config(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("heap_bytes", ctypes.c_uint64), ("timeout_ms", ctypes.c_uint64),
                ("processes", ctypes.POINTER(Process))]


class Table:
    """The functions that this module uses, by the order of the fields in the header."""

    SIGNATURES = {
        "GetLastError": (ctypes.c_char_p, ctypes.c_void_p),
        "GetLastErrorRank": (ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)),
        "CommInitRankConfig": (ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, UniqueId, ctypes.c_int,
                               ctypes.POINTER(Config)),
        "CommDuplicate": (ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)),
        "CommDestroy": (ctypes.c_int, ctypes.c_void_p),
        "CommRevoke": (ctypes.c_int, ctypes.c_void_p),
        "CommRevokeAwaiting": (ctypes.c_int, ctypes.c_void_p, ctypes.c_int),
        "CommGetStragglers": (ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int)),
        "CommSetTimeout": (ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64),
        "RequestTest": (ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)),
        "RequestWait": (ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64),
        "RequestSource": (ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)),
        "RequestFree": (ctypes.c_int, ctypes.c_void_p),
        "MemAlloc": (ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t),
        "MemFree": (ctypes.c_int, ctypes.c_void_p),
        "MemLocate": (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_int),
                      ctypes.POINTER(ctypes.c_uint64)),
    }

    def __init__(self):
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        address = pointer(_core.table(), b"shmccl.table")
        version = ctypes.c_uint32.from_address(address + 4).value
        if version != VERSION:
            raise RuntimeError(f"the engine's function table has version {version}, and shmccl.torch was made for version {VERSION}")
        body = re.search(r"struct shmcclTable \{(.*?)\n\};", HEADER.read_text(), re.S).group(1)
        for index, name in enumerate(re.findall(r"\(\*(\w+)\)\(", body)):
            if name in self.SIGNATURES:
                function = ctypes.c_void_p.from_address(address + 8 + 8 * index).value
                setattr(self, name, ctypes.CFUNCTYPE(*self.SIGNATURES[name])(function))


class Forks:
    """How many forks have led to this process: quicker to ask than for its number."""

    n = 0

    @classmethod
    def count(cls):
        cls.n += 1


os.register_at_fork(after_in_child=Forks.count)

table = None

# Whether a thread is in a callback of the engine.
within = threading.local()


def milliseconds(seconds):
    """So many for the engine, for which none would be no limit."""
    return max(1, math.ceil(seconds * 1000))


def failure(code):
    """What the engine says of the failure that this thread got last: its code, its text and the rank that it names."""
    rank = ctypes.c_int(-1)
    table.GetLastErrorRank(None, ctypes.byref(rank))
    return code, (table.GetLastError(None) or b"the engine gives no reason").decode(errors="replace"), rank.value


def raise_failure(code, text, what):
    if code == INTERRUPTED:
        _core.raise_interrupt()
        raise KeyboardInterrupt
    raise (ValueError if code == INVALID_ARGUMENT else DistBackendError)(f"shmccl: {what}: {text}")


class Connection:
    """One meeting of the ranks: a communicator for collectives and one for messages."""

    def __init__(self, name, rank, size, timeout, ranks, id, processes):
        self.id, self.processes = id, processes
        # The number of each rank in the default group, if that is known.
        self.global_ranks = ranks if len(ranks) == size else range(size)
        self.name, self.rank, self.size, self.timeout = name, rank, size, timeout
        self.forks = Forks.n
        self.collectives = self.messages = None
        self.failure = None
        # How its first operation that has failed did so.
        self.failed = ErrorType.SUCCESS
        self.met = threading.Event()
        self.closed = False

    def start(self):
        if self.size == 1:
            self.met.set()
        else:
            threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        try:
            self.failure = self._meet()
        except Exception as error:
            self.failure = (TIMEOUT, str(error))
        self.met.set()

    def note_failure(self, code):
        if self.failed == ErrorType.SUCCESS:
            self.failed = ErrorType.TIMEOUT if code == TIMEOUT else ErrorType.COMM_ERROR

    def describe(self, operation):
        number = self.global_ranks[self.rank]
        known = f" (global rank {number})" if number != self.rank else ""
        return f"{operation} on rank {self.rank}{known} of group '{self.name}'"

    def fail(self, operation, code, text, rank=-1):
        """Raises what has happened to an operation. The engine names ranks as the group numbers them."""
        if rank >= 0 and self.global_ranks[rank] != rank:
            text += f" (rank {rank} of the group is global rank {self.global_ranks[rank]})"
        raise_failure(code, text, self.describe(operation))

    def ensure(self, operation):
        if self.forks != Forks.n:
            raise RuntimeError(f"shmccl: {operation}: a child of a fork is not the rank; start it with spawn")
        if not self.met.is_set():
            self.met.wait()
        if self.failure:
            self.fail(operation, *self.failure)
        if self.closed:
            raise RuntimeError(f"shmccl: {operation}: group '{self.name}' was shut down")

    def _meet(self):
        processes = (Process * self.size)(*(Process(process.encode()) for process in self.processes))
        config = Config(ctypes.sizeof(Config), 0, milliseconds(self.timeout.total_seconds()), processes)
        ident = UniqueId(self.id.encode())
        collectives, messages = ctypes.c_void_p(), ctypes.c_void_p()
        if code := table.CommInitRankConfig(ctypes.byref(collectives), self.size, ident, self.rank, ctypes.byref(config)):
            return failure(code)
        if code := table.CommDuplicate(collectives, ctypes.byref(messages)):
            failed = failure(code)
            table.CommDestroy(collectives)
            return failed
        self.collectives, self.messages = collectives, messages
        # It may have changed meanwhile.
        self._apply_timeout()
        return None

    def revoke(self):
        if self.forks == Forks.n:
            for comm in (self.messages, self.collectives):
                if comm:
                    table.CommRevoke(comm)

    def stragglers(self):
        """The ranks that hold the others up."""
        ranks, count = (ctypes.c_int * self.size)(), ctypes.c_int()
        if self.forks != Forks.n or not self.collectives:
            return []
        if table.CommGetStragglers(self.collectives, ranks, ctypes.byref(count)):
            return []
        return list(ranks[:count.value])

    def naming_all(self, code, text, rank):
        """A failure with all ranks that were late, where the engine has named one of them."""
        late = self.stragglers() if code == TIMEOUT else []
        return code, text + (f"; late are ranks {', '.join(map(str, late))}" if len(late) > 1 else ""), rank

    def revoke_awaiting(self, late):
        """Ends every operation on all ranks, which are told who was late."""
        if self.forks == Forks.n and self.collectives:
            # Both have one epoch.
            table.CommRevokeAwaiting(self.collectives, late[0] if late else -1)

    def set_timeout(self, timeout):
        """Gives the waits that begin from now on so much time."""
        self.timeout = timeout
        if self.collectives and self.forks == Forks.n:
            self._apply_timeout()

    def _apply_timeout(self):
        # It concerns all communicators of the meeting.
        table.CommSetTimeout(self.collectives, milliseconds(self.timeout.total_seconds()))

    def close(self):
        if self.forks == Forks.n and not self.closed:
            self.met.wait()
            self.closed = True

    def __del__(self):
        comms = [comm for comm in (self.messages, self.collectives) if comm]
        if self.forks != Forks.n or not comms:
            return
        if not getattr(within, "callback", False):
            leave(comms)
            return
        # It would wait for the operation that the callback is of. Without a thread the communicators stay.
        with contextlib.suppress(RuntimeError):
            threading.Thread(target=leave, args=(comms,), daemon=True).start()


def awaiting(late):
    """Names the ranks that are late."""
    return f", awaiting rank{'s' if len(late) > 1 else ''} {', '.join(map(str, late))}" if late else ""


def leave(comms):
    for comm in comms:
        table.CommDestroy(comm)


class Pending(Work):
    """One operation, or several that were put together."""

    def __init__(self, connection, operation, outputs, kept=(), after=None, timeout=None):
        super().__init__()
        # Its own time, where that is another than the engine's.
        self.own_timeout, self.started = timeout, time.monotonic()
        self.connection, self.operation = connection, operation
        self.outputs, self.kept, self.after = outputs, kept, [after] if after else []
        self.requests = []
        self.parts = 1
        self.done = False
        # For those who wait for another thread: made as the first part is queued.
        self.ended = None
        self.failure = None
        self.future = None
        # Set when the future's callbacks have been called, where there is one.
        self.told = None
        self.lane, self.state = _callers.lane(), _callers.State() if after else None
        self.callback_state = None
        self.lock = threading.Lock()
        # The function of the program that has begun it, which has to wait for it before the next one's turn.
        self.caller = _callers.running()
        if self.caller:
            self.caller.count(1)

    def queue(self, comm, call):
        with self.lock:
            self.parts += 1
            self.ended = self.ended or threading.Event()
        code, request = call.start(comm.value, self._part_ended)
        if code:
            failed = failure(code)
            self._end(*failed)
            self._end(*failed)
            self.connection.fail(self.operation, *failed)
        self.requests.append(request)

    def _part_ended(self, code, text, rank):
        """What the engine calls at the end of a part, on any thread."""
        was_within, within.callback = getattr(within, "callback", False), True
        try:
            self._end(code, text, rank)
        finally:
            within.callback = was_within

    def _end(self, code=SUCCESS, text="", rank=-1):
        with self.lock:
            self.failure = self.failure or ((code, text, rank) if code else None)
            self.parts -= 1
            if self.parts:
                return
        if not self.failure:
            self._finish()
        if self.failure:
            self.connection.note_failure(self.failure[0])
        self.kept, self.after = (), []
        with self.lock:
            self.done = True
            future = self.future
            self.told = threading.Event() if future else None
        if self.caller:
            self.caller.count(-1)
        if self.ended:
            self.ended.set()
        if future:
            _callers.call(self.lane, functools.partial(self._tell, future))

    def _finish(self):
        """Does what is left to do, as if the thread that has begun the operation did it."""
        if not self.after:
            return
        try:
            with self.state.within():
                for function in self.after:
                    function()
        except Exception as error:
            self.failure = (INTERNAL_ERROR, str(error))

    def _tell(self, future):
        """Calls the future's callbacks, on a thread of `_callers`."""
        try:
            with self.callback_state.within():
                self._resolve(future)
        finally:
            self.told.set()

    def _error(self):
        try:
            self.connection.fail(self.operation, *self.failure)
        except BaseException as error:
            return error

    def _resolve(self, future):
        future.set_exception(self._error()) if self.failure else future.set_result(self.outputs)

    def is_completed(self):
        if not self.done:
            flag = ctypes.c_int()
            for request in self.requests:
                table.RequestTest(request, ctypes.byref(flag))
        return self.done

    def is_success(self):
        return self.done and not self.failure

    def exception(self):
        return self._error() if self.failure else None

    def result(self):
        return self.outputs

    def synchronize(self):
        self.wait()

    def wait(self, timeout=NO_TIMEOUT):
        timeout = bounded(timeout) if timeout and timeout != UNSET else NO_TIMEOUT
        if not self.done:
            with _callers.waiting():
                self._await(timeout)
        if self.told and not self.told.is_set() and not _callers.lane():
            # A program is used to that. A callback waits for none.
            self.told.wait((timeout or self.own_timeout or self.connection.timeout).total_seconds())
        if self.failure:
            raise self._error()
        return True

    def _await(self, timeout):
        if not self.requests:
            raise RuntimeError(f"shmccl: {self.operation} was put together with others; end the coalescing block first")
        is_own = not timeout
        allowed = self.own_timeout if is_own else timeout
        deadline = allowed and (self.started if is_own else time.monotonic()) + allowed.total_seconds()
        for request in self.requests:
            code = table.RequestWait(request, milliseconds(deadline - time.monotonic()) if deadline else 0)
            if code == INTERRUPTED:
                raise_failure(code, "", "")
            if code == IN_PROGRESS:
                # Past its own time it is ended for all ranks, as the engine does past its own.
                late = self.connection.stragglers()
                if is_own:
                    self.connection.note_failure(TIMEOUT)
                    self.connection.revoke_awaiting(late)
                text = f"timed out after {milliseconds(allowed.total_seconds())} ms{awaiting(late)}"
                self.connection.fail(self.operation, TIMEOUT, text, late[0] if len(late) == 1 else -1)
        self.ended.wait()

    def get_future(self):
        with self.lock:
            is_new = self.future is None
            if is_new:
                self.future, self.callback_state = torch.futures.Future(), _callers.State()
            resolves = is_new and self.done
        if resolves:
            self._resolve(self.future)
        elif is_new:
            self.is_completed()
        return self.future

    def __del__(self):
        if self.connection.forks == Forks.n:
            for request in self.requests:
                table.RequestFree(request)


class Over(Work):
    """An operation that had ended before its call returned."""

    @classmethod
    def with_outputs(cls, outputs):
        # Quicker than a constructor in Python.
        over = cls()
        over.outputs = outputs
        return over

    def is_completed(self):
        return True

    is_success = is_completed

    def exception(self):
        return None

    def result(self):
        return self.outputs

    def synchronize(self):
        pass

    def wait(self, timeout=NO_TIMEOUT):
        return True

    def get_future(self):
        future = torch.futures.Future()
        future.set_result(self.outputs)
        return future


def make(operation, send=0, recv=0, count=0, root=0):
    return Call(operation, UINT8, 0, root, send, recv, count)


def check(tensor, operation):
    if tensor.layout != torch.strided:
        raise RuntimeError(f"shmccl: {operation} takes no sparse tensors; use to_dense()")
    if not tensor.is_cpu:
        raise ValueError(f"shmccl: {operation} takes tensors on the CPU, not on {tensor.device}")
    if not tensor.is_contiguous():
        raise ValueError(f"Tensors must be contiguous: {operation}")
    return tensor


def only(tensors, operation):
    if len(tensors) != 1:
        raise ValueError(f"shmccl: {operation} takes one tensor per rank, not {len(tensors)}")
    return check(tensors[0], operation)


def in_one_piece(tensor, operation):
    """An input as the engine reads it. One that does not lie in one piece is copied."""
    return check(tensor if tensor.layout != torch.strided else tensor.contiguous(), operation)


def only_input(tensors, operation):
    if len(tensors) != 1:
        raise ValueError(f"shmccl: {operation} takes one tensor per rank, not {len(tensors)}")
    return in_one_piece(tensors[0], operation)


def check_same_type(a, b, operation):
    if a.dtype != b.dtype:
        raise TypeError(f"shmccl: {operation}: input is {b.dtype}, output {a.dtype}")


def check_blocks(whole, block, size, operation):
    check(whole, operation)
    check(block, operation)
    check_same_type(whole, block, operation)
    if whole.numel() != block.numel() * size:
        raise ValueError(
            f"shmccl: {operation} needs {block.numel() * size} elements in the larger tensor, which has {whole.numel()}"
        )


def check_list(tensors, like, size, operation):
    if len(tensors) != size:
        raise ValueError(f"shmccl: {operation} needs a list of {size} tensors, not {len(tensors)}")
    for tensor in tensors:
        check_same_type(tensor, like, operation)
        if tensor.numel() != like.numel():
            raise ValueError(f"shmccl: {operation}: tensors of the list differ in size")


@functools.cache
def reduction(dtype, operator, operation):
    """The engine's numbers of a type and of an operator for it."""
    kind, code = TYPES.get(dtype), OPERATORS[operator]
    if kind is None:
        raise TypeError(f"shmccl: {operation} cannot reduce tensors of type {dtype}; it can only move them")
    is_scaled = code in (AVG, PREMUL_SUM)
    if code in BITWISE and (dtype.is_floating_point or dtype.is_complex):
        raise TypeError(f"shmccl: {operation}: BAND, BOR and BXOR need integers or booleans, not {dtype}")
    if dtype == torch.bool and is_scaled:
        raise TypeError(f"shmccl: {operation} of booleans takes no AVG and no PREMUL_SUM")
    if dtype.is_complex and code != SUM and not is_scaled:
        raise TypeError(f"shmccl: {operation} of complex numbers takes SUM, AVG and PREMUL_SUM only")
    return kind, code


def flat(tensors):
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def copy_out(source, tensors):
    at = 0
    for tensor in tensors:
        tensor.copy_(source[at:at + tensor.numel()].view(tensor.shape))
        at += tensor.numel()


def offsets(counts):
    return [0, *itertools.accumulate(counts)][:-1]


def spans(call, size):
    """The addresses at which a call's input and output begin and end."""
    wholes = {ALL_GATHER: (1, size), GATHER: (1, size), REDUCE_SCATTER: (size, 1), SCATTER: (size, 1)}
    block = call.count * ITEMSIZES[call.datatype]
    read, written = (block * blocks for blocks in wholes.get(call.operation, (1, 1)))
    if call.operation == ALL_TO_ALL_V:
        read, written = sum(call.sendcounts), sum(call.recvcounts)
    return [(at, at + (length if at else 0)) for at, length in ((call.sendbuff, read), (call.recvbuff, written))]


def is_in_place(call, source, target, rank):
    """Whether both buffers are one, or one is this rank's block of the other."""
    if call.sendcounts != call.recvcounts:
        return False
    read, written = source[1] - source[0], target[1] - target[0]
    if read == written:
        return source[0] == target[0]
    return source[0] == target[0] + rank * read if read < written else target[0] == source[0] + rank * written


def detach_inputs(calls, connection):
    """Copies the inputs that the calls would write before they have read them, and returns the copies.

    Torch's calls, and blocks of calls, read all their inputs as these are at the begin.
    """
    if len(calls) == 1 and calls[0].operation in WITH_EQUAL_BUFFERS and calls[0].sendbuff == calls[0].recvbuff:
        return []
    pairs = [spans(call, connection.size) for call in calls]
    written = sorted(target for _, target in pairs if target[0] < target[1])
    starts, reach = [start for start, _ in written], list(itertools.accumulate((end for _, end in written), max))
    are_apart = all(end <= start for end, start in zip(reach, starts[1:]))
    copies = []
    for call, (source, target) in zip(calls, pairs):
        before = bisect.bisect_left(starts, source[1])
        is_written = source[0] < source[1] and before and reach[before - 1] > source[0]
        if is_written and not (are_apart and is_in_place(call, source, target, connection.rank)):
            source_bytes = (ctypes.c_char * (source[1] - source[0])).from_address(source[0])
            copies.append(torch.frombuffer(source_bytes, dtype=torch.uint8).clone())
            call.sendbuff = copies[-1].data_ptr()
    return copies


class PythonBackend(InPython):
    def __init__(self, store, rank, size, timeout, name, ranks, place, reconfigurable, id="", processes=()):
        global table
        super().__init__(rank, size, timeout, name, ranks)
        if reconfigurable:
            raise RuntimeError("shmccl: the backend in Python has no reconfigure; it needs the compiled one (SHMCCL_TORCH=shim)")
        if not table:
            table = Table()
            at_end(_callers.finish)
        self._batch = None
        self._connection = Connection(name, rank, size, timeout, ranks, id, processes)
        self._connection.start()

    supports_coalescing = property(lambda self: True)

    def set_timeout(self, timeout):
        timeout = bounded(timeout)
        super().set_timeout(timeout)
        self._connection.set_timeout(timeout)

    def get_error(self):
        return self._connection.failed

    def abort(self):
        self._connection.revoke()

    def shutdown(self):
        self._connection.close()
        super().shutdown()

    def holds(self, tensor):
        owner, offset = ctypes.c_int(-1), ctypes.c_uint64()
        comm = self._connection.collectives
        if not comm or not tensor.is_cpu or tensor.nbytes == 0:
            return False
        table.MemLocate(comm, tensor.data_ptr(), tensor.nbytes, ctypes.byref(owner), ctypes.byref(offset))
        return owner.value == self.rank()

    # DDP would go on to a function that a Python backend cannot give it: only FSDP2 and the program ask here.
    def allocate_tensor(self, size, *, dtype, device):
        self._connection.ensure("allocate_tensor")
        memory, comm = ctypes.c_void_p(), self._connection.collectives
        length = size * dtype.itemsize
        # ctypes would cut a longer one short.
        is_counted = 0 < length <= sys.maxsize and dtype not in QUANTISED
        if not comm or not is_counted or table.MemAlloc(comm, ctypes.byref(memory), length):
            return torch.empty(size, dtype=dtype)
        return torch.frombuffer(HeapBytes.at(memory.value, length, self._connection), dtype=dtype)

    # Executing -------------------------------------------------------------------------------------------------------

    @staticmethod
    def _reduction(code, source, target, tensor, op, operation, root=0):
        """A call that reduces as many elements of the tensor's type."""
        kind, operator = reduction(tensor.dtype, hash(op), operation)
        if operator is not PREMUL_SUM:
            return Call(code, kind, operator, root, source, target, tensor.numel())
        call = Call(code, kind, SUM, root, source, target, tensor.numel())
        # The call keeps the factor, of which the engine is told where it lies.
        call.factor = torch.full((1,), float(op.factor), dtype=tensor.dtype.to_real())
        call.scalar = call.factor.data_ptr()
        return call

    def _run(self, operation, calls, opts, outputs, kept=(), after=None):
        if self._batch and self._batch.thread == threading.get_ident():
            return self._batch.add(calls, True, outputs, kept, after)
        self._sequence += 1
        if copies := detach_inputs(calls, self._connection):
            kept = [*kept, *copies]
        timeout = self._own_timeout(opts)
        if not opts.asyncOp and timeout is None:
            return self._execute(operation, calls, outputs, after)
        work = self._begin(Pending(self._connection, operation, outputs, kept, after, timeout), calls, ())
        if not opts.asyncOp:
            work.wait()
        return work

    def _own_timeout(self, opts):
        """The time of an operation, where it is another than the engine's."""
        timeout = opts.timeout
        return None if timeout in (UNSET, self._connection.timeout) else bounded(timeout)

    def _message(self, operation, call, tag, outputs):
        if tag < 0:
            raise ValueError(f"shmccl: {operation}: a tag is not negative, and {tag} is")
        call.tag = tag
        if self._batch and self._batch.thread == threading.get_ident():
            return self._batch.add([call], False, outputs, (), None)
        return self._begin(Pending(self._connection, operation, outputs), (), [call])

    def _execute(self, operation, calls, outputs, after):
        """Executes operations for which the caller waits."""
        connection = self._connection
        connection.ensure(operation)
        with _callers.waiting():
            for call in calls:
                if connection.size == 1:
                    self._alone(call)
                elif code := call.execute(connection.collectives.value):
                    connection.note_failure(code)
                    connection.fail(operation, *connection.naming_all(*failure(code)))
        if after:
            after()
        return Over.with_outputs(outputs)

    def _begin(self, work, collectives, messages):
        connection = self._connection
        connection.ensure(work.operation)
        if connection.size == 1:
            for call in collectives:
                self._alone(call)
            collectives = ()
        for call in messages:
            work.queue(connection.messages, call)
        for call in collectives:
            work.queue(connection.collectives, call)
        work._end()
        return work

    @staticmethod
    def _alone(call):
        length = call.count * ITEMSIZES[call.datatype]
        if call.operation == ALL_TO_ALL_V:
            length = call.sendcounts[0]
        if length and call.sendbuff and call.recvbuff and call.sendbuff != call.recvbuff:
            ctypes.memmove(call.recvbuff, call.sendbuff, length)
        if call.scalar and length:
            factor = call.factor
            result = torch.frombuffer((ctypes.c_char * length).from_address(call.recvbuff), dtype=factor.dtype)
            # Torch multiplies no numbers of 8 bits with a point.
            wide = torch.float32 if factor.dtype.is_floating_point and factor.dtype.itemsize == 1 else factor.dtype
            result.copy_(result.to(wide).mul_(factor.to(wide)))

    def start_coalescing(self):
        self._batch = Batch(Pending(self._connection, "coalesced", []))

    def end_coalescing(self):
        batch, self._batch = self._batch, None
        if batch is None:
            raise RuntimeError("shmccl: the end of a coalescing block that was not begun")
        self._sequence += bool(batch.collectives)
        batch.work.kept = [*batch.work.kept, *detach_inputs([*batch.collectives, *batch.messages], self._connection)]
        return self._begin(batch.work, batch.collectives, batch.messages)

    # Collectives -----------------------------------------------------------------------------------------------------

    def allreduce(self, tensors, opts):
        tensor = only(tensors, "all_reduce")
        address = tensor.data_ptr()
        call = self._reduction(ALL_REDUCE, address, address, tensor, opts.reduceOp, "all_reduce")
        return self._run("all_reduce", [call], opts, tensors)

    def allreduce_coalesced(self, tensors, opts):
        calls, sources = [], [in_one_piece(tensor, "all_reduce_coalesced") for tensor in tensors]
        for source in sources:
            address = source.data_ptr()
            calls.append(self._reduction(ALL_REDUCE, address, address, source, opts.reduceOp, "all_reduce_coalesced"))
        copies = [(tensor, source) for tensor, source in zip(tensors, sources) if not tensor.is_contiguous()]
        after = (lambda: [tensor.copy_(source) for tensor, source in copies]) if copies else None
        return self._run("all_reduce_coalesced", calls, opts, tensors, sources, after)

    def reduce(self, tensors, opts):
        tensor = only(tensors, "reduce")
        output = tensor.data_ptr() if opts.rootRank == self.rank() else 0
        call = self._reduction(REDUCE, tensor.data_ptr(), output, tensor, opts.reduceOp, "reduce", opts.rootRank)
        return self._run("reduce", [call], opts, tensors)

    def broadcast(self, tensors, opts):
        tensor = only(tensors, "broadcast")
        call = make(BROADCAST, tensor.data_ptr(), tensor.data_ptr(), tensor.nbytes, opts.rootRank)
        return self._run("broadcast", [call], opts, tensors)

    def all_gather_single(self, output, source, opts):
        return self._gather_blocks("all_gather_single", [output], [source], opts)

    def all_gather_single_coalesced(self, outputs, inputs, opts):
        return self._gather_blocks("all_gather_single_coalesced", outputs, inputs, opts)

    def _gather_blocks(self, operation, outputs, inputs, opts):
        calls, kept, copies = [], [], []
        for output, source in zip(outputs, inputs, strict=True):
            source, target = in_one_piece(source, operation), output if output.layout != torch.strided else output.contiguous()
            check_blocks(target, source, self.size(), operation)
            calls.append(make(ALL_GATHER, source.data_ptr(), target.data_ptr(), source.nbytes))
            kept += [source, target]
            if target is not output:
                copies.append((output, target))
        after = (lambda: [output.copy_(target) for output, target in copies]) if copies else None
        return self._run(operation, calls, opts, outputs, kept, after)

    def _reduce_scatter_call(self, output, source, opts):
        check_blocks(source, output, self.size(), "reduce_scatter")
        return self._reduction(REDUCE_SCATTER, source.data_ptr(), output.data_ptr(), output, opts.reduceOp, "reduce_scatter")

    def reduce_scatter_single(self, output, source, opts):
        source = in_one_piece(source, "reduce_scatter_single")
        return self._run("reduce_scatter_single", [self._reduce_scatter_call(output, source, opts)], opts, [output], [source])

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts):
        inputs = [in_one_piece(source, "reduce_scatter_single_coalesced") for source in inputs]
        calls = [self._reduce_scatter_call(output, source, opts) for output, source in zip(outputs, inputs, strict=True)]
        return self._run("reduce_scatter_single_coalesced", calls, opts, outputs, inputs)

    def reduce_scatter(self, outputs, inputs, opts):
        output = only(outputs, "reduce_scatter")
        check_list(inputs[0], output, self.size(), "reduce_scatter")
        source = flat(inputs[0])
        return self._run("reduce_scatter", [self._reduce_scatter_call(output, source, opts)], opts, outputs, [source])

    def allgather(self, outputs, inputs, opts):
        source = only_input(inputs, "all_gather")
        check_list(outputs[0], source, self.size(), "all_gather")
        target = torch.empty(source.numel() * self.size(), dtype=source.dtype)
        call = make(ALL_GATHER, source.data_ptr(), target.data_ptr(), source.nbytes)
        return self._run("all_gather", [call], opts, outputs[0], [source, target], lambda: copy_out(target, outputs[0]))

    def allgather_coalesced(self, outputs, inputs, opts):
        kept = [in_one_piece(source, "all_gather_coalesced") for source in inputs]
        calls, copies = [], []
        for index, source in enumerate(list(kept)):
            targets = [tensors[index] for tensors in outputs]
            check_list(targets, source, self.size(), "all_gather_coalesced")
            target = torch.empty(source.numel() * self.size(), dtype=source.dtype)
            kept.append(target)
            copies.append((target, targets))
            calls.append(make(ALL_GATHER, source.data_ptr(), target.data_ptr(), source.nbytes))
        results = [tensor for _, targets in copies for tensor in targets]
        return self._run("all_gather_coalesced", calls, opts, results, kept, lambda: [copy_out(*copy) for copy in copies])

    def gather(self, outputs, inputs, opts):
        source = only_input(inputs, "gather")
        if opts.rootRank != self.rank():
            call = make(GATHER, source.data_ptr(), 0, source.nbytes, opts.rootRank)
            return self._run("gather", [call], opts, [], [source])
        check_list(outputs[0], source, self.size(), "gather")
        target = torch.empty(source.numel() * self.size(), dtype=source.dtype)
        call = make(GATHER, source.data_ptr(), target.data_ptr(), source.nbytes, opts.rootRank)
        return self._run("gather", [call], opts, outputs[0], [source, target], lambda: copy_out(target, outputs[0]))

    def scatter(self, outputs, inputs, opts):
        output = only(outputs, "scatter")
        if opts.rootRank != self.rank():
            return self._run("scatter", [make(SCATTER, 0, output.data_ptr(), output.nbytes, opts.rootRank)], opts, outputs)
        check_list(inputs[0], output, self.size(), "scatter")
        source = flat(inputs[0])
        call = make(SCATTER, source.data_ptr(), output.data_ptr(), output.nbytes, opts.rootRank)
        return self._run("scatter", [call], opts, outputs, [source])

    def _blocks_call(self, source, target, sent, received):
        call = make(ALL_TO_ALL_V, source.data_ptr(), target.data_ptr())
        call.sendcounts, call.sdispls = sent, offsets(sent)
        call.recvcounts, call.rdispls = received, offsets(received)
        return call

    def alltoall(self, outputs, inputs, opts):
        if len(outputs) != self.size() or len(inputs) != self.size():
            raise ValueError(f"shmccl: all_to_all needs lists of {self.size()} tensors, not {len(inputs)} and {len(outputs)}")
        source, target = flat(inputs), flat(outputs)
        check_same_type(target, source, "all_to_all")
        call = self._blocks_call(source, target, [tensor.nbytes for tensor in inputs], [tensor.nbytes for tensor in outputs])
        return self._run("all_to_all", [call], opts, outputs, [source, target], lambda: copy_out(target, outputs))

    def all_to_all_single(self, output, source, output_splits, input_splits, opts):
        for tensor in (output, source):
            check(tensor, "all_to_all_single")
        check_same_type(output, source, "all_to_all_single")
        call = self._blocks_call(source, output, self._split(source, input_splits), self._split(output, output_splits))
        return self._run("all_to_all_single", [call], opts, [output], [source])

    def _split(self, tensor, splits):
        rows = tensor.shape[0] if tensor.dim() else 1
        if not splits:
            if rows % self.size():
                raise ValueError(f"shmccl: all_to_all_single: {rows} rows do not divide equally among {self.size()} ranks")
            splits = [rows // self.size()] * self.size()
        if len(splits) != self.size():
            raise ValueError("Number of tensor splits not equal to group size: all_to_all_single")
        if sum(splits) != rows or min(splits) < 0:
            raise ValueError("Split sizes doesn't match total dim 0 size: all_to_all_single")
        row = tensor.nbytes // rows if rows else 0
        return [count * row for count in splits]

    def barrier(self, opts):
        token = torch.zeros(1, dtype=torch.uint8)
        call = make(ALL_REDUCE, token.data_ptr(), token.data_ptr(), 1)
        call.op = MAX
        return self._run("barrier", [call], opts, [], [token])

    def monitored_barrier(self, opts, wait_all_ranks=False):
        # With a time of its own it is known who has not come, be it one rank or several.
        timeout = self._own_timeout(opts) or self._connection.timeout
        try:
            opts.asyncOp = True
            work = self.barrier(opts)
            work.own_timeout = work.own_timeout or timeout
            work.wait()
        except DistBackendError as error:
            late = self._connection.stragglers()
            if not late:
                raise
            named = f"[Rank {self.rank()}]: Rank{'s' if len(late) > 1 else ''} {', '.join(map(str, late))}"
            text = f"{named} failed to pass monitoredBarrier in {milliseconds(timeout.total_seconds())} ms: {error}"
            raise DistBackendError(text) from error

    # Messages --------------------------------------------------------------------------------------------------------

    def _peer(self, peer, operation):
        if not 0 <= peer < self.size() or peer == self.rank():
            raise ValueError(f"shmccl: {operation}: {peer} is no other rank of a group of {self.size()}")
        return peer

    def send(self, tensors, peer, tag):
        tensor = only(tensors, "send")
        return self._message("send", make(SEND, tensor.data_ptr(), 0, tensor.nbytes, self._peer(peer, "send")), tag, tensors)

    def recv(self, tensors, peer, tag):
        tensor = only(tensors, "recv")
        return self._message("recv", make(RECV, 0, tensor.data_ptr(), tensor.nbytes, self._peer(peer, "recv")), tag, tensors)

    def recv_anysource(self, tensors, tag):
        tensor = only(tensors, "recv")
        return self._message("recv", make(RECV, 0, tensor.data_ptr(), tensor.nbytes, ANY_SOURCE), tag, tensors)


class Batch:
    """Calls between the begin and the end of a coalescing block."""

    def __init__(self, work):
        self.thread, self.work = threading.get_ident(), work
        self.collectives, self.messages = [], []

    def add(self, calls, are_collective, outputs, kept, after):
        (self.collectives if are_collective else self.messages).extend(calls)
        self.work.outputs = [*self.work.outputs, *outputs]
        self.work.kept = [*self.work.kept, *kept]
        if after:
            self.work.after.append(after)
            self.work.state = self.work.state or _callers.State()
        return self.work


class HeapBytes(ctypes.Array):
    """Bytes of the heap, given back when the last tensor over them is gone."""

    _type_, _length_ = ctypes.c_char, 0

    @staticmethod
    def at(address, length, connection):
        kind = type("HeapBytes", (ctypes.c_char * length,), {"__del__": lambda self: table.MemFree(address)})
        made = kind.from_address(address)
        made.connection = connection
        return made


warned = False


def instead_of_shim(error):
    """The backend in Python, with one warning that tells why and what is missing."""
    global warned
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version < (2, 14):
        raise RuntimeError(f"shmccl: {error}; the backend in Python needs torch 2.14, and this is {torch.__version__}") from error
    if not warned:
        warned = True
        warnings.warn(
            f"shmccl: the backend in Python is used, as {error}. Missing are windows, reconfigure and DDP buckets in the heap, "
            "and a call takes 5 to 8 us longer.",
            stacklevel=2,
        )
    return PythonBackend
