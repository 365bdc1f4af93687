"""The ``torch.distributed`` backend: process groups over shared memory.

With torch 2.14 or later ``torch.distributed.init_process_group("shmccl")`` finds it by itself; before that the program
imports this module first. Ranks that can share memory do; between hosts, gloo carries what has to cross.

``SHMCCL_TORCH=shim`` insists on the compiled backend, ``SHMCCL_TORCH=python`` on the one without a compiler.
``SHMCCL_TORCH_HOSTS=deny`` makes a group of several hosts an error.
"""

import functools
import os
import time

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


def _may_share(one: str, other: str) -> bool:
    """Whether no word of two places is known to differ."""
    words, others = one.split(), other.split()
    return len(words) == len(others) and all(a == b or "?" in (a[-1], b[-1]) for a, b in zip(words, others, strict=True))


def _resolved(places: list) -> list:
    """Gives a rank that cannot tell all of its place that of the nearest rank which can, where the two may be one.

    All ranks have the same places before, and so after.
    """

    def resolve(rank, place):
        if "?" not in place:
            return place
        nearest = sorted(range(len(places)), key=lambda peer: abs(peer - rank))
        known = (places[peer] for peer in nearest if "?" not in places[peer] and _may_share(places[peer], place))
        return next(known, place)

    return [resolve(rank, place) for rank, place in enumerate(places)]


def _places(store, name, rank, size, timeout):
    """Where each rank is: what it has put into the store, and no guess."""
    keys = [f"shmccl/{name}/place/{peer}" for peer in range(size)]
    store.set(keys[rank], _place())
    deadline, pause = time.monotonic() + timeout.total_seconds(), 0.0002
    # Clients of one store share its connection: none of them blocks in it.
    while not store.check(keys):
        if time.monotonic() > deadline:
            missing = next(peer for peer in range(size) if not store.check([keys[peer]]))
            raise dist.DistBackendError(
                f"shmccl: group '{name}': rank {missing} has not come within {timeout.total_seconds() * 1000:.0f} ms"
            )
        time.sleep(pause)
        pause = min(2 * pause, 0.005)
    return _resolved([place.decode() for place in store.multi_get(keys)])


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
    reconfigurable = getattr(options, "enable_reconfigure", False)
    make = functools.partial(_implementation(), place=_place(), reconfigurable=reconfigurable)
    group = {
        "store": options.store,
        "rank": options.group_rank,
        "size": options.group_size,
        "timeout": options.timeout,
        "name": options.group_id,
    }
    ranks = options.global_ranks_in_group
    if options.group_size == 1 or reconfigurable:
        return make(**group, ranks=ranks)
    places = _places(**group)
    own = places[options.group_rank]
    other = next((peer for peer, place in enumerate(places) if place != own), None)
    if other is None:
        return make(**group, ranks=ranks)
    if os.environ.get("SHMCCL_TORCH_HOSTS") == "deny":
        raise dist.DistBackendError(
            f"shmccl: group '{options.group_id}': rank {other} cannot share memory with this one: it is at [{places[other]}], "
            f"this one at [{own}], and SHMCCL_TORCH_HOSTS=deny"
        )
    from ._hosts import SeveralHosts

    return SeveralHosts(make, places, **group, ranks=ranks)


def _backend(group=None):
    group = group or dist.distributed_c10d._get_default_group()
    backend = group._get_backend(torch.device("cpu"))
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
