"""The tests that come with torch."""

import os
import pathlib
import re
import subprocess
import sys
import warnings

import pytest
from torch_ranks import IS_SHIM

SUITE = pathlib.Path(__file__).with_name("distributed_suite.py")
# Compares the backend's name with those that torch knows.
KNOWN = {"test_ddp_logging_data_cpu"}
PASSED = 65


def run_suite(*names):
    """Runs tests of the suite, or all. Returns what it says, how many ran and were not skipped, and which have failed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CI": "true"}
    command = [sys.executable, str(SUITE), *names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=420, check=False)
    ended = re.search(r"^Ran (\d+) tests?", done.stderr, re.M)
    assert ended, f"the suite has not come to its end: status {done.returncode}\n{done.stderr[-4000:]}"
    skipped = re.search(r"skipped=(\d+)", done.stderr)
    failed = set(re.findall(r"^(?:FAIL|ERROR): (test_\w+)", done.stderr, re.M))
    return done.stderr, int(ended[1]) - (int(skipped[1]) if skipped else 0), failed


@pytest.mark.patience(900)
@pytest.mark.skipif(not IS_SHIM, reason="the suite polls works and asks for sources")
def test_all_tests_of_torch_pass_but_one_that_knows_backends_by_name():
    said, ran, failed = run_suite()
    assert ran - len(failed & KNOWN) >= PASSED
    # Some of them have short deadlines of their own. One that fails beside other work has to pass alone, and is told.
    unexpected = sorted(failed - KNOWN)
    assert len(unexpected) <= 2, f"{unexpected}\n{said[-4000:]}"
    for name in unexpected:
        first = said[said.index(f": {name} "):][:4000]
        again, _, failed_again = run_suite(f"TestShmccl.{name}")
        assert not failed_again, f"{name} fails alone, too:\n{again[-4000:]}"
        warnings.warn(f"{name} has failed once, and passed alone:\n{first}", stacklevel=1)
