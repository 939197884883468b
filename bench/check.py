"""Inputs for a case, and the judgement of what it computed: as good as the unfused sequence, or by
how much it is worse."""

import inspect

import torch

from coda_library import DTYPES, poisoned
from truth import FORMULAS

SLACK = 1.05  # over the error of the unfused bf16 sequence
EXACT = 2e-6  # where f32 results are as exact as the truth is
SCALARS = {"eps": 1e-5, "ignore_index": -100, "d_loss": 1.0, "lr": 1e-3, "beta1": 0.9,
           "beta2": 0.95, "weight_decay": 0.1, "bias1": 0.1, "bias2": 0.05, "grad_scale": 0.5}
WEIGHTS = {"w", "wo", "wq", "wk", "wv", "gate", "up", "down"}


def draw(param, sizes, device, generator):
    """A fresh random tensor for a parameter, of the range that its name asks for."""
    name, dtype, shape = param["name"], DTYPES[param["dtype"]], param["shape"]
    if not shape:
        return torch.tensor(SCALARS.get(name, 1), dtype=dtype, device=device)
    normal = lambda: torch.randn(shape, device=device, generator=generator)
    uniform = lambda: torch.rand(shape, device=device, generator=generator)
    if name in ("target", "ids"):
        return torch.randint(0, sizes.get("V", 1), shape, device=device, generator=generator,
                             dtype=dtype)
    if name in ("cos", "sin"):
        rows, half = shape
        frequency = 500000.0 ** (-torch.arange(half, device=device) / half)
        angle = torch.arange(rows, device=device)[:, None] * frequency
        return getattr(angle, name)().to(dtype)
    if name == "ss":  # of blocks of 64
        return (32 + 64 * uniform()).to(dtype)
    if name == "r":
        return (0.5 + uniform()).to(dtype)
    if name == "v" and dtype in (torch.float32, torch.float64):  # a second moment
        return uniform().to(dtype)
    if name in WEIGHTS:
        return (normal() / shape[1] ** 0.5).to(dtype)
    return normal().to(dtype)


def draw_all(opened, tensors, device, generator):
    """What the parameters of these runs need and nothing gives yet, and poisoned results; what is
    to be accumulated in starts from random contents."""
    for run in opened:
        sizes = run.facts["sizes"]
        for param in run.params:
            if param["name"] not in tensors:
                tensors[param["name"]] = draw(param, sizes, device, generator)
        made = run.results_like(device)
        for result in run.results:
            if result["accumulates"]:
                made[result["name"]].normal_(generator=generator)
        tensors.update(made)
    return tensors


def arguments(formula, tensors, dtype=None):
    """The tensors that a formula takes; scalars as numbers, floats as `dtype`."""
    def one(t):
        if t.dim() == 0:
            return t.item()
        return t.to(dtype) if dtype and t.dtype.is_floating_point else t
    names = inspect.signature(FORMULAS[formula]).parameters
    # **tensors takes what between() does.
    if any(p.kind is p.VAR_KEYWORD for p in names.values()):
        names = [n for n in names if n in tensors] + list(
            inspect.signature(FORMULAS["between"]).parameters)
    return {n: one(tensors[n]) for n in names if n in tensors}


def evaluate(formula, tensors, dtype=None):
    """The formula's results; in f32 or f64 without TF32."""
    with torch.set_grad_enabled(formula == "between_step"):
        return FORMULAS[formula](**arguments(formula, tensors, dtype))


def distance(got, want):
    """The relative norm of the difference; NaN where anything is NaN or infinite on one side."""
    want = want.to(torch.float64 if want.dtype == torch.float64 else torch.float32)
    norm = torch.linalg.vector_norm(want)
    error = torch.linalg.vector_norm(got.to(want.dtype) - want)
    return (error / norm).item() if norm > 0 else error.item()


def judged(error, naive):
    """Whether an error is no more than the unfused sequence's; NaN never is."""
    return error <= max(SLACK * naive, EXACT)


def truth_dtype(flops, device):
    """float64 where that is affordable."""
    if device == "cpu":
        return torch.float64
    return torch.float64 if flops < 40e12 else torch.float32


def check(case, opened, runs, tensors, device="cuda"):
    """Runs twice on poisoned results; errors by result, and whether both runs gave equal bits."""
    accumulated = {r["name"]: tensors[r["name"]].clone()
                   for run in opened for r in run.results if r["accumulates"]}
    results = {r["name"]: r for run in opened for r in run.results}
    given = dict(tensors)
    given.update(accumulated)
    flops = sum(run.facts["flops"] for run in opened)
    want = evaluate(case.formula, given, truth_dtype(flops, device))
    want = {n: w.detach() for n, w in want.items() if n in results}
    naive = evaluate(case.formula, given)
    naive_error = {}
    for name in want:
        rounded = naive[name].detach().to(DTYPES[results[name]["dtype"]])
        naive_error[name] = distance(rounded, want[name])
    del naive
    first, same, report = {}, True, {}
    for attempt in range(2):
        for name, result in results.items():
            if result["accumulates"]:
                tensors[name].copy_(accumulated[name])
            else:
                poisoned(tensors[name])
        for run in runs:
            run()
        if device == "cuda":
            torch.cuda.synchronize()
        if attempt == 0:
            first = {n: tensors[n].clone() for n in results}
    for name in results:
        a, b = (t.contiguous().view(-1).view(torch.uint8) for t in (first[name], tensors[name]))
        same = same and torch.equal(a, b)
    for name, result in results.items():
        got = tensors[name]
        if name not in want:  # kept for backward: judged by what backward makes of it
            finite = not got.dtype.is_floating_point or bool(torch.isfinite(got).all())
            report[name] = {"finite": finite, "ok": finite}
        else:
            error = distance(got, want[name])
            report[name] = {"error": error, "naive": naive_error[name],
                            "ok": judged(error, naive_error[name])}
    return report, same
