"""Execution plans that do calls, and plans that are built and checked."""

import pathlib

import numpy as np
import pytest
import shmccl
from test_collectives import on_ranks

PLANS = pathlib.Path(__file__).resolve().parents[3] / "tests" / "plans" / "generated"


def test_a_registered_plan_does_the_calls_that_it_fits():
    def body(comm):
        with pytest.raises(shmccl.Plan, match="no_such_plan.json"):
            comm.register_plan("no_such_plan.json")
        assert comm.register_plan(PLANS / "ag_2.json") == "allgather"
        for count, calls in (1024, 1), (1, 1), (64, 2):
            gathered = comm.all_gather(np.full(count, comm.rank, "float32"))
            assert gathered.ravel().tolist() == [0] * count + [1] * count
            assert comm.planned_calls("allgather") == calls
        comm.unregister_plan("allgather")
        assert comm.planned_calls("allgather") is None

    on_ranks(body, 2)
