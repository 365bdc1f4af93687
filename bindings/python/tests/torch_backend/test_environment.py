"""The environment, which programs change while a thread joins the job."""

import os
import subprocess
import sys

import pytest

# Torchrun, on a machine that may be busy.
pytestmark = pytest.mark.patience(300)

# `getenv` walks an array that `setenv` may move. A thread of the package has no lock that keeps a program from that.
WATCH = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

char *getenv(const char *name) {
    static char *(*found)(const char *);
    Dl_info caller;
    if (!found) found = dlsym(RTLD_NEXT, "getenv");
    if (syscall(SYS_gettid) != getpid() && dladdr(__builtin_return_address(0), &caller) && strstr(caller.dli_fname, "shmccl")) {
        const char told[] = " was read by a thread of the package\\n";
        if (write(2, name, strlen(name)) > 0 && write(2, told, sizeof told - 1) > 0) _exit(77);
    }
    return found(name);
}
"""

PROGRAM = """
import os, torch
import torch.distributed as dist
dist.init_process_group("shmccl")
for number in range(4):
    group = dist.new_group([0, 1])
    # It would move the array while the ranks of the group meet.
    os.environ.update({f"VARIABLE_{number}_{index}": "x" * index for index in range(100)})
    work = dist.all_reduce(torch.ones(4), group=group, async_op=True)
    work.get_future().wait()
dist.destroy_process_group()
"""


@pytest.fixture
def watch(tmp_path):
    source, library = tmp_path / "watch.c", tmp_path / "watch.so"
    source.write_text(WATCH)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    return library


@pytest.mark.parametrize("backend", ("shim", "python"))
def test_no_thread_of_the_package_reads_the_environment(backend, watch, tmp_path):
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "LD_PRELOAD": str(watch), "SHMCCL_TORCH": backend}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=140, check=False)
    assert done.returncode == 0, done.stderr
