"""Float forms of random calls of quantised operators give about what the integers give."""

from __future__ import annotations

import random
from typing import Any

import onnx_ir as ir
import pytest
import torch
from onnx import parser

import onnx2nn
from onnx2nn.dequantize.operators import rewrite_of
from onnx2nn.errors import UnsupportedModelError
from tests.drawn import operators
from tests.drawn.draw import Draw, model_of

pytestmark = pytest.mark.filterwarnings("ignore:The file declares dimensions as dynamic")

FAST, HELD = 4, 150
"""Calls of each operator."""

CALLS = operators.CALLS


def _results(module: Any, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    with torch.no_grad():
        found = module(*inputs)
    return [x.detach() for x in ([found] if isinstance(found, torch.Tensor) else found)]  # may be weights


def _fault(domain: str, op: str, seed: int) -> str:
    """Returns how the floats differ from the literal numbers by more than rounding to a few steps, or an error."""
    d = Draw(random.Random(f"{domain}.{op}.{seed}"))
    model, feeds = model_of(CALLS[domain, op](d), d)
    inputs = [torch.from_numpy(x.copy()) for x in feeds.values()]
    try:
        wanted = _results(onnx2nn.load(model), inputs)
    except (UnsupportedModelError, ValueError, RuntimeError):  # tests/test_drawn_operators.py is about these
        return ""
    try:
        found = _results(onnx2nn.load(model, quantized="dequantize"), inputs)
    except Exception as error:  # of any class: what the literal import can, this one can
        return f"seed {seed}: {error!r}"
    for ours, theirs in zip(found, wanted, strict=True):
        if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
            return f"seed {seed}: {ours.dtype}{list(ours.shape)}, not {theirs.dtype}{list(theirs.shape)}"
        finite = theirs.double()[theirs.double().isfinite()]
        apart = (ours.double() - theirs.double()).abs().nan_to_num(0).max() if ours.numel() else torch.zeros(())
        if apart > max(2.0, 0.15 * float(finite.abs().max() if finite.numel() else 0)):
            return f"seed {seed}: {ours}, not {theirs}"
    return ""


OPERATORS = operators.parameters({key for key in CALLS if rewrite_of(ir.Node(*key, [])) is not None})


def _check(domain: str, op: str, seeds: range) -> None:
    faults = [fault for seed in seeds if (fault := _fault(domain, op, seed))]
    assert not faults, "\n".join([f"{len(faults)} of {len(seeds)} are wrong", *faults[:3]])


@pytest.mark.parametrize(("domain", "op"), OPERATORS)
def test_some_calls(domain: str, op: str) -> None:
    _check(domain, op, range(FAST))


@pytest.mark.held
@pytest.mark.parametrize(("domain", "op"), OPERATORS)
def test_many_calls(domain: str, op: str, request: pytest.FixtureRequest) -> None:
    _check(domain, op, operators.held_seeds(request, FAST, HELD))


@pytest.mark.parametrize("q", ["q = QuantizeLinear(x, s, p)", "q = Identity(a)"], ids=["of an input", "of a constant"])
def test_an_output_of_integers_that_no_float_reads(q: str) -> None:
    """What gives its numbers is read by the quantisation at its end alone."""
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 17, "com.microsoft" : 1]> g (float[2] x) => (uint8[2] y, float[2] z)'
        " <uint8[2] a = {1, 2}, uint8[2] b = {4, 5}, float s = {0.5}, float t = {0.25}, uint8 p = {3}> {"
        f" {q} y = com.microsoft.QLinearAdd(q, s, p, b, s, p, t, p) z = Neg(x) }}"
    )
    x = torch.tensor([0.5, 3.0])
    kept, floats = onnx2nn.load(model)(x), onnx2nn.load(model, quantized="dequantize")(x)
    assert torch.equal(floats[0], kept[0])
    assert torch.equal(floats[1], kept[1])
