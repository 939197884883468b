"""What each program of programs/ means, in PyTorch: one function a program, keyed "file.name".

Whole layers, embeddings and heads follow in torch_layers.py.

A function takes the inputs by name as double tensors and returns the results by name. Where PyTorch
has the operation it is used; the rest is written the way model code writes it.
"""

import math

import torch
import torch.nn.functional as F

from torch_pieces import (block_logsumexp, block_sum, dropout, rms, rope, rope_adjacent,
                          rope_partial, rstd)

RULES = {}


def rule(name):
    def add(function):
        RULES[name] = function
        return function
    return add


# ---- linear.coda ----

@rule("linear.linear")
def _(x, w):
    return {"y": F.linear(x, w)}


@rule("linear.linear_bias")
def _(x, w, b):
    return {"y": F.linear(x, w, b)}


@rule("linear.linear_gelu")
def _(x, w, b):
    z = F.linear(x, w.T, b)
    return {"z": z, "y": F.gelu(z, approximate="tanh")}


@rule("linear.linear_residual")
def _(x, w, b, residual, rate, seed):
    return {"y": residual + dropout(F.linear(x, w, b), rate, seed)}


@rule("linear.linear_grad")
def _(dz, w):
    return {"dx": dz @ w}


@rule("linear.bias_grad")
def _(dz):
    return {"db": block_sum(dz, 0)}


# ---- norm.coda ----

@rule("norm.residual_norm")
def _(x, w, residual, gamma):
    h = residual + F.linear(x, w)
    return {"h": h, "p": h * gamma, "ss": block_sum(h * h)}


@rule("norm.norm_linear")
def _(p, ss, w, eps):
    r = rstd(ss, p.shape[1], eps)
    return {"y": F.linear(r[:, None] * p, w), "r": r}


@rule("norm.row_scale")
def _(r, p, w):
    return {"y": F.linear(r[:, None] * p, w)}


@rule("norm.norm_weight")
def _(h, gamma):
    return {"p": h * gamma, "ss": block_sum(h * h)}


@rule("norm.rmsnorm_rows")
def _(x, gamma, eps):
    return {"y": rms(x, gamma, eps), "r": rstd(x * x, x.shape[1], eps)}


@rule("norm.layernorm_rows")
def _(x, gamma, beta, eps):
    return {"y": F.layer_norm(x, gamma.shape, gamma, beta, eps)}


@rule("norm.rmsnorm_grad")
def _(dg, gate, du, up, do, h, gamma, r, t):
    dp = dg @ gate + du @ up
    c = r * r * t.sum(-1) / h.shape[1]
    return {"dh": do + dp * gamma - h * c[:, None], "dgamma": block_sum(dp * h, 0)}


@rule("norm.rmsnorm_grad_qkv")
def _(zq, wq, zk, wk, zv, wv, do, h, gamma, r, t):
    dp = zq @ wq + zk @ wk + zv @ wv
    c = r * r * t / h.shape[1]
    return {"dh": do + dp * gamma - h * c[:, None], "dgamma": block_sum(dp * h, 0)}


@rule("norm.rmsnorm_linear")
def _(x, gamma, w, eps):
    return {"y": F.linear(rms(x, gamma, eps), w)}


@rule("norm.layernorm_linear")
def _(x, gamma, beta, w, b, eps):
    return {"y": F.linear(F.layer_norm(x, gamma.shape, gamma, beta, eps), w, b)}


# ---- gated.coda ----

@rule("gated.norm_swiglu")
def _(p, ss, gate, up, eps):
    r = rstd(ss, p.shape[1], eps)
    n = r[:, None] * p
    g, u = F.linear(n, gate), F.linear(n, up)
    return {"g": g, "u": u, "y": F.silu(g) * u, "r": r}


@rule("gated.norm_swiglu_inference")
def _(p, ss, gate, up, eps):
    n = rstd(ss, p.shape[1], eps)[:, None] * p
    return {"y": F.silu(F.linear(n, gate)) * F.linear(n, up)}


@rule("gated.swiglu_linear")
def _(x, gate, up):
    g, u = F.linear(x, gate), F.linear(x, up)
    return {"g": g, "u": u, "y": F.silu(g) * u}


@rule("gated.geglu_linear")
def _(x, gate, up):
    g, u = F.linear(x, gate), F.linear(x, up)
    return {"g": g, "u": u, "y": F.gelu(g, approximate="tanh") * u}


@rule("gated.swiglu_grad")
def _(do, down, g, u, r):
    dy = do @ down
    s = torch.sigmoid(g)
    dg, du = dy * u * (s + g * s * (1 - s)), dy * F.silu(g)
    return {"t": block_sum(dg * g + du * u), "dg": r[:, None] * dg, "du": r[:, None] * du}


@rule("gated.mlp")
def mlp(x, gamma, gate, up, down, eps):
    n = rms(x, gamma, eps)
    return {"out": x + F.linear(F.silu(F.linear(n, gate)) * F.linear(n, up), down)}


# ---- rope.coda ----

def _scaled(p, ss, eps):
    r = rstd(ss, p.shape[1], eps)
    return r, r[:, None] * p


@rule("rope.norm_rope")
def _(p, ss, wq, wk, wv, cos, sin, eps):
    r, n = _scaled(p, ss, eps)
    return {"q": rope(F.linear(n, wq), cos, sin), "k": rope(F.linear(n, wk), cos, sin),
            "v": F.linear(n, wv), "r": r}


@rule("rope.norm_rope_adjacent")
def _(p, ss, wq, wk, wv, cos, sin, eps):
    r, n = _scaled(p, ss, eps)
    return {"q": rope_adjacent(F.linear(n, wq), cos, sin),
            "k": rope_adjacent(F.linear(n, wk), cos, sin), "v": F.linear(n, wv), "r": r}


@rule("rope.norm_rope_partial")
def _(p, ss, wq, wk, wv, cos, sin, eps, size):
    r, n = _scaled(p, ss, eps)
    return {"q": rope_partial(F.linear(n, wq), cos, sin, size),
            "k": rope_partial(F.linear(n, wk), cos, sin, size), "v": F.linear(n, wv), "r": r}


@rule("rope.rope_norm_grad")
def _(dq, dk, dv, q, k, v, r, cos, sin):
    t = (dq * q).sum(1) + (dk * k).sum(1) + (dv * v).sum(1)
    return {"t": t, "zq": r[:, None] * rope(dq, cos, -sin), "zk": r[:, None] * rope(dk, cos, -sin),
            "zv": r[:, None] * dv}


@rule("rope.rope_rows")
def _(x, cos, sin):
    return {"y": rope(x, cos, sin)}


@rule("rope.rope_rows_grad")
def _(dy, cos, sin):
    x = torch.zeros_like(dy).requires_grad_()
    return {"dx": torch.autograd.grad(rope(x, cos, sin), x, dy, create_graph=True)[0]}


@rule("rope.packed_rope")
def _(x, w, cos, sin, groups):
    size = 2 * cos.shape[-1]
    kv = groups * size
    q, k, v = F.linear(x, w).split([w.shape[0] - 2 * kv, kv, kv], -1)
    return {"q": rope(q, cos, sin), "k": rope(k, cos, sin), "v": v}


# ---- cross_entropy.coda ----

def _partials(z, target):
    inside = (target >= 0) & (target < z.shape[1])
    hit = z.gather(1, target.clamp(0, z.shape[1] - 1)[:, None])[:, 0]
    return {"hit": torch.where(inside, hit, torch.zeros_like(hit)), "partial": block_logsumexp(z)}


@rule("cross_entropy.cross_entropy_partial")
def _(x, w, target):
    return _partials(F.linear(x, w), target)


@rule("cross_entropy.norm_cross_entropy_partial")
def _(p, ss, w, target, eps):
    r, n = _scaled(p, ss, eps)
    return {**_partials(F.linear(n, w), target), "r": r}


@rule("cross_entropy.cross_entropy_finish")
def _(hit, partial, target, ignore_index):
    lse, counts = partial.logsumexp(-1), (target != ignore_index).double()
    return {"lse": lse, "loss": (lse - hit) * counts, "count": counts}


@rule("cross_entropy.cross_entropy_logit_grad")
def _(x, w, target, lse, dloss, ignore_index):
    d = torch.where(target == ignore_index, torch.zeros_like(dloss), dloss)
    classes = torch.arange(w.shape[0])
    return {"dz": d[:, None] * ((F.linear(x, w) - lse[:, None]).exp()
                                - (classes[None] == target[:, None]).double())}


@rule("cross_entropy.cross_entropy_rows")
def _(z, target, ignore_index):
    loss = F.cross_entropy(z, target, ignore_index=int(ignore_index), reduction="none")
    return {"loss": loss, "lse": z.logsumexp(-1)}


# ---- weight_grad.coda ----

@rule("weight_grad.weight_grad")
def _(dz, x):
    return {"dw": dz.T @ x}


@rule("weight_grad.weight_grad_pair")
def _(dg, du, p):
    return {"dgate": dg.T @ p, "dup": du.T @ p}


@rule("weight_grad.weight_grad_qkv")
def _(zq, zk, zv, p):
    return {"dwq": zq.T @ p, "dwk": zk.T @ p, "dwv": zv.T @ p}


@rule("weight_grad.weight_grad_norm")
def _(dh, a, partial):
    return {"dw": dh.T @ a, "dgamma": partial.sum(0)}


@rule("weight_grad.weight_grad_bias")
def _(dz, x, partial):
    return {"dw": dz.T @ x, "db": partial.sum(0)}


@rule("weight_grad.scaled_rows")
def _(r, p):
    return {"n": r[:, None] * p}


# ---- adamw.coda, grad_norm.coda ----

@rule("adamw.adamw")
def adamw(param, grad, m, v, lr, beta1, beta2, eps, weight_decay, bias1, bias2, grad_scale):
    grad = grad * grad_scale
    m, v = m.lerp(grad, 1 - beta1), v * beta2 + (1 - beta2) * grad * grad
    param = param * (1 - lr * weight_decay) - lr / bias1 * m / (v.sqrt() / math.sqrt(bias2) + eps)
    return {"new_param": param, "new_m": m, "new_v": v}


@rule("adamw.adamw_master")
def _(master, **others):
    results = adamw(master, **others)
    return {**results, "new_master": results["new_param"]}


@rule("grad_norm.square_sums")
def _(grad):
    return {"ss": block_sum((grad * grad).sum(1), 0)}


@rule("grad_norm.clip")
def _(ss, limit):
    norm = ss.sum().sqrt()
    return {"norm": norm, "grad_scale": torch.clamp(limit / (norm + 1e-6), max=1.0)}


@rule("grad_norm.grad_norm")
def _(grad):
    return {"norm": torch.linalg.norm(grad)}
