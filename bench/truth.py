"""What each benchmarked program computes, in PyTorch.

One formula serves three ends. On float64 (or float32) copies of the inputs it is the truth. On the
inputs themselves it is the unfused bf16 sequence, which rounds where a library's kernels would
store: that is the naive error. And torch.compile of that sequence is a rival.

A formula takes tensors by name and gives results by name. `stored_like` rounds to bf16 in the
unfused sequence and does nothing in the truth; statistics are taken in f32 or wider.
"""

import torch
import torch.nn.functional as F

FORMULAS = {}


def formula(function):
    FORMULAS[function.__name__] = function
    return function


def wide(x):
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def stored_like(x):
    """Rounds to the dtype of x where that is narrow."""
    narrow = x.dtype in (torch.bfloat16, torch.float16)
    return (lambda v: v.to(x.dtype)) if narrow else (lambda v: v)


def block_sum(v, dim):
    """Sums of 64 neighbours along `dim`, the last block perhaps shorter."""
    v = wide(v).movedim(dim, -1)
    v = F.pad(v, (0, -v.shape[-1] % 64))
    return v.unflatten(-1, (-1, 64)).sum(-1).movedim(-1, dim)


def block_logsumexp(v):
    v = F.pad(wide(v), (0, -v.shape[-1] % 64), value=-float("inf"))
    return v.unflatten(-1, (-1, 64)).logsumexp(-1)


def rms_scale(ss, n, eps):
    return torch.rsqrt(ss / n + eps)


def rms(x, gamma, eps):
    v = wide(x)
    return stored_like(x)(v * torch.rsqrt((v * v).mean(-1, keepdim=True) + eps)) * gamma


def rope(x, cos, sin):
    """Pairs e with e + E/2 in each head; cos and sin are [S, E/2]."""
    store = stored_like(x)
    v = x.view(-1, len(cos), x.shape[1] // (2 * cos.shape[1]), 2 * cos.shape[1])
    a, b = wide(v).chunk(2, -1)
    c, s = wide(cos)[:, None], wide(sin)[:, None]
    return store(torch.cat([a * c - b * s, b * c + a * s], -1)).reshape(x.shape)


# ---- plain products ----

@formula
def linear(x, w):
    return {"y": x @ w.t()}


@formula
def linear_grad(dz, w):
    return {"dx": dz @ w}


@formula
def weight(dz, x):
    return {"dw": dz.t() @ x}


@formula
def left_transposed(x, w):
    return {"y": x.t() @ w.t()}


# ---- forward ----

@formula
def residual_norm(x, w, residual, gamma):
    h = residual + x @ w.t()
    v = wide(h)
    return {"h": h, "p": h * gamma, "ss": block_sum(v * v, 1)}


@formula
def norm_swiglu(p, ss, gate, up, eps):
    store = stored_like(p)
    r = rms_scale(ss.sum(1), p.shape[1], eps)
    g, u = store(r[:, None] * (p @ gate.t())), store(r[:, None] * (p @ up.t()))
    return {"g": g, "u": u, "y": F.silu(g) * u, "r": r}


@formula
def norm_rope(p, ss, wq, wk, wv, cos, sin, eps):
    store = stored_like(p)
    r = rms_scale(ss.sum(1), p.shape[1], eps)
    q, k, v = (store(r[:, None] * (p @ w.t())) for w in (wq, wk, wv))
    return {"q": rope(q, cos, sin), "k": rope(k, cos, sin), "v": v, "r": r}


@formula
def norm_qk_norm_rope(p, r, wq, wk, wv, gamma_q, gamma_k, cos, sin, eps):
    """The second kernel of qwen3.coda's qkv_norm in training; backward reads z and rsqrt."""
    store = stored_like(p)
    zq, zk, v = (store(r[:, None] * (p @ w.t())) for w in (wq, wk, wv))

    def normed(z, gamma):
        heads = wide(z).view(len(z), -1, len(gamma))
        scale = torch.rsqrt((heads * heads).mean(-1) + eps)
        n = store(heads * scale[..., None]) * gamma
        return rope(n.reshape(z.shape), cos, sin), scale

    q, scale_q = normed(zq, gamma_q)
    k, scale_k = normed(zk, gamma_k)
    return {"z_wq": zq, "rsqrt": scale_q, "q": q, "z_wk": zk, "rsqrt_1": scale_k, "k": k, "v": v}


# ---- backward ----

@formula
def swiglu_grad(do, down, g, u, r):
    store = stored_like(do)
    dy = do @ down
    s = torch.sigmoid(g)
    dg_raw = store(dy * u * s * (1 + g * (1 - s)))
    du_raw = dy * g * s
    t = block_sum(wide(dg_raw) * wide(g) + wide(du_raw) * wide(u), 1)
    return {"dg": store(r[:, None] * dg_raw), "du": store(r[:, None] * du_raw), "t": t}


def _norm_grad(dp, do, h, gamma, r, t):
    store = stored_like(h)
    c = (r * r * t / h.shape[1])[:, None]
    return {"dh": store(do + dp * gamma - store(h * c)), "dgamma": block_sum(wide(dp) * wide(h), 0)}


@formula
def rmsnorm_grad(dg, gate, du, up, do, h, gamma, r, t):
    return _norm_grad(dg @ gate + du @ up, do, h, gamma, r, t.sum(1))


@formula
def rmsnorm_grad_qkv(zq, wq, zk, wk, zv, wv, do, h, gamma, r, t):
    return _norm_grad(zq @ wq + zk @ wk + zv @ wv, do, h, gamma, r, t)


def _weight(dz, x):
    return wide(dz.t() @ x)


@formula
def weight_grad(dz, x, dw):
    return {"dw": dw + _weight(dz, x)}


@formula
def weight_grad_pair(dg, du, p, dgate, dup):
    return {"dgate": dgate + _weight(dg, p), "dup": dup + _weight(du, p)}


@formula
def weight_grad_qkv(zq, zk, zv, p, dwq, dwk, dwv):
    return {"dwq": dwq + _weight(zq, p), "dwk": dwk + _weight(zk, p), "dwv": dwv + _weight(zv, p)}


@formula
def weight_grad_norm(dh, a, partial, dw, dgamma):
    return {"dw": dw + _weight(dh, a), "dgamma": dgamma + partial.sum(0)}


# ---- the loss head ----

@formula
def token_losses(x, w, target, ignore_index):
    z = wide(x @ w.t())
    lse = z.logsumexp(1)
    hit = z.gather(1, target.clamp(0, len(w) - 1)[:, None])[:, 0]
    loss = torch.where(target == ignore_index, torch.zeros_like(lse), lse - hit)
    return {"loss": loss, "lse": lse}


@formula
def linear_cross_entropy(x, w, target, ignore_index):
    return {"loss": F.cross_entropy(wide(x @ w.t()), target, ignore_index=int(ignore_index))}


@formula
def linear_cross_entropy_step(x, w, target, ignore_index, d_loss):
    """Forward and backward by hand: float64 logits exist twice, not five times."""
    z = x @ w.t()
    lse = wide(z).logsumexp(1)
    counts = target != int(ignore_index)
    count = counts.sum().to(lse.dtype)
    row = torch.arange(len(target), device=target.device)
    rows = torch.where(counts, lse - wide(z[row, target]), 0)
    d = torch.where(counts, d_loss / count, 0)
    dz = torch.exp(wide(z) - lse[:, None])
    del z
    dz[row, target] -= 1
    dz = stored_like(x)(dz.mul_(d[:, None]))
    return {"loss": rows.sum() / count, "d_x": dz @ w, "d_w": dz.t() @ x}


# ---- the layer between two attentions ----

@formula
def between(x, a, wo, gamma1, gate, up, down, gamma2, wq, wk, wv, cos, sin, eps):
    h = x + a @ wo.t()
    n = rms(h, gamma1, eps)
    o = h + (F.silu(n @ gate.t()) * (n @ up.t())) @ down.t()
    m = rms(o, gamma2, eps)
    return {"o": o, "q": rope(m @ wq.t(), cos, sin), "k": rope(m @ wk.t(), cos, sin),
            "v": m @ wv.t()}


BETWEEN_WRT = ("x", "a", "wo", "gamma1", "gate", "up", "down", "gamma2", "wq", "wk", "wv")


@formula
def between_step(d_o, d_q, d_k, d_v, function=None, **tensors):
    """Forward and backward by autograd; `function` may be a compiled `between`."""
    leaves = dict(tensors)
    leaves.update({n: tensors[n].detach().requires_grad_() for n in BETWEEN_WRT})
    made = (function or between)(**leaves)
    torch.autograd.backward([made[n] for n in "oqkv"], [d_o, d_q, d_k, d_v])
    return ({n: t.detach() for n, t in made.items()}
            | {"d_" + n: leaves[n].grad for n in BETWEEN_WRT})


# ---- streams ----

@formula
def norm_weight(h, gamma):
    v = wide(h)
    return {"p": h * gamma, "ss": block_sum(v * v, 1)}


@formula
def rmsnorm_rows(x, gamma, eps):
    v = wide(x)
    r = rms_scale((v * v).sum(1), x.shape[1], eps)
    return {"y": stored_like(x)(v * r[:, None]) * gamma, "r": r}


@formula
def layernorm_rows(x, gamma, beta, eps):
    v = wide(x)
    c = v - v.mean(1, keepdim=True)
    n = stored_like(x)(c * torch.rsqrt((c * c).mean(1, keepdim=True) + eps))
    return {"y": n * gamma + beta}


@formula
def rope_rows(x, cos, sin):
    return {"y": rope(x, cos, sin)}


@formula
def rope_norm_grad(dq, dk, dv, q, k, v, r, cos, sin):
    store = stored_like(dq)
    dot = lambda d, y: (wide(d) * wide(y)).sum(1)
    back = lambda d: store(r[:, None] * rope(d, cos, -sin))
    return {"zq": back(dq), "zk": back(dk), "zv": store(r[:, None] * dv),
            "t": dot(dq, q) + dot(dk, k) + dot(dv, v)}


@formula
def scaled_rows(r, p):
    return {"n": stored_like(p)(r[:, None] * p)}


@formula
def bias_grad(dz):
    return {"db": block_sum(dz, 0)}


@formula
def cross_entropy_rows(z, target, ignore_index):
    lse = wide(z).logsumexp(1)
    hit = wide(z).gather(1, target[:, None])[:, 0]
    loss = torch.where(target == ignore_index, torch.zeros_like(lse), lse - hit)
    return {"loss": loss, "lse": lse}


@formula
def embedding(table, ids):
    return {"x": table[ids]}


@formula
def adamw_master(master, grad, m, v, lr, beta1, beta2, eps, weight_decay, bias1, bias2, grad_scale):
    g = grad * grad_scale
    m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
    step = m / bias1 / (torch.sqrt(v / bias2) + eps)
    new = master - lr * (weight_decay * master + step)
    return {"new_master": new, "new_param": new, "new_m": m, "new_v": v}


@formula
def square_sums(grad):
    return {"ss": block_sum((grad * grad).sum(1), 0)}
