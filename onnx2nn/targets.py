"""The frameworks that models are imported into; each is imported when it is chosen."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import onnx_ir as ir

from onnx2nn.ground import gc_pause
from onnx2nn.ground.extras import require
from onnx2nn.importing.constants import Constant
from onnx2nn.importing.inputs import InputShapes

Dynamic = Mapping[str, Mapping[int, str]]
"""Input name → axis → name of the dimension."""


class Target(NamedTuple):
    """A framework.

    Attributes:
        F: its namespace of tensor functions.
        constants: its class of constants.
        import_model: takes a model and a function that raises a model and returns its plan and notes for `meta`.
    """

    F: Any
    constants: type[Constant]
    import_model: Any


def target_of(framework: str, dynamic: Dynamic | None) -> Target:
    """Returns the framework of a name, with an import that makes some fixed dimensions dynamic.

    Raises:
        MissingDependencyError: PyTorch is not installed, and is needed.
    """
    if framework == "oneflow":
        from oneflow_bridge import namespace
        from oneflow_bridge.from_onnx import constants, importer

        import_model = functools.partial(_import_prepared, importer.import_graph)
        if dynamic is not None:
            import_model = functools.partial(_import_dynamic_to_oneflow, import_model, dynamic=dynamic)
        return Target(namespace, constants.Constant, import_model)
    torch = require("torch", extra="torch", purpose="Importing into PyTorch")
    from onnx2nn.fx.constants import Constant

    if dynamic is not None:
        from onnx2nn.unfreeze.search import import_dynamic

        return Target(torch, Constant, functools.partial(import_dynamic, dynamic=dynamic))
    from onnx2nn.fx.importer import import_graph

    return Target(torch, Constant, functools.partial(_import_prepared, import_graph))


def _import_dynamic_to_oneflow(
    import_model: Any, model: ir.Model, prepare: Any, input_shapes: InputShapes, *, dynamic: Dynamic
) -> Any:
    """Makes dimensions dynamic with PyTorch, and imports the model into OneFlow."""
    require("torch", extra="torch", purpose="dynamic= for OneFlow")
    from oneflow_bridge.from_onnx.constants import run_on_arrays
    from onnx2nn.fx.constants import Constant as TorchConstant
    from onnx2nn.unfreeze.search import import_dynamic_elsewhere

    def run(module: Any, tensors: Sequence[Any]) -> list[Any]:
        given = [(TorchConstant.array_of(tensor), TorchConstant.kind_of(tensor)) for tensor in tensors]
        found = run_on_arrays(module, given)
        return [None if output is None else TorchConstant.tensor_of(*output) for output in found]

    def import_(model: ir.Model, shapes: InputShapes) -> Any:
        return import_model(model, prepare, shapes)

    return import_dynamic_elsewhere(model, prepare, import_, run, dynamic=dynamic, input_shapes=input_shapes)


def _import_prepared(import_graph: Any, model: ir.Model, prepare: Any, input_shapes: InputShapes) -> Any:
    found, notes = prepare(model)
    gc_pause.set_aside()  # the model
    module = import_graph(model, found, input_shapes=input_shapes)
    module.meta["onnx2nn"].update(notes)
    return module
