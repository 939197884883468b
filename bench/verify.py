#!/usr/bin/env python3
"""Judges the GPU by the double-precision reference: `coda verify --device cuda` over the case table
and all golden schedules, then every candidate tile; and whether tiles give the same bits.

Each job is a process of its own, several at a time; they share one cache of compiled kernels.
"""

import argparse
import concurrent.futures
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "bench")]
LARGE = (  # file, program, sizes, tile: more than 2^31 elements
    ("linear.coda", "linear", {"M": 540000, "N": 4096, "K": 64}, ""),
    ("linear.coda", "linear", {"M": 700001, "N": 3073, "K": 63}, ""),
    ("linear.coda", "linear", {"M": 540001, "N": 4096, "K": 24}, "general"),
    ("norm.coda", "rmsnorm_rows", {"M": 540000, "D": 4096}, ""),
)
STACK_SIZES = "B=1 S=16 D=64 H=4 G=2 E=16 F=64 V=128 P=64"


@dataclass(frozen=True)
class Job:
    file: str
    name: str
    sizes: str
    dtype: str = ""
    tile: str = ""
    is_program: bool = True

    @property
    def label(self):
        return " ".join(filter(None, (f"{Path(self.file).name}:{self.name}", self.sizes, self.dtype,
                                      self.tile and f"tile {self.tile}")))

    def command(self, binary, device, seeds, seed=1):
        words = [str(binary), "verify", self.file, "--program", self.name, "--device", device,
                 "--seeds", str(seeds), "--seed", str(seed), "--json"]
        if self.sizes:
            words += ["--size", *self.sizes.split()]
        if self.dtype:
            words += ["--dtype", self.dtype]
        return words + (["--tile", self.tile] if self.tile and device == "cuda" else [])

    def counts(self, verdict):
        """Of a whole layer or its gradient, inputs of ordinary size: with others numbers overflow,
        or one bit decides an attention, on every device."""
        return self.is_program or verdict["inputs"] == "normal"


def declared(text, kind):
    """The names of everything of that kind in a text."""
    pattern = rf"^{kind}\s+([\w.]+)"
    return re.findall(pattern, text, re.S | re.M)


def table():
    return json.loads((ROOT / "tests" / "cases.json").read_text())


def table_jobs():
    found = table()
    for row in found["cases"]:
        file, name = row["program"].split(":")
        path = ROOT / "programs" / file
        is_program = name in declared(path.read_text(), "program")
        for index, sizes in enumerate(row["sizes"]):
            for dtype in found["dtypes"] if index == 1 else found["dtypes"][:1]:
                yield Job(str(path), name, sizes, "" if dtype == "bf16" else dtype,
                          is_program=is_program)


def golden_jobs():
    sizes = {row["program"].replace(".coda:", "."): row["sizes"][:2] for row in table()["cases"]}
    for path in sorted((ROOT / "tests" / "golden").glob("*.coda")):
        text = path.read_text()
        stem, what = path.name.rsplit(".", 2)[0], path.name.rsplit(".", 2)[1]
        if what == "grad":
            continue  # a block; the training schedules are what it becomes
        for name in declared(text, "schedule"):
            for each in sizes.get(stem, [STACK_SIZES]):
                yield Job(str(path), name, each, is_program=False)


def tile_jobs(library):
    """Programs with candidates, at their first two sizes, under each tile."""
    from coda_library import CodaError
    for row in table()["cases"]:
        file, name = row["program"].split(":")
        path = ROOT / "programs" / file
        if name not in declared(path.read_text(), "program"):
            continue
        for sizes in row["sizes"][:2]:
            numbers = {w.split("=")[0]: int(w.split("=")[1]) for w in sizes.split()}
            try:
                tiles = library.tiles(path, name, numbers)
            except CodaError:
                tiles = []
            for tile in tiles:
                yield Job(str(path), name, sizes, "", tile)


def verdicts_of(job, options, environment, device, seeds, seed=1):
    """(exit code, verdicts that count and failed, what the command said). Sizes that the text lacks
    are left out."""
    while True:
        result = subprocess.run(job.command(options.coda, device, seeds, seed), text=True,
                                capture_output=True, timeout=options.timeout, env=environment)
        said = (result.stdout[-600:] + result.stderr[-700:]).strip()
        unknown = re.search(r"has no dimension `(\w+)`", result.stdout + result.stderr)
        if not unknown:
            break
        kept = [w for w in job.sizes.split() if w.split("=")[0] != unknown[1]]
        if len(kept) == len(job.sizes.split()):
            break
        job = replace(job, sizes=" ".join(kept))
    try:
        verdicts = json.loads(result.stdout)["verdicts"]
    except (ValueError, KeyError):
        return result.returncode, [], said
    return 0, [v for v in verdicts if not v["passed"] and job.counts(v)], said


def run(job, options, environment):
    """A job that fails is judged again by more seeds: of a result with few elements the median over
    three is noise. What then fails on the CPU too says nothing of the GPU."""
    start = time.monotonic()
    told = lambda outcome, why="": {"job": job.label, "outcome": outcome, "why": why[:1500],
                                    "seconds": time.monotonic() - start}
    words = lambda failed: "; ".join(f"{v['result']} {v['inputs']} {v['layout']}: {v['why']}"
                                     for v in failed)
    names = lambda failed: {(v["result"], v["inputs"]) for v in failed}
    try:
        code, failed, said = verdicts_of(job, options, environment, options.device, options.seeds)
        if not code and failed:
            code, failed, said = verdicts_of(job, options, environment, options.device, 16, 101)
        if code:
            return told({3: "unsupported"}.get(code, f"exit {code}"), said)
        if failed and options.device != "cpu":
            _, control, _ = verdicts_of(job, options, environment, "cpu", 16, 101)
            if names(failed) <= names(control):
                return told("as on the CPU", words(failed))
        return told("FAILED", words(failed)) if failed else told("passed")
    except subprocess.TimeoutExpired:
        return told("timed out")


def tile_bits(library, deadline):
    """Programs of the table whose results differ between tiles; and how many were compared."""
    import torch
    from check import draw_all
    from coda_library import CodaError
    differ, compared = [], 0
    jobs = {}
    for job in tile_jobs(library):
        if job.tile != "general":  # another order of summing: it promises no same bits
            jobs.setdefault((job.file, job.name, job.sizes), []).append(job.tile)
    for (file, name, sizes), every in jobs.items():
        # Tiles that workers share along k promise nothing; their "-whole" twins do.
        shared = {t.removesuffix("-whole") for t in every if t.endswith("-whole")}
        tiles = [t for t in every if t.removesuffix("-drawn") not in shared]
        if time.monotonic() > deadline:
            break
        numbers = {w.split("=")[0]: int(w.split("=")[1]) for w in sizes.split()}
        first = None
        for tile in tiles:
            generator = torch.Generator(device="cuda").manual_seed(1)
            try:
                opened = library.open(Path(file), name, numbers, "cuda", tile)
                tensors = draw_all([opened], {}, "cuda", generator)
                opened.bind(tensors)()
                torch.cuda.synchronize()
            except (CodaError, KeyError) as error:
                differ.append(f"{name} {sizes} {tile}: {str(error)[:200]}")
                continue
            got = {r["name"]: tensors[r["name"]].contiguous().view(-1).view(torch.uint8)
                   for r in opened.results}
            if first is None:
                first = got
                continue
            compared += 1
            differ += [f"{name} {sizes}: {n} of {tile} and {tiles[0]}" for n in got
                       if not torch.equal(got[n], first[n])]
    return differ, compared


def large():
    """Programs with more than 2^31 elements on each path: sampled rows against float64. Those that
    are wrong, and how many were tried."""
    import torch
    from check import distance, draw_all, evaluate
    from coda_library import CodaError, Library
    library, wrong = Library(), []
    for file, name, sizes, tile in LARGE:
        label = f"{name} {' '.join(f'{n}={s}' for n, s in sizes.items())} {tile}"
        generator = torch.Generator(device="cuda").manual_seed(1)
        tensors = {}
        try:
            opened = library.open(ROOT / "programs" / file, name, sizes, "cuda", tile)
            draw_all([opened], tensors, "cuda", generator)
            opened.bind(tensors)()
            torch.cuda.synchronize()
        except CodaError as error:
            wrong.append(f"{label}: {str(error)[:300]}")
            continue
        rows = sizes["M"]
        width = max(t.shape[1] for t in tensors.values() if t.dim() == 2 and t.shape[0] == rows)
        middle = 2**31 // width  # the row that holds element 2^31
        for first in (0, middle - 64, rows - 128):
            part = {n: t[first:first + 128] if t.dim() and t.shape[0] == rows else t
                    for n, t in tensors.items()}
            for result, want in evaluate(name, part, torch.float64).items():
                error = distance(part[result], want)
                print(f"large: {label} rows {first}…: {result} off by {error:.1e}", flush=True)
                if not error < 4e-3:  # bf16 rounds by at most 2^-8
                    wrong.append(f"{label} rows {first}…: {result} {error}")
        for result in opened.results:
            # Every element was written: a part of the result at a time.
            for part in tensors[result["name"]].split(1 << 16):
                if not torch.isfinite(part).all():
                    wrong.append(f"{label}: {result['name']} holds what is not finite")
                    break
        del tensors, part
        torch.cuda.empty_cache()
    return wrong, len(LARGE)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", nargs="*", default=["table", "golden", "tiles", "large"],
                        help="table, golden, tiles, large")
    parser.add_argument("--coda", default=str(ROOT / "build" / "coda"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--timeout", type=float, default=120, help="of one job, in seconds")
    parser.add_argument("--budget", type=float, default=440, help="of everything, in seconds")
    parser.add_argument("--only", default="", help="jobs whose label holds this")
    parser.add_argument("--output", help="verify.json in $OUT or bench/results")
    options = parser.parse_args()
    start = time.monotonic()
    deadline = start + options.budget
    library = None
    jobs = []
    if "table" in options.what:
        jobs += table_jobs()
    if "golden" in options.what:
        jobs += golden_jobs()
    if "tiles" in options.what:
        from coda_library import Library
        library = Library()
        jobs += tile_jobs(library)
    jobs = [job for job in jobs if options.only in job.label]
    outcomes, late = [], []
    with tempfile.TemporaryDirectory() as cache:
        # One thread each: the reference is what takes the time.
        environment = {"CODA_CACHE": cache, "CODA_THREADS": "1", **os.environ}
        with concurrent.futures.ThreadPoolExecutor(options.workers) as pool:
            def one(job):
                if time.monotonic() > deadline - 30:
                    return {"job": job.label, "outcome": "not run", "why": "", "seconds": 0}
                return run(job, options, environment)
            for done, outcome in enumerate(pool.map(one, jobs), 1):
                outcomes.append(outcome)
                if outcome["outcome"] not in ("passed", "not run"):
                    print(f"[{time.monotonic() - start:5.0f} s] {outcome['outcome']}: "
                          f"{outcome['job']}: {outcome['why'][:400]}", flush=True)
                elif done % 50 == 0:
                    print(f"[{time.monotonic() - start:5.0f} s] {done} of {len(jobs)}", flush=True)
    differ, compared = ([], 0)
    if library and options.device == "cuda":
        differ, compared = tile_bits(library, deadline)
    too_large, tried = large() if "large" in options.what and options.device == "cuda" else ([], 0)
    count = {}
    for outcome in outcomes:
        count[outcome["outcome"]] = count.get(outcome["outcome"], 0) + 1
    folder = Path(os.environ.get("OUT") or ROOT / "bench" / "results")
    output = Path(options.output or folder / "verify.json")
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps({"counts": count, "jobs": outcomes, "tiles_differ": differ,
                                  "tiles_compared": compared, "large": tried,
                                  "large_wrong": too_large}, indent=1))
    slowest = max(outcomes, key=lambda o: o["seconds"], default={"job": "-", "seconds": 0})
    print(f"verify: {count}, {time.monotonic() - start:.0f} s; slowest {slowest['job']} "
          f"{slowest['seconds']:.1f} s")
    print(f"tiles: {compared} compared, {len(differ)} differ" + "".join(
        f"\n  {d}" for d in differ[:20]))
    if tried:
        print(f"large: {tried} programs past 2^31 elements, {len(too_large)} wrong" + "".join(
            f"\n  {w}" for w in too_large))
    passed = set(count) <= {"passed", "as on the CPU"}
    return 0 if passed and not differ and not too_large else 1


if __name__ == "__main__":
    sys.exit(main())
