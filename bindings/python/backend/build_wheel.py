"""Builds the wheel by maturin, with the command `shmccl` and the header `shmccl.h` in it.

The command is a program of its own, which starts and measures processes. The package of the extension module has it as
well, so that Cargo compiles the engine once for both.
"""

import os
import pathlib
import shutil
import subprocess

import maturin
from maturin import *  # noqa: F403  the other hooks of the build

HERE = pathlib.Path(__file__).resolve().parent.parent


def _build_command():
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", HERE / "target"))
    build = ["cargo", "build", "--release", "--locked", "--bin", "shmccl", "--target-dir", str(target)]
    subprocess.run(build, cwd=HERE, check=True)
    place = HERE / "python" / "shmccl" / "_bin"
    place.mkdir(exist_ok=True)
    shutil.copy2(target / "release" / "shmccl", place / "shmccl")


def _copy_header():
    place = HERE / "python" / "shmccl" / "include"
    place.mkdir(exist_ok=True)
    shutil.copy2(HERE.parent / "c" / "include" / "shmccl.h", place / "shmccl.h")


def build_wheel(*arguments, **settings):
    _build_command()
    _copy_header()
    os.environ["MATURIN_PEP517_ARGS"] = f"--compression-level=9 {os.environ.get('MATURIN_PEP517_ARGS', '')}".strip()
    return maturin.build_wheel(*arguments, **settings)
