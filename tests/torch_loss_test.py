"""linear_cross_entropy against F.cross_entropy on the product, with every option."""

import itertools

import pytest
import torch
import torch.nn.functional as F

import coda_epilogue as coda

M, K, V = 20, 16, 130


def inputs(dtype=torch.float64, seed=0):
    torch.manual_seed(seed)
    x, w = torch.randn(4, 5, K, dtype=dtype), torch.randn(V, K, dtype=dtype)
    target = torch.randint(0, V, (4, 5))
    target[0, :2] = -100
    return x.requires_grad_(), w.requires_grad_(), target


def naive(x, w, target, bias=None, class_weight=None, reduction="mean", label_smoothing=0.0,
          z_loss=0.0, softcap=0.0):
    z = F.linear(x, w, bias)
    if softcap:
        z = softcap * torch.tanh(z / softcap)
    z = z.flatten(0, -2)
    loss = F.cross_entropy(z, target.flatten(), class_weight, reduction=reduction,
                           label_smoothing=label_smoothing)
    if z_loss:
        each = torch.where(target.flatten() == -100, 0, z_loss * z.logsumexp(-1) ** 2)
        counted = (target.flatten() != -100)
        counted = counted.sum() if class_weight is None else (
            class_weight[target.flatten().clamp(min=0)] * counted).sum()
        loss = loss + {"none": each, "sum": each.sum(), "mean": each.sum() / counted}[reduction]
    return loss.view(target.shape) if reduction == "none" else loss


@pytest.mark.parametrize("reduction, weighted, bias, smoothing, z_loss, softcap", [
    *itertools.product(("mean", "sum", "none"), (False, True), (False, True), (0.0,), (0.0,),
                       (0.0,)),
    ("mean", False, False, 0.1, 0.0, 0.0), ("mean", True, True, 0.1, 0.0, 0.0),
    ("mean", False, False, 0.0, 1e-2, 0.0), ("none", True, False, 0.2, 1e-2, 5.0),
    ("sum", False, True, 0.0, 0.0, 3.0)])
@pytest.mark.parametrize("keep_logits", [False, True])
def test_value_and_gradients(reduction, weighted, bias, smoothing, z_loss, softcap, keep_logits):
    x, w, target = inputs()
    options = dict(reduction=reduction, label_smoothing=smoothing, z_loss=z_loss, softcap=softcap)
    tensors = [x, w]
    if bias:
        options["bias"] = torch.randn(V, dtype=x.dtype, requires_grad=True)
        tensors.append(options["bias"])
    if weighted:
        options["class_weight"] = torch.rand(V, dtype=x.dtype) + 0.5
    want = naive(x, w, target, **options)
    got = coda.linear_cross_entropy(x, w, target, keep_logits=keep_logits, **options)
    assert got.shape == want.shape and torch.allclose(got, want, rtol=1e-9)
    upstream = torch.randn_like(want)
    for a, b in zip(torch.autograd.grad(got, tensors, upstream),
                    torch.autograd.grad(want, tensors, upstream)):
        assert torch.allclose(a, b, rtol=1e-8, atol=1e-10)


def test_bf16_is_as_near_to_the_truth_as_pytorch():
    x, w, target = inputs()
    small = [t.detach().bfloat16().requires_grad_() for t in (x, w)]
    exact = torch.autograd.grad(naive(*(t.double() for t in small), target), small)
    error = lambda found: [((a.double() - b.double()).norm() / b.double().norm()).item()
                           for a, b in zip(found, exact)]
    ours = error(torch.autograd.grad(coda.linear_cross_entropy(*small, target), small))
    theirs = error(torch.autograd.grad(naive(*small, target).float(), small))
    assert all(a < 1.05 * b for a, b in zip(ours, theirs))


def test_rows_that_are_all_ignored():
    x, w, target = inputs(torch.float32)
    target.fill_(-100)
    assert coda.linear_cross_entropy(x, w, target, reduction="sum").item() == 0
    loss = coda.linear_cross_entropy(x, w, target)
    assert loss.isnan()
    loss = coda.linear_cross_entropy(x, w, target, reduction="sum")
    assert not torch.autograd.grad(loss, x)[0].any()


def test_chunks_take_less_than_the_logits():
    """By the schedule itself: what forward and backward pass to each other, and the arena."""
    from coda_epilogue import native
    from coda_epilogue.loss import _loss
    function = _loss("f32", "i64", False, False, -100, "mean", 0.0, 0.0, 0.0, False)._function
    x, w = torch.randn(256, 64, requires_grad=True), torch.randn(32000, 64, requires_grad=True)
    tensors = (x, w, torch.zeros(256, dtype=torch.int64))
    made = function.rewritten((True, True, False), ("loss",), tensors)
    half, sizes = made["backward"], function.sizes_of(tensors)
    arena = native.opened(half["text"], half["name"], sizes, x.device).scratch_bytes
    kept = native.opened(made["forward"]["text"], made["forward"]["name"], sizes, x.device)
    saved = sum(torch.Size(kept.shapes[n]).numel() * 4 for n in made["saved"])
    assert arena + saved < 256 * 32000 * 4 / 4


@pytest.mark.parametrize("change, said", [
    (dict(reduction="median"), "mean, sum, none"),
    (dict(target=torch.zeros(3, dtype=torch.int64)), r"target \[3\]"),
    (dict(target=torch.full((4, 5), V)), f"target {V} is outside"),
])
def test_arguments_that_are_wrong(change, said):
    x, w, target = inputs()
    with pytest.raises(coda.ProgramError, match=said):
        coda.linear_cross_entropy(**{**dict(x=x, weight=w, target=target), **change})
