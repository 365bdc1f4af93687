"""What a wheel that is given to others must do with the torch of this environment. Run by bindings/python/release."""

import os
import subprocess
import sys

import pytest
import torch
from test_build import two_ranks, without_compiler

from shmccl.torch import _build

RANK = """
import sys, torch, torch.distributed as dist
import shmccl.torch
dist.init_process_group("shmccl")
tensor = torch.full((4,), dist.get_rank() + 1.0)
dist.all_reduce(tensor)
sys.stdout.write(f"torch {torch.__version__}: {tensor.tolist()} by {type(shmccl.torch._backend()).__name__}\\n")
dist.destroy_process_group()
"""


OTHERS = sorted(set(_build.PACKAGE.glob("shim-*.so")) - {_build.prebuilt()})


def test_the_package_carries_the_shim_for_this_torch():
    assert _build.find() == _build.prebuilt()
    for shim in [_build.prebuilt(), *OTHERS]:
        assert shim.name.split("-")[1] == _build.base_version(_build.built_for(shim))


def test_neither_the_module_nor_the_command_carries_symbols():
    for built in (*_build.PACKAGE.parent.glob("_core*.so"), _build.PACKAGE.parent / "_bin" / "shmccl", _build.prebuilt()):
        has_symbols = b"\0.symtab\0" in built.read_bytes()
        assert not has_symbols, built


def test_two_ranks_of_torchrun_use_it_without_compiler_and_cache(tmp_path):
    (tmp_path / "rank.py").write_text(RANK)
    (tmp_path / "bin").mkdir()
    environment = {**os.environ, "PATH": without_compiler(tmp_path / "bin"), "SHMCCL_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(tmp_path / "rank.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    assert sorted(done.stdout.splitlines()) == [f"torch {torch.__version__}: [3.0, 3.0, 3.0, 3.0] by SharedBackend"] * 2
    assert "the backend in Python" not in done.stderr and "compiling" not in done.stderr
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("shim", OTHERS, ids=lambda shim: shim.name.split("-")[1])
def test_the_shim_of_another_torch_is_refused_with_both_versions_named(shim, tmp_path):
    done = two_ranks(tmp_path, shim, SHMCCL_TORCH="shim")
    assert done.returncode != 0
    expected = f"was built for torch {_build.built_for(shim)}, and this is torch {torch.__version__}"
    assert expected in done.stderr, done.stderr
    print(expected)
