#!/usr/bin/env python3
"""Writes the measured part of docs/cpu.md from bench/results/cpu-DATE.json: the newest, or those
that are named, one table for each file."""

import argparse
import json
import sys
from pathlib import Path

from cpu import DTYPES, summary
from report import write

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "cpu.md"
BEGIN, END = "<!-- measured: bench/cpu_page.py -->\n", "<!-- end -->\n"
RIVALS = ("unfused", "torch_eager", "torch_compile")


def table(results):
    """Rows are cases; columns our time over each rival's, for each number of threads and dtype."""
    rows = [r for r in results["rows"] if r.get("rivals") and r["case"] != "train"]
    columns = [(t, d) for t in sorted({r["threads"] for r in rows}) for d in DTYPES]
    heads = [f"{d}, {t} thread{'s' * (t > 1)}" for t, d in columns]
    lines = ["| case, N = K | " + " | ".join(heads) + " |", "|---|" + "---|" * len(heads)]
    for case, width in dict.fromkeys((r["case"], r["width"]) for r in rows):
        cells = []
        for threads, dtype in columns:
            row = next((r for r in rows if (r["case"], r["width"], r["threads"], r["dtype"])
                        == (case, width, threads, dtype)), None)
            ratios = [f"{row['rivals'][n]:.2f}" if n in row["rivals"] else "-"
                      for n in RIVALS] if row else []
            cells.append(" / ".join(ratios) + f" ({row['peak_percent']:.0f} %)" if row else "")
        lines.append(f"| {case} {width} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def section(path):
    results = json.loads(path.read_text())
    versions = ", ".join(f"{name} {v}" for name, v in results["versions"].items())
    peaks = "; ".join(f"{name} {'thread' if name.endswith(' 1') else 'threads'}: {p:.0f} GFLOP/s"
                      for name, p in results["peak_gflops"].items())
    text = (f"### {results['cpu']}, {results['date']}\n\n{results.get('products')}; {versions}. "
            f"oneDNN's best whole product, {peaks}.\n\n{table(results)}\n")
    trained = [r for r in results["rows"] if r["case"] == "train" and r.get("tokens_per_second")]
    for row in trained:
        rates = ", ".join(f"{n} {v:,.0f}" for n, v in row["tokens_per_second"].items())
        threads = f"{row['threads']} thread{'s' * (row['threads'] > 1)}"
        text += f"\nTraining, tokens/s, {threads}: {rates}.\n"
    said = "\n".join(f"- {line}" for line in summary(results).splitlines())
    return text + f"\n{said}\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path)
    options = parser.parse_args()
    files = options.files or sorted((HERE / "results").glob("cpu-*.json"))[-1:]
    if not files:
        sys.exit("cpu_page.py: no bench/results/cpu-*.json; bench/cpu.py writes one")
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    write(PAGE, before + BEGIN + "\n" + "\n".join(section(f) for f in files) + "\n" + END + after)


if __name__ == "__main__":
    main()
