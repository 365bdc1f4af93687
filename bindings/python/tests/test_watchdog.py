"""The watchdog of the tests."""

import pathlib
import subprocess
import sys

HANGS = """
import pytest, time

@pytest.mark.patience(1)
def test_that_hangs():
    time.sleep(60)
"""


def test_a_test_that_hangs_is_named_with_its_stack(tmp_path):
    (tmp_path / "conftest.py").write_text(pathlib.Path(__file__).with_name("conftest.py").read_text())
    (tmp_path / "test_hanging.py").write_text(HANGS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, cwd=tmp_path)
    assert done.returncode == 1 and "in test_that_hangs" in done.stderr, done
