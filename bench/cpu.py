#!/usr/bin/env python3
"""Times CODA's programs on the CPU beside PyTorch, eager and compiled, and beside the unfused
sequence on whole products of oneDNN, all interleaved in one run. docs/cpu.md says what the figures
mean."""

import argparse
import datetime
import json
import math
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
ROOT = HERE.parent
DTYPES = ("bf16", "f32")
# Compiling a rival takes seconds: at the larger widths only these are compiled.
ALWAYS_COMPILED = ("residual_norm", "layer_forward", "layer_step")


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", help="only these cases, like residual_norm; `train` is "
                        "the small model")
    parser.add_argument("--quick", action="store_true", help="one width, few rounds, nothing "
                        "compiled by torch")
    parser.add_argument("--threads", default="1,2", help="numbers of threads (1,2)")
    parser.add_argument("--width", type=int, action="append", help="N = K (1024 and 2048)")
    parser.add_argument("--dtype", action="append", choices=DTYPES)
    parser.add_argument("--seconds", type=float, default=2.0, help="of timing a row, about")
    parser.add_argument("--rivals", default="unfused,torch_eager,torch_compile")
    parser.add_argument("--library", help="libcoda_bench_cpu.so (build/libcoda_bench_cpu.so)")
    parser.add_argument("--output", type=Path, help="bench/results/cpu-DATE.json")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.width = options.width or ([1024] if options.quick else [1024, 2048])
    options.dtype = options.dtype or list(DTYPES)
    options.rivals = options.rivals.split(",")
    if options.quick:
        options.seconds = min(options.seconds, 0.5)
        options.rivals = [r for r in options.rivals if r != "torch_compile"]
    return options


# ---- one process for each number of threads ----

class Clock:
    """Seconds of work: of this thread's CPU time where it works alone, which neighbours on the
    machine disturb less; else of the wall."""

    def __init__(self, threads):
        self.now = time.thread_time if threads == 1 else time.perf_counter

    def of(self, work):
        start = self.now()
        work()
        return self.now() - start


def interleaved(clock, runs, seconds):
    """Seconds of each, by name, round by round: all of them run in each round."""
    for run in runs.values():
        run()
    once = sum(clock.of(run) for run in runs.values())
    rounds = max(3, min(25, int(seconds / max(once, 1e-6))))
    times = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            times[name].append(clock.of(run))
    return times


def texts(library, case, dtype):
    """The text and its names, and those of its unfused rival."""
    from cpu_cases import in_f32
    source, f32 = case.source, dtype == "f32"
    options = dict(source.options)
    block = source.block or source.names[0]
    if source.block:
        own = library.rewrite(source.file, block, case.shape, f32=f32, **options)
    else:
        own = source.file.read_text()
        own = in_f32(own) if f32 else own
    rival = library.rewrite(source.file, block, case.shape, f32=f32, unfused=True, **options)
    return own, rival, source.names


def opened(library, text, names, case, threads, whole=False):
    return [library.open(text, name, case.shape, "cpu", threads=threads, whole_products=whole)
            for name in names]


def in_turn(bound):
    def run():
        for each in bound:
            each()
    return run


def agreement(runs, bound, rival_runs, rival_bound, tensors, dtype):
    """The worst distance between our results and the unfused sequence's; whether it is small."""
    import check
    accumulated = {r["name"]: tensors[r["name"]].clone()
                   for run in runs for r in run.results if r["accumulates"]}
    ours = {}
    for which in (bound, rival_bound):
        for name, before in accumulated.items():
            tensors[name].copy_(before)
        for run in which:
            run()
        if which is bound:
            ours = {r["name"]: tensors[r["name"]].clone() for run in runs for r in run.results}
    shared = set(ours) & {r["name"] for run in rival_runs for r in run.results}
    worst = max(check.distance(ours[n].float(), tensors[n].float()) for n in sorted(shared))
    return worst, worst < (3e-2 if dtype == "bf16" else 1e-4)


def measure(library, case, dtype, threads, options, generator):
    import torch
    import check
    own_text, rival_text, names = texts(library, case, dtype)
    runs = opened(library, own_text, names, case, threads)
    rivals = opened(library, rival_text, names, case, threads, whole=True)
    tensors = check.draw_all(runs + rivals, {}, "cpu", generator)
    bound = [r.bind(tensors, "cpu") for r in runs]
    rival_bound = [r.bind(tensors, "cpu") for r in rivals]
    error, right = agreement(runs, bound, rivals, rival_bound, tensors, dtype)
    timed, notes = {"coda": in_turn(bound)}, []
    if "unfused" in options.rivals:
        timed["unfused"] = in_turn(rival_bound)
    if "torch_eager" in options.rivals:
        timed["torch_eager"] = case.eager(tensors)
    wanted = case.compiled and (case.width == min(options.width) or case.case in ALWAYS_COMPILED)
    if "torch_compile" in options.rivals and wanted:
        try:
            torch._dynamo.reset()
            made = case.compiled(tensors, lambda f: torch.compile(f, dynamic=False))
            made()
            timed["torch_compile"] = made
        except Exception as failure:  # no compiler, or another project's fault: a fact of the row
            notes.append(f"torch_compile: {repr(failure)[:200]}")
    clock = Clock(threads)
    times = interleaved(clock, timed, options.seconds)
    ratios = {name: statistics.median(a / b for a, b in zip(times["coda"], rival))
              for name, rival in times.items() if name != "coda"}
    seconds = statistics.median(times["coda"])
    flops = sum(2 * m * n * k for r in runs for s in r.facts["steps"] for m, n, k in s["products"])
    goals = {name: goal for (name, kind), goal in case.goals.items() if kind == dtype}
    return {"case": case.case, "dtype": dtype, "width": case.width, "shape": case.shape,
            "threads": threads, "rivals": ratios, "ms": 1e3 * seconds,
            "rival_ms": {n: 1e3 * statistics.median(t) for n, t in times.items() if n != "coda"},
            "rounds": len(times["coda"]), "gflops": flops / seconds / 1e9,
            "kernels": sum(len(r.facts["steps"]) for r in runs),
            "unfused_calls": sum(len(r.facts["steps"]) for r in rivals),
            "epilogue": case.epilogue, "error": error, "correct": right, "goals": goals,
            "notes": notes}


def peak_of(library, dtype, threads):
    """The best of whole products of oneDNN here, in GFLOP/s."""
    import check
    import torch
    from cpu_cases import in_f32
    best, clock = 0.0, Clock(threads)
    text = (ROOT / "programs" / "linear.coda").read_text()
    text = in_f32(text) if dtype == "f32" else text
    for width in (1024, 2048):
        sizes = {"M": 2048, "N": width, "K": width}
        run = library.open(text, "linear_grad", sizes, "cpu", threads=threads, whole_products=True)
        work = run.bind(check.draw_all([run], {}, "cpu", torch.Generator()), "cpu")
        work()
        best = max(best, 2 * 2048 * width**2 / min(clock.of(work) for _ in range(7)) / 1e9)
    return best


def child(options):
    """All rows at one number of threads, a line of JSON each."""
    import torch
    from coda_library import CodaError, Library
    from cpu_cases import all_cases
    threads = options.child
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no row

    def say(row):
        out.write(json.dumps(row) + "\n")
        out.flush()

    library = Library()
    generator = torch.Generator().manual_seed(7)
    say({"peaks": {dtype: peak_of(library, dtype, threads) for dtype in options.dtype}})
    for case in all_cases(options.width):
        for dtype in options.dtype:
            if options.what and case.case not in options.what:
                continue
            try:
                say(measure(library, case, dtype, threads, options, generator))
            except (CodaError, RuntimeError, ValueError) as error:
                say({"case": case.case, "dtype": dtype, "width": case.width, "shape": case.shape,
                     "threads": threads, "rivals": {}, "failed": str(error)[:500]})
    if not options.what or "train" in options.what:
        from cpu_train import measure_training
        say(measure_training(threads, options))


def cores(count):
    """So many CPUs that this process may use, each of a core of its own where there are enough."""
    allowed = sorted(os.sched_getaffinity(0))

    def core(cpu):
        path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        return path.read_text() if path.exists() else str(cpu)
    first = list({core(cpu): cpu for cpu in reversed(allowed)}.values())[::-1]
    return (first + [cpu for cpu in allowed if cpu not in first])[:count]


def rows_of(threads, arguments):
    """Runs the child on cores of its own and yields what it says."""
    cpus = cores(threads)
    if len(cpus) < threads:
        raise ValueError(f"{threads} threads, but only {len(cpus)} CPUs may be used")
    given = {**os.environ, "OMP_NUM_THREADS": str(threads), "CODA_THREADS": str(threads)}

    def prepare():
        os.sched_setaffinity(0, cpus)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that reports

    process = subprocess.Popen(
        [sys.executable, __file__, *arguments, "--child", str(threads)], env=given, text=True,
        stdout=subprocess.PIPE, preexec_fn=prepare)
    try:
        for line in process.stdout:
            yield json.loads(line)
    finally:
        process.terminate()
        process.wait()
    if process.returncode not in (0, -15):
        raise RuntimeError(f"the process for {threads} threads ended with {process.returncode}")


# ---- the report ----

def geomean(values):
    values = list(values)
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def summary(results):
    """Goals, as sentences."""
    lines, rows = [], [r for r in results["rows"] if r.get("rivals")]
    for threads in sorted({r["threads"] for r in rows}):
        here = [r for r in rows if r["threads"] == threads]
        for dtype in DTYPES:
            gains = {f"{r['case']} {r['width']}": 1 / r["rivals"]["unfused"] for r in here
                     if r["dtype"] == dtype and r.get("epilogue") and "unfused" in r["rivals"]}
            if gains:
                worst = min(gains, key=gains.get)
                lines.append(f"{threads} threads, {dtype}: {len(gains)} epilogue programs over the "
                             f"unfused sequence {geomean(gains.values()):.3f}× (goal 1.1 in bf16), "
                             f"least {gains[worst]:.3f} ({worst}; goal 0.97)")
    for row in rows:
        for name, goal in row.get("goals", {}).items():
            got = row["rivals"].get(name)
            if got is not None:
                lines.append(f"{row['threads']} threads, {row['dtype']}: {row['case']} "
                             f"{row['width']} takes {got:.3f} of {name}'s time, goal {goal:.3f}"
                             f"{'' if got <= goal else '  MISSED'}")
    lines += [f"WRONG: {r['case']} {r['dtype']} {r['width']}: off by {r['error']:.2g}"
              for r in rows if r.get("correct") is False]
    lines += [f"failed: {r['case']} {r['dtype']} {r['width']}: {r['failed']}"
              for r in results["rows"] if r.get("failed")]
    return "\n".join(lines)


def picture(results, path):
    """Our time over each rival's, a line of marks for each case."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    from report import replace_with_figure
    rows = [r for r in results["rows"] if r["rivals"]]
    panels = sorted({(r["threads"], r["dtype"]) for r in rows})
    names = list(dict.fromkeys(f"{r['case']} {r['width']}" for r in rows))
    figure, axes = pyplot.subplots(1, len(panels), squeeze=False, sharey=True, layout="constrained",
                                   figsize=(3.2 * len(panels) + 2, 1.5 + 0.2 * len(names)))
    marks = {"unfused": ("o", "C0"), "torch_eager": ("s", "C1"), "torch_compile": ("^", "C2")}
    for axis, (threads, dtype) in zip(axes[0], panels):
        for row in rows:
            if (row["threads"], row["dtype"]) == (threads, dtype):
                place = len(names) - names.index(f"{row['case']} {row['width']}")
                for rival, ratio in row["rivals"].items():
                    mark, color = marks[rival]
                    axis.plot(ratio, place, mark, color=color, markersize=4, label=rival)
        axis.axvline(1, color="black", lw=0.8)
        axis.set_title(f"{dtype}, {threads} thread{'s' * (threads > 1)}", fontsize=9)
        axis.grid(alpha=0.3)
    axes[0][0].set_yticks(range(len(names), 0, -1), names, fontsize=6)
    handles = dict(zip(*reversed(axes[0][0].get_legend_handles_labels())))
    axes[0][0].legend(handles.values(), handles.keys(), fontsize=6)
    figure.supxlabel(f"our time over the rival's: {results['cpu']}, {results['date']}", fontsize=8)
    replace_with_figure(figure, path)


def cpu_name():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def machine(library_path):
    """What ran where."""
    import torch
    flags = next((line for line in Path("/proc/cpuinfo").read_text().splitlines()
                  if line.startswith("flags")), "").split()
    facts = {"date": datetime.date.today().isoformat(), "cpu": cpu_name(),
             "cores": len(os.sched_getaffinity(0)),
             "features": [f for f in ("avx512f", "avx512_bf16", "amx_bf16") if f in flags],
             "versions": {"torch": torch.__version__, "python": platform.python_version()}}
    command = Path(library_path).parent / "coda"
    if command.exists():
        found = subprocess.run([command, "env", "--json"], capture_output=True, text=True)
        if found.returncode == 0:
            said = json.loads(found.stdout)
            facts["versions"] |= {"coda": said["coda"], "onednn": said["onednn"]}
            facts |= {key: said.get(key) for key in ("products", "simd")}
    return facts


def main(arguments=None):
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parse(arguments)
    library = options.library or os.environ.get("CODA_BENCH_LIBRARY")
    library = Path(library or ROOT / "build" / "libcoda_bench_cpu.so").resolve()
    os.environ["CODA_BENCH_LIBRARY"] = str(library)
    # The command finds what lies beside the library, as on a machine where nothing was built.
    paths = [str(library.parent), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    os.environ["LD_LIBRARY_PATH"] = ":".join(paths)
    if options.child:
        return child(options)
    from report import write
    start, results = time.monotonic(), {**machine(library), "peak_gflops": {}, "rows": []}
    results["run"] = {"quick": options.quick, "seconds": options.seconds}
    if "torch_compile" in options.rivals and not any(
            shutil.which(c) for c in (os.environ.get("CXX", "g++"), "clang++")):
        results["run"]["note"] = "no C++ compiler: nothing compiled by torch"
        arguments = [*arguments, "--rivals", "unfused,torch_eager"]
        print(results["run"]["note"])
    folder = Path(os.environ.get("OUT") or HERE / "results")
    output = options.output or folder / f"cpu-{results['date']}.json"
    print(f"{results['cpu']}, {results.get('products', '')}\n{'case':<23} {'width':>5} "
          f"{'dtype':>5} {'threads':>7} {'ms':>8} {'GFLOP/s':>8} {'% peak':>6}  our time over …")
    stopped = ""
    try:
        for threads in map(int, options.threads.split(",")):
            for row in rows_of(threads, arguments):
                if "peaks" in row:
                    peaks = {f"{d}, {threads}": p for d, p in row["peaks"].items()}
                    results["peak_gflops"] |= peaks
                    continue
                results["rows"].append(row)
                if row.get("gflops"):
                    peak = results["peak_gflops"][f"{row['dtype']}, {threads}"]
                    row["peak_percent"] = 100 * row["gflops"] / peak
                rivals = "  ".join(f"{n} {r:.3f}" for n, r in row["rivals"].items())
                wrong = "" if row.get("correct", True) else "  WRONG"
                print(f"{row['case']:<23} {row.get('width', ''):>5} {row['dtype']:>5} "
                      f"{row['threads']:>7} {row.get('ms', 0):>8.1f} {row.get('gflops', 0):>8.0f} "
                      f"{row.get('peak_percent', 0):>6.1f}  {rivals}{row.get('failed', '')}{wrong}",
                      flush=True)
                write(output, json.dumps(results, indent=1) + "\n")
    except KeyboardInterrupt:
        stopped = "interrupted: the rows so far are written"
    except (RuntimeError, ValueError) as error:
        stopped = str(error)
    results["run"]["minutes"] = (time.monotonic() - start) / 60
    write(output, json.dumps(results, indent=1) + "\n")
    try:
        picture(results, output.with_suffix(".svg"))
    except ImportError as error:
        print(f"no picture: {error}")
    print(f"{summary(results)}\n{output}, {results['run']['minutes']:.1f} minutes"
          f"{'; ' + stopped if stopped else ''}")
    return 1 if stopped or any(r.get("failed") or r.get("correct") is False
                               for r in results["rows"]) else 0


if __name__ == "__main__":
    sys.exit(main())
