"""torch.jit.trace sees one example: what its values are decides nothing about the trace."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch

import onnx2nn

HEAD = '<ir_version: 8, opset_import: ["" : 17]>'
PRODUCT = "int8[4, 3] w = {1, -2, 3, 4, 5, -6, 7, 8, 9, 1, 2, 3}"
CASES = {
    "MatMulInteger": (
        f"graph (float[n, 4] x) => (int32[n, 3] y) <{PRODUCT}>"
        "{ q, s, z = DynamicQuantizeLinear(x) y = MatMulInteger(q, w, z) }",
        [(5, 4), (2, 4)],
    ),
    "ConvInteger": (
        "graph (float[n, 1, 8] x) => (int32[n, 1, m] y) <int8[1, 1, 2] k = {1, 2}>"
        "{ q, s, z = DynamicQuantizeLinear(x) y = ConvInteger(q, k, z) }",
        [(2, 1, 8), (3, 1, 8)],
    ),
    "DequantizeLinear": (
        "graph (float[n] x) => (float[n] y) { q, s, z = DynamicQuantizeLinear(x) y = DequantizeLinear(q, s, z) }",
        [(5,), (7,)],
    ),
    "QLinearMatMul": (
        f"graph (float[n, 4] x) => (uint8[n, 3] y) <{PRODUCT}, float t = {{0.2}}, uint8 o = {{3}}, int8 wz = {{0}}>"
        "{ q, s, z = DynamicQuantizeLinear(x) y = QLinearMatMul(q, s, z, w, t, wz, t, o) }",
        [(5, 4), (2, 4)],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_zero_point_that_was_zero_is_no_constant(name: str) -> None:
    """Numbers that are not negative have the zero point 0."""
    text, (first, second) = CASES[name]
    module = onnx2nn.load(onnx.parser.parse_model(HEAD + text))
    traced = torch.jit.trace(module, (torch.rand(first),))
    for x in (torch.rand(first), torch.randn(second), -torch.rand(second)):
        assert torch.equal(traced(x), module(x))


def test_grams_of_the_example_are_no_constants() -> None:
    model = onnx.parser.parse_model(
        HEAD
        + """graph (int64[6] x) => (float[m] y) {
            y = TfIdfVectorizer <mode = "TF", min_gram_length = 1, max_gram_length = 1, max_skip_count = 0,
                ngram_counts = [0], ngram_indexes = [0, 1, 2], pool_int64s = [3, 5, 7]> (x)
        }"""
    )
    module = onnx2nn.load(model)
    traced = torch.jit.trace(module, (torch.tensor([3, 3, 5, 1, 2, 0]),))
    other = torch.tensor([7, 7, 7, 5, 1, 9])
    assert torch.equal(traced(other), module(other))
    assert module(other).tolist() == [0, 1, 3]


def test_lengths_of_the_example_are_no_constants() -> None:
    """All sequences of the example have all steps."""
    rng = np.random.default_rng(0)
    arrays = {"w": (1, 8, 3), "r": (1, 8, 2)}
    weights = [
        onnx.numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), key)
        for key, shape in arrays.items()
    ]
    model = onnx.parser.parse_model(
        HEAD
        + """graph (float[5, b, 3] x, int32[b] lengths) => (float[5, 1, b, 2] y)
        { y = LSTM <hidden_size = 2> (x, w, r, "", lengths) }""".replace('""', "")
    )
    model.graph.initializer.extend(weights)
    module = onnx2nn.load(model)
    x = torch.randn(5, 4, 3)
    traced = torch.jit.trace(module, (x, torch.full((4,), 5, dtype=torch.int32)))
    for lengths in ([5, 5, 5, 5], [1, 3, 5, 2]):
        given = torch.tensor(lengths, dtype=torch.int32)
        torch.testing.assert_close(traced(x, given), module(x, given))
