#!/usr/bin/env python3
"""Families of Hugging Face models on a GPU: how near a training step by CODA in bf16 is to one in
double precision, over the same of eager's. Adds a row for each to a results file."""

import argparse
import statistics
import sys
import traceback
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

import torch_families as families  # noqa: E402
from torch_models import add_row  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("families", nargs="*", default=families.NAMES)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--output", type=Path, help="adds a row for each to this file")
    options = parser.parse_args()
    failed = 0
    for family in options.families:
        try:
            by_tensor = families.ratios(family, options.width, options.device, options.seeds,
                                        length=192)
        except Exception:
            traceback.print_exc()
            failed += 1
            continue
        name, worst = max(by_tensor.items(), key=lambda each: each[1])
        mean = statistics.geometric_mean(by_tensor.values())
        right = mean < 1.0 and worst < 1.25
        failed += not right
        print(f"{family:13s} geometric mean {mean:.3f}, worst {worst:.2f} ({name})"
              f"{'' if right else '  TOO FAR'}", flush=True)
        if options.output:
            add_row(options.output, {"case": f"parity_{family}", "width": options.width,
                                     "geomean": mean, "worst": worst, "worst_tensor": name})
    return min(failed, 100)


if __name__ == "__main__":
    sys.exit(main())
