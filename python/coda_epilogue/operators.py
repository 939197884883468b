"""What each ATen operator is in CODA's language: a table from targets to translations.

A translation gets the Region and the node's arguments, where tensors are Values, and gives a Value
or a list of them. It raises Untranslatable where these arguments are not in the language; the node
then stays with PyTorch.
"""

import math
import operator

import torch

from .axes import extent_of, product, resolved
from .region import Complex, FLOATS, Untranslatable
from .region_text import Value

aten = torch.ops.aten
TABLE = {}
# Of it, what takes complex numbers.
OF_COMPLEX = {aten.mul.Tensor, aten.view_as_real.default, aten.view.default, aten.reshape.default,
              aten._unsafe_view.default, aten.squeeze.dim, aten.unsqueeze.default,
              aten.transpose.int}


def says(*targets):
    def register(function):
        for target in targets:
            TABLE[target] = function
        return function
    return register


def operands(*values):
    """Tensors and numbers; no tensor without axes."""
    for value in values:
        if isinstance(value, float) and value == 0 and math.copysign(1, value) < 0:
            raise Untranslatable("a negative zero")
        if not isinstance(value, (Value, int, float)):
            raise Untranslatable("an operand that is no tensor and no number")
    return values


def floating(region, *values):
    if region.meta.dtype not in FLOATS:
        raise Untranslatable("integer arithmetic")
    return operands(*values)


# ---- maps

for _target, _words in {
    aten.neg.default: "-{0}", aten.exp.default: "exp({0})", aten.log.default: "log({0})",
    aten.sqrt.default: "sqrt({0})", aten.rsqrt.default: "rsqrt({0})",
    aten.tanh.default: "tanh({0})", aten.sigmoid.default: "sigmoid({0})",
    aten.erf.default: "erf({0})", aten.abs.default: "abs({0})",
    aten.relu.default: "where({0} <= 0, 0, {0})",
    aten.silu.default: "{0} * sigmoid({0})", aten.reciprocal.default: "1 / {0}",
    aten.square.default: "{0} * {0}", aten.maximum.default: "max({0}, {1})",
    aten.minimum.default: "min({0}, {1})", aten.mul.Tensor: "{0} * {1}",
    aten.mul.Scalar: "{0} * {1}", aten.div.Tensor: "{0} / {1}", aten.div.Scalar: "{0} / {1}",
}.items():
    def _map(region, *values, _words=_words):
        if any(isinstance(v, Complex) for v in values) and _words == "{0} * {1}":
            return _complex_product(region, *values)
        if len(values) != ("{0}" in _words) + ("{1}" in _words):
            raise Untranslatable("arguments that its translation lacks")
        return region.elementwise(_words, *floating(region, *values))
    TABLE[_target] = _map


@says(aten.add.Tensor, aten.add.Scalar)
def _add(region, a, b, alpha=1):
    floating(region, a, b)
    if isinstance(b, (int, float)) and b * alpha == 0:
        return region.elementwise("{0}", a) if a.dtype != region.meta.dtype else a
    return region.elementwise("{0} + {1}" if alpha == 1 else f"{{0}} + {alpha!r} * {{1}}", a, b)


@says(aten.sub.Tensor, aten.sub.Scalar)
def _sub(region, a, b, alpha=1):
    floating(region, a, b)
    return region.elementwise("{0} - {1}" if alpha == 1 else f"{{0}} - {alpha!r} * {{1}}", a, b)


@says(aten.rsub.Scalar, aten.rsub.Tensor)
def _rsub(region, a, b, alpha=1):
    if alpha != 1:
        raise Untranslatable("rsub with a factor")
    return region.elementwise("{1} - {0}", *floating(region, a, b))


@says(aten.pow.Tensor_Scalar)
def _pow(region, a, exponent):
    floating(region, a)
    words = {1: "{0}", 2: "{0} * {0}", 3: "{0} * {0} * {0}", 0.5: "sqrt({0})",
             -0.5: "rsqrt({0})", -1: "1 / {0}"}.get(exponent)
    if words is None:
        raise Untranslatable(f"the power {exponent}")
    return region.elementwise(words, a)


@says(aten.gelu.default)
def _gelu(region, a, approximate="none"):
    floating(region, a)
    if approximate == "tanh":
        return region.elementwise(
            "0.5 * {0} * (1 + tanh(0.7978845608028654 * ({0} + 0.044715 * {0} * {0} * {0})))", a)
    return region.elementwise("0.5 * {0} * (1 + erf({0} * 0.7071067811865476))", a)


@says(aten.to.dtype, aten._to_copy.default, aten.to.dtype_layout, aten.type_as.default,
      aten.to.other)
def _to(region, a, dtype=None, *_, **__):
    meta = region.meta
    if a.dtype not in FLOATS or meta.dtype not in FLOATS:
        if meta.dtype == a.dtype:
            return a
        raise Untranslatable("a cast of integers")
    if meta.dtype.itemsize >= a.dtype.itemsize and meta.dtype != torch.float64:
        return _retyped(region, a, meta.dtype)
    name = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32",
            torch.float64: "f64"}[meta.dtype]
    return region.elementwise(f"{name}({{0}})", a)


def _retyped(region, a, dtype):
    """The same numbers, which the graph now calls f32: on chip they are that anyway."""
    made = region.text.value(a.axes, dtype, a.dims)
    made.joined, made.alias = a.joined, None if a.joined else a
    return made


# ---- layout

@says(aten.alias.default, aten.contiguous.default, aten.clone.default, aten.detach.default)
def _same(region, a, *_, **__):
    if region.node.target is aten.detach.default:
        return region.elementwise("detach({0})", a)
    return a


@says(aten.dropout.default)
def _dropout(region, a, p, train):
    if train and p > 0:
        raise Untranslatable("dropout, whose random numbers are PyTorch's")
    return a


def _with_axes(region, a, axes):
    return region.view_of(region.written(a), axes)


@says(aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.flatten.using_ints,
      aten.unflatten.int, aten.squeeze.dim, aten.squeeze.default, aten.unsqueeze.default)
def _view(region, a, *_):
    if isinstance(a, Complex):
        return a.each(lambda part: _view(region, part))
    return _with_axes(region, a, region.text.axes.regroup(
        [f for axis in a.axes for f in axis], region.meta.shape))


@says(aten.transpose.int)
def _transpose(region, a, d0, d1):
    if isinstance(a, Complex):
        return a.each(lambda part: _transpose(region, part, d0, d1))
    axes = list(a.axes)
    axes[d0], axes[d1] = axes[d1], axes[d0]
    if a.joined and len(axes) - 1 not in (d0 % len(axes), d1 % len(axes)):
        pieces = [_transpose(region, p, d0, d1) for p in a.joined.pieces]
        return region.join(a.joined.whole, pieces, axes, a.dtype)
    return _with_axes(region, a, axes)


@says(aten.t.default)
def _t(region, a):
    return _transpose(region, a, 0, 1) if len(a.axes) == 2 else a


@says(aten.permute.default)
def _permute(region, a, order):
    return _with_axes(region, a, [a.axes[i] for i in order])


@says(aten.slice.Tensor)
def _slice(region, a, dim=0, start=None, end=None, step=1):
    rank, start = len(a.axes), start or 0
    dim = dim % rank
    if extent_of(region.meta.shape[dim]) == product(resolved(a.axes[dim])):
        return a
    if dim == rank - 1 and step == 2 and start in (0, 1) and a.dtype in FLOATS and (
            end is None or end >= extent_of(region.node.args[0].meta["val"].shape[dim])):
        return region.pairs(a)[start]
    if dim != rank - 1 or step != 1 or a.dtype not in FLOATS:
        raise Untranslatable("a slice of rows")
    size = product(resolved(a.axes[dim]))
    if not isinstance(size, int):
        raise Untranslatable("a slice of a size that is known only when it runs")
    # Where this and its neighbours cut.
    source = region.node.args[0]
    cuts = {0, size}
    for user in source.users:
        if user.target is aten.slice.Tensor and len(user.args) >= 4 and \
                user.args[1] % rank == dim and (len(user.args) < 5 or user.args[4] == 1):
            cuts |= {_bound(user.args[2] or 0, size), _bound(user.args[3], size)}
    cuts = sorted(cuts)
    sizes = [b - a for a, b in zip(cuts, cuts[1:])]
    pieces = region.cut(a, sizes)
    low, high = _bound(start, size), _bound(end, size)
    inside = [p for p, at in zip(pieces, cuts) if low <= at < high]
    if len(inside) != 1:
        raise Untranslatable("a slice of several pieces")
    return inside[0]


def _bound(index, size):
    if not isinstance(index, int):
        raise Untranslatable("a slice of a size that is known only when it runs")
    return max(0, min(size, index + size if index < 0 else index))


@says(aten.split_with_sizes.default, aten.split.sizes)
def _split(region, a, sizes, dim=0):
    if dim % len(a.axes) != len(a.axes) - 1:
        raise Untranslatable("a split of rows")
    return region.cut(a, list(sizes))


@says(aten.split.Tensor)
def _split_even(region, a, size, dim=0):
    extent = product(resolved(a.axes[dim]))
    if not isinstance(extent, int) or extent % size:
        raise Untranslatable("a split into unequal pieces")
    return _split(region, a, [size] * (extent // size), dim)


@says(aten.chunk.default)
def _chunk(region, a, chunks, dim=0):
    extent = product(resolved(a.axes[dim]))
    if not isinstance(extent, int) or extent % chunks:
        raise Untranslatable("a split into unequal pieces")
    return _split(region, a, [extent // chunks] * chunks, dim)


# ---- pairs of neighbours

@says(aten.view_as_complex.default)
def _view_as_complex(region, a):
    return Complex(*region.pairs(a))


@says(aten.view_as_real.default)
def _view_as_real(region, a):
    if not isinstance(a, Complex):
        raise Untranslatable("a complex tensor that PyTorch has")
    return region.paired(a.real, a.imag)


def _complex_product(region, a, b):
    if not (isinstance(a, Complex) and isinstance(b, Complex)):
        raise Untranslatable("a complex tensor times a real one")
    dtype = torch.float64 if region.meta.dtype == torch.complex128 else torch.float32
    say = lambda words, x, y: region.elementwise(words, x, y, dtype=dtype)
    product_of = lambda x, y: say("{0} * {1}", x, y)
    return Complex(
        say("{0} - {1}", product_of(a.real, b.real), product_of(a.imag, b.imag)),
        say("{0} + {1}", product_of(a.real, b.imag), product_of(a.imag, b.real)))


@says(aten.stack.default)
def _stack(region, values, dim=0):
    if len(values) != 2 or dim % region.meta.dim() != region.meta.dim() - 1:
        raise Untranslatable("a stack of rows, or of more than two tensors")
    if not all(isinstance(v, Value) and not v.joined for v in values):
        raise Untranslatable("a stack of what is in pieces")
    return region.paired(*values)


@says(aten.unbind.int)
def _unbind(region, a, dim=0):
    if dim % len(a.axes) != len(a.axes) - 1 or product(resolved(a.axes[-1])) != 2:
        raise Untranslatable("a tensor in more than two pieces, or in rows")
    return list(region.pairs(a))


@says(aten.select.int)
def _select(region, a, dim, index):
    if dim % len(a.axes) != len(a.axes) - 1 or product(resolved(a.axes[-1])) != 2:
        raise Untranslatable("one of several rows or columns")
    return region.pairs(a)[index]


@says(operator.getitem)
def _getitem(region, values, index):
    if not isinstance(values, (list, tuple)) or not isinstance(index, int):
        raise Untranslatable("an index into a tensor")
    return values[index]


@says(aten.cat.default)
def _cat(region, values, dim=0):
    rank = len(values[0].axes)
    if dim % rank != rank - 1 or len(values) != 2:
        raise Untranslatable("a concatenation along rows, or of several tensors")
    first = values[0]
    for other in values[1:]:
        for a, b in zip(first.axes[:-1], other.axes[:-1]):
            if bool(resolved(a)) != bool(resolved(b)) or (
                    resolved(a) and region.text.axes.match(a, b)):
                raise Untranslatable("a concatenation of different tensors")
    lasts = [resolved(v.axes[-1]) for v in values]
    if any(len(last) != 1 for last in lasts):
        raise Untranslatable("a concatenation of axes that are products")
    whole = _whole_of([last[0] for last in lasts])
    axes = first.axes[:-1] + [[whole]]
    return region.join(whole, list(values), axes, region.meta.dtype)


def _whole_of(pieces):
    """The factor that these pieces were cut from, in whatever order."""
    for piece in pieces:
        if piece.part:
            (whole,) = resolved([piece.part[1]])
            if whole.extent == sum(p.extent for p in pieces):
                return whole
    raise Untranslatable("a concatenation of what was not one tensor")


# ---- products and reductions

@says(aten.linear.default)
def _linear(region, x, w, b=None):
    if len(w.axes) != 2:
        raise Untranslatable("a linear layer without a matrix")
    made = region.product(x, w, -1, 1, x.axes[:-1] + [w.axes[0]], region.meta.dtype)
    return made if b is None else region.elementwise("{0} + {1}", made, b)


@says(aten.matmul.default, aten.mm.default)
def _matmul(region, x, w):
    if len(w.axes) != 2 or len(x.axes) < 2:
        raise Untranslatable("a product of matrices one by one")
    return region.product(x, w, -1, 0, x.axes[:-1] + [w.axes[1]], region.meta.dtype)


@says(aten.addmm.default)
def _addmm(region, b, x, w, beta=1, alpha=1):
    if beta != 1 or alpha != 1:
        raise Untranslatable("addmm with factors")
    return region.elementwise("{0} + {1}", _matmul(region, x, w), b)


@says(aten.mean.dim)
def _mean(region, a, dims, keepdim=False, dtype=None):
    return region.mean(a, keepdim, dims, region.meta.dtype)


@says(aten.sum.dim_IntList)
def _sum(region, a, dims, keepdim=False, dtype=None):
    return region.reduced("sum", a, keepdim, region.meta.dtype, dims)


def _normed(region, x, scale, weight, bias):
    made = region.elementwise("{0} * {1}", x, scale)
    if weight is not None:
        made = region.elementwise("{0} * {1}", made, weight)
    return made if bias is None else region.elementwise("{0} + {1}", made, bias)


@says(aten.rms_norm.default)
def _rms_norm(region, x, shape, weight=None, eps=None):
    if len(shape) != 1:
        raise Untranslatable("a norm over several axes")
    wide = torch.float32 if x.dtype.itemsize < 4 else x.dtype
    eps = torch.finfo(wide).eps if eps is None else eps
    squares = region.elementwise("{0} * {0}", x, dtype=wide)
    mean = region.mean(squares, True, [-1], wide)
    return _normed(region, x, region.elementwise("rsqrt({0} + {1})", mean, eps, dtype=wide),
                   weight, None)


@says(aten.layer_norm.default)
def _layer_norm(region, x, shape, weight=None, bias=None, eps=1e-5, cudnn_enable=True):
    if len(shape) != 1:
        raise Untranslatable("a norm over several axes")
    wide = torch.float32 if x.dtype.itemsize < 4 else x.dtype
    mean = lambda v: region.mean(v, True, [-1], wide)
    centred = region.elementwise("{0} - {1}", x, mean(x), dtype=wide)
    variance = mean(region.elementwise("{0} * {0}", centred, dtype=wide))
    scale = region.elementwise("rsqrt({0} + {1})", variance, eps, dtype=wide)
    return _normed(region, centred, scale, weight, bias)


# ---- the loss

@says(aten.cross_entropy_loss.default)
def _cross_entropy(region, z, target, weight=None, reduction=1, ignore_index=-100,
                   label_smoothing=0.0):
    if weight is not None or label_smoothing != 0.0 or len(z.axes) != 2 or len(target.axes) != 1 \
            or target.dtype not in (torch.int64, torch.int32):
        raise Untranslatable("a cross-entropy with weights, smoothing or probabilities")
    z = region.written(z)
    region.text.rows += z.axes[0]
    if region.text.axes.match(z.axes[0], target.axes[0]):
        raise Untranslatable("targets of other rows")
    say, stored = region.text.say, region.meta.dtype
    dtype = torch.float64 if z.dtype == torch.float64 else torch.float32
    region.text.checks.append((target.origin, product(resolved(z.axes[1])), ignore_index))
    classes, rows = z.axes[1], lambda: [resolved(z.axes[0])]
    lse = say(["logsumexp(", z, ", ", classes, ")"], z.axes[:1], dtype, rows)
    hit = say(["pick(", z, ", ", target, ")"], z.axes[:1], dtype, rows)
    each = say(["where(", target, f" == {ignore_index}, 0, ", lse, " - ", hit, ")"], z.axes[:1],
               stored if reduction == 0 else dtype, rows)
    if reduction == 0:
        return each
    total = say(["sum(", each, ", ", z.axes[0], ")"], [], stored if reduction == 2 else dtype,
                lambda: [])
    if reduction == 2:
        return total
    counted = say(["where(", target, f" == {ignore_index}, 0, 1)"], z.axes[:1], torch.int64, rows)
    count = say(["sum(", counted, ", ", z.axes[0], ")"], [], torch.int64, lambda: [])
    return say([total, " / ", count], [], stored, lambda: [])
