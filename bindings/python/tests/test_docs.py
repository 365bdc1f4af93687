"""Runs each program of docs/python.md."""

import pathlib
import re
import subprocess
import sys

import pytest

MANUAL = pathlib.Path(__file__).parents[3] / "docs" / "python.md"
PROGRAMS = re.findall(r"^```python\n(.*?)^```$", MANUAL.read_text(), re.MULTILINE | re.DOTALL)


def test_the_manual_has_programs():
    assert len(PROGRAMS) >= 8


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_a_program_of_the_manual_runs(number, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAMS[number])
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
