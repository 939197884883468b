"""A region by its schedule and by Inductor, timed beside one another: once for each different
region and its sizes, and the answer is kept in a file."""

import contextlib
import hashlib
import json
import os
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch._functorch.config as functorch
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_tensor import unset_fake_temporarily

from . import rest
from .axes import hint_of
from .blocks import RegionFunction

_SECONDS = 0.25  # of each, after as much to warm up: the clock falls under load
_ROUNDS = 5  # slices of it, in turns


@dataclass(frozen=True)
class Times:
    """ms of forward and backward."""

    coda: float
    inductor: float

    def __str__(self):
        return f"measured: {self.coda:.3f} ms, by Inductor {self.inductor:.3f} ms"


KNOWN = {}  # what each region was judged by: text → Times


def slower(block):
    """Why Inductor would be faster, or None."""
    times = times_of(block)
    return str(times) if times is not None and times.coda > times.inductor else None


def times_of(block):
    """The Times of a block, from the file where they are; None where the memory for a measurement
    lacks."""
    needs = [s.node.meta["learned"] for s in block.inputs]
    like = [(list(map(hint_of, v.shape)), list(map(hint_of, v.stride())), str(v.dtype), v.device)
            for v in (n.meta["val"] for n in block.outside)]
    device = like[0][3]
    what = torch.cuda.get_device_name(device) if device.type == "cuda" else \
        f"{torch.get_num_threads()} threads"
    key = json.dumps([block.text, needs, [each[:3] for each in like], what, torch.__version__])
    key = hashlib.sha256(key.encode()).hexdigest()
    stored = _read()
    if key in stored:
        KNOWN[block.text] = Times(**stored[key])
    else:
        try:
            KNOWN[block.text] = _measured(block, like, device)
        except torch.OutOfMemoryError:
            return None
        _write(key, asdict(KNOWN[block.text]))
    return KNOWN[block.text]


def _measured(block, like, device):
    """On random tensors of the block's own."""
    classes = {block.inputs[i].node: n for i, n, _ in block.checks}
    # NOTE: backward is compiled now, as Dynamo, who is at the graph, would not have it later.
    with unset_fake_temporarily(), tracing(TracingContext(FakeTensorMode())), \
            torch.enable_grad(), functorch.patch(force_non_lazy_backward_lowering=True):
        tensors = [_random(node, *each, classes.get(node))
                   for node, each in zip(block.outside, like)]
        # Of what a loss is returned beside, like logits, no gradient is expected.
        losses = [n for n in block.results if n.meta["val"].dim() == 0]
        ours = RegionFunction(block, set(block.results) - set(losses) if losses else ())
        theirs = rest.compiled(block.original(), tensors)
        steps = [_step(f, tensors, ours.expected, ours.results) for f in (ours, theirs)]
        return Times(*_in_turns(steps, device))


def _random(node, shape, strides, dtype, device, classes):
    dtype = getattr(torch, dtype.removeprefix("torch."))
    made = torch.empty_strided(shape, strides, dtype=dtype, device=device)
    if dtype.is_floating_point:
        made.normal_(std=0.1)
    else:
        made.random_(0, classes or 2)
    return made.requires_grad_(bool(node.meta["learned"]))


def _step(function, tensors, expected, results):
    """Forward, and backward from the results that gradients are expected for."""
    learned = [t for t in tensors if t.requires_grad]

    def step():
        found = dict(zip(results, function(*tensors)))
        wanted = [found[n] for n in expected if found[n].requires_grad]
        if wanted and learned:
            torch.autograd.grad(wanted, learned, [torch.ones_like(r) for r in wanted],
                                allow_unused=True)
    return step


def _in_turns(steps, device):
    """ms of each: slices of equal time, one after the other."""
    wait = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)

    def slice_of(step, count):
        wait()
        start = time.perf_counter()
        for _ in range(count):
            step()
        wait()
        return (time.perf_counter() - start) / count * 1e3

    for step in steps:
        slice_of(step, 2)  # compiles
    counts = [max(1, round(_SECONDS / _ROUNDS * 1e3 / slice_of(step, 1))) for step in steps]
    taken = [[slice_of(step, count) for step, count in zip(steps, counts)]
             for _ in range(2 * _ROUNDS)]
    return [statistics.median(each) for each in zip(*taken[_ROUNDS:])]


def _file():
    folder = os.environ.get("CODA_CACHE")
    if folder == "off":
        return None
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return (Path(folder) if folder else home / "coda") / "regions.json"


def _read():
    path = _file()
    try:
        return json.loads(path.read_text()) if path else {}
    except (OSError, ValueError):
        return {}  # missing, or of another hand: measured again


def _write(key, value):
    path = _file()
    if path is None:
        return
    # A folder that cannot be written costs another measurement, next time.
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{os.getpid()}")
        part.write_text(json.dumps(_read() | {key: value}))
        os.replace(part, path)
