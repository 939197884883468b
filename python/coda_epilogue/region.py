"""A region while it is translated: what operators.py says its operators with.

Elementwise work with broadcasting, views, splits and joins along the last axis, products and
reductions: each names the axes that must be the same, and writes a statement.
"""

from dataclasses import dataclass

import torch
import torch.utils._pytree as pytree

from .axes import Factor, Mismatch, product, resolved, same
from .region_text import Joined, Statement, Text, Value, like

aten = torch.ops.aten
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class Untranslatable(Exception):
    """Why a node cannot be said in the language."""


@dataclass(eq=False)
class Source:
    """What a parameter stands for: a node's tensor, `size` elements of its last axis, or the real
    (0) or imaginary (1) `part` of a complex one."""

    node: object
    start: int = 0
    size: int = None
    part: int = None

    def of(self, tensor):
        if self.part is not None:
            return torch.view_as_real(tensor.resolve_conj()).select(-1, self.part).contiguous()
        return tensor if self.size is None else tensor.narrow(-1, self.start, self.size)


@dataclass(eq=False)
class Complex:
    """A complex tensor as two Values."""

    real: Value
    imag: Value

    def each(self, function):
        return Complex(function(self.real), function(self.imag))


# Through these, equal halves stay equal, where all other operands are numbers.
_POINTWISE = {aten.cos.default, aten.sin.default, aten.mul.Tensor, aten.add.Tensor, aten.to.dtype,
              aten._to_copy.default, aten.unsqueeze.default, aten.contiguous.default,
              aten.detach.default, aten.to.device}


def halves_are_equal(node, epoch):
    """Whether the last axis of a tensor is the same twice: cat((x, x), -1) and maps of it, with
    nothing written since."""
    while node.target in _POINTWISE and len(node.all_input_nodes) == 1:
        if node.target is aten.unsqueeze.default and node.args[1] in (-1, node.meta["val"].dim()):
            return False
        if node.meta["epoch"] != epoch:
            return False
        (node,) = node.all_input_nodes
    return (node.target is aten.cat.default and len(node.args[0]) == 2
            and node.meta["epoch"] == epoch
            and node.args[0][0] is node.args[0][1]
            and (node.args[1] if len(node.args) > 1 else 0) in (-1, node.meta["val"].dim() - 1))


class Region:
    """Translates nodes in order; `of` maps a node to its Value. `table`: from targets to functions
    of the Region and the node's arguments, where tensors are Values."""

    def __init__(self, table, of_complex=()):
        """`of_complex`: those of the table that take Complex."""
        self.complex = of_complex
        self.table, self.text, self.of, self.node = table, Text(), {}, None
        self._splits, self._written = {}, {}
        self._pairs = []  # (factor, the one of 2 inside it): axes whose neighbours are pairs

    def translate(self, node):
        self.node = self.text.node = node
        known = lambda n: self.of[n] if n in self.of else n.meta["val"]
        args = torch.fx.map_arg(node.args, known)
        kwargs = torch.fx.map_arg(node.kwargs, known)
        if node.target not in self.complex and any(
                isinstance(a, Complex) for a in pytree.tree_leaves((args, kwargs))):
            raise Untranslatable("complex numbers, but for products and views")
        try:
            self.of[node] = self.table[node.target](self, *args, **kwargs)
        except Mismatch as error:
            raise Untranslatable(str(error)) from None
        except TypeError as error:
            raise Untranslatable(f"arguments that its translation lacks ({error})") from None

    @property
    def meta(self):
        return self.node.meta["val"]

    # ---- elementwise

    def elementwise(self, words, *operands, dtype=None):
        """`words`: with the operands' numbers in braces, like "{0} + {1}". Operands are Values or
        numbers."""
        dtype = dtype or self.meta.dtype
        values = [o for o in operands if isinstance(o, Value)]
        joined = next((v for v in values if v.joined), None)
        if joined is not None:
            pieces = self._by_pieces(joined, words, operands, dtype)
            if pieces is not None:
                return pieces
        operands = self._aligned([self.written(o) for o in operands])
        values = [o for o in operands if isinstance(o, Value)]
        axes = self._broadcast([v.axes for v in values])
        result = self.text.say(self._filled(words, operands), axes, dtype, like(*values))
        result.made = (words, operands)
        return result

    def _filled(self, words, operands):
        filled = []
        for i, part in enumerate(words.replace("}", "{").split("{")):
            filled.append(operands[int(part)] if i % 2 else part)
        return filled

    def _aligned(self, operands):
        """Broadcast from the right; factors that are the same position become the same."""
        first = next(o for o in operands if isinstance(o, Value))
        return [self._renamed(o, first) if isinstance(o, Value) and o is not first else o
                for o in operands]

    def _match(self, first, other):
        """As Axes.match, of all axes that both have."""
        return [pair for a, b in zip(reversed(first.axes), reversed(other.axes))
                if resolved(a) and resolved(b) for pair in self.text.axes.match(a, b)]

    def _renamed(self, value, like_this):
        """The value with the other's names where both could not be joined."""
        pairs = self._match(like_this, value)
        if not pairs:
            return value
        new = {b: a for a, b in pairs}
        held = set(value.factors())
        if any(a in held for a in new.values()):
            raise Untranslatable("a tensor that would have one dimension twice")
        swap = lambda axis: [new.get(f, f) for f in resolved(axis)]
        dims = lambda: [swap(d) for d in value.dims()]
        return self.text.say([value, " as [", dims, "]"], [swap(a) for a in value.axes],
                             value.dtype, dims)

    @staticmethod
    def _broadcast(all_axes):
        rank = max(map(len, all_axes))
        made = []
        for position in range(rank):
            axis = []
            for axes in all_axes:
                at = position - (rank - len(axes))
                if at >= 0 and resolved(axes[at]):
                    axis = axes[at]
                    break
            made.append(axis)
        return made

    def _by_pieces(self, joined, words, operands, dtype):
        """Piece by piece, where every operand is whole or falls into the same pieces."""
        last = lambda pieces: [resolved(p.axes[-1]) for p in pieces]
        whole, cuts = joined.joined.whole, last(joined.joined.pieces)
        per_operand = []
        for operand in operands:
            if isinstance(operand, Value) and operand.joined:
                other = operand.joined
                if not same([other.whole], [whole]) or last(other.pieces) != cuts:
                    return None
                per_operand.append(other.pieces)
            elif isinstance(operand, Value) and operand.axes and resolved(operand.axes[-1]):
                self._match(joined, operand)
                if whole.resolve()[0] not in operand.factors():
                    return None
                per_operand.append(self.split(operand, whole, cuts))
            else:
                per_operand.append([operand] * len(cuts))
        pieces = [self.elementwise(words, *each, dtype=dtype) for each in zip(*per_operand)]
        axes = self._broadcast([o.axes for o in operands if isinstance(o, Value)])
        return self.join(whole, pieces, axes, dtype)

    # ---- layout

    def written(self, value):
        """The value with its pieces joined by a statement."""
        if not isinstance(value, Value) or not value.joined:
            return value
        if value in self._written:
            return self._written[value]
        whole, pieces = value.joined.whole, [self.written(p) for p in value.joined.pieces]
        words = ["join(", [whole], ": ", *_with_commas(pieces), ")"]
        first = pieces[0]
        swapped = resolved(first.axes[-1])

        def dims():
            if not swapped:  # pairs, innermost
                *outer, last = first.dims()
                return [*outer, last + [whole]]
            out = []
            for dim in first.dims():
                flat = resolved(dim)
                at = next((i for i in range(len(flat))
                           if flat[i:i + len(swapped)] == swapped), None)
                out.append(flat if at is None
                           else flat[:at] + [whole] + flat[at + len(swapped):])
            return out
        self._written[value] = self.text.say(words, value.axes, value.dtype, dims)
        return self._written[value]

    def join(self, whole, pieces, axes, dtype):
        made = self.text.value(axes, dtype, None)
        made.joined = Joined(whole, pieces)
        return made

    def split(self, value, whole, pieces):
        """Values of the pieces (lists of factors) of a factor of the value's last axis. What is
        elementwise is split before it is computed: a rotation's halves are then whole."""
        value = self.written(value)
        origin, (factor,) = value.origin, resolved([whole])
        if value.made:
            words, operands = value.made
            parts = [self.split(o, whole, pieces)
                     if isinstance(o, Value) and factor in o.factors() else [o] * len(pieces)
                     for o in operands]
            return [self.elementwise(words, *each, dtype=value.dtype) for each in zip(*parts)]
        swapped = lambda groups, piece: [
            [g for f in resolved(group) for g in (piece if f is factor else [f])]
            for group in groups]
        key = (origin, tuple(tuple(p) for p in pieces))
        if key not in self._splits and origin.source is not None \
                and resolved(origin.axes[-1]) == [factor]:
            self._splits[key] = self._cut_params(origin, pieces, swapped)
        if key not in self._splits:
            self._splits[key] = [
                self.text.value(swapped(origin.axes, piece), value.dtype,
                                lambda piece=piece: swapped(origin.dims(), piece))
                for piece in pieces]
            words = ["split(", origin, ", ", [factor], ": ", *_with_commas(pieces), ")"]
            self.text.statements.append(Statement(self._splits[key], words, self.node))
        return [self.view_of(made, swapped(value.axes, piece))
                for made, piece in zip(self._splits[key], pieces)]

    def _cut_params(self, param, pieces, swapped):
        """Pieces of a parameter are parameters: views that cost nothing. A table whose halves are
        equal is one."""
        sizes, start = [product(piece) for piece in pieces], param.source.start
        if len(sizes) == 2 and sizes[0] == sizes[1] and param.source.size is None \
                and halves_are_equal(param.source.node, self.node.meta["epoch"]):
            first = self.text.param(swapped(param.axes, pieces[0]), param.dtype,
                                    Source(param.source.node, 0, sizes[0]))
            return [first, first]
        made = []
        for piece, size in zip(pieces, sizes):
            made.append(self.text.param(swapped(param.axes, piece), param.dtype,
                                        Source(param.source.node, start, size)))
            start += size
        return made

    def pairs(self, value):
        """The even and the odd elements along the last axis, or where that is one of 2 its two
        elements, as Values without that axis or with half of it."""
        last = resolved(value.axes[-1])
        if last and last[-1].extent != 2:
            (last,) = self.text.axes.regroup(last, [product(last)])
            halves = self.text.axes.halved(last)
            if halves is None:
                raise Untranslatable("pairs along an axis that is odd, or in pieces")
            last = halves
        if not last:
            raise Untranslatable("pairs along an axis of 1")
        *outer, two = last
        two.part = ("2", None)
        if outer:
            self._pairs.append((outer[-1], two))
        elif len(value.axes) > 1 and resolved(value.axes[-2]):
            self._pairs.append((resolved(value.axes[-2])[-1], two))
        else:
            raise Untranslatable("pairs of nothing")
        even, odd = self.split(value, two, [[], []])
        axes = value.axes[:-1] + ([outer] if outer else [])
        return self.view_of(even, axes), self.view_of(odd, axes)

    def paired(self, even, odd):
        """The inverse: with a last axis of 2."""
        if not even.axes or not resolved(even.axes[-1]) or even.dtype != odd.dtype:
            raise Untranslatable("pairs of different tensors")
        if self._match(even, odd):
            raise Untranslatable("pairs of different tensors")
        inner = resolved(even.axes[-1])[-1]
        two = next((t for f, t in self._pairs if resolved([f])[-1] is inner), None)
        if two is None:
            raise Untranslatable("pairs of what were no pairs")
        pieces = [self.view_of(self.written(p), p.axes + [[]]) for p in (even, odd)]
        return self.join(two, pieces, even.axes + [[two]], even.dtype)

    def view_of(self, value, axes):
        made = self.text.value(axes, value.dtype, value.dims)
        made.alias = value
        return made

    def cut(self, value, sizes):
        """The last axis of a value in pieces of these sizes, as new factors."""
        last = resolved(value.axes[-1])
        if len(last) != 1:
            raise Untranslatable("a split of an axis that is a product")
        (whole,) = last
        if sum(sizes) != whole.extent:
            raise Untranslatable("a split that leaves something out")
        known = self._cuts(whole).get(tuple(sizes))
        if known is None:
            known = self._pieces(whole, sizes)
            self._cuts(whole)[tuple(sizes)] = known
        return self.split(value, whole, known)

    def _cuts(self, whole):
        return self._splits.setdefault(whole, {})

    @staticmethod
    def _pieces(whole, sizes):
        if len(sizes) == 2 and sizes[0] == sizes[1]:
            half = Factor(sizes[0], ("half", whole), whole)
            return [[half], [half]]
        pieces = [[Factor(s, None, whole)] for s in sizes]
        if len(sizes) == 2:
            pieces[1] = [Factor(sizes[1], ("rest", whole, pieces[0][0]), whole)]
        return pieces

    # ---- products and reductions

    def product(self, left, right, left_axis, right_axis, axes, dtype):
        """Contracts an axis of each; `axes` of the result."""
        left, right = self.written(left), self.written(right)
        if self.text.axes.match(left.axes[left_axis], right.axes[right_axis]):
            raise Untranslatable("a product over a dimension that one operand has twice")
        gone = resolved(left.axes[left_axis])
        if not gone:
            raise Untranslatable("a product over an axis of 1")
        stays = [f for f in left.factors() if f not in gone]
        if set(stays) & {f for f in right.factors() if f not in gone}:
            raise Untranslatable("a product of matrices one by one")
        if not stays:
            raise Untranslatable("a product of vectors")
        self.text.rows += stays
        keep = lambda v: [[f for f in resolved(d) if f not in resolved(gone)] for d in v.dims()]
        dims = lambda: [d for d in keep(left) + keep(right) if d]
        words = [left, " @[", _listed(gone), "] ", right]
        return self.text.say(words, axes, dtype, dims)

    def reduced(self, name, value, keepdim, dtype, over=(-1,)):
        """Over the last axis."""
        if list(over) not in ([-1], [len(value.axes) - 1]) or value.dtype not in FLOATS:
            raise Untranslatable("a reduction over another axis than the last")
        value = self.written(value)
        gone = resolved(value.axes[-1])
        if not gone:
            raise Untranslatable("a reduction over an axis of 1")
        dims = lambda: [d for d in ([f for f in resolved(d) if f not in resolved(gone)]
                                    for d in value.dims()) if d]
        axes = value.axes[:-1] + ([[]] if keepdim else [])
        return self.text.say([f"{name}(", value, ", ", gone, ")"], axes, dtype, dims)

    def mean(self, value, keepdim, over, dtype):
        total = self.reduced("sum", value, keepdim, dtype, over)
        sizes = [w for f in resolved(value.axes[-1]) for w in (" / size(", [f], ")")]
        return self.text.say([total, *sizes], total.axes, dtype, total.dims)


def _with_commas(words):
    return [w for word in words for w in (", ", word)][1:]


def _listed(factors):
    """As names in a bracket: @[H, E]."""
    return lambda: [[f] for f in resolved(factors)]
