"""Joins the job that some launcher has started this process for."""

import collections
import hashlib
import os

from . import _core
from ._errors import InvalidArgumentError, InvalidRankError, LaunchEnvironmentError, RankTakenError, WaitTimeoutError
from ._options import byte_count

_Job = collections.namedtuple("_Job", "launcher rank size local_size key")
# The name of an abstract socket.
_NAME = "shmccl-init-{uid}-{digest}"
_meetings = collections.Counter()


def init(*, rank=None, size=None, id=None, heap=None, timeout=None):
    """Returns this process's communicator in the job that a launcher has started.

    It works under `shmccl run`, torchrun, mpirun (Open MPI, MPICH, Intel MPI), srun and PALS. Elsewhere, set SHMCCL_RANK,
    SHMCCL_SIZE and, where several jobs run at once, SHMCCL_KEY; or pass `rank` and `size` with an `id`, a
    `shmccl.UniqueId` that one process has made.

    `heap` is the length of each rank's heap, 256 MiB by default, and `timeout` the longest wait in seconds, a minute by
    default. Under `shmccl run` the command decides about the heap, and `timeout` counts from the end of `init` on.

    All ranks have to be on one machine. They meet through a socket without a port, which no other user can reach.
    """
    if (rank is None) != (size is None):
        raise InvalidArgumentError("rank= and size= are passed together; without both, the launcher's are taken")
    if id is not None and rank is None:
        raise InvalidArgumentError("an id needs rank= and size=, too")
    if id is None and "SHMCCL_SOCKET" in os.environ:
        return _from_command(rank, heap, timeout)
    timeout = 60.0 if timeout is None else timeout
    settings = {"heap": byte_count("256M" if heap is None else heap), "timeout": timeout}
    if id is not None:
        return _core.Communicator.init_rank(size, id, rank, **settings)
    job = _find_job(os.environ, rank, size)
    if not 0 <= job.rank < job.size:
        raise InvalidRankError(f"{job.launcher} has numbered this rank {job.rank}, and of {job.size} ranks none has that number")
    if job.local_size is not None and job.local_size != job.size:
        raise LaunchEnvironmentError(
            f"{job.launcher} has put {job.local_size} of {job.size} ranks on this machine; shmccl joins the ranks of one "
            "machine: start all there, or use the backend of torch.distributed, shmccl.torch"
        )
    if job.size == 1:
        return _core.Communicator.init_rank(1, _core.UniqueId(), 0, **settings)
    number = _meetings[job.key]
    _meetings[job.key] += 1
    return _meet(f"{job.key}#{number}", job, settings)


def _from_command(rank, heap, timeout):
    """Joins the job of `shmccl run`, which has decided about what it cannot be told any more."""
    if heap is not None:
        raise InvalidArgumentError("`shmccl run` has made the heap already: pass --heap to it, and no heap= to init")
    if rank is not None:
        raise InvalidArgumentError("`shmccl run` has numbered the ranks already: pass no rank= and size= to init, or an id=, too")
    comm = _core.Communicator.from_env()
    if timeout is not None:
        comm.timeout = timeout
    return comm


def is_launched(env):
    """Returns whether a launcher has started this process."""
    return "SHMCCL_SOCKET" in env or any(rank in env and size in env for _, rank, size, *_ in _LAUNCHERS)


def _find_job(env, rank, size):
    """Finds who has started this process, by the variables that it has set."""
    if rank is not None:
        return _Job("the program", rank, size, None, env.get("SHMCCL_KEY", _parent()))
    for launcher, rank_name, size_name, local_name, keys in _LAUNCHERS:
        if rank_name not in env or size_name not in env:
            continue
        local = env.get(local_name) if local_name else None
        key = "/".join(f"{name}={env[name]}" for name in keys if name in env) or _parent()
        return _Job(launcher, _number(env, rank_name), _number(env, size_name), _first_number(local), f"{launcher}:{key}")
    raise LaunchEnvironmentError(
        "no launcher has started this process: start the program with `shmccl run -n N -- python PROGRAM`, torchrun, mpirun "
        "or srun, call shmccl.launch(fn, n), or set SHMCCL_RANK and SHMCCL_SIZE"
    )


# Who it is, the names of rank, size and ranks here, and what tells its jobs apart.
_LAUNCHERS = [
    ("the environment", "SHMCCL_RANK", "SHMCCL_SIZE", None, ["SHMCCL_KEY"]),
    (
        "torchrun", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
        ["TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT"],
    ),
    (
        "Open MPI's mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE",
        ["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_ess_jobid"],
    ),
    ("PALS", "PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_SIZE", ["PALS_APID"]),
    ("srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_TASKS_PER_NODE", ["SLURM_JOB_ID", "SLURM_STEP_ID"]),
    ("mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", ["PMI_JOBID", "PMI_PORT"]),
    ("mpirun", "PMIX_RANK", "PMIX_SIZE", None, ["PMIX_NAMESPACE"]),
]


def _number(env, name):
    try:
        return int(env[name])
    except ValueError:
        raise LaunchEnvironmentError(f"{name} is {env[name]!r}, expected a number") from None


def _first_number(text):
    """Reads "4", and "4(x1)" as srun writes it; None where ranks are spread."""
    head = (text or "").partition("(")[0]
    return int(head) if head.isdigit() else None


def _parent():
    """Names the process that has started this one, where nothing else tells jobs apart."""
    parent = f"parent={os.getppid()}"
    try:
        with open(f"/proc/{os.getppid()}/stat") as stat:
            return f"{parent}@{stat.read().rpartition(')')[2].split()[19]}"
    except OSError:
        return parent


def _meet(key, job, settings):
    """Meets the other ranks by a name that is made of the key."""
    name = _NAME.format(uid=os.geteuid(), digest=hashlib.sha256(key.encode()).hexdigest()[:32])
    try:
        return _core.Communicator._init_by_name(job.size, name, job.rank, **settings)
    except WaitTimeoutError as error:
        late = "the other ranks" if error.rank is None else f"rank {error.rank}"
        raise WaitTimeoutError(
            f"init timed out after {settings['timeout']} s, awaiting {late} of {job.launcher}; it has not come, or is on another machine",
            rank=error.rank,
        ) from None
    except RankTakenError as error:
        raise RankTakenError(
            f"{error}: another job meets by the same name as this one of {job.launcher}; set SHMCCL_KEY to a different text for "
            "each job",
            rank=error.rank,
        ) from None
