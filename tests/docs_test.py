"""The examples of docs/: every ```coda fence checks, every ```console fence prints what it shows.

  ```coda              parses and checks, and is in canonical layout
  ```coda NAME.coda    the same, and lies in the folder where the page's commands run
  ```coda refused      is refused, with exactly the text of the ```error fence after it
  ```console           `$ command` lines, each followed by its output

Decimal numbers may differ by rounding. `pytest tests/docs_test.py --update` writes the outputs into
the pages.
"""

import re
import subprocess

import pytest

from coda_command import ROOT

PAGES = sorted((ROOT / "docs").glob("*.md")) + [ROOT / "README.md", ROOT / "AGENTS.md"]
FENCE = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.S | re.M)
REFUSED = "example.coda"


NUMBER = re.compile(r"-?\d+\.\d+(?:e[-+]\d+)?|-?\d+e[-+]\d+")


def same(shown, got):
    """Equal texts, but for decimal numbers that are only near each other."""
    numbers = [[float(n) for n in NUMBER.findall(text)] for text in (shown, got)]
    return (NUMBER.sub("#", shown) == NUMBER.sub("#", got)
            and all(abs(a - b) <= 0.05 * abs(a) + 0.02 for a, b in zip(*numbers)))


def run(command, folder):
    result = subprocess.run(command, shell=True, cwd=folder, text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, timeout=60)
    return result.returncode, result.stdout


def commands(body):
    """[(command, shown output)] of a console fence; a command goes on after a backslash."""
    found = []
    for line in body.splitlines(keepends=True):
        if line.startswith("$ "):
            found.append([line[2:], ""])
        elif found and found[-1][0].endswith("\\\n"):
            found[-1][0] += line
        elif found:
            found[-1][1] += line
    return found


@pytest.mark.parametrize("page", [p for p in PAGES if p.exists()], ids=lambda p: p.name)
def test_examples_run_as_shown(page, binary, tmp_path, request):
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "coda").symlink_to(binary)
    (tmp_path / "programs").symlink_to(ROOT / "programs")
    text, wrong, refusal = page.read_text(), [], None
    update = request.config.getoption("--update")

    def expect(what, shown, got):
        if not same(shown, got):
            wrong.append(f"{page.name}: {what}\n--- shown ---\n{shown}--- printed ---\n{got}")

    def fence(match):
        nonlocal refusal
        language, info, body = match[1], match[2].strip(), match[3]
        if language == "coda":
            file = info if info.endswith(".coda") else REFUSED
            (tmp_path / file).write_text(body)
            _, formatted = run(f"build/coda fmt - < {file}", tmp_path)
            if not body.startswith("coda "):
                formatted = formatted.removeprefix("coda 1\n\n")
            expect("the layout of", body, formatted)
            if update:
                (tmp_path / file).write_text(formatted)
            code, output = run(f"build/coda check {file}", tmp_path)
            refusal = output if info == "refused" else None
            if info == "refused" and code != 1:
                wrong.append(f"{page.name}: not refused:\n{body}{output}")
            if info != "refused" and code != 0:
                wrong.append(f"{page.name}: refused:\n{body}{output}")
            return f"```coda{match[2]}\n{formatted}```"
        if language == "error":
            expect("the refusal", body, refusal)
            return f"```error\n{refusal}```"
        if language == "console":
            new = ""
            for command, shown in commands(body):
                _, output = run(command, tmp_path)
                expect(f"$ {command}", shown, output)
                new += f"$ {command}{shown if same(shown, output) else output}"
            return f"```console{match[2]}\n{new}```"
        return match[0]

    updated = FENCE.sub(fence, text)
    if update:
        page.write_text(updated)
        wrong = [w for w in wrong if "refused" in w]
    assert not wrong, "\n\n".join(wrong)
