#!/usr/bin/env python3
"""Whole models on one GPU: torch.compile(backend="coda") beside Inductor, steps in turn, the same
loss first. Prints tokens/s, the ratio, and the peak memory of each."""

import argparse
import datetime
import gc
import json
import os
import statistics
import sys
import time
import warnings
from pathlib import Path

import torch

warnings.filterwarnings("ignore")


def llama(layers, width, hidden, heads, vocabulary):
    from transformers import LlamaConfig, LlamaForCausalLM
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=hidden,
        num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=heads // 4,
        max_position_embeddings=8192, attn_implementation="sdpa", tie_word_embeddings=False,
        use_cache=False)
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        model = LlamaForCausalLM(config)
        torch.set_default_dtype(torch.float32)
    return model


def stepper(model, run, ids):
    def step():
        loss = run(input_ids=ids, labels=ids).loss
        loss.backward()
        for parameter in model.parameters():
            parameter.grad = None
        return loss
    return step


def timed(steps, rounds):
    """Median ms of each, one after the other in every round."""
    taken = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            step()
            end.record()
            torch.cuda.synchronize()
            taken[name].append(start.elapsed_time(end))
    return {n: statistics.median(t) for n, t in taken.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--hidden", type=int, default=8192)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--vocabulary", type=int, default=128256)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rivals", default="inductor", help="inductor,max-autotune,eager")
    parser.add_argument("--profile", action="store_true", help="the kernels of one step of each")
    parser.add_argument("--case", default="llama", help="the row's name")
    parser.add_argument("--output", type=Path, help="adds a row to this file")
    options = parser.parse_args()
    torch.manual_seed(0)
    model = llama(options.layers, options.width, options.hidden, options.heads,
                  options.vocabulary)
    ids = torch.randint(0, options.vocabulary, (options.batch, options.length), device="cuda")
    makes = {"coda": lambda: torch.compile(model, backend="coda"),
             "inductor": lambda: torch.compile(model),
             "max-autotune": lambda: torch.compile(model, mode="max-autotune-no-cudagraphs"),
             "eager": lambda: model}
    steps, row = {}, {"layers": options.layers, "width": options.width, "batch": options.batch,
                      "length": options.length, "case": options.case}
    for name in ["coda", *filter(None, options.rivals.split(","))]:
        torch._dynamo.reset()
        start = time.monotonic()
        step = steps[name] = stepper(model, makes[name](), ids)
        loss = step().item()
        torch.cuda.synchronize()
        compiled = time.monotonic() - start
        step()
        torch.cuda.reset_peak_memory_stats()
        step()
        torch.cuda.synchronize()
        row[name] = {"loss": loss, "first_step_s": compiled,
                     "peak_gib": torch.cuda.max_memory_allocated() / 2**30}
        print(f"{name:13s} loss {loss:.5f}, first step {compiled:.1f} s, peak "
              f"{row[name]['peak_gib']:.1f} GiB", flush=True)
        gc.collect()
        torch.cuda.empty_cache()
    for name, ms in timed(steps, options.rounds).items():
        row[name]["ms"] = ms
    tokens = options.batch * options.length
    for name in steps:
        ms = row[name]["ms"]
        print(f"{name:13s} {ms:8.1f} ms  {tokens / ms * 1e3:9.0f} tokens/s  coda is "
              f"{ms / row['coda']['ms']:.3f} times as fast", flush=True)
    if options.profile:
        profile(steps)
    if options.output:
        add_row(options.output, row)
    return 0


def add_row(path, row):
    """To the results in a file, which is replaced whole."""
    import transformers
    found = json.loads(path.read_text()) if path.exists() else {"rows": []}
    found.update(date=datetime.date.today().isoformat(), gpu=torch.cuda.get_device_name(),
                 versions={"torch": torch.__version__, "cuda": torch.version.cuda,
                           "transformers": transformers.__version__})
    found["rows"].append(row)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(found, indent=1))
    os.replace(part, path)


def profile(steps):
    from torch.profiler import ProfilerActivity
    for name, step in steps.items():
        with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as seen:
            step()
            torch.cuda.synchronize()
        print(f"-- {name}")
        print(seen.key_averages().table(sort_by="cuda_time_total", row_limit=28,
                                        max_name_column_width=60), flush=True)


if __name__ == "__main__":
    sys.exit(main())
