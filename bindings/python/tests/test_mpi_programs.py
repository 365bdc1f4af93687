"""Programs of mpi4py with one line changed, on one rank and several."""

import pathlib
import re
import subprocess
import sys

import mpi_programs
import pytest
from shmccl.mpi import _absent

ROOT = pathlib.Path(__file__).parents[3]


def run(*command):
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=100)


def launch(n, name):
    return run("-m", "shmccl", "run", "-n", str(n), "--", sys.executable, mpi_programs.__file__, name)


def run_on_ranks(n, name):
    done = launch(n, name)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_programs_run_one_after_the_other(n):
    assert len(mpi_programs.OTHERS) >= 25
    run_on_ranks(n, "others")


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("program", mpi_programs.ENDS, ids=lambda program: program.__name__)
def test_a_program_ends(program, n):
    run_on_ranks(n, program.__name__)


@pytest.mark.parametrize("n", [1, 2])
def test_an_abort_of_a_thread_ends_the_job(n):
    done = launch(n, "a_thread_aborts")
    assert done.returncode == 7 and f"rank {n - 1} exited with code 7" in done.stderr


def test_a_process_that_nobody_has_launched_is_a_world_of_one():
    done = run("-c", "from shmccl import mpi as MPI; print(MPI.COMM_WORLD.size, MPI.COMM_WORLD.allgather('x'))")
    assert done.stdout == "1 ['x']\n", done.stderr


def test_the_import_joins_no_job():
    # A launcher's variables that name a job which nobody else comes to.
    program = (
        "import os; os.environ |= {'SHMCCL_RANK': '0', 'SHMCCL_SIZE': '2', 'SHMCCL_KEY': 'none'}\n"
        "from shmccl import mpi as MPI\n"
        "print(MPI.SUM, MPI.Wtime() > 0, 'COMM_WORLD' in vars(MPI))"
    )
    assert run("-c", program).stdout == "sum True False\n"


def test_what_is_not_there_is_named_with_a_remedy_and_in_the_manual():
    for names, what, remedy in _absent.ABSENT:
        for name in names.replace("`", "").split(", "):
            assert _absent.remedy_for(name) == f": shmccl has no {what}; use {remedy.replace('`', '')}"
    manual = (ROOT / "docs/python.md").read_text()
    rows = re.findall(r"^\| (`.*) \| (.*) \| (.*) \|$", manual.split("| not there | for | in its place |")[1], re.MULTILINE)
    assert rows[: len(_absent.ABSENT)] == _absent.ABSENT
