# tests/include_direction.py: what the architecture says of the source tree, checked on its text.
"""Checks the tree: who may include whom, sizes, names, head comments, environment
reads, allocations.

Usage: python3 tests/include_direction.py [ROOT]. Prints each fault as file:line: what, rule; exits
with 1 if there is one. First it runs its own tests (test_*, which pytest collects too): each rule
must find a fault in a small bad tree, so that a check that sees nothing cannot pass.
"""

import pathlib
import re
import sys
import tempfile

# The folders that a folder of coda/ may include, itself apart. A new folder is a new row.
CHECKED = {"core", "program", "check"}
BACKEND = CHECKED | {"backend"}
MAY_INCLUDE = {
    "core": set(),
    "program": {"core"},
    "check": {"core", "program"},
    "algebra": {"core", "program"},
    "rewrite": CHECKED | {"algebra"},
    "backend": CHECKED,
    "reference": BACKEND,
    "cpu": BACKEND,
    "cuda": BACKEND,
    "device": set(),
    "model": BACKEND | {"algebra", "rewrite", "reference", "cpu", "cuda"},
}
MODEL = MAY_INCLUDE["model"]
# Outside coda/: the model too; tests may see everything.
OUTSIDE = {folder: MODEL | {"model"} for folder in ["cli", "python", "bench"]} | {
    "tests": None, "examples": MODEL - {"algebra", "model"}}

CODE = {".h", ".cpp", ".cuh", ".cu", ".def"}
TEXT = CODE | {".py", ".coda", ".cmake", ".sh"}
MOST_LINES = 499
MOST_COLUMNS = 100
VAGUE = re.compile(r"(^|_)(utils?|helpers?|common|misc)(_|$)")
INCLUDE = re.compile(r'\s*#\s*include\s*([<"])([^>"]+)[>"]')
ENVIRONMENT = re.compile(r"\b(secure_getenv|getenv|environ)\b")
ENVIRONMENT_READER = "coda/core/flags.cpp"
ALLOCATES = re.compile(r"\b(aligned_alloc|posix_memalign|malloc|calloc|realloc)\s*\(")
ALLOCATOR = "coda/core/allocator.cpp"
THIS = "tests/include_direction.py"


def sources(root):
    """Every source file of ours, as paths relative to `root`."""
    for folder in ["coda", *OUTSIDE, "programs"]:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in TEXT or path.name == "CMakeLists.txt":
                yield path.relative_to(root)
    for name in ["CMakeLists.txt", "run", "test", ".ci/run", ".ci/setup.sh"]:
        if (root / name).exists():
            yield pathlib.Path(name)


def allowed(path):
    """The folders of coda/ that the file may include; None: all."""
    if path.parts[0] != "coda":
        return OUTSIDE.get(path.parts[0])
    return MAY_INCLUDE.get(path.parts[1], set()) | {path.parts[1]}


def include_fault(root, path, bracket, target):
    parts = pathlib.PurePosixPath(target).parts
    ours = parts[0] in {"coda", *OUTSIDE}
    if bracket == "<":
        if path.parts[:2] == ("coda", "device"):
            return f"<{target}>: the GPU compiler has no headers: define what is needed"
        return f'<{target}> is ours: write it in quotes' if ours else None
    if not ours:
        # The GPU compiler sees the files of device/ under their bare names.
        beside = len(parts) == 1 and path.suffix == ".cuh" and path.parts[:2] == ("coda", "device")
        if beside:
            there = (root / path.parent / target).exists()
            return None if there else f'"{target}" does not exist in {path.parent}'
        return f'"{target}" lacks its folder, "coda/<folder>/<file>.h", or is not ours: <{target}>'
    if not (root / target).exists():
        return f'"{target}" does not exist'
    if parts[0] != "coda":
        same = parts[0] == path.parts[0]
        return None if same else f'"{target}": nothing includes {parts[0]}/ from outside'
    may = allowed(path)
    if may is None or parts[1] in may:
        return None
    names = ", ".join(sorted(may)) or "nothing of ours"
    return f'"{target}": {"/".join(path.parts[:-1])} may include {names}'


def code_faults(root, path, lines):
    """(line, fault) of one C++ or CUDA file."""
    head = f"// {path}: "
    if not lines or not lines[0].startswith(head):
        yield 1, f'the first line is not "{head}…"'
    for number, line in enumerate(lines, 1):
        include = INCLUDE.match(line)
        fault = include and include_fault(root, path, *include.groups())
        if fault:
            yield number, fault
        reader = path.parts[0] == "tests" or str(path) == ENVIRONMENT_READER
        if not reader and ENVIRONMENT.search(line.split("//")[0]):
            yield number, f"reads the environment: only {ENVIRONMENT_READER} may"
        library = path.parts[:1] == ("coda",) and str(path) != ALLOCATOR
        if library and ALLOCATES.search(line.split("//")[0]):
            yield number, f"allocates: only {ALLOCATOR} may, for the caller's allocator"


NAMESPACE = re.compile(r"namespace\s*([\w:]*)\s*\{")
NAMESPACE_END = re.compile(r"\}\s*// namespace")
TYPE = re.compile(r"(?:struct|class|enum class)\s+(?:alignas\(\w+\)\s+)?(\w+(?:::\w+)*)[^;]*\{")


def types(lines):
    """(line, name with its namespaces) of each type that other files could define too."""
    spaces = []
    for number, line in enumerate(lines, 1):
        if opened := NAMESPACE.match(line):
            spaces.append(opened[1])
        elif NAMESPACE_END.match(line) and spaces:
            spaces.pop()
        elif (found := TYPE.match(line)) and "" not in spaces:
            yield number, "::".join(spaces + [found[1]])


def faults(root):
    """Every fault of the tree under `root`, as "file:line: what"."""
    found, defined = [], {}
    for path in sources(root):
        report = lambda line, what: found.append(f"{path}:{line}: {what}")
        lines = (root / path).read_text(encoding="utf-8").splitlines()
        # What the command prints is as long as it is.
        if len(lines) > MOST_LINES and path.parts[:2] != ("tests", "golden"):
            report(len(lines), f"{len(lines)} lines; at most {MOST_LINES}: split it")
        for number, line in enumerate(lines, 1):
            # A program's layout is the printer's.
            if len(line) > MOST_COLUMNS and path.suffix != ".coda":
                report(number, f"{len(line)} columns; at most {MOST_COLUMNS}")
        if VAGUE.search(path.stem):
            report(1, f"{path.name} says nothing: name the file after what is in it")
        if path.parts[0] == "coda" and len(path.parts) > 3:
            report(1, "two levels of folders, nothing deeper")
        if path.suffix not in CODE:
            continue
        if path.parts[0] == "coda" and path.parts[1] not in MAY_INCLUDE:
            report(1, f"coda/{path.parts[1]} is unknown: it needs a row in {THIS}")
            continue
        for number, what in code_faults(root, path, lines):
            report(number, what)
        if path.parts[0] != "coda":
            continue
        for number, name in types(lines):
            there = defined.setdefault(name, path)
            if there != path:  # the linker keeps one destructor for both
                report(number, f"{name} is defined in {there} too: give one another name")
    return found


# ---- its own tests ----


def faults_of(files):
    """The faults of a tree of path → text below the head comment (a list: the whole text)."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            head = "" if isinstance(text, list) else f"// {name}: a file.\n"
            path.write_text(head + "".join(text), encoding="utf-8")
        return faults(root)


# A tree with a header in each folder.
HEADERS = {f"coda/{folder}/{folder}.h": "" for folder in MAY_INCLUDE}


def include(folder, target):
    name = f"{folder}/here.cpp"
    return faults_of(HEADERS | {name: f'#include "{target}"\n'})


def test_every_allowed_include_passes():
    for folder, targets in MAY_INCLUDE.items():
        for target in targets | {folder}:
            assert include(f"coda/{folder}", f"coda/{target}/{target}.h") == []
    for target in MAY_INCLUDE:
        assert include("tests", f"coda/{target}/{target}.h") == []
    assert include("cli", "coda/model/model.h") == []


def test_every_other_include_is_a_fault():
    for folder, targets in MAY_INCLUDE.items():
        for target in set(MAY_INCLUDE) - targets - {folder}:
            found = include(f"coda/{folder}", f"coda/{target}/{target}.h")
            assert len(found) == 1 and f"coda/{folder} may include" in found[0], found
            assert found[0].startswith(f"coda/{folder}/here.cpp:2: "), found


def test_backends_never_see_one_another_nor_anything_the_model():
    backends = {"reference", "cpu", "cuda"}
    for one in backends:
        assert not MAY_INCLUDE[one] & backends
    assert not any("model" in targets for targets in MAY_INCLUDE.values())


def test_includes_are_written_one_way():
    assert "in quotes" in faults_of(HEADERS | {"cli/a.cpp": "#include <coda/core/core.h>\n"})[0]
    assert "lacks its folder" in faults_of(HEADERS | {"coda/core/a.cpp": '#include "core.h"\n'})[0]
    assert "does not exist" in faults_of({"coda/core/a.cpp": '# include "coda/core/b.h"\n'})[0]
    assert faults_of({"coda/core/a.cpp": "#include <vector>\n"}) == []
    outside = {"cli/a.h": "", "coda/core/a.cpp": '#include "cli/a.h"\n'}
    assert "nothing includes cli/" in faults_of(outside)[0]


def test_device_files_include_one_another_by_their_bare_names():
    leaf = {"coda/device/leaf.cuh": ""}
    text = '#include "leaf.cuh"\n'
    assert faults_of(leaf | {"coda/device/a.cuh": text}) == []
    assert "does not exist in coda/device" in faults_of({"coda/device/a.cuh": text})[0]
    assert "lacks its folder" in faults_of(leaf | {"coda/cuda/a.cpp": text})[0]
    assert "no headers" in faults_of({"coda/device/a.cuh": "#include <cstdint>\n"})[0]


def test_sizes_names_and_places():
    assert faults_of({"coda/core/a.cpp": "\n" * (MOST_LINES - 1)}) == []
    assert "500 lines" in faults_of({"coda/core/a.cpp": "\n" * MOST_LINES})[0]
    assert "101 columns" in faults_of({"tests/a.py": ["#" + " " * 99 + "é\n"]})[0]
    assert faults_of({"tests/a.py": ["é" * MOST_COLUMNS]}) == []
    for name in ["utils", "string_utils", "helpers", "common"]:
        assert "says nothing" in faults_of({f"coda/core/{name}.h": ""})[0]
    assert faults_of({"coda/core/commons.h": ""}) == []
    assert "nothing deeper" in faults_of({"coda/core/sub/a.h": ""})[0]
    assert "is unknown" in faults_of({"coda/extra/a.h": ""})[0]
    assert "first line" in faults_of({"coda/core/a.h": ["#pragma once\n"]})[0]


def test_only_flags_reads_the_environment():
    read = 'const char* home = std::getenv("HOME");\n'
    assert "reads the environment" in faults_of({"coda/core/a.cpp": read})[0]
    assert "reads the environment" in faults_of({"cli/a.cpp": read})[0]
    assert faults_of({ENVIRONMENT_READER: read, "tests/a_test.cpp": read}) == []
    assert faults_of({"coda/core/a.cpp": "// getenv is not for us\n"}) == []


def test_a_type_has_one_definition():
    body = "namespace coda {\nstruct Part {\n};\n}  // namespace coda\n"
    hidden = body.replace("struct", "namespace {\nstruct").replace("};", "};\n}  // namespace")
    a, b = "coda/core/a.h", "coda/check/b.h"
    assert "coda::Part is defined in" in faults_of({a: body, b: body})[0]
    assert faults_of({a: body, b: hidden}) == []
    assert faults_of({a: body, b: body.replace("coda", "coda::check")}) == []


def test_only_the_allocator_allocates():
    take = "void* memory = std::aligned_alloc(64, 128);\n"
    assert "allocates: only" in faults_of({"coda/core/a.cpp": take})[0]
    assert "allocates: only" in faults_of({"coda/core/a.cpp": "std::malloc(1);\n"})[0]
    assert faults_of({ALLOCATOR: take, "tests/a_test.cpp": take, "cli/a.cpp": take}) == []


def main():
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else __file__).resolve()
    found = faults(root if root.is_dir() else root.parent.parent)
    print("\n".join(found) or "the tree follows the architecture")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
