"""The examples run on the CPU, learn, and learn what eager learns."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def run(name, *arguments):
    done = subprocess.run([sys.executable, str(ROOT / "examples" / name), *arguments],
                          capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def losses(said):
    return [float(x) for x in re.findall(r"loss ([\d.]+)", said)]


@pytest.mark.parametrize("name, sizes", [
    ("train_gpt.py", ("--steps", "30", "--width", "64", "--layers", "2", "--batch", "4")),
    ("train_hf.py", ("--steps", "20",))])
def test_training(name, sizes):
    said = run(name, *sizes, "--explain")
    assert losses(said)[-1] < 0.8 * losses(said)[0]
    assert "all regions: " in said
    assert losses(run(name, *sizes, "--backend", "eager")) == pytest.approx(losses(said), rel=2e-3)


def test_a_new_kernel():
    said = run("new_kernel.py")
    fused, unfused = map(float, re.findall(r"fused ([\d.e-]+)", said)[:2])
    assert fused <= 1.05 * unfused
    assert losses(said)[-1] < 0.95 * losses(said)[0]
