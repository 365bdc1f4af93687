"""Builds the wheel by maturin, with the command `shmccl` in it.

The command is a program of its own, which starts and measures processes. It is built in the same target folder with
the same settings as the extension module, so the engine is compiled once for both.
"""

import os
import pathlib
import shutil
import subprocess

import maturin
from maturin import *  # noqa: F403  the other hooks of the build

HERE = pathlib.Path(__file__).resolve().parent.parent
ROOT = HERE.parent.parent


def _build_command():
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", HERE / "target"))
    build = ["cargo", "build", "--release", "--locked", "-p", "shmccl-cli", "--bin", "shmccl"]
    # As in Cargo.toml here: the module and the command share what is compiled.
    settings = ["--config", "profile.release.strip=true"]
    subprocess.run([*build, *settings, "--target-dir", str(target)], cwd=ROOT, check=True)
    place = HERE / "python" / "shmccl" / "_bin"
    place.mkdir(exist_ok=True)
    shutil.copy2(target / "release" / "shmccl", place / "shmccl")


def build_wheel(*arguments, **settings):
    if (ROOT / "bin" / "Cargo.toml").exists():
        _build_command()
    return maturin.build_wheel(*arguments, **settings)
