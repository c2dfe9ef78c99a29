"""A layer whose weight is stored as `(inputs, outputs)`, like GPT-2's Conv1D, comes back as `onnx2nn.layers.Conv1D`.

Such layers, and the linear ones of other frameworks, are called on tensors where files call them on rows.
"""

from __future__ import annotations

import pickletools
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
import torch
from onnx import numpy_helper
from realmodels import EXPORTERS, check_against_onnxruntime, check_same, check_travels, export_dynamo, run, seeded
from torch import nn

import onnx2nn
from onnx2nn.fx.blocks.flattening import flattened
from onnx2nn.layers import Conv1D
from scripts import torchvision_schemas


class Projection(nn.Module):
    """What an author writes: `addmm` on the rows of a tensor.

    Args:
        outputs: features of the result.
        inputs: features of the input.
    """

    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__()
        self.outputs = outputs
        self.weight = nn.Parameter(torch.randn(inputs, outputs))
        self.bias = nn.Parameter(torch.randn(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = x.size()[:-1] + (self.outputs,)  # noqa: RUF005, torch.Size has no other way
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(size)


class Projected(nn.Module):
    """A square projection, called twice; one of joined heads, whose two reshapes an exporter joins; one of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.square, self.wide, self.heads, self.rows = (Projection(*size) for size in ((6, 6), (9, 6), (5, 9), (4, 5)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = self.wide(torch.tanh(self.square(torch.tanh(self.square(x)))))
        heads = wide.reshape(*wide.shape[:2], 3, 3).softmax(-1)
        joined = self.heads(heads.reshape(*wide.shape[:2], 9)).relu()
        return self.rows(joined.flatten(0, 1)).unflatten(0, x.shape[:2]) + 1


class Attending(nn.Module):
    """Pairs of projections, the second of joined heads: its rows' shape is a constant that other layers use too."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Projection(6, 6) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for index in (0, 2):
            heads = self.layers[index](x).reshape(*x.shape[:2], 2, 3).transpose(1, 2).softmax(-1).transpose(1, 2)
            x = self.layers[index + 1](heads.reshape(*x.shape[:2], 6))
        return x


INPUTS = {size: (torch.linspace(-2, 3, size * (size + 3) * 6).reshape(size, size + 3, 6),) for size in (1, 2, 3)}
SHAPES = {"square": (2, 5, 6), "wide": (2, 5, 6), "heads": (2, 5, 9), "rows": (10, 5)}


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_the_shape_of_the_rows_is_not_held(exporter: str) -> None:
    """It is a constant of the layer's scope that nothing reads; Opacus refuses layers with buffers."""
    path = EXPORTERS[exporter]("conv1d-attending", seeded(Attending), INPUTS[2], INPUTS[3])
    module = onnx2nn.load(path)
    assert [type(layer) for layer in module.layers] == [Conv1D] * 4
    assert not list(module.named_buffers())


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_the_layer(exporter: str, tmp_path: Path) -> None:
    """Its weight has the author's key and layout, its input the author's shape; it travels as other layers do."""
    original = seeded(Projected)
    path = EXPORTERS[exporter]("conv1d", original, INPUTS[2], INPUTS[3])
    module = onnx2nn.load(path)
    layers = {name: layer for name, layer in module.named_modules() if isinstance(layer, Conv1D)}
    assert {name: repr(layer) for name, layer in layers.items()} == {
        "square": "Conv1D(nf=6, nx=6)",
        "wide": "Conv1D(nf=9, nx=6)",
        "heads": "Conv1D(nf=5, nx=9)",
        "rows": "Conv1D(nf=4, nx=5)",
    }
    assert {key: value.shape for key, value in module.named_parameters()} == {
        key: value.shape for key, value in original.named_parameters()
    }
    for size, inputs in INPUTS.items():
        outputs = check_against_onnxruntime(path, module, inputs)
        check_same(outputs, run(original, inputs), f"at size {size}")
    shapes: dict[str, list[tuple[int, ...]]] = {}
    for name, layer in layers.items():
        layer.register_forward_hook(lambda _, given, __, name=name: shapes.setdefault(name, []).append(given[0].shape))
    run(module, INPUTS[2])
    reshapes = [node for node in flattened(module).graph.nodes if node.target in ("reshape", "view", "flatten")]
    assert len(reshapes) == 4, module.code  # of the heads, joined, to rows and back
    assert shapes == {name: [shape] * (1 + (name == "square")) for name, shape in SHAPES.items()}
    fresh = seeded(Projected, 1)
    fresh.load_state_dict(module.state_dict())
    check_same(run(fresh, INPUTS[2]), run(original, INPUTS[2]), "the author's model with the import's state")
    assert onnx2nn.verify_nodes(path, onnx2nn.load(path), input_shapes={"x": (2, 5, 6)}).ok


def test_travels() -> None:
    original = seeded(Projected)
    path = export_dynamo("conv1d", original, INPUTS[2], INPUTS[3])
    module = onnx2nn.load(path)
    check_travels(module, INPUTS[2], INPUTS[3])
    again = torch.fx.symbolic_trace(module)
    for travelled in (again, torch.jit.script(module)):
        check_same(run(travelled, INPUTS[3]), run(original, INPUTS[3]), type(travelled).__name__)


def test_saved_modules_name_the_public_class(tmp_path: Path) -> None:
    module = onnx2nn.load(export_dynamo("conv1d", seeded(Projected), INPUTS[2], INPUTS[3]))
    onnx2nn.save(module, tmp_path / "model.pth")
    with zipfile.ZipFile(tmp_path / "model.pth") as archive:
        (pickle,) = (name for name in archive.namelist() if name.endswith("data.pkl"))
        named = {str(argument) for op, argument, _ in pickletools.genops(archive.read(pickle)) if op.name == "GLOBAL"}
    assert {name for name in named if name.startswith("onnx2nn")} == {"onnx2nn.layers Conv1D"}


def test_written_source_needs_torch_alone(tmp_path: Path) -> None:
    original = seeded(Projected)
    path = export_dynamo("conv1d", original, INPUTS[2], INPUTS[3])
    onnx2nn.to_python(path, tmp_path / "source")
    torch.save((INPUTS[3][0], run(original, INPUTS[3])[0]), tmp_path / "case.pt")
    program = (
        "import sys, torch, model\nx, expected = torch.load('../case.pt')\nfound = model.load_model()\n"
        "torch.testing.assert_close(found(x), expected)\nassert not any(m.startswith('onnx2nn') for m in sys.modules)\n"
        "print(found.wide)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path / "source", capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "Conv1D(nf=9, nx=6)\n", done.stderr


@pytest.mark.slow
def test_lora() -> None:
    """PEFT takes the layer where its config says so."""
    torchvision_schemas.predefine()
    peft = pytest.importorskip("peft")
    original = seeded(Projected)
    config = peft.LoraConfig(r=2, target_modules=["wide"], fan_in_fan_out=True, init_lora_weights=False)
    config._register_custom_module({Conv1D: peft.tuners.lora.Linear})
    module = onnx2nn.load(export_dynamo("conv1d", original, INPUTS[2], INPUTS[3]))
    with pytest.warns(UserWarning, match="Unsupported layer type"):
        adapted = peft.get_peft_model(module, config)
    outputs = run(adapted, INPUTS[2])
    assert not torch.allclose(outputs[0], run(original, INPUTS[2])[0])
    check_same(run(adapted.merge_and_unload(), INPUTS[2]), outputs, "merged")
    assert isinstance(module.wide, Conv1D)


@pytest.mark.parametrize(("shape", "joined"), [((2, 3, 4), True), ((2, 3, 2, 2), False)])
def test_a_file_without_scopes(shape: tuple[int, ...], joined: bool) -> None:
    """The layer takes a tensor of any rank where it gives the result the shape before, else rows."""
    weight = onnx.numpy_helper.from_array(torch.randn(4, 5).numpy(), "block.proj.weight")
    bias = onnx.numpy_helper.from_array(torch.randn(5).numpy(), "block.proj.bias")
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g (float{list(shape)} x) => (float[2, 3, 5] y) '
        "<int64[2] rows = {-1, 4}, int64[3] sizes = {2, 3, 5}> "
        "{ r = Reshape(x, rows) g = Gemm(r, weight, bias) y = Reshape(g, sizes) }"
    )
    model.producer_name = "pytorch"  # its names are keys
    model.graph.initializer.extend([weight, bias])
    model.graph.node[1].input[1:] = [weight.name, bias.name]
    module = onnx2nn.load(model)
    assert isinstance(module.block.proj, Conv1D)
    calls = [node.target for node in flattened(module).graph.nodes if node.op != "placeholder"]
    assert calls == (["block.proj", "output"] if joined else ["reshape", "block.proj", "reshape", "output"])
    check_against_onnxruntime(model.SerializeToString(), module, (torch.randn(shape),))


@pytest.mark.parametrize("heads", [False, True])
def test_a_dense_layer_on_rows_is_a_linear_layer_on_the_tensor(heads: bool) -> None:
    """As JAX's and TensorFlow's are written: rows, a product with a bias, and a shape that no rows have."""
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17]>
        graph (float[n, 3, {"2, 2" if heads else "4"}] x) => (float[n, 3, 5, 1] z, float[n, 3, 5] y)
        <int64[2] rows = {{-1, 4}}, int64[3] tail = {{-1, 3, 5}}, int64[4] heads = {{-1, 3, 5, 1}},
        int64[2] out = {{-1, 5}}> {{
            a = Reshape(x, rows) b = Gemm(a, w, c) y = Reshape(b, tail)
            s = Sigmoid(y) d = Reshape(s, out) e = Gemm(d, v, c) z = Reshape(e, heads) }}""")
    generator = np.random.default_rng(0)
    for name, shape in (("w", (4, 5)), ("v", (5, 5)), ("c", (5,))):
        array = generator.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    module, given = onnx2nn.load(model), torch.randn(2, 3, *((2, 2) if heads else (4,)))
    layers = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    ranks = list[int]()
    for layer in layers:
        layer.register_forward_hook(lambda layer, args, result: ranks.append(result.ndim))
    check_against_onnxruntime(model.SerializeToString(), module, (given,))
    assert ranks == [3, 3] and module.code.count(".reshape(") == heads


def test_a_dense_layer_whose_rows_others_read_stays_on_rows() -> None:
    """It would be called twice."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        graph (float[n, 3, 4] x) => (float[n, 3, 5] y, float[m, 5] r)
        <int64[2] rows = {-1, 4}, int64[3] tail = {-1, 3, 5}> {
            a = Reshape(x, rows) b = Gemm(a, w) y = Reshape(b, tail) r = Relu(b) }""")
    model.graph.initializer.append(numpy_helper.from_array(np.ones((4, 5), np.float32), "w"))
    module = onnx2nn.load(model)
    assert sum(node.op == "call_module" for node in module.graph.nodes) == 1
    check_against_onnxruntime(model.SerializeToString(), module, (torch.randn(2, 3, 4),))
