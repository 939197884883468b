"""libcoda_bench.so, or libcoda_bench_cpu.so, from Python: programs and schedules on tensors of
PyTorch.

Nothing here needs a GPU: with device "reference", or "cpu" in the library for CPUs, programs run on
tensors of the CPU, and without a device a program is only described (shapes, flops, bytes).
"""

import ctypes
import json
import os
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "f64": torch.float64,
          "i32": torch.int32, "i64": torch.int64, "u8": torch.uint8, "bool": torch.bool,
          "f8e4m3": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2}


class CodaError(Exception):
    """What the library said."""


def library_path():
    """CODA_BENCH_LIBRARY, else the library of the build beside this folder."""
    given = os.environ.get("CODA_BENCH_LIBRARY")
    return Path(given) if given else ROOT / "build" / "libcoda_bench.so"


class Library:
    def __init__(self, path=None):
        path = Path(path or library_path())
        if not path.exists():
            name = path.stem.removeprefix("lib")
            raise CodaError(f"{path} is missing: `ninja -C build {name}` builds it")
        self._c = c = ctypes.CDLL(str(path))
        for name in ("error", "describe", "tiles", "rewrite"):
            getattr(c, f"coda_bench_{name}").restype = ctypes.c_char_p
        c.coda_bench_open.restype = ctypes.c_void_p
        c.coda_bench_open.argtypes = c.coda_bench_tiles.argtypes = [ctypes.c_char_p]
        c.coda_bench_rewrite.argtypes = [ctypes.c_char_p]
        c.coda_bench_describe.argtypes = c.coda_bench_close.argtypes = [ctypes.c_void_p]
        c.coda_bench_run.argtypes = [ctypes.c_void_p] * 5
        c.coda_bench_repeat.restype = ctypes.c_double
        c.coda_bench_repeat.argtypes = [ctypes.c_void_p] * 5 + [ctypes.c_int]

    def error(self):
        return CodaError(self._c.coda_bench_error().decode())

    def open(self, source, name="", sizes=None, device="", tile="", **more):
        """`source`: a text, or a Path of a file. On the CPU also `threads`, `whole_products`.
        Throws CodaError."""
        request = dict(_source(source), name=name, sizes=sizes or {}, device=device, tile=tile,
                       **more)
        handle = self._c.coda_bench_open(json.dumps(request).encode())
        if not handle:
            raise self.error()
        return Opened(self, handle)

    def rewrite(self, source, name="", sizes=None, **options):
        """What `coda rewrite` prints: grad, of, wrt, accumulate, memory as in the command; `f32` in
        place of bf16; `unfused`: one library call a step."""
        request = dict(_source(source), name=name, sizes=sizes or {}, **options)
        text = self._c.coda_bench_rewrite(json.dumps(request).encode())
        if text is None:
            raise self.error()
        return text.decode()

    def tiles(self, source, name, sizes):
        """What the program may be pinned to on the GPU."""
        request = dict(_source(source), name=name, sizes=sizes)
        found = self._c.coda_bench_tiles(json.dumps(request).encode())
        if found is None:
            raise self.error()
        return json.loads(found)


def _source(source):
    return {"path": str(source)} if isinstance(source, Path) else {"text": source}


class Opened:
    """A program or schedule for one set of sizes, compiled where a device was named."""

    def __init__(self, library, handle):
        self._library, self._handle = library, handle
        self.facts = json.loads(library._c.coda_bench_describe(handle))
        self.params, self.results = self.facts["params"], self.facts["results"]
        self._scratch = {}

    def close(self):
        if self._handle:
            self._library._c.coda_bench_close(self._handle)
        self._handle, self._scratch = None, {}

    def __del__(self):
        self.close()

    def results_like(self, device, poison=True):
        """Tensors for the results, full of NaN (of ones where integers); zeros to accumulate in."""
        made = {}
        for r in self.results:
            tensor = torch.zeros(r["shape"], dtype=DTYPES[r["dtype"]], device=device)
            if poison and not r["accumulates"]:
                poisoned(tensor)
            made[r["name"]] = tensor
        return made

    def bind(self, tensors, device="cuda"):
        """A function without arguments that runs on these tensors, found by name."""
        given = [tensors[t["name"]] for t in self.params + self.results]
        for expected, tensor in zip(self.params + self.results, given):
            fits = (tensor.dtype == DTYPES[expected["dtype"]]
                    and list(tensor.shape) == expected["shape"] and tensor.device.type == device)
            if not fits:
                raise CodaError(f"{self.facts['name']}: {expected['name']} is {tensor.dtype} "
                                f"{list(tensor.shape)} on {tensor.device}, not {expected['dtype']} "
                                f"{expected['shape']}")
        pointers = (ctypes.c_void_p * max(1, len(given)))(*[t.data_ptr() for t in given])
        strides = [s for t in given for s in t.stride()]
        strides = (ctypes.c_int64 * max(1, len(strides)))(*strides)
        if device not in self._scratch:
            size = self.facts["scratch"] + 256
            self._scratch[device] = torch.empty(size, dtype=torch.uint8, device=device)
        scratch = self._scratch[device]
        start = -(-scratch.data_ptr() // 256) * 256
        call, handle = self._library._c.coda_bench_run, self._handle
        stream = torch.cuda.current_stream().cuda_stream if device == "cuda" else 0

        def run():
            if call(handle, pointers, strides, start, stream):
                raise self._library.error()

        def repeat(times):
            """Runs it over and over; the host's seconds a run."""
            seconds = self._library._c.coda_bench_repeat(handle, pointers, strides, start, stream,
                                                         times)
            if seconds < 0:
                raise self._library.error()
            return seconds

        run.keep = (given, scratch, self)
        run.repeat = repeat
        return run


def poisoned(tensor):
    """The tensor full of what no right result is."""
    if tensor.dtype.is_floating_point:
        return tensor.fill_(float("nan"))
    return tensor.fill_(1) if tensor.dtype == torch.bool else tensor.fill_(77)
