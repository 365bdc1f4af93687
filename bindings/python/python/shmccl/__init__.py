"""Collective communication between the processes of one machine, over shared memory.

    import numpy as np, shmccl

    def main(comm):
        total = comm.all_reduce(np.array([comm.rank + 1.0]))
        return float(total[0])

    if __name__ == "__main__":
        print(shmccl.launch(main, 2))       # [3.0, 3.0]

Under `shmccl run`, torchrun, mpirun or srun, `shmccl.init()` returns this process's communicator. The manual is
docs/python.md.
"""

import atexit as _atexit
import warnings as _warnings

from . import _core, _errors, plan
from ._core import (
    Array,
    Channel,
    Communicator,
    Event,
    Group,
    Lock,
    PreMulSum,
    RemoteView,
    Stream,
    Trigger,
    UniqueId,
    Work,
    __version__,
    group,
)
from ._errors import *  # noqa: F403
from ._end import at_end as _at_end
from ._init import init
from ._launch import launch

# A process that ends leaves its jobs like one that closes its communicators. Streams and handlers of proxies need the
# interpreter until then.
_atexit.register(_core.leave_all)
_at_end(_core.shut)

__all__ = [
    "Array",
    "Channel",
    "Communicator",
    "Event",
    "Group",
    "Lock",
    "PreMulSum",
    "RemoteView",
    "Stream",
    "Trigger",
    "UniqueId",
    "Work",
    "group",
    "init",
    "init_all",
    "launch",
    "plan",
    *(name for name, kind in vars(_errors).items() if isinstance(kind, type)),
]

init_all = Communicator.init_all


def __getattr__(name):
    if name not in _errors._BEFORE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    kind = getattr(_errors, _errors._BEFORE[name])
    _warnings.warn(f"shmccl.{name} is deprecated: use shmccl.{kind.__name__}", DeprecationWarning, stacklevel=2)
    return kind
