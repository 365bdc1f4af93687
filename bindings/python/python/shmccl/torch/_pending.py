"""The works of operations, for the backend that is written in Python."""

import datetime
import functools
import threading
import time

import torch
from torch._C._distributed_c10d import Work

from shmccl._core import _table

from . import _callers
from ._connection import Forks, awaiting, failure, milliseconds, raise_failure, within
from ._meeting import bounded

NO_TIMEOUT = datetime.timedelta(0)
# What the options of an operation have that nobody has given a time.
UNSET = datetime.timedelta(milliseconds=-1)


class _PartEnd:
    """What the engine calls at the end of a part of a work, on any thread. It has the work until then."""

    def __init__(self, work):
        self.work = work

    def __call__(self, code, text, rank):
        was_within, within.callback = getattr(within, "callback", False), True
        work, self.work = self.work, None
        try:
            work._end(code, text, rank)
        finally:
            # Where nobody else has the work, its group may go with it, which has to know where it is.
            del work
            within.callback = was_within


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
        code, request = call.start(comm.number, _PartEnd(self))
        if code:
            failed = failure(code)
            self._end(*failed)
            self._end(*failed)
            self.connection.fail(self.operation, *failed)
        self.requests.append(request)

    def _end(self, code=_table.Success, text="", rank=-1):
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
            self.failure = (_table.InternalError, str(error))

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
            for request in self.requests:
                request.advance()
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
            code = request.wait(milliseconds(deadline - time.monotonic()) if deadline else 0)
            if code == _table.Interrupted:
                raise_failure(code, "", "")
            if code == _table.InProgress:
                # Past its own time it is ended for all ranks, as the engine does past its own.
                late = self.connection.stragglers()
                if is_own:
                    self.connection.note_failure(_table.Timeout)
                    self.connection.revoke_awaiting(late)
                text = f"timed out after {milliseconds(allowed.total_seconds())} ms{awaiting(late)}"
                self.connection.fail(self.operation, _table.Timeout, text, late[0] if len(late) == 1 else -1)
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
                request.free()


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
