"""Programs of mpi4py with windows, on one rank and several."""

import os
import signal
import subprocess
import sys

import mpi_windows
import numpy as np
import pytest
import shmccl
from shmccl import mpi as MPI


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_programs_with_windows_run_one_after_the_other(n):
    assert len(mpi_windows.PROGRAMS) >= 13
    command = [sys.executable, "-m", "shmccl", "run", "-n", str(n), "--", sys.executable, mpi_windows.__file__]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


def test_a_rank_that_is_killed_leaves_its_lock_and_ends_waits_for_it():
    def body(comm):
        comm = MPI.Comm(comm)
        win = MPI.Win.Allocate(16, 8, comm=comm)
        win.Fence()
        if comm.rank == 1:
            win.Lock(0)
            comm.shmccl.channel(0).signal()
            os.kill(os.getpid(), signal.SIGKILL)
        comm.shmccl.channel(1).wait()
        with pytest.raises(shmccl.PeerLostError):
            win.Start(comm.group.Incl([1]))
        win.Lock(0)
        win.Put(np.ones(1), 0)
        win.Unlock(0)
        with pytest.raises(shmccl.Error):
            win.Fence()
        return np.frombuffer(win.tomemory(), "d")[0]

    survivor, lost = shmccl.launch(body, 2, start="fork", timeout=20.0, keep_going=True)
    assert isinstance(lost, shmccl.DeviceFailedError) and survivor == 1.0
