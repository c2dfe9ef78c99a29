"""`trainable` and `quantized` of `onnx2nn.load` for OneFlow, and what it refuses."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

import onnx2nn
from oneflow_bridge.runtime import import_oneflow
from onnx2nn.errors import FrozenDimensionError, InputError, MissingDependencyError

flow = import_oneflow()
RNG = np.random.default_rng(0)


def parsed(text: str, **initializers: np.ndarray) -> onnx.ModelProto:
    """Returns a model in onnx's own notation; `__` in names stands for a dot, which the parser of onnx 1.17 refuses."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]> {text}')
    for node in model.graph.node:
        node.input[:] = [name.replace("__", ".") for name in node.input]
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in initializers.items())
    return model


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def with_roles() -> onnx.ModelProto:
    """An embedding, a norm, a linear layer, and a factor."""
    text = """m (int64[n] i) => (float[n, 3] y) {
        a = Gather(table__weight, i)
        b = LayerNormalization(a, norm__weight, norm__bias)
        c = Gemm<transB = 1>(b, head__weight, head__bias)
        y = Mul(c, gamma) }"""
    weights = {"table.weight": normal(7, 4), "norm.weight": normal(4), "norm.bias": normal(4)}
    weights |= {"head.weight": normal(3, 4), "head.bias": normal(3), "gamma": normal(3)}
    return parsed(text, **weights)


ALL = {"table.weight", "norm.weight", "norm.bias", "head.weight", "head.bias", "gamma"}


@pytest.mark.parametrize(
    ("trainable", "expected"),
    [
        (True, ALL),
        (False, set()),
        (["weight"], {"head.weight"}),
        (["norm", "bias"], {"norm.weight", "norm.bias", "head.bias"}),
        (["embedding", "other"], {"table.weight", "gamma"}),
        (["head.*"], {"head.weight", "head.bias"}),
    ],
)
def test_the_weights_that_train(trainable: Any, expected: set[str]) -> None:
    module = onnx2nn.load(with_roles(), framework="oneflow", trainable=trainable)
    assert {name for name, weight in module.named_parameters() if weight.requires_grad} == expected
    assert {name for name, _ in module.named_parameters()} == ALL
    if expected:
        module(flow.tensor([0, 3])).sum().backward()
        assert {name for name, weight in module.named_parameters() if weight.grad is not None} == expected


def test_a_pattern_that_fits_no_weight() -> None:
    with pytest.raises(InputError, match=r"no weight fits 'tail\.\*'"):
        onnx2nn.load(with_roles(), framework="oneflow", trainable=["tail.*"])


def test_a_tied_weight_trains_under_each_of_its_keys() -> None:
    text = "m (int64[n] i) => (float[n, 7] y) { a = Gather(w, i) t = Transpose<perm = [1, 0]>(w) y = MatMul(a, t) }"
    module = onnx2nn.load(parsed(text, w=normal(7, 4)), framework="oneflow", trainable=["weight"])
    paths = [path for path, _ in module.holders()]
    assert len(paths) == len(set(paths)) and "" in paths
    assert all(parameter.requires_grad for parameter in module.parameters())


def quantised() -> tuple[onnx.ModelProto, np.ndarray]:
    """A linear layer between QuantizeLinear and DequantizeLinear, with a scale for each row; the exact float weight."""
    text = """m (float[n, 4] x) => (float[n, 3] y) {
        q = QuantizeLinear(x, s, z)
        d = DequantizeLinear(q, s, z)
        w = DequantizeLinear<axis = 0>(linear__weight, scales)
        y = Gemm<transB = 1>(d, w, linear__bias) }"""
    integers = RNG.integers(-128, 128, (3, 4)).astype(np.int8)
    scales = np.float32([0.01, 0.02, 0.005])
    weights = {"linear.weight": integers, "scales": scales, "linear.bias": normal(3)}
    return parsed(text, s=np.float32(0.02), z=np.uint8(128), **weights), integers * scales[:, None]


def test_a_quantised_model_becomes_a_float_one_that_trains() -> None:
    proto, weight = quantised()
    kept, module = (onnx2nn.load(proto, framework="oneflow", quantized=word) for word in ("keep", "dequantize"))
    (found,) = (value for value in module.parameters() if value.ndim == 2)
    np.testing.assert_array_equal(found.numpy(), weight)
    assert module.meta["onnx2nn"]["dequantized"]["operators"] == {"QuantizeLinear": 1, "DequantizeLinear": 2}
    x = flow.tensor(normal(5, 4).clip(-2, 2))
    step = 0.01 * np.abs(weight).sum(1)  # half a step of x in each of the products
    assert (np.abs(module(x).numpy() - kept(x).numpy()) <= step + 1e-5).all()
    module(x).sum().backward()
    np.testing.assert_allclose(found.grad.numpy(), np.broadcast_to(x.numpy().sum(0), (3, 4)), rtol=1e-5, atol=1e-5)


def test_packed_weights_of_four_bits() -> None:
    """Each byte holds two numbers, the first in its low half, less 8."""
    packed = RNG.integers(0, 256, (3, 2, 8)).astype(np.uint8)
    scales = np.abs(normal(3, 2)) + np.float32(0.1)
    text = """m (float[n, 32] x) => (float[n, 3] y) {
        y = com.microsoft.MatMulNBits<K = 32, N = 3, bits = 4, block_size = 16>(x, fc__weight_Q4, scales) }"""
    proto = parsed(text, **{"fc.weight_Q4": packed, "scales": scales.ravel()})
    module = onnx2nn.load(proto, framework="oneflow", quantized="dequantize")
    numbers = np.stack([packed & 15, packed >> 4], -1).reshape(3, 2, 16).astype(np.float32) - 8
    expected = (numbers * scales[:, :, None]).reshape(3, 32)
    (weight,) = module.parameters()
    np.testing.assert_array_equal(np.sort(weight.numpy().ravel()), np.sort(expected.ravel()))
    x = normal(2, 32)
    np.testing.assert_allclose(module(flow.tensor(x)).numpy(), x @ expected.T, rtol=1e-4, atol=1e-4)


def flattened(size: int = 1) -> onnx.ModelProto:
    """A model whose Reshape holds the batch, as exporters write `x.view(1, -1)` and `x.flatten(1)` at a fixed size."""
    text = f"""m (float[{size}, 2, 3] x) => (float[{size}, 4] y) {{
        flat = Reshape(x, sizes)
        y = MatMul(flat, weight) }}"""
    return parsed(text, sizes=np.array([size, 6]), weight=RNG.standard_normal((6, 4)).astype(np.float32))


def test_a_fixed_batch_becomes_dynamic() -> None:
    pytest.importorskip("torch")  # finds the constants; not in CI's environment, as its wheel for Python 3.10 has CUDA
    proto = flattened()
    module = onnx2nn.load(proto, framework="oneflow", dynamic={"x": {0: "n"}})
    assert module.meta["onnx2nn"]["thawed"]["frozen"] == {"n": 1}
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    for size in (1, 3):
        x = normal(size, 2, 3)
        found = module(flow.tensor(x)).numpy()
        np.testing.assert_allclose(found, x.reshape(size, 6) @ weights["weight"], rtol=1e-5, atol=1e-5)


def test_a_dimension_that_data_use_stays_fixed() -> None:
    pytest.importorskip("torch")  # as above
    table = parsed("m (float[4, 2] x) => (float[4, 2] y) { y = Add(x, table) }", table=normal(4, 2))
    with pytest.raises(FrozenDimensionError, match=r"'n' \(4 in the file\) cannot be dynamic"):
        onnx2nn.load(table, framework="oneflow", dynamic={"x": {0: "n"}})


def test_dynamic_dimensions_need_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingDependencyError, match=r"dynamic= for OneFlow needs torch.*onnx2nn\[torch\]"):
        onnx2nn.load(flattened(), framework="oneflow", dynamic={"x": {0: "n"}})


@pytest.mark.parametrize("option", [{"quantized": "torchao"}, {"blocks": "repeated"}])
def test_what_is_for_pytorch_only_says_so(option: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"{next(iter(option))}.*needs framework='torch'"):
        onnx2nn.load(with_roles(), framework="oneflow", **option)
