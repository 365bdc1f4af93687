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


def test_the_manual_lists_all_exceptions_with_what_else_they_are():
    errors = importlib.import_module("shmccl._errors")
    rows = re.findall(r"^\| (?:`(\w+)`)? *\| (`\w+Error`.*) \|$", TEXTS[0].split("| also | classes |")[1], re.MULTILINE)
    listed = {name: also for also, names in rows for name in re.findall(r"`(\w+Error)`", names)}
    kinds = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and name != "Error"}
    assert listed == {name: kind.__bases__[1].__name__ if kind.__bases__[1:] else "" for name, kind in kinds.items()}
    before = dict(re.findall(r"`(\w+Error)` \(was `(\w+)`\)", TEXTS[0]))
    assert before == {name: before for before, name in errors._LONGER.items()}


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
