"""The exceptions of the package: one class for each error of the engine.

A class has the name of the engine's error, with `Error` at its end. `_LONGER` has those whose name Python itself takes.
"""


class Error(Exception):
    """Any error of the engine. Its text says what happened, with the values, and what to do.

    `rank` is the rank that it is about, where there is one.
    """

    rank = None

    def __init__(self, message="", /, **values):
        super().__init__(message)
        self.__dict__.update(values)


class InvalidArgumentError(Error, ValueError):
    """An argument has a value that the operation cannot take."""


class UnsupportedAlgorithmError(Error, ValueError):
    """An algorithm cannot do the operation that it was chosen for."""


class UnsupportedOperatorError(Error, ValueError):
    """An operator cannot combine elements of this type."""


class WrongCountError(Error, ValueError):
    """A buffer has another number of elements than the call needs."""


class InvalidRankError(Error, ValueError):
    """A rank is not part of the communicator: `rank`."""


class OutOfRangeError(Error, IndexError):
    """A range of bytes reaches past the end of what it names."""


class MisalignedError(Error, ValueError):
    """An offset is not a multiple of what the operation needs."""


class OutOfMemoryError(Error, MemoryError):
    """The heap cannot satisfy an allocation. Start with a larger one: `heap="1G"`."""


class ExhaustedError(Error):
    """A table of fixed size is full."""


class UnavailableError(Error):
    """The operation does not exist in this kind of job, or not any more."""


class NameInUseError(Error):
    """A name in /dev/shm that the job needs is somebody else's."""


class ResourceLimitError(Error, OSError):
    """The system refused for want of a resource that the user can raise."""


class RefusedError(Error, OSError):
    """A sandbox or a file system has not what an action needs."""


class SystemCallError(Error, OSError):
    """The system refused."""


class LayoutError(Error):
    """A shared object is of another version of this package, or of another job."""


class MismatchError(Error, ValueError):
    """Ranks called a collective operation with different arguments: `rank` is the other one."""


class CallMismatchError(Error):
    """Ranks are in different collective calls. The epoch has ended."""


class AlgorithmMismatchError(Error):
    """Ranks have registered different algorithms."""


class FailedElsewhereError(Error):
    """Another rank failed in an operation that can only succeed on all: `rank`."""


class WaitTimeoutError(Error, TimeoutError):
    """A wait passed its deadline although nobody died.

    `rank` is the rank that was awaited, `straggler` the one that holds the others up, and `report` tells what all ranks
    were doing.
    """

    straggler = None
    report = None


class StreamFailedError(Error):
    """An operation of a stream failed, and those behind it were not executed. Its cause says why."""


class PanickedError(Error):
    """A function that the program has handed over panicked."""


class PeerLostError(Error, ConnectionError):
    """A rank died or left while it was needed: `rank`, as the job numbers it."""


class ExcludedError(Error):
    """The other ranks have given this one up."""


class ProxyLostError(Error, ConnectionError):
    """The proxy died."""


class RevokedError(Error, ConnectionError):
    """The epoch was ended: by `rank`, or by the launcher (None)."""


class LaunchEnvironmentError(Error):
    """The process was not started by a launcher, or its environment is damaged."""


class SettingError(Error, ValueError):
    """A variable of the environment has a value that says nothing."""


class TuningError(Error):
    """A table of algorithms cannot be used."""


class TuningMismatchError(Error):
    """Ranks have different tables of algorithms."""


class TraceError(Error, OSError):
    """A trace cannot be written."""


class NoMeetingError(Error, ConnectionError):
    """Nobody receives under a unique id: it is over, its maker has ended, or a process has on its way to a rank."""


class RankTakenError(Error):
    """Two processes came to a meeting as the same rank: `rank`."""


class NoPlaceError(Error):
    """A newcomer is one too many."""


class PlanError(Error, ValueError):
    """A file is no execution plan that can be run."""


class FaultSpecError(Error, ValueError):
    """A list of faults cannot be used."""


class FaultInjectedError(Error):
    """This rank, a thread, was killed by a fault that was injected."""


class CheckpointError(Error, OSError):
    """A checkpoint cannot be written or read."""


class CorruptedError(Error):
    """Data from `rank` differ from what it has sent, by their checksums."""


class PutCorruptedError(Error):
    """A copy that a proxy made for `rank` differs from its source."""


class DeviceFailedError(Error):
    """A rank ended before its work was done: `rank`.

    `traceback` is the text of its own, where it raised; the exception is the cause, where it can be pickled.
    """

    traceback = None


class CancelledError(Error):
    """The program ended a wait of its own thread."""


class LaunchInterruptedError(Error):
    """The launcher was told to stop by a signal."""


_LONGER = {
    "Environment": "LaunchEnvironmentError",
    "FaultPlan": "FaultSpecError",
    "Interrupted": "LaunchInterruptedError",
    "Os": "SystemCallError",
    "Timeout": "WaitTimeoutError",
}
# The names of the classes before they ended in `Error`. The package has them as deprecated aliases.
_BEFORE = _LONGER | {
    name.removesuffix("Error"): name
    for name in tuple(vars())
    if name.endswith("Error") and name not in ("Error", *_LONGER.values())
}


def __getattr__(name):
    """Finds a class by its name of before, as pickles have it."""
    if name not in _BEFORE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals()[_BEFORE[name]]
