"""How time is taken: the clock decides the ratio, so every figure names its protocol.

burst: 30 ms idle before each candidate, so that the clock is high. sustained: after 0.2 s of
back-to-back work, at the clock that the card's power allows: the state of a training run. Either
way the candidate runs in pairs with the base (base, x, base, x, …) between CUDA events, and a
figure is the median over the pairs.
"""

import statistics
import subprocess
import time
from dataclasses import dataclass

import torch

IDLE, BUSY = 0.030, 0.200  # s
PROTOCOLS = ("sustained", "burst")


@dataclass(frozen=True)
class Timed:
    """Of one candidate under one protocol."""

    ratio: float  # over the base
    ms: float
    base_ms: float


def busy(work, seconds=BUSY):
    """Runs `work` back to back; the GPU has work queued when this returns."""
    end, before = time.monotonic() + seconds, None
    while time.monotonic() < end:
        for _ in range(4):
            work()
        event = torch.cuda.Event()
        event.record()
        if before is not None:
            before.synchronize()  # one batch stays queued: the GPU never waits for the host
        before = event


def rounds_for(ms, quick=False):
    """How many pairs: fewer of what takes long."""
    return 3 if quick else 15 if ms < 1 else 11 if ms < 4 else 7 if ms < 20 else 5


def pairs(base, candidate, protocol, rounds, warm=2):
    """`candidate` timed in pairs with `base`."""
    if protocol == "burst":
        torch.cuda.synchronize()
        time.sleep(IDLE)
    else:
        busy(base)
    for _ in range(warm):
        base()
        candidate()
    events = []
    for _ in range(rounds):
        e = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
        e[0].record()
        base()
        e[1].record()
        e[2].record()
        candidate()
        e[3].record()
        events.append(e)
    torch.cuda.synchronize()
    base_ms = statistics.median(e[0].elapsed_time(e[1]) for e in events)
    ms = statistics.median(e[2].elapsed_time(e[3]) for e in events)
    return Timed(ms / base_ms, ms, base_ms)


def both(base, candidate, quick=False):
    """Under each protocol."""
    base()
    candidate()
    torch.cuda.synchronize()
    start = time.monotonic()
    base()
    torch.cuda.synchronize()
    rounds = rounds_for(1e3 * (time.monotonic() - start), quick)
    return {protocol: pairs(base, candidate, protocol, rounds) for protocol in PROTOCOLS}


def milliseconds(work, rounds=9):
    """The median of work alone, sustained."""
    busy(work)
    events = []
    for _ in range(rounds):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        work()
        b.record()
        events.append((a, b))
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in events)


def cublas(gemm, device="cuda"):
    """The bare product of cuBLAS on random bf16 operands of its own, as a function."""
    def operand(rows, columns, transposed):
        shape = (columns, rows) if transposed else (rows, columns)
        t = torch.randn(shape, device=device, dtype=torch.bfloat16)
        return t.t() if transposed else t

    left = operand(gemm.m, gemm.k, gemm.left == "M")
    right = operand(gemm.k, gemm.n, gemm.right == "K")
    out = torch.empty(gemm.m, gemm.n, device=device, dtype=torch.bfloat16)
    return lambda: torch.mm(left, right, out=out)


def copy_of(total, device="cuda"):
    """A device copy that moves `total` bytes, read and written together."""
    source = torch.randint(0, 255, (total // 2,), device=device, dtype=torch.uint8)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def peak_tflops(gemms):
    """The best sustained rate of cuBLAS over these products."""
    best = 0.0
    for gemm in gemms:
        best = max(best, gemm.flops / milliseconds(cublas(gemm)) / 1e9)
        torch.cuda.empty_cache()
    return best


def copy_bandwidth(total=8 << 30):
    """Bytes per second of a large device copy, reads and writes counted."""
    return total / milliseconds(copy_of(total)) * 1e3


def gpu_state():
    """What nvidia-smi says of the first GPU now, as strings; {} without it."""
    fields = ("name", "driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "power.draw",
              "power.limit", "temperature.gpu")
    command = ["nvidia-smi", "--query-gpu=" + ",".join(fields), "--format=csv,noheader,nounits",
               "--id=0"]
    try:
        text = subprocess.run(command, capture_output=True, text=True, timeout=20).stdout
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return dict(zip(fields, (v.strip() for v in text.strip().split(","))))


def machine(work=None):
    """GPU, driver, versions, clocks; with `work`, the clocks while it runs."""
    torch.cuda.synchronize()
    idle = gpu_state()
    loaded = {}
    if work:
        busy(work, 0.5)
        for _ in range(500):  # what runs while nvidia-smi reads
            work()
        loaded = gpu_state()
        torch.cuda.synchronize()
    clocks = {"idle": idle.get("clocks.sm"), "sustained": loaded.get("clocks.sm"),
              "memory": loaded.get("clocks.mem"), "max": idle.get("clocks.max.sm"),
              "power": loaded.get("power.draw"), "power_limit": idle.get("power.limit"),
              "temperature": loaded.get("temperature.gpu")}
    return {"gpu": torch.cuda.get_device_name(), "driver": idle.get("driver_version"),
            "clocks": clocks,
            "versions": {"torch": torch.__version__, "cuda": torch.version.cuda,
                         "cublas": _cublas_version()}}


def _cublas_version():
    from importlib import metadata
    for name in ("nvidia-cublas", "nvidia-cublas-cu13", "nvidia-cublas-cu12"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            pass
    return None
