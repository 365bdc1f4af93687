"""Leaves these tests out where there is no torch."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))

try:
    import torch.distributed  # noqa: F401
except ImportError:
    collect_ignore_glob = ["*.py"]
