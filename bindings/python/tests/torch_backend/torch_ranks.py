"""Runs a function as the ranks of a process group, each in a process of its own, under a watchdog."""

import contextlib
import datetime
import gc
import multiprocessing
import os
import pathlib
import pickle
import tempfile
import time
import traceback

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import shmccl.torch  # noqa: E402, F401

torch.set_num_threads(1)

# The backend in Python has works that cannot be polled and tell neither sources nor numbers.
IS_SHIM = os.environ.get("SHMCCL_TORCH") != "python"
TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
FORK = multiprocessing.get_context("fork")
# Below that of a test, so that the rank that hangs is told.
WATCHDOG = 90
# What the mappings and descriptors of shared memory are named by.
SEGMENT = "memfd:shmccl"
# The long forms of tests that have one.
IS_LONG = os.environ.get("SHMCCL_LONG") == "1"


class Killed(Exception):
    """A rank ended by a signal, or hung until the watchdog ended it."""


def init(rank, n, path, backend="shmccl", timeout=60, **options):
    dist.init_process_group(backend, rank=rank, world_size=n, store=dist.FileStore(path, n),
                            timeout=datetime.timedelta(seconds=timeout), **options)


def assert_error(backend, expected):
    """Asserts how a group has failed. Torch before 2.14 cannot ask."""
    if TORCH >= (2, 14):
        assert backend.get_error() == expected


def shared_memory():
    """The descriptors and mappings of shared memory that this process has. A segment is a file in no folder."""
    folder = pathlib.Path("/proc/self")
    mappings = [line for line in (folder / "maps").read_text().splitlines() if SEGMENT in line]
    descriptors = []
    for entry in (folder / "fd").iterdir():
        # The folder's own has gone.
        with contextlib.suppress(FileNotFoundError):
            descriptors.append(os.readlink(entry))
    return mappings + [target for target in descriptors if SEGMENT in target]


def assert_nothing_left():
    """Asserts that this process, once it has left its group, has none of the group's shared memory."""
    assert shared_memory(), "segments have another name than this test knows"
    dist.destroy_process_group()
    gc.collect()
    assert not shared_memory()


def _main(rank, n, path, pipe, function, arguments, options):
    try:
        init(rank, n, path, **options)
        result = function(rank, n, *arguments)
        if dist.is_initialized():
            dist.destroy_process_group()
        pipe.send((True, result))
    except BaseException as error:
        error.add_note(f"on rank {rank}:\n{traceback.format_exc()}")
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            error = RuntimeError(f"on rank {rank}: {traceback.format_exc()}")
        pipe.send((False, error))
    finally:
        pipe.close()


def outcomes(n, function, *arguments, **options):
    """The result of `function(rank, n, *arguments)` on each rank, or the exception that it has raised."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "store")
        pipes = [FORK.Pipe(duplex=False) for _ in range(n)]
        ranks = [FORK.Process(target=_main, args=(rank, n, path, pipes[rank][1], function, arguments, options))
                 for rank in range(n)]
        for process, (_, sender) in zip(ranks, pipes):
            process.start()
            sender.close()
        deadline = time.monotonic() + WATCHDOG
        results = []
        for process, (receiver, _) in zip(ranks, pipes):
            try:
                there = receiver.poll(max(0, deadline - time.monotonic()))
                results.append(receiver.recv() if there else (False, Killed("hung")))
            except EOFError:
                results.append((False, Killed("ended")))
        for process in ranks:
            process.join(max(0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
                results.append((False, Killed("hung at its end")))
        return results


def run(n, function, *arguments, **options):
    """Like `outcomes`, for ranks of which none may fail."""
    results = outcomes(n, function, *arguments, **options)
    for good, result in results:
        if not good:
            raise result
    return [result for _, result in results]
