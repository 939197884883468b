"""A plain GPT with RMSNorm, RoPE and SwiGLU, the way people write one by hand, and the comparison
of a training step by two means."""

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, HEADS, LAYERS, VOCABULARY = 64, 4, 2, 128


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        wide = x.float() if x.dtype != torch.float64 else x
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).type_as(
            x) * self.weight


def rotated(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Layer(nn.Module):
    def __init__(self, width=WIDTH, heads=HEADS, dropout=0.0, bias=False):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = Norm(width), Norm(width)
        linear = lambda a, b: nn.Linear(a, b, bias=bias)
        self.q, self.k, self.v, self.o = (linear(width, width) for _ in range(4))
        self.gate, self.up = linear(width, 2 * width), linear(width, 2 * width)
        self.down = linear(2 * width, width)

    def forward(self, x, cos, sin):
        heads = lambda y: y.view(*x.shape[:2], self.heads, -1).transpose(1, 2)
        n = self.norm1(x)
        q, k, v = (heads(f(n)) for f in (self.q, self.k, self.v))
        a = F.scaled_dot_product_attention(rotated(q, cos, sin), rotated(k, cos, sin), v,
                                           is_causal=True)
        x = x + F.dropout(self.o(a.transpose(1, 2).reshape(x.shape)), self.dropout, self.training)
        n = self.norm2(x)
        return x + F.dropout(self.down(F.silu(self.gate(n)) * self.up(n)), self.dropout,
                             self.training)


class Gpt(nn.Module):
    """Returns the loss, and the logits where asked."""

    def __init__(self, layers=LAYERS, tied=False, wrap=None, heads=HEADS, **options):
        super().__init__()
        self.heads = heads
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer(heads=heads, **options) for _ in range(layers))
        self.norm, self.head = Norm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.embedding.weight
        self.wrap = wrap

    def forward(self, ids, targets=None, positions=None, logits=False):
        x = self.embedding(ids)
        half = WIDTH // self.heads // 2
        rate = 10000.0 ** (-torch.arange(half, device=ids.device) / half)
        if positions is None:
            positions = torch.arange(ids.shape[1], device=ids.device)
        angle = positions[..., None] * rate
        if angle.dim() == 3:
            angle = angle[:, None]
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        for layer in self.layers:
            x = self.wrap(layer, x, cos, sin) if self.wrap else layer(x, cos, sin)
        z = self.head(self.norm(x))
        if targets is None:
            return z
        loss = F.cross_entropy(z.float().flatten(0, 1), targets.flatten())
        return (loss, z) if logits else loss


def batch(rows=2, length=24, seed=0):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, VOCABULARY, (rows, length + 1), generator=generator)
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def gradients(model, loss):
    """Of one step, by name; adds to nothing."""
    model.zero_grad()
    loss.backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def worst(got, want):
    """The largest relative error of a tensor, by norm."""
    assert got.keys() == want.keys()
    return max(((got[n].double() - want[n].double()).norm() /
                (want[n].double().norm() + 1e-30)).item() for n in want)
