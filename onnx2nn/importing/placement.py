"""The paths of constants and layers in the module tree of an imported model, for every framework."""

from __future__ import annotations

import re
from typing import NamedTuple

import onnx_ir as ir

from onnx2nn.ground.naming import identifier, is_generated, split_path
from onnx2nn.importing.constants import Constant
from onnx2nn.optable.registry import TABLE
from onnx2nn.provenance.author import Author
from onnx2nn.provenance.exporter_metadata import place_of


class Position:
    """The position of a walk: its node (None before the first) and the node's number in the graph."""

    __slots__ = ("node", "step")

    def __init__(self) -> None:
        self.node: ir.Node | None = None
        self.step = 0


class ConstantName(NamedTuple):
    """The path of a constant in the module tree, and its kind.

    Attributes:
        steps: the path.
        trainable: whether it is a parameter.
        persistent: whether it is in state_dict.
        own: whether the path is the author's key, which is reserved for this constant.
        outer: whether the enclosing module holds it and passes it in.
        nameless: whether the path is made up, so that any module may hold it.
        made: whether the exporter made it of the author's code: its name is generated, or not among those listed.
    """

    steps: list[str]
    trainable: bool
    persistent: bool = True
    own: bool = False
    outer: bool = False
    nameless: bool = False
    made: bool = False


class LayerName(NamedTuple):
    """The path of a layer in the module tree.

    Attributes:
        steps: the path.
        own: whether it is the author's, which is reserved for this layer.
        nameless: whether it is made up, so that any module may hold the layer.
    """

    steps: list[str]
    own: bool = False
    nameless: bool = False


def constant_name(
    author: Author | None, at: Position, origin: Constant | None, size: int, floating: bool
) -> ConstantName:
    """Returns the path and kind of a constant.

    Args:
        author: the author's names, None where they are unknown.
        at: the node that uses it.
        origin: the constant of the file from which it comes, if any.
        size: number of elements.
        floating: whether they are floats.
    """
    name, weight = (origin.name, origin.weight) if origin is not None else ("", False)
    if author is not None and name in author.names:
        return ConstantName(split_path(name), author.trains(name), author.holds(name), own=True)
    listed = author is not None and author.listed
    steps, trainable = _constant_path(at.node, name, weight, size, listed)
    generated = is_generated(name)
    nameless = weight and len(steps) == 1 and generated
    if author is None:
        return ConstantName(steps, trainable, nameless=nameless)
    trainable = trainable and author.may_train(name) and floating
    made = listed or not name or generated
    return ConstantName(steps, trainable, trainable, nameless=nameless, made=made)  # only weights are in state_dict


def _constant_path(node: ir.Node | None, origin: str, weight: bool, size: int, made: bool) -> tuple[list[str], bool]:
    """Returns the path of a constant in the module tree, and whether it is a trainable weight.

    Args:
        node: the node that uses it, None for an output of the graph.
        origin: name of the initializer or output from which it comes, `""` where there is none.
        weight: whether it comes from an initializer.
        size: number of elements.
        made: whether the exporter made it, as the author's are listed in the file.
    """
    scope = (declared_scope(node) or []) if node is not None else []
    if not origin:
        name = "output" if node is None else (node.name or "").rpartition("/")[2] or node.op_type.lower()
        return [*scope, f"{identifier(name)}_constant"], False
    if made or is_generated(origin):
        # torch's exporter numbers its own values `val_0`, ...: a parameter of such a name stops it on the way back.
        last = re.split(r"::|/", origin)[-1].replace("val_", "constant_")
        steps = [*scope, identifier(last)]
    else:
        steps = split_path(origin.removeprefix(_FOLDED))
        while "/" in origin and len(steps) > 1 and _is_operation(steps[-2], steps[-1]):
            steps[-2:] = [f"{steps[-2]}_{steps[-1]}"]  # an operation is no module
    number = size == 1 and (is_generated(origin) or _OPERAND.search(origin))  # a mask's -10000 is nothing to train
    return steps, weight and not number


def declared_scope(node: ir.Node) -> list[str] | None:
    """Returns the path of the module in which the file says a node is, None where it does not say."""
    place = place_of(node)
    if place is not None:
        return split_path(place.path) if place.path else []
    return split_path(node.name)[:-1] if node.name and "/" in node.name else None


_FOLDED = "ConstantFolding/"
"""Before the scope of a constant that TensorFlow's optimizer computed."""


def _is_operation(step: str, behind: str) -> bool:
    """Returns whether a step of a path names an operation, such as the one for which TensorFlow reads a variable."""
    reads = behind.startswith("ReadVariableOp") and _is_operator(step.capitalize())
    return reads or step in _OPERATIONS or _is_operator(step)


def _is_operator(step: str) -> bool:
    """Returns whether a step of a path is the name of an operator of ONNX, as in `rescaling/Cast/x`."""
    return ("", step.partition("_")[0]) in TABLE


_OPERAND = re.compile(r"/[xy](:0)?$")
"""TensorFlow's names of numbers in the author's source, such as the epsilon `batchnorm/add/y`."""


def layer_name(node: ir.Node, step: int, weight: str) -> LayerName:
    """Returns the path of a layer in the module tree.

    Args:
        node: the node that becomes the layer.
        step: its number in the graph.
        weight: name of the initializer of its weight, `""` where it has none.
    """
    named = split_path(weight) if weight and not is_generated(weight) else []
    if len(named) > 1 and _WEIGHT.fullmatch(named[-1]):
        return LayerName(named[:-1])
    name = node.name or ""
    if "/" in weight and _NUMBERED.fullmatch(name):
        return LayerName(_scope(named, node.op_type))
    if "/" in name:
        return LayerName(_scope(split_path(name), node.op_type))
    suffixed = _SUFFIXED.fullmatch(named[-1]) if named else None
    if suffixed is not None:
        return LayerName([*named[:-1], suffixed[1]])
    if not name or _is_operator(name.partition(".")[0]):  # paddle2onnx names a node `GRU.0`
        return LayerName([f"{node.op_type.lower()}_{step}"], nameless=True)
    return LayerName(split_path(name), nameless=True)


_WEIGHT = re.compile(r"(weight|w_\d+)(_deepcopy_\d+)?(_quantized)?")
"""Names of a layer's weight in torch and in Paddle (`conv2d_0.w_0`), also of Paddle's copies, and of the integers of a
quantised one."""

_SUFFIXED = re.compile(r"(.+)_(?:w|weights?|kernel|scale|gamma)(?:_\d+)?")
"""Names of a layer's weight in MXNet, Caffe2 and PaddleClas: `conv0_weight`, `conv2_1/x1_w_0`, `conv1_weights`."""

_NUMBERED = re.compile(r"\w+__\d+")
"""Names of nodes that tf2onnx added; only their weights have the scope in their names."""

_OPERATIONS = frozenset(
    {
        *("BiasAdd", "Conv1D", "Conv2D", "Conv3D", "FusedBatchNormV3", "GatherV2", "MatMul", "ReadVariableOp"),
        *("batchnorm", "conv_transpose", "convolution", "depthwise", "merged_input", "separable_conv2d", "while_"),
    }
)
"""Operations of TensorFlow and tf2onnx at the end of the names of nodes and weights: `model/dense/BiasAdd`."""


def _scope(steps: list[str], operator: str) -> list[str]:
    """Returns the path of the layer around an operation; the path itself if it does not end with an operation."""
    end = len(steps)
    while end > 1 and (steps[end - 1] in _OPERATIONS or (end == len(steps) and steps[-1].split("_")[0] == operator)):
        end -= 1
    return steps[:end]
