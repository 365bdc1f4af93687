"""The ``torch.distributed`` backend: process groups over shared memory.

With torch 2.14 or later ``torch.distributed.init_process_group("shmccl")`` finds it by itself; before that the program
imports this module first. Ranks that can share memory do; between hosts, gloo carries what has to cross.

``SHMCCL_TORCH=shim`` insists on the compiled backend, ``SHMCCL_TORCH=python`` on the one without a compiler.
``SHMCCL_TORCH_HOSTS=deny`` makes a group of several hosts an error.
"""

import functools
import os

import torch
import torch.distributed as dist

__all__ = ["empty", "holds", "register", "zero_copy"]

NAME = "shmccl"
CHOICES = ("shim", "python")


def register() -> None:
    """Makes the backend known to torch. Starts and builds nothing."""
    # Buckets of DistributedDataParallel come from the backend's memory, unless the user says otherwise.
    os.environ.setdefault("DDP_DISABLE_COMM_MEM", "0")
    if NAME.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])


def _namespace(kind: str) -> str:
    try:
        return os.readlink(f"/proc/self/ns/{kind}")
    except OSError:
        return f"{kind}:?"


@functools.cache
def _place() -> str:
    """What two processes have in common that can share memory: words, of which one with a ``?`` is not known."""
    host = os.environ.get("SHMCCL_TORCH_HOST")
    if not host:
        try:
            with open("/proc/sys/kernel/random/boot_id") as file:
                host = file.read().strip()
        except OSError:
            host = "?"
    spaces = " ".join(map(_namespace, ("net", "pid", "user")))
    return f"boot {host} {spaces} uid {os.geteuid()}"


@functools.cache
def _shim():
    from . import _build

    return _build.load(_build.find())


def _implementation():
    """The compiled backend, or the one in Python where that cannot be had."""
    choice = os.environ.get("SHMCCL_TORCH", "")
    if choice and choice not in CHOICES:
        raise ValueError(f"SHMCCL_TORCH is {choice!r}, expected shim or python, or not set at all")
    if choice == "python":
        from ._fallback import PythonBackend

        return PythonBackend
    from ._build import ShimUnavailable

    try:
        return _shim().SharedBackend
    except ShimUnavailable as error:
        if choice == "shim":
            raise
        from ._fallback import instead_of_shim

        return instead_of_shim(error)


def _create(options, backend_options):
    from shmccl import _core

    from . import _meeting

    # A thread joins the job, and the program may change its environment meanwhile.
    _core.remember_environment()
    reconfigurable = getattr(options, "enable_reconfigure", False)
    group = {
        "store": options.store,
        "rank": options.group_rank,
        "size": options.group_size,
        "timeout": _meeting.bounded(options.timeout),
        "name": options.group_id,
    }
    ranks = options.global_ranks_in_group
    make = functools.partial(_implementation(), place=_place(), reconfigurable=reconfigurable)
    if options.group_size == 1 or reconfigurable:
        return make(**group, ranks=ranks)
    meeting = _meeting.come(**group, ranks=ranks, place=_place())
    other = _meeting.elsewhere(meeting, options.group_rank)
    if other is None:
        return make(**group, ranks=ranks, id=meeting.id, processes=meeting.processes)
    if os.environ.get("SHMCCL_TORCH_HOSTS") == "deny":
        raise dist.DistBackendError(f"shmccl: group '{options.group_id}': {other}, and SHMCCL_TORCH_HOSTS=deny")
    from ._hosts import SeveralHosts

    def make_here(**group):
        here = _meeting.come_here(**group, place=_place())
        return make(**group, id=here.id, processes=here.processes)

    try:
        return SeveralHosts(make_here, meeting.places, **group, ranks=ranks)
    finally:
        # Others may have looked for the text of rank 0 until now: they believe none under whose id nobody receives.
        if options.group_rank == 0:
            _meeting.call_off(meeting)


def _backend(group=None):
    group = group or dist.distributed_c10d._get_default_group()
    backend = group._get_backend(torch.device("cpu"))
    # Torch wraps backends in others that check their calls, and these have the name of what they wrap.
    while hasattr(backend, "wrapped_pg"):
        backend = backend.wrapped_pg
    if not hasattr(backend, "holds"):
        raise ValueError(f"the group's backend for CPUs is {backend.name()}, expected shmccl")
    return backend


def empty(*size, dtype=None, group=None) -> torch.Tensor:
    """A tensor like that of ``torch.empty``, in memory that all ranks of the group map.

    Collectives of the group use it where it lies. It is an ordinary tensor where the heap is full; ``holds`` tells.
    """
    shape = torch.Size(size[0] if len(size) == 1 and not isinstance(size[0], int) else size)
    dtype = dtype or torch.get_default_dtype()
    flat = _backend(group).allocate_tensor(shape.numel(), dtype=dtype, device=torch.device("cpu"))
    return flat.view(shape)


def holds(tensor: torch.Tensor, group=None) -> bool:
    """Whether the group's heap on this rank holds the tensor."""
    return _backend(group).holds(tensor)


def zero_copy(model: torch.nn.Module) -> torch.nn.Module:
    """Lets FSDP2 take its buffers from the group's heap. DDP's buckets lie there already.

    Returns the model. A ``DistributedDataParallel`` made before this backend was registered keeps its own memory,
    and is refused, as is one where ``DDP_DISABLE_COMM_MEM=1`` says so.
    """
    from torch.distributed.fsdp import FSDPModule

    sharded = [module for module in model.modules() if isinstance(module, FSDPModule)]
    for module in sharded:
        module.set_allocate_memory_from_process_group_for_comm(True)
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        if os.environ.get("DDP_DISABLE_COMM_MEM", "1") != "0":
            raise ValueError("DDP_DISABLE_COMM_MEM is not 0: set it before the model is wrapped, or not at all")
    elif not sharded:
        raise ValueError("zero_copy takes a DistributedDataParallel, or a module to which fully_shard was applied")
    return model


register()
