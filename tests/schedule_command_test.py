"""Schedules on the command line: what rewrite prints is run, verified, edited, refused."""

import json
import subprocess

import numpy as np
import pytest

from coda_command import PROGRAMS

SIZES = ["M=20", "D=24", "F=40"]
LOOP = """
program up(x: f32[M, K], w: f32[N, K]) -> (y: f32[M, N]) { y = x @ w }
program down(y: f32[M, N], w: f32[N, K]) -> (z: +f32[M, K]) { z += y @ w }
schedule both(x: f32[M, K], w: f32[N, K]) -> (z: f32[M, K]) {
  for N in chunks of 7 {
    y = up(x, w)
    z += down(y, w)
  }
}
"""


@pytest.fixture
def coda(binary, tmp_path):
    def run(*arguments, rc=0, text=None):
        result = subprocess.run([str(binary), *map(str, arguments)], cwd=tmp_path, text=True,
                                input=text, capture_output=True, timeout=120)
        assert result.returncode == rc, result.stdout + result.stderr
        return result.stdout if rc == 0 else result.stdout + result.stderr
    return run


def test_what_rewrite_prints_is_verified(coda, tmp_path):
    text = coda("rewrite", PROGRAMS / "llama.coda", "--block", "mlp", "--grad")
    (tmp_path / "mlp.coda").write_text(text)
    names = [line.split()[1].split("(")[0] for line in text.splitlines()
             if line.startswith("schedule ")]
    assert len(names) == 2
    for name in names:
        report = json.loads(coda("verify", "mlp.coda", "--program", name, "--json", "--size",
                                 *SIZES, "--seeds", 4))
        assert report["program"] == name and report["passed"]


def test_check_print_and_fmt_take_schedules(coda, tmp_path):
    (tmp_path / "a.coda").write_text(LOOP)
    assert "both: schedule, 2 steps" in coda("check", "a.coda")
    entry = json.loads(coda("check", "a.coda", "--json"))["programs"][-1]
    assert (entry["kind"], entry["steps"], entry["loops"]) == ("schedule", 2, 1)
    coda("fmt", "a.coda")
    printed = coda("print", "a.coda")
    assert printed == (tmp_path / "a.coda").read_text()
    assert coda("print", "a.coda", "--program", "both") == printed


def test_the_last_schedule_runs_as_numpy_does(coda, tmp_path):
    (tmp_path / "a.coda").write_text(LOOP)
    random = np.random.default_rng(1)
    for n in (0, 6, 7, 30):
        x = random.standard_normal((5, 4)).astype(np.float32)
        w = random.standard_normal((n, 4)).astype(np.float32)
        np.save(tmp_path / "x.npy", x)
        np.save(tmp_path / "w.npy", w)
        for device in ("cpu", "reference", "exact"):
            coda("run", "a.coda", "x=x.npy", "w=w.npy", "-o", "z=z.npy", "--device", device)
            np.testing.assert_allclose(np.load(tmp_path / "z.npy"), x @ w.T @ w, rtol=1e-4,
                                       atol=1e-4)


def test_dump_shows_what_a_step_stores(coda, tmp_path):
    (tmp_path / "a.coda").write_text(LOOP.replace("  for N in chunks of 7 {\n", "")
                                     .replace("  }\n}", "}")
                                     .replace("(z: f32", "(z: +f32"))
    assert "y, tile 0,0" in coda("run", "a.coda", "random", "--size", "M=3", "N=5", "K=2",
                                 "--dump", "y")
    (tmp_path / "b.coda").write_text(LOOP)
    assert "no step of `both` stores `y` as a whole" in coda(
        "run", "b.coda", "random", "--size", "M=3", "N=5", "K=2", "--dump", "y", rc=1)


def test_an_edit_that_is_wrong_is_refused(coda, tmp_path):
    (tmp_path / "a.coda").write_text(LOOP.replace("up(x, w)", "up(w, x)"))
    assert "read w: f32[N, K], here f32[M, K]" in coda("check", "a.coda", rc=1)
