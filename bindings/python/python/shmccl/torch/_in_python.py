"""What the backends that are written in Python have in common."""

import torch.distributed as dist
from torch._C._distributed_c10d import Backend


class InPython(Backend):
    """A backend of this name that offers torch none of what it may leave out."""

    # Those that torch wraps in a group that checks their calls, which keeps of them what is in C++. They end with `shutdown`.
    _wrapped = set()

    def __init__(self, rank, size, timeout, name, ranks):
        super().__init__(rank, size)
        if dist.get_debug_level() == dist.DebugLevel.DETAIL:
            self._wrapped.add(self)
        self._options = Backend.Options("shmccl", timeout)
        self._options.group_name, self._options.global_ranks_in_group = name, ranks
        self._sequence = 0

    options = property(lambda self: self._options)
    supports_splitting = property(lambda self: False)
    supports_shrinking = property(lambda self: False)
    supports_reconfigure = property(lambda self: False)
    supports_window = property(lambda self: False)
    supports_abort_hooks = property(lambda self: False)
    supports_completion_hooks = property(lambda self: False)

    def shutdown(self):
        self._wrapped.discard(self)

    def getBackendName(self):
        return "shmccl"

    def _get_sequence_number_for_group(self):
        return self._sequence

    def _set_sequence_number_for_group(self):
        pass

    def set_timeout(self, timeout):
        self._options._timeout = timeout
