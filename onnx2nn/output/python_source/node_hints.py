"""Names and annotations for the values of a forward."""

from __future__ import annotations

from torch import fx

from onnx2nn import functional
from onnx2nn.output.python_source.program import is_size, row_of


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
    row = row_of(node)
    if row is not None:
        return row.operator.lower()
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "value")
    return _NAMES.get(name.strip("_"), name.strip("_"))


_NAMES = {
    "size": "size", "add": "total", "sub": "difference", "mul": "product", "truediv": "quotient", "cat": "joined",
    "getitem": "part", "matmul": "product", "to": "converted", "reshape": "reshaped", "transpose": "transposed",
    "permute": "permuted", "where": "chosen", "softmax": "weights", "chunk": "parts", "split": "parts",
    "unbind": "parts", "mean": "mean", "sum": "total", "pow": "power", "neg": "negative", "unsqueeze": "widened",
    "squeeze": "squeezed", "expand": "expanded", "floordiv": "quotient", "arange": "positions", "and": "both",
}  # fmt: skip


def annotation(node: fx.Node) -> str:
    """Returns the annotation of a node's value."""
    if node.target == "size":
        return "int"
    if is_size(node):
        return "torch.device" if node.args[1] == "device" else "object"
    if node.target is functional.onnx2nn__SizeAt:
        return "int"
    arguments = node.all_input_nodes
    plain = node.op == "call_function" and getattr(node.target, "__module__", "") in ("_operator", "builtins", "math")
    whole = plain or node.target is functional.onnx2nn__SizeFloor
    if whole and arguments and all(annotation(arg) in ("int", "float") for arg in arguments):
        return "float" if getattr(node.target, "__name__", "") == "truediv" else "int"
    return "Tensor"
