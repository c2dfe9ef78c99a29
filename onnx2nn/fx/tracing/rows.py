"""Layers that the author calls on a tensor of any rank, and the file on its rows.

torch's `addmm` takes matrices. GPT-2's Conv1D lays its input out as rows and gives the result the input's shape again,
and exporters write both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import fx

from onnx2nn.fx.tracing.layers import Layer
from onnx2nn.fx.values.spec import Spec
from onnx2nn.fx.values.tensor import Tensor
from onnx2nn.layers import Conv1D

if TYPE_CHECKING:
    from onnx2nn.fx.tracing.tracer import Tracer

_RESHAPES = frozenset({"reshape", "view"})


class Rows:
    """The tensors of one recorded program that are laid out as rows, and the layers that are called on the rows.

    Args:
        tracer: records the program.
    """

    def __init__(self, tracer: Tracer):
        self._tracer = tracer
        self._laid_out: dict[fx.Node, Tensor] = {}
        self._layers: dict[fx.Node, tuple[Layer, str | None]] = {}

    def note_reshape(self, target: Any, args: Sequence[Any], result: Any) -> None:
        """Notes a call that lays a tensor out as a matrix."""
        if target in _RESHAPES and type(args[0]) is Tensor and type(result) is Tensor and len(_shape(result)) == 2:
            self._laid_out[result.node] = args[0]

    def note_layer(self, layer: Layer, result: Any) -> None:
        """Notes the call of a layer on rows."""
        if layer.kind is Conv1D and layer.inputs[0].node in self._laid_out:
            self._layers[result.node] = layer, self._tracer.placement.caller()

    def joined(self, target: Any, args: Sequence[Any], specs: Any) -> tuple[Layer, Spec] | None:
        """Returns the layer that does what a layer on rows and a call that reshapes its result do.

        The rows are those of every tensor with the result's shape but for the last dimension. The author's module takes
        such a tensor if the call is a part of it. Where the file does not say that, the tensor must be at hand.

        Args:
            target: the name of a tensor's method.
            args: its arguments.
            specs: the spec of its result.

        Returns:
            The layer and the spec of its result; None where the call does something else.
        """
        if target not in _RESHAPES or type(args[0]) is not Tensor or args[0].node not in self._layers:
            return None
        layer, caller = self._layers[args[0].node]
        same, shape = self._tracer.guards.facts.same, specs.shape if isinstance(specs, Spec) else None
        if not shape or len(shape) < 2 or not same(shape[-1], layer.config["nf"]):
            return None
        if caller != self._tracer.placement.caller():
            return None
        source, inputs = self._laid_out[layer.inputs[0].node], (*shape[:-1], layer.config["nx"])
        known = _shape(source)
        if len(known) != len(inputs) or not all(map(same, known, inputs)):
            if caller is None:
                return None
            sizes = args[1] if len(args) == 2 and isinstance(args[1], (list, tuple)) else args[1:]
            source = self._tracer.call("call_method", "reshape", (source, *sizes[:-1], layer.config["nx"]), {})
            known = _shape(source)
        spec = Spec((*known[:-1], layer.config["nf"]), specs.dtype)
        return layer._replace(inputs=(source,)), spec


def _shape(tensor: Tensor) -> tuple[Any, ...]:
    """Returns the sizes of a tensor, nothing where its rank is unknown."""
    return tensor.spec.shape or ()
