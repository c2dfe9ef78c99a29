"""ONNX → module → ONNX → module: same outputs, names and dynamic dimensions; compared before a file appears."""

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from realmodels import (
    as_tuple,
    check_against_onnxruntime,
    check_same,
    export_dynamo,
    export_torchscript,
    run,
    run_onnxruntime,
    seeded,
)
from tiers import mostly_slow
from torch import nn

import onnx2nn
from onnx2nn.errors import InputError, MissingDependencyError, VerificationError
from onnx2nn.importing import inputs as model_inputs
from onnx2nn.output import large_values, trace_examples
from onnx2nn.output.checked_sizes import refused_sizes
from onnx2nn.output.save import one_sided
from onnx2nn.output.wide_traces import captured, unchecked_runs

DIGITS = Path(__file__).parents[1] / "examples" / "digits" / "digits.onnx"

SCALE = """
<ir_version: 8, opset_import: ["" : 17]>
graph (float[n, 3] x, float[3] data) => (float[n, 3] y) <float[3] w = {1.0, -2.0, 3.0}>
{ ["scaled"] m = Mul(x, w) ["shifted"] s = Add(m, data) ["cut/off"] y = Relu(s) }
"""


class Attention(nn.Module):
    """Two dynamic dimensions, matrices in three roles, a layer norm, and a weight used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
        self.head = nn.Linear(16, 11, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(self.table(tokens)))


class Recurrent(nn.Module):
    """A stack of two bidirectional layers with their states."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(6, 5, num_layers=2, bidirectional=True)

    def forward(self, x: torch.Tensor, hidden: torch.Tensor, cell: torch.Tensor) -> torch.Tensor:
        return self.rnn(x, (hidden, cell))[0]


class Convolutions(nn.Module):
    """Convolutions with and without bias, a transposed one, and a batch norm that is trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.wide = nn.Conv2d(8, 8, 3, groups=8, bias=False)
        self.up = nn.ConvTranspose2d(8, 2, 2, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.up(torch.nn.functional.silu(self.wide(torch.relu(self.norm(self.first(x))))))


def _twice(*shape: int) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """Inputs at two sizes of the first dimension."""
    generator = torch.Generator().manual_seed(0)
    return tuple((torch.randn(n, *shape[1:], generator=generator),) for n in (shape[0], shape[0] + 3))


def _file(name: str) -> tuple[Path, tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    if name == "keras_digits":
        one, other = ((8 + 4 * torch.randn(n, 8, 8, 1),) for n in (2, 5))
        return DIGITS, one, other
    if name == "attention":
        one, other = ((torch.arange(a * b).reshape(a, b) % 11,) for a, b in ((2, 5), (3, 9)))
        return export_dynamo("export_attention", seeded(Attention), one, other), one, other
    if name == "recurrent":
        one, other = (
            tuple(torch.linspace(-1, 1, k * n * m).reshape(k, n, m) for k, m in ((3, 6), (4, 5), (4, 5)))
            for n in (4, 7)
        )
        return export_torchscript("export_recurrent", seeded(Recurrent), one, other), one, other
    one, other = _twice(2, 3, 8, 8)
    return export_dynamo("export_convolutions", seeded(Convolutions), one, other), one, other


def _dimensions(path: Path) -> dict[str, list[str | int]]:
    graph = onnx.load(str(path), load_external_data=False).graph
    values = [*graph.input, *graph.output]
    return {v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in values}


@pytest.mark.parametrize(
    "name", mostly_slow(["keras_digits", "attention", "recurrent", "convolutions"], ["keras_digits", "recurrent"])
)
def test_way_there_and_back_is_stable(name: str, tmp_path: Path) -> None:
    path, one, other = _file(name)
    module, again = onnx2nn.load(path), tmp_path / "again.onnx"
    told = onnx2nn.export_onnx(module, again)
    assert "agrees with ONNX Runtime" in told and "\n" not in told
    onnx.checker.check_model(str(again), full_check=True)

    assert _dimensions(again) == _dimensions(path)
    back = onnx2nn.load(again)
    weights, returned = module.state_dict(), back.state_dict()
    assert set(returned) == set(weights)
    for key, weight in weights.items():
        assert torch.equal(returned[key], weight), key
    assert {key for key, _ in back.named_parameters()} == {key for key, _ in module.named_parameters()}
    for inputs in (one, other):
        check_same(check_against_onnxruntime(again, back, inputs), run(module, inputs), "after the way there and back")

    if name == "recurrent":  # torch.onnx.export slices the states for each layer, also where there is only one left
        return
    third = tmp_path / "third.onnx"  # now nothing moves any more
    onnx2nn.export_onnx(back, third)
    assert [operator for operator, _ in _names(third)] == [operator for operator, _ in _names(again)]


def _names(path: Path) -> list[tuple[str, str]]:
    return [(node.op_type, node.name) for node in onnx.load(str(path), load_external_data=False).graph.node]


def test_every_operator_keeps_its_name(tmp_path: Path) -> None:
    """Operators that are one in torch too appear under the file's name; shapes are all that the exporter may add."""
    names, written = ({n: o for o, n in _names(path)} for path in (DIGITS, _exported(DIGITS, tmp_path)))
    for name, operator in names.items():
        if operator == "MatMul":  # with the bias that is added to it, it is one layer of their common scope
            name = name.replace("MatMul", "Linear")
        if operator in ("Conv", "Gemm", "MatMul", "Relu", "Softmax", "MaxPool", "GlobalAveragePool"):
            assert name in written, f"{operator} {name!r} is gone"
    assert len(written) == len(_names(tmp_path / "written.onnx")), "two nodes have one name"


@pytest.mark.pinned("torch")  # 2.11 lacks the switch
def test_no_lines_of_a_trace_are_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch notes for each call the lines of its own trace, in a fifth of the time, and no file of ours has them."""
    programs = []

    def export(*args: Any, export: Callable[..., Any] = torch.onnx.export, **options: Any) -> Any:
        programs.append(export(*args, **options))
        return programs[-1]

    monkeypatch.setattr(torch.onnx, "export", export)
    _exported(DIGITS, tmp_path)
    (program,) = programs
    calls = [node for node in program.exported_program.graph.nodes if isinstance(node.meta.get("val"), torch.Tensor)]
    assert calls
    assert not [node for node in calls if "stack_trace" in node.meta]  # those of sizes have a line of torch's own
    assert not torch.fx.config.do_not_emit_stack_traces


def _exported(path: Path, folder: Path) -> Path:
    onnx2nn.export_onnx(onnx2nn.load(path), folder / "written.onnx")
    return folder / "written.onnx"


def test_names_that_python_does_not_take(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(SCALE)
    model.graph.input[0].name = model.graph.node[0].input[0] = "data:0"
    model.graph.output[0].name = model.graph.node[2].output[0] = "result/of:0"
    told = onnx2nn.export_onnx(onnx2nn.load(model), tmp_path / "again.onnx")
    assert "dynamic dimensions: n (axis 0 of data:0)" in told
    assert _dimensions(tmp_path / "again.onnx") == {"data:0": ["n", 3], "data": [3], "result/of:0": ["n", 3]}
    assert {"scaled", "shifted", "cut/off"} <= {name for _, name in _names(tmp_path / "again.onnx")}


def test_names_that_an_export_gave_before(tmp_path: Path) -> None:
    """What stands for one node in several is numbered; a file that holds such names already keeps each to one node."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        graph (float[n, 3] x) => (float[n, 3] y)
        { ["h"] a = Celu<alpha = 2.0>(x) ["h/Div"] b = Neg(a) ["h/Div_1"] c = Abs(b) ["node_neg"] y = Neg(c) }
    """)
    onnx2nn.export_onnx(onnx2nn.load(model), tmp_path / "again.onnx")
    names = [name for _, name in _names(tmp_path / "again.onnx")]
    assert len(names) == len(set(names))
    assert {"h", "h/Div", "h/Div_1", "node_neg"} <= set(names)


@pytest.mark.parametrize("name", ["neg", "mul"])
@pytest.mark.parametrize("held", ["float[3] NAME = {1.0, 2.0, 3.0}", "float[3] other = {1.0, 2.0, 3.0}"])
def test_a_weight_or_input_called_as_the_exporter_calls_a_value(name: str, held: str, tmp_path: Path) -> None:
    """torch gives the placeholder of a weight the notes of the call with its name, and refuses other notes on it."""
    text = """
        <ir_version: 8, opset_import: ["" : 17]>
        graph (float[n, 3] x) => (float[n, 3] y) <HELD>
        { ["one"] a = Mul(x, NAME) ["two"] b = Neg(a) ["three"] c = Relu(b) ["four"] y = Neg(c) }
    """
    if "other" in held:
        text = text.replace("NAME", "other").replace("(x,", "(NAME,").replace(" x)", " NAME)")
    model = onnx.parser.parse_model(text.replace("HELD", held).replace("NAME", name))
    assert "agrees with ONNX Runtime" in onnx2nn.export_onnx(onnx2nn.load(model), tmp_path / "again.onnx")
    assert [name for _, name in _names(tmp_path / "again.onnx")] == ["one", "two", "three", "four"]


PYRAMID = """
<ir_version: 8, opset_import: ["" : 17]>
graph (float[n, 1, h, w] x) => (float[n, 1, a, b] y)
<float[1, 1, 1, 1] k = {2.0}, float[4] twice = {1.0, 1.0, 2.0, 2.0}>
{ fine = Conv<strides = [8, 8]>(x, k) rough = Conv<strides = [2, 2]>(fine, k)
  large = Resize<mode = "nearest">(rough, , twice) y = Add(fine, large) }
"""


def test_output_called_as_the_exporter_calls_another_value(tmp_path: Path) -> None:
    """A value is called `linear` after its operator; keras2onnx, too, calls outputs `conv2d_4` and `softmax`."""
    generator = np.random.default_rng(0)
    weight, bias = (generator.standard_normal(shape).astype(np.float32) for shape in ((4, 3), 4))
    nodes = [
        onnx.helper.make_node("Gemm", ["x", "first.weight", "first.bias"], ["a"], transB=1),
        onnx.helper.make_node("Transpose", ["a"], ["linear"]),
        onnx.helper.make_node("Softmax", ["a"], ["last"]),
    ]
    shapes = {"x": ["n", 3], "linear": [4, "n"], "last": ["n", 4]}
    x, *outputs = (onnx.helper.make_tensor_value_info(name, 1, shape) for name, shape in shapes.items())
    state = [onnx.numpy_helper.from_array(weight, "first.weight"), onnx.numpy_helper.from_array(bias, "first.bias")]
    graph = onnx.helper.make_graph(nodes, "g", [x], outputs, state)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    module = onnx2nn.load(model)
    assert set(module.state_dict()) == {"first.weight", "first.bias"}
    assert "agrees" in onnx2nn.export_onnx(module, tmp_path / "again.onnx")
    again = onnx.load(tmp_path / "again.onnx")
    assert [value.name for value in again.graph.output] == ["linear", "last"]
    names = [name for node in again.graph.node for name in node.output]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("largest", [0, 1])
def test_equal_values_keep_their_order(largest: int, tmp_path: Path) -> None:
    """TopK is imported as a stable sort, for which torch's exporter has no operator."""
    text = f"v, i = TopK<axis = 1, largest = {largest}>(x, k)"
    module = onnx2nn.load(
        onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["": 17]> g (float[N, 9, M] x) => (float[N, 4, M] v, int64[N, 4, M] i)'
            f" <int64[1] k = {{4}}> {{ {text} }}"
        )
    )
    path = tmp_path / "again.onnx"
    onnx2nn.export_onnx(module, path)
    again = onnx2nn.load(path)
    x = torch.randint(0, 3, (5, 9, 7), generator=torch.Generator().manual_seed(0)).float()
    for one, other in zip(module(x), again(x), strict=True):
        assert torch.equal(one, other)


class Held(nn.Module):
    """An imported module as a part of another one."""

    def __init__(self, part: nn.Module):
        super().__init__()
        self.part = part

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(x=x * 1.0)


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("dynamo", [False, True])
def test_torch_exports_a_stable_sort(dynamo: bool, held: bool, tmp_path: Path) -> None:
    """torch.onnx.export itself writes TopK too, though torch's stable sort is not among what it knows."""
    module = onnx2nn.load(
        onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["": 17]> g (float[N, 9] x) => (float[N, 4] v, int64[N, 4] i)'
            " <int64[1] k = {4}> { v, i = TopK<axis = 1>(x, k) }"
        )
    )
    code = module.code
    first, second = (torch.randint(0, 3, (n, 9)).float() for n in (2, 5))
    path, model = tmp_path / "again.onnx", Held(module).eval() if held else module
    if dynamo:
        batch = {0: torch.export.Dim.DYNAMIC}
        torch.onnx.export(model, (first,), path, dynamo=True, verbose=False, dynamic_shapes=(batch,))
    else:
        torch.onnx.export(
            model,
            (first,),
            path,
            dynamo=False,
            opset_version=17,
            input_names=["x"],
            output_names=["v", "i"],
            dynamic_axes={"x": {0: "N"}},
        )
    assert module.code == code and ("sort", True) in {(n.target, n.kwargs.get("stable")) for n in module.graph.nodes}
    check_same(run_onnxruntime(path, (second,)), module(second), "what torch.onnx.export wrote")


def test_hooks_of_a_part_run_while_torch_exports(tmp_path: Path) -> None:
    """The caller's own, and that which takes inputs by the names of the file."""
    part = onnx2nn.load(
        onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["": 17]> g (float[N, 3] "x.1") => (float[N, 3] y) { y = Relu("x.1") }'
        )
    )
    part.register_forward_hook(lambda module, inputs, output: output + 1)

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = part

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.part(**{"x.1": x})

    x = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
    torch.onnx.export(Whole().eval(), (x,), tmp_path / "whole.onnx", dynamo=True, verbose=False)
    check_same(run_onnxruntime(tmp_path / "whole.onnx", (x,)), (x.relu() + 1,), "with hooks")
    torch.testing.assert_close(part(x), x.relu() + 1)


def test_the_older_exporter_takes_several_squeezed_dimensions(tmp_path: Path) -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        squeezed (float[1, n, 1, 3] x) => (float[n, 3] y) <int64[2] axes = {0, -2}> { y = Squeeze (x, axes) }
    """)
    module, path = onnx2nn.load(model), tmp_path / "older.onnx"
    torch.onnx.export(
        module, (torch.ones(1, 2, 1, 3),), path, dynamo=False, input_names=["x"], dynamic_axes={"x": {1: "n"}}
    )
    for n in (1, 5):
        x = torch.randn(1, n, 1, 3)
        check_same(run_onnxruntime(path, (x,)), (module(x),), "the older exporter")


class OverTime(nn.Module):
    """A recurrent layer with first states, or without, all of whose outputs go out."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor, *states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y, last = self.layer(x, *([states if len(states) > 1 else states[0]] if states else []))
        return (y, *last) if isinstance(last, tuple) else (y, last)


RECURRENT = {
    "lstm": (lambda: nn.LSTM(4, 3, bidirectional=True), 0),
    "lstm_layers": (lambda: nn.LSTM(4, 3, 2, bidirectional=True, batch_first=True), 2),
    "lstm_without_bias": (lambda: nn.LSTM(4, 3, bias=False), 2),
    "gru": (lambda: nn.GRU(4, 3, bidirectional=True, batch_first=True), 0),
    "gru_layers": (lambda: nn.GRU(4, 3, 2, bidirectional=True), 1),
    "rnn": (lambda: nn.RNN(4, 3, bidirectional=True), 0),
    "rnn_relu": (lambda: nn.RNN(4, 3, nonlinearity="relu", bias=False), 1),
}


@pytest.mark.parametrize("name", mostly_slow(RECURRENT, ["lstm_without_bias", "gru"]))
def test_recurrent_layers_over_any_time(name: str, tmp_path: Path) -> None:
    """torch reads a recurrent layer as a loop of as many steps as it was traced with, and refuses an open number."""
    build, count = RECURRENT[name]
    original = OverTime(seeded(build)).eval()
    layer: Any = original.layer
    rows, generator = layer.num_layers * (1 + layer.bidirectional), torch.Generator().manual_seed(0)

    def inputs(steps: int, batch: int) -> tuple[torch.Tensor, ...]:
        shape = (batch, steps, 4) if layer.batch_first else (steps, batch, 4)
        return tuple(torch.randn(s, generator=generator) for s in (shape, *[(rows, batch, 3)] * count))

    first, second = inputs(5, 2), inputs(7, 3)
    names, batch = ["x", "h", "c"][: 1 + count], 0 if layer.batch_first else 1
    axes = {"x": {1 - batch: "steps", batch: "batch"}, **{state: {1: "batch"} for state in names[1:]}}
    path, again, written = (tmp_path / f"{file}.onnx" for file in ("there", "again", "written"))
    torch.onnx.export(original, first, path, dynamo=False, input_names=names, dynamic_axes=axes, opset_version=17)
    module = onnx2nn.load(path)
    assert type(layer).__name__ in {type(part).__name__ for part in module.modules()}
    check_against_onnxruntime(path, module, second)
    onnx2nn.export_onnx(module, again)
    check_against_onnxruntime(again, module, second)
    back = onnx2nn.load(again)
    assert set(back.state_dict()) == set(module.state_dict())
    check_same(run(back, second), run(module, second), "imported again")
    shapes = tuple(dict.fromkeys(axes[name], torch.export.Dim.DYNAMIC) for name in names)
    torch.onnx.export(module, first, written, dynamo=True, verbose=False, dynamic_shapes=shapes)
    check_against_onnxruntime(written, module, second)


class LayerInBlock(nn.Module):
    """A recurrent layer, or an attention with masked keys, in a module that adds its input, which is in a chain."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not isinstance(self.layer, nn.MultiheadAttention):
            return self.layer(x)[0] + x
        masked = x[:, :, 0] > 0.3
        return self.layer(x, x, x, key_padding_mask=masked, need_weights=False)[0] + x


IN_BLOCKS = {
    "lstm": lambda: nn.LSTM(4, 4, batch_first=True),
    "gru": lambda: nn.GRU(4, 4, batch_first=True),
    "attention": lambda: nn.MultiheadAttention(4, 2, batch_first=True),
}


@pytest.mark.filterwarnings("ignore")  # torch's exporters warn of most models
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("dynamo", [False, True])
@pytest.mark.parametrize("name", IN_BLOCKS)
def test_layers_that_are_written_otherwise_keep_their_places(
    name: str, dynamo: bool, again: bool, tmp_path: Path
) -> None:
    """torch.onnx.export names the modules that it calls; the keys of packed weights follow from these names alone."""
    original = nn.Sequential(nn.Linear(4, 4), seeded(lambda: LayerInBlock(IN_BLOCKS[name]()))).eval()
    x, more = torch.randn(2, 5, 4), torch.randn(3, 5, 4)
    found: nn.Module = original
    for file, newer in ((tmp_path / "first.onnx", dynamo), (tmp_path / "second.onnx", again)):
        sizes: dict[str, Any] = {"dynamic_axes": {"x": {0: "n"}}}
        if newer:
            sizes = {"dynamic_shapes": ({0: torch.export.Dim.DYNAMIC},), "verbose": False}
        torch.onnx.export(found, (x,), file, dynamo=newer, input_names=["x"], **sizes)
        found = onnx2nn.load(file)
        assert set(found.state_dict()) == set(original.state_dict())
        check_same(run(found, (more,)), run(original, (more,)), file.name)


class OverChunks(nn.Module):
    """A recurrent layer on all chunks of all samples, whose number is a multiple of the batch (dual-path networks)."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(4, 3, bidirectional=True, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.flatten(0, 1))[0].unflatten(0, (-1, 3))


@pytest.mark.filterwarnings("ignore")  # torch's exporters warn of most models
@pytest.mark.parametrize("export", [export_torchscript, export_dynamo])
def test_a_recurrent_layer_over_chunks_is_a_layer_again(export: Callable[..., Path], tmp_path: Path) -> None:
    original = seeded(OverChunks).eval()
    first, second = (torch.randn(n, 3, 5, 4) for n in (2, 4))
    module = onnx2nn.load(export("export_over_chunks", original, (first,), (second,)))
    onnx2nn.export_onnx(module, tmp_path / "again.onnx")
    again = onnx2nn.load(tmp_path / "again.onnx")
    for found in (module, again):
        assert isinstance(found.get_submodule("layer"), nn.LSTM)
        assert set(found.state_dict()) == set(original.state_dict())
        check_same(run(found, (second,)), run(original, (second,)), "at another batch")


class MaskedAttention(nn.Module):
    """Attention with a mask of bool, or with one that is added."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask)


@pytest.mark.parametrize("export", [export_torchscript, export_dynamo])
@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_attention_in_which_all_is_masked(export: Callable[..., Path], dtype: torch.dtype, tmp_path: Path) -> None:
    """It gives 0 in torch; from a mask of bool the newer exporter makes an average, and from a float one both NaN."""

    def mask(shown: torch.Tensor) -> torch.Tensor:
        return shown if dtype == torch.bool else torch.zeros(shown.shape).masked_fill(~shown, -torch.inf)

    generator = torch.Generator().manual_seed(0)
    first, second = ((torch.randn(n, 2, 5, 4, generator=generator), mask(torch.rand(n, 1, 5, 5) > 0.5)) for n in (2, 3))
    path = export(f"export_masked_attention_{dtype}", MaskedAttention(), first, second)
    module = onnx2nn.load(path)
    assert "scaled_dot_product_attention" in module.code
    onnx2nn.export_onnx(module, tmp_path / "back.onnx", example_inputs=first)
    some = torch.eye(5, dtype=torch.bool).repeat(3, 1, 1, 1)
    some[1:, :, :2] = False
    for file in (tmp_path / "back.onnx",) if dtype != torch.bool else (path, tmp_path / "back.onnx"):
        check_against_onnxruntime(file, module, (second[0], mask(some)))


ATTENTION = """
<ir_version: 10, opset_import: ["" : 23]>
graph (float[b, 2, s, 4] x, bool[b, 1, s, s] mask, bool[s] kept) => (float[b, 2, s, 4] y) { %s }
"""


@pytest.mark.pinned("onnxruntime")  # an older one gives masked rows means, or NaN
@pytest.mark.parametrize("some", [False, True], ids=["all keys", "keys that data choose"])
def test_operator_attention_in_which_all_is_masked(some: bool, tmp_path: Path) -> None:
    """ONNX's Attention gives 0 there too, also where nobody knows how many keys there are."""
    chosen = "k = Compress<axis = 2>(x, kept) m = Compress<axis = 3>(mask, kept) y = Attention(x, k, k, m)"
    file = onnx.parser.parse_model(ATTENTION % (chosen if some else "y = Attention(x, x, x, mask) n = Not(kept)"))
    module = onnx2nn.load(file)
    assert "scaled_dot_product_attention" in module.code
    onnx2nn.export_onnx(module, tmp_path / "back.onnx")
    mask = torch.eye(5, dtype=torch.bool).repeat(3, 1, 1, 1)
    mask[1:, :, :2] = False
    inputs = (torch.randn(3, 2, 5, 4, generator=torch.Generator().manual_seed(0)), mask, torch.arange(5) < 4)
    expected = run_onnxruntime(file.SerializeToString(), inputs)
    assert not expected[0][1:, :, :2].any()
    check_same(run(module, inputs), expected, "the import")
    check_same(run_onnxruntime(tmp_path / "back.onnx", inputs), expected, "exported again")


class PaddedSequence(nn.Module):
    """A layer of the encoder with padding, and a mask of each kind that nn.MultiheadAttention takes."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.attention = nn.MultiheadAttention(8, 2)

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        mask = {"none": None, "bool": torch.ones(4, 4).triu(1).bool(), "float": torch.ones(6, 4, 4)}[self.kind]
        return self.attention(x, x, x, key_padding_mask=padding, attn_mask=mask, need_weights=False)[0]


@pytest.mark.parametrize("kind", ["none", "bool", "float"])
def test_a_layer_of_attention_in_which_all_is_padding(kind: str, tmp_path: Path) -> None:
    """It gives its bias in torch; torch.onnx.export itself makes NaN of it."""
    x = torch.randn(4, 3, 8, generator=torch.Generator().manual_seed(0))
    padding = torch.tensor([[False] * 4, [False, True, True, True], [True] * 4])
    path = export_torchscript(f"export_padded_{kind}", seeded(lambda: PaddedSequence(kind)), (x, padding))
    module = onnx2nn.load(path)
    assert any(isinstance(layer, nn.MultiheadAttention) for layer in module.modules())
    assert run(module, (x, padding))[0].isfinite().all()
    onnx2nn.export_onnx(module, tmp_path / "back.onnx", example_inputs=(x, padding))
    check_against_onnxruntime(tmp_path / "back.onnx", module, (x, padding))


SEARCHED = {
    "SVMRegressor": """
        y = ai.onnx.ml.SVMRegressor <kernel_type = "RBF", kernel_params = [0.5, 0.0, 3.0], n_supports = 2, rho = [0.25],
            coefficients = [1.5, -0.5], support_vectors = [0.5, 0.25, -1.0, 2.0, 0.0, 1.0]> (x)""",
    "LabelEncoder": """
        y = ai.onnx.ml.LabelEncoder <keys_floats = [2.0, -1.0, 0.5], values_floats = [1.0, 2.0, 3.0],
            default_float = -7.0> (x)""",
}


@pytest.mark.parametrize("operator", SEARCHED)
def test_what_the_exporter_does_not_know_is_written_otherwise(operator: str, tmp_path: Path) -> None:
    module = onnx2nn.load(
        onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["": 17, "ai.onnx.ml": 3]> '
            f"g (float[N, 3] x) => (float[N, M] y) {{ {SEARCHED[operator]} }}"
        )
    )
    x = torch.tensor([[2.0, -1.0, 0.0], [0.5, 3.0, torch.inf]])
    onnx2nn.export_onnx(module, tmp_path / "back.onnx", example_inputs=(x,))
    check_against_onnxruntime(tmp_path / "back.onnx", module, (x[:1, [1, 0, 2]],))


@pytest.mark.parametrize("heads", ["", "2, ", "3, 2, "])
def test_attention_of_other_ranks(heads: str, tmp_path: Path) -> None:
    """nn.MultiheadAttention of PyTorch 1 counts its heads among the batch, Hiera has windows; torch.onnx.export knows
    rank 4 only."""
    rank = 3 + heads.count(",")
    perm = ", ".join(map(str, (*range(rank - 2), rank - 1, rank - 2)))
    module = onnx2nn.load(
        onnx.parser.parse_model(
            f'<ir_version: 8, opset_import: ["": 17]> g (float[N, {heads}5, 4] q, float[N, {heads}7, 4] k, float[N, '
            f"{heads}7, 3] v) => (float[N, {heads}5, 3] y) {{ t = Transpose<perm = [{perm}]>(k) s = MatMul(q, t)"
            " p = Softmax<axis = -1>(s) y = MatMul(p, v) }"
        )
    )
    assert "scaled_dot_product_attention" in module.code
    assert "agrees" in onnx2nn.export_onnx(module, tmp_path / "again.onnx")


@pytest.mark.parametrize("sum_of", ["Add(fine, large)", "Add(rest, large)"])
def test_sizes_at_which_a_one_is_broadcast_do_not_count(sum_of: str, tmp_path: Path) -> None:
    """3 by 4 makes a fine map of 1 by 1, to which the larger rough one is added: that holds for no other size.

    ONNX Runtime keeps a sum in the memory of its operand where the file says that they have the same sizes.
    """
    text = PYRAMID.replace("rough = Conv", "soft = Sigmoid(fine) rest = Sqrt(soft) rough = Conv")
    text = text.replace("y = Add(fine, large)", f"total = {sum_of} y = Tanh(total)")
    module = onnx2nn.load(onnx.parser.parse_model(text))
    onnx2nn.export_onnx(module, tmp_path / "again.onnx")
    assert _dimensions(tmp_path / "again.onnx")["x"] == ["n", 1, "h", "w"]
    inputs = (torch.linspace(-1, 1, 1536).reshape(3, 1, 16, 32),)
    check_against_onnxruntime(tmp_path / "again.onnx", module, inputs)


REFLECTED = """
<ir_version: 8, opset_import: ["" : 18]>
graph (float[n, t] x) => (uint8[m, k] y, float s, uint8 z)
<int64[4] pads = {0, 3, 0, 5}, int64[4] rows = {1, 2, 2, 1}>
{ a = Pad<mode = "reflect">(x, pads) b = Pad<mode = "reflect">(a, rows) y, s, z = DynamicQuantizeLinear(b) }
"""


def test_sizes_at_which_all_is_nan_do_not_count(tmp_path: Path) -> None:
    """The grid is multiplied by `0 / (width // 8)`. GridSample of NaN is NaN in torch, a number in ONNX Runtime."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 16]>
        sampled (float[1, 1, 4, W] x, float[1, 1, 1, 2] grid) => (float[1, 1, 1, 1] y)
        <int64[1] eight = {8}, float zero = {0}> {
            width = Shape<start = 3>(x)
            eighths = Div(width, eight)
            divisor = Cast<to = 1>(eighths)
            nothing = Mul(grid, zero)
            scaled = Div(nothing, divisor)
            y = GridSample<padding_mode = "zeros">(x, scaled)
        }""")
    module = onnx2nn.load(model)
    assert module(torch.rand(1, 1, 4, 2), torch.ones(1, 1, 1, 2)).isnan().all()
    inputs = [torch.rand(1, 1, 4, 16), torch.ones(1, 1, 1, 2)]
    assert "agrees with" in onnx2nn.export_onnx(module, tmp_path / "back.onnx", example_inputs=inputs)


def test_a_mask_without_a_name_is_of_ones(tmp_path: Path) -> None:
    """Positions that are counted from other integers are beyond the table."""
    table = ", ".join(f"{number}.0" for number in range(14))
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[n, t] x, int64[n, t] m) => (float[n, t] y)'
        f" <float[14] table = {{{table}}}, int64 axis = {{1}}> {{"
        " f = Cast <to = 1> (m) p = CumSum(m, axis) e = Gather(table, p) r = Mul(f, e) y = Mul(x, r) }"
    )
    assert "agrees with" in onnx2nn.export_onnx(onnx2nn.load(model), tmp_path / "back.onnx")


def test_a_condition_on_quotients_of_quotients_is_written(tmp_path: Path) -> None:
    """The lengths that a speech encoder computes, whose quotients are rounded towards zero: both are (n - 1) // 4."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[1, n] x) => (float[k, j] y) <int64[1] one = {1},'
        " int64[1] two = {2}, int64[1] three = {3}, int64[1] four = {4}, int64[1] zero = {0}> {"
        " n = Shape <start = 1> (x) a = Sub(n, three) b = Div(a, two) c = Sub(b, one) d = Div(c, two) e = Add(d, one)"
        " l = Sub(n, one) f = Div(l, four) g = Mul(f, two) q = Slice(x, zero, g, one)"
        " t = Concat <axis = 0> (e, two) y = Reshape(q, t) }"
    )
    module = onnx2nn.load(model)
    assert module.meta["onnx2nn"]["guards"]
    assert "agrees with" in onnx2nn.export_onnx(module, tmp_path / "back.onnx", example_inputs=(torch.rand(1, 13),))
    check_against_onnxruntime(tmp_path / "back.onnx", module, (torch.rand(1, 22),))


def test_parts_of_a_dynamic_dimension_go_there_and_back(tmp_path: Path) -> None:
    """The exporter writes a SplitToSequence, at whose size onnxscript's folding fails."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 13]>
        g (float[n, 3] x) => (float[m, 3] a, float[m, 3] b, float[m, 3] c) { a, b, c = Split <axis = 0> (x) }""")
    module = onnx2nn.load(model)
    assert "agrees with" in onnx2nn.export_onnx(module, tmp_path / "back.onnx")
    for rows in (3, 6):
        check_against_onnxruntime(tmp_path / "back.onnx", module, (torch.rand(rows, 3),))


def test_reflected_and_quantised_values_go_there_and_back(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(REFLECTED)
    module = onnx2nn.load(model)
    onnx2nn.export_onnx(module, tmp_path / "again.onnx")
    back = onnx2nn.load(tmp_path / "again.onnx")
    assert set(back.state_dict()) == set(module.state_dict())
    for rows, columns in ((4, 9), (3, 20)):
        inputs = (torch.linspace(-1, 1, rows * columns).reshape(rows, columns),)
        check_same(run(back, inputs), check_against_onnxruntime(tmp_path / "again.onnx", module, inputs), "and back")


def test_constants_that_are_no_state_stay_none(tmp_path: Path) -> None:
    """In the second file they have names like weights; what the exporter notes of them says that they are none."""
    model = onnx.parser.parse_model(SCALE)
    first, second = tmp_path / "first.onnx", tmp_path / "second.onnx"
    model.graph.node[2].op_type = "HardSigmoid"
    module = onnx2nn.load(model)
    onnx2nn.export_onnx(module, first)
    onnx2nn.export_onnx(onnx2nn.load(first), second)
    assert set(onnx2nn.load(second).state_dict()) == set(module.state_dict())


def test_trained_weights_are_written(tmp_path: Path) -> None:
    module = onnx2nn.load(onnx.parser.parse_model(SCALE))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 1
    onnx2nn.export_onnx(module, tmp_path / "trained.onnx")
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(tmp_path / "trained.onnx").graph.initializer}
    np.testing.assert_array_equal(weights["w"], [2.0, -1.0, 4.0])


def test_chosen_axes_and_opset(tmp_path: Path) -> None:
    module = onnx2nn.load(onnx.parser.parse_model(SCALE))
    path = tmp_path / "fixed.onnx"
    examples = [np.ones((4, 3), np.float32), np.ones(3, np.float32)]
    told = onnx2nn.export_onnx(module, path, example_inputs=examples, dynamic_axes={}, opset=18)
    assert "opset 18" in told and "dynamic dimensions: none" in told
    assert _dimensions(path) == {"x": [4, 3], "data": [3], "y": [4, 3]}
    onnx2nn.export_onnx(module, path, example_inputs=examples, dynamic_axes={"x": {0: "rows"}})
    assert _dimensions(path)["x"] == ["rows", 3]


def test_large_weights_stand_beside_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnx2nn.output.export.EXTERNAL_DATA_BYTES", 8000)
    path, one, _ = _file("attention")
    again = _exported(path, tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["written.onnx", "written.onnx.data"]
    check_same(run(onnx2nn.load(again), one), run(onnx2nn.load(path), one), "with weights beside the file")


def test_pickled_module_needs_examples_only(tmp_path: Path) -> None:
    module = onnx2nn.load(onnx.parser.parse_model(SCALE))
    onnx2nn.save(module, tmp_path / "module.pth")
    again = torch.load(tmp_path / "module.pth", weights_only=False)
    inputs = [torch.ones(2, 3), torch.ones(3)]
    onnx2nn.export_onnx(again, tmp_path / "again.onnx", example_inputs=inputs)
    check_same(run(onnx2nn.load(tmp_path / "again.onnx"), tuple(inputs)), as_tuple(module(*inputs)), "pickled between")


def test_what_cannot_be_exported_is_said(tmp_path: Path) -> None:
    class Off(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    with pytest.raises(InputError, match=r"no torch\.fx\.GraphModule"):
        onnx2nn.export_onnx(Off(), tmp_path / "m.onnx")
    module = onnx2nn.load(onnx.parser.parse_model(SCALE))
    with pytest.raises(InputError, match="there is no folder"):
        onnx2nn.export_onnx(module, tmp_path / "missing" / "m.onnx")
    with pytest.raises(VerificationError, match="takes 3 alone for the dimension three, and the module refuses 4"):
        onnx2nn.export_onnx(module, tmp_path / "m.onnx", dynamic_axes={"x": {0: "n", 1: "three"}})
    assert not list(tmp_path.iterdir())


def test_wrong_file_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exporter that drops an operator is found out before the file appears."""
    from onnx2nn.output import export

    clean = export.clean

    def broken(model: Any, calls: Any) -> None:
        clean(model, calls)
        for node in model.graph:
            if node.op_type == "Relu":
                node.op_type = "Neg"

    monkeypatch.setattr(export, "clean", broken)
    with pytest.raises(VerificationError, match="differs from the module"):
        onnx2nn.export_onnx(onnx2nn.load(onnx.parser.parse_model(SCALE)), tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


def test_missing_exporter_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = onnx2nn.load(onnx.parser.parse_model(SCALE))
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(MissingDependencyError, match=r'pip install "onnx2nn\[export\]"'):
        onnx2nn.export_onnx(module, tmp_path / "m.onnx")


def test_a_count_that_data_decide(tmp_path: Path) -> None:
    """What is computed from the number of boxes kept is computed from it in the file written, too."""
    module = onnx2nn.load(
        onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["": 17]> g (float[N, 6, 4] b, float[N, 1, 6] s) => (int64[M, 4] y)'
            " <int64 m = {5}, float t = {0.3}, int64 zero = {0}, int64 one = {1}, int64[1] ones = {1}> {"
            " k = NonMaxSuppression (b, s, m, t) shape = Shape (k) n = Gather (shape, zero)"
            " r = Range (zero, n, one) u = Unsqueeze (r, ones) y = Concat <axis = 1> (k, u) }"
        )
    )
    generator = torch.Generator().manual_seed(0)
    first, second = (
        (torch.rand(n, 6, 2, 2, generator=generator).sort(2)[0].flatten(2), torch.rand(n, 1, 6, generator=generator))
        for n in (2, 3)
    )
    again, written = tmp_path / "again.onnx", tmp_path / "written.onnx"
    onnx2nn.export_onnx(module, again, example_inputs=first)
    shapes = ({0: torch.export.Dim.DYNAMIC},) * 2
    torch.onnx.export(module, first, written, dynamo=True, verbose=False, dynamic_shapes=shapes)
    for path in (again, written):
        check_against_onnxruntime(path, module, second)


def test_outputs_that_are_inputs_and_weights(tmp_path: Path) -> None:
    """Those keep their names: torch.onnx.export calls such a value by the name of the output."""
    module = onnx2nn.load(
        onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["": 17]> g (float[N, 2] x, float[2] z) => (float[N, 2] y, float[2] w,'
            " float[2] v, float[N, 2] s, float[N, 2] t) <float[2] w = {1, 2}> {"
            " y = Identity (x) v = Identity (w) s = Add (x, w) t = Identity (x) }"
        )
    )
    path = tmp_path / "m.onnx"
    assert "dynamic dimensions: N (axis 0 of x)" in onnx2nn.export_onnx(module, path)
    graph = onnx.load(path).graph
    assert [value.name for value in graph.input] == ["x", "z"]
    assert [value.name for value in graph.output] == ["y", "w", "v", "s", "t"]
    again = onnx2nn.load(path)
    assert list(again.state_dict()) == list(module.state_dict())
    inputs = torch.randn(3, 2), torch.randn(2)
    check_same(run(again, inputs), run(module, inputs), "after the second import")
    check_against_onnxruntime(path, module, inputs)


def test_outputs_of_one_name(tmp_path: Path) -> None:
    """tf2onnx lists a value of a TFLite file as often as that gives it."""
    module = onnx2nn.load(
        onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["": 17]> g (float[N, 2] x) => (float[N, 2] y, float[N, 2] z, float[N, 2] y,'
            " float[N, 2] y) { y = Sin (x) z = Cos (x) }"
        )
    )
    path = tmp_path / "m.onnx"
    onnx2nn.export_onnx(module, path)
    assert [value.name for value in onnx.load(path).graph.output] == ["y", "z", "y", "y"]
    assert [node.op_type for node in onnx.load(path).graph.node] == ["Sin", "Cos"]
    check_against_onnxruntime(path, module, (torch.randn(3, 2),))
    assert onnx2nn.load(path).meta["onnx2nn"]["outputs"] == ["y", "z", "y", "y"]


STRIDED = """
<ir_version: 8, opset_import: ["" : 17]>
graph (float[n, 1, t] x) => (float[n, 1, u] y) <float one = {1.0}, float[1, 1, 1] w = {2.0}>
{ frames = Conv<strides = [160]>(x, w) raised = Add(frames, one)
  mean = ReduceMean<axes = [2], keepdims = 1>(raised) y = Sub(raised, mean) }
"""
"""A size of 1 up to 160 steps, for which torch.export takes it whatever the number of steps where it broadcasts."""


@pytest.mark.parametrize("example", [None, 100])
def test_a_trace_holds_for_every_size(example: int | None, tmp_path: Path) -> None:
    model = onnx.parser.parse_model(STRIDED)
    given = None if example is None else [np.zeros((2, 1, example), np.float32)]
    onnx2nn.export_onnx(onnx2nn.load(model), tmp_path / "again.onnx", example_inputs=given)
    for size in (1, 160, 161, 1000, 5000):
        x = (torch.rand(3, 1, size, generator=torch.Generator().manual_seed(size)),)
        (ours,) = run_onnxruntime(tmp_path / "again.onnx", x)
        (theirs,) = run_onnxruntime(model.SerializeToString(), x)
        torch.testing.assert_close(ours, theirs)


PADDED = """
<ir_version: 8, opset_import: ["" : 18]>
graph (float[n, 1, h, w] x) => (float[n, 4, s] y)
<int64 step = {32}, int64[6] front = {0, 0, 0, 0, 0, 0}, int64 zero = {0}, int64 one = {1}, int64[1] four = {4}>
{ sizes = Shape<start = 2>(x) negative = Neg(sizes) rest = Mod(negative, step) pads = Concat<axis = 0>(front, rest)
  padded = Pad(x, pads) weight = Constant<value = float[4, 1, 1, 1] {1.0, 2.0, 3.0, 4.0}>()
  tiles = Conv<strides = [32, 32]>(padded, weight) turned = Transpose<perm = [0, 1, 3, 2]>(tiles)
  n = Shape<end = 1>(x) rows = Shape<start = 2, end = 3>(tiles) columns = Shape<start = 3>(tiles)
  count = Squeeze(rows) range = Range(zero, count, one) places = CastLike(range, x) placed = Add(turned, places)
  all = Mul(rows, columns) target = Concat<axis = 0>(n, four, all) y = Reshape(placed, target) }
"""
"""Images that are padded to a multiple of 32: both of the first examples have one tile."""


def test_a_trace_of_one_tile_is_made_again(tmp_path: Path) -> None:
    """torch.export decided by the example that there is one tile, which no range of a dimension tells."""
    model = onnx.parser.parse_model(PADDED)
    onnx2nn.export_onnx(onnx2nn.load(model), tmp_path / "again.onnx")
    for sizes in ((1, 1), (32, 5), (33, 40), (100, 70)):
        x = (torch.rand(2, 1, *sizes, generator=torch.Generator().manual_seed(0)),)
        (ours,) = run_onnxruntime(tmp_path / "again.onnx", x)
        (theirs,) = run_onnxruntime(model.SerializeToString(), x)
        torch.testing.assert_close(ours, theirs)


def test_exports_of_several_threads_leave_torch_as_it_is() -> None:
    export, inside, outside = torch.export.export, threading.Event(), threading.Event()

    def first() -> None:
        with captured():
            second.start()
            inside.wait(timeout=0.5)  # the second is inside meanwhile where nothing keeps it out
        outside.set()

    def last() -> None:
        with captured():
            inside.set()
            outside.wait(timeout=10)

    second = threading.Thread(target=last)
    first()
    second.join()
    assert torch.export.export is export


class Rows(nn.Module):
    """Takes the whole rows of four, one by one, so that a trace holds their number."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        whole = x[: x.shape[0] - x.shape[0] % 4]
        return torch.stack([row.cumsum(0) for row in whole.reshape(-1, 4).unbind(0)])


def test_a_file_is_compared_where_its_trace_would_refuse() -> None:
    x = torch.randn(13)
    program = torch.export.export(Rows(), (x,), dynamic_shapes=({0: torch.export.Dim.AUTO},))
    runs = unchecked_runs(Rows(), refused_sizes(program, (x,)), (x,))
    assert {given[0].size // 4 for given, _ in runs} - {3}, "sizes of other numbers of rows"
    for (given,), (found,) in runs:
        assert found.shape == (given.size // 4, 4)


class Halved(nn.Module):
    """Chooses by a remainder of half the rows, of which there are none of one row."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if 7 % (x.shape[0] // 2) != 0 else x - 1


def test_checks_that_divide_by_a_size() -> None:
    """torch's check of the remainder ends in an error of Python's for one row: it refuses that size, too."""
    x = torch.randn(9)
    program = torch.export.export(Halved(), (x,), dynamic_shapes=({0: torch.export.Dim.AUTO},))
    refused = refused_sizes(program, (x,), least=1)
    assert refused["divisors other than 0 in its checks"] == [[(1,)]]
    assert [[(2,)], [(3,)], [(14,)], [(15,)]] in refused.values()


SCANNED = """
<ir_version: 8, opset_import: ["" : 17]>
graph (float[2, SIZE, 4] x) => (float[2, 4] last, float[2, SIZE, 4] y) <float[2, 4] start = {0, 0, 0, 0, 0, 0, 0, 0}>
{
  ["sum"] last, y = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [1],
    body = body (float[2, 4] h, float[2, 4] v) => (float[2, 4] s, float[2, 4] o) { s = Add (h, v) o = Identity (s) }
  > (start, x)
}
"""


@pytest.mark.parametrize(("size", "told"), [("n", True), ("3", False)])
def test_the_line_names_a_scan_whose_length_is_open(size: str, told: bool) -> None:
    module = onnx2nn.load(onnx.parser.parse_model(SCANNED.replace("SIZE", size)))
    assert ("of node 'sum' (Scan) it holds as many iterations" in one_sided(module)) == told


def test_a_mask_as_long_as_a_cache_and_its_new_tokens(tmp_path: Path) -> None:
    """The sizes of generated inputs depend on each other: one of three dynamic ones is the sum of two numbers."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (int64[batch, 3] tokens, int64[batch, all] mask,'
        " float[batch, past] key) => (float[batch, whole] y)"
        " <int64 zero = {0}, int64 one = {1}, int64[2, 1] ends = {-1, 1}> {"
        " new = CastLike (tokens, key) joined = Concat <axis = 1> (key, new) shape = Shape (joined)"
        " count = Gather (shape, one) places = Range (zero, count, one) product = Mul (places, ends)"
        " bounded = Max (product, zero) pairs = Transpose (bounded) seen = GatherND (mask, pairs)"
        " weights = CastLike (seen, key) y = Mul (joined, weights) }"
    )
    assert "dynamic dimensions: batch" in onnx2nn.export_onnx(onnx2nn.load(model), tmp_path / "m.onnx")


def test_a_mask_as_long_as_what_it_masks(tmp_path: Path) -> None:
    """A sound has no frame for a longer mask's end; for one shorter by 5 it has where it has one frame alone.

    A trace of one frame may hold for no other number: torch computes such a size as 1 where it broadcasts.
    """
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[b, 2, t] x, int64[c, u] attention_mask) => (float[b, 2, k] y)'
        " <int64[1] one = {1}, int64 two = {2}, int64 ten = {10}> {"
        " frames = MaxPool<kernel_shape = [20], strides = [10]> (x)"
        " counts = ReduceSum<keepdims = 0> (attention_mask, one)"
        " count = ReduceMax<keepdims = 0> (counts) tens = Div (count, ten) last = Sub (tens, two)"
        " end = Gather<axis = 2> (frames, last) column = Unsqueeze (end, two) y = Sub (frames, column) }"
    )
    module = onnx2nn.load(model)
    (sound, mask), (found,) = next(trace_examples.runs_of(module, model_inputs.dynamic_axes(module), None, {}))
    assert sound.shape[2] == mask.shape[1] and found.shape[2] > 1
    onnx2nn.export_onnx(module, tmp_path / "m.onnx")
    inputs = (torch.rand(2, 2, 57), torch.ones(2, 57, dtype=torch.int64))
    check_against_onnxruntime(tmp_path / "m.onnx", module, inputs)


def test_runs_of_an_attention_between_all_pixels_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an image of 128 by 192 pixels it has 600 million scores; the system ends a process that asks for too many."""
    monkeypatch.setattr(large_values, "MOST_BYTES", 1 << 24)
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[b, 1, h, w] x) => (float[b, 1, n] y)'
        " <int64[3] rows = {0, 1, -1}> {"
        " row = Reshape (x, rows) column = Transpose<perm = [0, 2, 1]> (row) scores = MatMul (column, row)"
        " weights = Softmax (scores) y = MatMul (row, weights) }"
    )
    module = onnx2nn.load(model)
    runs = trace_examples.runs_of(module, model_inputs.dynamic_axes(module), None, {})
    sizes = [given[0].shape[2:] for given, _ in runs]
    assert len(sizes) >= 2 and max(h * w for h, w in sizes) <= 1 << 10


def test_samples_of_a_sound(tmp_path: Path) -> None:
    """Small sizes leave no frame."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[batch, n] x) => (float[batch, 1, t] y)'
        " <int64[1] one = {1}, int64[3] many = {1, 1, 900}> {"
        " wide = Unsqueeze (x, one) w = ConstantOfShape <value = float[1] {0.5}> (many)"
        " y = Conv <strides = [300]> (wide, w) }"
    )
    assert "dynamic dimensions: batch" in onnx2nn.export_onnx(onnx2nn.load(model), tmp_path / "m.onnx")


def test_dimensions_that_are_too_small_grow_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace of a few pixels takes what is 1 of height and of width for 1; each further trace takes as long again."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[1, 1, h, w] x) => (float[1, 1, a, b] y)'
        " <float[1, 1, 1, 1] k = {0.5}> {"
        " p = MaxPool <kernel_shape = [3, 3], strides = [32, 32], pads = [1, 1, 1, 1]> (x)"
        " c = Conv <kernel_shape = [1, 1]> (p, k) y = Add (p, c) }"
    )
    export, examples = torch.onnx.export, []

    def counted(module: nn.Module, args: tuple[torch.Tensor], **options: Any) -> Any:
        examples.append(tuple(args[0].shape[2:]))
        return export(module, args, **options)

    monkeypatch.setattr(torch.onnx, "export", counted)
    onnx2nn.export_onnx(onnx2nn.load(model), tmp_path / "m.onnx")
    (small, _), (height, width) = examples
    assert small < 33 <= min(height, width)


@pytest.mark.parametrize("exporter", ["export_onnx", "dynamo", "torchscript"])
def test_an_image_is_padded_to_a_multiple(exporter: str, tmp_path: Path) -> None:
    """`-(-n // 32) * 32`: torch's newer exporter rounds the quotient of a negative number towards zero."""
    module = onnx2nn.load(
        onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[m] y)'
            " <float by = {32}, int64[1] zero = {0}, int64 multiple = {32}> {"
            " s = Shape (x) f = Cast <to = 1> (s) q = Div (f, by) c = Ceil (q) i = Cast <to = 7> (c)"
            " full = Mul (i, multiple) more = Sub (full, s) pads = Concat <axis = 0> (zero, more) y = Pad (x, pads) }"
        )
    )
    path, x = tmp_path / "m.onnx", torch.ones(7)
    if exporter == "export_onnx":
        onnx2nn.export_onnx(module, path)
    elif exporter == "dynamo":
        shapes = ({0: torch.export.Dim.DYNAMIC},)
        torch.onnx.export(module, (x,), path, dynamo=True, verbose=False, dynamic_shapes=shapes)
    else:
        torch.onnx.export(module, (x,), path, dynamo=False, dynamic_axes={"x": {0: "n"}}, input_names=["x"])
    for size in (2, 31, 32, 33, 64, 90):
        check_against_onnxruntime(path, module, [torch.arange(float(size))])
