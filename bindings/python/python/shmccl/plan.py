"""Builds MSCCL++ execution plans, and checks them.

    from shmccl.plan import Program, check

    program = Program("pairs", "allreduce", 2, in_place=True, packets=True, input_chunks=1, output_chunks=1, scratch_chunks=2)
    for rank in range(2):
        block, own = program.block(rank), program.input(rank, 0)
        program.put_packets(block, own, program.scratch(1 - rank, rank))
        program.reduce_packets(block, own, [program.scratch(rank, 1 - rank)], own)
    program.write("pairs.json")             # proved, or PlanError is raised
    assert not any(finding.error for finding in check("pairs.json"))

The calls are those of the builder in Rust: docs/plans.md.
"""

from ._core import Block, Chunks, Finding, Pipeline, Program, Semaphore
from ._core import PlanChannel as Channel
from ._core import PlanGroup as Group
from ._core import check_plan as check

__all__ = ["Block", "Channel", "Chunks", "Finding", "Group", "Pipeline", "Program", "Semaphore", "check"]
