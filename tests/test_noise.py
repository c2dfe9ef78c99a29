"""Verification tells rounding from wrong: an ill-conditioned model is right within its noise, its errors are found."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import helper, numpy_helper

import onnx2nn
from onnx2nn.commands.main import main
from onnx2nn.errors import VerificationError
from onnx2nn.output import export
from onnx2nn.verification import noise
from onnx2nn.verification.probe import Probe
from onnx2nn.verification.value_comparison import differences

FLOAT = onnx.TensorProto.FLOAT

CANCELLING = """
<ir_version: 8, opset_import: ["" : 17]>
graph (float[8, 4, 250] x) => (float[8, 4] y)
<int64[1] axis = {2}, float[4] bias = {0.5, 0.25, 0.125, 1}, float[4, 4] weight = {1,2,3,4, 5,6,7,8, 1,1,1,1, 2,3,4,5}>
{ ["sum"] s = ReduceSum<keepdims = 0>(x, axis) ["linear"] y = Gemm(s, weight, bias) }
"""
"""The sum cancels from 1e4 to 1e-2 with the inputs of `_cancelling`."""


def _model(
    nodes: list[onnx.NodeProto], inputs: dict[str, list[int]], outputs: list[str], weights: dict[str, Any]
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in inputs.items()],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=opsets, ir_version=8))


def _deep(blocks: int = 50, width: int = 32) -> onnx.ModelProto:
    """200 layers and their sums with random weights, each of which enlarges what is put in: chaos."""
    rng = np.random.default_rng(0)
    nodes, weights, x = [], {}, "x"
    for i in range(blocks):
        weights[f"w{i}"] = (3 / np.sqrt(width) * rng.standard_normal((width, width))).astype(np.float32)
        weights[f"b{i}"] = rng.standard_normal(width).astype(np.float32)
        weights[f"s{i}"] = rng.uniform(1.25, 3.75, width).astype(np.float32)
        weights[f"t{i}"] = rng.standard_normal(width).astype(np.float32)
        nodes += [
            helper.make_node("Gemm", [x, f"w{i}", f"b{i}"], [f"g{i}"], name=f"linear{i}"),
            helper.make_node("LayerNormalization", [f"g{i}", f"s{i}", f"t{i}"], [f"n{i}"], name=f"norm{i}"),
            helper.make_node("Sin", [f"n{i}"], [f"a{i}"], name=f"sin{i}"),
            helper.make_node("Softmax", [f"n{i}"], [f"p{i}"], name=f"softmax{i}"),
            helper.make_node("Add", [f"a{i}", f"p{i}"], [f"y{i}"], name=f"add{i}"),
        ]
        x = f"y{i}"
    return _model(nodes, {"x": [4, width]}, [x], weights)


@pytest.fixture(scope="module")
def deep() -> onnx.ModelProto:
    return _deep()


def _cancelling() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    half = rng.uniform(0.5e4, 1.5e4, (8, 4, 125)).astype(np.float32)
    x = np.concatenate([half, -half], axis=-1)
    x[..., 0] += np.float32(0.01)
    return {"x": x[..., rng.permutation(250)]}


def _boxes(count: int, kept: int) -> onnx.ModelProto:
    """A detector's end: the boxes of the highest scores, of which many are equal up to rounding."""
    rng = np.random.default_rng(1)
    weights = {
        "w": (1e-5 * rng.standard_normal((64, count))).astype(np.float32),
        "b": np.full(count, 3, np.float32),
        "v": rng.standard_normal((64, 4 * count)).astype(np.float32),
        "k": np.array([kept]),
        "flat": np.array([count]),
        "rows": np.array([count, 4]),
    }
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["logits"], name="logits"),
        helper.make_node("Sigmoid", ["logits"], ["scores"], name="scores"),
        helper.make_node("Reshape", ["scores", "flat"], ["keys"], name="keys"),
        helper.make_node("TopK", ["keys", "k"], ["highest", "index"], name="topk"),
        helper.make_node("MatMul", ["x", "v"], ["positions"], name="positions"),
        helper.make_node("Reshape", ["positions", "rows"], ["boxes"], name="boxes"),
        helper.make_node("Gather", ["boxes", "index"], ["chosen"], axis=0, name="chosen"),
    ]
    return _model(nodes, {"x": [1, 64]}, ["chosen", "index"], weights)


def _quantized_lstm(steps: int, batch: int = 1, width: int = 64, scale: float = 0.02) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    weights = {
        "W": rng.integers(-64, 64, (1, width, 4 * width)).astype(np.int8),
        "R": rng.integers(-64, 64, (1, width, 4 * width)).astype(np.int8),
        "B": (0.1 * rng.standard_normal((1, 8 * width))).astype(np.float32),
        "scale": np.full(1, scale, np.float32),
        "zero": np.zeros(1, np.int8),
    }
    inputs = ["x", "W", "R", "B", "", "", "", "", "scale", "zero", "scale", "zero"]
    node = helper.make_node(
        "DynamicQuantizeLSTM", inputs, ["y", "h", "c"], domain="com.microsoft", hidden_size=width, name="lstm"
    )
    return _model([node], {"x": [steps, batch, width]}, ["y", "h", "c"], weights)


def _changed(model: onnx.ModelProto, value: str, change: Callable[[torch.fx.Node, torch.fx.GraphModule], None]) -> Any:
    """The imported module after `change` of the node that computes `value`."""
    module = onnx2nn.load(model)
    (node,) = [node for node in module.graph.nodes if value in node.meta.get("onnx_outputs", ())]
    change(node, module)
    module.recompile()
    return module


def _without_bias(node: torch.fx.Node, module: torch.fx.GraphModule) -> None:
    bias = module.get_submodule(str(node.target)).bias
    assert isinstance(bias, torch.nn.Parameter)
    bias.data.zero_()


def _other_epsilon(node: torch.fx.Node, module: torch.fx.GraphModule) -> None:
    layer = module.get_submodule(str(node.target))
    assert isinstance(layer, torch.nn.LayerNorm)
    layer.eps = 1e-3


def _other_axis(node: torch.fx.Node, module: torch.fx.GraphModule) -> None:
    assert node.target is torch.softmax
    node.args = (node.args[0], 0)


def test_a_deep_network_of_random_weights_is_right_within_its_noise(deep: onnx.ModelProto) -> None:
    nodes = onnx2nn.verify_nodes(deep)
    (output,) = nodes.outputs
    assert not output.agrees and output.max_difference > 0.1 * output.scale, "it tests nothing if rounding stays small"
    assert nodes.ok and nodes.first is None and output.within_noise
    assert output.noise is not None and output.max_difference <= noise.FACTOR * output.noise
    assert f"within the model's own noise: values moved by {output.noise_ulps} ULP" in nodes.verdict
    result = onnx2nn.verify(deep)
    assert result.ok and result.verdict.startswith("OK within the model's own noise: 'y49' differs by")


@pytest.mark.parametrize(
    ("value", "node", "change", "tolerance"),
    [
        ("p20", "softmax20", _other_axis, None),
        ("n20", "norm20", _other_epsilon, None),
        ("g20", "linear20", _without_bias, None),
        ("g20", "linear20", _without_bias, 1e9),
    ],
)
def test_an_error_in_a_deep_network_is_found(
    deep: onnx.ModelProto,
    value: str,
    node: str,
    change: Callable[[torch.fx.Node, torch.fx.GraphModule], None],
    tolerance: float | None,
) -> None:
    """Also where the caller's threshold lets every node pass."""
    module = _changed(deep, value, change)
    nodes = onnx2nn.verify_nodes(deep, module, tolerance=tolerance)
    assert not nodes.ok and nodes.first is not None and nodes.first.node == node
    assert nodes.first.introduced.noise is not None
    assert nodes.first.introduced.max_abs > 10 * nodes.first.introduced.noise
    result = onnx2nn.verify(deep, module)
    assert not result.ok and any(f"{node!r} introduces" in note for note in result.notes)


def test_a_sum_that_cancels_is_right_within_its_noise() -> None:
    model = onnx.parser.parse_model(CANCELLING)
    nodes = onnx2nn.verify_nodes(model, inputs=_cancelling())
    total, linear = (node.introduced for node in nodes.nodes)
    assert total.noise is not None and total.max_rel > 1e-2, "it tests nothing if both add in the same order"
    assert total.ok and linear.ok and linear.noise is None and nodes.ok
    assert "1 of them within their own noise" in nodes.verdict
    assert onnx2nn.verify(model, inputs=_cancelling()).ok


def test_a_missing_bias_behind_a_sum_that_cancels_is_found() -> None:
    model = onnx.parser.parse_model(CANCELLING)
    nodes = onnx2nn.verify_nodes(model, _changed(model, "y", _without_bias), inputs=_cancelling())
    assert nodes.first is not None and nodes.first.node == "linear"
    assert not onnx2nn.verify(model, _changed(model, "y", _without_bias), inputs=_cancelling()).ok


def test_a_wrong_sum_that_cancels_is_found() -> None:
    def shortened(node: torch.fx.Node, module: torch.fx.GraphModule) -> None:
        node.op, node.target, node.kwargs = "call_function", _sum_but_for_one, {}
        node.args = node.args[:1]

    model = onnx.parser.parse_model(CANCELLING)
    nodes = onnx2nn.verify_nodes(model, _changed(model, "s", shortened), inputs=_cancelling())
    assert nodes.first is not None and nodes.first.node == "sum"


def _sum_but_for_one(x: torch.Tensor) -> torch.Tensor:
    return x[..., 1:].sum(-1)


@pytest.mark.parametrize("seed", range(3))
def test_boxes_that_change_places_are_noise(seed: int) -> None:
    model = _boxes(2_000, 200)
    nodes = onnx2nn.verify_nodes(model, seed=seed)
    assert not all(output.agrees for output in nodes.outputs), "it tests nothing if no boxes change places"
    assert nodes.ok and all(output.within_noise for output in nodes.outputs if not output.agrees)
    assert onnx2nn.verify(model, seed=seed).ok


def test_boxes_of_the_lowest_scores_are_found() -> None:
    model = _boxes(2_000, 200)
    module = onnx2nn.load(model)
    (sort,) = [node for node in module.graph.nodes if node.target == "sort"]
    sort.kwargs = {**sort.kwargs, "descending": False}
    module.recompile()
    nodes = onnx2nn.verify_nodes(model, module)
    assert nodes.first is not None and nodes.first.node == "topk"
    assert not onnx2nn.verify(model, module).ok


def test_equal_keys_keep_their_order() -> None:
    """A wrong order of equal keys is no noise: equal values are moved equally."""
    keys = np.repeat(np.random.default_rng(0).standard_normal(50), 4).astype(np.float32)
    for ulps in noise.AMPLITUDES:
        for trial in range(noise.TRIALS):
            changed = noise.moved(keys, ulps, trial)
            assert np.array_equal(np.argsort(-changed, kind="stable"), np.argsort(-keys, kind="stable"))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_moves_are_units_in_the_last_place(dtype: type) -> None:
    x = np.array([1.0, -2.0, 3.5, 0.0, np.inf, -np.inf, np.nan, np.finfo(dtype).max], dtype)
    up, down = noise.moved(x, 1, 0), noise.moved(x, 1, 1)
    assert np.array_equal(up[:3], np.nextafter(x[:3], np.copysign(dtype(np.inf), x[:3])))
    assert np.array_equal(down[:3], np.nextafter(x[:3], dtype(0)))
    assert np.array_equal(up[3:], x[3:], equal_nan=True) and np.array_equal(down[3:], x[3:], equal_nan=True)
    many = np.random.default_rng(0).standard_normal(1000).astype(dtype)
    drawn = [noise.moved(many, 4, trial) for trial in (2, 3)]
    assert not np.array_equal(*drawn)
    for changed in drawn:
        assert 0.3 < np.mean(np.abs(changed) > np.abs(many)) < 0.7 and np.all(changed != many)


def test_noise_of_one_element_excuses_no_other() -> None:
    change, difference = np.full(1000, 1e-6), np.full(1000, 1e-6)
    change[0] = difference[1] = 1.0
    assert noise.explains(change, difference, 1e-6), "noise may change places"
    assert not noise.quiet_agree(change, difference, 1e-6), "but not to an element that is not noisy"
    difference[:10] = 1.0
    assert not noise.explains(change, difference, 1e-6)


def test_a_quantised_lstm_is_right_until_its_roundings_differ() -> None:
    """ONNX Runtime quantises where the row does: the first steps are equal; later ones are within the noise."""
    noisy = []
    for batch, scale in ((1, 0.01), (3, 0.01)):
        model = _quantized_lstm(300, batch, scale=scale)
        nodes = onnx2nn.verify_nodes(model)
        assert nodes.ok and nodes.nodes[0].introduced.ok
        noisy += [output for output in nodes.outputs if not output.agrees]
        (first, *_) = onnx2nn.verify_nodes(_quantized_lstm(3, batch, scale=scale)).nodes
        assert first.introduced.max_abs < 1e-6
    assert noisy, "it tests nothing if no rounding differs"


def test_a_quantised_lstm_is_compared_with_one_thread() -> None:
    """With several, ONNX Runtime quantises each thread's sequences on their own."""
    model = _quantized_lstm(20, 4, scale=0.02)
    assert Probe(model, {"x": np.zeros((20, 4, 64), np.float32)}).threads == 1
    assert Probe(_boxes(10, 2), {"x": np.zeros((1, 64), np.float32)}).threads == 0
    result = onnx2nn.verify(model)
    assert result.ok and all(output.agrees for output in result.outputs)


def test_a_quantised_lstm_without_its_bias_is_found() -> None:
    model, other = _quantized_lstm(200), _quantized_lstm(200)
    (bias,) = [tensor for tensor in other.graph.initializer if tensor.name == "B"]
    bias.CopyFrom(numpy_helper.from_array(np.zeros_like(numpy_helper.to_array(bias)), "B"))
    nodes = onnx2nn.verify_nodes(model, onnx2nn.load(other))
    assert nodes.first is not None and nodes.first.node == "lstm"
    assert not onnx2nn.verify(model, onnx2nn.load(other)).ok


def _spectrogram(length: int = 400) -> onnx.ModelProto:
    """The logarithm of a Fourier transform of a length that is no power of two, as speech models begin with."""
    window = np.hanning(length).astype(np.float32)
    nodes = [
        helper.make_node("STFT", ["x", "step", "window"], ["spectrum"], name="stft"),
        helper.make_node("ReduceSumSquare", ["spectrum"], ["power"], axes=[3], keepdims=0),
        helper.make_node("Add", ["power", "least"], ["some"]),
        helper.make_node("Log", ["some"], ["y"]),
    ]
    weights = {"step": np.int64(160), "window": window, "least": np.float32(1e-10)}
    return _model(nodes, {"x": [1, 8000, 1]}, ["y"], weights)


def test_a_transform_that_the_oracle_rounds_coarsely_is_right_within_its_noise() -> None:
    """ONNX Runtime's transform is off by 1e-4 where its own in float64 is not: moves of the inputs do not show that."""
    inputs = {"x": (0.1 * np.random.default_rng(0).standard_normal((1, 8000, 1))).astype(np.float32)}
    nodes = onnx2nn.verify_nodes(_spectrogram(), inputs=inputs)
    (stft,) = [node for node in nodes.nodes if node.node == "stft"]
    assert nodes.ok and stft.introduced.noise is not None and stft.introduced.noise > 2e-5
    assert not nodes.outputs[0].agrees, "it tests nothing if the outputs agree"
    assert onnx2nn.verify(_spectrogram(), inputs=inputs).ok


def _quantised_deconvolution(bias: float) -> onnx.ModelProto:
    """ONNX Runtime stores the float weights as integers, as if the file had quantised them."""
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "step", "zero"], ["x"]),
        helper.make_node("ConvTranspose", ["x", "weight", "bias"], ["wide"], strides=[2, 2]),
        helper.make_node("QuantizeLinear", ["wide", "step", "zero"], ["r"]),
        helper.make_node("DequantizeLinear", ["r", "step", "zero"], ["y"]),
    ]
    weight = np.random.default_rng(0).standard_normal((3, 4, 2, 2)).astype(np.float32)
    weights = {"weight": weight, "bias": np.full(4, bias, np.float32), "step": np.float32(0.03), "zero": np.uint8(120)}
    model = _model(nodes, {"q": [1, 3, 5, 5]}, ["y"], weights)
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.UINT8
    return model


@pytest.mark.pinned("onnxruntime")  # which of its versions have the optimisation is not known
def test_what_the_oracles_optimisations_change_is_told() -> None:
    model = _quantised_deconvolution(0)
    result = onnx2nn.verify(model)
    assert result.ok, result.verdict
    assert any("ONNX Runtime's own optimisations change output 'y'" in note for note in result.notes)


def test_what_the_oracles_optimisations_change_excuses_nothing_else() -> None:
    module = onnx2nn.load(_quantised_deconvolution(0.06))
    assert not onnx2nn.verify(_quantised_deconvolution(0), module).ok


HALVES = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[n, 4, 3, 3] x) => (float[n, 4, 3, 3] y) <float16[4, 1, 1] scale, float16[4, 1, 1] bias, float16[1] ones,
int64[3] groups = {0, 2, -1}, float16[2] one, float16[2] none> {
    h = Cast <to = 10> (x) ["square"] p = Mul (h, h) ["root"] r = Sqrt (p) w = Reshape (r, groups)
    n = InstanceNormalization (w, one, none) s = Shape (r) b = Reshape (n, s) m = Mul (b, scale)
    ["shift"] a = Add (m, bias) y = Cast <to = 1> (a) }
"""


def _halves(bias: float = -1.5) -> onnx.ModelProto:
    """A group normalisation behind a root of squares, in float16; with `bias` results are near 0."""
    model = onnx.parser.parse_model(HALVES)
    weights = {"scale": np.full((4, 1, 1), 3), "bias": np.full((4, 1, 1), bias), "ones": np.ones(1)}
    weights |= {"one": np.ones(2), "none": np.zeros(2)}
    stored = [numpy_helper.from_array(array.astype(np.float16), name) for name, array in weights.items()]
    del model.graph.initializer[:]
    model.graph.initializer.extend([numpy_helper.from_array(np.array([0, 2, -1]), "groups"), *stored])
    return model


def test_half_precision_is_rounded_as_the_file_says() -> None:
    """ONNX Runtime keeps float32 between two nodes: its root of a square beyond 65504 is a number."""
    x = np.random.default_rng(0).standard_normal((2, 4, 3, 3)).astype(np.float32)
    nodes = onnx2nn.verify_nodes(_halves(), inputs={"x": x})
    assert nodes.ok, nodes.first
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float16[n] x) => (float16[n] y) { s = Mul (x, x) y = Sqrt (s) }'
    )
    large = {"x": np.array([300, 2, 0.1], np.float16)}
    result = onnx2nn.verify(model, inputs=large)
    assert result.ok, result.verdict
    (note,) = result.notes
    assert "keeps float32 between nodes whose results are float16, which changes output 'y' by infinity or NaN" in note
    assert onnx2nn.verify_nodes(model, inputs=large).ok


def test_an_error_in_half_precision_is_found() -> None:
    """It is 128 ULP of the result; up to 64 are not told from rounding, in any type."""
    x = np.random.default_rng(0).standard_normal((2, 4, 3, 3)).astype(np.float32)
    module = onnx2nn.load(_halves(-1.0))
    nodes = onnx2nn.verify_nodes(_halves(), module, inputs={"x": x})
    assert nodes.first is not None and nodes.first.node == "shift"
    assert not onnx2nn.verify(_halves(), module, inputs={"x": x}).ok


@pytest.mark.parametrize("change", [1e-3, 1e-2])
def test_another_window_of_such_a_transform_is_found(change: float) -> None:
    model, other = _spectrogram(), _spectrogram()
    (window,) = [tensor for tensor in other.graph.initializer if tensor.name == "window"]
    window.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(window) * np.float32(1 + change), "window"))
    inputs = {"x": (0.1 * np.random.default_rng(0).standard_normal((1, 8000, 1))).astype(np.float32)}
    nodes = onnx2nn.verify_nodes(model, onnx2nn.load(other), inputs=inputs)
    assert nodes.first is not None and nodes.first.node == "stft"
    assert not onnx2nn.verify(model, onnx2nn.load(other), inputs=inputs).ok


def _enlarged_differences(opset: int, resize: str) -> onnx.ModelProto:
    """A resized image whose sine at a high frequency shows what coordinates of 128 pixels round."""
    return onnx.parser.parse_model(f"""
    <ir_version: 8, opset_import: ["" : {opset}]>
    graph (float[1, 3, 128, 112] x) => (float y)
    <int64[4] sizes = {{1, 3, 96, 96}}, int64[2] last = {{96, 96}}, float[4] scales = {{1, 1, 0.75, 0.857143}},
    float[8] roi = {{0, 0, 0, 0, 1, 1, 1, 1}}, float[0] empty = {{}}, float hundred = {{100}}>
    {{ ["resize"] r = {resize} many = Mul(r, hundred) y = Sin(many) }}
    """)


RESIZES = {
    "sizes": (17, 'Resize<mode = "linear">(x, , , sizes)'),
    "last axes": (18, 'Resize<mode = "linear", axes = [2, 3]>(x, , , last)'),
    "cubic": (13, 'Resize<mode = "cubic", coordinate_transformation_mode = "pytorch_half_pixel">(x, , , sizes)'),
    "scales": (17, 'Resize<mode = "linear">(x, , scales)'),
    "eleven": (11, 'Resize<mode = "linear">(x, roi, empty, sizes)'),
}


@pytest.mark.parametrize("form", RESIZES)
def test_coordinates_of_a_large_image_are_right_within_their_noise(form: str) -> None:
    """They are computed in float32, here from 0 to 127, by ONNX Runtime and by torch in another order."""
    model = _enlarged_differences(*RESIZES[form])
    inputs = {"x": np.random.default_rng(0).standard_normal((1, 3, 128, 112)).astype(np.float32)}
    nodes = onnx2nn.verify_nodes(model, inputs=inputs)
    assert nodes.ok, nodes.verdict
    assert not nodes.outputs[0].agrees, "it tests nothing if the outputs agree"
    assert nodes.nodes[0].node == "resize" and nodes.nodes[0].introduced.noise is not None


@pytest.mark.parametrize("scale", [0.75003, 0.751])
def test_other_coordinates_of_a_large_image_are_found(scale: float) -> None:
    """By 1e-3 and 1e-2 of a pixel at the farthest, where rounding moves them by 1e-5."""
    model = _enlarged_differences(17, 'Resize<mode = "linear">(x, , , sizes)')
    other = _enlarged_differences(17, 'Resize<mode = "linear">(x, , scales)')
    (scales,) = [tensor for tensor in other.graph.initializer if tensor.name == "scales"]
    scales.CopyFrom(numpy_helper.from_array(np.array([1, 1, scale, 96 / 112], np.float32), "scales"))
    inputs = {"x": np.random.default_rng(0).standard_normal((1, 3, 128, 112)).astype(np.float32)}
    nodes = onnx2nn.verify_nodes(model, onnx2nn.load(other), inputs=inputs)
    assert nodes.first is not None and nodes.first.node == "resize"


def test_an_output_that_no_node_computes_is_named() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        graph (float[3] x) => (float[3] y, float[3] z) <float[3] one = {1, 1, 1}, float[3] two = {2, 2, 2}>
        { ["double"] y = Add(x, x) ["constant"] z = Add(one, two) }"""
    )
    module = onnx2nn.load(model)
    assert onnx2nn.verify_nodes(model, module).ok
    for buffer in [*module.buffers(), *module.parameters()]:
        buffer.data.add_(1)
    nodes = onnx2nn.verify_nodes(model, module)
    assert not nodes.ok and nodes.first is not None and nodes.first.node == "constant"


def test_another_output_is_not_excused_by_noise(deep: onnx.ModelProto) -> None:
    module = onnx2nn.load(deep)
    nodes = {name: node for node in module.graph.nodes for name in node.meta.get("onnx_outputs", ())}
    (output,) = [node for node in module.graph.nodes if node.op == "output"]
    output.args = (nodes["y48"],)
    module.recompile()
    result = onnx2nn.verify_nodes(deep, module)
    assert not result.ok and result.first is not None and result.first.node == "add49"
    assert "returns another value" in result.first.introduced.reason


def test_a_node_behind_all_of_the_file_is_not_forgotten(deep: onnx.ModelProto) -> None:
    def failing(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no such kernel")

    module = onnx2nn.load(deep)
    (output,) = [node for node in module.graph.nodes if node.op == "output"]
    with module.graph.inserting_before(output):
        output.args = (module.graph.call_function(failing, output.args),)
    module.recompile()
    result = onnx2nn.verify_nodes(deep, module)
    assert not result.ok and result.first is not None and "no such kernel" in result.first.introduced.reason


def test_more_than_noise_names_the_nearest_node(deep: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never a mismatch without a node to look at, even where all measurements contradict each other."""
    monkeypatch.setattr(noise.Changes, "explain", lambda *_: False)
    result = onnx2nn.verify_nodes(deep)
    assert not result.ok and result.first is not None
    assert "the node named is the nearest to its limit" in result.notes[-1]


def test_random_numbers_of_one_run_are_compared() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        graph (float[64] x) => (float[64] y) { ["noise"] n = RandomNormalLike(x) ["sum"] y = Add(x, n) }"""
    )
    assert onnx2nn.verify_nodes(model).ok


def test_noise_of_a_scalar_is_measured() -> None:
    """ONNX Runtime's Sigmoid is off by 2e-4 of the result there, which float64 shows."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        graph (float x) => (float y) { s = Sigmoid(x) y = Mul(x, s) }"""
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        result = onnx2nn.verify(model, inputs={"x": np.array(-8.7, np.float32)})
    assert result.ok and result.verdict.startswith("OK within the model's own noise")
    wrong = onnx2nn.verify(
        model, lambda x: torch.nn.functional.silu(x) * 1.001, inputs={"x": np.array(-8.7, np.float32)}
    )
    assert not wrong.ok


DRAWING = """<ir_version: 8, opset_import: ["" : 17]>
    graph (float[64] x) => (float[64] y, float[64] z) <float half = {0.5}, bool on = {1}>
    { n = RandomNormalLike(x) ["sum"] y = Add(x, n) z = Dropout (y, half, on) }"""


def test_random_numbers_of_one_run_decide_for_outputs_too() -> None:
    result = onnx2nn.verify(onnx.parser.parse_model(DRAWING))
    assert result.ok and result.notes == ["random nodes were not compared: n, z"]


@pytest.mark.parametrize("wrong", ["n", "y", "z"])
def test_what_random_numbers_do_not_explain_is_found(wrong: str) -> None:
    model = onnx.parser.parse_model(DRAWING)
    module = onnx2nn.load(model)
    (node,) = (node for node in module.graph.nodes if wrong in node.meta.get("onnx_outputs", ()))
    with module.graph.inserting_after(node):
        other = module.graph.call_method("double" if wrong == "n" else "tanh", (node,))
    other.meta.update(node.meta)
    node.replace_all_uses_with(other, delete_user_cb=lambda user: user is not other)
    node.meta.pop("onnx_outputs")
    module.recompile()
    result = onnx2nn.verify(model, module)
    assert result.ok is (wrong == "z"), "what Dropout draws is not compared, its shape and dtype are"


def test_a_function_is_not_excused_by_noise(deep: onnx.ModelProto) -> None:
    """Without nodes nothing tells an error from noise."""
    module = onnx2nn.load(deep)
    result = onnx2nn.verify(deep, lambda x: module(x))
    assert not result.ok and "the model's own noise was not measured" in result.notes[0]


def test_differences_of_infinities_and_text() -> None:
    ours, theirs = np.array([np.nan, np.inf, 1.0, np.nan]), np.array([np.nan, np.inf, 2.0, 0.0])
    found = differences(["y", "t"], [ours, np.array(["a", "b"])], [theirs, np.array(["a", "c"])])
    assert found["y"] is not None and found["y"].tolist() == [0, 0, 1, np.inf]
    assert found["t"] is not None and found["t"].tolist() == [0, 1]
    assert differences(["y"], [ours[:2]], [theirs]) == {"y": None}


def test_commands_print_the_noise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(onnx.parser.parse_model(CANCELLING), tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", **_cancelling())  # type: ignore[arg-type]  # numpy has a flag among them
    command = ["verify", str(tmp_path / "m.onnx"), "--inputs", str(tmp_path / "x.npz")]
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "OK within the model's own noise" in shown
    assert [line for line in shown.splitlines() if line.startswith("ReduceSum") and line.endswith("within its noise")]
    assert main([*command, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["nodes"][0]["introduced"]["noise"] > 0 and told["outputs"][0]["within_noise"] is True


def test_an_exported_file_is_right_within_its_noise(tmp_path: Path) -> None:
    module = onnx2nn.load(onnx.parser.parse_model(CANCELLING))
    line = onnx2nn.export_onnx(module, tmp_path / "again.onnx", example_inputs=[*_cancelling().values()])
    assert "within the model's own noise" in line


@pytest.mark.parametrize("seed", range(3))
def test_an_error_of_an_exported_file_is_found(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lost bias, a moved weight or turned rows: in torch, where there is no noise, they are differences."""
    module, clean = onnx2nn.load(onnx.parser.parse_model(CANCELLING)), export.clean

    def spoilt(model: Any, calls: Any) -> None:
        clean(model, calls)
        bias, weight = model.graph.initializers["linear.bias"], model.graph.initializers["linear.weight"]
        if seed == 0:
            bias.const_value = ir.tensor(np.zeros(4, np.float32), name="linear.bias")
        elif seed == 1:
            weight.const_value = ir.tensor(weight.const_value.numpy() * np.float32(1.01), name="linear.weight")
        else:
            weight.const_value = ir.tensor(weight.const_value.numpy()[::-1].copy(), name="linear.weight")

    monkeypatch.setattr(export, "clean", spoilt)
    with pytest.raises(VerificationError, match="differs from the module"):
        onnx2nn.export_onnx(module, tmp_path / "again.onnx", example_inputs=[*_cancelling().values()])
