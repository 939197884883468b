"""The rows of the CPU's benchmark: which text, which sizes, and the same work in PyTorch.

Each rival is what a user of PyTorch would write for the same step of a layer, not a copy of the
kernel: a norm whole where ours leaves its scale to the next product, gradients by autograd. A Case
is data; `eager` takes tensors by name and gives a function without arguments.
"""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

from cases import CASES, PROGRAMS, Source, program
from check import arguments
from truth import FORMULAS

TOKENS = 2048
LAYER_WRT = ["x", "gamma1", "wq", "wk", "wv", "wo", "gamma2", "gate", "up", "down"]


@dataclass(frozen=True)
class Case:
    case: str
    width: int
    shape: dict
    source: Source
    eager: object  # tensors → a function
    epilogue: bool = True  # a program with a product and something after it
    compiled: object = None  # the same for torch.compile, given a compiler of functions
    goals: dict = field(default_factory=dict)  # rival, dtype → our time over it at most


def in_f32(text):
    return text.replace("bf16", "f32")


# ---- what PyTorch runs ----

def plain(function):
    """For rivals that are a function of tensors: eager, and compiled."""
    def run(t, made):
        names = function.__code__.co_varnames[:function.__code__.co_argcount]
        given = [t[n] for n in names]

        def call():
            with torch.no_grad():
                return made(*given)
        return call
    return {"eager": lambda t: run(t, function),
            "compiled": lambda t, make: run(t, make(function))}


def linear(x, w):
    return F.linear(x, w)


def linear_bias(x, w, b):
    return F.linear(x, w, b)


def linear_gelu(x, w, b):
    z = torch.addmm(b, x, w)
    return z, F.gelu(z, approximate="tanh")


def linear_grad(dz, w):
    return dz @ w


def residual_norm(x, w, residual, gamma):
    h = residual + F.linear(x, w)
    return h, F.rms_norm(h, (h.shape[1],), gamma, 1e-5)


def spelled_norm(x, w, residual, gamma):
    """The norm as models of transformers spell it out."""
    h = residual + F.linear(x, w)
    v = h.float()
    return h, gamma * (v * torch.rsqrt(v.pow(2).mean(-1, keepdim=True) + 1e-5)).to(h.dtype)


def norm_swiglu(p, gate, up):
    g, u = F.linear(p, gate), F.linear(p, up)
    return g, u, F.silu(g) * u


def rotated(x, cos, sin):
    """x [tokens, H*E]; cos and sin [S, E/2]."""
    half = cos.shape[1]
    v = x.view(-1, cos.shape[0], x.shape[1] // (2 * half), 2 * half)
    c = torch.cat((cos, cos), 1).to(x.dtype)[:, None]
    s = torch.cat((sin, sin), 1).to(x.dtype)[:, None]
    turned = torch.cat((-v[..., half:], v[..., :half]), -1)
    return (v * c + turned * s).view(x.shape)


def norm_rope(p, wq, wk, wv, cos, sin):
    return (rotated(F.linear(p, wq), cos, sin), rotated(F.linear(p, wk), cos, sin),
            F.linear(p, wv))


def swiglu_grad(do, down, g, u):
    dy = do @ down
    return torch.ops.aten.silu_backward(dy * u, g), dy * F.silu(g)


def weight_grad(dz, x, dw):
    dw += dz.t() @ x


def weight_grad_pair(dg, du, p, dgate, dup):
    dgate += dg.t() @ p
    dup += du.t() @ p


def weight_grad_norm(dh, a, partial, dw, dgamma):
    dw += dh.t() @ a
    dgamma += partial.sum(0)


def token_losses(x, w, target):
    return F.cross_entropy(F.linear(x, w), target, reduction="none")


def formula_compiled(name):
    def compiled(t, make):
        given = arguments(name, t)
        made = make(FORMULAS[name])

        def call():
            with torch.no_grad():
                return made(**given)
        return call
    return compiled


def norm_backward(pairs):
    """The data gradients that meet before a norm, then the norm's own backward, by autograd."""
    def eager(t):
        h, gamma = (t[n].detach().clone().requires_grad_() for n in ("h", "gamma"))
        n = F.rms_norm(h, (h.shape[1],), gamma, 1e-5)

        def run():
            dn = sum(t[d] @ t[w] for d, w in pairs)
            dh, dgamma = torch.autograd.grad(n, (h, gamma), dn, retain_graph=True)
            return t["do"] + dh, dgamma
        return run
    return eager


def training(function, leaves, given):
    """Forward and backward; `given` are the upstream gradients' names by result."""
    def make(t, build=lambda f: f):
        names = function.__code__.co_varnames[:function.__code__.co_argcount]
        own = {n: t[n].detach().clone().requires_grad_(n in leaves) for n in names}
        made = build(function)

        def run():
            for n in leaves:
                own[n].grad = None
            out = made(**own)
            out.backward(t[given] if given else None)
        return run
    return {"eager": make, "compiled": make}


def linear_cross_entropy(x, w, target):
    return F.cross_entropy(F.linear(x, w), target)


def layer(x, gamma1, wq, wk, wv, wo, gamma2, gate, up, down, cos, sin):
    width, (length, half) = x.shape[1], cos.shape
    n = F.rms_norm(x, (width,), gamma1, 1e-5)
    heads = lambda v: v.view(-1, length, v.shape[1] // (2 * half), 2 * half).transpose(1, 2)
    q, k = (heads(rotated(F.linear(n, w), cos, sin)) for w in (wq, wk))
    o = F.scaled_dot_product_attention(q, k, heads(F.linear(n, wv)), is_causal=True,
                                       enable_gqa=True)
    h = x + F.linear(o.transpose(1, 2).reshape(x.shape[0], -1), wo)
    m = F.rms_norm(h, (width,), gamma2, 1e-5)
    return h + F.linear(F.silu(F.linear(m, gate)) * F.linear(m, up), down)


# ---- the rows ----

def of_width(w):
    m = TOKENS
    square = {"M": m, "N": w, "K": w}
    gated = {"M": m, "K": w, "F": w}
    heads = {"H": w // 64, "G": w // 256, "E": 64}
    tokens = {"B": 4, "S": m // 4, "D": w}
    losses = {"M": m, "K": w, "V": 8192}
    made = [
        Case("linear", w, square, program("linear", "linear"), **plain(linear), epilogue=False),
        Case("linear_bias", w, square, program("linear", "linear_bias"), **plain(linear_bias)),
        Case("linear_gelu", w, square, program("linear", "linear_gelu"), **plain(linear_gelu)),
        Case("residual_norm", w, square, program("norm", "residual_norm"), **plain(residual_norm),
             goals={("torch_eager", "bf16"): 1 / 1.3, ("torch_eager", "f32"): 1.0}),
        Case("residual_norm (spelled)", w, square, program("norm", "residual_norm"),
             **plain(spelled_norm), epilogue=False),
        Case("norm_swiglu", w, gated, program("gated", "norm_swiglu"), **plain(norm_swiglu)),
        Case("norm_rope", w, {**tokens, **heads}, program("rope", "norm_rope"),
             **plain(norm_rope)),
        Case("linear_grad", w, square, program("linear", "linear_grad"), **plain(linear_grad),
             epilogue=False),
        Case("swiglu_grad", w, {"M": m, "D": w, "F": w}, program("gated", "swiglu_grad"),
             **plain(swiglu_grad)),
        Case("rmsnorm_grad", w, {"M": m, "D": w, "F": w}, program("norm", "rmsnorm_grad"),
             norm_backward((("dg", "gate"), ("du", "up"))),
             compiled=formula_compiled("rmsnorm_grad")),
        Case("rmsnorm_grad_qkv", w, {"M": m, "D": w, "Q": w, "P": w // 4},
             program("norm", "rmsnorm_grad_qkv"),
             norm_backward((("zq", "wq"), ("zk", "wk"), ("zv", "wv"))),
             compiled=formula_compiled("rmsnorm_grad_qkv")),
        Case("weight_grad", w, square, program("weight_grad", "weight_grad"),
             **plain(weight_grad), epilogue=False),
        Case("weight_grad_pair", w, gated, program("weight_grad", "weight_grad_pair"),
             **plain(weight_grad_pair), epilogue=False),
        Case("weight_grad_norm", w, {"M": m, "D": w, "K": w},
             program("weight_grad", "weight_grad_norm"), **plain(weight_grad_norm)),
        Case("loss_head", w, losses, Source(CASES, ("token_losses",), "token_losses"),
             **plain(token_losses)),
        Case("loss_head_step", w, losses, Source(
            CASES, ("linear_cross_entropy", "linear_cross_entropy_grad"), "linear_cross_entropy",
            (("grad", True), ("of", ["loss"]), ("wrt", ["x", "w"]))),
            **training(linear_cross_entropy, ("x", "w"), None), epilogue=False),
    ]
    return made


def layer_cases(w):
    shape = {"B": 4, "S": TOKENS // 4, "D": w, "F": 2816 * w // 1024, "H": w // 64, "G": w // 256,
             "E": 64}
    llama = PROGRAMS / "llama.coda"
    return [
        Case("layer_forward", w, shape, Source(llama, ("layer",), "layer"), **plain(layer),
             epilogue=False),
        Case("layer_step", w, shape, Source(
            llama, ("layer", "layer_grad"), "layer", (("grad", True), ("wrt", LAYER_WRT))),
            **training(layer, LAYER_WRT, "d_out"), epilogue=False,
            goals={("torch_eager", "bf16"): 0.8, ("torch_eager", "f32"): 0.97,
                   ("torch_compile", "bf16"): 1.0})]


def all_cases(widths):
    return [case for w in widths for case in of_width(w) + layer_cases(w)]
