"""Runs the tests of torch.distributed that come with torch on this backend, as three ranks."""

import multiprocessing
import os
import tempfile

FOLDER = tempfile.mkdtemp()
os.environ.update(BACKEND="shmccl", WORLD_SIZE="3", TEMP_DIR=FOLDER)
# Where it is set, torch's runner writes reports by a package that is not asked for here.
os.environ.pop("CI", None)
for name in ("barrier", "test_dir"):
    os.makedirs(os.path.join(FOLDER, name))

import torch  # noqa: E402
import torch.testing._internal.common_distributed as common  # noqa: E402

import shmccl.torch  # noqa: E402, F401

torch.set_num_threads(1)
for feature in ("ddp", "subgroup", "plugin"):
    common.DistTestCases.backend_feature[feature].add("shmccl")

from torch.testing._internal.common_utils import run_tests  # noqa: E402
from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend  # noqa: E402


class TestShmccl(TestDistBackend, DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._start_processes(multiprocessing.get_context("fork").Process)


if __name__ == "__main__":
    run_tests()
