"""Operators that ONNX Runtime has in its own domain (com.microsoft) and ONNX has, or nearly has, in the standard."""

from __future__ import annotations

from typing import Any

from onnx2nn.ops import image, indexing, pad, shape
from onnx2nn.ops.contrib_fused import MICROSOFT
from onnx2nn.table import op


@op("Pad", 1, domain=MICROSOFT, static=["pads"], numbers=["value"])
def pad_ms(F: Any, data: Any, pads: Any, value: Any = None, *, mode: str = "constant") -> Any:
    """`pads` may be `(1, 2 * rank)`."""
    pads = pads[0] if isinstance(pads[0], list) else pads
    return pad.pad_11(F, data, pads, value, mode=mode)


@op("Unique", 1, domain=MICROSOFT, opaque=True)
def unique_ms(F: Any, x: Any) -> Any:
    """In the order of first appearance."""
    values, _, inverse, counts = indexing.unique(F, x, sorted=0)
    return values, inverse, counts


@op("Trilu", 1, domain=MICROSOFT, static=["k"])
def trilu_ms(F: Any, X: Any, k: Any = None, *, upper: int = 1) -> Any:
    return shape.trilu(F, X, k, upper=upper)


@op("GridSample", 1, domain=MICROSOFT)
def grid_sample_ms(
    F: Any, X: Any, Grid: Any, *, align_corners: int = 0, mode: str = "bilinear", padding_mode: str = "zeros"
) -> Any:
    return image.grid_sample_16(F, X, Grid, align_corners=align_corners, mode=mode, padding_mode=padding_mode)


@op("Inverse", 1, domain=MICROSOFT)
def inverse(F: Any, X: Any) -> Any:
    return F.linalg.inv(X)
