"""The exceptions of the package: one class for each error of the engine, and named like it."""


class Error(Exception):
    """Any error of the engine. Its text says what happened, with the values, and what to do.

    `rank` is the rank that it is about, where there is one.
    """

    rank = None

    def __init__(self, message="", /, **values):
        super().__init__(message)
        self.__dict__.update(values)


class InvalidArgument(Error, ValueError):
    """An argument has a value that the operation cannot take."""


class UnsupportedAlgorithm(Error, ValueError):
    """An algorithm cannot do the operation that it was chosen for."""


class UnsupportedOperator(Error, ValueError):
    """An operator cannot combine elements of this type."""


class WrongCount(Error, ValueError):
    """A buffer has another number of elements than the call needs."""


class InvalidRank(Error, ValueError):
    """A rank is not part of the communicator: `rank`."""


class OutOfRange(Error, IndexError):
    """A range of bytes reaches past the end of what it names."""


class Misaligned(Error, ValueError):
    """An offset is not a multiple of what the operation needs."""


class OutOfMemory(Error, MemoryError):
    """The heap cannot satisfy an allocation. Start with a larger one: `heap="1G"`."""


class Exhausted(Error):
    """A table of fixed size is full."""


class Unavailable(Error):
    """The operation does not exist in this kind of job, or not any more."""


class NameInUse(Error):
    """A name in /dev/shm that the job needs is somebody else's."""


class ResourceLimit(Error, OSError):
    """The system refused for want of a resource that the user can raise."""


class Refused(Error, OSError):
    """A sandbox or a file system has not what an action needs."""


class Os(Error, OSError):
    """The system refused."""


class Layout(Error):
    """A shared object is of another version of this package, or of another job."""


class Mismatch(Error, ValueError):
    """Ranks called a collective operation with different arguments: `rank` is the other one."""


class CallMismatch(Error):
    """Ranks are in different collective calls. The epoch has ended."""


class AlgorithmMismatch(Error):
    """Ranks have registered different algorithms."""


class FailedElsewhere(Error):
    """Another rank failed in an operation that can only succeed on all: `rank`."""


class Timeout(Error, TimeoutError):
    """A wait passed its deadline although nobody died.

    `rank` is the rank that was awaited, `straggler` the one that holds the others up, and `report` tells what all ranks
    were doing.
    """

    straggler = None
    report = None


class StreamFailed(Error):
    """An operation of a stream failed, and those behind it were not executed. Its cause says why."""


class Panicked(Error):
    """A function that the program has handed over panicked."""


class PeerLost(Error, ConnectionError):
    """A rank died or left while it was needed: `rank`, as the job numbers it."""


class Excluded(Error):
    """The other ranks have given this one up."""


class ProxyLost(Error, ConnectionError):
    """The proxy died."""


class Revoked(Error, ConnectionError):
    """The epoch was ended: by `rank`, or by the launcher (None)."""


class Environment(Error):
    """The process was not started by a launcher, or its environment is damaged."""


class Setting(Error, ValueError):
    """A variable of the environment has a value that says nothing."""


class Tuning(Error):
    """A table of algorithms cannot be used."""


class TuningMismatch(Error):
    """Ranks have different tables of algorithms."""


class Trace(Error, OSError):
    """A trace cannot be written."""


class NoMeeting(Error, ConnectionError):
    """Nobody receives under a unique id: it is over, its maker has ended, or a process has on its way to a rank."""


class RankTaken(Error):
    """Two processes came to a meeting as the same rank: `rank`."""


class NoPlace(Error):
    """A newcomer is one too many."""


class Plan(Error, ValueError):
    """A file is no execution plan that can be run."""


class FaultPlan(Error, ValueError):
    """A plan of faults cannot be used."""


class FaultInjected(Error):
    """This rank, a thread, was killed by a fault that was injected."""


class Checkpoint(Error, OSError):
    """A checkpoint cannot be written or read."""


class Corrupted(Error):
    """Data from `rank` differ from what it has sent, by their checksums."""


class PutCorrupted(Error):
    """A copy that a proxy made for `rank` differs from its source."""


class DeviceFailed(Error):
    """A rank ended before its work was done: `rank`.

    `traceback` is the text of its own, where it raised; the exception is the cause, where it can be pickled.
    """

    traceback = None


class Cancelled(Error):
    """The program ended a wait of its own thread."""


class Interrupted(Error):
    """The launcher was told to stop by a signal."""
