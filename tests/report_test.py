"""The page of a training run: what it holds, that it is complete in itself, and that it only shows.

One small run is made; other logs are that run's with lines changed or added.
"""

import html.parser
import json
import re
import subprocess

import pytest

from coda_command import ROOT

SMALL = ["--layers", "3", "--width", "32", "--heads", "2", "--kv-heads", "1", "--seq", "32",
         "--batch", "2", "--lr", "0.01", "--threads", "1"]
STEPS = 60
HOSTILE = b"</script></pre><script>alert(1)</script>&amp;\"'\0\x1b[31m\xff\xc3(\xe2\x80\xae @data@"
VOID = {"meta", "br", "hr", "img", "input", "link"}


class Page(html.parser.HTMLParser):
    """A parsed page. Tags must nest and close, as in XML."""

    def __init__(self, text):
        super().__init__()
        self.text, self.tags, self.attributes, self.open = text, [], [], []
        self.ids, self.texts, self.all = {}, {}, ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attributes]
        own = dict(attributes)
        if "id" in own:
            assert own["id"] not in self.ids, own["id"]
            self.ids[own["id"]] = own
        if tag not in VOID:
            self.open.append((tag, own.get("id")))

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open and self.open[-1][0] == tag, (tag, self.open[-3:], self.getpos())
        self.open.pop()

    def handle_data(self, data):
        self.all += data
        for _, name in self.open:
            if name:
                self.texts[name] = self.texts.get(name, "") + data

    def number(self, name):
        return float(self.ids[name]["value"])


def coda(binary, *arguments, code=0):
    run = subprocess.run([str(binary), *map(str, arguments)], capture_output=True, timeout=120)
    assert run.returncode == code, run.stderr.decode(errors="replace")
    return run


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("private_place") / "cats.txt"
    path.write_text("the cat sat on the mat and the rat ran at the hat.\n" * 100)
    return path


@pytest.fixture(scope="module")
def run(binary, data, tmp_path_factory):
    """The folder of a run, and what it reported as JSON."""
    folder = tmp_path_factory.mktemp("run") / "model"
    out = coda(binary, "train", "--data", data, "--output", folder, "--steps", STEPS, "--json",
               *SMALL)
    return folder, json.loads(out.stdout)


@pytest.fixture(scope="module")
def page(run):
    return Page((run[0] / "report.html").read_text(encoding="utf-8"))


def records(folder):
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def page_of(binary, folder, log):
    """The page that the command makes of records, or of text."""
    folder.mkdir(exist_ok=True)
    text = log if isinstance(log, str) else "".join(json.dumps(each) + "\n" for each in log)
    (folder / "log.jsonl").write_text(text)
    coda(binary, "report", folder)
    return Page((folder / "report.html").read_text(encoding="utf-8"))


def test_the_page_holds_every_section_and_says_so(page, run):
    assert {"curves", "samples", "time", "layer", "facts"} <= set(page.ids)
    for section in ("curves", "samples", "time", "layer"):
        assert f"#{section}" in [value for tag, name, value in page.attributes if tag == "a"]
    for words in ("loss (nats a byte)", "bits a byte", "learning rate", "gradient norm",
                  "held out"):
        assert words in page.texts["curves"], words
    for words in ("attention forward", "attention backward", "optimiser", "adamw"):
        assert words in page.texts["time"], words
    assert "after 0 steps" in page.all and f"after {STEPS} steps" in page.all
    assert "unfused" in page.texts["layer"] and "program " in page.texts["fused-kernels"]
    assert run[1]["report"] == str(run[0] / "report.html")


def test_every_picture_has_a_text_for_those_who_do_not_see_it(page):
    charts = [value for tag, name, value in page.attributes if (tag, name) == ("svg", "role")]
    labels = [value for tag, name, value in page.attributes if (tag, name) == ("svg", "aria-label")]
    assert len(charts) == len(labels) >= 7 and all(labels)


def test_nothing_comes_from_outside(page):
    assert not {"link", "img", "iframe", "object", "embed", "base", "form"} & set(page.tags)
    for tag, name, value in page.attributes:
        assert name != "src" and not name.startswith("on"), (tag, name)
        if name in ("href", "xlink:href", "action"):
            assert value.startswith("#"), value
    assert not re.search(r"https?:|url\(|@import|//\w", page.text)
    policies = [value for _, name, value in page.attributes
                if name == "content" and "default-src 'none'" in value]
    assert len(policies) == 1
    assert len(page.text.encode()) < 2_000_000


def test_nothing_private_is_in_the_log_or_on_the_page(run, data, page):
    text = (run[0] / "log.jsonl").read_text() + page.text
    assert "cats.txt" in text
    assert str(data.parent) not in text and data.parent.name not in text
    assert str(run[0].parent) not in text


def test_numbers_agree_with_the_json(page, run):
    report = run[1]
    assert page.number("held-out-before") == report["held_out_loss"]["before"]
    assert page.number("held-out-after") == report["held_out_loss"]["after"]
    assert page.number("steps") == report["steps"] == STEPS
    assert page.number("parameters") == report["parameters"]
    assert page.number("seconds") == pytest.approx(report["seconds"])
    assert page.number("tokens-per-second") == pytest.approx(report["tokens_per_second"])
    assert page.number("measuring-seconds") == pytest.approx(report["measuring_seconds"])
    for which in ("unfused", "fused"):
        counts = report["ledger"][which]
        for shown, name in (("kernels", "kernels"), ("read", "bytes_read"),
                            ("written", "bytes_written")):
            assert page.number(f"model-{which}-{shown}") == counts[name]
    curve = json.loads(page.texts["curve-data"])
    assert curve["steps"][-1][2] == pytest.approx(report["loss"], rel=1e-4)
    assert curve["held_out"][-1][1] == report["held_out_loss"]["after"]
    assert report["sample"].split("\n")[0] in page.texts["samples"]


def test_times_add_up_and_one_layers_kernels_are_all_there(page, run):
    parts = [page.number(f"time-{i}") for i in range(6)]
    assert all(part >= 0 for part in parts)
    assert sum(parts) == pytest.approx(page.number("seconds"), rel=1e-3)
    kernels = next(each for each in records(run[0]) if each["event"] == "kernels")
    layer = kernels["layer"]["index"]
    mine = [each for each in kernels["kernels"] if each["layer"] == layer]
    assert len(mine) == page.number("layer-fused-kernels") > 10
    assert sum(each["read"] for each in mine) == page.number("layer-fused-read")
    assert sum(each["written"] for each in mine) == page.number("layer-fused-written")
    for each in mine:
        assert each["name"] in page.texts["fused-kernels"], each["name"]
    assert page.texts["fused-kernels"].count("program ") == len(mine)
    assert page.texts["unfused-calls"].count("program ") == page.number("layer-unfused-kernels")


def test_the_page_is_made_again_from_the_log(binary, run, tmp_path):
    coda(binary, "report", run[0], "--output", tmp_path / "again.html")
    assert (tmp_path / "again.html").read_bytes() == (run[0] / "report.html").read_bytes()


def test_measuring_on_the_way_changes_nothing_that_is_learnt(binary, data, tmp_path):
    """A step of a large batch takes as long as a sample, so that some fit into a short run."""
    large = [*SMALL, "--steps", "120"]
    large[large.index("--batch") + 1] = "96"
    for name, more in (("measured", []), ("plain", ["--no-report"])):
        coda(binary, "train", "--data", data, "--output", tmp_path / name, *large, *more)
    assert not {"log.jsonl", "report.html"} & {path.name for path in (tmp_path / "plain").iterdir()}
    kept = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("measured", "plain")]
    assert kept[0] == kept[1]
    log = records(tmp_path / "measured")
    at = {event: [each["step"] for each in log if each["event"] == event]
          for event in ("held_out", "sample", "step")}
    assert at["step"] == list(range(1, 121))
    for event in ("held_out", "sample"):
        assert at[event][0] == 0 and at[event][-1] == 120 and len(at[event]) > 2, at[event]
    time = [each for each in log if each["event"] == "time"][-1]
    assert time["measuring"] < 0.2 * time["training"]  # 4 % are planned: this is for busy machines


def test_a_full_disk_costs_the_report_but_not_the_model(binary, data, tmp_path):
    (tmp_path / "log.jsonl").symlink_to("/dev/full")
    out = coda(binary, "train", "--data", data, "--output", tmp_path, "--steps", 5, *SMALL)
    assert b"No report: cannot write" in out.stdout
    assert (tmp_path / "model.safetensors").exists()
    assert not (tmp_path / "report.html").exists()


def test_hostile_text_is_shown_and_does_nothing(binary, run, page, tmp_path):
    log = records(run[0])
    for each in log:
        if each["event"] == "sample":
            each["text"] = HOSTILE.decode("latin-1")
        if each["event"] == "start":
            each["data"]["file"] = "<img src=x onerror=alert(1)>\"'.txt"
            each["command"] = "coda train --data </code><script>alert(2)</script>"
            each["machine"]["cpu"] = "a\0b\x7f\u202ec"
    hostile = page_of(binary, tmp_path / "hostile", log)
    assert hostile.tags == page.tags
    assert hostile.texts["samples"].count("<script>alert(1)</script>&amp;\"'") == 2
    assert "<img src=x onerror=alert(1)>" in hostile.texts["facts"]
    assert "@data@" in hostile.texts["samples"]
    assert "[31m\ufffd\ufffd(\ufffd" in hostile.texts["samples"]
    assert "a\ufffdb\ufffd\ufffdc" in hostile.texts["facts"]
    assert not re.search("[\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", hostile.text)


def test_a_killed_runs_log_makes_a_page(binary, run, tmp_path):
    text = (run[0] / "log.jsonl").read_text()
    cut = text.index('"step":40}') + 5
    killed = page_of(binary, tmp_path / "killed", text[:cut])
    assert killed.number("steps") == 39
    assert "no end in the log" in killed.all
    first = page_of(binary, tmp_path / "first", text[:text.index("\n") + 1])
    assert first.number("steps") == 0


def test_what_a_resumed_run_repeats_counts_once(binary, run, tmp_path):
    log = records(run[0])
    start = dict(log[0], step=20, steps=30)
    again = [{"event": "step", "step": step, "loss": 1.25, "rate": 1e-3, "norm": 0.5,
              "seconds": step - 20.0} for step in range(21, 26)]
    resumed = page_of(binary, tmp_path / "resumed", log + [start] + again)
    assert resumed.number("steps") == 25
    curve = json.loads(resumed.texts["curve-data"])["steps"]
    assert [point[0] for point in curve] == list(range(1, 26))
    assert [point[1] for point in curve][20:] == [1.25] * 5
    assert f"after {STEPS} steps" not in resumed.all
    first = log[-2]["training"]
    assert resumed.number("seconds") == pytest.approx(first + 5)


@pytest.mark.parametrize("log, says", [
    (None, "cannot open"), ("", "no training run"), ("{}\n", "log.jsonl:1"),
    ('{"event":"start","step":0}\nnonsense\n', "log.jsonl:2"),
    ('{"event":"start","step":0}\n', "log lacks"), ('{"event":"start","step":-1}\n', "step of -1"),
])
def test_a_folder_without_a_run_is_refused(binary, tmp_path, log, says):
    if log is not None:
        (tmp_path / "log.jsonl").write_text(log)
    error = coda(binary, "report", tmp_path, code=1).stderr.decode()
    assert says in error and "fix: " in error
    assert not (tmp_path / "report.html").exists()


def test_every_colour_of_a_schedule_has_one_of_the_page(binary, tmp_path):
    coda(binary, "rewrite", "programs/llama.coda", "--layers", "2", "--grad", "--svg",
         tmp_path / "a.svg")
    used = set(re.findall(r'(?:fill|stroke)="(#\w+|white)"', (tmp_path / "a.svg").read_text()))
    style = (ROOT / "cli" / "page" / "report.css").read_text()
    mapped = set(re.findall(r'\.schedule \[(?:fill|stroke)="(#\w+|white)"\]', style))
    assert used <= mapped | {"white"} and "white" in mapped, used - mapped
