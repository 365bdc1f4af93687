"""Threads for functions of the program, such as callbacks of futures. Nothing else depends on these threads.

Functions of one lane are called one after the other, so that those of all ranks make their operations in one order. A
function may wait for operations that it makes itself: these end on the next lane. Where it waits for anything else, its
lane goes on after a moment, on another thread.
"""

import collections
import contextlib
import os
import threading
import traceback

import torch

# How long a function keeps the next one waiting, and how long a thread waits for a function, in seconds.
TURN, IDLE = 0.05, 2.0

# The lane of what is made on a thread is `here.lane`, and 0 where there is none.
here = threading.local()


def lane():
    return getattr(here, "lane", 0)


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
                if awaited := self.awaited:
                    has_ended = self.changed.wait_for(lambda: self.awaited != awaited, TURN)
                    if has_ended or not self.functions:
                        continue
                self._call_next()
            self.threads -= 1

    def _call_next(self):
        self.last += 1
        own = self.awaited = self.last
        function = self.functions.popleft()
        self.calling += 1
        if self.functions:
            self._provide()
        self.changed.release()
        try:
            self._call_here(function)
        finally:
            del function
            self.changed.acquire()
            self.calling -= 1
            if self.awaited == own:
                self.awaited = 0
            self.changed.notify_all()

    def _call_here(self, function):
        before, here.lane = lane(), self.number + 1
        try:
            function()
        except Exception:
            traceback.print_exc()
        finally:
            here.lane = before


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
