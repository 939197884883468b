"""What became of a graph: which nodes are in which schedule, which stay with PyTorch, and why."""

from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True)
class Graph:
    """Of one compiled graph. `blocks`: regions.Block; `left`: {node's name: (operator, why)}."""

    nodes: int
    blocks: list
    left: dict

    @property
    def fused(self):
        return sum(len(b.nodes) for b in self.blocks)

    def __str__(self):
        texts = Counter(b.text for b in self.blocks)
        lines = [f"{self.fused} of {self.nodes} operators in {len(self.blocks)} regions, "
                 f"{len(texts)} of them different"]
        why = Counter((operator, reason) for operator, reason in self.left.values())
        lines += [f"  left: {count} x {operator}: {reason}"
                  for (operator, reason), count in why.most_common()]
        return "\n".join(lines)


GRAPHS = []


def add(graph_module, blocks, reasons):
    calls = [n for n in graph_module.graph.nodes if n.op == "call_function"]
    inside = {n for b in blocks for n in b.nodes}
    left = {n.name: (str(n.target), reasons.get(n, "outside all regions"))
            for n in calls if n not in inside}
    GRAPHS.append(Graph(len(calls), blocks, left))
