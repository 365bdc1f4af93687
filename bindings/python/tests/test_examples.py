"""Runs each program in Python of the folder examples, which holds its results against those of one rank alone."""

import pathlib
import subprocess
import sys

import pytest

EXAMPLES = sorted((pathlib.Path(__file__).parents[3] / "examples").glob("*.py"))


def test_there_are_examples():
    assert EXAMPLES


@pytest.mark.parametrize("ranks", ["2", "3", "4"])
@pytest.mark.parametrize("program", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_tells_both_times(program, ranks):
    done = subprocess.run([sys.executable, program, ranks], capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert "computed alone" in line and " by " in line.split("computed alone")[1], line
    print(line)
