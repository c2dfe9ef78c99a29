"""Random operators: shape, dtype and distribution, at every revision; no oracle draws the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, defs, helper

import onnx2nn

COUNT = 40_000
"""Draws; a mean is within 5 / sqrt(COUNT) standard deviations of the true one in all but one of a million runs."""

FLOATS = [(TensorProto.FLOAT, torch.float32), (TensorProto.DOUBLE, torch.float64), (TensorProto.FLOAT16, torch.float16)]


def revisions(operator: str) -> list[int]:
    return sorted(s.since_version for s in defs.get_all_schemas_with_history() if s.name == operator and not s.domain)


def pairs(*operators: str) -> list[tuple[str, int]]:
    return [(operator, version) for operator in operators for version in revisions(operator)]


def draw(operator: str, version: int, *inputs: np.ndarray, seed: int = 0, **attributes: Any) -> torch.Tensor:
    names = [f"in{i}" for i in range(len(inputs))]
    node = helper.make_node(operator, names, ["out"], **attributes)
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), ["N", *value.shape[1:]])
        for name, value in zip(names, inputs, strict=True)
    ]
    graph = helper.make_graph([node], "random", infos, [helper.make_empty_tensor_value_info("out")])
    opsets = [helper.make_opsetid("", version)]
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    module = onnx2nn.load(model)
    torch.manual_seed(seed)
    values = [torch.from_numpy(value) for value in inputs]
    first, second = module(*values), module(*values)
    assert not torch.equal(first, second), "two calls draw the same numbers"
    torch.manual_seed(seed)
    assert torch.equal(first, module(*values)), "torch.manual_seed does not decide what is drawn"
    return first


def check_moments(values: torch.Tensor, mean: float, deviation: float) -> None:
    numbers = values.double()
    assert abs(numbers.mean().item() - mean) < 5 * deviation / COUNT**0.5
    assert abs(numbers.std().item() - deviation) < 5 * deviation / COUNT**0.5


@pytest.mark.parametrize(("operator", "version"), pairs("RandomNormal", "RandomUniform"))
@pytest.mark.parametrize(("element", "dtype"), FLOATS, ids=lambda item: str(item))
def test_of_a_shape(operator: str, version: int, element: int, dtype: torch.dtype) -> None:
    normal = operator == "RandomNormal"
    parameters = {"mean": 3.0, "scale": 0.5} if normal else {"low": -1.0, "high": 3.0}
    values = draw(operator, version, shape=[200, COUNT // 200], dtype=element, **parameters)
    assert values.dtype == dtype and values.shape == (200, COUNT // 200)
    check_moments(values, *((3.0, 0.5) if normal else (1.0, 4 / 12**0.5)))
    if normal:
        within = ((values.double() - 3.0).abs() < 0.5).double().mean().item()
        assert abs(within - 0.6827) < 0.02, "not normal"
    else:
        assert values.min() >= -1 and values.max() <= 3
        quarters = torch.histc(values.float(), 4, -1, 3) / COUNT
        assert (quarters - 0.25).abs().max() < 0.02, "not uniform"


@pytest.mark.parametrize(("operator", "version"), pairs("RandomNormalLike", "RandomUniformLike"))
def test_like_another(operator: str, version: int) -> None:
    mean, deviation = (0.0, 1.0) if operator == "RandomNormalLike" else (0.5, 1 / 12**0.5)
    like = np.zeros((200, COUNT // 200))
    values = draw(operator, version, like)
    assert values.dtype == torch.float64 and values.shape == like.shape
    check_moments(values, mean, deviation)
    values = draw(operator, version, like.astype(np.int32), dtype=TensorProto.FLOAT)
    assert values.dtype == torch.float32
    check_moments(values, mean, deviation)


@pytest.mark.parametrize(("operator", "version"), pairs("Multinomial"))
@pytest.mark.parametrize(("element", "dtype"), [(TensorProto.INT32, torch.int32), (TensorProto.INT64, torch.int64)])
def test_multinomial(operator: str, version: int, element: int, dtype: torch.dtype) -> None:
    """The input holds unnormalised log-probabilities, as ONNX Runtime takes them."""
    shares = np.float32([[0.1, 0.2, 0.7], [0.5, 0.5, 0.0]])
    with np.errstate(divide="ignore"):
        logits = np.log(shares) + np.float32(2)
    values = draw(operator, version, logits, sample_size=COUNT, dtype=element)
    assert values.dtype == dtype and values.shape == (2, COUNT)
    found = np.stack([np.bincount(row.numpy(), minlength=3) for row in values]) / COUNT
    assert np.abs(found - shares).max() < 5 * 0.5 / COUNT**0.5


@pytest.mark.parametrize(("operator", "version"), pairs("Bernoulli"))
def test_bernoulli(operator: str, version: int) -> None:
    chances = np.repeat(np.float32([[0.0, 0.3, 1.0]]), COUNT, axis=0)
    values = draw(operator, version, chances, dtype=TensorProto.INT32)
    assert values.dtype == torch.int32 and values.shape == chances.shape
    assert (values.double().mean(0) - torch.tensor([0, 0.3, 1])).abs().max() < 5 * 0.5 / COUNT**0.5


@pytest.mark.parametrize("operator", ["BiasDropout", "BitmaskDropout", "BitmaskBiasDropout"])
def test_dropout_of_onnx_runtime_in_training(operator: str) -> None:
    """A quarter of the elements is dropped, the others are scaled, and the mask, packed or not, says which."""
    data, bias, residual = (np.random.default_rng(i).random((40, 1000), np.float32) for i in range(3))
    biased = "Bias" in operator
    inputs = [data, bias, residual] if biased else [data]
    names = [f"in{i}" for i in range(len(inputs))]
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [40, 1000]) for name in names]
    constants = [helper.make_tensor("ratio", TensorProto.FLOAT, [], [0.25]), helper.make_tensor("train", 9, [], [True])]
    node = helper.make_node(operator, [*names, "ratio", "train"], ["Y", "mask"], domain="com.microsoft")
    results = [helper.make_empty_tensor_value_info(name) for name in ("Y", "mask")]
    graph = helper.make_graph([node], "random", infos, results, constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    module = onnx2nn.load(helper.make_model(graph, opset_imports=opsets, ir_version=8))
    Y, mask = (x.numpy() for x in module(*map(torch.from_numpy, inputs)))
    if operator.startswith("Bitmask"):
        mask = (mask[:, None] >> np.arange(32, dtype=np.uint32) & 1).reshape(-1)[: data.size].reshape(data.shape)
    kept = mask.astype(bool)
    assert abs(kept.mean() - 0.75) < 5 * (0.25 * 0.75 / data.size) ** 0.5
    total, added = (data + bias, residual) if biased else (data, 0)
    np.testing.assert_allclose(Y, np.where(kept, total / 0.75, 0) + added, rtol=1e-5)
