"""Tells operators that they are traced for a program of machine code, which runs on the processor at hand.

Tensors have no values then. What such a program may do differently: multiply 8-bit integers by the processor's
instructions, whose presence a process finds out with other tensors, and loop over time in the program itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple


class MachineCode(NamedTuple):
    """What a program of machine code has.

    Attributes:
        multiplies: whether products of 8-bit integers are exact, see `integer_kernels.Columns`.
        convolve: records a convolution of 8-bit integers, see `integer_convolutions.recorded`; None where it is not
            exact.
        requantize: records one that is scaled and rounded, see `integer_convolutions.recorded_requantized`.
    """

    multiplies: bool
    convolve: Callable[..., Any] | None
    requantize: Callable[..., Any] | None


_current: ContextVar[MachineCode | None] = ContextVar("machine_code", default=None)


def machine_code(F: Any) -> MachineCode | None:
    """Returns what the program has that is traced for; None outside of `traced_for`.

    Args:
        F: torch, or another framework.
    """
    if hasattr(F, "compiler") and F.compiler.is_dynamo_compiling():
        return None  # Dynamo reads no ContextVar; what is traced for machine code goes without it
    return _current.get()


@contextlib.contextmanager
def traced_for(target: MachineCode) -> Iterator[None]:
    """Lets operators be traced for a program of machine code."""
    token = _current.set(target)
    try:
        yield
    finally:
        _current.reset(token)
