"""Weights that a thread reads ahead of an import are those of the file."""

from __future__ import annotations

import os
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import onnx2nn
from onnx2nn.errors import ModelFileError
from onnx2nn.reading import read_ahead, reader
from onnx2nn.reading.tensors import StoredTensor

pytestmark = pytest.mark.skipif(not hasattr(os, "preadv"), reason="nothing is read ahead on this system")

COUNT = 12


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes batches of about three weights."""
    monkeypatch.setattr(read_ahead, "_BATCH", 12_000)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)


def _arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {f"w{i}": rng.standard_normal((31 + i, 32), np.float32) for i in range(COUNT)}


def _file(folder: Path, *, external: bool) -> Path:
    """Returns a model that adds the sums of its weights, the last one first and one twice; one is of 4 bits."""
    order = [f"w{i}" for i in reversed(range(COUNT))] + ["w3"]
    nodes = [helper.make_node("ReduceSum", [name], [f"s{i}"], keepdims=0) for i, name in enumerate(order)]
    nodes += [helper.make_node("Cast", ["small"], ["wide"], to=TensorProto.FLOAT)]
    nodes += [helper.make_node("ReduceSum", ["wide"], ["t"], keepdims=0)]
    nodes += [helper.make_node("Sum", ["x", "t", *(f"s{i}" for i in range(len(order)))], ["y"])]
    small = ir.serde.serialize_tensor(ir.Tensor(np.arange(-8, 8).repeat(200).astype(ml_dtypes.int4), name="small"))
    unread = numpy_helper.from_array(np.ones((50, 50), np.float32), "unread")
    weights = [numpy_helper.from_array(array, name) for name, array in _arrays().items()]
    graph = helper.make_graph(
        nodes,
        "sums",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
        [*weights, unread, small],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    path = folder / "model.onnx"
    onnx.save(model, str(path), save_as_external_data=external, location="data", size_threshold=0)
    return path


def _stored(model: ir.Model) -> list[StoredTensor]:
    return [t for v in model.graph.initializers.values() if isinstance(t := v.const_value, StoredTensor)]


@pytest.mark.parametrize("external", [False, True])
def test_weights_are_those_of_the_file(tmp_path: Path, external: bool) -> None:
    path = _file(tmp_path, external=external)
    module = onnx2nn.load(path)
    expected = sum(float(array.sum()) for array in _arrays().values()) + float(_arrays()["w3"].sum()) - 8 * 200
    torch.testing.assert_close(module(torch.zeros(1)), torch.tensor([expected]), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("external", [False, True])
def test_each_is_read_ahead_once(tmp_path: Path, external: bool) -> None:
    """The arrays belong to the caller: each `numpy()` gives one of its own. What nobody takes is forgotten."""
    model = reader.read(_file(tmp_path, external=external))
    tensors = _stored(model)
    assert len(tensors) >= COUNT
    with read_ahead.reading_ahead(model):
        assert 0 < sum(tensor.ahead is not None for tensor in tensors) < len(tensors)
        for tensor in tensors:
            first, second = tensor.numpy(), tensor.numpy()
            assert first.flags.writeable
            assert not np.shares_memory(first, second)
            np.testing.assert_array_equal(first, second)
            if tensor.name in _arrays():
                np.testing.assert_array_equal(first, _arrays()[tensor.name])
    with read_ahead.reading_ahead(model):
        assert any(tensor.ahead is not None for tensor in tensors)
    assert all(tensor.ahead is None for tensor in tensors)


def test_a_file_that_became_shorter(tmp_path: Path) -> None:
    """The error is that of the weight which is missing, as without reading ahead."""
    model = reader.read(_file(tmp_path, external=True))
    os.truncate(tmp_path / "data", 100)
    with read_ahead.reading_ahead(model), pytest.raises(ModelFileError, match="became shorter"):
        for tensor in _stored(model):
            tensor.numpy()


def test_a_small_model_starts_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "_BATCH", 1 << 25)
    model = reader.read(_file(tmp_path, external=True))
    with read_ahead.reading_ahead(model):
        assert all(tensor.ahead is None for tensor in _stored(model))
