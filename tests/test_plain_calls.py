"""Calls are recorded in the form that an author writes: masks and positions, one index, functions of truths."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, parser
from onnx.reference import ReferenceEvaluator
from realmodels import EXPORTERS, check_same, check_travels, run, seeded
from torch import nn

import onnx2nn

Shape = tuple[str | int, ...]


class Builder:
    """Writes a random graph that computes with positions and looks elements up.

    Args:
        number: of the graph.
    """

    def __init__(self, number: int):
        self.random = random.Random(number)
        self.nodes: list[onnx.NodeProto] = []
        self.numbers: list[tuple[str, Shape]] = []
        self.truths: list[tuple[str, Shape]] = []
        self.found: list[str] = []

    def add(self, kind: str, inputs: Sequence[str], **attributes: Any) -> str:
        name = f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name=f"n{len(self.nodes)}", **attributes))
        return name

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        return self.add("Constant", [], value=onnx.numpy_helper.from_array(np.asarray(value, dtype)))

    def start(self) -> None:
        shape = self.add("Shape", ["x"])
        self.sizes = {name: self.add("Gather", [shape, self.constant(place)]) for place, name in enumerate(("n", "t"))}
        zero, one = self.constant(0), self.constant(1)
        for name, size in self.sizes.items():
            self.numbers.append((self.add("Range", [zero, size, one]), (name,)))
        self.numbers.append((self.constant(np.arange(4)[None]), (1, 4)))
        self.truths.append(("mask", ("n", "t")))

    def unsqueeze(self) -> None:
        kind = self.random.choice((self.numbers, self.numbers, self.truths))
        name, shape = self.random.choice(kind)
        if len(shape) < 4:
            axis = self.random.randint(0, len(shape))
            name = self.add("Unsqueeze", [name, self.constant([axis])])
            kind.append((name, (*shape[:axis], 1, *shape[axis:])))

    def spread(self) -> None:
        """One dimension of four, the others of size 1, as the positions of a mask are laid out."""
        name, shape = self.random.choice([item for item in self.numbers if len(item[1]) == 1])
        axis = self.random.choice((0, 3))
        axes = [other for other in range(4) if other != axis]
        self.numbers.append(
            (self.add("Unsqueeze", [name, self.constant(axes)]), tuple(shape[0] if i == axis else 1 for i in range(4)))
        )

    def pair(self, of: list[tuple[str, Shape]]) -> tuple[str, str, Shape]:
        one, other = self.random.choice(of), self.random.choice(of)
        shape = broadcast(one[1], other[1])
        if shape is None:
            other, shape = one, one[1]
        return one[0], other[0], shape

    def compute(self) -> None:
        kind = self.random.choice(("Add", "Sub", "Mul"))
        if self.random.random() < 0.5:
            name, shape = self.random.choice(self.numbers)
            factor = self.random.choice((self.sizes["t"], self.sizes["n"], self.constant(self.random.randint(-2, 3))))
            self.numbers.append((self.add(kind, [name, factor]), shape))
        else:
            one, other, shape = self.pair(self.numbers)
            self.numbers.append((self.add(kind, [one, other]), shape))

    def flat(self) -> None:
        """Places in the rows of `x`, one behind the other."""
        rows = self.add("Unsqueeze", [self.numbers[0][0], self.constant([1, 2, 3])])
        columns = self.add("Unsqueeze", [self.numbers[1][0], self.constant([0, 1, 2])])
        moved = self.add("Mul", [rows, self.sizes[self.random.choice("nttt")]])
        self.numbers.append((self.add("Add", [moved, columns]), ("n", 1, 1, "t")))

    def compare(self) -> None:
        kind = self.random.choice(("Less", "LessOrEqual", "Greater", "GreaterOrEqual"))
        if self.random.random() < 0.5:
            name, shape = self.random.choice(self.numbers)
            self.truths.append((self.add(kind, [name, self.constant(self.random.randint(-1, 2))]), shape))
        else:
            one, other, shape = self.pair(self.numbers)
            self.truths.append((self.add(kind, [one, other]), shape))

    def combine(self) -> None:
        one, other, shape = self.pair(self.truths)
        self.truths.append((self.add(self.random.choice(("And", "Or", "Xor")), [one, other]), shape))

    def repair(self) -> None:
        name, shape = self.random.choice(self.numbers)
        size = self.sizes[self.random.choice("nt")]
        negative = self.add("Less", [name, self.constant(0)])
        self.numbers.append((self.add("Where", [negative, self.add("Add", [name, size]), name]), shape))

    def look_up(self) -> None:
        data = self.random.choice(("x", "mask"))
        flat = self.add("Reshape", [data, self.constant([-1])])
        self.found.append(self.add("Gather", [flat, self.random.choice(self.numbers[3:])[0]], axis=0))

    def look_up_row(self) -> None:
        self.found.append(
            self.add("Gather", ["x", self.random.choice(self.numbers)[0]], axis=self.random.choice((0, 1)))
        )

    def look_up_stacked(self) -> None:
        rows, columns, _ = self.pair(self.numbers)
        target = self.add("Shape", [self.add("Max", [rows, columns])])
        parts = [
            self.add("Unsqueeze", [self.add("Expand", [name, target]), self.constant([-1])]) for name in (rows, columns)
        ]
        stacked = self.add("Concat", parts, axis=-1)
        self.found.append(self.add("GatherND", [self.random.choice(("x", "mask")), stacked]))

    def model(self) -> onnx.ModelProto:
        """Returns a model whose outputs are what the random steps computed."""
        self.start()
        steps = [self.unsqueeze, self.spread, self.spread, self.compute, self.compare, self.combine, self.repair]
        steps += [self.flat]
        for _ in range(self.random.randint(4, 9)):
            self.random.choice(steps)()
        for look_up in (self.look_up, self.look_up_row, self.look_up_stacked):
            if self.random.random() < 0.6 and len(self.numbers) > 3:
                look_up()
        names = [self.numbers[-1][0], self.truths[-1][0], *self.found]
        outputs = [self.add("Identity", [name]) for name in dict.fromkeys(names)]
        inputs = [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "t"]),
            helper.make_tensor_value_info("mask", TensorProto.BOOL, ["n", "t"]),
        ]
        graph = helper.make_graph(self.nodes, "g", inputs, [onnx.ValueInfoProto(name=name) for name in outputs])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        inferred = onnx.shape_inference.infer_shapes(model)
        types = {value.name: value for value in inferred.graph.value_info}
        types |= {value.name: value for value in inferred.graph.output if value.type.HasField("tensor_type")}
        del model.graph.output[:]
        for name in outputs:
            kind = types[name].type.tensor_type.elem_type
            model.graph.output.append(helper.make_tensor_value_info(name, kind, None))
        return model


def broadcast(one: Shape, other: Shape) -> Shape | None:
    rank = max(len(one), len(other))
    pairs = zip((1,) * (rank - len(one)) + one, (1,) * (rank - len(other)) + other, strict=True)
    sizes = [b if a == 1 else a if b in (1, a) else None for a, b in pairs]
    return None if None in sizes else tuple(sizes)  # type: ignore[arg-type]  # checked


SIZES = ((1, 1), (2, 3), (3, 1), (1, 4), (4, 4), (5, 2))


@pytest.mark.parametrize("part", range(12))
def test_random_positions(part: int) -> None:
    """Wherever the reference has a result, the import has the same, at all sizes."""
    compared = 0
    for number in range(25 * part, 25 * part + 25):
        model = Builder(number).model()
        oracle, module = ReferenceEvaluator(model), onnx2nn.load(model)
        for n, t in SIZES:
            x = np.random.default_rng(n + 10 * t).standard_normal((n, t)).astype(np.float32)
            try:
                expected = oracle.run(None, {"x": x, "mask": x > 0})
            except (IndexError, ValueError):  # indices out of bounds, or shapes that do not fit
                continue
            got = module(torch.from_numpy(x), torch.from_numpy(x > 0))
            for one, other in zip(expected, got if isinstance(got, tuple) else (got,), strict=True):
                np.testing.assert_array_equal(one, other.numpy(), f"graph {number} at {n} x {t}", strict=True)
                compared += 1
    assert compared > 100


MASK = """
    <ir_version: 9, opset_import: ["" : 18]>
    g (int64[{batch}, t] ids, int64[n, t] mask) => (bool[n, 1, s, t] found)
    <int64 val_0 = {{0}}, int64 val_1 = {{1}}, int64[1] two = {{-1}}, int64[3] rows_at = {{1, 2, 3}},
     int64[3] columns_at = {{0, 1, 2}}, int64[3] queries_at = {{0, 1, 3}}>
    {{
        of_ids = Shape (ids)
        of_mask = Shape (mask)
        batch = Gather (of_ids, val_0)
        length = Gather (of_ids, val_1)
        keys = Gather (of_mask, val_1)
        allowed = Cast <to = 9> (mask)
        all_rows = Range (val_0, batch, val_1)
        all_columns = Range (val_0, keys, val_1)
        all_queries = Range (val_0, length, val_1)
        rows = Unsqueeze (all_rows, rows_at)
        columns = Unsqueeze (all_columns, columns_at)
        queries = Unsqueeze (all_queries, queries_at)
        {body}
        found = And (visible, looked_up)
    }}
"""
STACKED = """
        largest = Max (rows, columns)
        target = Shape (largest)
        row = Expand (rows, target)
        column = Expand (columns, target)
        row_at = Unsqueeze (row, two)
        column_at = Unsqueeze (column, two)
        places = Concat <axis = -1> (row_at, column_at)
        looked_up = GatherND (allowed, places)
"""
FLAT = """
        before = Mul (rows, keys)
        places = Add (columns, before)
        elements = Reshape (allowed, two)
        looked_up = Gather <axis = 0> (elements, places)
"""
CAUSAL, FULL = "visible = LessOrEqual (columns, queries)", "visible = GreaterOrEqual (queries, val_0)"


@pytest.mark.parametrize(("body", "visible"), [*itertools.product((STACKED, FLAT), (CAUSAL, FULL))])
def test_mask_is_a_view(body: str, visible: str) -> None:
    """The two forms in which exporters write the masks of transformers."""
    module = onnx2nn.load(parser.parse_model(MASK.format(batch="n", body=visible + body)))
    code = module.code
    for gone in ("torch.cat", "maximum", "unbind", "reshape", "unsqueeze", ".__and__", " >= 0"):
        assert gone not in code, code
    assert "[:, None, None]" in code
    assert code.count("torch.arange") == (visible == CAUSAL)
    for n, t in ((1, 1), (2, 5), (3, 1)):
        mask = torch.randint(0, 2, (n, t), generator=torch.Generator().manual_seed(n))
        lower = torch.ones(t, t).tril().bool() if visible == CAUSAL else torch.ones(t, t).bool()
        got = module(torch.zeros(n, t, dtype=torch.int64), mask)
        assert torch.equal(got, lower & mask.bool()[:, None, None])


def test_mask_travels() -> None:
    """At sizes that no export saw."""
    module = onnx2nn.load(parser.parse_model(MASK.format(batch="n", body=CAUSAL + STACKED)))
    inputs, other = (
        (torch.zeros(n, t, dtype=torch.int64), torch.randint(0, 2, (n, t), generator=torch.Generator().manual_seed(n)))
        for n, t in ((2, 5), (3, 7))
    )
    check_travels(module, inputs, other)


def test_mask_of_another_batch_is_a_view_of_its_first_rows() -> None:
    """A mask with fewer rows than there are sequences is an error, as it is for the lookup."""
    module = onnx2nn.load(parser.parse_model(MASK.format(batch="b", body=CAUSAL + STACKED)))
    code = module.code
    assert "narrow(0, 0, " in code and "[:, None, None]" in code and code.count("torch.arange") == 1, code
    mask = torch.tensor([[1, 0, 1], [0, 1, 1], [1, 1, 1]])
    for count in (1, 2, 3):
        got = module(torch.zeros(count, 3, dtype=torch.int64), mask)
        assert torch.equal(got, torch.ones(3, 3).tril().bool() & mask[:count].bool()[:, None, None])
    with pytest.raises(ValueError, match=r"n >= b is needed by node 'looked_up' \(GatherND\)"):
        module(torch.zeros(4, 3, dtype=torch.int64), mask)


def test_mask_of_another_batch_travels() -> None:
    """At sizes that no export saw, and with more rows than sequences."""
    module = onnx2nn.load(parser.parse_model(MASK.format(batch="b", body=CAUSAL + STACKED)))
    generator = torch.Generator().manual_seed(0)
    inputs, other = (
        (torch.zeros(n, t, dtype=torch.int64), torch.randint(0, 2, (rows, t), generator=generator))
        for n, rows, t in ((2, 4, 5), (3, 6, 7))
    )
    check_travels(module, inputs, other)


def test_a_place_that_no_size_has_stays_a_lookup() -> None:
    """Three rows of a mask of two: the call is the error, not the import."""
    text = MASK.format(batch="3", body=CAUSAL + STACKED).replace("int64[n, t] mask", "int64[2, t] mask")
    module = onnx2nn.load(parser.parse_model(text))
    with pytest.raises(IndexError):
        module(torch.zeros(3, 3, dtype=torch.int64), torch.ones(2, 3, dtype=torch.int64))


REPAIRED = """
    <ir_version: 9, opset_import: ["" : 18]>
    g (float[n, t] x, int64[n, k] ids) => (float[n, u] found) <int64 val_0 = {0}, int64 val_1 = {1}>
    {
        shape = Shape (x)
        length = Gather (shape, val_1)
        negative = Less (INDEX, val_0)
        moved = Add (INDEX, length)
        index = Where (negative, moved, INDEX)
        found = GatherElements <axis = 1> (x, index)
    }
"""


@pytest.mark.parametrize("known", [True, False])
def test_repair_of_negative_indices(known: bool) -> None:
    """Only that of indices which are known vanishes: data may be negative."""
    text = REPAIRED
    if known:
        text = text.replace(
            "negative =", "steps = Range (val_0, length, val_1)\n positions = Expand (steps, shape)\n negative ="
        )
    module = onnx2nn.load(parser.parse_model(text.replace("INDEX", "positions" if known else "ids")))
    assert ("where" in module.code) != known
    x, ids = torch.arange(6.0).reshape(2, 3), torch.tensor([[-1, 2], [0, -3]])
    expected = x if known else torch.tensor([[2.0, 2.0], [3.0, 3.0]])
    assert torch.equal(module(x, ids), expected)


class Buffers(nn.Module):
    """Buffers in state_dict that are full of what has no effect."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("visible", torch.ones(4, 4, dtype=torch.bool))
        self.register_buffer("order", torch.arange(4))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.where(mask & self.visible, x[self.order], 0.0)


@pytest.mark.parametrize("exporter", list(EXPORTERS))
def test_buffers_of_the_state_stay(exporter: str) -> None:
    """They may be loaded with other values."""
    original, inputs = seeded(Buffers), (torch.randn(4, 4), torch.rand(4, 4) > 0.5)
    module = onnx2nn.load(str(EXPORTERS[exporter]("plain-buffers", original, inputs, inputs)))
    other = {"visible": torch.rand(4, 4) > 0.5, "order": torch.tensor([3, 0, 2, 1])}
    held = {key: other[key] for key in module.state_dict()}  # the newer exporter folds the order
    assert "visible" in held
    module.load_state_dict(held)
    original.load_state_dict(held, strict=False)
    assert torch.equal(module(*inputs), run(original, inputs)[0])


FLATTENED = """
    <ir_version: 9, opset_import: ["" : 18]>
    g (float[SHAPE] x) => (float[] y) <int64[COUNT] target = {TARGET}>
    {
        y = Reshape (x, target)
    }
"""


@pytest.mark.parametrize(
    ("shape", "target", "expected"),
    [
        ("n, 8, 1, 1", "-1, 8", "x.flatten(1)"),
        ("n, 8, 2, 3", "0, -1", "x.flatten(1)"),
        ("n, t, 2, 4", "0, 0, 8", "x.flatten(2)"),
        ("n, t, 2, 4", "0, 0, -1", "x.flatten(2)"),
        ("n, 8, 1, 1", "-1, 4", "x.reshape(-1, 4)"),
        ("n, c, h, w", "-1, 8", "x.reshape(-1, 8)"),
        ("n, c, 4", "-1, 8", "x.reshape(-1, 8)"),
        ("n, 4, 2", "-1, 2, 4", "x.reshape(-1, 2, 4)"),
    ],
)
def test_flatten(shape: str, target: str, expected: str) -> None:
    """A Reshape that joins the last dimensions at all sizes."""
    text = FLATTENED.replace("SHAPE", shape).replace("TARGET", target).replace("COUNT", str(target.count(",") + 1))
    text = text.replace("float[] y", f"float[{', '.join('abc'[: target.count(',') + 1])}] y")
    module = onnx2nn.load(parser.parse_model(text))
    assert expected in module.code, module.code


TRUTHS = """
    <ir_version: 9, opset_import: ["" : 18]>
    g (bool[n] a, bool[n] b) => (bool[n] y)
    {
        both = And (a, b)
        one = Or (a, b)
        none = Not (one)
        other = Xor (both, none)
        y = And (other, a)
    }
"""


class Sliced(nn.Module):
    """Slices of several axes, as YOLO's Focus takes them, and slices of slices."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = x[:, :, 1:]
        return x[..., ::2, 1::2], x[:, :2, 1:-1, 2:], rows[..., :3], rows[:, :, ::2], rows * 2


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_slices_of_several_axes_are_one_index(exporter: str) -> None:
    """Slices of the same axis stay two."""
    original = Sliced().eval()
    first, second = ((torch.randn(batch, 3, rows, 8),) for batch, rows in ((2, 6), (3, 9)))
    module = onnx2nn.load(EXPORTERS[exporter]("sliced", original, first, second))
    assert all(f"x[:, {index}]" in module.code for index in (":, ::2, 1::2", ":2, 1:-1, 2:", ":, 1:", ":, 1:, :3"))
    assert module.code.count("[:, :, ::2]") == 1
    for inputs in (first, second):
        check_same(run(module, inputs), run(original, inputs), "the import")


class LookedUp(nn.Module):
    """Rows by an index, which torch's newer exporter writes as a GatherND of indices with a dimension more."""

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x[index], x[:, index]


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_rows_by_an_index_are_one_index(exporter: str) -> None:
    original = LookedUp().eval()
    first, second = ((torch.randn(n, n + 1, 2), torch.randint(0, n, (n, 2))) for n in (3, 4))
    module = onnx2nn.load(EXPORTERS[exporter]("looked up", original, first, second))
    assert not {"unbind", "squeeze", "unsqueeze"} & {str(node.target) for node in module.graph.nodes}, module.code
    for inputs in (first, second):
        check_same(run(module, inputs), run(original, inputs), "the import")


BOUNDS = """
    <ir_version: 9, opset_import: ["" : 18]>
    g (TYPE[n, 3] x, TYPE[n, 3] z) => (TYPE[n, 3] low, TYPE[n, 3] high, TYPE[n, 3] own, TYPE[n, 3] row)
    <TYPE[3] three = {1, 2, 3}, TYPE[1, 1] val_1 = {-1}>
    {
        one = Constant <value = TYPE {2}> ()
        low = Max (one, x)
        high = Min (x, val_1)
        own = Max (x, z)
        row = Min (x, three)
    }
"""


@pytest.mark.parametrize("dtype", ["float", "double", "int32", "int64"])
def test_an_extreme_of_a_number_is_a_clamp(dtype: str) -> None:
    model = parser.parse_model(BOUNDS.replace("TYPE", dtype))
    module = onnx2nn.load(model)
    number = (lambda text: text) if dtype.startswith("int") else "{}.0".format
    for call in (f"clamp(x, {number('2')}, None)", f"clamp(x, None, {number('-1')})", "maximum(x, z)", "minimum(x, "):
        assert call in module.code, module.code
    assert [*module.state_dict()] == ["three"]
    kind = helper.tensor_dtype_to_np_dtype(model.graph.input[0].type.tensor_type.elem_type)
    x = np.array([[-3, -1, 0], [1, 2, 3]]).astype(kind)
    if not dtype.startswith("int"):
        x[0, 2], x[1, 0] = np.nan, np.inf
    wanted = ReferenceEvaluator(model).run(None, {"x": x, "z": x[::-1]})
    for ours, theirs in zip(module(torch.tensor(x), torch.tensor(x[::-1].copy())), wanted, strict=True):
        np.testing.assert_array_equal(ours.detach().numpy(), theirs)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("kind", ["Max", "Min"])
def test_an_extreme_of_the_largest_number_is_a_clamp(kind: str, dtype: type[np.floating[Any]]) -> None:
    """`max(scores, finfo.min)`, as XGLM masks: the shortest decimal of the lowest float32 is below all of them."""
    limits = np.finfo(dtype)
    value = helper.make_attribute(
        "value", onnx.numpy_helper.from_array(np.array(limits.min if kind == "Max" else limits.max))
    )
    constant = onnx.NodeProto(op_type="Constant", output=["bound"], attribute=[value])
    number = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    ends = [helper.make_tensor_value_info(name, number, ["n"]) for name in "xy"]
    graph = helper.make_graph([constant, helper.make_node(kind, ["x", "bound"], ["y"])], "g", ends[:1], ends[1:])
    module = onnx2nn.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9))
    assert "clamp" in module.code
    x = np.array([-np.inf, limits.min, -1, limits.max, np.inf], dtype)
    bound = np.maximum(x, limits.min) if kind == "Max" else np.minimum(x, limits.max)
    np.testing.assert_array_equal(module(torch.from_numpy(x)).numpy(), bound)


def test_truths_are_computed_by_functions() -> None:
    """`&` computes with integers too: coremltools has no `__and__`."""
    code = onnx2nn.load(parser.parse_model(TRUTHS)).code
    assert not {"&", "|", "^", "~"} & set(code)
    assert code.count("torch.logical_") == 5


def test_printed_module_is_as_readable_as_its_code() -> None:
    module = onnx2nn.load(parser.parse_model(TRUTHS))
    assert module.code.strip() in str(module) and " = None" not in str(module)
