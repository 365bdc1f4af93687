"""``python -m shmccl.torch build`` compiles the backend before the first job needs it."""

import sys

from . import _build


def main(arguments: list[str]) -> int:
    if arguments != ["build"]:
        print("usage: python -m shmccl.torch build", file=sys.stderr)
        return 2
    try:
        library = _build.find()
        _build.load(library)
    except _build.ShimUnavailable as error:
        print(f"shmccl: {error}", file=sys.stderr)
        return 1
    print(library)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
