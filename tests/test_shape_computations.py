"""Shape computations of real exporters stay sizes: no tensors made of shapes, and every way out of eager mode works."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper, parser
from realmodels import (
    EXPORTERS,
    Tensors,
    check_against_onnxruntime,
    check_same,
    check_travels,
    run,
    run_onnxruntime,
    seeded,
)
from torch import nn

import onnx2nn
from onnx2nn.errors import UnsupportedModelError
from tests import installed

LEAVES_THE_GRAPH = re.compile(
    r"\.item\(|\.tolist\(|\.numpy\(|\bint\(|torch\.(as_)?tensor\(|_shape_as_tensor|onnx2nn_functional_(?!onnx2nn__(Require|SizeIf)\b)"
)


class Views(nn.Module):
    """Reshapes, splits and joins whose targets are computed from the input's shape."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        x = self.inner(x).view(batch, length, 3, 4).permute(0, 2, 1, 3).reshape(batch * 3, length, 4)
        first, second = x.chunk(2, dim=-1)
        x = torch.cat([second, first, x[:, :, -2:]], dim=2)
        x = x.view(batch, -1, 6 * length).flatten(0, 1)
        return x.unsqueeze(1).expand(-1, 2, -1).reshape(batch, 3, -1, length).mean(2)


class Resized(nn.Module):
    """Interpolation to sizes computed from other tensors' sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, stride=2, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.stem(x)
        y = nn.functional.interpolate(y, scale_factor=2, mode="nearest")
        y = nn.functional.interpolate(y, size=(x.shape[2] * 2, x.shape[3] + 3), mode="bilinear", align_corners=False)
        return torch.flatten(y, 2)[:, :, 1 : x.shape[3]]


class Positions(nn.Module):
    """Position embeddings and a causal mask of the input's length."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(11, 8), nn.Embedding(32, 8)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        length = ids.shape[1]
        places = torch.arange(length, device=ids.device)
        x = self.words(ids) + self.places(places).unsqueeze(0)
        scores = x @ x.transpose(1, 2)
        mask = torch.ones(length, length, dtype=torch.bool).tril()
        return scores.masked_fill(~mask, -1e4).softmax(-1) @ x + x[:, length - 1 : length]


class Recogniser(nn.Module):
    """Pools the height away, as text recognisers do: of many heights they take those that leave one row."""

    def __init__(self, joined: bool) -> None:
        super().__init__()
        self.joined, self.stem, self.head = joined, nn.Conv2d(3, 8, 3, (4, 2), 1), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = nn.functional.avg_pool2d(self.stem(x).relu(), (8, 1), (8, 1))
        y = rows.reshape(x.shape[0], 8, -1) if self.joined else rows.reshape(rows.shape[0], 8, rows.shape[3])
        y = torch.cat([rows, y.unsqueeze(2)], 2).sum(2) if self.joined else y
        return self.head(y.transpose(1, 2))


def _floats(*shape: int) -> Callable[[tuple[int, ...]], Tensors]:
    def make(size: tuple[int, ...]) -> Tensors:
        dims = [size[d] if d < 0 else d for d in shape]
        return (torch.randn(*dims, generator=torch.Generator().manual_seed(sum(size))),)

    return make


def _ids(size: tuple[int, ...]) -> Tensors:
    return (torch.randint(11, size, generator=torch.Generator().manual_seed(sum(size))),)


# model, inputs of a size, (size at export, another), sizes never seen
MODELS: dict[str, tuple[type[nn.Module], Callable[[tuple[int, ...]], Tensors], list[tuple[int, ...]]]] = {
    "views": (Views, lambda s: _floats(*s, 6)(s), [(2, 5), (3, 8), (1, 1), (7, 4)]),
    "resized": (Resized, lambda s: _floats(s[0], 3, *s[1:])(s), [(2, 8, 12), (3, 10, 16), (1, 6, 20), (4, 32, 6)]),
    "positions": (Positions, _ids, [(2, 5), (3, 8), (1, 2), (7, 31)]),
}


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("name", MODELS)
def test_torch_exporters(name: str, exporter: str) -> None:
    build, inputs, (first, second, *unseen) = MODELS[name]
    original = seeded(build)
    path = EXPORTERS[exporter](f"shapes_{name}_{exporter}", original, inputs(first), inputs(second))
    module = onnx2nn.load(path)
    assert not LEAVES_THE_GRAPH.search(module.code), module.code
    for size in (first, second, *unseen):
        outputs = check_against_onnxruntime(path, module, inputs(size))
        check_same(outputs, run(original, inputs(size)), f"against the original at {size}")
    check_travels(module, inputs(first), inputs(second))


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("name", MODELS)
def test_moves(name: str, exporter: str) -> None:
    """What the program makes itself (ranges, masks, sizes) is made where its inputs are, and of their type."""
    build, inputs, (first, second, *unseen) = MODELS[name]
    original = seeded(build)
    path = EXPORTERS[exporter](f"shapes_{name}_{exporter}", original, inputs(first), inputs(second))
    module = onnx2nn.load(path)
    wide = tuple(x.double() if x.is_floating_point() else x for x in inputs(unseen[0]))
    expected = run(original.double(), wide)
    torch.testing.assert_close(run(module.to(torch.float64), wide), expected)
    for result, like in zip(run(module.to("meta"), tuple(x.to("meta") for x in wide)), expected, strict=True):
        assert (result.device.type, result.shape, result.dtype) == ("meta", like.shape, torch.float64)
    assert {tensor.device.type for tensor in module.state_dict().values()} <= {"meta"}


@pytest.mark.parametrize("joined", [False, True], ids=["reshaped", "joined"])
def test_a_dimension_that_only_some_sizes_fit(joined: bool) -> None:
    original = seeded(lambda: Recogniser(joined))
    first, second = (2, 3, 32, 40), (3, 3, 40, 80)
    inputs = [_floats(*size)(size) for size in (first, second, (1, 3, 60, 17), (2, 3, 29, 21))]
    path = EXPORTERS["torchscript"](f"shapes_recogniser_{joined}", original, *inputs[:2])
    module = onnx2nn.load(path)
    assert not LEAVES_THE_GRAPH.search(module.code), module.code
    for values in inputs:
        check_same(check_against_onnxruntime(path, module, values), run(original, values), "against the original")
    check_travels(module, *inputs[:2])
    (height,) = module.meta["onnx2nn"]["fixed"].values()
    assert height == range(29, 61)
    for refused in (28, 61):
        with pytest.raises(ValueError, match=rf">= 29 and .* <= 60 is needed by node .* dimension 2 .* is {refused}"):
            module(torch.zeros(1, 3, refused, 20))


def _model(nodes: list[onnx.NodeProto], dims: list[str | int | None], **constants: object) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _tensorflow_reshape() -> onnx.ModelProto:
    """Shape, Cast to int32, Slice, Concat, Reshape: tf2onnx's form of `tf.reshape(x, [tf.shape(x)[0], -1, 4])`."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Cast", ["shape"], ["shape32"], to=TensorProto.INT32),
        helper.make_node("Slice", ["shape32", "zero", "one", "zero"], ["first"]),
        helper.make_node("Squeeze", ["first", "zero"], ["batch"]),
        helper.make_node("Unsqueeze", ["batch", "zero"], ["packed"]),
        helper.make_node("Concat", ["packed", "rest"], ["target32"], axis=0),
        helper.make_node("Cast", ["target32"], ["target"], to=TensorProto.INT64),
        helper.make_node("Reshape", ["x", "target"], ["y"]),
    ]
    return _model(nodes, ["N", "L", 8], zero=np.int64([0]), one=np.int64([1]), rest=np.int32([-1, 4]))


def _half_size() -> onnx.ModelProto:
    """Half of the length by Cast, Mul, Floor, Cast, the other half by Div and Sub: slices joined the other way."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"], start=1, end=2),
        helper.make_node("Cast", ["shape"], ["float"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["float", "half"], ["scaled"]),
        helper.make_node("Floor", ["scaled"], ["floored"]),
        helper.make_node("Cast", ["floored"], ["middle"], to=TensorProto.INT64),
        helper.make_node("Div", ["shape", "two"], ["divided"]),
        helper.make_node("Sub", ["shape", "divided"], ["rest"]),
        helper.make_node("Slice", ["x", "zero", "middle", "one"], ["front"]),
        helper.make_node("Slice", ["x", "middle", "shape", "one"], ["back"]),
        helper.make_node("Concat", ["back", "front"], ["turned"], axis=1),
        helper.make_node("Concat", ["batch", "rest"], ["sizes0"], axis=0),
        helper.make_node("Concat", ["sizes0", "one"], ["sizes"], axis=0),
        helper.make_node("ConstantOfShape", ["sizes"], ["zeros"]),
        helper.make_node("Slice", ["turned", "zero", "rest", "one"], ["kept"]),
        helper.make_node("Add", ["kept", "zeros"], ["y"]),
    ]
    return _model(
        nodes,
        ["N", "L", 3],
        half=np.float32([0.5]),
        two=np.int64([2]),
        zero=np.int64([0]),
        one=np.int64([1]),
        batch=np.int64([1]),
    )


def _expanded_mask() -> onnx.ModelProto:
    """torch's expand: ConstantOfShape, Mul by -1, Equal and Where choose between given sizes and the input's own."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "first"], ["batch"], axis=0),
        helper.make_node("Unsqueeze", ["batch", "zero"], ["batch1"]),
        helper.make_node("Concat", ["batch1", "minus", "minus", "two"], ["sizes"], axis=0),
        helper.make_node("Shape", ["sizes"], ["rank"]),
        helper.make_node("ConstantOfShape", ["rank"], ["ones"], value=numpy_helper.from_array(np.int64([1]))),
        helper.make_node("Mul", ["ones", "minus"], ["minuses"]),
        helper.make_node("Equal", ["sizes", "minuses"], ["kept"]),
        helper.make_node("Where", ["kept", "ones", "sizes"], ["target"]),
        helper.make_node("Unsqueeze", ["x", "last"], ["column"]),
        helper.make_node("Expand", ["column", "target"], ["y"]),
    ]
    constants = dict(first=np.int64(0), zero=np.int64([0]), minus=np.int64([-1]), two=np.int64([2]), last=np.int64([3]))
    return _model(nodes, ["N", "L", 3], **constants)


def _padded_to_eight() -> onnx.ModelProto:
    """Pads the length to a multiple of eight, the amount by Mod, and scatters it into the list of pads."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"], start=1, end=2),
        helper.make_node("Neg", ["shape"], ["negative"]),
        helper.make_node("Mod", ["negative", "eight"], ["missing"]),
        helper.make_node("ScatterND", ["pads", "place", "missing"], ["all"]),
        helper.make_node("Pad", ["x", "all"], ["y"]),
    ]
    constants = dict(eight=np.int64([8]), pads=np.zeros(6, np.int64), place=np.int64([[4]]))
    return _model(nodes, ["N", "L", 3], **constants)


def _sliced_table() -> onnx.ModelProto:
    """A table and a list of integers cut to the input's length, a row repeated once a sample."""
    nodes = [
        helper.make_node("Shape", ["x"], ["length"], start=1, end=2),
        helper.make_node("Shape", ["x"], ["batch"], start=0, end=1),
        helper.make_node("Slice", ["table", "zero", "length", "one"], ["cut"]),
        helper.make_node("Slice", ["numbers", "zero", "length", "zero"], ["some"]),
        helper.make_node("Gather", ["rows", "some"], ["gathered"]),
        helper.make_node("Concat", ["batch", "one", "one"], ["repeats"], axis=0),
        helper.make_node("Tile", ["row", "repeats"], ["tiled"]),
        helper.make_node("Add", ["x", "cut"], ["a"]),
        helper.make_node("Add", ["a", "gathered"], ["b"]),
        helper.make_node("Add", ["b", "tiled"], ["y"]),
    ]
    table = np.linspace(0, 1, 120, dtype=np.float32).reshape(1, 40, 3)
    constants = dict(table=table, rows=table[0, :5] * 2, row=table[:, :1] + 3, numbers=np.arange(40) % 5)
    return _model(nodes, ["N", "L", 3], zero=np.int64([0]), one=np.int64([1]), **constants)


CHAINS = {
    f.__name__.strip("_"): f for f in (_tensorflow_reshape, _half_size, _expanded_mask, _padded_to_eight, _sliced_table)
}


@pytest.mark.parametrize("name", CHAINS)
def test_chains(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.onnx"
    onnx.save(CHAINS[name](), path)
    width = 8 if name == "tensorflow_reshape" else 3
    module = onnx2nn.load(path)
    assert not LEAVES_THE_GRAPH.search(module.code), module.code
    for size in ((2, 6), (3, 9), (1, 1), (7, 4), (5, 17)):
        check_against_onnxruntime(path, module, _floats(*size, width)(size))
    check_travels(module, _floats(2, 6, width)((2, 6)), _floats(3, 9, width)((3, 9)))


def test_a_size_that_chooses_otherwise_stays_a_choice() -> None:
    """`5 if length == 1 else length` is the length at nearly all sizes."""
    nodes = [
        helper.make_node("Shape", ["x"], ["length"], start=1, end=2),
        helper.make_node("Equal", ["length", "one"], ["single"]),
        helper.make_node("Where", ["single", "five", "length"], ["chosen"]),
        helper.make_node("Concat", ["one", "chosen", "three"], ["sizes"], axis=0),
        helper.make_node("ConstantOfShape", ["sizes"], ["zeros"]),
        helper.make_node("Add", ["x", "zeros"], ["y"]),
    ]
    module = onnx2nn.load(_model(nodes, ["N", "L", 3], one=np.int64([1]), five=np.int64([5]), three=np.int64([3])))
    assert module(torch.zeros(2, 4, 3)).shape == (2, 4, 3)
    check_travels(module, (torch.zeros(2, 4, 3),), travels=("torch.export", "torch.compile"))
    assert module(torch.zeros(2, 1, 3)).shape == (2, 5, 3)


def test_sizes_that_do_not_fit_are_refused() -> None:
    node = helper.make_node("Expand", ["x", "shape"], ["y"])
    with pytest.raises(UnsupportedModelError, match=r"the size of a tensor that is expanded \(12 and 3\)"):
        onnx2nn.load(_model([node], [12, 1], shape=np.int64([3, 4])))


@pytest.mark.parametrize("unknown", ["?", "-1", None, -1])
def test_unknown_sizes_are_not_equal(unknown: str | int | None) -> None:
    """Paddle writes `?` for every size that it does not know."""
    flat = helper.make_node("Reshape", ["x", "flat"], ["y"])
    module = onnx2nn.load(_model([flat], [2, unknown, unknown], flat=np.int64([0, -1])))
    assert module.meta["onnx2nn"]["signature"][0]["shape"] == (2, "x:1", "x:2")
    for size in ((2, 3, 5), (2, 4, 4)):
        x = torch.randn(size)
        assert torch.equal(module(x), x.reshape(2, -1))
    torch.export.export(module, (torch.randn(2, 3, 5),), strict=False)


def test_a_branch_that_reads_an_outer_value_for_its_shape_alone() -> None:
    """Of the two values that the branch captures one is an argument of it, the other none."""
    branches = {}
    for name, operator in (("then_branch", "Add"), ("else_branch", "Sub")):
        nodes = [
            helper.make_node(operator, ["x", "x"], [f"{name}_x"]),
            helper.make_node("Shape", ["longer"], [f"{name}_shape"]),
            helper.make_node("Expand", [f"{name}_x", f"{name}_shape"], [name]),
        ]
        output = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        branches[name] = helper.make_graph(nodes, name, [], [output])
    nodes = [
        helper.make_node("Concat", ["x", "x", "x"], ["longer"], axis=0),
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        helper.make_node("Greater", ["most", "zero"], ["positive"]),
        helper.make_node("If", ["positive"], ["y"], **branches),
    ]
    module = onnx2nn.load(_model(nodes, [1, 3], zero=np.float32(0)))
    for sign in (1, -1):
        x = sign * torch.arange(1.0, 4.0).reshape(1, 3)
        assert torch.equal(module(x), (x + x if sign > 0 else x - x).expand(3, 3))


def test_nothing_that_is_reshaped_to_something_fails_in_the_call() -> None:
    nodes = [
        helper.make_node("Slice", ["x", "zero", "zero"], ["none"]),
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Reshape", ["none", "shape"], ["y"]),
    ]
    module = onnx2nn.load(_model(nodes, ["N", "L"], zero=np.int64([0])))
    with pytest.raises(ValueError, match="N \\* L == 0 is needed by node"):
        module(torch.zeros(2, 3))


def test_numbers_that_small_sizes_hide(tmp_path: Path) -> None:
    """At least one frame of 256: all small sizes have one, and the dimension that a Reshape copies follows it."""
    path = tmp_path / "frames.onnx"
    model = parser.parse_model("""
    <ir_version: 8, opset_import: ["" : 18]>
    graph (float[1, samples] x) => (float[frames, 4] y)
    <int64 hop = {256}, int64 one = {1}, int64[1] nought = {0}, int64[1] axis = {1}, int64[3] rows = {-1, 1, 4},
     int64[2] target = {0, -1}, int64[4] pads = {0, 0, 0, 64}, int64[1] far = {64}> {
        shape = Shape(x) samples = Gather<axis = 0>(shape, one) count = Div(samples, hop) frames = Max(count, one)
        end = Unsqueeze(frames, nought) padded = Pad(x, pads) part = Slice(padded, nought, far, axis)
        cut = Reshape(part, rows) kept = Slice(cut, nought, end, nought)
        y = Reshape(kept, target)
    }
    """)
    onnx.save(model, path)
    module = onnx2nn.load(path)
    for size in (5, 256, 511, 512, 2048):
        check_against_onnxruntime(path, module, (torch.arange(size, dtype=torch.float32)[None],))


PARTS = {
    "of a computed size": "q = SplitToSequence <axis = 1> (x, rows) y = SequenceLength(q)",
    "of a computed size, joined": "q = SplitToSequence <axis = 1> (x, rows) y = ConcatFromSequence <axis = 0> (q)",
    "of a fixed size": "q = SplitToSequence <axis = 0> (x, two) y = SequenceLength(q)",
    "of one row": "q = SplitToSequence (x) y = SequenceLength(q)",
    "of nothing": "none = Slice(x, zero, zero) q = SplitToSequence (none, two) y = SequenceLength(q)",
    "of an axis that has one size in samples": """n = Shape <end = 1> (x) few = Min(n, three) part = Slice(x, zero, few)
        q = SplitToSequence <axis = 0, keepdims = 0> (part) y = SequenceLength(q)""",
}


@pytest.mark.parametrize("parts", PARTS)
def test_the_number_of_parts_is_no_sample(parts: str) -> None:
    """At all sizes that samples take, the first sequence has one element and the last one three."""
    model = parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 21]> g (float[n, 3] x) => (float y)
        <int64 two = {{2}}, int64[1] three = {{3}}, int64[1] zero = {{0}}, int64 first = {{0}}> {{
            shape = Shape(x) rows = Gather(shape, first) {PARTS[parts]}
        }}""")
    model.graph.output[0].CopyFrom(onnx.ValueInfoProto(name="y"))
    module = onnx2nn.load(model)
    for size in (0, 1, 2, 3, 4, 9)["computed" in parts :]:
        x = torch.arange(3.0 * size).reshape(size, 3)
        if size == 2 and "joined" in parts:  # its parts have two columns and one
            with pytest.raises(RuntimeError, match="Sizes of tensors must match"):
                module(x)
        else:
            check_same([module(x)], run_onnxruntime(model.SerializeToString(), [x]), f"{size} rows")


def test_parts_of_one_size_are_checked_before_anything_runs() -> None:
    module = onnx2nn.load(
        parser.parse_model("""<ir_version: 10, opset_import: ["" : 13]>
            g (float[n] x) => (float[a] y, float[a] z, float[a] w) { y, z, w = Split(x) }""")
    )
    assert [len(part) for part in module(torch.ones(6))] == [2, 2, 2]
    for size in (1, 4, 5):
        with pytest.raises(ValueError, match=rf"n % 3 == 0 is needed by node '.*' \(Split\).* is {size}\."):
            module(torch.ones(size))


@pytest.mark.parametrize("pads", ["given, two", "two, given", "given, given"])
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_pads_that_are_negative_at_some_sizes(mode: str, pads: str) -> None:
    """They crop, and the pad at the other end repeats what is left; an axis of which nothing is left has no element."""
    model = parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 21]> g (float[n] x) => (float[m] y)
        <int64[1] five = {{5}}, int64[1] two = {{2}}> {{
            n = Shape(x) rest = Mod(n, five) given = Sub(rest, two) all = Concat <axis = 0> ({pads})
            y = Pad <mode = "{mode}"> (x, all)
        }}""")
    module = onnx2nn.load(model)
    for size in (3, 4, 5, 6, 7, 9, 10, 16):
        x = torch.arange(1.0, size + 1)
        check_same([module(x)], run_onnxruntime(model.SerializeToString(), [x]), f"{size} elements")
    if mode != "constant":
        with pytest.raises(ValueError, match=rf"an element is left for mode='{mode}' to read\. Here n, .* 1\."):
            module(torch.ones(1))


@pytest.mark.parametrize("mode", ["edge", "reflect", "wrap"])
def test_pads_that_are_negative_wherever_an_element_is_left(mode: str) -> None:
    """That an element is left to read tells that they are; the crop before the first element was lost then."""
    model = parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 21]> g (float[n] x) => (float[m] y)
        <int64[1] one = {{1}}, int64[1] three = {{3}}, int64[1] minus = {{-1}}> {{
            n = Shape(x) few = Less(n, one) given = Where(few, three, minus) all = Concat <axis = 0> (given, given)
            y = Pad <mode = "{mode}"> (x, all)
        }}""")
    module = onnx2nn.load(model)
    for size in (3, 4, 9):
        x = torch.arange(1.0, size + 1)
        check_same([module(x)], run_onnxruntime(model.SerializeToString(), [x]), f"{size} elements")


def test_products_of_sizes_in_int32(tmp_path: Path) -> None:
    """tf2onnx writes Keras's Dense of three dimensions so; the product was a tensor, and the Reshape's sizes data's."""
    model = parser.parse_model("""<ir_version: 8, opset_import: ["" : 13]> g (float[n, m, 4] x) => (float[a, 4] y)
        <int64[2] free = {0, 1}, int64[1] last = {2}, int64[1] zero = {0}> {
            sizes = Shape (x) narrow = Cast <to = 6> (sizes) some = Gather (narrow, free) rest = Gather (narrow, last)
            rows = ReduceProd <axes = [0], keepdims = 0> (some) columns = ReduceProd <axes = [0], keepdims = 0> (rest)
            first = Unsqueeze (rows, zero) second = Unsqueeze (columns, zero)
            both = Concat <axis = 0> (first, second) shape = Cast <to = 7> (both) y = Reshape (x, shape)
        }""")
    module = onnx2nn.load(model)
    assert "prod" not in module.code
    (guard, *_) = module.meta["onnx2nn"]["guards"]
    assert "n * m <= 2147483647" in str(guard)
    dynamic = ({0: torch.export.Dim("n", min=2), 1: torch.export.Dim("m", min=2)},)
    exported = torch.export.export(module, (torch.ones(3, 5, 4),), dynamic_shapes=dynamic).module()
    for sizes in ((2, 3), (7, 2)):
        x = torch.randn(*sizes, 4)
        check_same([module(x), exported(x)], [x.reshape(-1, 4)] * 2, f"{sizes}")
    assert "agrees with" in onnx2nn.export_onnx(module, tmp_path / "again.onnx")


@pytest.mark.parametrize("pads", ["odd, minus", "minus, odd", "odd, zero", "minus, zero"])
@pytest.mark.parametrize("mode", ["edge", "reflect", "wrap"])
def test_pads_of_an_axis_that_has_elements_where_they_are_not_zero(mode: str, pads: str) -> None:
    """Without elements they are 0, which reads none; a file whose pads leave nothing elsewhere was refused."""
    model = parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 19]> g (float[n] x) => (float[m] y)
        <int64[1] two = {{2}}, int64[1] zero = {{0}}> {{
            n = Shape(x) odd = Mod(n, two) minus = Neg(odd) part = Slice(x, zero, odd, zero)
            all = Concat <axis = 0> ({pads}) y = Pad <mode = "{mode}"> (part, all)
        }}""")
    module = onnx2nn.load(model)
    for size in (0, 2, 8):
        assert module(torch.ones(size)).shape == (0,), size
    for size in (1, 3):
        if "minus" in pads:  # as in ONNX Runtime, also where nothing is added to the nothing that is left
            with pytest.raises(ValueError, match=r"n % 2 == 0 is needed by node 'y' \(Pad\): an element is left"):
                module(torch.ones(size))
        else:  # ONNX Runtime reflects no single element
            torch.testing.assert_close(module(torch.full((size,), 3.0)), torch.full((2,), 3.0))


@pytest.mark.parametrize("divided", ["Div (many, size)", "Mod (many, size)", "Div (most, size)", "Div (many, less)"])
def test_no_size_is_divided_by_zero(divided: str) -> None:
    """ONNX Runtime refuses it too; the guard came later, or not at all, and Python's error in its place."""
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]> g (float[n, 12] x) => (float[n, m] y)
        <int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] four = {{4}}, int64[1] many = {{24}}> {{
            size = Shape <start = 0, end = 1> (x) most = Mul (size, many) less = Sub (size, four)
            end = {divided} y = Slice (x, zero, end, one)
        }}""")
    module = onnx2nn.load(model)
    for size in (0, 1, 2, 4, 5, 7):
        x = torch.randn(size, 12)
        if size == (4 if "less" in divided else 0):
            with pytest.raises(
                ValueError, match=r"is needed by node 'end' \((Div|Mod)\): a divisor is not 0\. Here n, "
            ):
                module(x)
        else:
            check_same([module(x)], run_onnxruntime(model.SerializeToString(), [x]), f"{size} elements")


def test_a_slice_up_to_the_size_of_its_axis_has_no_end() -> None:
    """Scripts of torch write `x[:, 1:]` and the last part of `tensor_split` so."""
    model = parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[b, n, 4] x) => (float[b, m, 4] rest, float[b, n, 4] all, float[b, k, 4] less)
        <int64[1] zero = {0}, int64[1] one = {1}> {
            size = Shape <start = 1, end = 2> (x) next = Add (size, one) fewer = Sub (size, one)
            rest = Slice (x, one, size, one) all = Slice (x, zero, next, one) less = Slice (x, zero, fewer, one)
        }""")
    module = onnx2nn.load(model)
    assert "x[:, 1:]" in module.code and module.code.count("x[") == 2
    for size in (0, 1, 2, 5):
        x = torch.randn(2, size, 4)
        check_same(run(module, (x,)), run_onnxruntime(model.SerializeToString(), [x]), f"{size} elements")


@pytest.mark.skipif(
    installed.version("onnxruntime") < (1, 31),
    reason="ONNX Runtime before 1.31 answers an axis that a pad leaves empty, or has an overflow, for some modes",
)
@pytest.mark.parametrize("pads", [(4, -4), (-4, 4), (-2, 4), (4, -2), (1, -1), (2, -4), (-4, 2)])
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_pads_that_crop_what_another_one_adds(mode: str, pads: tuple[int, int]) -> None:
    """An axis that has fewer elements than a pad crops loses constants of the other pad."""
    model = parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 21]> g (float[n] x) => (float[m] y)
        <int64[2] pads = {{{pads[0]}, {pads[1]}}}> {{ y = Pad <mode = "{mode}"> (x, pads) }}""")
    module = onnx2nn.load(model)
    answered = refused = 0
    for size in (0, 1, 2, 3, 4, 5, 6, 9):
        x = torch.arange(1.0, size + 1)
        try:
            expected = run_onnxruntime(model.SerializeToString(), [x])
        except Exception as error:  # its classes have no base of their own; the text says that it is the Pad's refusal
            assert "Pad" in str(error) or "pad" in str(error)
            expected = None
        if expected is None or (mode != "constant" and size == 0):
            refused += 1
            with pytest.raises(ValueError, match=rf"n >= \d is needed by .*\(Pad\).* Here n, .* is {size}\."):
                module(x)
        else:
            answered += 1
            check_same([module(x)], expected, f"{size} elements")
    assert answered and refused <= (0 if mode == "constant" and sum(pads) >= 0 else 7)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
def test_pads_of_an_empty_axis_that_leave_it_empty(mode: str) -> None:
    model = parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 21]> g (float[n, 2] x) => (float[n, 0] y)
        <int64[1] one = {{1}}, int64[1] two = {{2}}, int64[4] pads = {{0, 4, 0, -4}}> {{
            none = Slice(x, two, two, one) y = Pad <mode = "{mode}"> (none, pads)
        }}""")
    assert onnx2nn.load(model)(torch.ones(3, 2)).shape == (3, 0)


@pytest.mark.parametrize("mode", ["edge", "reflect"])
def test_sizes_decide_whether_pads_leave_an_empty_axis_empty(mode: str) -> None:
    """One pad may add what the other crops: which sizes do so is a guard of their sum."""
    model = parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 21]> g (float[n] x) => (float[m] y)
        <int64[1] one = {{1}}, int64[1] two = {{2}}, int64[1] zero = {{0}}, int64[1] three = {{-3}}> {{
            n = Shape(x) some = Min(n, one) less = Sub(n, two) rest = Mod <fmod = 1> (less, three)
            minus = Neg(rest) pads = Concat <axis = 0> (some, minus)
            none = Slice(x, n, n, zero) y = Pad <mode = "{mode}"> (none, pads)
        }}""")
    module = onnx2nn.load(model)
    for size in range(12):
        x = torch.ones(size)
        if size >= 1 and (size - 2) % 3 == 1:
            check_same([module(x)], run_onnxruntime(model.SerializeToString(), [x]), f"{size} elements")
        else:
            with pytest.raises(ValueError, match=rf"n .* is needed by .*\(Pad\).* Here n, .* is {size}\."):
                module(x)


@pytest.mark.parametrize("mode", ["edge", "reflect"])
def test_an_empty_axis_is_padded_where_another_one_is_empty(mode: str) -> None:
    model = parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 21]> g (float[n, 1] x) => (float[n, 2] y)
        <int64[4] pads = {{0, 3, 0, -1}}> {{ y = Pad <mode = "{mode}"> (x, pads) }}""")
    module = onnx2nn.load(model)
    check_same([module(torch.ones(0, 1))], run_onnxruntime(model.SerializeToString(), [torch.ones(0, 1)]), "no rows")
    with pytest.raises(ValueError, match=r"n == 0 is needed by .*\(Pad\).*or none in another axis\. Here n, .* is 2\."):
        module(torch.ones(2, 1))


@pytest.mark.parametrize("mode", ["edge", "reflect"])
def test_pads_crop_more_than_an_axis_has_where_another_one_is_empty(mode: str) -> None:
    model = parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 21]> g (float[n, 4] x) => (float[n, m] y)
        <int64[4] pads = {{0, 3, 0, -6}}> {{ y = Pad <mode = "{mode}"> (x, pads) }}""")
    module = onnx2nn.load(model)
    check_same([module(torch.ones(0, 4))], run_onnxruntime(model.SerializeToString(), [torch.ones(0, 4)]), "no rows")
    with pytest.raises(ValueError, match=r"n == 0 is needed by .*\(Pad\).*or another axis has no elements\. Here n, "):
        module(torch.ones(2, 4))


@pytest.mark.parametrize("mode", ["edge", "reflect", "wrap"])
def test_an_empty_axis_may_have_pads_of_nothing(mode: str) -> None:
    model = parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 21]> g (float[n] x) => (float[m] y)
        <int64[1] four = {{4}}> {{
            n = Shape(x) some = Min(n, four) pads = Concat <axis = 0> (some, some) y = Pad <mode = "{mode}"> (x, pads)
        }}""")
    module = onnx2nn.load(model)
    for size in (0, 5, 6, 9) if mode != "wrap" else (5, 6, 9):  # ONNX Runtime wraps nothing of no elements
        x = torch.arange(1.0, size + 1)
        check_same([module(x)], run_onnxruntime(model.SerializeToString(), [x]), f"{size} elements")
    assert module(torch.ones(0)).shape == (0,)


@pytest.mark.parametrize("mode", ["edge", "reflect"])
def test_rows_of_nothing_are_padded(mode: str) -> None:
    """Torch's pad takes no dimension without elements, but the first."""
    model = parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 19]> g (float[n, 2, 3] x) => (float[n, 0, 6] y)
        <int64[1] one = {{1}}, int64[1] two = {{2}}, int64[6] pads = {{0, 0, 1, 0, 0, 2}}> {{
            none = Slice(x, two, two, one) y = Pad <mode = "{mode}"> (none, pads)
        }}""")
    assert onnx2nn.load(model)(torch.ones(4, 2, 3)).shape == (4, 0, 6)


@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize("mode", ["edge", "reflect"])
def test_an_axis_of_which_data_leave_nothing_may_stand_beside_a_padded_one(mode: str, rank: int) -> None:
    """Torch's pad takes no such axis, but the first."""
    rest = ", ".join("3" * (rank - 2))
    pads = [*[0] * (rank - 1), 2, *[0] * (rank - 1), 1]
    model = parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 21]>
        g (float[n, 4, {rest}] x, bool[4] kept) => (float[n, k, {"a, " * (rank - 3)} b] y)
        <int64[{len(pads)}] pads = {{{", ".join(map(str, pads))}}}> {{
            some = Compress <axis = 1> (x, kept) y = Pad <mode = "{mode}"> (some, pads)
        }}""")
    module = onnx2nn.load(model)
    for mask in ([False] * 4, [True, False, False, True]):
        given = [torch.rand(2, 4, *[3] * (rank - 2)), torch.tensor(mask)]
        check_same([module(*given)], run_onnxruntime(model.SerializeToString(), given), str(mask))


@pytest.mark.parametrize("mode", ["edge", "reflect"])
def test_an_axis_beside_one_without_elements_takes_any_pads(mode: str) -> None:
    """Nothing is read; torch's pad takes fewer than the axis has."""
    model = parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 21]>
        g (float[n, 3] x) => (float[m, k] y) <int64[1] one = {{1}}, int64[4] pads = {{2, 0, 3, 0}}> {{
            none = Slice (x, one, one, one) y = Pad <mode = "{mode}"> (none, pads)
        }}""")
    module = onnx2nn.load(model)
    for rows in (1, 2, 3, 9):
        given = [torch.rand(rows, 3)]
        check_same([module(*given)], run_onnxruntime(model.SerializeToString(), given), str(rows))


@pytest.mark.parametrize("mode", ["edge", "reflect"])
def test_pads_that_leave_an_axis_nothing_to_read_stand_where_another_axis_is_empty(mode: str) -> None:
    model = parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 21]>
        g (float[m, 2, n] x) => (float[m, k, n] y) <int64[1] none = {{0}}, int64[1] two = {{2}}> {{
            m = Shape <end = 1> (x) more = Add (m, two) fewer = Neg (more)
            pads = Concat <axis = 0> (none, m, none, none, fewer, none) y = Pad <mode = "{mode}"> (x, pads)
        }}""")
    module = onnx2nn.load(model)
    for columns in (0, 3):
        given = [torch.rand(0, 2, columns)]
        check_same([module(*given)], run_onnxruntime(model.SerializeToString(), given), str(columns))
    with pytest.raises(ValueError, match="is needed by node"):
        module(torch.rand(1, 2, 3))


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_pads_and_sizes_of_any_number(mode: str) -> None:
    """Also where pads crop more than an axis has, as long as ONNX Runtime answers."""
    model = parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 21]>
        g (float[m, k, n] x, int64[6] pads) => (float[a, b, c] y) {{ y = Pad <mode = "{mode}"> (x, pads) }}""")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    module, random, answered = onnx2nn.load(model), np.random.default_rng(0), 0
    for _ in range(3000):
        x = random.random(random.integers(0, 4, 3), np.float32)
        pads = random.integers(-3, 3, 6)
        try:
            (expected,) = session.run(None, {"x": x, "pads": pads})
        except Exception as error:  # its classes have no base of their own; the text says that it is the Pad's refusal
            assert "Pad" in str(error) or "pad" in str(error)
            continue
        answered += 1
        found = module(torch.tensor(x), torch.tensor(pads))
        check_same([found], [torch.tensor(expected)], f"{x.shape} padded by {pads}")
    assert answered >= 70


def test_a_size_marks_its_place() -> None:
    """Which element differs is a choice by size, not one that the import makes."""
    model = parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]> 
        g (float[n] x, float[m] z) => (int64[1, 4] y, float[k] w)
        <int64[1] six = {6}, int64 four = {4}, int64[2] values = {1, 2}, int64[1] zero = {0}, int64[1] one = {1}> {
            n = Shape(x) place = Sub(n, six) y = OneHot(place, four, values)
            marks = Squeeze(y, zero) first = Slice(marks, zero, one) w = Tile(z, first)
        }""")
    module = onnx2nn.load(model)
    for size in range(14):
        inputs = [torch.ones(size), torch.arange(3.0)]
        check_same(list(module(*inputs)), run_onnxruntime(model.SerializeToString(), inputs), f"{size} elements")


@pytest.mark.parametrize(
    "nodes",
    [
        "y = Less(none, n)",
        "y = GreaterOrEqual(n, none)",
        "c = Greater(none, n) y = And(c, c)",
        "c = LessOrEqual(none, n) y = Or(c, c)",
        "c = Less(none, n) y = Not(c)",
        "c = Less(none, n) y = Where(c, n, none)",
    ],
)
def test_truths_about_no_numbers_are_truths(nodes: str) -> None:
    model = parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 21]> g (float[n] x) => (float y) {{
        n = Shape(x) none = Shape <start = 1> (x) {nodes} }}""")
    model.graph.output[0].CopyFrom(onnx.ValueInfoProto(name="y"))
    x = torch.ones(3)
    check_same([onnx2nn.load(model)(x)], run_onnxruntime(model.SerializeToString(), [x]), nodes)


@pytest.mark.parametrize("width", ["width", "height"])
def test_an_image_of_which_the_positions_tell_the_size(width: str) -> None:
    """Vision transformers are declared for any height and width, their positions are constants of one size."""
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    graph (float[batch, channels, height, width] x) => (float[batch, places, 4] y)
    <int64[3] flat = {0, 4, -1}, float[1, 17, 4] table = {TABLE}, float[4, 3, 8, 8] w = {WEIGHT},
     float[1, 1, 4] token = {1, 2, 3, 4}, int64[2] rest = {1, 4}> {
        maps = Conv<strides = [8, 8]>(x, w) rows = Reshape(maps, flat) patches = Transpose<perm = [0, 2, 1]>(rows)
        batch = Shape<start = 0, end = 1>(maps) sizes = Concat<axis = 0>(batch, rest)
        tokens = Expand(token, sizes) all = Concat<axis = 1>(tokens, patches) y = Add(all, table)
    }
    """
    table, weight = ", ".join(map(str, range(68))), ", ".join(["0.5", "-0.25"] * 384)
    text = text.replace("height, width", f"height, {width}")
    model = parser.parse_model(text.replace("TABLE", table).replace("WEIGHT", weight))
    module = onnx2nn.load(model)
    for size in (32, 39):
        inputs = (torch.linspace(-1, 1, 6 * size * size).reshape(2, 3, size, size),)
        check_same(run(module, inputs), run_onnxruntime(model.SerializeToString(), inputs), "against ONNX Runtime")
    with pytest.raises(ValueError, match=r"== 16 is needed by node|<= 39 is needed by node"):
        module(torch.zeros(1, 3, 40, 40))
    assert not LEAVES_THE_GRAPH.search(module.code), module.code
    torch.export.export(module, (torch.zeros(1, 3, 32, 32),), strict=False)


def test_names_of_one_dimension_of_which_one_is_multiplied() -> None:
    """Attention to a memory joins samples and heads; the exporter gives the memory's samples a name of their own."""
    module = onnx2nn.load(
        parser.parse_model("""
    <ir_version: 8, opset_import: ["" : 17]>
    graph (float[samples, 6] x, float[others, 6] memory) => (float[n, 3] y)
    <int64 heads = {2}, int64[1] width = {3}, int64[1] axis = {0}> {
        shape = Shape<start = 0, end = 1>(x) count = Mul(shape, heads) sizes = Concat<axis = 0>(count, width)
        one = Reshape(x, sizes) other = Reshape(memory, sizes) y = Add(one, other)
    }
    """)
    )
    assert not LEAVES_THE_GRAPH.search(module.code), module.code
    x = torch.arange(24.0).reshape(4, 6)
    assert torch.equal(module(x, x + 1), (2 * x + 1).reshape(8, 3))


def test_a_dimension_named_after_others() -> None:
    """Decoders with a cache call the length of their mask `past_sequence_length + sequence_length`."""
    model = parser.parse_model("""
    <ir_version: 8, opset_import: ["" : 17]>
    graph (float[batch, length, 4] x, float[batch, past, 4] old, float[batch, "past + 2 * length // 2", 1] mask)
        => (float[batch, all, 4] y) { joined = Concat<axis = 1>(old, x) y = Mul(joined, mask) }
    """)
    module = onnx2nn.load(model)
    for batch, length, past in ((2, 3, 4), (1, 1, 6), (3, 5, 1)):
        inputs = (torch.ones(batch, length, 4), torch.ones(batch, past, 4), torch.randn(batch, past + length, 1))
        check_same(run(module, inputs), run_onnxruntime(model.SerializeToString(), inputs), "against ONNX Runtime")


@pytest.mark.parametrize(
    "name", ["a + past", "past - past", "past + 9 * 9999999999", "past.b + 1", "past +", "(" * 999]
)
def test_a_dimension_whose_name_says_nothing(name: str) -> None:
    model = parser.parse_model(f"""
    <ir_version: 8, opset_import: ["" : 17]>
    graph (float[past] x, float["{name}"] y) => (float[past] z, float["{name}"] w) {{ z = Neg(x) w = Neg(y) }}
    """)
    x, y = torch.ones(3), torch.ones(5)
    check_same(run(onnx2nn.load(model), (x, y)), (-x, -y), "itself")


def test_a_number_to_the_power_of_a_tensor() -> None:
    """Isolation forests of skl2onnx end so."""
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    graph (float[n] x) => (float[n] y) <float c = {2.0}> { y = Pow(c, x) }
    """
    y = onnx2nn.load(parser.parse_model(text))(torch.tensor([1.0, 2.0, 3.0]))
    torch.testing.assert_close(y, torch.tensor([2.0, 4.0, 8.0]))


def test_numbers_that_meet_data() -> None:
    """They become tensors; a list of them in torch.tensor would be what the example of torch.jit.trace had."""
    model = parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        g (float[N, M] x, int64[2] i) => (int64[2] one, int64[2] two, int64[1, 2] four, int64[2] none, float[1] half)
            <int64 zero = {0}, int64[1] axis = {0}, int64[2] square = {1, 2}, float[1] by = {0.5}> {
            shape = Shape(x) n = Gather(shape, zero)
            number = Unsqueeze(n, axis) one = Mul(i, number)
            two = Mul(i, shape)
            row = Reshape(shape, square) four = Mul(row, i)
            none = Mul(i, n)
            whole = Cast<to = 1>(number) half = Mul(whole, by)
        }
    """)
    module = onnx2nn.load(model)
    first, other = ((torch.zeros(n, m), torch.tensor([1, 2])) for n, m in ((2, 3), (5, 7)))
    for inputs in (first, other):
        check_same(run(module, inputs), run_onnxruntime(model.SerializeToString(), inputs), "against ONNX Runtime")
    check_travels(module, first, other)


def test_the_shape_of_an_unknown_rank() -> None:
    model = parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        g (float[] x, int64[2] i) => (int64[2] y, int64 z) { shape = Shape(x) y = Mul(i, shape) z = Size(x) }
    """)
    model.graph.input[0].type.tensor_type.ClearField("shape")
    module = onnx2nn.load(model)
    first, other = ((torch.zeros(n, m), torch.tensor([1, 2])) for n, m in ((2, 3), (5, 7)))
    for inputs in (first, other):
        check_same(run(module, inputs), run_onnxruntime(model.SerializeToString(), inputs), "against ONNX Runtime")
    check_travels(module, first, other, travels=("torch.export", "torch.compile", "torch.jit.trace"))


@pytest.mark.parametrize("added", [1, 0.25])
def test_a_size_that_is_rounded_down(added: float) -> None:
    """As the length behind a convolution; by whole numbers it is one division."""
    model = parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17]>
        g (float[N, T] x) => (float[M, N] y)
            <int64[1] last = {{1}}, int64[1] zero = {{0}}, float[1] two = {{2}}, float[1] added = {{{added}}}> {{
            shape = Shape(x) t = Gather(shape, last) length = Cast<to = 1>(t)
            half = Div(length, two) more = Add(half, added) whole = Floor(more) m = Cast<to = 7>(whole)
            n = Gather(shape, zero) both = Concat<axis = 0>(m, n) y = ConstantOfShape(both)
        }}
    """)
    module = onnx2nn.load(model)
    assert ("// 2" in module.code) == (added == 1)
    first, other = (torch.zeros(2, 7),), (torch.zeros(3, 10),)
    for inputs in (first, other):
        check_same(run(module, inputs), run_onnxruntime(model.SerializeToString(), inputs), "against ONNX Runtime")
    check_travels(module, first, other)


def test_a_size_that_is_baked_into_a_reshape_stands_in_its_place() -> None:
    """Torch's dynamo exporter writes so the length of keys and values, which are projected together."""
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        agraph (float[batch,length,8] x) => (float[a,b,c,d] y) <int64[4] shape = {7, -1, 2, 4}> {
            steps = Transpose <perm = [1, 0, 2]> (x) y = Reshape(steps, shape)
        }"""
    )
    module = onnx2nn.load(model)
    for size in ((3, 7, 8), (7, 3, 8)):  # it says no more than that seven divides the number of vectors
        x = torch.randn(size)
        assert torch.equal(module(x), x.transpose(0, 1).reshape(7, 3, 2, 4))
    with pytest.raises(ValueError, match="% 7 == 0 is needed by node 'y'"):
        module(torch.randn(3, 4, 8))


def test_a_size_of_which_convolutions_leave_what_is_flattened(tmp_path: Path) -> None:
    """A file whose time and bands are both open, though its last layers fit one number of bands."""
    weight = ", ".join(str(round(0.1 * (i % 7) - 0.3, 1)) for i in range(36))
    model = parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17]>
        agraph (float[time,bands] x) => (float[n,40] y)
        <float[4,1,3,3] weight = {{{weight}}}, int64[2] outer = {{0, 3}}, int64[1] first = {{0}},
         int64[2] flat = {{-1, 40}}> {{
            image = Unsqueeze (x, outer) image_last = Transpose <perm = [0, 3, 1, 2]> (image)
            left = Conv <strides = [1, 1]> (image_last, weight) turned = Transpose <perm = [0, 2, 3, 1]> (left)
            rows = Squeeze (turned, first) y = Reshape (rows, flat)
        }}""")
    module = onnx2nn.load(model)
    assert not any("opaque" in node.meta for node in module.graph.nodes)
    for time, bands in ((5, 12), (9, 12), (12, 6), (4, 7)):
        inputs = (torch.linspace(-1, 1, time * bands).reshape(time, bands),)
        check_same(run(module, inputs), run_onnxruntime(model.SerializeToString(), inputs), "against ONNX Runtime")
    assert "agrees" in onnx2nn.export_onnx(module, tmp_path / "again.onnx")


def test_sizes_that_a_constant_has_in_their_places() -> None:
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        agraph (float[time,bands,windows] x) => (float[time,a,b] y) <float[3,2] mean = {1, 2, 3, 4, 5, 6}> {
            y = Sub (x, mean)
        }"""
    )
    module = onnx2nn.load(model)
    for size in ((4, 3, 2), (4, 1, 2), (5, 3, 1)):  # sizes of 1 are broadcast
        x = torch.randn(size)
        assert torch.equal(module(x), x - torch.arange(1.0, 7).reshape(3, 2))


ROUNDED = {
    "a square": """(float[n] x) => (int64[1] y) <int64[1] zero = {0}, float three = {3.0}> {
        s = Shape(x)  f = Cast<to = 1>(s)  m = Mul(f, f)  d = Sub(m, three)  r = Floor(d)  y = Cast<to = 7>(r)
    }""",
    "a product of halves": """(float[n] x) => (int64[1] y) <float half = {0.5}, float other = {1.5}> {
        s = Shape(x)  f = Cast<to = 1>(s)  d = Sub(f, half)  m = Mul(d, f)  q = Div(m, other)  r = Ceil(q)
        y = Cast<to = 7>(r)
    }""",
    "the larger of halves": """(float[n] x) => (int64[1] y)
        <float half = {4096.5}, float least = {0.0}, float most = {3000.25}> {
        s = Shape(x)  f = Cast<to = 1>(s)  d = Sub(half, f)  c = Clip(d, least, most)  m = Max(c, half)  r = Add(c, m)
        y = Cast<to = 7>(r)
    }""",
}
"""Models that compute with floats that float32 rounds at large sizes."""


@pytest.mark.parametrize("graph", ROUNDED.values(), ids=ROUNDED)
def test_floats_round_as_the_file_says(graph: str) -> None:
    text = f'<ir_version: 9, opset_import: ["" : 20]> rounded {graph}'
    content = parser.parse_model(text).SerializeToString()
    module = onnx2nn.load(content)
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    for size in (1, 7, 4095, 4097, 4999, 5000, 9999):
        x = np.zeros(size, np.float32)
        assert module(torch.from_numpy(x)).tolist() == session.run(None, {"x": x})[0].tolist(), size


def test_sums_of_integers_have_the_sizes_of_both() -> None:
    """As those of floats do: no data decide them."""
    model = parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 17, "com.microsoft" : 1]> g (uint8[n,2] x, uint8[m,2] y)
        => (float[k,2,1] z) <float s = {0.5}, uint8 p = {3}, int64[3] wanted = {0,-1,1}> {
            a = com.microsoft.QLinearAdd (x, s, p, y, s, p, s, p)  d = com.microsoft.QLinearMul (a, s, p, y, s, p, s, p)
            f = DequantizeLinear (d, s, p)  z = Reshape (f, wanted)
        }"""
    )
    module = onnx2nn.load(model)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for n, m in ((3, 3), (1, 4), (4, 1), (1, 1)):
        x, y = (torch.randint(0, 9, (size, 2), dtype=torch.uint8) for size in (n, m))
        (expected,) = session.run(None, {"x": x.numpy(), "y": y.numpy()})
        assert module(x, y).tolist() == expected.tolist(), (n, m)
    with pytest.raises(ValueError, match="n == m or n == 1 or m == 1 is needed by node"):
        module(torch.zeros(3, 2, dtype=torch.uint8), torch.zeros(2, 2, dtype=torch.uint8))


def test_an_empty_tensor_has_no_unknown_dimension() -> None:
    model = parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 17]> g (float[0,4] x) => (float[0,a,2] y) <int64[3] wanted = {0,-1,2}> {
            y = Reshape (x, wanted)
        }"""
    )
    with pytest.raises(UnsupportedModelError, match="0 elements"):
        onnx2nn.load(model)


def test_a_clipped_float_stays_a_size() -> None:
    """As the widths that timm's `Conv2dSame` pads with, in files of the older exporter."""
    model = parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 17]> g (float[n] x) => (float[m] y)
        <float[1] wanted = {5.0}, float none = {0.0}, float two = {2.0}, int64[1] zero = {0}> {
            s = Shape(x)  f = Cast<to = 1>(s)  d = Sub(wanted, f)  c = Clip(d, none)  h = Div(c, two)
            b = Cast<to = 7>(h)  w = Concat<axis = 0>(b, zero)  y = Pad(x, w)
        }"""
    )
    module = onnx2nn.load(model)
    assert "torch.nn.functional.pad(" in module.code
    for size in (0, 1, 2, 3, 5, 6, 9):
        assert module(torch.ones(size)).tolist() == [0.0] * (max(5 - size, 0) // 2) + [1.0] * size


@pytest.mark.parametrize("step", [-1, -2])
@pytest.mark.parametrize("end", ["first", "zero", "less", "most", "backwards"])
@pytest.mark.parametrize("start", ["zero", "less", "most", "backwards", "last", "past"])
def test_a_slice_backwards_over_an_open_axis_clamps(start: str, end: str, step: int) -> None:
    """Both ends may lie in front of the axis and behind it, as its size decides."""
    model = parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 18]> g (float[n] x) => (float[m] y)
        <int64[1] zero = {{0}}, int64[1] last = {{-1}}, int64[1] past = {{-4}}, int64[1] three = {{3}},
        int64[1] first = {{-9223372036854775807}}, int64[1] step = {{{step}}}> {{
            n = Shape(x)  less = Sub(n, three)  most = Add(n, three)  backwards = Sub(zero, n)
            y = Slice(x, {start}, {end}, zero, step)
        }}"""
    )
    module = onnx2nn.load(model)
    assert module.meta["onnx2nn"]["guards"] == []
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for size in (0, 1, 2, 3, 4, 5, 8):
        x = torch.arange(float(size))
        (expected,) = session.run(None, {"x": x.numpy()})
        assert module(x).tolist() == expected.tolist(), f"{size} elements"


def test_a_product_of_floats_that_float32_rounds_is_computed_as_there() -> None:
    """No limit of the size makes it exact, and the vector that data decide must not be taken for exact either."""
    model = parser.parse_model("""<ir_version: 9, opset_import: ["" : 18]>
        g (float[n] x) => (float[k] y) <int64 zero = {0}, int64[1] one = {1}, int64 large = {6001}> {
            s = Shape (x)
            n0 = Gather (s, zero)
            m = Sub (n0, one)
            a = Cast <to = 1> (m)
            b = Cast <to = 1> (m)
            p = Mul (a, b)
            i = Cast <to = 7> (p)
            k1 = Mod (i, large)
            y = ConstantOfShape (k1)
        }""")
    module = onnx2nn.load(model)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for size in (1, 3, 4097, 4098, 5000):
        x = np.zeros(size, np.float32)
        assert module(torch.from_numpy(x)).shape == session.run(None, {"x": x})[0].shape, size


STRIDED_SLICE = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[m, n] x) => (float[a, n] y)
    <int64[1] zero = {0}, int64[1] two = {2}, int64[1] far = {9223372036854775807}> {
        m1 = Shape <start = 0, end = 1> (x)
        step = STEP (m1, two)
        s = Slice (x, zero, far, zero, step)
        t = Shape <end = 1> (s)
        n1 = Shape <start = 1> (x)
        target = Concat <axis = 0> (t, n1)
        y = Reshape (s, target)
    }"""


def test_a_slice_whose_step_is_computed_of_a_size() -> None:
    """The size of what it takes is known, and the step is not 0; a step that may be negative runs by its number."""
    model = parser.parse_model(STRIDED_SLICE.replace("STEP", "Div"))
    module = onnx2nn.load(model)
    (guard,) = module.meta["onnx2nn"]["guards"]
    assert guard["condition"] == "m >= 2" and guard["at_entry"] and guard["reason"] == "a step of a slice is not 0"
    of_sign = onnx2nn.load(parser.parse_model(STRIDED_SLICE.replace("STEP", "Sub")))
    assert not any(guard["condition"].startswith("m") for guard in of_sign.meta["onnx2nn"]["guards"])
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for sizes in ((2, 3), (3, 1), (8, 2), (9, 4), (40, 1)):
        x = torch.randn(sizes)
        (expected,) = session.run(None, {"x": x.numpy()})
        np.testing.assert_array_equal(module(x).numpy(), expected)
    with pytest.raises(ValueError, match=r"m >= 2 is needed by node 's' \(Slice\)"):
        module(torch.randn(1, 3))
    axes = ({0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO},)
    program = torch.export.export(module, (torch.randn(9, 4),), dynamic_shapes=axes).module()
    assert program(torch.randn(40, 3)).shape == (2, 3)


@pytest.mark.parametrize("rows", [0, 2])
def test_what_is_empty_along_the_axis_of_a_concat_has_any_sizes(rows: int) -> None:
    """Masks of no positions (torchaudio's Emformer): ONNX Runtime leaves them out, whatever their other sizes are."""
    model = parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        g (int64[1] n, float[h, 9] x) => (float[a, b] y) <int64[1] width = {7}> {
            shape = Concat <axis = 0> (n, width)
            empty = ConstantOfShape (shape)
            y = Concat <axis = 0> (empty, x)
        }""")
    inputs = (torch.tensor([rows]), torch.randn(3, 9))
    module = onnx2nn.load(model)
    if rows:
        with pytest.raises(RuntimeError, match="Sizes of tensors must match"):
            module(*inputs)
    else:
        check_same(run(module, inputs), run_onnxruntime(model.SerializeToString(), inputs), "against ONNX Runtime")


@pytest.mark.parametrize(
    "nodes",
    [
        "y = Gather (equal, none)",
        "y = Slice (equal, one, one)",
        "y = Tile (equal, zero)",
        "e = Slice (equal, one, one) y = Concat <axis = 0> (e, e)",
        "e = Slice (equal, one, one) y = Reshape (e, zero)",
        "e = Slice (equal, one, one) f = Slice (shape, one, one) w = Where (e, f, f) y = Equal (w, f)",
    ],
)
def test_no_comparisons_of_sizes_are_of_their_type(nodes: str) -> None:
    """No element tells then that they are truths."""
    text = f"""
        <ir_version: 8, opset_import: ["": 17]>
        g (float[n, m] x) => (bool[k] y) <int64[0] none = {{}}, int64[1] zero = {{0}}, int64[1] one = {{1}}> {{
            shape = Shape (x)
            equal = Equal (shape, one)
            {nodes}
        }}"""
    model, inputs = parser.parse_model(text), (torch.zeros(2, 3),)
    found = run(onnx2nn.load(model), inputs)
    assert found[0].dtype == torch.bool
    check_same(found, run_onnxruntime(model.SerializeToString(), inputs), "against ONNX Runtime")


def test_a_choice_of_no_sizes_has_the_type_of_what_is_chosen() -> None:
    model = parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        g (float[n, m] x) => (int64[k] y) <int64[1] one = {1}> {
            shape = Shape (x)
            none = Slice (shape, one, one)
            equal = Equal (none, none)
            y = Where (equal, none, none)
        }""")
    inputs = (torch.zeros(2, 3),)
    found = run(onnx2nn.load(model), inputs)
    assert found[0].dtype == torch.int64
    check_same(found, run_onnxruntime(model.SerializeToString(), inputs), "against ONNX Runtime")


def test_a_size_that_is_chosen_by_a_comparison_is_a_minimum(tmp_path: Path) -> None:
    """ndonnx computes the end of a slice so; torch.export knows minima, and fails where a size is a choice."""
    module = onnx2nn.load(
        parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        g (float[n, 4] x) => (float[n, 4] y) <int64 zero = {0}, int64 one = {1}, float[1, 4] ones = {1, 1, 1, 1}> {
            s = Shape (x)
            n = Gather (s, zero)
            many = Greater (n, one)
            end = Where (many, one, n)
            rows = Range (zero, end, one)
            axis = Constant <value = int64[1] {1}> ()
            first = Unsqueeze (rows, axis)
            update = Gather (x, rows)
            twice = Add (update, update)
            y = ScatterND (x, first, twice)
        }""")
    )
    assert "size_if" not in module.code
    assert "agrees" in onnx2nn.export_onnx(module, tmp_path / "m.onnx")
    check_against_onnxruntime(tmp_path / "m.onnx", module, (torch.randn(3, 4),))


SIZES_INSIDE = """
    <ir_version: 8, opset_import: ["": 17, "my": 1]>
    g (float[n, 4, 6] x) => (float[a, b] y) <int64[1] zero = {0}, int64[1] one = {1}, int64[1] k = {24}, bool c = {1}> {
        s = Shape (x)
        b = Slice (s, zero, one)
        COMPUTED
        y = Reshape (x, t)
    }
    <domain: "my", opset_import: ["": 17]> target (x, k) => (t) {
        s = Shape (x)
        zero = Constant <value = int64[1] {0}> ()
        one = Constant <value = int64[1] {1}> ()
        b = Slice (s, zero, one)
        t = Concat <axis = 0> (b, k)
    }"""


@pytest.mark.parametrize(
    "computed",
    [
        """t = If (c) <then_branch = g1 () => (int64[2] u) { u = Concat <axis = 0> (b, k) },
                       else_branch = g2 () => (int64[3] v) { v = Concat <axis = 0> (b, k, k) }>""",
        "t = my.target (x, k)",
    ],
)
def test_sizes_that_a_branch_or_a_function_computes(computed: str) -> None:
    """tf2onnx chooses the target of a Reshape by a constant; torch's first dynamo exporter kept functions of shapes."""
    module = onnx2nn.load(parser.parse_model(SIZES_INSIDE.replace("COMPUTED", computed)))
    assert not LEAVES_THE_GRAPH.search(module.code)
    program = torch.export.export(
        module, (torch.randn(2, 4, 6),), dynamic_shapes=({0: torch.export.Dim("n")},)
    ).module()
    for batch in (1, 2, 5):
        x = torch.randn(batch, 4, 6)
        for found in (module(x), program(x)):
            assert torch.equal(found, x.flatten(1))
