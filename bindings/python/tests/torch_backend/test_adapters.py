"""Frameworks over the backend, which `.ci/torch-env` installs, and the interface of vLLM's communicator."""

import os
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from torch_ranks import TORCH, run

import shmccl.torch.vllm


class CpuCommunicator:
    """What vLLM's communicator has and does, as far as its groups are concerned."""

    def __init__(self, cpu_group, device_group=None, unique_name=""):
        self.device_group, self.unique_name = device_group or cpu_group, unique_name
        self.ranks = dist.get_process_group_ranks(cpu_group)
        self.world_size = len(self.ranks)
        self.rank_in_group = dist.get_rank(cpu_group)
        self.dist_module, self.supports_tensor_dict = dist, False

    def all_reduce(self, input_):
        self.dist_module.all_reduce(input_, group=self.device_group)
        return input_

    def gather(self, input_, dst=0):
        parts = [torch.empty_like(input_) for _ in self.ranks] if self.rank_in_group == dst else None
        self.dist_module.gather(input_, parts, dst=self.ranks[dst], group=self.device_group)
        return torch.cat(parts, dim=-1) if parts else None

    def all_gather(self, input_):
        output = torch.empty((input_.size(0) * self.world_size, *input_.shape[1:]), dtype=input_.dtype)
        self.dist_module.all_gather_into_tensor(output, input_, group=self.device_group)
        return output


def vllm(rank, n):
    shmccl.torch.vllm.use(CpuCommunicator)
    groups = [dist.new_group([0, 1, 2], backend="gloo"), dist.new_group([1, 2], backend="gloo")]
    for members, group in (([0, 1, 2], groups[0]), ([1, 2], groups[1])):
        if rank not in members:
            continue
        communicator = CpuCommunicator(group, unique_name="tp:0")
        tensor = communicator.all_reduce(torch.full((8,), float(rank), dtype=torch.bfloat16))
        assert tensor.tolist() == [sum(members)] * 8
        gathered = communicator.gather(torch.full((2, 3), float(rank)), dst=1)
        if rank == members[1]:
            assert gathered[0].tolist() == [float(member) for member in members for _ in range(3)]
        assert communicator.all_gather(torch.full((2, 2), rank))[:, 0].tolist() == [m for m in members for _ in range(2)]
        assert communicator.supports_tensor_dict
        if rank == members[0]:
            sent = {"hidden": torch.arange(6.0).view(2, 3).to(torch.bfloat16), "ids": torch.tensor([5]), "none": torch.empty(0)}
            communicator.dist_module.send_tensor_dict(sent, 1)
        elif rank == members[1]:
            received = communicator.dist_module.recv_tensor_dict(0)
            assert received["hidden"].tolist() == [[0, 1, 2], [3, 4, 5]] and received["hidden"].dtype == torch.bfloat16
            assert received["ids"].item() == 5 and received["none"].shape == (0,)


@pytest.mark.skipif(TORCH < (2, 14), reason="it names a group of local synchronisation by how many groups each rank is in")
def test_a_communicator_of_vllm_works_over_shared_memory():
    run(3, vllm, backend="gloo")


DEEPSPEED = """
import deepspeed, torch
# Its own all-reduce for inference, which is not used here, would be compiled for a minute.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
deepspeed.init_distributed(dist_backend="shmccl")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
config = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 2},
          "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}}}
engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
assert torch.distributed.get_backend() == "shmccl"
for step in range(4):
    loss = engine(torch.full((4, 32), 1.0 + torch.distributed.get_rank())).square().mean()
    engine.backward(loss)
    engine.step()
total = sum(parameter.double().sum() for parameter in model.parameters())
both = [torch.zeros_like(total) for _ in range(2)]
torch.distributed.all_gather(both, total)
assert both[0] == both[1], both
"""

ACCELERATE = """
import torch
from accelerate import Accelerator
torch.distributed.init_process_group("shmccl")
accelerator = Accelerator(cpu=True)
assert torch.distributed.get_backend() == "shmccl" and accelerator.num_processes == 2
torch.manual_seed(0)
model = torch.nn.Linear(32, 8)
model, optimiser = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
for step in range(4):
    accelerator.backward(model(torch.full((4, 32), 1.0 + accelerator.process_index)).square().mean())
    optimiser.step()
    optimiser.zero_grad()
totals = accelerator.gather(sum(parameter.double().sum() for parameter in model.parameters())[None])
assert totals[0] == totals[1] and accelerator.reduce(torch.ones(3)).tolist() == [2, 2, 2]
"""

TRAINER = """
import tempfile, torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
torch.distributed.init_process_group("shmccl")
torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2))
words = [{"input_ids": torch.arange(16) % 7 + index, "labels": torch.arange(16) % 7 + index} for index in range(16)]
arguments = TrainingArguments(tempfile.mkdtemp(), use_cpu=True, max_steps=4, report_to=[],
                              per_device_train_batch_size=2, save_strategy="no", disable_tqdm=True)
trainer = Trainer(model=model, args=arguments, train_dataset=words)
assert torch.distributed.get_backend() == "shmccl"
trainer.train()
"""


@pytest.mark.parametrize("program", (DEEPSPEED, ACCELERATE, TRAINER), ids=("deepspeed", "accelerate", "trainer"))
def test_a_framework_trains_over_the_backend(program, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(program)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=115, check=False)
    assert done.returncode == 0, done.stderr
