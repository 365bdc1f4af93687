"""Numbers and names that stand for something, as mpi.h has them."""


class Named:
    """A value that is only equal to itself, and prints its name."""

    def __init__(self, name):
        self._name = name

    def __repr__(self):
        return self._name

    def __reduce__(self):
        return self._name


IN_PLACE, BOTTOM = Named("IN_PLACE"), Named("BOTTOM")
ANY_SOURCE, ANY_TAG, PROC_NULL, ROOT, UNDEFINED = -1, -1, -2, -3, -32766
COMM_TYPE_SHARED = 0
IDENT, CONGRUENT, SIMILAR, UNEQUAL = range(4)
SUCCESS = 0
THREAD_SINGLE, THREAD_FUNNELED, THREAD_SERIALIZED, THREAD_MULTIPLE = range(4)
CART, GRAPH, DIST_GRAPH = 1, 2, 3
TAG_UB, HOST, IO, WTIME_IS_GLOBAL, UNIVERSE_SIZE, APPNUM = range(6)
# The largest tag of a message, which Comm.Get_attr(TAG_UB) returns.
LARGEST_TAG = 2**31 - 1
# A buffered send needs no room of the program's own.
BSEND_OVERHEAD = 0
MAX_PROCESSOR_NAME, MAX_ERROR_STRING, MAX_OBJECT_NAME = 255, 1023, 127
INFO_NULL = INFO_ENV = None
COMM_NULL = GROUP_NULL = DATATYPE_NULL = OP_NULL = WIN_NULL = None
WIN_BASE, WIN_SIZE, WIN_DISP_UNIT, WIN_CREATE_FLAVOR, WIN_MODEL = range(10, 15)
WIN_FLAVOR = WIN_CREATE_FLAVOR
WIN_FLAVOR_CREATE, WIN_FLAVOR_ALLOCATE, WIN_FLAVOR_DYNAMIC, WIN_FLAVOR_SHARED = range(1, 5)
WIN_SEPARATE, WIN_UNIFIED = 1, 2
LOCK_EXCLUSIVE, LOCK_SHARED = 1, 2
MODE_NOCHECK, MODE_NOSTORE, MODE_NOPUT, MODE_NOPRECEDE, MODE_NOSUCCEED = 1, 2, 4, 8, 16

__all__ = [name for name in dir() if name.isupper()]
