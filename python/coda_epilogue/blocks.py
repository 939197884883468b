"""Blocks as functions of tensors: rewritten for the gradients that are asked for, compiled for the
sizes that come, behind an autograd function."""

from functools import cached_property, lru_cache
from math import prod

import torch

from . import native
from .axes import hint_of
from .errors import ProgramError

SLOW = "general"  # how notes of kernels on the predicated path begin
FEW_FLOPS = 2e9  # a kernel of fewer is as fast on either path


class BlockFunction:
    """A text's last block as a differentiable function. Functions of one text share their
    schedules. A subclass says how tensors lie in it."""

    def __init__(self, text, params, results, dtypes, quiet=()):
        """`params`, `results`: names. `quiet`: results that no gradient is expected for; one that
        comes all the same costs another forward."""
        self.text, self.params, self.results, self.dtypes = text, params, results, dtypes
        self.expected = tuple(n for n, d in zip(results, dtypes)
                              if d.is_floating_point and n not in quiet)
        self.keeps_inputs = bool(quiet)
        self.needs = ()  # of each parameter, whether it had a gradient in the last call

    # ---- of a subclass

    def sizes_of(self, tensors):
        """(name, extent) pairs, sorted."""
        raise NotImplementedError

    def budget(self, tensors):
        """(sizes, bytes) for the choice of what forward keeps; None: as many as pay."""
        return (), None

    def result_shape(self, index, extents):
        """`extents`: by name, here and below."""
        raise NotImplementedError

    def empty_result(self, index, extents, device):
        return torch.empty(self.result_shape(index, extents), dtype=self.dtypes[index],
                           device=device)

    def bound_param(self, index, tensor, extents):
        """The view that the block is given."""
        return tensor

    def bound_result(self, index, tensor, extents):
        return tensor

    # ---- running

    def reached(self, needs):
        """(needs, results): the parameters that have gradients, and the results that give them."""
        return needs, self.expected

    def inputs_of(self, names):
        """The parameters, by number, that a gradient of these results may reach."""
        return range(len(self.params))

    def __call__(self, *tensors):
        """The results, as a tuple."""
        tensors = [t.resolve_neg() if t.is_neg() else t for t in tensors]
        if torch.is_grad_enabled() and self.expected:
            needs = self.needs = tuple(t.requires_grad for t in tensors)
            if any(needs) and self.reached(needs)[1]:
                return _Differentiable.apply(self, needs, *tensors)
        return self.forward(self._plain, tensors)[0]

    @cached_property
    def _plain(self):
        return native.rewrite(self.text)

    def rewritten(self, needs, of, tensors):
        """Forward and backward where the parameters with True in `needs` have gradients."""
        wrt = tuple(n for n, needed in zip(self.params, needs) if needed)
        sizes, memory = self.budget(tensors)
        return native.rewrite(self.text, grad=True, of=of, wrt=wrt, sizes=sizes, memory=memory)

    def forward(self, made, tensors):
        """(results, {name: tensor} of all that the schedule gives)."""
        sizes, device = self.sizes_of(tensors), tensors[0].device
        half = made["forward"]
        schedule, extents = native.opened(half["text"], half["name"], sizes, device), dict(sizes)
        results = tuple(self.empty_result(i, extents, device) for i in range(len(self.results)))
        out = {n: self.bound_result(i, results[i], extents) for i, n in enumerate(self.results)}
        for name in schedule.results:
            if name not in out:
                out[name] = torch.empty(schedule.shapes[name], dtype=schedule.dtypes[name],
                                        device=device)
        given = {n: self.bound_param(i, tensors[i], extents) for i, n in enumerate(self.params)}
        schedule.run([given[n] for n in schedule.params], [out[n] for n in schedule.results],
                     device)
        return results, out

    def backward(self, made, tensors, kept, gradients):
        """The gradient of each parameter; None where there is none. `gradients`: by result."""
        sizes, device = self.sizes_of(tensors), tensors[0].device
        half = made["backward"]
        schedule, extents = native.opened(half["text"], half["name"], sizes, device), dict(sizes)
        given, out, found = dict(kept), {}, [None] * len(tensors)
        for index, name in enumerate(self.results):
            if "d_" + name in schedule.params:
                gradient = gradients.get(name)
                if gradient is None:
                    shape = self.result_shape(index, extents)
                    gradient = torch.zeros((), dtype=self.dtypes[index], device=device)
                    gradient = gradient.expand(shape)
                # Dense, as kernels are compiled for: a copy of one tensor at most, where attention
                # or a sum gave it otherwise.
                given["d_" + name] = self.bound_result(index, gradient, extents).contiguous()
        for index, (name, tensor) in enumerate(zip(self.params, tensors)):
            if name in schedule.params:
                given[name] = self.bound_param(index, tensor, extents)
            if "d_" + name in schedule.results:
                order = sorted(range(tensor.dim()), key=lambda a, t=tensor: (-t.stride(a), a))
                found[index] = empty_as(tensor.shape, order, tensor.dtype, device)
                out["d_" + name] = self.bound_param(index, found[index], extents)
        schedule.run([given[n] for n in schedule.params], [out[n] for n in schedule.results],
                     device)
        return found


def empty_as(shape, order, dtype, device):
    """An uninitialised tensor whose axes lie in memory in that order, the outermost first."""
    if order == sorted(order):
        return torch.empty(shape, dtype=dtype, device=device)
    made = torch.empty([shape[a] for a in order], dtype=dtype, device=device)
    return made.permute([order.index(a) for a in range(len(order))])


def require_classes(target, classes, ignore_index):
    """That each target is a class or `ignore_index`: raises, or lets a CUDA device report it."""
    right = ((target == ignore_index) | ((target >= 0) & (target < classes))).all()
    if target.is_cuda:
        torch._assert_async(right, f"a target is outside 0 … {classes - 1}")
    elif not right:
        outside = target[(target != ignore_index) & ((target < 0) | (target >= classes))]
        raise ProgramError(f"target {outside[0].item()} is outside 0 … {classes - 1}\n"
                           f"  fix: give a class, or ignore_index ({ignore_index})")


class RegionFunction(BlockFunction):
    """A Block of regions.py."""

    def __init__(self, block, quiet=()):
        names = [f"r{i}" for i in range(len(block.results))]
        super().__init__(block.text, [f"p{i}" for i in range(len(block.inputs))], names,
                         [n.meta["val"].dtype for n in block.results],
                         [name for name, node in zip(names, block.results) if node in quiet])
        self.block = block
        places = {node: i for i, node in enumerate(block.outside)}
        self._places = [places[s.node] for s in block.inputs]

    def __call__(self, *tensors):
        """On the tensors of the nodes of `block.outside`."""
        bound = [s.of(tensors[i]) for s, i in zip(self.block.inputs, self._places)]
        for index, classes, ignored in self.block.checks:
            require_classes(bound[index], classes, ignored)
        return super().__call__(*bound)

    def inputs_of(self, names):
        return set().union(*(i for n, i in zip(self.results, self.block.depends) if n in names))

    @lru_cache(maxsize=64)
    def reached(self, needs):
        of = [n for n, inputs in zip(self.results, self.block.depends)
              if n in self.expected and any(needs[i] for i in inputs)]
        learned = set().union(*(i for n, i in zip(self.results, self.block.depends) if n in of))
        return tuple(n and i in learned for i, n in enumerate(needs)), tuple(of)

    def slow(self, needs, tensors):
        """The first kernel that would not be on a GPU's fast path, and why; None: all are."""
        needs, of = self.reached(needs) if any(needs) else (needs, ())
        made = self.rewritten(needs, of, tensors) if of else self._plain
        sizes = self.sizes_of(tensors)
        for half in (made["forward"], made["backward"]):
            if half is None:
                continue
            for step, note, flops in native.planned(half["text"], half["name"], sizes,
                                                   tensors[0].device):
                if note.startswith(SLOW) and flops > FEW_FLOPS:
                    return f"{step}: {note}"
        return None

    def budget(self, tensors):
        return self.nominal_sizes, None

    @cached_property
    def nominal_sizes(self):
        """Of names that are known only when it runs: 1024."""
        return tuple((n, e if isinstance(e, int) else 1024)
                     for n, e in sorted(self.block.extents.items()))

    @cached_property
    def _static_sizes(self):
        return tuple(sorted(self.block.extents.items()))

    def sizes_of(self, tensors):
        if not self.block.extents_from:
            return self._static_sizes
        extents = dict(self.block.extents)
        for name, index, axis, known, others in self.block.extents_from:
            more = prod((extents[n] for n in others), start=known)
            extents[name] = hint_of(tensors[index].shape[axis]) // more
        return tuple(sorted(extents.items()))

    def result_shape(self, index, extents):
        return self.block.outputs[index].shape(extents)

    def empty_result(self, index, extents, device):
        return empty_as(self.result_shape(index, extents), self.block.strides[index],
                        self.dtypes[index], device)

    def bound_param(self, index, tensor, extents):
        return self.block.params[index].bound(tensor, extents)

    def bound_result(self, index, tensor, extents):
        return self.block.outputs[index].bound(tensor, extents)


class _Shape:
    """What backward needs of a tensor that it does not read."""

    def __init__(self, tensor):
        self.shape, self._stride = tensor.shape, tensor.stride()
        self.dtype, self.device = tensor.dtype, tensor.device

    def stride(self, axis):
        return self._stride[axis]

    def dim(self):
        return len(self.shape)


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, needs, *tensors):
        needs, of = function.reached(needs)
        made = function.rewritten(needs, of, tensors)
        results, out = function.forward(made, tensors)
        wanted = {p["name"] for p in made["backward"]["params"]}
        # NOTE: results are saved as they were returned, so that autograd sees no cycle.
        kept = [n for n in out if n in wanted and n not in function.results]
        again = [i for i, n in enumerate(function.results) if n in wanted]
        read = [i for i, n in enumerate(function.params) if function.keeps_inputs or n in wanted]
        ctx.save_for_backward(*(tensors[i] for i in read), *(out[n] for n in kept),
                              *(results[i] for i in again))
        ctx.names = read, kept, again
        ctx.function, ctx.made, ctx.needs, ctx.of = function, made, needs, of
        ctx.like = [None if i in read else _Shape(t) for i, t in enumerate(tensors)]
        ctx.set_materialize_grads(False)
        differentiable = set(of) | (set(function.results) - set(function.expected))
        ctx.mark_non_differentiable(
            *(r for r, d, n in zip(results, function.dtypes, function.results)
              if not d.is_floating_point or n not in differentiable))
        return results

    @staticmethod
    def backward(ctx, *gradients):
        if not torch.is_grad_enabled():
            return _Differentiable.first(ctx, gradients)
        with torch.no_grad():
            found = _Differentiable.first(ctx, gradients)
        return tuple(None if g is None else _Once.apply(g.requires_grad_()) for g in found)

    @staticmethod
    def first(ctx, gradients):
        function, made = ctx.function, ctx.made
        given = {n: g for n, g in zip(function.results, gradients) if g is not None}
        if not given:
            return (None, None, *[None] * len(ctx.like))
        read, names, again = ctx.names
        saved = iter(ctx.saved_tensors)
        tensors = list(ctx.like)
        for i in read:
            tensors[i] = next(saved)
        kept, extents = {n: next(saved) for n in names}, dict(function.sizes_of(tensors))
        for i in again:
            kept[function.results[i]] = function.bound_result(i, next(saved), extents)
        if set(given) - set(ctx.of):
            # A gradient that was not expected: forward has not kept what it takes.
            of = tuple(n for n in function.results if n in given or n in ctx.of)
            made = function.rewritten(ctx.needs, of, tensors)
            kept = function.forward(made, tensors)[1]
        found = function.backward(made, tensors, kept, given)
        reached = function.inputs_of(given)
        return (None, None, *(g if i in reached else None for i, g in enumerate(found)))


class _Once(torch.autograd.Function):
    """A gradient that has no derivative of its own."""

    @staticmethod
    def forward(ctx, gradient):
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx, _):
        raise RuntimeError("CODA derives first gradients only: a second derivative went through a "
                           "region that it fused; compute it with the model uncompiled, or with "
                           'backend="eager"')
