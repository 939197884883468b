"""Seconds from a text to a finished first run: cold, with an empty cache; warm, in a new process.
And what a launch costs the host, and whether a CUDA graph of it gives the same bits.

The CUDA context exists before the clock starts, tensors too. The first kernel of a process also
loads the compiler; it is listed apart.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

GOALS = {"kernel": 0.8, "layer": 3.0, "warm": 0.020, "launch": 5e-6}  # s
KERNELS = ("gemm forward", "residual_norm", "norm_swiglu", "swiglu_backward", "norm_backward mlp",
           "norm_rope", "qk_norm_rope", "weight_grad gate, up", "head_forward", "rmsnorm_rows",
           "layernorm_rows", "rope_norm_grad", "adamw_master")


def timed_cases(what):
    from cases import all_cases
    if what == "layer":
        return [c for c in all_cases(["layer"])
                if c.width == 2048 and c.case == "layer_forward_backward"]
    found = {}
    for case in all_cases():
        name = f"{case.case} {case.variant}".strip()
        if name in KERNELS and case.width in (2048, 4096, 8192):
            found.setdefault(name, case)
    return list(found.values())


def child(what):
    """In a process of its own: one line of JSON a case."""
    import torch
    from coda_library import DTYPES, Library
    library = Library()
    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    for case in timed_cases(what):
        text, names = case.source.text(library, case.shape)
        tensors = {}
        for name in names:  # shapes only
            shown = library.open(text, name, case.shape)
            for t in shown.params + shown.results:
                if t["name"] not in tensors:
                    tensors[t["name"]] = torch.zeros(t["shape"], dtype=DTYPES[t["dtype"]],
                                                     device="cuda")
        torch.cuda.synchronize()
        start = time.perf_counter()
        with ThreadPoolExecutor() as pool:  # forward and backward at the same time
            opened = list(pool.map(lambda n: library.open(text, n, case.shape, "cuda"), names))
        compiled = time.perf_counter()
        for run in opened:
            run.bind(tensors)()
        torch.cuda.synchronize()
        end = time.perf_counter()
        kernels = sum(len(o.facts["steps"]) for o in opened)
        print(json.dumps({"case": f"{case.case} {case.variant}".strip(), "kernels": kernels,
                          "seconds": end - start, "open": compiled - start,
                          "parse": sum(o.facts["parse_seconds"] for o in opened)}), flush=True)
        del opened, tensors
        torch.cuda.empty_cache()


def run_child(what, cache):
    command = [sys.executable, str(Path(__file__).resolve()), what]
    result = subprocess.run(command, env={**os.environ, "CODA_CACHE": str(cache)}, text=True,
                            capture_output=True, timeout=300)
    if result.returncode:
        raise RuntimeError(f"compile times, {what}: {result.stderr[-1500:]}")
    return [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]


def measure_compile(elapsed):
    """{case: {"cold", "warm", "kernels"}}, printed as it goes."""
    made = {}
    print(f"{'text to a finished first run':<34} {'kernels':>7} {'cold s':>8} {'warm ms':>8}",
          flush=True)
    for what in ("kernels", "layer"):
        with tempfile.TemporaryDirectory() as cache:
            try:
                cold, warm = run_child(what, cache), run_child(what, cache)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                print(f"{elapsed()} failed: {error}")
                made[what] = {"failed": str(error)[-500:]}
                continue
        for index, (c, w) in enumerate(zip(cold, warm)):
            row = {"kernels": c["kernels"], "cold": c["seconds"], "warm": w["seconds"],
                   "first": index == 0}
            goal = GOALS["layer" if what == "layer" else "kernel"]
            row["met"] = c["seconds"] <= goal and w["seconds"] <= GOALS["warm"]
            made[c["case"]] = row
            print(f"{c['case']:<34} {c['kernels']:>7} {c['seconds']:>8.3f} "
                  f"{1e3 * w['seconds']:>8.1f}{'' if row['met'] else '  !'}"
                  f"{'  loads the compiler' if row['first'] else ''}", flush=True)
    print(f"{elapsed()} goals: {GOALS['kernel']} s a kernel, {GOALS['layer']} s the layer, "
          f"{1e3 * GOALS['warm']:.0f} ms warm", flush=True)
    return made


def launched(library, case, generator):
    """The host's seconds a launch, the median of five; whether a captured graph, replayed on other
    inputs, gives the bits of a plain run."""
    import torch
    from check import draw_all
    text, names = case.source.text(library, case.shape)
    opened = library.open(text, names[0], case.shape, "cuda")
    results = [r["name"] for r in opened.results]
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        tensors = draw_all([opened], {}, "cuda", generator)
        run = opened.bind(tensors)
        run()
        stream.synchronize()
        # Few enough that none waits for a place in the queue.
        seconds = []
        for _ in range(5):
            seconds.append(run.repeat(200))
            stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        run()
    for name, other in draw_all([opened], {}, "cuda", generator).items():
        tensors[name].copy_(other)
    start = {name: tensors[name].clone() for name in results}
    torch.cuda.synchronize()
    run()
    torch.cuda.synchronize()
    plain = {name: tensors[name].clone() for name in results}
    for name in results:
        tensors[name].copy_(start[name])
    torch.cuda.synchronize()
    graph.replay()
    torch.cuda.synchronize()
    bits = lambda t: t.contiguous().view(-1).view(torch.uint8)
    same = all(torch.equal(bits(tensors[name]), bits(plain[name])) for name in results)
    return sorted(seconds)[2], same


def measure_launches(elapsed):
    """{case: {"launch", "graph"}}, printed as it goes."""
    import torch
    from cases import Case, program
    from coda_library import Library
    library, made = Library(), {}
    generator = torch.Generator(device="cuda").manual_seed(1)
    small = (("norm", "residual_norm", {"M": 256, "N": 256, "K": 256}),
             ("gated", "norm_swiglu", {"M": 256, "K": 256, "F": 256}),
             ("weight_grad", "weight_grad", {"M": 256, "N": 256, "K": 256}),
             ("norm", "rmsnorm_rows", {"M": 64, "D": 256}))
    for file, name, shape in small:
        case = Case("compile", name, 256, shape, program(file, name), "")
        seconds, same = launched(library, case, generator)
        made[name] = {"launch": seconds, "graph": same,
                      "met": same and seconds <= GOALS["launch"]}
        print(f"{name:<34} {1e6 * seconds:.2f} us of the host a launch; a CUDA graph of it gives "
              f"{'the same bits' if same else 'OTHER BITS'}{'' if made[name]['met'] else '  !'}",
              flush=True)
    print(f"{elapsed()} goal: {1e6 * GOALS['launch']:.0f} us", flush=True)
    return made


if __name__ == "__main__":
    child(sys.argv[1])
