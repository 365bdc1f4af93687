"""Finding and building the shim: prebuilt, cached, none; and ranks that have found different ones."""

import os
import re
import shutil
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from torch_ranks import TORCH, outcomes, run

import shmccl.torch
from shmccl.torch import _build

TWO_RANKS = """
import os, sys, tempfile, warnings
import torch.multiprocessing as mp, torch, torch.distributed as dist
import shmccl.torch

def main(rank, path):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        dist.init_process_group("shmccl", rank=rank, world_size=2, store=dist.FileStore(path, 2))
        dist.new_group()
        tensor = torch.ones(4)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [2] * 4
        texts = [str(warning.message) for warning in seen if "shmccl" in str(warning.message)]
        if rank == 0:
            print(len(texts), texts[0] if texts else "", type(dist.distributed_c10d._get_default_group()._get_backend(
                torch.device("cpu"))).__name__)
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.start_processes(main, (os.path.join(tempfile.mkdtemp(), "store"),), nprocs=2, start_method="fork")
"""


def without_compiler(path):
    """The PATH with all but the compilers."""
    for name in ("python3", "sh", "env"):
        (path / name).symlink_to(shutil.which(name) or sys.executable)
    return str(path)


def package(place, shim=None):
    """A copy of the package without shims, but for one that lies where the shim for this torch is looked for."""
    shutil.copytree(_build.PACKAGE.parent, place / "shmccl", ignore=shutil.ignore_patterns("shim-*.so"))
    if shim:
        shutil.copy2(shim, _build.prebuilt(place / "shmccl" / "torch"))
    return place


def two_ranks(tmp_path, shim=None, **environment):
    """Runs two ranks with a package of `shim`, without a compiler and with an empty cache."""
    script = tmp_path / "two_ranks.py"
    script.write_text(TWO_RANKS)
    (tmp_path / "bin").mkdir()
    path = os.pathsep.join([str(package(tmp_path / "package", shim)), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "SHMCCL_CACHE": str(tmp_path / "cache"), "PATH": without_compiler(tmp_path / "bin"),
                   "PYTHONPATH": path, **environment}
    return subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=100, env=environment, check=False)


def of_another_torch(shim, path):
    """A copy of the shim that says to be built for torch 9.x."""
    mine = _build.built_for(shim).encode()
    path.write_bytes(shim.read_bytes().replace(b"SHMCCL_SHIM_TORCH=" + mine, b"SHMCCL_SHIM_TORCH=" + b"9" + mine[1:]))
    return path


IN_PYTHON = pytest.mark.skipif(TORCH < (2, 14), reason="the backend in Python needs torch 2.14")


@IN_PYTHON
def test_without_a_compiler_the_backend_in_python_is_used_with_one_warning(tmp_path):
    done = two_ranks(tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 shmccl: the backend in Python is used, as there is no g++"), done.stdout
    assert "Missing are windows" in done.stdout and done.stdout.strip().endswith("PythonBackend")


def test_without_a_compiler_the_shim_can_be_insisted_on(tmp_path):
    done = two_ranks(tmp_path, SHMCCL_TORCH="shim")
    assert done.returncode != 0 and "there is no g++" in done.stderr


def test_a_choice_that_does_not_exist_is_refused(tmp_path):
    done = two_ranks(tmp_path, SHMCCL_TORCH="rust")
    assert done.returncode != 0 and "SHMCCL_TORCH is 'rust', expected shim or python" in done.stderr


def test_a_shim_of_another_torch_is_refused_with_both_versions_named(tmp_path):
    real = _build.find()
    assert _build.base_version(_build.built_for(real)) == _build.base_version(torch.__version__)
    other = of_another_torch(real, tmp_path / "shim.so")
    with pytest.raises(_build.ShimUnavailable, match=f"was built for torch 9.*and this is torch {torch.__version__[:4]}"):
        _build.load(other)
    (tmp_path / "nothing.so").write_bytes(b"no library")
    with pytest.raises(_build.ShimUnavailable, match="of no known version"):
        _build.load(tmp_path / "nothing.so")


def test_what_else_lies_in_the_cache_under_the_name_of_the_shim_is_replaced_or_passed_over(tmp_path, monkeypatch):
    fake = tmp_path / "fake"
    fake.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\nprintf "SHMCCL_SHIM_TORCH=9.9\\0" > "$2"\n')
    fake.chmod(0o755)
    monkeypatch.setenv("CXX", str(fake))
    monkeypatch.setenv("SHMCCL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(_build, "prebuilt", lambda: tmp_path / "none")
    made = _build.cached()
    made.parent.mkdir()
    for leave in (lambda: made.write_bytes(b""), lambda: made.write_bytes(b"no library"), lambda: made.symlink_to("/nonexistent")):
        made.unlink(missing_ok=True)
        leave()
        assert _build.built_for(_build.find()) == "9.9"
    made.unlink()
    made.mkdir()
    with pytest.raises(_build.ShimUnavailable, match="cannot be put into .*set SHMCCL_CACHE to another folder"):
        _build.find()
    with pytest.raises(_build.ShimUnavailable, match="of no known version"):
        _build.load(made)


def test_a_shim_that_a_package_carries_needs_neither_compiler_nor_cache(tmp_path):
    done = two_ranks(tmp_path, _build.find())
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("0 ") and done.stdout.strip().endswith("SharedBackend"), done.stdout
    assert not (tmp_path / "cache").exists()


@IN_PYTHON
def test_a_package_that_carries_a_shim_of_another_torch_works_without_it_and_says_so_once(tmp_path):
    done = two_ranks(tmp_path, of_another_torch(_build.find(), tmp_path / "shim.so"))
    assert done.returncode == 0, done.stderr
    version = re.escape(torch.__version__)
    assert re.match(f"1 shmccl: the backend in Python is used, as .* was built for torch 9.*, and this is torch {version}", done.stdout)
    assert done.stdout.strip().endswith("PythonBackend")


def test_a_shim_for_a_package_is_compiled_under_the_name_by_which_it_is_found(tmp_path, monkeypatch):
    fake = tmp_path / "fake"
    fake.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\necho made > "$2"\n')
    fake.chmod(0o755)
    monkeypatch.setenv("CXX", str(fake))
    _build.prebuilt(tmp_path).write_text("older")
    made = _build.build_into(tmp_path)
    assert made == _build.prebuilt(tmp_path) and made.read_text() == "made\n"
    assert sorted(tmp_path.iterdir()) == sorted([fake, made])


def test_a_cache_that_cannot_be_written_is_no_reason_to_fail(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("SHMCCL_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr(_build, "prebuilt", lambda: tmp_path / "none")
    with pytest.raises(_build.ShimUnavailable, match="cannot be put into .*cache .set SHMCCL_CACHE"):
        _build.find()


def test_a_shim_that_cannot_be_compiled_says_why(tmp_path, monkeypatch, capfd):
    broken = tmp_path / "shim"
    broken.mkdir()
    (broken / "module.cpp").write_text("#error nothing to be had\n")
    monkeypatch.setattr(_build, "SHIM", broken)
    monkeypatch.setenv("SHMCCL_CACHE", str(tmp_path / "cache"))
    with pytest.raises(_build.ShimUnavailable, match="nothing to be had"):
        _build.find()
    said = capfd.readouterr().err
    assert said.count("\n") == 1 and "compiling the backend" in said and "failed" in said


def test_the_cache_depends_on_torch_and_each_source(tmp_path, monkeypatch):
    before = _build.cached()
    shutil.copytree(_build.SHIM, tmp_path / "shim")
    monkeypatch.setattr(_build, "SHIM", tmp_path / "shim")
    assert _build.cached() == before
    for changed in _build.sources():
        text = changed.read_text()
        changed.write_text(text + "\n")
        assert _build.cached() != before, changed.name
        changed.write_text(text)
    monkeypatch.undo()
    monkeypatch.setattr(torch.version, "git_version", "another")
    assert _build.cached() != before


def test_a_file_of_the_shim_includes_only_those_that_the_head_lists_below_it():
    head = (_build.SHIM / "module.cpp").read_text().split("\n\n", 1)[0]
    order = re.findall(r"^//   (\w+)  ", head, re.M)
    assert sorted(order) == sorted(source.stem for source in _build.sources())
    for source in _build.sources():
        included = re.findall(r'^#include "(\w+)\.hpp"$', source.read_text(), re.M)
        assert set(included) <= set(order[order.index(source.stem) + 1:]), source.name


def test_only_one_of_many_processes_compiles(tmp_path, monkeypatch):
    """The compiler is a script that counts how often it is called."""
    fake = tmp_path / "fake"
    fake.write_text(f'#!/bin/sh\necho called >> {tmp_path}/calls\nsleep 1\nwhile [ "$1" != -o ]; do shift; done\necho made > "$2"\n')
    fake.chmod(0o755)
    environment = {**os.environ, "CXX": str(fake), "SHMCCL_CACHE": str(tmp_path / "cache")}
    script = "from shmccl.torch import _build; print(_build.find())"
    builders = [subprocess.Popen([sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True)
                for _ in range(3)]
    made = {builder.communicate(timeout=100)[0].strip() for builder in builders}
    assert len(made) == 1
    assert (tmp_path / "calls").read_text().count("called") == 1


def mixed(rank, n, path):
    dist.destroy_process_group()
    os.environ["SHMCCL_TORCH"] = "python" if rank == 0 else "shim"
    dist.init_process_group("shmccl", rank=rank, world_size=n, store=dist.FileStore(path, n))
    tensor = torch.full((1000,), float(rank))
    dist.all_reduce(tensor)
    assert tensor[0].item() == n * (n - 1) / 2
    received = torch.empty(3)
    works = [dist.isend(torch.full((3,), float(rank)), (rank + 1) % n), dist.irecv(received, (rank - 1) % n)]
    [work.wait() for work in works]
    assert received.tolist() == [(rank - 1) % n] * 3
    work = dist.all_reduce(tensor, async_op=True)
    gathered = [torch.empty(2) for _ in range(n)]
    dist.all_gather(gathered, torch.full((2,), float(rank)))
    work.wait()
    assert [part[0].item() for part in gathered] == list(range(n))


@IN_PYTHON
def test_ranks_with_different_backends_understand_each_other(tmp_path):
    run(3, mixed, str(tmp_path / "store"))


def test_registering_neither_builds_nor_starts_anything(tmp_path):
    script = ("import threading, sys, shmccl.torch, torch.distributed as dist; assert 'SHMCCL' in dist.Backend._plugins;"
              "assert 'shmccl_torch_shim' not in sys.modules; assert threading.active_count() == 1")
    environment = {**os.environ, "SHMCCL_CACHE": str(tmp_path)}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True, timeout=100)
    assert not list(tmp_path.iterdir())


def named(rank, n):
    assert dist.get_backend() == "shmccl"
    assert shmccl.torch._backend().name() == "shmccl"


def test_torch_finds_the_backend_by_its_name():
    run(2, named)
    good, error = outcomes(1, named, backend="cpu:shmccl")[0]
    assert good or "shmccl" in str(error)
