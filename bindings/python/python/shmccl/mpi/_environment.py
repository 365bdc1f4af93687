"""The job that this process is a rank of, and what MPI tells of it."""

import os
import threading
import time

from .. import _init
from .._core import Communicator, __version__
from ._comm import Intracomm
from ._constants import THREAD_MULTIPLE

_joined = {}
_joining = threading.RLock()
_is_ended = False


def _world():
    """Joins the job of the launcher. Without a launcher, this process is a job of its own."""
    if _init.is_launched(os.environ):
        comm = _init.init()
    else:
        comm = Communicator.init_all(1)[0]
    # Ranks of MPI wait for each other however long that takes.
    comm.timeout = float("inf")
    return Intracomm(comm)


def _own():
    """Makes a job of this process alone."""
    own = Intracomm(Communicator.init_all(1, heap="64M")[0])
    own._members = [world().Get_group()._members[world().rank]]
    return own


def _once(name, make):
    with _joining:
        if name not in _joined:
            _joined[name] = make()
        return _joined[name]


def world():
    return _once("COMM_WORLD", _world)


def own():
    return _once("COMM_SELF", _own)


def Init():
    """Joins the job, as the first use of `COMM_WORLD` does."""
    world()


def Init_thread(required=THREAD_MULTIPLE):
    world()
    return THREAD_MULTIPLE


def Is_initialized():
    return True


def Finalize():
    """Leaves the job, when all ranks have come here."""
    global _is_ended
    if not _is_ended:
        for comm in _joined.values():
            comm.Free()
    _is_ended = True


def Is_finalized():
    return _is_ended


def Query_thread():
    return THREAD_MULTIPLE


def Is_thread_main():
    return threading.current_thread() is threading.main_thread()


def Get_version():
    """Returns the version of MPI whose names these are."""
    return 3, 1


def Get_library_version():
    return f"shmccl {__version__}"


def get_vendor():
    return "shmccl", tuple(int(number) for number in __version__.split(".")[:3])


def Get_processor_name():
    return os.uname().nodename


def Wtime():
    return time.perf_counter()


def Wtick():
    return time.get_clock_info("perf_counter").resolution


def Pcontrol(level):
    """Nothing is profiled."""


# Memory ---------------------------------------------------------------------------------------------------------------

_buffers = []


def Alloc_mem(size, info=None):
    return memoryview(bytearray(size))


def Free_mem(mem):
    mem.release()


def Attach_buffer(buf):
    """Keeps a buffer for `Detach_buffer`. Buffered sends need none."""
    _buffers.append(buf)


def Detach_buffer():
    return _buffers.pop()


class memory:
    """Memory by the names that mpi4py has for it."""

    allocate = staticmethod(lambda nbytes, clear=False: memoryview(bytearray(nbytes)))
    frombuffer = staticmethod(lambda buf, readonly=False: memoryview(buf).toreadonly() if readonly else memoryview(buf))


buffer = memory
