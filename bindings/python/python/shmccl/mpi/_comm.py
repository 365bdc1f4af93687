"""Communicators, and what is made of them."""

import atexit
import contextlib
import os
import sys
import threading

from .._core import Communicator, _Messages
from .._errors import Error
from ._absent import remedy_for
from ._collectives import Collectives
from ._constants import (
    COMM_TYPE_SHARED,
    CONGRUENT,
    IDENT,
    LARGEST_TAG,
    SIMILAR,
    TAG_UB,
    UNDEFINED,
    UNEQUAL,
    WTIME_IS_GLOBAL,
)
from ._groups import Group
from ._messages import Messages
from ._objects import Objects

# The messages of all communicators that were not freed. One that is dropped on some ranks would end receives of others.
_open = set()


@atexit.register
def _end():
    """Tells the other ranks that this one has ended, unless it has failed: then the launcher tells them."""
    if getattr(sys, "last_value", None) is None:
        for messages in list(_open):
            try:
                messages.end()
            except Error:
                # Whoever does not hear of it has ended before, or has been given up.
                continue


class Comm(Collectives, Messages, Objects):
    """A communicator with the names of mpi4py's `Comm`; `shmccl` is the one below.

    Made of a communicator of shmccl, by all of its ranks together: messages get two of their own, so that they need not
    wait for collective calls. Made of another `Comm`, it is the same.
    """

    def __new__(cls, comm, messages=None):
        self = super().__new__(cls)
        if isinstance(comm, Comm):
            self.__dict__.update(comm.__dict__)
        elif isinstance(comm, Communicator):
            self._join(comm, (comm.duplicate(), comm.duplicate()) if messages is None else messages)
        else:
            raise TypeError(f"a Comm is made of a communicator, and not of {comm!r}")
        return self

    def __getattr__(self, name):
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}{remedy_for(name)}")

    def _join(self, comm, messages):
        self.shmccl, self._members, self._name = comm, None, ""
        for each in messages:
            each.timeout = comm.timeout
        self._messages = _Messages(*messages)
        _open.add(self._messages)

    @property
    def rank(self):
        return self.shmccl.rank

    @property
    def size(self):
        return self.shmccl.size

    def Get_rank(self):
        return self.shmccl.rank

    def Get_size(self):
        return self.shmccl.size

    def Is_inter(self):
        return False

    def Is_intra(self):
        return True

    is_inter, is_intra = property(Is_inter), property(Is_intra)

    def Get_topology(self):
        return UNDEFINED

    topology = property(lambda self: self.Get_topology())
    is_topo = property(lambda self: self.Get_topology() != UNDEFINED)

    def Get_name(self):
        return self._name

    def Set_name(self, name):
        self._name = name

    name = property(Get_name, Set_name)

    def Get_attr(self, keyval):
        return {TAG_UB: LARGEST_TAG, WTIME_IS_GLOBAL: True}.get(keyval)

    def __eq__(self, other):
        return isinstance(other, Comm) and self._messages is other._messages

    def __hash__(self):
        return hash(self._messages)

    # What is made of it -----------------------------------------------------------------------------------------------

    def _divide(self, color, key, kind, *arguments):
        """Makes a communicator of the ranks that name the same color; None for none.

        Its messages are not a duplicate: a communicator of all ranks has more room for others than one of some. Ranks come
        together first, where messages move that some of them still wait for.
        """
        self.Barrier()
        part, *messages = (self.shmccl.split(color, key) for _ in range(3))
        if part is None:
            return None
        part.timeout = self.shmccl.timeout
        made = kind(part, messages, *arguments)
        if self._members is not None:
            made._members = [self._members[self.shmccl.members.index(member)] for member in part.members]
        return made

    def Split(self, color=0, key=0):
        return self._divide(None if color in (UNDEFINED, None) else color, key, Intracomm)

    def Split_type(self, split_type=COMM_TYPE_SHARED, key=0, info=None):
        """All ranks share memory, so they stay together."""
        return self.Split(UNDEFINED if split_type == UNDEFINED else 0, key)

    def Dup(self, info=None):
        return self._divide(0, self.rank, Intracomm)

    Clone = Dup

    def Dup_with_info(self, info):
        return self.Dup()

    def Get_group(self):
        members = self._members or self.shmccl.members
        return Group(members, members[self.rank])

    group = property(Get_group)

    def Create(self, group):
        """Makes a communicator of a group. All ranks call it, and groups that differ have no rank in common."""
        rank = group.Get_rank()
        return self.Split(UNDEFINED if rank == UNDEFINED else group._members[0], max(rank, 0))

    def Compare(self, other):
        if self == other:
            return IDENT
        return {IDENT: CONGRUENT, SIMILAR: SIMILAR, UNEQUAL: UNEQUAL}[self.group.Compare(other.group)]

    @classmethod
    def Get_parent(cls):
        """No process is started by another one's `Spawn`."""
        return None

    # Its end ----------------------------------------------------------------------------------------------------------

    def Abort(self, errorcode=1):
        """Ends the process, and with it the job."""
        if threading.current_thread() is threading.main_thread():
            self.shmccl.revoke()
            raise SystemExit(errorcode)
        # An exception would end nothing but the thread.
        try:
            self.shmccl.revoke()
            for stream in (sys.stdout, sys.stderr):
                # It may be none, or closed, or a pipe that nobody reads.
                with contextlib.suppress(Exception):
                    stream.flush()
        finally:
            os._exit(errorcode)

    def Free(self):
        """Closes it, when all ranks have come here."""
        self.Barrier()
        self._messages.close()
        _open.discard(self._messages)
        self.shmccl.close()

    Disconnect = Free


class Intracomm(Comm):
    """A communicator of one group, as all are here."""

    def Create_cart(self, dims, periods=None, reorder=False):
        """Numbers the first ranks by places in a grid. All ranks call it."""
        from ._cartesian import Cartcomm, extents

        dims, periods = extents(dims, periods)
        n_places = 1
        for extent in dims:
            n_places *= extent
        if n_places > self.size:
            raise ValueError(f"a grid of {' x '.join(map(str, dims))} has more places than {self.size} ranks")
        return self._divide(0 if self.rank < n_places else None, self.rank, Cartcomm, dims, periods)
