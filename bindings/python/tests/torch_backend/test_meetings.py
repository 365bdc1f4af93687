"""How ranks find each other: deaths while they do, stores that outlive a job, and stores that can do little.

SHMCCL_LONG=1 does 200 deaths and 100 stores, and prints how long it took until the others knew. SHMCCL_SEED replays the
instants.
"""

import contextlib
import datetime
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

import pytest
import torch
import torch.distributed as dist
from torch_ranks import FORK, IS_LONG, WATCHDOG, init, outcomes, run

from shmccl import _core
from shmccl.torch import _meeting

DEATHS = 200 if IS_LONG else 8
STORES = 100 if IS_LONG else 5
RANKS = 3
PROMISED = 1.0  # seconds until all others know


def die(path):
    pathlib.Path(path).write_text(str(time.monotonic()))
    os.kill(os.getpid(), signal.SIGKILL)


def dies_at(step, path):
    """Lets this process die behind a part of the way, or so many seconds after others can know that it has come."""
    parts = {"told": (_meeting.Keys, "set"), "looked": (_meeting.Keys, "have"), "found": (_meeting, "come"), "made": (dist, "new_group")}
    kind, name = parts.get(step, parts["told"])
    before = getattr(kind, name)

    def ends(*arguments, **options):
        before(*arguments, **options)
        if step in parts:
            die(path)
        threading.Thread(target=lambda: (time.sleep(step), die(path)), daemon=True).start()

    setattr(kind, name, ends)


def rank_of_a_job(rank, n, all_there, folder, victim, step, delay):
    """Writes how long after the victim's death it was told of it, or what went wrong."""
    died = folder / "died"
    if rank == victim:
        dies_at(step, died)
    # Who has died before another process was there may be of an earlier job.
    all_there.wait()
    time.sleep(delay)
    begun = time.monotonic()
    try:
        init(rank, n, str(folder / "store"), timeout=60)
        dist.new_group()
        while True:
            dist.all_reduce(torch.ones(3))
    except RuntimeError as error:
        told = time.monotonic() - max(float(died.read_text()), begun)
        if f"rank {victim} " not in str(error):
            told = f"was told: {error}"
    (folder / f"told{rank}").write_text(str(told))
    # Whoever is told that this one has ended was not told of the victim.
    others = {*range(n)} - {victim}
    while not all((folder / f"told{other}").exists() for other in others):
        time.sleep(0.005)
    os._exit(0)


def begin(function, n, *arguments, delays):
    all_there = FORK.Barrier(n)
    ranks = [FORK.Process(target=function, args=(rank, n, all_there, *arguments, delays[rank])) for rank in range(n)]
    for process in ranks:
        process.start()
    return ranks


def end(ranks):
    deadline = time.monotonic() + WATCHDOG
    for process in ranks:
        process.join(max(0, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()


def seeded():
    seed = int(os.environ.get("SHMCCL_SEED", time.time_ns() % 1_000_000))
    print(f"SHMCCL_SEED={seed}")
    return random.Random(seed)


def test_wherever_a_rank_dies_on_its_way_into_a_group_all_others_are_told():
    instants, late = seeded(), []
    steps = ["told", "looked", "found", "made"]
    for number in range(DEATHS):
        victim = instants.randrange(RANKS)
        step = steps[number % 4] if number % 8 < 4 else instants.uniform(0, 0.08)
        delays = [instants.choice([0, instants.uniform(0, 0.03)]) for _ in range(RANKS)]
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            end(begin(rank_of_a_job, RANKS, folder, victim, step, delays=delays))
            for rank in {*range(RANKS)} - {victim}:
                file = folder / f"told{rank}"
                told = file.read_text() if file.exists() else "was not told"
                assert not told.startswith("was"), f"trial {number}: victim {victim} at {step}: rank {rank} {told}"
                late.append(float(told))
    late.sort()
    shares = ", ".join(f"{share}% {late[(len(late) - 1) * share // 100] * 1e3:.1f}" for share in (50, 90, 99, 100))
    print(f"{DEATHS} deaths; ms until a rank knew: {shares}")
    if IS_LONG:
        assert late[-1] < PROMISED


def test_a_first_rank_that_has_died_before_another_one_came_is_told_to_that_one():
    store, now = dist.HashStore(), _meeting._now()
    pid, start, rest = _meeting._own_mark(os.getpid()).split(".", 2)
    dead = _meeting.Text("here", f"{pid}.{int(start) + 1}.{rest}", now, f"shmccl-{0:032}", "")
    _meeting.Keys(store, "0").set(0, dead)
    with pytest.raises(dist.DistBackendError, match=r"rank 0 \(process \d+\) was lost"):
        _meeting.come(store, "0", 1, 3, datetime.timedelta(seconds=10), [0, 1, 2], "here")


def rank_of_the_next_job(rank, n, all_there, folder, delay):
    all_there.wait()
    time.sleep(delay)
    init(rank, n, str(folder / "store"), timeout=60)
    total = torch.ones(3)
    dist.all_reduce(total)
    (folder / f"total{rank}").write_text(str(total[0].item()))
    dist.destroy_process_group()


def test_a_store_of_a_job_that_has_died_serves_the_next_one_in_whatever_order_its_ranks_come():
    instants = seeded()
    for number in range(STORES):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            dead = begin(rank_of_the_next_job, RANKS, folder, delays=[0] * RANKS)
            time.sleep(instants.uniform(0, 0.12))
            for process in dead:
                process.kill()
            end(dead)
            for total in folder.glob("total*"):
                total.unlink()
            delays = [instants.uniform(0, 0.1) for _ in range(RANKS)]
            end(begin(rank_of_the_next_job, RANKS, folder, delays=delays))
            totals = [(folder / f"total{rank}").read_text() for rank in range(RANKS)]
            assert totals == [str(float(RANKS))] * RANKS, number


def again_and_again(rank, n, path):
    for number in range(5):
        dist.destroy_process_group()
        init(rank, n, path)
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == n, number


def test_one_store_serves_groups_of_one_name_one_after_the_other(tmp_path):
    run(2, again_and_again, str(tmp_path / "store"))


class Little(dist.Store):
    """A store that can do what it is asked for in the least."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def set(self, key, value):
        return self.inner.set(key, value)

    def get(self, key):
        return self.inner.get(key)

    def wait(self, keys, timeout=None):
        return self.inner.wait(keys, timeout) if timeout else self.inner.wait(keys)


class Refusing(Little):
    def check(self, keys):
        raise NotImplementedError("check")

    add = delete_key = multi_get = check


class Untimed(Little):
    def wait(self, keys):
        return self.inner.wait(keys)


class Checking(Little):
    def check(self, keys):
        return self.inner.check(keys)


kept = []


def summed_over(rank, n, kind, path):
    dist.destroy_process_group()
    kept.append(kind(dist.FileStore(path, n)))
    for _ in range(2):
        dist.init_process_group("shmccl", rank=rank, world_size=n, store=kept[0], timeout=datetime.timedelta(seconds=30))
        for group in None, dist.new_group(), dist.new_group([1, 0]):
            total = torch.ones(1)
            dist.all_reduce(total, group=group)
            assert total.item() == n
        dist.destroy_process_group()


@pytest.mark.parametrize("kind", (Little, Refusing, Untimed, Checking))
def test_set_get_and_wait_are_enough_of_a_store(kind, tmp_path):
    run(2, summed_over, kind, str(tmp_path / "store"))


class Broken(Little):
    def check(self, keys):
        raise ConnectionError("nobody there")

    def wait(self, keys, timeout=None):
        raise ConnectionError("nobody there")


def test_a_store_that_fails_is_told_with_its_own_words():
    store = Broken(dist.HashStore())
    kept.append(store)
    with pytest.raises(dist.DistBackendError, match="the store failed: .*nobody there"):
        _meeting.come(store, "group", 1, 2, datetime.timedelta(seconds=30), [], "here")


FOREVER = datetime.timedelta(days=300 * 365), datetime.timedelta.max, datetime.timedelta(days=292 * 365)


def waits_forever(rank, n, forever):
    for _ in range(4):
        group = dist.new_group(timeout=forever)
        total = torch.ones(1)
        dist.all_reduce(total, group=group)
        dist.all_reduce(total, group=group, async_op=True).wait(forever)
        assert total.item() == n * n
        if hasattr(dist, "set_timeout"):
            dist.set_timeout(forever, group)
        dist.barrier(group)
        dist.monitored_barrier(group, timeout=forever)
        other = torch.zeros(1)
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, total, 1 - rank, group), dist.P2POp(dist.irecv, other, 1 - rank, group)]):
            work.wait(forever)
        assert other.item() == n * n


@pytest.mark.parametrize("forever", FOREVER)
def test_a_timeout_that_means_never_is_one(forever):
    run(2, waits_forever, forever)


def late_ones(rank, n, path, late):
    """What each rank but the late ones is told by each kind of wait."""
    short = datetime.timedelta(milliseconds=400)
    groups = [dist.new_group(timeout=short if number in (0, 3) else None) for number in range(5)]
    waits = [
        lambda group: dist.all_reduce(torch.ones(1), group=group),
        lambda group: dist.monitored_barrier(group, timeout=short),
        lambda group: dist.monitored_barrier(group, timeout=short, wait_all_ranks=True),
        lambda group: dist.barrier(group),
        lambda group: dist.all_reduce(torch.ones(1), group=group, async_op=True).wait(short),
    ]
    told = []
    if rank not in late:
        for wait, group in zip(waits, groups):
            with pytest.raises(dist.DistBackendError) as error:
                wait(group)
            told.append(str(error.value))
        (pathlib.Path(path) / str(rank)).touch()
    # The late ones are there until all others were told.
    while len(list(pathlib.Path(path).iterdir())) < n - len(late):
        time.sleep(0.01)
    return told


def named_in(text):
    lists = re.findall(r"(?:awaiting|late are|waiting for|\]:) [Rr]anks? ([0-9, ]*[0-9])", text)
    return sorted({int(number) for numbers in lists for number in numbers.split(", ")})


@pytest.mark.parametrize("late", ([2], [1, 3]))
def test_every_timeout_names_who_has_not_come_on_every_rank(late, tmp_path):
    for rank, (good, told) in enumerate(outcomes(4, late_ones, str(tmp_path), late)):
        assert good, told
        for number, text in enumerate(told):
            # A rank that another one has told reads of one that was late, as the engine's own time-outs do.
            named = named_in(text)
            assert named == late if number in (1, 2) else named and set(named) <= set(late), (rank, number, text)
            assert "revoked by rank" not in text, (rank, number, text)
            assert number not in (1, 2) or "failed to pass monitoredBarrier in 400 ms" in text


def test_a_text_of_the_process_that_reads_it_again_is_of_an_earlier_group():
    store = dist.HashStore()
    kept.append(store)

    def both():
        found = {}

        def comes(rank):
            found[rank] = _meeting.come(store, "twice", rank, 2, datetime.timedelta(seconds=30), [], "here")

        threads = [threading.Thread(target=comes, args=(rank,)) for rank in (1, 0)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found[0] == found[1]
        return found[0].id

    first, second = both(), both()
    assert first != second
    for id in first, second:
        with contextlib.suppress(Exception):
            _meeting.call_off(_meeting.Meeting([], [], id))


def comes_to(texts, own, n, seconds=60):
    """Has rank `own` come to a group of which the store has some texts already: process, time, id and run by rank."""
    store = dist.HashStore()
    kept.append(store)
    name = f"group {len(kept)}"
    for rank, text in texts.items():
        _meeting.Keys(store, name).set(rank, _meeting.Text("there", *text))
    return _meeting.come(store, name, own, n, datetime.timedelta(seconds=seconds), [], "here")


def of_another_machine():
    """A process that this machine does not have, of its first PID namespace's number."""
    _, _, namespace, clock = _core._process_mark().split(".")
    return f"4000000.777.{namespace}.{int(clock, 16) ^ 1:x}"


@pytest.mark.parametrize("was_started", ("earlier", "later"))
def test_a_rank_of_another_machine_is_believed_whatever_its_clock_and_its_number(was_started):
    came = 2 * _meeting._now() if was_started == "earlier" else 1
    text = of_another_machine(), came, "", ""
    meeting = comes_to({1: text}, 0, 2)
    _meeting.call_off(meeting)
    assert meeting.places == ["here", "there"]
    # Nobody receives on this machine under the id of a rank of another one.
    id = meeting.id
    while _core.UniqueId(id)._is_hosted():
        time.sleep(0.01)
    assert comes_to({0: (*text[:2], id, "")}, 1, 2).id == id
    with pytest.raises(dist.DistBackendError, match="rank 2 has not come within"):
        comes_to({1: text}, 0, 3, seconds=0.3)


PRINTS = "from shmccl import _core; print(_core._process_mark(), flush=True)"


def ended_process():
    return subprocess.run([sys.executable, "-c", PRINTS], capture_output=True, text=True, check=True).stdout.strip()


def test_a_rank_that_has_died_before_another_was_started_is_named(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "run")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    mark = ended_process()
    process = mark.split(".")[0]
    texts = {1: (mark, 1, "", _meeting._run())}
    with pytest.raises(dist.DistBackendError, match=rf"rank 1 \(process {process}\) was lost"):
        comes_to(texts, 2, 3)
    # It is of an earlier attempt, for all that is known.
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    said = rf"ranks 0, 1 have not come within 300 ms; rank 1 \(process {process}\) had ended before this one was started"
    with pytest.raises(dist.DistBackendError, match=said):
        comes_to(texts, 2, 3, seconds=0.3)


FIRST_THREAD_ENDS = f"""
import ctypes, sys, threading
{PRINTS}
threading.Thread(target=sys.stdin.read).start()
pthread_exit = ctypes.CDLL(None).pthread_exit
pthread_exit(None)
"""


def test_a_process_lives_on_when_only_its_first_thread_has_ended():
    child = subprocess.Popen([sys.executable, "-c", FIRST_THREAD_ENDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    mark = child.stdout.readline().strip()
    stat = pathlib.Path(f"/proc/{child.pid}/stat")
    while ") Z " not in stat.read_text():
        time.sleep(0.01)
    assert not _core._has_ended(mark)
    child.kill()
    child.communicate()
    assert _core._has_ended(mark)
