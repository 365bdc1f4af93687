"""Runs each program of docs/python.md and of the package's README, and holds what it prints against it."""

import importlib.util
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[3]
TEXTS = [(ROOT / name).read_text() for name in ("docs/python.md", "bindings/python/README.md")]
PROGRAMS = [text for page in TEXTS for text in re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)]


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
    promised = re.findall(r"^ *print\(.*\) +# (\[.*\])$", text, re.MULTILINE)
    assert [line for line in done.stdout.splitlines() if line in promised] == promised
