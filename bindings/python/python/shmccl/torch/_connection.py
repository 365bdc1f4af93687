"""One meeting of the ranks, for the backend that is written in Python."""

import contextlib
import math
import os
import threading

from torch._C._distributed_c10d import ErrorType
from torch.distributed import DistBackendError

from shmccl import _core
from shmccl._core import _table


class Forks:
    """How many forks have led to this process: quicker to ask than for its number."""

    n = 0

    @classmethod
    def count(cls):
        cls.n += 1


os.register_at_fork(after_in_child=Forks.count)

# Whether a thread is in a callback of the engine.
within = threading.local()


def milliseconds(seconds):
    """So many for the engine, for which none would be no limit."""
    return max(1, math.ceil(seconds * 1000))


def failure(code):
    """What the engine says of the failure that this thread got last: its code, its text and the rank that it names."""
    return code, *_table.last_failure()


def raise_failure(code, text, what):
    if code == _table.Interrupted:
        _core.raise_interrupt()
        raise KeyboardInterrupt
    raise (ValueError if code == _table.InvalidArgument else DistBackendError)(f"shmccl: {what}: {text}")


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
            self.failure = (_table.Timeout, str(error))
        self.met.set()

    def note_failure(self, code):
        if self.failed == ErrorType.SUCCESS:
            self.failed = ErrorType.TIMEOUT if code == _table.Timeout else ErrorType.COMM_ERROR

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
        code, collectives = _table.Comm.meet(self.id, self.rank, milliseconds(self.timeout.total_seconds()), self.processes)
        if code:
            return failure(code)
        code, messages = collectives.duplicate()
        if code:
            failed = failure(code)
            collectives.destroy()
            return failed
        self.collectives, self.messages = collectives, messages
        # It may have changed meanwhile.
        self._apply_timeout()
        return None

    def revoke(self):
        if self.forks == Forks.n:
            for comm in (self.messages, self.collectives):
                if comm:
                    comm.revoke()

    def stragglers(self):
        """The ranks that hold the others up."""
        if self.forks != Forks.n or not self.collectives:
            return []
        return self.collectives.stragglers()

    def naming_all(self, code, text, rank):
        """A failure with all ranks that were late, where the engine has named one of them."""
        late = self.stragglers() if code == _table.Timeout else []
        return code, text + (f"; late are ranks {', '.join(map(str, late))}" if len(late) > 1 else ""), rank

    def revoke_awaiting(self, late):
        """Ends every operation on all ranks, which are told who was late."""
        if self.forks == Forks.n and self.collectives:
            # Both have one epoch.
            self.collectives.revoke_awaiting(late[0] if late else -1)

    def set_timeout(self, timeout):
        """Gives the waits that begin from now on so much time."""
        self.timeout = timeout
        if self.collectives and self.forks == Forks.n:
            self._apply_timeout()

    def _apply_timeout(self):
        # It concerns all communicators of the meeting.
        self.collectives.set_timeout(milliseconds(self.timeout.total_seconds()))

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
        comm.destroy()
