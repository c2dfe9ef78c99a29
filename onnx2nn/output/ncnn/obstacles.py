"""Finds operations that NCNN has no layer for, before the conversion starts.

The table was measured: each of its operations, traced alone, becomes a layer of pnnx that ncnn does not know.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import fx

_TRUTH = "NCNN has no truth values"
_INDEX = "NCNN has no layer that looks up by computed or listed indices"
_MISSING = "NCNN has no such layer"

_REASONS: dict[str, str] = {
    **dict.fromkeys(("gt", "lt", "ge", "le", "eq", "ne", "isnan", "isinf", "isfinite"), _TRUTH),
    **dict.fromkeys(("logical_and", "logical_or", "logical_xor", "logical_not", "where", "masked_fill"), _TRUTH),
    **dict.fromkeys(("gather", "take_along_dim", "index_select", "index_put", "one_hot", "nonzero"), _INDEX),
    **dict.fromkeys(("scatter", "scatter_add", "scatter_reduce", "index_add", "index_copy"), _INDEX),
    **dict.fromkeys(
        ("topk", "argmax", "argmin", "sort", "argsort"), "NCNN has no layer that gives indices or an order"
    ),
    **dict.fromkeys(("tril", "triu", "softsign", "threshold", "std", "var", "cdist", "logit", "tile"), _MISSING),
}
_CONTROL_FLOW = ("If", "Loop", "Scan", "BatchedScan", "SequenceMap")


def find_obstacles(module: fx.GraphModule, tensors: Sequence[torch.Tensor]) -> list[str]:
    """Lists the operations on data that NCNN cannot do, each with its node's name in the file and the reason.

    Args:
        module: a module of `onnx2nn.load`.
        tensors: inputs, on which the module is run once.
    """
    import torch
    from torch import fx

    found: dict[str, list[str]] = {}
    live: set[fx.Node] = set()

    class Watch(fx.Interpreter):
        """Runs the graph and looks at every value that depends on an input."""

        def run_node(self, node: fx.Node) -> Any:
            result = super().run_node(node)
            if node.op == "placeholder" or (live.intersection(node.all_input_nodes) and _holds_tensor(result)):
                live.add(node)
                reason = _reason(module, node, result)
                if reason:
                    found.setdefault(reason, []).append(_name(module, node))
            return result

    with torch.no_grad():
        Watch(module).run(*tensors)
    return [f"{_listed(names)}: {reason}" for reason, names in found.items()]


def _holds_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor) or (isinstance(value, (tuple, list)) and any(map(_holds_tensor, value)))


def _reason(module: fx.GraphModule, node: fx.Node, result: Any) -> str | None:
    import torch

    if node.op == "output":
        return None
    if node.op == "placeholder":
        usable = (torch.float32, torch.int32, torch.int64)
        bad = isinstance(result, torch.Tensor) and result.dtype not in usable
        return f"an input of {_dtype(result)}, NCNN takes float32 and indices" if bad else None
    if node.op == "call_module" and _operation(module, node) in _CONTROL_FLOW:
        return "control flow: NCNN runs every layer once, in a fixed order"
    if node.target is operator.getitem and isinstance(node.args[0], type(node)):
        return _index_reason(node.args[1])
    if isinstance(node.target, (type(torch.ops.aten.add), type(torch.ops.aten.add.default))):
        return "an operator of onnx2nn's own, which pnnx does not know"
    reason = _REASONS.get(_operation(module, node))
    if reason is None and isinstance(result, torch.Tensor) and result.dtype != torch.float32:
        return f"computes in {_dtype(result)}, NCNN in float32"
    return reason


def _index_reason(index: Any) -> str | None:
    from torch import fx

    for part in index if isinstance(index, tuple) else (index,):
        if isinstance(part, (fx.Node, list)):
            return _INDEX
    return None


def _operation(module: fx.GraphModule, node: fx.Node) -> str:
    if node.op == "call_module":
        return type(module.get_submodule(str(node.target))).__name__
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))


def _name(module: fx.GraphModule, node: fx.Node) -> str:
    if node.op == "placeholder":
        return f"input {node.name!r}"
    _, kind, name = node.meta.get("onnx", ("", _operation(module, node), node.name))
    return f"{kind} {name!r}"


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _listed(names: Sequence[str]) -> str:
    distinct = list(dict.fromkeys(names))
    more = f" and {len(distinct) - 3} more" if len(distinct) > 3 else ""
    return ", ".join(distinct[:3]) + more
