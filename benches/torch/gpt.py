"""A small GPT of torch's own modules, trained on CPUs: BACKEND=shmccl torchrun --nproc-per-node 2 gpt.py ddp|fsdp2|tp|pp.

The last rank prints the times of a step and the loss after all steps, as a hexadecimal float. ZERO_COPY=1 takes buffers
from the backend's heap. WIDTH, STEPS and BATCH set the size. `gpt.py solo` trains with one rank and no group.
BACKEND=fake is torch's backend that moves nothing: the time of a step without its communication, and no loss to compare.
"""

import os
import statistics
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.nn import functional as F  # noqa: E402

torch.set_num_threads(1)

WIDTH = int(os.environ.get("WIDTH", 256))
STEPS = int(os.environ.get("STEPS", 12))
BATCH = int(os.environ.get("BATCH", 2))
BACKEND = os.environ.get("BACKEND", "shmccl")
LAYERS, HEADS, WORDS, LENGTH = 4, 4, 2048, 64
WARM_UP = 2
MICROBATCHES = 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        y = self.norm1(x)
        q, k, v = (layer(y).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(attended.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, x):
        x = self.embedding(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def cross_entropy(output, target):
    return F.cross_entropy(output.flatten(0, 1), target.flatten())


def words(seed, batch):
    return torch.randint(WORDS, (batch, LENGTH + 1), generator=torch.Generator().manual_seed(seed))


def data_parallel(model, _):
    return nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)


def sharded(model, mesh):
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh) or model


def tensor_parallel(model, mesh):
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    columns, rows = ("q", "k", "v", "up"), ("o", "down")
    plan = {name: ColwiseParallel() for name in columns} | {name: RowwiseParallel() for name in rows}
    for block in model.blocks:
        parallelize_module(block, mesh, plan)
    return model


class Pipeline:
    """Stages of the model, one a rank, with one forward and one backward in turns."""

    def __init__(self, model, rank, n):
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B

        share = LAYERS // n
        blocks = model.blocks[rank * share:(rank + 1) * share]
        first = [model.embedding] if rank == 0 else []
        last = [model.head] if rank == n - 1 else []
        self.part = nn.Sequential(*first, *blocks, *last)
        self.is_first = rank == 0
        stage = PipelineStage(self.part, rank, n, torch.device("cpu"))
        self.schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=cross_entropy)

    def step(self, seed):
        x, losses = words(seed, BATCH * MICROBATCHES), []
        if self.is_first:
            self.schedule.step(x[:, :-1])
        else:
            self.schedule.step(target=x[:, 1:], losses=losses)
        return sum(losses) / MICROBATCHES if losses else torch.zeros(())


WRAPPERS = {"ddp": data_parallel, "fsdp2": sharded, "tp": tensor_parallel}


def train(module, step):
    optimiser = torch.optim.AdamW(module.parameters(), lr=1e-3)
    times, loss = [], None
    for index in range(STEPS):
        started = time.perf_counter()
        loss = step(index)
        optimiser.step()
        optimiser.zero_grad()
        times.append((time.perf_counter() - started) * 1e3)
    times = times[WARM_UP:]
    return f"step ms min {min(times):.1f} median {statistics.median(times):.1f} loss {loss.item().hex()}"


def backward(module, x):
    loss = cross_entropy(module(x[:, :-1]), x[:, 1:])
    loss.backward()
    return loss


def alone():
    """Says who this rank is where nobody is met."""
    from torch.testing._internal.distributed import fake_pg

    return {"store": fake_pg.FakeStore(), "rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}


def main(mode):
    torch.manual_seed(0)
    if mode == "solo":
        model = Gpt()
        print("solo", train(model, lambda index: backward(model, words(index, BATCH))))
        return
    if BACKEND == "shmccl" and torch.__version__ < "2.14":
        import shmccl.torch  # noqa: F401  it finds no backend by itself
    dist.init_process_group(BACKEND, **(alone() if BACKEND == "fake" else {}))
    rank, n = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (n,))
    torch.manual_seed(0)
    model = Gpt()
    if mode == "pp":
        pipeline = Pipeline(model, rank, n)
        told = train(pipeline.part, pipeline.step)
    else:
        model = WRAPPERS[mode](model, mesh)
        if os.environ.get("ZERO_COPY") == "1" and mode != "tp":
            import shmccl.torch

            shmccl.torch.zero_copy(model)
        # All ranks of tensor parallelism see the same words.
        seeds = (lambda index: index) if mode == "tp" else (lambda index: index * n + rank)
        told = train(model, lambda index: backward(model, words(seeds(index), BATCH)))
    if rank == n - 1:
        print(f"{mode} {BACKEND} ranks {n} {told}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
