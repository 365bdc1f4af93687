"""Every test has a watchdog: a deadlock is a failure with the stacks of all threads, and not a build that hangs."""

import faulthandler
import importlib.util

import pytest

# Where there is no torch, its step of the CI runs them.
if not importlib.util.find_spec("torch"):
    collect_ignore = ["test_torch_operands.py"]


@pytest.fixture(autouse=True)
def watchdog():
    faulthandler.dump_traceback_later(120, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()
