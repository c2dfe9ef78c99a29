"""Every operator of the op table as a function on torch tensors, by name: `onnx2nn.functional.Gelu(x)`.

The newest revision has the operator's plain name, an older one carries its revision (`Softmax_1`), an operator of
another domain the domain in front (`com_microsoft__BiasGelu`). Imported modules call these where an operator cannot be
written as plain torch calls: it loops over data, or handles strings, sequences or maps.

What reads the values of tensors cannot be traced: torch.export, torch.compile and torch.jit.trace keep it as a call of
`torch.ops.onnx2nn.<name>`, torch.onnx.export as the ONNX operator that it is. A program that holds such a call is
loaded after `import onnx2nn.functional`.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from onnx2nn.table import REQUIRED, Row, load_rows, name_of


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


def _proxy_among(values: Any) -> fx.Proxy | None:
    """Returns a value that stands for one of a graph that torch.fx records, as unpickling a module does.

    The call is then recorded as it is. Names that torch.fx.wrap knows of would do so too, but torch.fx replaces what
    they stand for while it records, which torch.compile does not understand inside the branches of torch.cond.
    """
    for value in values:
        found = _proxy_among(value) if isinstance(value, (list, tuple)) else value
        if isinstance(found, fx.Proxy):
            return found
    return None


def _function(row: Row) -> Any:
    static = [row.input_name(i) in row.static for i in range(len(row.inputs))] if row.static else []

    def run(*inputs: Any, **attributes: Any) -> Any:
        proxy = _proxy_among(inputs)
        if proxy is not None:
            return proxy.tracer.create_proxy("call_function", function, inputs, attributes)
        values = [_plain(v) if i < len(static) and static[i] else v for i, v in enumerate(inputs)]
        device = next((v.device for v in values if isinstance(v, torch.Tensor)), None)
        if device is None or device.type in ("cpu", "meta"):
            return row.run(torch, *values, **attributes)
        with torch.device(device):
            return row.run(torch, *values, **attributes)

    function: Any = _kept_whole(row, run) if row.leaf else run
    function.__name__ = function.__qualname__ = name_of(row)
    function.__module__ = __name__
    function.row = row  # what the call is, for to_python
    function.__doc__ = f"{row}: {row.body.__doc__ or 'see the ONNX specification.'}"
    return function


_KINDS = {"int": "int", "float": "float", "str": "str", "Sequence[int]": "int[]"}
"""Types of attributes, as bodies are annotated with them, in torch's schemas."""


def _kept_whole(row: Row, run: Any) -> Any:
    """Returns `run` in a form that torch traces as one call, without a look at any value."""
    name = f"onnx2nn::{name_of(row)}"
    inputs = [f"Tensor{'' if default is REQUIRED else '?'} {key}" for key, default in row.inputs.items()]
    kinds = inspect.get_annotations(row.body)
    attributes = [f"{_KINDS[kinds[key]]} {key}" for key in row.attributes]
    schema = f"({', '.join([*inputs, '*', *attributes] if attributes else inputs)}) -> Tensor"
    operator = torch.library.custom_op(name, run, mutates_args=(), schema=schema)

    @operator.register_fake
    def _(*values: Any, **given: Any) -> Any:
        ((sizes, dtype),) = row.results(torch, *values, **given)  # type: ignore[misc]  # a leaf has them
        found = [torch.library.get_ctx().new_dynamic_size() if isinstance(size, str) else size for size in sizes]
        return values[0].new_empty(found, dtype=dtype)

    count, defaults = len(row.inputs), dict(row.attributes)
    overload = operator._opoverload

    def function(*values: Any, **given: Any) -> Any:
        if not (torch.compiler.is_compiling() or torch.jit.is_tracing()):
            return run(*values, **given)
        values, given = (*values, *[None] * (count - len(values))), {**defaults, **given}
        if torch.onnx.is_in_onnx_export():
            return _symbolic(row, values, given)
        return overload(*values, **given)

    return function


def _symbolic(row: Row, values: Sequence[Any], attributes: dict[str, Any]) -> Any:
    """Returns what torch.onnx.export writes as the ONNX operator of `row`."""
    ((sizes, dtype),) = row.results(torch, *values, **attributes)  # type: ignore[misc]  # a leaf has them
    name = f"{row.domain}::{row.operator}" if row.domain else row.operator
    symbolic = torch.onnx.ops.symbolic
    # Of any size not known: an Identity may go, and what it is called with then keeps its shape.
    anyhow = [values[0].reshape(-1).nonzero().shape[0] if isinstance(size, str) else size for size in sizes]
    result = symbolic(name, values, attributes, dtype=dtype, shape=anyhow)
    if not any(isinstance(size, str) for size in sizes):
        return result
    found = symbolic("Shape", (result,), dtype=torch.int64, shape=(len(sizes),))  # what reads a size reads it here
    shape: Any = [found[axis].item() if isinstance(size, str) else size for axis, size in enumerate(sizes)]
    for size in shape:
        torch._check(size >= 0)
    return symbolic("Identity", (result,), dtype=dtype, shape=shape)


def __getattr__(name: str) -> Any:
    if not name.startswith("__"):
        for row in load_rows():
            if name_of(row) == name:
                function = globals()[name] = _function(row)
                return function
    raise AttributeError(f"module {__name__!r} has no operator {name!r}")
