"""torch.compile(model, backend="coda"): regions of the graph as schedules, the rest by PyTorch."""

import heapq
import operator
from dataclasses import dataclass

import torch
import torch.utils._pytree as pytree
from torch._subclasses import FakeTensor
from torch.fx.experimental.symbolic_shapes import free_symbols
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from . import attention, ddp, measure, pieces, report, rest
from .blocks import RegionFunction, empty_as
from .errors import ProgramError, Unsupported
from .normalise import in_written_memory, is_write, normalised
from .regions import find

aten = torch.ops.aten

# Operators that PyTorch runs as well by themselves as compiled: views, and calls of one big kernel.
_AS_THEY_ARE = {
    aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.transpose.int,
    aten.permute.default, aten.t.default, aten.unsqueeze.default, aten.squeeze.dim,
    aten.expand.default, aten.slice.Tensor, aten.select.int, aten.alias.default,
    aten.detach.default, aten.contiguous.default, aten.lift_fresh_copy.default,
    aten.detach_.default, aten.scaled_dot_product_attention.default, aten.embedding.default,
    operator.getitem}
_MODES = (None, "default", "max-autotune-no-cudagraphs")
_SMALL = 1 << 16  # elements: what is computed on so few is not worth a compilation


@dataclass(frozen=True)
class Options:
    """rest: who runs what is in no region, "inductor" or "eager"; measure: whether each region is
    timed beside Inductor's when it is compiled, and left to the faster one; mode: Inductor's."""

    rest: str = "inductor"
    measure: bool = False
    mode: str = None

    @staticmethod
    def of(given, mode=None):
        if mode not in _MODES:
            raise ProgramError(f"mode={mode!r} replays CUDA graphs, which this backend does not\n"
                               "  fix: leave it out, give \"max-autotune-no-cudagraphs\", or "
                               "capture a whole step with torch.cuda.graph")
        known = {"rest": ("inductor", "eager"), "measure": (False, True)}
        for name, value in (given or {}).items():
            if name not in known:
                raise ProgramError(f"`{name}` is no option of the backend\n"
                                   f"  fix: give one of: {', '.join(known)}")
            if value not in known[name]:
                raise ProgramError(f"the option {name} is {value!r}\n"
                                   f"  fix: give one of: {', '.join(map(str, known[name]))}")
        return Options(**(given or {}), mode=mode)


def coda(graph_module, example_inputs, *, options=None, mode=None):
    """The backend, as torch.compile calls it: a function of the graph's inputs. `options`: those
    of Options. `mode`: Inductor's, for the rest, without CUDA graphs."""
    given, options = options, Options.of(options, mode)
    if any(type(t).__name__ == "DTensor" for t in example_inputs):
        raise Unsupported("an input of the graph is a DTensor: tensor parallelism splits products "
                          "that one kernel would fuse\n  fix: shard with fully_shard (its layers "
                          'see whole weights), or leave these layers to backend="inductor"')
    if pieces.has_transforms(graph_module):
        return _rest(graph_module, example_inputs, options)
    pieces.drop_idle_modes(graph_module.graph)
    kinds = pieces.kinds_of(graph_module.graph)
    if set(kinds.values()) - {"operators"}:
        return pieces.split(graph_module, kinds,
                            lambda m, inputs: coda(m, inputs, options=given, mode=mode),
                            lambda m, inputs: _rest(m, inputs, options))
    before, graph_module = graph_module, normalised(graph_module, example_inputs)
    attention.simplify(graph_module)
    blocks, reasons = find(graph_module, judge_for(example_inputs, options))
    quiet, moved = _beside_the_loss(graph_module, blocks), {}
    functions = [RegionFunction(b, quiet) for b in blocks]
    report.add(graph_module, functions, reasons, quiet)
    if not blocks:
        return _rest(before, example_inputs, options)
    for number, function in enumerate(functions):
        moved.update(_replace(graph_module, f"coda_{number}", function, moved))
    _in_order(graph_module.graph)
    _follow(graph_module.graph, set(moved.values()))
    if options.rest == "inductor":
        _compile_the_rest(graph_module, options)
    graph_module.recompile()
    return graph_module


ddp.leave_whole(coda)


def judge_for(inputs, options):
    """What find() asks of a block where these are a graph's inputs: why PyTorch would be faster, or
    None."""
    judges = []
    if any(isinstance(t, torch.Tensor) and t.is_cuda for t in inputs):
        judges.append(slow_on_a_gpu)
    if options.measure:
        judges.append(measure.slower)
    if judges:
        return lambda block: next(filter(None, (judge(block) for judge in judges)), None)
    return None


def slow_on_a_gpu(block):
    """Why a kernel of a block would be slow on a GPU, or None."""
    metas = [s.of(s.node.meta["val"]) for s in block.inputs]
    needs = tuple(s.node.meta["learned"] for s in block.inputs)
    return RegionFunction(block).slow(needs, metas)


def _beside_the_loss(graph_module, blocks):
    """Results of the graph that come from the region of its only loss, like logits: no gradient is
    expected to come through them."""
    (output,) = [n for n in graph_module.graph.nodes if n.op == "output"]
    results = set(output.all_input_nodes)
    losses = {n for n in results if isinstance(n.meta.get("val"), torch.Tensor)
              and n.meta["val"].dim() == 0 and n.meta["val"].dtype.is_floating_point}
    if len(losses) != 1:
        return set()
    return {n for b in blocks if losses & set(b.nodes) for n in results & set(b.nodes)} - losses


def _replace(graph_module, name, function, moved):
    """A call in place of a block's nodes. `moved`: what stands for the results of earlier ones;
    returns the same of this one."""
    block = function.block
    graph, inside, results = graph_module.graph, set(block.nodes), {}
    graph_module.add_module(name, pieces.Called(function))
    with graph.inserting_after(block.nodes[-1]):
        call = after = graph.call_module(
            name, tuple(moved.get(n, n) for n in block.outside))
    call.meta["epoch"] = block.nodes[0].meta["epoch"]
    for index, node in enumerate(block.results):
        with graph.inserting_after(after):
            results[node] = after = graph.call_function(operator.getitem, (call, index))
        value = node.meta["val"]
        with value.fake_mode:  # dense, where it may have been a view
            value = empty_as(value.shape, block.strides[index], value.dtype, value.device)
        after.meta.update(val=value, learned=node.meta["learned"], epoch=call.meta["epoch"])
        node.replace_all_uses_with(after, delete_user_cb=lambda user: user not in inside)
    for node in reversed(block.nodes):
        graph.erase_node(node)
    return results


def _in_order(graph):
    """Sorts the nodes, operands first; otherwise they stay as they are, each in its epoch."""
    place = {n: (n.meta.get("epoch", 0), i) for i, n in enumerate(graph.nodes)}
    output = next(iter(reversed(graph.nodes)))
    waits = {n: len(n.all_input_nodes) for n in graph.nodes}
    ready = [(place[n], n) for n in graph.nodes if not waits[n]]
    heapq.heapify(ready)
    while ready:
        _, node = heapq.heappop(ready)
        if node is not output:
            output.prepend(node)
        for user in node.users:
            waits[user] -= 1
            if not waits[user]:
                heapq.heappush(ready, (place[user], user))


def _follow(graph, changed):
    """What the strides of these nodes' values mean for those after them."""
    for node in graph.nodes:
        if node.op != "call_function" or node in changed or is_write(node) \
                or not changed & set(node.all_input_nodes):
            continue
        given = torch.fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
        fakes = [v for v in pytree.tree_leaves(given) if isinstance(v, FakeTensor)]
        with fakes[0].fake_mode:
            node.meta["val"] = node.target(*given[0], **given[1])
        changed.add(node)


class _NotOurs(OperatorSupportBase):
    def __init__(self, epoch, written):
        self.epoch, self.written = epoch, written

    def is_node_supported(self, submodules, node):
        # NOTE: autograd would not know that what two results of a part share is written to.
        if node.op != "call_function" or node.meta["epoch"] != self.epoch or node in self.written:
            return False
        return not (node.target is operator.getitem and node.args[0].op == "call_module")


def _rest(graph_module, inputs, options):
    if options.rest == "eager":
        return graph_module
    return rest.compiled(graph_module, inputs, options.mode)


def _compile_the_rest(graph_module, options):
    writes = {n.meta["epoch"] for n in graph_module.graph.nodes if is_write(n)}
    shared = in_written_memory(graph_module.graph)
    for epoch in sorted({n.meta["epoch"] for n in graph_module.graph.nodes} - writes):
        partitioner = CapabilityBasedPartitioner(graph_module, _NotOurs(epoch, shared),
                                                 allows_single_node_partition=True)
        worth = [p for p in partitioner.propose_partitions() if any(map(_is_work, p.nodes))]
        partitioner.fuse_partitions(worth, prefix=f"torch_{epoch}_")
    symbols = {n.meta["val"].node.expr: n for n in graph_module.graph.nodes
               if n.op == "placeholder" and isinstance(n.meta.get("val"), torch.SymInt)}
    for call in [n for n in graph_module.graph.nodes if n.op == "call_module"]:
        if call.target.startswith("torch_"):
            _give_symbols(call, getattr(graph_module, call.target), symbols)
            inputs = [rest.expected(given) for given in call.args]
            with rest.as_a_part(inputs):
                function = rest.compiled(getattr(graph_module, call.target), inputs, options.mode)
            delattr(graph_module, call.target)
            setattr(graph_module, call.target, pieces.Called(function))


def _give_symbols(call, part, symbols):
    """Sizes that shapes are computed from, as arguments: Inductor derives none from a product."""
    given = {n.meta["val"].node.expr for n in call.args if isinstance(n.meta["val"], torch.SymInt)}
    used = set().union(*(free_symbols(n.meta["val"]) for n in call.args))
    missing = [symbols[s] for s in symbols if s in used - given]
    with part.graph.inserting_before(next(iter(part.graph.nodes))):
        for node in reversed(missing):
            part.graph.placeholder(node.name).meta.update(node.meta)
    part.recompile()
    call.args = (*missing, *call.args)


def _is_work(node):
    value = node.meta.get("val")
    return (node.target not in _AS_THEY_ARE and isinstance(value, torch.Tensor)
            and (not isinstance(value.numel(), int) or value.numel() > _SMALL))
