"""Execution plans that do calls, and plans that are built and checked."""

import pathlib

import numpy as np
import pytest
import shmccl
from test_collectives import on_ranks

PLANS = pathlib.Path(__file__).resolve().parents[3] / "tests" / "plans" / "generated"


def test_a_registered_plan_does_the_calls_that_it_fits():
    def body(comm):
        with pytest.raises(shmccl.PlanError, match="no_such_plan.json"):
            comm.register_plan("no_such_plan.json")
        assert comm.register_plan(PLANS / "ag_2.json") == "allgather"
        for count, calls in (1024, 1), (1, 1), (64, 2):
            gathered = comm.all_gather(np.full(count, comm.rank, "float32"))
            assert gathered.ravel().tolist() == [0] * count + [1] * count
            assert comm.planned_calls("allgather") == calls
        comm.unregister_plan("allgather")
        assert comm.planned_calls("allgather") is None

    on_ranks(body, 2)


def test_a_plan_of_sendrecv_is_called_by_its_name():
    def body(comm):
        mine, other = np.full(64, comm.rank, "float32"), [1 - comm.rank] * 64
        with pytest.raises(shmccl.UnavailableError, match="run_plan"):
            comm.run_plan("sendrecv", mine)
        assert comm.register_plan(PLANS / "mn_sendrecv_2x1_m0_i1.json") == "sendrecv"
        assert comm.run_plan("sendrecv", mine).tolist() == other
        with pytest.raises(shmccl.InvalidArgumentError, match="bytes of a call by a plan"):
            comm.run_plan("sendrecv", mine[:1])
        x, theirs = comm.zeros(64, "float32"), np.zeros(64, "float32")
        with shmccl.group():
            comm.run_plan("sendrecv", mine, theirs)
        assert theirs.tolist() == other
        np.asarray(x)[:] = comm.rank
        with comm.stream() as stream:
            comm.run_plan("sendrecv", x, x, stream=stream)
            stream.synchronize()
        assert np.asarray(x).tolist() == other
        assert comm.planned_calls("sendrecv") == 3

    on_ranks(body, 2)
