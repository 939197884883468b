#!/usr/bin/env python3
"""Writes docs/pytorch-results.md from the newest files of bench/results."""

import json
import sys
from pathlib import Path

from report import write

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
PAGE = ROOT / "docs" / "pytorch-results.md"
RIVALS = ("inductor", "max-autotune", "eager")
KERNELS = 16  # of a timeline


def newest(pattern):
    """(name, contents) of the newest file, by the date in its name; None without one."""
    paths = sorted(RESULTS.glob(pattern))
    return (paths[-1].name, json.loads(paths[-1].read_text())) if paths else None


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows]


def models(name, found):
    lines = ["## Whole models on one GPU", "",
             f"{found['date']}, {found['gpu']}, torch {found['versions']['torch']}, "
             f"transformers {found['versions']['transformers']}; "
             f"`bench/results/{name}`. Steps in turn, medians. All products of the model, "
             "attention's too, by the time of the step: TFLOP/s, and the share of the 989 that the "
             "data sheet gives.", ""]
    rows = [r for r in found["rows"] if "coda" in r]
    head = ["model", "what", "by", "ms", "tokens/s", "TFLOP/s", "its time over coda's",
            "peak memory, GiB", "first step, s"]
    body = []
    for row in rows:
        size = (f"{row['case']}: {row['layers']} layers, width {row['width']}, "
                f"{row['batch']} x {row['length']}")
        for what, key in (("forward + backward", "ms"), ("and fused AdamW", "step_ms")):
            for by in ("coda", *RIVALS):
                if by not in row or key not in row[by]:
                    continue
                ms, rate = row[by][key], row["products_tflop"] / row[by][key] * 1e3
                body.append([size, what, by, f"{ms:.1f}",
                             f"{row['batch'] * row['length'] / ms * 1e3:.0f}",
                             f"{rate:.0f} ({rate / 9.89:.0f} %)", f"{ms / row['coda'][key]:.3f}",
                             f"{row[by]['peak_gib']:.1f}" if key == "ms" else "",
                             f"{row[by]['first_step_s']:.0f}" if key == "ms" else ""])
                size = what = ""
    lines += table(head, body)
    for row in rows:
        if "kernels" in row:
            lines += ["", f"### Where {row['case']} spends a step", ""] + timelines(row["kernels"])
    return lines


def is_attention(kernel):
    return any(word in kernel for word in ("sdpa", "cudnn", "flash", "fmha"))


def timelines(kernels):
    """Side by side, the longest first."""
    lines = []
    for by, found in kernels.items():
        total = sum(ms for *_, ms in found)
        attention = sum(ms for name, _, ms in found if is_attention(name))
        lines += [f"{by}: {total:.1f} ms in {sum(n for _, n, _ in found)} kernels, of it attention "
                  f"{attention:.1f}.", ""]
    cells = lambda each: [f"`{each[0][:52]}`", each[1], f"{each[2]:.2f}"] if each else [""] * 3
    columns = [found[:KERNELS] + [None] * (KERNELS - len(found)) for found in kernels.values()]
    head = [word for by in kernels for word in (by, "calls", "ms")]
    return lines + table(head, [[c for each in row for c in cells(each)] for row in zip(*columns)])


def parity(name, found):
    rows = [r for r in found["rows"] if r["case"].startswith("parity_")]
    if not rows:
        return []
    return ["", "## Gradients beside double precision", "",
            "Error of each gradient of a training step in bf16, over that of eager's, by norm: the "
            f"geometric mean of all tensors and the worst; `bench/results/{name}`.", ""] + table(
        ["family", "mean", "worst", "of"],
        [[r["case"].removeprefix("parity_"), f"{r['geomean']:.3f}", f"{r['worst']:.2f}",
          f"`{r['worst_tensor']}`"] for r in rows])


def curves(name, found):
    picture = name.replace(".json", ".svg")
    return ["", f"## {found['steps']} steps", "",
            f"Small models of each family in bf16 on the {found['device'].upper()}, "
            f"{found['date']}; `bench/results/{name}`. How far the loss is "
            "from eager's, on the mean over all steps and three seeds. Noise is the larger of "
            "two: eager with the rows of each batch in another order, and Inductor.", "",
            f"![The curves](../bench/results/{picture})", ""] + table(
        ["family", "loss at the end: eager", "coda", "coda is off by", "noise"],
        [[family, f"{each['curves'][0]['eager'][-1]:.3f}", f"{each['curves'][0]['coda'][-1]:.3f}",
          f"{each['off']:.4f}", f"{each['noise']:.4f}"]
         for family, each in found["families"].items()])


def two(name, found):
    body = [[n, each["processes"], each["backend"], f"{each['tokens_per_second']:.0f}",
             f"{each.get('speedup', 1):.2f}", f"{each.get('off', 0):.1e}",
             f"{each.get('peak_gib', 0):.1f}"] for n, each in found["rows"].items()]
    return ["", "## Two GPUs", "",
            f"{found['date']}, two of {found['gpu']}; `bench/results/{name}`. Whole steps with "
            "AdamW at the same global batch; losses over all steps against one GPU's.", ""] + table(
        ["run", "GPUs", "by", "tokens/s", "times one GPU", "losses off by", "peak memory, GiB"],
        body) + ["", *(f"- {each}" for each in found["missed"])]


def page():
    lines = ["# CODA in PyTorch: results", "",
             "Written by `bench/torch_page.py` from what the benchmarks wrote; see "
             "[CODA in PyTorch](pytorch.md) for what limits them.", ""]
    for pattern, parts in (("h200-torch-*.json", (models, parity)),
                           ("torch-curves-*.json", (curves,)), ("h200x2-*.json", (two,))):
        found = newest(pattern)
        for part in parts if found else ():
            lines += part(*found)
    return "\n".join(lines) + "\n"


def main():
    write(PAGE, page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
