"""CODA for PyTorch: `torch.compile(model, backend="coda")`.

Operators around matrix products run in the products' epilogues, forward and backward, in kernels
that are derived from the graph. See docs/pytorch.md.
"""

from .errors import CodaError, InternalError, ProgramError, Unsupported
from .op import op

__all__ = ["CodaError", "InternalError", "ProgramError", "Unsupported", "op"]
