"""op(text): values, gradients, compilation and errors of a program as a function of tensors."""

import time

import pytest
import torch

import coda_epilogue as coda

MLP = """coda 1
use "prelude.coda"

block mlp(
    x: bf16[M, D], gamma: bf16[D], gate: bf16[F, D], up: bf16[F, D], down: bf16[D, F], eps: f32)
    -> (out: bf16[M, D]) {
  n = rmsnorm(x, gamma, eps)
  out = x + (silu(n @ gate) * (n @ up)) @ down
}
"""
SCALE = "coda 1\nprogram scale(x: f32[M, N], g: f32[N]) -> (y: f32[M, N]) {\n  y = x * g\n}\n"
HEADS = """coda 1
program heads(q: f32[B*S, H*E], g: f32[E]) -> (y: f32[B*S, H*E], s: f32[B*S, H]) {
  s = sum(q * q, E)
  y = q * g
}
"""


def mlp_inputs(dtype=torch.float64, **options):
    shapes = (5, 8), (8,), (12, 8), (12, 8), (8, 12)
    return [torch.randn(s, dtype=dtype, requires_grad=True) for s in shapes]


def mlp(x, gamma, gate, up, down, eps):
    n = torch.nn.functional.rms_norm(x, x.shape[-1:], gamma, eps)
    return x + (torch.nn.functional.silu(n @ gate.t()) * (n @ up.t())) @ down.t()


def test_values_and_derivatives_in_double_precision():
    f, tensors = coda.op(MLP, dtype=torch.float64), mlp_inputs()
    assert torch.allclose(f(*tensors, 1e-5), mlp(*tensors, 1e-5))
    assert torch.autograd.gradcheck(lambda *t: f(*t, 1e-5), tensors)


def test_arguments_by_name_and_results_of_any_number():
    f = coda.op(HEADS)
    q, g = torch.randn(2, 3, 4, 8), torch.randn(8)
    y, s = f(g=g, q=q)
    assert torch.allclose(y.view(q.shape), q * g)
    assert torch.allclose(s.view(2, 3, 4), q.square().sum(-1), rtol=1e-5)


def test_tensors_of_any_strides():
    f = coda.op(SCALE)
    x, g = torch.randn(6, 5).t(), torch.randn(12)[::2]
    assert torch.equal(f(x, g), x * g)


def test_it_is_one_operator_of_a_compiled_graph():
    f, x, g = coda.op(SCALE), torch.randn(4, 8, requires_grad=True), torch.randn(8)
    graphs = []

    def seen(graph_module, inputs):
        graphs.append(graph_module)
        return graph_module

    from torch._dynamo.backends.common import aot_autograd
    whole = lambda x: (f(torch.sin(x), g) * 2).sum()
    run = torch.compile(whole, fullgraph=True, backend=aot_autograd(fw_compiler=seen))
    run(x).backward()
    got, x.grad = x.grad, None
    whole(x).backward()
    assert torch.allclose(got, x.grad)
    assert sum("coda_epilogue.scale" in str(n.target) for n in graphs[0].graph.nodes) == 1


def test_other_shapes_in_one_compiled_graph():
    f, g = coda.op(SCALE), torch.randn(8)
    run = torch.compile(lambda x: f(x, g), fullgraph=True, backend="aot_eager", dynamic=True)
    for rows in (4, 7, 9):
        x = torch.randn(rows, 8)
        assert torch.equal(run(x), x * g)


def test_sizes_that_no_tensor_tells():
    f = coda.op("coda 1\nprogram p(q: f32[M, H*E]) -> (s: f32[M, H]) {\n  s = sum(q, E)\n}\n",
                sizes={"E": 4})
    q = torch.randn(3, 8)
    assert torch.allclose(f(q), q.view(3, 2, 4).sum(-1))


def test_a_call_costs_the_host_little():
    f, x, g = coda.op(SCALE), torch.randn(16, 64), torch.randn(64)
    f(x, g)
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(500):
            f(x, g)
        best = min(best, (time.perf_counter() - start) / 500)
    assert best < 40e-6  # about 10 µs on an idle core


def test_a_second_derivative_raises():
    f, x, g = coda.op(SCALE), torch.randn(4, 8, requires_grad=True), torch.randn(8)
    (first,) = torch.autograd.grad(f(x, g).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="first gradients only"):
        first.sum().backward()


@pytest.mark.parametrize("text, said", [
    ("coda 1\nprogram p(x: bf16[M, K], w: bf16[N, K]) -> (y: bf16[M, N]) {\n  y = x @ v\n}\n",
     r"(?s)3:11: error: unknown value `v`.*fix: "),
    ("coda 1\nprogram p(x: f32[M]) -> (y: +f32[M]) {\n  y += x\n}\n", "declare it without"),
])
def test_a_text_that_is_wrong(text, said):
    with pytest.raises(coda.ProgramError, match=said):
        coda.op(text)


@pytest.mark.parametrize("call, kind, said", [
    (lambda f, x, g: f(x, g[:3]), coda.ProgramError, "N is 3, but other tensors say 8"),
    (lambda f, x, g: f(x.double(), g), coda.ProgramError, "or write f64 in the text"),
    (lambda f, x, g: f(x[0], g), coda.ProgramError, "1 axes, but is declared"),
    (lambda f, x, g: f(x, [1.0] * 8), coda.ProgramError, "fix: give a tensor"),
    (lambda f, x, g: f(x, None), coda.ProgramError, "`g` is None"),
    (lambda f, x, g: f(x), TypeError, "lacks g"),
    (lambda f, x, g: f(x, g, g), TypeError, "takes 2 arguments, got 3"),
    (lambda f, x, g: f(x, h=g), TypeError, "no such parameter"),
    (lambda f, x, g: f(x, x=g), TypeError, "twice"),
    (lambda f, x, g: f(x.to("meta"), g), coda.CodaError, "device|meta"),
], ids=range(10))
def test_arguments_that_are_wrong(call, kind, said):
    with pytest.raises(kind, match=said):
        call(coda.op(SCALE), torch.randn(4, 8), torch.randn(8))
