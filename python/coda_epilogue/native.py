"""The C++ library: texts in, schedules out, and schedules that run on tensors of PyTorch.

A *schedule* is a text that holds programs, each one kernel, and the order in which they run.
"""

import json
import os
from functools import cache, lru_cache
from pathlib import Path

import torch
import torch.distributed as dist
import tvm_ffi

from . import errors  # noqa: F401  (registers the exceptions)

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32,
          "f64": torch.float64, "i32": torch.int32, "i64": torch.int64, "u8": torch.uint8,
          "bool": torch.bool, "f8e4m3": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def library_file():
    """CODA_NATIVE, else the library of this wheel, else that of the checkout's build."""
    given = os.environ.get("CODA_NATIVE")
    here = Path(__file__).resolve().parent
    tried = [Path(given)] if given else [here / "libcoda_native.so",
                                         here.parents[1] / "build" / "libcoda_native.so"]
    for path in tried:
        if path.exists():
            return path
    raise ImportError(f"libcoda_native.so is not at {' or '.join(map(str, tried))}: install the "
                      "wheel, or build it with `ninja -C build coda_native`")


@cache
def _library():
    return tvm_ffi.load_module(str(library_file()))


def _asked(function, request):
    return json.loads(_library().get_function(function)(json.dumps(request)))


def describe(text):
    """The signatures of the programs and blocks that a text declares."""
    return _asked("describe", {"text": text})


def alone(text, name="", dtype=None):
    """(text, name) of one program or block of a text, `dtype` in place of its bf16."""
    request = {"text": text, "name": name}
    made = _asked("retype", request | ({"dtype": NAMES[dtype]} if dtype else {}))
    return made["text"], made["name"]


@lru_cache(maxsize=1024)
def rewrite(text, name="", grad=False, of=(), wrt=(), sizes=(), memory=None):
    """{"forward", "backward", "saved", "notes"}: a block as schedules. `sizes`: (name, size)
    pairs, for the choice of what forward keeps; kernels do not depend on them."""
    request = {"text": text, "name": name, "grad": grad, "of": of, "wrt": wrt,
               "sizes": dict(sizes)}
    if memory is not None:
        request["memory"] = memory
    return _asked("rewrite", request)


def explain(text, name="", sizes=(), grad=False, of=(), wrt=()):
    """The "kernels" of a block and the "ledger" of their bytes."""
    return _asked("explain", {"text": text, "name": name, "sizes": dict(sizes), "grad": grad,
                              "of": of, "wrt": wrt})


class Schedule:
    """A schedule compiled for one set of sizes and one device; `exclusive`: as if its kernels had
    the GPU's processors to themselves. Thread-safe."""

    def __init__(self, text, name, sizes, device, exclusive=True):
        request = {"text": text, "name": name, "sizes": dict(sizes), "device": device,
                   "exclusive": exclusive}
        facts, self._run = _library().get_function("open")(json.dumps(request))
        facts = json.loads(str(facts))
        self.scratch_bytes = facts["scratch"]
        self.params = [p["name"] for p in facts["params"]]
        self.results = [r["name"] for r in facts["results"]]
        self.shapes = {n: tuple(s) for n, s in facts["shapes"].items()}
        self.dtypes = {r["name"]: DTYPES[r["dtype"]] for r in facts["results"]}

    def run(self, inputs, outputs, device):
        """On tensors in the order of `params` and of `results`, of any strides; on the current
        stream of a CUDA device."""
        scratch = torch.empty(self.scratch_bytes, dtype=torch.uint8, device=device)
        stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
        self._run(*inputs, *outputs, scratch, stream)


def _use(device):
    """Makes a GPU the one of this process. Raises Unsupported where another one is."""
    if device.type == "cuda":
        index = device.index if device.index is not None else torch.cuda.current_device()
        _library().get_function("use_gpu")(index)


@lru_cache(maxsize=4096)
def planned(text, name, sizes, device):
    """[step, how its kernel runs, flops] of each step of a schedule, on that GPU, or for another
    torch.device an H200; nothing is compiled."""
    # NOTE: planning asks the GPU what it is, and would settle on the first one.
    _use(device)
    return _asked("plan", {"text": text, "name": name, "sizes": dict(sizes)})


def opened(text, name, sizes, device):
    """The Schedule of a text on a torch.device, compiled once in a process. Raises Unsupported for
    a second GPU."""
    return _opened(text, name, sizes, device, _alone())


def _alone():
    """Whether no collective's kernels run beside this process's own."""
    return not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1)


@lru_cache(maxsize=4096)
def _opened(text, name, sizes, device, exclusive):
    _use(device)
    return Schedule(text, name, sizes, device.type, exclusive)
