"""The walk over a graph's nodes, with a builder that writes down what it is asked for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnx2nn.errors import OperatorError, UnsupportedModelError
from onnx2nn.importing import constants
from onnx2nn.importing.builder import Builder, Regions
from onnx2nn.importing.control_flow import batched_scan_form, branches_of, loop_form, mapped_body, scan_form
from onnx2nn.importing.import_state import ImportState
from onnx2nn.importing.node_facts import Scope
from onnx2nn.importing.plan import UNKNOWN_TYPE, TypeOf, plan
from onnx2nn.importing.walk import Walk
from onnx2nn.optable.row import NeedsValues, Row


class Constant(constants.Constant):
    """A constant whose tensors are numpy arrays."""

    __slots__ = ()

    @staticmethod
    def tensor_of(array: np.ndarray[Any, Any], kind: ir.DataType) -> Any:
        return array

    @staticmethod
    def array_of(tensor: Any) -> np.ndarray[Any, Any]:
        return np.asarray(tensor)

    @staticmethod
    def kind_of(tensor: Any) -> ir.DataType:
        return ir.DataType.from_numpy(tensor.dtype)


class StopError(Exception):
    """Ends the import."""


class Lines(Builder):
    """Writes a line for each node; a value of run time is the text that names it."""

    passing = (StopError,)

    def __init__(self, state: ImportState, regions: Regions, indent: str = ""):
        super().__init__(state, regions)
        self.indent = indent
        self.lines: list[str] = []
        self.alive: list[int] = []
        self.scope: Scope | None = None

    def initializer(self, graph: ir.Graph, value: ir.Value) -> Constant:
        return Constant.initializer(value)

    def inputs(self, node: ir.Node, values: Sequence[Any]) -> list[Any]:
        return list(values)

    def output(self, value: Any) -> Any:
        return value

    def type_of(self, value: Any) -> TypeOf:
        return UNKNOWN_TYPE

    def attribute(self, tensor: ir.TensorProtocol) -> Any:
        return tensor.numpy()

    def fold(self, node: ir.Node, row: Row, inputs: list[Any], attributes: dict[str, Any]) -> Any:
        self._write("fold", row, inputs, attributes)
        return Constant.of(np.zeros(1, np.float32))

    def record(self, node: ir.Node, row: Row, inputs: list[Any], attributes: dict[str, Any]) -> Any:
        if node.op_type == "Softmax":
            raise NeedsValues("its body reads values")
        if node.op_type == "Sin":
            raise StopError
        if node.op_type == "Cos":
            raise ValueError("no cosine\nhere")
        if node.op_type == "Tan":
            raise OperatorError("no tangent.")
        return self._write("record", row, inputs, attributes)

    def record_opaque(self, node: ir.Node, row: Row, inputs: list[Any], attributes: dict[str, Any]) -> Any:
        return self._write("late", row, inputs, attributes)

    def for_function(self, inputs: Any) -> Lines:
        return self

    def called(self, node: ir.Node, function: ir.Function, body: Lines, outputs: Sequence[Any]) -> Sequence[Any]:
        return outputs

    def keep(self, value: ir.Value, result: Any) -> None:
        if self.scope is not None:
            self.alive.append(len(self.scope))

    def _write(self, how: str, row: Row, inputs: Sequence[Any], attributes: dict[str, Any]) -> str:
        texts = [value if isinstance(value, str) else getattr(value, "name", None) or "constant" for value in inputs]
        texts += [f"{name}={value}" for name, value in attributes.items()]
        assert self.at.node is not None
        name = f"{self.indent}{self.at.node.outputs[0].name}"
        self.lines.append(f"{self.at.step} {name} = {how} {row.operator}({', '.join(texts)})")
        return name


def _import_if(walk: Walk[Lines], node: ir.Node, inputs: list[Any]) -> Sequence[Any]:
    then, otherwise = branches_of(node)
    (value,) = walk.inside(then, {})
    child = Lines(walk.builder.state, walk.builder.regions, "else ")
    walk.inside(otherwise, {}, child)
    walk.builder.lines += child.lines
    return [value]


def _walk(text: str) -> Lines:
    """Returns what wrote the graph of a model."""
    model = ir.from_proto(onnx.parser.parse_model(text))
    state = ImportState(model, plan(model))
    builder = Lines(state, lambda: {("If", 1): _import_if})
    scope = Scope()
    for value in model.graph.inputs:
        scope[value] = value.name
    builder.scope = scope
    Walk(builder, scope, model.graph, dict(model.graph.opset_imports)).run()
    return builder


def _model(body: str, header: str = "", functions: str = "") -> str:
    return (
        f'<ir_version: 8, opset_import: ["": 17, "own": 1]> g (float[n] x, bool c) => (float[n] y) {header}'
        f"{{ {body} }} {functions}"
    )


def test_nodes_are_folded_recorded_or_run_late() -> None:
    builder = _walk(_model("a = Neg (w) b = Add (x, a) y = Softmax <axis = 0> (b)", "<float[1] w = {1}>"))
    assert builder.lines == [
        "1 a = fold Neg(w)",
        "2 b = record Add(x, constant)",
        "3 y = late Softmax(b, axis=0)",
    ]


def test_values_go_after_their_last_use() -> None:
    builder = _walk(_model("a = Neg (x) b = Neg (a) d = Neg (b) y = Neg (d)"))
    assert builder.alive == [3, 3, 3, 3]  # x, c, a, then what stands in the place of each that goes


def test_a_function_is_walked_with_the_attributes_of_its_call() -> None:
    function = """
    <opset_import: ["": 17], domain: "own">
    Twice <alpha> (p, q) => (r) { s = Elu <alpha: float = @alpha> (p) r = Neg (s) }
    """
    builder = _walk(_model("a = own.Twice <alpha = 0.1> (x) y = Neg (a)", functions=function))
    assert builder.lines == [
        "1 s = record Elu(x, alpha=0.1)",
        "2 r = record Neg(s)",
        "1 y = record Neg(r)",  # whose graph has had no other row
    ]


def test_inner_graphs_stand_in_place_or_have_a_program_of_their_own() -> None:
    body = """
    y = If (c) <then_branch = t () => (float[n] u) { a = Abs (x) u = Neg (a) },
                else_branch = e () => (float[n] v) { v = Abs (x) }>
    """
    builder = _walk(_model(f"b = Neg (x) {body}"))
    assert builder.lines == [
        "1 b = record Neg(x)",
        "1 a = record Abs(x)",
        "2 u = record Neg(a)",
        "1 else v = record Abs(x)",
    ]


def test_all_problems_are_found_and_each_once() -> None:
    builder = _walk(_model("a = Tan (x) b = Neg (a) d = Cos (x) e = Tan (x) f = Add (b, d) y = Neg (e)"))
    assert builder.lines == []
    with pytest.raises(UnsupportedModelError) as found:
        builder.state.raise_problems()
    reasons = {problem.reason: problem.nodes for problem in found.value.problems}
    assert reasons == {"no tangent.": ["a", "e"], "it cannot be computed: ValueError: no cosine.": ["d"]}
    assert isinstance(found.value.__cause__, ValueError)


def test_a_graph_that_cannot_be_imported_is_a_problem_of_its_node_too() -> None:
    body = """
    y = If (c) <then_branch = t () => (float[n] u) { u = Tan (x) }, else_branch = e () => (float[n] v) { v = Abs (x) }>
    """
    problems = [(problem.operator, problem.reason) for problem in _walk(_model(body)).state.problems.values()]
    assert problems == [
        ("Tan", "no tangent."),
        ("If", "its subgraph holds nodes that cannot be imported, named on their own."),
    ]


def test_errors_of_the_framework_that_end_the_import_pass() -> None:
    with pytest.raises(StopError):
        _walk(_model("y = Sin (x)"))


def test_a_region_without_importer_is_refused() -> None:
    body = "y = Loop (, c, x) <body = b (int64 i, bool on, float[n] s) => (bool on, float[n] s) { }>"
    problems = [problem.reason for problem in _walk(_model(body)).state.problems.values()]
    assert problems == ["its subgraph cannot be imported."]


def _node(operator: str, inputs: int, body_inputs: int, body_outputs: int, **attributes: Any) -> ir.Node:
    graph = ir.Graph(
        [ir.Value(name=f"i{i}") for i in range(body_inputs)], [ir.Value(name=f"o{i}") for i in range(body_outputs)],
        nodes=[],
    )  # fmt: skip
    attrs = [ir.AttrGraph("body", graph), *(_attribute(name, value) for name, value in attributes.items())]
    return ir.Node("", operator, [ir.Value(name=f"x{i}") for i in range(inputs)], attrs, num_outputs=1)


def _attribute(name: str, value: Any) -> ir.Attr:
    return ir.AttrInt64s(name, value) if isinstance(value, list) else ir.AttrInt64(name, value)


def test_forms_of_loops() -> None:
    form = loop_form(_node("Loop", 4, 4, 3), ["trips", None, "a", "b"])
    assert form[1:] == ("trips", None, ["a", "b"])
    assert loop_form(_node("Loop", 0, 2, 1), [])[1:] == (None, None, [])


def test_forms_of_scans() -> None:
    node = _node("Scan", 3, 3, 3, num_scan_inputs=2, scan_input_axes=[1, 0], scan_output_directions=[0, 1])
    assert scan_form(node, ["s", "a", "b"])[1:] == (["s"], ["a", "b"], [1, 0], [0, 0], [0, 0], [0, 1])
    node = _node("Scan", 4, 3, 2, num_scan_inputs=2, directions=[0, 1])
    assert batched_scan_form(node, [None, "s", "a", "b"])[1:] == (["s"], ["a", "b"], [0, 0], [0, 1], [0], [0])


def test_a_body_takes_what_its_node_gives() -> None:
    node = _node("SequenceMap", 2, 2, 1)
    assert mapped_body(node, ["s", "x"]).outputs[0].name == "o0"
    with pytest.raises(OperatorError, match="it has 1 inputs, its body takes 2"):
        mapped_body(node, ["s"])


def test_the_walk_needs_no_framework() -> None:
    program = "import sys; sys.modules['torch'] = sys.modules['oneflow'] = None; import onnx2nn.importing.walk"
    subprocess.run([sys.executable, "-c", program], check=True)
