"""Lets vLLM's workers on CPUs communicate by this backend.

    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
    import shmccl.torch.vllm
    shmccl.torch.vllm.use(CpuCommunicator)

vLLM's communicator calls what it has as ``dist_module``: ``torch.distributed``, or kernels of its own for ranks of one
host. This module has the functions of both.
"""

import functools

import torch
import torch.distributed as dist

import shmccl.torch  # noqa: F401  registers the backend


class SharedMemory:
    """The ``dist_module`` of a communicator, over a group of its ranks."""

    def __init__(self, communicator):
        self._ranks = communicator.ranks
        self._group = dist.new_group(self._ranks, backend="shmccl", use_local_synchronization=True)

    def all_reduce(self, input, group=None):
        dist.all_reduce(input, group=self._group)

    def gather(self, input, gather_list, dst=-1, group=None):
        dist.gather(input, gather_list, dst=dst, group=self._group)

    def all_gather_into_tensor(self, output, input, group=None):
        dist.all_gather_into_tensor(output, input, group=self._group)

    def send_tensor_dict(self, tensor_dict, dst):
        """Sends what the tensors are, then the tensors; `dst` counts within the communicator."""
        peer = self._ranks[dst]
        described = [(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in tensor_dict.items()]
        dist.send_object_list([described], peer, group=self._group)
        works = [dist.isend(tensor.contiguous(), peer, group=self._group) for tensor in tensor_dict.values()]
        for work in works:
            work.wait()

    def recv_tensor_dict(self, src):
        peer, described = self._ranks[src], [None]
        dist.recv_object_list(described, peer, group=self._group)
        tensors = {name: torch.empty(shape, dtype=dtype) for name, dtype, shape in described[0]}
        works = [dist.irecv(tensor, peer, group=self._group) for tensor in tensors.values()]
        for work in works:
            work.wait()
        return tensors


def use(communicator_class):
    """Gives every communicator of this class that is made from now on the shared memory of this backend."""
    made = communicator_class.__init__

    @functools.wraps(made)
    def init(self, *arguments, **settings):
        made(self, *arguments, **settings)
        self.dist_module, self.supports_tensor_dict = SharedMemory(self), True

    communicator_class.__init__ = init
