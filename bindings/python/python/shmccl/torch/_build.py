"""Finds the shim for the torch that is installed, or builds it once.

The shim is the C++ that knows torch's process groups, compiled as one file. It fits one torch version only, so it is looked for
1. in the package: ``shim-<torch version>-<python tag>.so``;
2. in the user's cache, by everything that it depends on;
3. and is compiled into that cache with g++, by whoever comes first, under a lock.
"""

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time

PACKAGE = pathlib.Path(__file__).absolute().parent
SHIM = PACKAGE / "shim"
INCLUDE = PACKAGE.parent / "include"
MODULE = "shmccl_torch_shim"
MARK = re.compile(rb"SHMCCL_SHIM_TORCH=([0-9A-Za-z.+_-]+)\0")


class ShimUnavailable(RuntimeError):
    """There is no shim for this torch, and none can be built."""


def python_tag() -> str:
    return sysconfig.get_config_var("SOABI") or f"cpython-{sys.version_info[0]}{sys.version_info[1]}"


def base_version(version: str) -> str:
    """The version without what follows a plus sign, such as the name of a CUDA release."""
    return version.split("+", 1)[0]


def built_for(library: pathlib.Path) -> str | None:
    """The torch version for which a shim was compiled, read from the file without loading it; None for what is no shim."""
    try:
        found = MARK.search(library.read_bytes())
    except OSError:
        return None
    return found.group(1).decode() if found else None


def check_version(library: pathlib.Path) -> None:
    """Refuses a shim of another torch: loading it could end the process."""
    import torch

    theirs = built_for(library)
    if theirs is None or base_version(theirs) != base_version(torch.__version__):
        raise ShimUnavailable(
            f"{library} was built for torch {theirs or 'of no known version'}, and this is torch {torch.__version__}; "
            "build one for it: python -m shmccl.torch build"
        )


def prebuilt(folder: pathlib.Path = PACKAGE) -> pathlib.Path:
    """Where a package carries the shim for this torch and this Python."""
    import torch

    return folder / f"shim-{base_version(torch.__version__)}-{python_tag()}.so"


def cache_folder() -> pathlib.Path:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return pathlib.Path(os.environ.get("SHMCCL_CACHE") or os.path.join(home, "shmccl"))


def compiler() -> str | None:
    return shutil.which(os.environ.get("CXX") or "g++")


def sources() -> list[pathlib.Path]:
    """All files from which the shim is compiled, in a fixed order."""
    return sorted(path for path in SHIM.iterdir() if path.suffix in (".cpp", ".hpp"))


def command(output: pathlib.Path) -> list[str]:
    import torch

    root = pathlib.Path(torch.__file__).resolve().parent
    abi = int(torch._C._GLIBCXX_USE_CXX11_ABI)
    return [
        compiler() or "g++", "-std=c++20", "-O2", "-fPIC", "-shared", "-s", "-fvisibility=hidden", "-w",
        f"-D_GLIBCXX_USE_CXX11_ABI={abi}", f"-DTORCH_EXTENSION_NAME={MODULE}",
        f"-I{INCLUDE}", f"-isystem{root}/include", f"-isystem{root}/include/torch/csrc/api/include",
        f"-I{sysconfig.get_paths()['include']}", str(SHIM / "module.cpp"), "-o", str(output),
        f"-L{root}/lib", "-ltorch_python", "-ltorch_cpu", "-lc10",
    ]


def cached() -> pathlib.Path:
    """Where a shim of just this torch, this Python and this source lies in the cache."""
    import torch

    key = hashlib.sha256()
    parts = [torch.__version__, torch.version.git_version, python_tag(), (INCLUDE / "shmccl.h").read_text()]
    for source in sources():
        parts += [source.name, source.read_text()]
    for part in parts:
        key.update(part.encode() + b"\0")
    return cache_folder() / f"shim-{base_version(torch.__version__)}-{python_tag()}-{key.hexdigest()[:16]}.so"


@contextlib.contextmanager
def locked(path: pathlib.Path):
    """Holds the lock of a file that is being made. Processes that come meanwhile wait, and find it made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build(output: pathlib.Path) -> pathlib.Path:
    """Compiles the shim, unless another process has done so meanwhile. Says so in one line."""
    if not compiler():
        raise ShimUnavailable("there is no g++ (set CXX to another C++20 compiler) and no prebuilt shim for this torch")
    with locked(output), tempfile.TemporaryDirectory(dir=output.parent) as folder:
        if not output.exists():
            compile_into(pathlib.Path(folder) / output.name, output)
    return output


def compile_into(made: pathlib.Path, output: pathlib.Path) -> None:
    """Compiles `made`, and gives it its name once it is whole."""
    import torch

    print(f"shmccl: compiling the backend for torch {torch.__version__} once (about half a minute) ...", end="",
          file=sys.stderr, flush=True)
    started = time.monotonic()
    done = subprocess.run(command(made), capture_output=True, text=True, check=False)
    if done.returncode:
        print(" failed", file=sys.stderr, flush=True)
        first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[-400:])
        raise ShimUnavailable(f"the shim could not be compiled: {first}")
    made.rename(output)
    print(f" {time.monotonic() - started:.0f} s: {output}", file=sys.stderr, flush=True)


def build_into(folder: pathlib.Path) -> pathlib.Path:
    """Compiles the shim for a package that carries it, also where an older one lies."""
    output = prebuilt(folder)
    output.unlink(missing_ok=True)
    build(output)
    output.with_suffix(".lock").unlink(missing_ok=True)
    return output


def find() -> pathlib.Path:
    """The shim for this torch, built where there is none."""
    shipped = prebuilt()
    if shipped.exists():
        check_version(shipped)
        return shipped
    made = cached()
    try:
        if built_for(made) is None:
            # What a full disk or somebody else has left under its name is in the way.
            made.unlink(missing_ok=True)
        return made if made.exists() else build(made)
    except OSError as error:
        raise ShimUnavailable(f"the shim cannot be put into {made.parent} (set SHMCCL_CACHE to another folder): {error}") from error


def load(library: pathlib.Path):
    """Loads a shim and hands it the engine's table of functions."""
    from shmccl import _core

    from .._end import at_end

    check_version(library)
    spec = importlib.util.spec_from_file_location(MODULE, library)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except ImportError as error:
        raise ShimUnavailable(f"{library} cannot be loaded: {error}") from error
    module.load(_core.table())
    at_end(module.shut)
    return module
