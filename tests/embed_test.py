"""The library as another project has it: installed, moved, found by CMake, linked, run.

docs/embedding.md shows the example and what it prints: `pytest tests/embed_test.py --update`
writes both.
"""

import re
import shutil
import subprocess

import numpy as np
import pytest

from coda_command import ROOT

EXAMPLE = ROOT / "examples" / "embed"
PAGE = ROOT / "docs" / "embedding.md"
VENV = ROOT / ".venv"


def cache(binary, entry):
    """An entry of the build's CMake cache."""
    text = (binary.parent / "CMakeCache.txt").read_text()
    return re.search(rf"^{entry}:\w+=(.*)$", text, re.M)[1]


def run(*command):
    return subprocess.run([str(each) for each in command], text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=300)


@pytest.fixture(scope="module")
def cmake(binary):
    return cache(binary, "CMAKE_COMMAND")


@pytest.fixture(scope="module")
def installed(binary, cmake, tmp_path_factory):
    """The installed tree, in another place than it was installed in."""
    folder = tmp_path_factory.mktemp("embed")
    result = run(cmake, "--install", binary.parent, "--prefix", folder / "installed")
    assert result.returncode == 0, result.stdout
    (folder / "installed").rename(folder / "moved")
    yield folder / "moved"
    shutil.rmtree(folder, ignore_errors=True)


def configure(cmake, binary, source, build, *options):
    return run(cmake, "-G", "Ninja", "-S", source, "-B", build, "-DCMAKE_BUILD_TYPE=Release",
               f"-DCMAKE_CXX_COMPILER={cache(binary, 'CMAKE_CXX_COMPILER')}",
               f"-DCMAKE_MAKE_PROGRAM={cache(binary, 'CMAKE_MAKE_PROGRAM')}", *options)


@pytest.fixture(scope="module")
def output(binary, cmake, installed, tmp_path_factory):
    """What the example prints, built against the installed tree alone."""
    build = tmp_path_factory.mktemp("example")
    result = configure(cmake, binary, EXAMPLE, build,
                       f"-DCMAKE_PREFIX_PATH={installed};{VENV}")
    assert result.returncode == 0, result.stdout
    result = run(cmake, "--build", build)
    assert result.returncode == 0, result.stdout
    result = run(build / "embed")
    assert result.returncode == 0, result.stdout
    return result.stdout


def numbers(shape, step):
    return 0.25 * (np.arange(np.prod(shape)) * step % 7 - 3.0).reshape(shape)


def test_the_example_computes_what_numpy_does(output):
    shown = {name: np.array(values.split(), dtype=float)
             for name, values in re.findall(r"^(y|ss|z) ([-\d. ]+)$", output, re.M)}
    h = numbers((3, 5), 3) @ numbers((4, 5), 2).T + numbers(4, 1)
    y = h / (1 + np.exp(-h))
    ss = (y * y).sum(1)
    z = y / np.sqrt(ss / 4 + 1e-5)[:, None] @ numbers((2, 4), 5).T
    np.testing.assert_allclose(shown["y"], y.ravel(), atol=2e-5)
    np.testing.assert_allclose(shown["ss"], ss, atol=2e-5)
    np.testing.assert_allclose(shown["z"], z.ravel(), atol=2e-5)


def test_the_example_shows_the_commands_own_error(output, binary, tmp_path):
    text = re.search(r'kWrong = R"\((.*?)\)"', (EXAMPLE / "main.cpp").read_text(), re.S)[1]
    (tmp_path / "wrong.coda").write_text(text)
    command = subprocess.run([binary, "check", "wrong.coda"], cwd=tmp_path, text=True,
                             capture_output=True)
    assert command.returncode == 1 and "fix: " in command.stderr
    assert command.stderr in output
    assert output.endswith("2 blocks taken, 0 bytes still held\n")


def test_the_page_shows_the_example_and_what_it_prints(output, request):
    page = PAGE.read_text()
    for fence, body in (("cmake", (EXAMPLE / "CMakeLists.txt").read_text()),
                        ("cpp", (EXAMPLE / "main.cpp").read_text()), ("text", output)):
        shown = re.search(rf"^```{fence} embed\n(.*?)^```$", page, re.S | re.M)[1]
        page = page.replace(f"```{fence} embed\n{shown}```", f"```{fence} embed\n{body}```")
    if request.config.getoption("--update"):
        PAGE.write_text(page)
    assert page == PAGE.read_text(), "pytest tests/embed_test.py --update"


def test_an_installed_tree_names_no_file_of_the_machine_that_built_it(installed, binary):
    folders = {str(path).encode() for place in (ROOT, binary.parent, VENV)
               for path in (place, place.resolve())}
    files = [path for path in installed.rglob("*") if path.is_file()]
    assert any(path.name == "libcoda.a" for path in files)
    for path in files:
        content = path.read_bytes()
        for folder in folders:
            assert folder not in content, f"{path} holds {folder}"


def test_installed_headers_include_one_another_and_compile_alone(installed, binary, tmp_path):
    include = installed / "include"
    headers = sorted(path for path in include.rglob("*") if path.is_file())
    for path in headers:
        for name in re.findall(r'#include "([^"]+)"', path.read_text()):
            assert (include / name).exists(), f"{path} includes {name}, which is not installed"
    ours = [str(path.relative_to(include)) for path in headers if path.suffix == ".h"]
    assert "coda/core/allocator.h" in ours and "coda/program/parser.h" not in ours
    for name in ours:
        assert name in PAGE.read_text(), f"{PAGE.name} does not say what {name} is for"
    # Each twice, in both orders: a header needs none before it, and may come again.
    (tmp_path / "all.cpp").write_text("".join(f'#include "{h}"\n' for h in ours + ours[::-1]))
    (tmp_path / "reversed.cpp").write_text("".join(f'#include "{h}"\n' for h in ours[::-1]))
    for source in ("all.cpp", "reversed.cpp"):
        result = run(cache(binary, "CMAKE_CXX_COMPILER"), "-std=c++20", "-Wall", "-Wextra",
                     "-Werror", "-fsyntax-only", "-I", include, tmp_path / source)
        assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("package,message", [
    ("dnnl", "coda needs oneDNN 3, which was not found. To install it: pip install onednn"),
    ("Highway", "coda needs Highway, which was not found. To install it: apt-get install"),
])
def test_a_missing_dependency_is_named_with_what_installs_it(installed, binary, cmake, tmp_path,
                                                             package, message):
    result = configure(cmake, binary, EXAMPLE, tmp_path, f"-DCMAKE_PREFIX_PATH={installed};{VENV}",
                       f"-DCMAKE_DISABLE_FIND_PACKAGE_{package}=ON")
    assert result.returncode != 0
    assert message in " ".join(result.stdout.split()), result.stdout


def test_another_version_is_not_taken(installed, binary, cmake, tmp_path):
    text = (EXAMPLE / "CMakeLists.txt").read_text()
    (tmp_path / "CMakeLists.txt").write_text(text.replace("coda 0.1", "coda 0.9"))
    result = configure(cmake, binary, tmp_path, tmp_path / "build",
                       f"-DCMAKE_PREFIX_PATH={installed};{VENV}")
    assert result.returncode != 0 and "version: 0.1.0" in result.stdout, result.stdout
