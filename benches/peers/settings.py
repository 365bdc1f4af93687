"""How each peer is started: with the settings that were fastest as a whole. README.md has what else was tried."""

import os

MPICH_MOST = 128  # bytes, where ranks share cores: it does not yield, and takes milliseconds for the smallest


def is_crowded(ranks):
    """Whether ranks share cores."""
    return ranks > len(os.sched_getaffinity(0))


def ompi(work, ranks):
    crowded = is_crowded(ranks)
    if crowded:
        settings = ["--mca", "mpi_yield_when_idle", "1", "--mca", "btl_vader_single_copy_mechanism", "none"]
    else:
        settings = ["--mca", "mpi_yield_when_idle", "0", "--mca", "coll_sm_priority", "90"]
    command = ["mpirun.openmpi", "-n", str(ranks), "--bind-to", "none", "--oversubscribe"]
    command += ["--mca", "pml", "ob1", "--mca", "btl", "self,vader", *settings, f"{work}/collective.ompi"]
    environment = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return {"command": command, "place": "pin", "environment": environment}


def mpich(work, ranks):
    return {"command": ["mpiexec.mpich", "-n", str(ranks), f"{work}/collective.mpich"], "place": "pin", "environment": {}}


def impi(work, ranks):
    root = f"{work}/impi"
    command = [f"{root}/bin/mpiexec.hydra", "-n", str(ranks), f"{work}/collective.impi"]
    environment = {"I_MPI_ROOT": root, "LD_LIBRARY_PATH": f"{root}/lib", "I_MPI_FABRICS": "shm", "I_MPI_PIN": "0"}
    return {"command": command, "place": "free" if is_crowded(ranks) else "pin", "environment": environment}


def shmccl(launcher, peer, ranks, most_bytes):
    """With heap for two buffers of that size, and for what the library keeps to itself: up to an eighth."""
    heap = (2 * most_bytes + (64 << 20)) // 7 * 8
    command = [launcher, "run", "-q", "-n", str(ranks), "--heap", str(heap), "--", peer]
    return {"command": command, "place": None, "environment": {}}
