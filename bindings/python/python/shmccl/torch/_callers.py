"""Threads for functions of the program, such as callbacks of futures. Nothing else depends on these threads.

Functions of one lane are called one after the other, so that those of all ranks make their operations in one order. A
function may wait for operations that it makes itself: these end on the next lane. One that computes keeps its turn, however
long that takes. Where one waits for anything else, its lane goes on after a second, on another thread; and after five, where
it polls, or operations are under way that it has begun or waits for: lanes of other ranks may hold them up.
"""

import collections
import contextlib
import os
import threading
import time
import traceback

import torch

# How long a function that sleeps keeps the next one waiting, and one that is idle otherwise; how often it is looked at; and
# how long a thread waits for a function, in seconds.
TURN, LONG_TURN, LOOK, IDLE = 1.0, 5.0, 0.05, 2.0

# The lane of what is made on a thread is `here.lane`, and 0 where there is none. The function that makes it is `here.running`.
here = threading.local()
OUTSIDE = contextlib.nullcontext()


def lane():
    return getattr(here, "lane", 0)


def running():
    return getattr(here, "running", None)


class Running:
    """A function that is being called on this thread."""

    def __init__(self):
        self.thread = threading.get_native_id()
        self._lock = threading.Lock()
        # How many of its operations have not ended, and in how many calls that wait for operations it is.
        self.operations = self.waits = 0

    def count(self, operations):
        with self._lock:
            self.operations += operations

    @contextlib.contextmanager
    def waiting(self):
        self.waits += 1
        try:
            yield
        finally:
            self.waits -= 1


def waiting():
    """Says that the function on this thread, if any, waits for operations."""
    function = running()
    return function.waiting() if function else OUTSIDE


def use_of(thread):
    """Whether a thread sleeps, and how long it has computed. Where the system does not say, all threads sleep, and none has."""
    sleeps, used = True, 0.0
    with contextlib.suppress(OSError):
        with open(f"/proc/self/task/{thread}/stat") as file:
            sleeps = file.read().rpartition(") ")[2].startswith("S")
        with open(f"/proc/self/task/{thread}/schedstat") as file:
            used = int(file.read().split()[0]) / 1e9
    return sleeps, used


class Turn:
    """Says when a function that is being called gives up its turn. It is looked at from time to time."""

    def __init__(self, function):
        self.function = function
        self.asleep_since = time.monotonic()
        self.time, self.idle_looks = 0.0, 0

    def is_over(self):
        now = time.monotonic()
        sleeps, used = use_of(self.function.thread)
        has_operations = self.function.operations or self.function.waits
        # Who waits for the lock of the interpreter wakes every few milliseconds: it is no sleeper.
        if not sleeps or used != self.time or has_operations:
            self.asleep_since = now
        # Who polls may be seen awake now and then.
        is_busy = not self.function.waits and (not sleeps or used - self.time > LOOK / 10)
        self.idle_looks = max(self.idle_looks - 4, 0) if is_busy else self.idle_looks + 1
        self.time = used
        return now - self.asleep_since >= TURN or self.idle_looks * LOOK >= LONG_TURN


class State:
    """What torch knows of the thread that makes it: see `within`."""

    def __init__(self):
        self.keys = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
        self.is_inference, self.has_gradients = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
        self.autocast = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")

    @contextlib.contextmanager
    def within(self):
        """Lets this thread do the same as that one."""
        enabled, dtype = self.autocast
        with (
            torch.inference_mode(self.is_inference),
            torch.set_grad_enabled(self.has_gradients),
            torch.autocast("cpu", dtype, enabled),
            torch._C._ForceDispatchKeyGuard(*self.keys),
        ):
            yield


class _Lane:
    def __init__(self, number):
        self.number, self.functions = number, collections.deque()
        # How many threads serve it, and how many of them are in a function.
        self.threads = self.calling = 0
        # The number of the function that the next one waits for, or 0, and that of the last one.
        self.awaited = self.last = 0
        # The function that the next one waits for.
        self.running = None
        self.changed = threading.Condition()

    def call(self, function):
        with self.changed:
            self.functions.append(function)
            self._provide()
            # Without a thread, this one has to do.
            while not self.threads and self.functions:
                self._call_next()

    def _provide(self):
        """Sees to a thread that is in no function."""
        if self.threads > self.calling:
            self.changed.notify()
            return
        with contextlib.suppress(RuntimeError):
            threading.Thread(target=self._serve, name="shmccl-call", daemon=True).start()
            self.threads += 1

    def _serve(self):
        with self.changed:
            while self.changed.wait_for(lambda: self.functions, IDLE):
                if not self.awaited or self._await_turn():
                    self._call_next()
            self.threads -= 1

    def _await_turn(self):
        """Waits until the function that is being called has ended, or has given up its turn.

        Says whether it did the latter, and there is a next one.
        """
        awaited, turn = self.awaited, Turn(self.running)
        while not self.changed.wait_for(lambda: self.awaited != awaited, LOOK):
            if turn.is_over():
                return bool(self.functions)
        return False

    def _call_next(self):
        self.last += 1
        own = self.awaited = self.last
        called = self.running = Running()
        function = self.functions.popleft()
        self.calling += 1
        if self.functions:
            self._provide()
        self.changed.release()
        try:
            self._call_here(function, called)
        finally:
            del function
            self.changed.acquire()
            self.calling -= 1
            if self.awaited == own:
                self.awaited = 0
            self.changed.notify_all()

    def _call_here(self, function, called):
        before = lane(), running()
        here.lane, here.running = self.number + 1, called
        try:
            function()
        except Exception:
            traceback.print_exc()
        finally:
            here.lane, here.running = before


class _Lanes(dict):
    def __missing__(self, number):
        return self.setdefault(number, _Lane(number))


_lanes = _Lanes()


def call(number, function):
    """Calls the function on a thread of that lane."""
    _lanes[number].call(function)


def _forget():
    """The threads of a parent are not in its child."""
    global _lanes
    _lanes = _Lanes()


os.register_at_fork(after_in_child=_forget)


def finish(patience=1.0):
    """Waits a moment for functions that are being called: the interpreter ends."""
    for each in list(_lanes.values()):
        with each.changed:
            each.changed.wait_for(lambda each=each: not each.calling and not each.functions, patience)
