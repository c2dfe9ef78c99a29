"""Names and annotations for the values of a forward, and names of classes."""

from __future__ import annotations

import operator
import re

from torch import fx, nn

from onnx2nn import functional
from onnx2nn.fx.blocks.scopes import is_size
from onnx2nn.ground.naming import identifier, is_attribute
from onnx2nn.importing.regions import Path
from onnx2nn.optable.row import Row


def argument_name(node: fx.Node) -> str:
    """Returns a name for the argument to which the value of a node is given, in lower case as torch names values."""
    return _WORD.sub("_", suggested_name(node)).lower()


def suggested_name(node: fx.Node) -> str:
    """Returns a name for the value of a node."""
    if node.op == "placeholder":
        return str(node.target)
    if node.op == "call_module":
        steps = [step for step in str(node.target).split(".") if step.isidentifier()]  # a second `6` is `6_1`
        return identifier(_WORD.sub("_", (steps or ["x"])[-1]).lower())
    if node.op == "get_attr":
        steps = str(node.target).split(".")
        return next((step for step in reversed(steps) if step.isidentifier() and step not in ("weight",)), "weight")
    if node.target is getattr:
        return str(node.args[1])
    if (node.target in _VIEWS or _inserts_dimensions(node)) and isinstance(node.args[0], fx.Node):
        return suggested_name(node.args[0])
    row = row_of(node)
    if row is not None:
        return identifier(row.operator.lower())
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "value")
    return _NAMES.get(name.strip("_"), name.strip("_"))


_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
"""Where a word begins in the name of a module: `LayerNorm`."""


def _inserts_dimensions(node: fx.Node) -> bool:
    """Returns whether a node is `x[:, None]`."""
    index = node.args[1] if node.target is operator.getitem else None
    return isinstance(index, tuple) and all(item is None or item == slice(None) for item in index)


_VIEWS = frozenset({"unsqueeze", "squeeze", "expand", "to", "contiguous"})
"""Calls whose result has the name of their tensor."""

_NAMES = {
    "size": "size", "add": "total", "sub": "difference", "mul": "product", "truediv": "quotient", "cat": "joined",
    "getitem": "part", "matmul": "product", "to": "converted", "reshape": "reshaped", "transpose": "transposed",
    "permute": "permuted", "where": "chosen", "softmax": "weights", "chunk": "parts", "split": "parts",
    "unbind": "parts", "mean": "mean", "sum": "total", "pow": "power", "neg": "negative", "unsqueeze": "widened",
    "squeeze": "squeezed", "expand": "expanded", "floordiv": "quotient", "arange": "positions",
    "logical_and": "mask", "logical_or": "mask", "logical_not": "mask", "flatten": "flattened",
}  # fmt: skip


def annotation(node: fx.Node, known: dict[fx.Node, str] | None = None) -> str:
    """Returns the annotation of a node's value.

    Args:
        node: any node.
        known: the annotations of other nodes, to which this one and those that it depends on are added.
    """
    known = {} if known is None else known
    pending = [node]
    while pending:  # without recursion, as networks are deep
        last = pending[-1]
        if last not in known:
            operands = _operands(last)
            if unknown := [operand for operand in operands if operand not in known]:
                pending += unknown
                continue
            known[last] = _annotation(last, [known[operand] for operand in operands])
        pending.pop()
    return known[node]


def _operands(node: fx.Node) -> list[fx.Node]:
    """Returns the values of which a call computes a number if all of them are numbers; none for any other call."""
    plain = node.op == "call_function" and getattr(node.target, "__module__", "") in ("_operator", "builtins", "math")
    whole = (plain and node.target is not getattr) or node.target is functional.onnx2nn__SizeFloor
    return node.all_input_nodes if whole else []


def _annotation(node: fx.Node, operands: list[str]) -> str:
    if is_size(node):
        return "int" if node.target == "size" else "torch.device" if node.args[1] == "device" else "object"
    if node.target in _SIZES:
        return "int"
    if operands and {"int", "float"}.issuperset(operands):
        return "float" if getattr(node.target, "__name__", "") == "truediv" else "int"
    return "Tensor"


_SIZES = {functional.onnx2nn__SizeAt, functional.onnx2nn__SizeMin, functional.onnx2nn__SizeMax}
_SIZES |= {functional.onnx2nn__SizeWhere, functional.onnx2nn__SizeIf}
"""Functions that give a size."""


def row_of(node: fx.Node) -> Row | None:
    """Returns the operator that a call runs as one function, None for any other call."""
    row: Row | None = getattr(node.target, "row", None)
    return row


def class_name_of(path: Path, noted: str = "") -> str:
    """Returns a name for the class of the module at a path: what the file notes, where it is none of torch's."""
    if is_attribute(noted) and not hasattr(nn, noted):
        return noted
    words = [step for step in path if not step.isdecimal()][-1:] or ["Model"]
    word = words[0].rstrip("0123456789_-")
    above = [step for step in path[:-1] if not step.isdecimal()]
    if len(word) < 3 and above:
        word = f"{above[-1]}_{word}"  # an `f` or a `c`
    if len(word) > 3 and word.endswith("s") and not word.endswith("ss") and path and path[-1] != words[0]:
        word = word[:-1]  # one of the `layers`
    parts = [part for part in re.split(r"[\W_]+", word) if part] or ["Module"]
    return identifier("".join(part[0].upper() + part[1:] for part in parts))
