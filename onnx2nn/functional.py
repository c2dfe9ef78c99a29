"""Every operator of the op table as a function on torch tensors, by name: `onnx2nn.functional.Gelu(x)`.

The newest revision has the operator's name; an older revision appends its number (`Softmax_1`), another domain than
ai.onnx is a prefix (`com_microsoft__BiasGelu`). Imported modules call these functions for operators that are no fixed
list of torch calls: data-dependent loops, strings, sequences and maps.

An operator that reads the values of tensors cannot be traced. It is a custom op: torch.export, torch.compile and
torch.jit.trace record a call of `torch.ops.onnx2nn.<name>`, torch.onnx.export writes the ONNX operator. Import
`onnx2nn.operators` before loading a program with such calls.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import fx

from onnx2nn.errors import OperatorError
from onnx2nn.ground.device_placement import placed
from onnx2nn.ops.machine_code import machine_code
from onnx2nn.optable.registry import name_function, name_of, row_named
from onnx2nn.optable.row import REQUIRED, Row, in_onnx_export


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.ndim == 1 and value.shape[0] == 0:
        return []  # torch.export would record a call without results, which it cannot read back
    return value.tolist() if hasattr(value, "tolist") else value


def _special(values: Iterable[Any]) -> fx.Proxy | torch.device | None:
    """Returns a proxy among the values, else the device of the first tensor that has elements, but not on the CPU.

    There are proxies in torch.fx's tracing, which unpickling a module does too. The caller then records its call as one
    node. torch.fx.wrap would do so too, but it replaces functions during tracing, which torch.compile does not support
    inside the branches of torch.cond.
    """
    device = None
    for value in values:
        if isinstance(value, torch.Tensor):
            if device is None and not (value.is_cpu or value.is_meta):
                device = value.device
        elif isinstance(value, fx.Proxy):
            return value
        elif isinstance(value, (list, tuple)):
            found = _special(value)
            if isinstance(found, fx.Proxy):
                return found
            device = device or found
    return device


def _function(row: Row) -> Any:
    static = [row.input_name(i) in row.static for i in range(len(row.inputs))] if row.static else []

    def run(*inputs: Any, **attributes: Any) -> Any:
        found = _special((*inputs, *attributes.values()))
        if isinstance(found, fx.Proxy):
            return found.tracer.create_proxy("call_function", function, inputs, attributes)
        values = [_plain(v) if i < len(static) and static[i] else v for i, v in enumerate(inputs)] if static else inputs
        if found is None:
            return row.run(torch, *values, **attributes)
        with found:  # what a body makes of numbers is there; what it computes with NumPy is not
            return placed(row.run(torch, *values, **attributes), found)

    function: Any = _as_custom_op(row, run) if row.custom_op else run
    name_function(function, row, __name__)
    function.row = row  # `to_python` inlines its body
    return function


_KINDS = {"int": "int", "float": "float", "str": "str"}
_KINDS |= {f"Sequence[{kind}]": f"{kind}[]" for kind in ("int", "float")} | {"Sequence[str]": "str"}
_KINDS |= {f"{annotation} | None": f"{kind}?" for annotation, kind in _KINDS.items()}
"""Annotations of attributes in row bodies → types in torch's schemas.

Strings are joined into one, as torch.jit.trace has no list of strings.
"""


def _as_custom_op(row: Row, run: Any) -> Any:
    """Returns `run` as a custom op of torch, which is traced as one call without its values."""
    name = f"onnx2nn::{name_of(row)}"
    several = "_outputs" in row.facts
    inputs = ", ".join(f"Tensor{'' if default is REQUIRED else '?'} {key}" for key, default in row.inputs.items())
    parameters = inspect.signature(row.body).parameters
    kinds = {key: parameter.annotation for key, parameter in parameters.items()}
    named = [f"{_KINDS[kinds[key]]} {key}" for key in (*row.attributes, *row.facts)]
    arguments = ", ".join([inputs, "*", *named] if named else [inputs])
    schema = f"({arguments}) -> Tensor{'[]' * several}"
    texts = {key for key in row.attributes if kinds[key].startswith("Sequence[str]")}

    def evaluate(*values: Any, **given: Any) -> Any:
        found = run(*values, **{k: v.split() if k in texts and v is not None else v for k, v in given.items()})
        return (list(found) if isinstance(found, tuple) else [found]) if several else found

    operator = torch.library.custom_op(name, evaluate, mutates_args=(), schema=schema)

    @operator.register_fake
    def _(*values: Any, **given: Any) -> Any:
        found = [values[0].new_empty(_new_sizes(sizes), dtype=dtype) for sizes, dtype in _results(row, values, given)]
        return found if several else found[0]

    _make_differentiable(operator, arguments, evaluate)
    count, defaults = len(row.inputs), {key: parameters[key].default for key in (*row.attributes, *row.facts)}
    overload = operator._opoverload

    def function(*values: Any, **given: Any) -> Any:
        if not (torch.compiler.is_compiling() or torch.jit.is_tracing()) or _loops_inside(row, values):
            return run(*values, **given)
        values, given = (*values, *[None] * (count - len(values))), {**defaults, **given}
        if in_onnx_export():
            found = _symbolic(row, values, given)
        else:
            found = overload(*values, **{k: " ".join(v) if k in texts and v else v for k, v in given.items()})
        return found if not isinstance(found, (list, tuple)) else tuple(found) if len(found) > 1 else found[0]

    return function


def _loops_inside(row: Row, values: Sequence[Any]) -> bool:
    """Returns whether a program of machine code has the loop of a recurrent layer: over whole sequences.

    Peepholes are views of one tensor, which torch.while_loop refuses.
    """
    if "loops_over_time" not in row.traits or machine_code(torch) is None:
        return False
    named = dict(zip(row.inputs, values, strict=False))
    return named.get("sequence_lens") is None and named.get("P") is None


def _results(row: Row, values: Sequence[Any], given: Any) -> Sequence[tuple[Sequence[Any], torch.dtype]]:
    """Returns shape and dtype of each output of a custom op that the node has."""
    assert row.results is not None, "a custom op declares its results"
    return row.results(torch, *values, **given)[: given.get("_outputs")]


def _new_sizes(sizes: Sequence[Any]) -> list[Any]:
    return [torch.library.get_ctx().new_dynamic_size() if isinstance(size, str) else size for size in sizes]


def _make_differentiable(operator: Any, arguments: str, evaluate: Any) -> None:
    """Registers the gradient of a custom op: a second custom op that evaluates the body again and differentiates it."""

    def inside(gradients: Sequence[Any], *values: Any, **given: Any) -> list[torch.Tensor]:
        with ThreadPoolExecutor(1) as thread:  # a new thread, as torch records no gradients inside a custom op
            return thread.submit(differentiate, gradients, *values, **given).result()

    def differentiate(gradients: Sequence[Any], *values: Any, **given: Any) -> list[torch.Tensor]:
        values = tuple(value if value is None else value.detach() for value in values)
        floats = [value.requires_grad_() for value in _floats(values)]
        found = evaluate(*values, **given)
        pairs = zip(found if isinstance(found, list) else [found], gradients, strict=True)
        outputs, seeds = zip(*((y, dy) for y, dy in pairs if dy is not None and y.requires_grad), strict=True)
        results = torch.autograd.grad(outputs, floats, seeds, allow_unused=True)
        pairs = zip(floats, results, strict=True)  # copies in the layout of the values, as the fake declares
        return [torch.zeros_like(x) if dx is None else torch.empty_like(x).copy_(dx) for x, dx in pairs]

    schema = f"(Tensor?[] gradients, {arguments}) -> Tensor[]"
    backwards = torch.library.custom_op(f"{operator._qualname}_backward", inside, mutates_args=(), schema=schema)

    @backwards.register_fake
    def _(gradients: Sequence[Any], *values: Any, **given: Any) -> list[torch.Tensor]:
        return [torch.empty_like(value) for value in _floats(values)]

    def keep(ctx: Any, inputs: Any, output: Any, keyword_only_inputs: Any = None) -> None:
        ctx.given, ctx.there = keyword_only_inputs or {}, [value is not None for value in inputs]
        ctx.save_for_backward(*[value for value in inputs if value is not None])

    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        saved = iter(ctx.saved_tensors)
        values = [next(saved) if there else None for there in ctx.there]
        given = gradients[0] if isinstance(gradients[0], list) else list(gradients)
        results = iter(backwards(given, *values, **ctx.given))
        return tuple(next(results) if value is not None and value.is_floating_point() else None for value in values)

    operator.register_autograd(backward, setup_context=keep)


def _floats(values: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
    return [value for value in values if value is not None and value.is_floating_point()]


def _symbolic(row: Row, values: Sequence[Any], given: dict[str, Any]) -> Any:
    """Returns a call that torch.onnx.export writes as the ONNX operator of `row`.

    Raises:
        OperatorError: torch's older exporter runs, which lacks such calls.
    """
    name = f"{row.domain}::{row.operator}" if row.domain else row.operator
    if torch.jit.is_tracing():
        raise OperatorError(
            f"torch's older exporter cannot write {name}. "
            "Use onnx2nn.export_onnx, or torch.onnx.export with dynamo=True."
        )
    results = _results(row, values, given)
    attributes = {name: item for name, item in given.items() if name in row.attributes and item is not None}
    symbolic = torch.onnx.ops.symbolic
    if "_outputs" in row.facts:
        dtypes, shapes = [dtype for _, dtype in results], [sizes for sizes, _ in results]
        return torch.onnx.ops.symbolic_multi_out(name, values, attributes, dtypes=dtypes, shapes=shapes)
    ((sizes, dtype),) = results
    # A data-dependent size of its own, as the exporter may remove the Identity below, whose input then has its shape.
    anyhow = [values[0].reshape(-1).nonzero().shape[0] if isinstance(size, str) else size for size in sizes]
    result = symbolic(name, values, attributes, dtype=dtype, shape=anyhow)
    if not any(isinstance(size, str) for size in sizes):
        return result
    found = symbolic("Shape", (result,), dtype=torch.int64, shape=(len(sizes),))  # later nodes read sizes from here
    shape: Any = [found[axis].item() if isinstance(size, str) else size for axis, size in enumerate(sizes)]
    for size in shape:
        torch._check(size >= 0)
    return symbolic("Identity", (result,), dtype=dtype, shape=shape)


def __getattr__(name: str) -> Any:
    row = row_named(name)
    if row is None:
        raise AttributeError(f"module {__name__!r} has no operator {name!r}")
    function = globals()[name] = _function(row)
    return function
