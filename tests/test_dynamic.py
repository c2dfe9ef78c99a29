"""Dimensions that an exporter fixed, freed by `load(..., dynamic=...)`."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from realmodels import EXPORTERS, check_same, run, run_onnxruntime, seeded
from tiers import mostly_slow
from torch import fx, nn

import onnx2nn
from onnx2nn.errors import FrozenDimensionError, InputError
from onnx2nn.fx.importer import import_graph
from onnx2nn.importing.plan import plan
from onnx2nn.reading.reader import opened
from onnx2nn.unfreeze.reshape_targets import Factor, aligned
from onnx2nn.unfreeze.search import import_dynamic_elsewhere


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 5, bidirectional=True, batch_first=True)
        self.head = nn.Linear(10, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x)[0][:, -1])


class Pyramid(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 8, 3, 2, 1)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.down(x)
        y = nn.functional.interpolate(y, size=(2 * y.shape[2], 2 * y.shape[3]))
        return self.head(y.view(y.shape[0], 8, -1).transpose(1, 2))


class Tokens(nn.Module):
    """The first steps of a vision transformer: a class token before patches."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, 16))
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.patches(x).flatten(2).transpose(1, 2)
        return self.layer(torch.cat([self.token.expand(x.shape[0], -1, -1), y], 1))[:, 0]


class Positions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 8)
        self.places = nn.Embedding(64, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.words(x) + self.places(torch.arange(x.shape[1]))


class Encoder(nn.Module):
    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=batch_first)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], dict[int, str], tuple[int, ...]]] = {
    "attention, batch": (lambda: Encoder(True), (1, 6, 16), {0: "n"}, (3, 6, 16)),
    "attention, both": (lambda: Encoder(True), (1, 6, 16), {0: "n", 1: "t"}, (4, 9, 16)),
    "attention, sequence first": (lambda: Encoder(False), (6, 1, 16), {0: "t", 1: "n"}, (5, 3, 16)),
    "attention, two in the file": (lambda: Encoder(True), (2, 6, 16), {0: "n"}, (5, 6, 16)),
    "LSTM": (Recurrent, (1, 4, 6), {0: "n"}, (3, 4, 6)),
    "resized image": (Pyramid, (1, 3, 16, 20), {0: "n", 2: "h", 3: "w"}, (2, 3, 22, 30)),
    "class token": (Tokens, (1, 3, 16, 16), {0: "n"}, (3, 3, 16, 16)),
}


RUNS = [(name, exporter) for name in CASES for exporter in EXPORTERS]
FAST = [run for run in RUNS if run[1] == "torchscript" or run[0] in ("attention, both", "class token", "resized image")]


@pytest.mark.parametrize(("name", "exporter"), mostly_slow(RUNS, FAST))
def test_sizes_that_were_never_exported(name: str, exporter: str) -> None:
    build, shape, axes, other = CASES[name]
    model = seeded(build)
    path = EXPORTERS[exporter](f"fixed_{name}", model, (torch.randn(shape),))
    imported = onnx2nn.load(path, dynamic={"x": axes})
    assert imported.meta["onnx2nn"]["thawed"]["way"] == "constants"
    for size in (shape, other):
        x = torch.randn(size)
        torch.testing.assert_close(imported(x), model(x), rtol=1e-4, atol=1e-5)
    dims = {axis: torch.export.Dim(label) for axis, label in axes.items()}
    if name != "resized image":  # torch.export would have to know that h and w are even
        program = torch.export.export(imported, (torch.randn(other),), dynamic_shapes=(dims,))
        torch.testing.assert_close(program.module()(x), model(x), rtol=1e-4, atol=1e-5)


class Steps(nn.Module):
    """Layers over a sequence, each of whose results depends on those before or behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru = nn.LSTM(6, 5, batch_first=True), nn.GRU(6, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.lstm(x)[0], self.gru(x.flip(1))[0].flip(1)], 2)


def test_the_length_of_a_recurrent_layer() -> None:
    model = seeded(Steps)
    path = EXPORTERS["torchscript"]("fixed_steps", model, (torch.randn(1, 4, 6),))
    imported = onnx2nn.load(path, dynamic={"x": {1: "t"}})
    for length in (1, 4, 7):
        x = torch.randn(1, length, 6)
        torch.testing.assert_close(imported(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["attention, both", "LSTM"])
def test_another_framework(name: str) -> None:
    """Its module has to agree with PyTorch's at all sizes that are tried; here it is PyTorch's own."""
    build, shape, axes, other = CASES[name]
    model = seeded(build)
    path = EXPORTERS["torchscript"](f"fixed_{name}", model, (torch.randn(shape),))

    def imported(shift: float) -> fx.GraphModule:
        with opened(path) as read:
            found = import_dynamic_elsewhere(
                read,
                lambda changed: (plan(changed), {}),
                lambda changed, shapes: import_graph(changed, plan(changed), input_shapes=shapes),
                lambda module, given: [module(*given) + shift * (given[0].shape != shape)],
                dynamic={"x": axes},
            )
        assert isinstance(found, fx.GraphModule)
        return found

    x = torch.randn(other)
    torch.testing.assert_close(imported(0.0)(x), model(x), rtol=1e-4, atol=1e-5)
    with pytest.raises(FrozenDimensionError, match="differ from those of"):
        imported(1.0)


@pytest.mark.parametrize("exporter", ["torchscript", "dynamo"])
def test_what_is_lost_is_named(exporter: str) -> None:
    """The exporter looked the positions up: the file holds rows 0 to 11 of the table only."""
    model = seeded(Positions)
    path = EXPORTERS[exporter]("fixed_positions", model, (torch.arange(12)[None],))
    x = torch.randint(0, 50, (3, 12))
    torch.testing.assert_close(onnx2nn.load(path, dynamic={"x": {0: "n"}})(x), model(x))
    node = "node_add" if exporter == "dynamo" else "/Add"
    with pytest.raises(FrozenDimensionError, match=rf"'t' \(12 in the file\) cannot be dynamic: node '{node}' \(Add "):
        onnx2nn.load(path, dynamic={"x": {1: "t"}})


def _file(nodes: list[onnx.NodeProto], shape: list[int | str], constants: dict[str, list[int]]) -> bytes:
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(torch.tensor(values).numpy(), name) for name, values in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def test_a_dimension_that_the_file_declares_dynamic_and_bakes_in() -> None:
    file = _file([helper.make_node("Reshape", ["x", "target"], ["y"])], ["n", 4], {"target": [3, 2, 2]})
    literal = onnx2nn.load(file)
    assert literal.meta["onnx2nn"]["fixed"] == {"n": 3}
    x = torch.randn(3, 4)
    assert torch.equal(torch.jit.trace(literal, (x,))(x), x.reshape(3, 2, 2))
    with pytest.raises(ValueError, match=r"n == 3 is needed by node 'y' .* n, dimension 0 of input 'x', is 4"):
        literal(torch.randn(4, 4))
    freed = onnx2nn.load(file, dynamic={"x": {0: "rows"}})
    x = torch.randn(5, 4)
    assert torch.equal(freed(x), x.reshape(5, 2, 2))


def test_another_dimension_that_is_baked_in_stands_in_the_way_of_constants() -> None:
    file = _file([helper.make_node("Reshape", ["x", "target"], ["y"])], [1, "t"], {"target": [1, 2, 3]})
    vectorised = onnx2nn.load(file, dynamic={"x": {0: "n"}})
    x = torch.randn(4, 6)
    assert torch.equal(vectorised(x), x.reshape(4, 2, 3))
    thawed = vectorised.meta["onnx2nn"]["thawed"]
    assert thawed["way"] == "vmap"
    assert "node 'y' (Reshape of " in thawed["reason"]
    freed = onnx2nn.load(file, dynamic={"x": {0: "n"}}, input_shapes={"x": [1, 6]})
    x = torch.randn(4, 6)
    assert torch.equal(freed(x), x.reshape(4, 2, 3))


def test_wrong_names() -> None:
    file = _file([helper.make_node("Relu", ["x"], ["y"])], [1, 4], {})
    with pytest.raises(InputError, match=r"dynamic names 'z'\. The model's inputs are 'x'"):
        onnx2nn.load(file, dynamic={"z": {0: "n"}})
    with pytest.raises(InputError, match=r"axis 2 of 'x'\. The input has 2 dimensions"):
        onnx2nn.load(file, dynamic={"x": {2: "n"}})
    with pytest.raises(InputError, match="dimensions of 1 and 4 the name 'n'"):
        onnx2nn.load(file, dynamic={"x": {0: "n", 1: "n"}})


@pytest.mark.parametrize(
    ("factors", "sizes", "places", "wanted"),
    [
        ([Factor(1, 7, "n"), Factor(6), Factor(8)], [1, 6, 2, 4], {}, [7, 6, 2, 4]),
        ([Factor(1, 7, "n"), Factor(6), Factor(8)], [6, 8], {}, [42, 8]),
        ([Factor(6), Factor(1, 7, "n"), Factor(8)], [6, 2, 4], {}, [6, 14, 4]),
        ([Factor(6), Factor(1, 7, "n"), Factor(8)], [6, 8], {"n": 0}, [42, 8]),
        ([Factor(6, 9, "t"), Factor(1, 7, "n"), Factor(8)], [6, 8], {"n": 0}, [63, 8]),
        ([Factor(2, 10, "n"), Factor(6)], [12], {}, [60]),
        ([Factor(12, 36), Factor(5)], [3, 4, 5], {}, [9, 4, 5]),
    ],
)
def test_targets_of_reshapes(
    factors: list[Factor], sizes: list[int], places: dict[str, int], wanted: list[int]
) -> None:
    assert aligned(factors, sizes, places) == wanted


def test_all_elements_picked_in_order_are_a_reshape() -> None:
    """torch's dynamo exporter writes `as_strided` so."""
    nodes = [helper.make_node("Reshape", ["x", "flat"], ["f"]), helper.make_node("Gather", ["f", "all"], ["y"])]
    file = _file(nodes, [1, 4], {"flat": [-1], "all": [[[0, 1], [2, 3]]]})
    x = torch.randn(3, 4)
    assert torch.equal(onnx2nn.load(file, dynamic={"x": {0: "n"}})(x), x.reshape(3, 2, 2))


def _parsed(graph: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> g {graph}')


def test_a_dimension_that_is_cut_off_is_not_the_freed_one() -> None:
    """The first 64 steps are as many as the freed length at small multiples of the file's, but not above 64."""
    model = _parsed(
        """(float[1,4,3] x) => (float[1,1,4,3] y)
        <int64[1] begin = {0}, int64[1] end = {64}, int64[1] axis = {1}, int64[4] target = {1, 1, 4, 3}> {
            first = Slice(x, begin, end, axis)  y = Reshape(first, target)
        }"""
    )
    imported = onnx2nn.load(model, dynamic={"x": {0: "n", 1: "t"}})
    for n, t in ((1, 4), (2, 20), (3, 64), (2, 100)):
        x = torch.randn(n, t, 3)
        assert torch.equal(imported(x), x[:, None, :64])


def test_a_table_bounds_a_length() -> None:
    """Positions are read from a table of 12 rows: a length of up to 12 is free, the sum refuses others."""
    model = _parsed(
        """(float[1,3,2] x) => (float[1,3,2] y)
        <int64[1] begin = {0}, int64[1] rows = {0}, int64[1] steps = {1}, float[24] numbers = {ROW},
         int64[2] pairs = {12, 2}> {
            table = Reshape(numbers, pairs)  size = Shape <start = 1, end = 2> (x)
            own = Slice(table, begin, size, rows)
            sum = Add(x, own)  mean = ReduceMean(sum, steps)  y = Sub(sum, mean)
        }""".replace("ROW", ", ".join(map(str, range(24))))
    )
    imported = onnx2nn.load(model, dynamic={"x": {1: "t"}})
    table = torch.arange(24.0).reshape(12, 2)
    for t in (1, 3, 7, 12):
        x = torch.randn(1, t, 2)
        y = x + table[:t]
        torch.testing.assert_close(imported(x), y - y.mean(1, keepdim=True))
    with pytest.raises(
        ValueError, match=r"t <= 12 is needed by node 'sum' \(Add\).* dimension 1 of input 'x', is 13\."
    ):
        imported(torch.randn(1, 13, 2))


@pytest.mark.parametrize("rounding", ["Ceil", "Floor", "Round"])
def test_a_quotient_of_floats_that_are_sizes_is_no_quotient_of_integers(rounding: str) -> None:
    """Its divisor depends on a size, so that it is computed as a tensor; the numbers of that are noted by its type."""
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 18]> g (float[n] x) => (float[k] y)'
        " <int64[1] first = {0}, int64 one = {1}, int64 two = {2}, float[1] value = {2.5}> {"
        " shape = Shape (x) n = Gather (shape, first) half = Div (n, two) more = Add (half, one) rest = Mod (n, more)"
        " above = Cast <to = 1> (rest) below = Cast <to = 1> (more) quotient = Div (above, below)"
        f" whole = {rounding} (quotient) count = Cast <to = 7> (whole) y = Expand (value, count) }}"
    )
    module = onnx2nn.load(model)
    for n in (2, 3, 5, 7, 8, 40):
        x = torch.zeros(n)
        check_same(run(module, (x,)), run_onnxruntime(model.SerializeToString(), (x,)), f"at {n}")


def test_what_is_padded_to_a_multiple_and_cropped_has_the_old_length() -> None:
    """TensorFlow computes dilated convolutions so: -pad is the end of a slice, unless it is 0."""
    model = _parsed(
        """(float[n] x) => (float[n] y)
        <int64[1] axis = {0}, int64[1] none = {0}, int64[1] three = {3}, int64[1] all = {2147483647}> {
            size = Shape(x)  quotient = Div(size, three)  whole = Mul(quotient, three)  rest = Sub(size, whole)
            missing = Sub(three, rest)  times = Div(missing, three)  full = Mul(times, three)  pad = Sub(missing, full)
            pads = Concat <axis = 0> (none, pad)  padded = Pad(x, pads)
            is_none = Equal(pad, none)  is_some = Not(is_none)
            some = Cast <to = 7> (is_some)  minus = Neg(some)  back = Mul(pad, minus)
            without = Cast <to = 7> (is_none)  through = Mul(all, without)  end = Add(back, through)
            cropped = Slice(padded, none, end, axis)  y = Add(x, cropped)
        }"""
    )
    module = onnx2nn.load(model)
    assert not module.meta["onnx2nn"]["guards"]
    for n in range(1, 12):
        x = torch.randn(n)
        assert torch.equal(module(x), 2 * x), f"at {n}"
