"""torch.export of an import gives what the author's module gives: hooks, inputs by name, modules around calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from realmodels import EXPORTERS, check_same, run_onnxruntime, seeded
from torch import nn

import onnx2nn


class Part(nn.Module):
    """A block with a function of its own between layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return x + self.second(torch.sin(self.first(x)) * scale)


class Net(nn.Module):
    """Two blocks with two inputs of one shape, of which the second stands for more."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(Part() for _ in range(2))

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        for part in self.parts:
            x = part(x, scale)
        return x


def _inputs() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, 6, generator=generator), torch.randn(2, 6, generator=generator)


def _module(exporter: str) -> nn.Module:
    other = tuple(torch.cat([x, x]) for x in _inputs())
    return onnx2nn.load(EXPORTERS[exporter]("export-calls", seeded(Net), _inputs(), other))


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("exporter", EXPORTERS)
def test_inputs_by_name_in_another_order(exporter: str, strict: bool) -> None:
    module, (x, scale) = _module(exporter), _inputs()
    expected = module(x, scale)
    for args, kwargs in (((), {"scale": scale, "x": x}), ((x,), {"scale": scale})):
        program = torch.export.export(module, args, kwargs, strict=strict).module()
        torch.testing.assert_close(program(*args, **kwargs), expected)


def test_inputs_of_another_export_are_forgotten() -> None:
    module, (x, scale) = _module("dynamo"), _inputs()
    expected = module(x, scale)
    with pytest.raises(Exception, match=r".+"):
        torch.export.export(module, (), {"scale": scale, "x": x[:, :3]})
    torch.testing.assert_close(torch.export.export(module, (x, scale)).module()(x, scale), expected)
    torch.export.export(module, (), {"scale": scale, "x": x})
    forward = module.forward
    module.forward = lambda *given: forward(*given)
    torch.testing.assert_close(torch.export.export(module, (x, scale)).module()(x, scale), expected)


@pytest.mark.parametrize("change", ["edited", "optimized"])
def test_inputs_by_name_of_another_program(change: str) -> None:
    module, (x, scale) = _module("dynamo"), _inputs()
    module(x, scale)
    if change == "edited":
        node = next(node for node in module.graph.nodes if node.op == "call_module")
        with module.graph.inserting_after(node):
            half = module.graph.call_function(torch.mul, (node, 0.5))
        node.replace_all_uses_with(half, lambda user: user is not half)
        module.recompile()
    else:
        module = onnx2nn.optimize(module, "eager")
    given = {"scale": scale, "x": x}
    torch.testing.assert_close(torch.export.export(module, (), given).module()(**given), module(x, scale))


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_hooks_of_the_outermost_module(exporter: str, tmp_path: Path) -> None:
    module, inputs = _module(exporter), _inputs()
    module.register_forward_pre_hook(lambda _, given: (given[0] + 1, *given[1:]))
    module.register_forward_hook(lambda _, __, result: result * 2)
    expected = module(*inputs)
    torch.testing.assert_close(torch.export.export(module, inputs).module()(*inputs), expected)
    torch.onnx.export(module, inputs, tmp_path / "hooks.onnx", dynamo=True, verbose=False)
    check_same(run_onnxruntime(tmp_path / "hooks.onnx", inputs), (expected,), "what torch.onnx.export wrote")


def test_inputs_by_the_names_of_the_file() -> None:
    module = onnx2nn.load(
        onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["": 17]> g (float[N, 3] "x.1", float[N, 3] b) => (float[N, 3] y)'
            '{ y = Sub("x.1", b) }'
        )
    )
    a, b = torch.ones(2, 3), torch.full((2, 3), 5.0)
    program = torch.export.export(module, (), {"b": b, "x_1": a}).module()
    torch.testing.assert_close(program(b=b, x_1=a), a - b)


def _noted(program: torch.export.ExportedProgram) -> set[str]:
    """Returns the paths of the modules around calls."""
    stacks: list[dict[str, Any]] = [node.meta.get("nn_module_stack") or {} for node in program.graph.nodes]
    return {path for stack in stacks for path, _ in stack.values()}


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_modules_around_calls(exporter: str) -> None:
    """Quantisers that are told a block's name, and lowerings of parts, ask for them."""
    module, inputs = _module(exporter), _inputs()
    expected = _noted(torch.export.export(seeded(Net), inputs))
    assert _noted(torch.export.export(module, inputs)) == expected >= {"", "parts.0", "parts.1"}


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_blocks_of_an_unflattened_program(exporter: str) -> None:
    module, inputs = _module(exporter), _inputs()
    expected = seeded(Net)
    for net in (module, expected):
        net.eval()
    results = []
    for net in (module, expected):
        program = torch.export.export(net, inputs, preserve_module_call_signature=("parts.0", "parts.1"))
        unflattened = torch.export.unflatten(program)
        seen: list[torch.Tensor] = []
        unflattened.get_submodule("parts.1").register_forward_hook(lambda _, __, result, seen=seen: seen.append(result))
        results.append((unflattened(*inputs), seen))
    torch.testing.assert_close(results[0], results[1])
    assert len(results[0][1]) == 1
