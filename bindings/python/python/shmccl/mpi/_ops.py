"""Operators of reductions: those of the engine, and those that Python computes."""

import contextlib
import inspect
import operator as _operator
import sys
from array import array

from .._errors import WrongCountError
from ._buffers import part
from ._datatypes import typed


class Op(str):
    """An operator. Its text is the engine's name for it; of one that the engine lacks, it is no name there."""

    def __new__(cls, name, function, is_commutative=True, in_engine=True):
        self = super().__new__(cls, name)
        self._function, self._is_commutative, self.in_engine = function, is_commutative, in_engine
        self._is_created, self._takes_type = False, False
        return self

    def __call__(self, x, y):
        return self._function(x, y, None) if self._takes_type else self._function(x, y)

    def __reduce__(self):
        if self._is_created:
            return Op.Create, (self._function, self._is_commutative)
        return _named, (str(self),)

    @classmethod
    def Create(cls, function, commute=False):
        """Makes one of a function of two objects and None, or of two buffers and their type, which writes the second."""
        self = cls(getattr(function, "__name__", "function"), function, commute, in_engine=False)
        self._is_created = True
        with contextlib.suppress(ValueError, TypeError):
            kinds = [parameter.kind for parameter in inspect.signature(function).parameters.values()]
            self._takes_type = kinds[2:] != [] or inspect.Parameter.VAR_POSITIONAL in kinds
        return self

    def Free(self):
        pass

    def Is_commutative(self):
        return self._is_commutative

    def Is_predefined(self):
        return not self._is_created

    is_commutative, is_predefined = property(Is_commutative), property(Is_predefined)

    def Reduce_local(self, inbuf, inoutbuf):
        """Combines two buffers of this rank, and leaves the result in the second."""
        before, behind = part(inbuf), part(inoutbuf)
        if before.count != behind.count:
            raise WrongCountError(f"{before.count} and {behind.count} elements cannot be combined")
        result = bytearray(bytes(behind))
        self.combine(bytes(before), result, behind.dtype)
        behind.write(result)

    def combine(self, before, behind, dtype):
        """Combines bytes of elements, those of ranks `before` with those `behind`, and leaves the result in the latter."""
        if self._is_created:
            self._function(memoryview(before), memoryview(behind), typed(dtype))
            return
        if dtype not in _PACKED:
            raise TypeError(f"{self} does not combine elements of {dtype}; reduce them as objects, by the lower-case calls")
        pairs = zip(_elements(before, dtype), _elements(behind, dtype), strict=True)
        results = [self._function(x, y) for x, y in pairs]
        if dtype.startswith("complex"):
            results = [half for result in results for half in (result.real, result.imag)]
        memoryview(behind).cast("B")[:] = _bytes_of(results, dtype)


def fold(op, rows, dtype):
    """Combines the bytes of ranks in their order."""
    first, *others = rows
    for row in others:
        op.combine(first, row, dtype)
        first = row
    return first


def fold_objects(op, objects):
    """Combines objects of ranks in their order."""
    first, *others = objects
    for other in others:
        first = op(first, other)
    return first


# The letters by which struct and memoryview name types.
_PACKED = {"int8": "b", "uint8": "B", "int16": "h", "uint16": "H", "int32": "i", "uint32": "I", "int64": "q", "uint64": "Q"}
_PACKED |= {"float32": "f", "float64": "d", "bool": "?", "complex64": "f", "complex128": "d"}


def _elements(data, dtype):
    numbers = memoryview(data).cast(_PACKED[dtype])
    return map(complex, numbers[::2], numbers[1::2]) if dtype.startswith("complex") else numbers


def _bytes_of(results, dtype):
    """Returns numbers as elements of a type: integers without what goes beyond it, and floats beyond it as infinite."""
    if dtype == "bool":
        return bytes(map(bool, results))
    letter = _PACKED[dtype]
    if letter in "fd":
        return array(letter, results).tobytes()
    size = array(letter).itemsize
    return b"".join((result % (1 << 8 * size)).to_bytes(size, sys.byteorder) for result in results)


def is_folded(op, spec):
    """Returns whether the engine has no such operator for the elements of a buffer."""
    if isinstance(op, Op) and not op.in_engine:
        return True
    return op == "prod" and part(spec).dtype.startswith("complex")


def _least(x, y):
    """Returns the lesser value with its place, and the lower place of two equal values."""
    return x if x[0] < y[0] else y if y[0] < x[0] else (x[0], min(x[1], y[1]))


def _largest(x, y):
    return x if x[0] > y[0] else y if y[0] > x[0] else (x[0], min(x[1], y[1]))


SUM, PROD = Op("sum", _operator.add), Op("prod", _operator.mul)
MIN, MAX = Op("min", lambda x, y: min(x, y)), Op("max", lambda x, y: max(x, y))
BAND, BOR, BXOR = Op("band", _operator.and_), Op("bor", _operator.or_), Op("bxor", _operator.xor)
LAND = Op("LAND", lambda x, y: bool(x) and bool(y), in_engine=False)
LOR = Op("LOR", lambda x, y: bool(x) or bool(y), in_engine=False)
LXOR = Op("LXOR", lambda x, y: bool(x) != bool(y), in_engine=False)
MINLOC, MAXLOC = Op("MINLOC", _least, in_engine=False), Op("MAXLOC", _largest, in_engine=False)
# For windows: the former is what is there.
REPLACE, NO_OP = Op("REPLACE", lambda x, y: y, in_engine=False), Op("NO_OP", lambda x, y: x, in_engine=False)
_NAMED = {str(op): op for op in (SUM, PROD, MIN, MAX, BAND, BOR, BXOR, LAND, LOR, LXOR, MINLOC, MAXLOC, REPLACE, NO_OP)}


def _named(name):
    return _NAMED[name]


def taken(op):
    """Returns an operator of objects, by whatever names it."""
    return _NAMED.get(op, op) if isinstance(op, str) and not isinstance(op, Op) else op
