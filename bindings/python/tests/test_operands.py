"""Each way to read an operand sees type, byte order, steps, length and write permission alike."""

import array
import ctypes
import datetime

import ml_dtypes
import numpy as np
import pytest
import shmccl
from test_collectives import on_ranks

try:
    import torch
except ImportError:
    torch = None


class Interface:
    """Lends an array by `__array_interface__` alone, with its steps written out."""

    def __init__(self, x, **changed):
        self.x = x
        self.__array_interface__ = {**x.__array_interface__, "strides": x.strides, **changed}

    @property
    def dtype(self):
        return self.x.dtype


class Lender:
    """Lends an array by DLPack alone, of the version that the caller asks for."""

    def __init__(self, x):
        self.x = x

    def __dlpack__(self, **asked):
        return self.x.__dlpack__(**asked)

    def __dlpack_device__(self):
        return self.x.__dlpack_device__()


class OldLender(Lender):
    """Knows nothing of versions, and so cannot lend what is read-only."""

    def __dlpack__(self):
        return self.x.__dlpack__()


# By name: makes an operand that shares the memory of an array of NumPy.
WAYS = {
    "NumPy": lambda x: x,
    "memoryview": memoryview,
    "interface": Interface,
    "DLPack": Lender,
    "DLPack before 1.0": OldLender,
    "part": lambda x: shmccl._core._Part(x),
}
if torch:
    WAYS["torch"] = torch.from_numpy
NAMES = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]


def alone():
    return shmccl.init_all(1)[0]


def exported(way, x):
    """Returns what the way makes of an array, or skips what its own package cannot make."""
    try:
        return WAYS[way](x)
    except (BufferError, TypeError, ValueError) as error:
        pytest.skip(f"{way} has no such thing: {error}")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", [*NAMES, "complex64", "complex128"])
def test_every_way_sees_the_type_and_the_length(way, name):
    comm = alone()
    for shape in [(), (1,), (5,), (2, 3), (0,), (3, 0, 2)]:
        x, out = np.ones(shape, name), np.zeros(shape, name)
        comm.all_reduce(WAYS[way](x), "sum", WAYS[way](out))
        assert (out == 1).all()
        with pytest.raises(ValueError, match="the input is of"):
            comm.all_reduce(WAYS[way](x), "sum", np.zeros(shape, "int32" if name != "int32" else "int64"))


@pytest.mark.parametrize("way", ["NumPy", "memoryview", "interface"])
@pytest.mark.parametrize("name", [">f8", ">i4", ">u2", ">c8", ">e", np.dtype(ml_dtypes.bfloat16).newbyteorder(">")], ids=str)
def test_every_way_refuses_the_other_byte_order_and_moves_it_as_bytes(way, name):
    comm, x, out = alone(), np.ones(3, name), np.zeros(3, name)
    given = exported(way, x)
    # Others have no type of the other byte order.
    with pytest.raises(TypeError, match="other byte order"):
        comm.all_reduce(given, "sum", out)
    comm.all_gather(given, exported(way, out), dtype="uint8")
    assert (out == x).all()
    native = x.astype(x.dtype.newbyteorder("="))
    assert (comm.all_reduce(native) == native).all()


def strided():
    """By name: makes a view that is not in one piece, in C's order."""
    base = np.arange(24.0).reshape(4, 6)
    yield "steps", base[:, ::2]
    yield "backwards", base[::-1]
    yield "Fortran", base.T
    yield "one row many times", np.lib.stride_tricks.as_strided(base, (3, 6), (0, 8))
    yield "columns", base[:, :3]
    yield "one element many times", np.lib.stride_tricks.as_strided(base, (3,), (0,))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("view", list(strided()), ids=lambda view: view[0])
def test_every_way_refuses_what_does_not_lie_in_one_piece(way, view):
    comm, given = alone(), exported(way, view[1])
    with pytest.raises(ValueError, match="contiguous"):
        comm.all_reduce(given, "sum", np.zeros(view[1].shape))
    with pytest.raises(ValueError, match="contiguous"):
        comm.broadcast(given, 0)


@pytest.mark.parametrize("way", WAYS)
def test_every_way_takes_steps_that_say_nothing(way):
    comm = alone()
    for x in [np.ones((1, 3))[::-1], np.ones((3, 1)).T, np.ones((4, 3))[1:1, ::2], np.ones((0, 5))[:, ::2], np.ones(6)[2:5]]:
        given = exported(way, x)
        out = np.zeros(x.shape)
        comm.all_reduce(given, "sum", out)
        assert (out == x).all()


@pytest.mark.parametrize("way", WAYS)
def test_no_way_writes_what_is_read_only(way):
    comm, x = alone(), np.ones(3)
    x.flags.writeable = False
    if way == "torch":
        pytest.skip("torch has no read-only tensors")
    given = exported(way, x)
    if way == "DLPack before 1.0":
        with pytest.raises(BufferError):
            comm.broadcast(given, 0)
        return
    assert comm.all_reduce(given, "sum", np.empty(3)).tolist() == [1.0] * 3
    with pytest.raises(ValueError, match="read-only"):
        comm.broadcast(given, 0)


@pytest.mark.parametrize("way", WAYS)
def test_every_way_takes_bytes_at_any_address(way):
    comm, out = alone(), np.zeros(3)
    crooked = np.zeros(25, "uint8")[1:].view("float64")
    crooked[:] = 2.0
    given = exported(way, crooked)
    comm.all_reduce(given, "sum", out)
    assert out.tolist() == [2.0] * 3


@pytest.mark.parametrize("way", WAYS)
def test_every_way_takes_bytes_for_whole_elements_of_another_type_only(way):
    comm, x, out = alone(), np.ones(3, "int32"), np.zeros(3, "int32")
    comm.all_gather(WAYS[way](x), WAYS[way](out), dtype="uint16")
    assert out.tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match="12 bytes are no whole number of elements of float64"):
        comm.all_reduce(WAYS[way](x), "sum", out, dtype="float64")


OTHERS = {
    "bytes": (b"\1\2", "uint8"),
    "bytearray": (bytearray(b"\1\2"), "uint8"),
    "array": (array.array("d", [1, 2]), "float64"),
    "array of longs": (array.array("l", [1, 2]), "int64"),
    "ctypes": ((ctypes.c_float * 2)(1, 2), "float32"),
    "ctypes of booleans": ((ctypes.c_bool * 2)(True, True), "bool"),
    "memoryview, cast": (memoryview(array.array("d", [1, 2])).cast("B").cast("d"), "float64"),
    "scalar": (np.float32(3), "float32"),
    "bfloat16": (np.ones(2, ml_dtypes.bfloat16), "bfloat16"),
    "float8": (np.ones(2, ml_dtypes.float8_e5m2), "float8_e5m2"),
}
if torch:
    OTHERS["tensor"] = (torch.ones(2, dtype=torch.bfloat16), "bfloat16")


@pytest.mark.parametrize("name", OTHERS)
def test_what_else_lends_bytes_says_its_type(name):
    given, dtype = OTHERS[name]
    assert shmccl._core._Part(given).dtype == dtype


MOVED = {
    "records": np.array([(1, 2.0), (3, 4.0)], [("a", "i4"), ("b", "f8")]),
    "records of the other order": np.array([(1, 2.0)] * 2, [("O", ">i4"), ("P", ">f8", (2,))]),
    "dates": np.array(["2020-01-01", "1970-01-02"], "M8[ns]"),
    "durations": np.array([1, 2], "m8[s]"),
    "fixed strings": np.array(["ab", "c"]),
    "fixed bytes": np.array([b"ab", b"c"]),
    "long double": np.array([1, 2], "longdouble"),
    "long complex": np.array([1, 2], "clongdouble"),
    "raw bytes": np.array([b"ab", b"cd"]).view("V2"),
    "int4": np.array([1, 2], ml_dtypes.int4),
    "float8 of another kind": np.array([1, 2], ml_dtypes.float8_e4m3),
    "ctypes": (type("Pair", (ctypes.Structure,), {"_fields_": [("a", ctypes.c_int), ("b", ctypes.c_double)]}) * 2)((1, 2.0)),
    "letters": array.array("u", "ab"),
}


def test_every_call_that_only_moves_moves_elements_of_any_type_as_bytes():
    def body(comm):
        for kind in MOVED.values():
            move(comm, kind)

    on_ranks(body)


def copy_of(x):
    if isinstance(x, ctypes.Array):
        return type(x).from_buffer_copy(x)
    return array.array(x.typecode, x) if isinstance(x, array.array) else x.copy()


def seen(x):
    return bytes(shmccl._core._Part(x, "uint8"))


def write(x, given):
    shmccl._core._Part(x, "uint8").write(given)


def move(comm, kind):
    n, want, own, got = comm.size, seen(kind), copy_of(kind), copy_of(kind)
    write(own, want if comm.rank == 0 else bytes(len(want)))
    with pytest.raises(TypeError, match="uint8"):
        comm.broadcast(own, 0)
    comm.broadcast(own, 0, dtype="uint8")
    assert seen(own) == want
    rows = bytearray(n * len(want))
    comm.all_gather(own, rows, dtype="uint8")
    comm.gather(own, 1, rows if comm.rank == 1 else None, dtype="uint8")
    write(got, bytes(len(want)))
    comm.scatter(rows if comm.rank == 2 else None, 2, got, dtype="uint8")
    assert seen(got) == want and rows == want * n
    comm.all_to_all(rows, rows, dtype="uint8")
    comm.all_to_all_v(own, [len(want)] * n, rows, [len(want)] * n, sent_at=[0] * n, dtype="uint8")
    assert rows == want * n
    write(got, bytes(len(want)))
    with comm.group():
        comm.send(own, comm.right, dtype="uint8")
        comm.recv(got, comm.left, dtype="uint8")
    assert seen(got) == want


def test_elements_that_are_objects_or_addresses_are_never_moved():
    comm = alone()
    for x in [
        np.array([None, datetime]),
        np.array([(1, None)], [("a", "i4"), ("b", "O")]),
        np.array(["a"], np.dtypes.StringDType()),
        (ctypes.py_object * 2)(),
        (ctypes.POINTER(ctypes.c_int) * 2)(),
        (ctypes.c_char_p * 2)(),
        Interface(np.array([None])),
    ]:
        for dtype in None, "uint8":
            with pytest.raises(TypeError, match="pickle them"):
                comm.broadcast(x, 0, dtype=dtype)


def test_a_type_is_named_in_the_order_of_this_machine():
    comm = alone()
    for name in [np.dtype(">f8"), np.dtype(ml_dtypes.bfloat16).newbyteorder(">")]:
        with pytest.raises(TypeError, match="newbyteorder"):
            comm.all_reduce(bytearray(8), "sum", bytearray(8), dtype=name)
        with pytest.raises(TypeError, match="newbyteorder"):
            comm.zeros(3, name)
    assert comm.zeros(3, np.dtype(">f8").newbyteorder("=")).dtype == "float64"
    # Types of one name and other values.
    with pytest.raises(TypeError, match="no data type"):
        comm.zeros(3, ml_dtypes.float8_e4m3)
    assert comm.zeros(3, "float8_e4m3").dtype == "float8_e4m3fn"


def test_input_and_output_of_all_to_all_v_are_of_one_type():
    comm = alone()
    with pytest.raises(ValueError, match="the input is of float32, and the output of float64"):
        comm.all_to_all_v(np.ones(4, "f4"), [2], np.ones(2), [2])


def test_lanes_of_dlpack_and_memory_elsewhere_are_seen():
    class Cuda:
        __cuda_array_interface__ = {"data": (1, False)}

    with pytest.raises(ValueError, match="another device"):
        alone().broadcast(Cuda(), 0)
    if torch:
        halves = torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
        with pytest.raises(TypeError, match="uint8"):
            alone().broadcast(halves, 0)
        assert shmccl._core._Part(halves, "uint8").count == 4


def test_a_channel_puts_elements_of_any_type():
    def body(comm):
        cells = comm.zeros(2 * 12, "uint8").numpy().view([("a", "i4"), ("b", "f8")])
        channel = comm.channel(1 - comm.rank)
        cells[0] = (comm.rank, 2.5)
        channel.put(cells[1:], cells[:1], signal=True)
        channel.wait()
        assert cells[1].tolist() == (1 - comm.rank, 2.5)

    on_ranks(body, 2)
