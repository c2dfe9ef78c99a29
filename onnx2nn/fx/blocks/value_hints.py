"""Names and annotations for the values of a forward, and names of classes."""

from __future__ import annotations

import re

from torch import fx

from onnx2nn import functional
from onnx2nn.fx.blocks.scopes import Path, is_size
from onnx2nn.ground.naming import identifier
from onnx2nn.optable.row import Row


def suggested_name(node: fx.Node) -> str:
    """Returns a name for the value of a node."""
    if node.op == "placeholder":
        return str(node.target)
    if node.op == "call_module":
        steps = [step for step in str(node.target).split(".") if not step.isdecimal()]
        return (steps or ["x"])[-1]
    if node.op == "get_attr":
        steps = str(node.target).split(".")
        return next((step for step in reversed(steps) if step.isidentifier() and step not in ("weight",)), "weight")
    if node.target is getattr:
        return str(node.args[1])
    if node.target in _VIEWS and isinstance(node.args[0], fx.Node):
        return suggested_name(node.args[0])
    row = row_of(node)
    if row is not None:
        return row.operator.lower()
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "value")
    return _NAMES.get(name.strip("_"), name.strip("_"))


_VIEWS = frozenset({"unsqueeze", "squeeze", "expand", "to", "contiguous"})
"""Calls whose result has the name of their tensor."""

_NAMES = {
    "size": "size", "add": "total", "sub": "difference", "mul": "product", "truediv": "quotient", "cat": "joined",
    "getitem": "part", "matmul": "product", "to": "converted", "reshape": "reshaped", "transpose": "transposed",
    "permute": "permuted", "where": "chosen", "softmax": "weights", "chunk": "parts", "split": "parts",
    "unbind": "parts", "mean": "mean", "sum": "total", "pow": "power", "neg": "negative", "unsqueeze": "widened",
    "squeeze": "squeezed", "expand": "expanded", "floordiv": "quotient", "arange": "positions", "and": "both",
}  # fmt: skip


def annotation(node: fx.Node) -> str:
    """Returns the annotation of a node's value."""
    if is_size(node):
        return "int" if node.target == "size" else "torch.device" if node.args[1] == "device" else "object"
    if node.target is functional.onnx2nn__SizeAt:
        return "int"
    arguments = node.all_input_nodes
    plain = node.op == "call_function" and getattr(node.target, "__module__", "") in ("_operator", "builtins", "math")
    whole = plain or node.target is functional.onnx2nn__SizeFloor
    if whole and arguments and all(annotation(arg) in ("int", "float") for arg in arguments):
        return "float" if getattr(node.target, "__name__", "") == "truediv" else "int"
    return "Tensor"


def row_of(node: fx.Node) -> Row | None:
    """Returns the operator that a call runs as one function, None for any other call."""
    row: Row | None = getattr(node.target, "row", None)
    return row


def class_name_of(path: Path) -> str:
    """Returns a name for the class of the module at a path."""
    words = [step for step in path if not step.isdecimal()][-1:] or ["Model"]
    word = words[0].rstrip("0123456789_-")
    above = [step for step in path[:-1] if not step.isdecimal()]
    if len(word) < 3 and above:
        word = f"{above[-1]}_{word}"  # an `f` or a `c`
    if len(word) > 3 and word.endswith("s") and not word.endswith("ss") and path and path[-1] != words[0]:
        word = word[:-1]  # one of the `layers`
    parts = [part for part in re.split(r"[\W_]+", word) if part] or ["Module"]
    return identifier("".join(part[0].upper() + part[1:] for part in parts))
