"""The measured importers, onnx2nn, onnx2torch, onnx2pytorch, onnx2fx and ONNX Runtime, behind one signature.

Each entry of `IMPORTERS` imports its packages when it is called, and returns a function from a file's path to a loaded
model. The time and memory of importing packages are thereby separate from those of loading models.
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# The checkout itself, and the export helpers that the tests use, so that both export models in one way.
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

Loaded = Callable[[Sequence[Any]], Any]  # takes tensors in the graph's order
Load = Callable[[Path], Loaded]


def _onnx2nn() -> Load:
    import torch

    import onnx2nn

    def load(path: Path) -> Loaded:
        return without_gradients(torch, onnx2nn.load(path))

    return load


def _without_elements() -> Load:
    """Loads to the meta device, and runs there."""
    import onnx2nn

    def load(path: Path) -> Loaded:
        module = onnx2nn.load(path, device="meta")
        return lambda inputs: module(*(x.to("meta") for x in inputs))

    return load


def _mapped() -> Load:
    """Loads with the pages of the mapped file as weights."""
    import onnx2nn

    return lambda path: (lambda module: lambda inputs: module(*inputs))(onnx2nn.load(path, mmap=True))


def _torch_fx() -> Load:
    """Loads by copying a known module: its programs node by node, its layers with their parameters.

    No importer to modules of `torch.fx` with torch's layers takes less time, whatever it does besides.
    """
    import onnx2nn

    known: dict[Path, Any] = {}

    def load(path: Path) -> Loaded:
        from torch import fx, nn

        if path not in known:
            known[path] = onnx2nn.load(path)
        made: list[Any] = []
        for module in known[path].modules():
            if isinstance(module, fx.GraphModule):
                graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
                for node in module.graph.nodes:
                    copies[node] = graph.node_copy(node, copies.__getitem__)
                made.append(graph)
                continue
            layer = nn.Module()
            for name, parameter in module.named_parameters(recurse=False):
                layer.register_parameter(name, nn.Parameter(parameter.detach()))
            for name, buffer in module.named_buffers(recurse=False):
                layer.register_buffer(name, buffer)
            made.append(layer)
        return lambda inputs: made

    return load


def _with_program() -> Load:
    """Loads by `onnx2nn.load`, and generates and compiles the forward, which otherwise happens at the first call."""
    import onnx2nn

    def load(path: Path) -> Loaded:
        return onnx2nn.load(path).forward

    return load


def _reading() -> Load:
    """Reads the file into an onnx-ir model, the first part of `onnx2nn.load`."""
    from onnx2nn.reading import reader

    def load(path: Path) -> Loaded:
        model = reader.read(path)
        return lambda inputs: model

    return load


def _onnx2torch() -> Load:
    import torch

    from scripts import torchvision_schemas

    torchvision_schemas.predefine()
    import onnx2torch

    def load(path: Path) -> Loaded:
        return without_gradients(torch, onnx2torch.convert(str(path)).eval())

    return load


def _onnx2pytorch() -> Load:
    import onnx
    import torch

    from scripts import torchvision_schemas

    torchvision_schemas.predefine()
    import onnx2pytorch

    def load(path: Path) -> Loaded:
        return without_gradients(torch, onnx2pytorch.ConvertModel(onnx.load(str(path))).eval())

    return load


def _onnx2fx() -> Load:
    import onnx2fx
    import torch

    def load(path: Path) -> Loaded:
        return without_gradients(torch, onnx2fx.convert(str(path)).eval())

    return load


def _onnxruntime() -> Load:
    import onnxruntime
    import torch

    def load(path: Path) -> Loaded:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = torch.get_num_threads()
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        names = [value.name for value in session.get_inputs()]
        return lambda inputs: session.run(None, {name: x.numpy() for name, x in zip(names, inputs, strict=True)})

    return load


def without_gradients(torch: Any, module: Any) -> Loaded:
    """Returns a call of the module without gradients, as in inference; it goes where the first inputs are."""
    moved: list[Any] = []

    def call(inputs: Sequence[Any]) -> Any:
        if not moved:
            moved.append(module.to(inputs[0].device))
        with torch.no_grad():
            return module(*inputs)

    return call


IMPORTERS: dict[str, Callable[[], Load]] = {
    "onnx2nn": _onnx2nn,
    "onnx2torch": _onnx2torch,
    "onnx2pytorch": _onnx2pytorch,
    "onnx2fx": _onnx2fx,
    "onnxruntime": _onnxruntime,
}

MEMORY: dict[str, Callable[[], Load]] = {
    **IMPORTERS,
    "onnx2nn on the meta device": _without_elements,
    "onnx2nn, mapped": _mapped,
}
"""Ways to load whose memory is measured."""

PARTS: dict[str, Callable[[], Load]] = {
    "of it: nodes and layers": _torch_fx,
    "of it: reading": _reading,
    "onnx2nn with its program": _with_program,
}
"""Parts of an import that are measured separately, and the import together with its deferred part."""


def title(name: str) -> str:
    """Returns an importer's name with its version."""
    try:
        return f"{name} {importlib.metadata.version(name)}"
    except importlib.metadata.PackageNotFoundError:
        return name


def reason(error: BaseException) -> str:
    """Returns the error that ended a measurement, in one line."""

    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
