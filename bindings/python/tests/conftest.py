"""Every test has a watchdog: a deadlock is a failure with the stacks of all threads, and not a build that hangs."""

import faulthandler

import pytest


@pytest.fixture(autouse=True)
def watchdog():
    faulthandler.dump_traceback_later(120, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()
