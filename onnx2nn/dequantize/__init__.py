"""Turns quantised models into float models: weights become trainable floats, activations are no longer rounded.

A quantised model comes in and is changed in place. A report of the dequantised nodes and weights goes out. `loading`
calls `dequantize`.

Every quantised value gets a float counterpart, and readers behind a DequantizeLinear read the counterpart. A Clip keeps
it in the range of the integers: quantisation tools leave out a Relu, or a Clip at 6, where the range of the integers
has the same effect. A dequantised model therefore differs from the quantised model by rounding alone.
"""

from __future__ import annotations

import onnx_ir as ir

from onnx2nn.dequantize.dequantizer import Dequantization, Dequantizer, Tensors
from onnx2nn.dequantize.operators import rewrite_of

__all__ = ["Dequantization", "Tensors", "dequantize"]


def dequantize(model: ir.Model, tensors: Tensors) -> Dequantization:
    """Turns a quantised model into a float model, in place.

    Semantics: ONNX's QuantizeLinear, DequantizeLinear, QLinear and integer operators of every version, and ONNX
    Runtime's operators in com.microsoft.

    Args:
        model: the model from `reader.read`.
        tensors: of the framework that computes the weights.

    Returns:
        The report. It names the nodes that stay quantised.
    """
    return Dequantizer(model, rewrite_of, tensors).run()
