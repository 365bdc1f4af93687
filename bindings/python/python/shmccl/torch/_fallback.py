"""The backend without a compiler: a Python subclass of c10d's Backend over the engine's table of functions.

It does the collectives and messages of the compiled one, at 5 to 8 us more for a call. Torch hands it no
gather_single. It has no windows and no reconfigure, does not put DDP's buckets into the heap, its tensors of the heap do
not grow, and its works can neither be polled nor tell sequence numbers, durations and sources.
"""

import ctypes
import functools
import sys
import threading
import warnings

import torch
from torch.distributed import DistBackendError

from shmccl import _core
from shmccl._core import _table

from .._end import at_end
from . import _callers
from ._calls import detach_inputs, exchanging, make, reducing, run_alone
from ._connection import Connection, failure, milliseconds
from ._in_python import InPython
from ._meeting import bounded
from ._pending import UNSET, Batch, Over, Pending
from ._tensors import check, check_blocks, check_list, check_same_type, copy_out, flat, in_one_piece, only, only_input

# Tensors of these are more than memory.
QUANTISED = (torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4)


@functools.cache
def prepare():
    """Lets waits of the engine look at signals, and the interpreter's end wait for callbacks."""
    _core.table()
    at_end(_callers.finish)


class PythonBackend(InPython):
    def __init__(self, store, rank, size, timeout, name, ranks, place, reconfigurable, id="", processes=()):
        super().__init__(rank, size, timeout, name, ranks)
        if reconfigurable:
            raise RuntimeError("shmccl: the backend in Python has no reconfigure; it needs the compiled one (SHMCCL_TORCH=shim)")
        prepare()
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
        comm = self._connection.collectives
        if not comm or not tensor.is_cpu or tensor.nbytes == 0:
            return False
        return comm.owner(tensor.data_ptr(), tensor.nbytes) == self.rank()

    # DDP would go on to a function that a Python backend cannot give it: only FSDP2 and the program ask here.
    def allocate_tensor(self, size, *, dtype, device):
        self._connection.ensure("allocate_tensor")
        comm, length = self._connection.collectives, size * dtype.itemsize
        # The engine counts no further.
        is_plain = 0 < length <= sys.maxsize and dtype not in QUANTISED
        address = comm.allocate(length) if comm and is_plain else None
        if address is None:
            return torch.empty(size, dtype=dtype)
        return torch.frombuffer(HeapBytes.at(address, length, self._connection), dtype=dtype)

    # Executing -------------------------------------------------------------------------------------------------------

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
                    run_alone(call)
                elif code := call.execute(connection.collectives.number):
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
                run_alone(call)
            collectives = ()
        for call in messages:
            work.queue(connection.messages, call)
        for call in collectives:
            work.queue(connection.collectives, call)
        work._end()
        return work

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
        call = reducing(_table.OpAllReduce, address, address, tensor, opts.reduceOp, "all_reduce")
        return self._run("all_reduce", [call], opts, tensors)

    def allreduce_coalesced(self, tensors, opts):
        calls, sources = [], [in_one_piece(tensor, "all_reduce_coalesced") for tensor in tensors]
        for source in sources:
            address = source.data_ptr()
            calls.append(reducing(_table.OpAllReduce, address, address, source, opts.reduceOp, "all_reduce_coalesced"))
        copies = [(tensor, source) for tensor, source in zip(tensors, sources) if not tensor.is_contiguous()]
        after = (lambda: [tensor.copy_(source) for tensor, source in copies]) if copies else None
        return self._run("all_reduce_coalesced", calls, opts, tensors, sources, after)

    def reduce(self, tensors, opts):
        tensor = only(tensors, "reduce")
        output = tensor.data_ptr() if opts.rootRank == self.rank() else 0
        call = reducing(_table.OpReduce, tensor.data_ptr(), output, tensor, opts.reduceOp, "reduce", opts.rootRank)
        return self._run("reduce", [call], opts, tensors)

    def broadcast(self, tensors, opts):
        tensor = only(tensors, "broadcast")
        call = make(_table.OpBroadcast, tensor.data_ptr(), tensor.data_ptr(), tensor.nbytes, opts.rootRank)
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
            calls.append(make(_table.OpAllGather, source.data_ptr(), target.data_ptr(), source.nbytes))
            kept += [source, target]
            if target is not output:
                copies.append((output, target))
        after = (lambda: [output.copy_(target) for output, target in copies]) if copies else None
        return self._run(operation, calls, opts, outputs, kept, after)

    def _reduce_scatter_call(self, output, source, opts):
        check_blocks(source, output, self.size(), "reduce_scatter")
        return reducing(_table.OpReduceScatter, source.data_ptr(), output.data_ptr(), output, opts.reduceOp, "reduce_scatter")

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
        call = make(_table.OpAllGather, source.data_ptr(), target.data_ptr(), source.nbytes)
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
            calls.append(make(_table.OpAllGather, source.data_ptr(), target.data_ptr(), source.nbytes))
        results = [tensor for _, targets in copies for tensor in targets]
        return self._run("all_gather_coalesced", calls, opts, results, kept, lambda: [copy_out(*copy) for copy in copies])

    def gather(self, outputs, inputs, opts):
        source = only_input(inputs, "gather")
        if opts.rootRank != self.rank():
            call = make(_table.OpGather, source.data_ptr(), 0, source.nbytes, opts.rootRank)
            return self._run("gather", [call], opts, [], [source])
        check_list(outputs[0], source, self.size(), "gather")
        target = torch.empty(source.numel() * self.size(), dtype=source.dtype)
        call = make(_table.OpGather, source.data_ptr(), target.data_ptr(), source.nbytes, opts.rootRank)
        return self._run("gather", [call], opts, outputs[0], [source, target], lambda: copy_out(target, outputs[0]))

    def scatter(self, outputs, inputs, opts):
        output = only(outputs, "scatter")
        if opts.rootRank != self.rank():
            return self._run("scatter", [make(_table.OpScatter, 0, output.data_ptr(), output.nbytes, opts.rootRank)], opts, outputs)
        check_list(inputs[0], output, self.size(), "scatter")
        source = flat(inputs[0])
        call = make(_table.OpScatter, source.data_ptr(), output.data_ptr(), output.nbytes, opts.rootRank)
        return self._run("scatter", [call], opts, outputs, [source])

    def alltoall(self, outputs, inputs, opts):
        if len(outputs) != self.size() or len(inputs) != self.size():
            raise ValueError(f"shmccl: all_to_all needs lists of {self.size()} tensors, not {len(inputs)} and {len(outputs)}")
        source, target = flat(inputs), flat(outputs)
        check_same_type(target, source, "all_to_all")
        call = exchanging(source, target, [tensor.nbytes for tensor in inputs], [tensor.nbytes for tensor in outputs])
        return self._run("all_to_all", [call], opts, outputs, [source, target], lambda: copy_out(target, outputs))

    def all_to_all_single(self, output, source, output_splits, input_splits, opts):
        for tensor in (output, source):
            check(tensor, "all_to_all_single")
        check_same_type(output, source, "all_to_all_single")
        call = exchanging(source, output, self._split(source, input_splits), self._split(output, output_splits))
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
        call = make(_table.OpAllReduce, token.data_ptr(), token.data_ptr(), 1)
        call.op = _table.Max
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
        call = make(_table.OpSend, tensor.data_ptr(), 0, tensor.nbytes, self._peer(peer, "send"))
        return self._message("send", call, tag, tensors)

    def recv(self, tensors, peer, tag):
        tensor = only(tensors, "recv")
        call = make(_table.OpRecv, 0, tensor.data_ptr(), tensor.nbytes, self._peer(peer, "recv"))
        return self._message("recv", call, tag, tensors)

    def recv_anysource(self, tensors, tag):
        tensor = only(tensors, "recv")
        return self._message("recv", make(_table.OpRecv, 0, tensor.data_ptr(), tensor.nbytes, _table.ANY_SOURCE), tag, tensors)


class HeapBytes(ctypes.Array):
    """Bytes of the heap, given back when the last tensor over them is gone."""

    _type_, _length_ = ctypes.c_char, 0

    @staticmethod
    def at(address, length, connection):
        kind = type("HeapBytes", (ctypes.c_char * length,), {"__del__": lambda self: _table.free(address)})
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
