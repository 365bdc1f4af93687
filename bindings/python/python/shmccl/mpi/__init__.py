"""The names of mpi4py over communicators of shmccl: one line of a program differs.

    from shmccl import mpi as MPI           # and not: from mpi4py import MPI

    comm = MPI.COMM_WORLD                   # joins the job of the launcher when a program first asks for it
    comm.Allreduce(sendbuf, recvbuf, op=MPI.SUM)
    parts = comm.gather({"any": "object"}, root=0)

`MPI.Comm(communicator)` gives any communicator of shmccl these names; all of its ranks make it together.

`sendbuf` may be `MPI.IN_PLACE`. A buffer is any operand of shmccl, or a list as mpi4py takes it: `[x, MPI.INT]`,
`[x, count, MPI.INT]`, `[x, count, displacement, MPI.INT]`, `[x, (count, displacement), MPI.INT]`. The calls that end in
v take `[x, counts, displacements, MPI.INT]` and `[x, (counts, displacements), MPI.INT]`. Counts are elements of the type,
of each rank where a buffer has a block for each.

A receive takes any source and any tag unless it names them, and may have room for more than was sent. docs/python.md has
the table of what is not there.
"""

from .._errors import Error as Exception
from ._absent import remedy_for as _remedy_for
from ._cartesian import Cartcomm, Compute_dims
from ._comm import Comm, Intracomm
from ._constants import *  # noqa: F403
from ._datatypes import *  # noqa: F403
from ._environment import (
    Alloc_mem,
    Attach_buffer,
    Detach_buffer,
    Finalize,
    Free_mem,
    Get_library_version,
    Get_processor_name,
    Get_version,
    Init,
    Init_thread,
    Is_finalized,
    Is_initialized,
    Is_thread_main,
    Pcontrol,
    Query_thread,
    Wtick,
    Wtime,
    buffer,
    get_vendor,
    memory,
)
from ._environment import own as _own
from ._environment import world as _world
from ._groups import GROUP_EMPTY, Group
from ._messages import MESSAGE_NO_PROC, MESSAGE_NULL, Message
from ._ops import BAND, BOR, BXOR, LAND, LOR, LXOR, MAX, MAXLOC, MIN, MINLOC, NO_OP, PROD, REPLACE, SUM, Op
from ._pickling import Pickle, pickle
from ._requests import REQUEST_NULL, Prequest, Request
from ._status import Status
from ._win import Win

_JOINED = {"COMM_WORLD": _world, "COMM_SELF": _own}


def __getattr__(name):
    """Joins the job when a program first asks for one of its communicators."""
    if name in _JOINED:
        globals()[name] = _JOINED[name]()
        return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{_remedy_for(name)}")
