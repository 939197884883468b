"""What became of a graph: which operators are in which schedule, which stay with PyTorch and why,
and the bytes that this saves."""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import torch

from . import measure, native

_KEPT = 64  # graphs


@dataclass
class Region:
    """Regions of one text. `layers`: how many the graph has."""

    function: object  # blocks.RegionFunction
    layers: int

    @property
    def block(self):
        return self.function.block

    def explained(self):
        """The kernels, the statements in each, bytes and flops: what `coda explain` says."""
        function = self.function
        wrt = tuple(n for n, needed in zip(function.params, function.needs) if needed)
        return native.explain(self.block.text, "", function.nominal_sizes, bool(wrt),
                              function.expected, wrt)

    @property
    def operators(self):
        return Counter(str(n.target).split(".")[1] for n in self.block.nodes
                       if isinstance(n.target, torch._ops.OpOverload))


@dataclass
class Graph:
    """Of one compiled graph. `left`: {node's name: (operator, why)}."""

    nodes: int
    functions: list
    left: dict
    stored: tuple = ()  # shapes of what is returned beside the loss, like logits

    @cached_property
    def regions(self):
        texts = Counter(f.text for f in self.functions)
        first = {f.text: f for f in reversed(self.functions)}
        return [Region(first[t], n) for t, n in texts.items()]

    @property
    def blocks(self):
        return [f.block for f in self.functions]

    @property
    def fused(self):
        return sum(len(b.nodes) for b in self.blocks)

    def __str__(self):
        lines = [f"{self.fused} of {self.nodes} operators in {len(self.blocks)} regions, "
                 f"{len(self.regions)} of them different"]
        why = Counter((operator, reason) for operator, reason in self.left.values())
        lines += [f"  left: {count} x {operator}: {reason}"
                  for (operator, reason), count in why.most_common()]
        lines += [f"  the graph returns a tensor of shape {shape} beside the loss: a model that "
                  "returns the loss alone never stores it" for shape in self.stored]
        return "\n".join(lines)

    def explain(self):
        """The same, then each different region: its operators, its kernels forward and backward,
        and the bytes they move beside those of the unfused sequence."""
        lines = [str(self)]
        total = unfused = 0
        for number, region in enumerate(self.regions):
            found = region.explained()
            bytes_of = lambda cost: cost["bytes_read"] + cost["bytes_written"]
            ours, theirs = (bytes_of(found["ledger"][k]) for k in ("total", "unfused"))
            total, unfused = total + region.layers * ours, unfused + region.layers * theirs
            operators = ", ".join(f"{n} {o}" for o, n in region.operators.most_common())
            lines += ["", f"region {number}, {region.layers} times: {operators}",
                      f"  {ours / 2**20:.1f} MiB moved, unfused {theirs / 2**20:.1f}"]
            if region.block.text in measure.KNOWN:
                lines.append(f"  {measure.KNOWN[region.block.text]}")
            lines += [f"  {k['phase']:8s} {k['kind']:6s} {k['name']}" for k in found["kernels"]]
        lines.append(f"all regions: {total / 2**20:.1f} MiB moved, unfused {unfused / 2**20:.1f}")
        return "\n".join(lines)


GRAPHS = []


def explain():
    """What became of every graph that backend "coda" has compiled in this process."""
    if not GRAPHS:
        return 'no graph was compiled yet: run a model under torch.compile(backend="coda") first'
    return "\n\n".join(g.explain() for g in GRAPHS)


def add(graph_module, functions, reasons, quiet):
    """`quiet`: nodes that are returned beside a loss."""
    calls = [n for n in graph_module.graph.nodes if n.op == "call_function"]
    blocks = [f.block for f in functions]
    inside = {n for b in blocks for n in b.nodes}
    left = {n.name: (str(n.target), reasons.get(n, "outside all regions"))
            for n in calls if n not in inside}
    shapes = tuple(tuple(n.meta["val"].shape) for n in quiet)
    GRAPHS.append(Graph(len(calls), functions, left, shapes))
    del GRAPHS[:-_KEPT]
