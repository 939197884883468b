"""op(text): a CODA program or block as a differentiable function of tensors."""

import re
from functools import lru_cache
from itertools import count

import torch

from . import native
from .blocks import BlockFunction
from .errors import ProgramError

_LIBRARY = torch.library.Library("coda_epilogue", "FRAGMENT")
_numbers = count()


def op(text, name="", dtype=None, sizes=None):
    """The program or block `name` of a text (its last one, if not given) as a function.

    It takes tensors in the order of the declaration or by name, and Python numbers for scalars, on
    the CPU or a CUDA device, of any strides; a dimension that is a product, like `B*S`, comes as
    one axis or as one for each factor. It returns the results, a tuple if there are several.
    Gradients are derived from the text, once: a second derivative raises. `dtype` takes the place
    of the text's bf16 (torch.float64 for gradcheck). `sizes`: extents of names that no tensor
    tells, {"E": 8}. Inside torch.compile it is one operator of the graph.

    Raises ProgramError, with the line of the text, where it is not in the language or the tensors
    do not fit, Unsupported where the device lacks something.
    """
    if not isinstance(text, str):
        raise ProgramError(f"the text is {text!r}\n  fix: give a string, a program or block")
    if dtype is not None and dtype not in native.NAMES:
        raise ProgramError(f"the dtype is {dtype!r}\n  fix: give torch.bfloat16, float16, float32 "
                           "or float64")
    return Op.of(text, name, dtype, sizes=sizes)


class Op:
    """What op() gives."""

    @staticmethod
    def of(text, name="", dtype=None, memory=None, sizes=None):
        return Op(*native.alone(text, name, dtype), memory, sizes)

    def __init__(self, text, name, memory=None, sizes=None):
        """`memory`: from the sizes by name to the bytes that forward may keep."""
        self.text, self.name = text, name
        (described,) = native.describe(text)
        self.params, self.results = described["params"], described["results"]
        self._names = [p["name"] for p in self.params]
        self._scalars = {i: native.DTYPES[p["dtype"]] for i, p in enumerate(self.params)
                         if not p["dims"]}
        accumulating = [r["name"] for r in self.results if r["accumulates"]]
        if accumulating:
            raise ProgramError(f"`{accumulating[0]}` of `{name}` adds into what it finds, which a "
                               "function cannot return\n  fix: declare it without `+`")
        self._function = _OpFunction(text, self._names, self.params, self.results, memory,
                                     sizes or {})
        # NOTE: now, as Dynamo could not trace it.
        self._registered = _register(self._function, self.name)

    def __repr__(self):
        given = ", ".join(f"{p['name']}: {p['type']}" for p in self.params)
        return f"{self.name}({given}) -> " + ", ".join(
            f"{r['name']}: {r['type']}" for r in self.results)

    def __call__(self, *args, **kwargs):
        tensors = self._tensors(args, kwargs)
        if torch.compiler.is_compiling():
            results = self._registered(*tensors)
        else:
            results = self._function(*tensors)
        return results[0] if len(results) == 1 else tuple(results)

    def _tensors(self, args, kwargs):
        """One tensor for each parameter."""
        if kwargs or len(args) != len(self._names):
            args = self._ordered(args, kwargs)
        for index, value in enumerate(args):
            if not isinstance(value, torch.Tensor) and (
                    index not in self._scalars or not isinstance(value, (int, float))):
                raise ProgramError(f"`{self._names[index]}` is {value!r}, but is declared "
                                   f"{self.params[index]['type']}\n  fix: give a tensor"
                                   + (" or a number" if index in self._scalars else ""))
        if not self._scalars:
            return args
        given = list(args)
        device = next((a.device for i, a in enumerate(given) if i not in self._scalars), "cpu")
        for index, dtype in self._scalars.items():
            if not isinstance(given[index], torch.Tensor):
                value = given[index]
                text = repr(int(value) if isinstance(value, bool) else value)
                given[index] = _number(text, dtype, device)
        return given

    def _ordered(self, args, kwargs):
        given = dict(zip(self._names, args))
        if len(args) > len(self._names):
            raise TypeError(f"{self.name} takes {len(self._names)} arguments, got {len(args)}")
        for name, value in kwargs.items():
            if name not in self._names or name in given:
                what = "twice" if name in given else "and has no such parameter"
                raise TypeError(f"{self.name} got `{name}` {what}; it is {self!r}")
            given[name] = value
        missing = [n for n in self._names if n not in given]
        if missing:
            raise TypeError(f"{self.name} lacks {', '.join(missing)}; it is {self!r}")
        return [given[n] for n in self._names]


@lru_cache(maxsize=256)
def _number(text, dtype, device):
    """Of a number's repr, which tells -0.0 from 0.0."""
    value = float(text)
    if not dtype.is_floating_point and value != int(value):
        raise ProgramError(f"{text} is no integer\n  fix: give one: the parameter is {dtype}")
    return torch.full((), value if dtype.is_floating_point else int(text), dtype=dtype,
                      device=device)


class _OpFunction(BlockFunction):
    """Sizes come from the tensors; they lie as the declaration says."""

    def __init__(self, text, names, params, results, memory, given):
        super().__init__(text, names, [r["name"] for r in results],
                         [native.DTYPES[r["dtype"]] for r in results])
        self._memory, self._given = memory, given
        self._types = params
        self._param_dims = [[Dim(d) for d in p["dims"]] for p in params]
        self._result_dims = [[Dim(d) for d in r["dims"]] for r in results]
        self._seen = {}

    def sizes_of(self, tensors):
        key = tuple((t.shape, t.dtype) for t in tensors)
        sizes = self._seen.get(key)
        if sizes is None:
            for declared, tensor in zip(self._types, tensors):
                _require(declared, tensor, tensors[0].device)
            sizes = tuple(sorted(self.bound(tensors).items()))
            if len(self._seen) > 4096:
                self._seen.clear()
            self._seen[key] = sizes
        return sizes

    def budget(self, tensors):
        if self._memory is None:
            return (), None
        sizes = self.sizes_of(tensors)
        return sizes, self._memory(dict(sizes))

    def bound(self, tensors):
        """{name: extent}; what disagrees is found by the C++ library."""
        sizes, later = dict(self._given), []
        for dims, tensor, declared in zip(self._param_dims, tensors, self._types):
            shape = list(tensor.shape)
            factors = [f for d in dims for f in d.factors]
            if len(shape) == len(dims):
                pairs = [(d, s) for d, s in zip(dims, shape)]
            elif len(shape) == len(factors):
                pairs = [(Dim(f), s) for f, s in zip(factors, shape)]
            else:
                raise ProgramError(
                    f"`{declared['name']}` has {len(shape)} axes, but is declared "
                    f"{declared['type']}\n  fix: give a tensor with one axis for each dimension, "
                    "or for each factor")
            for dim, size in pairs:
                if dim.is_name:
                    known = sizes.setdefault(dim.text, size)
                    if known != size:
                        raise ProgramError(
                            f"`{declared['name']}` is {list(shape)}, so {dim.text} is {size}, but "
                            f"other tensors say {known}\n  fix: give tensors of equal {dim.text}")
                else:
                    later.append((dim, size))
        for dim, size in later:
            dim.solve(size, sizes)
        return sizes

    def result_shape(self, index, extents):
        return [d.extent(extents) for d in self._result_dims[index]]


def _require(declared, tensor, device):
    """The dtype and the device that every tensor must have."""
    name, dtype = declared["name"], native.DTYPES[declared["dtype"]]
    if tensor.dtype != dtype:
        raise ProgramError(f"`{name}` is {tensor.dtype}, but is declared {declared['type']}\n"
                           f"  fix: give {dtype}, or write {native.NAMES.get(tensor.dtype, dtype)} "
                           "in the text; for bf16 op() has `dtype`")
    if tensor.device != device:
        raise ProgramError(f"`{name}` is on {tensor.device}, other tensors are on {device}\n"
                           "  fix: move them to one device")


class Dim:
    """A dimension's text: names, numbers, + - * / and blocks(N)."""

    def __init__(self, text):
        self.text, self.is_name = text, text.isidentifier()
        self.factors = _factors(text)
        self._code = compile(re.sub(r"/", "//", text), "dim", "eval")
        self.names = set(re.findall(r"[A-Za-z_][\w.]*", text)) - {"blocks"}

    def extent(self, sizes):
        return eval(self._code, {"blocks": lambda n, of=64: -(-n // of)}, sizes)  # noqa: S307

    def solve(self, size, sizes):
        """Finds the one name that is still unknown, where the dimension is a product."""
        unknown = [n for n in self.names if n not in sizes]
        if len(unknown) == 1 and self.text.count(unknown[0]) == 1 and not set("+-/(") & set(
                self.text):
            rest = self.extent({**sizes, unknown[0]: 1})
            if rest and size % rest == 0:
                sizes[unknown[0]] = size // rest


def _factors(text):
    """A product's factors: split at the * outside brackets."""
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == "*" and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    parts.append(text[start:])
    return [p[1:-1] if p.startswith("(") and p.endswith(")") else p for p in parts]


def _register(function, name):
    """The function as an operator of torch.library, with a gradient, for graphs."""
    number = next(_numbers)
    inputs = ", ".join(f"Tensor p{i}" for i in range(len(function.params)))
    forward, backward = f"{name}_{number}", f"{name}_grad_{number}"
    _LIBRARY.define(f"{forward}({inputs}) -> Tensor[]")
    _LIBRARY.define(f"{backward}(Tensor[] tensors, Tensor?[] gradients, bool[] needs) -> Tensor[]")

    def fake(*tensors):
        sizes = function.bound(tensors)
        return [t.new_empty(function.result_shape(i, sizes), dtype=d)
                for t in tensors[:1] for i, d in enumerate(function.dtypes)]

    def run(*tensors):
        return list(function.forward(function._plain, tensors)[0])

    def run_backward(tensors, gradients, needs):
        made = function.rewritten(tuple(needs), function.expected, tensors)
        kept = function.forward(made, tensors)[1]
        given = {n: g for n, g in zip(function.results, gradients) if g is not None}
        found = function.backward(made, tensors, kept, given)
        return [g for g in found if g is not None]

    def fake_backward(tensors, gradients, needs):
        return [torch.empty_like(t) for t, n in zip(tensors, needs) if n]

    for key, real in ((forward, run), (backward, run_backward)):
        _LIBRARY.impl(key, real, "CompositeExplicitAutograd")
    torch.library.register_fake(f"coda_epilogue::{forward}", fake, lib=_LIBRARY)
    torch.library.register_fake(f"coda_epilogue::{backward}", fake_backward, lib=_LIBRARY)
    gradient = getattr(torch.ops.coda_epilogue, backward)

    def setup(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.needs = [t.requires_grad for t in inputs]

    def back(ctx, gradients):
        found = iter(gradient(list(ctx.saved_tensors), list(gradients), ctx.needs))
        return tuple(next(found) if n else None for n in ctx.needs)

    torch.library.register_autograd(f"coda_epilogue::{forward}", back, setup_context=setup,
                                    lib=_LIBRARY)
    return getattr(torch.ops.coda_epilogue, forward)
