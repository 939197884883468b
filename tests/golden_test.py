"""What grad and rewrite make of every block of programs/, as text: tests/golden/.

`pytest tests/golden_test.py --update` writes the texts; the diff is then the change to review.
"""

import pytest

from coda_command import PROGRAMS, ROOT, signatures

GOLDEN = ROOT / "tests" / "golden"
BLOCKS = [(path.name, s) for path in sorted(PROGRAMS.glob("*.coda"))
          for s in signatures(path.read_text()) if s.kind == "block"]


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


@pytest.mark.parametrize("file,block", BLOCKS, ids=lambda v: getattr(v, "name", v))
def test_texts_are_the_golden_ones(coda, request, file, block):
    for what, got in outputs(coda, file, block):
        golden = f"{stem(file, block)}.{what}.coda"
        path = GOLDEN / golden
        if request.config.getoption("--update"):
            GOLDEN.mkdir(exist_ok=True)
            path.write_text(got)
        assert path.exists(), f"{path} is missing: pytest tests/golden_test.py --update"
        assert got == path.read_text(), f"{golden} changed: pytest tests/golden_test.py --update"


def test_no_golden_text_is_left_over():
    stems = {stem(file, block) for file, block in BLOCKS}
    left = [p.name for p in GOLDEN.glob("*.coda") if p.name.rsplit(".", 2)[0] not in stems]
    assert not left


@pytest.mark.parametrize("path", sorted(PROGRAMS.glob("*.coda")), ids=lambda p: p.name)
def test_library_is_in_canonical_layout(coda, path):
    coda.command("fmt", "--check", str(path))
