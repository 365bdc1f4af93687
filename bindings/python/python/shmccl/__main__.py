"""`python -m shmccl run|perf|compare|doctor ...`: the command `shmccl`, which the package brings along."""

import os
import pathlib
import shutil
import sys


def command():
    """Returns the path of the command, or None where the package was built without it."""
    own = pathlib.Path(__file__).parent / "_bin" / "shmccl"
    if own.exists():
        return str(own)
    # Not the script that starts this very module.
    found = shutil.which("shmccl")
    with_head = found and open(found, "rb").read(4) == b"\x7fELF"
    return found if with_head else None


def main():
    program = command()
    if program is None:
        sys.exit(
            "shmccl: this installation has no command; install the package from a whole checkout, or run "
            "`cargo install --path bin` there"
        )
    try:
        os.execv(program, ["shmccl", *sys.argv[1:]])
    except PermissionError:
        os.chmod(program, 0o755)
        os.execv(program, ["shmccl", *sys.argv[1:]])


if __name__ == "__main__":
    main()
