"""A graph in pieces that run one after another, where it holds what is more than its operators.

Modes (no_grad, autocast), gradients and hooks of the user's own, and torch.utils.checkpoint are no
ATen operators: tracing a graph to these would lose them. Each is a piece by itself.
"""

import operator

import torch
import torch.utils._pytree as pytree
from torch.fx.passes.split_module import split_module
from torch.utils.checkpoint import checkpoint

from .rest import as_a_part

_CHECKPOINT = torch.ops.higher_order.tag_activation_checkpoint
_ENTER = torch.amp.autocast_mode._enter_autocast
_EXIT = torch.amp.autocast_mode._exit_autocast
_HOOKS = ("register_hook", "register_post_accumulate_grad_hook")


def has_transforms(graph_module):
    """Whether torch.func's transforms are open somewhere in the graph."""
    return any("functorch" in (getattr(n.target, "__module__", None) or "")
               for n in graph_module.graph.nodes if n.op == "call_function")


def kinds_of(graph):
    """{node: kind}: "operators", "mode" (inside a mode, or with a gradient of its own), "hook" or
    "checkpoint"."""
    kinds, grad, casts = {}, torch.is_grad_enabled(), 0
    first = grad
    for node in graph.nodes:
        if node.op not in ("call_function", "call_method", "call_module"):
            continue
        kind = "operators"
        if node.target is torch._C._set_grad_enabled:
            grad, kind = node.args[0], "mode"
        elif node.target in (_ENTER, _EXIT):
            casts, kind = casts + (1 if node.target is _ENTER else -1), "mode"
        elif node.target is _CHECKPOINT:
            kind = "checkpoint"
        elif (node.target if node.op == "call_method" else getattr(node.target, "_name", "")) \
                in _HOOKS:
            kind = "hook"
        elif isinstance(node.target, torch._ops.HigherOrderOperator) or grad != first or casts:
            kind = "mode"
        elif node.target is operator.getitem:  # of several results
            kind = kinds.get(node.args[0], kind)
        kinds[node] = kind
    return kinds


def drop_idle_modes(graph):
    """Erases modes that change nothing: no_grad around what has no gradients, as rotary embeddings
    have it, and an autocast that is off inside none that is on."""
    on, opened, reads, idle, casts, open_casts = torch.is_grad_enabled(), None, False, [], [], 0
    first = on
    for node in graph.nodes:
        if node.target is torch._C._set_grad_enabled:
            if node.args[0] == on:
                idle.append(node)
                continue
            on = node.args[0]
            if on != first:
                opened, reads = node, not first
            elif not reads:
                idle += [opened, node]
        elif on != first:
            reads = reads or any(map(_has_gradient, node.all_input_nodes))
        if node.target is _ENTER:
            off = not node.args[2] and not open_casts \
                and not torch.is_autocast_enabled(node.args[0])
            casts += [node] if off else []
            open_casts += not off
        elif node.target is _EXIT:
            if node.args[0] in casts:
                idle += [node, node.args[0]]
            else:
                open_casts -= 1
    for node in idle:
        graph.erase_node(node)


def _has_gradient(node):
    value = node.meta.get("example_value")
    if value is None:
        return True
    return any(isinstance(v, torch.Tensor) and v.requires_grad for v in pytree.tree_leaves(value))


def split(graph_module, kinds, compiled, rest):
    """`compiled`, `rest`: from a module and its inputs, fake ones, to a function, for pieces of
    operators and for those inside a mode."""
    part, number, last = {}, 0, "operators"
    for node in graph_module.graph.nodes:
        kind = kinds.get(node, last)
        if node.target is operator.getitem and kind != "operators" \
                and kinds.get(node.args[0]) == kind:
            part[node] = part[node.args[0]]
            continue
        # Two checkpoints, or hooks, are two pieces.
        number += kind != last or (kind in ("checkpoint", "hook") and node in kinds)
        part[node], last = number, kind
        if kind in ("checkpoint", "mode") and node in kinds:
            for given in node.all_input_nodes:
                if given.op == "get_attr":  # its body
                    part[given] = number
    names = {}
    for node, kind in kinds.items():
        names[f"submod_{part[node]}"] = kind
    pieces = split_module(graph_module, None, part.__getitem__, keep_original_order=True)
    for name, piece in list(pieces.named_children()):
        kind = names.get(name, "operators")
        if kind == "checkpoint":
            _recompute(piece, compiled)
        elif kind != "hook":
            inputs = [n.meta["example_value"] for n in piece.graph.nodes if n.op == "placeholder"]
            gradients = _made_with_gradients(piece.graph)
            with as_a_part(inputs):
                function = (rest if kind == "mode" else compiled)(piece, inputs)
            delattr(pieces, name)
            setattr(pieces, name, Called(_without_gradients(function, gradients)))
    return pieces


def _made_with_gradients(graph):
    """Whether each result may have a gradient: not what is made in no_grad."""
    on, made = torch.is_grad_enabled(), {}
    for node in graph.nodes:
        if node.target is torch._C._set_grad_enabled:
            on = node.args[0]
        if node.op == "output":
            return torch.fx.map_arg(node.args[0], made.__getitem__)
        made[node] = on or node.op == "placeholder"


def _without_gradients(function, gradients):
    """The function of a piece, where results that have no gradient get none: a view that was taken
    in no_grad is made again outside of it by what Inductor compiles. `gradients`: for a result, or
    each of them."""
    def cut(made, keeps):
        wrong = not keeps and isinstance(made, torch.Tensor) and made.requires_grad
        return made.detach() if wrong else made

    def run(*given):
        made = function(*given)
        if isinstance(gradients, bool):
            return cut(made, gradients)
        return tuple(map(cut, made, gradients))
    return run


class Called(torch.nn.Module):
    """A function for a graph, which calls modules."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *given):
        return self.function(*given)


def _recompute(piece, compiled):
    """Checkpoints of a piece as PyTorch does them, their bodies compiled."""
    for call in piece.graph.nodes:
        if call.target is _CHECKPOINT:
            body, inputs = call.args[0].target, [_expected(a) for a in call.args[1:]]
            with as_a_part(inputs):
                function = compiled(getattr(piece, body), inputs)
            delattr(piece, body)
            setattr(piece, body, Called(function))
            call.target = _recomputed(call.meta.get("_checkpoint_context_fn"))
    piece.recompile()


def _expected(given):
    return given.meta["example_value"] if isinstance(given, torch.fx.Node) else given


def _recomputed(context):
    extra = {"context_fn": context} if context else {}

    def run(body, *args, **kwargs):
        return checkpoint(body, *args, **{**kwargs, **extra, "use_reentrant": False})
    return run
