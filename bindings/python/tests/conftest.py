"""Every test has a watchdog: a deadlock is a failure with the stacks of all threads, and not a build that hangs."""

import faulthandler
import importlib.util
import os

import pytest

# Where there is no torch, its step of the CI runs them.
if not importlib.util.find_spec("torch"):
    collect_ignore = ["test_torch_operands.py"]


WATCHDOG = 120  # seconds


def pytest_configure(config):
    config.addinivalue_line("markers", f"patience(seconds): the watchdog of this test, {WATCHDOG} s by default")
    # What a test writes to the standard error is captured, and lost with the process.
    config.standard_error = os.dup(2)
    # Processes that a test starts tell where they were if they crash.
    os.environ["PYTHONFAULTHANDLER"] = "1"


@pytest.fixture(autouse=True)
def watchdog(request):
    marker = request.node.get_closest_marker("patience")
    seconds = marker.args[0] if marker else WATCHDOG
    faulthandler.dump_traceback_later(seconds, exit=True, file=request.config.standard_error)
    yield
    faulthandler.cancel_dump_traceback_later()
