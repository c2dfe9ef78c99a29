"""Importing OneFlow, staying free of torch, working inside a graph, and serving every name the op table uses."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import numpy as np
import oneflow as flow
import pytest

import onnx2nn
from oneflow_bridge import namespace as F
from oneflow_bridge import runtime
from onnx2nn.errors import MissingDependencyError, OperatorError

BLOCK = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Blocked())
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


def test_torch_is_never_imported():
    assert "torch" not in sys.modules
    code = "from oneflow_bridge import namespace as F; print(F.nn.functional.relu(F.tensor([-1.0, 2.0])).tolist())"
    assert run(BLOCK.format(blocked=["torch"]) + code).stdout.endswith("[0.0, 2.0]\n")


def test_no_library_path_is_needed():
    """The CUDA libraries are found when the loader cannot find them by itself."""
    code = "from oneflow_bridge import runtime; runtime.preload_libraries(); print(open('/proc/self/maps').read())"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env={"PATH": "/usr/bin"}
    )
    for names in runtime.LIBRARIES.values():
        for name in names:
            assert name in done.stdout, done.stderr


@pytest.mark.parametrize("package", ["oneflow", "nvidia"])
def test_a_missing_package_names_the_pip_command(package, monkeypatch):
    find_spec = runtime.importlib.util.find_spec
    monkeypatch.setattr(runtime.importlib.util, "find_spec", lambda name: None if name == package else find_spec(name))
    monkeypatch.delitem(sys.modules, "oneflow")
    monkeypatch.setattr(
        runtime.ctypes, "CDLL", lambda path, mode: (_ for _ in ()).throw(OSError(f"{path}: cannot open"))
    )
    with pytest.raises(MissingDependencyError, match=r"pip install .*onnx2nn\[oneflow\]"):
        runtime.import_oneflow.__wrapped__()


def test_another_python_is_told_which_one_is_needed():
    with pytest.raises(MissingDependencyError, match=r"under Python 3\.10; this is Python 3\.11"):
        runtime._require_python((3, 11))


class Traced(flow.nn.Graph):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def build(self, *values):
        return F.unwrap(self.function(*F.wrap(values)))


INTEGERS = np.array([[7, -7, 3], [2, -1, 0]])
FLOATS = np.array([[1.5, -2.0, 3.0], [np.nan, -0.5, 0.0]], np.float32)
GRAPHS = {
    "floor division": (lambda x: x // 4, INTEGERS),
    "remainder": (lambda x: x % -3, INTEGERS),
    "tensor remainder": (lambda x: x % (x * x + 1), INTEGERS),
    "bits": (lambda x: (x & 6) | (x ^ 5), INTEGERS),
    "shifts": (lambda x: (x << 3) + (x >> 1), INTEGERS),
    "power": (lambda x: x ** (x * x), INTEGERS),
    "small integers": (lambda x: x.to(F.int8) * 50 + x.to(F.int8), INTEGERS),
    "missing type": (lambda x: (x.to(F.uint16) - 3).to(F.int64), INTEGERS),
    "matmul": (lambda x: x.to(F.int32) @ x.T.to(F.int32), INTEGERS),
    "negative step": (lambda x: x[::-1, ::-2], INTEGERS),
    "advanced index": (lambda x: x[[1, 0], [-1, 0]], INTEGERS),
    "gather": (lambda x: F.gather(x, 1, (x % 3)), INTEGERS),
    "scatter": (lambda x: F.scatter_reduce(x, 1, x % 3, x, "amax"), INTEGERS),
    "sort": (lambda x: F.sort(x, 1, descending=True).indices, FLOATS),
    "topk": (lambda x: F.topk(x, 2).values, FLOATS),
    "amax": (lambda x: F.amax(x, 1), FLOATS),
    "argmax": (lambda x: F.argmax(x, 1), FLOATS),
    "where": (lambda x: F.where(x > 0, x, 0.0), FLOATS),
    "maximum": (lambda x: F.maximum(x, x[:1]), FLOATS),
    "clamp": (lambda x: F.clamp(x, x[:1], 2.0), FLOATS),
    "half": (lambda x: F.softmax(x[:1].half(), 1), FLOATS),
    "pad": (lambda x: F.nn.functional.pad(x, (1, 2), mode="circular"), FLOATS),
    "resize": (lambda x: F.nn.functional.interpolate(x[None], scale_factor=1.7, mode="nearest-exact"), FLOATS),
    "resize linear": (lambda x: F.nn.functional.interpolate(x[None, None], (5, 4), mode="bilinear"), FLOATS),
    "layer norm": (lambda x: F.layer_norm(x[:1], (3,)), FLOATS),
    "pool": (lambda x: F.nn.functional.max_pool1d(x, 2, 2, ceil_mode=True), FLOATS[:1]),
    "average": (lambda x: F.nn.functional.avg_pool1d(x, 2, 2, ceil_mode=True), FLOATS[:1]),
    "einsum": (lambda x: F.einsum("ij,kj->ik", x[:1], x[:1]), FLOATS),
    "cummax": (lambda x: F.cummax(x[:1], 1).indices, FLOATS),
    "determinant": (lambda x: F.linalg.det(x[:1, :2].T @ x[:1, :2] + F.eye(2)), FLOATS),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_gives_what_eager_gives(name):
    function, array = GRAPHS[name]
    x = F.from_numpy(array)
    eager = function(x)
    traced = Traced(function)(x.value)
    np.testing.assert_allclose(traced.numpy(), F.unwrap(eager).numpy(), rtol=1e-6)
    assert traced.dtype is F.unwrap(eager).dtype


def test_an_index_out_of_range_does_not_end_a_graph():
    code = """
import oneflow as flow
from oneflow_bridge import namespace as F
class G(flow.nn.Graph):
    def build(self, x, i):
        x, i = F.wrap((x, i))
        wide = i[:, None] * F.ones(1, 2, dtype=F.int64)
        return F.unwrap((F.embedding(x, i), F.gather(x, 0, wide), x[i], i // (i * 0)))
print(len(G()(flow.ones(3, 2), flow.tensor([-9, 9, 1]))))
"""
    done = run(code)
    assert done.returncode == 0 and done.stdout.endswith("4\n"), done.stderr


def test_values_are_not_asked_for_in_a_graph():
    for function in (lambda x: F.nonzero(x), lambda x: x[x > 0], lambda x: F.unique(x), lambda x: F.tensor(x.tolist())):
        with pytest.raises(OperatorError, match="traced"):
            Traced(function)(flow.tensor([1.0, 0.0]))


def test_gradients_flow():
    x = F.wrap(flow.tensor([[1.0, -2.0, 3.0]], requires_grad=True))
    loss = (F.nn.functional.gelu(F.layer_norm(x * 2, (3,)))[:, ::-1] * F.tensor([1.0, 2.0, 3.0])).sum()
    loss.value.backward()
    step, gradient = 1e-2, x.value.grad.numpy()[0]
    for i in range(3):
        moved = [np.array([[1.0, -2.0, 3.0]]) for _ in range(2)]
        moved[0][0, i] += step
        moved[1][0, i] -= step
        up, down = (
            (F.nn.functional.gelu(F.layer_norm(F.from_numpy(m) * 2, (3,)))[:, ::-1] * F.tensor([1.0, 2.0, 3.0]))
            .sum()
            .item()
            for m in moved
        )
        assert abs((up - down) / (2 * step) - gradient[i]) < 1e-3


def table_names() -> list[str]:
    """Every dotted `F.name` that the op table's files mention."""
    found = set()
    for path in sorted((Path(onnx2nn.__file__).parent / "ops").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            parts = []
            while isinstance(node, ast.Attribute):
                parts.append(node.attr)
                node = node.value
            if parts and isinstance(node, ast.Name) and node.id == "F":
                found.add(".".join(reversed(parts)))
    return sorted(found)


def resolve(name: str):
    value = F
    for part in name.split("."):
        value = getattr(value, part)
    return value


def test_every_name_the_table_uses_is_there_or_said_to_be_missing():
    absent = []
    for name in table_names():
        try:
            resolve(name)
        except AttributeError:
            known = set(name.split(".")) & set(F.MISSING)
            absent += [] if known else [name]
    assert len(table_names()) > 50
    assert not absent


def test_a_missing_name_says_what_oneflow_lacks():
    for use in (lambda: F.fft.hfft, lambda: F.polar, lambda: F.linalg.svd):
        with pytest.raises(OperatorError, match=r"OneFlow 0\.9 has no"):
            use()
    assert not hasattr(F, "no_such_name")


def test_layers_are_oneflows_own():
    assert F.nn.Conv2d is flow.nn.Conv2d
    assert F.nn.Module is flow.nn.Module
