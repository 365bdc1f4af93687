"""Starts the ranks of a job as processes, and ends them together."""

import multiprocessing
import multiprocessing.connection
import numbers
import operator
import os
import pickle
import signal
import sys
import time
import traceback

from . import _core
from ._errors import DeviceFailedError, FailedElsewhereError, PeerLostError, RevokedError
from ._options import byte_count
from ._start import Work, missing

# How long ranks may take to end by themselves once one has failed, or after Ctrl-C.
_GRACE = 1.5
# Failures that follow from another rank's.
_CONSEQUENCES = (PeerLostError, RevokedError, FailedElsewhereError)


def launch(fn, n, *args, heap="256M", timeout=60.0, start=None, pin=True, keep_going=False, **kwargs):
    """Runs `fn(comm, *args, **kwargs)` in `n` processes, and returns their results in the order of the ranks.

    `start` is "spawn", "forkserver" or "fork", as in `multiprocessing`. By default, ranks are fresh processes ("spawn")
    where these find the function and all arguments by import. Otherwise they are copies of this one ("fork"): for
    lambdas, for what was defined in a notebook or below `if __name__ == "__main__":`, for a program from standard input.
    A script that starts fresh processes calls `launch` under `if __name__ == "__main__":`.

    `heap` is the length of each rank's heap, `timeout` the longest wait in seconds. With `pin`, each rank runs on cores
    of its own where there are enough.

    The first rank that fails ends all, and its exception becomes the cause of `DeviceFailedError`. With `keep_going` the
    others go on, and the failure stands in the place of the result. Ctrl-C ends all ranks.
    """
    if getattr(multiprocessing.process.current_process(), "_inheriting", False):
        raise RuntimeError(
            "launch() was called while this process was being started for a rank: put the call under "
            'if __name__ == "__main__":, or pass start="fork"'
        )
    if not callable(fn):
        raise TypeError(f"launch(fn, n) takes a function of a communicator first, not {fn!r}")
    if isinstance(n, bool) or not 1 <= operator.index(n) <= _core._MAX_RANKS:
        raise ValueError(f"launch() starts from one to {_core._MAX_RANKS} ranks, not {n}")
    if isinstance(timeout, bool) or not isinstance(timeout, numbers.Real) or not timeout > 0:
        raise ValueError(f"timeout= takes seconds, and not {timeout!r}")
    settings = {"heap": byte_count(heap), "timeout": timeout}
    context = multiprocessing.get_context(_method(start, (fn, args, kwargs)))
    work = Work((fn, args, kwargs))
    id = str(_core.UniqueId(good_for=max(timeout, 60.0)))
    ranks = []
    try:
        for rank, cores in enumerate(_cores_of_ranks(n) if pin else [None] * n):
            ranks.append(_Rank(context, rank, cores, (work, id, n, settings)))
        return _outcomes(ranks, keep_going)
    finally:
        _end(ranks)


def _method(start, work):
    """Returns how processes start that are given `work`."""
    if start == "fork":
        return start
    reason = missing(work)
    if reason is None or start is None:
        return start or ("fork" if reason else "spawn")
    raise ValueError(
        f'start="{start}" begins fresh processes, but {reason}: put it into a module or at the top of the program\'s file, '
        'or pass start="fork"'
    )


def _cores_of_ranks(n):
    """Divides the cores of this process: each rank gets as many in a row; nobody is pinned where there are too few."""
    cores = sorted(os.sched_getaffinity(0))
    each = len(cores) // n
    return [set(cores[rank * each : (rank + 1) * each]) if each else None for rank in range(n)]


class _Rank:
    """A rank: its process, and what comes of it."""

    def __init__(self, context, rank, cores, work):
        self.rank = rank
        self.outcome = None
        self.pipe, theirs = context.Pipe(duplex=False)
        self.process = context.Process(target=_run, args=(rank, theirs, os.getpid(), *work), daemon=False)
        all_cores = os.sched_getaffinity(0)
        try:
            # A process starts on the cores of the thread that starts it: what counts them at its start finds its own.
            if cores:
                os.sched_setaffinity(0, cores)
            work[0].begin(self.process)
        finally:
            os.sched_setaffinity(0, all_cores)
            theirs.close()

    def take(self):
        """Takes what the rank has told, or how it has ended."""
        try:
            self.outcome = pickle.loads(self.pipe.recv_bytes())
        except (EOFError, OSError):
            self.process.join()
            self.outcome = (False, None, None, _ending(self.process.exitcode))
        self.pipe.close()

    def failure(self):
        """Returns the error of a rank that has failed."""
        _, error, text, ending = self.outcome
        what = f"rank {self.rank} {ending}"
        failed = DeviceFailedError(f"{what}\n\n{text}" if text else what, rank=self.rank, traceback=text)
        failed.__cause__ = error
        return failed

    def is_consequence(self):
        return isinstance(self.outcome[1], _CONSEQUENCES)


def _ending(code):
    if code is not None and code < 0:
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"
    return f"ended with exit code {code} before its work was done"


def _outcomes(ranks, keep_going):
    waiting = {rank.pipe: rank for rank in ranks}
    failed, deadline = [], None
    while waiting:
        patience = None if deadline is None else max(0.0, deadline - time.monotonic())
        for pipe in multiprocessing.connection.wait(list(waiting), patience):
            rank = waiting.pop(pipe)
            rank.take()
            if not rank.outcome[0]:
                failed.append(rank)
        if failed and not keep_going:
            deadline = deadline or time.monotonic() + _GRACE
            if time.monotonic() >= deadline:
                break
    if failed and not keep_going:
        # The others may have failed because of one that was heard of later.
        raise next((rank for rank in failed if not rank.is_consequence()), failed[0]).failure()
    return [rank.outcome[1] if rank.outcome[0] else rank.failure() for rank in ranks]


def _end(ranks):
    """Ends the processes that are left: asks, and then kills."""
    error = sys.exc_info()[0]
    if error is None:
        steps = [(None, 5.0), (signal.SIGKILL, None)]
    elif issubclass(error, KeyboardInterrupt):
        # From a terminal, the ranks have got it, too.
        steps = [(None, _GRACE / 3), (signal.SIGINT, _GRACE / 3), (signal.SIGKILL, None)]
    else:
        steps = [(signal.SIGKILL, None)]
    for wish, patience in steps:
        alive = [rank.process for rank in ranks if rank.process.is_alive()]
        for process in alive:
            if wish is not None:
                os.kill(process.pid, wish)
        deadline = None if patience is None else time.monotonic() + patience
        for process in alive:
            process.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
    for rank in ranks:
        rank.pipe.close()
        if not rank.process.is_alive():
            rank.process.close()


def _run(rank, pipe, parent, work, id, n, settings):
    """What the process of a rank does."""
    if not _core.end_with_parent(parent):
        os._exit(1)
    try:
        fn, args, kwargs = work.unpacked()
        comm = _core.Communicator.init_rank(n, _core.UniqueId(id), rank, **settings)
        try:
            result = fn(comm, *args, **kwargs)
            _leave(comm)
            _tell(pipe, (True, result, None, None))
        except BaseException as error:
            # Before the others learn that this rank is gone.
            _tell_failure(pipe, error)
            comm.close()
            raise
    except BaseException as error:
        _tell_failure(pipe, error)
        sys.stdout.flush()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _core.leave_all()
        sys.exit(1)


def _leave(comm):
    """Leaves with the others. Where the epoch has ended before, what this rank has done stands."""
    if comm.closed:
        return
    if comm.revoked:
        comm.close()
        return
    try:
        comm.finalize()
    except _CONSEQUENCES:
        comm.close()


def _tell_failure(pipe, error):
    if pipe.closed:
        return
    text = "".join(traceback.format_exception(error)).rstrip()
    ending = "raised " + "".join(traceback.format_exception_only(error)).strip()
    _tell(pipe, (False, _portable(error), text, ending))


def _portable(error):
    """Returns the exception if it survives the way to another process."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return None
    return error


def _tell(pipe, outcome):
    try:
        told = pickle.dumps(outcome)
    except Exception as error:
        raise TypeError(f"the result of a rank cannot be pickled: {error}") from error
    try:
        pipe.send_bytes(told)
    except BrokenPipeError:
        pass
    pipe.close()
