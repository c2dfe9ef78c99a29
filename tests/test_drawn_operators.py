"""Random calls of single operators equal ONNX Runtime, whatever attributes, types, shapes and inputs they have."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx.reference import ReferenceEvaluator

import onnx2nn
from onnx2nn.errors import ModuleInputError, UnsupportedModelError
from tests.drawn import contrib, elementwise, layout, norms, others, products, recurrent, reductions, windows
from tests.drawn.draw import CALLS, Call, Draw, model_of

assert all((contrib, elementwise, layout, norms, others, products, recurrent, reductions, windows))  # they fill CALLS

FAST, HELD = 3, 150
"""Calls of each operator."""

Outputs = list[np.ndarray]


@dataclass(frozen=True)
class Difference:
    """Where ONNX Runtime's answer is not asked for.

    Attributes:
        op: the operator.
        holds: whether a call is one of these.
        why: the reason.
    """

    op: str
    holds: Callable[[Call], bool]
    why: str


def _transformation(drawn: Call) -> str:
    return str(drawn.attributes.get("coordinate_transformation_mode", ""))


DIFFERENCES = (
    Difference(
        "Resize",
        lambda drawn: _transformation(drawn) == "align_corners" and drawn.inputs[2] is not None,
        "the standard's own data take size * scale for the length, ONNX Runtime the whole number below it",
    ),
    Difference(
        "Resize",
        lambda drawn: _transformation(drawn) == "tf_crop_and_resize",
        "ONNX Runtime does not crop along an axis that keeps its size",
    ),
    Difference(
        "MaxPool",
        lambda drawn: "SAME" in drawn.attributes.get("auto_pad", "") and "dilations" in drawn.attributes,
        "ONNX Runtime's kernel of 8-bit integers gives fewer elements than the standard's ceil(size / stride)",
    ),
    Difference(
        "AffineGrid",
        lambda drawn: bool(drawn.attributes.get("align_corners")) and 1 in drawn.inputs[1][2:],
        "the standard divides by 0: one element has no two corners; torch's documented answer is the middle",
    ),
    Difference(
        "ReduceMean",
        lambda drawn: drawn.inputs[0].size == 0,
        "the mean of no elements is NaN; ONNX Runtime gives 0 where no element is left",
    ),
)


def _known(drawn: Call) -> str:
    return next((each.why for each in DIFFERENCES if each.op == drawn.op and each.holds(drawn)), "")


def _onnxruntime(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> Outputs:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def _expected(model: onnx.ModelProto, feeds: dict[str, np.ndarray], drawn: Call) -> Outputs | None:
    """Returns the oracle's answer: ONNX Runtime's, the reference's where that is known to differ; None without one."""
    try:
        found = _onnxruntime(model, feeds)
    except Exception:  # what was drawn is no call of the operator, or ONNX Runtime has no kernel for the type
        return None
    if not _known(drawn):
        return found
    try:
        return list(ReferenceEvaluator(model).run(None, feeds))
    except Exception:  # nothing is left to compare with
        return None


def _difference(found: Any, wanted: np.ndarray, rtol: float) -> str:
    """Returns how two results differ, empty where they are equal within the rounding of their type."""
    result = found.detach()
    if wanted.dtype.kind == "V" or (result.dtype.itemsize == 1 and result.dtype.is_floating_point):
        result, wanted = result.view(torch.uint8), wanted.view(np.uint8)
    if result.dtype == torch.bfloat16:
        result, wanted = result.view(torch.uint16), wanted.view(np.uint16)
    ours = result.numpy()
    if ours.shape != wanted.shape or ours.dtype != wanted.dtype:
        return f"{ours.dtype}{list(ours.shape)}, not {wanted.dtype}{list(wanted.shape)}"
    if ours.dtype.kind != "f":
        return "" if np.array_equal(ours, wanted) else f"{ours.tolist()}, not {wanted.tolist()}"
    a, b = ours.astype(np.float64), wanted.astype(np.float64)
    finite = np.isfinite(a) & np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return f"{ours.tolist()}, not {wanted.tolist()}"
    scale = np.abs(b[finite]).max(initial=1e-3)
    bound = {"float16": 3e-3, "float64": 1e-7 if rtol < 1e-3 else rtol}.get(ours.dtype.name, rtol)
    apart = np.abs(a[finite] - b[finite]).max(initial=0) / scale
    return "" if apart <= bound else f"{apart:.2g} of the largest element apart"


def _outcome(domain: str, op: str, seed: int) -> tuple[str, str]:
    """Returns "right", "refused" or "no oracle" for a drawn call, or "wrong", and what there is to say."""
    d = Draw(random.Random(f"{domain}.{op}.{seed}"))
    drawn = CALLS[domain, op](d)
    model, feeds = model_of(drawn, d)
    wanted = _expected(model, feeds, drawn)
    if wanted is None:
        return "no oracle", ""
    about = f"seed {seed}: {onnx.printer.to_text(model)}\n"
    try:
        module = onnx2nn.load(model)
        found = module(*(torch.from_numpy(value.copy()) for value in feeds.values()))
    except UnsupportedModelError as error:
        return "refused", about + str(error)
    except (ModuleInputError, ValueError) as error:
        named = "The sizes of the inputs do not fit" in str(error) or isinstance(error, ModuleInputError)
        return "refused" if named else "wrong", about + repr(error)
    except Exception as error:  # of torch's, which says nothing of the file
        return "wrong", about + repr(error)
    results = [found] if isinstance(found, torch.Tensor) else list(found)
    for index, (ours, theirs) in enumerate(zip(results, wanted, strict=True)):
        if said := _difference(ours, np.asarray(theirs), drawn.rtol):
            return "wrong", f"{about}output {index}: {said}"
    return "right", ""


OPERATORS = [pytest.param(domain, op, id=f"{domain}.{op}".lstrip(".")) for domain, op in sorted(CALLS)]


def _check(domain: str, op: str, seeds: range) -> None:
    found = [_outcome(domain, op, seed) for seed in seeds]
    wrong = [said for kind, said in found if kind == "wrong"]
    assert not wrong, "\n".join([f"{len(wrong)} of {len(found)} are wrong", *wrong[:3]])
    refused = [said for kind, said in found if kind == "refused"]
    assert len(refused) <= max(1, len(found) // 10), "\n".join([f"{len(refused)} are refused", *refused[:3]])


@pytest.mark.pinned("onnxruntime")  # older ones end the process at some of these calls
@pytest.mark.parametrize(("domain", "op"), OPERATORS)
def test_some_calls(domain: str, op: str) -> None:
    _check(domain, op, range(FAST))


@pytest.mark.held
@pytest.mark.parametrize(("domain", "op"), OPERATORS)
def test_many_calls(domain: str, op: str, request: pytest.FixtureRequest) -> None:
    first = FAST + HELD * request.config.getoption("--seed")
    _check(domain, op, range(first, first + HELD))
