"""Builds the wheel by maturin, with the command `shmccl` and the header `shmccl.h` in it.

The command is a program of its own, which starts and measures processes. It is built in the
target folder of the extension module. Cargo tells the two workspaces apart, so each compiles the engine.
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
    # As in Cargo.toml here: the wheel is to be small.
    settings = ["--config", "profile.release.strip=true"]
    subprocess.run([*build, *settings, "--target-dir", str(target)], cwd=ROOT, check=True)
    place = HERE / "python" / "shmccl" / "_bin"
    place.mkdir(exist_ok=True)
    shutil.copy2(target / "release" / "shmccl", place / "shmccl")


def _copy_header():
    place = HERE / "python" / "shmccl" / "include"
    place.mkdir(exist_ok=True)
    shutil.copy2(ROOT / "bindings" / "c" / "include" / "shmccl.h", place / "shmccl.h")


def build_wheel(*arguments, **settings):
    if (ROOT / "bin" / "Cargo.toml").exists():
        _build_command()
        _copy_header()
    return maturin.build_wheel(*arguments, **settings)
