"""How the ranks of a group find each other by its store, before they meet.

Each rank puts one text into the store: where it is, the mark of its process, when it has come, on rank 0 the id of the
meeting, and the run of a launcher that it belongs to. Then it waits for the texts of all others, in the thread that
makes the group. No other thread uses the store, of which `set`, `get` and `wait` are enough.

A rank whose process ends while others wait for it is named to them by its mark.

A store may outlive a job. A text is of an earlier one, and as good as none, if this process has used it for another
group of this name, if its process had ended before this one was started, or if nobody receives under its id. A process
of this job that had ended as early looks the same: it is told at once if it is of this process's run, and otherwise
named once the time is over.

Clocks, processes and ids of another machine cannot be asked about. Of its texts only those that this process has used
are taken for old ones. With an older one the group fails as its ranks connect.
"""

import collections
import contextlib
import datetime
import functools
import os
import time

import torch.distributed as dist

from shmccl import _core

# A time-out that means never, which every clock can add to its time.
NEVER = datetime.timedelta(days=36500)
# How long a store without `check` is asked for a key, so that ends of processes are noticed meanwhile.
SHORTLY = datetime.timedelta(milliseconds=20)
# How often a store may fail before it has failed.
FAILURES = 3
# The time in seconds between two looks at processes, and how many ranks are looked for in each.
LOOK = 0.1
AT_ONCE = 32

Meeting = collections.namedtuple("Meeting", "places processes id")
Text = collections.namedtuple("Text", "place process came id run")

# What this process has used last, by group, own rank and peer.
_used = {}
# The process of each rank of the default group that was made last.
_default = []


def bounded(timeout):
    """A time-out that can be added to any time. What torch makes of one that it has no room for is negative."""
    return timeout if datetime.timedelta(0) <= timeout < NEVER else NEVER


def _now():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


@functools.lru_cache(1)
def _own_mark(_process):
    return _core._process_mark()


def _is_here(mark):
    """Whether a process is of this machine, so that both have one clock."""
    clock = mark.split(".")[-1]
    return clock not in ("", "0") and clock == _own_mark(os.getpid()).split(".")[-1]


def _number(mark):
    return mark.partition(".")[0]


def _run():
    """What all processes that torchrun has started together on this machine have in common; no other one has."""
    names = "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "WORLD_SIZE", "MASTER_PORT"
    values = [os.environ.get(name) for name in names]
    return "" if None in values[:2] else repr((*values, os.getppid()))


def _start():
    """When this process was started, or a moment later: the system rounds it down."""
    ticks = int(_core._process_mark().split(".")[1])
    return (ticks + 1) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")


class _Started:
    at = _start()

    @classmethod
    def forked(cls):
        cls.at = _now()


os.register_at_fork(after_in_child=_Started.forked)


class Keys:
    """The keys of a group in a store."""

    def __init__(self, store, name):
        self._store, self._name = store, name
        self._checks, self._waits = True, True
        self._failures = 0

    def key(self, rank):
        return f"shmccl/{self._name}/place/{rank}"

    def set(self, rank, text):
        self._store.set(self.key(rank), "\n".join(map(str, text)))

    def have(self, ranks):
        """Whether all of them are there. Where the store can tell that, it does not block: its clients share it."""
        keys = list(map(self.key, ranks))
        if self._checks:
            try:
                return bool(self._store.check(keys))
            except Exception:  # noqa: BLE001  it may have no such method: another one tells
                self._checks = False
        if self._waits:
            try:
                return self._wait(keys)
            except TypeError:
                self._waits = False
        self._store.wait(keys)
        return True

    def _wait(self, keys):
        begun = time.monotonic()
        try:
            self._store.wait(keys, SHORTLY)
        except TypeError:
            raise
        except Exception:
            # One that has waited has only found nothing.
            self._failures = 0 if time.monotonic() - begun >= SHORTLY.total_seconds() / 2 else self._failures + 1
            if self._failures == FAILURES:
                raise
            return False
        return True

    def get(self, ranks):
        """The texts of ranks that are there."""
        keys = list(map(self.key, ranks))
        try:
            values = self._store.multi_get(keys)
        except Exception:  # noqa: BLE001  it may have no such method
            values = [self._store.get(key) for key in keys]
        return [_read(value) for value in values]


def _read(value):
    lines = bytes(value).decode(errors="replace").split("\n")
    if len(lines) != 5 or not lines[2].isdigit():
        return None
    return Text(lines[0], lines[1], int(lines[2]), *lines[3:])


class Arrivals:
    """The ranks of a group, as far as they have come."""

    def __init__(self, keys, name, rank, size, own, known):
        # The processes of ranks that are in the default group, too.
        self._known = known
        self._keys, self._name, self._rank, self._size = keys, name, rank, size
        self._own, self.found = own, {rank: own}
        # The texts of processes that had ended before this one was started.
        self._gone = {}
        self._next = 0

    def missing(self):
        return [peer for peer in range(self._size) if peer not in self.found]

    def take(self, ranks):
        """Takes the texts of ranks that are there, and returns whether all are of this job."""
        ranks = list(ranks)
        for peer, text in zip(ranks, self._keys.get(ranks)):
            if text and self._is_of_this_job(peer, text):
                self.found[peer] = text
        return all(peer in self.found for peer in ranks)

    def _is_of_this_job(self, peer, text):
        if _used.get((self._name, self._rank, peer)) == text:
            return False
        if not _is_here(text.process):
            return True
        if _core._has_ended(text.process):
            if text.came >= _Started.at or text.run and text.run == self._own.run:
                return True
            self._gone[peer] = text
            return False
        # Who has come later than this rank cannot be of an earlier job.
        return not text.id or text.came > self._own.came or _core.UniqueId(text.id)._is_hosted()

    def look(self):
        """Looks for some of those that are missing, and raises if the process of a rank has ended."""
        missing = self.missing()
        self._next %= max(len(missing), 1)
        for peer in missing[self._next:self._next + AT_ONCE]:
            if self._keys.have([peer]):
                self.take([peer])
        self._next += AT_ONCE
        self.check()

    def check(self):
        """Raises if the processes of some ranks have ended: all are named, for one may have ended because of another."""
        known = {**self._known, **{peer: text.process for peer, text in self.found.items()}}
        ended = [peer for peer in sorted(known) if peer != self._rank and _core._has_ended(known[peer])]
        if ended:
            named = " and ".join(f"rank {peer} (process {_number(known[peer])})" for peer in ended)
            raise dist.DistBackendError(f"shmccl: group '{self._name}': {named} was lost: it has ended before all ranks had come")

    def late(self, timeout):
        """Says which ranks have not come in time, and of which of them there is a text all the same."""
        missing = self.missing()
        ranks = f"ranks {', '.join(map(str, missing))} have" if len(missing) > 1 else f"rank {missing[0]} has"
        gone = [
            f"rank {peer} (process {_number(self._gone[peer].process)}) had ended before this one was started"
            for peer in missing if peer in self._gone
        ]
        return "; ".join([f"{ranks} not come within {timeout * 1000:.0f} ms", *gone])

    def keep(self):
        _used.update({(self._name, self._rank, peer): text for peer, text in self.found.items()})


def _processes_of(ranks):
    """The processes of the ranks of a group that is made within the default group, as far as they are known."""
    if not dist.is_initialized():
        return {}
    return {peer: _default[rank] for peer, rank in enumerate(ranks) if rank < len(_default)}


def _may_share(one: str, other: str) -> bool:
    """Whether no word of two places is known to differ."""
    words, others = one.split(), other.split()
    return len(words) == len(others) and all(a == b or "?" in (a[-1], b[-1]) for a, b in zip(words, others, strict=True))


def resolved(places: list) -> list:
    """Gives a rank that cannot tell all of its place that of the nearest rank which can, where the two may be one.

    All ranks have the same places before, and so after.
    """

    def resolve(rank, place):
        if "?" not in place:
            return place
        nearest = sorted(range(len(places)), key=lambda peer: abs(peer - rank))
        known = (places[peer] for peer in nearest if "?" not in places[peer] and _may_share(places[peer], place))
        return next(known, place)

    return [resolve(rank, place) for rank, place in enumerate(places)]


def come(store, name, rank, size, timeout, ranks, place):
    """Waits until all ranks of a group have come, and returns what they have told. `ranks` are their global numbers."""
    global _default
    timeout = bounded(timeout).total_seconds()
    keys = Keys(store, name)
    id = str(_core.UniqueId._brief(max(timeout, 1.0))) if rank == 0 else ""
    own = Text(place, _own_mark(os.getpid()), _now(), id, _run())
    keys.set(rank, own)
    arrivals = Arrivals(keys, name, rank, size, own, _processes_of(ranks))
    try:
        _await(keys, arrivals, name, timeout)
    finally:
        arrivals.keep()
    texts = [arrivals.found[peer] for peer in range(size)]
    processes = [text.process for text in texts]
    if not dist.is_initialized():
        _default = processes
    return Meeting(resolved([text.place for text in texts]), processes, texts[0].id)


def _await(keys, arrivals, name, timeout):
    now = time.monotonic()
    deadline, next_look, pause = now + timeout, now + LOOK, 0.0002
    while missing := arrivals.missing():
        try:
            if keys.have(missing) and arrivals.take(missing):
                return
            if time.monotonic() >= next_look:
                arrivals.look()
                next_look = time.monotonic() + LOOK
        except dist.DistBackendError:
            raise
        except Exception as error:
            # The store may have gone with the rank that kept it.
            arrivals.check()
            raise dist.DistBackendError(f"shmccl: group '{name}': the store failed: {error}") from error
        if time.monotonic() > deadline:
            raise dist.DistBackendError(f"shmccl: group '{name}': {arrivals.late(timeout)}")
        time.sleep(pause)
        pause = min(2 * pause, 0.005)


def come_here(store, name, rank, size, timeout, ranks, place):
    """Does what `come` does for ranks that have to share memory."""
    if size == 1:
        return Meeting([place], [], "")
    meeting = come(store, name, rank, size, timeout, ranks, place)
    if other := elsewhere(meeting, rank):
        raise dist.DistBackendError(f"shmccl: group '{name}': {other}")
    return meeting


def elsewhere(meeting, rank):
    """Says which rank cannot share memory with this one, `rank`, if there is one."""
    place = meeting.places[rank]
    peer = next((peer for peer, other in enumerate(meeting.places) if other != place), None)
    if peer is None:
        return None
    return f"rank {peer} cannot share memory with this one: it is at [{meeting.places[peer]}], this one at [{place}]"


def call_off(meeting):
    """Ends a meeting to which nobody is to come, on the rank that hosts it."""
    with contextlib.suppress(Exception):
        _core.Communicator.init_rank(2, _core.UniqueId(meeting.id), 0, timeout=0.001)
