"""Programs that end with operations that they have not waited for: no thread of the backend aborts them."""

import os
import signal
import subprocess
import sys

import pytest

PROGRAM = """
import atexit, datetime, os, sys, threading, time
import torch, torch.distributed as dist

torch.set_num_threads(1)
rank, path, how = int(sys.argv[1]), sys.argv[2], sys.argv[3]

def begin():
    return [dist.all_gather([torch.zeros(1000) for _ in range(2)], torch.ones(1000), async_op=True) for _ in range(30)]

def finish():
    assert all(work.wait() for work in begin())
    assert torch.equal(last.wait(), torch.ones(1000))

def without_end():
    while True:
        dist.all_reduce(torch.ones(1000))
        started.set()

if how == "early atexit":
    atexit.register(finish)
dist.init_process_group("shmccl", rank=rank, world_size=2, store=dist.FileStore(path, 2), timeout=datetime.timedelta(seconds=20))
works = begin()
futures = [work.get_future().then(lambda future: future.value()[0]) for work in works]
last = futures[-1]
if how == "atexit":
    atexit.register(finish)
elif how == "thread":
    started = threading.Event()
    threading.Thread(target=without_end, daemon=True).start()
    started.wait()
elif how == "exit":
    sys.exit(7)
elif how == "exception":
    raise ValueError("on purpose")
"""
CODES = {"return": 0, "exit": 7, "exception": 1, "atexit": 0, "early atexit": 0, "thread": 0}


@pytest.mark.parametrize("how", CODES)
def test_a_program_ends_with_operations_that_it_has_not_waited_for(how, tmp_path):
    command = [sys.executable, "-c", PROGRAM]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ranks = [subprocess.Popen([*command, str(rank), str(tmp_path / "store"), how], env=environment, stderr=subprocess.PIPE, text=True)
             for rank in range(2)]
    try:
        texts = [rank.communicate(timeout=90)[1] for rank in ranks]
    finally:
        [rank.send_signal(signal.SIGKILL) for rank in ranks if rank.poll() is None]
    assert [rank.returncode for rank in ranks] == [CODES[how]] * 2, texts
