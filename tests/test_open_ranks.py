"""Squeeze without axes drops what has size 1 in each call, where nothing behind it asks how many dimensions remain."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import parser

import onnx2nn

SHAPES = [(1, 1), (1, 4), (3, 1), (3, 4), (2, 2)]
"""Of the two open dimensions."""

HEADS = [
    "y = Squeeze(x)",
    "s = Squeeze(x) t = Sigmoid(s) u = Mul(t, four) y = Add(u, one)",
    "a = Relu(x) s = Squeeze(a) t = Mul(one, s) y = Clip(t, one, four)",
    "s = Squeeze(x) y = Cast<to = 11>(s)",
    "s = Squeeze(x) u = Tanh(s) v = Exp(s) w = Neg(u) y = Abs(w) z = Sqrt(v)",
]


def _model(nodes: str) -> onnx.ModelProto:
    outputs = "y, z" if "z =" in nodes else "y"
    return parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> graph (float[rows, 1, columns] x) => ({outputs}) '
        f"<float one = {{1}}, float four = {{4}}, float[1] listed = {{4}}> {{ {nodes} }}"
    )


def _agree(model: onnx.ModelProto, run: Callable[..., Any]) -> None:
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for rows, columns in SHAPES:
        x = np.random.default_rng(rows).standard_normal((rows, 1, columns)).astype(np.float32)
        found = run(torch.from_numpy(x))
        for ours, theirs in zip(
            found if isinstance(found, tuple) else (found,), session.run(None, {"x": x}), strict=True
        ):
            assert tuple(ours.shape) == theirs.shape and str(ours.dtype) == f"torch.{theirs.dtype}"
            np.testing.assert_allclose(ours.detach().numpy(), theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("nodes", HEADS)
def test_the_rank_is_decided_in_each_call(nodes: str, tmp_path: Path) -> None:
    model = _model(nodes)
    module = onnx2nn.load(model)
    assert not module.meta["onnx2nn"]["guards"]
    _agree(model, module)
    torch.compiler.reset()  # sizes of 1 are programs of their own, and their number is limited
    _agree(model, torch.compile(module, fullgraph=True, dynamic=True, backend="eager"))
    onnx2nn.to_python(module, tmp_path)
    spec = importlib.util.spec_from_file_location("written", tmp_path / "model.py")
    assert spec is not None and spec.loader is not None
    written = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(written)
    _agree(model, written.load_model())


@pytest.mark.parametrize("nodes", HEADS)
def test_files_keep_it(nodes: str, tmp_path: Path) -> None:
    model = _model(nodes)
    onnx2nn.export_onnx(onnx2nn.load(model), tmp_path / "again.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "again.onnx")
    _agree(model, lambda x: tuple(map(torch.from_numpy, map(np.asarray, session.run(None, {"x": x.numpy()})))))


@pytest.mark.parametrize(
    "nodes",
    [
        "s = Squeeze(x) y = Softmax<axis = 0>(s)",
        "s = Squeeze(x) y = Add(s, listed)",
        "s = Squeeze(x) r = Relu(x) y = Add(s, r)",
        "s = Squeeze(x) y = Transpose<perm = [1, 0]>(s)",
        "s = Squeeze(x) n = Shape(s) y = Cast<to = 1>(n)",
    ],
)
def test_a_rank_that_something_depends_on_is_a_condition(nodes: str) -> None:
    model = _model(nodes)
    module = onnx2nn.load(model)
    assert {guard["operator"] for guard in module.meta["onnx2nn"]["guards"]} >= {"Squeeze"}
    session = onnxruntime.InferenceSession(model.SerializeToString())
    x = np.ones((3, 1, 4), np.float32)
    np.testing.assert_allclose(module(torch.from_numpy(x)).detach().numpy(), session.run(None, {"x": x})[0], rtol=1e-6)
    with pytest.raises(ValueError, match="Squeeze"):
        module(torch.ones(1, 1, 4))


LEADING = [
    "s = Squeeze(x) y = Reshape(s, flat)",
    "s = Squeeze(x) a = ArgMax <axis = -1, keepdims = 0> (s) e = Expand(a, count) y = Reshape(e, rows)",
    "s = Squeeze(x) a = Softmax <axis = -1> (s) b = Mul(a, four) y = Reshape(b, flat)",
]
"""Decoders choose a token of each row in this way (PARSeq), in files of torch's older exporter."""


def _rows(nodes: str) -> onnx.ModelProto:
    return parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> graph (float[n, 1, 4] x) => (y) '
        f"<float four = {{4}}, int64[1] flat = {{-1}}, int64[2] copied = {{0, -1}}>"
        f"{{ count = Shape <end = 1> (x) rows = Shape <end = 2> (x) {nodes} }}"
    )


@pytest.mark.parametrize("nodes", LEADING)
def test_a_batch_of_one_row_leads_what_is_reshaped(nodes: str) -> None:
    model = _rows(nodes)
    module = onnx2nn.load(model)
    assert not module.meta["onnx2nn"]["guards"]
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for rows in (1, 2, 3):
        x = np.random.default_rng(rows).standard_normal((rows, 1, 4)).astype(np.float32)
        found, expected = module(torch.from_numpy(x)).detach().numpy(), session.run(None, {"x": x})[0]
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize(
    "nodes",
    [
        "s = Squeeze(x) y = Reshape(s, copied)",
        "s = Squeeze(x) a = ArgMax <axis = -1, keepdims = 0> (s) y = Expand(a, count)",
        "s = Squeeze(x) a = ArgMax <axis = 0, keepdims = 0> (s) y = Reshape(a, flat)",
        "s = Squeeze(x) t = Concat <axis = -1> (s, s) y = Reshape(t, flat)",
    ],
)
def test_a_batch_of_one_row_is_refused_where_it_would_matter(nodes: str) -> None:
    module = onnx2nn.load(_rows(nodes))
    with pytest.raises(ValueError, match="Squeeze"):
        module(torch.ones(1, 1, 4))
