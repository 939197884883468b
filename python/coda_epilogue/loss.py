"""linear_cross_entropy: the loss head without its logits."""

from functools import lru_cache

import torch

from .blocks import require_classes
from .errors import ProgramError
from .native import NAMES
from .op import Op

_REDUCTIONS = ("mean", "sum", "none")


def linear_cross_entropy(x, weight, target, bias=None, *, class_weight=None, ignore_index=-100,
                         reduction="mean", label_smoothing=0.0, z_loss=0.0, softcap=0.0,
                         keep_logits=False):
    """F.cross_entropy(x @ weight.T + bias, target, …), whose logits never exist as a whole.

    x: [..., K]; weight: [V, K]; bias: [V], all of one dtype, bf16, f16, f32 or f64. target: i64 or
    i32, x's shape without its last axis. class_weight: f32 [V]. The result is f32 (f64 for f64): a
    scalar, or target's shape for reduction "none". Rows whose target is `ignore_index` count for
    nothing; other targets outside 0 … V-1 are an error (on CUDA one that the device reports).

    z_loss adds z_loss · logsumexp², softcap makes each logit softcap · tanh(logit / softcap), both
    before the reduction; numerics.md has the formulas. Backward works in chunks of the vocabulary
    that take a tenth of the logits' memory; `keep_logits` stores them in x's dtype instead, which
    is faster where there is room.
    """
    if reduction not in _REDUCTIONS:
        raise ProgramError(f"the reduction is {reduction!r}\n"
                           f"  fix: give one of: {', '.join(_REDUCTIONS)}")
    if not 0.0 <= label_smoothing <= 1.0 or not 0.0 <= z_loss < float("inf"):
        raise ProgramError(f"label_smoothing is {label_smoothing}, z_loss {z_loss}\n"
                           "  fix: give a number from 0 to 1, and one that is not negative")
    if target.dtype not in (torch.int64, torch.int32):
        raise ProgramError(f"target is {target.dtype}\n  fix: give i64 or i32: probabilities are "
                           "not supported")
    if x.shape[:-1] != target.shape or weight.dim() != 2 or x.shape[-1] != weight.shape[1]:
        raise ProgramError(f"x is {list(x.shape)}, weight {list(weight.shape)}, target "
                           f"{list(target.shape)}\n  fix: give [..., K], [V, K] and [...]")
    if not torch.compiler.is_compiling():
        require_classes(target, weight.shape[0], ignore_index)
    function = _loss(NAMES[x.dtype], NAMES[target.dtype], bias is not None,
                     class_weight is not None, int(ignore_index), reduction,
                     float(label_smoothing), float(z_loss), float(softcap), keep_logits)
    given = [x.reshape(-1, x.shape[-1]), weight, target.reshape(-1)]
    loss = function(*given, *(t for t in (bias, class_weight) if t is not None))
    return loss.view(target.shape) if reduction == "none" else loss


@lru_cache(maxsize=64)
def _loss(dtype, ids, bias, weighted, ignore_index, reduction, smoothing, z_loss, softcap,
          keep_logits):
    """The text of these options as an Op."""
    wide = "f64" if dtype == "f64" else "f32"
    params = f"x: {dtype}[M, K], w: {dtype}[V, K], target: {ids}[M]"
    params += f", bias: {dtype}[V]" * bias + f", cw: {wide}[V]" * weighted
    z = "x @ w" + " + bias" * bias
    if softcap:
        z = f"softcap({z}, {softcap!r})"
    lines = [f"z = {z}", "lse = logsumexp(z, V)",
             "hard = " + "cw[target] * " * weighted + "(lse - pick(z, target))"]
    row = "hard"
    if smoothing:
        lines.append("soft = " + ("(sum(cw, V) * lse - sum(cw * z, V))" if weighted
                                  else "(size(V) * lse - sum(z, V))") + " / size(V)")
        row = f"{1 - smoothing!r} * hard + {smoothing!r} * soft"
    if z_loss:
        row += f" + {z_loss!r} * lse * lse"
    lines.append(f"row = where(target == {ignore_index}, 0, {row})")
    if reduction == "none":
        lines.append("loss = row")
    elif reduction == "sum":
        lines.append("loss = sum(row, M)")
    else:
        counted = "cw[target]" if weighted else "1"
        lines.append(f"loss = sum(row, M) / sum(where(target == {ignore_index}, 0, {counted}), M)")
    result = f"loss: {wide}" + ("[M]" if reduction == "none" else "")
    body = "\n".join(f"  {line}" for line in lines)
    text = (f'coda 1\n\nuse "prelude.coda"\n\nblock linear_cross_entropy({params}) -> ({result}) '
            f"{{\n{body}\n}}\n")
    return Op.of(text, memory=None if keep_logits else _a_tenth_of_the_logits)


def _a_tenth_of_the_logits(sizes):
    return sizes["M"] * sizes["V"] * 2 // 10
