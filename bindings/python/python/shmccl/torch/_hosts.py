"""Groups whose ranks are on several hosts: shared memory within a host, gloo between hosts.

Ranks of one host make a group of the backend. Reductions and broadcasts go through it first, so that few bytes cross
hosts. All other collectives are gloo's, and messages take the way between their two ranks. What only moves crosses hosts
as bytes, and reductions as a type that gloo knows.

Torch polls no work that is written in Python: what `torch.distributed` returns says that it is not completed.
"""

import concurrent.futures
import contextlib
import datetime
import functools
import threading

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions, ReduceOp, Work

from . import _callers
from ._gloo_types import as_bytes, as_rows, carry, check_reduction, divide, scale, take
from ._in_python import InPython
from ._meeting import bounded
from ._tensors import check, check_blocks, check_list, check_same_type, copy_out, flat, in_one_piece, only, only_input

# From this many bytes on, each rank of a host reduces a share of its own with those of the other hosts. Below, the
# others' wake-ups cost more than what several connections gain.
SHARED_OUT = 2 << 20
NO_TIMEOUT = datetime.timedelta(0)
# A wait for gloo that takes longer than this gets a thread.
SHORTLY = datetime.timedelta(milliseconds=50)
# How long callbacks may keep the turn of their collective, in seconds.
CALLBACKS = 1.0


class Turn:
    """The turn of a collective. It lasts until its callbacks have been called, or do not end within a moment."""

    # The turn that a thread is in.
    here = threading.local()

    def __init__(self, group):
        self.group = group
        self._changed = threading.Condition()
        # Callbacks that are being called, and collectives that these execute.
        self._callbacks = self._inner = 0
        self._is_over = False

    @classmethod
    def of(cls, group):
        """The turn of the group that this thread is in, if it is in one."""
        turn = getattr(cls.here, "turn", None)
        return turn if turn and turn.group is group else None

    @contextlib.contextmanager
    def entered(self):
        before, self.here.turn = getattr(self.here, "turn", None), self
        try:
            yield
        finally:
            self.here.turn = before

    def call(self, lane, function):
        """Calls a function of the program on another thread, which is in this turn, too."""
        with self._changed:
            self._callbacks += 1
        _callers.call(lane, functools.partial(self._call, function))

    def _call(self, function):
        try:
            with self.entered():
                function()
        finally:
            self._leave("_callbacks")

    def execute(self, call):
        """Executes a collective within this turn, and says whether there was time for it."""
        with self._changed:
            if self._is_over:
                return False
            self._inner += 1
        try:
            call()
        finally:
            self._leave("_inner")
        return True

    def _leave(self, counter):
        with self._changed:
            setattr(self, counter, getattr(self, counter) - 1)
            self._changed.notify_all()

    def end(self):
        with self._changed:
            # A callback that waits for a later collective would wait for ever.
            self._changed.wait_for(lambda: not self._callbacks, CALLBACKS)
            self._changed.wait_for(lambda: not self._inner)
            self._is_over = True


class Pending(Work):
    """An operation that the group's thread executes."""

    def __init__(self, executed, outputs):
        super().__init__()
        self._executed, self._outputs = executed, outputs
        self._lane = _callers.lane()

    def wait(self, timeout=NO_TIMEOUT):
        try:
            self._executed.result(bounded(timeout or NO_TIMEOUT).total_seconds() or None)
        except concurrent.futures.TimeoutError as error:
            raise dist.DistBackendError(f"shmccl: timed out after {timeout}") from error
        return True

    def is_completed(self):
        return self._executed.done()

    def is_success(self):
        return self.is_completed() and not self._executed.exception()

    def exception(self):
        return self._executed.exception() if self.is_completed() else None

    def synchronize(self):
        self.wait()

    def result(self):
        return self._outputs

    def get_future(self):
        future, state, asked_by = torch.futures.Future(), _callers.State(), threading.get_ident()

        def resolve():
            error = self._executed.exception()
            with state.within():
                future.set_exception(error) if error else future.set_result(self._outputs)

        def tell(_):
            if threading.get_ident() == asked_by:
                resolve()
            else:
                self._tell(resolve)

        self._executed.add_done_callback(tell)
        return future

    def _tell(self, resolve):
        """Calls the future's callbacks on a thread on which nothing depends."""
        turn = getattr(Turn.here, "turn", None)
        turn.call(self._lane, resolve) if turn else _callers.call(self._lane, resolve)


def finish(gloo, work, over):
    """Waits for a work, and keeps its gloo group until then, for the destructor of the group waits for it, too."""
    try:
        over.set_result(work.wait())
    except RuntimeError as error:
        over.set_exception(error)


def extent(tensor):
    """Where the bytes of a tensor begin and end."""
    begin = tensor.data_ptr()
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return begin, begin + (last + 1) * tensor.element_size() if tensor.numel() else begin


def overlap(tensor, other):
    (begin, end), (other_begin, other_end) = extent(tensor), extent(other)
    return max(begin, other_begin) < min(end, other_end)


def apart(inputs, outputs):
    """The inputs of one call, which reads all of them as they are at its begin: copies of those that it writes before."""
    def is_written(index):
        return any(overlap(inputs[index], output) for other, output in enumerate(outputs) if other != index)

    return [source.clone() if is_written(index) else source for index, source in enumerate(inputs)]


def make_options(kind, timeout, **fields):
    """Options of an operation within another one, which has so much time."""
    made = kind()
    made.timeout = timeout
    for name, value in fields.items():
        setattr(made, name, value)
    return made


class SeveralHosts(InPython):
    def __init__(self, make, places, *, store, rank, size, timeout, name, ranks):
        super().__init__(rank, size, timeout, name, ranks)
        # The ranks of each host.
        self._hosts = [[peer for peer in range(size) if places[peer] == place] for place in dict.fromkeys(places)]
        self._host = self._host_of(rank)
        members = self._hosts[self._host]
        self._index = members.index(rank)
        self._is_even = len({len(host) for host in self._hosts}) == 1
        self._local = make(store=store, rank=self._index, size=len(members), timeout=timeout, name=f"{name}/host{self._host}",
                           ranks=[ranks[member] for member in members] if ranks else [])

        def gloo(kind, rank, size):
            return dist.ProcessGroupGloo(dist.PrefixStore(f"shmccl/{name}/{kind}", store), rank, size, timeout)

        self._whole = gloo("whole", rank, size)
        # Joins the ranks that have one index on all hosts, where there are such: those of index 0 always.
        is_joined = self._is_even or self._index == 0
        self._across = gloo(f"index{self._index}", self._host, len(self._hosts)) if is_joined else None
        self._executor = concurrent.futures.ThreadPoolExecutor(1, "shmccl")
        # Collectives take turns. Guards the line they stand in, which nothing joins once the group has ended.
        self._lock = threading.Lock()
        # Set when the newest turn is over.
        self._latest = threading.Event()
        self._latest.set()
        # How the group has ended, once it has.
        self._ended = concurrent.futures.Future()

    supports_coalescing = property(lambda self: False)

    def _inner(self):
        return [group for group in (self._local, self._whole, self._across) if group]

    def set_timeout(self, timeout):
        timeout = bounded(timeout)
        super().set_timeout(timeout)
        for group in self._inner():
            group.set_timeout(timeout)

    def get_error(self):
        return self._local.get_error()

    def abort(self):
        """Ends the collectives of this rank, and those that wait for it within its host."""
        self._end("was aborted")
        for group in self._inner():
            group.abort()

    def shutdown(self):
        """Finishes what was begun, each until its time-out, so that no rank is left in a collective of which this one is."""
        self._executor.shutdown(wait=not self._is_within_turn())
        self._end("was shut down")
        for group in self._inner():
            group.shutdown()
        super().shutdown()

    def _end(self, how):
        with self._lock:
            if not self._ended.done():
                self._ended.set_result(how)

    def _check(self):
        if self._ended.done():
            raise dist.DistBackendError(f"shmccl: group '{self._options.group_name}' {self._ended.result()}")

    def holds(self, tensor):
        return self._local.holds(tensor)

    def allocate_tensor(self, size, *, dtype, device):
        return self._local.allocate_tensor(size, dtype=dtype, device=device)

    def _host_of(self, rank):
        return next(host for host, members in enumerate(self._hosts) if rank in members)

    def _is_within_turn(self):
        return bool(Turn.of(self))

    def _run(self, function, arguments, options, outputs):
        """Calls the function, or lets the group's thread do so: collectives of a group are executed in order."""
        executed = concurrent.futures.Future()
        call = functools.partial(self._settle, executed, function, arguments)
        # What a callback calls is of the turn of its collective, so that all ranks have one order.
        turn = Turn.of(self)
        if not (turn and turn.execute(functools.partial(self._count, call))):
            self._line_up(call, options.asyncOp)
        work = Pending(executed, outputs)
        if not options.asyncOp:
            work.wait()
        return work

    def _count(self, call):
        with self._lock:
            self._check()
            self._sequence += 1
        call()

    def _line_up(self, call, is_async):
        with self._lock:
            self._check()
            self._sequence += 1
            before, self._latest = self._latest, threading.Event()
            call = functools.partial(self._take_turn, call, before, self._latest)
            is_now = before.is_set() and not is_async
            if not is_now:
                self._executor.submit(self._within(_callers.State(), call))
        if is_now:
            call()

    @staticmethod
    def _within(state, call):
        """The call, for another thread that is to do it as this one would."""

        def within():
            with state.within():
                call()

        return within

    def _take_turn(self, call, before, after):
        before.wait()
        turn = Turn(self)
        try:
            with turn.entered():
                call()
            turn.end()
        finally:
            after.set()

    def _settle(self, executed, function, arguments):
        """Calls the function, and has a future tell of it. The future's callbacks are called here, too."""
        try:
            self._check()
            result = function(*arguments)
        except BaseException as error:  # noqa: BLE001  whoever waits raises it
            executed.set_exception(error)
        else:
            executed.set_result(result)

    def _between_hosts(self, gloo, name, *arguments):
        """Calls a collective of gloo. The end of this group ends the wait: gloo's own `abort` does nothing."""
        work = getattr(gloo, name)(*arguments)
        # Gloo's reduce_scatter waits as long as it takes, whatever it is told.
        with contextlib.suppress(RuntimeError):
            if not name.startswith("reduce_scatter"):
                return work.wait(SHORTLY)
        # It has failed, or takes long: another wait tells.
        over = concurrent.futures.Future()
        threading.Thread(target=finish, args=(gloo, work, over), daemon=True).start()
        concurrent.futures.wait([over, self._ended], return_when=concurrent.futures.FIRST_COMPLETED)
        if not over.done():
            self._check()
        return over.result()

    # Through shared memory first -------------------------------------------------------------------------------------

    def allreduce(self, tensors, options):
        return self._run(self._all_reduce, (tensors[0], options.reduceOp, options.timeout), options, tensors)

    def allreduce_coalesced(self, tensors, options):
        def all_of_them():
            sums = [in_one_piece(source, "all_reduce_coalesced") for source in apart(tensors, tensors)]
            for total in sums:
                self._all_reduce(total, options.reduceOp, options.timeout)
            for tensor, total in zip(tensors, sums):
                if tensor is not total:
                    tensor.copy_(total)

        return self._run(all_of_them, (), options, tensors)

    def _all_reduce(self, tensor, op, timeout):
        inner, outer = self._operators(op)
        if self._is_even and tensor.nbytes >= SHARED_OUT:
            self._reduce_in_shares(tensor, inner, outer, timeout)
        else:
            self._local.reduce([tensor], make_options(dist.ReduceOptions, timeout, rootRank=0, reduceOp=inner)).wait()
            if self._index == 0:
                self._reduce_across("allreduce", tensor, outer, make_options(dist.AllreduceOptions, timeout))
            self._local.broadcast([tensor], make_options(dist.BroadcastOptions, timeout, rootRank=0)).wait()
        self._average(tensor, op)

    def _reduce_in_shares(self, tensor, inner, outer, timeout):
        count = len(self._hosts[self._host])
        flat = tensor.view(-1)
        missing = -flat.numel() % count
        whole = torch.cat([flat, flat.new_zeros(missing)]) if missing else flat
        share = whole.chunk(count)[self._index]
        self._local.reduce_scatter_single(share, whole, make_options(dist.ReduceScatterOptions, timeout, reduceOp=inner)).wait()
        self._reduce_across("allreduce", share, outer, make_options(dist.AllreduceOptions, timeout))
        self._local.all_gather_single(whole, share, make_options(AllgatherOptions, timeout)).wait()
        if missing:
            flat.copy_(whole[:flat.numel()])

    def _reduce_across(self, name, tensor, op, options):
        carried, options.reduceOp = carry(tensor, op)
        self._between_hosts(self._across, name, [carried], options)
        take(tensor, carried, op)

    @staticmethod
    def _operators(op):
        """What is done within a host, and what between hosts."""
        if op.op == ReduceOp.AVG:
            return ReduceOp.SUM, ReduceOp.SUM
        return op, ReduceOp.SUM if op.op == ReduceOp.PREMUL_SUM else op

    def _average(self, tensor, op):
        if op.op == ReduceOp.AVG:
            divide(tensor, self.size())

    def reduce(self, tensors, options):
        return self._run(self._reduce, (tensors[0], options.reduceOp, options.rootRank, options.timeout), options, tensors)

    def _reduce(self, tensor, op, root, timeout):
        # The tensors of other ranks stay as they are.
        result = tensor if root == self.rank() else tensor.clone()
        inner, outer = self._operators(op)
        self._local.reduce([result], make_options(dist.ReduceOptions, timeout, rootRank=0, reduceOp=inner)).wait()
        home = self._host_of(root)
        if self._index == 0:
            self._reduce_across("reduce", result, outer, make_options(dist.ReduceOptions, timeout, rootRank=home))
        if home == self._host:
            self._local.broadcast([result], make_options(dist.BroadcastOptions, timeout, rootRank=0)).wait()
        if root == self.rank():
            self._average(result, op)

    def broadcast(self, tensors, options):
        return self._run(self._broadcast, (tensors[0], options.rootRank, options.timeout), options, tensors)

    def _broadcast(self, tensor, root, timeout):
        home = self._host_of(root)
        if home == self._host:
            root_here = self._hosts[home].index(root)
            self._local.broadcast([tensor], make_options(dist.BroadcastOptions, timeout, rootRank=root_here)).wait()
        if self._index == 0:
            self._move(self._across, "broadcast", [tensor], make_options(dist.BroadcastOptions, timeout, rootRank=home))
        if home != self._host:
            self._local.broadcast([tensor], make_options(dist.BroadcastOptions, timeout, rootRank=0)).wait()

    def barrier(self, options):
        return self._run(self._all_reduce, (torch.zeros(1, dtype=torch.uint8), ReduceOp(ReduceOp.MAX), options.timeout), options, [])

    def monitored_barrier(self, options, wait_all_ranks=False):
        self.barrier(options).wait()

    # Through gloo ----------------------------------------------------------------------------------------------------

    def _move(self, gloo, name, outputs, *arguments, view=as_bytes):
        """Calls a collective that only moves. The arguments are the inputs, if there are such, and what gloo takes besides."""
        written, read = [], []
        inputs = [view(arguments[0], read)] if len(arguments) > 1 else []
        self._between_hosts(gloo, name, view(outputs, written), *inputs, *arguments[len(inputs):])
        for tensor, stand_in in written:
            tensor.copy_(stand_in)

    def _by_gloo(self, name, outputs, inputs, options, result):
        return self._run(self._move, (self._whole, name, outputs, inputs, options), options, result)

    def allgather(self, outputs, inputs, options):
        check_list(outputs[0], only_input(inputs, "all_gather"), self.size(), "all_gather")
        return self._by_gloo("allgather", outputs, inputs, options, outputs[0])

    def all_gather_single(self, output, source, options):
        name = "all_gather_single"
        check_blocks(in_one_piece(output, name), in_one_piece(source, name), self.size(), name)
        return self._by_gloo(name, output, source, options, [output])

    def all_gather_single_coalesced(self, outputs, inputs, options):
        name = "all_gather_single_coalesced"
        for output, source in zip(outputs, inputs, strict=True):
            check_blocks(in_one_piece(output, name), in_one_piece(source, name), self.size(), name)

        def all_of_them():
            self._move(self._whole, name, outputs, apart(inputs, outputs), options)

        return self._run(all_of_them, (), options, outputs)

    def gather(self, outputs, inputs, options):
        source = only_input(inputs, "gather")
        if outputs:
            check_list(outputs[0], source, self.size(), "gather")
        return self._by_gloo("gather", outputs, inputs, options, outputs[0] if outputs else [])

    def scatter(self, outputs, inputs, options):
        output = only(outputs, "scatter")
        if inputs:
            check_list(inputs[0], output, self.size(), "scatter")
        return self._by_gloo("scatter", outputs, inputs, options, outputs)

    def alltoall(self, outputs, inputs, options):
        if len(outputs) != self.size() or len(inputs) != self.size():
            raise ValueError(f"shmccl: all_to_all needs lists of {self.size()} tensors, not {len(inputs)} and {len(outputs)}")
        for output, source in zip(outputs, inputs):
            check_same_type(output, source, "all_to_all")
        return self._run(self._all_to_all, (outputs, inputs, options), options, outputs)

    def _all_to_all(self, outputs, inputs, options):
        """Puts the tensors together: gloo's own takes none that differ in size."""
        source, target = flat(inputs), flat(outputs)
        sent, received = ([tensor.nbytes for tensor in tensors] for tensors in (inputs, outputs))
        self._move(self._whole, "all_to_all_single", target, source, received, sent, options)
        copy_out(target, outputs)

    def all_to_all_single(self, output, source, output_splits, input_splits, options):
        check_same_type(check(output, "all_to_all_single"), check(source, "all_to_all_single"), "all_to_all_single")
        arguments = (self._whole, "all_to_all_single", output, source, output_splits, input_splits, options)
        return self._run(functools.partial(self._move, view=as_rows), arguments, options, [output])

    def reduce_scatter(self, outputs, inputs, options):
        check_list(inputs[0], only(outputs, "reduce_scatter"), self.size(), "reduce_scatter")
        return self._scatter_sums("reduce_scatter", outputs, [flat(inputs[0])], options)

    def reduce_scatter_single(self, output, source, options):
        return self._scatter_sums("reduce_scatter_single", [output], [source], options)

    def reduce_scatter_single_coalesced(self, outputs, inputs, options):
        return self._scatter_sums("reduce_scatter_single_coalesced", outputs, inputs, options)

    def _scatter_sums(self, name, outputs, inputs, options):
        inputs = [in_one_piece(source, name) for source in inputs]
        for output, source in zip(outputs, inputs, strict=True):
            check_blocks(source, output, self.size(), name)
            check_reduction(output.dtype, options.reduceOp, name)

        def all_of_them():
            for output, source in zip(outputs, apart(inputs, outputs)):
                self._reduce_scatter(output, source, options.reduceOp, options.timeout)

        return self._run(all_of_them, (), options, outputs)

    def _reduce_scatter(self, output, source, op, timeout):
        _, outer = self._operators(op)
        given, meant = carry(source, outer)
        if op.op == ReduceOp.PREMUL_SUM:
            given = scale(given, source.dtype, op.factor)
        share, _ = carry(output, outer)
        options = make_options(dist.ReduceScatterOptions, timeout, reduceOp=meant)
        self._between_hosts(self._whole, "reduce_scatter_single", share, given, options)
        take(output, share, outer)
        self._average(output, op)

    # Messages --------------------------------------------------------------------------------------------------------

    def _way_to(self, peer):
        members = self._hosts[self._host]
        return (self._local, members.index(peer)) if peer in members else (self._whole, peer)

    def send(self, tensors, peer, tag):
        way, peer = self._way_to(peer)
        return way.send(tensors, peer, tag)

    def recv(self, tensors, peer, tag):
        way, peer = self._way_to(peer)
        return way.recv(tensors, peer, tag)

    def recv_anysource(self, tensors, tag):
        raise RuntimeError("shmccl: recv from any rank needs a group of one host; name the source")
