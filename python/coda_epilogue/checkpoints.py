"""torch.utils.checkpoint in a graph: what it wraps is compiled by itself, and recomputed in
backward as PyTorch does it."""

import torch
from torch.fx.passes.split_module import split_module
from torch.utils.checkpoint import checkpoint

_CHECKPOINT = torch.ops.higher_order.tag_activation_checkpoint


def has_checkpoints(graph_module):
    return any(n.target is _CHECKPOINT for n in graph_module.graph.nodes)


def split_at_checkpoints(graph_module, compiled):
    """The graph in pieces that run one after another: each checkpoint's body, and what is between,
    through `compiled`, from a module to a function."""
    part, number = {}, 0
    for node in graph_module.graph.nodes:
        at_checkpoint = node.target is _CHECKPOINT
        number += at_checkpoint
        part[node] = number
        if at_checkpoint:
            part[node.args[0]] = number  # its body
        number += at_checkpoint
    split = split_module(graph_module, None, part.__getitem__, keep_original_order=True)
    for name, piece in split.named_children():
        calls = [n for n in piece.graph.nodes if n.target is _CHECKPOINT]
        for call in calls:
            body = call.args[0].target
            setattr(piece, body, compiled(getattr(piece, body)))
            call.target = _recomputed(call.meta.get("_checkpoint_context_fn"))
            piece.recompile()
        if not calls:
            setattr(split, name, compiled(piece))
    return split


def _recomputed(context):
    extra = {"context_fn": context} if context else {}

    def run(body, *args, **kwargs):
        return checkpoint(body, *args, **{**kwargs, **extra, "use_reentrant": False})
    return run
