"""What grad and rewrite make of every block of programs/, as text: tests/golden/.

`pytest tests/golden_test.py --update` writes the texts; the diff is then the change to review.
"""

import pytest

from coda_command import PROGRAMS, ROOT, signatures

GOLDEN = ROOT / "tests" / "golden"
BLOCKS = [(path.name, s.name) for path in sorted(PROGRAMS.glob("*.coda"))
          for s in signatures(path.read_text()) if s.kind == "block"]


def outputs(coda, file, name):
    path = str(PROGRAMS / file)
    stem = f"{file.removesuffix('.coda')}.{name}"
    yield f"{stem}.grad.coda", coda.command("grad", path, "--block", name)
    yield f"{stem}.rewrite.coda", coda.command("rewrite", path, "--block", name)
    yield f"{stem}.training.coda", coda.command("rewrite", path, "--block", name, "--grad")


@pytest.mark.parametrize("file,name", BLOCKS, ids=lambda v: v)
def test_texts_are_the_golden_ones(coda, request, file, name):
    for golden, got in outputs(coda, file, name):
        path = GOLDEN / golden
        if request.config.getoption("--update"):
            GOLDEN.mkdir(exist_ok=True)
            path.write_text(got)
        assert path.exists(), f"{path} is missing: pytest tests/golden_test.py --update"
        assert got == path.read_text(), f"{golden} changed: pytest tests/golden_test.py --update"


def test_no_golden_text_is_left_over():
    stems = {f"{file.removesuffix('.coda')}.{name}" for file, name in BLOCKS}
    left = [p.name for p in GOLDEN.glob("*.coda") if p.name.rsplit(".", 2)[0] not in stems]
    assert not left


@pytest.mark.parametrize("path", sorted(PROGRAMS.glob("*.coda")), ids=lambda p: p.name)
def test_library_is_in_canonical_layout(coda, path):
    coda.command("fmt", "--check", str(path))
