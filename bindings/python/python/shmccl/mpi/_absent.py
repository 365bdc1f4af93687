"""What of mpi4py is not there: the begins of its names, in words, and the remedy. docs/python.md has the same table."""

ABSENT = [
    ("`Create_dynamic`, `Attach`, `Detach`", "windows over memory outside of the heap", "`Win.Allocate` and `win.tomemory()`"),
    ("`File`, `MODE_`, `SEEK_`", "files of all ranks", "`os.pread` and `os.pwrite` at places of each rank's own"),
    (
        "`Spawn`, `Accept`, `Connect`, `Join`, `Open_port`, `Lookup_name`", "processes that join later",
        "`comm.shmccl.grow(size, id)` and `Communicator.join(id)`",
    ),
    ("`Intercomm`, `Create_intercomm`", "communicators of two groups", "one communicator, and `Split`"),
    (
        "`Create_group`, `Create_from_group`, `Session`", "communicators without a parent",
        "`Create` and `Split`, which all ranks of the parent call",
    ),
    (
        "`Create_graph`, `Create_dist_graph`, `Graphcomm`, `Distgraphcomm`", "graphs",
        "`Create_cart`, or neighbours that the program knows",
    ),
    ("`Neighbor_`, `neighbor_`, `Ineighbor_`", "collective calls of neighbours", "`Sendrecv` with the ranks of `Shift`"),
    ("`Alltoallw`, `Ialltoallw`", "a type for each rank", "`Isend` and `Irecv`, which take derived types"),
    ("`Psend_init`, `Precv_init`", "messages in partitions", "one `Isend` for each partition"),
    (
        "`Pack`, `Unpack`, `Create_f90_`, `Create_darray`", "packed and distributed types",
        "`Create_subarray`, `Create_indexed`, `Create_struct`",
    ),
    (
        "`DOUBLE_INT`, `FLOAT_INT`, `LONG_INT`, `TWOINT`, `SHORT_INT`, `LONG_DOUBLE`", "pairs, and long doubles",
        "`allreduce((value, place), MPI.MINLOC)`",
    ),
    ("`Info`, `Get_info`, `Set_info`", "hints", "`MPI.INFO_NULL`"),
    (
        "`Errhandler`, `ERRORS_`, `ERR_`, `Get_errhandler`, `Set_errhandler`", "error handlers and codes",
        "`MPI.Exception`, which is `shmccl.Error`, and its classes",
    ),
    ("`Create_keyval`, `Set_attr`, `Delete_attr`", "attributes of the program's own", "attributes of Python"),
    ("`Grequest`", "requests of the program's own", "`concurrent.futures`"),
    ("`py2f`, `f2py`, `handle`", "handles of a library in C or Fortran", "the functions of `shmccl.h`"),
]  # fmt: skip


def remedy_for(name):
    """Returns what a message about a missing name ends with."""
    for names, what, remedy in ABSENT:
        if any(name.startswith(begin) for begin in names.replace("`", "").split(", ")):
            return f": shmccl has no {what}; use {remedy.replace('`', '')}"
    return ""
