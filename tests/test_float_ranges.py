"""Ranges of floats whose bounds are sizes, as detectors write their anchors: exact at every size, and exported."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import parser

import onnx2nn

STARTS = ("0.0", "1.0", "0.5", "-0.25", "2.75", "-3.0", "0.3", "size")
STEPS = ("1.0", "2.0", "-1.0", "-2.0", "3.0", "0.5")


def _model(kind: str, start: str, limit: str, step: str) -> onnx.ModelProto:
    number = {"float": 1, "double": 11}[kind]
    constants = ", ".join(
        f"{kind} {name} = {{{value}}}" for name, value in (("a", start), ("b", limit), ("c", step)) if value != "size"
    )
    names = ["s" if value == "size" else name for name, value in (("a", start), ("b", limit), ("c", step))]
    return parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> graph (float[n] x) => ({kind}[m] y) '
        f"<int64 zero = {{0}}, {constants}> "
        f"{{ shape = Shape(x) n = Gather(shape, zero) s = Cast<to = {number}>(n) y = Range({', '.join(names)}) }}"
    )


@pytest.mark.parametrize(("start", "step"), list(itertools.product(STARTS, STEPS)))
@pytest.mark.parametrize("kind", ["float", "double"])
def test_a_range_of_floats_is_the_files(kind: str, start: str, step: str) -> None:
    model = _model(kind, start, "0.0" if start == "size" else "size", step)
    module, session = onnx2nn.load(model), onnxruntime.InferenceSession(model.SerializeToString())
    for size in (*range(1, 9), 100, 4097):
        (expected,) = session.run(None, {"x": np.zeros(size, np.float32)})
        found = module(torch.zeros(size)).numpy()
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("start", ["0.0", "0.5"])
@pytest.mark.parametrize("kind", ["float", "double"])
def test_anchors_are_exported_with_open_sizes(kind: str, start: str) -> None:
    model = _model(kind, start, "size", "1.0")
    module = onnx2nn.load(model)
    assert "torch.arange" in module.code
    size = torch.export.Dim("size", max=(1 << 24) - 1)
    program = torch.export.export(module, (torch.zeros(5),), dynamic_shapes=({0: size},))
    assert program.module()(torch.zeros(9)).tolist() == [float(start) + step for step in range(9)]


@pytest.mark.parametrize("limit", ["Floor(third)", "Mul(third, three)", "Cast<to = 11>(whole)", "Add(s, third)"])
def test_doubles_that_are_computed_of_sizes(limit: str) -> None:
    """A size as a double is the size; what is computed with doubles is not rounded as float32."""
    model = parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17]>
        graph (float[n] x) => (double[m] y, double[k] z) <int64 first = {{0}}, double zero = {{0}}, double one = {{1}},
            double three = {{3}}, int64[1] two = {{2}}>
        {{
            shape = Shape(x)
            n = Gather(shape, first)
            s = Cast<to = 11>(n)
            third = Div(s, three)
            whole = Cast<to = 7>(third)
            limit = {limit}
            y = Range(zero, limit, one)
            z = Expand(third, two)
        }}
    """)
    module, session = onnx2nn.load(model), onnxruntime.InferenceSession(model.SerializeToString())
    for size in (*range(1, 13), 100, 4097):
        expected = session.run(None, {"x": np.zeros(size, np.float32)})
        for found, theirs in zip(module(torch.zeros(size)), expected, strict=True):
            np.testing.assert_array_equal(found.detach().numpy(), theirs)
