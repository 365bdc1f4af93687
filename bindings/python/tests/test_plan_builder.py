"""Plans that Python builds and checks."""

import os
import pathlib
import shutil
import subprocess
import sys
import threading

import numpy as np
import pytest
import shmccl
from shmccl.plan import Program, check
from test_collectives import on_ranks

ROOT = pathlib.Path(__file__).resolve().parents[3]
PLANS = ROOT / "tests" / "plans"


def one_shot(ranks):
    program = Program("one_shot", "allreduce", ranks, in_place=True, packets=True, input_chunks=1, output_chunks=1, scratch_chunks=ranks)
    for rank in range(ranks):
        block, own = program.block(rank), program.input(rank, 0)
        others = [peer for peer in range(ranks) if peer != rank]
        for peer in others:
            program.put_packets(block, own, program.scratch(peer, rank))
        program.reduce_packets(block, own, [program.scratch(rank, peer) for peer in others], own)
    return program


def meet(program, block, channels, signal, wait):
    for channel in channels:
        signal(block, channel)
    for channel in channels:
        wait(block, channel)


def two_shot(ranks):
    program = Program("two_shot", "allreduce", ranks, in_place=True, input_chunks=ranks, output_chunks=ranks)
    channels = [[program.memory_channel(rank, peer) for peer in range(ranks) if peer != rank] for rank in range(ranks)]
    for rank in range(ranks):
        block = program.block(rank)
        meet(program, block, channels[rank], program.relaxed_signal, program.relaxed_wait)
        parts = [program.input(peer, rank) for peer in [rank, *(peer for peer in range(ranks) if peer != rank)]]
        program.reduce(block, parts, parts)
        meet(program, block, channels[rank], program.signal, program.wait)
    return program


def ring(ranks):
    program = Program("ring", "allgather", ranks, in_place=True, input_chunks=1, output_chunks=ranks)
    ends = [(program.memory_channel(rank, (rank + 1) % ranks), program.memory_channel((rank + 1) % ranks, rank)) for rank in range(ranks)]
    for rank in range(ranks):
        (to_next, _), (_, from_before) = ends[rank], ends[rank - 1]
        block = program.block(rank)
        program.relaxed_signal(block, from_before)
        program.relaxed_wait(block, to_next)
        for step in range(ranks - 1):
            chunk = (rank - step) % ranks
            program.put(block, program.output(rank, chunk), program.output((rank + 1) % ranks, chunk))
            program.signal(block, to_next)
            program.wait(block, from_before)
    return program


@pytest.mark.skipif(not shutil.which("cargo"), reason="the examples in Rust are compiled")
@pytest.mark.parametrize("program", [ring, one_shot, two_shot], ids=lambda program: program.__name__)
def test_a_program_makes_the_bytes_of_the_same_one_in_rust(program):
    examples = ["cargo", "run", "--quiet", "--locked", "-p", "shmccl-plan", "--example", "plans", "--"]
    for ranks in 2, 5:
        made = subprocess.run([*examples, program.__name__, str(ranks)], cwd=ROOT, capture_output=True, text=True)
        assert made.returncode == 0, made.stderr
        assert program(ranks).finish() == made.stdout


def line_of(code):
    lines = pathlib.Path(__file__).read_text().splitlines()
    return f"{__file__}:{next(number for number, line in enumerate(lines, 1) if line.strip().startswith(code))}"


def test_a_racy_program_is_refused_with_both_operations_and_their_lines():
    program = ring(2)
    program.set_scratch(0, 1)
    # In no order with the put of rank 1.
    program.copy(program.block(0), program.output(0, 1), program.scratch(0, 0))
    with pytest.raises(shmccl.PlanError) as refused:
        program.finish()
    told = str(refused.value)
    assert told.startswith("the plan is not proved right: race: ") and "\n" not in told
    assert "rank 0 block 1 operation 0 (copy)" in told and "rank 1 block 0 operation " in told and "(put)" in told, told
    assert line_of("program.copy(program.block(0)") in told and line_of("program.put(block, program.output(rank, chunk)") in told, told
    with pytest.raises(shmccl.PlanError):
        program.write(os.devnull)
    race = next(finding for finding in check(program.finish_unproved()) if finding.kind == "race")
    assert race.error and race.remedy and race.what in str(race) and repr(race).startswith("Finding(")
    assert {(0, 1, "copy"), (1, 0, "put")} == {(rank, block, name) for rank, block, _, name in race.places}


def test_a_check_tells_what_is_wrong_and_what_is_no_plan(tmp_path):
    assert check(PLANS / "generated" / "ar_2.json") == []
    assert check((PLANS / "generated" / "ar_2.json").read_text(), size=512) == []
    stuck = check(str(PLANS / "faulty" / "deadlock_03.json"))
    assert stuck[0].kind == "deadlock" and stuck[0].error and stuck[0].sizes
    for source, told in (
        ("{}", "the text: the plan"),
        (tmp_path / "missing.json", "missing.json: the plan: cannot be read"),
        (PLANS / "faulty" / "value_11.json", "rank 1 block 1 operation 0 (respkt)"),
    ):
        with pytest.raises(shmccl.PlanError) as refused:
            check(source)
        assert told in str(refused.value), refused.value
    with pytest.raises(shmccl.PlanError, match="take 256 or 512"):
        check(PLANS / "generated" / "ar_2.json", size=300)
    with pytest.raises(TypeError):
        check(17)


def test_a_built_plan_adds_up_what_two_ranks_have(tmp_path):
    path = tmp_path / "two_shot.json"
    two_shot(2).write(path)
    text = one_shot(2).finish()

    def body(comm):
        assert comm.register_plan(path) == "two_shot"
        total = comm.all_reduce(np.arange(4096.0) * (comm.rank + 1))
        assert (total == np.arange(4096.0) * 3).all() and comm.planned_calls("two_shot") == 1
        comm.unregister_plan("two_shot")
        assert comm.register_plan(text) == "one_shot"
        total = comm.all_reduce(np.full(64, comm.rank + 1, "int32"))
        assert (total == 3).all() and comm.planned_calls("one_shot") == 1

    on_ranks(body, 2)


def through(route):
    """A sum of what two ranks have, whose second half of the work is done by `route`."""
    program = Program("sum", "allreduce", 2, in_place=True, input_chunks=2, output_chunks=2, scratch_chunks=1, instances=2)
    ends = [(program.port_channel(rank, 1 - rank), program.memory_channel(rank, 1 - rank)) for rank in range(2)]
    for rank, (port, channel) in enumerate(ends):
        block, mine = program.block(rank), program.input(rank, rank)
        program.put_with_signal(block, port, program.input(rank, 1 - rank), program.scratch(1 - rank, 0), flush=True)
        program.wait(block, port)
        program.reduce(block, [mine, program.scratch(rank, 0)], [mine])
        route(program, rank, block, channel, mine)
    return program


def by_put(program, rank, block, channel, mine):
    program.put(block, mine, program.input(1 - rank, rank))
    program.signal(block, channel)
    program.wait(block, channel)


def by_get(program, rank, block, channel, _mine):
    program.signal(block, channel)
    program.wait(block, channel)
    program.get(block, program.input(1 - rank, 1 - rank), program.input(rank, 1 - rank))
    program.signal(block, channel)
    program.wait(block, channel)


@pytest.mark.parametrize("route", [by_put, by_get])
def test_ports_gets_and_instances_are_proved(route):
    text = through(route).finish()
    assert check(text, size=4096) == [] or not any(finding.error for finding in check(text))


def test_groups_blocks_semaphores_and_pipelines_are_proved():
    program = Program("group", "allreduce", 2, in_place=True, input_chunks=2, output_chunks=2)
    ends = [program.memory_channel(rank, 1 - rank) for rank in range(2)]
    for rank, end in enumerate(ends):
        group, done, ready = program.group(rank, [0, 1], "input"), program.semaphore(rank), program.semaphore(rank)
        block, other = program.block(rank), program.block(rank)
        meet(program, block, [end], program.relaxed_signal, program.relaxed_wait)
        program.release(block, ready)
        program.acquire(other, ready)
        program.group_reduce(other, group, rank)
        program.release(other, done)
        program.acquire(block, done)
        program.signal(block, end)
        program.wait(block, end)
        program.barrier(0, [block, other])
    assert not any(finding.error for finding in check(program.finish()))
    copies = Program("pieces", "allgather", 1, input_chunks=1, output_chunks=1)
    block = copies.block(0)
    with copies.pipeline(block, 1 << 10, 1):
        copies.copy(block, copies.input(0, 0), copies.output(0, 0))
    assert '"name":"pipeline"' in copies.finish().replace(" ", "")


def test_calls_without_a_meaning_are_refused_in_one_line():
    program, other = (Program("x", "allreduce", 2, input_chunks=1, output_chunks=1) for _ in range(2))
    block, port = program.block(0), program.port_channel(0, 1)
    for wrong, kind, told in (
        (lambda: Program("x", "allreduce", 257), ValueError, "257 ranks; a plan has 1 to 256"),
        (lambda: Program("x", "allreduce", -1), OverflowError, "negative"),
        (lambda: program.block(2), ValueError, "there is no rank 2; the program has 2"),
        (lambda: program.memory_channel(0, 7), ValueError, "there is no rank 7"),
        (lambda: program.group(0, [0, 1], "inputs"), ValueError, 'no buffer "inputs"'),
        (lambda: other.signal(block, port), ValueError, "the block is of another program"),
        (lambda: program.copy(block, program.input(0, 0), program.input(1, 0)), shmccl.PlanError, "test_plan_builder.py:"),
        (lambda: program.wait(program.block(1), port), shmccl.PlanError, "the channel is of rank 0"),
        (lambda: program.barrier(0, [block, program.block(1)]), shmccl.PlanError, "cannot meet in a barrier"),
        (lambda: program.pipeline(block, 0, 1).__exit__(None, None, None), shmccl.PlanError, "no pipeline is open"),
        (lambda: program.finish(), shmccl.PlanError, "the plan is not proved right: value: "),
        (lambda: program.copy(block, 0, 0), TypeError, "Chunks"),
    ):
        with pytest.raises(kind) as refused:
            wrong()
        assert told in str(refused.value) and "\n" not in str(refused.value), refused.value
    many = Program("x", "allreduce", 2, input_chunks=1, output_chunks=1, instances=1 << 31)
    many.block(0)
    with pytest.raises(shmccl.PlanError, match="give 256 in all at most"):
        many.finish()
    beyond = Program("x", "allreduce", 2, input_chunks=1, output_chunks=1, instances=2)
    beyond.copy(beyond.block(0), beyond.input(0, (1 << 32) - 1), beyond.input(0, 0, (1 << 32) - 1))
    with pytest.raises(shmccl.PlanError):
        beyond.finish()


def test_a_program_is_free_for_other_threads_while_a_refusal_is_raised(monkeypatch):
    program = Program("x", "allreduce", 2, input_chunks=1, output_chunks=1)
    block, here, there = program.block(0), program.input(0, 0), program.input(1, 0)
    raising, added = threading.Event(), threading.Event()

    def slowly(error, text):
        raising.set()
        assert added.wait(30)

    def refused():
        with pytest.raises(shmccl.PlanError):
            program.copy(block, here, there)

    monkeypatch.setattr(shmccl.PlanError, "__init__", slowly)
    thread = threading.Thread(target=refused)
    thread.start()
    assert raising.wait(30)
    program.block(1)
    added.set()
    thread.join(30)


def test_importing_the_builder_takes_no_numpy():
    told = "import sys, shmccl.plan; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr
