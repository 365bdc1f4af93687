"""Where the elements of a message go: to a buffer of the program, or to the pickle of an object."""

from .._core import _Part
from .._errors import WrongCountError
from ._buffers import pieces, spelled_of_message
from ._datatypes import Derived
from ._pickling import pickle


def place(spec):
    """Returns the operand for a message that is received into a buffer, and what is called with its elements at the end.

    Parts of a buffer that need not follow each other are None here: elements have memory of their own until they have come.
    """
    x, count, displacement, dtype = found = spelled_of_message(spec)
    if not isinstance(dtype, Derived):
        return _Part(x, dtype, displacement or 0, count), None
    parts = pieces(*found)
    return None, lambda elements: _spread(elements, parts)


def _spread(elements, parts):
    """Writes elements to the parts of a buffer."""
    view, has = memoryview(elements), sum(part.count for part in parts)
    if len(view) > has:
        text = f"a message of {len(view)} bytes was received into a buffer of {has} bytes: pass a longer one"
        raise WrongCountError(text)
    for part in parts:
        part.write(view[: part.count])
        view = view[part.count :]


def unpickled(elements):
    """Returns the object whose pickle was received. Nothing stands for None."""
    return pickle.loads(elements) if elements else None
