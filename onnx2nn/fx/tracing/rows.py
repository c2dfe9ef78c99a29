"""Layers that the author calls on a tensor of any rank, and the file on its rows.

torch's `addmm` takes matrices. GPT-2's Conv1D lays its input out as rows and gives the result the input's shape again,
and exporters write both. The exporters of JAX and TensorFlow write all dense layers so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import fx, nn

from onnx2nn.fx.tracing.layers import Layer
from onnx2nn.fx.values.spec import Spec
from onnx2nn.fx.values.tensor import Tensor, leaves
from onnx2nn.layers import Conv1D

if TYPE_CHECKING:
    from onnx2nn.fx.tracing.tracer import Tracer

_RESHAPES = frozenset({"reshape", "view"})
_WIDTHS = {Conv1D: ("nx", "nf"), nn.Linear: ("in_features", "out_features")}
"""The arguments of layers that are the sizes of a row and of its result."""


class Rows:
    """Records the layers of one program, and notes its tensors that are laid out as rows and layers on these.

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

    def called(self, layer: Layer, specs: Any) -> Any:
        """Records the call of a layer, whose function gives results of `specs`; returns these as traced values."""
        node = self._tracer.record("call_module", self._tracer.held.add_layer(layer), layer.inputs, {**layer.keywords})
        if layer.structure is not None:
            return tuple(leaves(self._tracer.wrap(node, _arranged(specs, layer.structure))))
        result = self._tracer.wrap(node, specs)
        if layer.kind in _WIDTHS and layer.inputs[0].node in self._laid_out:
            caller = self._tracer.placement.caller()
            if layer.kind is Conv1D or (caller is None and self._tracer.placement.is_read_once()):
                self._layers[result.node] = layer, caller
        return result

    def joined(self, target: Any, args: Sequence[Any], specs: Any) -> Any:
        """Records a layer that does what a layer on rows and a call that reshapes its result do.

        The rows are those of every tensor with the result's shape but for the last dimension. The author's module takes
        such a tensor if the call is a part of it. Where the file does not say that, a Conv1D must have one at hand. A
        linear layer that is read by the call alone takes any that is at hand, else one of the result's shape.

        Args:
            target: the name of a tensor's method.
            args: its arguments.
            specs: the spec of its result.

        Returns:
            The result of the call, which may reshape that of the new layer; None where the layer on rows stays.
        """
        if target not in _RESHAPES or type(args[0]) is not Tensor or args[0].node not in self._layers:
            return None
        layer, caller = self._layers[args[0].node]
        shape = specs.shape if isinstance(specs, Spec) else None
        if not shape or caller != self._tracer.placement.caller():
            return None
        same, (width, size) = self._tracer.guards.facts.same, (layer.config[name] for name in _WIDTHS[layer.kind])
        source = self._laid_out[layer.inputs[0].node]
        known = _shape(source)
        whole = len(known) == len(shape) and all(map(same, (*known, size), (*shape[:-1], width, shape[-1])))
        at_hand = bool(known) and same(known[-1], width)
        if not whole and not (at_hand and layer.kind is nn.Linear):
            of_author = layer.kind is nn.Linear or caller is not None
            if not of_author or len(shape) < (3 if layer.kind is nn.Linear else 2) or not same(shape[-1], size):
                return None
            sizes = args[1] if len(args) == 2 and isinstance(args[1], (list, tuple)) else args[1:]
            source = self._tracer.call("call_method", "reshape", (source, *sizes[:-1], width), {})
            known, whole = _shape(source), True
        result = self.called(layer._replace(inputs=(source,)), Spec((*known[:-1], size), specs.dtype))
        return result if whole else self._tracer.call("call_method", target, (result, *args[1:]), {})


def _shape(tensor: Tensor) -> tuple[Any, ...]:
    """Returns the sizes of a tensor, nothing where its rank is unknown."""
    return tensor.spec.shape or ()


def _arranged(items: Sequence[Any], structure: Any) -> Any:
    """Returns `items` in nested tuples; `structure` holds their positions."""
    return items[structure] if isinstance(structure, int) else tuple(_arranged(items, part) for part in structure)
