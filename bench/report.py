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
    whole = {**old, **new, "rows": list(rows.values()), "not_run": not_run}
    for what in ("compile", "launch"):
        both = {**old.get(what, {}), **new.get(what, {})}
        if both:
            whole[what] = both
    return whole


def write(path, text):
    """The old file or the new one is there at any time."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    os.replace(temporary, path)


def replace_with_figure(figure, path):
    """The same of a picture; the figure is closed."""
    from matplotlib import pyplot
    path = Path(path)
    temporary = path.with_name("." + path.name)
    figure.savefig(temporary, format=path.suffix[1:])
    os.replace(temporary, path)
    pyplot.close(figure)


def save(results, path):
    """Merges into the file."""
    path = Path(path)
    broken = problems(results)
    if broken:
        raise ValueError("; ".join(broken[:5]))
    if path.exists():
        results = merged(json.loads(path.read_text()), results)
    write(path, json.dumps(results, indent=1) + "\n")
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


WIDEST = 1.6  # time over cuBLAS that the picture shows


def roofline(results, path):
    """Two panels: how near each row comes to the roof of its run, by its flops a byte; and its time
    over the bare cuBLAS product (streams: over a copy), beside its rivals' and its goal."""
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    peak, bandwidth = results["peak_tflops"], results["copy_bandwidth"]
    rows = [r for r in results["rows"] if r.get("ms") and r.get("sustained")]
    if not rows or not peak or not bandwidth:
        raise ValueError("no row has a time, or the run has no peak")
    figure, (ratios, roof) = plt.subplots(
        1, 2, figsize=(15, 1.5 + 0.2 * len(rows)), width_ratios=(3, 2), layout="constrained")
    parts = sorted({r["part"] for r in rows})
    for place, row in enumerate(reversed(rows)):
        color = f"C{parts.index(row['part']) % 10}"
        ratios.plot(row["sustained"], place, "o", color=color, markersize=5)
        if row.get("burst"):
            ratios.plot(row["burst"], place, "o", color=color, markersize=4, fillstyle="none")
        if row.get("goal"):
            ratios.plot(row["goal"], place, "|", color="black", markersize=9)
        for name, rival in row["rivals"].items():
            if (rival or {}).get("sustained"):
                beyond = rival["sustained"] > WIDEST
                at = WIDEST - 0.01 if beyond else rival["sustained"]
                said = f"{name} {rival['sustained']:.2f}" if beyond else name
                ratios.plot(at, place, ">" if beyond else "x", color="grey", markersize=5)
                ratios.annotate(said, (at, place), fontsize=5, color="grey",
                                ha="right" if beyond else "left",
                                xytext=(-4 if beyond else 3, 2), textcoords="offset points")
        # The nearer roof: of the tensor cores, or of the memory.
        near = 100 * max(row["flops"] / row["ms"] / 1e9 / peak,
                         row["bytes"] / row["ms"] * 1e3 / bandwidth)
        roof.plot(max(row["flops"] / row["bytes"], 1.0) if row["bytes"] else 1.0, near, "o",
                  color=color, markersize=4, label=row["part"])
    ratios.axvline(1.0, color="black", linewidth=0.8)
    ratios.set_yticks(range(len(rows)), [r["label"] for r in reversed(rows)], fontsize=6)
    ratios.set_ylim(-1, len(rows))
    ratios.set_xlim(None, min(WIDEST, ratios.get_xlim()[1]))
    ratios.set_xlabel("time over bare cuBLAS (streams: over a copy): "
                      "● sustained, ○ burst, | goal, × rival, > one further out")
    ratios.grid(axis="x", alpha=0.3)
    roof.axhline(100, color="black", linewidth=0.8)
    roof.set_xscale("log")
    roof.set_ylim(min(60, roof.get_ylim()[0]), None)
    roof.set_xlabel("flops a byte of the program (streams: 1)")
    roof.set_ylabel(f"% of the nearer roof: {peak:.0f} TFLOP/s (cuBLAS), "
                    f"{bandwidth / 1e12:.2f} TB/s (copy)")
    handles = dict(zip(*reversed(roof.get_legend_handles_labels())))
    roof.legend(handles.values(), handles.keys())
    roof.grid(alpha=0.3)
    figure.suptitle(f"{results['gpu']}, {results['date']}")
    replace_with_figure(figure, path)
