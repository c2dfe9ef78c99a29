"""Operators of raised graphs alone: what several nodes of a file are together and no ONNX operator is.

`onnx2nn.rewrite` puts them in place before the import; no file holds them.
"""

from __future__ import annotations

from typing import Any

from onnx2nn.table import OWN, op


@op("Linear", 1, domain=OWN)
def linear(F: Any, X: Any, weight: Any, bias: Any) -> Any:
    """X: `(..., in)`, weight: `(in, out)` as MatMul has it, bias: `(out,)`."""
    return F.nn.functional.linear(X, weight.T, bias)
