"""From a model to a module: what `load` does, one step after the other.

Everything that changes the model (dequantising, the author's names, raising) comes before the import, which only reads
it; what concerns the module alone comes after it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, cast

import onnx_ir as ir

from onnx2nn import collector
from onnx2nn.author import restore
from onnx2nn.errors import InputError, UnsupportedModelError
from onnx2nn.extras import require
from onnx2nn.inputs import InputShapes, chosen_shapes
from onnx2nn.plan import plan, report
from onnx2nn.rewrite import raise_patterns


@dataclass(frozen=True)
class Options:
    """The options of `onnx2nn.load`, which explains them.

    Raises:
        InputError: one that there is not, or that the framework does not have.
    """

    framework: str
    input_shapes: InputShapes
    raise_patterns: bool
    dynamic: Mapping[str, Mapping[int, str]] | None
    trainable: bool | Collection[str]
    quantized: str

    def __post_init__(self) -> None:
        if self.framework not in ("torch", "oneflow"):
            raise InputError(f"framework={self.framework!r}: it is 'torch' or 'oneflow'.")
        if self.quantized not in ("keep", "dequantize"):
            raise InputError(f"quantized={self.quantized!r}: it is 'keep' or 'dequantize'.")
        words = () if isinstance(self.trainable, bool) else self.trainable
        if not isinstance(words, Collection) or not all(isinstance(word, str) for word in words):
            raise InputError(f"trainable={self.trainable!r}: it is True, False, or roles and patterns of keys.")
        if self.framework != "torch":
            defaults = {"dynamic": None, "trainable": True, "quantized": "keep"}
            given = [name for name, default in defaults.items() if getattr(self, name) != default]
            if given:
                raise InputError(f"{given[0]} is for an import to PyTorch, framework='torch'.")


def load_model(model: ir.Model, options: Options) -> Any:
    """Returns `model`, which is used up, as a module.

    Raises:
        UnsupportedModelError: nodes that cannot be imported, all of them.
        FrozenDimensionError, InputError, MissingDependencyError: as `onnx2nn.load` says.
    """
    shapes = chosen_shapes(model, options.input_shapes)
    try:
        return _import(model, options, shapes)
    except UnsupportedModelError as error:  # the import never got to what stands behind the nodes that it names
        unknown = report(model).problems
        known = {(problem.domain, problem.operator, problem.reason) for problem in unknown}
        others = [p for p in error.problems if (p.domain, p.operator, p.reason) not in known]
        raise UnsupportedModelError([*unknown, *others]) from error.__cause__


def _import(model: ir.Model, options: Options, shapes: InputShapes) -> Any:
    F, import_graph = _target(options)
    with _on_cpu(F) if options.framework == "torch" else contextlib.nullcontext():
        return _import_to(F, import_graph, model, options, shapes)


def _on_cpu(torch: Any) -> contextlib.AbstractContextManager[Any]:
    """Weights are read to the CPU: a default device elsewhere would get the rest, and split the module."""
    if torch.empty(0).device.type == "cpu":  # get_default_device of PyTorch 2.6 fails once the default was reset
        return contextlib.nullcontext()
    return cast("contextlib.AbstractContextManager[Any]", torch.device("cpu"))


def _import_to(F: Any, import_graph: Any, model: ir.Model, options: Options, shapes: InputShapes) -> Any:
    done: dict[str, Any] = {}
    if options.framework == "torch":
        from onnx2nn.missing_types import refuse_missing_types

        refuse_missing_types(model)
    if options.quantized == "dequantize":
        from onnx2nn.dequantize import dequantize

        done["dequantized"] = dataclasses.asdict(dequantize(model))
    author = restore(model, unfold=options.raise_patterns)
    found = plan(model, author)
    if options.raise_patterns:
        raising = raise_patterns(model, found.table, F)
        done["raising"] = {"raised": dict(raising.raised), "dropped": raising.dropped}
    module = import_graph(model, found, input_shapes=shapes)
    module.meta["onnx2nn"].update(done)
    if options.framework == "torch":
        from onnx2nn.imported import lay_out_state

        collector.collect_young()  # what traced the module holds the weights as they lie in the file
        lay_out_state(module)
    if options.trainable is not True:
        from onnx2nn.training import choose_trainable

        choose_trainable(module, options.trainable)
    return module


def _target(options: Options) -> tuple[Any, Any]:
    """Returns the framework's namespace of tensor functions, and what imports to it."""
    if options.framework == "oneflow":
        from oneflow_bridge import importer, namespace

        return namespace, importer.import_graph
    torch = require("torch", extra="torch", purpose="Importing to PyTorch")
    if options.dynamic is not None:
        from onnx2nn.dynamic import import_dynamic

        return torch, functools.partial(import_dynamic, dynamic=options.dynamic)
    from onnx2nn.importer import import_graph

    return torch, import_graph
