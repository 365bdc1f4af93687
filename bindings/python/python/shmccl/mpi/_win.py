"""Windows: memory of each rank of a communicator, which the others read and change without its help.

A verb is done when it returns, inside an epoch or outside of one. So `Flush` and `Sync` only order what processors hold
back. Epochs keep others away (`Lock`), or wait for them (`Fence`, `Post` and `Start`, `Complete` and `Wait`).

Each rank has words beside its memory, which are no part of the window:

| words | what |
|---|---|
| 1 | lock of accumulations that are no atomics of the engine |
| one for each rank | locks: a shared one takes the word of its rank, and an exclusive one takes all |
| one for each rank | how often that rank has posted to this one |
| 1 | how often ranks have completed towards this one |
"""

import time
from collections import namedtuple

from .._core import Lock as _Lock
from .._core import _Part
from .._errors import Error, InvalidArgumentError, InvalidRankError, OutOfRangeError, WrongCountError
from . import _sinks
from ._absent import remedy_for
from ._buffers import is_list, part, sent, spelled_of_message
from ._constants import (
    BOTTOM,
    LOCK_EXCLUSIVE,
    LOCK_SHARED,
    PROC_NULL,
    WIN_BASE,
    WIN_CREATE_FLAVOR,
    WIN_DISP_UNIT,
    WIN_FLAVOR_ALLOCATE,
    WIN_FLAVOR_CREATE,
    WIN_FLAVOR_SHARED,
    WIN_MODEL,
    WIN_SIZE,
    WIN_UNIFIED,
)
from ._datatypes import Derived, typed
from ._ops import BAND, BOR, BXOR, NO_OP, REPLACE, SUM, Op
from ._requests import Request

# The memory of a rank: bytes from an offset on in the heap of `owner`.
_Memory = namedtuple("_Memory", "owner offset size unit")

# The atomics of the engine: plain, and returning what was there.
_WHOLE = {"int32", "uint32", "int64", "uint64"}
_ATOMIC = _WHOLE | {"float32", "float64"}
_VERBS = {REPLACE: ("set", "swap"), NO_OP: (None, "fetch"), SUM: ("add", "fetch_add")}
_BIT_VERBS = {BAND: ("and", "fetch_and"), BOR: ("or", "fetch_or"), BXOR: ("xor", "fetch_xor")}
# What else combines elements, by NumPy's names.
_FUNCTIONS = {
    "sum": "add", "prod": "multiply", "min": "minimum", "max": "maximum", "band": "bitwise_and", "bor": "bitwise_or",
    "bxor": "bitwise_xor", "LAND": "logical_and", "LOR": "logical_or", "LXOR": "logical_xor",
}  # fmt: skip

# How often a wait looks at once, and its pauses behind that, in seconds.
_POLLS, _PAUSE = 200, 1e-4

# Windows that were not freed: peers may still write into them.
_open = set()


class Win:
    """A window. `Allocate`, `Allocate_shared` and `Create` make one; all ranks of `comm` call them."""

    def __init__(self, win=None):
        if win is not None:
            self.__dict__ = win.__dict__

    def __getattr__(self, name):
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}{remedy_for(name)}")

    @classmethod
    def Allocate(cls, size, disp_unit=1, info=None, comm=None):
        def make(comm):
            array = comm.shmccl.zeros(size, "uint8", local=True)
            return array, array.offset, size

        return cls._made(comm, disp_unit, WIN_FLAVOR_ALLOCATE, make)

    @classmethod
    def Allocate_shared(cls, size, disp_unit=1, info=None, comm=None):
        """Makes a window whose memory of all ranks is one piece, which the first rank keeps."""
        before = []

        def make(comm):
            before[:] = comm.allgather(int(size))
            array = comm.shmccl.zeros(0 if comm.rank else sum(before), "uint8", local=True)
            return array, array.offset, size

        self = cls._made(comm, disp_unit, WIN_FLAVOR_SHARED, make)
        offset = self._memory[0].offset
        self._memory = [
            _Memory(0, offset + sum(before[:rank]), memory.size, memory.unit) for rank, memory in enumerate(self._memory)
        ]
        return self

    @classmethod
    def Create(cls, memory, disp_unit=1, info=None, comm=None):
        """Makes a window of an array of the heap, or a part of one. `None` is no memory."""

        def make(comm):
            is_none = memory is None or memory is BOTTOM
            return (None, 0, 0) if is_none else (memory, *comm.shmccl._place(memory))

        return cls._made(comm, disp_unit, WIN_FLAVOR_CREATE, make)

    @classmethod
    def _made(cls, comm, disp_unit, flavor, make):
        from ._environment import own

        self, failure = cls(), None
        self._comm = comm = own() if comm is None else comm
        self._flavor, self._name, self._held, self._exposed = flavor, "", {}, 0
        self._n_posts, self._n_completions, self._started = [0] * comm.size, 0, []
        try:
            self._array, offset, size = make(comm)
            self._own_words = comm.shmccl.zeros(2 * comm.size + 2, "uint64", local=True)
            told = offset, size, int(disp_unit), self._own_words.offset
        except (Error, TypeError, ValueError) as error:
            failure, told = error, str(error)
        all_told = comm.allgather(told)
        if failure is not None:
            raise failure
        for rank, told in enumerate(all_told):
            if isinstance(told, str):
                raise Error(f"rank {rank} has no memory for a window: {told}")
        self._memory = [_Memory(rank, *told[:3]) for rank, told in enumerate(all_told)]
        self._words = [words for *_, words in all_told]
        _open.add(self)
        return self

    def _check(self):
        if not self:
            raise InvalidArgumentError("the window was freed, or never made")

    def Free(self):
        """Lets go of the memory, when all ranks have come here."""
        self._check()
        self._comm.Barrier()
        _open.discard(self)
        self._array = self._own_words = None

    free = Free

    def __bool__(self):
        return self in _open

    def __eq__(self, other):
        return (isinstance(other, Win) and self.__dict__ is other.__dict__) or (other is None and not self)

    def __hash__(self):
        return id(self.__dict__)

    # What it is -------------------------------------------------------------------------------------------------------

    def tomemory(self):
        return self._view_of(self._comm.rank)

    def __buffer__(self, flags):
        return self.tomemory()

    def Shared_query(self, rank):
        """Returns the memory of a rank, or of the first that has any, and its displacement unit."""
        if rank == PROC_NULL:
            rank = next((rank for rank, memory in enumerate(self._memory) if memory.size), 0)
        return self._view_of(rank), self._of(rank).unit

    def _view_of(self, rank):
        owner, offset, size, _ = self._of(rank)
        return memoryview(self._comm.shmccl._array_at(owner, offset, size, self._own_words))

    def Get_attr(self, keyval):
        own = self._of(self._comm.rank)
        if keyval == WIN_BASE:
            return self._comm.shmccl._array_at(own.owner, own.offset, own.size, self._own_words).__array_interface__["data"][0]
        known = {WIN_SIZE: own.size, WIN_DISP_UNIT: own.unit, WIN_CREATE_FLAVOR: self._flavor, WIN_MODEL: WIN_UNIFIED}
        return known.get(keyval)

    attrs = property(lambda self: tuple(self.Get_attr(key) for key in (WIN_BASE, WIN_SIZE, WIN_DISP_UNIT)))
    flavor = property(lambda self: self._flavor)
    model = property(lambda self: WIN_UNIFIED)

    def Get_group(self):
        return self._comm.Get_group()

    group = property(Get_group)
    group_size = property(lambda self: self._comm.size)
    group_rank = property(lambda self: self._comm.rank)

    def Get_name(self):
        return self._name

    def Set_name(self, name):
        self._name = name

    name = property(Get_name, Set_name)

    def _of(self, rank):
        self._check()
        if not 0 <= rank < len(self._memory):
            raise InvalidRankError(f"rank {rank} has no part of a window of {len(self._memory)} ranks", rank=rank)
        return self._memory[rank]

    def _at(self, rank, displacement, begin, dtype, count):
        """Returns a view of elements, from so many bytes behind a displacement on."""
        owner, offset, size, unit = self._of(rank)
        begin += displacement * unit
        end = begin + count * typed(dtype).size
        if begin < 0 or end > size:
            raise OutOfRangeError(f"bytes {begin} to {end} of the window of rank {rank}, which has {size}")
        return self._comm.shmccl._at(owner, offset + begin, dtype, count)

    # Puts and gets ----------------------------------------------------------------------------------------------------

    def Put(self, origin, target_rank, target=None):
        if target_rank != PROC_NULL:
            source = sent(origin)
            for view, begin in self._moved(origin, target_rank, target, source.count * source.itemsize):
                view.put(_Part(source, "uint8", begin, view.size))

    def Get(self, origin, target_rank, target=None):
        if target_rank == PROC_NULL:
            return
        is_derived = isinstance(spelled_of_message(origin)[3], Derived)
        place = sent(origin) if is_derived else part(origin)
        length = place.count * place.itemsize
        got = bytearray(length) if is_derived else place
        for view, begin in self._moved(origin, target_rank, target, length):
            view.get(_Part(got, "uint8", begin, view.size))
        if is_derived:
            _sinks.place(origin)[1](got)

    def _moved(self, origin, rank, target, length):
        """Returns the views of bytes that a target is, each with its begin among the bytes that are moved."""
        x, count, _, dtype = spelled_of_message(origin)
        if dtype is None:
            dtype = _Part(x).dtype
        if count is None:
            count = length // (typed(dtype).size or 1)
        displacement, count, kind = _target(target, count, dtype)
        runs = [(0, kind.size * count)]
        if isinstance(kind, Derived):
            runs = [(kind.extent * number + at, run) for number in range(count) for at, run in kind.pieces]
        if sum(run for _, run in runs) != length:
            raise WrongCountError(f"the target has {sum(run for _, run in runs)} bytes, and the buffer {length}")
        begins = [sum(run for _, run in runs[:number]) for number in range(len(runs))]
        views = [self._at(rank, displacement, at, "uint8", run) for at, run in runs]
        return zip(views, begins, strict=True)

    # Accumulations ----------------------------------------------------------------------------------------------------

    def Accumulate(self, origin, target_rank, target=None, op=SUM):
        self._combine(part(origin), None, target_rank, target, op)

    def Get_accumulate(self, origin, result, target_rank, target=None, op=SUM):
        result = part(result)
        self._combine(result if op == NO_OP else part(origin), result, target_rank, target, op)

    def Fetch_and_op(self, origin, result, target_rank, target_disp=0, op=SUM):
        result = _first(result)
        self._combine(result if op == NO_OP else _first(origin), result, target_rank, target_disp, op)

    def Compare_and_swap(self, origin, compare, result, target_rank, target_disp=0):
        if target_rank == PROC_NULL:
            return
        new, expected, result = _first(origin), _first(compare), _first(result)
        if new.dtype.startswith(("float", "bfloat", "complex")):
            raise TypeError(f"Compare_and_swap takes whole numbers, not {new.dtype}")
        view = self._at(target_rank, target_disp, 0, new.dtype, 1)
        if new.dtype in _WHOLE:
            result.write(view.atomic_compare_swap(expected, new))
            return
        with self._lock(target_rank, 0):
            found = view.get()
            result.write(found)
            if found.tobytes() == bytes(expected):
                view.put(new)

    def _combine(self, given, result, rank, target, op):
        """Changes elements by an operator, each by itself, and writes down what they were."""
        if rank == PROC_NULL or (op == NO_OP and result is None):
            return
        if not isinstance(op, Op) or not op.Is_predefined():
            raise TypeError(f"accumulations take operators of MPI, and not {op!r}")
        displacement, count, dtype = _target(target, given.count, given.dtype)
        if isinstance(dtype, Derived):
            raise TypeError("accumulations take no derived types")
        view = self._at(rank, displacement, 0, dtype, count)
        if given.dtype != dtype or given.count != count:
            raise WrongCountError(f"the buffer has {given.count} of {given.dtype}, and the target {count} of {dtype}")
        verbs = _VERBS.get(op, _BIT_VERBS.get(op) if dtype in _WHOLE else None)
        if verbs is None or dtype not in _ATOMIC:
            self._combine_locked(view, given, result, rank, op)
        elif result is None:
            getattr(view, f"atomic_{verbs[0]}")(given)
        else:
            result.write(getattr(view, f"atomic_{verbs[1]}")(*() if op == NO_OP else (given,)))

    def _combine_locked(self, view, given, result, rank, op):
        import numpy

        with self._lock(rank, 0):
            found = view.get()
            new = found if op == NO_OP else numpy.frombuffer(bytes(given), found.dtype)
            if op not in (REPLACE, NO_OP):
                if op not in _FUNCTIONS:
                    raise TypeError(f"accumulations do not take {op}")
                new = getattr(numpy, _FUNCTIONS[op])(found, new).astype(found.dtype)
            if result is not None:
                result.write(found)
            if op != NO_OP:
                # Whole elements, for whoever fetches them meanwhile.
                (view.atomic_set if view.dtype in _ATOMIC else view.put)(new)

    # Requests: all is done at once ------------------------------------------------------------------------------------

    def Rput(self, origin, target_rank, target=None):
        self.Put(origin, target_rank, target)
        return Request._begun()

    def Rget(self, origin, target_rank, target=None):
        self.Get(origin, target_rank, target)
        return Request._begun()

    def Raccumulate(self, origin, target_rank, target=None, op=SUM):
        self.Accumulate(origin, target_rank, target, op)
        return Request._begun()

    def Rget_accumulate(self, origin, result, target_rank, target=None, op=SUM):
        self.Get_accumulate(origin, result, target_rank, target, op)
        return Request._begun()

    # Locks ------------------------------------------------------------------------------------------------------------

    def _lock(self, rank, number):
        return _Lock(self._word(rank, number))

    def _word(self, rank, number):
        self._check()
        return self._comm.shmccl._at(rank, self._words[rank] + 8 * number, "uint64", 1)

    def Lock(self, rank, lock_type=LOCK_EXCLUSIVE, assertion=0):
        if rank == PROC_NULL:
            return
        self._of(rank)
        if rank in self._held or lock_type not in (LOCK_EXCLUSIVE, LOCK_SHARED):
            raise InvalidArgumentError(f"this rank holds rank {rank} already, or {lock_type} is no type of lock")
        numbers = range(self._comm.size) if lock_type == LOCK_EXCLUSIVE else [self._comm.rank]
        held = []
        try:
            for number in numbers:
                lock = self._lock(rank, 1 + number)
                _until(lambda lock=lock: lock.acquire(blocking=False))
                held.append(lock)
        except BaseException:
            _release(held)
            raise
        self._held[rank] = held

    def Unlock(self, rank):
        if rank == PROC_NULL:
            return
        if rank not in self._held:
            raise InvalidArgumentError(f"this rank does not hold rank {rank}")
        self.Flush_all()
        _release(self._held.pop(rank))

    def Lock_all(self, assertion=0):
        for rank in range(self._comm.size):
            self.Lock(rank, LOCK_SHARED)

    def Unlock_all(self):
        for rank in range(self._comm.size):
            self.Unlock(rank)

    # Order ------------------------------------------------------------------------------------------------------------

    def Flush_all(self):
        self._comm.shmccl.quiet()

    Sync = Flush_local_all = Flush_all

    def Flush(self, rank):
        self._comm.shmccl.quiet()

    Flush_local = Flush

    def Fence(self, assertion=0):
        """Returns when all ranks have come here, with all that they did before."""
        self._check()
        self._comm.shmccl.quiet()
        self._comm.Barrier()

    def _ranks(self, group):
        return group.Translate_ranks(None, self.Get_group())

    def Post(self, group, assertion=0):
        """Lets the ranks of a group begin with this one's memory."""
        self._exposed = len(self._ranks(group))
        for rank in self._ranks(group):
            self._word(rank, 1 + self._comm.size + self._comm.rank).signal_op(1, "add")

    def Start(self, group, assertion=0):
        """Waits until all ranks of a group have posted."""
        self._started = self._ranks(group)
        for rank in self._started:
            self._n_posts[rank] += 1
            self._until_reached(1 + self._comm.size + rank, self._n_posts[rank])

    def Complete(self):
        """Tells the ranks that have posted that this one is done."""
        started, self._started = self._started, []
        for rank in started:
            self._word(rank, 1 + 2 * self._comm.size).signal_op(1, "add")

    def Wait(self):
        """Waits until all ranks that this one has posted to are done."""
        self._until_reached(1 + 2 * self._comm.size, self._n_completions + self._exposed)
        self._n_completions, self._exposed = self._n_completions + self._exposed, 0
        return True

    def Test(self):
        return self._has_reached(1 + 2 * self._comm.size, self._n_completions + self._exposed) and self.Wait()

    def _has_reached(self, number, value):
        return self._comm.shmccl.test(self._word(self._comm.rank, number), ">=", value)

    def _until_reached(self, number, value):
        _until(lambda: self._has_reached(number, value))


def _until(is_done):
    """Waits until a word is as `is_done` wants it. Messages for receives that were posted come meanwhile."""
    n_polls = 0
    while not is_done():
        # A request that was never begun: its test takes what has come for others.
        Request().test()
        n_polls += 1
        if n_polls > _POLLS:
            time.sleep(_PAUSE)


def _release(locks):
    for lock in reversed(locks):
        lock.release()


def _first(spec):
    """Returns the first element of a buffer."""
    return _Part(part(spec), None, 0, 1)


def _target(target, count, dtype):
    """Returns displacement, count and type of a target, of which those of the buffer are taken unless it says them."""
    given = list(target) if is_list(target) else [0 if target is None else target]
    if len(given) > 3 or not all(isinstance(number, int) or hasattr(number, "__index__") for number in given[:2]):
        raise ValueError(f"{target!r} names no target: give [displacement, count, type], or less of it")
    displacement, count, dtype = [*given, *[0, count, dtype][len(given) :]]
    return int(displacement), int(count), typed(dtype)
