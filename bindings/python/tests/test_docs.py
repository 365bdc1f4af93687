"""Runs each program of docs/python.md."""

import importlib.util
import pathlib
import re
import subprocess
import sys

import pytest

MANUAL = pathlib.Path(__file__).parents[3] / "docs" / "python.md"
PROGRAMS = re.findall(r"^```python\n(.*?)^```$", MANUAL.read_text(), re.MULTILINE | re.DOTALL)


def test_the_manual_has_programs():
    assert len(PROGRAMS) >= 8


def name(text):
    return "torch" if "import torch" in text else "core"


def runnable():
    """The programs for which all is here. Where there is no torch, its step of the CI runs the others."""
    return [text for text in PROGRAMS if name(text) == "core" or importlib.util.find_spec("torch")]


@pytest.mark.parametrize("text", runnable(), ids=name)
def test_a_program_of_the_manual_runs(text, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(text)
    command = [sys.executable, program]
    if name(text) == "torch":
        command[1:1] = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
