"""The state that all graphs of one import to torch share, and the state that all imports of one model share."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
import torch

from onnx2nn.fx.constants import Constant, torch_dtype
from onnx2nn.fx.repeated_nodes import Repeats
from onnx2nn.fx.sample_sizes import Fixed, Sizes
from onnx2nn.fx.spec import Spec
from onnx2nn.fx.tensor import Tensor
from onnx2nn.fx.tracer import Tracer
from onnx2nn.importing.import_state import ImportState
from onnx2nn.importing.inputs import input_dimensions
from onnx2nn.importing.plan import Plan


class Limit(NamedTuple):
    """The accepted sizes of one axis of an input, from `least` to `most`."""

    tensor: Tensor
    axis: int
    least: int
    most: int


@dataclass(eq=False)
class Subject:
    """The model of one or several imports at different sample sizes.

    Attributes:
        model: from `reader.read`.
        plan: from `plan.plan`.
        inputs: dimensions by input name, None where they are unknown.
        constants: the model's initializers, by name.
        inferred: known specs of calls, see `Tracer`.
        read: tensor attributes that are read already, by tensor and number of its use.
    """

    model: ir.Model
    plan: Plan
    inputs: Mapping[str, list[int | str] | None]
    constants: dict[str, Constant]
    inferred: dict[Any, Any] = field(default_factory=dict)
    read: dict[tuple[int, int], torch.Tensor | np.ndarray[Any, Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, model: ir.Model, plan: Plan, input_shapes: Mapping[str, Sequence[int | str | None]]) -> Subject:
        """Returns the subject of `import_graph`, which explains the arguments."""
        constants = {v.name or "": Constant.initializer(v) for v in model.graph.initializers.values()}
        for name, other in plan.author.ties.items() if plan.author is not None else ():
            constants[name].tied = constants[other]
        return cls(model, plan, input_dimensions(model, input_shapes), constants)


class TorchImport(ImportState):
    """One import at one choice of sample sizes.

    Args:
        subject: the model.
        sizes: the sample sizes.
        strict: whether a shape conflict ends the import; otherwise the node becomes an opaque call.
        fixed: restricted dimensions, see `Sizes`.

    Attributes:
        given: the model's inputs, by name.
        split: Ifs whose branch differs between sample points → the condition at each point.
        steps: the number of imported nodes.
        unrolled: the number of nodes from unrolled bodies of SequenceMap.
    """

    def __init__(self, subject: Subject, sizes: Sizes, strict: bool, fixed: Fixed):
        super().__init__(subject.model, subject.plan)
        self.subject, self.constants = subject, subject.constants
        self.sizes, self.strict, self.fixed = sizes, strict, fixed
        self.repeats = Repeats()
        self.given: dict[str, Any] = {}
        self.split: dict[ir.Node, Sequence[bool]] = {}
        self.steps = self.unrolled = 0
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
        columns = [self.sizes.values[d] if isinstance(d, str) else (d,) * self.sizes.points for d in dims]
        shapes = tuple(zip(*columns, strict=True)) if columns else ((),) * self.sizes.points
        return Spec(shapes, dtype)

    def guard(self, tracer: Tracer, fixed: Fixed) -> list[Limit]:
        """Records guards for the dimensions in `fixed`: the forward raises for other sizes; returns the limits."""
        limits = []
        inputs = self.subject.inputs.items()
        for name, axis, dim in ((name, axis, dim) for name, dims in inputs for axis, dim in enumerate(dims or ())):
            if not isinstance(dim, str) or not isinstance(size := fixed.get(dim), (int, tuple)):
                continue
            least, most = (size[0], size[-1]) if isinstance(size, tuple) else (size, size)
            limits.append(Limit(self.given[name], axis, least, most))
            read = tracer.record("call_method", "size", (tracer.own(self.given[name]), axis))
            bounds = [(operator.ge, least), (operator.le, most)] if least < most else [(operator.eq, least)]
            asked = f"from {least} to {most}" if least < most else str(least)
            message = f"Dimension {axis} of input {name!r} must be {asked}: the import holds for no other size."
            for compare, bound in bounds:
                fits = tracer.graph.call_function(compare, (read, bound))
                tracer.graph.call_function(torch._assert, (fits, message))
        return limits

    def unanimous(self, points: int, known: set[ir.Node]) -> int:
        """Returns the number of leading sample points at which all Ifs but those in `known` choose one branch."""
        choices = [truths for node, truths in self.split.items() if node not in known and len(truths) == points]
        return min((next((i for i, t in enumerate(c) if t != c[0]), points) for c in choices), default=points)
