"""Ranks killed at a random instant of an all_reduce: who notices, how the others go on, and what is left behind.

SHMCCL_LONG=1 kills a hundred, and prints how long it took until the others knew. SHMCCL_SEED replays the instants.
"""

import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
import torch.distributed as dist
from torch_ranks import IS_LONG, IS_SHIM, Killed, assert_nothing_left, outcomes

pytestmark = pytest.mark.skipif(not IS_SHIM or not hasattr(dist, "_reconfigure"), reason="needs the shim and torch 2.15")

RANKS = 3
KILLS = 100 if IS_LONG else 5
PROMISED = 0.05  # seconds until all others know


def meet(uuid, key, rank, members):
    store = dist.distributed_c10d._get_default_group().get_group_store()
    store.set(f"{key}/{rank}", dist._get_reconfigure_handle())
    dist._reconfigure(uuid, [store.get(f"{key}/{member}").decode() for member in members]).wait()


def total():
    tensor = torch.full((1000,), dist.get_rank() + 1.0)
    dist.all_reduce(tensor)
    return set(tensor.tolist())


def killed_at_an_instant(rank, n, victim, delay, path):
    meet(1, "all", rank, range(n))
    assert total() == {n * (n + 1) / 2}

    def end_itself():
        time.sleep(delay)
        pathlib.Path(path).write_text(str(time.monotonic()))
        os.kill(os.getpid(), signal.SIGKILL)

    if rank == victim:
        threading.Thread(target=end_itself, daemon=True).start()
    tensor = torch.ones(1000)
    with pytest.raises(dist.DistBackendError, match=f"rank {victim} was lost"):
        while True:
            dist.all_reduce(tensor)
    late = time.monotonic() - float(pathlib.Path(path).read_text())
    left = [member for member in range(n) if member != victim]
    meet(2, "left", rank, left)
    assert dist.get_world_size() == n - 1 and total() == {n * (n - 1) / 2}
    assert_nothing_left()
    return late


def test_whoever_is_killed_the_others_name_it_and_go_on(tmp_path):
    seed = int(os.environ.get("SHMCCL_SEED", time.time_ns() % 1_000_000))
    print(f"SHMCCL_SEED={seed}")
    instants, late = random.Random(seed), []
    for number in range(KILLS):
        victim, delay = instants.randrange(RANKS), instants.uniform(0, 0.02)
        results = outcomes(RANKS, killed_at_an_instant, victim, delay, str(tmp_path / f"killed{number}"), enable_reconfigure=True)
        for rank, (good, result) in enumerate(results):
            assert isinstance(result, Killed) if rank == victim else good, (number, victim, delay, result)
        late += [result for good, result in results if good]
    late.sort()
    print(f"{KILLS} kills; ms until a rank knew: median {late[len(late) // 2] * 1e3:.2f}, longest {late[-1] * 1e3:.2f}")
    if IS_LONG:
        assert late[-1] < PROMISED


FOREVER = r"""
import os, time, torch, torch.distributed as dist
dist.init_process_group("shmccl")
tensor = torch.ones(8)
dist.all_reduce(tensor)
store = dist.distributed_c10d._get_default_group().get_group_store()
try:
    # The signal may come before the wait has begun.
    os.write(1, b"begun\n")
    # Each waits for the other.
    dist.recv(tensor, 1 - dist.get_rank())
except KeyboardInterrupt:
    os.write(1, b"interrupted\n")
    # Neither goes before both know.
    store.add("interrupted", 1)
    while store.add("interrupted", 0) < 2:
        time.sleep(0.01)
    raise
"""


def test_ctrl_c_ends_all_ranks_of_torchrun(tmp_path):
    script = tmp_path / "forever.py"
    script.write_text(FOREVER)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert [job.stdout.readline() for _ in range(2)] == ["begun\n"] * 2
    started = time.monotonic()
    os.killpg(job.pid, signal.SIGINT)
    told, said = job.communicate(timeout=60)
    print(f"ended after {time.monotonic() - started:.2f} s")
    assert job.returncode != 0 and "KeyboardInterrupt" in said and told == "interrupted\n" * 2
    with pytest.raises(ProcessLookupError):
        os.killpg(job.pid, 0)
