"""Where the elements of a message go: to a buffer of the program, or to the pickle of an object."""

from .._core import _Part
from .._errors import WrongCountError
from ._buffers import pieces, spelled_of_message
from ._datatypes import Derived
from ._pickling import pickle


class BufferSink:
    """A part of an operand, which may be longer than the message."""

    def __init__(self, part, start, owner):
        self._part, self._start, self._owner = part, start, owner
        self._has = part.count * part.itemsize
        self._excess = None

    def put(self, elements):
        self._note(len(elements))
        self._part.write(elements)

    def room_for(self, length):
        self._note(length)
        if length > self._has:
            # The message has to be taken, and none of it is of use.
            return bytearray(length)
        return _Part(self._owner, "uint8", self._start, length)

    def _note(self, length):
        self._excess = length if length > self._has else None

    def result(self):
        if self._excess is not None:
            raise _too_long(self._excess, self._has)


class PiecesSink:
    """Parts of an operand that need not follow each other. Elements go there when all have come."""

    def __init__(self, parts):
        self._parts, self._bytes = parts, b""

    def put(self, elements):
        self._bytes = elements

    def room_for(self, length):
        self._bytes = bytearray(length)
        return self._bytes

    def result(self):
        view, has = memoryview(self._bytes), sum(part.count for part in self._parts)
        if len(view) > has:
            raise _too_long(len(view), has)
        for part in self._parts:
            part.write(view[: part.count])
            view = view[part.count :]


class ObjectSink:
    """The pickle of an object, in memory of its own. Nothing stands for None."""

    def __init__(self):
        self._bytes = b""

    def put(self, elements):
        self._bytes = elements

    def room_for(self, length):
        self._bytes = bytearray(length)
        return self._bytes

    def result(self):
        return pickle.loads(self._bytes) if self._bytes else None


def _too_long(length, has):
    return WrongCountError(f"a message of {length} bytes was received into a buffer of {has} bytes: pass a longer one")


def sink(spec):
    """Returns where a message goes that is received into a buffer."""
    x, count, displacement, dtype = found = spelled_of_message(spec)
    if isinstance(dtype, Derived):
        return PiecesSink(pieces(*found))
    first = displacement or 0
    part = _Part(x, dtype, first, count)
    return BufferSink(part, first * part.itemsize, x)
