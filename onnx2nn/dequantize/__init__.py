"""Quantised models as float ones: weights become floats that train, activations are no longer rounded.

A quantised value stands for a float one. Every node that makes a quantised value gets a float twin; what reads it
through DequantizeLinear reads the twin. The range that the integers could hold stays, as a Clip: tools that quantise
leave out a Relu, or a Clip at 6, where the integers cannot go beyond. So a dequantised model differs from the quantised
one by rounding alone.
"""

from __future__ import annotations

import onnx_ir as ir

from onnx2nn.dequantize.dequantizer import Dequantization, Dequantizer
from onnx2nn.dequantize.operators import RESULTS, REWRITES

__all__ = ["Dequantization", "dequantize"]


def dequantize(model: ir.Model) -> Dequantization:
    """Makes a quantised model a float one, in place.

    Args:
        model: as `reader.read` gives it.

    Returns:
        What was done; operators that stay quantised are named there.
    """
    return Dequantizer(model, REWRITES, RESULTS).run()
