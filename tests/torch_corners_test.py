"""Corners of graphs, each of which was wrong once: what eager gives, forward and backward."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from coda_epilogue import backend, report

EAGER = {"rest": "eager"}


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v):
        return v.sign()

    @staticmethod
    def backward(ctx, g):
        return g * 2


def linears(*shapes):
    torch.manual_seed(0)
    return [nn.Linear(*s) for s in shapes]


def turned(u):
    a, b = u.chunk(2, -1)
    return torch.cat((-b, a), -1)


def without_gradients(a, b, x):
    with torch.no_grad():
        h = a(x)
    return b(h) + a(x)


def a_scale_without_gradients(a, b, x):
    h = a(x)
    with torch.no_grad():
        s = torch.rsqrt(h.square().mean(-1, keepdim=True))
    return b(h * s)


def a_cast_in_a_block(a, b, x):
    with torch.autocast("cpu", torch.bfloat16):
        h = a(x)
    return b(h.to(x.dtype))


def a_hook(a, b, x):
    h = a(x)
    if h.requires_grad:
        h.register_hook(lambda g: g * 3)
    return b(F.silu(h))


def written_through_a_view(a, b, x):
    y = a(x)
    y.view(-1).mul_(2.0)
    return b(y)


def a_view_of_what_is_written(a, b, x):
    y = a(x)
    v = y.view(4, 2, 3)
    y.add_(1.0)
    return v * 1


def partial_rotary(a, b, x):
    h = a(x).view(4, 3, 2)
    pad = torch.cat((h, h, h), -1)
    r, p = pad[..., :4], pad[..., 4:]
    return torch.cat((r * 0.5 + turned(r) * 0.25, p), -1)


def written_into_a_buffer(a, b, x):
    buffer = torch.zeros(6, 6, dtype=x.dtype)
    buffer[:4] = a(x)
    return b(buffer.cumsum(0))


def a_view_without_gradients(a, b, x):
    with torch.no_grad():
        w = b.weight.t()
    return b(a(x)) + a(x) @ w


def detached_and_returned(a, b, x):
    h = a(x)
    return b(h.detach() * x[:, :6]), h.detach()


def complex_of(a, x):
    return torch.view_as_complex(a(x).view(4, 3, 2))


def angles(dtype):
    return torch.arange(4)[:, None, None].to(dtype) * torch.tensor([1.0, 0.3, 0.1]).to(dtype)


def complex_rotary(a, b, x):
    h, angle = a(x).view(4, 1, 6), angles(x.dtype)
    turned_by = torch.polar(torch.ones_like(angle), angle)
    pairs = torch.view_as_complex(h.reshape(4, 1, 3, 2).contiguous())
    return b(torch.view_as_real(pairs * turned_by).flatten(2).type_as(x))


def rotary_of_neighbours(a, b, x):
    h, angle = a(x).view(4, 1, 6), angles(x.dtype)
    even, odd, cos, sin = h[..., ::2], h[..., 1::2], angle.cos(), angle.sin()
    return b(torch.stack((even * cos - odd * sin, odd * cos + even * sin), -1).flatten(-2))


def neighbours_turned_round(a, b, x):
    h = a(x).view(4, 1, 6)
    cos, sin = (t.repeat_interleave(2, -1) for t in (angles(x.dtype).cos(), angles(x.dtype).sin()))
    return h * cos + torch.stack((-h[..., 1::2], h[..., ::2]), -1).flatten(-2) * sin


def neighbours_unbound(a, b, x):
    even, odd = a(x).view(4, 3, 2).unbind(-1)
    return b(torch.stack((odd, even * 2), -1).view(4, 6))


CASES = {
    "complex rotary": complex_rotary,
    "rotary of neighbours": rotary_of_neighbours,
    "neighbours turned round": neighbours_turned_round,
    "neighbours unbound": neighbours_unbound,
    "a spectrum": lambda a, b, x: b(torch.view_as_real(
        torch.fft.fft(a(x)) * torch.polar(torch.ones(6), torch.ones(6)).to(x.dtype.to_complex())
    ).flatten(-2)[..., :6]),
    "written into a buffer": written_into_a_buffer,
    "a view without gradients": a_view_without_gradients,
    "detached and returned": lambda a, b, x: detached_and_returned(a, b, x)[0],
    "half of a product": lambda a, b, x: a(x)[..., :3].cumsum(0),
    "a complex slice": lambda a, b, x: torch.view_as_real(complex_of(a, x)[..., :2]),
    "complex, turned": lambda a, b, x: torch.view_as_real(complex_of(a, x).transpose(0, 1)),
    "complex, joined": lambda a, b, x: torch.view_as_real(
        torch.cat([complex_of(a, x), complex_of(a, x)], -1)),
    "complex, detached": lambda a, b, x: torch.view_as_real(
        complex_of(a, x) * complex_of(a, x).detach()),
    "a conjugate": lambda a, b, x: b(torch.view_as_real(complex_of(a, x) * torch.complex(
        x[:, :3], x[:, 3:6]).detach().conj()).flatten(1)),
    "one of two": lambda a, b, x: a(x).view(4, 3, 2)[..., 1] * b(a(x))[:, ::2],
    "no_grad": without_gradients,
    "no_grad scale": a_scale_without_gradients,
    "autocast": a_cast_in_a_block,
    "custom function": lambda a, b, x: b(Double.apply(a(x)) + a(x)),
    "hook": a_hook,
    "vmap": lambda a, b, x: torch.vmap(lambda r: F.silu(a(r)))(x),
    "written through a view": written_through_a_view,
    "a view of what is written": a_view_of_what_is_written,
    "in place": lambda a, b, x: b(a(x).relu_()),
    "a cut of a cut": lambda a, b, x: turned(a(x).chunk(2, -1)[1].repeat(1, 2)) * 2,
    "softplus": lambda a, b, x: F.softplus(a(x), beta=2.0, threshold=1.0),
    "a small softplus": lambda a, b, x: F.softplus(a(x) - 20) * 1e9,
    "relu": lambda a, b, x: F.relu(b(a(x) * 0)),
    "pairwise": lambda a, b, x: (a(x)[:, None] - a(x)[None]).square().sum(-1),
    "merged rows": lambda a, b, x: a(x).view(2, 12).square().mean(1),
    "norm over rows": lambda a, b, x: F.layer_norm(a(x).view(2, 12), (12,)),
    "gated residual": lambda a, b, x: (lambda p: p[1] + p[0] * torch.sigmoid(p[1]))(
        b(a(x)).chunk(2, -1)),
    "sum of losses": lambda a, b, x: F.cross_entropy(
        a(x), torch.tensor([0, 5, 1, 2]), reduction="sum"),
    "one row": lambda a, b, x: F.cross_entropy(a(x[:1]), torch.tensor([3])),
    "no rows": lambda a, b, x: a(x[:0]).sum() + b(a(x)).sum(),
    "additive attention": lambda a, b, x: torch.tanh(a(x)[:, None] + b(a(x))[None]).sum(-1),
    "a returned view": lambda a, b, x: (lambda y: (y, y.view(-1)))(a(x))[1],
    "negative zero": lambda a, b, x: a(x) + (a(x).detach().abs() / -0.0).sign(),
    "partial rotary": partial_rotary,
}


# Where the parts that Inductor compiles went wrong.
BY_INDUCTOR = ("hook", "no_grad", "no_grad scale", "custom function", "written into a buffer",
               "a view without gradients", "half of a product", "a spectrum", "one of two",
               "in place")


def gradients(function, layers, x):
    for layer in layers:
        layer.zero_grad()
    leaf = x.clone().requires_grad_()
    result = function(*layers, leaf)
    upstream = torch.arange(result.numel()).view(result.shape).to(result.dtype) * 0.1 + 0.3
    if result.requires_grad:
        result.backward(upstream)
    found = [p.grad for layer in layers for p in layer.parameters()] + [leaf.grad]
    return result.detach(), [None if g is None else g.clone() for g in found]


@pytest.mark.parametrize("name", BY_INDUCTOR)
def test_what_eager_gives_where_inductor_has_the_rest(name, monkeypatch):
    monkeypatch.setattr(backend, "_SMALL", 0)
    torch._dynamo.reset()
    layers, x = linears((8, 6), (6, 6)), torch.randn(4, 8)
    want, want_gradients = gradients(CASES[name], layers, x)
    got, got_gradients = gradients(torch.compile(CASES[name], backend="coda"), layers, x)
    torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5)
    for a, b in zip(got_gradients, want_gradients):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-5)


def test_no_gradient_comes_where_none_was_asked_for():
    torch._dynamo.reset()
    (a, b), x = linears((8, 6), (6, 6)), torch.randn(4, 8)
    run = torch.compile(lambda x: detached_and_returned(a, b, x), backend="coda", options=EAGER)
    run(x)[0].sum().backward()
    assert a.weight.grad is None and b.weight.grad is not None


def test_a_part_that_reads_sizes_alone(monkeypatch):
    monkeypatch.setattr(backend, "_SMALL", 0)
    torch._dynamo.reset()
    (a,) = linears((8, 6))
    table = lambda x: torch.outer(torch.arange(x.shape[0]).float(), torch.arange(6) + 0.5).cos()
    run = torch.compile(lambda x: a(x) * table(x), backend="coda", dynamic=True)
    for rows in (4, 5):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(run(x), a(x) * table(x), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", ["complex rotary", "rotary of neighbours",
                                  "neighbours turned round", "neighbours unbound"])
def test_rotations_are_inside_a_region(name):
    torch._dynamo.reset()
    report.GRAPHS.clear()
    layers = linears((8, 6), (6, 6))
    torch.compile(CASES[name], backend="coda", options=EAGER)(*layers, torch.randn(4, 8))
    (graph,) = report.GRAPHS
    left = {operator for operator, why in graph.left.values()
            if why != "computed from no activation" and "returned" not in why}
    assert len(graph.blocks) == 1 and not left


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", CASES)
def test_what_eager_gives(name, dtype):
    torch._dynamo.reset()
    layers = [layer.to(dtype) for layer in linears((8, 6), (6, 6))]
    torch.manual_seed(1)
    x = torch.randn(4, 8, dtype=dtype)
    want, want_gradients = gradients(CASES[name], layers, x)
    run = torch.compile(CASES[name], backend="coda", options=EAGER)
    got, got_gradients = gradients(run, layers, x)
    assert type(got) is torch.Tensor and got.dtype == want.dtype
    bound = dict(rtol=2e-5, atol=2e-5) if name != "autocast" else dict(rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(got, want, **bound)
    for a, b in zip(got_gradients, want_gradients):
        assert (a is None) == (b is None)
        if b is not None:
            torch.testing.assert_close(a, b, **bound)


def test_a_norm_in_bf16_has_the_epsilon_of_what_it_computes_in():
    torch._dynamo.reset()
    norm, (a,) = nn.RMSNorm(8).bfloat16(), linears((8, 6))
    a.bfloat16()
    x = 1e-2 * torch.randn(4, 8).bfloat16()
    run = torch.compile(lambda x: a(norm(x)), backend="coda", options=EAGER)
    torch.testing.assert_close(run(x), a(norm(x)), rtol=3e-2, atol=1e-2)


def test_a_table_that_was_written_to_has_two_halves():
    torch._dynamo.reset()
    (m,), table = linears((8, 8)), torch.randn(4, 4)

    def f(x):
        e = torch.cat((table, table), -1)
        cos = e.cos()
        cos[..., :2] = 0.0
        q = m(x)
        return q * cos + turned(q) * e.sin()
    x = torch.randn(4, 8)
    torch.testing.assert_close(torch.compile(f, backend="coda", options=EAGER)(x), f(x))


def test_a_target_out_of_range_is_an_error():
    torch._dynamo.reset()
    (a,), x = linears((8, 6)), torch.randn(4, 8)
    run = torch.compile(lambda x, t: F.cross_entropy(a(x), t), backend="coda", options=EAGER)
    with pytest.raises(ValueError, match="target 9 is outside 0 … 5"):
        run(x, torch.tensor([3, 9, 1, 0]))


def test_what_reaches_no_weight_needs_no_gradient():
    torch._dynamo.reset()
    a, b = linears((8, 6), (6, 6))
    a.requires_grad_(False)
    f = torch.compile(lambda x: (F.silu(a(x)), b(F.silu(a(x)))), backend="coda", options=EAGER)
    frozen, learned = f(torch.randn(4, 8))
    assert not frozen.requires_grad and learned.requires_grad


def test_operators_before_the_first_product_of_a_layer_are_in_its_region():
    torch._dynamo.reset()
    report.GRAPHS.clear()
    (m,) = linears((8, 6))
    x, y = (torch.randn(4, 8, requires_grad=True) for _ in range(2))
    torch.compile(lambda x, y: m(F.silu(x) * y), backend="coda", options=EAGER)(x, y)
    assert not report.GRAPHS[-1].left
