"""What exporters of earlier years wrote and those of today do not: forms of graphs that lie on people's disks."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper
from onnxruntime.datasets import get_example
from realmodels import check_against_onnxruntime, check_same, run, run_onnxruntime, seeded
from torch import nn

import onnx2nn
from onnx2nn.errors import UnsupportedModelError
from tests import onnxnode
from tests.cases import Case, case, f32


def _unfolded(module: nn.Module, inputs: tuple[torch.Tensor, ...], path: Path, opset: int) -> Path:
    """Exports as PyTorch up to 1.4 does by default: the graph computes ONNX's weights from the author's."""
    axes = {name: {0: "steps", 1: "batch"} for name in ("x",)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module, inputs, str(path), dynamo=False, opset_version=opset, do_constant_folding=False,
            input_names=["x", "h", "c"][: len(inputs)], dynamic_axes=axes if len(inputs) == 1 else {},
        )  # fmt: skip
    return path


@pytest.mark.parametrize("opset", [9, 11, 17])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("given", [False, True], ids=["", "states"])
def test_recurrent_layers_get_the_authors_weights(
    kind: type[nn.RNNBase], given: bool, opset: int, tmp_path: Path
) -> None:
    original = seeded(lambda: kind(4, 3, num_layers=2, bidirectional=True))
    x = torch.randn(5, 2, 4)
    states = tuple(torch.randn(4, 2, 3) for _ in range(2 if kind is nn.LSTM else 1)) if given else ()

    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = original

        def forward(self, x: torch.Tensor, *states: torch.Tensor) -> torch.Tensor:
            return self.rnn(x, states if len(states) > 1 else states[0] if states else None)

    wrapped = Wrapped().eval()
    path = _unfolded(wrapped, (x, *states), tmp_path / "m.onnx", opset)
    module = onnx2nn.load(path)
    wrapped.load_state_dict(module.state_dict(), strict=True)
    assert type(module.rnn) is kind and len(list(module.graph.nodes)) < 12
    check_against_onnxruntime(path, module, (x, *states))


def test_recurrent_layer_without_biases(tmp_path: Path) -> None:
    wrapped = nn.Sequential(seeded(lambda: nn.GRU(4, 3, bias=False)))
    path = _unfolded(wrapped, (torch.randn(5, 2, 4),), tmp_path / "m.onnx", 9)
    module = onnx2nn.load(path)
    wrapped.load_state_dict(module.state_dict(), strict=True)
    check_against_onnxruntime(path, module, (torch.randn(7, 3, 4),))


def test_weights_in_another_order_stay_as_they_are(tmp_path: Path) -> None:
    """Gates that torch does not put so, and rows that are no gates: nothing is taken for a layer's weights."""
    path = _unfolded(seeded(lambda: nn.LSTM(4, 3)), (torch.randn(5, 2, 4),), tmp_path / "m.onnx", 9)
    for change in ("order", "rows"):
        model = onnx.load(path)
        slices = {node.output[0] for node in model.graph.node if node.op_type == "Slice"}
        concat = next(node for node in model.graph.node if node.op_type == "Concat" and node.input[0] in slices)
        if change == "order":
            concat.input[:] = [concat.input[1], concat.input[0], concat.input[2]]
        else:
            first, second = (next(n for n in model.graph.node if name in n.output) for name in concat.input[:2])
            for node, ends in ((first, (0, 2)), (second, (8, 12))):  # rows of gates of 3
                values = zip(("starts", "ends"), ends, strict=True)
                for name, number in values:
                    next(a for a in node.attribute if a.name == name).ints[:] = [number]
        module = onnx2nn.load(model)
        assert "LSTM" not in module.meta["onnx2nn"]["raising"]["raised"]
        check_against_onnxruntime(model.SerializeToString(), module, (torch.randn(7, 3, 4),))


def test_domain_in_version_0() -> None:
    """PyTorch's exporters import the domains of what is not ONNX's so."""
    node = helper.make_node("ATen", ["x"], ["y"], domain="org.pytorch.aten", operator="triu", diagonal=1)
    value = [helper.make_tensor_value_info(name, 1, ["n", 3]) for name in "xy"]
    opsets = [helper.make_opsetid("", 9), helper.make_opsetid("org.pytorch.aten", 0)]
    module = onnx2nn.load(helper.make_model(helper.make_graph([node], "g", value[:1], value[1:]), opset_imports=opsets))
    x = torch.randn(3, 3)
    assert torch.equal(module(x), x.triu(1))


def test_list_of_tensors_as_single_inputs() -> None:
    """`x[:, i, j]` of PyTorch up to 1.4: Caffe2's convention for an argument that is a list."""
    node = helper.make_node("ATen", ["x", "", "i", "j"], ["y"], operator="index")
    x, y = (helper.make_tensor_value_info(name, 1, ["n", *sizes]) for name, sizes in (("x", [4, 6]), ("y", [2])))
    i, j = (helper.make_tensor(name, 7, [2], values) for name, values in (("i", [0, 2]), ("j", [5, 1])))
    graph = helper.make_graph([node], "g", [x], [y], [i, j])
    module = onnx2nn.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 9)]))
    given = torch.randn(3, 4, 6)
    check_same(run(module, (given,)), (given[:, [0, 2], [5, 1]],), "index")


def _aten(operator: str, inputs: dict[str, object], out: list[object], **attributes: object) -> onnx.ModelProto:
    values = {name: onnx.numpy_helper.from_array(np.asarray(v), name) for name, v in inputs.items() if v is not None}
    node = helper.make_node("ATen", list(inputs), ["y"], operator=operator, **attributes)
    x, y = helper.make_tensor_value_info("x", 1, ["n", 4, 6, 8]), helper.make_tensor_value_info("y", 1, out)
    graph = helper.make_graph([node], "g", [x], [y], list(values.values()))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 9)])


def test_arguments_between_those_that_are_attributes() -> None:
    """nn.GroupNorm of PyTorch 1.2: weight and bias are inputs, what stands before them in the call is an attribute."""
    weight, bias = np.float32([1, 2, 3, 4]), np.float32([4, 3, 2, 1])
    model = _aten("group_norm", {"x": None, "w": weight, "b": bias}, ["n", 4, 6, 8], num_groups=2, eps=0.01)
    x = torch.randn(3, 4, 6, 8)
    expected = nn.functional.group_norm(x, 2, torch.from_numpy(weight), torch.from_numpy(bias), 0.01)
    check_same(run(onnx2nn.load(model), (x,)), (expected,), "group_norm")


def test_argument_that_came_later() -> None:
    """grid_sample of PyTorch 1.2 has no align_corners, and means True; others cannot be left out."""
    grid = np.random.default_rng(0).uniform(-1, 1, (3, 5, 5, 2)).astype(np.float32)
    numbers = {"mode": np.int64(0), "padding": np.int64(0)}
    model = _aten("grid_sampler", {"x": None, "grid": grid, **numbers}, [3, 4, 5, 5])
    x = torch.randn(3, 4, 6, 8)
    expected = nn.functional.grid_sample(x, torch.from_numpy(grid), align_corners=True)
    check_same(run(onnx2nn.load(model), (x,)), (expected,), "grid_sampler")
    with pytest.raises(UnsupportedModelError, match="upsample_bilinear2d that takes 2 inputs"):
        onnx2nn.load(_aten("upsample_bilinear2d", {"x": None, "size": np.int64([12, 16])}, ["n", 4, 12, 16]))


def test_sizes_in_floats() -> None:
    sizes = {"size": np.float32([12, 16]), "align": np.int64(1)}
    model = _aten("upsample_bilinear2d", {"x": None, **sizes}, ["n", 4, 12, 16])
    x = torch.randn(3, 4, 6, 8)
    expected = nn.functional.interpolate(x, (12, 16), mode="bilinear", align_corners=True)
    check_same(run(onnx2nn.load(model), (x,)), (expected,), "upsample_bilinear2d")


def test_activations_named_once_for_both_directions() -> None:
    """nn.RNN(bidirectional=True) of PyTorch up to 1.2; ONNX Runtime asks for one a direction."""
    rng = np.random.default_rng(0)
    sizes = {"w": (2, 3, 4), "r": (2, 3, 3), "b": (2, 6)}
    state = [onnx.numpy_helper.from_array(rng.random(size, np.float32) - 0.5, name) for name, size in sizes.items()]
    x = torch.randn(5, 2, 4)
    found = []
    for times in (1, 2):
        attributes = {"activations": ["Relu"] * times, "direction": "bidirectional", "hidden_size": 3}
        node = helper.make_node("RNN", ["x", "w", "r", "b"], ["y"], **attributes)
        values = [helper.make_tensor_value_info(name, 1, None) for name in "xy"]
        values[0] = helper.make_tensor_value_info("x", 1, [5, "n", 4])
        graph = helper.make_graph([node], "g", values[:1], values[1:], state)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 9)], ir_version=4)
        found.append(run(onnx2nn.load(model), (x,)))
    check_same(found[0], found[1], "named once and twice")
    check_same(found[1], run_onnxruntime(model.SerializeToString(), (x,)), "against ONNX Runtime")


@pytest.mark.parametrize("attributes", [{}, {"across_channels": 1}, {"normalize_variance": 0}])
def test_experimental_mean_variance_normalization(attributes: dict[str, int]) -> None:
    node = helper.make_node("MeanVarianceNormalization", ["x"], ["y"], **attributes)
    x, y = (helper.make_tensor_value_info(name, 1, ["n", 3, 4, 5]) for name in "xy")
    graph = helper.make_graph([node], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 7)], ir_version=3)
    check_against_onnxruntime(model.SerializeToString(), onnx2nn.load(model), (torch.randn(2, 3, 4, 5) * 3 + 1,))


@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_region_that_no_mode_reads(mode: str) -> None:
    """keras2onnx gives a region of two axes to four, in modes that read none."""
    model = onnx.parser.parse_model(f"""
    <ir_version: 6, opset_import: ["" : 11]>
    g (float[n, 3, 8, 10] x) => (float[n, 3, 16, 20] y)
    <float[4] roi = {{0, 0, 1, 1}}, float[4] scales = {{1, 1, 2, 2}}>
    {{
        y = Resize <coordinate_transformation_mode = "asymmetric", mode = "{mode}", nearest_mode = "floor">
            (x, roi, scales)
    }}
    """)
    check_against_onnxruntime(model.SerializeToString(), onnx2nn.load(model), (torch.randn(2, 3, 8, 10),))
    model.graph.node[0].attribute[0].s = b"tf_crop_and_resize"
    with pytest.raises(UnsupportedModelError, match="4 numbers of the region for 4 axes"):
        onnx2nn.load(model)


@pytest.mark.parametrize("ir_version", [3, 4, 8])
def test_loop_whose_body_lists_its_initializers_as_inputs(ir_version: int) -> None:
    """tf2onnx up to opset 8; so IR version 3 asks for."""
    model = onnx.parser.parse_model(f"""
    <ir_version: {ir_version}, opset_import: ["" : 8]>
    g (float[n, 3] x, int64 count, bool go) => (float[n, 3] y)
    <int64 count = {{4}}, bool go = {{1}}>
    {{
        y = Loop(count, go, x) <body: graph = b (int64 i, bool c, float[n, 3] s, float half, float step)
            => (bool d, float[n, 3] t) <float half = {{0.5}}, float step = {{1}}>
            {{ d = Identity(c)  h = Mul(s, half)  t = Add(h, step) }}>
    }}
    """)
    x = torch.randn(2, 3)
    module = onnx2nn.load(model)
    check_against_onnxruntime(model.SerializeToString(), module, (x,))
    assert torch.equal(module(x), torch.export.export(module, (x,)).module()(x))


@pytest.mark.parametrize("listed", [False, True])
def test_scan_whose_body_lists_its_initializers_as_inputs(listed: bool) -> None:
    """tf2onnx's recurrent cells of its own at opset 8."""
    inputs = ", float[3] half" if listed else ""
    model = onnx.parser.parse_model(f"""
    <ir_version: 4, opset_import: ["" : 8]>
    g (float[n, 3] s, float[n, t, 3] x) => (float[n, 3] last, float[n, t, 3] y)
    {{
        last, y = Scan <num_scan_inputs = 1, body = b (float[3] state, float[3] item{inputs})
            => (float[3] next, float[3] out) <float[3] half = {{0.5, 0.25, 1}}>
            {{ h = Mul(state, half)  next = Add(h, item)  out = Neg(next) }}> ("", s, x)
    }}
    """)
    inputs = (torch.randn(2, 3), torch.randn(2, 5, 3))
    check_against_onnxruntime(model.SerializeToString(), onnx2nn.load(model), inputs)


def test_reshape_behind_a_scan_of_opset_8() -> None:
    """tf2onnx takes the batch of 1, over which it scans, off again: sizes are those of what is scanned."""
    model = onnx.parser.parse_model("""
    <ir_version: 4, opset_import: ["" : 8]>
    g (float[n, 3] s, float[5, n, 3] x) => (float[5, n, 3] y)
    <int64[3] one = {1, -1, 3}, int64[4] steps = {1, 5, -1, 3}, int64[3] wanted = {5, -1, 3}>
    {
        first = Reshape(s, one)
        items = Reshape(x, steps)
        last, outs = Scan <num_scan_inputs = 1, body = b (float[m, 3] state, float[m, 3] item)
            => (float[m, 3] next, float[m, 3] out)
            { next = Add(state, item)  out = Neg(next) }> ("", first, items)
        y = Reshape(outs, wanted)
    }
    """)
    module = onnx2nn.load(model)
    for n in (2, 3):
        inputs = (torch.randn(n, 3), torch.randn(5, n, 3))
        check_against_onnxruntime(model.SerializeToString(), module, inputs)


def test_slopes_of_channels_without_dimensions_behind_them() -> None:
    """PyTorch up to 1.1 and MXNet: PRelu's slope broadcasts since opset 7, and this one does not."""
    weight = np.float32([0.1, 0.2, 0.3])
    text = '<ir_version: 4, opset_import: ["": 9]> g (float[n, 3, 4, W] x) => (float[n, 3, 4, W] y)'
    text += "<float[3] slope = {0.1, 0.2, 0.3}> { y = PRelu(x, slope) }"
    x = torch.randn(2, 3, 4, 5)
    module = onnx2nn.load(onnx.parser.parse_model(text.replace("W", "5")))
    assert torch.equal(module(x), nn.functional.prelu(x, torch.from_numpy(weight)))
    broadcast = onnx.parser.parse_model(text.replace("W", "3"))
    check_against_onnxruntime(broadcast.SerializeToString(), onnx2nn.load(broadcast), (torch.randn(2, 3, 4, 3),))


def test_condition_of_uint8() -> None:
    """torch.where of PyTorch up to 1.1."""
    module = onnx2nn.load(
        onnx.parser.parse_model("""
        <ir_version: 4, opset_import: ["" : 9]>
        g (float[n, 3] x) => (float[n, 3] y)
        {
            zero = Constant <value = float {0}> ()
            more = Greater(x, zero)
            condition = Cast <to = 2> (more)
            less = Neg(x)
            y = Where(condition, x, less)
        }
        """)
    )
    x = torch.randn(4, 3)
    assert torch.equal(module(x), x.abs())


def test_lengths_of_a_split_in_floats() -> None:
    """Revision 1 has them in the type of what is split."""
    node = helper.make_node("Split", ["x", "s"], ["a", "b"], axis=1)
    x, a, b = (helper.make_tensor_value_info(name, 1, ["n", size]) for name, size in (("x", 3), ("a", 1), ("b", 2)))
    graph = helper.make_graph([node], "g", [x], [a, b], [helper.make_tensor("s", 1, [2], [1.0, 2.0])])
    module = onnx2nn.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 1)], ir_version=3))
    given = torch.randn(2, 3)
    check_same(run(module, (given,)), (given[:, :1], given[:, 1:]), "split")


def test_constant_that_expands_to_the_traced_batch_only() -> None:
    """`x[:, 1] = 0` with an open batch, in which torch 1.8 holds the zeros at the traced size."""
    module = onnx2nn.load(
        onnx.parser.parse_model("""
        <ir_version: 6, opset_import: ["" : 11]>
        g (float[n, 4, 6] x) => (float[n, 4, 6] y)
        <int64 zero = {0}, int64 one = {1}, int64[2] shape = {-1, 1}, int64[1] tail = {6},
         float[2, 6] zeros = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}>
        {
            row = Gather <axis = 1> (x, one)
            size = Shape(row)
            values = Expand(zeros, size)
            whole = Shape(x)
            batch = Gather(whole, zero)
            range = Range(zero, batch, one)
            rows = Reshape(range, shape)
            ones = ConstantOfShape <value = int64[1] {1}> (shape_of_rows)
            shape_of_rows = Shape(rows)
            places = Concat <axis = 1> (rows, ones)
            updates_shape = Concat <axis = 0> (batches, tail)
            batches = Unsqueeze <axes = [0]> (batch)
            updates = Reshape(values, updates_shape)
            y = ScatterND(x, places, updates)
        }
        """)
    )
    x = torch.randn(2, 4, 6)
    expected = x.clone()
    expected[:, 1] = 0
    check_same(run(module, (x,)), (expected,), "at the traced size")
    with pytest.raises(ValueError, match=r"== 2 is needed by node 'values' \(Expand\)"):
        module(torch.randn(3, 4, 6))


def test_shape_of_floats_computed_from_sizes() -> None:
    """torchvision's anchors by torch 1.6: Range of sizes cast to float, whose own shapes are read."""
    model = onnx.parser.parse_model("""
    <ir_version: 6, opset_import: ["" : 11]>
    g (float[1, 3, h, w] x) => (int64[2] y, int64 z)
    {
        s = Shape(x)
        f = Cast <to = 1> (s)
        two = Constant <value = int64[2] {2, -1}> ()
        m = Reshape(f, two)
        y = Shape(m)
        z = Size(f)
    }
    """)
    shape, size = onnx2nn.load(model)(torch.randn(1, 3, 5, 7))
    assert (shape.dtype, shape.tolist()) == (torch.int64, [2, 2])
    assert (size.dtype, size.item()) == (torch.int64, 4)


@pytest.mark.parametrize("name", ["logreg_iris", "mul_1", "sigmoid"])
def test_examples_that_onnxruntime_comes_with(name: str) -> None:
    path = get_example(f"{name}.onnx")
    result = onnx2nn.verify(path, onnx2nn.load(path), runs=3)
    assert result.ok, result


_COEFFICIENTS = np.linspace(-1.3, 1.1, 12).tolist()


@pytest.mark.parametrize(
    "case",
    [
        case("LinearClassifier", f32(5, 2), coefficients=_COEFFICIENTS, intercepts=[0.1, 0.2, -0.3],
             classlabels_ints=[5, 7, 9], domain="ai.onnx.ml", outputs=2, note="three"),
        case("LinearClassifier", f32(2), coefficients=_COEFFICIENTS, intercepts=[0.1, 0.2, -0.3],
             classlabels_ints=[5, 7, 9], domain="ai.onnx.ml", outputs=2, note="one row"),
        case("LinearClassifier", f32(5, 2), coefficients=_COEFFICIENTS, intercepts=[0.1],
             classlabels_ints=[5, 7], domain="ai.onnx.ml", outputs=2, note="two"),
        case("LinearRegressor", f32(5, 2), coefficients=_COEFFICIENTS, targets=3, domain="ai.onnx.ml", note="three"),
        case("LinearRegressor", f32(5, 2), coefficients=_COEFFICIENTS, intercepts=[0.2], domain="ai.onnx.ml"),
    ],
    ids=str,
)  # fmt: skip
def test_coefficients_that_are_more_than_the_features(case: Case) -> None:
    model, feeds = onnxnode.model_of(case, 1)
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    outputs = onnx2nn.load(model)(*(torch.from_numpy(feed) for feed in feeds.values()))
    for actual, wanted in zip(outputs if isinstance(outputs, tuple) else (outputs,), expected, strict=True):
        torch.testing.assert_close(actual.detach(), torch.from_numpy(wanted))


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("factor", [0.6, 1.7, 2.5])
def test_corners_of_an_image_whose_size_is_rounded(mode: str, factor: float, tmp_path: Path) -> None:
    """The standard's test data count the last part of a pixel too; torch, which wrote the file, does not."""

    class Resized(nn.Module):
        def forward(self, image: torch.Tensor) -> torch.Tensor:
            return nn.functional.interpolate(image, scale_factor=factor, mode=mode, align_corners=True)

    x, path = torch.randn(2, 3, 6, 9), str(tmp_path / "resized.onnx")
    axes = {"image": {0: "batch", 2: "height"}}
    torch.onnx.export(Resized(), (x,), path, dynamo=False, input_names=["image"], dynamic_axes=axes)
    module = onnx2nn.load(path)
    for image in (x, torch.randn(1, 3, 13, 9)):
        (expected,) = onnxruntime.InferenceSession(path).run(None, {"image": image.numpy()})
        check_same((module(image), Resized()(image)), (torch.from_numpy(expected),) * 2, f"{mode} by {factor}")
