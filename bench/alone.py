#!/usr/bin/env python3
"""Bare products under sustained load, each alone: the tiles here and cuBLAS, one after the other,
for half a second each. Pairs of candidates that alternate share a clock, and hide that one of them
draws more power; a training step does not. Prints times, TFLOP/s and the clock; writes rows as
JSON with --output. With --hold N also beside a kernel that holds N processors, as a collective's
does."""

import argparse
import datetime
import gc
import json
import statistics
import sys
import time
from pathlib import Path

import torch

from cases import Gemm
from check import draw_all
from coda_library import CodaError, Library
from protocol import busy, cublas, gpu_state, milliseconds
from report import write

TEXT = """coda 1
program forward(x: bf16[M, K], w: bf16[N, K]) -> (y: bf16[M, N]) {
  y = x @ w
}
program weights(dz: bf16[M, N], x: bf16[M, K]) -> (dw: bf16[N, K]) {
  dw = dz @ x
}
program data(dz: bf16[M, N], w: bf16[N, K]) -> (dx: bf16[M, K]) {
  dx = dz @ w
}
"""
GEMMS = {"forward": lambda m, n, k: Gemm(m, n, k),
         "weights": lambda m, n, k: Gemm(n, k, m, "M", "N"),
         "data": lambda m, n, k: Gemm(m, k, n, right="N")}
# Blocks that leave no room for others, for so long.
HOLD = """
extern "C" __global__ void hold(int microseconds) {
  extern __shared__ char room[];
  unsigned long long start, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do {
    __nanosleep(500);
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - start < microseconds * 1000ull);
}
"""
ROOM = 200 << 10  # bytes of shared memory
# N, K of a Llama-3 1B: gate, down, q and o, q k v, head.
SHAPES = ((8192, 2048), (2048, 8192), (2048, 2048), (3072, 2048), (128256, 2048))


def alone(work, ms, seconds):
    """(ms a run, MHz): after as long without a pause."""
    count = max(2, round(seconds * 1e3 / ms))
    busy(work, seconds)
    for _ in range(count):  # what runs while nvidia-smi reads
        work()
    mhz = gpu_state().get("clocks.sm")
    return milliseconds(work, count), mhz


def beside(work, ms, hold, blocks, rounds=9):
    """ms of a run that begins when `blocks` processors are held, and ends before they are let go,
    after a pause."""
    side, times = torch.cuda.Stream(), []
    for _ in range(rounds):
        if blocks:
            hold((blocks, 1, 1), (128, 1, 1), [int((4 * ms + 1) * 1e3)], ROOM, side)
        time.sleep(3e-4)
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        work()
        b.record()
        torch.cuda.synchronize()
        times.append(a.elapsed_time(b))
    return statistics.median(times)


def rows_of(library, kind, m, n, k, tiles, seconds, hold=None, blocks=0):
    gemm = GEMMS[kind](m, n, k)
    sizes = {"M": m, "N": n, "K": k}
    works = {"cublas": cublas(gemm)}
    tensors = None
    for tile in tiles or library.tiles(TEXT, kind, sizes):
        try:
            program = library.open(TEXT, kind, sizes, "cuda", tile)
        except CodaError as error:
            print(f"{kind} {n} x {k} {tile}: {str(error).splitlines()[0]}", flush=True)
            continue
        if tensors is None:
            tensors = draw_all([program], {}, "cuda", torch.Generator("cuda").manual_seed(1))
        works[tile] = program.bind(tensors, "cuda")
    rows, near = [], gemm.flops / 680e9
    for name, work in works.items():
        ms, mhz = alone(work, near, seconds)
        rows.append({"product": kind, "M": m, "N": n, "K": k, "by": name, "ms": ms, "mhz": mhz})
        held = ""
        if hold:
            times = [beside(work, ms, hold, b) for b in (0, blocks)]
            rows[-1].update(held=blocks, free_ms=times[0], held_ms=times[1])
            held = f"; {blocks} of 132 held: {times[1] / times[0]:.2f} of none held"
        rate = gemm.flops / ms / 1e9
        print(f"{kind:8s} {n:6d} x {k:5d} {name:14s} {ms:8.4f} ms {rate:4.0f} TFLOP/s "
              f"{rate / 9.89:3.0f} % of 989, {mhz} MHz, {ms / rows[0]['ms']:.3f} of cuBLAS{held}",
              flush=True)
    return rows


def write_rows(path, rows):
    """As JSON, with the date, the GPU and the versions."""
    write(path, json.dumps({
        "date": datetime.date.today().isoformat(), "gpu": torch.cuda.get_device_name(),
        "versions": {"torch": torch.__version__}, "rows": rows}, indent=1))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("products", nargs="*", default=list(GEMMS), help=", ".join(GEMMS))
    parser.add_argument("--rows", type=int, default=32768, help="M")
    parser.add_argument("--tiles", default="", help="128x192,… ; all candidates if not given")
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--hold", type=int, default=0, help="processors that others hold")
    options = parser.parse_args()
    library, rows, hold = Library(), [], None
    if options.hold:
        hold = torch.cuda._compile_kernel(HOLD, "hold")
        hold.set_shared_memory_config(ROOM)
    tiles = list(filter(None, options.tiles.split(",")))
    for kind in options.products:
        for n, k in SHAPES:
            rows += rows_of(library, kind, options.rows, n, k, tiles, options.seconds, hold,
                            options.hold)
            gc.collect()
            torch.cuda.empty_cache()
    if options.output:
        write_rows(options.output, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
