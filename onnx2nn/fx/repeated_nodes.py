"""Nodes with the same signature: the recorded call of one is reused for the others.

Most nodes of a network share operator, input shapes and types with another node. If the body made exactly one call with
its node's inputs, it would make the same call for the other node; the call is then recorded without running the body. A
body that reads elements of constants may depend on them. The body is therefore watched, and such a body runs for every
node.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import onnx_ir as ir
import torch
from torch import fx
from torch.overrides import TorchFunctionMode

from onnx2nn.fx.constants import Constant
from onnx2nn.fx.tracing.layers import may_be_layer
from onnx2nn.fx.tracing.tracer import Tracer
from onnx2nn.fx.values.size_vectors import is_vector
from onnx2nn.fx.values.spec import Spec
from onnx2nn.fx.values.tensor import TRACED, Tensor


class Call(NamedTuple):
    """A call with a node's inputs in their order, and the spec of its result."""

    kind: str
    target: Any
    spec: Spec


_T = torch.Tensor
_FORM: frozenset[Any] = frozenset(
    {
        *(_T.dim, _T.size, _T.numel, _T.stride, _T.element_size, _T.storage_offset, _T.data_ptr),
        *(_T.is_floating_point, _T.is_complex, _T.view),
        *(getattr(_T, name).__get__ for name in ("shape", "dtype", "ndim", "device", "grad_fn")),
    }
)
"""Operations on a tensor that do not read its elements."""


class _Watch(TorchFunctionMode):
    """Notes whether elements of constants are read; recorded calls do not read them."""

    def __init__(self) -> None:
        super().__init__()
        self.only_form = True

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func not in _FORM and not any(kind in TRACED for kind in types):
            self.only_form = False
        return func(*args, **(kwargs or {}))


class Repeats:
    """The calls of one model's nodes, by signature."""

    def __init__(self) -> None:
        self._seen: set[Hashable] = set()
        self._calls: dict[Hashable, Call | None] = {}  # None: the body must run

    def key(self, node: ir.Node, version: int, inputs: Sequence[Any], tracer: Tracer) -> Hashable:
        """Returns the signature of a node, None where its call may depend on more than the signature.

        Args:
            node: the node.
            version: opset version of its domain.
            inputs: its inputs as values of the import.
            tracer: records the node.
        """
        if node.attributes.data:
            return None
        forms: list[Hashable] = []
        traced = False
        for value in inputs:
            kind = type(value)
            if kind is Tensor:
                if value in tracer.plain.known:
                    return None
                traced = True
                forms.append(value.spec)
            elif kind is Constant and math.prod(shape := value.shape) != 1:  # one element is recorded as a number
                forms.append((value.kind, shape))
            else:
                return None
        if not traced or (len(inputs) > 1 and len(set(map(id, inputs))) < len(inputs)):
            return None
        return node.domain, node.op_type, node.overload, version, *forms

    def find(self, key: Hashable) -> Call | None:
        """Returns the known call of nodes with the signature `key`, None where the body must run."""
        return self._calls.get(key) if key is not None else None

    def run(self, key: Hashable, run: Callable[[], Any], tracer: Tracer, arguments: Callable[[], list[Any]]) -> Any:
        """Returns the result of `run`; notes the call of the second node with the signature `key`.

        Args:
            key: from the method `key`.
            run: records the node.
            tracer: records it.
            arguments: returns the node's inputs as arguments of the body.
        """
        if key is None or key in self._calls:
            return run()
        if key not in self._seen:
            self._seen.add(key)
            return run()
        before = tracer.last
        with _Watch() as watch:
            result = run()
        learned = watch.only_form and type(result) is Tensor
        self._calls[key] = _call(result, before, tracer, arguments()) if learned else None
        return result


def _call(result: Tensor, before: fx.Node, tracer: Tracer, arguments: Sequence[Any]) -> Call | None:
    """Returns the call with `arguments` that computed `result`, None where more was recorded since `before`."""
    node = first = result.node
    while first.prev.op == "get_attr" and first.prev is not before:
        first = first.prev
    if node is not tracer.last or first.prev is not before or node.meta != tracer.meta:
        return None
    if node.op not in ("call_function", "call_method") or may_be_layer(node.target) or is_vector(result):
        return None
    if node.kwargs or node.args != tuple(map(tracer.argument, arguments)):
        return None
    return Call(node.op, node.target, result.spec)
