"""``python -m shmccl.torch build`` compiles the backend before the first job needs it.

With ``--into FOLDER`` the shim is written there under the name by which a package finds it: wheels that are given to
others carry those of several torch versions.
"""

import argparse
import pathlib
import sys

from . import _build


def options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m shmccl.torch", description="The backend of torch.distributed.")
    commands = parser.add_subparsers(required=True, metavar="build")
    build = commands.add_parser("build", help="compile the backend before the first job needs it")
    build.add_argument("--into", type=pathlib.Path, metavar="FOLDER", help="write it there, as packages carry it")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    into = options(arguments).into
    try:
        library = _build.find() if into is None else _build.build_into(into)
        _build.load(library)
    except (_build.ShimUnavailable, OSError) as error:
        print(f"shmccl: {error}", file=sys.stderr)
        return 1
    print(library)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
