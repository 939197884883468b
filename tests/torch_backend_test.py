"""torch.compile(backend="coda") on the CPU: the same numbers as eager, whatever a user does."""

import copy
import io

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import coda_epilogue
from coda_epilogue import report
from torch_model import Gpt, batch, gradients, worst

EAGER = {"rest": "eager"}  # what is in no region: quicker than to compile it


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    report.GRAPHS.clear()
    torch.manual_seed(0)


def compiled(model, **options):
    return torch.compile(model, backend="coda", options=EAGER, **options)


def same_step(model, *args, bound=2e-6, **kwargs):
    """One step by eager and by CODA: the same loss and gradients."""
    want_loss = model(*args, **kwargs)
    want = gradients(model, want_loss)
    loss = compiled(model)(*args, **kwargs)
    got = gradients(model, loss)
    assert loss.item() == pytest.approx(want_loss.item(), rel=bound)
    assert worst(got, want) < bound
    return report.GRAPHS[-1] if report.GRAPHS else None


def test_the_backend_is_known_without_an_import():
    assert "coda" in torch._dynamo.list_backends()


def test_a_gpt_is_three_regions_whose_layers_are_one_text():
    graph = same_step(Gpt(layers=4), *batch())
    assert len(graph.blocks) == 5 and len({b.text for b in graph.blocks}) == 3
    left = {operator for operator, _ in graph.left.values()}
    assert "aten.linear.default" not in left and "aten.silu.default" not in left


@pytest.mark.parametrize("options", [{"bias": True}, {"tied": True}, {"heads": 2}], ids=str)
def test_kinds_of_models(options):
    same_step(Gpt(**options), *batch())


def test_other_sizes_do_not_recompile_the_graph():
    model = Gpt()
    run = compiled(model, dynamic=True)
    for rows, length in ((2, 24), (3, 24), (5, 17), (1, 40)):
        args = batch(rows, length)
        want = gradients(model, model(*args))
        assert worst(gradients(model, run(*args)), want) < 2e-6
    assert len(report.GRAPHS) <= 2  # sizes of 1 are a graph of their own


def test_position_ids_and_packed_documents():
    ids, targets = batch()
    positions = torch.cat([torch.arange(10), torch.arange(14)]).repeat(2, 1)
    same_step(Gpt(), ids, targets, positions=positions)


def test_rows_that_are_ignored():
    ids, targets = batch()
    targets[0, :9] = -100
    same_step(Gpt(), ids, targets)


def test_logits_beside_the_loss_are_the_same_and_need_no_gradient():
    model, args = Gpt(), batch()
    loss, z = compiled(model)(*args, logits=True)
    want_loss, want = model(*args, logits=True)
    assert torch.allclose(z, want, atol=1e-5) and torch.allclose(loss, want_loss)
    assert worst(gradients(model, loss), gradients(model, want_loss)) < 2e-6


def test_a_gradient_through_the_logits_that_nobody_expected():
    model, args = Gpt(), batch()
    through = lambda pair: pair[0] + 0.1 * pair[1].square().mean()
    want = gradients(model, through(model(*args, logits=True)))
    assert worst(gradients(model, through(compiled(model)(*args, logits=True))), want) < 2e-6


def test_autocast():
    model, args = Gpt(), batch()
    with torch.autocast("cpu", torch.bfloat16):
        want_loss, loss = model(*args), compiled(model)(*args)
    exact = gradients(model.double(), model(*args))
    model.float()
    with torch.autocast("cpu", torch.bfloat16):
        naive = worst(gradients(model, model(*args)), exact)
        assert worst(gradients(model, compiled(model)(*args)), exact) < 1.3 * naive
    assert loss.item() == pytest.approx(want_loss.item(), rel=2e-3)


def test_f16_with_a_scaled_loss():
    model, args = Gpt().half(), batch()
    scaled = lambda f: f(*args) * 128
    got, want = gradients(model, scaled(compiled(model))), gradients(model, scaled(model))
    exact = gradients(model.double(), scaled(model))
    assert worst(got, exact) < 1.3 * worst(want, exact)


def test_frozen_weights_get_no_gradient_and_cost_no_product():
    model = Gpt()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("norm" in name or "q." in name)
    same_step(model, *batch())


def test_checkpointed_layers():
    wrap = lambda layer, *args: checkpoint(layer, *args, use_reentrant=False)
    same_step(Gpt(wrap=wrap), *batch())


def test_gradients_add_up_over_two_steps():
    model, run = Gpt(), None
    run = compiled(model)
    for f, into in ((model, "want"), (run, "got")):
        model.zero_grad()
        for seed in (1, 2):
            f(*batch(seed=seed)).backward()
        locals()[into] = None
        if into == "want":
            want = {n: p.grad.clone() for n, p in model.named_parameters()}
        else:
            got = {n: p.grad.clone() for n, p in model.named_parameters()}
    assert worst(got, want) < 2e-6


def test_backward_twice_gives_the_same_and_a_second_derivative_raises():
    model, args = Gpt(), batch()
    loss = compiled(model)(*args)
    loss.backward(retain_graph=True)
    first = {n: p.grad.clone() for n, p in model.named_parameters()}
    model.zero_grad()
    loss.backward()
    assert worst({n: p.grad for n, p in model.named_parameters()}, first) == 0
    loss = compiled(model)(*args)
    (gradient,) = torch.autograd.grad(loss, model.head.weight, create_graph=True)
    with pytest.raises(RuntimeError, match="first gradients only"):
        gradient.sum().backward()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(mode):
    model, (ids, _) = Gpt(), batch()
    with mode():
        assert torch.allclose(compiled(model)(ids), model(ids), atol=1e-5)


def test_gradients_of_any_strides():
    """A sum gives stride 0, a transposed view others; parts of a result leave gaps."""
    layer = nn.Sequential(nn.Linear(16, 24), nn.SiLU(), nn.Linear(24, 32))
    x = torch.randn(3, 5, 16, requires_grad=True)
    weight = torch.randn(5, 3, 32)
    for reduce in (lambda y: y.sum(), lambda y: (y.transpose(0, 1) * weight).sum(),
                   lambda y: y[..., ::2].sum() + y[1:].square().mean()):
        want = torch.autograd.grad(reduce(layer(x)), [x, *layer.parameters()])
        got = torch.autograd.grad(reduce(compiled(layer)(x)), [x, *layer.parameters()])
        for a, b in zip(got, want):
            assert torch.allclose(a, b, rtol=1e-5, atol=1e-6)


def test_dropout_drops_what_pytorch_drops():
    model, args = Gpt(dropout=0.2), batch()
    torch.manual_seed(5)
    want = gradients(model, model(*args))
    torch.manual_seed(5)
    assert worst(gradients(model, compiled(model)(*args)), want) < 2e-6


def test_a_model_that_is_copied_saved_and_loaded():
    model, args = Gpt(), batch()
    run = compiled(model)
    want = run(*args).item()
    assert compiled(copy.deepcopy(model))(*args).item() == pytest.approx(want, rel=1e-6)
    file = io.BytesIO()
    torch.save(run.state_dict(), file)
    file.seek(0)
    other = compiled(Gpt())
    other.load_state_dict(torch.load(file))
    assert other(*args).item() == pytest.approx(want, rel=1e-6)


def test_training_follows_the_same_curve():
    losses = {}
    for name in ("eager", "coda"):
        torch.manual_seed(3)
        model = Gpt()
        run = compiled(model) if name == "coda" else model
        optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
        losses[name] = []
        for step in range(20):
            optimizer.zero_grad()
            loss = run(*batch(seed=step % 4))
            loss.backward()
            optimizer.step()
            losses[name].append(loss.item())
    assert losses["coda"] == pytest.approx(losses["eager"], rel=1e-3)
    assert losses["coda"][-1] < 0.9 * losses["coda"][0]


class Unusual(nn.Module):
    """Operators that the language lacks, between those that it has."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 8)

    def forward(self, x):
        y = self.a(x).cumsum(1)
        y = F.layer_norm(y, (16,)).sort(-1)[0]
        return (self.b(F.gelu(y)).abs() ** 2.5).nan_to_num().mean()


def test_explain_says_what_is_where_and_what_it_saves():
    model, args = Gpt(layers=4), batch()
    gradients(model, compiled(model)(*args, logits=True)[0])
    said = coda_epilogue.explain()
    assert "3 times: " in said and "5 regions, 3 of them different" in said
    assert "never stores it" in said and "(2, 24, 128)" in said
    moved, unfused = (float(w) for w in said.splitlines()[-1].replace(",", "").split()
                      if w.replace(".", "").isdigit())
    assert moved < 0.8 * unfused
    assert "backward gemm" in said


def test_what_is_not_understood_stays_with_pytorch():
    graph = same_step(Unusual(), torch.randn(3, 5, 16), bound=1e-5)
    left = {operator for operator, _ in graph.left.values()}
    assert {"aten.cumsum.default", "aten.sort.default"} <= left and graph.blocks
    assert "aten.cumsum.default: the language lacks it" in str(graph)


def test_a_buffer_that_is_written_to():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(8, 8)
            self.register_buffer("seen", torch.zeros(8))

        def forward(self, x):
            y = self.a(x + self.seen)
            self.seen.add_(1)
            return self.a(y + self.seen).sum()
    model, x = Counting(), torch.randn(4, 8)
    twin = copy.deepcopy(model)
    run = compiled(twin)
    for _ in range(3):
        want, got = model(x), run(x)
        assert torch.allclose(got, want, rtol=1e-5)
    assert torch.equal(twin.seen, model.seen)


def test_the_rest_by_inductor():
    model, args = Unusual(), (torch.randn(3, 5, 16),)
    want = gradients(model, model(*args))
    got = gradients(model, torch.compile(model, backend="coda")(*args))
    assert worst(got, want) < 1e-5


@pytest.fixture
def by_inductor(monkeypatch):
    """The graphs that Inductor was given; of any size."""
    from coda_epilogue import backend, rest
    seen, compiled_by_it = [], rest.compiled

    def noted(graph_module, *more):
        seen.append(graph_module)
        return compiled_by_it(graph_module, *more)
    monkeypatch.setattr(backend, "_SMALL", 0)
    monkeypatch.setattr(rest, "compiled", noted)
    return seen


@pytest.mark.parametrize("dynamic", [False, True])
def test_inductor_compiles_all_that_is_work_outside_regions(by_inductor, dynamic):
    from torch._dynamo.utils import counters
    model = Unusual()
    run = torch.compile(model, backend="coda", dynamic=dynamic)
    counters.clear()
    for rows in (3, 4) if dynamic else (3,):
        x = torch.randn(rows, 5, 16)
        want = gradients(model, model(x))
        assert worst(gradients(model, run(x)), want) < 1e-5
    # NOTE: a torch.compile inside a backend is an identity in some releases, and looks right.
    assert by_inductor and counters["aot_autograd"]["ok"] == len(by_inductor)


def test_no_grad_around_what_has_no_gradients_does_not_cut_the_graph():
    class Rotary(nn.Module):
        @torch.no_grad()
        def forward(self, length):
            angle = torch.arange(length)[:, None] * 10000.0 ** (-torch.arange(8) / 8)
            return angle.cos(), angle.sin()

    class Turned(nn.Module):
        def __init__(self):
            super().__init__()
            self.rotary, self.a, self.b = Rotary(), nn.Linear(16, 16), nn.Linear(16, 16)

        def forward(self, x):
            x = self.a(x)
            cos, sin = self.rotary(x.shape[-2])
            left, right = x.chunk(2, -1)
            return self.b(torch.cat((left * cos - right * sin, right * cos + left * sin), -1)).sum()

    torch.manual_seed(0)
    graph = same_step(Turned(), torch.randn(4, 16))
    assert len(report.GRAPHS) == 1 and len(graph.blocks) == 1


@pytest.mark.parametrize("rest", ["eager", "inductor"])
def test_flex_attention_is_a_call_between_regions(rest):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    norm, layers = nn.RMSNorm(32), [nn.Linear(32, 32, bias=False) for _ in range(4)]
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 128, 128, device="cpu")

    def attend(x):
        y = norm(x)
        q, k, v = (f(y).view(2, 128, 2, 16).transpose(1, 2) for f in layers[:3])
        made = flex_attention(q, k, v, block_mask=mask)
        return x + layers[3](made.transpose(1, 2).reshape(x.shape))
    x = torch.randn(2, 128, 32)
    with torch.no_grad():  # PyTorch has no backward of it on the CPU
        want = attend(x)
        got = torch.compile(attend, backend="coda", options={"rest": rest})(x)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    assert [len(g.blocks) for g in report.GRAPHS] == [1, 1]


@pytest.mark.parametrize("coda, dynamic", [(1.0, None), (3.0, True)])
def test_regions_are_measured_once_and_left_to_the_faster(monkeypatch, tmp_path, coda, dynamic):
    from coda_epilogue import measure

    monkeypatch.setenv("CODA_CACHE", str(tmp_path))
    monkeypatch.setattr(measure, "_SECONDS", 0.001)
    times, in_turns = [], measure._in_turns

    def noted(steps, device):
        times.append(in_turns(steps, device))
        return coda, 2.0
    monkeypatch.setattr(measure, "_in_turns", noted)
    model, args = Gpt(layers=3), batch()
    want = gradients(model, model(*args))
    counts = []
    for _ in range(2):
        torch._dynamo.reset()
        run = torch.compile(model, backend="coda", dynamic=dynamic,
                            options={"rest": "eager", "measure": True})
        assert worst(gradients(model, run(*args)), want) < 2e-6
        counts.append(len(times))
    graph = report.GRAPHS[-1]
    assert f"measured: {coda:.3f} ms, by Inductor 2.000 ms" in graph.explain()
    assert bool(graph.blocks) == (coda < 2.0)
    assert counts[0] == counts[1] >= 3  # the second time from the file
    assert all(ms > 0 for pair in times for ms in pair)


@pytest.mark.parametrize("given, named", [({"rest": "jax"}, "inductor"), ({"fast": 1}, "rest")])
def test_options_that_do_not_exist(given, named):
    with pytest.raises(Exception, match=named):
        torch.compile(nn.Linear(4, 4), backend="coda", options=given)(torch.randn(2, 4))


def test_a_mode_that_replays_cuda_graphs_is_refused():
    with pytest.raises(Exception, match="no-cudagraphs"):
        torch.compile(nn.Linear(4, 4), backend="coda", mode="reduce-overhead")(torch.randn(2, 4))


def test_errors_are_the_packages_own():
    assert issubclass(coda_epilogue.ProgramError, ValueError)


def test_a_region_whose_kernels_would_be_slow_is_left_to_pytorch(monkeypatch):
    from coda_epilogue import backend

    monkeypatch.setattr(backend, "judge_for", lambda *_: lambda block: "general; why")
    model, args = Gpt(), batch()
    want = gradients(model, model(*args))
    assert worst(gradients(model, compiled(model)(*args)), want) < 2e-6
    assert not report.GRAPHS[-1].blocks
    assert "a kernel of its region is slow: general; why" in str(report.GRAPHS[-1])
