"""Sizes that a model does not take: an error before anything runs, which no way of deployment loses unsaid."""

from __future__ import annotations

import copy
import functools
import importlib.util
import io
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import installed
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import numpy_helper, parser
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, RuntimeException
from onnxruntime.quantization import quantize_dynamic
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import onnx2nn
from onnx2nn import functional
from onnx2nn.commands.main import main
from onnx2nn.fx.attempt import Attempt
from onnx2nn.fx.tracing.tracer import Tracer
from onnx2nn.fx.values.spec import Spec
from onnx2nn.fx.values.tensor import Tensor
from onnx2nn.sizes.conditions import equal
from onnx2nn.sizes.expression import Symbol, of_symbol, subtract, truncated_divide

ROOT = Path(__file__).resolve().parents[1]


def _model(graph: str) -> onnx.ModelProto:
    """A model whose initializer `W` of 4x4 is random, so that a layer runs before the node that needs a size."""
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> agraph {graph}')
    weight = np.random.default_rng(0).standard_normal((4, 4), dtype=np.float32)
    if re.search(r"\bW\b", graph):
        model.graph.initializer.append(numpy_helper.from_array(weight, "W"))
    return model


@dataclass(frozen=True)
class Case:
    """A model with a guard.

    Attributes:
        graph: the model.
        right: shapes of the inputs that it takes, for several calls.
        wrong: shapes that it refuses.
        condition: the guard, as code.
        needs: the end of the message, with the sizes of the first wrong call.
    """

    graph: str
    right: Sequence[Sequence[Sequence[int]]]
    wrong: Sequence[Sequence[Sequence[int]]]
    condition: str
    needs: str

    @property
    def message(self) -> str:
        return rf"The sizes of the inputs do not fit\. {re.escape(self.condition)} is needed{self.needs}"

    def load(self) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of dimensions that are fixed, see the test of it
            return onnx2nn.load(_model(self.graph))


CASES = {
    "an equation": Case(
        """(float[n,4] x) => (float[a,b,c] y) <int64[3] target = {3, 2, 2}> {
            r = Gemm(x, W)  y = Reshape(r, target)
        }""",
        [[(3, 4)]],
        [[(4, 4)], [(1, 4)]],
        "n == 3",
        r" by node 'y' \(Reshape\): .*\. Here n, dimension 0 of input 'x', is 4\.",
    ),
    "pooled to one row": Case(
        """(float[1,1,h,4] x) => (float[a,b,c] y) <int64[1] axes = {2}> {
            r = MatMul(x, W)  p = MaxPool <kernel_shape = [8, 1], strides = [8, 1]> (r)  y = Squeeze(p, axes)
        }""",
        [[(1, 1, 9, 4)], [(1, 1, 8, 4)], [(1, 1, 15, 4)]],
        [[(1, 1, 16, 4)], [(1, 1, 7, 4)]],
        "h >= 8 and h <= 15",
        r" by node 'y' \(Squeeze\): .*\. Here h, dimension 2 of input 'x', is 16\.",
    ),
    "divisible": Case(
        """(float[n,4] x) => (float[a,b] y) <int64[2] target = {-1, 24}> { r = Gemm(x, W)  y = Reshape(r, target) }""",
        [[(12, 4)], [(18, 4)], [(60, 4)]],
        [[(16, 4)], [(3, 4)]],
        "n % 6 == 0",
        r" by node 'y' \(Reshape\): .*\. Here n, dimension 0 of input 'x', is 16\.",
    ),
    "a product divisible": Case(
        """(float[time,bands] x) => (float[a,b] y) <int64[2] target = {-1, 10}> {
            r = Relu(x)  y = Reshape(r, target)
        }""",
        [[(5, 4)], [(2, 15)], [(30, 7)]],
        [[(3, 7)]],
        "time * bands % 10 == 0",
        r" by node 'y' \(Reshape\): .*\. "
        r"Here time, dimension 0 of input 'x', is 3, bands, dimension 1 of input 'x', is 7\.",
    ),
    "one name": Case(
        """(float[n,4] x, float[n,4] z) => (float[a,b] y) { r = Gemm(x, W)  y = Concat <axis = 0> (r, z) }""",
        [[(3, 4), (3, 4)], [(5, 4), (5, 4)], [(8, 4), (8, 4)]],
        [[(3, 4), (4, 4)], [(3, 4), (1, 4)]],
        "n == z.shape[0]",
        r": the file gives the dimensions one name\. "
        r"Here n, dimension 0 of input 'x', is 3, z\.shape\[0\], dimension 0 of input 'z', is 4\.",
    ),
    "branches of different rank": Case(
        """(float[n,4] x) => (float[] y) <int64[1] first = {0}, int64 zero = {0}, int64 limit = {10}> {
            r = Gemm(x, W)  s = Shape(r)  l = Gather(s, zero)  few = Less(l, limit)
            y = If (few) <
                then_branch = t () => (float[] a) { a = Unsqueeze(r, first) },
                else_branch = e () => (float[] b) { b = Identity(r) }
            >
        }""",
        [[(12, 4)], [(10, 4)], [(40, 4)]],
        [[(9, 4)], [(1, 4)]],
        "n >= 10",
        r" by node 'y' \(If\): the model takes another branch .*\. Here n, dimension 0 of input 'x', is 9\.",
    ),
    "in one branch": Case(
        """(float[n,4] x) => (float[a,b,c] y)
        <int64[3] target = {3, 2, 2}, int64[3] other = {-1, 2, 2}, int64 zero = {0}, int64 limit = {10}> {
            r = Gemm(x, W)  s = Shape(x)  l = Gather(s, zero)  few = Less(l, limit)
            y = If (few) <
                then_branch = t () => (float[a,b,c] v) { v = Reshape(r, target) },
                else_branch = e () => (float[a,b,c] w) { w = Reshape(r, other) }
            >
        }""",
        [[(12, 4)], [(10, 4)], [(40, 4)]],
        [[(4, 4)]],
        "n >= 10 or n == 3",
        r" by node 'v' \(Reshape\): .*\. Here n, dimension 0 of input 'x', is 4\.",
    ),
    "floats": Case(
        """(float[n,4] x) => (float[m,4] y) <int64[1] zero = {0}, float factor = {0.3}> {
            r = Gemm(x, W)  s = Shape(x)  l = Slice(s, zero, one)  f = Cast <to = 1> (l)  g = Mul(f, factor)
            h = Floor(g)  i = Cast <to = 7> (h)  y = Slice(r, zero, i)
        }""".replace("float factor", "int64[1] one = {1}, float factor"),
        [[(10, 4)], [(7, 4)], [(99, 4)]],
        [[(65536, 4)]],
        "n <= 65535",
        r" by node 'h' \(Floor\): .* not exact .*\. Here n, dimension 0 of input 'x', is 65536\.",
    ),
}
EACH = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def _inputs(shapes: Sequence[Sequence[int]]) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(*shape, generator=generator) for shape in shapes)


def _agree(case: Case, run: Callable[..., Any]) -> None:
    """Compares with ONNX Runtime at all right sizes."""
    session = onnxruntime.InferenceSession(_model(case.graph).SerializeToString(), providers=["CPUExecutionProvider"])
    for shapes in case.right:
        inputs = _inputs(shapes)
        feeds = {given.name: value.numpy() for given, value in zip(session.get_inputs(), inputs, strict=True)}
        torch.testing.assert_close(run(*inputs), torch.from_numpy(session.run(None, feeds)[0]))


class _Recorded(TorchDispatchMode):
    """Notes every operation that torch runs."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations.append(str(func))
        return func(*args, **(kwargs or {}))


@EACH
@torch.no_grad()
def test_a_wrong_size_is_an_error_before_anything_runs(case: Case) -> None:
    module = case.load()
    ran: list[str] = []
    for name, layer in module.named_modules():
        if layer is not module:
            layer.register_forward_hook(lambda *_, name=name: ran.append(name))
    _agree(case, module)
    assert ran or not dict(module.named_children()), "a layer runs before the node that needs the size"
    ran.clear()
    for index, shapes in enumerate(case.wrong):
        inputs = _inputs(shapes)
        with _Recorded() as recorded, pytest.raises(ValueError, match=case.message if index == 0 else "do not fit"):
            module(*inputs)
        assert recorded.operations == [] and ran == []


@EACH
def test_guards_are_listed(case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In `meta`, by `check` and on the command line: condition, input and node."""
    (guard,) = case.load().meta["onnx2nn"]["guards"]
    assert guard["condition"] == case.condition and guard["at_entry"] is True
    places = guard["dimensions"].values()
    assert all(re.search(rf"dimension {axis} of input '{name}'", case.needs.replace("\\", "")) for name, axis in places)
    if guard["node"] is not None:
        assert f"node '{guard['node']}' \\({guard['operator']}\\)" in case.needs
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # check is no load
        (text,) = onnx2nn.check(_model(case.graph)).guards
    assert text.startswith(f"{case.condition} (") and guard["reason"] in text
    assert all(f"dimension {axis} of '{name}'" in text for name, axis in places)
    assert guard["node"] is None or f"node {guard['node']!r} ({guard['operator']})" in text
    onnx.save(_model(case.graph), tmp_path / "model.onnx")
    assert main(["check", str(tmp_path / "model.onnx")]) == 0
    assert f"It takes inputs of these sizes only:\n  {text}\n" in capsys.readouterr().out


def _exported(module: nn.Module, case: Case, strict: bool) -> Callable[..., Any]:
    inputs = _inputs(case.right[0])
    dims = {axis: torch.export.Dim.AUTO for axis in range(4)}
    shapes = tuple({axis: dims[axis] for axis in range(value.ndim)} for value in inputs)
    return torch.export.export(module, inputs, dynamic_shapes=shapes, strict=strict).module()


@EACH
@pytest.mark.parametrize("strict", [False, True], ids=["", "strict"])
@torch.no_grad()
def test_export_keeps_guards(case: Case, strict: bool) -> None:
    """The program takes the right sizes and refuses the others, or is specialised to the only size."""
    program = _exported(case.load(), case, strict)
    _agree(case, program)
    for shapes in case.wrong:
        with pytest.raises((AssertionError, RuntimeError), match=r"Guard failed|Expected|failed"):
            program(*_inputs(shapes))


@EACH
@torch.no_grad()
def test_the_listed_sizes_fulfil_the_guards(case: Case) -> None:
    module = case.load()
    shapes = [given["shape"] for given in module.meta["onnx2nn"]["signature"]]
    for sizes in module.meta["onnx2nn"]["sizes"]:
        module(*_inputs([[sizes.get(dim, dim) for dim in shape] for shape in shapes]))


@EACH
def test_export_at_a_wrong_size_is_the_modules_error(case: Case) -> None:
    module, inputs = case.load(), _inputs(case.wrong[0])
    with pytest.raises(ValueError, match=re.escape(case.condition)):
        torch.export.export(module, inputs, dynamic_shapes=tuple({0: torch.export.Dim.AUTO} for _ in inputs))


@EACH
@torch.no_grad()
def test_compilation_keeps_guards(case: Case) -> None:
    """One compilation serves all right sizes; a wrong one is an error that says the condition."""
    compilations = []

    def backend(program: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        compilations.append(program)
        return program.forward

    torch.compiler.reset()
    module = case.load()
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend=backend)
    _agree(case, compiled)
    assert len(compilations) == 1 or installed.is_older("torch")  # 2.11 takes a size that was 1 for 1
    before = len(compilations)
    with pytest.raises(RuntimeError, match=re.escape(case.condition)):
        compiled(*_inputs(case.wrong[0]))
    _agree(case, compiled)
    assert len(compilations) == before
    torch.compiler.reset()
    with pytest.raises(ValueError, match=case.message):  # without fullgraph Python raises it
        torch.compile(module, dynamic=True, backend=backend)(*_inputs(case.wrong[0]))


@EACH
@torch.no_grad()
def test_copies_keep_guards(case: Case, tmp_path: Path) -> None:
    """A copy, a pickle and the written source raise the same error."""
    module, inputs = case.load(), _inputs(case.wrong[0])
    onnx2nn.save(module, tmp_path / "model.pth")
    onnx2nn.to_python(module, tmp_path)
    spec = importlib.util.spec_from_file_location("guarded", tmp_path / "model.py")
    assert spec is not None and spec.loader is not None
    written = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(written)
    again = torch.load(tmp_path / "model.pth", weights_only=False)
    for copied in (copy.deepcopy(module), again, written.load_model()):
        _agree(case, copied)
        with pytest.raises(ValueError, match=case.message):
            copied(*inputs)
    assert again.meta["onnx2nn"]["guards"] == module.meta["onnx2nn"]["guards"]


@EACH
@torch.no_grad()
def test_a_saved_program_keeps_guards(case: Case, tmp_path: Path) -> None:
    inputs = _inputs(case.right[0])
    axes = [dict.fromkeys(range(value.ndim), "d") for value in inputs]
    onnx2nn.save(case.load(), tmp_path / "model.pt2", example_inputs=inputs, dynamic_axes=axes)
    program = torch.export.load(tmp_path / "model.pt2").module()
    _agree(case, program)
    with pytest.raises((AssertionError, RuntimeError), match=r"Guard failed|Expected|failed"):
        program(*_inputs(case.wrong[0]))


@EACH
@torch.no_grad()
def test_formats_without_conditions_say_so(case: Case, tmp_path: Path) -> None:
    """A traced module and an ONNX file check nothing, unless the only size is a part of the format."""
    module, inputs = case.load(), _inputs(case.right[0])
    end = f"; it does not check {case.condition}"
    if case is CASES["in one branch"]:
        with pytest.raises(onnx2nn.errors.VerificationError, match=r"both branches of node 'y' \(If\)"):
            onnx2nn.save(module, tmp_path / "model.torchscript", example_inputs=inputs)
        end += "; of what is chosen at node 'y' (If) it holds the side that the example takes"
    else:
        assert onnx2nn.save(module, tmp_path / "model.torchscript", example_inputs=inputs).endswith(end)
    pytest.importorskip("onnxscript")
    told = onnx2nn.export_onnx(module, tmp_path / "model.onnx", example_inputs=inputs)
    if module.meta["onnx2nn"]["fixed"] == {"n": 3}:
        assert "does not check" not in told
        assert onnx.load(tmp_path / "model.onnx").graph.input[0].type.tensor_type.shape.dim[0].dim_value == 3
    else:
        assert told.endswith(end)
    again = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    names = [given.name for given in again.get_inputs()]

    def run(*values: torch.Tensor) -> torch.Tensor:
        feeds = dict(zip(names, (value.numpy() for value in values), strict=True))
        return torch.from_numpy(again.run(None, feeds)[0])

    _agree(case, run)


def test_a_module_without_guards_says_nothing_of_them(tmp_path: Path) -> None:
    model = _model("(float[n,4] x) => (float[n,4] y) { y = Gemm(x, W) }")
    module = onnx2nn.load(model)
    assert module.meta["onnx2nn"]["guards"] == [] and module.meta["onnx2nn"]["sizes"] == []
    assert "Require" not in module.code
    assert "sizes" not in str(onnx2nn.check(model))
    told = onnx2nn.save(module, tmp_path / "model.torchscript", example_inputs=_inputs([(2, 4)]))
    assert "check" not in told


@pytest.mark.parametrize("case", ["an equation", "pooled to one row", "divisible", "one name"])
def test_load_warns_once_of_dimensions_that_the_file_fixes(case: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        onnx2nn.load(_model(CASES[case].graph))
    told = {"an equation": "n is 3", "pooled to one row": "h is 8 to 15"}
    if case in told:
        (warning,) = caught
        assert warning.category is UserWarning and warning.filename == __file__
        assert f"dynamic that its nodes fix: {told[case]}." in str(warning.message)
    else:
        assert caught == []


def test_a_limit_that_only_huge_sizes_exceed_is_left_to_eager_calls() -> None:
    """Every dimension that torch.export is told of by name would have to be declared with such a maximum."""
    module = onnx2nn.load(
        _model(
            """(float[n] x) => (float[m] y) <int64[1] zero = {0}, float factor = {0.5}> {
                s = Shape(x)  f = Cast <to = 1> (s)  g = Mul(f, factor)  h = Floor(g)  i = Cast <to = 7> (h)
                y = Slice(x, zero, i)
            }"""
        )
    )
    (guard,) = module.meta["onnx2nn"]["guards"]
    assert guard["condition"] == "n <= 16777215"
    huge, x = torch.zeros(1).expand(1 << 24), torch.randn(9)
    assert module(huge[1:]).shape == ((1 << 23) - 1,)
    with pytest.raises(ValueError, match=r"n <= 16777215 is needed by node 'f' \(Cast\)"):
        module(huge)
    program = torch.export.export(module, (x,), dynamic_shapes=({0: torch.export.Dim.AUTO},)).module()
    assert torch.equal(program(x[1:]), module(x[1:]))
    assert program(huge).shape == (1 << 23,)


def test_limits_of_several_dimensions_stand_in_their_order() -> None:
    """Programs, and what is exported of them, are the same in every process."""
    module = onnx2nn.load(
        _model(
            """(float[a,b,c,d,e,f] x) => (int64[6] y) <float factor = {0.5}> {
                s = Shape(x)  k = ReduceSum <keepdims = 0> (s)  p = Cast <to = 1> (k)  g = Mul(p, factor)
                h = Floor(g)  i = Cast <to = 7> (h)  y = Add(s, i)
            }"""
        )
    )
    conditions = [guard["condition"] for guard in module.meta["onnx2nn"]["guards"]]
    assert [condition.partition(" <= ")[0] for condition in conditions] == ["a", "b", "c", "d", "e", "f"]


def test_export_holds_no_condition_that_only_0_and_1_do_not_fulfil() -> None:
    """torch.export takes a dynamic size for 2 or more; calls and compiled modules check it."""
    module = onnx2nn.load(
        _model(
            """(float[n,1,4] x) => (float[] y) <int64 one = {1}, int64[1] axes = {0}> {
                s = Shape <start = 0, end = 1> (x)  c = Squeeze(s)  e = Equal(c, one)
                y = If (e) <
                    then_branch = t () => (float[p,q] z) { z = Squeeze(x, axes) },
                    else_branch = f () => (float[p,q,r] w) { w = Relu(x) }
                >
            }"""
        )
    )
    x = torch.randn(3, 1, 4)
    program = torch.export.export(module, (x,), dynamic_shapes=({0: torch.export.Dim.AUTO},)).module()
    torch.compiler.reset()
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend="eager")
    for run in (module, program, compiled):
        assert torch.equal(run(x), x.relu())
    with pytest.raises(ValueError, match=r"n != 1 is needed by node 'y' \(If\)"):
        module(x[:1])
    with pytest.raises(RuntimeError, match="n != 1 is needed"):
        compiled(x[:1])


CHOICES = {
    "values": """(float[n,4] x) => (float[a,b] y) <int64 zero = {0}, int64 limit = {10}, float two = {2.0}> {
        s = Shape(x)  l = Gather(s, zero)  few = Less(l, limit)
        y = If (few) <
            then_branch = t () => (float[a,b] v) { v = Mul(x, two) },
            else_branch = e () => (float[a,b] w) { w = Gemm(x, W) }
        >
    }""",
    "sizes": """(float[n,4] x) => (float[a,b] y)
    <int64 zero = {0}, int64[1] first = {0}, int64[1] two = {2}, int64 limit = {10}> {
        s = Shape(x)  l = Gather(s, zero)  few = Less(l, limit)  v1 = Unsqueeze(l, first)  half = Div(v1, two)
        y = If (few) <
            then_branch = t () => (float[a,b] v) { v = Gemm(x, W) },
            else_branch = e () => (float[a,b] w) { w = Slice(x, first, half, first) }
        >
    }""",
    "nested": """(float[n,4] x) => (float[a,b] y)
    <int64 zero = {0}, int64[1] first = {0}, int64[1] three = {3}, int64 limit = {10}, int64 other = {20}> {
        s = Shape(x)  l = Gather(s, zero)  few = Less(l, limit)  some = Less(l, other)
        y = If (few) <
            then_branch = t () => (float[a,b] v) { v = Gemm(x, W) },
            else_branch = e () => (float[a,b] w) {
                w = If (some) <
                    then_branch = u () => (float[a,b] c) { c = Relu(x) },
                    else_branch = f () => (float[a,b] d) { d = Slice(x, first, three, first) }
                >
            }
        >
    }""",
    "a size": """(float[n,4] x) => (float[k,4] y)
    <int64 zero = {0}, int64[1] first = {0}, int64[1] three = {3}, int64 limit = {10}> {
        s = Shape(x)  l = Gather(s, zero)  few = Less(l, limit)  v = Unsqueeze(l, first)  k = Where(few, v, three)
        y = Slice(x, first, k, first)
    }""",
    "what an empty axis has not": """(float[n,4] x) => (float[b] y)
    <int64 zero = {0}, int64[1] first = {0}, int64 limit = {10}> {
        s = Shape(x)  l = Gather(s, zero)  few = Less(l, limit)
        y = If (few) <
            then_branch = t () => (float[b] v) { v = ReduceMax <keepdims = 0> (x, first) },
            else_branch = e () => (float[b] w) { w = ReduceSum <keepdims = 0> (x, first) }
        >
    }""",
}
"""Models that choose by the number of rows."""


@pytest.mark.parametrize("graph", CHOICES.values(), ids=CHOICES)
@torch.no_grad()
def test_both_sides_of_a_choice_by_size_are_kept(graph: str, tmp_path: Path) -> None:
    """By the module, and in all formats, at sizes of each side, whatever the example takes."""
    case = Case(graph, [[(4, 4)], [(9, 4)], [(10, 4)], [(19, 4)], [(20, 4)], [(300, 4)]], [], "", "")
    module = case.load()
    assert module.meta["onnx2nn"]["guards"] == []
    _agree(case, module)
    torch.compiler.reset()
    _agree(case, torch.compile(module, fullgraph=True, dynamic=True, backend="eager"))
    for shapes in (case.right[1], case.right[2]):
        inputs = _inputs(shapes)
        for strict in (False, True):
            _agree(case, _exported(module, Case(graph, [shapes], [], "", ""), strict))
        onnx2nn.save(module, tmp_path / "model.pt2", example_inputs=inputs, dynamic_axes=[{0: "n"}])
        _agree(case, torch.export.load(tmp_path / "model.pt2").module())
        told = onnx2nn.save(module, tmp_path / "model.torchscript", example_inputs=inputs)
        assert told == "traced TorchScript module, read back with torch.jit.load"
        _agree(case, torch.jit.load(tmp_path / "model.torchscript"))
    pytest.importorskip("onnxscript")
    for examples in (None, _inputs(case.right[1]), _inputs(case.right[2])):
        told = onnx2nn.export_onnx(module, tmp_path / "model.onnx", example_inputs=examples)
        assert "holds the side" not in told
        again = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
        _agree(case, lambda x, again=again: torch.from_numpy(again.run(None, {"x": x.numpy()})[0]))


EMPTY = {
    "a remainder": """(float[n,4] x) => (float[a,b] y)
    <int64 zero = {0}, int64[1] first = {0}, int64 hundred = {100}, int64[1] three = {3}> {
        s = Shape(x)  l = Gather(s, zero)  none = LessOrEqual(l, zero)  q = Mod(hundred, l)
        y = If (none) <
            then_branch = t () => (float[a,b] v) { r = Mod(q, three)  v = Slice(x, first, r, first) },
            else_branch = e () => (float[a,b] w) { u = Unsqueeze(q, first)  w = Slice(x, first, u, first) }
        >
    }""",
    "a quotient of floats": """(float[n,4] x) => (float[a,b] y)
    <int64[1] zero = {0}, int64[1] one = {1}, float two = {2.0}> {
        s = Shape(x)  l = Slice(s, zero, one)  none = LessOrEqual(l, zero)
        y = If (none) <
            then_branch = t () => (float[a,b] v) {
                f = Cast <to = 1> (l)  q = Div(f, f)  g = Floor(q)  i = Cast <to = 7> (g)  v = Slice(x, zero, i, zero)
            },
            else_branch = e () => (float[a,b] w) { w = Mul(x, two) }
        >
    }""",
    "of both signs": """(float[n,4] x) => (float[a,b] y)
    <int64 zero = {0}, int64 one = {1}, int64[1] first = {0}, int64 two = {2},
        int64 eight = {8}, int64 most = {16}> {
        s = Shape(x)  l = Gather(s, zero)  d = Sub(eight, l)  far = Abs(d)
        large = Greater(far, most)  few = Less(l, two)  less = Less(l, far)
        both = And(few, less)  never = And(large, both)
        y = If (never) <
            then_branch = t () => (float[a,b] v) {
                m = Max(far, one)  q = Div(l, m)  u = Unsqueeze(q, first)  v = Slice(x, first, u, first)
            },
            else_branch = e () => (float[a,b] w) { w = Identity(x) }
        >
    }""",
}
"""Models with a branch for no rows, or for no sizes at all, in which their number is a divisor."""


@pytest.mark.parametrize("graph", EMPTY.values(), ids=EMPTY)
@torch.no_grad()
def test_a_branch_may_divide_by_a_size_that_is_zero(graph: str) -> None:
    case = Case(graph, [[(1, 4)], [(7, 4)], [(40, 4)], [(99, 4)]], [], "", "")
    module = case.load()
    assert {guard["reason"] for guard in module.meta["onnx2nn"]["guards"]} <= {"a divisor is not 0"}
    _agree(case, module)


QUOTIENTS = {
    "of itself": "q = Div(f, f)",
    "of its double": "p = Add(f, f)  q = Div(p, f)",
    "of another size": "t = Shape <start = 1> (x)  c = Cast <to = 1> (t)  q = Div(c, f)",
}


@pytest.mark.parametrize("nodes", QUOTIENTS.values(), ids=QUOTIENTS)
@torch.no_grad()
def test_a_float_quotient_by_no_rows_is_refused(nodes: str) -> None:
    """It is infinite or no number, and what an integer cast from it is depends on the processor."""
    graph = f"""(float[n,4] x) => (int64[1] y) <int64[1] zero = {{0}}, int64[1] one = {{1}}> {{
        s = Shape(x)  l = Slice(s, zero, one)  f = Cast <to = 1> (l)  {nodes}  g = Floor(q)  y = Cast <to = 7> (g)
    }}"""
    case = Case(graph, [[(1, 4)], [(3, 4)], [(40, 4)]], [], "", "")
    module = case.load()
    _agree(case, module)
    needs = r"n >= 1 is needed by node 'q' \(Div\): .* Here n, dimension 0 of input 'x', is 0"
    with pytest.raises(ValueError, match=needs):
        module(torch.zeros(0, 4))


def test_a_branch_that_data_choose_checks_what_it_needs() -> None:
    module = onnx2nn.load(
        _model(
            """(float[n,4] x, bool c) => (float[a,b,d] y) <int64[3] target = {3, 2, 2}, int64[3] other = {-1, 2, 2}> {
                y = If (c) <
                    then_branch = t () => (float[a,b,d] v) { v = Reshape(x, target) },
                    else_branch = e () => (float[a,b,d] w) { w = Reshape(x, other) }
                >
            }"""
        )
    )
    (guard,) = module.meta["onnx2nn"]["guards"]
    assert (guard["condition"], guard["node"], guard["at_entry"]) == ("n == 3", "v", False)
    (x,) = _inputs([(5, 4)])
    assert torch.equal(module(x, torch.tensor(False)), x.reshape(5, 2, 2))
    assert torch.equal(module(x[:3], torch.tensor(True)), x[:3].reshape(3, 2, 2))
    with pytest.raises(ValueError, match=r"n == 3 is needed by node 'v' .* n, dimension 0 of input 'x', is 5\."):
        module(x, torch.tensor(True))


def test_a_body_checks_what_it_needs() -> None:
    module = onnx2nn.load(
        _model(
            """(float[t,n] x) => (float[t,a,b] y) <int64[2] target = {2, 3}> {
                y = Scan <num_scan_inputs = 1, body = s (float[n] v) => (float[a,b] w) { w = Reshape(v, target) }> (x)
            }"""
        )
    )
    (guard,) = module.meta["onnx2nn"]["guards"]
    assert (guard["condition"], guard["node"], guard["at_entry"]) == ("n == 6", "w", False)
    (x,) = _inputs([(4, 6)])
    assert torch.equal(module(x), x.reshape(4, 2, 3))
    with pytest.raises(ValueError, match=r"n == 6 is needed by node 'w' .* n, dimension 1 of input 'x', is 5\."):
        module(x[:, :5])


PAIRS = "(float[n] x) => (int64[a,b] y) <int64[2] target = {-1, 2}> { p = NonZero(x)  y = Reshape(p, target) }"


def test_a_condition_on_sizes_that_data_decide() -> None:
    model = _model(PAIRS)
    module = onnx2nn.load(model)
    (guard,) = module.meta["onnx2nn"]["guards"]
    assert guard["dimensions"] == {"u0": None} and guard["at_entry"] is False
    (text,) = onnx2nn.check(model).guards
    assert text.startswith("u0 % 2 == 0 (u0: data decide it): ") and "node 'y' (Reshape)" in text
    x = torch.tensor([1.0, 0.0, 2.0, 3.0, 4.0])
    assert module(x).tolist() == [[0, 2], [3, 4]]
    with pytest.raises(ValueError, match=r"u0 % 2 == 0 .* Here u0, which NonZero 'p' computes of 'x', is 3\."):
        module(x[:4])
    program = torch.export.export(module, (x,), dynamic_shapes=({0: torch.export.Dim.AUTO},)).module()
    assert program(x).tolist() == [[0, 2], [3, 4]]
    with pytest.raises(RuntimeError):
        program(x[:4])


def test_names_with_braces_are_no_formats() -> None:
    model = _model(PAIRS)
    model.graph.input[0].name = model.graph.node[0].input[0] = "{0.__class__} {x}"
    model.graph.node[0].name = "{p}"
    module = onnx2nn.load(model)
    with pytest.raises(ValueError, match=r"Here u0, which NonZero '{p}' computes of '[^']*', is 3\."):
        module(torch.ones(3))
    fixed = _model("(float[n] x) => (float[a,b] y) <int64[2] target = {-1, 2}> { y = Reshape(x, target) }")
    fixed.graph.input[0].name = fixed.graph.node[0].input[0] = "{x}"
    with pytest.raises(ValueError, match=r"of input '{x}', is 3\."):
        onnx2nn.load(fixed)(torch.ones(3))


def test_an_equation_may_hold_by_cases_of_a_size_that_data_decide() -> None:
    """Without elements the target's 0 copies a 2, and both sides are empty: the common factor may not be taken out."""
    text = """(float[n] x) => (int64[a,b] y) <int64[1] two = {2}> {
        p = NonZero(x)  u = Shape <start = 1> (p)  wide = Concat <axis = 0> (u, two, u)  e = Expand(p, wide)
        double = Mul(u, two)  target = Concat <axis = 0> (double, u)  y = Reshape(e, target)
    }"""
    model = _model(text)
    module = onnx2nn.load(model)
    assert module.meta["onnx2nn"]["guards"] == []
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for count in (0, 1, 3):
        x = torch.tensor([1.0] * count + [0.0] * 2)
        (expected,) = session.run(None, {"x": x.numpy()})
        assert module(x).tolist() == expected.tolist() and list(module(x).shape) == list(expected.shape)


def test_two_sizes_that_data_decide_have_two_names() -> None:
    """An equation of two of them holds where the common factor is 0: it stays part of the condition."""
    text = """(float[n] x, float[m] w) => (int64[a,b] y) <int64[1] two = {2}> {
        p = NonZero(x)  u = Shape <start = 1> (p)  q = NonZero(w)  v = Shape <start = 1> (q)
        wide = Concat <axis = 0> (v, two, u)  e = Expand(p, wide)
        double = Mul(v, two)  target = Concat <axis = 0> (double, u)  y = Reshape(e, target)
    }"""
    model = _model(text)
    module = onnx2nn.load(model)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    refused = 0
    for first, second in ((3, 2), (2, 0), (0, 0), (0, 2)):
        x, w = (torch.tensor([1.0] * count + [0.0]) for count in (first, second))
        try:
            (expected,) = session.run(None, {"x": x.numpy(), "w": w.numpy()})
        except (Fail, RuntimeException):  # the latter from ONNX Runtime before 1.27
            refused += 1
            with pytest.raises(ValueError, match=r"Here u0, which .* of 'x', is 0, u1, which .* of 'w', is 2\."):
                module(x, w)
        else:
            assert list(module(x, w).shape) == list(expected.shape)
    assert refused == 1
    (guard,) = module.meta["onnx2nn"]["guards"]
    assert len(guard["dimensions"]) == 2


def test_sizes_that_data_decide_have_bounds() -> None:
    """Of 12 elements at most 12 are not zero: no other branch is imported, and nothing is guarded."""
    module = onnx2nn.load(
        _model(
            """(float[12] x) => (float[] y) <int64[1] one = {1}, int64[1] most = {12}, int64[1] first = {0}> {
                p = NonZero(x)  s = Shape(p)  c = Gather(s, one)  few = LessOrEqual(c, most)  t = Squeeze(few, first)
                q = Squeeze(p, first)  g = Gather(x, q)
                y = If (t) <
                    then_branch = v () => (float[k] a) { a = Identity(g) },
                    else_branch = w () => (float[a,b] b) { b = Unsqueeze(g, first) }
                >
            }"""
        )
    )
    assert module.meta["onnx2nn"]["guards"] == []
    assert not any(isinstance(child, onnx2nn.control_flow.If) for child in module.modules())
    x = torch.arange(12.0)
    assert torch.equal(module(x), x[1:])


def test_the_smaller_of_a_number_that_data_decide_and_its_bound_is_the_number() -> None:
    module = onnx2nn.load(
        _model(
            """(float[n] x) => (int64[k] y) {
                p = NonZero(x)  s = Shape <start = 1, end = 2> (p)  t = Shape(x)  y = Min(s, t)
            }"""
        )
    )
    assert functional.onnx2nn__SizeMin not in {node.target for node in module.graph.nodes}
    assert module(torch.tensor([0.0, 1, 2])).tolist() == [2]


def test_a_condition_is_printed_as_code() -> None:
    n = of_symbol(Symbol("n"))
    assert repr(equal((n + 3) // 4 * 2, 6)) == "(n + 3) // 4 == 3"


LAYERS = """(float[n,3,h,w] x) => (float[n,6] y)
<float[6,3,3,3] k = {KERNEL}, int64[3] rows = {0, 6, -1}, int64[1] last = {2}> {
    c = Conv <pads = [1, 1, 1, 1]> (x, k)  r = Relu(c)  p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)
    f = Reshape(p, rows)  m = ReduceMean <keepdims = 0> (f, last)  g = Gelu(m)  s = Sigmoid(g)  t = Add(s, m)
    y = Softmax(t)
}""".replace("KERNEL", ", ".join(["0.1"] * 162))

FIXED = """(float[1,3,8,8] x) => (float[1,1,6] y)
<float[6,3,3,3] k = {KERNEL}, int64[3] rows = {1, 6, 16}, int64[3] once = {1, 1, 6}, int64[1] last = {2}> {
    c = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (x, k)  r = Reshape(c, rows)
    m = ReduceMean <keepdims = 0> (r, last)  g = Gelu(m)  y = Reshape(g, once)
}""".replace("KERNEL", ", ".join(["0.1"] * 162))


def _dynamically_quantised(folder: Path) -> onnx.ModelProto:
    """A MatMul of which ONNX Runtime's quantiser makes DynamicQuantizeLinear and MatMulInteger."""
    onnx.save(_model("(float[n,4] x) => (float[n,4] y) { y = MatMul(x, W) }"), folder / "float.onnx")
    quantize_dynamic(folder / "float.onnx", folder / "quantised.onnx")
    return onnx.load(folder / "quantised.onnx")


def _convolved_constants(_: Path) -> onnx.ModelProto:
    """A convolution and a sum of large constants, as the folding of quantised weights makes them."""
    model = _model(
        """(float[n] x) => (float[a,b,c,d] y) {
            wide = DequantizeLinear<axis = 0>(w, steps)  narrow = Conv(wide, kernel)  sum = Add(wide, row)
            one = ReduceMean<keepdims = 1>(narrow)  other = ReduceMean<keepdims = 1>(sum)  both = Add(one, other)
            y = Add(x, both)
        }"""
    )
    random = np.random.default_rng(0)
    arrays = {
        "w": random.integers(-9, 9, (64, 8, 32, 32)).astype(np.int8),
        "steps": np.ones(64, np.float32),
        "kernel": np.ones((8, 8, 3, 3), np.float32),
        "row": np.ones(32, np.float32),
    }
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    return model


_UNSYMBOLIC = {
    "divisible": (CASES["divisible"].graph, ""),
    "in one branch": (CASES["in one branch"].graph, ""),
    "layers": (LAYERS, ""),
    "pairs": (PAIRS, ""),
    "dynamically quantised": (_dynamically_quantised, ""),
    "convolved constants": (_convolved_constants, ""),
    "freed by constants": (FIXED, "dynamic={'x': {0: 'n', 2: 'h'}}"),
    "large constants": (lambda _: onnx.load(ROOT / "examples" / "digits" / "digits.onnx"), ""),
}


@functools.cache
def _modules_of(code: str, folder: Path) -> frozenset[str]:
    """Returns the names of all modules that a process has imported after torch, onnx and the code."""
    listing = f"import torch, torch.fx, torch.nn, onnx, sys; {code}; print(sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", listing],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return frozenset(re.findall(r"'([\w.]+)'", done.stdout))


@pytest.mark.parametrize(("graph", "wanted"), _UNSYMBOLIC.values(), ids=_UNSYMBOLIC)
def test_load_imports_nothing_more_of_torch(
    graph: str | Callable[[Path], onnx.ModelProto], wanted: str, tmp_path: Path
) -> None:
    """Nothing but what the imports of torch and onnx bring in themselves, and no sympy: the first load is not slow."""
    onnx.save(_model(graph) if isinstance(graph, str) else graph(tmp_path), tmp_path / "model.onnx")
    way = "constants" if wanted else "none"
    loading = (
        f"import onnx2nn; module = onnx2nn.load('model.onnx', {wanted}); "
        f"assert module.meta['onnx2nn'].get('thawed', {{'way': 'none'}})['way'] == {way!r}"
    )
    more = _modules_of(loading, tmp_path) - _modules_of("0", ROOT)
    assert "onnx2nn.fx.values.guards" in more
    assert "onnx_ir" in more
    assert sorted(name for name in more if name.startswith(("sympy", "mpmath", "torch."))) == []


def test_load_draws_no_random_numbers() -> None:
    """Shapes of random functions are inferred without the generator, whose state is the caller's."""
    model = _model(
        """(float[n,4] x) => (float[n,4] y, float[n,4] z) <float ratio = {0.5}, bool training = {1}> {
            y, mask = Dropout(x, ratio, training)  z = RandomUniformLike(x)
        }"""
    )
    before = torch.get_rng_state()
    onnx2nn.load(model)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("size", "quotient"), [((7, 3), -3), ((7, 7), 3), ((6, 3), -3), ((0, 2), 0)])
def test_a_truncated_quotient_by_a_size_of_any_sign_is_checked(size: tuple[int, int], quotient: int) -> None:
    """`n / (m - 5)`, rounded towards zero."""
    n, m = of_symbol(Symbol("n")), of_symbol(Symbol("m"))
    for wanted in (quotient, quotient - 1):
        tracer = Tracer()
        x = tracer.placeholder("x", Spec((n, m), torch.float32))
        assert isinstance(x, Tensor)
        for axis, name in enumerate("nm"):
            tracer.guards.declare(x, ("x", axis), name, None)
        tracer.guards.demand(equal(truncated_divide(n, subtract(m, 5)), wanted), "the test asks for it")
        module = tracer.finish(x)
        if wanted == quotient:
            assert module(torch.zeros(size)).shape == size
        else:
            with pytest.raises(ValueError, match="the test asks for it"):
                module(torch.zeros(size))


def test_a_bound_that_leaves_one_size_is_a_guard() -> None:
    """An index that only an empty input makes valid: no equation says so, and the fact that n is 0 has a guard."""
    model = parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 18]> one_size (float[n] x) => (int64[] y)
        <int64 zero = {0}, int64 one = {1}, int64 down = {-1}> {
            shape = Shape(x)  n = Gather(shape, zero)  range = Range(one, n, down)
            length = Shape(range)  count = Gather(length, zero)  last = Sub(count, one)
            bounded = Max(n, zero)  index = Min(bounded, last)  y = Gather(range, index)
        }"""
    )
    with pytest.warns(UserWarning, match="n is 0"):
        module = onnx2nn.load(model)
    assert [guard["condition"] for guard in module.meta["onnx2nn"]["guards"]] == ["n == 0"]
    assert module(torch.zeros(0)).item() == 1
    with pytest.raises(ValueError, match="n == 0"):
        module(torch.zeros(3))


def test_a_node_that_fits_for_no_sizes_leaves_no_fact() -> None:
    """The product needs 3, and its zero point 1 or 2: the first is a condition, of the second nothing is left."""
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 10]> g (uint8[n] a, uint8[3, 2] b) => (int32[k] y)
        <uint8[1] zero = {5}> { y = MatMulInteger(a, b, zero, a) }"""
    )
    module = onnx2nn.load(model)
    assert [guard["condition"] for guard in module.meta["onnx2nn"]["guards"]] == ["n == 3"]
    with pytest.raises(ValueError, match="n == 3 is needed"):
        module(torch.ones(2, dtype=torch.uint8), torch.ones(3, 2, dtype=torch.uint8))


STREAM = """(float[batch, n] x, float[2, b, 4] state, bool[] fast) => (float[batch, 5] y)
<int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2},
 float[1, 1, 4] w = {1, 2, 3, 4}, float[1, 1, 3] v = {3, 2, 1}> {
    y = If(fast) <
        then_branch = fast_one () => (float[batch, 5] y1) {
            p = Unsqueeze(x, one)
            a = Conv<strides = [4]>(p, w)
            c = Squeeze(a, two)
            h = Gather<axis = 0>(state, zero)
            s = Squeeze(h, zero)
            y1 = Concat<axis = 1>(s, c)
        },
        else_branch = slow_one () => (float[batch, 5] y2) {
            p = Unsqueeze(x, one)
            a = Conv<strides = [4]>(p, v)
            c = Squeeze(a, two)
            h = Gather<axis = 0>(state, one)
            s = Squeeze(h, zero)
            y2 = Concat<axis = 1>(s, c)
        }
    >
}"""
"""As voice detectors are written: both branches need one batch, and each its own lengths."""


@pytest.mark.slow
def test_what_both_branches_need_is_checked_first() -> None:
    model = _model(STREAM)
    module = onnx2nn.load(model)
    guards = {guard["condition"]: guard["at_entry"] for guard in module.meta["onnx2nn"]["guards"]}
    assert [condition for condition, first in guards.items() if first] == ["batch == b"]
    assert module.meta["onnx2nn"]["sizes"], "sizes that both branches take"
    session = onnxruntime.InferenceSession(model.SerializeToString())
    dims = torch.export.Dim.DYNAMIC
    example = (torch.zeros(2, 5), torch.zeros(2, 2, 4), torch.tensor(True))
    shapes = ({0: dims, 1: dims}, {1: dims}, {})
    programs = [torch.export.export(module, example, dynamic_shapes=shapes, strict=strict) for strict in (False, True)]
    for fast, sizes in ((True, (4, 5, 7)), (False, (3, 5, 6))):
        for size in sizes:
            x, state = torch.rand(3, size), torch.rand(2, 3, 4)
            feeds = {"x": x.numpy(), "state": state.numpy(), "fast": np.array(fast)}
            (expected,) = session.run(None, feeds)
            torch.testing.assert_close(module(x, state, torch.tensor(fast)), torch.from_numpy(expected))
            for program in programs if size == 5 else ():
                found = program.module()(x, state, torch.tensor(fast))
                torch.testing.assert_close(found, torch.from_numpy(expected))
    with pytest.raises(ValueError, match="batch"):
        module(torch.rand(3, 5), torch.rand(2, 2, 4), torch.tensor(True))


class Windows(nn.Module):
    """Windows of 4 by 4 pixels, as Swin's, which are put together again, twice."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            b, h, w, c = x.shape
            y = x.view(b, h // 4, 4, w // 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, c)
            y = torch.relu(y - y.mean(1, keepdim=True))
            x = y.view(b, h // 4, w // 4, 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
        return x


def test_sizes_that_may_be_zero_do_not_multiply() -> None:
    """Each Reshape says that a size of 0 copies a dimension; as choices, these were in each other from node to node."""
    file = io.BytesIO()
    axes = {"x": {0: "b", 1: "h", 2: "w"}}
    x = torch.randn(2, 8, 12, 5)
    torch.onnx.export(Windows(), (x,), file, dynamo=False, input_names=["x"], dynamic_axes=axes)
    module = onnx2nn.load(file.getvalue())
    for sizes in ((2, 8, 12), (1, 4, 4), (3, 16, 8)):
        x = torch.randn(*sizes, 5)
        torch.testing.assert_close(module(x), Windows()(x))
    for sizes in ((1, 6, 8), (1, 3, 4), (2, 4, 7)):
        with pytest.raises(ValueError, match="needed by node"):
            module(torch.randn(*sizes, 5))
    assert module.code.count("SizeIf") <= 1, "of the batch, which may be empty"
    conditions = {guard["condition"] for guard in module.meta["onnx2nn"]["guards"]}
    assert conditions == {"h >= 4", "w >= 4", "h * w == 16 * (h // 4) * (w // 4)"}, "those of the first block"


class Codes(nn.Module):
    """The code of each step, and what is left of the step without it, as in a residual quantiser."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            b, n, c = x.shape
            x = x - x.reshape(b * n, c).argmax(1).reshape(b, -1).unsqueeze(2)
        return x


def test_a_product_of_sizes_that_may_be_zero_is_what_it_is_behind_its_check() -> None:
    """A Reshape to `b * n` rows copies `b` where that is 0: the choice was in all sizes behind it, and in no export."""
    file = io.BytesIO()
    x = torch.randn(2, 3, 6)
    axes = {"x": {0: "b", 1: "n"}}
    torch.onnx.export(Codes(), (x,), file, dynamo=False, input_names=["x"], dynamic_axes=axes)
    module = onnx2nn.load(file.getvalue())
    assert [guard["condition"] for guard in module.meta["onnx2nn"]["guards"]] == ["b * n != 0 or b == 0"]
    assert "SizeIf" not in module.code
    program = torch.export.export(module, (x,), dynamic_shapes=({0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO},))
    for sizes in ((2, 3), (1, 4), (3, 1)):
        x = torch.randn(*sizes, 6)
        torch.testing.assert_close(module(x), Codes()(x))
        torch.testing.assert_close(program.module()(x), module(x))
    session = onnxruntime.InferenceSession(file.getvalue())
    with pytest.raises(Fail):
        session.run(None, {"x": np.zeros((2, 0, 6), np.float32)})
    with pytest.raises(ValueError, match="needed by node"):
        module(torch.randn(2, 0, 6))


def test_a_product_of_sizes_behind_a_batch_is_what_it_is_behind_its_check() -> None:
    """As in relative positions: `s * t` is 0, and copies `s`, where `s` is 0; where `t` is, there is no such shape."""
    model = _model(
        """(float[b,s,t] x) => (float[b,n] y) <int64[1] one = {1}, int64[1] two = {2}, int64[1] three = {3},
        int64[1] zero = {0}> {
        shape = Shape(x)  b = Slice(shape, zero, one)  s = Slice(shape, one, two)  t = Slice(shape, two, three)
        n = Mul(s, t)  target = Concat <axis = 0> (b, n)  y = Reshape(x, target) }"""
    )
    module = onnx2nn.load(model)
    assert [guard["condition"] for guard in module.meta["onnx2nn"]["guards"]] == ["s * t != 0 or s == 0"]
    assert "SizeIf" not in module.code
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for sizes in ((2, 3, 4), (1, 1, 1), (2, 0, 5), (0, 2, 3)):
        x = np.random.default_rng(0).standard_normal(sizes).astype(np.float32)
        (expected,) = session.run(None, {"x": x})
        np.testing.assert_array_equal(module(torch.from_numpy(x)).numpy(), expected)
    with pytest.raises(Fail):
        session.run(None, {"x": np.zeros((2, 3, 0), np.float32)})
    with pytest.raises(ValueError, match="needed by node 'y'"):
        module(torch.zeros(2, 3, 0))


CHUNKS = """(float[b,n,6] x) => (float[c,d,e,f] y) <int64[1] one = {1}, int64[1] two = {2}, int64[1] four = {4},
    int64[2] rest = {4, 6}> {
    s = Shape(x)  b = Slice(s, zero, one)  n = Slice(s, one, two)  k = Div(n, four)
    target = Concat <axis = 0> (b, k, rest)  y = Reshape(x, target) }"""


def test_a_size_that_is_zero_only_where_the_copied_dimension_is() -> None:
    """Chunks of four, as Mamba 2's: a Reshape's 0 would copy `n`, which is four times too much unless n is 0."""
    model = _model(CHUNKS.replace("int64[1] one", "int64[1] zero = {0}, int64[1] one"))
    module = onnx2nn.load(model)
    assert [guard["condition"] for guard in module.meta["onnx2nn"]["guards"]] == ["n % 4 == 0"]
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for n in (8, 4, 0, 12):
        x = np.random.default_rng(n).standard_normal((2, n, 6)).astype(np.float32)
        (expected,) = session.run(None, {"x": x})
        np.testing.assert_array_equal(module(torch.from_numpy(x)).numpy(), expected)
    for n in (3, 6):
        with pytest.raises(ValueError, match="n % 4 == 0 is needed by node 'y'"):
            module(torch.randn(2, n, 6))
    assert "SizeIf" not in module.code


def test_a_zero_of_the_file_beside_sizes_that_may_be_zero() -> None:
    """It copies its dimension, where the sizes beside it are required not to be 0."""
    model = _model(
        """(float[b,n,m] x) => (float[c,d,e,f] y) <int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2},
        int64[1] three = {3}, int64[1] six = {6}> {
        s = Shape(x)  n = Slice(s, one, two)  m = Slice(s, two, three)  k = Div(n, two)  l = Div(m, three)
        target = Concat <axis = 0> (zero, k, l, six)  y = Reshape(x, target) }"""
    )
    module = onnx2nn.load(model)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for sizes in ((2, 4, 6), (3, 2, 9)):
        x = np.random.default_rng(0).standard_normal(sizes).astype(np.float32)
        (expected,) = session.run(None, {"x": x})
        np.testing.assert_array_equal(module(torch.from_numpy(x)).numpy(), expected)


def test_a_size_that_follows_from_a_check_of_a_call_has_no_guard() -> None:
    """The mask of an attention has N rows, so that there are as many queries; a Reshape behind it fixes N."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 13]>
        agraph (float[2,A,B,C] q, float[N,N,N,3] keys, float[N,3] mask, float[2,N,3,2] values)
            => (float[D,E,F,G] y, float[H] z) <int64[1] six = {6}> {
            scores = MatMul (q, keys) masked = Add (scores, mask) weights = Softmax (masked)
            y = MatMul (weights, values) z = Reshape (mask, six)
        }""")
    inputs = [torch.randn(shape) for shape in ((2, 2, 2, 2), (2, 2, 2, 3), (2, 3), (2, 2, 3, 2))]
    y, z = onnx2nn.load(model)(*inputs)
    q, keys, mask, values = inputs
    torch.testing.assert_close(y, torch.softmax(q @ keys + mask, -1) @ values)
    assert z.tolist() == mask.flatten().tolist()


@pytest.mark.parametrize(
    "nodes",
    [
        "y = own.Places (x)",
        """w = If (chosen) <
            then_branch = t () => (int64[1, 2] u) { u = Constant <value = int64[1, 2] {0, 1}> () },
            else_branch = e () => (int64[1, p] v) { s = Shape (x)  v = NonZero (s) }
        >
        y = Shape (w)""",
        """w = Loop (trips, "") <body = b (int64 i, bool c) => (bool d, int64[1, p] v) {
            d = Identity (c)
            s = Shape (x)
            v = NonZero (s)
        }>
        y = Shape (w)""",
    ],
    ids=["function", "If", "Loop"],
)
def test_what_is_checked_inside_of_a_call_is_checked_where_nothing_else_of_the_call_is_left(nodes: str) -> None:
    """The results of the function, and the shapes of the others, are numbers in the module."""
    model = parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17, "own": 1]>
        g (float[3, n] x, bool chosen, int64 trips) => (int64[a, b] z) <int64[2] rows = {{1, -1}}> {{
            {nodes}
            z = Reshape (y, rows)
        }}
        <domain: "own", opset_import: ["": 17]> Places (a) => (c) {{ s = Shape (a)  c = NonZero (s) }}""")
    module = onnx2nn.load(model)
    others = (torch.tensor(False), torch.tensor(2))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    given = {"x": np.zeros((3, 2), np.float32), "chosen": np.array(False), "trips": np.array(2)}
    (expected,) = session.run(None, {value.name: given[value.name] for value in session.get_inputs()})
    np.testing.assert_array_equal(module(torch.zeros(3, 2), *others).numpy(), expected)
    with pytest.raises(ValueError, match=r"n != 0 is needed by node '\w+' \(NonZero\)"):
        module(torch.zeros(3, 0), *others)


@pytest.mark.parametrize(
    ("nodes", "imports"),
    [
        ("a = Concat <axis = 1> (x, y)  z = ReduceSum <keepdims = 1> (a, one)", 1),
        ("s = Add (x, y)  a = Concat <axis = 1> (x, y)  z = Sub (s, y)", 2),  # which one is broadcast was asked before
        ("a = Concat <axis = 1> (x, x)  z = Relu (a)", 1),
    ],
)
def test_a_file_is_imported_again_only_where_what_is_found_late_may_matter(
    monkeypatch: pytest.MonkeyPatch, nodes: str, imports: int
) -> None:
    """The other import comes to the same program where nothing was asked of the sizes before they were equal."""
    model = parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17]>
        net (float[n, 4] x, float[m, 4] y) => (float[k, p] z) <int64[1] one = {{1}}> {{ {nodes} }}
    """)
    runs, run = [], Attempt.run
    monkeypatch.setattr(Attempt, "run", lambda attempt: runs.append(run(attempt)))
    module = onnx2nn.load(model)
    assert len(runs) == imports
    monkeypatch.setattr(Attempt, "was_late", lambda *_: True)
    again = onnx2nn.load(model)
    assert module.code == again.code
    found, other = module.meta["onnx2nn"], again.meta["onnx2nn"]
    assert (found["guards"], found["fixed"], found["declared"]) == (other["guards"], other["fixed"], other["declared"])
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for rows in (1, 3):
        given = {name: np.random.default_rng(0).standard_normal((rows, 4)).astype(np.float32) for name in "xy"}
        (expected,) = session.run(None, given)
        np.testing.assert_allclose(module(*map(torch.from_numpy, given.values())).numpy(), expected, rtol=1e-6)


def test_what_a_u_net_crops_has_the_size_that_it_is_cropped_to() -> None:
    """Half of a half, rounded up both times, is doubled and cropped to the first half, which it is no less than.

    The sum had a size of its own, and a Reshape that keeps the last dimension a check, on which torch.export failed.
    """
    model = _model("""(float[n, 1, t] x) => (float[n, m, h] y)
        <int64[1] zero = {0}, int64[1] two = {2}, int64[1] rest = {-1}, float[3] scales = {1, 1, 2}> {
            half = AveragePool<kernel_shape = [3], pads = [1, 1], strides = [2], count_include_pad = 1>(x)
            quarter = AveragePool<kernel_shape = [3], pads = [1, 1], strides = [2], count_include_pad = 1>(half)
            twice = Resize<mode = "nearest">(quarter, , scales)
            size = Shape<start = 2>(half)
            cropped = Slice(twice, zero, size, two)
            sum = Add(half, cropped)
            count = Shape<end = 1>(x)
            target = Concat<axis = 0>(count, rest, size)
            y = Reshape(sum, target)
        }""")
    module = onnx2nn.load(model)
    assert not module.meta["onnx2nn"]["guards"] and "Size" not in module.code, module.code
    for length in (1, 2, 3, 6, 9):
        assert onnx2nn.verify(model, module, inputs={"x": np.ones((2, 1, length), np.float32)}).ok, length
