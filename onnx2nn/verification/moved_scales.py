"""A model whose Resize nodes interpolate at coordinates that are moved as rounding moves them.

A coordinate is computed in float32 from the index and the scale, also where the scale is that of two sizes. The larger
the image, the coarser: at 128 pixels, a unit in the last place is 1e-5 of the distance to the next pixel. Moves of the
pixels do not show it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

_PREFIX = "onnx2nn_moved_scales_"
_FACTOR, _ONE = f"{_PREFIX}factor", f"{_PREFIX}one"


def with_moved_scales(model: onnx.ModelProto, ulps: int) -> onnx.ModelProto | None:
    """Returns a copy whose nodes that interpolate have larger scales, None where there is no such node.

    Scales are made larger, as the length of an output is a product that is rounded down; those of 1 stay, at which
    coordinates are exact. Nearest elements stay: where a coordinate lies between two of them, either would do.

    Args:
        model: its Resize and Upsample are left alone that choose nearest elements, take no scale of float32 or size, or
            keep an aspect ratio.
        ulps: how many representable numbers a scale of 1 is moved.
    """
    factor = numpy_helper.from_array(np.float32(1 + ulps * np.finfo(np.float32).eps), _FACTOR)
    one = numpy_helper.from_array(np.float32(1), _ONE)
    moved = onnx.ModelProto()
    moved.CopyFrom(model)
    version = next((opset.version for opset in model.opset_import if opset.domain in ("", "ai.onnx")), 1)
    nodes: list[onnx.NodeProto] = []
    for index, node in enumerate(moved.graph.node):
        nodes += [*_move(node, version, f"{_PREFIX}{index}_{{}}".format), node]
    if len(nodes) == len(model.graph.node):
        return None
    del moved.graph.node[:]
    moved.graph.node.extend(nodes)
    moved.graph.initializer.extend([factor, one])
    return moved


def _move(node: onnx.NodeProto, version: int, name: Callable[[str], str]) -> list[onnx.NodeProto]:
    """Gives a node moved scales, and returns the nodes that compute these."""
    options = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    if (
        node.domain not in ("", "ai.onnx")
        or node.op_type not in ("Resize", "Upsample")
        or options.get("mode", b"nearest") == b"nearest"
        or options.get("keep_aspect_ratio_policy", b"stretch") != b"stretch"
    ):
        return []
    position = 2 if version >= 11 else 1  # behind the region, since there is one
    image, *_, sizes = [*node.input, "", "", ""][:4]
    scales = node.input[position] if len(node.input) > position else ""
    nodes: list[onnx.NodeProto] = []
    if version >= 11 and sizes:  # revision 11 has empty scales then
        scales = name("scales")
        nodes = _scales(image, sizes, options.get("axes"), scales, name)
    if not scales:  # an attribute, at revision 7
        return []
    node.input[position:] = [name("moved")]
    return [
        *nodes,
        helper.make_node("Mul", [scales, _FACTOR], [name("larger")]),
        helper.make_node("Sub", [scales, _ONE], [name("rest")]),
        helper.make_node("Cast", [name("rest")], [name("resized")], to=onnx.TensorProto.BOOL),
        helper.make_node("Where", [name("resized"), name("larger"), scales], [name("moved")]),
    ]


def _scales(
    image: str, sizes: str, axes: Sequence[int] | None, scales: str, name: Callable[[str], str]
) -> list[onnx.NodeProto]:
    """Returns the nodes that divide sizes by those of an image."""
    lengths = name("lengths")
    nodes = [helper.make_node("Shape", [image], [lengths])]
    if axes:
        nodes.append(helper.make_node("Constant", [], [name("axes")], value_ints=axes))
        nodes.append(helper.make_node("Gather", [lengths, name("axes")], [name("some")]))
        lengths = name("some")
    for value, cast in ((lengths, name("old")), (sizes, name("new"))):
        nodes.append(helper.make_node("Cast", [value], [cast], to=onnx.TensorProto.FLOAT))
    return [*nodes, helper.make_node("Div", [name("new"), name("old")], [scales])]
