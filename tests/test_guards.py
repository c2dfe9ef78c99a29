"""Guards: what an imported module relies on and is not proven is checked at its entry, wherever the module goes."""

from __future__ import annotations

import importlib.util
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest
import torch

import onnx2nn
from onnx2nn import functional
from onnx2nn.sizes.conditions import equal
from onnx2nn.sizes.expression import Symbol, of_symbol

HEAD = '<ir_version: 8, opset_import: ["" : 18]>\n'

MODELS = {
    # A Reshape holds the batch of the example.
    "fixed": (
        """agraph (float[n,4] x) => (float[3,2,2] y) <int64[3] target = {3, 2, 2}> {
            r = Relu(x) y = Reshape(r, target) }""",
        [(3, 4)],
        (5, 4),
        ["n == 3", "Reshape", "dimension 0 of input 'x'", "is 5"],
    ),
    # Pooling leaves one row, which is squeezed away.
    "range": (
        """agraph (float[1,2,h,8] x) => (float[1,2,w] y) <int64[1] axis = {2}> {
            p = MaxPool<kernel_shape = [8, 1], strides = [8, 1]>(x) y = Squeeze(p, axis) }""",
        [(1, 2, 8, 8), (1, 2, 15, 8)],
        (1, 2, 16, 8),
        ["h >= 8 and h <= 15", "Squeeze", "dimension 2 of input 'x'", "is 16"],
    ),
    # Rows of ten: their number of elements must be a multiple of it.
    "multiple": (
        """agraph (float[time,bands] x) => (float[k,10] y) <int64[2] flat = {-1, 10}> {
            r = Relu(x) y = Reshape(r, flat) }""",
        [(5, 4), (2, 15)],
        (3, 7),
        ["time * bands % 10 == 0", "Reshape", "dimension 1 of input 'x'", "is 7"],
    ),
    # Branches of different ranks: the program's structure depends on the choice.
    "choice": (
        """agraph (float[n,1,4] x) => (float[a] y) <int64 one = {1}, int64[1] axes = {0}> {
            s = Shape<start = 0, end = 1>(x) c = Squeeze(s) e = Equal(c, one)
            y = If(e) <then_branch = t () => (float[p,q] z) { z = Squeeze(x, axes) },
                       else_branch = f () => (float[p,q,r] w) { w = Relu(x) }> }""",
        [(3, 1, 4), (2, 1, 4)],
        (1, 1, 4),
        ["n != 1", "If", "dimension 0 of input 'x'", "is 1"],
    ),
}


def _model(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(HEAD + text)


def _load(text: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return onnx2nn.load(_model(text))


def _written(folder: Path) -> Any:
    """Loads what to_python has written."""
    spec = importlib.util.spec_from_file_location("guarded", folder / "model.py")
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules["guarded"] = loaded  # where dataclasses look for it
    spec.loader.exec_module(loaded)
    return loaded.load_model()


def _refuses(run: Callable[..., Any], inputs: tuple[torch.Tensor, ...], words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:
        run(*inputs)
    missing = [word for word in words if word not in str(caught.value)]
    assert not missing, f"{missing} in {caught.value}"


@pytest.mark.parametrize("name", MODELS)
def test_a_refusal_names_input_condition_and_node_before_anything_runs(name: str) -> None:
    text, sizes, other, words = MODELS[name]
    module = _load(text)
    for size in sizes:
        module(torch.randn(size))
    with torch.profiler.profile() as profile:
        _refuses(module, (torch.randn(other),), words)
    ran = {event.key for event in profile.key_averages()} & {"aten::relu", "aten::max_pool2d", "aten::reshape"}
    assert not ran


@pytest.mark.parametrize("name", MODELS)
def test_they_are_listed(name: str) -> None:
    text, _, _, words = MODELS[name]
    module = _load(text)
    (guard,) = module.meta["onnx2nn"]["guards"]
    assert guard["condition"] == words[0]
    assert guard["operator"] == words[1]
    assert all(place[0] == "x" for place in guard["dimensions"].values())
    (line,) = onnx2nn.check(_model(text)).guards
    assert all(word in line for word in words[:2])
    assert words[0] in str(onnx2nn.check(_model(text)))
    for sizes in module.meta["onnx2nn"]["sizes"]:  # samples that the guards let pass
        dims = module.meta["onnx2nn"]["signature"][0]["shape"]
        module(torch.zeros([sizes.get(dim, dim) for dim in dims]))


@pytest.mark.parametrize("name", MODELS)
def test_they_travel(name: str, tmp_path: Path) -> None:
    """As a pickle, and as the source that to_python writes."""
    text, sizes, other, words = MODELS[name]
    module = _load(text)
    _refuses(pickle.loads(pickle.dumps(module)), (torch.randn(other),), words)
    folder = tmp_path / "written"
    onnx2nn.to_python(module, folder)
    written = _written(folder)
    _refuses(written, (torch.randn(other),), words)
    for size in sizes:
        x = torch.randn(size)
        assert torch.equal(pickle.loads(pickle.dumps(module))(x), module(x))
        assert torch.equal(written(x), module(x))


@pytest.mark.parametrize("name", MODELS)
def test_export_and_compilation_hold_them(name: str) -> None:
    text, sizes, other, _ = MODELS[name]
    module = _load(text)
    dims = module.meta["onnx2nn"]["signature"][0]["shape"]
    auto = tuple(torch.export.Dim.AUTO if isinstance(dim, str) else None for dim in dims)
    program = torch.export.export(module, (torch.randn(sizes[0]),), dynamic_shapes=(auto,), strict=False).module()
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend="eager")
    x = torch.randn(sizes[0])
    assert torch.equal(program(x), module(x))
    for size in sizes:
        x = torch.randn(size)
        assert torch.equal(compiled(x), module(x))
    # torch.export takes a dynamic size for 2 or more, and holds no condition that only 0 and 1 do not fulfil.
    for run in (compiled,) if name == "choice" else (program, compiled):
        with pytest.raises(Exception, match=r".+"):  # of any class: torch's own checks of sizes
            run(torch.randn(other))


def test_one_warning_names_the_dimensions_that_a_file_fixes() -> None:
    with pytest.warns(UserWarning, match=r"n is 3\b") as found:
        onnx2nn.load(_model(MODELS["fixed"][0]))
    assert len(found) == 1
    with pytest.warns(UserWarning, match="h is 8 to 15"):
        onnx2nn.load(_model(MODELS["range"][0]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        onnx2nn.load(_model(MODELS["multiple"][0]))


def test_both_branches_of_an_if_on_sizes_are_kept() -> None:
    text = """agraph (float[n,4] x) => (float[n,4] y) <int64 three = {3}> {
        s = Shape<start = 0, end = 1>(x) c = Squeeze(s) e = Less(c, three)
        y = If(e) <then_branch = t () => (float[p,q] z) { z = Neg(x) },
                   else_branch = f () => (float[p,q] w) { w = Relu(x) }> }"""
    module = _load(text)
    assert module.meta["onnx2nn"]["guards"] == []
    for size in (0, 1, 2, 3, 17):
        x = torch.randn(size, 4)
        assert torch.equal(module(x), -x if size < 3 else x.relu())


def test_dimensions_of_one_name_are_equal() -> None:
    module = _load("agraph (float[n,4] x, float[n,4] z) => (float[n,4] y) { y = Add(x, z) }")
    module(torch.ones(3, 4), torch.ones(3, 4))
    _refuses(module, (torch.ones(3, 4), torch.ones(1, 4)), ["n == z.shape[0]", "dimension 0 of input 'z'"])


def test_floats_on_the_way_limit_sizes() -> None:
    """floor(0.5 * n) in float32 is n // 2 up to 2 ** 24; export holds no limit that only huge sizes exceed."""
    module = _load("""agraph (float[n] x) => (float[k] y) <float half = {0.5}, int64[1] zero = {0}> {
        s = Shape(x) f = Cast<to = 1>(s) h = Mul(f, half) g = Floor(h) i = Cast<to = 7>(g)
        y = Slice(x, zero, i, zero) }""")
    assert module(torch.ones(7)).shape == (3,)
    with pytest.raises(ValueError, match=r"n <= 16777215 is needed"):
        module(torch.empty(1 << 24))
    auto = ((torch.export.Dim.AUTO,),)
    program = torch.export.export(module, (torch.ones(7),), dynamic_shapes=auto, strict=False)
    assert not any("16777215" in str(range_) for range_ in program.range_constraints.values())
    assert program.module()(torch.ones(40)).shape == (20,)


def test_sizes_that_data_decide_have_bounds() -> None:
    """No more elements are found than there are: Min(found, n) is what was found."""
    module = _load("""agraph (float[n] x) => (int64[k] y) {
        p = NonZero(x) s = Shape<start = 1, end = 2>(p) t = Shape(x) y = Min(s, t) }""")
    assert functional.onnx2nn__SizeMin not in {node.target for node in module.graph.nodes}
    assert module(torch.tensor([0.0, 1, 2])).tolist() == [2]


def test_a_trace_and_an_onnx_file_hold_no_conditions(tmp_path: Path) -> None:
    """What the documentation says of them: their own operators refuse, or nothing does."""
    module = _load(MODELS["multiple"][0])
    x = torch.randn(5, 4)
    traced = torch.jit.trace(module, (x,))
    assert torch.equal(traced(torch.ones(2, 15)), module(torch.ones(2, 15)))
    with pytest.raises(RuntimeError):
        traced(torch.ones(3, 7))
    assert "agrees" in onnx2nn.export_onnx(module, tmp_path / "again.onnx")


def test_load_imports_no_symbolic_machinery() -> None:
    code = (
        "import sys, torch, torch.fx, torch.nn, onnx_ir\n"  # onnx_ir has sympy
        "before = set(sys.modules)\n"
        "import onnx, onnx.parser, onnx2nn\n"
        f"text = {HEAD + MODELS['multiple'][0]!r}\n"
        "onnx2nn.load(onnx.parser.parse_model(text))\n"
        "new = set(sys.modules) - before\n"
        "print([m for m in new if m.startswith(('sympy', 'torch._dynamo', 'torch.fx.experimental.symbolic_shapes'))])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_a_condition_is_printed_as_code() -> None:
    n = of_symbol(Symbol("n"))
    assert repr(equal((n + 3) // 4 * 2, 6)) == "(n + 3) // 4 == 3"
