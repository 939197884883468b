"""A region of a graph as the text of a CODA block: values, statements, and what they are called.

Names follow from the order of the statements alone, so that equal regions give equal texts, and
identical layers are compiled once.
"""

from dataclasses import dataclass, field

from .axes import Axes, Mismatch, resolved
from .native import NAMES


@dataclass(eq=False)
class Value:
    """A tensor of the region. `axes`: of the graph's tensor, each a product of factors; `dims`: a
    function without arguments that gives those of the CODA value, called when all factors are
    known."""

    axes: list
    dtype: object
    dims: object
    name: str = ""
    joined: object = None  # Joined: not written yet
    alias: object = None  # the Value that this is another view of
    made: tuple = ()  # of an elementwise result: the words and the operands
    source: object = None  # of a parameter: what it stands for

    @property
    def origin(self):
        return self.alias.origin if self.alias else self

    def factors(self):
        return [f for axis in self.axes for f in resolved(axis)]


@dataclass(eq=False)
class Joined:
    """A value as its pieces along one factor: elementwise operators go on with the pieces, so that
    a rotation is written as two halves."""

    whole: object  # the factor
    pieces: list  # Values


@dataclass(eq=False)
class Statement:
    """`values` = `words`: strings, numbers, Values, lists of factors and functions that give
    dims."""

    values: list
    words: list = field(default_factory=list)
    node: object = None  # of the graph


def like(*operands):
    """The dims of an elementwise result."""
    def dims():
        made = operands[0].dims()
        for other in operands[1:]:
            theirs = other.dims()
            held = {f for d in made for f in resolved(d)}
            new = {f for d in theirs for f in resolved(d)}
            if new >= held:
                made = theirs
            elif not new <= held:
                made = made + [d for d in theirs if not set(resolved(d)) & held]
        return made
    return dims


class Text:
    """What region.py writes into."""

    def __init__(self):
        self.axes = Axes()
        self.params, self.statements = [], []
        self.rows = []  # factors of the left operands of products that stay
        self.checks = []  # (target, classes, ignore_index): what a loss asks of its targets
        self.node, self.lines = None, []  # the graph's: of the statements that follow

    def value(self, axes, dtype, dims):
        made = Value(axes, dtype, dims)
        self.axes.add(axes)
        return made

    def param(self, axes, dtype, source):
        made = self.value(axes, dtype, None)
        made.dims, made.source = lambda: self.param_dims(made), source
        self.params.append(made)
        return made

    def say(self, words, axes, dtype, dims):
        """A statement of one value."""
        made = self.value(axes, dtype, dims)
        self.statements.append(Statement([made], words, self.node))
        return made

    # ---- types

    def row_factors(self):
        rows = resolved(self.rows)
        if not rows and self.params:
            rows = [f for p in self.params for axis in p.axes[:-1] for f in resolved(axis)]
        return set(rows)

    def param_dims(self, param):
        """Rows as one dimension, then the columns as one; of a weight each axis."""
        rows = self.row_factors()
        return grouped(param.axes, rows)

    # ---- rendering

    def render(self, name, results):
        """`results`: (Value, dims) pairs. Returns the text and {factor: name}; drops parameters
        that nothing needs. `lines` are then the graph's nodes of the lines after the head."""
        names = Names()
        count = 0
        results = [(value.origin, value.dtype, dims) for value, dims in results]
        needed = self._needed([value for value, _, _ in results])
        self.params = [p for p in self.params if p in needed]
        for index, param in enumerate(self.params):
            param.name = f"p{index}"
        lines, nodes = [], []
        head = ", ".join(f"{p.name}: {names.type(p.dtype, p.dims())}" for p in self.params)
        for statement in self.statements:
            if statement not in needed:
                continue
            for value in statement.values:
                value.name = f"v{count}" if value in needed else "_"
                count += value in needed
            left = ", ".join(v.name for v in statement.values)
            lines.append(f"  {left} = {''.join(map(names.word, statement.words))}")
            nodes.append(statement.node)
        tail = ", ".join(f"r{i}: {names.type(dtype, dims)}"
                         for i, (_, dtype, dims) in enumerate(results))
        lines += [f"  r{i} = {value.name}" for i, (value, _, _) in enumerate(results)]
        text = f"coda 1\n\nblock {name}({head}) -> ({tail}) {{\n" + "\n".join(lines) + "\n}\n"
        self.lines = nodes
        return text, names.known

    def _needed(self, wanted):
        """Values and statements that the wanted values need."""
        needed = set(wanted)
        for statement in reversed(self.statements):
            if any(value in needed for value in statement.values):
                needed.add(statement)
                needed.update(w.origin for w in statement.words if isinstance(w, Value))
        return needed


def grouped(axes, rows):
    """Axes as dims: all row factors in one, all others in one; without row factors, each axis."""
    factors = [f for axis in axes for f in resolved(axis)]
    inner = [f for f in factors if f not in rows]
    outer = [f for f in factors if f in rows]
    if not outer:
        return [axis for axis in map(resolved, axes) if axis]
    return [outer] + ([inner] if inner else [])


class Names:
    """Names for factors, in the order in which a text mentions them."""

    def __init__(self):
        self.known = {}

    def factor(self, factor):
        if factor.part:
            kind, whole, *taken = factor.part
            if whole is None:
                return kind
            outer = self.product([whole])
            if " " in outer:
                outer = f"({outer})"
            return f"{outer}/2" if kind == "half" else f"{outer} - {self.product(taken)}"
        if factor not in self.known:
            self.known[factor] = f"D{len(self.known)}"
        return self.known[factor]

    def product(self, factors):
        factors = resolved(factors)
        if len(factors) < 2:
            return self.factor(factors[0]) if factors else "1"
        return "*".join(f"({t})" if set(" /") & set(t) else t for t in map(self.factor, factors))

    def type(self, dtype, dims):
        if dtype not in NAMES:
            raise Mismatch(f"a tensor of {dtype}")
        return NAMES[dtype] + (f"[{', '.join(map(self.product, dims))}]" if dims else "")

    def word(self, word):
        if isinstance(word, Value):
            return word.origin.name
        if isinstance(word, list):  # factors
            return self.product(word)
        if callable(word):  # dims
            return ", ".join(map(self.product, word()))
        if isinstance(word, bool):
            return "true" if word else "false"
        return word if isinstance(word, str) else number(word)


def number(value):
    text = repr(value)
    return f"({text})" if text.startswith("-") else text
