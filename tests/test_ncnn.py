"""On to NCNN: the same numbers in float32, only NCNN's layers, and what cannot go is named beforehand."""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from ncnn_models import DIGITS, IMAGE, MODELS, convert
from realmodels import CACHE, export_dynamo, export_torchscript, seeded
from torch import nn
from torch.nn import functional as F

import onnx2nn
from onnx2nn.commands.main import main
from onnx2nn.errors import MissingDependencyError, NcnnError, VerificationError
from onnx2nn.output.ncnn import NcnnModel
from onnx2nn.output.ncnn.channel_folding import fold_channels


def _check(model: NcnnModel, *, half: float = 2e-2) -> None:
    """Asserts equal numbers in float32, near ones in float16, and the four files."""
    assert all(output.ok for output in model.fp32)
    assert all(output.max_difference <= half * max(output.scale, 1) for output in model.fp16)
    assert not {"BatchNorm", "Scale", "Noop"} & set(model.layers)
    assert {path.name for path in model.param.parent.iterdir()} == {
        f"model{ending}" for ending in (".param", ".bin", ".fp16.param", ".fp16.bin")
    }


ZOO = [
    path
    for path in (
        CACHE.parent / "tensorflow" / "keras_mobilenet_v2.onnx",
        CACHE.parent / "paddle" / "paddle_resnet18.onnx",
    )
    if path.exists()  # test_zoo.py says where they come from, and fails where they must be there
]


@pytest.mark.parametrize("name", MODELS)
def test_models_of_the_torch_exporters(name: str, tmp_path: Path) -> None:
    model = convert(MODELS[name](), tmp_path)
    _check(model)
    assert model.half_weights.stat().st_size < 0.6 * model.weights.stat().st_size
    if name == "mobilenet_v3":
        assert "HardSwish" in model.layers or "HardSigmoid" in model.layers, "activations in pieces"
    if name == "shufflenet_v2":
        assert "ShuffleChannel" in model.layers
    if name == "recurrent":
        assert model.layers["LSTM"] == 2 and model.layers["Embed"] == 1


UNEVEN = """
<ir_version: 8, opset_import: ["" : 17]>
graph (float[1, 2, 7, 7] x) => (float[1, 2, a, b] y)
{ y = MaxPool<kernel_shape = [2, 2], strides = [2, 2], pads = [0, 0, 1, 1]>(x) }
"""


def test_padding_of_max_pools_is_a_number_that_ncnn_reads(tmp_path: Path) -> None:
    model = onnx2nn.to_ncnn(onnx2nn.load(onnx.parser.parse_model(UNEVEN)), tmp_path)
    assert model.layers["Padding"] == 1 and "inf" not in model.param.read_text()


PACKED = """
<ir_version: 8, opset_import: ["" : 17]>
graph (float[1, 5, 24] x) => (float[1, 2, 5, 4] y)
<int64[5] shape = {0, -1, 3, 2, 4}, int64[1] o = {0}, int64[1] i = {1}, int64[1] z = {2}, int64 last = {2}>
{
  packed = Reshape(x, shape)
  parts = Transpose<perm = [2, 0, 3, 1, 4]>(packed)
  q5 = Slice(parts, o, i, o)
  q = Squeeze(q5, o)
  k5 = Slice(parts, i, z, o)
  k = Squeeze(k5, o)
  v = Gather<axis = 0>(parts, last)
  t = Transpose<perm = [0, 1, 3, 2]>(k)
  s = MatMul(q, t)
  p = Softmax(s)
  y = MatMul(p, v)
}
"""


def test_packed_queries_keys_and_values_never_have_five_dimensions(tmp_path: Path) -> None:
    model = onnx2nn.to_ncnn(onnx2nn.load(onnx.parser.parse_model(PACKED)), tmp_path)
    assert model.layers["SDPA"] == 1 and {"Crop", "Slice"} & set(model.layers)


class Windows(nn.Module):
    """Attention in windows of 2 by 2, of normalised queries and keys, on every other row, with a bias by position."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.packed, self.norm = nn.Conv2d(3, 8, 8, 8), nn.Linear(8, 24), nn.BatchNorm1d(24)
        self.across, self.down = nn.Parameter(torch.randn(2, 2, 1, 2, 1)), nn.Parameter(torch.randn(2, 1, 2, 1, 2))
        self.norm.running_mean.uniform_(-1, 1)
        self.norm.running_var.uniform_(0.5, 2)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        rows = self.stem(image).permute(0, 2, 3, 1)[:, ::2]
        windows = rows.reshape(1, 2, 2, 4, 2, 8).permute(0, 1, 3, 2, 4, 5).reshape(8, 4, 8)
        packed = self.norm(self.packed(windows).flatten(0, 1)).reshape(8, 4, 3, 2, 4)
        query, key, value = packed.permute(2, 0, 3, 1, 4).unbind(0)
        scores = nn.functional.normalize(query, dim=-1) @ nn.functional.normalize(key, dim=-1).transpose(-2, -1)
        bias = (self.across.expand(-1, -1, 2, -1, 2) + self.down.expand(-1, 2, -1, 2, -1)).reshape(2, 4, 4)
        mixed = ((scores + bias).softmax(-1) @ value).transpose(1, 2)
        return mixed.reshape(1, 2, 4, 2, 2, 8).transpose(2, 3).reshape(1, 4, 8, 8)


@pytest.mark.parametrize("export", [export_torchscript, export_dynamo])
def test_attention_in_windows(export: Callable[..., Path], tmp_path: Path) -> None:
    """Six axes, packed queries of eight windows, a slice with a step, unit vectors, normalised rows."""
    model = convert(export("ncnn_windows", seeded(Windows), IMAGE), tmp_path)
    _check(model)
    assert model.layers["Pooling"] == 1 and "Normalize" not in model.layers


@pytest.mark.parametrize("path", ZOO, ids=lambda path: path.stem)
def test_models_of_other_frameworks(path: Path, tmp_path: Path) -> None:
    """Batch normalisation is folded also where tf2onnx wrote it in pieces: no convolution is followed by a scale."""
    model = convert(path, tmp_path)
    _check(model)
    assert model.layers.get("BinaryOp", 0) <= 10, "only the additions of the residual blocks are left"


def test_digits_from_keras_to_ncnn_keep_their_accuracy(tmp_path: Path) -> None:
    """Keras → ONNX → PyTorch → NCNN: the answers on all test images, in both precisions."""
    with np.load(DIGITS / "digits_test.npz") as stored:
        images, labels = stored["image"].astype(np.float32), stored["label"]
    module = onnx2nn.load(DIGITS / "digits.onnx")
    model = onnx2nn.to_ncnn(module, tmp_path, name="digits")
    assert all(output.ok for output in model.fp32)
    assert model.layers == {"Input": 1, "BinaryOp": 1, "Reshape": 1, "Convolution": 3, "ConvolutionDepthWise": 1,
                            "Pooling": 1, "Permute": 1, "Flatten": 1, "InnerProduct": 2, "Softmax": 1}  # fmt: skip
    expected = module(torch.from_numpy(images)).detach().numpy()
    for half, tolerance in ((False, 1e-5), (True, 2e-2)):
        answers = np.concatenate([outputs[0] for outputs in model.run([[image[None]] for image in images], half=half)])
        np.testing.assert_allclose(answers, expected, rtol=0, atol=tolerance)
        assert (answers.argmax(1) == labels).mean() == (expected.argmax(1) == labels).mean() >= 0.97


NOT_FOR_NCNN = """
<ir_version: 8, opset_import: ["" : 17]>
graph (float[1, 4, 6] x) => (float[1, 4, 6] y, float[1, 4, 2] best, float[1, 4, 6] every)
<float z = {0.0}, int64[1] k = {2}, int64[6] six = {1, 2, 2, 3, 1, 2}, int64[3] three = {1, 4, 6}>
{
    ["positive"] p = Greater(x, z)
    ["pick"] y = Where(p, x, z)
    ["best two"] best, i = TopK(x, k)
    wide = Reshape(x, six)
    ["many axes"] bits = Greater(wide, z)
    both = Where(bits, wide, z)
    every = Reshape(both, three)
}
"""


def test_all_obstacles_are_said_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = onnx.parser.parse_model(NOT_FOR_NCNN)
    started: list[object] = []
    monkeypatch.setattr("onnx2nn.output.ncnn._process", lambda *arguments: started.append(arguments))
    with pytest.raises(NcnnError) as error:
        onnx2nn.to_ncnn(onnx2nn.load(model), tmp_path / "out")
    told = "\n".join(error.value.obstacles)
    assert not started and not (tmp_path / "out").exists()
    assert "Greater 'positive', Where 'pick', Greater 'many axes'" in told and "NCNN has no truth values" in told
    assert "TopK 'best two'" in told and "Greater 'many axes'" in told

    onnx.save(model, tmp_path / "m.onnx")
    assert main(["ncnn", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "out")]) == 1
    shown = capsys.readouterr().out
    assert "Where 'pick'" in shown and f"NOT CONVERTED: {len(error.value.obstacles)} obstacles" in shown


def test_obstacle_that_only_pnnx_finds_is_an_error_too(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        """
        <ir_version: 8, opset_import: ["" : 17]>
        graph (float[1, 3, 8, 8] x) => (float[1, 3, 4, 4] y)
        { y = MaxPool <kernel_shape = [2, 2], dilations = [4, 4]> (x) }
        """
    )
    with pytest.raises(NcnnError, match=r"F\.max_pool2d is no layer of NCNN"):
        onnx2nn.to_ncnn(onnx2nn.load(model), tmp_path)
    assert not list(tmp_path.iterdir())


def test_other_numbers_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A conversion that computes something else leaves no files."""
    monkeypatch.setattr(
        "onnx2nn.output.ncnn.axis_folding.fold_axes",
        lambda module, tensors: torch.fx.symbolic_trace(nn.Sequential(module, nn.Tanh())),
    )
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> graph (float[1, 4] x) => (float[1, 4] y) { y = Exp(x) }'
    )
    with pytest.raises(VerificationError, match="NCNN's outputs differ from the module's: y"):
        onnx2nn.to_ncnn(onnx2nn.load(model), tmp_path)
    assert not list(tmp_path.iterdir())


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ncnn", str(DIGITS / "digits.onnx"), "-o", str(tmp_path / "new" / "folder")]) == 0
    shown = capsys.readouterr().out
    assert "fp32  probability: shape [1, 10], mse" in shown and "fp16  probability" in shown
    assert {path.name for path in (tmp_path / "new" / "folder").iterdir()} == {
        "digits.param", "digits.bin", "digits.fp16.param", "digits.fp16.bin"
    }  # fmt: skip


def test_channels_are_folded_and_nothing_else() -> None:
    """Scales and shifts by channel go into the weights; by position, or behind a layer with two users, they stay."""

    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.used_twice = nn.Conv2d(3, 4, 1, bias=False), nn.Conv2d(4, 4, 1)
            self.scale, self.shift, self.place = (
                nn.Parameter(torch.rand(shape)) for shape in ((1, 4, 1, 1), (4, 1, 1), (1, 4, 5, 1))
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = 2.0 * (self.scale * self.conv(x)) + self.shift
            y = self.used_twice(x)
            return y * self.scale + y * self.place

    layers = seeded(Layers)
    module = torch.fx.symbolic_trace(layers)
    folded = fold_channels(module)
    x = torch.randn(2, 3, 5, 5)
    torch.testing.assert_close(folded(x), layers(x), rtol=1e-5, atol=1e-6)
    calls = [node for node in folded.graph.nodes if node.op == "call_function"]
    assert len(calls) == 3 and len([n for n in module.graph.nodes if n.op == "call_function"]) == 6
    assert layers.conv.bias is None and folded.conv.bias is not None, "the module itself is unchanged"


def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pnnx", None)
    with pytest.raises(MissingDependencyError, match=r'pip install "onnx2nn\[ncnn\]"'):
        onnx2nn.to_ncnn(onnx2nn.load(DIGITS / "digits.onnx"), tmp_path)


class Two(nn.Module):
    """The mean of two heads' scores, joined along the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.heads = nn.Conv2d(3, 8, 8, 8), nn.ModuleList([nn.Linear(8, 10), nn.Linear(8, 10)])

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        tokens = self.stem(image).flatten(2).transpose(1, 2)
        return torch.cat([head(tokens[:, index]).unsqueeze(1) for index, head in enumerate(self.heads)]).mean(0)


def test_join_along_the_batch(tmp_path: Path) -> None:
    _check(convert(export_torchscript("ncnn_two", seeded(Two), IMAGE), tmp_path))


POINTS = torch.tensor([-300.0, -100, -20, -2.5, -1, -0.0, 0, 1e-8, 0.5, 1, 3, 30, 100, 300])

ELSEWHERE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "softplus": F.softplus,
    "softplus, beta": lambda x: F.softplus(x, 2.0, 25.0),
    "log_softmax, last": lambda x: torch.log_softmax(x, -1),
    "log_softmax, channels": lambda x: torch.log_softmax(x, dim=1),
    "logsumexp": lambda x: torch.logsumexp(x, [-1]),
    "logsumexp, kept": lambda x: torch.logsumexp(x, 1, keepdim=True),
    "glu": lambda x: F.glu(x, -1),
    "power, whole": lambda x: x**3.0 / 1e6,
    "power, large": lambda x: x**7 / 1e16,
    "power of zero": lambda x: torch.relu(x) ** 1.7,
    "square root": lambda x: torch.relu(x) ** 0.5,
    "reciprocal": lambda x: (torch.relu(x) + 1) ** -1.0,
    "reciprocal square": lambda x: (x.abs() + 1) ** -2,
}
"""Calls that NCNN computes rightly near 1, where the inputs of the comparison are, and wrongly elsewhere."""


@pytest.mark.parametrize("name", ELSEWHERE)
def test_calls_are_right_far_from_the_inputs_they_were_compared_on(name: str, tmp_path: Path) -> None:
    class Network(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return ELSEWHERE[name](x)

    far = torch.stack([POINTS, POINTS.flip(0), torch.full((14,), 200.0), torch.full((14,), -200.0)]).reshape(
        1, 2, 2, 14
    )
    module = torch.fx.symbolic_trace(Network())
    model = onnx2nn.to_ncnn(module, tmp_path, example_inputs=[0.5 + torch.rand(1, 2, 2, 14)])
    _check(model)
    (found,) = model.run([[far.numpy()]])[0]
    np.testing.assert_allclose(found, module(far).numpy(), rtol=1e-4, atol=1e-5)


def test_power_whose_exponent_is_a_constant_of_the_file(tmp_path: Path) -> None:
    graph = """
        <ir_version: 8, opset_import: ["" : 17]> graph (float[1, 3, 4] x) => (float[1, 3, 4] y)
        <float three = {3.0}> { y = Pow(x, three) }
    """
    module = onnx2nn.load(onnx.parser.parse_model(graph))
    model = onnx2nn.to_ncnn(module, tmp_path, example_inputs=[1 + torch.rand(1, 3, 4)])
    x = torch.randn(1, 3, 4)
    (found,) = model.run([[x.numpy()]])[0]
    np.testing.assert_allclose(found, module(x).detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("align_corners", [False, True])
def test_sampling_points_are_reflected_as_often_as_they_lie_outside(
    mode: str, align_corners: bool, tmp_path: Path
) -> None:
    class Network(nn.Module):
        def forward(self, image: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
            return F.grid_sample(image, grid, mode, "reflection", align_corners)

    module = torch.fx.symbolic_trace(Network())
    image, grid = torch.randn(1, 3, 6, 7), torch.randn(1, 5, 4, 2)
    model = onnx2nn.to_ncnn(module, tmp_path, example_inputs=[image, grid / 4])
    found = model.run([[image.numpy(), (grid * 5).numpy()]])[0][0]
    np.testing.assert_allclose(found, module(image, grid * 5).numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(1, 5), (1, 3, 4, 5), (1, 4, 5), (1, 2, 3, 4, 5)])
@pytest.mark.parametrize(("affine", "bias"), [(False, False), (True, False), (True, True)])
def test_layer_norm_over_all_axes(shape: tuple[int, ...], affine: bool, bias: bool, tmp_path: Path) -> None:
    norm = seeded(lambda: nn.LayerNorm(shape[1:], elementwise_affine=affine, bias=bias))
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(shape)
    name = f"ncnn_layer_norm_{len(shape)}{affine}{bias}"
    _check(convert(export_dynamo(name, nn.Sequential(norm, nn.Tanh()).eval(), (x,)), tmp_path))


@pytest.mark.parametrize("build", [lambda: nn.GroupNorm(2, 8), lambda: nn.InstanceNorm2d(8, affine=True)])
def test_normalisations_with_a_weight_and_no_bias(build: Callable[[], nn.Module], tmp_path: Path) -> None:
    """NCNN's have both or none."""
    norm = seeded(build)
    norm.bias = None
    nn.init.normal_(norm.weight)
    model = nn.Sequential(norm, nn.Tanh(), nn.Conv2d(8, 2, 1)).eval()
    _check(convert(export_dynamo(f"ncnn_scaled_{type(norm).__name__}", model, (torch.randn(1, 8, 5, 6),)), tmp_path))


@pytest.mark.parametrize("affine", [False, True])
def test_instance_norm_of_a_sequence(affine: bool, tmp_path: Path) -> None:
    norm = seeded(lambda: nn.InstanceNorm1d(6, affine=affine))
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    file = export_dynamo(f"ncnn_instance{affine}", norm, (torch.randn(1, 6, 9),))
    _check(convert(file, tmp_path))


@pytest.mark.parametrize("name", ["torch", "ops", "日本"])
def test_layers_of_any_name(name: str, tmp_path: Path) -> None:
    """The text of TorchScript has variables named after the layers, which hide what it names itself."""
    network = nn.Sequential()
    network.add_module(name, nn.Conv2d(3, 4, 3))
    network.add_module("tanh", nn.Tanh())
    file = export_torchscript(f"ncnn_named_{name}", network.eval(), IMAGE)
    _check(convert(file, tmp_path))


class Encoder(nn.Module):
    """Words and a table of positions, two layers of a transformer, scores."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(20, 16), nn.Parameter(torch.randn(32, 16))
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True) for _ in range(2))
        self.scores = nn.Linear(16, 20)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words) + self.positions[: words.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.scores(x)


class Tagger(nn.Module):
    """Words, an LSTM, scores."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.rnn, self.scores = nn.Embedding(20, 8), nn.LSTM(8, 12, batch_first=True), nn.Linear(12, 20)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.scores(self.rnn(self.words(words))[0])


@pytest.mark.parametrize("kind", [Tagger, Encoder])
def test_open_length(kind: type[nn.Module], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was converted with two lengths runs with a third."""
    short, long, other = (torch.arange(length).reshape(1, -1) % 20 for length in (7, 11, 23))
    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # the older exporter would write an operator that ONNX lacks
    try:
        path = export_torchscript(f"ncnn_{kind.__name__}", seeded(kind), (short,), (long,))
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
    module = onnx2nn.load(path)
    model = onnx2nn.to_ncnn(module, tmp_path, example_inputs=[short], other_inputs=[long])
    _check(model)
    assert [output.shape for output in model.fp32] == [(1, 7, 20), (1, 11, 20)]
    found = model.run([[other.numpy()]])[0][0]
    np.testing.assert_allclose(found, module(other).detach().numpy(), rtol=0, atol=1e-5)


def test_the_command_keeps_a_length_open(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> m (float[1, n, 4] x) => (float[1, n, 4] y) {
        a = Softmax(x)
        y = Relu(a) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    given = ["ncnn", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "out"), "--input_shape", "1,5,4"]
    assert main([*given, "--other_shape", "1,8,4"]) == 0
    assert "other_inputs" in capsys.readouterr().out
    assert main([*given, "--other_shape", "y:1,8,4"]) == 2
    assert "'y'" in capsys.readouterr().err


def test_fixed_size_where_other_inputs_need_another_is_an_error(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        """
        <ir_version: 8, opset_import: ["" : 17]>
        graph (float[1, 2, n] x) => (float[1, n, 2] y)
        <int64[6] wide = {1, 2, 1, -1, 2, 1}, int64[3] three = {1, -1, 2}>
        {
            a = Reshape(x, wide)
            b = Transpose<perm = [0, 3, 2, 4, 1, 5]>(a)
            y = Reshape(b, three)
        }
        """
    )
    inputs = [[np.random.default_rng(0).random((1, 2, n), dtype=np.float32)] for n in (4, 6)]
    module = onnx2nn.load(model)
    assert onnx2nn.to_ncnn(module, tmp_path / "fixed", example_inputs=inputs[0]).fp32[0].ok
    with pytest.raises(VerificationError):
        onnx2nn.to_ncnn(module, tmp_path / "open", example_inputs=inputs[0], other_inputs=inputs[1])
    assert not (tmp_path / "open").exists() or not list((tmp_path / "open").iterdir())


DETECTOR = """
<ir_version: 8, opset_import: ["" : 17]>
graph (float[1, 3, 16, 16] images) => (float[1, 5] best, int64[1, 5] where, float[1, 8, 16] boxes)
<float[1] w = {0.0}, int64[2] parts = {8, 1}, int64[3] rows = {1, 9, 16}, int64[2] row = {1, 16}, int64[1] k = {5}>
{
    cells = Conv<strides = [4, 4]>(images, w)
    flat = Reshape(cells, rows)
    boxes, logits = Split<axis = 1>(flat, parts)
    probabilities = Sigmoid(logits)
    scores = Reshape(probabilities, row)
    best, where = TopK(scores, k)
}
"""


def test_detector_is_cut_in_front_of_the_choice_of_boxes(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(DETECTOR)
    weight = np.random.default_rng(0).standard_normal((9, 3, 4, 4), dtype=np.float32)
    del model.graph.initializer[[value.name for value in model.graph.initializer].index("w")]
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    onnx.save(model, tmp_path / "detector.onnx")
    with pytest.raises(NcnnError, match="TopK"):
        onnx2nn.to_ncnn(onnx2nn.load(tmp_path / "detector.onnx"), tmp_path / "whole")
    onnx.utils.extract_model(tmp_path / "detector.onnx", tmp_path / "heads.onnx", ["images"], ["boxes", "scores"])
    _check(onnx2nn.to_ncnn(onnx2nn.load(tmp_path / "heads.onnx"), tmp_path / "heads"))
