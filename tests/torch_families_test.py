"""Families of Hugging Face models, small and random, on the CPU: a training step in bf16 by CODA is
as near to double precision as by eager, and of a layer nothing but attention is left outside."""

import statistics

import pytest

import torch_families
from coda_epilogue import report

pytest.importorskip("transformers")

# What a layer is made of beside attention.
OF_A_LAYER = {"linear", "addmm", "rms_norm", "layer_norm", "silu", "gelu", "rsqrt", "mean", "pow"}
WHOLE = set(torch_families.NAMES) - {"gpt2", "mixtral"}


@pytest.mark.parametrize("family", torch_families.NAMES)
def test_a_training_step(family):
    report.GRAPHS.clear()
    by_tensor = torch_families.ratios(family)
    # All together; one small tensor alone is noise.
    assert statistics.geometric_mean(by_tensor.values()) < 1.0, by_tensor
    assert max(by_tensor.values()) < 1.25, by_tensor
    if family in WHOLE:
        left = {operator.split(".")[1] for g in report.GRAPHS for operator, why in g.left.values()
                if why != "computed from no activation"}
        assert not left & OF_A_LAYER


def test_sizes_that_change_fuse_as_much():
    import torch

    counts = []
    for dynamic in (None, True):
        torch._dynamo.reset()
        report.GRAPHS.clear()
        torch.manual_seed(0)
        model, exact = torch_families.model_of("qwen3")
        run = torch.compile(model, backend="coda", dynamic=dynamic, options={"rest": "eager"})
        for rows, length in ((2, 24), (3, 40), (5, 32)):
            ids = torch.randint(0, 256, (rows, length))
            want = torch_families.step(exact, exact, ids)
            naive = torch_families.errors(torch_families.step(model, model, ids), want)
            got = torch_families.errors(torch_families.step(model, run, ids), want)
            assert statistics.geometric_mean(got[n] / naive[n] for n in want) < 1.0
        counts.append([len(g.blocks) for g in report.GRAPHS])
    assert counts == [[3, 3], [3]]
