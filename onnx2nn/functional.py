"""Every operator of the op table as a function on torch tensors, by name: `onnx2nn.functional.Gelu(x)`.

The newest revision has the operator's plain name, an older one carries its revision (`Softmax_1`), an operator of
another domain the domain in front (`com_microsoft__BiasGelu`). Imported modules call these where an operator cannot be
written as plain torch calls: it loops over data, or handles strings, sequences or maps.
"""

from __future__ import annotations

from typing import Any

import torch

from onnx2nn.table import Row, load_rows, name_of


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


def _function(row: Row) -> Any:
    static = [row.input_name(i) in row.static for i in range(len(row.inputs))] if row.static else []

    def function(*inputs: Any, **attributes: Any) -> Any:
        values = [_plain(v) if i < len(static) and static[i] else v for i, v in enumerate(inputs)]
        device = next((v.device for v in values if isinstance(v, torch.Tensor)), None)
        if device is None or device.type in ("cpu", "meta"):
            return row.run(torch, *values, **attributes)
        with torch.device(device):
            return row.run(torch, *values, **attributes)

    function.__name__ = function.__qualname__ = name_of(row)
    function.__module__ = __name__
    function.row = row  # type: ignore[attr-defined]  # what the call is, for to_python
    function.__doc__ = f"{row}: {row.body.__doc__ or 'see the ONNX specification.'}"
    return function


def __getattr__(name: str) -> Any:
    if not name.startswith("__"):
        for row in load_rows():
            if name_of(row) == name:
                function = globals()[name] = _function(row)
                return function
    raise AttributeError(f"module {__name__!r} has no operator {name!r}")
