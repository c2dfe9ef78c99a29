"""Calls of an imported module give what its program says; no value that a caller or a hook has is overwritten."""

from __future__ import annotations

import copy
import pickle
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from realmodels import EXPORTERS, check_against_onnxruntime, export_dynamo, seeded
from torch import fx, nn
from torch.nn import functional as F
from torch.profiler import profile

import onnx2nn


class Activations(nn.Module):
    """One activation after each kind of producer, and results that something else needs too."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.shared = nn.Conv2d(8, 8, 1)
        self.gate = nn.Conv2d(8, 8, 1)
        self.up = nn.ConvTranspose2d(8, 8, 2, stride=2)
        self.head = nn.Linear(8, 4)
        self.last = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = F.relu(x)  # the caller's tensor
        x = F.relu6(self.norm(self.stem(x)))
        twice = self.shared(x)
        x = F.relu(twice + F.silu(twice))  # two read it
        x = F.mish(self.up(F.hardswish(self.gate(x))))
        x = F.mish(x.mean((2, 3)).tanh())  # whose gradient needs what it gave
        x = F.silu(self.head(x))
        given = self.last(x)
        return given, F.relu(given)  # the caller gets both


@cache
def _file() -> Path:
    return export_dynamo("activations", seeded(Activations), (torch.randn(2, 3, 6, 6),), (torch.randn(3, 3, 6, 6),))


def _input() -> torch.Tensor:
    return torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(1))


def _values(module: fx.GraphModule, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """What each layer gives, of the graph node by node."""
    values: dict[str, torch.Tensor] = {}

    class Recorder(fx.Interpreter):
        def run_node(self, node: fx.Node) -> object:
            value = super().run_node(node)
            if node.op == "call_module":
                values[str(node.target)] = value
            return value

    Recorder(module).run(x)
    return values


IN_PLACE = {"aten::clamp_", "aten::relu_", "aten::hardswish_", "aten::mish_", "aten::silu_"}


def test_calls_overwrite_nothing() -> None:
    module, x = onnx2nn.load(_file()), _input()
    before = x.clone()
    with profile() as recorded:
        values = module(x)
    assert IN_PLACE.isdisjoint(event.key for event in recorded.key_averages())
    assert torch.equal(x, before)
    for value, expected in zip(values, fx.Interpreter(module).run(x), strict=True):
        assert torch.equal(value, expected)
    check_against_onnxruntime(_file(), module, (x,))


def test_same_gradients() -> None:
    """In training mode, whose normalisations take the batch's statistics."""
    modules = [onnx2nn.load(_file()).train() for _ in range(2)]
    for module, run in zip(modules, (modules[0], fx.Interpreter(modules[1]).run), strict=True):
        sum(output.square().sum() for output in run(_input())).backward()
        assert all(parameter.grad is not None for parameter in module.parameters())
    for one, other in zip(modules[0].parameters(), modules[1].parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)
    per_sample = torch.func.vmap(lambda x: modules[0](x[None])[1][0].sum())
    modules[0].eval()
    gradients = torch.func.grad(lambda x: per_sample(x).sum())(_input())
    x = _input().requires_grad_()
    fx.Interpreter(modules[0]).run(x)[1].sum().backward()
    torch.testing.assert_close(gradients, x.grad)


def test_hooks_get_what_layers_give() -> None:
    module, x = onnx2nn.load(_file()), _input()
    module(x)
    expected, seen = _values(module, x), dict[str, torch.Tensor]()
    handles = [
        layer.register_forward_hook(lambda _, __, output, name=name: seen.__setitem__(name, output))
        for name, layer in module.named_children()
    ]
    module(x)
    assert expected.keys() == seen.keys() == {name for name, _ in Activations().named_children()}
    for name, value in seen.items():
        assert torch.equal(value, expected[name]), name
    for handle in handles:
        handle.remove()
    called: list[nn.Module] = []
    for watched in (module, module.norm):  # torch refuses that what such a hook has seen is overwritten
        watched.register_full_backward_hook(lambda layer, *_: called.append(layer))
    module(x.requires_grad_())[1].sum().backward()
    assert set(called) == {module, module.norm}


HOOKS = ("forward_hook", "forward_pre_hook", "full_backward_hook", "full_backward_pre_hook")


@pytest.mark.parametrize("hook", HOOKS)
def test_hooks_of_the_module_itself(hook: str) -> None:
    module, called = onnx2nn.load(_file()), list[str]()
    getattr(module, f"register_{hook}")(lambda *_: called.append(hook))
    module(_input().requires_grad_())[1].sum().backward()
    assert called == [hook]


def test_module_with_a_forward_of_its_own() -> None:
    module, x = onnx2nn.load(_file()), _input()
    expected, compiled = module(x), list[fx.GraphModule]()
    module.compile(fullgraph=True, backend=lambda program, _: (compiled.append(program), program.forward)[1])
    torch.testing.assert_close(module(x), expected)
    assert len(compiled) == 1
    module = onnx2nn.load(_file())
    module.forward = lambda x: "its own"
    assert module(x) == "its own"


def test_an_edited_graph() -> None:
    module, x = onnx2nn.load(_file()), _input()
    module(x)
    for node in module.graph.nodes:
        if node.target is torch.clamp:
            node.target, node.args = torch.relu, node.args[:1]
    module.recompile()
    assert torch.equal(module(x)[1], fx.Interpreter(module).run(x)[1])


TOOLS: dict[str, Callable[[fx.GraphModule, torch.Tensor], fx.GraphModule]] = {
    "export": lambda module, x: torch.export.export(module, (x,)).module(),
    "strict export": lambda module, x: torch.export.export(module, (x,), strict=True).module(),
    "symbolic_trace": lambda module, x: fx.symbolic_trace(module),
    "symbolic_trace of a parent": lambda module, x: fx.symbolic_trace(nn.Sequential(module)),
    "make_fx": lambda module, x: fx.experimental.proxy_tensor.make_fx(module)(x),
}


@pytest.mark.parametrize("called_before", [True, False])
@pytest.mark.parametrize("tool", TOOLS)
def test_programs_of_tools_overwrite_nothing(tool: str, called_before: bool) -> None:
    module, x = onnx2nn.load(_file()), _input()
    if called_before:
        module(x)
    program = TOOLS[tool](module, x)
    targets = [str(node.target) for node in program.graph.nodes]
    assert not any(name in target for name in ("relu_.", "clamp_", "silu_.", "mish_") for target in targets)
    assert not any("inplace" in node.kwargs and node.kwargs["inplace"] for node in program.graph.nodes)
    torch.testing.assert_close(program(x)[1], module(x)[1])


class Placed(nn.Module):
    """Constants in shapes of the input's sizes; they are no weights, of which a trace has values of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = x.shape[0]
        filled = torch.where(x > 0, x.new_full((size, 3), 0.25), x)
        return filled + torch.tensor([1.0, 2, 3]).repeat(size, 1) + torch.tensor([[0.5]]).expand(size, 3)


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_constants_of_sizes_of_the_input_are_traced(exporter: str) -> None:
    original, (x, more) = Placed(), (torch.randn(2, 3), torch.randn(5, 3))
    module = onnx2nn.load(EXPORTERS[exporter]("module_calls_placed", original, (x,), (more,)))
    for program in (fx.symbolic_trace(module), fx.symbolic_trace(nn.Sequential(module))):
        for given in (x, more):
            torch.testing.assert_close(program(given), original(given))


def test_traces_and_compiled_modules() -> None:
    module, x = onnx2nn.load(_file()), _input()
    expected = module(x)
    traced = torch.jit.trace(module, (x,))
    assert "relu_(" not in str(traced.graph)
    recorded: list[fx.GraphModule] = []

    def backend(program: fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., object]:
        recorded.append(program)
        return program.forward

    compiled = torch.compile(module, fullgraph=True, backend=backend)
    for run in (traced, compiled, torch.jit.script(module)):
        torch.testing.assert_close(run(x), expected)
    assert "relu_(" not in recorded[0].code


def test_copies_have_programs_of_their_own() -> None:
    module, x = onnx2nn.load(_file()), _input()
    expected = module(x)
    other = copy.deepcopy(module)
    with torch.no_grad():
        other.last.bias.add_(1)
    torch.testing.assert_close(other(x)[0], expected[0] + 1)
    for plain in (copy.copy(module), pickle.loads(pickle.dumps(module))):  # of torch's own class
        torch.testing.assert_close(plain(x), expected)


def test_errors_show_the_line() -> None:
    module = onnx2nn.load(_file())
    module(_input())
    with pytest.raises(RuntimeError) as caught:
        module(_input().double())
    assert "self.stem(" in "".join(traceback.format_exception(caught.value))
