"""Data-dependent sizes; like dynamic dimensions, they have sample values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn

from onnx2nn import functional
from onnx2nn.control_flow import CONTROL_FLOW
from onnx2nn.fx.dim import Dim
from onnx2nn.fx.tensor import Tensor
from onnx2nn.fx.trace_errors import NeedsSamples, TraceError

if TYPE_CHECKING:
    from onnx2nn.fx.tracer import Tracer


class DataSizes:
    """The data-dependent sizes in one recorded program.

    Args:
        tracer: records the program.
        around: the data-dependent sizes of the enclosing program; the sample values here differ from theirs.
        least: the first sample value of every size, None for several small values.
    """

    def __init__(self, tracer: Tracer, around: DataSizes | None, least: int | None):
        self._tracer = tracer
        self._least: int | None = around._least if around is not None else least
        self._fresh: list[tuple[int, ...]] = around._fresh if around is not None else []
        self._elements: dict[tuple[fx.Node, int], Dim] = {}
        self._clean: set[fx.Node] = set()

    @property
    def exist(self) -> bool:
        """Whether there are any, so far."""
        return bool(self._fresh)

    def fresh(self) -> tuple[int, ...]:
        """Returns new sample values for an unknown dimension.

        The first one is below typical limits, so that `min(n, limit)` still varies.
        """
        if self._tracer.points == 1:
            raise NeedsSamples
        index = len(self._fresh)
        values = (3 + 2 * (index % 4) if self._least is None else self._least, 17 + 5 * index, 251 + 11 * index)
        self._fresh.append(tuple(values[point % 3] for point in range(self._tracer.points)))
        return self._fresh[-1]

    def decide(self, node: fx.Node) -> bool:
        """Returns whether `node` is computed from the result of a call with data-dependent sizes."""
        pending, seen = [node], set()
        while pending:
            item = pending.pop()
            if item in seen or item in self._clean:
                continue
            seen.add(item)
            outer = item.op == "placeholder" and self._tracer.parent is not None
            if outer or "opaque" in item.meta or _runs_a_graph(self._tracer.root, item):
                return True
            pending += item.all_input_nodes
        self._clean |= seen
        return False

    def elements_of(self, vector: Tensor) -> list[Any]:
        """Returns the sizes in a vector: the known ones, and symbolic numbers that are read from it at run time.

        Raises:
            TraceError: the tensor is no vector of integers, or its length is dynamic.
        """
        if vector.ndim != 1 or vector.dtype not in (torch.int64, torch.int32) or not isinstance(vector.shape[0], int):
            raise TraceError("data-dependent sizes that are no vector of a fixed length")
        known = vector.elements or (None,) * vector.shape[0]
        return [self._element(vector, i) if item is None else item for i, item in enumerate(known)]

    def _element(self, vector: Tensor, index: int) -> Dim:
        key = (vector.node, index)
        if key not in self._elements:

            def read() -> fx.Node:
                node = self._tracer.record("call_function", functional.onnx2nn__SizeAt, (vector,), {"index": index})
                node.meta["opaque"] = True
                return node

            self._elements[key] = Dim(self._tracer, self.fresh(), read)
        return self._elements[key]


def _runs_a_graph(root: nn.Module, node: fx.Node) -> bool:
    return node.op == "call_module" and isinstance(root.get_submodule(str(node.target)), CONTROL_FLOW)
