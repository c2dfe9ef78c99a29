"""Operators that are traced as one call, inside an If: torch traces its branches apart from the rest of the program."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from realmodels import check_against_onnxruntime

import onnx2nn
from onnx2nn.optable.registry import TABLE
from tests.drawn import draw, operators
from tests.drawn.oracle import NO_CALL, answer

OPERATORS = sorted({(row.domain, row.operator) for row in TABLE if row.custom_op} & operators.CALLS.keys())


def _branch(graph: onnx.GraphProto, prefix: str) -> onnx.GraphProto:
    """Returns the nodes of a graph with new names, as the branch of an If."""
    renamed = {name: prefix + name for node in graph.node for name in node.output if name}
    nodes, outputs = list(graph.node), list(graph.output)
    made = helper.make_graph(nodes, prefix, [], outputs)
    for node in made.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        node.output[:] = [renamed.get(name, name) for name in node.output]
    for value in made.output:
        value.name = renamed[value.name]
    return made


def _chosen(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns a model whose nodes are both branches of an If."""
    graph = model.graph
    branches = {key: _branch(graph, key[0]) for key in ("then_branch", "else_branch")}
    node = helper.make_node("If", ["c"], [value.name for value in graph.output], **branches)
    made = onnx.ModelProto()
    made.CopyFrom(model)
    del made.graph.node[:], made.graph.value_info[:]
    made.graph.node.append(node)
    made.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    return made


def _parameter(key: tuple[str, str]) -> object:
    marks = [] if key == ("", "NonMaxSuppression") else [pytest.mark.slow]  # seconds each; one for the fast tier
    return pytest.param(*key, id=".".join(key).lstrip("."), marks=marks)


@pytest.mark.parametrize(("domain", "op"), map(_parameter, OPERATORS))
def test_a_branch_is_written(domain: str, op: str, tmp_path: Path) -> None:
    written = 0
    for seed in range(6):
        d = draw.Draw(random.Random(f"{op} {seed}"))
        model, feeds = draw.model_of(operators.CALLS[domain, op](d), d)
        try:
            results = answer(model, feeds)
        except NO_CALL:  # ONNX Runtime refuses the operator itself
            continue
        if any(np.asarray(result).dtype.kind in "OU" for result in results):
            continue  # labels that are texts, which no program of torch holds
        for value in model.graph.input:  # open dimensions of two inputs are often one and the same, unnamed
            value.CopyFrom(
                helper.make_tensor_value_info(value.name, value.type.tensor_type.elem_type, feeds[value.name].shape)
            )
        inputs = [*(torch.from_numpy(value.copy()) for value in feeds.values())]
        module = onnx2nn.load(_chosen(model))
        path = tmp_path / f"{seed}.onnx"
        onnx2nn.export_onnx(module, path, example_inputs=[*inputs, torch.tensor(True)])
        check_against_onnxruntime(path, module, [*inputs, torch.tensor(False)])
        if (written := written + 1) == 2:
            return
    assert written
