"""Who else computes a case: each rival as a function without arguments, made when it is timed."""

import torch
import torch.nn.functional as F

from check import arguments
from truth import FORMULAS, between, between_step


def rival(name, case, tensors, base):
    """A function that runs the rival once; None where its package is not installed."""
    make = {"torch.compile": compiled, "torch": eager_step, "liger": liger, "quack": quack,
            "cublas f32": cublas_f32, "cublas + cross_entropy": cublas_and_loss}[name]
    try:
        return make(case, tensors, base)
    except ImportError:
        return None


def compiled(case, tensors, base):
    """The unfused sequence, compiled by torch."""
    import torch._dynamo
    torch._dynamo.reset()  # shapes of earlier cases would count as recompilations
    given = arguments(case.formula, tensors)
    if case.formula == "between_step":
        function = torch.compile(between, dynamic=False)
        return lambda: between_step(function=function, **given)
    if case.formula == "linear_cross_entropy_step":
        return _step(torch.compile(_loss, dynamic=False), tensors)
    function = torch.compile(FORMULAS[case.formula], dynamic=False)

    def run():
        with torch.no_grad():
            function(**given)
    return run


def _loss(x, w, target):
    return F.cross_entropy(F.linear(x, w).float(), target)


def _step(loss, tensors):
    """Forward and backward of a loss of x, w and target, gradients as tensors."""
    x, w = (tensors[n].detach().clone().requires_grad_() for n in "xw")
    target = tensors["target"]

    def run():
        x.grad = w.grad = None
        loss(x, w, target).backward()
    return run


def eager_step(case, tensors, base):
    return _step(lambda x, w, target: F.cross_entropy(F.linear(x, w), target), tensors)


def liger(case, tensors, base):
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss
    module = LigerFusedLinearCrossEntropyLoss()
    return _step(lambda x, w, target: module(w, x, target), tensors)


def cublas_f32(case, tensors, base):
    """The same product by cuBLAS with an f32 output; it overwrites, where ours accumulates."""
    gemm = case.gemms[0]
    bf16 = {"device": "cuda", "dtype": torch.bfloat16}
    left, right = torch.randn(gemm.k, gemm.m, **bf16).t(), torch.randn(gemm.k, gemm.n, **bf16)
    out = torch.empty(gemm.m, gemm.n, device="cuda")
    return lambda: torch.mm(left, right, out_dtype=torch.float32, out=out)


def cublas_and_loss(case, tensors, base):
    """The logits in bf16, then the library's loss of them."""
    x, w, target = tensors["x"], tensors["w"], tensors["target"]

    def run():
        F.cross_entropy(torch.mm(x, w.t()), target, reduction="none")
    return run


def quack(case, tensors, base):
    """The nearest of its fused products: fewer outputs than ours where it has no other."""
    from quack import gemm_interface as q
    if case.case == "residual_norm":
        x, w, residual = tensors["x"], tensors["w"], tensors["residual"]
        return lambda: q.gemm_add(x, w.t(), residual)
    p = tensors["p"]
    both = torch.stack([tensors["gate"], tensors["up"]], 1).flatten(0, 1)  # rows interleaved
    return lambda: q.gemm_gated(p, both.t(), activation="swiglu")
