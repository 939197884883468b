#!/usr/bin/env python3
"""Trains a small GPT, a plain nn.Module, on the bytes of a text: with CODA, or as it is.

    python examples/train_gpt.py                        # bf16 on a GPU, else f32 on the CPU
    python examples/train_gpt.py --backend inductor     # the same for comparison
"""

import argparse
import math
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-5)
        return (x.float() * scale).to(x.dtype) * self.weight


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = RMSNorm(width), RMSNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate = nn.Linear(width, 4 * width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x, cos, sin):
        batch, length, width = x.shape
        n = self.norm1(x)
        q, k, v = (f(n).view(batch, length, self.heads, -1).transpose(1, 2)
                   for f in (self.q, self.k, self.v))
        a = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v,
                                           is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(batch, length, width))
        n = self.norm2(x)
        return x + self.down(F.silu(self.gate(n)) * self.up(n))


class GPT(nn.Module):
    def __init__(self, vocabulary=256, width=128, layers=4, heads=4):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = RMSNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.half = width // heads // 2
        for weight in self.parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, std=0.02)

    def forward(self, ids, targets):
        x = self.embedding(ids)
        rate = 10000.0 ** (-torch.arange(self.half, device=ids.device) / self.half)
        angle = torch.arange(ids.shape[1], device=ids.device)[:, None] * rate
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        for block in self.blocks:
            x = block(x, cos, sin)
        # The logits are read by the loss alone: they are never stored.
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[1] /
                        "docs" / "language.md", help="the text to learn")
    parser.add_argument("--backend", default="coda", help="coda, inductor or eager")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--explain", action="store_true", help="what was fused where, at the end")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    text = torch.frombuffer(bytearray(options.data.read_bytes()), dtype=torch.uint8).long()
    model = GPT(width=options.width, layers=options.layers).to(
        device, torch.bfloat16 if device == "cuda" else torch.float32)
    step = torch.compile(model, backend=options.backend)  # the one line
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3, betas=(0.9, 0.95))
    generator = torch.Generator().manual_seed(0)
    start, tokens = None, 0
    for number in range(1, options.steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min(number / 20, 0.5 + 0.5 * math.cos(
                math.pi * number / options.steps))
        at = torch.randint(len(text) - options.length - 1, (options.batch, 1),
                           generator=generator) + torch.arange(options.length + 1)
        ids = text[at].to(device)
        loss = step(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if number == 1:  # compiled
            loss.item()
            start = time.monotonic()
        else:
            tokens += options.batch * options.length
        if number % max(1, options.steps // 10) == 0 or number == 1:
            said = f"step {number:5d}  loss {loss.item():.4f}"
            if tokens:
                said += f"  {tokens / (time.monotonic() - start):9.0f} tokens/s"
            print(said, flush=True)
    if options.explain:
        import coda_epilogue
        print(coda_epilogue.explain())


if __name__ == "__main__":
    main()
