"""The benchmarks without a GPU: what they count, what they call right, what they write."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from coda_command import ROOT, in_double

sys.path.insert(0, str(ROOT / "bench"))

import cases
import check
import report
import verify
from coda_library import CodaError, Library
from truth import FORMULAS

TINY = {"M": 70, "N": 130, "K": 24, "F": 66, "D": 130, "V": 100, "Q": 24, "P": 10, "B": 2, "S": 35,
        "H": 4, "G": 2, "E": 6}
ALL = cases.all_cases()


@pytest.fixture(scope="session")
def library(binary):
    path = binary.parent / "libcoda_bench.so"
    if not path.exists():
        pytest.fail(f"{path} is not built: ninja -C {binary.parent} coda_bench")
    return Library(path)


def tiny(case):
    """The case at sizes that plain loops take; D is what its heads add up to nowhere."""
    return replace(case, shape={name: TINY[name] for name in case.shape})


def opened_in_double(library, case):
    text, names = case.source.text(library, case.shape)
    text = in_double(text if isinstance(text, str) else text.read_text())
    text = text.replace("chunks of 4608", "chunks of 32")
    return [library.open(text, name, case.shape, "reference") for name in names]


# ---- what programs compute ----

DISTINCT = list({(repr(c.source), c.formula): c for c in ALL}.values())


@pytest.mark.parametrize("case", DISTINCT, ids=lambda c: f"{c.case}-{c.variant}-{c.formula}")
def test_formula_is_what_the_programs_compute(library, case):
    case = tiny(case)
    runs = opened_in_double(library, case)
    generator = torch.Generator().manual_seed(7)
    tensors = check.draw_all(runs, {}, "cpu", generator)
    before = {n: t.clone() for n, t in tensors.items()}
    for run in runs:
        run.bind(tensors, "cpu")()
    want = check.evaluate(case.formula, before)
    results = {r["name"] for run in runs for r in run.results}
    shared = results & set(want)
    assert shared, f"{results} and {set(want)} have nothing in common"
    assert {r["name"] for r in runs[-1].results} <= shared
    for name in sorted(shared):
        assert check.distance(tensors[name], want[name].detach()) < 1e-10, name


def test_every_result_of_a_single_program_is_judged(library):
    for case in DISTINCT:
        runs = opened_in_double(library, tiny(case))
        if len(runs) == 1:
            names = {r["name"] for r in runs[0].results}
            given = check.draw_all(runs, {}, "cpu", torch.Generator().manual_seed(1))
            assert names == set(check.evaluate(case.formula, given)) & names, case.label


def test_checking_accepts_what_is_right_and_refuses_what_is_not(library):
    case = tiny(next(c for c in ALL if c.case == "residual_norm"))
    run = library.open(case.source.file, "residual_norm", case.shape, "reference")
    tensors = check.draw_all([run], {}, "cpu", torch.Generator().manual_seed(3))
    bound = run.bind(tensors, "cpu")
    errors, same = check.check(case, [run], [bound], tensors, "cpu")
    assert same and all(e["ok"] for e in errors.values()), errors
    assert set(errors) == {"h", "p", "ss"}

    def unwritten():  # one element stays poison
        bound()
        tensors["p"][3, 5] = float("nan")
    errors, _ = check.check(case, [run], [unwritten], tensors, "cpu")
    assert errors["h"]["ok"] and not errors["p"]["ok"]

    def moving(count=[0]):
        bound()
        count[0] += 1
        tensors["h"][0, 0] = count[0]
    assert not check.check(case, [run], [moving], tensors, "cpu")[1]


def test_accumulating_results_start_from_the_same_contents_each_time(library):
    case = tiny(next(c for c in ALL if c.formula == "weight_grad"))
    run = library.open(case.source.file, "weight_grad", case.shape, "reference")
    tensors = check.draw_all([run], {}, "cpu", torch.Generator().manual_seed(3))
    assert tensors["dw"].abs().max() > 0
    errors, same = check.check(case, [run], [run.bind(tensors, "cpu")], tensors, "cpu")
    assert same and errors["dw"]["ok"], errors


# ---- what is counted ----

@pytest.mark.parametrize("case", [c for c in ALL if c.gemms], ids=lambda c: c.label)
def test_base_products_do_the_work_of_the_program(library, case):
    from bench import counts, opened
    flops, _ = counts(case, opened(library, case))
    want = sum(g.flops for g in case.gemms)
    if "V" in case.shape:  # cuBLAS gets a padded vocabulary
        want = want * case.shape["V"] // cases.padded(case.shape["V"])
    if case.variant == "chunked":  # backward makes the logits again
        want = want // 3 * 4
    assert abs(flops - want) <= 1e-9 * want


def test_bytes_are_each_tensor_once(library):
    from bench import counts, opened
    case = next(c for c in ALL if c.case == "residual_norm" and c.width == 2048)
    m, n, k = 16384, 2048, 2048
    want = 2 * (m * k + n * k + m * n + n) + 2 * 2 * m * n + 4 * m * (n // 64)
    assert counts(case, opened(library, case))[1] == want
    case = next(c for c in ALL if c.formula == "weight_grad" and c.width == 2048)
    want = 2 * (m * n + m * k) + 2 * 4 * n * k  # the gradient is read and written
    assert counts(case, opened(library, case))[1] == want


def test_goals_of_the_table_are_there():
    goals = {(c.case, c.width): c.goal for c in ALL if c.part in ("fused", "rope", "layer")}
    assert goals["residual_norm", 8192] == 0.95 and goals["norm_swiglu", 2048] == 0.93
    assert goals["qk_norm_rope", 4096] == 0.985 and goals["layer_forward_backward", 8192] == 0.975
    assert {w: -(-8 * w // 3 // 256) * 256 for w in cases.WIDTHS} == cases.HIDDEN


def test_a_file_of_ones_own_is_a_case(library, tmp_path):
    from bench import own_case
    (tmp_path / "a.coda").write_text(
        "program f(x: bf16[M, K], w: bf16[N, K]) -> (y: bf16[M, N]) { y = x @ w + x @ w }\n"
        "block g(x: bf16[M, K], w: bf16[N, K]) -> (s: f32) { s = sum(sum(x @ w, N), M) }\n")
    sizes = {"M": 3, "N": 4, "K": 5}
    case = own_case(library, tmp_path / "a.coda", "f", sizes)
    assert case.gemms == (cases.Gemm(3, 4, 5),) * 2 and case.case == "f"
    case = own_case(library, tmp_path / "a.coda", "g", sizes)
    assert [g.flops for g in case.gemms] == [120] and case.source.block == "g"
    with pytest.raises(CodaError, match="`h`"):
        own_case(library, tmp_path / "a.coda", "h", sizes)


def test_labels_tell_rows_apart():
    keys = [(c.part, c.case, c.variant, str(c.shape)) for c in ALL]
    assert len(set(keys)) == len(keys)


def test_dry_run_lists_every_row(binary):
    run = subprocess.run([str(binary), "bench", "--dry-run"], capture_output=True, text=True,
                         env={"PATH": f"{sys.prefix}/bin:/usr/bin:/bin"})
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1] == f"{len(ALL)} rows"
    line = next(x for x in run.stdout.splitlines() if "layer_forward B=2 S=8192 D=2048" in x)
    assert "[16384, 11264, 2048]" in line and " 4 " in line


def test_without_a_gpu_the_command_says_so(binary):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    run = subprocess.run([str(binary), "bench", "gemm"], capture_output=True, text=True)
    assert run.returncode == 3 and "GPU" in run.stderr, run.stderr


def test_a_name_that_is_none_is_refused(binary):
    run = subprocess.run([str(binary), "bench", "--dry-run", "residual"], capture_output=True,
                         text=True)
    assert run.returncode != 0 and "residual_norm" in run.stderr


# ---- what is written ----

def row(case="gemm", m=1, **more):
    return {"part": "gemm", "case": case, "variant": "", "width": 2048, "shape": {"M": m},
            "label": f"{case} M={m}", "base": "cublas", "sustained": 0.95, "burst": 1.01,
            "rivals": {"torch.compile": {"sustained": 1.2, "burst": 1.3}}, "flops": 10, "bytes": 5,
            "ms": 1.0, "goal": 1.0, "met": True, "correct": True, "goal_text": "goal 1.000",
            **more}


def file_of(*rows, **more):
    return {"date": "2026-01-02", "gpu": "H200", "driver": "1", "versions": {}, "clocks": {},
            "peak_tflops": 700.0, "copy_bandwidth": 4.2e12, "rows": list(rows), "not_run": [],
            **more}


def test_files_are_checked_against_the_schema():
    assert report.problems(file_of(row())) == []
    assert report.problems({**file_of(), "gpu": 3}) == ["gpu is 3"]
    bad = row()
    del bad["burst"]
    assert report.problems(file_of(bad)) == ["gemm: burst is None"]
    assert "has no times" in report.problems(file_of(row(rivals={"x": {}})))[0]
    assert report.problems(file_of(row(rivals={"x": {"failed": "why"}}))) == []


def test_parts_merge_into_one_file(tmp_path):
    path = tmp_path / "results" / "h200.json"
    report.save(file_of(row(m=1), row(m=2), not_run=["gemm M=3", "other"]), path)
    report.save(file_of(row(m=2, sustained=0.9), row(m=3), compile={"a": {"cold": 1}}), path)
    report.save(file_of(row("rope"), compile={"b": {"cold": 2}}, launch={"b": {}}), path)
    whole = json.loads(path.read_text())
    assert [(r["case"], r["shape"]["M"], r["sustained"]) for r in whole["rows"]] == [
        ("gemm", 1, 0.95), ("gemm", 2, 0.9), ("gemm", 3, 0.95), ("rope", 1, 0.95)]
    assert whole["not_run"] == ["other"] and set(whole["compile"]) == {"a", "b"}
    assert set(whole["launch"]) == {"b"}
    assert [p.name for p in path.parent.iterdir()] == ["h200.json"]
    with pytest.raises(ValueError):
        report.save({**file_of(), "rows": [{"case": "x"}]}, path)
    assert json.loads(path.read_text()) == whole


def test_summary_names_what_was_missed():
    text = report.summary(file_of(row(sustained=0.9), row(m=2, sustained=1.01, met=False),
                                  row(m=3, correct=False, met=None), not_run=["late"]))
    assert "worst 1.010" in text and "missed: gemm M=2" in text and "wrong: gemm M=3" in text
    assert "1 of 2 met" in text and "not run: 1: late" in text
    assert "1.010!" in report.line(row(sustained=1.01, met=False))


def test_geomean_is_geometric():
    assert report.geomean([0.5, 2.0]) == pytest.approx(1.0)
    assert report.geomean([]) is None


# ---- verification on the device, here on the CPU ----

def test_jobs_cover_the_table_and_all_golden_schedules():
    table = json.loads((ROOT / "tests" / "cases.json").read_text())["cases"]
    jobs = list(verify.table_jobs())
    assert {(j.file.rsplit("/", 1)[1], j.name) for j in jobs} == {
        tuple(c["program"].split(":")) for c in table}
    schedules = sum(path.read_text().count("\nschedule ")
                    for path in (ROOT / "tests" / "golden").glob("*.coda"))
    assert len({(j.file, j.name) for j in verify.golden_jobs()}) == schedules


def test_verify_judges_with_the_command(binary, tmp_path):
    run = subprocess.run(
        [sys.executable, str(ROOT / "bench" / "verify.py"), "table", "golden", "--device", "cpu",
         "--coda", str(binary), "--seeds", "1", "--only", "row_scale", "--workers", "2",
         "--output", str(tmp_path / "verify.json")], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    outcomes = json.loads((tmp_path / "verify.json").read_text())
    assert outcomes["counts"] == {"passed": 5}  # three sizes, one of them in two more dtypes


# ---- the library for ctypes ----

def test_errors_come_through_with_their_text(library):
    with pytest.raises(CodaError, match="K"):
        library.open(cases.PROGRAMS / "linear.coda", "linear", {"M": 2, "N": 3})
    with pytest.raises(CodaError, match="residual_norm"):
        library.open(cases.PROGRAMS / "norm.coda", "residual_nor", {})
    run = library.open(cases.PROGRAMS / "linear.coda", "linear", {"M": 2, "N": 3, "K": 4},
                       "reference")
    with pytest.raises(CodaError, match="x is"):
        run.bind({"x": torch.zeros(2, 5), "w": torch.zeros(3, 4), "y": torch.zeros(2, 3)}, "cpu")


def test_strides_reach_the_program(library):
    run = library.open("program f(x: f32[M, K], w: f32[N, K]) -> (y: f32[M, N]) { y = x @ w }", "f",
                       {"M": 2, "N": 3, "K": 4}, "reference")
    x, w = torch.randn(4, 2).t(), torch.randn(3, 7)[:, 1:5]
    y = torch.zeros(2, 6)[:, ::2]
    run.bind({"x": x, "w": w, "y": y}, "cpu")()
    torch.testing.assert_close(y, x @ w.t())


def test_every_formula_is_used():
    used = {c.formula for c in ALL}
    assert set(FORMULAS) - used == {"linear_cross_entropy"}, "left over"


# ---- the whole command, with a clock of its own ----

@pytest.fixture
def on_the_cpu(library, monkeypatch, tmp_path):
    """bench.py on tiny cases, by the reference, with times that are made up."""
    import bench
    import protocol
    monkeypatch.setattr(bench, "DEVICE", "cpu")
    monkeypatch.setattr(bench, "Library", lambda: library)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(bench, "device_works", lambda: True)
    monkeypatch.setattr(check, "SLACK", 2.5)  # the reference rounds more often than torch does
    monkeypatch.setattr(protocol, "machine", lambda work: {
        "gpu": "none", "driver": None, "versions": {}, "clocks": {}})
    monkeypatch.setattr(protocol, "peak_tflops", lambda gemms: 700.0)
    monkeypatch.setattr(protocol, "copy_bandwidth", lambda: 4e12)
    monkeypatch.setattr(bench, "PEAK", (cases.Gemm(8, 8, 8),))
    monkeypatch.setattr(protocol, "cublas", lambda gemm, device="cuda": lambda: None)

    def both(base, candidate, quick=False):
        base()
        candidate()
        return {"sustained": protocol.Timed(0.9, 0.9, 1.0), "burst": protocol.Timed(1.0, 0.5, 0.5)}
    monkeypatch.setattr(protocol, "both", both)

    def run(chosen, *arguments):
        monkeypatch.setattr(bench, "chosen", lambda *_: [tiny(c) for c in chosen])
        path = tmp_path / "out.json"
        code = bench.main([*arguments, "x", "--output", str(path)])
        return code, json.loads(path.read_text())
    return run


def test_every_case_becomes_a_row(on_the_cpu, capsys):
    chosen = [c for c in DISTINCT if c.part != "layer" and c.variant != "chunked"]
    code, results = on_the_cpu(chosen, "--rivals", "none")
    assert len(results["rows"]) == len(chosen) and report.problems(results) == []
    assert all(r["correct"] and r["same_bits"] for r in results["rows"]), [
        (r["label"], r.get("failed"), r.get("errors")) for r in results["rows"]
        if not r["correct"]]
    row = next(r for r in results["rows"] if r["case"] == "residual_norm")
    assert row["met"] and row["sustained"] == 0.9 and row["flops"] == 2 * 70 * 130 * 24
    assert row["tflops"] == pytest.approx(row["flops"] / 0.9e-3 / 1e12)
    assert code == 0 and "goals:" in capsys.readouterr().out


def test_layers_are_checked_with_what_forward_keeps(on_the_cpu):
    _, results = on_the_cpu([c for c in DISTINCT if c.part == "layer"], "--rivals", "none")
    forward, step = results["rows"]
    assert set(forward["errors"]) == {"o", "q", "k", "v"} and forward["correct"], forward
    assert "d_gate" in step["errors"] and step["errors"]["mul"] == {"finite": True, "ok": True}
    assert step["correct"], step["errors"]
    kept = {"h_2", "p", "z_gate", "z_up", "mul", "p_1", "o", "q", "k", "v"}
    assert step["extra_bytes"] > 70 * 130 * 2 * len(kept) / 2


def test_rivals_and_failures_are_facts_of_a_row(on_the_cpu):
    case = replace(next(c for c in ALL if c.case == "head_forward"),
                   rivals=("cublas + cross_entropy", "liger", "quack"))
    broken = replace(case, case="broken", source=cases.program("norm", "residual_norms"))
    code, results = on_the_cpu([case, broken])
    good, bad = results["rows"]
    assert good["rivals"]["cublas + cross_entropy"]["sustained"] == 0.9
    assert "liger" not in good["rivals"] and "quack" not in good["rivals"]
    assert code == 1 and "residual_norm" in bad["failed"] and bad["correct"] is False


def test_what_does_not_fit_the_budget_is_named(on_the_cpu):
    chosen = [c for c in DISTINCT if c.part == "gemm"]
    _, results = on_the_cpu(chosen, "--budget", "1e-9", "--rivals", "none")
    assert results["rows"] == [] and len(results["not_run"]) == len(chosen)


# ---- the script for the device ----

def test_the_script_knows_its_parts():
    script = str(ROOT / "bench" / "device.sh")
    helped = subprocess.run([script, "--help"], capture_output=True, text=True)
    assert helped.returncode == 0
    assert all(part in helped.stdout for part in [*cases.PARTS, "compile", "verify", "sanitize"])
    wrong = subprocess.run([script, "gem"], capture_output=True, text=True)
    assert wrong.returncode == 2 and "unknown part gem" in wrong.stderr


def test_the_sanitizers_sample_are_programs_of_the_library():
    text = (ROOT / "bench" / "device.sh").read_text()
    sample = text[text.index("sample=("):].split("\n)")[0]
    entries = [line.strip(' "').split() for line in sample.splitlines()[1:]]
    assert len(entries) > 20
    for file, name, *words in entries:
        sizes = words[:words.index("--tile")] if "--tile" in words else words
        golden = ROOT / "tests" / "golden" / file
        declared = (golden if golden.exists() else cases.PROGRAMS / file).read_text()
        assert f"program {name}(" in declared or f"block {name}(" in declared, name
        assert all(size.partition("=")[2].isdigit() for size in sizes)


# ---- what fails on the device is compared with the CPU ----

def judged(monkeypatch, outcomes, **job):
    """verify.run where the command's verdicts are those of `outcomes`, by device and seeds."""
    asked = []

    def verdicts_of(job, options, environment, device, seeds, seed=1):
        asked.append((device, seeds))
        code, results = outcomes[device, seeds]
        return code, [{"result": r, "inputs": "normal", "layout": "dense", "why": "far off"}
                      for r in results], "said"
    monkeypatch.setattr(verify, "verdicts_of", verdicts_of)
    options = type("Options", (), {"device": "cuda", "seeds": 3})
    return verify.run(verify.Job("a.coda", "f", "M=1"), options, {})["outcome"], asked


def test_a_failure_is_judged_by_more_seeds_and_by_the_cpu(monkeypatch):
    outcome, asked = judged(monkeypatch, {("cuda", 3): (0, [])})
    assert (outcome, asked) == ("passed", [("cuda", 3)])
    more = {("cuda", 3): (0, ["y"]), ("cuda", 16): (0, [])}
    assert judged(monkeypatch, more)[0] == "passed"
    fails = {("cuda", 3): (0, ["y"]), ("cuda", 16): (0, ["y"])}
    assert judged(monkeypatch, {**fails, ("cpu", 16): (0, ["z"])})[0] == "FAILED"
    assert judged(monkeypatch, {**fails, ("cpu", 16): (0, ["y", "z"])})[0] == "as on the CPU"
    assert judged(monkeypatch, {("cuda", 3): (3, [])})[0] == "unsupported"
    assert judged(monkeypatch, {("cuda", 3): (70, [])})[0] == "exit 70"


def test_sizes_that_a_text_lacks_are_left_out(binary, monkeypatch):
    options = type("Options", (), {"coda": binary, "timeout": 60})
    job = verify.Job(str(cases.PROGRAMS / "norm.coda"), "row_scale", "M=3 N=2 K=4 S=7 B=1")
    code, failed, _ = verify.verdicts_of(job, options, None, "cpu", 1)
    assert (code, failed) == (0, [])


# ---- protocols, on a clock that counts ----

@pytest.fixture
def clock(monkeypatch):
    """Work takes what `now` is moved by; events and sleeping read and move it."""
    import protocol

    class Clock:
        now, slept, done = 0.0, 0.0, []

    class Event:
        def __init__(self, enable_timing=False):
            self.at = None

        def record(self):
            self.at = Clock.now

        def synchronize(self):
            pass

        def elapsed_time(self, other):
            return 1e3 * (other.at - self.at)

    def sleep(seconds):
        Clock.slept += seconds
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(protocol.time, "sleep", sleep)
    monkeypatch.setattr(protocol.time, "monotonic", lambda: Clock.now)
    return Clock


def test_candidates_run_in_pairs_after_idling_or_after_work(clock):
    import protocol

    def work(name, seconds):
        def run():
            clock.done.append(name)
            clock.now += seconds * (3 if len(clock.done) == 9 else 1)  # one outlier
        return run
    base, candidate = work("base", 0.002), work("x", 0.001)
    clock.done = []
    burst = protocol.pairs(base, candidate, "burst", 5)
    assert clock.done == ["base", "x"] * 7 and clock.slept == pytest.approx(0.030)
    assert burst.ratio == pytest.approx(0.5) and burst.base_ms == pytest.approx(2.0)
    clock.done, clock.slept = [], 0.0
    start = clock.now
    sustained = protocol.pairs(base, candidate, "sustained", 3)
    assert clock.slept == 0 and clock.now - start > 0.2
    assert set(clock.done[:96]) == {"base"} and clock.done[-10:] == ["base", "x"] * 5
    assert sustained.ms == pytest.approx(1.0)


def test_repeated_runs_are_runs(library):
    program = """coda 1
program count(x: f32[M]) -> (y: +f32[M]) {
  y += x
}
"""
    run = library.open(program, "count", {"M": 3}, "reference")
    x, y = torch.ones(3), torch.zeros(3)
    assert run.bind({"x": x, "y": y}, "cpu").repeat(4) > 0
    assert y.tolist() == [5.0] * 3  # one beside those that are timed


def test_fewer_rounds_of_what_takes_long():
    from protocol import rounds_for
    assert [rounds_for(ms) for ms in (0.2, 2, 8, 50)] == [15, 11, 7, 5]
    assert rounds_for(0.2, quick=True) == 3


def test_compile_times_name_cases_that_there_are():
    import compile_times
    found = compile_times.timed_cases("kernels")
    assert [f"{c.case} {c.variant}".strip() for c in found] != []
    assert {f"{c.case} {c.variant}".strip() for c in found} == set(compile_times.KERNELS)
    assert [c.width for c in compile_times.timed_cases("layer")] == [2048]
