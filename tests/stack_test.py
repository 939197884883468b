"""Whole models of `coda rewrite --layers` against PyTorch in double; what the command prints."""

import json
import xml.etree.ElementTree as ET

import numpy as np
import pytest
import torch

from coda_command import Failed, signatures
from programs_test import SCALARS, SIZES, close
from torch_layers import RULES

LAYERS = 2
# The model's file, the blocks before and behind its layers, and the sizes that differ.
MODELS = {
    "llama": ("embedding.embedding", "head.head", {}),
    "llama_packed": ("embedding.embedding", "head.head", dict(N=48, P=140)),
    "lora": ("embedding.embedding", "head.head", {}),
    "olmo2": ("embedding.embedding", "head.head", {}),
    "qwen2": ("embedding.embedding", "head.head", {}),
    "qwen3": ("embedding.embedding", "head.head", {}),
    "parallel": ("embedding.embedding", "head.head", {}),
    "gemma": ("gemma.embed", "gemma.head", {}),
    "gpt2": ("gpt2.embed", "gpt2.head", dict(N=72)),
}


def stack_text(coda, name):
    """The block that is rewritten, as text."""
    text = coda.command("rewrite", f"{name}.coda", "--layers", str(LAYERS), "--json", "--trace")
    return json.loads(text)["passes"][0]["text"]


def model(name, values, sizes):
    """The rules of the file's blocks in turn, and the leaves to differentiate by."""
    embed, head, _ = MODELS[name]
    leaves = {k: torch.tensor(v, requires_grad=True) for k, v in values.items()
              if np.asarray(v).dtype == np.float64 and np.ndim(v) and k not in ("cos", "sin")}

    def call(key, prefix, *stream):
        rule, arguments = RULES[key], {}
        extras = dict(size=sizes["E"], length=sizes["S"], groups=sizes["G"])
        names = rule.__code__.co_varnames[:rule.__code__.co_argcount]
        for argument in names[len(stream):]:
            own = f"{prefix}.{argument}"
            found = own if own in values else argument
            value = leaves.get(found, values.get(found, extras.get(argument)))
            arguments[argument] = torch.tensor(value) if isinstance(value, np.ndarray) else value
        return rule(*stream, **arguments)

    x = call(embed, "embed")["x"]
    for i in range(LAYERS):
        x = call(f"{name}.layer", str(i), x)["out"]
    return call(head, "head", x), leaves


def random_values(signature, sizes):
    random, values = np.random.default_rng(5), {}
    for param in signature.params:
        shape, short = param.shape(sizes), param.name.split(".")[-1]
        if not shape:
            values[param.name] = SCALARS[short]
        elif param.dtype == "i64":
            values[param.name] = random.integers(0, sizes["V"], shape)
        elif short in ("cos", "sin"):
            angle = np.arange(shape[0])[:, None] * 0.7 ** np.arange(shape[1])[None, :]
            values[param.name] = getattr(np, short)(angle)
        else:
            values[param.name] = random.normal(size=shape)
    return values


@pytest.mark.parametrize("name", MODELS)
def test_values_and_gradients_equal_torch(coda, name):
    """The block, and the schedule that rewrite makes of it, forward and backward."""
    sizes = {**SIZES, **MODELS[name][2], "M": SIZES["B"] * SIZES["S"]}
    text = stack_text(coda, name)
    file = coda.write(f"stack_{name}.coda", text)
    values = random_values(signatures(text)[0], sizes)
    want, leaves = model(name, values, sizes)
    gradients = torch.autograd.grad(want["loss"], list(leaves.values()))

    def compare(how, forward, backward):
        close(forward["loss"], want["loss"], f"{how}: loss")
        close(forward["lse"], want["lse"], f"{how}: lse")
        for leaf, gradient in zip(leaves, gradients):
            close(backward[f"d_{leaf}"], gradient, f"{how}: d_{leaf}")

    forward = coda.run(file, "stack", values, sizes)
    gradient_file, gradient_name = coda.grad(file, "stack", of=["loss"], wrt=list(leaves))
    backward = coda.run(gradient_file, gradient_name, {**values, "d_loss": 1.0}, sizes)
    compare(f"{name}, block", forward, backward)

    file = coda.write(f"schedule_{name}.coda", coda.command(
        "rewrite", f"{name}.coda", "--layers", str(LAYERS), "--grad", "--of", "loss", "--wrt",
        ",".join(leaves)))
    forward = coda.run(file, "stack", values, sizes)
    backward = coda.run(file, "stack_grad", {**values, **forward, "d_loss": 1.0}, sizes)
    compare(f"{name}, schedule", forward, backward)


# ---- what the command prints ----

def rewrite(coda, *arguments):
    return coda.command("rewrite", *arguments)


def test_json_has_every_kernel_with_its_layer(coda):
    report = json.loads(rewrite(coda, "llama.coda", "--layers", "3", "--grad", "--of", "loss",
                                "--json", "--size", "D=96"))
    keys = {"phase", "kind", "layer", "name", "text", "bytes_read", "bytes_written", "flops"}
    assert all(keys <= set(kernel) for kernel in report["kernels"])
    phases = [kernel["phase"] for kernel in report["kernels"]]
    assert phases == sorted(phases, reverse=True) and set(phases) == {"forward", "backward"}
    for kernel in report["kernels"]:
        for i in range(3):
            if f"@ {i}.down" in kernel["text"] or f"@ {i}.wq" in kernel["text"]:
                assert kernel["layer"] == i
        if "@ head.w" in kernel["text"]:
            assert kernel["layer"] is None
    ledger = report["ledger"]
    for what in ("bytes_read", "bytes_written", "flops"):
        assert ledger["total"][what] == sum(kernel[what] for kernel in report["kernels"])
    moved = {k: v["bytes_read"] + v["bytes_written"] for k, v in ledger.items()}
    assert moved["ideal"] < moved["total"] < moved["unfused"]


def test_trace_shows_the_program_after_each_pass(coda):
    text = rewrite(coda, "gated.coda", "--block", "mlp", "--grad", "--trace")
    passes = [line for line in text.splitlines() if line.startswith("# after ")]
    assert passes[0] == "# after block" and "# after grad" in passes
    report = json.loads(rewrite(coda, "gated.coda", "--block", "mlp", "--grad", "--trace",
                                "--json"))
    assert ["# after " + each["name"] for each in report["passes"]] == passes
    assert all(each["text"].startswith("coda 1\n") for each in report["passes"])


def test_svg_is_a_picture(coda):
    rewrite(coda, "llama.coda", "--layers", "2", "--grad", "--of", "loss", "--svg", "picture.svg")
    root = ET.parse(coda.folder / "picture.svg").getroot()
    assert root.tag.endswith("svg") and float(root.get("width")) > 500
    texts = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert "layer 1" in texts and "unfused" in texts


@pytest.mark.parametrize("arguments,message", [
    (["llama.coda", "--layers", "0"], "1 to 4096"),
    (["linear.coda", "--layers", "2"], "there is no block `layer`"),
    (["rope.coda", "--layers", "2", "--block", "norm_rope"], "cannot follow itself"),
    (["llama.coda", "--layers", "2", "--tie", "head.w"], "ties nothing"),
    (["llama.coda", "--layers", "2", "--tie", "head.w=0.wq"], "`head.w` cannot be `0.wq`"),
    (["llama.coda", "--memory", "1GB"], "--grad"),
    (["llama.coda", "--grad", "--save", "oh"], "computes no value `oh`"),
    (["llama.coda", "--grad", "--accumulate", "wq=f16"], "cannot add into f16"),
])
def test_mistakes_are_explained(coda, arguments, message):
    with pytest.raises(Failed) as failure:
        rewrite(coda, *arguments)
    assert message in str(failure.value)


def test_tied_embeddings_are_one_parameter(coda):
    text = rewrite(coda, "llama.coda", "--layers", "1", "--tie", "head.w=embed.table", "--grad",
                   "--of", "loss", "--wrt", "embed.table")
    assert "head.w" not in text and "d_embed.table" in text
