"""CODA for PyTorch: `torch.compile(model, backend="coda")`.

Operators around matrix products run in the products' epilogues, forward and backward, in kernels
that are derived from the graph. See docs/pytorch.md.
"""

from .errors import CodaError, InternalError, ProgramError, Unsupported
from .loss import linear_cross_entropy
from .op import op
from .report import explain

__all__ = ["CodaError", "InternalError", "ProgramError", "Unsupported", "explain",
           "linear_cross_entropy", "op"]
