"""Rewrites an imported program for torch.onnx.export, which refuses some calls and exports others wrongly."""

from __future__ import annotations

import functools
import math
import operator
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.overrides import TorchFunctionMode

from onnx2nn.control_flow import If
from onnx2nn.fx.exporting.quantised_operators import is_packed, replace_fake_quantize, replace_steps, write_packed
from onnx2nn.fx.exporting.recurrent_operators import (
    RECURRENT_FUNCTIONS,
    RECURRENT_LAYERS,
    called_as,
    replace_function,
    replace_layer,
)
from onnx2nn.fx.exporting.traced_numbers import keep_double
from onnx2nn.fx.modules.deferred import DeferredModule
from onnx2nn.fx.modules.module_tree import children_of
from onnx2nn.layers import FakeQuantize


def for_exporter(module: nn.Module, graph: fx.Graph) -> fx.Graph:
    """Returns a copy of the graph of `module` to trace while torch.onnx.export runs."""
    copied = _rewritten(module, graph)
    if not torch.jit.is_tracing():  # the older exporter writes one branch of an If
        for node, _ in _choices(module, copied):
            with copied.inserting_before(node):
                choice = copied.get_attr(str(node.target))
            node.op, node.target, node.args = "call_function", _choose, (choice, *node.args)
    return copied


def _choices(module: nn.Module, graph: fx.Graph) -> list[tuple[fx.Node, If]]:
    called = ((node, module.get_submodule(str(node.target))) for node in graph.nodes if node.op == "call_module")
    return [(node, layer) for node, layer in called if type(layer) is If]


def _rewritten(module: nn.Module, graph: fx.Graph) -> fx.Graph:
    """Returns a copy of the graph of `module` whose calls, but those of Ifs, are exported correctly."""
    copied = _NamedGraph()
    copied.output(copied.graph_copy(graph, {}))
    older = torch.jit.is_tracing()  # the older exporter writes recurrent layers itself, and ONNX's operators not
    if older:
        keep_double(copied)
    else:
        replace_steps(copied)
    for node in copied.nodes:
        if node.target in RECURRENT_FUNCTIONS and not older:
            replace_function(node)
        elif node.target in _REPLACEMENTS:
            node.target = _REPLACEMENTS[node.target]
        elif node.target in _ARITHMETIC and not older:
            node.target = _precise(node.target)
        elif node.op == "call_function" and hasattr(node.target, "row"):
            node.target = _operator(node.target)
        elif node.op == "call_method" and node.target == "squeeze" and older:
            node.op, node.target = "call_function", _squeeze
        elif node.op == "call_method" and node.target == "sort" and node.kwargs.get("stable"):
            node.op, node.target = "call_function", _sort
        elif node.op == "call_module":
            layer = module.get_submodule(node.target)
            if type(layer) is nn.MultiheadAttention and not layer.training:
                _replace_attention(node, layer)
            elif type(layer) in RECURRENT_LAYERS and not older:
                replace_layer(node, layer)
            elif type(layer) is FakeQuantize and not older:
                replace_fake_quantize(node)
    return copied


class _NamedGraph(fx.Graph):
    """A graph that gives its names as TorchScript's do: the older exporter asks whatever a model has as `graph`."""

    def inputs(self) -> list[_Name]:
        """Returns the names of the arguments."""
        return [_Name(str(node.target)) for node in self.nodes if node.op == "placeholder"]

    def outputs(self) -> list[_Name]:
        """Returns the names of the results."""
        return [_Name(node.name) for node in self.output_node().all_input_nodes]


class _Name(str):
    """A name as a value of TorchScript has it."""

    def debugName(self) -> str:
        """Returns the name."""
        return str(self)


def _operator(function: Any) -> Any:
    """Returns a function of `onnx2nn.functional` in which calls of the body are replaced by `_REPLACEMENTS`."""

    def call(*inputs: Any, **attributes: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():  # inside torch.cond, where Dynamo takes no mode
            return function(*inputs, **attributes)
        if not torch.jit.is_tracing() and is_packed(function.row, inputs, attributes):
            return write_packed(function.row, function, inputs, attributes)
        with _Replaced():
            return function(*inputs, **attributes)

    call.__name__ = call.__qualname__ = function.__name__
    return call


class _Replaced(TorchFunctionMode):
    """Replaces calls of functions in `_REPLACEMENTS`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _REPLACEMENTS.get(func, func)(*args, **(kwargs or {}))


def _distances(x1: Any, x2: Any, p: float = 2.0, compute_mode: str = "") -> Any:
    """`torch.cdist`: the distances between rows of `x1` and `x2`."""
    difference = x1.unsqueeze(-2) - x2.unsqueeze(-3)
    return difference.square().sum(-1).sqrt() if p == 2 else torch.linalg.vector_norm(difference, p, -1)


def _places(sorted_sequence: Any, input: Any, right: bool = False) -> Any:
    """`torch.searchsorted`: the number of sorted numbers before each element of `input`, all of them for NaN."""
    values = input.unsqueeze(-1)
    behind = sorted_sequence > values if right else sorted_sequence >= values
    return (~behind).sum(-1)


def _bags(input: Any, weight: Any, *, mode: str = "mean") -> Any:
    """`torch.nn.functional.embedding_bag` of rows of indices, for which the exporter writes a Loop over the rows.

    ONNX Runtime's CumSum adds one by one as an embedding_bag does; its ReduceSum does not.
    """
    rows = weight[input]
    return rows.cumsum(1)[:, -1] if mode == "sum" else rows.mean(1)


def _floor_division(a: Any, b: Any) -> Any:
    """`a // b` of sizes, of which torch.onnx.export makes a Div, which rounds towards zero.

    The older exporter traces sizes as tensors.
    """
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    if isinstance(a, torch.Tensor):
        return (a - a % b) // b
    if statically_known_true(a >= 0):
        return a // b
    if statically_known_true(a <= 0) and statically_known_true(b > 0):
        return -((b - 1 - a) // b)
    return (a - a % b) // b


def _choose(choice: If, *inputs: Any) -> Any:
    """Calls an If whose branches torch.onnx.export sees in the form that it exports correctly.

    Dynamo, by which `torch.cond` reads them, runs the program of a GraphModule whatever its `__call__` is.
    """
    torch.compiler.allow_in_graph((torch.onnx.ops.symbolic, torch.onnx.ops.symbolic_multi_out))  # Dynamo skips them
    return _exported(choice).forward(*inputs)  # a call of a module that stands nowhere would be a scope


def _exported(choice: If) -> If:
    """Returns an If with the weights that its branches have at this time, which are torch.export's during its trace."""
    then_branch, else_branch = _exported_module(choice.then_branch), _exported_module(choice.else_branch)
    return If(then_branch, else_branch, choice.split, choice.serves, choice.views)


def _exported_module(module: nn.Module) -> nn.Module:
    """Returns a branch, or a module that it calls, with the programs that torch.onnx.export sees."""
    if isinstance(module, If):
        return _exported(module)
    if isinstance(module, nn.Sequential):
        return nn.Sequential(
            OrderedDict((name, _exported_module(inner)) for name, inner in children_of(module).items())
        )
    if not isinstance(module, DeferredModule):
        return module
    graph: fx.Graph = DeferredModule.graph.fget(module)  # type: ignore[attr-defined]  # mypy sees the value, not the property
    copied = fx.GraphModule(module, _rewritten(module, graph))
    for target in {str(node.target) for node in copied.graph.nodes if node.op == "call_module"}:
        copied.set_submodule(target, _exported_module(copied.get_submodule(target)))
    return copied


def _replace_attention(node: fx.Node, layer: nn.MultiheadAttention) -> None:
    """Lets a layer with masks compute `_heads`, which gives torch's results for fully masked rows."""
    padding, mask = (node.kwargs.get(name) for name in ("key_padding_mask", "attn_mask"))
    if node.kwargs.get("need_weights", True) or (padding is None and mask is None):
        return
    with node.graph.inserting_before(node):
        called = node.graph.get_attr(str(node.target))
    node.op, node.target = "call_function", _attention_layer
    node.args, node.kwargs = (called, *node.args, padding, mask), {}


def _attention_layer(layer: nn.MultiheadAttention, *args: Any) -> Any:
    state = [layer.in_proj_weight, layer.out_proj.weight]
    state += [] if layer.in_proj_bias is None else [layer.in_proj_bias, layer.out_proj.bias]
    return called_as(layer, functools.partial(_heads, state, heads=layer.num_heads), *args)


def _heads(
    state: Sequence[Any], query: Any, key: Any, value: Any, padding: Any = None, mask: Any = None, *, heads: int
) -> Any:
    """The forward of an nn.MultiheadAttention, by `_attention`.

    Args:
        state: the packed input weights, the output weights, and the biases of both, if it has biases.
        query: `(L, N, E)`.
        key: `(S, N, E)`.
        value: `(S, N, E)`.
        padding: `(N, S)`, added to the scores, or bool and True for masked keys.
        mask: as `padding`, `(L, S)` or `(N * heads, L, S)`.
        heads: the number of heads.
    """
    weight, out_weight, bias, out_bias = (*state, None, None)[:4]
    if query is key is value:  # one product, by which the packed weights have their keys
        projected = nn.functional.linear(query, weight, bias).chunk(3, -1)
    else:
        biases = (None,) * 3 if bias is None else bias.chunk(3)
        inputs = zip((query, key, value), weight.chunk(3), biases, strict=True)
        projected = tuple(nn.functional.linear(*of) for of in inputs)
    q, k, v = (x.unflatten(-1, (heads, -1)).permute(1, 2, 0, 3) for x in projected)
    shown: Any = 0.0
    if padding is not None:
        shown = shown + _added(padding, q)[:, None, None]
    if mask is not None:
        mask = _added(mask, q)
        shown = shown + (mask if mask.ndim == 2 else mask.unflatten(0, (-1, heads)))
    result = _attention(q, k, v, shown).permute(2, 0, 1, 3).flatten(2)
    return (nn.functional.linear(result, out_weight, out_bias),)


def _added(mask: Any, like: Any) -> Any:
    return torch.where(mask, -math.inf, 0.0).to(like.dtype) if mask.dtype == torch.bool else mask


def _attention(query: Any, key: Any, value: Any, attn_mask: Any = None, *others: Any, **options: Any) -> Any:
    """Attention for torch.onnx.export, which supports it in four dimensions and without a mask.

    A fully masked row (of padding) is 0 in torch. The exporter's translation gives NaN, or an average, because it
    replaces -inf by the smallest number. The form below works with the TorchScript exporter too.
    """
    if (attn_mask is not None or query.ndim > 4) and not others and options.keys() <= {"scale"}:
        scale = query.size(-1) ** -0.5 if options.get("scale") is None else options["scale"]
        scores = (query * scale) @ key.transpose(-2, -1)
        if attn_mask is None:
            return torch.softmax(scores, -1) @ value
        is_bool = attn_mask.dtype == torch.bool
        shown = torch.where(attn_mask, 0.0, -math.inf).to(query.dtype) if is_bool else attn_mask
        weights = torch.softmax(scores + shown, -1)
        return torch.where(weights.isnan(), 0.0, weights) @ value
    missing = 4 - query.ndim
    for _ in range(missing):
        query, key, value = query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0)
    result = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask, *others, **options)
    for _ in range(missing):
        result = result.squeeze(0)
    return result


def _absolute(input: Any) -> Any:
    """`torch.abs`: of 16-bit floats the exporter writes the Abs of a float32, and leaves it so."""
    if input.dtype not in (torch.float16, torch.bfloat16) or torch.jit.is_tracing():
        return torch.abs(input)
    return torch.onnx.ops.symbolic("Abs", (input,), dtype=input.dtype, shape=input.shape)


def _shift(direction: str, function: Any) -> Any:
    """Returns `function`, a shift of bits; of bytes the exporter writes one of signed numbers."""

    def shifted(input: Any, other: Any) -> Any:
        bytes_ = all(isinstance(value, torch.Tensor) and value.dtype == torch.uint8 for value in (input, other))
        if not bytes_ or torch.jit.is_tracing():
            return function(input, other)
        shape = torch.broadcast_shapes(input.shape, other.shape)
        options: Any = {"dtype": torch.uint8, "shape": shape}
        return torch.onnx.ops.symbolic("BitShift", (input, other), {"direction": direction}, **options)

    return shifted


def _cross_entropy(input: Any, target: Any, weight: Any = None, *, reduction: str = "mean", **options: Any) -> Any:
    """`torch.nn.functional.cross_entropy`: the newer exporter takes losses of samples for a single number."""
    if reduction != "none":
        return nn.functional.cross_entropy(input, target, weight, reduction=reduction, **options)
    return _likelihood(nn.functional.log_softmax(input, 1), target, weight, reduction=reduction, **options)


def _likelihood(
    input: Any, target: Any, weight: Any = None, *, ignore_index: int = -100, reduction: str = "mean"
) -> Any:
    """`torch.nn.functional.nll_loss`, likewise."""
    if reduction != "none":
        return nn.functional.nll_loss(input, target, weight, ignore_index=ignore_index, reduction=reduction)
    counts = target != ignore_index
    classes = target.where(counts, 0)
    loss = -input.gather(1, classes.unsqueeze(1)).squeeze(1)
    return (loss if weight is None else loss * weight[classes]).where(counts, 0.0)


_REPLACEMENTS = {
    torch.abs: _absolute,
    torch.bitwise_left_shift: _shift("LEFT", torch.bitwise_left_shift),
    torch.bitwise_right_shift: _shift("RIGHT", torch.bitwise_right_shift),
    nn.functional.scaled_dot_product_attention: _attention,
    torch.cdist: _distances,
    nn.functional.embedding_bag: _bags,
    nn.functional.cross_entropy: _cross_entropy,
    nn.functional.nll_loss: _likelihood,
    torch.searchsorted: _places,
    operator.floordiv: _floor_division,
}
"""Replacements for calls that torch.onnx.export cannot export."""


_ARITHMETIC = frozenset(
    {
        *(operator.add, operator.sub, operator.mul, operator.truediv),
        *(operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne),
    }
)


@functools.cache
def _precise(function: Any) -> Any:
    """Returns an operator for the newer exporter, which rounds a number beside a tensor of float64 to float32."""

    def call(*operands: Any) -> Any:
        if not any(isinstance(operand, torch.Tensor) and operand.dtype is torch.float64 for operand in operands):
            return function(*operands)
        wide = (torch.tensor(v, dtype=torch.float64) if isinstance(v, float) else v for v in operands)
        return function(*wide)

    call.__name__ = call.__qualname__ = function.__name__
    return call


def _squeeze(input: Any, dim: Any = None) -> Any:
    """`Tensor.squeeze`: the older exporter takes one dimension at a time."""
    if not isinstance(dim, (list, tuple)):
        return input.squeeze() if dim is None else input.squeeze(dim)
    for axis in sorted((axis % input.ndim for axis in dim), reverse=True):
        input = input.squeeze(axis)
    return input


def _sort(input: Any, dim: int = -1, descending: bool = False, stable: bool = True) -> Any:
    """A stable sort for torch.onnx.export: the TopK of all elements, which orders equal values by index."""
    return input.topk(input.size(dim), dim, descending)
