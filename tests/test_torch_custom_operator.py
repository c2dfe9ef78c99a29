"""Models with operators of their own: torch exports them into a domain of their own, a registered body imports them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnxscript
import pytest
import torch
from onnx.defs import OpSchema
from realmodels import Tensors, check_same, check_travels, run, seeded
from torch import nn

import onnx2nn
from onnx2nn.errors import UnsupportedModelError

DOMAIN = "tests.onnx2nn"
SCHEMA = OpSchema(
    "SoftShrink",
    DOMAIN,
    1,
    inputs=[OpSchema.FormalParameter("x", "T")],
    outputs=[OpSchema.FormalParameter("y", "T")],
    type_constraints=[("T", ["tensor(float)"], "")],
    attributes=[OpSchema.Attribute("amount", OpSchema.AttrType.FLOAT)],
)


class _SoftShrink(torch.autograd.Function):
    """Written the way the TorchScript exporter takes: it has a `symbolic`."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, amount: float) -> torch.Tensor:
        return torch.nn.functional.softshrink(x, amount)

    @staticmethod
    def symbolic(g: Any, x: Any, amount: float) -> Any:
        return g.op(f"{DOMAIN}::SoftShrink", x, amount_f=amount).setType(x.type())


@torch.library.custom_op("onnx2nn_tests::soft_shrink", mutates_args=())
def soft_shrink(x: torch.Tensor, amount: float) -> torch.Tensor:
    """Written the way the dynamo exporter takes: an operator with a schema."""
    return torch.nn.functional.softshrink(x, amount)


@soft_shrink.register_fake
def _(x: torch.Tensor, amount: float) -> torch.Tensor:
    return torch.empty_like(x)


class Model(nn.Module):
    """A layer, the operator, a layer."""

    def __init__(self, operator: Callable[[torch.Tensor, float], torch.Tensor]) -> None:
        super().__init__()
        self.operator = operator
        self.first = nn.Linear(4, 6)
        self.second = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.operator(self.first(x), 0.25))


def _inputs(batch: int) -> Tensors:
    return (torch.randn(batch, 4, generator=torch.Generator().manual_seed(0)),)


def _export_torchscript(path: Path) -> nn.Module:
    model = seeded(lambda: Model(_SoftShrink.apply))
    torch.onnx.export(
        model, _inputs(2), str(path), dynamo=False, input_names=["x"], dynamic_axes={"x": {0: "batch"}},
        custom_opsets={DOMAIN: 1},
    )  # fmt: skip
    return model


def _export_dynamo(path: Path) -> nn.Module:
    model = seeded(lambda: Model(soft_shrink))
    operator = onnxscript.values.Op(onnxscript.values.Opset(DOMAIN, 1), "SoftShrink", SCHEMA)

    def translate(x: Any, amount: float) -> Any:
        return operator(x, amount=amount)

    torch.onnx.export(
        model, _inputs(2), str(path), dynamo=True, verbose=False,
        dynamic_shapes=({0: torch.export.Dim.DYNAMIC},),
        custom_translation_table={torch.ops.onnx2nn_tests.soft_shrink.default: translate},
    )  # fmt: skip
    return model


@pytest.fixture(params=[_export_torchscript, _export_dynamo], ids=["torchscript", "dynamo"])
def exported(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[nn.Module, Path]:
    path = tmp_path / "model.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = request.param(path)
    assert DOMAIN in {node.domain for node in onnx.load(str(path)).graph.node}
    return model, path


def test_unregistered_operator_is_named(exported: tuple[nn.Module, Path]) -> None:
    with pytest.raises(UnsupportedModelError, match=rf"{DOMAIN}::SoftShrink-1 .*onnx2nn\.register"):
        onnx2nn.load(exported[1])


def test_registered_body_imports(exported: tuple[nn.Module, Path]) -> None:
    original, path = exported

    def body(F: Any, x: Any, *, amount: float = 0.5) -> Any:
        return F.sign(x) * F.relu(F.abs(x) - amount)

    with onnx2nn.register(DOMAIN, "SoftShrink")(body):
        module = onnx2nn.load(path)
    for batch in (2, 3):
        check_same(run(module, _inputs(batch)), run(original, _inputs(batch)), "against the original")
    check_travels(module, _inputs(2), _inputs(3))
