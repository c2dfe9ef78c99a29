"""Nodes that contradict their operator are found once, before any pass reads them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import AttributeProto, defs, helper, numpy_helper

import onnx2nn
from onnx2nn.errors import ModelFileError, Onnx2nnError, OperatorError, UnsupportedModelError
from onnx2nn.importing import malformed, plan
from onnx2nn.optable.registry import TABLE

WRONG: dict[int, Any] = {AttributeProto.INT: [1.5], AttributeProto.INTS: 1.5}
"""Values of another type than an attribute's; `1` for every other type."""


def model_of(nodes: list[onnx.NodeProto], domain: str = "", version: int = 0, names: int = 0) -> onnx.ModelProto:
    """Returns a model of nodes whose inputs are the graph's, the float vectors `x0`, `x1` and so on."""
    opsets = [helper.make_opsetid("", defs.onnx_opset_version())]
    if domain:
        opsets.append(helper.make_opsetid(domain, version))
    elif version:
        opsets = [helper.make_opsetid("", version)]
    inputs = [helper.make_tensor_value_info(f"x{i}", 1, [2]) for i in range(names)]
    outputs = [helper.make_tensor_value_info(nodes[-1].output[0], 1, None)]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def schemas() -> Iterator[defs.OpSchema]:
    newest: dict[tuple[str, str], defs.OpSchema] = {}
    for schema in defs.get_all_schemas_with_history():
        known = newest.get((schema.domain, schema.name))
        if not schema.deprecated and (known is None or known.since_version < schema.since_version):
            newest[schema.domain, schema.name] = schema
    for schema in newest.values():
        if TABLE.newest(schema.domain, schema.name) is not None and schema.attributes:
            yield schema


def test_annotations_are_the_types_of_the_schemas() -> None:
    """Attributes that have the type of their annotation are not compared with the schema."""
    checked = 0
    for row in TABLE:
        types = malformed._types(row.domain, row.operator, row.since) or {}
        for name, annotation in row.annotations.items():
            kind = malformed._CHECKED_BY_ANNOTATIONS.get(annotation)
            if kind is not None and name in types:
                assert kind is types[name], f"{row}: {name} is annotated as {annotation}"
                checked += 1
    assert checked > 500


def test_a_plain_model_needs_no_schemas(monkeypatch: pytest.MonkeyPatch) -> None:
    """onnx makes the schemas of all operators when the first one is requested."""
    monkeypatch.setattr(plan.defs, "get_schema", lambda *_: pytest.fail("a schema was requested"))
    plan.schema_of.cache_clear()
    malformed._types.cache_clear()
    nodes = [
        helper.make_node("Constant", [], ["axes"], value=helper.make_tensor("t", 7, [1], [0])),
        helper.make_node("Unsqueeze", ["x0", "axes"], ["b"]),
        helper.make_node("Cast", ["b"], ["c"], to=1),
        helper.make_node("Transpose", ["c"], ["y"], perm=[1, 0]),
    ]
    assert onnx2nn.load(model_of(nodes, version=17, names=1)) is not None


@pytest.mark.parametrize("schema", list(schemas()), ids=lambda schema: f"{schema.domain}.{schema.name}".lstrip("."))
def test_attributes_of_another_type(schema: defs.OpSchema) -> None:
    """Of every operator and attribute: an error names the attribute and both types, and no other class is raised."""
    for name, attribute in schema.attributes.items():
        value = WRONG.get(int(attribute.type.value), 1)
        node = helper.make_node(
            schema.name, [f"x{i}" for i in range(schema.min_input)], ["y"], "n", domain=schema.domain, **{name: value}
        )
        model = model_of([node], schema.domain, schema.since_version, schema.min_input)
        message = f"attribute '{name}' is of type (INT|FLOAT|FLOATS), the operator takes {attribute.type.name}"
        message = message.replace("SPARSE_TENSOR", "TENSOR")
        with pytest.raises(UnsupportedModelError, match=message) as error:
            onnx2nn.load(model)
        assert [problem.nodes for problem in error.value.problems] == [["n"]]
        assert [str(problem) for problem in onnx2nn.check(model).problems] == list(map(str, error.value.problems))


@pytest.mark.parametrize("operator", ["Squeeze", "Unsqueeze", "ReduceMean", "ReduceL2"])
@pytest.mark.parametrize("version", [11, 18])
def test_axes_of_another_type_where_channels_move(operator: str, version: int) -> None:
    """A pass asks for the rank behind a node whose axes are no attribute in later opsets, before the import says so."""
    nodes = [
        helper.make_node("Transpose", ["x0"], ["a"], perm=[0, 3, 1, 2]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Transpose", ["b"], ["c"], perm=[0, 2, 3, 1]),
        helper.make_node(operator, ["c"], ["d"], "n", axes=[1.0]),
        helper.make_node("Add", ["c", "d"], ["e"]),
        helper.make_node("Transpose", ["e"], ["y"], perm=[0, 3, 1, 2]),
    ]
    model = model_of(nodes, version=version, names=1)
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("x0", 1, [2, 3, 4, 5]))
    with pytest.raises(UnsupportedModelError, match=rf"{operator}-{version} \(1 node: n\)"):
        onnx2nn.load(model)


@pytest.mark.parametrize("schema", list(schemas()), ids=lambda schema: f"{schema.domain}.{schema.name}".lstrip("."))
@pytest.mark.parametrize("older", [0, 1], ids=["its opset", "the opset before"])
def test_nodes_without_inputs_and_attributes(schema: defs.OpSchema, older: int) -> None:
    """Passes read nodes before the import: a node that lacks everything ends with an error of ours, or loads.

    An opset that does not have the operator yet says nothing of its inputs.
    """
    node = helper.make_node(schema.name, [], ["y"], "n", domain=schema.domain)
    relu = helper.make_node("Relu", ["y"], ["z"])
    version = max(schema.since_version - older, 1)
    for perms in ([[0]], [[0, 3, 1, 2], [0, 2, 3, 1]]):  # the second: channels move to the front
        ends = [
            helper.make_node("Transpose", [name], [f"t_{name}"], perm=perm)
            for name, perm in zip(("x0", "z"), perms, strict=False)
        ]
        _load(model_of([ends[0], node, relu, *ends[1:]], schema.domain, version, 1))


def _load(model: onnx.ModelProto) -> None:
    try:
        onnx2nn.load(model)
    except Onnx2nnError as error:
        assert isinstance(error, UnsupportedModelError)  # a node without inputs may also load


CONTRIB = [
    ("BiasGelu", "attribute 'axis' is unknown"),
    ("FusedMatMul", "attribute 'alpha' is of type INTS, the operator takes FLOAT"),
    ("SkipLayerNormalization", "attribute 'epsilon' is of type INTS, the operator takes FLOAT"),
]


@pytest.mark.parametrize(("operator", "message"), CONTRIB)
def test_operators_without_a_schema(operator: str, message: str) -> None:
    name = message.split("'")[1]
    node = helper.make_node(operator, ["x0", "x1", "x2"], ["y"], domain="com.microsoft", **{name: [1, 2]})
    with pytest.raises(UnsupportedModelError, match=message):
        onnx2nn.load(model_of([node], "com.microsoft", 1, 3))


def test_an_opset_beyond_any_integer() -> None:
    for version in (1 << 31, 1 << 40, (1 << 63) - 1):
        with pytest.raises(UnsupportedModelError, match="no such operator"):
            onnx2nn.load(model_of([helper.make_node("Nope", ["x0"], ["y"])], "", version, 1))
        onnx2nn.load(model_of([helper.make_node("Relu", ["x0"], ["y"])], "", version, 1))


def test_a_constant_of_several_tensors() -> None:
    node = helper.make_node("Constant", [], ["c"], "n")
    tensors = [numpy_helper.from_array(np.ones(2, np.float32))] * 2
    node.attribute.append(helper.make_attribute("value", tensors))
    for reader in ("Add", "MatMul", "Reshape", "Pow"):
        model = model_of([node, helper.make_node(reader, ["x0", "c"], ["y"])], names=1)
        with pytest.raises(UnsupportedModelError, match="is of type TENSORS, the operator takes TENSOR"):
            onnx2nn.load(model)


@pytest.mark.parametrize("opset", [8, 9])
@pytest.mark.parametrize("count", [-1, 0, 3, (1 << 31) - 1])
def test_more_scanned_inputs_than_inputs(opset: int, count: int) -> None:
    body = "b (float[2] a, float[2] n) => (float[2] c, float[2] d) { c = Add(a, n) d = Identity(c) }"
    lengths = '"", ' if opset == 8 else ""
    ends = "float[1, 2] s, float[1, 3, 2] x) => (float[a, b] y, float[c, d, e] z)"
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : {opset}]> g ({ends}
        {{ y, z = Scan <num_scan_inputs = {count}, body = {body}> ({lengths}s, x) }}"""
    )
    with pytest.raises(UnsupportedModelError, match=f"num_scan_inputs={count}"):
        onnx2nn.load(model)


def test_an_infinite_size() -> None:
    """The raising reads sizes of a Reshape or an Expand that are floats."""
    text = """<ir_version: 9, opset_import: ["" : 21]> g (float[n, 4] x) => (float[a, b] y)
    <float[2] inf = {1e39, 1}> { e = Reshape(x, inf) t = Transpose <perm = [1, 0]> (e)
    k = Softmax(t) y = MatMul(k, x) }"""
    with pytest.raises(UnsupportedModelError):
        onnx2nn.load(onnx.parser.parse_model(text.replace("1e39", "inf")))


def test_a_graph_that_a_call_gives() -> None:
    node = helper.make_node("If", ["c"], ["z"])
    for name in ("then_branch", "else_branch"):
        node.attribute.append(AttributeProto(name=name, ref_attr_name="g", type=AttributeProto.GRAPH))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("l", 1)]
    function = helper.make_function("l", "f", ["c"], ["z"], [node], opsets, ["g"])
    model = model_of([helper.make_node("f", ["x0"], ["y"], domain="l")], "l", 1, 1)
    model.functions.append(function)
    with pytest.raises(ModelFileError, match="'then_branch' refers to a graph"):
        onnx2nn.load(model)


@pytest.mark.parametrize("operator", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("place", [1, 2, 3])
def test_recurrent_weights_of_another_rank(operator: str, place: int) -> None:
    """The search for stacks of layers reads the sizes of the weights before anything checks them."""
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[operator]
    shapes = {1: (1, gates * 2, 2), 2: (1, gates * 2, 2), 3: (1, gates * 4)}
    options: dict[str, Any] = {"linear_before_reset": 1} if operator == "GRU" else {}
    for shape in ((), (2,), (1, 2, 2, 2)):
        shaped = {**shapes, place: shape}
        weights = [numpy_helper.from_array(np.ones(s, np.float32), f"w{i}") for i, s in shaped.items()]
        node = helper.make_node(operator, ["x", "w1", "w2", "w3"], ["a"], hidden_size=2, **options)
        squeeze = helper.make_node("Squeeze", ["a", "axis"], ["y"])
        weights.append(numpy_helper.from_array(np.array([1]), "axis"))
        x, y = (helper.make_tensor_value_info(name, 1, ["t", "n", 2]) for name in "xy")
        graph = helper.make_graph([node, squeeze], "g", [x], [y], weights)
        with pytest.raises(Onnx2nnError):
            onnx2nn.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


def test_directions_are_one_or_two() -> None:
    """Each direction is walked at import: a file that names two thousand million of them never ended."""
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 22]>
        g (float[3, 1, 2] X, float[2, 15, 2] W, float[2147483647, 15, 5] R) => (float[3, 2, 1, 5] Y)
        { Y = GRU <direction: string = "bidirectional", hidden_size: int = 5> (X, W, R) }"""
    )
    with pytest.raises(UnsupportedModelError, match="R has 2147483647 directions instead of 2"):
        onnx2nn.load(model)


_RECURRENT = {
    "RNN": ("", {"X": (3, 2, 5), "W": (2, 4, 5), "R": (2, 4, 4), "B": (2, 8), "initial_h": (2, 2, 4)}),
    "GRU": ("", {"X": (3, 2, 5), "W": (2, 12, 5), "R": (2, 12, 4), "B": (2, 24), "initial_h": (2, 2, 4)}),
    "LSTM": (
        "P",
        {
            **{"X": (3, 2, 5), "W": (2, 16, 5), "R": (2, 16, 4), "B": (2, 32)},
            **{"initial_h": (2, 2, 4), "initial_c": (2, 2, 4), "P": (2, 12)},
        },
    ),
}
"""Operators of two directions: what may be left out, and the shapes of the inputs."""


@pytest.mark.parametrize("constant", [True, False], ids=["folded", "traced"])
@pytest.mark.parametrize("name", [*_RECURRENT, "LSTM without peepholes"])
def test_recurrent_weights_of_other_shapes_are_refused(name: str, constant: bool) -> None:
    """torch's functions read beyond weights that are too small, which ended the process."""
    operator = name.split()[0]
    optional, shapes = _RECURRENT[operator]
    shapes = {key: shape for key, shape in shapes.items() if key != optional or name == operator}
    wrong = [
        (key, (*shape[:axis], size, *shape[axis + 1 :]))
        for key, shape in shapes.items()
        for axis, old in enumerate(shape)
        for size in (0, 1, old - 1, old + 1)
        if size != old and (key, axis) not in (("X", 0), ("X", 1))
    ]
    for key, shape in [("X", shapes["X"]), *wrong]:
        model = _recurrent(operator, {**shapes, key: shape}, constant)
        if key == "X" and shape == shapes["X"]:
            onnx2nn.load(model)
            continue
        try:
            module = onnx2nn.load(model)
        except UnsupportedModelError as error:
            assert re.search(rf"{operator}-\d+ \(1 node: Y\)", str(error)), (key, shape)
            continue
        assert key.startswith(("X", "initial")) and not constant, (key, shape)
        inputs = [torch.full([d.dim_value for d in v.type.tensor_type.shape.dim], 0.1) for v in model.graph.input]
        with pytest.raises(OperatorError, match="instead of"):
            module(*inputs)


def _recurrent(operator: str, shapes: dict[str, tuple[int, ...]], constant: bool) -> onnx.ModelProto:
    names = [name if name in shapes else "" for name in ("X", "W", "R", "B", "", "initial_h", "initial_c", "P")]
    while not names[-1]:
        names.pop()
    node = helper.make_node(operator, names, ["Y"], direction="bidirectional", hidden_size=4)
    arrays = {name: np.full(shape, 0.1, np.float32) for name, shape in shapes.items()}
    given = [] if constant else ["X", *(name for name in names if name.startswith("initial"))]
    graph = helper.make_graph(
        [node],
        "recurrent",
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shapes[name]) for name in given],
        [helper.make_tensor_value_info("Y", onnx.TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in arrays.items() if name not in given],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=9)


COUNTED = {
    "pads of half an axis": ("y = Pad(x, p)", [1, 1, 1], "pads has 3 numbers; two for each of 2 axes are 4"),
    "pads of an axis too many": ("y = Pad(x, p)", [1, 1, 1, 1, 1, 1], "pads has 6 numbers; two for each of 2 axes"),
    "pads of an axis that is not there": ("a = Constant <value_ints = [2]> () y = Pad(x, p, , a)", [1, 1], "axis 2 is"),
    "repeats of one axis": ("y = Tile(x, p)", [2], "repeats has 1 numbers for an input of 2 dimensions"),
    "starts of three axes": ("y = Slice(x, p, p)", [0, 0, 0], "axis 2 is none of a tensor of 2 dimensions"),
    "fewer ends": ("e = Constant <value_ints = [1]> () y = Slice(x, p, e)", [0, 0], "starts has 2 numbers, ends has 1"),
}


@pytest.mark.parametrize("constant", [True, False], ids=["in the file", "in the call"])
@pytest.mark.parametrize("name", COUNTED)
def test_as_many_numbers_as_axes(name: str, constant: bool) -> None:
    nodes, numbers, message = COUNTED[name]
    given = f"<int64[{len(numbers)}] p = {{{', '.join(map(str, numbers))}}}>" if constant else ""
    inputs = "float[2,3] x" if constant else "float[2,3] x, int64[n] p"
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 18]> g ({inputs}) => (float[a,b] y) {given} {{ {nodes} }}'
    )
    values = [torch.zeros(2, 3)] if constant else [torch.zeros(2, 3), torch.tensor(numbers)]
    with pytest.raises((OperatorError, UnsupportedModelError), match=message):
        onnx2nn.load(model)(*values)
