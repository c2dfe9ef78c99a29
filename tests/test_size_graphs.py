"""Random graphs that compute sizes from sizes equal ONNX Runtime at all sizes, or say why they refuse one."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import islice

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from onnx import NodeProto, TensorProto, helper, shape_inference

from onnx2nn.errors import Onnx2nnError
from tests.size_graphs import (
    IMPORTERS,
    NOT_LOADED,
    REFUSED,
    WRONG,
    Module,
    Outcome,
    SizeGraph,
    Tally,
    build,
    import_to_torch,
    names_its_reason,
    oracle,
    outcomes,
    size_graphs,
)

FAST = 300
PARTS, IN_A_PART = 8, 2500
"""The held tier's graphs. A part is a test, for processes and shards, and large enough for a share of refusals."""

MOST_REFUSED = 0.01
"""Of the points at which ONNX Runtime answers."""

WRITTEN = {".onnx": (8, 150), ".pt2": (8, 150), ".torchscript": (30, 600)}
"""What graphs are written as → how many in the fast tier, and in a part of the held one."""

MOST_UNWRITTEN = 0.4
"""Of the points: torch refuses sizes that data decide where it would have to choose by them."""

SETTINGS = settings(
    database=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.generate, Phase.shrink),
)


def check_some(
    rules: settings,
    chosen: int | None = None,
    importer: Callable[[bytes], Module] = import_to_torch,
    is_reason: Callable[[SizeGraph, Outcome], bool] = names_its_reason,
    most_refused: float = MOST_REFUSED,
) -> None:
    """Runs size graphs, shrinks the first with a wrong result, and bounds the share of refusals."""
    tally = Tally()

    def check(graph: SizeGraph) -> None:
        results = outcomes(graph, importer)
        tally.add(graph, results)
        for result in results:
            assert result.kind != WRONG, f"silently wrong at {result.point}: {result.detail}\n{graph}"
            if result.kind in (REFUSED, NOT_LOADED):
                assert is_reason(graph, result), f"at {result.point}: {result.detail!r}\n{graph}"

    test = rules(given(size_graphs())(check))
    (test if chosen is None else seed(chosen)(test))()
    assert tally.graphs >= rules.max_examples * 0.9, f"only {tally.graphs} graphs were different"
    assert tally.refused <= most_refused * tally.points, f"{tally.table()}\n{tally.listing(shown=2)}"


@pytest.mark.pinned("onnxruntime")  # 1.23 ends the process at some of these graphs, and misreads sizes of a Resize
def test_some_graphs() -> None:
    check_some(settings(SETTINGS, max_examples=FAST, derandomize=True))


@pytest.mark.held
@pytest.mark.parametrize("part", range(PARTS))
def test_many_graphs(part: int, request: pytest.FixtureRequest) -> None:
    chosen = request.config.getoption("--seed") * PARTS + part
    check_some(settings(SETTINGS, max_examples=IN_A_PART), chosen)


def _check_written(ending: str, rules: settings, chosen: int | None = None) -> None:
    check_some(rules, chosen, IMPORTERS[ending], _is_refusal, MOST_UNWRITTEN)


def _is_refusal(graph: SizeGraph, outcome: Outcome) -> bool:
    """Whether an export was refused by an error of ours, or a written file by an error."""
    return outcome.kind == REFUSED or isinstance(outcome.detail, Onnx2nnError)


@pytest.mark.filterwarnings("ignore")  # torch's exporters warn of most models
@pytest.mark.pinned("onnxruntime", "torch")
@pytest.mark.parametrize("ending", WRITTEN)
def test_some_graphs_are_written_again(ending: str) -> None:
    _check_written(ending, settings(SETTINGS, max_examples=WRITTEN[ending][0], derandomize=True))


@pytest.mark.held
@pytest.mark.filterwarnings("ignore")  # torch's exporters warn of most models
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("ending", WRITTEN)
def test_many_graphs_are_written_again(ending: str, part: int, request: pytest.FixtureRequest) -> None:
    chosen = request.config.getoption("--seed") * PARTS + part
    _check_written(ending, settings(SETTINGS, max_examples=WRITTEN[ending][1]), chosen)


def _operator(node: NodeProto, name: str) -> list[NodeProto]:
    return [helper.make_node(name, node.input, node.output)]


def _floor_division(node: NodeProto) -> list[NodeProto]:
    (a, b), (result,) = node.input, node.output
    remainder, multiple = f"{result}_remainder", f"{result}_multiple"
    return [
        helper.make_node("Mod", [a, b], [remainder]),
        helper.make_node("Sub", [a, remainder], [multiple]),
        helper.make_node("Div", [multiple, b], [result]),
    ]


def _other_sign(node: NodeProto) -> list[NodeProto]:
    return [helper.make_node("Mod", node.input, node.output, fmod=0 if node.attribute else 1)]


def _floor_first(node: NodeProto) -> list[NodeProto]:
    floor = f"{node.output[0]}_floor"
    return [
        helper.make_node("Floor", node.input, [floor]),
        helper.make_node("Cast", [floor], node.output, to=node.attribute[0].i),
    ]


INTEGERS, FLOATS = (TensorProto.INT32, TensorProto.INT64), (TensorProto.FLOAT,)

MISTAKES = {
    "Div floors": ("Div", INTEGERS, _floor_division),
    "Mod has the other sign": ("Mod", INTEGERS, _other_sign),
    "Abs does nothing": ("Abs", (*INTEGERS, *FLOATS), lambda node: _operator(node, "Identity")),
    "Cast floors": ("Cast", FLOATS, _floor_first),
    "Ceil floors": ("Ceil", FLOATS, lambda node: _operator(node, "Floor")),
    "Round floors": ("Round", FLOATS, lambda node: _operator(node, "Floor")),
    "Less includes equal": ("Less", (*INTEGERS, *FLOATS), lambda node: _operator(node, "LessOrEqual")),
}
"""Mistakes of an import → the operator, the element types of its input, and nodes that do so."""


def _with_mistake(model: onnx.ModelProto, mistake: str) -> onnx.ModelProto:
    operator, dtypes, replacement = MISTAKES[mistake]
    graph = shape_inference.infer_shapes(model).graph
    infos = {info.name: info.type.tensor_type.elem_type for info in (*graph.value_info, *graph.input)}
    infos |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.graph.node[:]
    for node in model.graph.node:
        wrong = node.op_type == operator and infos.get(node.input[0]) in dtypes
        result.graph.node.extend(replacement(node) if wrong else [node])
    return result


def _is_noticed(graph: SizeGraph, other: onnx.ModelProto) -> bool:
    if graph.model == other:
        return False
    right, wrong = oracle(graph.model.SerializeToString()), oracle(other.SerializeToString())
    for point in graph.points:
        inputs = graph.inputs(point)
        try:
            expected = right.run(None, inputs)
        except Exception:  # ONNX Runtime's errors share no class
            continue
        try:
            found = wrong.run(None, inputs)
        except Exception:  # ONNX Runtime's errors share no class
            return True
        if not all(np.array_equal(a, b, equal_nan=True) for a, b in zip(expected, found, strict=True)):
            return True
    return False


@pytest.mark.pinned("onnxruntime")  # 1.23 ends the process at some of these graphs, and misreads sizes of a Resize
@pytest.mark.parametrize("mistake", MISTAKES)
def test_graphs_show_mistakes(mistake: str) -> None:
    """Three of as many graphs as the fast tier has, or more, find an import that is wrong about one operator."""
    graphs = (build(random.Random(seed)) for seed in range(FAST))
    with_it = (
        graph for graph in graphs if any(node.op_type == MISTAKES[mistake][0] for node in graph.model.graph.node)
    )
    noticed = (graph for graph in with_it if _is_noticed(graph, _with_mistake(graph.model, mistake)))
    assert len(list(islice(noticed, 3))) == 3
