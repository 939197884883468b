"""Tokens a second of `coda train`'s default model, beside the same model in PyTorch: the same
sizes, batch, dtype (f32), loss, clipping and AdamW, in turns."""

import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

from cpu_cases import rotated

ROOT = Path(__file__).resolve().parent.parent
VOCABULARY, LAYERS, WIDTH, HEADS, KEY_HEADS, HIDDEN = 256, 4, 128, 4, 2, 352
LENGTH, SEQUENCES = 256, 8
HEAD = WIDTH // HEADS


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        linear = lambda out, into: nn.Linear(into, out, bias=False)
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH, eps=1e-5), nn.RMSNorm(WIDTH, eps=1e-5)
        self.q, self.o = linear(WIDTH, WIDTH), linear(WIDTH, WIDTH)
        self.k, self.v = linear(KEY_HEADS * HEAD, WIDTH), linear(KEY_HEADS * HEAD, WIDTH)
        self.gate, self.up = linear(HIDDEN, WIDTH), linear(HIDDEN, WIDTH)
        self.down = linear(WIDTH, HIDDEN)

    def forward(self, x, cos, sin):
        heads = lambda v: v.view(-1, LENGTH, v.shape[1] // HEAD, HEAD).transpose(1, 2)
        n = self.norm1(x)
        q, k = (heads(rotated(v, cos, sin)) for v in (self.q(n), self.k(n)))
        o = F.scaled_dot_product_attention(q, k, heads(self.v(n)), is_causal=True, enable_gqa=True)
        h = x + self.o(o.transpose(1, 2).reshape(x.shape))
        m = self.norm2(h)
        return h + self.down(F.silu(self.gate(m)) * self.up(m))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH, eps=1e-5)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        frequency = 10000.0 ** (-torch.arange(HEAD // 2) / (HEAD // 2))
        angle = torch.arange(LENGTH)[:, None] * frequency
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def forward(self, ids, targets):
        x = self.table(ids)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return F.cross_entropy(self.head(self.norm(x)), targets)


def trainer(text, compiled):
    """A function that takes so many steps and gives tokens a second."""
    torch.manual_seed(1)
    model = Model()
    loss_of = torch.compile(model, dynamic=False) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)

    def train(steps):
        start = time.perf_counter()
        for _ in range(steps):
            rows = torch.randint(0, len(text) - LENGTH - 1, (SEQUENCES,))
            batch = torch.stack([text[r:r + LENGTH + 1] for r in rows])
            loss = loss_of(batch[:, :-1].reshape(-1), batch[:, 1:].reshape(-1))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        return steps * SEQUENCES * LENGTH / (time.perf_counter() - start)
    train(3)
    return train


def coda_trainer(data, folder, threads):
    command = Path(os.environ["CODA_BENCH_LIBRARY"]).parent / "coda"

    def train(steps):
        said = subprocess.run([command, "train", "--data", data, "--output", Path(folder) / "model",
                               "--overwrite", "--no-report",
                               "--steps", str(steps), "--threads", str(threads), "--json"],
                              capture_output=True, text=True, check=True)
        return json.loads(said.stdout)["tokens_per_second"]
    return train


def measure_training(threads, options):
    """One row: medians of rounds in which each trains for a while."""
    row = {"case": "train", "dtype": "f32", "threads": threads, "rivals": {}, "notes": [],
           "width": WIDTH, "shape": {"tokens": SEQUENCES * LENGTH, "layers": LAYERS}}
    steps, rounds = (30, 2) if options.quick else (60, 5)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "text"
        files = sorted(ROOT.glob("docs/*.md")) + sorted(ROOT.glob("programs/*.coda"))
        data.write_bytes(b"".join(f.read_bytes() for f in files))
        text = torch.frombuffer(bytearray(data.read_bytes()), dtype=torch.uint8).long()
        trained = {"coda": coda_trainer(data, folder, threads)}
        try:
            if "torch_eager" in options.rivals:
                trained["torch_eager"] = trainer(text, False)
            if "torch_compile" in options.rivals:
                trained["torch_compile"] = trainer(text, True)
        except Exception as failure:  # no compiler, or another project's fault: a fact of the row
            row["notes"].append(repr(failure)[:200])
        try:
            rates = {name: [] for name in trained}
            for _ in range(rounds):
                for name, train in trained.items():
                    rates[name].append(train(steps))
        except (OSError, subprocess.CalledProcessError) as failure:
            return {**row, "failed": f"coda train: {failure}"}
    row["tokens_per_second"] = {name: statistics.median(r) for name, r in rates.items()}
    ours = rates.pop("coda")
    row["rivals"] = {name: statistics.median(b / a for a, b in zip(ours, rate))
                     for name, rate in rates.items()}
    row["ms"] = 1e3 * SEQUENCES * LENGTH / row["tokens_per_second"]["coda"]
    row["goals"] = {}
    return row
