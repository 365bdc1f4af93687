"""Ranks that `launch` starts, and processes that other launchers have started."""

import hashlib
import multiprocessing
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import types

import numpy as np
import pytest
import ranks
import shmccl

HERE = pathlib.Path(__file__).parent
PROGRAM = [sys.executable, str(HERE / "ranks.py")]
IS_LONG = os.environ.get("SHMCCL_LONG") == "1"


@pytest.mark.parametrize("start", ["spawn", "forkserver", "fork", None])
def test_ranks_are_processes_however_they_are_started(start):
    assert shmccl.launch(ranks.sum_of_ranks, 3, 2, start=start, timeout=30.0) == [6.0, 6.0, 6.0]


def test_a_function_that_cannot_be_imported_runs_in_copies_of_this_process():
    offset = 5
    assert shmccl.launch(lambda comm: comm.rank + offset, 2) == [5, 6]


def test_a_rank_that_raises_ends_all_and_its_traceback_is_shown():
    with pytest.raises(shmccl.DeviceFailedError, match="(?s)rank 1 raised ValueError: no such luck.*fails_on_rank_1") as failed:
        shmccl.launch(ranks.fails_on_rank_1, 3)
    assert failed.value.rank == 1
    assert isinstance(failed.value.__cause__, ValueError)


def test_a_rank_that_is_killed_is_named_and_the_others_can_go_on():
    with pytest.raises(shmccl.DeviceFailedError, match="rank 1 was killed by SIGKILL"):
        shmccl.launch(ranks.is_killed_on_rank_1, 3)
    first, lost, last = shmccl.launch(ranks.is_killed_on_rank_1, 3, keep_going=True)
    assert first == last == (1, [1], 2, 1.0)
    assert isinstance(lost, shmccl.DeviceFailedError) and lost.rank == 1


def test_what_a_rank_has_done_stands_though_its_epoch_has_ended():
    (calls, lost, total), (other, *_) = shmccl.launch(ranks.differ_and_go_on, 2)
    assert "all_reduce" in calls and "all_reduce" in other and (lost, total) == ([], 2.0)
    assert shmccl.launch(ranks.differ, 2, keep_going=True) == ["CallMismatchError", "CallMismatchError"]


def test_a_result_that_cannot_be_pickled_is_an_error_of_its_rank():
    with pytest.raises(shmccl.DeviceFailedError, match="cannot be pickled"):
        shmccl.launch(lambda comm: lambda: None, 2)


def environments(n, names, **common):
    rank, size = names
    return [{**os.environ, **common, rank: str(r), size: str(n)} for r in range(n)]


def run_all(envs):
    children = [
        subprocess.Popen([*PROGRAM, "init"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for env in envs
    ]
    told = [child.communicate(timeout=60) for child in children]
    assert all(child.returncode == 0 for child in children), told
    return [out.split() for out, _ in told]


@pytest.mark.parametrize(
    "names, common",
    [
        (("SHMCCL_RANK", "SHMCCL_SIZE"), {}),
        (("SHMCCL_RANK", "SHMCCL_SIZE"), {"SHMCCL_KEY": "mine"}),
        (("RANK", "WORLD_SIZE"), {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511", "TORCHELASTIC_RUN_ID": "none"}),
        (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), {"PMIX_NAMESPACE": "prterun-1@1"}),
        (("PMI_RANK", "PMI_SIZE"), {"MPI_LOCALNRANKS": "3"}),
        (("SLURM_PROCID", "SLURM_NTASKS"), {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}),
        (("PALS_RANKID", "PMI_SIZE"), {"PALS_APID": "abc"}),
    ],
)
def test_init_finds_what_each_launcher_says(names, common):
    assert run_all(environments(3, names, **common)) == [[str(rank), "3", "3.0"] for rank in range(3)]


def test_init_works_under_the_command():
    command = [sys.executable, "-m", "shmccl", "run", "-n", "2", "--", *PROGRAM, "init"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert sorted(line.split()[-3:] for line in done.stdout.splitlines()) == [["0", "2", "1.0"], ["1", "2", "1.0"]]


def test_a_killed_rank_comes_back_and_all_go_on_where_the_slowest_was():
    command = [sys.executable, "-m", "shmccl", "run", "-n", "3", "--restart", "1", "--", *PROGRAM, "recover"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert sorted(line.split()[-2:] for line in done.stdout.splitlines()) == [[str(rank), "True"] for rank in range(3)]


@pytest.mark.parametrize(("mpirun", "options"), [("mpirun.openmpi", ["--allow-run-as-root", "--oversubscribe"]), ("mpirun.mpich", [])])
def test_init_works_under_mpirun(mpirun, options):
    if not shutil.which(mpirun):
        pytest.skip(f"no {mpirun} on this machine")
    for size in (2, 5):
        command = [mpirun, *options, "-n", str(size), *PROGRAM, "init"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert sorted(line.split()[:2] for line in done.stdout.splitlines()) == [[str(rank), str(size)] for rank in range(size)]


def test_init_without_a_launcher_says_what_to_do():
    names = ("SHMCCL_", "RANK", "WORLD_SIZE", "OMPI_", "PMI", "SLURM_", "PALS_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(names)}
    done = subprocess.run([*PROGRAM, "init"], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "shmccl run -n N -- python PROGRAM" in done.stderr.splitlines()[-1]


def test_init_takes_no_argument_in_vain(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("""
import shmccl

for arguments in {"heap": "64M"}, {"rank": 0, "size": 1}, {"rank": 0}, {"size": 1}:
    try:
        shmccl.init(**arguments)
    except shmccl.InvalidArgumentError as error:
        assert len(str(error).splitlines()) == 1 and "=" in str(error)
    else:
        raise AssertionError(arguments)
with shmccl.init(timeout=7.5) as comm:
    print(comm.timeout)
""")
    command = [sys.executable, "-m", "shmccl", "run", "-n", "1", "--", sys.executable, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == "7.5\n", done.stderr


def test_a_rank_that_is_none_is_refused_at_once():
    for rank in 2, -1:
        with pytest.raises(shmccl.InvalidRankError, match=f"this rank {rank}, and of 2 ranks"):
            shmccl.init(rank=rank, size=2)
    code = "import shmccl; shmccl.init()"
    env = {**os.environ, "SHMCCL_RANK": "3", "SHMCCL_SIZE": "2"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=30)
    assert "the environment has numbered this rank 3, and of 2 ranks none has that number" in done.stderr


def test_a_rank_without_a_size_is_refused_everywhere():
    for arguments in {"rank": 0}, {"size": 2}, {"id": shmccl.UniqueId(), "rank": 0}, {"id": shmccl.UniqueId()}:
        with pytest.raises(shmccl.InvalidArgumentError, match="size="):
            shmccl.init(**arguments)


def test_ranks_on_several_machines_are_told_so_at_once():
    (env, *_) = environments(4, ("RANK", "WORLD_SIZE"), LOCAL_WORLD_SIZE="2")
    done = subprocess.run([*PROGRAM, "init"], env=env, capture_output=True, text=True, timeout=60)
    assert "2 of 4 ranks on this machine" in done.stderr


def test_a_missing_rank_is_named():
    code = "import shmccl; shmccl.init(timeout=1.0)"
    env = environments(3, ("SHMCCL_RANK", "SHMCCL_SIZE"), SHMCCL_KEY="short")[0]
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert "awaiting rank 1 of the environment; it has not come" in done.stderr


COMES = """
import time, shmccl
try:
    comm = shmccl.init(timeout=60)
    while True:
        comm.barrier()
except shmccl.Error as error:
    print(time.monotonic(), type(error).__name__, getattr(error, "rank", None), flush=True)
"""


def comes(env):
    return subprocess.Popen([sys.executable, "-c", COMES], env=env, stdout=subprocess.PIPE, text=True)


def await_connections(key, count):
    """Waits until a meeting has received so many ranks. Each has a socket there, beside the one that listens."""
    name = "@shmccl-init-" + f"{os.geteuid()}-" + hashlib.sha256(f"the environment:SHMCCL_KEY={key}#0".encode()).hexdigest()[:32]
    deadline, received = time.monotonic() + 60, 0
    while received < count + 1:
        assert time.monotonic() < deadline
        sockets = [line.split() for line in pathlib.Path("/proc/net/unix").read_text().splitlines() if line.endswith(name)]
        # One that waits to be received has no inode.
        received = sum(socket[6] != "0" for socket in sockets)
        time.sleep(0.001)


def test_a_rank_that_hosts_a_meeting_and_dies_in_init_is_named_to_those_that_are_there():
    late = []
    for number in range(100 if os.environ.get("SHMCCL_LONG") == "1" else 2):
        key = f"dies{os.getpid()}.{number}"
        envs = environments(3, ("SHMCCL_RANK", "SHMCCL_SIZE"), SHMCCL_KEY=key)
        host = comes(envs[1])
        await_connections(key, 1)
        other = comes(envs[2])
        await_connections(key, 2)
        died = time.monotonic()
        host.kill()
        host.communicate()
        told, *lost = other.communicate(timeout=80)[0].split()
        assert lost == ["PeerLostError", "1"]
        late.append(float(told) - died)
    print(f"{len(late)} deaths; longest time until a rank knew: {max(late):.3f} s")


def test_the_name_of_a_job_that_has_died_serves_the_next_one():
    for number in range(100 if os.environ.get("SHMCCL_LONG") == "1" else 2):
        envs = environments(2, ("SHMCCL_RANK", "SHMCCL_SIZE"), SHMCCL_KEY=f"again{os.getpid()}")
        dead = comes(envs[number % 2])
        dead.kill() if number % 3 == 0 else await_connections(envs[0]["SHMCCL_KEY"], 1)
        dead.kill()
        dead.wait()
        dead.stdout.close()
        joined = [subprocess.Popen([*PROGRAM, "init"], env=env, stdout=subprocess.PIPE, text=True) for env in envs]
        assert [rank.wait(60) for rank in joined] == [0, 0]
        for rank in joined:
            rank.stdout.close()


def nobody_is_left(group):
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.01)
    pytest.fail("a process of the job is left")


@pytest.mark.parametrize("where", ranks.WAITS)
def test_ctrl_c_ends_a_wait(where):
    child = subprocess.Popen([*PROGRAM, "alone", where], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "waits\n"
    # Longer than a waiter stays awake.
    time.sleep(0.3)
    sent = time.monotonic()
    child.send_signal(signal.SIGINT)
    assert child.stdout.readline() == "interrupted\n"
    took = time.monotonic() - sent
    assert child.wait(10) == 0
    # It takes 50 ms at most; a machine that does something else may take longer.
    if IS_LONG:
        assert took < 2.0


@pytest.mark.parametrize("start", ["spawn", "fork"])
def test_ctrl_c_ends_all_ranks(start):
    child = subprocess.Popen(
        [*PROGRAM, "launch", start], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert sorted([child.stdout.readline(), child.stdout.readline()]) == ["rank 0 waits\n", "rank 1 waits\n"]
    sent = time.monotonic()
    os.killpg(child.pid, signal.SIGINT)
    _, error = child.communicate(timeout=10)
    if IS_LONG:
        assert time.monotonic() - sent < 2.0
    assert "KeyboardInterrupt" in error
    nobody_is_left(child.pid)


def test_ranks_end_with_the_process_that_has_launched_them():
    child = subprocess.Popen([*PROGRAM, "launch", "fork"], stdout=subprocess.PIPE, text=True, start_new_session=True)
    child.stdout.readline(), child.stdout.readline()
    child.kill()
    child.wait()
    nobody_is_left(child.pid)


def test_the_package_is_imported_quickly_and_without_numpy_and_torch():
    code = "import sys, shmccl; print([name for name in ('numpy', 'torch') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_each_error_of_the_engine_has_a_class_and_survives_pickling():
    import pickle

    for name in shmccl._core._ERRORS:
        error = getattr(shmccl, name)("text", rank=3)
        copy = pickle.loads(pickle.dumps(error))
        assert isinstance(copy, shmccl.Error) and (str(copy), copy.rank) == ("text", 3), name


def test_each_exception_is_named_as_an_error_and_like_none_of_python():
    import builtins

    kinds = [kind for kind in vars(shmccl).values() if isinstance(kind, type)]
    names = [kind.__name__ for kind in kinds if issubclass(kind, Exception)]
    assert sorted(names) == sorted([*shmccl._core._ERRORS, "Error"])
    assert all(name.endswith("Error") and not hasattr(builtins, name) for name in names)


def test_an_exception_is_caught_by_the_name_that_it_had_before_and_that_warns():
    assert len(shmccl._errors._BEFORE) == len(shmccl._core._ERRORS)
    for before, name in shmccl._errors._BEFORE.items():
        with pytest.warns(DeprecationWarning, match=f"shmccl.{before} is deprecated: use shmccl.{name}$") as warned:
            assert getattr(shmccl, before) is getattr(shmccl, name)
        assert [warning.filename for warning in warned] == [__file__]
    with pytest.warns(DeprecationWarning), pytest.raises(shmccl.PeerLost):
        raise shmccl.PeerLostError("rank 1 is lost", rank=1)
    with pytest.raises(AttributeError, match="module 'shmccl' has no attribute 'Error2'"):
        shmccl.Error2


def test_a_unique_id_is_pickled_and_printed():
    import pickle

    id = shmccl.UniqueId()
    assert pickle.loads(pickle.dumps(id)) == id == shmccl.UniqueId(str(id))
    with pytest.raises(ValueError):
        shmccl.UniqueId("no id")


@pytest.mark.parametrize("n, error", [(0, ValueError), (-1, ValueError), (1.5, TypeError), (257, ValueError)])
def test_a_launch_without_ranks_or_of_too_many_is_refused(n, error):
    with pytest.raises(error):
        shmccl.launch(print, n)


def test_a_launch_of_no_function_or_for_no_time_is_refused():
    with pytest.raises(TypeError, match="takes a function"):
        shmccl.launch(2, print)
    for timeout in "a", 0:
        with pytest.raises(ValueError, match="takes seconds"):
            shmccl.launch(print, 2, timeout=timeout)


FORKED = """
import os, sys, threading, time
import shmccl
comms = shmccl.init_all(2)
waiting = threading.Thread(target=lambda: comms[0].recv(bytearray(4), 1), daemon=True)
waiting.start()
time.sleep(0.3)
if child := os.fork():
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    comms[1].send(bytearray(4), 0)
    waiting.join()
else:
    sys.exit(5)
"""


def test_a_forked_child_ends_though_a_thread_of_its_parent_was_in_a_call():
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "5\n", done.stderr


def run_program(text, tmp_path, *options, name="program.py"):
    """Runs a program from a file, or with `-` from standard input; what it has printed."""
    command, given = [sys.executable, *options], text if "-" in options else None
    if given is None and "-m" not in options:
        (tmp_path / name).write_text(text)
        command.append(name)
    done = subprocess.run(command, input=given, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    return done.stdout.splitlines(), done.stderr


NOTEBOOK = """
import functools, shmccl
class Scale:
    def __init__(self, by):
        self.by = by
    def __call__(self, comm):
        return comm.rank * self.by
def main(comm, scale=None):
    return scale(comm) if scale else comm.rank
if __name__ == "__main__":
    print(shmccl.launch(main, 2))
    print(shmccl.launch(main, 2, Scale(3)))
    print(shmccl.launch(functools.partial(main, scale=Scale(4)), 2))
    print(shmccl.launch(Scale(5), 2))
    print(shmccl.launch(lambda comm: Scale(comm.rank), 2)[1].by)
    try:
        shmccl.launch(main, 2, start="spawn")
    except ValueError as error:
        print(error)
"""


def test_a_program_that_is_no_file_starts_ranks_as_copies_of_itself(tmp_path):
    for options in (["-"], ["-c", NOTEBOOK]):
        if options[0] == "-c":
            done = subprocess.run([sys.executable, *options], capture_output=True, text=True, timeout=60)
            printed, error = done.stdout.splitlines(), done.stderr
        else:
            printed, error = run_program(NOTEBOOK, tmp_path, *options)
        results = [line for line in printed if line.startswith("[")]
        assert results == ["[0, 1]", "[0, 3]", "[0, 4]", "[0, 5]"], error
        assert "1" in printed and 'start="fork"' in printed[-1] and len(error) == 0


@pytest.mark.parametrize("start", ["spawn", "forkserver"])
def test_what_fresh_processes_would_not_find_is_told_before_one_starts(start):
    module = types.ModuleType("made_by_hand")
    exec("def main(comm): return comm.rank", module.__dict__)
    sys.modules["made_by_hand"] = module
    for work in (lambda comm: 0), module.main:
        with pytest.raises(ValueError, match=f'start="{start}" begins fresh processes, but .* or pass start="fork"$'):
            shmccl.launch(work, 2, start=start)
        # The remedy, and what happens by itself.
        assert shmccl.launch(work, 2, start="fork") == shmccl.launch(work, 2)


def test_a_file_starts_fresh_processes_for_what_these_find_in_it(tmp_path):
    text = """
import os, shmccl
def method(comm):
    return os.environ.get("SEEN_AT_IMPORT")
def twice(comm, f):
    return f(comm)
class Kept: pass
def kept(comm):
    own = Kept()
    own.rank = comm.rank
    return own
if 1:
    def within(comm): return comm.rank + 10
os.environ["SEEN_AT_IMPORT"] = "main" if __name__ == "__main__" else "fresh"
if __name__ == "__main__":
    def below(comm): return method(comm)
    def twice(comm, f): return 2 * f(comm)
    print(shmccl.launch(method, 2), shmccl.launch(within, 2), shmccl.launch(below, 2))
    print(shmccl.launch(twice, 2, within))
    print([shmccl.launch(kept, 2, start=start)[1].rank for start in ("spawn", "forkserver", "fork")])
"""
    printed, error = run_program(text, tmp_path)
    assert printed == ["['fresh', 'fresh'] [10, 11] ['main', 'main']", "[20, 22]", "[1, 1, 1]"], error


def test_packages_and_modules_start_ranks_like_files(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    text = "import shmccl\ndef main(comm): return comm.rank\nif __name__ == '__main__': print(shmccl.launch(main, 2))\n"
    for name in ("__init__.py", "__main__.py", "program.py"):
        (package / name).write_text("" if name == "__init__.py" else text)
    for options in (["-m", "package"], ["-m", "package.program"]):
        assert run_program("", tmp_path, *options)[0] == ["[0, 1]"]


def test_what_fails_before_the_programs_own_code_is_told_with_its_text(tmp_path):
    guarded = "import shmccl\n{}\ndef main(comm): return comm.rank\nif __name__ == '__main__':\n    shmccl.launch(main, 2)\n"
    for text, told in [
        (guarded.format("if __name__ != '__main__': import no_such_module"), "raised ModuleNotFoundError: No module named"),
        (guarded.format("if __name__ != '__main__': raise SystemExit(7)"), "raised SystemExit: 7"),
        ("import shmccl\ndef main(comm): return comm.rank\nshmccl.launch(main, 2)\n", "put the call under if __name__"),
    ]:
        _, error = run_program(text, tmp_path)
        last = [line for line in error.splitlines() if "DeviceFailedError" in line]
        assert last and told in last[0], error
        assert "before its work was done" not in error


def test_locks_and_queues_go_along_with_fresh_processes():
    queue = multiprocessing.get_context("spawn").SimpleQueue()
    assert shmccl.launch(ranks.puts_its_rank, 2, queue, start="spawn") == [None, None]
    assert sorted([queue.get(), queue.get()]) == [0, 1]


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"heap": True}, "heap= takes"),
        ({"heap": -1}, "heap= takes"),
        ({"heap": 2.5}, "is no number of bytes"),
        ({"heap": None}, "is no number of bytes"),
        ({"timeout": True}, "timeout= takes seconds"),
        ({"timeout": 0}, "timeout= takes seconds"),
        ({"timeout": float("nan")}, "timeout= takes seconds"),
    ],
)
def test_settings_that_mean_nothing_are_refused_by_name(settings, told):
    with pytest.raises(ValueError, match=told):
        shmccl.launch(ranks.sum_of_ranks, 2, 2, **settings)
    if "heap" in settings and settings["heap"] is not None:
        with pytest.raises(ValueError, match=told):
            shmccl.init(rank=0, size=1, **settings)
    with pytest.raises((TypeError, ValueError), match="ranks, not"):
        shmccl.launch(ranks.sum_of_ranks, True, 2)
