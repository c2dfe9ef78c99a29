"""The package uses public names of torch only, so that it runs with many of its releases.

A private name is, in this test,

- a part with a leading underscore in a dotted name that starts at something imported from torch (`torch._C`,
  `nn.Module._version`), and a private module or name in an import (`from torch.utils._python_dispatch import ...`);
- an attribute of any object that is called as a private attribute of torch's modules, graphs, tracers or tensors
  (`module._parameters`, `getattr(module, "_buffers")`), unless it is an attribute of `self` in a class that is derived
  from none of torch's, and any that starts with `_dynamo`, by which Dynamo is told what to do with a function;
- a member that a class derived from one of torch's defines under such a name, which overrides torch's.

`__names__` of Python's are not private. `PUBLIC` lists what torch itself documents despite its underscore, and what has
no public form, with the reason.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import fx, nn

PACKAGE = Path(__file__).resolve().parents[1] / "onnx2nn"

PUBLIC = {
    "torch._assert": "the documentation of torch.fx tells to write assertions with it, which a trace keeps",
    "torch._assert_async": "the operator that torch.export writes for assertions of data, and keeps",
    "torch.ops.aten._assert_scalar.default": "likewise, for assertions of sizes",
    "torch._inductor.aoti_compile_and_package": "torch's documentation of AOTInductor names it, and has no other name",
    "torch._inductor.aoti_load_package": "likewise",
    "torch._inductor.config.patch": "torch's documentation of inductor on CPUs tells to set config.freezing",
    "torch.utils._python_dispatch.TorchDispatchMode": "documented in torch's notes on extending it, as a mode's base",
    "torch.ops.mkldnn._reorder_convolution_weight": "an operator of torch.compile's programs; no other packs a weight",
    "torch.ops.mkldnn._convolution_pointwise": "likewise: no other takes a packed weight",
    "torch.ops.mkldnn._convolution_pointwise.default": "likewise, as a graph of inductor names it",
    "torch.ops.mkldnn._convolution_pointwise.binary": "likewise: it adds another tensor on the way",
    "torch.ops.mkldnn._reorder_linear_weight": "likewise",
    "torch.ops.mkldnn._linear_pointwise": "likewise",
    "torch.ops.mkldnn._linear_pointwise.default": "likewise, as a graph of inductor names it",
    "_owning_module": "a graph and its module refer to each other by it; no public name makes one reference weak",
    "torch._check": "documented among torch's functions for control flow on sizes",
    "nn.Module._version": "nn.Module's source documents it as the version of a class's state",
    "fx.GraphModule._version": "likewise",
    "_version": "likewise",
    "_apply": "what .to(), .half() and .bfloat16() call, also inside another module; no public hook sees a conversion",
    "torch._subclasses.fake_tensor.FakeTensorMode": "documented in torch's notes on fake tensors",
    "torch.onnx._internal.exporter._flags": "whether an export runs; is_in_onnx_export denies it in torch.cond",
    "torch.fx.experimental._config": "its backed_size_oblivious, which torch.onnx.export sets, has no public form",
}


def _private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def _private_attributes() -> frozenset[str]:
    """Returns the private attributes of torch's modules, graphs, nodes, tracers, proxies and tensors."""
    graph = fx.Graph()
    node = graph.output(graph.placeholder("x"))
    tracer = fx.Tracer()
    objects = (nn.Module(), fx.GraphModule(nn.Module(), graph), graph, node, tracer, fx.Proxy(node, tracer))
    tensors = (torch.zeros(1), torch.zeros(1).untyped_storage())
    return frozenset(name for item in (*objects, *tensors) for name in object.__dir__(item) if _private(name))


PRIVATE = _private_attributes()


def _dotted(node: ast.expr) -> list[str]:
    """Returns the parts of a dotted name, the first one `""` where it starts at another expression."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return [node.id if isinstance(node, ast.Name) else "", *reversed(parts)]


class _Uses(ast.NodeVisitor):
    """Collects the private names that one file uses, with their lines."""

    def __init__(self, derived: frozenset[str]):
        self.derived = derived
        self.found: list[str] = []
        self.from_torch: set[str] = set()
        self.inside = [False]
        """Whether the classes around are derived from torch's."""

    def note(self, node: ast.AST, name: str) -> None:
        if name not in PUBLIC:
            self.found.append(f"{node.lineno}: {name}")  # type: ignore[attr-defined]

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.name.split(".")[0] == "torch":
                self.from_torch.add((alias.asname or alias.name).split(".")[0])
                if any(map(_private, alias.name.split("."))):
                    self.note(node, alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if (node.module or "").split(".")[0] == "torch":
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                self.from_torch.add(alias.asname or alias.name)
                if any(map(_private, name.split("."))):
                    self.note(node, name)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.inside.append(node.name in self.derived)
        for item in node.body if self.inside[-1] else ():
            targets = getattr(item, "targets", [getattr(item, "target", None)])
            names = [getattr(item, "name", None), *(getattr(target, "id", None) for target in targets)]
            for name in names:
                if name in PRIVATE:
                    self.note(item, name)
        self.generic_visit(node)
        self.inside.pop()

    def visit_Attribute(self, node: ast.Attribute) -> None:
        first, *rest = _dotted(node)
        if first in self.from_torch and any(map(_private, rest)):
            self.note(node, ".".join((first, *rest)))
            return
        own = first in ("self", "cls") and len(rest) == 1 and not self.inside[-1]
        if (node.attr in PRIVATE and not own) or node.attr.startswith("_dynamo"):
            self.note(node, node.attr)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id in ("getattr", "setattr", "hasattr", "delattr"):
            name = node.args[1]
            if isinstance(name, ast.Constant) and name.value in PRIVATE:
                self.note(node, str(name.value))
        self.generic_visit(node)


def _derived() -> frozenset[str]:
    """Returns the names of the package's classes that are derived from torch's."""
    bases: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                bases[node.name] = {".".join(_dotted(base)) for base in node.bases}
    derived: set[str] = set()
    while new := {
        name
        for name, above in bases.items()
        if name not in derived and any(base.split(".")[0] in ("torch", "nn", "fx", *derived) for base in above)
    }:
        derived |= new
    return frozenset(derived)


DERIVED = _derived()


def _uses(source: str, derived: frozenset[str] = DERIVED) -> list[str]:
    uses = _Uses(derived)
    uses.visit(ast.parse(source))
    return uses.found


def _files() -> Iterator[Path]:
    return (path for path in sorted(PACKAGE.rglob("*.py")))


@pytest.mark.parametrize("path", _files(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_private_name_of_torch(path: Path) -> None:
    assert not _uses(path.read_text())


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch._C._jit",
        "import torch._dynamo",
        "from torch.utils._python_dispatch import is_in_torch_dispatch_mode",
        "from torch.nn.modules.module import _has_any_global_hook",
        "from torch import fx\nfx.GraphModule._copy_attr",
        "function._dynamo_marked_constant = True",
        "module._parameters['x']",
        "self.module._buffers",
        "getattr(module, '_modules')",
        "class Mine(nn.Module):\n    def call(self): return self._forward_hooks",
        "class Mine(nn.Module):\n    def _call_impl(self): pass",
        "class Mine(nn.Module):\n    _parameters: dict = {}",
    ],
)
def test_finds(source: str) -> None:
    assert _uses(source, frozenset({"Mine"}))


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch._assert(x, 'no')",
        "import torch\ntorch.__version__",
        "class Mine:\n    def call(self): return self._parameters",
        "x._of_our_own",
    ],
)
def test_lets_pass(source: str) -> None:
    assert not _uses(source, frozenset())
