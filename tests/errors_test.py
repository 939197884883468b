"""Wrong programs, as people write them, with everything that the command says to each.

tests/errors/NAME.coda begins with the command as a comment; NAME.txt is what it prints.
`pytest tests/errors_test.py --update` writes the texts; each must tell a stranger how to fix the
line.
"""

import shlex
import subprocess

import pytest

from coda_command import ROOT

FOLDER = ROOT / "tests" / "errors"
FILES = sorted(FOLDER.glob("*.coda"))


def said(binary, path):
    """What the command in the first line of the file prints; it must fail, without a result."""
    command = path.read_text().splitlines()[0].removeprefix("# coda ")
    arguments = shlex.split(command.replace("FILE", path.name))
    run = subprocess.run([binary, *arguments], cwd=FOLDER, text=True, capture_output=True,
                         timeout=60)
    assert run.returncode == 1, f"coda {command}: exit code {run.returncode}\n{run.stdout}"
    assert run.stdout == "", f"coda {command}: {run.stdout}"
    return run.stderr


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_message_is_the_expected_one(path, binary, request):
    message = said(binary, path)
    expected = path.with_suffix(".txt")
    if request.config.getoption("--update"):
        expected.write_text(message)
    assert expected.exists(), f"{expected} is missing: pytest tests/errors_test.py --update"
    assert message == expected.read_text()


def test_every_message_has_a_fix_and_every_text_a_program():
    assert len(FILES) >= 60
    for path in FOLDER.glob("*.txt"):
        assert path.with_suffix(".coda").exists(), path.name
        for message in path.read_text().split("error: ")[1:]:
            assert "\n  fix: " in message or "there are more mistakes" in message, path.name
