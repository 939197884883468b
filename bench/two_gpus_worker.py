"""One process of bench/two_gpus.sh: a Llama under DDP or fully_shard, a few steps, losses and
tokens/s as JSON."""

import argparse
import json
import os
import statistics
import time
import warnings

import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from report import write
from torch_models import llama_config, print_timelines, timeline

warnings.filterwarnings("ignore")


def prepared(model, options):
    """The function of a step."""
    compile_options = {"options": {"rest": "eager"}} if options.device == "cpu" and \
        options.backend == "coda" else {}
    if options.per_block:
        for layer in model.model.layers:
            layer.compile(backend=options.backend, **compile_options)
        # As torchtitan does, which compiles blocks and the loss.
        model.loss_function = torch.compile(model.loss_function, backend=options.backend,
                                            **compile_options)
    if options.kind == "fsdp":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for layer in model.model.layers:
            fully_shard(layer, mp_policy=policy)
        fully_shard(model, mp_policy=policy)
    elif options.kind == "ddp":
        model = DistributedDataParallel(model)
    if not options.per_block:
        model = torch.compile(model, backend=options.backend, **compile_options)
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kind", choices=("alone", "ddp", "fsdp"), default="alone")
    parser.add_argument("--backend", default="coda")
    parser.add_argument("--per-block", action="store_true")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--hidden", type=int, default=8192)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--vocabulary", type=int, default=128256)
    parser.add_argument("--batch", type=int, default=4, help="of all processes together")
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--attention", default="causal", help="as in torch_models.py")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--profile", action="store_true", help="the kernels of one more step")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--output", required=True)
    options = parser.parse_args()
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    device = torch.device(options.device)
    if options.device == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    if options.kind != "alone":
        dist.init_process_group("nccl" if options.device == "cuda" else "gloo")
    torch.manual_seed(0)
    from transformers import LlamaForCausalLM
    with device:
        model = LlamaForCausalLM(llama_config(options))
    if options.kind != "fsdp":  # there the policy casts
        model = model.to(torch.bfloat16)
    step = prepared(model, options)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=options.device == "cuda")
    generator = torch.Generator().manual_seed(1)
    share = slice(rank * options.batch // world, (rank + 1) * options.batch // world)

    def train():
        ids = torch.randint(options.vocabulary, (options.batch, options.length),
                            generator=generator)[share].to(device)
        loss = step(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach().float().clone()
        if world > 1:
            dist.all_reduce(total)
        return total.item() / world  # waits for the step

    losses, seconds, start = [], [], time.monotonic()
    for _ in range(options.steps):
        losses.append(train())
        now = time.monotonic()
        seconds.append(now - start)
        start = now
    kernels = timeline(train) if options.profile else None
    if rank == 0:
        if kernels:
            print_timelines({f"{options.backend}, one of {world} processes": kernels}, 30)
        tokens = options.batch * options.length
        found = {"kind": options.kind, "backend": options.backend, "processes": world,
                 "per_block": options.per_block, "losses": losses,
                 "tokens_per_second": tokens / statistics.median(seconds[3:]),
                 "first_step_s": seconds[0]}
        if options.device == "cuda":
            found["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
        write(options.output, json.dumps(found))
        print(f"{options.kind:6s} {options.backend:9s} {world} x, "
              f"{'per block' if options.per_block else 'whole':9s} loss {losses[-1]:.5f}, "
              f"{found['tokens_per_second']:.0f} tokens/s", flush=True)
    if world > 1:
        dist.barrier()
        os._exit(0)  # NOTE: taking process groups down may hang


if __name__ == "__main__":
    main()
