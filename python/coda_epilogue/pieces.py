"""A graph in pieces that run one after another, where it holds what is more than its operators.

Modes (no_grad, autocast), gradients and hooks of the user's own, and torch.utils.checkpoint are no
ATen operators: tracing a graph to these would lose them. Each is a piece by itself.
"""

import torch
from torch.fx.passes.split_module import split_module
from torch.utils.checkpoint import checkpoint

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
        elif node.op == "call_method" and node.target in _HOOKS:
            kind = "hook"
        elif isinstance(node.target, torch._ops.HigherOrderOperator) or grad != first or casts:
            kind = "mode"
        kinds[node] = kind
    return kinds


def split(graph_module, kinds, compiled, rest):
    """`compiled`, `rest`: from a module to a function, for pieces of operators and for those inside
    a mode."""
    part, number, last = {}, 0, "operators"
    for node in graph_module.graph.nodes:
        kind = kinds.get(node, last)
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
            setattr(pieces, name, (rest if kind == "mode" else compiled)(piece))
    return pieces


def _recompute(piece, compiled):
    """Checkpoints of a piece as PyTorch does them, their bodies compiled."""
    for call in piece.graph.nodes:
        if call.target is _CHECKPOINT:
            body = call.args[0].target
            setattr(piece, body, compiled(getattr(piece, body)))
            call.target = _recomputed(call.meta.get("_checkpoint_context_fn"))
    piece.recompile()


def _recomputed(context):
    extra = {"context_fn": context} if context else {}

    def run(body, *args, **kwargs):
        return checkpoint(body, *args, **{**kwargs, **extra, "use_reentrant": False})
    return run
