"""The nine light models of ONNX's own suite: real networks whose weights are made by ConstantOfShape.

As stored, every weight of such a network is the same number, which proves its wiring only, and hardly that: most end in
a uniform softmax. So each runs a second time with seeded random weights in the constants' place.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.backend.test
import pytest
import torch
from onnx import numpy_helper
from realmodels import check_against_onnxruntime, check_travels, random_inputs
from tiers import mostly_slow

import onnx2nn

LIGHT = Path(onnx.backend.test.__file__).parent / "data" / "light"
MODELS = sorted(LIGHT.glob("light_*.onnx"))
# The largest (vgg19: 574 MB of weights, zfnet512: 349 MB, alexnet: 244 MB) have no operator that the others lack.
TRAVELLING = [path for path in MODELS if path.stem not in ("light_vgg19", "light_zfnet512", "light_bvlc_alexnet")]

SMALLEST = [path for path in MODELS if path.stem in ("light_squeezenet", "light_shufflenet")]


def _name(path: Path) -> str:
    return path.stem


def _constants(model: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors that ConstantOfShape makes from stored shapes."""
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    return {
        node.output[0]: tuple(int(size) for size in stored[node.input[0]])
        for node in model.graph.node
        if node.op_type == "ConstantOfShape"
    }


def _factors(graph: onnx.GraphProto) -> dict[str, float]:
    """Constants that multiply a channel or divide it (the variance), with the middle of their random values.

    That is one, and less for a branch that is added to its input, whose sum would otherwise grow from block to block.
    All other vectors are biases or means and stay near zero.
    """
    source = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "Unsqueeze"}
    summed = {name for node in graph.node if node.op_type == "Sum" for name in node.input}
    middles: dict[str, float] = {}
    for node in graph.node:
        if node.op_type == "BatchNormalization":
            middles[node.input[1]] = 0.1 if node.output[0] in summed else 1.0
            middles[node.input[4]] = 1.0
        elif node.op_type == "Mul":
            middles.update(dict.fromkeys((source.get(name, name) for name in node.input), 1.0))
    return middles


def with_random_weights(model: onnx.ModelProto, seed: int = 0) -> onnx.ModelProto:
    """The model with initializers for its ConstantOfShape nodes, giving the logits beside their softmax.

    Random logits are far apart, so that their softmax alone is a one-hot vector that hides a wrong number.
    """
    generator = np.random.default_rng(seed)
    shapes, factors = _constants(model), _factors(model.graph)
    result = onnx.ModelProto()
    result.CopyFrom(model)
    nodes = [node for node in result.graph.node if node.op_type != "ConstantOfShape"]
    del result.graph.node[:]
    result.graph.node.extend(nodes)
    for name, shape in shapes.items():
        if len(shape) > 1:
            fan_in = int(np.prod(shape[1:]))
            array = generator.standard_normal(shape, np.float32) * np.float32((2 / fan_in) ** 0.5)
        elif name in factors:
            array = (generator.uniform(0.8, 1.2, shape) * factors[name]).astype(np.float32)
        else:
            array = generator.standard_normal(shape, np.float32) * np.float32(0.1)
        result.graph.initializer.append(numpy_helper.from_array(array, name))
    for node in result.graph.node:
        if node.op_type == "Softmax":
            result.graph.output.append(onnx.helper.make_tensor_value_info(node.input[0], onnx.TensorProto.FLOAT, None))
    return result


def test_all_nine_are_there() -> None:
    assert len(MODELS) == 9


@pytest.mark.parametrize("path", mostly_slow(MODELS, SMALLEST), ids=_name)
def test_as_stored(path: Path) -> None:
    check_against_onnxruntime(path, onnx2nn.load(path), random_inputs(path))


@pytest.mark.parametrize("path", mostly_slow(MODELS, SMALLEST), ids=_name)
def test_with_random_weights(path: Path, tmp_path: Path) -> None:
    random = tmp_path / "random.onnx"
    onnx.save(with_random_weights(onnx.load(str(path))), str(random))
    inputs = random_inputs(random)
    outputs = check_against_onnxruntime(random, onnx2nn.load(random), inputs)
    assert outputs[-1].std() > 0.1, "nearly constant logits prove nothing"
    random.unlink()  # half a gigabyte for the largest


@pytest.mark.slow
@pytest.mark.parametrize("path", TRAVELLING, ids=_name)
def test_travels(path: Path) -> None:
    module = onnx2nn.load(with_random_weights(onnx.load(str(path))))
    assert isinstance(module, torch.nn.Module)
    check_travels(module, random_inputs(path))
