"""Where constants and layers of an imported model stand in its module tree, whatever the framework."""

from __future__ import annotations

import re
from typing import NamedTuple

import onnx_ir as ir

from onnx2nn.ground.naming import is_generated, split_path
from onnx2nn.importing.constants import Constant
from onnx2nn.provenance.author import Author


class Position:
    """Where a walk is: its node, None before the first, and the number of that among the nodes of the graph."""

    __slots__ = ("node", "step")

    def __init__(self) -> None:
        self.node: ir.Node | None = None
        self.step = 0


class ConstantName(NamedTuple):
    """Where a constant is held in the module tree, and as what.

    Attributes:
        steps: the path.
        trainable: whether it is a parameter.
        persistent: whether it is in state_dict.
        own: whether the path is the author's, which nothing else may have.
        outer: whether the module around holds it, and hands it in.
    """

    steps: list[str]
    trainable: bool
    persistent: bool = True
    own: bool = False
    outer: bool = False


def constant_name(
    author: Author | None, at: Position, origin: Constant | None, size: int, floating: bool
) -> ConstantName:
    """Returns where a constant is held, and as what.

    Args:
        author: what is known of the author's names, None where nothing is.
        at: the node that uses it.
        origin: the constant of the file that it is or comes from, if any.
        size: number of elements.
        floating: whether they are floats.
    """
    name, weight = (origin.name, origin.weight) if origin is not None else ("", False)
    if author is not None and name in author.names:
        return ConstantName(split_path(name), author.trains(name), author.holds(name), own=True)
    steps, trainable = _constant_path(at.node, name, weight, size)
    if author is None:
        return ConstantName(steps, trainable)
    trainable = trainable and author.may_train(name) and floating
    return ConstantName(steps, trainable, persistent=trainable)  # what is no weight stays out of state_dict


def _constant_path(node: ir.Node | None, origin: str, weight: bool, size: int) -> tuple[list[str], bool]:
    """Returns where a constant is held in the module tree, and whether it is a trainable weight.

    Args:
        node: the node that uses it, None where only the outputs do.
        origin: name of the initializer or output that it comes from, `""` where it has none.
        weight: whether that is an initializer.
        size: number of elements.
    """
    if not origin:
        steps = split_path(node.name or node.op_type.lower()) if node is not None else ["output"]
        return [*steps[:-1], f"{steps[-1]}_constant"], False
    # torch's exporter numbers its own values `val_0`, ...: a parameter of such a name stops it on the way back.
    name = origin.replace("val_", "constant_") if "val_" in origin and is_generated(origin) else origin
    number = size == 1 and (is_generated(origin) or _OPERAND.search(origin))  # a mask's -10000 is nothing to train
    return split_path(name), weight and not number


_OPERAND = re.compile(r"/[xy](:0)?$")
"""How TensorFlow calls a number that stands in the author's source, as the epsilon in `batchnorm/add/y`."""


def layer_path(node: ir.Node, step: int, weight: str) -> list[str]:
    """Returns where a layer is held in the module tree.

    Args:
        node: the node that is the layer.
        step: its number in the graph.
        weight: name of the initializer that its weight comes from, `""` where it has none.
    """
    named = split_path(weight) if weight and not is_generated(weight) else []
    if len(named) > 1 and _WEIGHT.fullmatch(named[-1]):
        return named[:-1]
    name = node.name or ""
    if "/" in weight and _NUMBERED.fullmatch(name):
        steps = _scope(named, node.op_type)
    else:
        steps = _scope(split_path(name), node.op_type) if name else []
    if steps:
        return steps
    return [f"{node.op_type.lower()}_{step}"]


_WEIGHT = re.compile(r"weight|w_\d+")
"""What a layer's weight is called: in torch, and in Paddle (`conv2d_0.w_0`)."""

_NUMBERED = re.compile(r"\w+__\d+")
"""Nodes that tf2onnx made; only their weights say where they belong."""

_OPERATIONS = frozenset(
    {
        *("BiasAdd", "Conv1D", "Conv2D", "Conv3D", "FusedBatchNormV3", "GatherV2", "MatMul", "ReadVariableOp"),
        *("batchnorm", "conv_transpose", "convolution", "depthwise", "merged_input", "separable_conv2d"),
    }
)
"""TensorFlow's operations, and tf2onnx's, as which nodes and weights of a layer end: `model/dense/BiasAdd`."""


def _scope(steps: list[str], operator: str) -> list[str]:
    """Returns the path of the layer in which an operation stands, the path itself where its end is no operation."""
    end = len(steps)
    while end > 1 and (steps[end - 1] in _OPERATIONS or (end == len(steps) and steps[-1].split("_")[0] == operator)):
        end -= 1
    return steps[:end]
