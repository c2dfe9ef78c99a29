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
def test_anchors_are_exported_with_open_sizes(start: str) -> None:
    model = _model("float", start, "size", "1.0")
    module = onnx2nn.load(model)
    assert "torch.arange" in module.code
    size = torch.export.Dim("size", max=(1 << 24) - 1)
    program = torch.export.export(module, (torch.zeros(5),), dynamic_shapes=({0: size},))
    assert program.module()(torch.zeros(9)).tolist() == [float(start) + step for step in range(9)]
