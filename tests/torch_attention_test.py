"""Masks that say that attention is causal: found by their values, and only then taken away."""

import pytest
import torch
import torch.nn.functional as F

from coda_epilogue import attention, normalise

LENGTH = 12


def places(x):
    return torch.arange(x.shape[-2])


def causal(x):
    return (places(x)[None, :] <= places(x)[:, None])[None, None]


def repeated(x, times):
    b, g, s, e = x.shape
    return x[:, :, None, :, :].expand(b, g, times, s, e).reshape(b, g * times, s, e)


def by_mask(mask, **options):
    return lambda q, k, v: F.scaled_dot_product_attention(q, repeated(k, 2), repeated(v, 2),
                                                          attn_mask=mask(q), **options)


def with_lowest(x):
    return torch.full((LENGTH, LENGTH), torch.finfo(x.dtype).min).triu(1).expand(2, 1, -1, -1)


CAUSAL = {
    "by comparison": by_mask(causal),
    "for each of a batch": by_mask(lambda x: causal(x).expand(2, 1, LENGTH, LENGTH)),
    "infinite": by_mask(lambda x: torch.full((LENGTH, LENGTH), -torch.inf).triu(1)),
    "the lowest number": by_mask(with_lowest),
    "a wide window": by_mask(lambda x: causal(x) & (
        places(x)[None, :] > places(x)[:, None] - LENGTH)),
    "a dropout of none": by_mask(causal, dropout_p=0.0, scale=0.3),
}
def written(x):
    mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    mask[0, 1] = True
    return mask


def of_a_prefix(x):
    mask = torch.full((LENGTH, LENGTH), -torch.inf).triu(1)
    mask[:, :4] = 0.0
    return mask


def padded(x):
    real = torch.ones(2, LENGTH, dtype=torch.bool)
    real[1, 5:] = False
    return causal(x) & real[:, None, None]


OTHERS = {
    "written": by_mask(written),
    "a prefix": by_mask(of_a_prefix),
    "padding": by_mask(padded),
    "a window": by_mask(lambda x: causal(x) & (places(x)[None, :] > places(x)[:, None] - 4)),
    "a column less": by_mask(lambda x: causal(x) & (places(x)[None, :] != 5)),
    "all": by_mask(lambda x: causal(x) | True),
    "a bias": by_mask(lambda x: with_lowest(x) + 0.5 * causal(x)),
    "from what is given": by_mask(lambda x: causal(x) & (x[..., :1] < 1e9)),
    "by chance": by_mask(lambda x: causal(x) & (torch.rand(LENGTH, LENGTH) < 2)),
    "fewer queries": lambda q, k, v: F.scaled_dot_product_attention(
        q[:, :2, :6], k, v, attn_mask=causal(k)[..., :6, :]),
}


def calls_of(function, inputs, dynamic=None):
    """The calls of attention that are left, and what is computed beside them."""
    found = []

    def seen(graph_module, given):
        graph_module = normalise.normalised(graph_module, given)
        attention.simplify(graph_module)
        found.append(graph_module.graph)
        return graph_module
    torch._dynamo.reset()
    run = torch.compile(function, backend=seen, dynamic=dynamic)
    results = run(*inputs)
    (graph,) = found
    calls = [n for n in graph.nodes if n.target is attention.ATTENTION]
    return calls, [n for n in graph.nodes if n.op == "call_function" and n not in calls], results


def inputs():
    torch.manual_seed(0)
    return [torch.randn(2, heads, LENGTH, 8) for heads in (4, 2, 2)]


@pytest.mark.parametrize("name", CAUSAL)
def test_a_causal_mask_goes(name):
    given = inputs()
    (call,), others, got = calls_of(CAUSAL[name], given)
    assert call.args[3] is None and call.args[5] is True
    assert call.kwargs["enable_gqa"] and call.args[1].op == "placeholder"
    assert not others
    torch.testing.assert_close(got, CAUSAL[name](*given))


@pytest.mark.parametrize("name", OTHERS)
def test_another_mask_stays(name):
    given = inputs()
    (call,), _, got = calls_of(OTHERS[name], given)
    assert call.args[3] is not None
    torch.testing.assert_close(got, OTHERS[name](*given))


def test_a_mask_of_unknown_size_stays():
    given = inputs()
    (call,), _, got = calls_of(CAUSAL["by comparison"], given, dynamic=True)
    assert call.args[3] is not None
    torch.testing.assert_close(got, CAUSAL["by comparison"](*given))
