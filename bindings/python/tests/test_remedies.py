"""Each error that names a remedy, and the remedy tried."""

import os
import pickle
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
import shmccl
from shmccl import mpi as MPI
from test_collectives import on_ranks

try:
    import torch
except ImportError:
    torch = None

RECORDS = np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")])


def read_only(x):
    x.flags.writeable = False
    return x


def group_in_group(comm):
    with comm.group(), comm.group():
        pass


def groups_in_turn(comm):
    for _ in range(2):
        with comm.group():
            pass


def started_twice(comm):
    x = np.ones(1)
    with comm.start() as work:
        comm.all_reduce(x, out=x)
    work.wait()
    with work:
        pass


def started_again(comm):
    for _ in range(2):
        x = np.ones(1)
        with comm.start() as work:
            comm.all_reduce(x, out=x)
        work.wait()


def to_oneself(comm):
    got = np.zeros(1)
    with comm.group():
        comm.send(np.ones(1), comm.rank)
        comm.recv(got, comm.rank)
    assert got[0] == 1


def on_a_stream(comm, in_call):
    x = np.ones(1)
    with comm.stream() as stream:
        with comm.group(stream=None if in_call else stream):
            comm.all_reduce(x, "max", x, **({"stream": stream} if in_call else {}))


def with_channel(comm, run, **settings):
    heap = comm.zeros(2)
    with comm.channel(1 - comm.rank, **settings) as channel:
        run(channel, heap)
    comm.barrier()


def heap_of(length):
    comm = shmccl.init_all(1, heap=length)[0]
    return comm.zeros(64 << 20, "uint8", local=True)


def own(comm, x):
    return x[comm.rank : comm.rank + 1]


# What the error says, what raises it, and what it tells to do. All ranks do the same.
TABLE = [
    ('dtype="uint8"', lambda c: c.broadcast(RECORDS.copy()), lambda c: c.broadcast(RECORDS.copy(), dtype="uint8")),
    ('dtype="uint8"', lambda c: c.all_gather(RECORDS), lambda c: c.all_gather(RECORDS, dtype="uint8")),
    ("with astype", lambda c: c.all_reduce(np.ones(2, "g")), lambda c: c.all_reduce(np.ones(2, "g").astype("f8"))),
    ("with astype", lambda c: c.all_reduce(np.ones(2, ml_dtypes.int4)), lambda c: c.all_reduce(np.ones(2, ml_dtypes.int4).astype("i1"))),
    ("with astype", lambda c: c.all_reduce(np.zeros(1, "M8[s]"), "max"), lambda c: c.all_reduce(np.zeros(1, "M8[s]").astype("i8"), "max")),
    ("newbyteorder", lambda c: c.all_reduce(np.ones(2, ">f8")), lambda c: c.all_reduce((x := np.ones(2, ">f8")).astype(x.dtype.newbyteorder("=")))),
    ('dtype="uint8"', lambda c: c.broadcast(np.ones(2, ">f8")), lambda c: c.broadcast(np.ones(2, ">f8"), dtype="uint8")),
    ("newbyteorder", lambda c: c.zeros(1, np.dtype(">f8")), lambda c: c.zeros(1, np.dtype(">f8").newbyteorder("="))),
    ("pickle them", lambda c: c.broadcast(np.array([None])), lambda c: c.broadcast(bytearray(pickle.dumps([None])))),
    ('"uint8" takes any', lambda c: c.broadcast(bytearray(5), dtype="int32"), lambda c: c.broadcast(bytearray(5), dtype="uint8")),
    ("ascontiguousarray", lambda c: c.all_reduce(np.ones((2, 3)).T), lambda c: c.all_reduce(np.ascontiguousarray(np.ones((2, 3)).T))),
    ("ascontiguousarray", lambda c: c.all_reduce(memoryview(np.ones(4))[::2]), lambda c: c.all_reduce(np.ascontiguousarray(memoryview(np.ones(4))[::2]))),
    ("pass one that is, and copy", lambda c: c.broadcast(np.ones(4)[::2]), lambda c: np.copyto(np.ones(4)[::2], c.broadcast(np.ones(2)))),
    ("pass one that can be written", lambda c: c.broadcast(read_only(np.ones(2))), lambda c: c.broadcast(read_only(np.ones(2)).copy())),
    ("pass one that can be written", lambda c: c.broadcast(b"12"), lambda c: c.broadcast(bytearray(b"12"))),
    (r"numpy.asarray\(x\)", lambda c: c.all_reduce([1.0, 2.0], out=np.ones(2)), lambda c: c.all_reduce(np.asarray([1.0, 2.0]), out=np.ones(2))),
    ("of that length that lies apart", lambda c: c.all_gather(x := np.ones(2), x), lambda c: c.all_gather(np.ones(2), np.ones(4))),
    ("or leave it out", lambda c: c.all_gather(x := np.ones(2), x), lambda c: c.all_gather(np.ones(2))),
    ("or leave it out", lambda c: c.reduce_scatter(x := np.ones(4), out=x), lambda c: c.reduce_scatter(np.ones(4))),
    ("pass buffers that lie apart", lambda c: c.all_reduce((x := np.ones(3))[:2], out=x[1:]), lambda c: c.all_reduce(np.ones(2), out=np.ones(2))),
    ("the same one", lambda c: c.all_reduce((x := np.ones(3))[:2], out=x[1:]), lambda c: c.all_reduce(x := np.ones(2), out=x)),
    ("this rank's block", lambda c: c.all_gather((x := np.ones(2))[1 - c.rank : 2 - c.rank], x), lambda c: c.all_gather(own(c, x := np.ones(2)), x)),
    ("or name it with dtype=", lambda c: c.all_reduce(np.ones(2, "i4"), out=np.ones(2, "u4")), lambda c: c.all_reduce(np.ones(2, "i4"), out=np.ones(2, "u4"), dtype="int32")),
    ("pass arrays of one type", lambda c: c.all_reduce(np.ones(2, "i4"), out=np.ones(2, "u4")), lambda c: c.all_reduce(np.ones(2, "i4"), out=np.ones(2, "i4"))),
    ("is 3, expected 2", lambda c: c.all_reduce(np.ones(2), out=np.ones(3)), lambda c: c.all_reduce(np.ones(2), out=np.ones(2))),
    ("expected one of bool, int8", lambda c: c.zeros(1, "double"), lambda c: [c.zeros(1, name) for name in ("bool", "int8", "float64")]),
    ("pass out= on ranks other", lambda c: c.scatter(None, 1 - c.rank), lambda c: c.scatter(np.ones((2, 1)) if c.rank == 0 else None, 0, np.ones(1))),
    ("end that one first", group_in_group, groups_in_turn),
    ("where the group is made", lambda c: on_a_stream(c, True), lambda c: on_a_stream(c, False)),
    (r"call comm.start\(\) again", started_twice, started_again),
    ("without local=True", lambda c: c.zeros(1, local=True).peer(0), lambda c: c.zeros(1).peer(0)),
    ("comm.zeros or comm.empty", lambda c: with_channel(c, lambda ch, x: ch.put(np.ones(1))), lambda c: with_channel(c, lambda ch, x: ch.put(x))),
    ("a part of such an array", lambda c: with_channel(c, lambda ch, x: ch.put(np.ones(1))), lambda c: with_channel(c, lambda ch, x: ch.put(x.numpy()[:1]))),
    ("needs a source", lambda c: with_channel(c, lambda ch, x: ch.put(x.peer(1 - c.rank))), lambda c: with_channel(c, lambda ch, x: ch.put(x.peer(1 - c.rank), x))),
    ("ranks count from 0", lambda c: c.broadcast(np.ones(1), -1), lambda c: c.broadcast(np.ones(1), 0)),
    ("tags go from 0 to 4294967295", lambda c: c.send(np.ones(1), 0, tag=-1), lambda c: (c.send(np.ones(1), 1, tag=4294967295) if c.rank == 0 else c.recv(np.ones(1), 0, tag=4294967295))),
    ("colors go from 0", lambda c: c.split(-1), lambda c: c.split(0)),
    ("None takes no part", lambda c: c.split(-1), lambda c: c.split(None)),
    ("extents count from 0", lambda c: c.zeros(-1), lambda c: c.zeros(0)),
    ("extents count from 0", lambda c: c.empty((2, -1)), lambda c: c.empty((2, 0))),
    ("they count from 0", lambda c: c.all_to_all_v(np.ones(2), [1, -1], np.ones(2), [1, 1]), lambda c: c.all_to_all_v(np.ones(2), [1, 1], np.ones(2), [1, 1])),
    ("expected sum, prod, min", lambda c: c.all_reduce(np.ones(1), "add"), lambda c: [c.all_reduce(np.ones(1), op) for op in ("sum", "prod", "min", "max", "avg", shmccl.PreMulSum(2.0))]),
    (r"use sum, avg or PreMulSum\(factor\)", lambda c: c.all_reduce(np.ones(1, "c16"), "prod"), lambda c: [c.all_reduce(np.ones(1, "c16"), op) for op in ("sum", "avg", shmccl.PreMulSum(2.0))]),
    ("of its range", lambda c: c.all_reduce(np.ones(1, "i4"), shmccl.PreMulSum(3e10)), lambda c: c.all_reduce(np.ones(1, "i4"), shmccl.PreMulSum(3))),
    ("takes a whole factor", lambda c: c.all_reduce(np.ones(1, "u2"), shmccl.PreMulSum(0.5)), lambda c: c.all_reduce(np.ones(1, "u2"), shmccl.PreMulSum(2))),
    ('use "sum"', lambda c: c.all_reduce(np.ones(1, "?"), shmccl.PreMulSum(1)), lambda c: c.all_reduce(np.ones(1, "?"), "sum")),
    ("multiple of that", lambda c: c.reduce_scatter(np.ones(3)), lambda c: c.reduce_scatter(np.ones(4))),
    ("a multiple of the number of ranks", lambda c: c.all_to_all(np.ones(3)), lambda c: c.all_to_all(np.ones(4))),
    ("a send and a receive in one group", lambda c: c.send(np.ones(1), c.rank), to_oneself),
    ('heap="1G" of launch or init', lambda c: heap_of("16M"), lambda c: heap_of("1G")),
    ('or "1G"', lambda c: heap_of(True), lambda c: heap_of("1G")),
    ("`shmccl-`, 32 hexadecimal digits", lambda c: shmccl.UniqueId("id"), lambda c: shmccl.UniqueId("shmccl-" + "0" * 32)),
    ("without both, the launcher's", lambda c: shmccl.init(rank=0), lambda c: shmccl.init(rank=0, size=1, timeout=5.0).close()),
    ("an id needs rank= and size=", lambda c: shmccl.init(id=shmccl.UniqueId()), lambda c: shmccl.init(rank=0, size=1, id=shmccl.UniqueId()).close()),
    ("give .x, count, displacement, type.", lambda c: MPI.Comm(c).Bcast([]), lambda c: MPI.Comm(c).Bcast([np.ones(3), 1, 2, MPI.DOUBLE])),
    ("expected a count and a displacement for each", lambda c: MPI.Comm(c).Alltoallv([np.ones(3), [1]], np.ones(3)), lambda c: MPI.Comm(c).Alltoallv([np.ones(3), [1, 1]], [np.ones(3), [1, 1]])),
    ("a count and a displacement for each", lambda c: MPI.Comm(c).Alltoallv([np.ones(2), [1]], np.ones(2)), lambda c: MPI.Comm(c).Alltoallv([np.ones(2), [1, 1], [0, 1]], np.ones(2))),
    ("pass a multiple", lambda c: MPI.Comm(c).Allgather(MPI.IN_PLACE, np.ones(3)), lambda c: MPI.Comm(c).Allgather(MPI.IN_PLACE, np.ones(4))),
    ("pass what they send", lambda c: MPI.Comm(c).Reduce(MPI.IN_PLACE, np.ones(1), root=1 - c.rank), lambda c: MPI.Comm(c).Reduce(MPI.IN_PLACE if c.rank else np.ones(1), np.ones(1), root=1)),
]
if torch:
    conjugate = torch.ones(2, dtype=torch.complex64)
    TABLE += [
        (r"tensor.contiguous\(\)", lambda c: c.all_reduce(torch.ones(2, 3).T), lambda c: c.all_reduce(torch.ones(2, 3).T.contiguous())),
        ("resolve_conj", lambda c: c.all_reduce(conjugate.conj()), lambda c: c.all_reduce(conjugate.conj().resolve_conj().resolve_neg())),
        ("copy it to the CPU", lambda c: c.all_reduce(torch.ones(2, device="meta"), out=torch.ones(2)), lambda c: c.all_reduce(torch.ones(2, device="cpu"), out=torch.ones(2))),
    ]


def test_each_remedy_that_an_error_names_is_one():
    def body(comm):
        for told, wrong, right in TABLE:
            with pytest.raises((ValueError, TypeError, RuntimeError, MemoryError, shmccl.Error), match=told) as failed:
                wrong(comm)
            assert len(str(failed.value).splitlines()) == 1, failed.value
            right(comm)

    on_ranks(body, 2)


def test_what_direct_channels_do_is_named_where_a_proxy_cannot():
    def body(comm):
        with pytest.raises(ValueError, match=r"comm.channel\(peer\)"):
            with_channel(comm, lambda channel, x: channel.get(x), proxied=True)
        with_channel(comm, lambda channel, x: channel.get(x))

    on_ranks(body, 2)


def test_bits_of_types_that_numpy_lacks_are_seen_without_their_package(monkeypatch):
    array = shmccl.init_all(1)[0].zeros(2, "bfloat16")
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(ImportError, match=r"install ml_dtypes, use torch\(\), or view the bits: numpy.asarray\(array\)"):
        array.numpy()
    assert np.asarray(array).tolist() == [0, 0]
    monkeypatch.undo()
    assert array.numpy().astype(float).tolist() == [0, 0]
    assert torch is None or array.torch().dtype == torch.bfloat16


@pytest.mark.parametrize("remedy", ["SHMCCL_RANK and SHMCCL_SIZE", "shmccl.launch", "shmccl run -n N -- python PROGRAM"])
def test_each_remedy_for_a_program_without_a_launcher_is_one(remedy, tmp_path):
    names = ("SHMCCL_", "RANK", "WORLD_SIZE", "OMPI_", "PMI", "SLURM_", "PALS_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(names) or name == "SHMCCL_CACHE"}
    program = tmp_path / "program.py"
    program.write_text("import shmccl\ndef main(comm): print(comm.size)\nif __name__ == '__main__': main(shmccl.init())\n")
    command = [sys.executable, str(program)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and remedy in done.stderr
    if remedy.startswith("SHMCCL"):
        env |= {"SHMCCL_RANK": "0", "SHMCCL_SIZE": "1"}
    elif remedy == "shmccl.launch":
        program.write_text(program.read_text().replace("main(shmccl.init())", "shmccl.launch(main, 1)"))
    else:
        command = [sys.executable, "-m", "shmccl", "run", "-n", "1", "--", *command]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.split()[-1] == "1", done.stderr
