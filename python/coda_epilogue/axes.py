"""Named dimensions for the axes of a graph's tensors.

A factor is an extent with a name of its own. An axis of a tensor is a product of factors, the
outermost first; an axis of extent 1 has none. Operators say which axes are the same, and factors
are then joined, or split where one axis is another's product: [2048] against [16, 128].
"""

from itertools import count

import torch


class Mismatch(Exception):
    """Axes that cannot be the same."""


def extent_of(size):
    """A size as an int, or as a sympy expression where it is symbolic."""
    if isinstance(size, torch.SymInt):
        known = size.node.maybe_as_int()
        return size.node.expr if known is None else known
    return size


def hint_of(size):
    """A size as an int: where it is symbolic, the one that it was traced with."""
    known = extent_of(size)
    return known if isinstance(known, int) else int(size.node.hint)


class Factor:
    """Joined with others or split into a product: resolve() says what it is now. `whole`: what it
    is a piece of; `part`, how some are written: ("half", whole), ("rest", whole, taken) or, of
    neighbours that are pairs, ("2", None)."""

    __slots__ = ("extent", "part", "whole", "age", "_is")
    _made = count()

    def __init__(self, extent, part=None, whole=None):
        self.extent, self.part, self.whole = extent, part, whole
        self.age, self._is = next(Factor._made), None

    def resolve(self):
        """The factors, outermost first, that this one is a product of."""
        if self._is is None:
            return [self]
        self._is = resolved(self._is)
        return self._is

    def become(self, factors):
        self._is = list(factors)


def resolved(factors):
    return [g for f in factors for g in f.resolve()]


def product(factors):
    extent = 1
    for factor in factors:
        extent = extent * factor.extent
    return extent


def fresh_axis(size):
    """An axis of that size, of one new factor."""
    extent = extent_of(size)
    return [] if extent == 1 else [Factor(extent)]


def same(left, right):
    return resolved(left) == resolved(right)


def quotient(large, small):
    """None if it is no whole number, or is not known to be one."""
    if isinstance(small, int) and isinstance(large, int):
        return large // small if small and large % small == 0 else None
    exact = large / small
    return exact if exact.is_integer else None


def _split_outer(factor, outer):
    """Splits a factor into `outer` and a new inner one."""
    if factor.part:
        raise Mismatch("a piece of a split dimension is factored")
    factor.become([outer, Factor(quotient(factor.extent, outer.extent))])


class Axes:
    """The types of all tensors of a region. Factors are joined only where no type would then hold
    one twice."""

    def __init__(self):
        self._types = []  # of each tensor, its axes

    def add(self, axes):
        self._types.append(axes)

    def _may_join(self, a, b):
        """No type may then hold a factor twice, or a factor and a piece of it."""
        wholes = [w for f in (a, b) if f.whole for w in f.whole.resolve()]
        for axes in self._types:
            held = {f for axis in axes for f in resolved(axis)}
            if {a, b} <= held or (held & {a, b} and held & set(wholes)):
                return False
        return True

    def _join(self, a, b):
        """False where some tensor has both, or both are pieces."""
        if (a.part and b.part) or not self._may_join(a, b):
            return False
        # The older one stays: what was said of it holds on.
        if b.part or (not a.part and b.age < a.age):
            a, b = b, a
        a.whole = a.whole or b.whole
        b.become([a])
        return True

    def match(self, left, right):
        """Makes two axes the same. Returns the pairs (a, b) of factors that are equal in extent
        but must keep two names."""
        apart = []
        left, right = resolved(left), resolved(right)
        while left and right:
            a, b = left[0], right[0]
            if a is b or a.extent == b.extent:
                if a is not b and not self._join(a, b):
                    apart.append((a, b))
                left, right = left[1:], right[1:]
            elif quotient(a.extent, b.extent) is not None:
                _split_outer(a, b)
                left = resolved(left)
            elif quotient(b.extent, a.extent) is not None:
                _split_outer(b, a)
                right = resolved(right)
            else:
                raise Mismatch(f"axes of {a.extent} and {b.extent}")
        if left or right:
            raise Mismatch("axes of different extents")
        return apart

    def halved(self, factors):
        """The same factors, the last of them 2; None where that cannot be."""
        *outer, last = resolved(factors)
        half = quotient(last.extent, 2)
        if last.part or half is None or half == 1:
            return None
        last.become([Factor(half), Factor(2)])
        return outer + resolved([last])

    def regroup(self, factors, sizes):
        """The same factors, in order, as axes of these sizes."""
        left, axes = resolved(factors), []
        for size in map(extent_of, sizes):
            axis = []
            while product(axis) != size:
                if not left:
                    raise Mismatch(f"an axis of {size} that is no product of the input's axes")
                wanted = quotient(size, product(axis))
                if wanted is not None and wanted != left[0].extent \
                        and quotient(left[0].extent, wanted) is not None:
                    _split_outer(left[0], Factor(wanted))
                    left = resolved(left)
                axis.append(left.pop(0))
            axes.append(axis)
        if left:
            raise Mismatch("an axis is left over")
        return axes
