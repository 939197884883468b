"""Rows as a table, as JSON, as a roofline; parts that ran apart become one file."""

import json
import math
import os
from pathlib import Path

# What every row of a results file has.
ROW = {"part": str, "case": str, "variant": str, "width": int, "shape": dict, "base": str,
       "sustained": (int, float, type(None)), "burst": (int, float, type(None)), "rivals": dict,
       "flops": int, "bytes": int}
FILE = {"date": str, "gpu": str, "driver": (str, type(None)), "versions": dict, "clocks": dict,
        "peak_tflops": (int, float, type(None)), "copy_bandwidth": (int, float, type(None)),
        "rows": list, "not_run": list}


def problems(results):
    """What a results file breaks, as sentences; none where it is as documented."""
    found = [f"{key} is {results.get(key)!r}" for key, kind in FILE.items()
             if key not in results or not isinstance(results[key], kind)]
    for row in results.get("rows", []):
        found += [f"{row.get('case')}: {key} is {row.get(key)!r}" for key, kind in ROW.items()
                  if key not in row or not isinstance(row[key], kind)]
        for name, rival in row.get("rivals", {}).items():
            if "failed" not in rival and not {"sustained", "burst"} <= set(rival):
                found.append(f"{row.get('case')}: rival {name} has no times")
    return found


def key(row):
    return (row["part"], row["case"], row["variant"], json.dumps(row["shape"], sort_keys=True))


def merged(old, new):
    """`new` over `old`: rows of the same case and shape are replaced, other rows stay and keep the
    machine that they were measured on."""
    rows = {key(row): row for row in old.get("rows", [])}
    rows.update({key(row): row for row in new["rows"]})
    not_run = [label for label in old.get("not_run", [])
               if label not in {row.get("label") for row in rows.values()}]
    not_run += [label for label in new["not_run"] if label not in not_run]
    compile_times = {**old.get("compile", {}), **new.get("compile", {})}
    whole = {**old, **new, "rows": list(rows.values()), "not_run": not_run}
    if compile_times:
        whole["compile"] = compile_times
    return whole


def save(results, path):
    """Merges into the file; the old one or the new one is there at any time."""
    path = Path(path)
    broken = problems(results)
    if broken:
        raise ValueError("; ".join(broken[:5]))
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        results = merged(json.loads(path.read_text()), results)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(results, indent=1) + "\n")
    os.replace(temporary, path)
    return results


def number(value, digits=3):
    return "-" if value is None else f"{value:.{digits}f}"


HEADER = (f"{'case':<46} {'sustained':>9} {'goal':>6} {'burst':>6} {'ms':>8} {'TFLOP/s':>8} "
          f"{'% peak':>6} {'TB/s':>6}  right  rivals (sustained/burst)")


def line(row):
    """One row of the table. `!` marks a goal that was missed, `WRONG` a result that is."""
    name = f"{row['case']} {row['variant']}".strip()
    shape = " ".join(f"{n}{s}" for n, s in row["shape"].items())
    rivals = ", ".join(f"{n} {number(r.get('sustained'))}/{number(r.get('burst'))}"
                       if "failed" not in r else f"{n} failed" for n, r in row["rivals"].items())
    right = {True: "ok", False: "WRONG", None: "-"}[row.get("correct")]
    if row.get("same_bits") is False:
        right += ", bits move"
    goal = row.get("goal")
    missed = "!" if row.get("met") is False else " "
    return (f"{name + ' ' + shape:<46.46} {number(row['sustained']):>8}{missed} {number(goal):>6} "
            f"{number(row['burst']):>6} {number(row.get('ms')):>8} "
            f"{number(row.get('tflops'), 1):>8} {number(row.get('peak_percent'), 1):>6} "
            f"{number(row.get('bandwidth') and row['bandwidth'] / 1e12, 2):>6}  {right}  {rivals}")


def geomean(values):
    values = [v for v in values if v]
    return math.exp(sum(math.log(v) for v in values) / len(values)) if values else None


def summary(results):
    """What must be shown, in a few lines."""
    rows = results["rows"]
    lines = []
    gemm = [r for r in rows if r["part"] == "gemm" and r["sustained"]]
    if gemm:
        ratios = [r["sustained"] for r in gemm]
        lines.append(f"gemm: geomean {geomean(ratios):.3f} (goal 0.960), worst {max(ratios):.3f} "
                     f"(goal 1.000), {len(gemm)} rows")
    judged = [r for r in rows if r.get("met") is not None]
    met = [r for r in judged if r["met"]]
    lines.append(f"goals: {len(met)} of {len(judged)} met")
    lines += [f"  missed: {r['label']}: {number(r['sustained'])} sustained, {number(r['burst'])} "
              f"burst, {number(r.get('ms'))} ms; {r['goal_text']}" for r in judged if not r["met"]]
    wrong = [r["label"] for r in rows if r.get("correct") is False]
    lines += [f"  wrong: {label}" for label in wrong]
    lines += [f"  failed: {r['label']}: {r['failed']}" for r in rows if r.get("failed")]
    lines += [f"  bits move: {r['label']}" for r in rows if r.get("same_bits") is False]
    if results["not_run"]:
        lines.append(f"not run: {len(results['not_run'])}: " + "; ".join(results["not_run"][:8]))
    return "\n".join(lines)


def roofline(results, path):
    """Every row by its flops a byte, under the peak and the copy bandwidth of the same run."""
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    figure, axes = plt.subplots(figsize=(9, 6))
    peak, bandwidth = results["peak_tflops"], results["copy_bandwidth"]
    rows = [r for r in results["rows"] if r.get("ms") and r["bytes"]]
    # Streams have few flops that count: all sit at the left, by their bytes.
    floor = 1.0
    for part in sorted({r["part"] for r in rows}):
        own = [r for r in rows if r["part"] == part]
        x = [max(r["flops"] / r["bytes"], floor) for r in own]
        y = [max(r["flops"], floor * r["bytes"]) / r["ms"] / 1e9 for r in own]
        axes.scatter(x, y, label=part, s=18)
    if peak and bandwidth:
        edge = peak * 1e12 / bandwidth
        axes.plot([floor / 2, edge, edge * 40],
                  [floor / 2 * bandwidth / 1e12, peak, peak], color="black", linewidth=1,
                  label=f"{peak:.0f} TFLOP/s (cuBLAS), {bandwidth / 1e12:.2f} TB/s (copy)")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("flops a byte of the program (streams: 1)")
    axes.set_ylabel("TFLOP/s, sustained")
    axes.set_title(f"{results['gpu']}, {results['date']}")
    axes.legend()
    axes.grid(alpha=0.3)
    path = Path(path)
    temporary = path.with_name("." + path.name)
    figure.savefig(temporary, format=path.suffix[1:])
    os.replace(temporary, path)
    plt.close(figure)
