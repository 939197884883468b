"""One process of torch_distributed_test.py: a few steps of training, by one process or by several,
and the losses as JSON in a file."""

import json
import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from torch_model import Gpt, batch

ROWS, STEPS = 4, 6


def wrapped(model, kind):
    if kind == "ddp":
        return torch.compile(DistributedDataParallel(model), backend="coda",
                             options={"rest": "eager"})
    if kind.startswith("fsdp"):
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16) if "mixed" in kind else \
            MixedPrecisionPolicy()
        for layer in model.layers:  # a block at a time, as torchtitan does
            layer.compile(backend="coda", options={"rest": "eager"})
            fully_shard(layer, mp_policy=policy)
        fully_shard(model, mp_policy=policy)
        return model
    return torch.compile(model, backend="coda", options={"rest": "eager"})


def main(kind, output):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Gpt()
    rank, world = 0, 1
    if kind != "alone":
        dist.init_process_group("gloo")
        rank, world = dist.get_rank(), dist.get_world_size()
    run = wrapped(model, kind)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    losses = []
    for step in range(STEPS):
        ids, targets = batch(ROWS, seed=step % 2)
        share = slice(rank * ROWS // world, (rank + 1) * ROWS // world)
        loss = run(ids[share], targets[share])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach().float().clone()
        if world > 1:
            dist.all_reduce(total)
        losses.append(total.item() / world)
    if rank == 0:
        with open(output, "w") as file:
            json.dump(losses, file)
    if world > 1:
        dist.barrier()
        # NOTE: gloo sometimes hangs when DDP is taken down, with every backend.
        os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
