"""Every operation of the language, value and gradient, against PyTorch in double."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from coda_command import ROOT, extent
from torch_pieces import attend, block_logsumexp, block_sum, philox_uniform

SIZES = dict(M=3, N=70, K=4, B=2, S=3, T=5, H=4, G=2, E=4, V=7, R=6, F=70)
PARAMS = {"a": "f64[M, N]", "b": "f64[M, N]", "p": "f64[M, N]", "c": "f64[N]", "r": "f64[M]",
          "x": "f64[M, K]", "w": "f64[N, K]", "q": "f64[B*S, H*E]", "k": "f64[B*T, G*E]",
          "v": "f64[B*T, G*E]", "u": "f64[B*T, G*(E/2)]", "t": "f64[S, E/2]", "g": "f64[E]",
          "o": "f64[H*E, K]", "z": "f64[B*S, K]", "table": "f64[V, N]", "ids": "i64[M]",
          "target": "i32[M]"}


def blocks_max(v):
    return torch.stack([part.amax(-1) for part in v.split(64, -1)], -1)


def repeat_blocks(v):
    return v.repeat_interleave(64, -1)[:, :SIZES["N"]]


def at_heads(i):
    return i.q.unflatten(1, (4, 4))


def by_position(t):
    return t.repeat(2, 1)


def attention(i, **options):
    return attend(i.q, i.k, i.v, 4, 3, 5, **options)


def full_attention(q, k, v, head=4):
    split = lambda z, s, e: z.view(2, s, -1, e).transpose(1, 2)
    q, k, v = split(q, 3, 4), split(k, 5, 4), split(v, 5, head)
    o = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    return o.transpose(1, 2).reshape(6, -1)


def attention_lse(i):
    split = lambda z, s: z.view(2, s, -1, 4).transpose(1, 2)
    scores = split(i.q, 3) @ split(i.k, 5).repeat_interleave(2, 1).mT / 2
    return scores.logsumexp(-1).transpose(1, 2).reshape(6, 4)


# name: (statements that end in y, y's dimensions, PyTorch). Names of operations as in ops.def.
OPS = {
    "add": ("y = a + c", "M, N", lambda i: i.a + i.c),
    "sub": ("y = r - a", "M, N", lambda i: i.r[:, None] - i.a),
    "mul": ("y = a * b * r * c", "M, N", lambda i: i.a * i.b * i.r[:, None] * i.c),
    "mul_outer": ("y = r * c", "M, N", lambda i: i.r[:, None] * i.c),
    "mul_square": ("y = a * a", "M, N", lambda i: i.a * i.a),
    "div": ("y = a / p / r", "M, N", lambda i: i.a / i.p / i.r[:, None]),
    "minimum": ("y = min(a, b)", "M, N", lambda i: torch.minimum(i.a, i.b)),
    "maximum": ("y = max(a, 0.25)", "M, N", lambda i: i.a.clamp(min=0.25)),
    "neg": ("y = -a", "M, N", lambda i: -i.a),
    "abs": ("y = abs(a)", "M, N", lambda i: i.a.abs()),
    "exp": ("y = exp(a)", "M, N", lambda i: i.a.exp()),
    "log": ("y = log(p)", "M, N", lambda i: i.p.log()),
    "sqrt": ("y = sqrt(p)", "M, N", lambda i: i.p.sqrt()),
    "rsqrt": ("y = rsqrt(p)", "M, N", lambda i: i.p.rsqrt()),
    "tanh": ("y = tanh(a)", "M, N", lambda i: i.a.tanh()),
    "sigmoid": ("y = sigmoid(a)", "M, N", lambda i: i.a.sigmoid()),
    "erf": ("y = erf(a)", "M, N", lambda i: i.a.erf()),
    "detach": ("y = a * detach(a)", "M, N", lambda i: i.a * i.a.detach()),
    "save": ("y = save(a * b) * a", "M, N", lambda i: i.a * i.b * i.a),
    "recompute": ("y = recompute(a * b) * a", "M, N", lambda i: i.a * i.b * i.a),
    "eq": ("y = where(ids == 1, a, b)", "M, N",
           lambda i: torch.where((i.ids == 1)[:, None], i.a, i.b)),
    "ne": ("y = where(ids != 1, a, 0)", "M, N",
           lambda i: torch.where((i.ids != 1)[:, None], i.a, 0.0)),
    "lt": ("y = where(a < b, a, c)", "M, N", lambda i: torch.where(i.a < i.b, i.a, i.c)),
    "le": ("y = where(a <= b, 1, r)", "M, N",
           lambda i: torch.where(i.a <= i.b, 1.0, i.r[:, None])),
    "gt": ("y = where(a > 0, exp(a), a + 1)", "M, N",
           lambda i: torch.where(i.a > 0, i.a.exp(), i.a + 1)),
    "ge": ("y = where(a >= r, p, a)", "M, N",
           lambda i: torch.where(i.a >= i.r[:, None], i.p, i.a)),
    "where": ("y = where(index(N) < 5, a, b * c)", "M, N",
              lambda i: torch.where(torch.arange(70) < 5, i.a, i.b * i.c)),
    "cast": ("y = f64(a) + f64(ids)", "M, N", lambda i: i.a + i.ids[:, None]),
    "pin": ("y = pin f64(a) * 2", "M, N", lambda i: i.a * 2),
    "constant": ("y = a * 0.5 - 1e-3 + 3", "M, N", lambda i: i.a * 0.5 - 1e-3 + 3),
    "size": ("y = a / size(N)", "M, N", lambda i: i.a / 70),
    "index": ("y = a * index(N) + index(M)", "M, N",
              lambda i: i.a * torch.arange(70) + torch.arange(3)[:, None]),
    "uniform": ("y = a * uniform(7, a) + uniform(8589934593, [M, N])", "M, N",
                lambda i: i.a * philox_uniform(7, 210).view(3, 70)
                + philox_uniform(8589934593, 210).view(3, 70)),
    "product": ("y = x @ w", "M, N", lambda i: i.x @ i.w.T),
    "product_data": ("y = a @ w", "M, K", lambda i: i.a @ i.w),
    "product_weight": ("y = a @ x", "N, K", lambda i: i.a.T @ i.x),
    "product_factors": ("y = q @[H*E] o", "B*S, K", lambda i: i.q @ i.o),
    "product_named": ("y = q @[B, S] z", "H*E, K", lambda i: i.q.T @ i.z),
    "product_sum": ("y = x @ w + a @ w @ w", "M, N",
                    lambda i: i.x @ i.w.T + i.a @ i.w @ i.w.T),
    "product_vector": ("y = a @ c", "M", lambda i: i.a @ i.c),
    "split": ("l, h, m = split(a, N: 10, 20, 40)\n"
              "  y = sum(l, 10) * 2 - sum(h, 20) + logsumexp(m, 40)", "M",
              lambda i: (i.a[:, :10].sum(1) * 2 - i.a[:, 10:30].sum(1)
                         + i.a[:, 30:].logsumexp(1))),
    "split_factor": ("l, h = split(q, E: E/2, E/2)\n  y = l * t - h", "B*S, H*(E/2)",
                     lambda i: (at_heads(i)[..., :2] * by_position(i.t)[:, None]
                                - at_heads(i)[..., 2:]).flatten(1)),
    "split_heads": ("l, h = split(q, H: 1, H - 1)\n  y = join(H: h, l)", "B*S, H*E",
                    lambda i: at_heads(i).roll(-1, 1).flatten(1)),
    "join": ("l, h = split(q, E: E/2, E/2)\n  y = join(E: h * h, -l)", "B*S, H*E",
             lambda i: torch.cat((at_heads(i)[..., 2:] ** 2, -at_heads(i)[..., :2]), 2).flatten(1)),
    "join_rows": ("y = join(a, b, R: M, M)", "R, N", lambda i: torch.cat((i.a, i.b))),
    "as": ("y = (q as [B*S, H*(E/2)*2]) * t", "B*S, H*(E/2)*2",
           lambda i: (i.q.view(6, 4, 2, 2) * by_position(i.t)[:, None, :, None]).flatten(1)),
    "as_rename": ("y = (x @ w) as [M, F]", "M, F", lambda i: i.x @ i.w.T),
    "spread": ("y = spread(r, N) * a + spread(c, [M, N])", "M, N",
               lambda i: i.r[:, None] * i.a + i.c),
    "spread_blocks": ("y = spread(block_sum(a, N), N) * b", "M, N",
                      lambda i: repeat_blocks(block_sum(i.a)) * i.b),
    "spread_factor": ("y = spread(sum(q, E), [B*S, H*E]) * q", "B*S, H*E",
                      lambda i: (at_heads(i).sum(2, True) * at_heads(i)).flatten(1)),
    "sum": ("y = sum(a * a, N) + sum(b, N)", "M", lambda i: (i.a * i.a + i.b).sum(1)),
    "sum_rows": ("y = sum(a * b, M)", "N", lambda i: (i.a * i.b).sum(0)),
    "sum_factor": ("y = sum(q * g, E)", "B*S, H", lambda i: (at_heads(i) * i.g).sum(2)),
    "sum_run": ("y = sum(q * q, H*E)", "B*S", lambda i: (i.q * i.q).sum(1)),
    "sum_sequence": ("y = sum(q, S)", "B, H*E", lambda i: i.q.view(2, 3, 16).sum(1)),
    "reduce_max": ("y = max(a * b, N)", "M", lambda i: (i.a * i.b).amax(1)),
    "logsumexp": ("y = logsumexp(a * 3, N)", "M", lambda i: (i.a * 3).logsumexp(1)),
    "block_sum": ("y = block_sum(a * b, N)", "M, blocks(N)", lambda i: block_sum(i.a * i.b)),
    "block_sum_rows": ("y = block_sum(a, M, 2)", "blocks(M, 2), N",
                       lambda i: block_sum(i.a, 0, 2)),
    "block_max": ("y = block_max(a, N)", "M, blocks(N)", lambda i: blocks_max(i.a)),
    "block_logsumexp": ("y = block_logsumexp(a, N)", "M, blocks(N)",
                        lambda i: block_logsumexp(i.a)),
    "block_finish": ("y = logsumexp(block_logsumexp(a, N), blocks(N))", "M",
                     lambda i: i.a.logsumexp(1)),
    "block_size": ("y = block_sum(a, N) / block_size(N)", "M, blocks(N)",
                   lambda i: block_sum(i.a) / torch.tensor([64.0, 6.0])),
    "gather": ("y = table[ids] * a", "M, N", lambda i: i.table[i.ids] * i.a),
    "gather_positions": ("y = sum(c[index(N)] * a, N)", "M", lambda i: (i.c * i.a).sum(1)),
    "scatter_sum": ("y = scatter_sum(a * b, ids, V) * table", "V, N",
                    lambda i: torch.zeros(7, 70).double().index_add(0, i.ids, i.a * i.b) * i.table),
    "pick": ("y = pick(a * a, target)", "M",
             lambda i: (i.a * i.a).gather(1, i.target.long()[:, None])[:, 0]),
    "attention": ("y, _ = attention(q, k, v)", "B*S, H*E",
                  lambda i: full_attention(i.q, i.k, i.v)),
    "attention_causal": ("y, _ = attention(q, k, v, causal: true)", "B*S, H*E",
                         lambda i: attention(i)),
    "attention_window": ("y, _ = attention(q, k, v, causal: true, window: 2)", "B*S, H*E",
                         lambda i: attention(i, window=2)),
    "attention_softcap": ("y, _ = attention(q, k, v, causal: true, softcap: 1.5, scale: 0.7)",
                          "B*S, H*E", lambda i: attention(i, cap=1.5, scale=0.7)),
    "attention_value_size": ("y, _ = attention(q, k, u)", "B*S, H*(E/2)",
                             lambda i: full_attention(i.q, i.k, i.u, 2)),
    "attention_lse": ("_, y = attention(q, k, v)", "B*S, H", attention_lse),
}
VALUES_ONLY = {"attention_lse"}


def inputs():
    random = np.random.default_rng(11)
    values = {}
    for name, text in PARAMS.items():
        dtype, dims = re.fullmatch(r"(\w+)\[(.*)\]", text).groups()
        shape = tuple(extent(dim, SIZES) for dim in dims.split(", "))
        if dtype == "f64":
            values[name] = random.normal(size=shape)
        else:
            values[name] = random.integers(0, 7, shape)
    values["p"] = 0.5 + random.random(values["p"].shape)
    values["target"][0] = 69
    return values


@pytest.fixture(scope="module")
def file(coda):
    """One block for each operation."""
    params = ", ".join(f"{name}: {type_}" for name, type_ in PARAMS.items())
    text = "coda 1\n\n"
    for name, (statements, dims, _) in OPS.items():
        text += f"block op_{name}({params}) -> (y: f64[{dims}]) {{\n  {statements}\n}}\n\n"
    return coda.write("ops.coda", text)


def test_table_covers_the_vocabulary():
    rows = re.findall(r"^CODA_OP\((\w+),", (ROOT / "coda/program/ops.def").read_text(), re.M)
    assert set(rows) - {"attention_grad"} <= set(OPS)  # attention's gradient calls attention_grad


@pytest.mark.parametrize("name", OPS)
def test_value_and_gradient_equal_torch(coda, file, name):
    values = inputs()
    tensors = {k: torch.tensor(v) for k, v in values.items()}
    leaves = {k: t.requires_grad_() for k, t in tensors.items() if t.is_floating_point()}
    want = OPS[name][2](SimpleNamespace(**tensors))
    got = coda.run(file, f"op_{name}", values, SIZES)["y"]
    assert got.shape == tuple(want.shape)
    np.testing.assert_allclose(got, want.detach().numpy(), rtol=1e-11, atol=1e-12)
    if name in VALUES_ONLY:
        return
    upstream = np.random.default_rng(5).normal(size=got.shape)
    gradients = dict(zip(leaves, torch.autograd.grad(
        want, list(leaves.values()), torch.tensor(upstream), allow_unused=True)))
    gradients = {k: g for k, g in gradients.items() if g is not None}
    gradient_file, gradient_name = coda.grad(file, f"op_{name}", wrt=list(gradients))
    got = coda.run(gradient_file, gradient_name, {**values, "d_y": upstream}, SIZES)
    for leaf, gradient in gradients.items():
        np.testing.assert_allclose(got[f"d_{leaf}"], gradient.numpy(), rtol=1e-10, atol=1e-11,
                                   err_msg=f"d_{leaf}")
