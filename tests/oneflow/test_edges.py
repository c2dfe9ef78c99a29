"""Operators at the edges of their numbers: OneFlow's answers are PyTorch's, which docs/conformance.md has."""

from __future__ import annotations

import functools
import re

import pytest

from oneflow_bridge.runtime import import_oneflow
from scripts import edges
from tests import edge_cases, onnxnode
from tests.cases import Case

import_oneflow()
pytest.importorskip("onnxruntime")


EXPM1 = "OneFlow's kernel computes exp(x) - 1, which cancels, as ONNX Runtime's does"
EMPTY = "OneFlow refuses empty tensors here: an error, not a wrong number"
SOFTMAX = "OneFlow's kernel gives NaN for the elements that are NaN or inf, and not for the others of their row"
DIFFERENT = {
    **{(operator, "denormals"): EXPM1 for operator in ("Elu", "Selu", "Celu")},
    **{(operator, "empty"): EMPTY for operator in ("ArgMax", "ArgMin", "ReduceMax", "ReduceMin")},
    **{("GlobalMaxPool", f"empty batch, {form}"): EMPTY for form in ("1-D", "2-D")},
    **{("Softmax", edge): SOFTMAX for edge in ("NaN", "inf", "inf twice")},
    ("HardSwish", "infinities"): "OneFlow's kernel gives 0 at -inf, where the formula is -inf * 0",
}
"""Operators at edges where OneFlow's kernels have other answers than PyTorch's, and why they are left."""


@functools.cache
def answers() -> dict[tuple[str, str], list[str]]:
    return {(edge.operator, edge.edge): edge.ours for edge in edges.stored()}


def known(item: Case) -> bool:
    """Whether the installed onnx has a revision of the operator that expresses the case."""
    return any(onnxnode.expressible(item, version) for version in onnxnode.revisions(item))


def unsigned_zero(texts: list[str]) -> list[str]:
    """Returns texts with 0 in place of -0, which is equal."""
    return [re.sub(r"-0(?=[],])", "0", text) for text in texts]


@pytest.mark.parametrize("item", [item for item in edge_cases.edge_cases() if known(item)], ids=str)
def test_edges(item: Case) -> None:
    answer = edge_cases.answer(functools.partial(edge_cases.ours, framework="oneflow"), item)
    found = edge_cases.of_any_processor(item, answer)
    same = unsigned_zero(found) == unsigned_zero(answers()[item.operator, item.note])
    assert same == ((item.operator, item.note) not in DIFFERENT), found
