"""The communication hooks that torch has for DistributedDataParallel give the gradients that they give over gloo."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook, quantization_hooks
from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as local_sgd
from torch.nn.parallel import DistributedDataParallel
from torch_ranks import run

STEPS = 4

# A thread of gloo's that is the last to have a group would wait for its own end.
KEPT = []


def group_of(backend):
    KEPT.append(dist.new_group(backend=backend))
    return KEPT[-1]


def power_sgd(hook, **options):
    def register(group):
        # From its third step on it compresses.
        return powerSGD_hook.PowerSGDState(group, start_powerSGD_iter=2, **options), hook

    return register


def orthogonalises_one(orthogonalise):
    """The function of the module that also takes one matrix: torch 2.15's batched hook gives it one, and it takes batches."""
    def either(matrices, epsilon=0):
        return orthogonalise(matrices if matrices.dim() == 3 else matrices.unsqueeze(0), epsilon)

    return either


def of_group(hook):
    return lambda group: (group, hook)


def after_local_steps(group):
    backend = dist.get_backend(group)
    state = local_sgd.PostLocalSGDState(group, group_of(backend), start_localSGD_iter=2)
    return state, local_sgd.post_localSGD_hook


def wrapped(wrapper, made):
    def register(group):
        state, hook = made(group)
        return state, wrapper(hook)

    return register


BF16, FP16 = default_hooks.bf16_compress_wrapper, default_hooks.fp16_compress_wrapper
SIMPLE, POWER = of_group(default_hooks.allreduce_hook), power_sgd(powerSGD_hook.powerSGD_hook)
BATCHED = power_sgd(powerSGD_hook.batched_powerSGD_hook)
HOOKS = {
    "allreduce": SIMPLE,
    "bf16": of_group(default_hooks.bf16_compress_hook),
    "fp16": of_group(default_hooks.fp16_compress_hook),
    "power_sgd": POWER,
    "power_sgd_of_rank_two_without_feedback": power_sgd(powerSGD_hook.powerSGD_hook, matrix_approximation_rank=2,
                                                        use_error_feedback=False, warm_start=False),
    "batched_power_sgd": BATCHED,
    "quantised_per_tensor": of_group(quantization_hooks.quantization_pertensor_hook),
    "quantised_per_channel": of_group(quantization_hooks.quantization_perchannel_hook),
    "post_local_sgd": after_local_steps,
    "bf16_of_allreduce": wrapped(BF16, SIMPLE),
    "fp16_of_allreduce": wrapped(FP16, SIMPLE),
    "bf16_of_power_sgd": wrapped(BF16, POWER),
    "fp16_of_power_sgd": wrapped(FP16, POWER),
    "fp16_of_batched_power_sgd": wrapped(FP16, BATCHED),
    "fp16_of_post_local_sgd": wrapped(FP16, after_local_steps),
}


def gradients(group, register, rank):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(30, 70), torch.nn.ReLU(), torch.nn.Linear(70, 7))
    # Two buckets.
    ddp = DistributedDataParallel(model, process_group=group, bucket_cap_mb=0.004)
    ddp.register_comm_hook(*register(group))
    seen = []
    for step in range(STEPS):
        torch.manual_seed(100 * step + rank)
        ddp.zero_grad()
        ddp(torch.randn(5, 30)).square().mean().backward()
        seen += [parameter.grad.clone() for parameter in ddp.parameters()]
    return seen


def compare(rank, n, register):
    powerSGD_hook._orthogonalize = orthogonalises_one(powerSGD_hook._orthogonalize)
    mine, wanted = (gradients(group_of(backend), register, rank) for backend in ("shmccl", "gloo"))
    assert all(torch.equal(gradient, other) for gradient, other in zip(mine, wanted, strict=True))
    # No hook has left them as they were on each rank.
    total = [torch.empty_like(mine[0]) for _ in range(n)]
    dist.all_gather(total, mine[0])
    assert torch.equal(*total)


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_of_torch_gives_the_gradients_of_gloo(name):
    run(2, compare, HOOKS[name])
