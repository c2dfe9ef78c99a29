"""Pairs of QuantizeLinear and DequantizeLinear as layers.

A file that is quantised between its operators, by training or calibration, has such a pair for each tensor. The steps
of a pair are nine calls; as one layer they work in place, and can be trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import fx

from onnx2nn.fx.constants import identity_of
from onnx2nn.fx.tracing.layers import Layer
from onnx2nn.fx.values.tensor import Tensor
from onnx2nn.layers import FakeQuantize
from onnx2nn.ops.axes import from_front
from onnx2nn.optable.row import Row

if TYPE_CHECKING:
    from onnx2nn.fx.tracing.tracer import Tracer


class _Quantised(NamedTuple):
    """The arguments of a QuantizeLinear.

    Attributes:
        x: the floats.
        scale, zero_point: constants of one number, or of one for each index of the axis.
        axis: None for one number.
        limits: the smallest and the largest integer.
    """

    x: Tensor
    scale: torch.Tensor
    zero_point: torch.Tensor
    axis: int | None
    limits: tuple[int, int]


class FakeQuantizers:
    """The pairs of one recorded program.

    Args:
        tracer: records the program.
    """

    def __init__(self, tracer: Tracer):
        self._tracer = tracer
        self._quantised: dict[fx.Node, _Quantised] = {}
        self._called: dict[fx.Node, Tensor] = {}
        self._zero_points: dict[Any, torch.Tensor] = {}

    def run(self, row: Row, arguments: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
        """Returns what a body gives; of a DequantizeLinear behind a QuantizeLinear of its scale, a layer's result.

        Args:
            row: of a node.
            arguments, attributes: of its body.
        """
        if "dequantises" in row.traits and (found := self._joined(attributes, *arguments)) is not None:
            return found
        result = row.body(self._tracer.F, *arguments, **attributes)
        if "quantises" in row.traits:
            self._note(result, attributes, *arguments)
        return result

    def _note(self, result: Any, attributes: Mapping[str, Any], x: Any, scale: Any, zero_point: Any = None) -> None:
        """Notes a QuantizeLinear of floats by constants."""
        if type(x) is not Tensor or type(result) is not Tensor or x.spec.shape is None or result.spec.dtype is None:
            return
        if x.spec.dtype is not torch.float32 or not _is_real(scale) or scale.dtype is not torch.float32:
            return
        zeros, limits = _zeros(scale, zero_point), _limits(result.node)
        if limits is None or zeros is None or zeros.shape != scale.shape:
            return
        one = scale.numel() == 1 and scale.ndim <= min(1, x.ndim)
        if not one and (scale.ndim != 1 or attributes.get("block_size", 0)):
            return
        if not bool((torch.isfinite(scale) & (scale > 0)).all()):
            return
        axis = None if one else from_front(attributes.get("axis", 1), x.ndim)
        self._quantised[result.node] = _Quantised(x, scale, zeros, axis, limits)

    def _joined(self, attributes: Mapping[str, Any], x: Any, scale: Any, zero_point: Any = None) -> Tensor | None:
        """Returns the result of a layer, None where no QuantizeLinear with the same scale and zero point was noted."""
        found = self._quantised.get(x.node) if type(x) is Tensor else None
        if found is None or not _is_real(scale) or attributes.get("block_size", 0) or attributes.get("output_dtype", 0):
            return None
        zeros = _zeros(scale, zero_point)
        if zeros is None or not torch.equal(scale, found.scale) or not torch.equal(zeros, found.zero_point):
            return None
        if found.axis is not None and from_front(attributes.get("axis", 1), x.ndim) != found.axis:
            return None
        if x.node not in self._called:
            layer = self._layer(found)
            if layer is None:
                return None
            node = self._tracer.record("call_module", self._tracer.held.add_layer(layer), layer.inputs)
            self._called[x.node] = self._tracer.wrap(node, found.x.spec)
        return self._called[x.node]

    def _layer(self, found: _Quantised) -> Layer | None:
        """Returns the layer of a pair, None where it would not hold the author's scale under its key."""
        smallest, largest = found.limits
        channels = found.scale.shape[0] if found.scale.ndim else None
        place, zero_point = self._tracer.placement.constant(found.scale), found.zero_point
        config = dict(quant_min=smallest, quant_max=largest, axis=found.axis, channels=channels)
        config["persistent"] = place.own and place.persistent
        if place.own:  # the author's layer may be called several times
            own = self._tracer.placement.beside(found.scale, "zero_point")
            is_same = own is not None and torch.equal(own.to(torch.int32), zero_point)
            known = own if own is not None and is_same else zero_point
            zero_point = self._zero_points.setdefault(identity_of(found.scale), known)
        state: dict[str, torch.Tensor | None] = {"scale": found.scale, "zero_point": zero_point}
        layer = Layer(FakeQuantize, config, state, (found.x,))
        return layer if self._tracer.placement.holds(layer) else None


def _limits(node: fx.Node) -> tuple[int, int] | None:
    """Returns the numbers between which a call of `clamp` among the last steps of a QuantizeLinear holds its result."""
    step: Any = node
    while isinstance(step, fx.Node) and step.target != "clamp":
        step = step.args[0] if step.args and step.target in ("to", torch.nan_to_num) else None
    return None if step is None else (step.args[1], step.args[2])


def _zeros(scale: torch.Tensor, zero_point: Any) -> torch.Tensor | None:
    """Returns a zero point in int32, zeros for an absent one; None where it is no constant of integers."""
    if zero_point is None:
        return torch.zeros(scale.shape, dtype=torch.int32)
    return zero_point.to(torch.int32) if _is_real(zero_point) and not zero_point.is_floating_point() else None


def _is_real(value: Any) -> bool:
    """Returns whether a value is a constant with elements."""
    return isinstance(value, torch.Tensor) and not value.is_meta
