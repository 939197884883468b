"""What the rules of torch_rules.py are made of: norms, rotary positions, attention, dropout."""

import math

import torch
import torch.nn.functional as F


def block_sum(v, dim=-1, size=64):
    return torch.stack([part.sum(dim) for part in v.split(size, dim)], dim)


def block_logsumexp(v, size=64):
    return torch.stack([part.logsumexp(-1) for part in v.split(size, -1)], -1)


def rstd(ss, n, eps):
    return torch.rsqrt(ss.sum(-1) / n + eps)


def rms(x, gamma, eps):
    return F.rms_norm(x, (x.shape[-1],), gamma, eps)


def heads(x, size):
    return x.unflatten(-1, (-1, size))


def tables(x, cos):
    """Rows of the rotary table for x[B*S, …]: position s of each sequence, one for all heads."""
    return cos.repeat(x.shape[0] // cos.shape[0], 1)[:, None, :]


def rotate_half(x):
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


def rope(x, cos, sin, size=None):
    """As HF's Llama does it: full-width tables, x·cos + rotate_half(x)·sin."""
    z = heads(x, size or 2 * cos.shape[-1])
    c, s = (torch.cat((t, t), -1) for t in (tables(x, cos), tables(x, sin)))
    return (z * c + rotate_half(z) * s).flatten(1)


def rope_adjacent(x, cos, sin):
    """As complex numbers, the way Llama's own code does it."""
    z = torch.view_as_complex(heads(x, 2 * cos.shape[-1]).unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(z * torch.complex(tables(x, cos), tables(x, sin))).flatten(1)


def rope_partial(x, cos, sin, size):
    z, turned = heads(x, size), 2 * cos.shape[-1]
    first = rope(z[..., :turned].flatten(1), cos, sin)
    return torch.cat((heads(first, turned), z[..., turned:]), -1).flatten(1)


def attend(q, k, v, size, length, key_length=None, window=0, cap=0.0, scale=None):
    """Causal attention, the last query aligned with the last key."""
    key_length = key_length or length
    split = lambda t, s: t.view(t.shape[0] // s, s, -1, size).transpose(1, 2)
    q, k, v = split(q, length), split(k, key_length), split(v, key_length)
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    if not window and not cap and length == key_length:
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
    else:
        scores = q @ k.mT * (size ** -0.5 if scale is None else scale)
        if cap:
            scores = cap * torch.tanh(scores / cap)
        at = torch.arange(length)[:, None] + key_length - length
        key = torch.arange(key_length)[None, :]
        seen = key <= at
        if window:
            seen &= key > at - window
        o = scores.masked_fill(~seen, -math.inf).softmax(-1) @ v
    return o.transpose(1, 2).reshape(-1, o.shape[1] * size)


def philox_uniform(seed, count):
    """`uniform` by position, in plain integers (Salmon et al., SC 2011)."""
    mask, numbers = 0xFFFFFFFF, []
    for index in range(count):
        c, k = [index & mask, index >> 32, 0, 0], [seed & mask, seed >> 32 & mask]
        for _ in range(10):
            a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
            c = [(b >> 32) ^ c[1] ^ k[0], b & mask, (a >> 32) ^ c[3] ^ k[1], a & mask]
            k = [(k[0] + 0x9E3779B9) & mask, (k[1] + 0xBB67AE85) & mask]
        numbers.append((c[0] >> 8) * 2.0 ** -24)
    return torch.tensor(numbers, dtype=torch.float64)


def dropout(v, rate, seed):
    keep = philox_uniform(int(seed), v.numel()).view(v.shape) >= rate
    return torch.where(keep, v / (1 - rate), torch.zeros_like(v))
