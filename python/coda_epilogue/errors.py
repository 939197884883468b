"""What goes wrong, as Python exceptions; the C++ library's errors become these."""

import tvm_ffi


class CodaError(Exception):
    """Anything that this package raises itself."""


class ProgramError(CodaError, ValueError):
    """The text, the types, the sizes or the tensors are wrong: the message names the line, both
    values, the rule and the fix."""


class Unsupported(CodaError, NotImplementedError):
    """The program is right, and this device or this version cannot run it; the reason."""


class InternalError(CodaError, RuntimeError):
    """A fault of the library."""


# The kinds that native.cpp gives its errors.
for _kind, _class in (("CodaProgramError", ProgramError), ("CodaUnsupported", Unsupported),
                      ("CodaInternalError", InternalError)):
    tvm_ffi.register_error(_kind, _class)
