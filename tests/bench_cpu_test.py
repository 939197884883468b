"""The CPU's benchmark: its rivals do the same work, and its file holds what it says."""

import json
import os
import subprocess
import sys

import pytest
import torch

from coda_command import ROOT

sys.path.insert(0, str(ROOT / "bench"))

import check
import cpu
import cpu_cases
from coda_library import Library

WIDTH, TOKENS = 256, 64
NAMES = [case.case for case in cpu_cases.all_cases([WIDTH])]
# What a rival gives, by the names of our results; others stop elsewhere (a norm's scale).
GIVES = {"linear": ["y"], "linear_bias": ["y"], "linear_gelu": ["z", "y"], "residual_norm": ["h"],
         "residual_norm (spelled)": ["h"], "linear_grad": ["dx"], "loss_head": ["loss"],
         "layer_forward": ["out"]}


@pytest.fixture(scope="session")
def library_path(binary):
    path = binary.parent / "libcoda_bench_cpu.so"
    if not path.exists():
        pytest.fail(f"{path} is not built: ninja -C {binary.parent} coda_bench_cpu")
    return path


@pytest.fixture(scope="session")
def library(library_path):
    return Library(library_path)


@pytest.fixture(autouse=True)
def few_tokens(monkeypatch):
    monkeypatch.setattr(cpu_cases, "TOKENS", TOKENS)


def opened(library, name, dtype):
    case = next(c for c in cpu_cases.all_cases([WIDTH]) if c.case == name)
    text, rival, names = cpu.texts(library, case, dtype)
    runs = cpu.opened(library, text, names, case, 1)
    rivals = cpu.opened(library, rival, names, case, 1, whole=True)
    tensors = check.draw_all(runs + rivals, {}, "cpu", torch.Generator().manual_seed(3))
    return case, runs, rivals, tensors, *([r.bind(tensors, "cpu") for r in which]
                                          for which in (runs, rivals))


@pytest.mark.parametrize("dtype", cpu.DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_the_unfused_sequence_computes_the_same(library, name, dtype):
    case, runs, rivals, tensors, bound, rival_bound = opened(library, name, dtype)
    error, right = cpu.agreement(runs, bound, rivals, rival_bound, tensors, dtype)
    assert right, error
    calls = [s for r in rivals for s in r.facts["steps"]]
    assert len(calls) >= sum(len(r.facts["steps"]) for r in runs)
    assert any(s["note"] == "one call of oneDNN" for s in calls)


@pytest.mark.parametrize("name", GIVES)
def test_pytorch_computes_the_same(library, name):
    case, _, _, tensors, bound, _ = opened(library, name, "f32")
    cpu.in_turn(bound)()
    given = case.eager(tensors)()
    given = given if isinstance(given, tuple) else (given,)
    for result, got in zip(GIVES[name], given):
        assert check.distance(got, tensors[result]) < 1e-5, result


def test_gradients_of_a_step_are_those_of_pytorch(library):
    case, _, _, tensors, bound, _ = opened(library, "layer_step", "f32")
    cpu.in_turn(bound)()
    own = {n: tensors[n].detach().clone().requires_grad_() for n in cpu_cases.LAYER_WRT}
    cpu_cases.layer(cos=tensors["cos"], sin=tensors["sin"], **own).backward(tensors["d_out"])
    for name in cpu_cases.LAYER_WRT:
        assert check.distance(tensors["d_" + name], own[name].grad) < 1e-5, name


def test_the_file_holds_the_rows(library_path, tmp_path):
    output = tmp_path / "cpu.json"
    made = subprocess.run(
        [sys.executable, ROOT / "bench" / "cpu.py", "linear", "residual_norm", "--threads", "1",
         "--width", "256", "--seconds", "0.01", "--rivals", "unfused,torch_eager", "--dtype", "f32",
         "--library", library_path, "--output", output], capture_output=True, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert made.returncode == 0, made.stdout + made.stderr
    results = json.loads(output.read_text())
    assert results["cpu"] and results["date"] and results["versions"]["torch"]
    assert [r["case"] for r in results["rows"]] == ["linear", "residual_norm"]
    for row in results["rows"]:
        assert set(row["rivals"]) == {"unfused", "torch_eager"}
        assert row["correct"] and row["ms"] > 0 and row["gflops"] > 0 and row["peak_percent"] > 0
        assert row["shape"] == {"M": 2048, "N": 256, "K": 256} and row["threads"] == 1
    assert list(tmp_path.iterdir()) == [output] or (tmp_path / "cpu.svg").exists()


def test_a_goal_that_is_missed_is_said():
    row = {"case": "residual_norm", "dtype": "bf16", "width": 1024, "threads": 1, "error": 0.0,
           "rivals": {"torch_eager": 0.9, "unfused": 0.8}, "epilogue": True, "correct": True,
           "goals": {"torch_eager": 0.77}}
    said = cpu.summary({"rows": [row]})
    assert "takes 0.900 of torch_eager's time, goal 0.770  MISSED" in said
    assert "over the unfused sequence 1.250×" in said
    row["rivals"]["torch_eager"] = 0.7
    assert "MISSED" not in cpu.summary({"rows": [row]})
