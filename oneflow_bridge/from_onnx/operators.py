"""Every operator of the op table as a function on run time values, by its Python name: `operators.NonZero(x)`.

Imported modules call these functions for operators whose calls depend on values or sizes. Values are namespace tensors,
shape values (`ShapeValues`), sequences (lists), strings (numpy object arrays) and None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from oneflow_bridge import namespace as F
from oneflow_bridge.namespace.tensor import Tensor
from onnx2nn.errors import OperatorError
from onnx2nn.importing.node_facts import body_arguments
from onnx2nn.optable.registry import name_function, row_named
from onnx2nn.optable.row import NeedsValues, Row
from onnx2nn.optable.shape_values import ShapeValues, evaluate


def host(values: Any, dtype: str) -> ShapeValues:
    """Returns constant numbers, nested lists, as shape values."""
    array = np.asarray(values, dtype=dtype)
    return ShapeValues(array.astype(object), array.dtype)


def apply(row: Row, inputs: Sequence[Any], attributes: dict[str, Any]) -> Any:
    """Returns the results of `row` on run time values.

    Raises:
        OperatorError: the row cannot compute them.
    """
    if row.reads_shape and isinstance(inputs[0], Tensor):
        assert row.on_shape_values is not None
        return ShapeValues(np.asarray(row.on_shape_values(inputs[0], **attributes), dtype=object), np.dtype(np.int64))
    present = [value for value in inputs if value is not None]
    if row.on_shape_values is not None and present and all(isinstance(value, ShapeValues) for value in present):
        arrays = [None if value is None else value.array for value in inputs]
        dtypes = [None if value is None else value.dtype for value in inputs]
        try:
            return evaluate(row, arrays, dtypes, attributes)
        except NeedsValues:
            pass
    try:
        return row.run(F, *body_arguments(row, inputs, as_tensor, lambda name, value: _plain(value)), **attributes)
    except NeedsValues as error:
        raise OperatorError(f"{row} needs values that it cannot read: {error}.") from None


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


def as_tensor(value: Any) -> Any:
    """Returns shape values, also in a sequence, as tensors; any other value as it is."""
    if isinstance(value, ShapeValues):
        return F.from_numpy(value.array.astype(value.dtype))
    return [as_tensor(item) for item in value] if isinstance(value, list) else value


def _function(row: Row) -> Callable[..., Any]:
    def function(*inputs: Any, **attributes: Any) -> Any:
        return apply(row, inputs, attributes)

    name_function(function, row, __name__)
    return function


def __getattr__(name: str) -> Any:
    row = row_named(name)
    if row is None:
        raise AttributeError(f"module {__name__!r} has no operator {name!r}")
    function = globals()[name] = _function(row)
    return function
