"""A module that is optimised computes products between pairs of QuantizeLinear and DequantizeLinear on integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import onnx2nn

RULE = "product of integers"
STEP = np.float32(0.05)
"""The step of the result."""


def model(
    *,
    width: int = 24,
    x_type: type = np.uint8,
    w_type: type = np.int8,
    y_type: type = np.uint8,
    per_column: bool = False,
    axis: int = 1,
    constant: bool = True,
    seed: int = 0,
) -> onnx.ModelProto:
    """Returns a product with `width` rows of weights between pairs, as ONNX Runtime's tools write it."""
    generator = np.random.default_rng(seed)
    info = np.iinfo(w_type)
    columns = width if axis == 0 else 7
    weights: dict[str, Any] = {
        "x_scale": np.float32(0.02),
        "x_zero": x_type(3),
        "w": generator.integers(info.min, info.max + 1, (width, columns)).astype(w_type),
        "w_scale": np.float32(0.003),
        "w_zero": w_type(0 if w_type is np.int8 else 130),
        "y_scale": STEP,
        "y_zero": y_type(-7 if y_type is np.int8 else 120),
    }
    if per_column:
        weights["w_scale"] = generator.uniform(0.001, 0.004, columns).astype(np.float32)
        weights["w_zero"] = np.full(columns, weights["w_zero"])
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "m", width])]
    if not constant:
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(w_type))
        inputs.append(helper.make_tensor_value_info("w", kind, [width, columns]))
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "x_scale", "x_zero"], ["x_q"]),
        helper.make_node("DequantizeLinear", ["x_q", "x_scale", "x_zero"], ["x_float"]),
        helper.make_node("DequantizeLinear", ["w", "w_scale", "w_zero"], ["w_float"], axis=axis),
        helper.make_node("MatMul", ["x_float", "w_float"], ["c"]),
        helper.make_node("QuantizeLinear", ["c", "y_scale", "y_zero"], ["y_q"]),
        helper.make_node("DequantizeLinear", ["y_q", "y_scale", "y_zero"], ["y"]),
    ]
    results = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    held = [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "pairs", inputs, results, held if constant else [w for w in held if w.name != "w"])
    imports = [helper.make_opsetid("", 21)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


TAKEN: list[dict[str, Any]] = [
    {},
    {"per_column": True},
    {"per_column": True, "axis": -1},
    {"x_type": np.int8, "y_type": np.int8},
    {"w_type": np.uint8},
]
LEFT: list[dict[str, Any]] = [
    {"per_column": True, "axis": 0},  # of rows: the scales are part of the sum
    {"y_type": np.uint16},
    {"x_type": np.uint16},
    {"constant": False},
]


@pytest.mark.parametrize("options", [*TAKEN, *LEFT], ids=str)
def test_pairs(options: dict[str, Any]) -> None:
    file = model(**options)
    literal, eager = onnx2nn.load(file), onnx2nn.load(file, optimize="eager")
    assert RULE not in literal.meta["onnx2nn"]["raising"]["raised"]
    assert eager.meta["onnx2nn"]["raising"] == {"raised": {RULE: 1} if options in TAKEN else {}, "dropped": []}


@settings(max_examples=40, derandomize=True)
@given(st.integers(1, 90), st.integers(0, 1000), st.booleans(), st.sampled_from([np.uint8, np.int8]))
def test_a_result_is_the_nearest_step(width: int, seed: int, per_column: bool, x_type: type) -> None:
    """The sum of integers is exact: the result is the literal one, or the other step where that is between two."""
    file = model(width=width, seed=seed, per_column=per_column, x_type=x_type)
    literal, eager = onnx2nn.load(file), onnx2nn.load(file, optimize="eager")
    exact = onnx2nn.load(file, dtype=torch.float64)
    x = torch.from_numpy(np.random.default_rng(seed).normal(size=(2, 3, width)).astype(np.float32))
    with torch.no_grad():
        expected, found, true = literal(x), eager(x), exact(x.double())
    apart = (found - expected).abs() / float(STEP)
    assert float(apart.max()) < 1.01
    differs = apart > 0.5
    assert float(differs.float().mean()) < 0.05
    assert float((found.double() - true).abs().max()) <= float(STEP) * 1.01
