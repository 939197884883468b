"""Graphs of modules under DistributedDataParallel."""

import functools

from torch._dynamo.backends.distributed import DDPOptimizer


def leave_whole(backend):
    """Has Dynamo hand the graphs of modules under DDP to `backend` as they are.

    Dynamo's DDPOptimizer cuts them where DDP's buckets end, since AOTAutograd gives all gradients
    of a graph at once, after its whole backward. A region's backward gives its own when it has
    run, so DDP's reductions run beside the rest without cuts; and cuts inside a layer cost most of
    what is fused there."""
    cut = DDPOptimizer.compile_fn

    @functools.wraps(cut)
    def compile_fn(self, graph_module, example_inputs):
        compiler = self.backend_compile_fn
        # NOTE: what torch.compile wraps a backend into keeps it there.
        if getattr(compiler, "compiler_fn", compiler) is backend:
            return compiler(graph_module, example_inputs)
        return cut(self, graph_module, example_inputs)

    DDPOptimizer.compile_fn = compile_fn

