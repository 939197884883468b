"""What stays with PyTorch: graphs compiled by Inductor while Dynamo still is at the graph that they
are parts of."""

import torch
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensor, FakeTensorMode


def compiled(graph_module, inputs, mode=None):
    """A function of the same arguments. `inputs`: as they will come, or fake ones of the same
    shapes, strides, devices and need of gradients. `mode`: torch.compile's."""
    # NOTE: torch.compile() here would be another Dynamo, which some releases of PyTorch leave idle
    # inside a compiled function, and which checks its guards in each call.
    from torch._inductor import list_mode_options
    from torch._inductor.compile_fx import compile_fx  # takes a second
    return compile_fx(graph_module, inputs, config_patches=list_mode_options(mode) if mode else {})


def as_a_part(inputs):
    """A context to compile one of several parts of Dynamo's graph in, from fake inputs, which may
    be of an older mode than the one meant for the whole: nothing is noted about the whole."""
    modes = [t.fake_mode for t in inputs if isinstance(t, FakeTensor)]
    if not modes:
        sizes = [t.node.shape_env for t in inputs if isinstance(t, torch.SymInt)]
        modes = [FakeTensorMode(shape_env=sizes[0] if sizes else None)]
    return tracing(TracingContext(modes[0]))


def expected(node):
    """What stands for a node's value when a part that reads it is compiled."""
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor):
        return value
    with value.fake_mode:
        return value.detach().requires_grad_(bool(node.meta.get("learned")))
