"""Masks that say no more than that attention is causal.

Models build them in the graph, from positions alone; with a mask PyTorch's attention computes what
it then throws away, and reads the mask. They are computed here, once, and looked at.
"""

import operator

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from .normalise import in_written_memory

aten = torch.ops.aten
ATTENTION = aten.scaled_dot_product_attention.default
_MOST = 1 << 31  # elements of a mask that is looked at


def simplify(graph_module):
    """Calls of attention with such a mask become causal ones without; keys and values that are
    repeated for it are given as they are. Sizes that are known only when it runs leave a mask as
    it is."""
    graph, causal = graph_module.graph, {}
    values = dict.fromkeys(in_written_memory(graph))  # not what they were made as
    for node in list(graph.nodes):
        if node.target is not ATTENTION:
            continue
        given = dict(zip(("attn_mask", "dropout_p", "is_causal"), node.args[3:])) | node.kwargs
        query, key, value = node.args[:3]
        mask = given.pop("attn_mask", None)
        if mask is None or given.pop("is_causal", False):
            continue
        if mask not in causal:
            causal[mask] = _is_causal(_computed(graph_module, mask, values))
        if not causal[mask] or query.meta["val"].shape[-2] != key.meta["val"].shape[-2]:
            continue
        before = _repeated(key), _repeated(value)
        if None not in before and before[0].meta["val"].shape[1] == before[1].meta["val"].shape[1]:
            (key, value), given["enable_gqa"] = before, True
        dropout = given.pop("dropout_p", 0.0)
        node.args, node.kwargs = (query, key, value, None, dropout, True), given
    if any(causal.values()):
        graph.eliminate_dead_code()


def _computed(graph_module, node, values):
    """The tensor of a node that nothing from outside the graph leads to, else None."""
    needed, todo = set(), [node]
    while todo:
        each = todo.pop()
        if each not in needed:
            needed.add(each)
            todo += each.all_input_nodes
    if any(n.op == "placeholder" or values.get(n, n) is None for n in needed):
        return None
    for each in graph_module.graph.nodes:  # operands first
        if each in needed and each not in values:
            values[each] = _run(graph_module, each, values)
    return values[node]


def _run(graph_module, node, values):
    if node.op == "get_attr":
        return operator.attrgetter(node.target)(graph_module)
    if node.op != "call_function" or not _is_constant(node) or \
            any(values[n] is None for n in node.all_input_nodes):
        return None
    given = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
    try:
        with unset_fake_temporarily(), torch.no_grad():
            return node.target(*given[0], **given[1])
    except RuntimeError:  # no memory for it: the mask stays
        return None


def _is_constant(node):
    """Whether it gives the same each time, of sizes that are known and not too large."""
    value = node.meta.get("val")
    if not isinstance(node.target, torch._ops.OpOverload) or node.target._schema.is_mutable or \
            torch.Tag.nondeterministic_seeded in node.target.tags:
        return False
    return isinstance(value, torch.Tensor) and value.device.type != "meta" and \
        isinstance(value.numel(), int) and value.numel() <= _MOST


def _is_causal(mask):
    """Whether row i says yes to columns 0 … i, in every head and batch."""
    if mask is None or mask.dim() < 2 or mask.shape[-1] != mask.shape[-2]:
        return False
    with unset_fake_temporarily(), torch.no_grad():
        for axis in range(mask.dim() - 2):  # what is repeated is looked at once
            if mask.stride(axis) == 0:
                mask = mask.narrow(axis, 0, 1)
        wanted = torch.ones(mask.shape[-2:], dtype=torch.bool, device=mask.device).tril()
        if mask.dtype == torch.bool:
            return bool((mask == wanted).all())
        never = mask <= torch.finfo(mask.dtype).min
        return bool(((mask == 0) == wanted).all() and (never == ~wanted).all())


def _repeated(node):
    """Of keys [B, G, S, E] that were made [B, H, S, E] by repeating each head: the keys; else
    None."""
    wide = node
    while node.target in (aten.contiguous.default, aten.clone.default):
        node = node.args[0]
    if node.target not in (aten.reshape.default, aten.view.default, aten._unsafe_view.default):
        return None
    expand = node.args[0]
    if expand.target is not aten.expand.default:
        return None
    unsqueeze = expand.args[0]
    while unsqueeze.target is aten.slice.Tensor and \
            unsqueeze.meta["val"].shape == unsqueeze.args[0].meta["val"].shape:
        unsqueeze = unsqueeze.args[0]
    if unsqueeze.target is not aten.unsqueeze.default or unsqueeze.args[1] != 2:
        return None
    narrow = unsqueeze.args[0]
    batch, groups, length, size = narrow.meta["val"].shape
    right = expand.meta["val"].dim() == 5 and expand.meta["val"].shape[1] == groups and \
        tuple(wide.meta["val"].shape) == (batch, groups * expand.meta["val"].shape[2], length, size)
    return narrow if right else None
