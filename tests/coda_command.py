"""The command `coda` for tests: programs run on arrays, in double unless a test says otherwise."""

import re
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "programs"

NUMPY = {"f64": np.float64, "f32": np.float32, "i64": np.int64, "i32": np.int32, "u8": np.uint8,
         "bool": np.bool_, "f16": np.float16}


class Failed(Exception):
    """The command's exit code was not 0; the message is what it printed."""


@dataclass
class Tensor:
    """A parameter or a result as its declaration says."""

    name: str
    dtype: str
    dims: list = field(default_factory=list)

    def shape(self, sizes):
        return tuple(extent(dim, sizes) for dim in self.dims)


@dataclass
class Signature:
    kind: str
    name: str
    params: list
    results: list

    def dimensions(self):
        """The names in all types."""
        dims = " ".join(dim for tensor in self.params + self.results for dim in tensor.dims)
        return set(re.findall(r"[A-Za-z_]\w*", dims)) - {"blocks"}


def extent(dim, sizes):
    """The extent of a dimension such as `H*(E/2)` or `blocks(N)` under sizes by name."""
    blocks = lambda n, block=64: -(-n // block)
    return eval(dim.replace("/", "//"), {"blocks": blocks}, dict(sizes))


def _split(text):
    """Splits at the commas outside brackets."""
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        depth += letter in "([" and 1 or letter in ")]" and -1 or 0
        if letter == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    return [part.strip() for part in parts + [text[start:]] if part.strip()]


def _tensor(text):
    name, _, type_text = text.partition(":")
    match = re.fullmatch(r"\s*\+?(\w+)\s*(?:\[(.*)\])?\s*", type_text, re.S)
    return Tensor(name.strip(), match[1], _split(match[2] or ""))


def signatures(text):
    """Every program, block and schedule that a text declares."""
    text = re.sub(r"#.*", "", text)
    found = []
    pattern = (r"^(program|block|schedule)\s+([\w.]+)(?:\[[^\]]*\])?\s*\((.*?)\)\s*->\s*"
               r"\((.*?)\)\s*\{")
    for kind, name, params, results in re.findall(pattern, text, re.S | re.M):
        found.append(Signature(kind, name, [_tensor(p) for p in _split(params)],
                               [_tensor(r) for r in _split(results)]))
    return found


class Coda:
    """Runs the built command in a folder that holds the library's texts in double."""

    def __init__(self, binary, folder):
        self.binary, self.folder = Path(binary), Path(folder)
        for path in PROGRAMS.glob("*.coda"):
            self.write(path.name, in_double(path.read_text()))

    def write(self, name, text):
        (self.folder / name).write_text(text)
        return name

    def command(self, *arguments):
        run = subprocess.run([str(self.binary), *arguments], cwd=self.folder, text=True,
                             capture_output=True, timeout=120)
        if run.returncode:
            raise Failed(f"coda {' '.join(arguments)}\n{run.stdout}{run.stderr}")
        return run.stdout

    def signature(self, file, name):
        return next(s for s in signatures((self.folder / file).read_text()) if s.name == name)

    def run(self, file, name, inputs, sizes=None, device="exact"):
        """Results by name. `inputs` are arrays and numbers by name; other sizes are ignored."""
        signature = self.signature(file, name)
        with tempfile.TemporaryDirectory(dir=self.folder) as scratch:
            arguments = ["run", file, "--program", name, "--device", device]
            for param in signature.params:
                value = np.asarray(inputs[param.name], dtype=NUMPY[param.dtype])
                if value.ndim == 0:
                    arguments.append(f"{param.name}={value.item()!r}")
                else:
                    np.save(f"{scratch}/{param.name}.npy", np.ascontiguousarray(value))
                    arguments.append(f"{param.name}={scratch}/{param.name}.npy")
            for dimension in sorted(signature.dimensions() & set(sizes or {})):
                arguments += ["--size", f"{dimension}={sizes[dimension]}"]
            for result in signature.results:
                arguments += ["-o", f"{result.name}={scratch}/out_{result.name}.npy"]
            self.command(*arguments)
            return {r.name: np.load(f"{scratch}/out_{r.name}.npy") for r in signature.results}

    def grad(self, file, name, of=(), wrt=()):
        """Writes the gradient's text and returns its file and its name."""
        arguments = ["grad", file, "--program", name]
        if of:
            arguments += ["--of", ",".join(of)]
        if wrt:
            arguments += ["--wrt", ",".join(wrt)]
        text = self.command(*arguments)
        written = self.write(f"grad_{Path(file).stem}_{name}.coda", text)
        return written, signatures(text)[-1].name


def in_double(text):
    """The same text with every floating-point type f64."""
    return re.sub(r"\b(bf16|f16|f32)\b(?=[\[,)\s(])", "f64", text)
