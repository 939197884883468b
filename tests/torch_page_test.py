"""docs/pytorch-results.md is what bench/torch_page.py makes of the newest data files."""

import sys

from coda_command import ROOT

sys.path.append(str(ROOT / "bench"))

import torch_page  # noqa: E402


def test_the_page_shows_the_newest_results():
    assert torch_page.PAGE.read_text() == torch_page.page(), "run bench/torch_page.py"
