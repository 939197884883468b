"""What grad and rewrite make of every block of programs/, and the CUDA of typical programs:
tests/golden/, as text.

`pytest tests/golden_test.py --update` writes the texts; the diff is then the change to review.
"""

import json
from collections import Counter

import pytest

from coda_command import PROGRAMS, ROOT, signatures

GOLDEN = ROOT / "tests" / "golden"
BLOCKS = [(path.name, s) for path in sorted(PROGRAMS.glob("*.coda"))
          for s in signatures(path.read_text()) if s.kind == "block"]


# Kernels of one layer within a stack, attention's aside, forward and backward: at most those of the
# derivation by hand.
FAMILIES = {"llama": (4, 9), "qwen2": (4, 9), "qwen3": (4, 9), "gpt2": (6, 9), "gemma": (6, 11),
            "parallel": (2, 5)}

# Products of a layer of width 2048, one for each thing that the fast path does.
PAGES = [
    ("linear", "linear", "M=16384 N=2048 K=2048"),
    ("norm", "residual_norm", "M=16384 N=2048 K=2048"),
    ("gated", "norm_swiglu", "M=16384 K=2048 F=5632"),
    ("gated", "swiglu_grad", "M=16384 D=2048 F=5632"),
    ("rope", "norm_rope", "B=2 S=8192 D=2048 H=16 G=4 E=128"),
    ("cross_entropy", "cross_entropy_partial", "M=16384 K=2048 V=50304"),
    ("weight_grad", "weight_grad", "M=16384 N=2048 K=2048"),
    ("norm", "rmsnorm_grad", "M=16384 F=5632 D=2048"),
]


def stem(file, block):
    return f"{file.removesuffix('.coda')}.{block.name}"


def outputs(coda, file, block):
    """Gradients are those that training asks for: of tensors, not of scalars."""
    path, name = str(PROGRAMS / file), block.name
    tensors = [p.name for p in block.params if p.dims and p.dtype in ("bf16", "f32")]
    wrt = ["--wrt", ",".join(t for t in tensors if t not in ("cos", "sin"))]
    yield "grad", coda.command("grad", path, "--block", name, *wrt)
    yield "rewrite", coda.command("rewrite", path, "--block", name)
    yield "training", coda.command("rewrite", path, "--block", name, "--grad", *wrt)


def compare(request, golden, got):
    path = GOLDEN / golden
    if request.config.getoption("--update"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(got)
    assert path.exists(), f"{path} is missing: pytest tests/golden_test.py --update"
    assert got == path.read_text(), f"{golden} changed: pytest tests/golden_test.py --update"


@pytest.mark.parametrize("file,block", BLOCKS, ids=lambda v: getattr(v, "name", v))
def test_texts_are_the_golden_ones(coda, request, file, block):
    for what, got in outputs(coda, file, block):
        compare(request, f"{stem(file, block)}.{what}.coda", got)


def weights(coda, file):
    """Everything in a stack that is trained."""
    trace = json.loads(coda.command("rewrite", file, "--layers", "1", "--json", "--trace"))
    params = signatures(trace["passes"][0]["text"])[0].params
    tensors = [p.name for p in params if p.dims and p.dtype in ("bf16", "f32")]
    own = [name for name in tensors if name not in ("cos", "sin")]
    return [name.replace("0.", f"{i}.", 1) for i in range(3) for name in own
            if i == 0 or name.startswith("0.")]


@pytest.mark.parametrize("family", FAMILIES)
def test_layers_of_a_stack_have_no_more_kernels_than_by_hand(coda, request, family):
    file = str(PROGRAMS / f"{family}.coda")
    training = ["rewrite", file, "--layers", "3", "--grad", "--of", "loss", "--wrt",
                ",".join(weights(coda, file))]
    kernels = json.loads(coda.command(*training, "--json"))["kernels"]
    count = Counter(k["phase"] for k in kernels if k["layer"] == 1 and k["kind"] != "opaque")
    forward, backward = FAMILIES[family]
    assert count["forward"] <= forward and count["backward"] <= backward, dict(count)
    compare(request, f"{family}.stack.coda", coda.command(*training))


def test_no_golden_text_is_left_over():
    stems = {stem(file, block) for file, block in BLOCKS} | set(FAMILIES)
    left = [p.name for p in GOLDEN.glob("*.coda") if p.name.rsplit(".", 2)[0] not in stems]
    pages = {name for _, name, _ in PAGES}
    left += [p.name for p in (GOLDEN / "cuda").glob("*.page")
             if p.stem not in pages and not p.stem.startswith("stream_")]
    assert not left


@pytest.mark.parametrize("file,name,sizes", PAGES, ids=[name for _, name, _ in PAGES])
def test_cuda_pages_are_the_golden_ones(coda, request, file, name, sizes):
    program = str(PROGRAMS / f"{file}.coda")
    page = coda.command("emit", program, "--program", name, "--size", *sizes.split())
    compare(request, f"cuda/{name}.page", page)


@pytest.mark.parametrize("path", sorted(PROGRAMS.glob("*.coda")), ids=lambda p: p.name)
def test_library_is_in_canonical_layout(coda, path):
    coda.command("fmt", "--check", str(path))
