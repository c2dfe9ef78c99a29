"""An axis that a tensor does not have is an error, as in ONNX Runtime, and not the axis that `%` makes of it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import pytest
import torch
from onnx import defs, helper, numpy_helper

import onnx2nn
from onnx2nn.errors import Onnx2nnError
from onnx2nn.ops.axes import from_front
from tests.suitecases import SuiteCase, domain_of, node_cases, versions

_OUTSIDE = (7, -7)
"""No tensor of the suite has so many dimensions."""

_UNREAD = frozenset({"DequantizeLinear", "QuantizeLinear"})
"""Their axis has no meaning beside a scale of one number."""


def _cases() -> Iterator[SuiteCase]:
    """Yields the suite's cases of one node that has an axis or axes, one for each operator and number of inputs."""
    seen = set()
    for (_, operator), cases in node_cases().items():
        for case in cases:
            nodes = case.model.graph.node
            key = (operator, len(nodes[0].input), tuple(sorted(a.name for a in nodes[0].attribute)))
            if len(nodes) == 1 and operator not in _UNREAD and key not in seen and [*_moved(case, _OUTSIDE[0])]:
                seen.add(key)
                yield case


def _moved(case: SuiteCase, axis: int) -> Iterator[onnx.ModelProto]:
    """Yields models in which one axis of the node is `axis`."""
    node = case.model.graph.node[0]
    if not defs.has(node.op_type, domain_of(node.domain)):
        return
    version = versions(case.model).get(domain_of(node.domain), 1)
    schema = defs.get_schema(node.op_type, version, domain_of(node.domain))
    for name in ("axis", "axes"):
        if name in schema.attributes:
            model = onnx.ModelProto()
            model.CopyFrom(case.model)
            given = [a for a in node.attribute if a.name != name]
            del model.graph.node[0].attribute[:]
            model.graph.node[0].attribute.extend(given)
            value = axis if schema.attributes[name].type == defs.OpSchema.AttrType.INT else [axis]
            model.graph.node[0].attribute.append(helper.make_attribute(name, value))
            yield model
    inputs = {value.name: data for value, data in zip(case.model.graph.input, case.inputs, strict=False)}
    for parameter, name in zip(schema.inputs, node.input, strict=False):
        if parameter.name in ("axis", "axes") and name in inputs and np.size(inputs[name]):
            moved = np.array(inputs[name])
            moved.flat[0] = axis
            model = onnx.ModelProto()
            model.CopyFrom(case.model)
            model.graph.initializer.append(numpy_helper.from_array(moved, name))
            yield model


@pytest.mark.parametrize("case", list(_cases()), ids=str)
def test_axes_outside_are_errors(case: SuiteCase) -> None:
    for axis in _OUTSIDE:
        for model in _moved(case, axis):
            held = {tensor.name for tensor in model.graph.initializer}
            values = zip(model.graph.input, case.inputs, strict=False)
            with pytest.raises((Onnx2nnError, ValueError)):  # the latter is a guard's
                onnx2nn.load(model)(*[_argument(data) for value, data in values if value.name not in held])


def _argument(data: object) -> object:
    numeric = isinstance(data, np.ndarray) and data.dtype.kind in "fiub"
    return torch.from_numpy(np.array(data)) if numeric else data


def test_axes_from_the_front() -> None:
    assert [from_front(axis, 3) for axis in range(-3, 3)] == [0, 1, 2, 0, 1, 2]
    for axis in (-4, 3, 1 << 40):
        with pytest.raises(onnx2nn.errors.OperatorError, match=f"axis {axis} is none of a tensor of 3 dimensions"):
            from_front(axis, 3)
