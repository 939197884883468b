"""The examples of docs/: every ```coda fence checks, every ```console fence prints what it shows.

  ```coda              parses and checks, and is in canonical layout
  ```coda NAME.coda    the same, and lies in the folder where the page's commands run
  ```coda refused      is refused, with exactly the text of the ```error fence after it
  ```console           `$ command` lines, each followed by its output
  ```cpp FILE.cpp      a new source file, or tests to put into one that is there: see the exercise

A picture ![…](NAME.svg) is what a command of the page drew under that name. Decimal numbers may
differ by rounding. `pytest tests/docs_test.py --update` writes the outputs into
the pages.
"""

import re
import subprocess

import pytest

from coda_command import ROOT

PAGES = sorted((ROOT / "docs").glob("*.md")) + [ROOT / "README.md", ROOT / "AGENTS.md"]
PICTURE = re.compile(r"!\[[^\]]*\]\(([\w.]+\.svg)\)")
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
    # A slow machine is told how far `verify` is.
    return result.returncode, re.sub(r"^verifying: .*\n", "", result.stdout, flags=re.M)


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
    for name in PICTURE.findall(text):  # a command of the page drew it
        drawn, kept = tmp_path / name, page.parent / name
        if update:
            kept.write_text(drawn.read_text())
        if not kept.exists() or not same(kept.read_text(), drawn.read_text()):
            wrong.append(f"{page.name}: {name} is not what its command draws\n")
    if update:
        page.write_text(updated)
        wrong = [w for w in wrong if "refused" in w]  # what no update can mend
    assert not wrong, "\n\n".join(wrong)


def test_the_exercise_works_as_written(binary, tmp_path):
    """The rule of rewrite.md, before the tests with its own among them, in one source file."""
    fences = FENCE.findall((ROOT / "docs" / "rewrite.md").read_text())
    (rule, tests) = [body for language, info, body in fences if language == "cpp" and info]
    path = ROOT / "tests" / "algebra_test.cpp"
    (tmp_path / "exercise.cpp").write_text(
        rule + path.read_text().replace("TEST(Rules,", tests + "\nTEST(Rules,", 1))
    for file, body in (("rule.cpp", rule), ("tests.cpp", tests)):
        command = [ROOT / ".venv/bin/clang-format", f"--style=file:{ROOT}/.clang-format"]
        assert subprocess.run(command, input=body, text=True, capture_output=True,
                              check=True).stdout == body, file
    library = binary.parent / "library" / "libcoda.a"
    dnnl = sorted((ROOT / ".venv" / "lib").glob("libdnnl.so*"))[0]
    code, output = run(
        f"c++ -std=c++20 -O0 -Wall -Wextra -Werror -Wno-missing-field-initializers -I{ROOT}"
        f" -DCODA_SOURCE_DIR='\"{ROOT}\"' exercise.cpp -o exercise -lgtest_main -lgtest {library}"
        f" {dnnl} -Wl,-rpath,{dnnl.parent} -lhwy -lgomp -ldl -lpthread", tmp_path)
    assert code == 0, output
    code, output = run("./exercise --gtest_filter='ScalarScale.*'", tmp_path)
    assert code == 0 and "2 tests" in output, output
