"""Every program and block of programs/, values and gradients, against PyTorch in double."""

import inspect
import zlib

import numpy as np
import pytest
import torch

from coda_command import PROGRAMS, in_double, signatures
from torch_pieces import philox_uniform
from torch_layers import RULES

IGNORE = -100
SIZES = dict(M=70, N=66, K=67, D=10, F=70, V=131, B=2, S=5, T=5, H=4, G=2, E=6, R=4, P=9, Q=24,
             A=24)
# Where a program's own names say otherwise.
SPECIAL = {"rope.packed_rope": dict(N=48), "gpt2.qkv": dict(N=72), "gpt2.layer": dict(N=72),
           "layer_scale.layer": dict(N=72), "llama_packed.layer": dict(N=48, P=140),
           "attention.attend": dict(T=8), "grad_norm.clip": dict(P=70)}
SCALARS = dict(eps=1e-5, rate=0.3, seed=5, seed1=-3, seed2=2**40 + 7, lr=0.1, beta1=0.9,
               beta2=0.95, weight_decay=0.1, bias1=0.3, bias2=0.2, grad_scale=0.7,
               cap=3.0, logit_cap=2.0, smoothing=0.1, z_loss=0.01, window=3, scale=0.3, limit=1.0,
               ignore_index=IGNORE)
POSITIVE = {"ss", "r", "class_weight", "token_weight"}

LIBRARY = {f"{path.stem}.{s.name}": s for path in sorted(PROGRAMS.glob("*.coda"))
           for s in signatures(in_double(path.read_text()))}


def sizes_of(key):
    return {**SIZES, **SPECIAL.get(key, {})}


def inputs_of(key):
    """Random inputs that mean something: ids in range with some ignored, statistics above 0."""
    random = np.random.default_rng(zlib.crc32(key.encode()))
    sizes, values = sizes_of(key), {}
    for param in LIBRARY[key].params:
        shape = param.shape(sizes)
        if not shape:
            values[param.name] = SCALARS[param.name]
        elif param.name == "target":
            target = random.integers(0, sizes["V"], shape)
            target[::7] = IGNORE
            values[param.name] = target
        elif param.dtype == "i64":
            values[param.name] = random.integers(0, sizes["V"], shape)
        elif param.name in ("cos", "sin"):
            angle = np.arange(shape[0])[:, None] * 0.7 ** np.arange(shape[1])[None, :]
            values[param.name] = getattr(np, param.name)(angle)
        elif param.name in POSITIVE or (param.name == "v" and key.startswith("adamw")):
            values[param.name] = 0.5 + random.random(shape)
        else:
            values[param.name] = random.normal(size=shape)
    return values


def by_torch(key, values):
    """The rule's results, and the leaves to differentiate by."""
    sizes = sizes_of(key)
    leaves, arguments = {}, {}
    for param in LIBRARY[key].params:
        value = values[param.name]
        # PyTorch has no gradient with respect to class weights.
        if param.dims and param.dtype == "f64" and param.name != "class_weight":
            value = leaves[param.name] = torch.tensor(value, requires_grad=True)
        elif param.dims:
            value = torch.tensor(value)
        arguments[param.name] = value
    extras = dict(size=sizes["E"], length=sizes["S"], key_length=sizes["T"], groups=sizes["G"])
    wanted = inspect.signature(RULES[key]).parameters
    arguments.update({k: v for k, v in extras.items() if k in wanted})
    return RULES[key](**arguments), leaves


def close(got, want, what):
    want = np.asarray(want.detach() if torch.is_tensor(want) else want, dtype=np.float64)
    assert got.shape == want.shape, f"{what}: shape {got.shape}, not {want.shape}"
    error = np.linalg.norm(got - want) / max(np.linalg.norm(want), 1e-300)
    assert error < 1e-10 or np.abs(got - want).max(initial=0) < 1e-13, f"{what}: error {error:.2e}"


def test_every_program_has_a_rule():
    assert set(LIBRARY) == set(RULES)


@pytest.mark.parametrize("key", LIBRARY)
def test_values_and_gradients_equal_torch(coda, key):
    file, name = key.split(".")
    file += ".coda"
    values, sizes, signature = inputs_of(key), sizes_of(key), LIBRARY[key]
    want, leaves = by_torch(key, values)
    got = coda.run(file, name, values, sizes)
    for result in signature.results:
        close(got[result.name], want[result.name], f"{key}: {result.name}")

    random = np.random.default_rng(1)
    of = [r for r in signature.results if r.dtype == "f64"]
    upstream = {r.name: random.normal(size=r.shape(sizes)) for r in of}
    outputs = [want[r.name] for r in of]
    used = [(o, torch.tensor(upstream[r.name])) for o, r in zip(outputs, of) if o.requires_grad]
    gradients = torch.autograd.grad([o for o, _ in used], list(leaves.values()),
                                    [u for _, u in used], allow_unused=True)
    gradient_file, gradient_name = coda.grad(file, name, wrt=list(leaves))
    d = {f"d_{k}": v for k, v in upstream.items()}
    got = coda.run(gradient_file, gradient_name, {**values, **d}, sizes)
    for leaf, gradient in zip(leaves, gradients):
        if gradient is None:
            gradient = torch.zeros_like(leaves[leaf])
        close(got[f"d_{leaf}"], gradient, f"{key}: d_{leaf}")


# ---- cross-entropy's options ----

CROSS_ENTROPY = """use "prelude.coda"

block loss(z: f64[M, V], target: i64[M], weight: f64[V], smoothing: f64, ignore_index: i64)
    -> (rows: f64[M], total: f64, mean: f64) {
  rows = cross_entropy_full(z, target, weight, smoothing, 0, ignore_index)
  total = sum(rows, M)
  mean = total / sum(where(target == ignore_index, 0, weight[target]), M)
}
"""


@pytest.mark.parametrize("ignore_index", [-100, 3])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("all_ignored", [False, True])
def test_cross_entropy_has_torch_options(coda, ignore_index, smoothing, weighted, all_ignored):
    file = coda.write("loss.coda", CROSS_ENTROPY)
    random = np.random.default_rng(3)
    values = dict(z=random.normal(size=(9, 11)), weight=np.ones(11), smoothing=smoothing,
                  target=random.integers(0, 11, 9), ignore_index=ignore_index)
    if weighted:
        values["weight"] = random.random(11)
    values["target"][::4] = ignore_index
    if all_ignored:
        values["target"][:] = ignore_index
    got = coda.run(file, "loss", values)
    z = torch.tensor(values["z"], requires_grad=True)
    options = dict(weight=torch.tensor(values["weight"]), ignore_index=ignore_index,
                   label_smoothing=smoothing)
    target = torch.tensor(values["target"])
    for name, reduction in (("rows", "none"), ("total", "sum"), ("mean", "mean")):
        want = torch.nn.functional.cross_entropy(z, target, reduction=reduction, **options)
        if all_ignored and name == "mean":
            assert np.isnan(got[name]) and torch.isnan(want)
        else:
            close(got[name], want, name)
    want.backward()
    gradient_file, gradient_name = coda.grad(file, "loss", of=["mean"], wrt=["z"])
    got = coda.run(gradient_file, gradient_name, {**values, "d_mean": 1.0})["d_z"]
    if all_ignored:
        assert (got == 0).all()
    else:
        close(got, z.grad, "d_z")


def test_out_of_range_targets_are_counted(coda):
    values = inputs_of("head.head_full")
    values["target"][1:5] = [131, -1, 1000, -100]
    assert coda.run("head.coda", "head_full", values)["invalid"] == 3


# ---- the optimiser over steps ----

def test_adamw_is_torch_adamw(coda):
    random = np.random.default_rng(4)
    param = torch.nn.Parameter(torch.tensor(random.normal(size=(3, 5))))
    options = dict(lr=0.1, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    optimiser = torch.optim.AdamW([param], **options)
    state = dict(param=param.detach().numpy().copy(), m=np.zeros((3, 5)), v=np.zeros((3, 5)))
    for step in range(1, 4):
        gradient = random.normal(size=(3, 5))
        param.grad = torch.tensor(gradient)
        norm = float(torch.nn.utils.clip_grad_norm_([param], 1.0))
        clip = coda.run("grad_norm.coda", "clip", dict(
            ss=coda.run("grad_norm.coda", "square_sums", dict(grad=gradient))["ss"], limit=1.0))
        close(clip["norm"], np.float64(norm), "norm")
        optimiser.step()
        got = coda.run("adamw.coda", "adamw", dict(
            **state, grad=gradient, lr=0.1, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1,
            bias1=1 - 0.9 ** step, bias2=1 - 0.95 ** step, grad_scale=float(clip["grad_scale"])))
        state = {k: got[f"new_{k}"] for k in state}
        close(state["param"], param, f"step {step}")


# ---- the paper's kernels in a row are the layer and its gradient ----

def test_kernels_in_a_row_are_the_layer_and_its_gradient(coda):
    """Forward F1-F4 and backward B0-B8 of a Llama layer between two attentions, all by hand."""
    key = "llama.between"
    x = inputs_of(key)
    want, leaves = by_torch(key, x)
    random = np.random.default_rng(2)
    up = {k: random.normal(size=v.shape) for k, v in want.items()}
    grads = dict(zip(leaves, torch.autograd.grad(
        list(want.values()), list(leaves.values()), [torch.tensor(up[k]) for k in want])))
    run = lambda key, **values: coda.run(key.split(".")[0] + ".coda", key.split(".")[1], values)
    eps, table = x["eps"], dict(cos=x["cos"], sin=x["sin"])

    f1 = run("norm.residual_norm", x=x["a"], w=x["wo"], residual=x["x"], gamma=x["gamma1"])
    f2 = run("gated.norm_swiglu", p=f1["p"], ss=f1["ss"], gate=x["gate"], up=x["up"], eps=eps)
    f3 = run("norm.residual_norm", x=f2["y"], w=x["down"], residual=f1["h"], gamma=x["gamma2"])
    weights = {w: x[w] for w in ("wq", "wk", "wv")}
    f4 = run("rope.norm_rope", p=f3["p"], ss=f3["ss"], **weights, **table, eps=eps)
    close(f3["h"], want["o"], "o")
    for name in "qkv":
        close(f4[name], want[name], name)

    d = {f"d{n}": up[n] for n in "qkv"}
    b0 = run("rope.rope_norm_grad", **d, q=f4["q"], k=f4["k"], v=f4["v"], r=f4["r"], **table)
    z = {n: b0[n] for n in ("zq", "zk", "zv")}
    b1 = run("norm.rmsnorm_grad_qkv", **z, **weights, do=up["o"], h=f3["h"], gamma=x["gamma2"],
             r=f4["r"], t=b0["t"])
    b2 = run("weight_grad.weight_grad_qkv", **z, p=f3["p"])
    b3 = run("gated.swiglu_grad", do=b1["dh"], down=x["down"], g=f2["g"], u=f2["u"], r=f2["r"])
    b4 = run("weight_grad.weight_grad_norm", dh=b1["dh"], a=f2["y"], partial=b1["dgamma"])
    b5 = run("norm.rmsnorm_grad", dg=b3["dg"], gate=x["gate"], du=b3["du"], up=x["up"],
             do=b1["dh"], h=f1["h"], gamma=x["gamma1"], r=f2["r"], t=b3["t"])
    b6 = run("weight_grad.weight_grad_pair", dg=b3["dg"], du=b3["du"], p=f1["p"])
    b7 = run("linear.linear_grad", dz=b5["dh"], w=x["wo"])
    b8 = run("weight_grad.weight_grad_norm", dh=b5["dh"], a=x["a"], partial=b5["dgamma"])
    got = dict(x=b5["dh"], a=b7["dx"], wo=b8["dw"], gamma1=b8["dgamma"], gate=b6["dgate"],
               up=b6["dup"], down=b4["dw"], gamma2=b4["dgamma"], wq=b2["dwq"], wk=b2["dwk"],
               wv=b2["dwv"])
    for name, value in got.items():
        close(value, grads[name], f"d_{name}")


def test_uniform_is_philox():
    """The known answer of Philox4x32-10 for key 0 and counter 0 is 6627e8d5."""
    assert philox_uniform(0, 1)[0] == (0x6627E8D5 >> 8) * 2.0 ** -24
