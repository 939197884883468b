"""The rows of the benchmark: which text, which sizes, against which bare products, with which goal.

A Case is data. `shape` has the sizes by name; `gemms` are the products that cuBLAS runs for the
same work, each alone (none: a copy of the same bytes is the rival); `goal` and `burst_goal` bound
time over them. Everything is bf16 unless the text says otherwise.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE.parent / "programs"
CASES = HERE / "cases.coda"

TOKENS = 16384
WIDTHS = (2048, 4096, 8192)
HIDDEN = {2048: 5632, 4096: 11008, 8192: 22016}  # 8/3 of the width, to a multiple of 256
HEAD = 128  # elements of a head; keys and values have a quarter of the heads
BETWEEN_WRT = ["x", "a", "wo", "gamma1", "gate", "up", "down", "gamma2", "wq", "wk", "wv"]


@dataclass(frozen=True)
class Gemm:
    """[m, k] times [k, n]; a left operand of major "M", a right one of "N" is stored transposed."""

    m: int
    n: int
    k: int
    left: str = "K"
    right: str = "K"

    @property
    def flops(self):
        return 2 * self.m * self.n * self.k


@dataclass(frozen=True)
class Source:
    """Where a case's programs or schedules come from. They run in the order of `names`, and what
    one gives the next ones find by name."""

    file: Path
    names: tuple
    block: str = ""  # rewritten first; empty: the file has `names` as they are
    options: tuple = ()  # of the rewriting, as (name, value)
    gives: tuple = ()  # instead of names: the program of the text that gives these

    def text(self, library, sizes):
        """The text and the names in it."""
        if not self.block:
            return self.file, self.names
        text = library.rewrite(self.file, self.block, sizes, **dict(self.options))
        return text, (giving(text, self.gives),) if self.gives else self.names


def giving(text, results):
    """The name of the last program in a text whose results include these."""
    pattern = r"^program ([\w.]+)(?:\[[^\]]*\])?\((.*?)\)\s*->\s*\((.*?)\)\s*\{"
    found = [name for name, _, given in re.findall(pattern, text, re.S | re.M)
             if all(re.search(rf"(^|[\s,]){r}:", given) for r in results)]
    if not found:
        raise ValueError(f"no program of the text gives {results}")
    return found[-1]


@dataclass(frozen=True)
class Case:
    part: str
    case: str
    width: int
    shape: dict
    source: Source
    formula: str
    gemms: tuple = ()
    goal: float = None
    burst_goal: float = None
    goal_ms: float = None
    rivals: tuple = ("torch.compile",)
    variant: str = ""
    extra: dict = field(default_factory=dict)

    @property
    def label(self):
        sizes = " ".join(f"{n}={s}" for n, s in self.shape.items())
        return f"{self.case}{' ' + self.variant if self.variant else ''} {sizes}"


def program(file, name):
    return Source(PROGRAMS / f"{file}.coda", (name,))


def heads(width):
    return {"H": width // HEAD, "G": width // HEAD // 4, "E": HEAD}


def padded(classes):
    """cuBLAS gets a vocabulary that its fast kernels take."""
    return -(-classes // 64) * 64


# ---- gemm ----

def gemm_cases():
    made = []
    paper = [(w, w) for w in WIDTHS]
    mlp = [pair for w, f in HIDDEN.items() for pair in ((f, w), (w, f))]
    for n, k in paper + mlp:
        m, kind = TOKENS, "paper" if n == k else "mlp"
        shape, width = {"M": m, "N": n, "K": k}, min(n, k)
        made += [
            Case("gemm", "gemm", width, shape, program("linear", "linear"), "linear",
                 (Gemm(m, n, k),), 1.0, rivals=(), variant="forward", extra={"sizes": kind}),
            # dz [M, N] @ w [N, K]: the columns are K.
            Case("gemm", "gemm", width, shape, program("linear", "linear_grad"), "linear_grad",
                 (Gemm(m, k, n, right="N"),), 1.0, rivals=(), variant="data_gradient",
                 extra={"sizes": kind}),
            Case("gemm", "gemm", width, shape, Source(CASES, ("weight",)), "weight",
                 (Gemm(n, k, m, "M", "N"),), 1.0, rivals=(), variant="weight_gradient",
                 extra={"sizes": kind}),
        ]
    shape = {"M": TOKENS, "N": 4096, "K": 4096}
    made.append(Case("gemm", "gemm", 4096, shape, Source(CASES, ("left_transposed",)),
                     "left_transposed", (Gemm(TOKENS, 4096, 4096, left="M"),), 1.0, rivals=(),
                     variant="left_transposed", extra={"sizes": "paper"}))
    return made


# ---- fused ----

def fused_cases():
    made = []
    m = TOKENS
    for w, goal in zip(WIDTHS, (0.985, 0.97, 0.95)):
        made.append(Case("fused", "residual_norm", w, {"M": m, "N": w, "K": w},
                         program("norm", "residual_norm"), "residual_norm", (Gemm(m, w, w),), goal,
                         1.03, rivals=("torch.compile", "quack")))
    for w, goal in zip(WIDTHS, (0.93, 0.95, 0.97)):
        f = HIDDEN[w]
        made.append(Case("fused", "norm_swiglu", w, {"M": m, "K": w, "F": f},
                         program("gated", "norm_swiglu"), "norm_swiglu", (Gemm(m, 2 * f, w),), goal,
                         rivals=("torch.compile", "quack")))
    for w, goal in zip(WIDTHS, (0.99, 0.975, None)):
        f = HIDDEN[w]
        made.append(Case("fused", "swiglu_backward", w, {"M": m, "D": w, "F": f},
                         program("gated", "swiglu_grad"), "swiglu_grad",
                         (Gemm(m, f, w, right="N"),), goal))
    for w in WIDTHS:
        f = HIDDEN[w]
        made.append(Case("fused", "norm_backward", w, {"M": m, "F": f, "D": w},
                         program("norm", "rmsnorm_grad"), "rmsnorm_grad",
                         (Gemm(m, w, 2 * f, right="N"),), 1.0, variant="mlp"))
        made.append(Case("fused", "norm_backward", w, {"M": m, "Q": w, "P": w // 4, "D": w},
                         program("norm", "rmsnorm_grad_qkv"), "rmsnorm_grad_qkv",
                         (Gemm(m, w, w + w // 2, right="N"),), 1.0, variant="qkv"))
    return made


def rope_cases():
    made = []
    shape = lambda w: {"B": 2, "S": TOKENS // 2, "D": w, **heads(w)}
    gemm = lambda w: (Gemm(TOKENS, w + w // 2, w),)
    for w, goal in zip(WIDTHS, (0.945, 0.97, 0.98)):
        made.append(Case("rope", "norm_rope", w, shape(w), program("rope", "norm_rope"),
                         "norm_rope", gemm(w), goal))
    wrt = ["x", "gamma", "wq", "wk", "wv", "gamma_q", "gamma_k"]
    training = Source(PROGRAMS / "qwen3.coda", (), "qkv_norm",
                      (("grad", True), ("wrt", wrt)), gives=("q", "k", "v"))
    for w, goal in zip(WIDTHS, (0.97, 0.985, 0.985)):
        made.append(Case("rope", "qk_norm_rope", w, shape(w), training, "norm_qk_norm_rope",
                         gemm(w), goal))
    return made


# ---- weights ----

def weight_cases():
    made = []
    m = TOKENS
    add = lambda w, shape, name, gemm, variant: made.append(
        Case("weights", "weight_grad", w, shape, program("weight_grad", name), name, (gemm,), 1.0,
             rivals=("cublas f32",), variant=variant))
    gemm = lambda n, k: Gemm(n, k, m, "M", "N")
    for w in WIDTHS:
        f = HIDDEN[w]
        add(w, {"M": m, "N": w, "K": w}, "weight_grad", gemm(w, w), "square")
        add(w, {"M": m, "D": w, "K": f}, "weight_grad_norm", gemm(w, f), "down, norm")
        add(w, {"M": m, "F": f, "K": w}, "weight_grad_pair", gemm(2 * f, w), "gate, up")
        add(w, {"M": m, "Q": w, "P": w // 4, "D": w}, "weight_grad_qkv", gemm(w + w // 2, w),
            "q, k, v")
    add(2048, {"M": m, "N": 8192, "K": 2048}, "weight_grad", gemm(8192, 2048), "tall")
    return made


# ---- head ----

def head_cases():
    made = []
    m = k = 4096
    rows = Source(CASES, ("token_losses",), "token_losses")
    options = (("grad", True), ("of", ["loss"]), ("wrt", ["x", "w"]))
    kept = Source(CASES, ("linear_cross_entropy", "linear_cross_entropy_grad"),
                  "linear_cross_entropy", options)
    chunked = Source(CASES, ("chunked", "chunked_grad"))
    for v, goal in ((128256, 0.965), (50257, 0.975)):
        wide, shape, big = padded(v), {"M": m, "K": k, "V": v}, v == 128256
        forward = Gemm(m, wide, k)
        backward = (Gemm(m, k, wide, right="N"), Gemm(wide, k, m, "M", "N"))
        made.append(Case("head", "head_forward", k, shape, rows, "token_losses", (forward,), goal,
                         rivals=("cublas + cross_entropy",)))
        made.append(Case("head", "head_backward", k, shape, kept, "linear_cross_entropy_step",
                         backward, 1.0 if big else None, rivals=(), extra={"timed_from": 1}))
        made.append(Case("head", "linear_cross_entropy", k, shape, kept,
                         "linear_cross_entropy_step", (forward, *backward),
                         goal_ms=18.0 if big else None, rivals=("torch", "torch.compile", "liger"),
                         variant="kept"))
        made.append(Case("head", "linear_cross_entropy", k, shape, chunked,
                         "linear_cross_entropy_step", (forward, *backward),
                         goal_ms=24.0 if big else None, rivals=(), variant="chunked",
                         extra={"most_bytes": m * v * 2 // 10} if big else {}))
    return made


# ---- streams ----

def stream_cases():
    made = []
    w, m = 4096, TOKENS
    rotary = {"B": 2, "S": m // 2, **heads(w)}
    for file, name, shape in (
        ("norm", "norm_weight", {"M": m, "N": w}),
        ("norm", "rmsnorm_rows", {"M": m, "D": w}),
        ("norm", "layernorm_rows", {"M": m, "D": w}),
        ("rope", "rope_rows", {"B": 2, "S": m // 2, "H": w // HEAD, "E": HEAD}),
        ("rope", "rope_norm_grad", rotary),
        ("weight_grad", "scaled_rows", {"M": m, "K": w}),
        ("linear", "bias_grad", {"M": m, "N": w}),
        ("cross_entropy", "cross_entropy_rows", {"M": 4096, "V": 128256}),
        ("cross_entropy", "cross_entropy_rows", {"M": 4096, "V": 50257}),
        ("embedding", "embedding", {"V": 128256, "D": w, "M": m}),
        ("adamw", "adamw_master", {"M": 8192, "N": 8192}),
        ("grad_norm", "square_sums", {"M": 8192, "N": 8192}),
    ):
        made.append(Case("stream", name, shape.get("D", shape.get("N", w)), shape,
                         program(file, name), name, goal=1 / 0.9))
    return made


# ---- layer ----

def layer_gemms(w, backward):
    m, f, qkv = TOKENS, HIDDEN[w], w + w // 2
    forward = (Gemm(m, w, w), Gemm(m, 2 * f, w), Gemm(m, w, f), Gemm(m, qkv, w))
    if not backward:
        return forward
    data = (Gemm(m, w, qkv, right="N"), Gemm(m, f, w, right="N"), Gemm(m, w, 2 * f, right="N"),
            Gemm(m, w, w, right="N"))
    weights = (Gemm(qkv, w, m, "M", "N"), Gemm(w, f, m, "M", "N"), Gemm(2 * f, w, m, "M", "N"),
               Gemm(w, w, m, "M", "N"))
    return forward + data + weights


def layer_cases():
    made = []
    llama = PROGRAMS / "llama.coda"
    step = Source(llama, ("between", "between_grad"), "between",
                  (("grad", True), ("wrt", BETWEEN_WRT)))
    for w, forward, both in zip(WIDTHS, (0.965, 0.97, 0.97), (1.0, 0.985, 0.975)):
        shape = {"B": 2, "S": TOKENS // 2, "D": w, "F": HIDDEN[w], **heads(w)}
        made.append(Case("layer", "layer_forward", w, shape, Source(llama, ("between",), "between"),
                         "between", layer_gemms(w, False), forward))
        made.append(Case("layer", "layer_forward_backward", w, shape, step, "between_step",
                         layer_gemms(w, True), both))
    return made


PARTS = {"gemm": gemm_cases, "fused": fused_cases, "weights": weight_cases, "rope": rope_cases,
         "head": head_cases, "stream": stream_cases, "layer": layer_cases}


def all_cases(parts=None):
    return [case for part in parts or PARTS for case in PARTS[part]()]
