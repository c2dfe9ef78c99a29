"""The state that all graphs of one import to torch share, and the state that all imports of one model share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from onnx2nn.fx.constants import Constant, torch_dtype
from onnx2nn.fx.exporting.exportable import ExportableModule
from onnx2nn.fx.repeated_nodes import Repeats
from onnx2nn.fx.tracing.tracer import Tracer
from onnx2nn.fx.values.guards import Choices, Guard
from onnx2nn.fx.values.named_sizes import named_after_others
from onnx2nn.fx.values.spec import Spec
from onnx2nn.fx.values.tensor import Tensor
from onnx2nn.importing.import_state import ImportState
from onnx2nn.importing.inputs import input_dimensions
from onnx2nn.importing.plan import Plan
from onnx2nn.sizes.expression import Number, Size, Symbol, of_symbol

Known = tuple[int | str, Guard]
"""What a dynamic dimension is known to be, and the guard that says so."""


@dataclass(eq=False)
class Subject:
    """The model of one or several imports.

    Attributes:
        model: from `reader.read`.
        plan: from `plan.plan`.
        inputs: dimensions by input name, None where they are unknown.
        names: the names of dynamic dimensions.
        constants: the model's initializers, by name.
        read: tensor attributes that are read already, by tensor and number of its use.
    """

    model: ir.Model
    plan: Plan
    inputs: Mapping[str, list[int | str] | None]
    names: Sequence[str]
    constants: dict[str, Constant]
    read: dict[tuple[int, int], torch.Tensor | np.ndarray[Any, Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, model: ir.Model, plan: Plan, input_shapes: Mapping[str, Sequence[int | str | None]]) -> Subject:
        """Returns the subject of `import_graph`, which explains the arguments."""
        constants = {v.name or "": Constant.initializer(v) for v in model.graph.initializers.values()}
        for name, other in plan.author.ties.items() if plan.author is not None else ():
            constants[name].tied = constants[other]
        inputs = input_dimensions(model, input_shapes)
        names = dict.fromkeys(d for dims in inputs.values() for d in dims or () if isinstance(d, str))
        return cls(model, plan, inputs, list(names), constants)


class TorchImport(ImportState):
    """One import.

    Args:
        subject: the model.
        known: dynamic dimensions that are known to be a number, or another dimension, and the guards that say so.
        strict: whether a shape conflict ends the import; otherwise the node becomes an opaque call.
        choices: see `Guards`.

    Attributes:
        given: the model's inputs, by name.
        steps: the number of imported nodes.
        programs: the modules of control flow, innermost first, and the tracers that recorded them.
    """

    def __init__(self, subject: Subject, known: Mapping[str, Known], strict: bool, choices: Choices):
        super().__init__(subject.model, subject.plan)
        self.subject, self.constants = subject, subject.constants
        self.known, self.strict, self.choices = known, strict, choices
        self.repeats = Repeats()
        self.given: dict[str, Any] = {}
        self.steps = 0
        self.programs: dict[ExportableModule, Tracer] = {}
        self._sizes: dict[str, Number] = {}
        self._uses: Counter[int] = Counter()

    def tensor_attribute(self, tensor: ir.TensorProtocol) -> torch.Tensor | np.ndarray[Any, Any]:
        """Returns the values of a tensor attribute; each call of a function has its own copy of a constant."""
        self._uses[id(tensor)] += 1
        key, read = (id(tensor), self._uses[id(tensor)]), self.subject.read
        if key not in read:
            read[key] = Constant("", ir.DataType(tensor.dtype), tensor).value
        return read[key]

    def input_spec(self, value: ir.Value) -> Spec | None:
        """Returns the spec of an input of the model, None where it is no tensor."""
        if not isinstance(value.type, (ir.TensorType, type(None))) or value.dtype == ir.DataType.STRING:
            return None
        dims = self.subject.inputs[value.name or ""]
        dtype = None if value.dtype is None else torch_dtype(value.dtype)
        if dims is None:
            return Spec(None, dtype)
        return Spec(tuple(d if isinstance(d, int) else self.size(d) for d in dims), dtype)

    def size(self, name: str) -> Number:
        """Returns a dynamic dimension of the inputs, by name."""
        known = self.known.get(name)
        if known is not None:
            return known[0] if isinstance(known[0], int) else self.size(known[0])
        if name not in self._sizes:
            named = named_after_others(name, self.subject.names, self.size)
            self._sizes[name] = of_symbol(Symbol(name)) if named is None else named
        return self._sizes[name]

    def symbol(self, name: str) -> Symbol | None:
        """Returns the symbol of a dynamic dimension, None for one that is no symbol or is not used."""
        size = self._sizes.get(name)
        if not isinstance(size, Size) or len(size.symbols) != 1:
            return None
        (symbol,) = size.symbols
        return symbol if size is of_symbol(symbol) else None

    def declare(self, tracer: Tracer) -> None:
        """Notes where each dynamic dimension is read; guards those that have the name of another or a known size."""
        for name, dims in self.subject.inputs.items():
            tensor = self.given[name]
            for axis, dim in enumerate(dims or ()) if isinstance(tensor, Tensor) else ():
                if isinstance(dim, str):
                    known = self.known.get(dim)
                    tracer.guards.declare(tensor, (name, axis), dim, known and known[1])
