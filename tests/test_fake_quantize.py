"""Pairs of QuantizeLinear and DequantizeLinear are layers that compute the same numbers, and can be trained."""

from __future__ import annotations

import copy
import io
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from torch import nn
from torch.ao import quantization

import onnx2nn
from onnx2nn.layers import FakeQuantize
from tests.realmodels import run_onnxruntime

TYPES = {
    np.uint8: TensorProto.UINT8,
    np.int8: TensorProto.INT8,
    np.uint16: TensorProto.UINT16,
    np.int16: TensorProto.INT16,
}


def pair(
    scale: Any, zero_point: Any, *, shape: list[Any], axis: int | None = None, back: Any = None, also: bool = False
) -> onnx.ModelProto:
    """Returns a model of a pair of a scale and a zero point, a NumPy value each; zero_point None: there is none.

    Args:
        scale, zero_point: of the pair.
        shape: of the input.
        axis: of several scales.
        back: the scale of the DequantizeLinear; None: the same.
        also: whether the integers are an output too.
    """
    kind = TYPES[type(zero_point)] if isinstance(zero_point, np.generic) else TensorProto.UINT8
    kind = TYPES[zero_point.dtype.type] if isinstance(zero_point, np.ndarray) else kind
    arrays = {"scale": np.asarray(scale), "back": np.asarray(scale if back is None else back)}
    arrays |= {} if zero_point is None else {"zero": np.asarray(zero_point)}
    rest, options = ["zero"] * ("zero" in arrays), {} if axis is None else {"axis": axis}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", *rest], ["q"], "quantise", **options),
        helper.make_node("DequantizeLinear", ["q", "back", *rest], ["y"], "dequantise", **options),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)]
    outputs += [helper.make_tensor_value_info("q", kind, shape)] * also
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        outputs,
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def layers(module: nn.Module) -> list[FakeQuantize]:
    """Returns the layers of a module."""
    return [inner for inner in module.modules() if type(inner) is FakeQuantize]


def bits(values: torch.Tensor) -> torch.Tensor:
    """Returns the bits of floats, so that 0.0 and -0.0 differ."""
    return values.view(torch.int32)


@settings(max_examples=150, deadline=None)
@given(
    data=st.data(),
    kind=st.sampled_from([*TYPES]),
    scale=st.floats(2**-20, 2**20, width=32),
    zeros=st.booleans(),
    channels=st.sampled_from([None, 1, 3]),
)
def test_a_layer_computes_the_numbers_of_onnx_runtime(
    data: st.DataObject, kind: Any, scale: float, zeros: bool, channels: int | None
) -> None:
    """To the last bit, also where a quotient lies in the middle of two integers, and for what is no number."""
    info = np.iinfo(kind)
    points = st.just(0) if zeros else st.integers(int(info.min), int(info.max))
    several = channels == 3
    count = 3 if several else 1
    scales = np.float32(scale) * data.draw(
        st.lists(st.floats(0.25, 4, width=32), min_size=count, max_size=count).map(lambda v: np.array(v, np.float32))
    )
    zero_points = np.array(data.draw(st.lists(points, min_size=count, max_size=count)), kind)
    if channels is None:
        scales, zero_points = scales.reshape(()), zero_points.reshape(())
    model = pair(scales, zero_points, shape=["n", 3], axis=1 if several else None)
    module = onnx2nn.load(model)
    (layer,) = layers(module)
    assert layer.axis == (1 if several else None)
    levels = st.one_of(st.integers(-70_000, 70_000).map(lambda n: n / 2), st.floats(width=32))
    steps = np.array(data.draw(st.lists(levels, min_size=30, max_size=30)), np.float32).reshape(10, 3)
    with np.errstate(over="ignore"):
        x = torch.from_numpy(steps * np.broadcast_to(scales, (10, 3)) if data.draw(st.booleans()) else steps)
    (expected,) = run_onnxruntime(model.SerializeToString(), [x])
    assert torch.equal(bits(module(x)), bits(torch.as_tensor(expected)))
    needed = x.clone().requires_grad_()  # rounded by another function
    assert torch.equal(bits(module(needed).detach()), bits(torch.as_tensor(expected)))


def test_what_is_no_pair_stays_calls() -> None:
    """Of two scales, and of a type that is not float32."""
    x = torch.randn(2, 3) * 4
    model = pair(np.float32(0.05), np.uint8(7), shape=["n", 3], back=np.float32(0.1))
    module = onnx2nn.load(model)
    assert not layers(module)
    assert torch.equal(module(x), torch.as_tensor(run_onnxruntime(model.SerializeToString(), [x])[0]))
    model = pair(np.float32(0.05), np.uint8(7), shape=["n", 3], also=True)
    module = onnx2nn.load(model)
    assert len(layers(module)) == 1  # beside the calls that give the integers
    for found, expected in zip(module(x), run_onnxruntime(model.SerializeToString(), [x]), strict=True):
        assert torch.equal(found, torch.as_tensor(expected))


class Network(nn.Module):
    """A network that torch.ao prepares for a training that knows of quantisation."""

    def __init__(self) -> None:
        super().__init__()
        self.quant = quantization.QuantStub()
        self.conv = nn.Conv2d(3, 8, 3)
        self.relu = nn.ReLU()
        self.fc = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns `(N, 4)` for images `(N, 3, H, W)`."""
        return self.fc(self.relu(self.conv(self.quant(x))).mean((2, 3)))


class Residual(nn.Module):
    """A block of modules of which each rounds its result."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.act, self.norm = nn.Conv2d(8, 8, 3, padding=1), nn.ELU(), nn.BatchNorm2d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns `(N, 8, H, W)` for `(N, 8, H, W)`."""
        return x + self.norm(self.act(self.conv(x)))


class Nested(Network):
    """A network of blocks, and of a layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Residual(), Residual())
        self.twice, self.hard = nn.Conv2d(8, 8, 1), nn.Hardswish()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns `(N, 4)` for images `(N, 3, H, W)`."""
        x = self.blocks(self.relu(self.conv(self.quant(x))))
        return self.fc(self.hard(self.twice(self.twice(x))).mean((2, 3)))


def _trained(network: nn.Module, path: Path) -> tuple[nn.Module, Path]:
    """Returns a network with torch's own `FakeQuantize`, and a file of it."""
    activations = quantization.FakeQuantize.with_args(
        observer=quantization.MovingAverageMinMaxObserver, quant_min=0, quant_max=255
    )
    network.qconfig = quantization.QConfig(
        activation=activations, weight=quantization.default_per_channel_weight_fake_quant
    )
    quantization.prepare_qat(network.train(), inplace=True)
    for _ in range(3):
        network(torch.randn(4, 3, 8, 8))
    network.eval().apply(quantization.disable_observer)
    options: dict[str, Any] = {"dynamo": False, "opset_version": 17, "do_constant_folding": False}
    torch.onnx.export(network, (torch.randn(2, 3, 8, 8),), str(path), input_names=["x"], **options)
    return network, path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, Path]:
    """Returns a network of a few layers, and a file of it."""
    torch.manual_seed(0)
    return _trained(Network(), tmp_path_factory.mktemp("trained") / "network.onnx")


@pytest.fixture(scope="module")
def nested(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, Path]:
    """Returns a network of blocks, and a file of it."""
    torch.manual_seed(0)
    return _trained(Nested(), tmp_path_factory.mktemp("nested") / "network.onnx")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[None, Path]:
    """The file of a tool that notes no modules: the scale is no part of a state."""
    path = tmp_path_factory.mktemp("plain") / "plain.onnx"
    onnx.save(pair(np.float32(0.25), np.uint8(3), shape=["n", 3, 8, 8]), path)
    return None, path


def test_a_network_that_was_trained_so_has_its_layers_and_keys_again(trained: tuple[nn.Module, Path]) -> None:
    original, path = trained
    module = onnx2nn.load(path)
    own = original.state_dict()
    state = module.state_dict()
    missing = {key for key in own if key.rpartition(".")[2] in ("scale", "zero_point", "weight", "bias")} - state.keys()
    assert not missing
    for key, value in state.items():
        assert torch.equal(value, own[key]), key
        assert value.dtype == own[key].dtype, key
    module.load_state_dict({key: value for key, value in own.items() if key in state})
    for name in ("conv.weight_fake_quant", "conv.activation_post_process", "quant.activation_post_process"):
        assert type(module.get_submodule(name)) is FakeQuantize
    assert module.get_submodule("conv.weight_fake_quant").axis == 0
    x = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(module(x), original(x))


def _noted(network: nn.Module, names: list[str], x: torch.Tensor) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
    """Returns what hooks see of a call of a network: the names, arguments and results of its modules."""
    found: list[tuple[str, torch.Tensor, torch.Tensor]] = []
    hooks = [
        network.get_submodule(name).register_forward_hook(
            lambda _, given, result, name=name: found.append((name, given[0], result))
        )
        for name in names
    ]
    with torch.no_grad():
        network(x)
    for hook in hooks:
        hook.remove()
    return found


def test_a_module_rounds_its_result(nested: tuple[nn.Module, Path]) -> None:
    """As the original does in a hook of the module, which the file names as a call by the module around it."""
    original, path = nested
    module = onnx2nn.load(path)
    assert module.state_dict().keys() <= original.state_dict().keys()
    assert "entered" not in module.meta["onnx2nn"]["tree"]
    assert "activation_post_process" not in module.code
    names = [name for name, _ in original.named_modules() if name and name in dict(module.named_modules())]
    x = torch.randn(2, 3, 8, 8)
    theirs, ours = _noted(original, names, x), _noted(module, names, x)
    assert [name for name, *_ in ours] == [name for name, *_ in theirs]
    assert [name for name, *_ in theirs].count("twice") == 2
    for name, argument, result in theirs:
        held = module.get_submodule(name)
        with torch.no_grad():
            found = held(argument)
        quantiser = getattr(held, "activation_post_process", None)
        assert quantiser is None or torch.equal(quantiser(found), found), name
        # A quotient in the middle of two integers may be rounded otherwise, as is that of a channel's largest weight.
        level = max((float(layer.scale.max()) for layer in layers(held)), default=0)
        assert (found - result).abs().max() <= 2.01 * level, name
    assert onnx2nn.verify_nodes(path, module).ok


def test_it_is_trained_on(trained: tuple[nn.Module, Path]) -> None:
    """With the gradients of torch's own layers."""
    original, path = copy.deepcopy(trained[0]), trained[1]
    module = onnx2nn.load(path)
    x = torch.randn(2, 3, 8, 8)
    original(x).square().sum().backward()
    module(x).square().sum().backward()
    gradients = {name: parameter.grad for name, parameter in original.named_parameters()}
    assert {name for name, _ in module.named_parameters()} == gradients.keys()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None
        expected = gradients[name].clone()
        if name.endswith("weight"):  # torch's product with the reciprocal rounds a quotient in the middle otherwise
            layer = module.get_submodule(name.rpartition(".")[0] + ".weight_fake_quant")
            quotients = parameter / layer.scale.reshape([-1] + [1] * (parameter.ndim - 1))
            middle = ((quotients - quotients.floor()) - 0.5).abs() < 1e-4
            assert middle.sum() <= len(parameter)  # the largest weight of each channel
            expected[middle] = parameter.grad[middle]
        torch.testing.assert_close(parameter.grad, expected, rtol=1e-4, atol=1e-5)
        assert parameter.grad.abs().sum() > 0, name


def test_weights_are_rounded_once_for_inference(trained: tuple[nn.Module, Path]) -> None:
    literal, module = onnx2nn.load(trained[1]), onnx2nn.load(trained[1], optimize="eager")
    assert len(layers(literal)) == 5
    assert len(layers(module)) == 3
    assert {"conv.weight", "fc.weight"} <= module.state_dict().keys()
    x = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(module(x), literal(x))


@pytest.mark.parametrize("network", ["trained", "nested", "plain"])
def test_all_ways_on(network: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    trained = request.getfixturevalue(network)
    module, x = onnx2nn.load(trained[1]), torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        expected = module(x)
        buffer = io.BytesIO()
        torch.save(module, buffer)
        buffer.seek(0)
        onnx2nn.export_onnx(module, tmp_path / "again.onnx")
        again = onnx2nn.load(tmp_path / "again.onnx")
        onnx2nn.to_python(trained[1], tmp_path / "source")
        source = runpy.run_path(str(tmp_path / "source" / "model.py"))["load_model"]()
        assert source.state_dict().keys() == module.state_dict().keys()
        ways: dict[str, Any] = {
            "copy": copy.deepcopy(module),
            "pickle": torch.load(buffer, weights_only=False),
            "trace": torch.jit.trace(module, (x,)),
            "torch.export": torch.export.export(module, (x,)).module(),
            "torch.compile": torch.compile(module, backend="eager", fullgraph=True),
            "symbolic_trace": torch.fx.symbolic_trace(module),
            "export_onnx": again,
            "to_python": source,
            "optimize": onnx2nn.load(trained[1], optimize="eager"),
        }
        for name, way in ways.items():
            torch.testing.assert_close(way(x), expected, msg=name)
        for layer in layers(module):
            given = torch.randn(layer.channels or 2, 3, 5) * 9
            assert torch.equal(torch.jit.script(layer)(given), layer(given))
        one = layers(module)[0]
        rows = torch.randn(4, 3, 8, 8)
        assert torch.equal(torch.func.vmap(one)(rows), one(rows))
    assert {key: value.shape for key, value in again.state_dict().items()} == {
        key: value.shape for key, value in module.state_dict().items()
    }
    assert len(layers(again)) == len(layers(module))
    for operator in ("QuantizeLinear", "DequantizeLinear"):
        written = [node for node in onnx.load(tmp_path / "again.onnx").graph.node if node.op_type == operator]
        assert len({node.input[1] for node in written}) == len(layers(module))  # the scales
