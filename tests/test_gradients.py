"""Gradients of imported operators are the derivatives of what they compute, and finite where those are."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import parser

import onnx2nn
from onnx2nn.errors import UnsupportedModelError
from tests.drawn import operators
from tests.drawn.draw import Call, Draw, model_of

CALLS = operators.CALLS

pytestmark = pytest.mark.filterwarnings("ignore:The file declares dimensions as dynamic")

FAST, HELD = 2, 60
"""Calls of each operator."""

STEP = 1e-5
"""Of a difference quotient in float64, of numbers about 1."""

_IN_FLOAT32 = "it computes in float32, where difference quotients are rounding"

WITHOUT = {
    "BatchNormalization": (1, "torch has no gradient of running statistics, which a file may compute"),
    "DynamicQuantizeMatMul": (0, "rounding to integers has the gradient of what is rounded"),
    "MatMulBnb4": (0, _IN_FLOAT32),
    "MatMulNBits": (0, _IN_FLOAT32),
    "MelWeightMatrix": (0, "a filter bank is made of its numbers; torch makes no gradient of such"),
    "NegativeLogLikelihoodLoss": (1, "torch has no gradient of class weights, and says so"),
    "Range": (0, "torch has no gradient of a range's start and step, whose length is theirs"),
    "Resize": (1, "its scales are sizes"),
    "SoftmaxCrossEntropyLoss": (1, "torch has no gradient of class weights, and says so"),
    "Unique": (0, "torch has no gradient of values without their repeats, and says so"),
    "Upsample": (1, "its scales are sizes"),
}
"""The operators some of whose inputs have no gradient: how many are compared all the same, and why not the others."""


def _in_float64(drawn: Call) -> Call | None:
    """Returns a call on float64 in place of float32, None for one without floats."""
    inputs = [x.astype(np.float64) if isinstance(x, np.ndarray) and x.dtype == np.float32 else x for x in drawn.inputs]
    if not any(isinstance(x, np.ndarray) and x.dtype == np.float64 and x.size for x in inputs):
        return None
    result = copy.copy(drawn)
    result.inputs = inputs
    return result


def _drawn(domain: str, op: str, seed: int) -> tuple[onnx.ModelProto, list[torch.Tensor]] | None:
    d = Draw(random.Random(f"{domain}.{op}.{seed}"))
    drawn = _in_float64(CALLS[domain, op](d))
    if drawn is None:
        return None
    model, feeds = model_of(drawn, d)
    return model, [torch.from_numpy(x.copy()) for x in feeds.values()]


def _floats(found: Any) -> Iterator[torch.Tensor]:
    if isinstance(found, torch.Tensor):
        if found.is_floating_point():
            yield found
    elif isinstance(found, (list, tuple)):
        for each in found:
            yield from _floats(each)


class Derivatives:
    """Compares a module's gradients with difference quotients of a weighted sum of its outputs.

    Args:
        module: what is called.
        inputs: float64, and others.

    Attributes:
        comparable: whether there is something to compare: all float outputs are float64 and finite.
    """

    def __init__(self, module: torch.nn.Module, inputs: list[torch.Tensor]):
        self._module, self._inputs = module, inputs
        self._random = torch.Generator().manual_seed(7)
        with torch.no_grad():
            outputs = list(_floats(module(*inputs)))
        self.comparable = bool(outputs) and all(x.dtype == torch.float64 and x.isfinite().all() for x in outputs)
        self._weights = [self._normal(x) for x in outputs] if self.comparable else []

    def _normal(self, like: torch.Tensor) -> torch.Tensor:
        return torch.randn(like.shape, generator=self._random, dtype=like.dtype)

    def _total(self) -> torch.Tensor:
        outputs = _floats(self._module(*self._inputs))
        return torch.stack([(weight * x).sum() for weight, x in zip(self._weights, outputs, strict=True)]).sum()

    def gradient(self, of: torch.Tensor) -> torch.Tensor:
        """Returns the gradient with respect to an input or a weight, zeros where torch has none."""
        was = of.requires_grad
        of.requires_grad_(True)
        total = self._total()
        found = torch.autograd.grad(total, [of], allow_unused=True)[0] if total.requires_grad else None
        of.requires_grad_(was)
        return torch.zeros_like(of) if found is None else found

    def difference(self, of: torch.Tensor) -> str:
        """Returns how the gradient differs from the difference quotients along random directions, empty if it does not.

        Directions along which the sum has a kink or a jump near the inputs are left out, or is beyond float64.
        """
        gradient, at = self.gradient(of), of.detach().clone()
        if not gradient.isfinite().all():
            return "the gradient is not finite"
        wrong = ""
        for _ in range(4):
            direction = self._normal(of)
            there = [self._moved(of, at, direction * step) for step in (STEP, -STEP, STEP / 2, -STEP / 2, 0)]
            quotient, nearer = (there[0] - there[1]) / (2 * STEP), (there[2] - there[3]) / STEP
            forward, scale = (there[0] - there[4]) / STEP, max(abs(quotient), 1e-3)
            smooth = abs(quotient - nearer) <= 1e-4 * scale
            if not smooth or abs(quotient - forward) > 1e-2 * scale + 1e-4 * abs(there[4]):
                continue
            along = float((gradient * direction).sum())
            if abs(along - quotient) <= 1e-3 * max(scale, abs(along)) + 1e-10 * abs(there[4]) / STEP:
                return ""
            wrong = f"the gradient along a direction is {along:.6g}, the difference quotient {quotient:.6g}"
        return wrong

    def _moved(self, value: torch.Tensor, at: torch.Tensor, by: torch.Tensor) -> float:
        with torch.no_grad():
            value.copy_(at + by)
            total = float(self._total())
            value.copy_(at)
        return total


def _outcome(domain: str, op: str, seed: int) -> tuple[str, str]:
    """Returns "right", "wrong" or "none" where there is nothing to compare, and what there is to say."""
    call = _drawn(domain, op, seed)
    if call is None:
        return "none", ""
    model, inputs = call
    try:
        module = onnx2nn.load(model)
        derivatives = Derivatives(module, inputs)
    except (UnsupportedModelError, ValueError, RuntimeError):  # tests/test_drawn_operators.py is about these
        return "none", ""
    if not derivatives.comparable:
        return "none", ""
    values = {f"input {i}": x for i, x in enumerate(inputs) if x.dtype == torch.float64}
    values |= {key: p for key, p in module.named_parameters() if p.dtype == torch.float64 and p.requires_grad}
    for name, value in list(values.items())[: WITHOUT[op][0] if op in WITHOUT else None]:
        if said := derivatives.difference(value):
            return "wrong", f"seed {seed}, {name}: {said}\n{onnx.printer.to_text(model)}"
    return "right", ""


OPERATORS = operators.parameters()


def _check(domain: str, op: str, seeds: range) -> None:
    wrong = [said for kind, said in (_outcome(domain, op, seed) for seed in seeds) if kind == "wrong"]
    assert not wrong, "\n".join([f"{len(wrong)} of {len(seeds)} are wrong", *wrong[:3]])


@pytest.mark.parametrize(("domain", "op"), OPERATORS)
def test_some_gradients(domain: str, op: str) -> None:
    _check(domain, op, range(FAST))


@pytest.mark.held
@pytest.mark.parametrize(("domain", "op"), OPERATORS)
def test_many_gradients(domain: str, op: str, request: pytest.FixtureRequest) -> None:
    _check(domain, op, operators.held_seeds(request, FAST, HELD))


AT_EDGES: dict[str, tuple[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "ReduceL2": ("y = ReduceL2(x, axes)", lambda x: torch.linalg.vector_norm(x, dim=1, keepdim=True)),
    "LpNormalization": (
        "y = LpNormalization <axis = 1, p = 2> (x)",
        lambda x: x / torch.linalg.vector_norm(x, dim=1, keepdim=True).clamp_min(1),
    ),
    "Normalizer": (
        'y = ai.onnx.ml.Normalizer <norm = "L2"> (x)',
        lambda x: x / torch.linalg.vector_norm(x, dim=1, keepdim=True).clamp_min(1),
    ),
    "Abs": ("y = Abs(x)", torch.abs),
    "Softplus": ("y = Softplus(x)", lambda x: torch.nn.functional.softplus(x)),
    "Elu": ("y = Elu(x)", torch.nn.functional.elu),
    "Mish": ("y = Mish(x)", torch.nn.functional.mish),
    "LogSoftmax": ("y = LogSoftmax <axis = 1> (x)", lambda x: torch.log_softmax(x, 1)),
}
"""Operators whose formulas have 0/0 or infinity times 0 for a derivative somewhere, and what their authors call."""


@pytest.mark.parametrize("name", AT_EDGES)
def test_gradients_are_finite_at_zeros_and_far_out(name: str) -> None:
    text, original = AT_EDGES[name]
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 20, "ai.onnx.ml" : 3]> '
        f"m (float[r,3] x) => (float[r,c] y) <int64[1] axes = {{1}}> {{ {text} }}"
    )
    rows = [[0.0, 0.0, 0.0], [200.0, -200.0, 0.0], [-1e5, 1e5, 1.0]]
    ours, theirs = (torch.tensor(rows if name != "LpNormalization" else rows[:1], requires_grad=True) for _ in range(2))
    onnx2nn.load(model)(ours).sum().backward()
    original(theirs).sum().backward()
    assert ours.grad is not None and ours.grad.isfinite().all()
    torch.testing.assert_close(ours.grad[:1], theirs.grad[:1])
    if "orm" not in name:  # of a row of large numbers the norm is not 1
        torch.testing.assert_close(ours.grad, theirs.grad)
