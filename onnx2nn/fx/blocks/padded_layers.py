"""The padding that the author of a convolution calls in it."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from torch import fx, nn
from torch.nn import functional as F

from onnx2nn.fx.blocks.activations import module_of
from onnx2nn.fx.blocks.block import BLOCK_ATTRIBUTES
from onnx2nn.fx.blocks.program import Call, Program, Value
from onnx2nn.fx.blocks.scopes import Scoped, arithmetic, declared_class, name_inside, numbers, size_expressions
from onnx2nn.ground.naming import without_call_number
from onnx2nn.importing.regions import Path
from onnx2nn.sizes.expression import Size
from onnx2nn.sizes.linear import slope


@dataclass(frozen=True)
class Front:
    """The padding of what a convolution's module is called on.

    Attributes:
        pad: its call.
        padded: what it pads.
        name: the name of its module in the convolution's; empty for a function's call.
        program: the calls, where `Value(0)` is what they pad: the sizes that the widths are computed of, and the pad.
        nodes: the nodes that the calls are.
        merged: whether the file has one node that pads and convolves.
    """

    pad: fx.Node
    padded: fx.Node
    name: str
    program: Program
    nodes: tuple[fx.Node, ...]
    merged: bool = False

    def module(self) -> nn.Module:
        """Returns the module of the padding."""
        found = module_of(self.pad)
        assert found is not None, "it has a name"
        kind, options = found
        return kind(**options)


class Fronts:
    """Finds the padding that modules of convolutions call.

    Args:
        program: flat.
        declared: the modules that the file names for calls.
    """

    def __init__(self, program: Scoped, declared: dict[fx.Node, Path | None]):
        self.program, self.declared = program, declared

    @functools.cached_property
    def numbers(self) -> set[fx.Node]:
        """The numbers of the program that are computed of sizes."""
        return numbers(self.program.graph)

    @functools.cached_property
    def sizes(self) -> dict[fx.Node, Size]:
        """The size expressions of some of them."""
        return size_expressions(self.program, self.numbers)

    def remove_unused(self) -> None:
        """Removes the numbers that nothing uses any more, if any was used by a padding."""
        for node in reversed(self.program.graph.nodes) if "numbers" in vars(self) else ():
            if node in self.numbers and not node.users:
                self.program.graph.erase_node(node)
                self.declared.pop(node, None)

    def of(self, call: fx.Node, base: Path) -> Front | None:
        """Returns the padding that a convolution's module calls, None where it calls none of its input alone.

        Args:
            call: of the convolution.
            base: the scope of its module.
        """
        match call.args:
            case (fx.Node(op="call_function", target=F.pad, args=(fx.Node() as padded, list(widths))) as pad,):
                merged = pad.meta.get("onnx") == call.meta.get("onnx") is not None
                name = "" if merged else name_inside(pad, base, self.declared)
            case _:
                return None
        if name is None or len(pad.users) != 1 or pad.kwargs.keys() - {"mode", "value"} or name in BLOCK_ATTRIBUTES:
            return None
        computed = [width for width in widths if isinstance(width, fx.Node)]
        if name:
            found, noted = module_of(pad), declared_class(pad)
            if computed or found is None or noted not in ("", found[0].__name__):
                return None
            name = without_call_number(name)
            return Front(pad, padded, name, Program([Call("call_module", name, (Value(0),))]), (pad,))
        written = _Written(self, padded)
        given = [written.number(width) if isinstance(width, fx.Node) else width for width in widths]
        if None in given:
            return None
        steps = [*written.calls, Call("call_function", F.pad, (Value(0), given), pad.kwargs)]
        return Front(pad, padded, name, Program(steps), (*written.nodes, pad), merged)


class _Written:
    """Calls that compute numbers of the sizes of one tensor, `Value(0)`.

    Args:
        fronts: of the program.
        tensor: the tensor.
    """

    def __init__(self, fronts: Fronts, tensor: fx.Node):
        program = fronts.program
        self.calls, self.nodes = list[Call](), list[fx.Node]()
        self._made: dict[fx.Node | Size, Value] = {}
        self._fronts = fronts
        spec = program.specs.get(tensor)
        shape = (spec.shape or ()) if spec is not None else ()
        known = [(axis, program.settled(size)) for axis, size in enumerate(shape) if isinstance(size, Size)]
        self._axes = {slope(size): (axis, size) for axis, size in reversed(known) if isinstance(size, Size)}

    def number(self, node: fx.Node) -> Value | None:
        """Returns the number of the call that gives a number; None where it depends on other sizes, too."""
        size = self._fronts.sizes.get(node)
        axis, dimension = (None, 0) if size is None else self._axes.get(slope(size), (None, 0))
        key = node if size is None else size
        if key in self._made:
            return self._made[key]
        if size is not None and axis is not None:
            self._add(node, Call("call_method", "size", (Value(0), axis)))
            for function, number in arithmetic(size, dimension):
                self._add(node, Call("call_function", function, (Value(len(self.calls)), number)))
        elif node.op != "call_function" or node not in self._fronts.numbers:
            return None
        else:
            given = {used: self.number(used) for used in node.all_input_nodes}
            if None in given.values():
                return None
            call = Call("call_function", node.target, *fx.map_arg((node.args, node.kwargs), given.__getitem__))
            self._add(node, call)
        self._made[key] = Value(len(self.calls))
        return self._made[key]

    def _add(self, node: fx.Node, call: Call) -> None:
        self.calls.append(call)
        self.nodes.append(node)


def padded(layer: nn.Module, front: Front) -> nn.Module | None:
    """Returns the convolution that pads so itself, None where torch has none.

    Law: `nn.Conv2d(padding="same")` pads `dilation * (kernel_size - 1)` zeros, of an odd number one more at the end,
    and a `padding_mode` pads both ends alike; see torch's documentation.
    """
    assert isinstance(layer, (nn.Conv1d, nn.Conv2d, nn.Conv3d))
    (call,) = front.program.calls if len(front.program.calls) == 1 else (None,)
    own: Any = layer.padding
    if front.name or call is None or layer.padding_mode != "zeros" or isinstance(own, str):
        return None
    widths, mode = call.args[1], call.kwargs.get("mode", "constant")
    pairs = [(widths[end], widths[end + 1]) for end in range(len(widths) - 2, -1, -2)]
    if len(pairs) != len(own) or (any(own) if mode != "constant" else call.kwargs.get("value")):
        return None
    pairs = [(before + width, after + width) for (before, after), width in zip(pairs, own, strict=True)]
    padding: Any = tuple(before for before, _ in pairs)
    if any(before != after for before, after in pairs):
        total = [step * (size - 1) for step, size in zip(layer.dilation, layer.kernel_size, strict=True)]
        if mode != "constant" or set(layer.stride) != {1} or pairs != [(n // 2, n - n // 2) for n in total]:
            return None
        padding = "same"
    kind: Any = type(layer)  # each of the three takes sizes of as many numbers as it has
    result: nn.Conv1d | nn.Conv2d | nn.Conv3d = kind(
        layer.in_channels,
        layer.out_channels,
        layer.kernel_size,
        layer.stride,
        padding,
        layer.dilation,
        layer.groups,
        bias=False,
        padding_mode="zeros" if mode == "constant" else mode,
        device="meta",
    )
    result.weight, result.bias = layer.weight, layer.bias
    for name in ("onnx_op", "onnx_name", "onnx_source"):
        if hasattr(layer, name):
            setattr(result, name, getattr(layer, name))
    return result.train(layer.training)
