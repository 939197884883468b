#!/usr/bin/env python3
"""Times CODA's programs on the GPU beside cuBLAS and other rivals, each checked before it is timed.

docs/benchmarks.md says what the figures mean. `coda bench` runs this.
"""

import argparse
import datetime
import gc
import math
import os
import sys
import time
from pathlib import Path

try:
    import torch
except ImportError:
    sys.exit("coda bench: this python3 has no PyTorch: pip install torch, or run `coda bench`, "
             "which looks for one that has")

sys.path.insert(0, str(Path(__file__).resolve().parent))

import report
from cases import Case, Gemm, HIDDEN, PARTS, Source, all_cases
from coda_library import CodaError, DTYPES, Library, ROOT

DEVICE = "cuda"  # tests set "cpu", and stand in for the clock
PEAK = (Gemm(8192, 8192, 8192), Gemm(16384, 4096, 4096), Gemm(16384, 8192, 8192))
QUICK_PEAK = PEAK[:1]


def parse(arguments):
    parser = argparse.ArgumentParser(prog="coda bench", description=__doc__.split("\n")[0])
    parser.add_argument("what", nargs="*", help="parts (%s, compile), cases (residual_norm) or "
                        "program files (mine.coda:name, with --size); all parts if not given"
                        % ", ".join(PARTS))
    parser.add_argument("--device", default="cuda", choices=["cuda"])
    parser.add_argument("--layer", type=int, action="append", metavar="D", help="the layer part at "
                        "width D: " + ", ".join(map(str, HIDDEN)))
    parser.add_argument("--head", action="store_true", help="the head part")
    parser.add_argument("--width", type=int, action="append", help="only these widths")
    parser.add_argument("--size", nargs="+", default=[], help="sizes of program files: M=1024 …")
    parser.add_argument("--tile", default="", help="pin a candidate of the planner")
    parser.add_argument("--tiles", action="store_true", help="every candidate tile in turn")
    parser.add_argument("--rivals", default=None, help="only these, like torch.compile,quack; "
                        "none: no rivals")
    parser.add_argument("--quick", action="store_true", help="few rounds, no rivals")
    parser.add_argument("--no-check", action="store_true", help="do not compare results first")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="stop cleanly in time, and "
                        "say what was not run")
    parser.add_argument("--dry-run", action="store_true", help="list the rows with their flops and "
                        "bytes; needs no GPU")
    parser.add_argument("--library", help="libcoda_bench.so (build/libcoda_bench.so)")
    parser.add_argument("--output", help="results file; merged with what it holds "
                        "(bench/results/h200-DATE.json)")
    return parser.parse_args(arguments)


def sizes_from(words):
    pairs = [word.partition("=") for word in words]
    if any(not sep or not value.isdigit() for _, sep, value in pairs):
        sys.exit("coda bench: --size takes NAME=NUMBER, like M=1024")
    return {name: int(value) for name, _, value in pairs}


def own_case(library, file, name, sizes):
    """A program, schedule or block of any file; its products, each alone, are the base."""
    runs = [library.open(file, name, sizes)]
    name = runs[0].facts["name"]
    source = Source(file, (name,), name if runs[0].facts["kind"] == "block" else "")
    gemms = tuple(Gemm(*p) for r in runs for s in r.facts["steps"] for p in s["products"])
    return Case("program", name, 0, sizes, source, "", gemms, rivals=())


def chosen(options, library):
    """The cases that the command line names."""
    words, made = list(options.what), []
    if options.head:
        words.append("head")
    if options.layer:
        made += [c for c in all_cases(["layer"]) if c.width in options.layer]
        if not made:
            sys.exit(f"coda bench: no layer of width {options.layer}: give one of {list(HIDDEN)}")
    if not words and not options.layer:
        words = list(PARTS)
    every = all_cases()
    for word in words:
        if word == "compile":
            continue
        file, _, name = word.partition(":")
        if file.endswith(".coda"):
            made.append(own_case(library, Path(file), name, sizes_from(options.size)))
            continue
        found = [c for c in every if word in (c.part, c.case)]
        if not found:
            names = sorted({c.part for c in every} | {c.case for c in every} | {"compile"})
            sys.exit(f"coda bench: `{word}` is no part and no case; there are {', '.join(names)}")
        made += found
    if options.width:
        made = [c for c in made if c.width in options.width]
    return list({c.part + c.label: c for c in made}.values())


def opened(library, case, device="", tile=""):
    """Its programs or schedules, in order; without a device only described."""
    text, names = case.source.text(library, case.shape)
    return [library.open(text, name, case.shape, device, tile) for name in names]


def counts(case, runs):
    """Flops (of the products, where there are any) and bytes of what is timed, from the programs
    themselves."""
    timed = runs[case.extra.get("timed_from", 0):]
    products = sum(2 * m * n * k for r in timed for s in r.facts["steps"]
                   for m, n, k in s["products"])
    flops = products or sum(r.facts["flops"] for r in timed)
    return flops, sum(r.facts["bytes"] for r in timed)


def empty_row(case, runs=()):
    flops, moved = counts(case, runs)
    base = "cublas" if case.gemms else "copy"
    return {"part": case.part, "case": case.case, "variant": case.variant, "width": case.width,
            "shape": case.shape, "label": case.label, "base": base, "sustained": None,
            "burst": None, "rivals": {}, "flops": flops, "bytes": moved,
            "kernels": sum(len(r.facts["steps"]) for r in runs[case.extra.get("timed_from", 0):]),
            "goal": case.goal, **{k: v for k, v in case.extra.items() if k == "sizes"}}


def kept_bytes(runs):
    """What the first run stores only for those after it."""
    later = {p["name"] for r in runs[1:] for p in r.params}
    first = {r["name"]: r for r in runs[0].results if r["name"] in later}
    return sum(math.prod(r["shape"]) * DTYPES[r["dtype"]].itemsize for r in first.values())


def judge(case, row):
    """Whether the goal is met; None where there is none or nothing was timed."""
    goals = [(row["sustained"], case.goal, "sustained"), (row["burst"], case.burst_goal, "burst"),
             (row.get("ms"), case.goal_ms, "ms"),
             (row.get("extra_bytes"), case.extra.get("most_bytes"), "bytes kept and scratch")]
    goals = [(got, goal, what) for got, goal, what in goals if goal is not None]
    row["goal_text"] = "goal " + ", ".join(f"{goal:.6g} {what}" for _, goal, what in goals)
    if not goals or row["sustained"] is None:
        row["met"] = None
    else:
        row["met"] = all(got <= goal for got, goal, _ in goals) and row.get("correct") is not False


def measure(library, case, options, tile, generator, deadline):
    """One row: opened, checked, timed, and its rivals."""
    from check import check, draw_all
    from protocol import both, copy_of, cublas
    from rivals import rival
    start = time.monotonic()
    runs = opened(library, case, "cuda" if DEVICE == "cuda" else "reference", tile)
    row = empty_row(case, runs)
    row["compile_seconds"] = sum(r.facts["compile_seconds"] for r in runs)
    row["notes"] = [s.get("note", "") for r in runs for s in r.facts["steps"]]
    row["scratch_bytes"] = max(r.facts["scratch"] for r in runs)
    row["extra_bytes"] = row["scratch_bytes"] + kept_bytes(runs)
    row["tile"] = tile
    tensors = draw_all(runs, {}, DEVICE, generator)
    bound = [r.bind(tensors, DEVICE) for r in runs]
    row["correct"] = row["same_bits"] = None
    if case.formula and not options.no_check:
        row["errors"], row["same_bits"] = check(case, runs, bound, tensors, DEVICE)
        row["correct"] = all(e["ok"] for e in row["errors"].values())
        torch.cuda.empty_cache()
    else:
        for run in bound:
            run()
    timed = bound[case.extra.get("timed_from", 0):]

    def ours():
        for run in timed:
            run()

    products = [cublas(g, DEVICE) for g in case.gemms]

    def base():
        for product in products:
            product()

    if not products:
        base = copy_of(row["bytes"], DEVICE)
    for protocol, t in both(base, ours, options.quick).items():
        row[protocol] = t.ratio
        row["ms" if protocol == "sustained" else "ms_burst"] = t.ms
        row["base_ms" if protocol == "sustained" else "base_ms_burst"] = t.base_ms
    seconds = row["ms"] / 1e3
    row["tflops"] = row["flops"] / seconds / 1e12 if row["flops"] else None
    row["bandwidth"] = row["bytes"] / seconds
    row["base_tflops"] = sum(g.flops for g in case.gemms) / row["base_ms"] / 1e9
    names = case.rivals if options.rivals is None else [
        n for n in case.rivals if n in options.rivals.split(",")]
    for name in () if options.quick else names:
        if deadline and time.monotonic() > deadline:
            row["rivals"][name] = {"failed": "no time left"}
            continue
        try:
            run = rival(name, case, tensors, base)
            if run:
                times = both(base, run, options.quick)
                row["rivals"][name] = {p: t.ratio for p, t in times.items()}
                row["rivals"][name]["ms"] = times["sustained"].ms
        except Exception as error:  # another project's failure is a fact of the row
            row["rivals"][name] = {"failed": repr(error)[:300]}
    judge(case, row)
    row["seconds"] = time.monotonic() - start
    return row


def device_works():
    """False after an error that stays, such as an illegal address."""
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return True
    except RuntimeError:
        return False


def tiles_of(library, case):
    """The candidates of a case that is one program; of others the planner chooses."""
    text, names = case.source.text(library, case.shape)
    try:
        return library.tiles(text, names[0], case.shape) if len(names) == 1 else [""]
    except CodaError:
        return [""]


def percentages(results):
    """Of the peak of the run: the best that cuBLAS reached anywhere in it."""
    rates = [r.get("base_tflops") or 0 for r in results["rows"]]
    results["peak_tflops"] = max([results["peak_tflops"] or 0, *rates])
    for row in results["rows"]:
        if row.get("tflops"):
            row["peak_percent"] = 100 * row["tflops"] / results["peak_tflops"]


def dry_run(library, cases):
    print(f"{'case':<66} {'GFLOP':>10} {'MB':>9} {'kernels':>7}  base")
    rows = []
    for case in cases:
        row = empty_row(case, opened(library, case))
        base = " + ".join(f"[{g.m}, {g.n}, {g.k}]" for g in case.gemms) or "copy of the same bytes"
        print(f"{case.part + ' ' + case.label:<66.66} {row['flops'] / 1e9:>10.1f} "
              f"{row['bytes'] / 1e6:>9.1f} {row['kernels']:>7}  {base}")
        rows.append(row)
    print(f"{len(rows)} rows")
    return rows


def main(arguments=None):
    options = parse(arguments)
    start = time.monotonic()
    if options.library:
        os.environ["CODA_BENCH_LIBRARY"] = options.library
    try:
        library = Library()
        cases = chosen(options, library)
    except CodaError as error:
        print(f"coda bench: {error}", file=sys.stderr)
        return 3
    if options.dry_run:
        dry_run(library, cases)
        return 0
    if not torch.cuda.is_available():
        print("coda bench: PyTorch sees no GPU; --dry-run lists the rows", file=sys.stderr)
        return 3
    from protocol import copy_bandwidth, cublas, machine, peak_tflops
    deadline = start + options.budget if options.budget else None
    elapsed = lambda: f"[{time.monotonic() - start:5.1f} s]"
    folder = Path(os.environ.get("OUT") or ROOT / "bench" / "results")
    date = datetime.date.today().isoformat()
    output = Path(options.output or folder / f"h200-{date}.json")
    results = {"date": date, "rows": [], "not_run": [], **machine(cublas(PEAK[0])),
               "peak_tflops": peak_tflops(QUICK_PEAK if options.quick else PEAK),
               "copy_bandwidth": copy_bandwidth()}
    results["run"] = {"quick": options.quick, "tile": options.tile, "what": options.what}
    print(f"{elapsed()} {results['gpu']}, driver {results['driver']}, clocks {results['clocks']}, "
          f"cuBLAS {results['peak_tflops']:.0f} TFLOP/s, copy "
          f"{results['copy_bandwidth'] / 1e12:.2f} TB/s", flush=True)
    if "compile" in options.what or not (options.what or options.layer or options.head):
        from compile_times import measure_compile, measure_launches
        results["compile"] = measure_compile(elapsed)
        results["launch"] = measure_launches(elapsed)
    generator = torch.Generator(device=DEVICE).manual_seed(int(time.time()))
    longest = 0.0
    if cases:
        print(report.HEADER, flush=True)
    for index, case in enumerate(cases):
        if deadline and time.monotonic() + 1.2 * longest > deadline:
            results["not_run"] = [c.label for c in cases[index:]]
            break
        for tile in tiles_of(library, case) if options.tiles else [options.tile]:
            try:
                row = measure(library, case, options, tile, generator, deadline)
                longest = max(longest, row["seconds"])
            except (CodaError, RuntimeError, ValueError, KeyError) as error:
                row = {**empty_row(case), "correct": False,
                       "failed": str(error)[:1000], "met": False if case.goal else None,
                       "goal_text": ""}
            if options.tiles:
                row["variant"] = f"{row['variant']} {tile}".strip()
            results["rows"].append(row)
            percentages(results)
            failed = f"  {row['failed']}" if row.get("failed") else ""
            print(report.line(row) + failed, flush=True)
            gc.collect()
            if not device_works():
                results["not_run"] = [c.label for c in cases[index + 1:]]
                break
        if results["not_run"]:
            print("the GPU reports errors for good: nothing more can run in this process")
            break
        print(f"{elapsed()} {index + 1} of {len(cases)}", end="\r", file=sys.stderr, flush=True)
        if index % 8 == 7:
            report.save(results, output)
    percentages(results)
    whole = report.save(results, output)
    picture = output.with_suffix(".svg")
    try:
        report.roofline(whole, picture)
    except (ImportError, ValueError) as error:  # of compile times alone there is none
        print(f"no roofline: {error}")
    print(f"{elapsed()} {output} {picture}")
    print(report.summary(results))
    failed = any(r.get("failed") or r.get("correct") is False or r.get("same_bits") is False
                 for r in results["rows"])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
