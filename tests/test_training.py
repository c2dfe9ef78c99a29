"""Imported modules train: layers that behave otherwise then, gradients, which weights get them; quantised ones too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
import torch
from onnx import numpy_helper
from onnxruntime import quantization
from realmodels import EXPORTERS, seeded
from torch import nn
from torch.nn import functional as F
from torch_models import CASES

import onnx2nn
from onnx2nn.errors import InputError
from onnx2nn.optable.registry import TABLE

DIGITS = Path(__file__).resolve().parents[1] / "examples" / "digits" / "digits.onnx"


def _model(text: str, **initializers: np.ndarray) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 20, "com.microsoft" : 1]> {text}')
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in initializers.items())
    return model


def _losses(
    module: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, steps: int, rate: float, of: Any = F.cross_entropy
) -> list[float]:
    """Trains on one batch; gives the loss before each step."""
    optimizer = torch.optim.Adam([p for p in module.parameters() if p.requires_grad], rate)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = of(module(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_dropout_has_its_ratio_and_drops_in_training_alone() -> None:
    model = _model("m (float[n] x) => (float[n] y) { r = Constant<value = float {0.3}>() y = Dropout(x, r) }")
    module = onnx2nn.load(model)
    (dropout,) = (layer for layer in module.modules() if isinstance(layer, nn.Dropout))
    assert dropout.p == 0.3
    x = torch.ones(10000)
    assert torch.equal(module(x), x)
    kept = module.train()(x)
    assert 0.66 < (kept > 0).float().mean() < 0.74
    torch.testing.assert_close(kept.max(), torch.tensor(1 / 0.7))


def test_batch_norm_keeps_statistics_with_the_momentum_of_the_file() -> None:
    vectors = {name: np.linspace(0.5, 1.5, 3, dtype=np.float32) * k for k, name in enumerate("sbmv", 1)}
    text = "m (float[n,3,4,4] x) => (float[n,3,4,4] y) { y = BatchNormalization<momentum = 0.8>(x, s, b, m, v) }"
    module = onnx2nn.load(_model(text, **vectors)).train()
    (layer,) = (layer for layer in module.modules() if isinstance(layer, nn.BatchNorm2d))
    expected = nn.BatchNorm2d(3, momentum=0.2)
    state = dict(zip(("weight", "bias", "running_mean", "running_var"), vectors.values(), strict=True))
    expected.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()}, strict=False)
    x = torch.randn(5, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(module(x), expected(x))
    torch.testing.assert_close(layer.running_mean, expected.running_mean)
    torch.testing.assert_close(layer.running_var, expected.running_var)
    assert not torch.equal(layer.running_mean, torch.from_numpy(vectors["m"]))


def test_digits_model_learns_anew() -> None:
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.from_numpy(digits.images[:256, ..., None].astype(np.float32) / 16)
    labels = (torch.from_numpy(digits.target[:256]) + 3) % 10  # other names for the same shapes
    module = onnx2nn.load(DIGITS).train()
    losses = _losses(module, images, labels, 40, 0.005, lambda chances, labels: F.nll_loss(chances.log(), labels))
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.slow
def test_resnet_learns() -> None:
    case = CASES["resnet18"]
    path = EXPORTERS["dynamo"]("resnet18", seeded(case.build), case.inputs(2), case.inputs(3))
    module = onnx2nn.load(path).train()
    images = torch.randn(8, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    losses = _losses(module, images, torch.arange(8), 8, 0.001)
    assert losses[-1] < 0.5 * losses[0]


def test_a_step_of_training_is_the_original_one(tmp_path: Path) -> None:
    """Weights and running statistics after a step, from a file in which nothing was folded into the convolutions."""
    layers = (nn.Conv2d(3, 6, 3, bias=False), nn.BatchNorm2d(6, momentum=0.3), nn.ReLU(), nn.Flatten())
    original = seeded(lambda: nn.Sequential(*layers, nn.Linear(216, 4), nn.BatchNorm1d(4)))
    images = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    preserve = torch.onnx.TrainingMode.PRESERVE  # else the exporter folds what evaluation allows it to fold
    torch.onnx.export(original, (images,), str(tmp_path / "m.onnx"), dynamo=False, training=preserve)
    module = onnx2nn.load(tmp_path / "m.onnx")
    for model in (original, module):
        model.train()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        F.cross_entropy(model(images), torch.arange(4)).backward()
        optimizer.step()
    ours, theirs = module.state_dict(), original.state_dict()
    assert set(ours) == set(theirs)
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-4, atol=1e-5)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.norm = nn.GroupNorm(2, 6)
        self.slope = nn.PReLU(6)
        self.scale = nn.Parameter(torch.ones(6, 1, 1))
        self.head = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.slope(self.norm(self.conv(x))) * self.scale
        return self.head(F.max_pool2d(x, 2).mean((2, 3)))


def _gradients(module: nn.Module, *inputs: torch.Tensor) -> dict[str, torch.Tensor]:
    module.zero_grad()
    output = module(*inputs)
    (output * torch.linspace(-1, 1, output.numel()).reshape(output.shape)).sum().backward()
    return {name: p.grad for name, p in module.named_parameters(remove_duplicate=False) if p.grad is not None}


@pytest.fixture
def network(tmp_path: Path) -> tuple[nn.Module, Path, torch.Tensor]:
    model, x = seeded(Network), torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.onnx.export(model, (x,), str(tmp_path / "m.onnx"), dynamo=False, input_names=["x"])
    return model, tmp_path / "m.onnx", x


def test_gradients_are_the_original_ones(network: tuple[nn.Module, Path, torch.Tensor]) -> None:
    model, path, x = network
    ours, theirs = _gradients(onnx2nn.load(path), x), _gradients(model, x)
    assert set(ours) == set(theirs)
    for name, gradient in theirs.items():
        torch.testing.assert_close(ours[name], gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("exporter", ["torchscript", "dynamo"])
def test_gradients_of_bert_are_the_original_ones(exporter: str) -> None:
    case = CASES["bert"]
    model = seeded(case.build)
    module = onnx2nn.load(EXPORTERS[exporter]("bert", model, case.inputs(2), case.inputs(3)))
    assert all(parameter.requires_grad for parameter in module.parameters())
    ours, theirs = _gradients(module, *case.inputs(2)), _gradients(model, *case.inputs(2))
    shared = set(ours) & set(theirs)
    # The file holds the rows of the table that a length of 7 needs, under another name.
    assert set(theirs) - shared <= {"model.embeddings.position_embeddings.weight"}
    for name in shared:
        if ours[name].shape == theirs[name].shape:
            torch.testing.assert_close(ours[name], theirs[name], rtol=1e-3, atol=1e-4)
        else:
            assert name == "model.embeddings.position_embeddings.weight"


def _trained(module: nn.Module) -> set[str]:
    return {name for name, parameter in module.named_parameters() if parameter.requires_grad}


def test_roles_and_patterns_choose(network: tuple[nn.Module, Path, torch.Tensor]) -> None:
    _, path, x = network
    everything = {name for name, _ in onnx2nn.load(path).named_parameters()}
    norm = {name for name in everything if name.startswith("norm")}
    assert len(everything) == 8 and len(norm) == 2
    assert _trained(onnx2nn.load(path)) == everything
    assert _trained(onnx2nn.load(path, trainable=False)) == set()
    assert _trained(onnx2nn.load(path, trainable={"norm"})) == norm
    assert _trained(onnx2nn.load(path, trainable="bias")) == {"conv.bias", "head.bias"}
    assert _trained(onnx2nn.load(path, trainable=["weight"])) == {"conv.weight", "head.weight", "scale"}
    assert _trained(onnx2nn.load(path, trainable={"other"})) == {"slope.weight"}
    assert _trained(onnx2nn.load(path, trainable=["embedding", "head.*"])) == {"head.weight", "head.bias"}
    module = onnx2nn.load(path, trainable=["head.*"])
    assert set(_gradients(module, x)) == {"head.weight", "head.bias"}
    with pytest.raises(InputError, match="no weight fits 'hed"):
        onnx2nn.load(path, trainable=["hed.*"])


class Small(nn.Module):
    """Everything that quantisers have operators of their own for, a Relu and a Clip that they leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(3, 8, 3, padding=1)
        self.two = nn.Conv2d(8, 8, 3, padding=1)
        self.three = nn.Linear(16, 12)
        self.four = nn.Linear(12, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.one(x)), 2)
        x = torch.cat((F.relu6(4 * self.two(x)) + x, x), 1)
        return self.four(torch.sigmoid(self.three(F.adaptive_avg_pool2d(x, 1).flatten(1))))


class Calibration(quantization.CalibrationDataReader):
    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(2)
        self.batches = iter([{"x": torch.randn(4, 3, 16, 16, generator=generator).numpy()} for _ in range(4)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.batches, None)


QUANTISERS: dict[str, dict[str, Any]] = {
    "pairs": {"quant_format": quantization.QuantFormat.QDQ},
    "pairs by channel": {"quant_format": quantization.QuantFormat.QDQ, "per_channel": True},
    "operators": {"quant_format": quantization.QuantFormat.QOperator, "weight_type": quantization.QuantType.QInt8},
    "dynamic": {},
}


@pytest.fixture(scope="module", params=QUANTISERS)
def quantised(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, nn.Module]]:
    folder = tmp_path_factory.mktemp("quantised")
    model = seeded(Small)
    torch.onnx.export(model, (torch.zeros(4, 3, 16, 16),), str(folder / "f.onnx"), dynamo=False, input_names=["x"])
    options = QUANTISERS[request.param]
    if options:
        quantization.quantize_static(folder / "f.onnx", folder / "q.onnx", Calibration(), **options)
    else:
        quantization.quantize_dynamic(folder / "f.onnx", folder / "q.onnx")
    yield folder / "q.onnx", model


def test_quantised_models_become_float_ones(quantised: tuple[Path, nn.Module]) -> None:
    path, original = quantised
    x = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(3))
    kept, module = onnx2nn.load(path), onnx2nn.load(path, quantized="dequantize")
    done = module.meta["onnx2nn"]["dequantized"]
    assert done["kept"] == [] and len(done["weights"]) >= 4
    assert "quantize" not in module.code and ".round" not in module.code
    kinds = [type(layer) for layer in module.modules()]
    assert kinds.count(nn.Conv2d) == 2 and kinds.count(nn.Linear) == 2
    with torch.no_grad():
        floats, integers, expected = module(x), kept(x), original(x)
    step = (expected.max() - expected.min()) / 255
    assert (floats - expected).abs().max() < 4 * step  # of the rounded weights
    assert (floats - integers).abs().max() < 8 * step
    losses = _losses(module.train(), x, torch.arange(4), 40, 0.02)
    assert losses[-1] < 0.8 * losses[0]
    assert all(parameter.grad is not None and bool(parameter.grad.any()) for parameter in module.parameters())


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 12)
        self.lstm = nn.LSTM(12, 16, bidirectional=True)
        self.head = nn.Linear(32, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.table(x))[0])


def test_quantised_tables_and_recurrent_layers(tmp_path: Path) -> None:
    model, x = seeded(Tagger), torch.arange(14).reshape(7, 2)
    torch.onnx.export(model, (x,), str(tmp_path / "f.onnx"), dynamo=False, input_names=["x"])
    quantization.quantize_dynamic(tmp_path / "f.onnx", tmp_path / "q.onnx")
    kept = onnx2nn.load(tmp_path / "q.onnx")
    module = onnx2nn.load(tmp_path / "q.onnx", quantized="dequantize")
    done = module.meta["onnx2nn"]["dequantized"]
    assert done["kept"] == [] and {"DynamicQuantizeLSTM", "DequantizeLinear"} <= set(done["operators"])
    assert {nn.Embedding, nn.LSTM, nn.Linear} <= {type(layer) for layer in module.modules()}
    step = (model(x).max() - model(x).min()) / 255
    assert (module(x) - model(x)).abs().max() < 4 * step
    assert (module(x) - kept(x)).abs().max() < 8 * step
    assert len(_gradients(module, x)) == len(list(module.parameters())) > 4


def test_the_range_of_the_integers_stays() -> None:
    """A zero point at the end of the range is a Relu that a quantiser left out, the other end a Clip."""
    text = """m (float[n] x) => (float[n] y) {
        s = Constant<value = float {0.0235294}>()  z = Constant<value = uint8 {0}>()
        q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z) }"""
    module = onnx2nn.load(_model(text), quantized="dequantize")
    x = torch.tensor([-3.0, 0.01, 5.0, 9.0])
    torch.testing.assert_close(module(x), torch.tensor([0.0, 0.01, 5.0, 6.0]), rtol=0, atol=1e-5)


def test_integers_that_leave_the_model_are_still_integers() -> None:
    text = """m (float[2,3] x) => (uint8[2,3] q, float[2,3] y) {
        s = Constant<value = float {0.1}>()  z = Constant<value = uint8 {128}>()
        a = QuantizeLinear(x, s, z)
        q = com.microsoft.QLinearAdd(a, s, z, a, s, z, s, z)
        y = DequantizeLinear(q, s, z) }"""
    x = torch.tensor([[1.0, -2.0, 3.0], [4.0, 5.0, 60.0]])
    kept, module = onnx2nn.load(_model(text)), onnx2nn.load(_model(text), quantized="dequantize")
    integers, floats = module(x)
    assert torch.equal(integers, kept(x)[0]) and integers.dtype is torch.uint8
    torch.testing.assert_close(floats, kept(x)[1])


_POOL = "<kernel_shape = [2, 2]>"
FLOAT_FORMS = {
    "com.microsoft.QLinearAdd": ("", "a, s, z, a, s, z, t, z"),
    "com.microsoft.QLinearMul": ("", "a, s, z, a, s, z, t, z"),
    "com.microsoft.QLinearSigmoid": ("", "a, s, z, t, z"),
    "com.microsoft.QLinearLeakyRelu": ("<alpha = 0.2>", "a, s, z, t, z"),
    "com.microsoft.QLinearAveragePool": (_POOL, "a, s, z, t, z"),
    "com.microsoft.QLinearGlobalAveragePool": ("", "a, s, z, t, z"),
    "com.microsoft.QLinearConv": ("", "a, s, z, w, v, u, t, z, b"),
    "QLinearConv": ("<strides = [2, 2]>", "a, s, z, w, v, u, t, z"),
    "QLinearMatMul": ("", "a, s, z, m, s, z, t, z"),
}
"""Attributes and inputs of operators whose rows name the one that does the same on floats."""


@pytest.mark.parametrize("operator", FLOAT_FORMS)
def test_a_row_names_the_float_form_of_its_operator(operator: str) -> None:
    _dequantized(operator, *FLOAT_FORMS[operator], (1, 3, 4, 4))


def _dequantized(
    operator: str, attributes: str, inputs: str, sizes: tuple[int, ...], scale: str = "t", zero: str = "z"
) -> Any:
    """Returns the module of a model of one operator on integers, which has no integers and the same outputs.

    Args:
        operator: with its domain.
        attributes: of the node.
        inputs: of the node; `a` is the image in steps, the others are constants of the model.
        sizes: of the image.
        scale: the constant that the result's steps have.
        zero: likewise its zero point.
    """
    text = f"""m (float[{",".join(map(str, sizes))}] x) => (float[n,c,h,k] y) {{
        s = Constant<value = float {{0.02}}>()  t = Constant<value = float {{0.05}}>()
        z = Constant<value = uint8 {{128}}>()  u = Constant<value = int8[2] {{0, 0}}>()
        p = Constant<value = float {{0.00390625}}>()  o = Constant<value = uint8 {{0}}>()
        zero = Constant<value = float {{0}}>()  c = Greater(x, zero)
        a = QuantizeLinear(x, s, z)
        r = {operator}{attributes}({inputs})
        y = DequantizeLinear(r, {scale}, {zero}) }}"""
    draw = np.random.default_rng(0)
    weights = {
        "w": draw.integers(-90, 90, (2, 3, 3, 3), np.int8),
        "v": np.array([0.002, 0.004], np.float32),
        "b": np.array([100, -200], np.int32),
        "m": draw.integers(90, 170, sizes[2:], np.uint8),
    }
    model = _model(text, **weights)
    kept, module = onnx2nn.load(model), onnx2nn.load(model, quantized="dequantize")
    assert module.meta["onnx2nn"]["dequantized"]["kept"] == []
    x = torch.from_numpy(draw.uniform(-2, 2, sizes).astype(np.float32))
    torch.testing.assert_close(module(x), kept(x), rtol=0, atol=0.13)
    assert module(x).std() > 0.01
    return module


def test_every_row_with_a_float_form_has_a_case() -> None:
    rows = {str(row).rpartition("-")[0].replace("::", ".") for row in TABLE if row.float_form is not None}
    assert rows - {"MatMulInteger", "ConvInteger"} == set(FLOAT_FORMS)  # the quantised models above hold these two


OTHER_FORMS = {
    "com.microsoft.QLinearWhere": ("", "c, a, s, z, m, s, z, t, z"),
    "com.microsoft.QLinearSoftmax": ("<opset = 13, axis = 1>", "a, s, z, p, o"),
    "com.microsoft.QLinearSoftmax below 13": ("<opset = 11, axis = 1>", "a, s, z, p, o"),
    "com.microsoft.QLinearReduceMean": ("<axes = [2], keepdims = 1>", "a, s, z, t, z"),
    "com.microsoft.NhwcMaxPool": ("<kernel_shape = [2, 2], strides = [1, 2]>", "a"),
    "com.microsoft.QLinearConv": ("<channels_last = 1, pads = [1, 1, 0, 0]>", "a, s, z, w, v, u, t, z, b"),
    "com.microsoft.QLinearAveragePool": ("<channels_last = 1, kernel_shape = [2, 2]>", "a, s, z, t, z"),
    "com.microsoft.QLinearGlobalAveragePool": ("<channels_last = 1>", "a, s, z, t, z"),
}
"""Attributes and inputs of operators without a row's float form, and of some with the channels last."""


@pytest.mark.parametrize("operator", OTHER_FORMS)
def test_operators_on_integers_become_their_float_forms(operator: str) -> None:
    name = operator.split()[0]
    scale, zero = {"QLinearSoftmax": ("p", "o"), "NhwcMaxPool": ("s", "z")}.get(name.split(".")[2], ("t", "z"))
    module = _dequantized(name, *OTHER_FORMS[operator], (1, 4, 4, 3), scale, zero)
    assert "quantize" not in module.code and ".round" not in module.code


def test_quantised_attention_becomes_attention() -> None:
    """With its input quantised by constants and at run time."""
    text = """m (float[2,3,8] x) => (float[2,3,8] y, float[2,3,8] z) {
        s = Constant<value = float {0.02}>()  o = Constant<value = uint8 {128}>()
        q = QuantizeLinear(x, s, o)
        y = com.microsoft.QAttention<num_heads = 2>(q, w, b, s, v, , o, u)
        d, t, e = DynamicQuantizeLinear(x)
        z = com.microsoft.QAttention<num_heads = 2, unidirectional = 1>(d, w, b, t, v, , e, u) }"""
    draw = np.random.default_rng(0)
    weights = {
        "w": draw.integers(-64, 63, (8, 24), np.int8),
        "v": draw.uniform(0.005, 0.01, 24).astype(np.float32),
        "u": np.zeros(24, np.int8),
        "b": draw.standard_normal(24).astype(np.float32),
    }
    model = _model(text, **weights)
    kept, module = onnx2nn.load(model), onnx2nn.load(model, quantized="dequantize")
    assert module.meta["onnx2nn"]["dequantized"]["kept"] == []
    x = torch.from_numpy(draw.uniform(-2, 2, (2, 3, 8)).astype(np.float32))
    for ours, theirs in zip(module(x), kept(x), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0.03)
        assert not torch.equal(ours, theirs)


def test_quantised_tables_of_bert_become_floats() -> None:
    draw = np.random.default_rng(0)
    text = """m (int32[2,4] i, int32[2,4] j) => (float[2,4,8] y, int32[2] k) {
        s = Constant<value = float {0.02}>()  z = Constant<value = uint8 {128}>()
        y, k = com.microsoft.QEmbedLayerNormalization(i, j, w, p, g, a, b, , s, s, s, s, s, z, z, z, z, z) }"""
    tables = {name: draw.integers(0, 256, shape, np.uint8)
              for name, shape in {"w": (9, 8), "p": (5, 8), "g": (2, 8), "a": (8,), "b": (8,)}.items()}  # fmt: skip
    model = _model(text, **tables)
    kept, module = onnx2nn.load(model), onnx2nn.load(model, quantized="dequantize")
    assert module.meta["onnx2nn"]["dequantized"]["kept"] == []
    ids, segments = (torch.from_numpy(draw.integers(0, n, (2, 4), np.int32)) for n in (9, 2))
    torch.testing.assert_close(module(ids, segments), kept(ids, segments))
    assert len(list(module.parameters())) == len(tables)


def test_what_has_no_float_form_stays_and_is_named() -> None:
    text = """m (float[2,3] x, float s) => (float[2,3] y) {
        z = Constant<value = uint8 {7}>()  q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z) }"""
    model = _model(text)
    for node in model.graph.node:
        node.name = f"the {node.op_type}"
    kept, module = onnx2nn.load(model), onnx2nn.load(model, quantized="dequantize")
    assert module.meta["onnx2nn"]["dequantized"]["kept"] == ["the QuantizeLinear", "the DequantizeLinear"]
    x, scale = torch.randn(2, 3), torch.tensor(0.1)
    assert torch.equal(module(x, scale), kept(x, scale))


def test_other_words_are_refused() -> None:
    with pytest.raises(InputError, match="'keep', 'dequantize' or 'torchao'"):
        onnx2nn.load(DIGITS, quantized="float")
    with pytest.raises(InputError, match=r"quantized='torchao' needs framework='torch'"):
        onnx2nn.load(DIGITS, framework="oneflow", quantized="torchao")


def test_numbers_of_the_source_are_no_weights() -> None:
    """An epsilon or the factor of a rescaling, which TensorFlow keeps as constants."""
    path = Path(__file__).parent / "data" / "tensorflow" / "keras_images_literal.onnx"
    module = onnx2nn.load(path, raise_patterns=False)
    epsilon = "functional_1.layer_normalization_1.add.y"
    assert epsilon in dict(module.named_buffers())
    assert epsilon not in dict(module.named_parameters())
    assert "functional_1.layer_normalization_1.Reshape" in dict(module.named_parameters())  # its factors


class _Padded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(6, 4, padding_idx=2)

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        return self.words(indices).sum(-1)


def test_the_padding_of_an_embedding_has_no_gradient(tmp_path: Path) -> None:
    """Torch's newer exporter notes its index in the call."""
    indices = torch.tensor([[1, 2, 2], [5, 2, 1]])
    original, path = seeded(_Padded), tmp_path / "m.onnx"
    torch.onnx.export(original, (indices,), path, dynamo=True, external_data=False, verbose=False)
    module = onnx2nn.load(path)
    assert module.words.padding_idx == 2
    onnx2nn.export_onnx(module, tmp_path / "again.onnx")
    onnx2nn.to_python(module, tmp_path / "source")
    assert "padding_idx=2" in (tmp_path / "source" / "model.py").read_text()
    for each in (original, module, onnx2nn.load(tmp_path / "again.onnx")):
        each(indices).square().sum().backward()
        assert torch.equal(each.words.weight.grad, original.words.weight.grad)
    assert not module.words.weight.grad[2].any()


STOPPED: dict[str, Any] = {
    "straight through": lambda x, w, b: x + (x.mul(3).round() / 3 - x).detach(),
    "of a quantiser": lambda x, w, b: x + (w[(x @ w.T).argmax(-1)] - x).detach(),
    "beside itself": lambda x, w, b: x * x.detach(),
    "first of a matrix product": lambda x, w, b: F.linear(x.detach().exp(), w) + x,
    "last of a matrix product": lambda x, w, b: (x.sin() @ x.cos().detach().transpose(-1, -2)) @ x,
    "first of a linear layer": lambda x, w, b: F.linear(x.exp().detach(), w, b) + x,
    "filled": lambda x, w, b: x.exp().detach().masked_fill(x > 0, 2.0) * x,
    "of another order": lambda x, w, b: x * (2 - x.exp().detach()) + torch.addmm(b, x[:, 0].exp().detach(), w)[:, None],
    "of a maximum": lambda x, w, b: (x - x.amax(-1, keepdim=True).detach()).exp() @ w,
    "a result": lambda x, w, b: (x.tanh() @ w).detach() + x,
    "in other sizes": lambda x, w, b: x.exp().detach().reshape(x.shape[0], -1).sum(1)[:, None, None] * x,
}


class Stopped(nn.Module):
    """A layer, something through which not all gradients go, and another layer."""

    def __init__(self, of: Any) -> None:
        super().__init__()
        self.before, self.after, self.of = nn.Linear(4, 4), nn.Linear(4, 3), of
        self.weight, self.bias = nn.Parameter(torch.zeros(4, 4)), nn.Parameter(torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(self.of(self.before(x), self.weight, self.bias))


def _gradients_of_squares(module: nn.Module, inputs: torch.Tensor) -> dict[str, torch.Tensor]:
    inputs = inputs.clone().requires_grad_()
    module.zero_grad()
    module(inputs).square().sum().backward()
    found = {key: weight.grad for key, weight in module.named_parameters()} | {"input": inputs.grad}
    return {key: torch.zeros(()) if grad is None else grad for key, grad in found.items()}


@pytest.mark.parametrize("name", STOPPED)
def test_gradients_stop_where_the_author_stopped_them(name: str, tmp_path: Path) -> None:
    """The newer exporter notes on a call that its argument is detached; no node of the file says it."""
    original, inputs, other = seeded(lambda: Stopped(STOPPED[name])), torch.randn(2, 5, 4), torch.randn(3, 5, 4)
    path = EXPORTERS["dynamo"](f"training_stopped_{name.replace(' ', '_')}", original, (inputs,), (other,))
    module = onnx2nn.load(path)
    again = tmp_path / "again.onnx"
    onnx2nn.export_onnx(module, again)
    onnx2nn.to_python(module, tmp_path / "source")
    torch.save(module, tmp_path / "module.pt")
    for travelled in (module, torch.load(tmp_path / "module.pt", weights_only=False), onnx2nn.load(again)):
        torch.testing.assert_close(travelled(other), original(other))
        ours, theirs = _gradients_of_squares(travelled, other), _gradients_of_squares(original, other)
        for key in ours.keys() & theirs.keys():  # the file has no weights of which it uses none, or other layouts alone
            torch.testing.assert_close(ours[key], theirs[key], msg=lambda text, key=key: f"{key}: {text}")
