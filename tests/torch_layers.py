"""What layers, embeddings and heads mean, in PyTorch: torch_rules.py goes on."""

import math

import torch
import torch.nn.functional as F

from torch_pieces import attend, dropout, heads, rms, rope
from torch_rules import RULES, mlp, rule


@rule("attention.qkv")
def qkv(x, gamma, wq, wk, wv, cos, sin, eps):
    n = rms(x, gamma, eps)
    return {"q": rope(F.linear(n, wq), cos, sin), "k": rope(F.linear(n, wk), cos, sin),
            "v": F.linear(n, wv)}


@rule("attention.attend")
def _(q, k, v, size, length, key_length):
    return {"o": attend(q, k, v, size, length, key_length)}


@rule("attention.attention_out")
def _(x, o, wo):
    return {"h": x + F.linear(o, wo)}


def _attention_half(x, parts, wo, cos):
    o = attend(parts["q"], parts["k"], parts["v"], 2 * cos.shape[1], cos.shape[0])
    return x + F.linear(o, wo)


@rule("llama.layer")
def _(x, gamma1, wq, wk, wv, wo, gamma2, gate, up, down, cos, sin, eps):
    h = _attention_half(x, qkv(x, gamma1, wq, wk, wv, cos, sin, eps), wo, cos)
    return mlp(h, gamma2, gate, up, down, eps)


@rule("llama.between")
def between(x, a, wo, gamma1, gate, up, down, gamma2, wq, wk, wv, cos, sin, eps):
    o = mlp(x + F.linear(a, wo), gamma1, gate, up, down, eps)["out"]
    return {"o": o, **qkv(o, gamma2, wq, wk, wv, cos, sin, eps)}


@rule("qwen2.qkv_bias")
def qkv_bias(x, gamma, wq, bq, wk, bk, wv, bv, cos, sin, eps):
    n = rms(x, gamma, eps)
    return {"q": rope(F.linear(n, wq, bq), cos, sin), "k": rope(F.linear(n, wk, bk), cos, sin),
            "v": F.linear(n, wv, bv)}


@rule("qwen2.layer")
def _(x, gamma1, wq, bq, wk, bk, wv, bv, wo, gamma2, gate, up, down, cos, sin, eps):
    h = _attention_half(x, qkv_bias(x, gamma1, wq, bq, wk, bk, wv, bv, cos, sin, eps), wo, cos)
    return mlp(h, gamma2, gate, up, down, eps)


@rule("qwen3.qkv_norm")
def qkv_norm(x, gamma, wq, wk, wv, gamma_q, gamma_k, cos, sin, eps):
    n, size = rms(x, gamma, eps), 2 * cos.shape[1]
    normed = lambda w, g: rms(heads(F.linear(n, w), size), g, eps).flatten(1)
    return {"q": rope(normed(wq, gamma_q), cos, sin), "k": rope(normed(wk, gamma_k), cos, sin),
            "v": F.linear(n, wv)}


@rule("qwen3.layer")
def _(x, gamma1, wq, wk, wv, gamma_q, gamma_k, wo, gamma2, gate, up, down, cos, sin, eps):
    parts = qkv_norm(x, gamma1, wq, wk, wv, gamma_q, gamma_k, cos, sin, eps)
    return mlp(_attention_half(x, parts, wo, cos), gamma2, gate, up, down, eps)


@rule("gpt2.embed")
def _(tokens, positions, ids, rate, seed, length):
    at = torch.arange(length).repeat(ids.shape[0] // length)
    return {"x": dropout(F.embedding(ids, tokens) + F.embedding(at, positions), rate, seed)}


@rule("gpt2.qkv")
def gpt2_qkv(x, gamma, beta, w, b, eps):
    q, k, v = (F.layer_norm(x, gamma.shape, gamma, beta, eps) @ w + b).chunk(3, -1)
    return {"q": q, "k": k, "v": v}


@rule("gpt2.mlp")
def gpt2_mlp(x, gamma, beta, w1, b1, w2, b2, rate, seed, eps):
    y = F.gelu(F.layer_norm(x, gamma.shape, gamma, beta, eps) @ w1 + b1, approximate="tanh")
    return {"out": x + dropout(y @ w2 + b2, rate, seed)}


@rule("gpt2.layer")
def _(x, gamma1, beta1, wqkv, bqkv, wo, bo, gamma2, beta2, w1, b1, w2, b2, rate, seed1, seed2, eps,
      size, length):
    parts = gpt2_qkv(x, gamma1, beta1, wqkv, bqkv, eps)
    o = attend(parts["q"], parts["k"], parts["v"], size, length)
    h = x + dropout(o @ wo + bo, rate, seed1)
    return gpt2_mlp(h, gamma2, beta2, w1, b1, w2, b2, rate, seed2, eps)


@rule("gemma.embed")
def _(table, ids):
    return {"x": F.embedding(ids, table) * math.sqrt(table.shape[1])}


@rule("gemma.qkv")
def gemma_qkv(x, gamma, wq, wk, wv, cos, sin, eps):
    return qkv(x, 1 + gamma, wq, wk, wv, cos, sin, eps)


@rule("gemma.mlp")
def gemma_mlp(x, gamma_before, gate, up, down, gamma_after, eps):
    n = rms(x, 1 + gamma_before, eps)
    y = F.linear(F.gelu(F.linear(n, gate), approximate="tanh") * F.linear(n, up), down)
    return {"out": x + rms(y, 1 + gamma_after, eps)}


@rule("gemma.layer")
def _(x, gamma1, wq, wk, wv, wo, gamma2, gamma3, gate, up, down, gamma4, cos, sin, window, cap,
      scale, eps):
    parts = gemma_qkv(x, gamma1, wq, wk, wv, cos, sin, eps)
    o = attend(parts["q"], parts["k"], parts["v"], 2 * cos.shape[1], cos.shape[0],
               window=int(window), cap=cap, scale=scale)
    h = x + rms(F.linear(o, wo), 1 + gamma2, eps)
    return gemma_mlp(h, gamma3, gate, up, down, gamma4, eps)


@rule("parallel.layer")
def _(x, gamma, wq, wk, wv, wo, gate, up, down, cos, sin, eps):
    attention = _attention_half(x, qkv(x, gamma, wq, wk, wv, cos, sin, eps), wo, cos)
    return {"out": attention + mlp(x, gamma, gate, up, down, eps)["out"] - x}


@rule("olmo2.qkv_norm_heads")
def qkv_norm_heads(x, wq, wk, wv, gamma_q, gamma_k, cos, sin, eps):
    return {"q": rope(rms(F.linear(x, wq), gamma_q, eps), cos, sin),
            "k": rope(rms(F.linear(x, wk), gamma_k, eps), cos, sin), "v": F.linear(x, wv)}


@rule("olmo2.layer")
def _(x, wq, wk, wv, gamma_q, gamma_k, wo, gamma1, gate, up, down, gamma2, cos, sin, eps):
    parts = qkv_norm_heads(x, wq, wk, wv, gamma_q, gamma_k, cos, sin, eps)
    o = attend(parts["q"], parts["k"], parts["v"], 2 * cos.shape[1], cos.shape[0])
    h = x + rms(F.linear(o, wo), gamma1, eps)
    y = F.silu(F.linear(h, gate)) * F.linear(h, up)
    return {"out": h + rms(F.linear(y, down), gamma2, eps)}


@rule("layer_scale.layer")
def _(x, gamma1, beta1, wqkv, bqkv, wo, bo, scale1, gamma2, beta2, w1, b1, w2, b2, scale2, eps,
      size, length):
    n = F.layer_norm(x, gamma1.shape, gamma1, beta1, eps)
    q, k, v = (t.view(-1, length, t.shape[1] // size, size).transpose(1, 2)
               for t in F.linear(n, wqkv, bqkv).chunk(3, -1))
    o = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(len(x), -1)
    h = x + scale1 * F.linear(o, wo, bo)
    n = F.layer_norm(h, gamma2.shape, gamma2, beta2, eps)
    return {"out": h + scale2 * F.linear(F.gelu(F.linear(n, w1, b1)), w2, b2)}


@rule("lora.qkv_lora")
def qkv_lora(x, gamma, wq, aq, bq, wk, wv, av, bv, cos, sin, scale, eps):
    return qkv(x, gamma, wq + scale * bq @ aq, wk, wv + scale * bv @ av, cos, sin, eps)


@rule("lora.layer")
def _(x, gamma1, wq, aq, bq, wk, wv, av, bv, wo, gamma2, gate, up, down, cos, sin, scale, eps):
    parts = qkv_lora(x, gamma1, wq, aq, bq, wk, wv, av, bv, cos, sin, scale, eps)
    return mlp(_attention_half(x, parts, wo, cos), gamma2, gate, up, down, eps)


@rule("llama_packed.layer")
def _(x, gamma1, wqkv, wo, gamma2, gate_up, down, cos, sin, eps, groups):
    keys = groups * 2 * cos.shape[1]
    wq, wk, wv = wqkv.split([len(wqkv) - 2 * keys, keys, keys])
    parts = qkv(x, gamma1, wq, wk, wv, cos, sin, eps)
    return mlp(_attention_half(x, parts, wo, cos), gamma2, *gate_up.chunk(2), down, eps)


@rule("expert.expert")
def _(x, p, gate, up, down):
    y = F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)
    return {"out": p[:, None] * y}


@rule("embedding.embedding")
def _(table, ids):
    return {"x": F.embedding(ids, table)}


@rule("embedding.embed_norm")
def _(table, ids, gamma, eps):
    x = F.embedding(ids, table)
    return {"x": x, "n": rms(x, gamma, eps)}


@rule("embedding.embedding_grad")
def _(dx, ids, table):
    return {"dtable": torch.zeros_like(table).index_add(0, ids, dx)}


# ---- head.coda ----

@rule("head.logits")
def _(h, gamma, w, eps):
    return {"z": F.linear(rms(h, gamma, eps), w)}


def _loss(z, target, ignore_index, reduction="mean"):
    return F.cross_entropy(z, target, ignore_index=int(ignore_index), reduction=reduction)


@rule("head.head")
def _(h, gamma, w, target, ignore_index, eps):
    z = F.linear(rms(h, gamma, eps), w)
    return {"loss": _loss(z, target, ignore_index), "lse": z.logsumexp(-1)}


@rule("gemma.head")
def _(h, gamma, w, target, logit_cap, ignore_index, eps):
    z = logit_cap * torch.tanh(F.linear(rms(h, 1 + gamma, eps), w) / logit_cap)
    return {"loss": _loss(z, target, ignore_index), "lse": z.logsumexp(-1)}


@rule("gpt2.head")
def _(h, gamma, beta, w, target, ignore_index, eps):
    z = F.linear(F.layer_norm(h, gamma.shape, gamma, beta, eps), w)
    return {"loss": _loss(z, target, ignore_index), "lse": z.logsumexp(-1)}


@rule("head.head_rows")
def _(h, gamma, w, target, ignore_index, eps):
    return {"loss": _loss(F.linear(rms(h, gamma, eps), w), target, ignore_index, "none")}


@rule("head.head_sum")
def _(h, gamma, w, target, ignore_index, eps):
    return {"loss": _loss(F.linear(rms(h, gamma, eps), w), target, ignore_index, "sum")}


@rule("head.head_softcap")
def _(h, gamma, w, target, cap, ignore_index, eps):
    z = cap * torch.tanh(F.linear(rms(h, 1 + gamma, eps), w) / cap)
    return {"loss": _loss(z, target, ignore_index)}


@rule("head.head_full")
def _(h, gamma, w, bias, target, class_weight, token_weight, cap, smoothing, z_loss, ignore_index,
      eps):
    z = cap * torch.tanh(F.linear(rms(h, gamma, eps), w, bias) / cap)
    counted = target != ignore_index
    rows = F.cross_entropy(z, target, class_weight, ignore_index=int(ignore_index),
                           label_smoothing=float(smoothing), reduction="none")
    rows = token_weight * (rows + torch.where(counted, z_loss * z.logsumexp(-1) ** 2, 0.0))
    weight = torch.where(counted, token_weight * class_weight[target.clamp(min=0)], 0.0)
    return {"rows": rows, "total": rows.sum(), "mean": rows.sum() / weight.sum(),
            "invalid": torch.tensor(0)}
