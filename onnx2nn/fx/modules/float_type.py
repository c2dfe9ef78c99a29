"""Imported programs in another float type: what follows when the weights change theirs, by `module.bfloat16()`.

A file of float32 says nothing of the type that its author's model would compute in: a cast to the type of the weights
and a cast to float32 are both left out there. A float that weights affect has the weights' type; tables of positions,
masks and other floats that are computed from integers stay as precise as the file has them, until they meet a value of
the weights' type. The program is run once in the file's type and once in the new one, on tensors without elements, side
by side: where the floats of a call had one type and have several now, the others are converted to the new type.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch
from torch import fx, nn
from torch.fx.node import map_aggregate

from onnx2nn.control_flow import If, Loop, Scan
from onnx2nn.errors import InputError
from onnx2nn.fx.modules.deferred import DeferredModule
from onnx2nn.fx.modules.float_regions import Both, run_region
from onnx2nn.fx.values.tensor import leaves
from onnx2nn.importing.inputs import MOST_ELEMENTS, example_inputs, specs_of

_LOG = logging.getLogger("onnx2nn")

_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)

_NAMES = {torch.float32: "FLOAT", torch.float16: "FLOAT16", torch.bfloat16: "BFLOAT16", torch.float64: "DOUBLE"}

_ADDED, _OF_FILE = "onnx2nn_added", "onnx2nn_of_file"
"""Items of `meta` of fx nodes: a conversion that the file does not have; arguments as the file has them."""


def float_type(module: Any) -> torch.dtype:
    """Returns the type of a module's weights: the commonest float type, of the inputs where there are no weights."""
    found: dict[torch.dtype, int] = {}
    for parameter in module.parameters():
        if parameter.dtype in _FLOATS:
            found[parameter.dtype] = found.get(parameter.dtype, 0) + parameter.numel()
    if not found:
        names = {name: dtype for dtype, name in _NAMES.items()}
        inputs = (names[spec["dtype"]] for spec in module.meta["onnx2nn"]["signature"] if spec["dtype"] in names)
        return next(inputs, torch.float32)
    return max(found, key=lambda dtype: found[dtype])


def constants(module: nn.Module) -> dict[tuple[nn.Module, str], torch.Tensor]:
    """Returns the float buffers that programs read, by the module that holds each and its name there."""
    return {
        (holder, name): held
        for part in _programs(module)
        for node in _graph_of(part).nodes
        if node.op == "get_attr"
        for holder, name in [_place(part, node)]
        if _is_buffer(held := getattr(holder, name)) and held.dtype in _FLOATS
    }


def follow(module: Any, before: torch.dtype, after: torch.dtype, kept: Mapping[Any, torch.Tensor]) -> None:
    """Makes the program of an imported module right for weights of another type, which they have already.

    Args:
        module: the module.
        before: the type that the weights had.
        after: the type that they have.
        kept: the constants as they were before, see `constants`.
    """
    record = module.meta["onnx2nn"]
    of_file = _dtype_named(record.setdefault("float_type", _NAMES[before]))
    _keep(module, of_file, before, after, kept)
    for part in _programs(module):
        _restore(part)
    for spec in (*record["signature"], *record.get("declared", ())):
        spec["dtype"] = _NAMES[after] if spec["dtype"] == _NAMES[before] else spec["dtype"]
    devices = [tensor.device for tensor in (*module.parameters(), *module.buffers())]
    has_elements = all(device.type != "meta" for device in devices)
    pairs = _Pairs(of_file, after, devices[0] if devices and has_elements else torch.device("cpu"))
    reason = _run(module, pairs, (True, False) if has_elements else (True,))
    if reason is not None:
        _LOG.warning(f"No cast of the file follows the weights to {after}, as no generated inputs run: {reason}")
        pairs.forget()
    for holder, name in kept:
        if (holder, name) not in pairs.read:  # in a branch that did not run
            held = getattr(holder, name)
            setattr(holder, name, held.to(after) if held.dtype == of_file else held)
    _Edits(pairs).apply()


def _dtype_named(name: str) -> torch.dtype:
    return next(dtype for dtype, known in _NAMES.items() if known == name)


def _keep(
    module: Any, of_file: torch.dtype, before: torch.dtype, after: torch.dtype, kept: Mapping[Any, torch.Tensor]
) -> None:
    """Gives constants the file's type again, as what guards precision keeps it.

    The lowest and largest numbers of the file's type are those of a narrower one, as a mask would else be infinite.
    """
    narrowed, paths = module.meta["onnx2nn"].get("narrowed", ()), {part: path for path, part in module.named_modules()}
    now = []
    for (holder, name), tensor in kept.items():
        path = f"{paths[holder]}.{name}".lstrip(".")
        if path in narrowed:
            tensor = _exchanged(tensor.to(of_file), torch.finfo(before).max, torch.finfo(of_file).max)
        tensor = tensor.to(of_file) if tensor.dtype == before else tensor
        most, narrower = torch.finfo(of_file).max, torch.finfo(after).max
        if tensor.dtype == of_file and narrower < most and not tensor.is_meta and (tensor.abs() == most).any():
            tensor = _exchanged(tensor, most, narrower)
            now.append(path)
        setattr(holder, name, tensor.to(getattr(holder, name).device))
    module.meta["onnx2nn"]["narrowed"] = now


def _exchanged(tensor: torch.Tensor, old: float, new: float) -> torch.Tensor:
    return torch.where(tensor.abs() == old, tensor.sign() * new, tensor)


def _programs(module: nn.Module) -> Iterator[fx.GraphModule]:
    return (part for part in module.modules() if isinstance(part, fx.GraphModule))


def _graph_of(module: fx.GraphModule) -> fx.Graph:
    """Returns a graph to read: the property of a block generates the program of its class first."""
    kind = DeferredModule if isinstance(module, DeferredModule) else fx.GraphModule
    graph: fx.Graph = kind.graph.fget(module)  # type: ignore[attr-defined]  # mypy sees the value
    return graph


def _place(module: fx.GraphModule, node: fx.Node) -> tuple[nn.Module, str]:
    """Returns the module that holds what a node reads, and its name there."""
    *around, name = str(node.target).split(".")
    return module.get_submodule(".".join(around)), name


def _restore(module: fx.GraphModule) -> None:
    """Makes a program the file's again."""
    changed = [node for node in _graph_of(module).nodes if node.meta.keys() & {_ADDED, _OF_FILE}]
    if not changed:
        return
    graph = module.graph
    for node in changed:
        if _ADDED in node.meta:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
        else:
            node.args, node.kwargs = node.meta.pop(_OF_FILE)
    module.recompile()


def _run(module: Any, pairs: _Pairs, ways: Sequence[bool]) -> str | None:
    """Runs a module on generated inputs of both types; returns why none runs through it.

    Args:
        module: the module.
        pairs: run it, and note what it needs.
        ways: whether tensors have no elements; where data decide sizes or what runs, they need some.
    """
    reason = None
    follows = [spec["dtype"] == _NAMES[pairs.new] for spec in module.meta["onnx2nn"]["signature"]]
    for fake in ways:
        for inputs in _examples(module):
            try:
                with pairs.running(fake), torch.no_grad():
                    pairs.run(module, list(map(pairs.example, inputs, follows)))
                return None
            except Exception as error:  # any error of torch: these sizes, or elements that are not there
                pairs.forget()
                reason = reason or f"{type(error).__name__}: {error}"
    return reason or "The file does not say the shapes of its inputs."


_SIZES = (2, 8, 64, 224, 1)
"""Sizes of dynamic dimensions that are tried where no guard says which sizes there are."""


def _examples(module: Any) -> Iterator[Sequence[Any]]:
    specs = [
        dataclasses.replace(spec, dtype=ir.DataType.FLOAT) if spec.dtype == ir.DataType.BFLOAT16 else spec
        for spec in specs_of(module)  # NumPy has no bfloat16
    ]
    if any(spec.shape is None for spec in specs):
        return
    names = {size: 2 for spec in specs for size in spec.shape or () if isinstance(size, str)}
    batches = {spec.shape[0] for spec in specs if spec.shape is not None and len(spec.shape) > 2} & names.keys()
    known = [*module.meta["onnx2nn"].get("sizes", ())][:1]
    tried = [{name: min(size, 2) if name in batches else size for name in names} for size in _SIZES]
    for sizes in [names | sizes for sizes in (*known, *tried)]:
        shapes = {spec.name: [sizes.get(size, size) for size in spec.shape or ()] for spec in specs}
        if sum(map(math.prod, shapes.values())) > MOST_ELEMENTS:
            continue
        with contextlib.suppress(InputError):  # an input is no tensor
            yield list(example_inputs(specs, shapes).values())


class _Pairs:
    """Runs a program in two float types side by side, and notes what the new one needs.

    Args:
        of_file: the type of the weights in the file.
        new: the type that they have.
        device: of the inputs.

    Attributes:
        casts: by program and node, the operands to convert, and the types.
        targets: by program, the casts to the file's type that follow the weights'.
        numbers: by program, the nodes with the lowest or largest number of the file's type among their arguments.
        read: the parameters and buffers that were read.
    """

    def __init__(self, of_file: torch.dtype, new: torch.dtype, device: torch.device):
        self.of_file, self.new = of_file, new
        self._device = device
        self.casts: dict[fx.GraphModule, dict[fx.Node, dict[fx.Node, torch.dtype]]] = {}
        self.targets: dict[fx.GraphModule, dict[fx.Node, None]] = {}
        self.numbers: dict[fx.GraphModule, dict[fx.Node, None]] = {}
        self.read: set[tuple[nn.Module, str]] = set()
        self._fake: Any = None

    def forget(self) -> None:
        """Forgets a run that came to no end."""
        for found in (self.casts, self.targets, self.numbers, self.read):
            found.clear()  # type: ignore[attr-defined]  # a common base of dict and set has no clear

    @contextlib.contextmanager
    def running(self, fake: bool) -> Iterator[None]:
        """Runs on tensors without elements inside the context, if `fake`."""
        from torch._subclasses.fake_tensor import FakeTensorMode

        self._fake = FakeTensorMode(allow_non_fake_inputs=True) if fake else None
        log = logging.getLogger("torch._subclasses.fake_tensor")  # prints errors, such as those of sizes on trial
        printed, log.disabled = log.disabled, True
        try:
            with self._fake or contextlib.nullcontext():
                yield
        finally:
            log.disabled = printed

    def example(self, array: Any, follows: bool) -> Both:
        """Returns an input, which may have the weights' type; texts are an array."""
        if array.dtype.kind == "O":
            return Both(array, array)
        tensor = self._tensor(torch.from_numpy(array)).to(self._device)
        return Both(tensor.to(self.of_file), tensor.to(self.new)) if follows else Both(tensor, tensor)

    def run(self, module: fx.GraphModule, arguments: Sequence[Both]) -> Any:
        """Returns the result of a program."""
        known: dict[fx.Node, Both] = {}
        given = iter(arguments)
        for node in _graph_of(module).nodes:
            if node.op == "placeholder":
                known[node] = next(given)
            elif node.op == "get_attr":
                known[node] = self._state(*_place(module, node))
            elif node.op == "call_module":
                known[node] = self._module(module, node, known)
            elif node.op == "output":
                return Both(*self._mapped(node.args[0], known))
            else:
                known[node] = self._call(module, node, known)
        raise AssertionError("a graph has an output")

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._fake is None:
            return tensor
        if tensor.is_meta:  # the constants beside it are on a device
            return torch.empty(tensor.shape, dtype=tensor.dtype, device=self._device)
        return self._fake.from_tensor(tensor)

    def _state(self, holder: nn.Module, name: str) -> Both:
        held = getattr(holder, name)
        if not isinstance(held, torch.Tensor):
            return Both(held, held)
        self.read.add((holder, name))
        tensor = self._tensor(held.detach())
        follows = held.dtype == self.new and not _is_buffer(held)
        return Both(tensor.to(self.of_file) if follows else tensor, tensor)

    @staticmethod
    def _mapped(value: Any, known: Mapping[fx.Node, Both]) -> tuple[Any, Any]:
        return fx.map_arg(value, lambda node: known[node].old), fx.map_arg(value, lambda node: known[node].new)

    def _module(self, module: fx.GraphModule, node: fx.Node, known: dict[fx.Node, Both]) -> Both:
        called = module.get_submodule(str(node.target))
        if isinstance(called, fx.GraphModule):
            names = [str(n.target) for n in _graph_of(called).nodes if n.op == "placeholder"]
            given = [*node.args, *(node.kwargs[name] for name in names[len(node.args) :])]
            return self.run(called, [Both(*self._mapped(value, known)) for value in given])
        if type(called) is nn.Sequential:
            value = Both(*self._mapped(node.args[0], known))
            for child in called:
                if isinstance(child, fx.GraphModule):
                    value = self.run(child, [value])
                else:
                    value = self._layer(child, (value.new,), {}, value.old)
            return value
        if isinstance(called, (If, Loop, Scan)):
            values = [Both(*self._mapped(value, known)) for value in node.args]
            return run_region(called, values, self.run, None if self._fake is None else self._tensor)
        weight, operands = _weight_type(called), _operands(node, known)
        if weight == self.new:
            self._convert(module, node, [n for n in operands if known[n].new.dtype != weight], weight)
        (_, args), (_, kwargs) = self._mapped(node.args, known), self._mapped(node.kwargs, known)
        args, kwargs = self._converted(module, node, known, args, kwargs)
        return self._layer(called, args, kwargs, known[operands[0]].old if operands else None)

    def _layer(self, layer: nn.Module, args: Any, kwargs: Any, operand: Any) -> Both:
        """Returns the result of a layer for arguments of the new type; `operand` is one of the file's."""
        own = {name: value for name, value in (*layer.named_parameters(), *layer.named_buffers()) if value.is_meta}
        if own:
            state = {name: self._tensor(value) for name, value in own.items()}
            new = torch.func.functional_call(layer, state, args, kwargs)
        else:
            new = layer(*args, **kwargs)
        old = operand.dtype if _weight_type(layer) is None and _is_float(operand) else self.of_file
        return Both(map_aggregate(new, lambda value: _converted(value, old)), new)

    def _convert(self, module: fx.GraphModule, node: fx.Node, operands: Sequence[fx.Node], dtype: torch.dtype) -> None:
        if operands:
            self.casts.setdefault(module, {}).setdefault(node, {}).update(dict.fromkeys(operands, dtype))

    def _converted(self, module: fx.GraphModule, node: fx.Node, known: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Returns arguments of the new type with the conversions of the node."""
        operands = self.casts.get(module, {}).get(node)
        if not operands:
            return args, kwargs
        values = {n: known[n].new.to(operands[n]) if n in operands else known[n].new for n in node.all_input_nodes}
        return fx.map_arg(node.args, values.__getitem__), fx.map_arg(node.kwargs, values.__getitem__)

    def _call(self, module: fx.GraphModule, node: fx.Node, known: dict[fx.Node, Both]) -> Both:
        (old_args, args), (old_kwargs, kwargs) = self._mapped(node.args, known), self._mapped(node.kwargs, known)
        old = _called(node, old_args, old_kwargs)
        operands = _operands(node, known)
        if self._is_extreme(node):
            self.numbers.setdefault(module, {})[node] = None
        wider = [n for n in operands if n is node.args[0] and known[n].old.dtype != self.of_file]
        if wider and self._is_to_file(node) and self.of_file != torch.float32:
            self.targets.setdefault(module, {})[node] = None
            return Both(old, args[0].to(self.new))
        types = {known[n].new.dtype for n in operands}
        if len({known[n].old.dtype for n in operands}) == 1 and len(types) > 1 and self.new in types:
            self._convert(module, node, [n for n in operands if known[n].new.dtype != self.new], self.new)
        args, kwargs = self._converted(module, node, known, args, kwargs)
        try:
            return Both(old, _called(node, args, kwargs))
        except Exception:  # any error of torch: the function has no form for the new type
            if not hasattr(node.target, "row"):
                raise
            self._convert(module, node, [n for n in operands if known[n].new.dtype == self.new], self.of_file)
        args, kwargs = self._converted(module, node, known, args, kwargs)
        return Both(old, _called(node, args, kwargs))

    def _is_to_file(self, node: fx.Node) -> bool:
        return node.op == "call_method" and node.target == "to" and node.args[1:2] == (self.of_file,)

    def _is_extreme(self, node: fx.Node) -> bool:
        return any(self.extreme(leaf) is not None for leaf in leaves((node.args, node.kwargs)))

    def extreme(self, number: Any) -> float | None:
        """Returns the new type's largest or lowest number for that of the file's; None for other values."""
        most, narrower = torch.finfo(self.of_file).max, torch.finfo(self.new).max
        if not isinstance(number, float) or narrower >= most or not math.isclose(abs(number), most, rel_tol=1e-6):
            return None
        return math.copysign(narrower, number)


def _called(node: fx.Node, args: Any, kwargs: Any) -> Any:
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    return node.target(*args, **kwargs)  # type: ignore[operator]  # the target of a call_function is callable


def _weight_type(layer: nn.Module) -> torch.dtype | None:
    return next((parameter.dtype for parameter in layer.parameters() if parameter.dtype in _FLOATS), None)


def _converted(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if _is_float(value) else value


def _is_buffer(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter)


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in _FLOATS


def _operands(node: fx.Node, known: Mapping[fx.Node, Both]) -> list[fx.Node]:
    """Returns the arguments that are float tensors."""
    return [n for n in node.all_input_nodes if _is_float(known[n].old) and _is_float(known[n].new)]


class _Edits:
    """Changes the programs as a run of both types found it."""

    def __init__(self, pairs: _Pairs):
        self._pairs = pairs

    def apply(self) -> None:
        """Changes all programs."""
        pairs = self._pairs
        for module in dict.fromkeys((*pairs.casts, *pairs.targets, *pairs.numbers)):
            graph = module.graph  # which generates the program of the class before it changes
            for node in pairs.numbers.get(module, ()):
                self._keep(node)
                node.args, node.kwargs = map_aggregate((node.args, node.kwargs), self._number)
            for node in pairs.targets.get(module, ()):
                self._keep(node)
                node.args = (node.args[0], pairs.new, *node.args[2:])
            self._insert(graph, pairs.casts.get(module, {}))
        self._convert_constants()
        for module in dict.fromkeys((*pairs.casts, *pairs.targets, *pairs.numbers)):
            module.recompile()

    def _number(self, value: Any) -> Any:
        other = self._pairs.extreme(value)
        return value if other is None else other

    @staticmethod
    def _keep(node: fx.Node) -> None:
        node.meta.setdefault(_OF_FILE, (node.args, node.kwargs))

    @staticmethod
    def _insert(graph: fx.Graph, casts: Mapping[fx.Node, Mapping[fx.Node, torch.dtype]]) -> None:
        made: dict[tuple[fx.Node, torch.dtype], fx.Node] = {}
        for node in [node for node in graph.nodes if node in casts]:
            for key in casts[node].items():
                if key not in made:
                    with graph.inserting_before(node):
                        made[key] = graph.call_method("to", key)
                    made[key].meta = {**key[0].meta, _ADDED: True}
                node.replace_input_with(key[0], made[key])

    def _convert_constants(self) -> None:
        """Converts the constants whose every use is a conversion, instead of each use."""
        reads: dict[tuple[nn.Module, str], list[fx.Node]] = {}
        for module in self._pairs.casts:
            for node in _graph_of(module).nodes:
                if node.op == "get_attr":
                    reads.setdefault(_place(module, node), []).append(node)
        for (holder, name), nodes in reads.items():
            uses = [user for node in nodes for user in node.users]
            constant = getattr(holder, name)
            if not _is_buffer(constant) or not all(
                _ADDED in user.meta and user.args[1] == self._pairs.new for user in uses
            ):
                continue
            setattr(holder, name, constant.to(self._pairs.new))
            for user in uses:
                user.replace_all_uses_with(user.args[0])  # type: ignore[arg-type]  # the operand, a node
                user.graph.erase_node(user)
