#!/usr/bin/env python3
"""Loss curves of small models of each family, in bf16: 200 steps on the same batches by eager, by
Inductor, by CODA, and by eager with the rows of each batch in another order, whose sums round
otherwise. The last and Inductor say how far runs of the same training are from one another; CODA is
to be as near to eager. Writes torch-curves-DATE.json and a picture beside it."""

import argparse
import datetime
import json
import os
import statistics
import sys
import warnings
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

import torch  # noqa: E402

import torch_families as families  # noqa: E402
from report import write  # noqa: E402

warnings.filterwarnings("ignore")
ROWS, LENGTH, SEEDS = 4, 32, 3


def batches(steps, vocabulary, seed):
    """Of a chain in which each token has four likely followers."""
    generator = torch.Generator().manual_seed(seed)
    follows = torch.randint(0, vocabulary, (vocabulary, 4), generator=generator)
    token = torch.randint(0, vocabulary, (steps, ROWS), generator=generator)
    found = [token]
    for _ in range(LENGTH - 1):
        choice = torch.randint(0, 4, token.shape, generator=generator)
        found.append(token := follows[token, choice])
    return torch.stack(found, -1)


def curve(family, steps, seed, device, backend=None, turned=False):
    """The loss of each step."""
    torch._dynamo.reset()
    torch.manual_seed(seed)
    model, _ = families.model_of(family, device=device)
    options = {"options": {"rest": "eager"}} if backend == "coda" else {}
    run = torch.compile(model, backend=backend, **options) if backend else model
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    losses = []
    for ids in batches(steps, model.config.vocab_size, seed).to(device):
        ids = ids.flip(0) if turned else ids
        loss = run(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(round(loss.item(), 4))
    return losses


def picture(found, path):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    columns = 4
    lines = -(-len(found) // columns)
    figure, axes = pyplot.subplots(lines, columns, figsize=(14, 2.9 * lines), squeeze=False,
                                   sharex=True, layout="constrained")
    for axis in axes.flat[len(found):]:
        axis.set_visible(False)
    for axis, (family, each) in zip(axes.flat, found.items()):
        first = each["curves"][0]
        axis.plot(first["eager"], color="#999999", lw=2.5, label="eager")
        axis.plot(first["eager_reordered"], color="#d08030", lw=1, label="eager, rows reordered")
        axis.plot(first["inductor"], color="#40a060", lw=1, label="inductor")
        axis.plot(first["coda"], color="#2060c0", lw=1, label="coda")
        axis.set_title(f"{family}: off by {each['off']:.4f}, noise {each['noise']:.4f}", fontsize=9)
        axis.grid(alpha=0.3)
    axes[0][0].legend(fontsize=8)
    figure.supxlabel("step")
    figure.supylabel("loss, nats")
    part = path.with_suffix(".part.svg")
    figure.savefig(part)
    os.replace(part, path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("families", nargs="*", default=families.NAMES)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--output", type=Path,
                        default=Path(__file__).parent / "results", help="a folder")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found, failed = {}, 0
    for family in options.families:
        curves = [{"eager": curve(family, options.steps, seed, options.device),
                   "eager_reordered": curve(family, options.steps, seed, options.device,
                                            turned=True),
                   "inductor": curve(family, options.steps, seed, options.device, "inductor"),
                   "coda": curve(family, options.steps, seed, options.device, "coda")}
                  for seed in range(SEEDS)]
        away = lambda name: statistics.fmean(
            abs(a - b) for c in curves for a, b in zip(c[name], c["eager"]))
        off, noise = away("coda"), max(away("eager_reordered"), away("inductor"))
        right = off < 1.25 * noise
        failed += not right
        found[family] = {"off": off, "noise": noise, "curves": curves}
        print(f"{family:13s} loss {curves[0]['eager'][0]:.3f} to {curves[0]['eager'][-1]:.3f}, "
              f"coda {curves[0]['coda'][-1]:.3f}; off by {off:.4f} a step, noise {noise:.4f}"
              f"{'' if right else '  TOO FAR'}", flush=True)
    date = datetime.date.today().isoformat()
    path = options.output / f"torch-curves-{date}.json"
    write(path, json.dumps({
        "date": date, "device": options.device, "versions": {"torch": torch.__version__},
        "steps": options.steps, "families": found}))
    picture(found, path.with_suffix(".svg"))
    return failed


if __name__ == "__main__":
    sys.exit(main())
