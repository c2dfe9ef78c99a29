"""What the unfreezing puts in the place of a constant: as numbers at a point it is what the inserted nodes compute."""

from __future__ import annotations

import math
import re

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import onnx2nn
from onnx2nn.errors import FrozenDimensionError
from onnx2nn.importing.plan import plan
from onnx2nn.reading import reader
from onnx2nn.unfreeze.proof import difference_of
from onnx2nn.unfreeze.request import Request
from onnx2nn.unfreeze.rules import reshaped
from onnx2nn.unfreeze.search import unfreeze
from onnx2nn.unfreeze.substitutions import Count, Element, Numbers, Repeat, Size, Substitution, apply

SIZES = st.builds(
    lambda axes, number, divisor: (axes, number, divisor),
    st.lists(st.integers(0, 1), min_size=1, max_size=2),
    st.integers(1, 4),
    st.integers(1, 3),
)


def _model(constant: np.ndarray) -> ir.Model:
    """Returns a model whose one node reads a constant, beside an input of two dimensions."""
    graph = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["y"], name="reads")],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["a", "b"])],
        [helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(constant.dtype), None)],
        [numpy_helper.from_array(constant, "c")],
    )
    return reader.read(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))


def _check(constant: np.ndarray, build: object, shape: tuple[int, int]) -> None:
    model = _model(constant)
    (node,) = model.graph
    source = model.graph.inputs[0]
    substitution: Substitution = build(source)  # type: ignore[operator]
    expected = _expected(substitution, constant, shape)
    apply(iter([(node, 0, substitution)]))
    session = ReferenceEvaluator(ir.to_proto(model))
    (found,) = session.run(None, {"x": np.zeros(shape, np.float32)})
    assert found.dtype == constant.dtype
    np.testing.assert_array_equal(found, expected)


def _expected(substitution: Substitution, constant: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Returns what stands in the place of a constant where the input has a shape."""

    def number(item: int | Size | Element) -> int:
        if isinstance(item, Element):
            return int(constant.reshape(-1)[item.index])
        if isinstance(item, Size):
            return item.number * math.prod(shape[axis] for _, axis in item.dimensions) // item.divisor
        return item

    if isinstance(substitution, Numbers):
        return np.array([*map(number, substitution.items)], constant.dtype).reshape(substitution.shape)
    if isinstance(substitution, Count):
        counted = np.arange(number(substitution.size), dtype=constant.dtype)
        return counted.reshape([-1 if axis == substitution.axis else 1 for axis in range(substitution.rank)])
    assert isinstance(substitution, Repeat)
    first = constant.take([0], substitution.axis)
    return first.repeat(number(substitution.size), substitution.axis)


def _size(parts: tuple[list[int], int, int], source: ir.Value) -> Size:
    axes, number, divisor = parts
    return Size(tuple((source, axis) for axis in axes), number, divisor)


@given(
    st.lists(st.one_of(st.integers(-1, 9), SIZES, st.just("element")), min_size=1, max_size=6),
    st.sampled_from([np.int64, np.int32]),
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
)
@settings(max_examples=60)
def test_numbers(items: list, dtype: type, shape: tuple[int, int]) -> None:
    constant = np.arange(len(items), dtype=dtype) + 3
    kind = ir.DataType.from_numpy(constant.dtype)

    def build(source: ir.Value) -> Numbers:
        found = [
            Element(i) if v == "element" else _size(v, source) if isinstance(v, tuple) else v
            for i, v in enumerate(items)
        ]
        return Numbers(tuple(found), (len(items),), kind)

    _check(constant, build, shape)


def test_a_number_without_dimensions() -> None:
    _check(np.array(4), lambda source: Numbers((Size(((source, 1),)),), ()), (2, 7))


@given(SIZES, st.integers(1, 3), st.sampled_from([np.int64, np.int32]), st.tuples(st.integers(1, 9), st.integers(1, 9)))
@settings(max_examples=40)
def test_counts(parts: tuple[list[int], int, int], rank: int, dtype: type, shape: tuple[int, int]) -> None:
    axis = shape[0] % rank
    constant = np.arange(5, dtype=dtype).reshape([-1 if i == axis else 1 for i in range(rank)])
    kind = ir.DataType.from_numpy(constant.dtype)
    _check(constant, lambda source: Count(axis, _size(parts, source), rank, kind), shape)


@given(st.integers(1, 3), st.data(), SIZES, st.booleans())
@settings(max_examples=40)
def test_repeats(rank: int, data: st.DataObject, parts: tuple[list[int], int, int], single: bool) -> None:
    axis = data.draw(st.integers(0, rank - 1))
    sizes = [2, 3, 4][:rank]
    sizes[axis] = 1
    constant = np.random.default_rng(0).normal(size=sizes).astype(np.float32)
    if not single:
        constant = np.repeat(constant, 5, axis)
    _check(constant, lambda source: Repeat(axis, _size(parts, source), rank, single), (4, 3))


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.lists(st.integers(-1, 4), min_size=1, max_size=4),
    st.booleans(),
)
@settings(max_examples=200)
def test_a_reshape_has_the_shape_that_the_standard_says(shape: list[int], target: list[int], zero: bool) -> None:
    found = reshaped(shape, target, int(zero))
    node = helper.make_node("Reshape", ["x", "t"], ["y"], allowzero=int(zero))
    if target.count(-1) > 1 or (zero and 0 in target) or any(not t and i >= len(shape) for i, t in enumerate(target)):
        return  # not a target of the standard's, or one of an empty tensor
    try:
        (expected,) = ReferenceEvaluator(node).run(None, {"x": np.zeros(shape), "t": np.array(target)})
    except ValueError:
        assert found is None
    else:
        assert found == expected.shape


@pytest.mark.parametrize("fill", [0.0, 0.5])
def test_zeros_as_a_state_are_left_out(fill: float) -> None:
    state = np.full((1, 1, 3), fill, np.float32)
    constants = {"W": np.ones((1, 9, 2), np.float32), "R": np.ones((1, 9, 3), np.float32), "h": state}
    graph = helper.make_graph(
        [helper.make_node("GRU", ["x", "W", "R", "", "", "h"], ["y"], hidden_size=3)],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 1, 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = reader.read(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    unfreeze(model, plan(model), Request({"x": [4, "n", 2]}, {"n": 1}))
    (gru,) = (node for node in model.graph if node.op_type == "GRU")
    given = gru.inputs[5] if len(gru.inputs) > 5 else None
    assert (given is None) == (fill == 0)


@pytest.mark.parametrize(
    ("shape", "dims", "target", "wanted"),
    [
        ([1, 6], ["n", 6], [1, 2, 3], [0, 2, 3]),
        ([1, 6], ["n", 6], [1, -1], [0, 6]),
        ([1, 6], ["n", 6], [0, 2, -1], [0, 2, -1]),
        ([1, 6], ["n", 6], [-1, 2, 3], [-1, 2, 3]),
        ([4, 1, 6], [4, "n", 6], [4, 6], [-1, 6]),
        ([4, 1, 6], [4, "n", 6], [4, 2, 3], [4, -1, 3]),
        ([4, 1, 6], [4, "n", 6], [4, 1, 2, 3], [4, 0, 2, 3]),
    ],
)
def test_targets_stay_constants(shape: list[int], dims: list[int | str], target: list[int], wanted: list[int]) -> None:
    """A batch at its place in a target becomes a 0; one that is merged with another dimension, or moved, a -1."""
    graph = helper.make_graph(
        [helper.make_node("Reshape", ["x", "t"], ["y"], name="r")],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.array(target), "t")],
    )
    model = reader.read(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    repairs, _ = unfreeze(model, plan(model), Request({"x": dims}, {"n": 1}))
    assert repairs == []
    (reshape,) = (node for node in model.graph if node.op_type == "Reshape")
    constant = reshape.inputs[1]
    assert constant is not None
    found = ir.convenience.get_const_tensor(constant)
    assert found is not None
    assert found.numpy().tolist() == wanted


def test_values_get_the_shapes_that_they_have_then() -> None:
    """Rewrite rules read declared shapes: those of the file hold for its batch alone."""
    graph = helper.make_graph(
        [helper.make_node("Reshape", ["x", "t"], ["f"]), helper.make_node("Relu", ["f"], ["y"])],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 1, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 6])],
        [numpy_helper.from_array(np.array([4, 6]), "t")],
        value_info=[helper.make_tensor_value_info("f", TensorProto.FLOAT, [4, 6])],
    )
    model = reader.read(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    unfreeze(model, plan(model), Request({"x": [4, "n", 6]}, {"n": 1}))
    (x,), (y,) = model.graph.inputs, model.graph.outputs
    assert x.shape == ir.Shape([4, "n", 6])
    assert y.shape is not None
    assert [isinstance(dim, int) for dim in y.shape] == [False, True]
    (f,) = (node.inputs[0] for node in model.graph if node.op_type == "Relu")
    assert f is not None
    assert f.shape == y.shape


def _shared(body: list[str]) -> str:
    """Returns the operator with one result for all samples in a graph that is written in ONNX's text format."""
    graph = f"g (float[1, 3] x, bool s) => (float[a, b] y) <float[1, 3] w = {{1, 2, 3}}> {{ {' '.join(body)} }}"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17, "own" : 1]> {graph} {FUNCTION}')
    read = reader.read(model)
    try:
        unfreeze(read, plan(read), Request({"x": ["n", 3], "s": []}, {"n": 1}))
    except FrozenDimensionError as error:
        (operator,) = re.findall(r"(\w+) '\w+'(?:, once for all| has one result for all| mixes) samples", str(error))
        return str(operator)
    return ""


THEN = "then_branch = t () => (float[1, 3] a) {{ a = Neg (x) }}"
IF = f"y = If ({{}}) <{THEN}, else_branch = e () => (float[1, 3] b) {{{{ b = Abs (x) }}}}>"
POSITIVE = "m = ReduceMax <keepdims = 0> ({}) zero = Constant <value_float = 0.0> () c = Greater (m, zero)"
FUNCTION = f'<domain: "own", opset_import: ["" : 17]> Choose (x) => (y) {{ {POSITIVE.format("x")} {IF.format("c")} }}'
BODY = "i (int64 k, bool go, float[1, 3] v) => (bool on, float[1, 3] w) {{ {} w = Neg (v) }}"
LOOP = f"start = Identity (s) y = Loop (, start, {{}}) <body = {BODY}>"


@pytest.mark.parametrize(
    ("body", "shared"),
    [
        ([IF.format("s")], ""),
        ([POSITIVE.format("x"), IF.format("c")], "ReduceMax"),
        (["p = NonZero (x) e = Cast <to = 9> (p) f = Squeeze (e)", IF.format("f")], "If"),
        (["n = Size (x) m = Constant <value_int = 3> () c = Greater (n, m)", IF.format("c")], ""),
        (["p = NonZero (x) n = Size (p) m = Constant <value_int = 3> () c = Greater (n, m)", IF.format("c")], "If"),
        (["y = Relu (x)"], ""),
        (["y = own.Choose (x)"], "If"),
        (["o = Constant <value_floats = [1.0, 2.0, 3.0]> () y = own.Choose (o)"], ""),
        ([LOOP.format("x", "on = Identity (go)")], ""),
        ([LOOP.format("x", f"{POSITIVE.format('v')} on = Identity (c)")], "ReduceMax"),
        (["m = ReduceMax (x) y = Add (x, m)"], "ReduceMax"),
        (["m = ReduceMax (x) y = Neg (x)"], ""),
        (["i = Constant <value_ints = [1]> () g = Gather <axis = 1> (x, i) y = Add (x, g)"], ""),
        (["i = Constant <value_int = 0> () g = Gather (x, i) y = Add (x, g)"], "Gather"),
        (["n = Shape (x) z = ConstantOfShape (n) y = Add (x, z)"], ""),
        (["f = Transpose <perm = [1, 0]> (x) y = MatMul (x, f)"], "MatMul"),
        (["f = Transpose <perm = [1, 0]> (x) m = Softmax <axis = 1> (f) y = Transpose <perm = [1, 0]> (m)"], "Softmax"),
        (["f = Transpose <perm = [1, 0]> (x) m = Softmax <axis = 0> (f) y = Transpose <perm = [1, 0]> (m)"], ""),
        (["a = Constant <value_int = 0> () y = CumSum (x, a)"], "CumSum"),
        (["f = Concat <axis = 0> (x, w) y = Neg (f)"], "Concat"),
        (["y = Concat <axis = 1> (x, x)"], ""),
    ],
)
def test_results_for_all_samples(body: list[str], shared: str) -> None:
    assert _shared(body) == shared


IN_FUNCTION = """<opset_import: ["" : 17], domain: "own">
f{0} (p) => (v{0}) {{ t = Constant <value = int64[{1}] {{{2}}}> () r = Reshape (p, t) v{0} = Neg (r) }}"""
IN_GRAPH = "t{0} = Constant <value = int64[{1}] {{{2}}}> () r{0} = Reshape ({3}, t{0}) v{0} = Neg (r{0})"


@st.composite
def factors_of(draw: st.DrawFn, number: int) -> list[int]:
    """Draws a shape of so many elements, often with ones."""
    shape: list[int] = []
    while number > 1:
        shape.append(draw(st.sampled_from([k for k in range(2, number + 1) if number % k == 0])))
        number //= shape[-1]
    for _ in range(draw(st.integers(0 if shape else 1, 2))):
        shape.insert(draw(st.integers(0, len(shape))), 1)
    return shape


@st.composite
def reshaped_samples(draw: st.DrawFn) -> tuple[onnx.ModelProto, list[int]]:
    """Draws a file that reshapes one sample repeatedly, here and there in a function, and gives it back."""
    sample = draw(st.sampled_from([[6, 8], [4, 4], [12, 2], [5, 3], [1, 4], [6, 1]]))
    shapes = [*draw(st.lists(factors_of(math.prod(sample)), min_size=1, max_size=3)), [1, *sample]]
    body, functions, last = [], [], "x"
    for i, shape in enumerate(shapes):
        numbers = ", ".join(map(str, shape))
        if draw(st.booleans()):
            functions.append(IN_FUNCTION.format(i, len(shape), numbers))
            body.append(f"v{i} = own.f{i} ({last})")
        else:
            body.append(IN_GRAPH.format(i, len(shape), numbers, last))
        last = f"v{i}"
    body.append(f"y = {'Neg' if len(shapes) % 2 else 'Identity'} ({last})")
    dims = ",".join(map(str, [1, *sample]))
    graph = f"g (float[{dims}] x) => (float[{dims}] y) {{ {' '.join(body)} }}"
    text = f'<ir_version: 9, opset_import: ["" : 17, "own" : 1]> {graph} {" ".join(functions)}'
    return onnx.parser.parse_model(text), sample


@given(reshaped_samples(), st.booleans())
@settings(max_examples=60, deadline=None)
def test_samples_stay_apart_in_functions_too(
    tmp_path_factory: pytest.TempPathFactory, drawn: tuple[onnx.ModelProto, list[int]], both: bool
) -> None:
    """Each sample is given back at any batch; sizes of a second dimension are right or refused."""
    model, (rows, columns) = drawn
    path = tmp_path_factory.mktemp("samples") / "model.onnx"
    onnx.save(model, path)
    try:
        module = onnx2nn.load(path, dynamic={"x": {0: "batch", **({1: "rows"} if both else {})}})
    except FrozenDimensionError:
        assert both, "a batch can always be freed"
        return
    for shape in [(1, rows), (3, rows), (2, rows), *([(2, 2 * rows), (3, 3)] if both else [])]:
        x = torch.randn(*shape, columns)
        try:
            found = module(x)
        except ValueError:
            assert both
            continue
        assert torch.equal(found, x), shape


@pytest.mark.parametrize(
    ("wanted", "found", "difference"),
    [
        ([1.0, -4.0], [1.0, -2.0], 0.5),
        ([1.0, float("nan")], [1.0, float("nan")], 0.0),
        ([float("nan"), float("nan")], [float("nan"), float("nan")], 0.0),
        ([1.0, float("nan")], [1.0, 2.0], float("inf")),
        ([float("inf"), 1.0], [float("inf"), 2.0], 1.0),
        ([float("inf"), 1.0], [3.0, 1.0], float("inf")),
        ([], [], 0.0),
    ],
)
def test_the_difference_of_two_runs(wanted: list[float], found: list[float], difference: float) -> None:
    assert difference_of([torch.tensor(wanted)], [torch.tensor(found)]) == difference
