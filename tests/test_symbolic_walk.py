"""The walk that finds shapes for all sizes of freed dimensions: what it knows, and what it does not claim to know."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from onnx2nn.errors import FrozenDimensionError
from onnx2nn.importing.plan import plan
from onnx2nn.reading.reader import read
from onnx2nn.unfreeze.request import Request
from onnx2nn.unfreeze.search import unfreeze


def _known(graph: str, frozen: dict[str, int], **inputs: list[int | str | None]) -> dict[str, str]:
    """Returns the known shapes of a graph's values by name, as text."""
    model: ir.Model = read(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> g {graph}'))
    _, values = unfreeze(model, plan(model), Request(inputs, frozen))
    return {value.name or "": repr(known.sizes) for value, known in values.items()}


def test_a_dimension_is_known_for_all_sizes() -> None:
    shapes = _known(
        """(float[1,1,9] x) => (float[1,1,d] y) <float[1,1,2] k = {1, 1}, int64[1] begin = {0}, int64[1] end = {64},
         int64[1] axis = {2}> {
            c = Conv <strides = [2]> (x, k)  s = Slice(c, begin, end, axis)  y = Relu(s)
        }""",
        {"n": 1, "t": 9},
        x=["n", 1, "t"],
    )
    assert shapes["c"] == "(n, 1, t // 2)"
    assert shapes["y"] == "(n, 1, min(64, t // 2))"


def test_sizes_computed_from_sizes_stay_expressions() -> None:
    shapes = _known(
        """(float[1,4] x) => (float[k] y) <int64[1] two = {2}, int64[2] axes = {0, 0}> {
            s = Shape(x)  m = Mul(s, two)  g = Gather <axis = 0> (m, axes)  y = ConstantOfShape(g)
        }""",
        {"n": 1},
        x=["n", 4],
    )
    assert shapes["y"] == "(2 * n, 2 * n)"


MATRIX = "float[6,2] w = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}"


def test_a_node_restricts_other_dynamic_dimensions() -> None:
    graph = f"(float[1,t] x) => (float[1,2] y) <{MATRIX}> {{ p = Relu(x)  y = MatMul(p, w) }}"
    assert _known(graph, {"n": 1}, x=["n", "t"])["p"] == "(n, 6)"


def test_a_node_that_may_not_run_restricts_none() -> None:
    graph = f"""(float[1,t] x, bool b) => (float[1,2] y, float[1,t] z) <{MATRIX}> {{
        y = If (b) <then_branch = one () => (float[1,2] p) {{ p = MatMul(x, w) }},
                    else_branch = other () => (float[1,2] q) {{ q = MatMul(x, w) }}>
        z = Relu(x)
    }}"""
    shapes = _known(graph, {"n": 1}, x=["n", "t"], b=[])
    assert shapes["y"] == "(n, 2)"
    assert shapes["z"] == "(n, t)"


def test_nothing_is_known_in_a_loop_that_changes_a_shape() -> None:
    graph = """(float[1,4] x, int64 trips) => (float[1,m] y) {
        y = Loop (trips, , x) <body = again (int64 i, bool on, float[1,k] before) => (bool more, float[1,l] after) {
            more = Identity(on)  inner = Relu(before)  after = Concat <axis = 1> (inner, BY)
        }>
    }"""
    shapes = _known(graph.replace("BY", "before"), {"n": 1}, x=["n", 4], trips=[])
    assert shapes.keys().isdisjoint(("before", "inner", "after", "y"))
    kept = graph.replace("Concat <axis = 1> (inner, BY)", "Neg(inner)")
    shapes = _known(kept, {"n": 1}, x=["n", 4], trips=[])
    assert shapes["inner"] == shapes["y"] == "(n, 4)"


@pytest.mark.parametrize(
    ("graph", "condition"),
    [
        ("y = MatMul(x, square)", "t == 2"),
        ("z = Transpose(x)  y = Add(x, z)", "n == t|t == n"),
    ],
    ids=["fixed", "tied"],
)
def test_a_freed_dimension_is_not_restricted(graph: str, condition: str) -> None:
    text = f"(float[2,2] x) => (float[2,2] y) <float[2,2] square = {{1, 2, 3, 4}}> {{ {graph} }}"
    with pytest.raises(FrozenDimensionError, match=condition):
        _known(text, {"n": 2, "t": 2}, x=["n", "t"])


def test_what_only_data_tell_is_not_known() -> None:
    shapes = _known(
        "(float[1,4] x) => (int64[2,k] y, float[1,4] z) { y = NonZero(x)  z = Relu(x) }", {"n": 1}, x=["n", 4]
    )
    assert "y" not in shapes
    assert shapes["z"] == "(n, 4)"
