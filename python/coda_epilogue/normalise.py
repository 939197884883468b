"""Dynamo's graph in one spelling: ATen operators before autograd, on fake tensors.

`F.linear`, `nn.functional.silu`, `x.float()` and `operator.add` all become the operators that
PyTorch dispatches; composite ones (linear, rms_norm, scaled_dot_product_attention) stay whole.
"""

import operator

import torch
from torch._guards import TracingContext, detect_fake_mode
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

aten = torch.ops.aten


def normalised(graph_module, example_inputs):
    """A GraphModule of ATen operators with the same inputs and outputs; a node's meta["val"] is its
    fake tensor, meta["epoch"] counts writes, meta["learned"] says whether gradients go through it.
    `example_inputs`: as Dynamo gives them to a backend."""
    mode = detect_fake_mode(example_inputs) or FakeTensorMode(shape_env=ShapeEnv())
    fakes = [_faked(each, mode) for each in example_inputs]
    trace = make_fx(graph_module, tracing_mode="real", pre_dispatch=True,
                    _allow_non_fake_inputs=True)
    with mode:
        made = trace(*fakes)
    _fix_numbers(made.graph)
    _simplify(made)
    _count_epochs(made.graph)
    _mark_learned(made.graph, example_inputs)
    return made


def _fix_numbers(graph):
    """Puts floats that Dynamo took for symbolic, like the epsilon of a norm under dynamic=True, in
    the graph as they are. Dynamo checks them then in each call."""
    for node in graph.nodes:
        value = node.meta.get("val")
        if node.op == "call_function" and isinstance(value, torch.SymFloat) \
                and value.node.hint is not None:
            node.replace_all_uses_with(float(value))


def _simplify(graph_module):
    """Drops what has no effect: a cast to what a tensor is, an empty piece of a concatenation (a
    cache that is empty would cost a copy), and detaching a constant in place."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        stands_for = None
        if node.target is aten.detach_.default and \
                node.args[0].target is aten.lift_fresh_copy.default:
            stands_for = node.args[0]
        elif node.target in (aten.to.dtype, aten.to.device, aten.to.dtype_layout):
            given, value = node.args[0], node.meta["val"]
            copied = True in node.args[2:] or node.kwargs.get("copy")
            if not copied and given.meta["val"].dtype == value.dtype \
                    and given.meta["val"].device == value.device:
                stands_for = given
        elif node.target is aten.cat.default:
            value = node.meta["val"]
            full = [p for p in node.args[0] if p.meta["val"].numel() != 0]
            if len(full) == 1 and full[0].meta["val"].shape == value.shape \
                    and full[0].meta["val"].dtype == value.dtype:
                (stands_for,) = full
        if stands_for is not None:
            node.replace_all_uses_with(stands_for)
            graph.erase_node(node)
    graph.eliminate_dead_code()


def is_write(node):
    """Whether it writes into a tensor that it is given."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _count_epochs(graph):
    """meta["epoch"] of every node: one that writes into a tensor is alone in its epoch, and no node
    may move to another."""
    epoch = 0
    for node in graph.nodes:
        writes = is_write(node)
        epoch += writes
        node.meta["epoch"] = epoch
        epoch += writes


# What may give the memory that it was given, beside what its schema says.
_MAY_SHARE = {aten.reshape.default, aten.contiguous.default, aten.to.dtype, aten.to.device,
              aten.to.dtype_layout, aten.to.other, aten.type_as.default, aten.dropout.default,
              aten.flatten.using_ints, aten.unflatten.int}


def _shares(node):
    return node.target in _MAY_SHARE or (
        isinstance(node.target, torch._ops.OpOverload)
        and any(r.alias_info is not None for r in node.target._schema.returns))


def roots(graph):
    """{node: the one whose memory it may share}."""
    root = {}
    for node in graph.nodes:
        tensors = [n for n in node.all_input_nodes
                   if isinstance(n.meta.get("val"), (torch.Tensor, list, tuple))]
        root[node] = root[tensors[0]] if tensors and (
            _shares(node) or node.target is operator.getitem) else node
    return root


def written(node):
    """The nodes whose tensors a node writes into."""
    found = []
    if node.op == "call_function" and is_write(node):
        for given, argument in zip(node.args, node.target._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                torch.fx.map_arg(given, found.append)
    return found


def in_written_memory(graph):
    """The nodes whose memory some node of the graph writes into, under any name."""
    root = roots(graph)
    changed = {root[n] for node in graph.nodes for n in written(node)}
    return {n for n in root if root[n] in changed}


def _mark_learned(graph, example_inputs):
    inputs, on, root = iter(example_inputs), torch.is_grad_enabled(), roots(graph)
    for node in graph.nodes:
        given = next(inputs) if node.op == "placeholder" else None
        node.meta["learned"] = on and isinstance(given, torch.Tensor) and given.requires_grad
    filled, known = set(), -1  # memory that something learned was written into
    while len(filled) > known:
        known = len(filled)
        for node in graph.nodes:
            if node.op == "placeholder" and root[node] not in filled:
                continue
            value = node.meta.get("val")
            node.meta["learned"] = on and node.target is not aten.detach.default and (
                not isinstance(value, torch.Tensor) or _is_differentiable(value.dtype)) and (
                    root[node] in filled or any(n.meta["learned"] for n in node.all_input_nodes))
            if node.meta["learned"]:
                filled |= {root[n] for n in written(node)}


def _is_differentiable(dtype):
    return dtype.is_floating_point or dtype.is_complex


def _faked(given, mode):
    """The fake tensor of a real one, with the symbols that Dynamo gave its sizes."""
    if not isinstance(given, torch.Tensor) or isinstance(given, FakeTensor):
        return given
    context = TracingContext.try_get()
    symbolic = context and context.tensor_to_context.get(given)
    if symbolic is None:
        return mode.from_tensor(given, static_shapes=True)
    return mode.from_tensor(given, symbolic_context=symbolic, source=symbolic.tensor_source,
                            trace=False)
