"""Files of torch's exporters that simplifiers and quantisers changed: names are the author's where they say so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import numpy_helper, parser
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.transformers import optimizer
from torch import nn

import onnx2nn
from onnx2nn.layers import Conv1D

_RNG = np.random.default_rng(0)


def _model(text: str, producer: str, weights: dict[str, np.ndarray]) -> onnx.ModelProto:
    """Returns a model in whose text `w0`, `w1`, ... stand for the names of the weights."""
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["": 18], producer_name: "{producer}"> {text}')
    names = {f"w{number}": name for number, name in enumerate(weights)}
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    return model


def _normal(*shape: int) -> np.ndarray:
    return _RNG.normal(size=shape).astype(np.float32)


def test_a_product_and_a_sum_that_became_a_gemm_are_a_linear_layer() -> None:
    """onnxsim puts Reshapes around it, and keeps the exporter's number for the transposed matrix."""
    weight, bias = _normal(4, 6), _normal(6)
    text = """g (float[n, 3, 4] x) => (float[n, 3, 6] y) {
        rows = Constant <value = int64[2] {-1, 4}> () flat = Reshape (x, rows) sums = Gemm (flat, w0, w1)
        back = Constant <value = int64[3] {-1, 3, 6}> () y = Reshape (sums, back) }"""
    module = onnx2nn.load(_model(text, "pytorch", {"val_15": weight, "fc.bias": bias}))
    assert isinstance(module.fc, nn.Linear)
    assert set(module.state_dict()) == {"fc.weight", "fc.bias"}
    x = torch.randn(2, 3, 4)
    torch.testing.assert_close(module(x), x @ torch.from_numpy(weight) + torch.from_numpy(bias))


def test_a_folded_normalisation_leaves_a_convolution_with_a_bias() -> None:
    """ONNX Runtime's preparation for quantisation drops the notes of the newer exporter, which say what it folded."""
    text = "g (float[n, 3, 8, 8] x) => (float[n, 4, 8, 8] y) { y = Conv <pads = [1, 1, 1, 1]> (x, w0, w1) }"
    weights = {"block.conv.weight": _normal(4, 3, 3, 3), "block.conv.weight_bias": _normal(4)}
    module = onnx2nn.load(_model(text, "pytorch", weights))
    assert isinstance(module.block.conv, nn.Conv2d)
    assert set(module.state_dict()) == {"block.conv.weight", "block.conv.bias"}
    assert "block.conv" in module.meta["onnx2nn"]["naming"]["unnamed"]


@pytest.mark.parametrize("producer", ["onnx.quantize", "pytorch"])
def test_a_layer_of_quantised_weights_has_the_path_of_these(producer: str) -> None:
    text = """g (float[n, 3, 8, 8] x) => (float[n, 4, 8, 8] y)
        { w = DequantizeLinear (w0, w1) y = Conv <pads = [1, 1, 1, 1]> (x, w) }"""
    integers = _RNG.integers(-128, 128, (4, 3, 3, 3), np.int8)
    weights = {"block.conv.weight_quantized": integers, "block.conv.weight_scale": np.array(0.1, np.float32)}
    module = onnx2nn.load(_model(text, producer, weights))
    assert isinstance(module.block.conv, nn.Conv2d)
    assert set(module.state_dict()) == {"block.conv.weight"}


def test_floats_of_a_quantised_weight_have_its_name_where_the_dequantised_has_it_too() -> None:
    text = """g (float[n, 4] x) => (float[n, 4] y)
        { w2 = DequantizeLinear (w0, w1) y = LayerNormalization (x, w3, w2) }"""
    weights: dict[str, np.ndarray] = {
        "norm.bias_quantized": _RNG.integers(-99, 99, 4, np.int32),
        "scale": np.array(0.1, np.float32),
        "norm.bias": np.zeros(0, np.float32),
        "norm.weight": _normal(4),
    }
    model = _model(text, "pytorch", weights)
    del model.graph.initializer[2]  # the name is the result's
    model.graph.node[0].output[0] = "norm.bias"
    module = onnx2nn.load(model, quantized="dequantize")
    assert isinstance(module.norm, nn.LayerNorm)
    assert set(module.state_dict()) == {"norm.weight", "norm.bias"}


class _Tagger(nn.Module):
    """Tables whose rows a linear layer reads: the quantiser multiplies the integers of the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x


@pytest.mark.parametrize("dynamo", [False, True])
def test_a_dynamically_quantised_file_as_floats_has_the_keys_of_its_author(dynamo: bool, tmp_path: Path) -> None:
    """ONNX Runtime's quantiser drops the notes of the products that it replaces."""
    torch.manual_seed(0)
    model, tokens = _Tagger().eval(), torch.randint(0, 20, (2, 5))
    exported, quantised = tmp_path / "exported.onnx", tmp_path / "quantised.onnx"
    torch.onnx.export(model, (tokens,), exported, dynamo=dynamo, verbose=False)
    quantize_dynamic(exported, quantised)
    module = onnx2nn.load(quantised, quantized="dequantize")
    assert set(module.state_dict()) == set(model.state_dict())
    assert module.meta["onnx2nn"]["dequantized"]["kept"] == []
    assert isinstance(module.table, nn.Embedding) and isinstance(module.layers[1], nn.Linear)
    torch.testing.assert_close(module(tokens), model(tokens), rtol=0.1, atol=0.05)


class _Reader(nn.Module):
    """Recurrent layers, and a linear layer in a module behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(5, 8, 2, batch_first=True), nn.Sequential(nn.Linear(8, 4), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.head(self.lstm(x)[0][:, -1])
        return output


@pytest.mark.parametrize("dynamo", [False, True])
def test_a_quantised_recurrent_layer_is_in_no_module_behind_it(dynamo: bool, tmp_path: Path) -> None:
    """The quantiser drops the notes of torch's newer exporter: the linear layer is the only module with a name."""
    torch.manual_seed(0)
    exported, quantised = tmp_path / "exported.onnx", tmp_path / "quantised.onnx"
    torch.onnx.export(_Reader().eval(), (torch.randn(2, 7, 5),), exported, dynamo=dynamo, verbose=False)
    quantize_dynamic(exported, quantised)
    module = onnx2nn.load(quantised)
    held = [key for key in module.state_dict() if key.startswith("head.")]
    assert held and all(key.removeprefix("head.0.").startswith(("weight", "bias")) for key in held), held
    assert onnx2nn.verify(quantised, module).ok


def test_a_dynamically_quantised_matrix_has_the_name_of_its_layer(tmp_path: Path) -> None:
    """The older exporter numbers transposed matrices, and the quantiser adds to these numbers."""
    torch.manual_seed(0)
    exported, quantised = tmp_path / "exported.onnx", tmp_path / "quantised.onnx"
    torch.onnx.export(_Tagger().eval(), (torch.randint(0, 20, (2, 5)),), exported, dynamo=False)
    quantize_dynamic(exported, quantised)
    module = onnx2nn.load(quantised)
    parts = ("bias", "weight_quantized", "weight_zero_point")
    layers = {f"layers.{number}.{part}" for number in range(2) for part in parts}
    assert layers | {"layers.1.weight_scale"} <= set(module.state_dict())  # that of the first meets a constant
    assert not any("MatMul" in key for key in module.state_dict())
    assert onnx2nn.verify(quantised, module).ok


class _Mixer(nn.Module):
    """Linear layers of both layouts of a square matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mix, self.head = nn.LayerNorm(8), Conv1D(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed: torch.Tensor = self.head(torch.tanh(self.mix(self.norm(x))))
        return mixed


class _Batches(CalibrationDataReader):
    def __init__(self, *batches: np.ndarray):
        self._batches = iter([{"x": batch} for batch in batches])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._batches, None)


def _extract(source: Path, target: Path) -> None:
    onnx.utils.extract_model(source, target, ["x"], ["y"])


def _merge(source: Path, target: Path) -> None:
    model = onnx.load(source)
    text = f"""<ir_version: {model.ir_version}, opset_import: ["": {model.opset_import[0].version}]>
        g (float[n, 3, 8] z) => (float[n, 3, 8] scaled) <float two = {{2}}> {{ scaled = Mul (z, two) }}"""
    onnx.save(onnx.compose.merge_models(model, parser.parse_model(text), [("y", "z")]), target)


def _quantise(source: Path, target: Path, **options: bool) -> None:
    quantize_static(source, target, _Batches(_normal(4, 3, 8)), extra_options=options)


def _round_weights(source: Path, target: Path) -> None:
    _quantise(source, target, AddQDQPairToWeight=True)


@pytest.mark.parametrize("change", [_extract, _merge, _quantise, _round_weights])
@pytest.mark.parametrize("dynamo", [False, True])
def test_a_square_matrix_has_the_layout_of_its_author(
    dynamo: bool, change: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model, x = _Mixer().eval(), torch.randn(4, 3, 8)
    for bias in (model.norm.bias, model.mix.bias):  # an exporter merges equal ones
        nn.init.normal_(bias)
    exported, changed = tmp_path / "exported.onnx", tmp_path / "changed.onnx"
    names = dict(input_names=["x"], output_names=["y"])
    torch.onnx.export(model, (x,), exported, dynamo=dynamo, verbose=False, **names)
    change(exported, changed)
    module = onnx2nn.load(changed)
    state = module.state_dict()
    for key, value in model.state_dict().items():
        torch.testing.assert_close(state[key], value, rtol=0, atol=0.02)
    before = module(x)
    module.load_state_dict(model.state_dict(), strict=False)
    torch.testing.assert_close(module(x), before, rtol=0, atol=0.1)
    assert onnx2nn.verify(changed, onnx2nn.load(changed)).ok


class _Classifier(nn.Module):
    """Layers of all kinds that a quantiser changes: convolutions, products in and outside of a Gemm, in blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()) for _ in range(2)
        )
        self.query, self.head = nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x) + x
        x = x.flatten(2).transpose(1, 2)
        result: torch.Tensor = self.head((self.query(x) * x).mean(1))
        return result


QUANTISERS: dict[str, Callable[[Path, Path], None]] = {
    "pairs": lambda source, target: quantize_static(source, target, _Batches(_normal(4, 3, 8, 8))),
    "operators": lambda source, target: quantize_static(
        source, target, _Batches(_normal(4, 3, 8, 8)), quant_format=QuantFormat.QOperator
    ),
    "channels": lambda source, target: quantize_static(
        source, target, _Batches(_normal(4, 3, 8, 8)), per_channel=True, reduce_range=True
    ),
    "dynamic": lambda source, target: quantize_dynamic(source, target),
    "dynamic unsigned": lambda source, target: quantize_dynamic(source, target, weight_type=QuantType.QUInt8),
}


@pytest.mark.parametrize("quantiser", QUANTISERS)
@pytest.mark.parametrize("dynamo", [False, True])
def test_what_a_quantiser_wrote_is_the_network_of_its_author_as_floats(
    dynamo: bool, quantiser: str, tmp_path: Path
) -> None:
    """The keys and the layers are those of the float file, the weights the author's but for rounding, and trained."""
    torch.manual_seed(0)
    model, x = _Classifier(), torch.from_numpy(_normal(4, 3, 8, 8))
    model(x), model.eval()  # statistics of its own
    exported, changed = tmp_path / "exported.onnx", tmp_path / "changed.onnx"
    torch.onnx.export(model, (x,), exported, dynamo=dynamo, verbose=False, input_names=["x"])
    QUANTISERS[quantiser](exported, changed)
    module = onnx2nn.load(changed, quantized="dequantize")
    if quantiser not in ("pairs", "channels"):  # notes of what was folded are dropped; the older exporter has none
        torch.onnx.export(model, (x,), exported, dynamo=False, input_names=["x"])
    plain = onnx2nn.load(exported)
    state, expected = module.state_dict(), plain.state_dict()
    assert {name for name, _ in module.named_parameters()} == {name for name, _ in plain.named_parameters()}
    for key, value in expected.items():
        assert state[key].shape == value.shape
        torch.testing.assert_close(state[key], value, rtol=0, atol=0.02 * float(value.abs().max()))
    layers = (nn.Conv2d, nn.Linear, nn.BatchNorm2d)
    kinds = [
        {name: type(part) for name, part in m.named_modules() if isinstance(part, layers)} for m in (plain, module)
    ]
    if quantiser.startswith("dynamic"):  # others round the product before its bias
        assert kinds[0] == kinds[1]
    torch.testing.assert_close(module(x), model(x), rtol=0, atol=0.1)


class _Residual(nn.Module):
    """A product with a bias in front of an activation, and one in front of a normalised sum."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.act, self.back, self.norm = nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8), nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed: torch.Tensor = self.norm(self.back(self.act(self.wide(x))) + x)
        return normed


def _fuse(source: Path, target: Path, half: bool) -> None:
    optimised = optimizer.optimize_model(str(source), "bert", num_heads=2, hidden_size=8, opt_level=0)
    assert {"BiasGelu", "SkipLayerNormalization"} <= {node.op_type for node in optimised.model.graph.node}
    if half:
        optimised.convert_float_to_float16()
    optimised.save_model_to_file(str(target))


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("dynamo", [False, True])
def test_layers_keep_their_biases_that_a_fusion_took(dynamo: bool, half: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(_Residual(), _Residual()).eval(), torch.randn(4, 3, 8)
    for parameter in model.parameters():  # an exporter merges equal ones
        nn.init.normal_(parameter)
    exported, fused = tmp_path / "exported.onnx", tmp_path / "fused.onnx"
    torch.onnx.export(model, (x,), exported, dynamo=dynamo, verbose=False, input_names=["x"])
    _fuse(exported, fused, half)
    module = onnx2nn.load(fused)
    state = module.state_dict()
    for key, value in model.state_dict().items():
        torch.testing.assert_close(state[key].float(), value, rtol=1e-3, atol=1e-3)
    assert set(state) == set(model.state_dict())
    if not half:
        assert isinstance(module.get_submodule("1.wide"), nn.Linear)
        assert dynamo or isinstance(module.get_submodule("1.act"), nn.GELU)
    assert onnx2nn.verify(fused, module).ok


class _Convolutions(nn.Module):
    """A convolution into which the exporters fold a normalisation, with an activation, and a layer with another one."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.act = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.LeakyReLU(0.2)
        self.head, self.end = nn.Linear(8, 4), nn.Tanh()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        squashed: torch.Tensor = self.end(self.head(self.act(self.norm(self.conv(x))).mean((2, 3))))
        return squashed


def test_a_layer_has_its_key_where_an_activation_was_fused_into_it(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = _Convolutions().eval(), torch.randn(2, 3, 8, 8)
    nn.init.normal_(model.norm.running_mean)
    exported, fused = tmp_path / "exported.onnx", tmp_path / "fused.onnx"
    torch.onnx.export(model, (x,), exported, dynamo=False, input_names=["x"], dynamic_axes={"x": [0]})
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(fused)
    onnxruntime.InferenceSession(str(exported), options, providers=["CPUExecutionProvider"])
    assert {"FusedConv", "FusedGemm"} <= {node.op_type for node in onnx.load(fused).graph.node}
    module = onnx2nn.load(fused)
    assert set(module.state_dict()) == set(onnx2nn.load(exported).state_dict())
    assert isinstance(module.conv, nn.Conv2d) and isinstance(module.act, nn.LeakyReLU)
    torch.testing.assert_close(module(x), model(x))
    assert onnx2nn.verify(fused, module, inputs={"x": x.numpy()}).ok


def test_the_name_of_a_fusion_is_no_module() -> None:
    text = "g (float[n, 4] x) => (float[n, n] y) { y = com.microsoft.FusedMatMul <alpha = 0.5, transB = 1> (x, x) }"
    model = _model(text, "pytorch", {})
    model.graph.node[0].name = "/attend/MatMul/MatMulScaleFusion/"
    model.opset_import.add(domain="com.microsoft", version=1)
    module = onnx2nn.load(model)
    assert [name for name, _ in module.named_modules()] == ["", "attend"]
