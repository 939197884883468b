#!/usr/bin/env python3
"""A new fused operator in a string: checked against PyTorch, timed beside it, trained through."""

import torch
import torch.nn.functional as F

import coda_epilogue

# One kernel on a GPU: the product, and all of this while its tile is on chip.
scaled_relu2 = coda_epilogue.op("""
program scaled_relu2(x: bf16[M, K], w: bf16[N, K], b: bf16[N], g: bf16[N], rest: bf16[M, N])
    -> (y: bf16[M, N]) {
  z = max(x @ w + b, 0)
  y = rest + z * z * g
}
""")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def unfused(x, w, b, g, rest):
    return rest + F.relu(F.linear(x, w, b)).square() * g


def milliseconds(function, tensors, times=20):
    import time
    function(*tensors)
    start = time.perf_counter()
    for _ in range(times):
        function(*tensors)
    torch.cuda.synchronize() if DEVICE == "cuda" else None
    return (time.perf_counter() - start) / times * 1e3


torch.manual_seed(0)
m, n, k = (16384, 4096, 4096) if DEVICE == "cuda" else (512, 512, 512)
shapes = (m, k), (n, k), (n,), (n,), (m, n)
tensors = [torch.randn(s, device=DEVICE, dtype=torch.bfloat16).requires_grad_() for s in shapes]
exact = unfused(*(t.double() for t in tensors))
error = lambda y: ((y.double() - exact).norm() / exact.norm()).item()
print(f"error: fused {error(scaled_relu2(*tensors)):.2e}, "
      f"unfused {error(unfused(*tensors)):.2e}")
print(f"ms: fused {milliseconds(scaled_relu2, tensors):.3f}, "
      f"unfused {milliseconds(unfused, tensors):.3f}")

x, w, b, g, rest = tensors
target = torch.randn_like(rest) * 20
for step in range(8):  # gradients are derived from the text
    loss = F.mse_loss(scaled_relu2(x, w, b, g, rest.detach()).float(), target.float())
    loss.backward()
    with torch.no_grad():
        g -= 0.1 * g.grad / g.grad.norm() * g.norm()
        g.grad = w.grad = b.grad = x.grad = None
    print(f"step {step}: loss {loss.item():.2f}")
