"""The types of values that a file does not declare: inferred where they are asked for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx.parser
import onnx_ir as ir
import torch

import onnx2nn
from onnx2nn.importing.plan import UNKNOWN_TYPE, plan

DEPTH = 3000  # more nodes than Python's stack has frames


def _model(nodes: list[ir.Node], inputs: list[ir.Value], functions: Sequence[ir.Function] = ()) -> ir.Model:
    graph = ir.Graph(inputs, [nodes[-1].outputs[0]], nodes=nodes, opset_imports={"": 17})
    return ir.Model(graph, ir_version=8, functions=functions)


def _unary(operator: str, value: ir.Value, **attributes: object) -> ir.Node:
    return ir.node(operator, [value], attributes)  # type: ignore[arg-type]  # plain values become attributes


def test_a_type_follows_a_long_chain_of_nodes() -> None:
    given = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT16))
    nodes = [_unary("Relu", given)]
    for _ in range(DEPTH):
        nodes.append(_unary("Relu", nodes[-1].outputs[0]))
    found = plan(_model(nodes, [given]))
    assert {found.type_of(node.outputs[0]) for node in reversed(nodes)} == {(ir.DataType.FLOAT16, "")}


def test_a_type_comes_from_attributes_schemas_and_declarations() -> None:
    given = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT))
    cast = _unary("Cast", given, to=int(ir.DataType.INT32))
    shape = _unary("Shape", given)
    constant = ir.node("Constant", [], {"value": ir.tensor(np.float64(1.0))})
    sequence = _unary("SequenceConstruct", cast.outputs[0])
    found = plan(_model([cast, shape, constant, sequence, _unary("Neg", cast.outputs[0])], [given]))
    kinds = [found.type_of(node.outputs[0]) for node in (cast, shape, constant)]
    assert kinds == [(kind, "") for kind in (ir.DataType.INT32, ir.DataType.INT64, ir.DataType.DOUBLE)]
    assert found.type_of(sequence.outputs[0])[1] == "seq"
    assert found.type_of(found.model.graph[-1].outputs[0]) == (ir.DataType.INT32, "")


def test_inner_graphs_and_functions_have_their_own_versions() -> None:
    given = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT))
    condition = ir.Value(name="c", type=ir.TensorType(ir.DataType.BOOL))
    inner = _unary("Cast", given, to=int(ir.DataType.INT64))
    behind = _unary("Abs", inner.outputs[0])
    branches = [ir.Graph([], [behind.outputs[0]], nodes=[inner, behind], name="then")]
    other = _unary("Cast", given, to=int(ir.DataType.INT64))
    branches.append(ir.Graph([], [other.outputs[0]], nodes=[other], name="else"))
    choice = ir.node("If", [condition], dict(zip(("then_branch", "else_branch"), branches, strict=True)))
    argument = ir.Value(name="a")
    body = _unary("Shape", argument)
    function = ir.Function(
        "own", "F", graph=ir.Graph([argument], [body.outputs[0]], nodes=[body], opset_imports={"": 13}), attributes=[]
    )
    found = plan(_model([choice], [given, condition], [function]))
    assert found.type_of(behind.outputs[0]) == (ir.DataType.INT64, "")
    assert found.type_of(body.outputs[0]) == (ir.DataType.INT64, "")


def test_the_type_of_a_value_outside_of_the_model_is_unknown() -> None:
    given = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT))
    found = plan(_model([_unary("Relu", given)], [given]))
    stranger = _unary("Shape", given)
    assert found.type_of(stranger.outputs[0]) == UNKNOWN_TYPE


def test_a_range_in_a_function_has_the_type_of_the_values_that_the_call_gives() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 18, "own": 1]>
        agraph (int32 limit, int32 delta) => (int32[n] y) <int32 start = {5}> { y = own.Steps (start, limit, delta) }
        <opset_import: ["": 18], domain: "own">
        Steps (p, q, r) => (s) { s = Range (p, q, r) }""")
    numbers = onnx2nn.load(model)(torch.tensor(12, dtype=torch.int32), torch.tensor(3, dtype=torch.int32))
    torch.testing.assert_close(numbers, torch.tensor([5, 8, 11], dtype=torch.int32))
