"""An imported module generates its program when it is first asked for, which nobody notices."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
import torch.package
from onnx import helper

import onnx2nn

DIGITS = Path(__file__).parents[1] / "examples" / "digits" / "digits.onnx"


def _chooses() -> onnx.ModelProto:
    """Doubles or halves by the sign of a sum: an If with a subgraph for each."""
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Constant", [], ["zero"], value_float=0.0),
        helper.make_node("Greater", ["sum", "zero"], ["positive"]),
    ]
    branches = {}
    for name, factor in (("then_branch", 2.0), ("else_branch", 0.5)):
        constant = helper.make_node("Constant", [], [f"{name}_factor"], value_float=factor)
        product = helper.make_node("Mul", ["x", f"{name}_factor"], [f"{name}_y"])
        result = helper.make_tensor_value_info(f"{name}_y", onnx.TensorProto.FLOAT, None)
        branches[name] = helper.make_graph([constant, product], name, [], [result])
    nodes.append(helper.make_node("If", ["positive"], ["y"], **branches))
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2, 3]) for name in "xy"]
    graph = helper.make_graph(nodes, "chooses", ends[:1], ends[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _by_threads(module: torch.fx.GraphModule, x: torch.Tensor) -> torch.Tensor:
    with ThreadPoolExecutor(4) as threads:
        first, *others = threads.map(module, [x] * 8)
    assert all(torch.equal(first, other) for other in others)
    return first


def _by_torch_package(module: torch.fx.GraphModule, x: torch.Tensor) -> torch.Tensor:
    file = io.BytesIO()
    with torch.package.PackageExporter(file) as exporter:
        exporter.extern("**")
        exporter.save_pickle("models", "model.pkl", module)
    file.seek(0)
    return torch.package.PackageImporter(file).load_pickle("models", "model.pkl")(x)


def _compiled_in_place(module: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    module.compile(fullgraph=True, backend="eager")
    return module(x)


def _compiled(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    return torch.compile(function, fullgraph=True, backend="eager")


FIRST_USES: dict[str, Callable[[torch.fx.GraphModule, torch.Tensor], torch.Tensor]] = {
    "forward": lambda module, x: module.forward(x),
    "forward of the class": lambda module, x: type(module).forward(module, x),
    "signature": lambda module, x: module(**dict.fromkeys(inspect.signature(module.forward).parameters, x)),
    "code": lambda module, x: _run(f"import torch\n{module.code}", module, x),
    "str": lambda module, x: (str(module), module(x))[1],
    "interpreter": lambda module, x: torch.fx.Interpreter(module).run(x),
    "recompile": lambda module, x: (module.recompile(), module(x))[1],
    "copy": lambda module, x: copy.copy(module)(x),
    "deepcopy": lambda module, x: copy.deepcopy(module)(x),
    "pickle": lambda module, x: pickle.loads(pickle.dumps(module))(x),
    "torch.package": _by_torch_package,
    "threads": _by_threads,
    "functional_call": lambda module, x: torch.func.functional_call(module, dict(module.state_dict()), (x,)),
    "trace": lambda module, x: torch.jit.trace(module, (x,))(x),
    "symbolic_trace": lambda module, x: torch.fx.symbolic_trace(torch.nn.Sequential(module))(x),
    "export": lambda module, x: torch.export.export(module, (x,)).module()(x),
    "strict export": lambda module, x: torch.export.export(module, (x,), strict=True).module()(x),
    "torch.compile": lambda module, x: _compiled(module)(x),
    "torch.compile of a function": lambda module, x: _compiled(lambda x: module(x))(x),
    "torch.compile of its forward": lambda module, x: _compiled(module.forward)(x),
    "torch.compile of a parent": lambda module, x: _compiled(torch.nn.Sequential(module))(x),
    "compile": _compiled_in_place,
    "compile of a parent": lambda module, x: _compiled_in_place(torch.nn.Sequential(module), x),
}


def _run(program: str, module: torch.fx.GraphModule, x: torch.Tensor) -> torch.Tensor:
    namespace: dict[str, Any] = {}
    exec(program, namespace)
    return namespace["forward"](module, x)


CASES = [(kind, use) for kind in ("layers", "subgraphs") for use in FIRST_USES]
CASES.remove(("subgraphs", "symbolic_trace"))  # it refuses them: "traced variables cannot be inputs to control flow"


@pytest.mark.parametrize(("kind", "use"), CASES)
def test_program_is_there_whatever_asks_first(kind: str, use: str) -> None:
    """`load` does not generate it; each of these is the first thing done to a module."""
    model, x = (DIGITS, torch.rand(3, 8, 8, 1)) if kind == "layers" else (_chooses(), torch.ones(2, 3))
    torch.compiler.reset()
    expected = onnx2nn.load(model)(x)
    module = onnx2nn.load(model)
    programs = [m for m in module.modules() if isinstance(m, torch.fx.GraphModule)]
    assert len(programs) > 2  # blocks, or subgraphs
    assert not any("_code" in vars(m) for m in programs)
    torch.testing.assert_close(FIRST_USES[use](module, x), expected)


def test_program_of_a_module_whose_class_is_derived() -> None:
    """As nn.utils.parametrize does, and undoes, before the program is asked for."""
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in "xy"]
    weight = helper.make_tensor("w", onnx.TensorProto.FLOAT, [2], [1, 4])
    graph = helper.make_graph([helper.make_node("Mul", ["x", "w"], ["y"])], "g", ends[:1], ends[1:], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    x = torch.tensor([1.0, 2.0])
    for undone in (False, True):
        module = onnx2nn.load(model)
        torch.nn.utils.parametrize.register_parametrization(module, "w", torch.nn.Softplus())
        if undone:
            torch.nn.utils.parametrize.remove_parametrizations(module, "w", leave_parametrized=False)
        weight = torch.tensor([1.0, 4.0])
        torch.testing.assert_close(module(x), x * (weight if undone else torch.nn.functional.softplus(weight)))


@pytest.mark.parametrize("copied", [lambda _: onnx2nn.load(DIGITS), copy.copy, copy.deepcopy])
def test_a_class_whose_first_module_is_gone(copied: Callable[[torch.nn.Module], torch.nn.Module]) -> None:
    """Equal modules share a class; torch's tracers ask the class, not the module, for `forward`."""
    first = onnx2nn.load(DIGITS)
    other = copied(first)
    kinds = [type(module) for module in other.modules()]
    assert kinds == [type(module) for module in first.modules()]
    del first
    assert all(hasattr(kind, "forward") for kind in kinds)
    other(torch.zeros(1, 8, 8, 1))
