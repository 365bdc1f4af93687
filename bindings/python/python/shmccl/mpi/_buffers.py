"""Buffers as mpi4py takes them: operands of shmccl, and lists that name a part of one and its type."""

from .._core import _Part
from ._constants import BOTTOM, IN_PLACE
from ._datatypes import LETTERS, Derived


def is_list(value):
    return isinstance(value, (list, tuple))


def in_place(spec):
    """Returns whether a call takes this rank's part from where the result goes."""
    return spec is None or spec is IN_PLACE


def _rows(x):
    """Returns what lies in memory in the order of its columns the other way round, and all else as it is."""
    flags = getattr(x, "flags", None)
    in_columns = getattr(flags, "f_contiguous", False) and not getattr(flags, "c_contiguous", True)
    return x.T if in_columns else x


def spelled(spec):
    """Returns object, count, displacement and type of what names a buffer; None for what is not said."""
    if spec is None:
        raise TypeError("None is no buffer on a rank that takes part in a call")
    found = spelled_of_message(spec)
    if isinstance(found[3], Derived):
        raise TypeError("collective calls take no derived types: pass a contiguous copy of what they name")
    return found


def spelled_of_message(spec):
    """Returns the same, where the type may be a derived one."""
    if not is_list(spec):
        return bytearray() if spec is None else _rows(spec), None, None, None
    x, *rest = spec or [None]
    dtype = rest.pop() if rest and isinstance(rest[-1], str) else None
    count = displacement = None
    if rest or not spec:
        if len(rest) > 2 or not spec:
            raise ValueError(f"{spec!r} names no buffer: give [x, count, displacement, type], or less of it")
        if len(rest) == 1 and isinstance(rest[0], tuple) and len(rest[0]) == 2:
            rest = list(rest[0])
        count, displacement = [*rest, None, None][:2]
    return bytearray() if x is None or x is BOTTOM else _rows(x), count, displacement, LETTERS.get(dtype, dtype)


def buffer(spec, n_blocks=1):
    """Returns what calls take for a buffer, and its type. A count is that of each of `n_blocks`."""
    x, count, displacement, dtype = spelled(spec)
    if count is None and displacement is None:
        return x, dtype
    return _Part(x, dtype, displacement or 0, None if count is None else count * n_blocks), dtype


def part(spec):
    """Returns a buffer whose length is known."""
    return _Part(*buffer(spec))


def pieces(x, count, displacement, dtype):
    """Returns the parts, in bytes, that elements of a derived type have in a buffer."""
    if count is None:
        count = _Part(x, "uint8").count // dtype.extent
    begins = [dtype.extent * ((displacement or 0) + number) for number in range(count)]
    return [_Part(x, "uint8", begin + at, length) for begin in begins for at, length in dtype.pieces]


def sent(spec):
    """Returns what a message sends of a buffer: the buffer, or a copy of what a derived type names."""
    x, count, displacement, dtype = found = spelled_of_message(spec)
    if isinstance(dtype, Derived):
        return _Part(b"".join(map(bytes, pieces(*found))), "uint8")
    return _Part(x, dtype, displacement or 0, count)


def blocks(spec, size):
    """Returns a buffer, the counts and the displacements of its blocks for `size` ranks, and its type."""
    x, counts, displacements, dtype = spelled(spec)
    if counts is None:
        counts = _Part(x, dtype).count
        counts = [counts // size + (counts % size > rank) for rank in range(size)]
    counts = [int(count) for count in counts] if hasattr(counts, "__len__") else [int(counts)] * size
    if displacements is None:
        displacements = [sum(counts[:rank]) for rank in range(size)]
    elif not hasattr(displacements, "__len__"):
        displacements = [int(displacements) * rank for rank in range(size)]
    displacements = [int(at) for at in displacements]
    if not len(counts) == len(displacements) == size:
        raise ValueError(f"expected a count and a displacement for each of {size} ranks, not {counts} and {displacements}")
    return x, counts, displacements, dtype
