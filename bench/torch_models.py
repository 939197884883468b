#!/usr/bin/env python3
"""Whole models on one GPU: torch.compile(backend="coda") beside Inductor, steps in turn, the same
loss first: forward + backward, and the whole step with fused AdamW. Prints tokens/s, the share of
the products' peak, the ratio, and the peak memory of each; adds a row to a results file."""

import argparse
import datetime
import gc
import json
import statistics
import sys
import time
import warnings
from pathlib import Path

import torch

from report import write

warnings.filterwarnings("ignore")


def causal_attention(module, query, key, value, attention_mask, scaling=None, **_):
    """PyTorch's, told that it is causal: by itself transformers builds a mask under torch.compile,
    with which it takes three times as long."""
    made = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=scaling, enable_gqa=True)
    return made.transpose(1, 2).contiguous(), None


def llama_config(o):
    """Of a Llama without a cache and with a head of its own; attention "causal" or one that
    transformers has."""
    from transformers import AttentionInterface, AttentionMaskInterface, LlamaConfig
    AttentionInterface.register("causal", causal_attention)
    AttentionMaskInterface.register("causal", lambda *_, **__: None)
    return LlamaConfig(
        vocab_size=o.vocabulary, hidden_size=o.width, intermediate_size=o.hidden,
        num_hidden_layers=o.layers, num_attention_heads=o.heads, num_key_value_heads=o.heads // 4,
        max_position_embeddings=8192, attn_implementation=o.attention, tie_word_embeddings=False,
        use_cache=False, bos_token_id=None, eos_token_id=None)


def llama(options):
    from transformers import LlamaForCausalLM
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        model = LlamaForCausalLM(llama_config(options))
        torch.set_default_dtype(torch.float32)
    return model


def products_tflop(model, options):
    """Of the products of forward and backward, attention's two causal ones included."""
    tokens, width = options.batch * options.length, options.width
    weights = sum(p.numel() for n, p in model.named_parameters()
                  if p.dim() == 2 and "embed" not in n)
    attention = options.layers * 3.5 * 4 * tokens * options.length * width / 2
    return (6 * tokens * weights + attention) / 1e12


def stepper(model, run, ids, optimizer=None):
    def step():
        loss = run(input_ids=ids, labels=ids).loss
        loss.backward()
        if optimizer:
            optimizer.step()
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
    parser.add_argument("--attention", default="causal", choices=("causal", "sdpa"),
                        help="sdpa: as transformers calls it, with a mask")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rivals", default="inductor", help="inductor,max-autotune,eager")
    parser.add_argument("--profile", action="store_true", help="the kernels of one step of each")
    parser.add_argument("--case", default="llama", help="the row's name")
    parser.add_argument("--output", type=Path, help="adds a row to this file")
    options = parser.parse_args()
    torch.manual_seed(0)
    model = llama(options)
    ids = torch.randint(0, options.vocabulary, (options.batch, options.length), device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    makes = {"coda": lambda: torch.compile(model, backend="coda"),
             "inductor": lambda: torch.compile(model),
             "max-autotune": lambda: torch.compile(model, mode="max-autotune-no-cudagraphs"),
             "eager": lambda: model}
    runs, row = {}, {n: getattr(options, n) for n in (
        "case", "layers", "width", "hidden", "heads", "vocabulary", "batch", "length",
        "attention")}
    row["products_tflop"] = products_tflop(model, options)
    for name in ["coda", *filter(None, options.rivals.split(","))]:
        torch._dynamo.reset()
        start = time.monotonic()
        runs[name] = makes[name]()
        step = stepper(model, runs[name], ids)
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
    # The optimizer last: it changes the weights, and its state would count as memory.
    steps = {n: stepper(model, run, ids) for n, run in runs.items()}
    whole = {n: stepper(model, run, ids, optimizer) for n, run in runs.items()}
    tokens = options.batch * options.length
    for what, key, every in (("forward + backward", "ms", steps), ("with AdamW", "step_ms", whole)):
        for name, ms in timed(every, options.rounds).items():
            row[name][key] = ms
            ratio = ms / row["coda"][key]
            rate = row["products_tflop"] / ms * 1e3
            print(f"{name:13s} {what:18s} {ms:8.1f} ms {tokens / ms * 1e3:9.0f} tokens/s, "
                  f"{rate:4.0f} TFLOP/s of 989, coda is {ratio:.3f} times as fast", flush=True)
    if options.profile:
        row["kernels"] = {n: timeline(steps[n]) for n in ("coda", "inductor")}
        print_timelines(row["kernels"])
    from coda_epilogue import report
    row["regions"] = str(report.GRAPHS[0])
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
    found["rows"] = [r for r in found["rows"] if r["case"] != row["case"]] + [row]
    write(path, json.dumps(found, indent=1))


def timeline(step):
    """[kernel, calls, ms] of one step, the longest first."""
    from torch.profiler import ProfilerActivity
    with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as seen:
        step()
        torch.cuda.synchronize()
    found = [[e.key, e.count, e.self_device_time_total / 1e3] for e in seen.key_averages()
             if e.self_device_time_total > 0]
    return sorted(found, key=lambda each: -each[2])


def print_timelines(timelines, most=45):
    for name, kernels in timelines.items():
        print(f"-- {name}: {sum(ms for *_, ms in kernels):.1f} ms in "
              f"{sum(n for _, n, _ in kernels)} kernels")
        for kernel, calls, ms in kernels[:most]:
            print(f"{ms:9.3f} ms {calls:4d} x {ms / calls:8.3f}  {kernel[:90]}")


if __name__ == "__main__":
    sys.exit(main())
