"""Types of elements: those of MPI that the engine has, by the names of mpi4py, and those that are made of them.

A derived type is known by where its bytes lie. Messages take one, and move a copy of its bytes.
"""

ORDER_C, ORDER_FORTRAN = 56, 57


class Datatype(str):
    """A type of elements: its name in shmccl, with its size."""

    lb = 0

    @property
    def size(self):
        return 16 if self == "complex128" else 1 if self == "bool" else int("".join(filter(str.isdigit, self))) // 8

    @property
    def extent(self):
        return self.size

    @property
    def ub(self):
        return self.lb + self.extent

    @property
    def pieces(self):
        """Where its bytes lie: begins and lengths."""
        return [(0, self.size)]

    @property
    def alignment(self):
        return self.size

    def Get_size(self):
        return self.size

    def Get_extent(self):
        return self.lb, self.extent

    def Get_true_extent(self):
        least = min(at for at, _ in self.pieces)
        return least, max(at + length for at, length in self.pieces) - least

    def Commit(self):
        return self

    def Free(self):
        pass

    def Dup(self):
        return self

    # What is made of it -----------------------------------------------------------------------------------------------

    def Create_contiguous(self, count):
        return self.Create_hindexed([count], [0])

    def Create_vector(self, count, blocklength, stride):
        return self.Create_hvector(count, blocklength, stride * self.extent)

    def Create_hvector(self, count, blocklength, stride):
        return self.Create_hindexed([blocklength] * count, [stride * at for at in range(count)])

    def Create_indexed(self, blocklengths, displacements):
        return self.Create_hindexed(blocklengths, [at * self.extent for at in displacements])

    def Create_indexed_block(self, blocklength, displacements):
        return self.Create_indexed([blocklength] * len(displacements), displacements)

    def Create_hindexed_block(self, blocklength, displacements):
        return self.Create_hindexed([blocklength] * len(displacements), displacements)

    def Create_hindexed(self, blocklengths, displacements):
        return Derived.of(blocklengths, displacements, [self] * len(blocklengths), 1)

    @classmethod
    def Create_struct(cls, blocklengths, displacements, datatypes):
        alignment = max((kind.alignment for kind in datatypes), default=1)
        return Derived.of(blocklengths, displacements, datatypes, alignment)

    def Create_subarray(self, sizes, subsizes, starts, order=ORDER_C):
        """Makes a type of a block of an array, whose extent is the whole array."""
        dims = list(zip(sizes, subsizes, starts, strict=True))
        kind, length = self, self.extent
        for size, subsize, start in dims if order == ORDER_FORTRAN else reversed(dims):
            kind = kind.Create_hvector(subsize, 1, length).moved(start * length)
            length *= size
        return kind.Create_resized(0, length)

    def Create_resized(self, lb, extent):
        return Derived(self.pieces, lb, extent, self.alignment)

    def moved(self, by):
        return Derived([(at + by, length) for at, length in self.pieces], self.lb, self.extent, self.alignment)


class Derived(Datatype):
    """A type whose bytes need not follow each other."""

    def __new__(cls, pieces, lb, extent, alignment):
        self = super().__new__(cls, f"derived type of {sum(length for _, length in pieces)} bytes")
        self._pieces, self._lb, self._extent, self._alignment = pieces, lb, extent, alignment
        return self

    @classmethod
    def of(cls, counts, displacements, kinds, padding):
        """Makes one of so many elements of each kind from each displacement on, in bytes."""
        pieces, ends = [], [0]
        for count, at, kind in zip(counts, displacements, kinds, strict=True):
            for begin in (int(at) + kind.extent * number for number in range(int(count))):
                _extend(pieces, [(begin + within, length) for within, length in kind.pieces])
                ends += [begin + kind.lb, begin + kind.ub]
        lb, ub = min(ends), max(ends)
        return cls(pieces, lb, -(-(ub - lb) // padding) * padding, max((kind.alignment for kind in kinds), default=1))

    size = property(lambda self: sum(length for _, length in self._pieces))
    lb = property(lambda self: self._lb)
    extent = property(lambda self: self._extent)
    pieces = property(lambda self: self._pieces)
    alignment = property(lambda self: self._alignment)

    def __eq__(self, other):
        return self is other

    __hash__ = object.__hash__


def _extend(pieces, more):
    """Adds pieces, and joins those that follow each other."""
    for begin, length in more:
        if pieces and sum(pieces[-1]) == begin:
            pieces[-1] = pieces[-1][0], pieces[-1][1] + length
        else:
            pieces.append((begin, length))


BYTE = CHAR = UNSIGNED_CHAR = UINT8_T = PACKED = CHARACTER = Datatype("uint8")
SIGNED_CHAR = INT8_T = INTEGER1 = Datatype("int8")
SHORT = INT16_T = INTEGER2 = Datatype("int16")
UNSIGNED_SHORT = UINT16_T = Datatype("uint16")
INT = INTEGER = INT32_T = INTEGER4 = Datatype("int32")
UNSIGNED = UNSIGNED_INT = UINT32_T = Datatype("uint32")
LONG = LONG_LONG = INT64_T = AINT = OFFSET = COUNT = INTEGER8 = Datatype("int64")
UNSIGNED_LONG = UNSIGNED_LONG_LONG = UINT64_T = Datatype("uint64")
FLOAT = REAL = REAL4 = Datatype("float32")
DOUBLE = DOUBLE_PRECISION = REAL8 = Datatype("float64")
COMPLEX = FLOAT_COMPLEX = C_FLOAT_COMPLEX = C_COMPLEX = COMPLEX8 = Datatype("complex64")
DOUBLE_COMPLEX = C_DOUBLE_COMPLEX = COMPLEX16 = Datatype("complex128")
BOOL = C_BOOL = CXX_BOOL = Datatype("bool")

__all__ = ["Datatype", "ORDER_C", "ORDER_FORTRAN", *(name for name, kind in list(vars().items()) if isinstance(kind, Datatype))]
# The letters by which mpi4py and array.array name types.
LETTERS = {"b": "int8", "B": "uint8", "h": "int16", "H": "uint16", "i": "int32", "I": "uint32", "l": "int64", "L": "uint64"}
LETTERS |= {"q": "int64", "Q": "uint64", "e": "float16", "f": "float32", "d": "float64", "F": "complex64", "D": "complex128"}
LETTERS |= {"?": "bool", "c": "uint8"}


def typed(dtype):
    """Returns a type with its size, by its name or letter."""
    return dtype if isinstance(dtype, Datatype) else Datatype(LETTERS.get(dtype, dtype))
