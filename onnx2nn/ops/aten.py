"""Nodes that name an ATen operator, which PyTorch's exporters write where ONNX has no operator (`org.pytorch.aten`)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from onnx2nn.errors import OperatorError
from onnx2nn.optable.registry import op
from onnx2nn.optable.row import NeedsValues

_FORMER: dict[str, dict[str, Any]] = {
    "grid_sampler": {"align_corners": True},
    "affine_grid_generator": {"align_corners": True},
}
"""Operators → arguments that PyTorch 1.2 did not have yet, with the values that match its behaviour."""


def _schema(operator: str, overload_name: str, inputs: int, names: set[str]) -> Any:
    """Returns the schema of the first overload of `aten::operator` that takes the inputs and the named arguments.

    Private operators, operators that write into their arguments, and operators without a tensor argument (such as
    `from_file`) are refused: no exporter writes them, and a file must not do more than compute.
    """
    try:
        import torch
    except ImportError:
        raise OperatorError("ATen is an operator of PyTorch, which is not installed. Install it.") from None
    packet = None if operator.startswith("_") else getattr(torch.ops.aten, operator, None)
    if packet is None:
        raise OperatorError(f"PyTorch {torch.__version__} has no public operator aten::{operator}.")
    overloads = [name for name in packet.overloads() if overload_name in ("", name)]
    for schema in (getattr(packet, name)._schema for name in overloads):
        if schema.is_mutable or not any("Tensor" in str(argument.type) for argument in schema.arguments):
            continue
        places = _places(schema, names)
        fits = inputs <= len(places) or _ends_in_list(places)
        known = names <= {argument.name for argument in schema.arguments}
        if known and fits and _may_lack(operator, places[inputs:]):
            return schema
    given = f"{inputs} inputs" + "".join(f", {name}" for name in sorted(names))
    raise OperatorError(
        f"PyTorch {torch.__version__} has no overload {overload_name!r} of aten::{operator} that takes {given} and "
        "does nothing but compute a result from tensors."
    )


def _ends_in_list(places: Sequence[Any]) -> bool:
    """Whether the last argument is a list of tensors, whose items may be inputs of their own."""
    return bool(places) and "List" in str(places[-1].type) and "Tensor" in str(places[-1].type)


def _places(schema: Any, names: Collection[str]) -> list[Any]:
    """Returns the arguments that the inputs fill; an argument behind a list of tensors can only be given by name."""
    places = [argument for argument in schema.arguments if argument.name not in names]
    behind = [argument for argument in places if not argument.kwarg_only]
    return behind if _ends_in_list(behind) else places


def _may_lack(operator: str, arguments: Sequence[Any]) -> bool:
    """Returns whether all of the arguments, which the node does not give, can be left out."""
    former = _FORMER.get(operator, {})
    return all(a.has_default_value() or str(a.type).startswith("Optional") or a.name in former for a in arguments)


def _argument(F: Any, argument: Any, value: Any) -> Any:
    """Returns a value as `argument` takes it: a tensor as it is, otherwise a Python value."""
    kind = str(argument.type)
    kind = kind[len("Optional[") : -1] if kind.startswith("Optional[") else kind
    if value is None or "Tensor" in kind:
        return argument.default_value if value is None and argument.has_default_value() else value
    if kind == "str" and not isinstance(value, str):
        return value.item()
    if hasattr(value, "dtype"):
        if not isinstance(value, F.Tensor):
            raise NeedsValues(f"argument {argument.name} is computed from data")
        value = value.tolist()
    if isinstance(value, list) and len(value) == 1 and not kind.startswith("List"):
        value = value[0]
    if kind in ("List[int]", "int") and _is_whole(value):  # PyTorch 1.2 computes sizes in floats
        value = [int(item) for item in value] if isinstance(value, list) else int(value)
    return bool(value) if kind == "bool" else value


def _is_whole(value: Any) -> bool:
    items = value if isinstance(value, list) else [value]
    return all(isinstance(item, float) and item.is_integer() for item in items)


@op("ATen", 1, domain="org.pytorch.aten")
@op("ATen", 1)
def aten(F: Any, *inputs: Any, operator: str, overload_name: str = "", _outputs: int = 1, **arguments: Any) -> Any:
    """An ATen operator: attributes are its arguments by name, inputs the other arguments in order.

    Source: PyTorch's native_functions, the schema of the installed version.
    """
    schema = _schema(operator, overload_name, len(inputs), set(arguments))
    places = _places(schema, arguments)
    last = len(places) - 1
    if _ends_in_list(places) and not any(isinstance(value, (list, tuple)) for value in inputs[last:]):
        inputs = (*inputs[:last], list(inputs[last:]))
    by_name = {argument.name: argument for argument in schema.arguments}
    given = {argument.name: value for argument, value in zip(places, inputs, strict=False)} | arguments
    values = {name: _argument(F, by_name[name], value) for name, value in given.items()}
    left_out = {name: None for name, a in by_name.items() if name not in values and not a.has_default_value()}
    left_out |= {name: value for name, value in _FORMER.get(operator, {}).items() if name in left_out}
    results = getattr(F.ops.aten, operator)(**left_out, **values)
    if not isinstance(results, (tuple, list)):
        return results
    return tuple(results[:_outputs]) if _outputs > 1 else results[0]
