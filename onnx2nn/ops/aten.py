"""Nodes that hold an operator of PyTorch, which its exporters write where ONNX has none (`org.pytorch.aten`)."""

from __future__ import annotations

from typing import Any

from onnx2nn.errors import OperatorError
from onnx2nn.table import NeedsValues, op


def _schema(operator: str, overload_name: str, inputs: int, names: set[str]) -> Any:
    """Returns the schema of the first overload of `aten::operator` that has as many inputs and arguments of the names.

    Refused are operators that write into their arguments, PyTorch's private ones, and those that take no tensor
    (`from_file` among them): no exporter writes them, and a file must not do more than compute.
    """
    try:
        import torch
    except ImportError:
        raise OperatorError("it holds an operator of PyTorch, which is not installed.") from None
    packet = None if operator.startswith("_") else getattr(torch.ops.aten, operator, None)
    if packet is None:
        raise OperatorError(f"PyTorch {torch.__version__} has no public operator aten::{operator}.")
    overloads = [name for name in packet.overloads() if overload_name in ("", name)]
    for schema in (getattr(packet, name)._schema for name in overloads):
        if schema.is_mutable or not any("Tensor" in str(argument.type) for argument in schema.arguments):
            continue
        known = {argument.name for argument in schema.arguments}
        if names <= known and (inputs <= len(schema.arguments) or _spread(schema, names) is not None):
            return schema
    given = f"{inputs} inputs" + "".join(f", {name}" for name in sorted(names))
    raise OperatorError(
        f"PyTorch {torch.__version__} has no form {overload_name!r} of aten::{operator} that takes {given} and does "
        "nothing but compute a result from tensors."
    )


def _spread(schema: Any, names: set[str]) -> int | None:
    """Returns the place of a list of tensors that may stand among the inputs item by item.

    It may where nothing can stand behind it: what does is among the attributes.
    """
    for place, argument in enumerate(schema.arguments):
        if "List" in str(argument.type) and "Tensor" in str(argument.type):
            return place if all(other.name in names for other in schema.arguments[place + 1 :]) else None
    return None


def _argument(F: Any, argument: Any, value: Any) -> Any:
    """Returns what an operator takes as `argument`: a tensor as it is, or the Python value that it stands for."""
    kind = str(argument.type).removeprefix("Optional[").removesuffix("]")
    if value is None or "Tensor" in kind:
        return argument.default_value if value is None and argument.has_default_value() else value
    if hasattr(value, "dtype"):
        if not isinstance(value, F.Tensor):
            raise NeedsValues(f"argument {argument.name}")
        value = value.tolist()
    if isinstance(value, list) and len(value) == 1 and not kind.startswith("List"):
        value = value[0]
    return bool(value) if kind == "bool" else value


@op("ATen", 1, domain="org.pytorch.aten")
@op("ATen", 1)
def aten(F: Any, *inputs: Any, operator: str, overload_name: str = "", _outputs: int = 1, **arguments: Any) -> Any:
    """PyTorch's own operator: inputs are its first arguments in order, other attributes those of their names.

    Source: PyTorch's native_functions, the schema of the installed version.
    """
    schema = _schema(operator, overload_name, len(inputs), set(arguments))
    place = _spread(schema, set(arguments))
    if place is not None and not any(isinstance(value, (list, tuple)) for value in inputs):
        inputs = (*inputs[:place], list(inputs[place:]))
    pairs = zip(schema.arguments, inputs, strict=False)
    values = {argument.name: _argument(F, argument, value) for argument, value in pairs}
    by_name = {argument.name: argument for argument in schema.arguments}
    values |= {name: _argument(F, by_name[name], value) for name, value in arguments.items()}
    left_out = {name: None for name, a in by_name.items() if name not in values and not a.has_default_value()}
    results = getattr(F.ops.aten, operator)(**left_out, **values)
    if not isinstance(results, (tuple, list)):
        return results
    return tuple(results[:_outputs]) if _outputs > 1 else results[0]
