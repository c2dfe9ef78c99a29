"""Constant folding that would take a weight of the author's out of the module's state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
import torch

from onnx2nn.fx.constants import Constant, memory_of
from onnx2nn.optable.row import Row
from onnx2nn.provenance.author import Author


def loses_weight(author: Author | None, node: ir.Node, row: Row, inputs: Sequence[Any], folded: Any) -> bool:
    """Returns whether `folded` is computed from a weight of the author's, which the state would then lack.

    A weight that only has another layout stays in the state. Numbers that a body reads, such as the target of a
    Reshape, are no weights, whatever their names.
    """
    if author is None:
        return False
    names = author.names - author.quantised if author.quantised else author.names
    tensors = [value for i, value in enumerate(inputs) if row.input_name(i) not in row.static]
    weights = [v.value for v in tensors if isinstance(v, Constant) and v.weight and v.name in names]
    if "quantises" in row.traits and getattr(inputs[0], "name", None) in names and _is_dequantised(node):
        return True  # in a training that knows of quantisation
    parts = folded if isinstance(folded, (tuple, list)) else (folded,)  # nn.MultiheadAttention splits its weight
    return any(_is_made_of(part, weights) for part in parts)


def _is_dequantised(node: ir.Node) -> bool:
    """Returns whether only DequantizeLinear reads a node's results."""
    readers = {use.node.op_type for output in node.outputs for use in output.uses()}
    return readers == {"DequantizeLinear"} and not any(output.is_graph_output() for output in node.outputs)


def _is_made_of(folded: Any, weights: Sequence[Any]) -> bool:
    """Returns whether `folded` is computed from `weights` and is no other layout of one of them.

    Integers are those of tables, which have several dimensions; of vectors, shapes are computed.
    """
    if not isinstance(folded, torch.Tensor):
        return False
    floats = folded.is_floating_point()
    alike = [weight for weight in weights if isinstance(weight, torch.Tensor) and _is_weight(weight, floats)]
    if not (weights if floats else alike):
        return False
    memory = memory_of(folded)
    return all(memory_of(weight) != memory or weight.numel() != folded.numel() for weight in alike)


def _is_weight(tensor: torch.Tensor, floats: bool) -> bool:
    """Returns whether a tensor is a weight of floats, or a table of integers."""
    return tensor.is_floating_point() if floats else tensor.dtype in (torch.int32, torch.int64) and tensor.ndim > 1


def tensors_at_run_time(row: Row, inputs: Sequence[Any], read: Callable[[Constant], Any]) -> list[Any]:
    """Returns `inputs` with all tensors as values of the traced program; those that a body reads stay constants."""
    known = row.static | row.numbers
    return [
        read(value) if isinstance(value, Constant) and row.input_name(position) not in known else value
        for position, value in enumerate(inputs)
    ]


def read_at_run_time(
    author: Author | None, row: Row, inputs: Sequence[Any], table: bool, read: Callable[[Constant], Any]
) -> list[Any]:
    """Returns `inputs` with the first of the author's weights as a value of the traced program.

    The other inputs stay constants, because the body distinguishes weight matrices from other matrices. Of a product it
    is the first input, which a layer multiplies by its weights, such as the positions of which Swin 2 computes biases.

    Args:
        author: the author's names.
        row: the node's row.
        inputs: a node's inputs, all constants.
        table: whether the first input counts as the author's.
        read: returns a constant as a value of the traced program.
    """
    result, first = list(inputs), table or "matrix_product" in row.traits
    for position, value in enumerate(inputs):
        own = (first and not position) or (author is not None and getattr(value, "name", None) in author.names)
        if isinstance(value, Constant) and own and row.input_name(position) not in row.static:
            result[position] = read(value)
            if result[position] is not value:
                break
    return result
