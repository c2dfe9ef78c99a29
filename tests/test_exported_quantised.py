"""A quantised file that is imported and written again is quantised as it was, so that runtimes compute on integers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx_ir import DataType
from onnxruntime import quantization
from realmodels import EXPORTERS
from torch import nn

import onnx2nn
from onnx2nn.output.quantised_weights import _integers
from tests import installed, old_oracles
from tests.cases import Case
from tests.cases.contrib import block_weights, packed_weights, quantized
from tests.onnxnode import model_of, revisions

QUANTISED = {
    "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "ConvInteger", "MatMulInteger", "QLinearConv",
    "QLinearMatMul", "QLinearAdd", "QGemm",
}  # fmt: skip


class Network(nn.Module):
    """Convolutions, a linear layer of images, one of vectors, and an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2, groups=4))
        self.channels = nn.Linear(8, 12)
        self.head = nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns `(N, 5)` for images `(N, 3, H, W)`."""
        y = self.channels(self.features(x).permute(0, 2, 3, 1)).relu()
        return self.head(y.mean((1, 2)))


class _Images(quantization.CalibrationDataReader):
    def __init__(self) -> None:
        self._left = iter(np.random.default_rng(0).normal(size=(4, 1, 3, 9, 9)).astype(np.float32))

    def get_next(self) -> Any:
        image = next(self._left, None)
        return None if image is None else {"x": image}


KINDS: dict[str, dict[str, Any]] = {
    "tensors": {"quant_format": quantization.QuantFormat.QDQ, "activation_type": quantization.QuantType.QUInt8},
    "channels": {
        "quant_format": quantization.QuantFormat.QDQ,
        "activation_type": quantization.QuantType.QInt8,
        "weight_type": quantization.QuantType.QInt8,
        "per_channel": True,
    },
    "operators": {"quant_format": quantization.QuantFormat.QOperator, "op_types_to_quantize": ["Conv", "MatMul"]},
    "all operators": {"quant_format": quantization.QuantFormat.QOperator},
    "dynamic": {},
}


def _quantised(folder: Path, exporter: str, kind: str) -> Path:
    torch.manual_seed(0)
    source, path = folder / "float.onnx", folder / "quantised.onnx"
    inputs = (torch.randn(1, 3, 9, 9),)
    options: dict[str, Any] = {"dynamo": exporter == "dynamo", "input_names": ["x"]}
    torch.onnx.export(Network().eval(), inputs, str(source), **options)
    if kind == "dynamic":
        quantization.quantize_dynamic(str(source), str(path), per_channel=True)
    else:
        quantization.quantize_static(str(source), str(path), _Images(), **KINDS[kind])
    return path


def _counts(path: Path) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(path).graph.node if node.op_type in QUANTISED)


def _run_counts(path: Path, folder: Path) -> Counter[str]:
    """Returns how often ONNX Runtime's own form of the file has each operator on integers."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimised.onnx")
    options.log_severity_level = 4
    onnxruntime.InferenceSession(str(path), options)
    found = Counter(node.op_type for node in onnx.load(folder / "optimised.onnx").graph.node)
    return Counter({name: count for name, count in found.items() if name.startswith("QLinear") or "Integer" in name})


@pytest.mark.filterwarnings("ignore")  # torch's exporters and onnxruntime's quantiser warn of most models
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(
            kind,
            marks=pytest.mark.skipif(
                kind == "dynamic" and installed.version("onnxruntime") < (1, 32),
                reason="before 1.32, ONNX Runtime quantises no file of the newer exporter, before 1.24 runs no result",
            ),
        )
        for kind in KINDS
    ],
)
@pytest.mark.parametrize("exporter", EXPORTERS)
def test_a_quantised_file_stays_one(exporter: str, kind: str, tmp_path: Path) -> None:
    path, again = _quantised(tmp_path, exporter, kind), tmp_path / "again.onnx"
    module = onnx2nn.load(path)
    assert "agrees" in onnx2nn.export_onnx(module, again)
    assert _counts(again) == _counts(path)
    assert _run_counts(again, tmp_path) == _run_counts(path, tmp_path)
    state, expected = onnx2nn.load(again).state_dict(), module.state_dict()
    assert state.keys() == expected.keys()
    for key, tensor in expected.items():
        assert torch.equal(state[key], tensor), key
    assert onnx2nn.verify(again).ok
    assert onnx2nn.verify(again, module).ok
    assert onnx2nn.verify_nodes(again, module).ok


@pytest.mark.filterwarnings("ignore")
def test_a_weight_that_was_trained_is_written_as_it_is(tmp_path: Path) -> None:
    path, again = _quantised(tmp_path, "dynamo", "channels"), tmp_path / "again.onnx"
    module: Any = onnx2nn.load(path)
    with torch.no_grad():
        module.head.weight[0, 0] *= 1.01
    assert "agrees" in onnx2nn.export_onnx(module, again)
    held = {value.name: value.data_type for value in onnx.load(again).graph.initializer}
    assert held["head.weight"] == onnx.TensorProto.FLOAT
    assert held["channels.weight_quantized"] == onnx.TensorProto.INT8
    assert torch.equal(onnx2nn.load(again).state_dict()["head.weight"], module.head.weight)


@pytest.mark.parametrize("kind", ["FLOAT8E4M3FN", "FLOAT8E5M2"])
def test_a_weight_of_float8_with_a_zero_point(kind: str, tmp_path: Path) -> None:
    """ONNX Runtime's quantiser writes the zero point; no integers give the weight, which an export holds as it is."""
    element = getattr(onnx.TensorProto, kind)
    held = [
        onnx.helper.make_tensor("held", element, [3, 2], [0.5, -1.0, 2.0, 0.25, -4.0, 1.5]),
        onnx.helper.make_tensor("scale", onnx.TensorProto.FLOAT, [], [0.125]),
        onnx.helper.make_tensor("zero", element, [], [0.0]),
    ]
    graph = onnx.parser.parse_graph("""g (float[n, 3] x) => (float[n, 2] y) {
        weight = DequantizeLinear (held, scale, zero)
        y = MatMul (x, weight)
    }""")
    graph.initializer.extend(held)
    path, again = tmp_path / "float8.onnx", tmp_path / "again.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 19)], ir_version=9), path)
    module = onnx2nn.load(path)
    assert onnx2nn.verify(path, module).ok
    assert "agrees" in onnx2nn.export_onnx(module, again)
    assert onnx2nn.load(again).state_dict().keys() == module.state_dict().keys()


@pytest.mark.filterwarnings("ignore")
def test_weights_of_a_file_that_was_dequantised_are_floats(tmp_path: Path) -> None:
    path, again = _quantised(tmp_path, "dynamo", "channels"), tmp_path / "again.onnx"
    onnx2nn.export_onnx(onnx2nn.load(path, quantized="dequantize"), again)
    assert not _counts(again)
    assert all(value.data_type != onnx.TensorProto.INT8 for value in onnx.load(again).graph.initializer)


@pytest.mark.parametrize("case", [case for case in packed_weights.CASES if case.operator == "MatMulNBits"], ids=str)
def test_packed_weights_stay_packed(case: Case, tmp_path: Path) -> None:
    version = revisions(case)[-1]
    old_oracles.skip_fatal(case, version)
    model, _ = model_of(case, version)
    again = tmp_path / "again.onnx"
    assert "agrees" in onnx2nn.export_onnx(onnx2nn.load(model), again)
    assert "MatMulNBits" in [node.op_type for node in onnx.load(again).graph.node]


_OF_ONNXRUNTIME = (
    "QGemm", "QLinearAdd", "QLinearAveragePool", "QLinearConcat", "QLinearConv", "QLinearGlobalAveragePool",
    "QLinearLeakyRelu", "QLinearMul", "QLinearSigmoid", "QLinearSoftmax", "QLinearWhere",
)  # fmt: skip


@pytest.mark.parametrize("operator", _OF_ONNXRUNTIME)
def test_operators_of_onnxruntime_stay_as_they_are(operator: str, tmp_path: Path) -> None:
    """Its kernels compute them again, with the results of the original file, to the bit."""
    case = next(case for case in quantized.CASES if case.operator == operator)
    model, feeds = model_of(case, revisions(case)[-1])
    path, again = tmp_path / "original.onnx", tmp_path / "again.onnx"
    onnx.save(model, path)
    assert "agrees" in onnx2nn.export_onnx(onnx2nn.load(model), again, example_inputs=[*feeds.values()])
    assert [(node.domain, node.op_type) for node in onnx.load(again).graph.node] == [("com.microsoft", operator)]
    results = [onnxruntime.InferenceSession(str(file)).run(None, feeds) for file in (path, again)]
    assert all(np.array_equal(*pair) for pair in zip(*results, strict=True))


def test_operands_that_are_broadcast_at_any_sizes() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]> '
        "g (uint8[n,4,m] x, uint8[4,1] c) => (uint8[n,4,m] y, int64[3] shape) <float s = {0.5}, uint8 z = {3}> "
        "{ y = com.microsoft.QLinearAdd (x, s, z, c, s, z, s, z) shape = Shape (y) }"
    )
    feeds = {"x": np.arange(24, dtype=np.uint8).reshape(2, 4, 3), "c": np.uint8([[1], [5], [9], [200]])}
    module = onnx2nn.load(model)
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    for ours, theirs in zip(module(*map(torch.from_numpy, feeds.values())), expected, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs)
    assert not module.meta["onnx2nn"]["guards"]


@pytest.mark.parametrize(
    "call",
    [
        "QLinearAdd(x, s, z, x, t, z, t, z)", "QLinearMul(x, t, w, x, t, z, t, z)", "QLinearSigmoid(x, t, z, s, z)",
        "QLinearLeakyRelu(x, s, w, t, z)", "QLinearGlobalAveragePool(x, t, w, t, z)",
        "QLinearAveragePool <kernel_shape = [2, 2]> (x, t, z, s, z)", "QLinearConcat <axis = 1> (t, z, x, s, z)",
        "QLinearWhere(b, x, s, z, x, t, z, t, z)", 'QLinearSoftmax <opset = 13> (x, t, z, t, w)',
    ],
)  # fmt: skip
def test_several_scales_of_an_operator_that_takes_one_are_refused(call: str) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]> g (uint8[2,3,4,3] x, bool[2,3,4,3] b) => '
        "(uint8[a,e,c,d] y) <float[3] s = {0.5,0.25,0.5}, float t = {0.5}, uint8[3] w = {3,1,2}, uint8 z = {3}> "
        f"{{ y = com.microsoft.{call} }}"
    )
    with pytest.raises(onnx2nn.errors.UnsupportedModelError, match=r"has the shape \[3\]; a single number is possible"):
        onnx2nn.load(model)


def test_an_operator_of_onnxruntime_without_a_zero_point_is_arithmetic(tmp_path: Path) -> None:
    """Its schema allows none, but it refuses a sum without, and ends the process for a sigmoid."""
    (case,) = [case for case in quantized.CASES if case.operator == "QLinearAdd" and case.note == "no zero points"]
    model, feeds = model_of(case, revisions(case)[-1])
    again = tmp_path / "again.onnx"
    assert "agrees" in onnx2nn.export_onnx(onnx2nn.load(model), again, example_inputs=[*feeds.values()])
    assert not any(node.domain for node in onnx.load(again).graph.node)


_UNKNOWN = ("MatMulNBitsMlp", "MatMulNBitsQkv")


@pytest.mark.parametrize("operator", _UNKNOWN)
def test_operators_that_onnxruntime_lacks_are_written_as_arithmetic(operator: str, tmp_path: Path) -> None:
    case = next(case for case in block_weights.CASES if case.operator == operator)
    model, feeds = model_of(case, revisions(case)[-1])
    again = tmp_path / "again.onnx"
    assert "agrees" in onnx2nn.export_onnx(onnx2nn.load(model), again, example_inputs=[*feeds.values()])
    assert not any(node.domain for node in onnx.load(again).graph.node)


@given(st.data())
@settings(max_examples=200)
def test_integers_give_exactly_the_weight(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from([DataType.INT8, DataType.UINT8, DataType.INT32]))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    axis = data.draw(st.none() | st.integers(0, len(shape) - 1))
    info = np.iinfo(kind.numpy())
    size: Any = () if axis is None else (shape[axis],)
    scale = np.exp(rng.uniform(-20, 5, size)).astype(np.float32) * data.draw(st.sampled_from([1, -1]))
    zero = np.zeros(size, int) if kind == DataType.INT32 else rng.integers(info.min, info.max + 1, size)
    along = [-1 if place == axis else 1 for place in range(len(shape))] if axis is not None else []
    most = min(info.max, 1 << 24)  # float32 rounds larger ones, whose weight may be written as floats
    integers = rng.integers(max(info.min, -most), most + 1, shape)
    weight = (integers.astype(np.float32) - zero.astype(np.float32).reshape(along)) * scale.reshape(along)
    found = _integers(weight, kind, scale.tolist(), zero.tolist())
    assert found is not None
    (numbers, scales, zeros), place = found
    along = [-1 if axis == place else 1 for axis in range(len(shape))] if scales.ndim else []
    again = numbers.astype(np.float32) - zeros.astype(np.float32).reshape(along)
    assert np.array_equal(again * scales.reshape(along), weight)
    changed = weight.copy()
    changed.flat[0] = np.nextafter(changed.flat[0] + scale.flat[0] / 2, np.float32(np.inf))
    assert _integers(changed, kind, scale.tolist(), zero.tolist()) is None or kind == DataType.INT32
