"""The parts of a graph that become CODA blocks, and the blocks."""

import re
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

import torch
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from . import native
from .axes import fresh_axis, hint_of, resolved
from .errors import CodaError
from .normalise import in_written_memory, roots
from .operators import OF_COMPLEX, TABLE
from .region import Complex, Region, Source, Untranslatable
from .region_text import Value, grouped

# What makes a region worth a schedule: a product, or a reduction over rows.
aten = torch.ops.aten
WORTH = {aten.linear.default, aten.matmul.default, aten.mm.default, aten.addmm.default,
         aten.mean.dim, aten.rms_norm.default, aten.layer_norm.default,
         aten.cross_entropy_loss.default}


def is_worth(node):
    """Of products of many matrices, which are no layer's, none is."""
    return node.target in WORTH and (node.target is not aten.matmul.default
                                     or node.args[1].meta["val"].dim() == 2)


@dataclass(eq=False)
class Binding:
    """How a tensor of the graph lies in the block: without axes of 1, one axis a factor, in the
    order of the block's dimensions. `sizes`: a factor's extent, None for one that is known only
    when it runs."""

    sizes: list  # of each axis of the graph's tensor, those of its factors
    order: list  # of the factors
    names: list  # of the factors, in the graph's order

    @cached_property
    def is_plain(self):
        return all(len(s) == 1 for s in self.sizes) and self.order == sorted(self.order)

    def bound(self, tensor, extents):
        """The view that the block is given. `extents`: by name."""
        if self.is_plain:
            return tensor
        at = iter(self.names)
        shape = [extents[name] if factor is None else factor
                 for factors in self.sizes for factor, name in zip(factors, at)]
        return tensor.view(shape).permute(self.order)

    def unknown(self):
        """(axis, names of its factors that are known only when it runs, the product of the rest) of
        each axis that has such."""
        at, found = iter(self.names), []
        for axis, factors in enumerate(self.sizes):
            names = [name for factor, name in zip(factors, at) if factor is None]
            found += [(axis, names, prod(f for f in factors if f is not None))] if names else []
        return found

    def shape(self, extents):
        """Of the graph's tensor. `extents`: by name."""
        at = iter(self.names)
        return [prod(extents[name] if factor is None else factor
                     for factor, name in zip(factors, at)) for factors in self.sizes]


@dataclass(eq=False)
class Block:
    """A region as a text. `results`: the graph's nodes that others read."""

    text: str
    inputs: list  # Sources, of which several may be of one node
    results: list
    params: list  # Bindings
    outputs: list  # Bindings
    extents: dict  # name of a factor → extent
    strides: list  # of each result's axes, the order in which they lie in memory
    depends: list  # of each result, the inputs by number that a gradient of it may reach
    checks: list  # (input by number, classes, ignore_index): what a loss asks of its targets
    extents_from: list  # (name, input by number, axis, by what that is more: a number, names)
    nodes: list = field(default_factory=list)

    @property
    def outside(self):
        """The graph's tensors that its own nodes read."""
        inside = set(self.nodes)
        return list(dict.fromkeys(s for n in self.nodes for s in n.all_input_nodes
                                  if s not in inside and isinstance(s.meta["val"], torch.Tensor)))


    def original(self):
        """Its nodes as a GraphModule: from the tensors of `outside` to a tuple of the results."""
        graph = torch.fx.Graph()
        copies = {node: graph.placeholder(node.name) for node in self.outside}
        for node in self.nodes:
            copies[node] = graph.node_copy(
                node, lambda n: copies[n] if n in copies else hint_of(n.meta["val"]))
        graph.output(tuple(copies[node] for node in self.results))
        return torch.fx.GraphModule({}, graph)


class _Supported(OperatorSupportBase):
    def __init__(self, refused, epoch):
        self.refused, self.epoch = refused, epoch

    def is_node_supported(self, submodules, node):
        return (node.op == "call_function" and node not in self.refused
                and node.target in TABLE and node.meta["epoch"] == self.epoch)


def find(graph_module, judge=None):
    """(blocks, reasons): regions as Blocks, and {node: why it stays with PyTorch}. `judge`: from a
    Block to why a kernel of it would be slow, or None; heads are then left out of it, if that
    helps."""
    reasons = {}
    for node in graph_module.graph.nodes:
        if node.op == "call_function" and node.target not in TABLE:
            reasons[node] = "the language lacks it"
    for node in _beside_everything(graph_module.graph):
        reasons[node] = "beside no product and no norm"
    for node in tables(graph_module.graph):
        reasons[node] = "computed from no activation"
    for node in _shared(graph_module.graph):
        reasons[node] = "shares memory with what is written in place, or returned"
    epochs = sorted({n.meta["epoch"] for n in graph_module.graph.nodes})
    return [b for e in epochs for b in _blocks_of(graph_module, e, reasons, judge)], reasons


def _blocks_of(graph_module, epoch, reasons, judge):
    """Of the nodes of one epoch; adds to the reasons."""
    order = {n: i for i, n in enumerate(graph_module.graph.nodes)}
    while True:
        partitions = CapabilityBasedPartitioner(
            graph_module, _Supported(reasons, epoch), allows_single_node_partition=True
        ).propose_partitions()
        blocks, again = [], False
        for partition in partitions:
            nodes = sorted(partition.nodes, key=order.__getitem__)
            if not any(map(is_worth, nodes)):
                for n in nodes:
                    reasons.setdefault(n, "beside no product and no norm")
                continue
            try:
                blocks.append(block_of(nodes))
            except Refused as refused:
                reasons[refused.node] = refused.why
                again = True
                continue
            why = judge(blocks[-1]) if judge else None
            if why:
                cuts = _cuts_of_heads(nodes)
                reasons |= dict.fromkeys(cuts, f"with the heads after it a kernel is slow: {why}") \
                    if cuts else dict.fromkeys(nodes, f"a kernel of its region is slow: {why}")
                again = True
        if not again:
            return blocks


def _beside_everything(graph):
    """Nodes that could be said, and that no chain of such nodes leads from or to what is worth
    it."""
    known = {n for n in graph.nodes if n.op == "call_function" and n.target in TABLE}
    reached, todo = set(), [n for n in known if is_worth(n)]
    while todo:
        node = todo.pop()
        if node in reached:
            continue
        reached.add(node)
        todo += [n for n in (*node.all_input_nodes, *node.users) if n in known]
    return known - reached


def _shared(graph):
    """Nodes whose memory is written to in place under any name; and views that are returned, which
    the caller may write to."""
    root = roots(graph)
    (output,) = [n for n in graph.nodes if n.op == "output"]
    views = {n for n in output.all_input_nodes if root[n] is not n}
    return {n for n in in_written_memory(graph) | views if n.op == "call_function"}


def tables(graph):
    """Nodes that no product, norm or embedding and nothing with a gradient leads to, like tables of
    positions."""
    alive, made = set(), set()
    for node in graph.nodes:
        if node.op == "placeholder" and node.meta.get("learned"):
            alive.add(node)
        if node.op != "call_function":
            continue
        if is_worth(node) or node.target is aten.embedding.default \
                or alive & set(node.all_input_nodes):
            alive.add(node)
        else:
            made.add(node)
    return made


def _cuts_of_heads(nodes):
    """Views that make two axes of a product's last one."""
    inside = set(nodes)
    return [n for n in nodes if n.target in (aten.view.default, aten.reshape.default,
                                             aten.unflatten.int)
            and n.args[0] in inside
            and n.meta["val"].dim() > n.args[0].meta["val"].dim()]


class Refused(Exception):
    def __init__(self, node, why):
        super().__init__(f"{node}: {why}")
        self.node, self.why = node, why


def block_of(nodes):
    """The Block of these nodes. Raises Refused for the first that cannot be said."""
    region, inside = Region(TABLE, OF_COMPLEX), set(nodes)
    for node in nodes:
        for source in node.all_input_nodes:
            if source in inside or source in region.of:
                continue
            value = source.meta["val"]
            if isinstance(value, torch.SymInt):
                continue
            if not isinstance(value, torch.Tensor):
                raise Refused(node, "a number that is known only when it runs")
            if value.is_complex():
                region.of[source] = Complex(*(
                    region.text.param([fresh_axis(s) for s in value.shape],
                                      value.real.dtype, Source(source, part=part))
                    for part in (0, 1)))
                continue
            region.of[source] = region.text.param([fresh_axis(s) for s in value.shape],
                                                  value.dtype, Source(source))
        try:
            region.translate(node)
        except Untranslatable as why:
            raise Refused(node, str(why)) from None
    results = [n for n in nodes if any(u not in inside for u in n.users)]
    values = []
    for node in results:
        value = region.of[node]
        if not isinstance(value, Value):
            raise Refused(node, "several tensors at once leave the region")
        if value.origin.source is not None:
            raise Refused(node, "another view of what PyTorch has")
        values.append(region.written(value))
    made = _rendered(region, nodes, results, values)
    made.depends = _dependences(made)
    _require_right(made, region)
    return made


def _dependences(block):
    """Of each result, the inputs that its gradient reaches: not through detach."""
    reached = {}
    for i, source in enumerate(block.inputs):
        reached.setdefault(source.node, set()).add(i)
    for node in block.nodes:
        cut = node.target is aten.detach.default
        reached[node] = set() if cut else set().union(
            *(reached.get(n, set()) for n in node.all_input_nodes))
    return [reached[node] for node in block.results]


def _require_right(block, region):
    """Raises Refused for the node whose line the library does not accept."""
    try:
        native.rewrite(block.text)
    except CodaError as error:
        lines = [int(n) for n in re.findall(r"^text:(\d+):", str(error), re.M)]
        nodes = [region.text.lines[n - 4] for n in lines if 0 <= n - 4 < len(region.text.lines)]
        at = next((n for n in nodes if n is not None), block.nodes[-1])
        raise Refused(at, f"its text was refused ({str(error).splitlines()[0]})") from None


def _rendered(region, nodes, results, values):
    text = region.text
    rows = text.row_factors()
    declared, strides = [], []
    for node, value in zip(results, values):
        meta = node.meta["val"]
        if len(value.axes) != meta.dim():
            raise Refused(node, f"internal: {len(value.axes)} axes for {tuple(meta.shape)}")
        order = sorted(range(meta.dim()), key=lambda a: (-hint_of(meta.stride(a)), a))
        axes = [resolved(value.axes[a]) for a in order]
        flat = [f for axis in axes for f in axis]
        dims = grouped(axes, rows)
        if [f for d in dims for f in d] != flat:  # it lies otherwise
            dims = [axis for axis in axes if axis]
        declared.append(dims)
        strides.append(order)
    try:
        rendered, names = text.render("region", list(zip(values, declared)))
        text.lines += results  # the lines that name the results
    except Exception as error:
        raise Refused(nodes[-1], f"no text: {error}") from error

    def binding(axes, dims):
        factors = [f for axis in axes for f in resolved(axis)]
        target = [f for d in dims for f in resolved(d)]
        static = lambda f: f.extent if isinstance(f.extent, int) else None
        return Binding([[static(f) for f in resolved(axis)] for axis in axes],
                       [factors.index(f) for f in target], [names.get(f) for f in factors])
    params = [binding(p.axes, p.dims()) for p in text.params]
    return Block(rendered, [p.source for p in text.params], results, params,
                 [binding(v.axes, d) for v, d in zip(values, declared)],
                 {name: f.extent for f, name in names.items()}, strides, [],
                 [(text.params.index(target), classes, ignored)
                  for target, classes, ignored in text.checks if target in text.params],
                 _extents_from(params, nodes[-1]), nodes)


def _extents_from(params, node):
    """Where each extent that is known only when it runs comes from, in an order in which each
    needs only those before it."""
    todo = [(i, *each) for i, binding in enumerate(params) for each in binding.unknown()]
    found = {}
    while todo:
        left = []
        for each in todo:
            index, axis, names, known = each
            new = [n for n in names if n not in found]
            if len(new) == 1 and names.count(new[0]) == 1:
                others = tuple(n for n in names if n != new[0])
                found[new[0]] = (new[0], index, axis, known, others)
            elif new:
                left.append(each)
        if len(left) == len(todo):
            raise Refused(node, "sizes that no axis of what it is given tells apart")
        todo = left
    return list(found.values())
