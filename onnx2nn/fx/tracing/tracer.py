"""Records the calls in row bodies as a `torch.fx` graph.

Inside a body a tensor is a `tensor.Tensor`: it has a shape, rank and dtype, and every operation on it becomes an fx
node. Dynamic dimensions are `Dim`s: expressions of the dimensions of the model's inputs, and of sizes that data decide.
The shapes of results follow from `shape_rules`, see `inference`. What the program relies on and is not proven is
checked by `guards`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from onnx2nn import functional
from onnx2nn.fx.exporting.exportable import ExportableModule
from onnx2nn.fx.modules.graph_nodes import add_argument, add_node
from onnx2nn.fx.modules.module_tree import paths_around, put_module
from onnx2nn.fx.tracing.batch_first import attend_batch_first
from onnx2nn.fx.tracing.contiguous_norms import normalise_contiguous
from onnx2nn.fx.tracing.factories import MAKING
from onnx2nn.fx.tracing.fake_quantizers import FakeQuantizers
from onnx2nn.fx.tracing.held_state import HeldState
from onnx2nn.fx.tracing.inference import Inference
from onnx2nn.fx.tracing.layers import Layer, layer_for, may_be_layer, stored_transposed
from onnx2nn.fx.tracing.namespace import Namespace
from onnx2nn.fx.tracing.placement_protocol import Anonymous, Placement
from onnx2nn.fx.tracing.plain_calls import PlainCalls, scalars_inlined
from onnx2nn.fx.tracing.rows import Rows
from onnx2nn.fx.values.captures import Captures
from onnx2nn.fx.values.dim import Dim, Integers
from onnx2nn.fx.values.guards import Choices, Guards
from onnx2nn.fx.values.ratio import Ratio
from onnx2nn.fx.values.spec import Known, Spec
from onnx2nn.fx.values.symbols import Symbols
from onnx2nn.fx.values.tensor import TRACED, Opaque, Tensor, is_traced
from onnx2nn.ground.limits import Limits

_SCALAR_OPERATORS = {
    operator.add: "+", operator.sub: "-", operator.mul: "*", operator.truediv: "/", operator.pow: "**",
    operator.eq: "==", operator.ne: "!=", operator.lt: "<", operator.le: "<=", operator.gt: ">", operator.ge: ">=",
}  # fmt: skip

ASSERTIONS = frozenset({torch._assert, torch._assert_async, functional.onnx2nn__Require})
"""Calls without a result that stay in the program: they raise where a condition is false."""

_ANONYMOUS = Anonymous()


class Tracer:
    """Builds one fx graph and the module tree to which its nodes refer.

    Args:
        parent: the tracer of the enclosing graph, for a subgraph or function; its values that this graph uses become
            arguments of this graph's module (`captured`).
        choices: see `Guards`.
        placement: decides the paths of constants and layers in the module tree.
    """

    def __init__(
        self, parent: Tracer | None = None, choices: Choices = MappingProxyType({}), placement: Placement = _ANONYMOUS
    ):
        self.parent = parent
        self.limits: Limits = Limits() if parent is None else parent.limits
        self.graph = fx.Graph()
        self.specs: dict[fx.Node, Spec] = {}
        self.root = nn.Module()
        self.F = Namespace(self)
        self.placement = placement
        self.meta: dict[str, Any] = {}
        self.recorded = 0  # nodes, without placeholders and getitem of results
        self.held: HeldState = HeldState(self, None if parent is None else parent.held, self.root)
        self.captures = Captures(self)
        self.captured = self.captures.values
        self.symbols: Symbols = Symbols(self, None if parent is None else parent.symbols)
        self.guards: Guards = Guards(self, None if parent is None else parent.guards, choices)
        self.integers = Integers(self)
        self.rows: Rows = Rows(self)
        self.fake_quantizers: FakeQuantizers = FakeQuantizers(self)
        self.plain: PlainCalls = PlainCalls(self)
        self._inference: Inference = Inference(self)
        self._attributes: dict[Any, fx.Node] = {}
        self._calls: dict[Any, Any] = {}
        self._reference: Tensor | None = None
        self._last_placeholder: fx.Node | None = None
        self._argument_names: set[str] = set()

    def placeholder(self, name: str, spec: Spec | None) -> Tensor | Opaque:
        """Adds an argument of the graph; `spec` is None for a value that is no tensor."""
        node = self.argument_node(name)
        if spec is None:
            return Opaque(self, node)
        tensor = Tensor(self, node, spec)
        if self._reference is None:
            self._reference = tensor
        if self.parent is not None:
            self.symbols.place(tensor)
        return tensor

    def argument_node(self, name: str) -> fx.Node:
        """Adds a placeholder behind the last one, also after calls have been recorded."""
        if self._last_placeholder is None:
            self._last_placeholder = next(iter(self.graph.nodes), None)
            position = self.graph.inserting_before(self._last_placeholder)
        else:
            position = self.graph.inserting_after(self._last_placeholder)
        with position:
            self._last_placeholder = add_argument(self.graph, name, self._argument_names)
        return self._last_placeholder

    @property
    def last(self) -> fx.Node:
        """The node recorded last."""
        return next(iter(reversed(self.graph.nodes)))

    def record(self, kind: str, target: Any, args: Sequence[Any], kwargs: dict[str, Any] | None = None) -> fx.Node:
        """Adds a node to the graph; equal reads of sizes and attributes are recorded once."""
        fx_args = tuple([self.argument(arg) for arg in args])
        fx_kwargs = {name: self.argument(arg) for name, arg in kwargs.items()} if kwargs else {}
        once = target == "size" or target is getattr
        key = (target, fx_args) if once else None
        if key is not None and key in self._attributes:
            return self._attributes[key]
        node = self.create(kind, target, fx_args, fx_kwargs)
        node.meta.update(self.meta)
        if key is not None:
            self._attributes[key] = node
        return node

    def create(self, kind: str, target: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> fx.Node:
        """Adds a node."""
        self.recorded += 1
        return add_node(self.graph, kind, target, args, kwargs)

    def call(self, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Records a call; returns its result as traced values.

        Raises:
            ShapeMismatch: the shapes fit for no sizes.
        """
        if target in _SCALAR_OPERATORS:
            args = scalars_inlined(args, self.placement.inline)
        if self.parent is not None:
            args, kwargs = self.own(args), self.own(kwargs)
        specs = self.infer(kind, target, args, kwargs).specs
        layer = _layer(self, target, args, kwargs) if kind == "call_function" else None
        if layer is not None:
            return self.rows.called(layer, specs)
        if kind == "call_method" and (joined := self.rows.joined(target, args, specs)) is not None:
            return joined
        plainer = self.plain.find(target, args, kwargs, specs)
        if plainer is not None:
            return plainer
        return self.recorded_call(kind, target, args, kwargs, specs)

    def recorded_call(
        self, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], specs: Any = None
    ) -> Any:
        """Records a call as it is; returns its result as traced values.

        Args:
            kind, target, args, kwargs: the call.
            specs: the specs of its result, if they are inferred already.
        """
        specs = self.infer(kind, target, args, kwargs).specs if specs is None else specs
        if target in MAKING and "device" not in kwargs and self._reference is not None:
            kwargs = {**kwargs, "device": self._reference.device}
        result = self.wrap(self.record(kind, target, args, kwargs), specs)
        if kind == "call_method":
            self.rows.note_reshape(target, args, result)
        self.plain.note(target, args, kwargs, result)
        return result

    def call_module(
        self, name: list[str], module: nn.Module, args: tuple[Any, ...], specs: Any, *, own: bool = False
    ) -> Any:
        """Adds `module` under `name` and records a call of it; returns its result, with `specs`.

        Args:
            own: whether the name comes from the author's keys.
        """
        path = self.held.names.claim(name, own=own, module=True)
        node = self.record("call_module", path, self.own(args))  # first, so that its arguments stand before it
        put_module(self.root, path, module)
        return self.wrap(node, specs)

    def call_opaque(
        self,
        function: Callable[..., Any],
        args: Any,
        kwargs: Any,
        specs: Any,
        *,
        once: bool = False,
        texts: bool = False,
    ) -> Any:
        """Records an opaque call of `function`, which must be importable by name; returns its result, with `specs`.

        Args:
            specs: a spec, None for a value that is no tensor, or a tuple of them.
            once: whether equal calls are recorded once, so that their data-dependent sizes are equal.
            texts: whether an argument is texts, for which a row may have a form of its own.
        """
        args, kwargs = self.own(args), self.own(kwargs)
        form = len(specs) if isinstance(specs, tuple) else type(specs)
        key = (function, *map(id, args), repr(kwargs), form) if once else None
        if key is None or key not in self._calls:
            node = self.record("call_function", function, args, kwargs)
            node.meta |= {"opaque": True, "texts": True} if texts else {"opaque": True}
            if not hasattr(function, "row"):
                node.meta["is_wrapped"] = True  # torch.fx.wrap: functions of the table record themselves
            result = self.wrap(node, specs)
            if key is None:
                return result
            self._calls[key] = (args, result)  # keeps the arguments alive, because the key holds their ids
        return self._calls[key][1]

    def wrap(self, node: fx.Node, specs: Any) -> Any:
        """Returns the result of `node` as traced values, with the structure of `specs`."""
        if isinstance(specs, Spec):
            tensor = Tensor(self, node, specs)
            self.symbols.place(tensor)
            return tensor
        if specs is None:
            return Opaque(self, node)
        items = []
        for index, spec in enumerate(specs):
            item = add_node(self.graph, "call_function", operator.getitem, (node, index))
            item.meta.update(self.meta)
            items.append(self.wrap(item, spec))
        return tuple(items)

    def own(self, value: Any) -> Any:
        """Returns `value` with each value of an enclosing graph replaced by an argument of this graph."""
        return value if self.parent is None else self.captures.own(value)

    def number(self, function: Callable[..., Any], *args: Any) -> Any:
        """Returns `function(*args)` of numbers, some symbolic: a `Dim`, or a plain number where it is known."""
        return self.integers.compute(function, *args)

    def real(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Returns `function(*args)` of numbers, some floats: a `Ratio`, or what `number` returns."""
        return Ratio.computed(self, function, args)

    def expr_of(self, number: Any) -> Any:
        """Returns an integer or truth as a size expression or condition, with all that is known."""
        return self.guards.facts.settled(number.expr) if isinstance(number, Dim) else number

    def elements(self, vector: Tensor) -> list[Any]:
        """Returns the sizes in a vector: the known ones, and symbolic numbers that are read from it at run time."""
        return self.symbols.elements_of(vector)

    def infer(self, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Known:
        """Returns the spec of the call's result, or a tuple of them."""
        return self._inference.infer(target, args, kwargs)

    def attribute(self, tensor: torch.Tensor) -> Tensor:
        """Returns a constant as a parameter or buffer of the module; equal constants are held once."""
        held = self.held.attribute_of(tensor)
        self.plain.known.hold(held, tensor)
        return held

    def finish(
        self, outputs: Any, name: str = "GraphModule", kind: type[ExportableModule] = ExportableModule
    ) -> ExportableModule:
        """Returns the module, of class `kind` with the name `name`, whose forward computes `outputs`."""
        self.graph.output(self.argument(self.own(outputs)))
        self.guards.record()
        _erase_unused(self.graph, self.held, self.root)
        attend_batch_first(self.graph, self.root)
        normalise_contiguous(self.graph, self.root, self.specs)
        self.captures.drop_unused()
        return kind(self.root, self.held.own, self.graph, name)

    def argument(self, value: Any) -> Any:
        """Returns `value` as an argument of an fx node."""
        if type(value) is Tensor and value.tracer is self:  # the commonest case
            return value.node
        if isinstance(value, torch.Tensor):
            return self.held.read(value) if self.placement.base(value) is value else self.attribute(value).node
        if isinstance(value, TRACED):
            return (value if value.tracer is self else self.captures.capture(value)).node
        if isinstance(value, np.ndarray):
            return self.held.read_strings(value)
        if type(value) in (list, tuple):
            return type(value)(self.argument(item) for item in value)
        if isinstance(value, (list, tuple)):
            return tuple(self.argument(item) for item in value)
        if isinstance(value, dict):
            return {name: self.argument(item) for name, item in value.items()}
        if isinstance(value, slice):
            return slice(*(self.argument(item) for item in (value.start, value.stop, value.step)))
        if isinstance(value, np.generic):
            return value.item()
        return value


def _layer(tracer: Tracer, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Layer | None:
    """Returns the layer that replaces a call, with the author's weights as they are stored."""
    if not may_be_layer(function):
        return None
    layer = layer_for(function, _settled(tracer, args), _settled(tracer, kwargs))
    if layer is None or is_traced(list(layer.config.values())):
        return None
    if tracer.placement.fits(layer):
        return layer
    turned = stored_transposed(layer)
    return turned if turned is not None and tracer.placement.fits(turned) else None


def _settled(tracer: Tracer, value: Any) -> Any:
    """Returns arguments with the symbolic numbers that are known by now as plain ones."""
    kind = type(value)
    if kind is Dim:
        known = tracer.expr_of(value)
        return known if isinstance(known, int) else value
    if kind is list or kind is tuple:
        return kind([_settled(tracer, item) for item in value])
    return {name: _settled(tracer, item) for name, item in value.items()} if kind is dict else value


def _erase_unused(graph: fx.Graph, held: HeldState, root: nn.Module) -> None:
    """Removes unused nodes, and the state and layers to which only they refer."""
    erased = []
    interface = ("placeholder", "output")
    for node in reversed(graph.nodes):
        if not node.users and node.op not in interface and not _checks(node, root):
            erased += [node.target] if node.op in ("get_attr", "call_module") else []
            graph.erase_node(node)
    if not erased:
        return
    settled = {node.target for node in graph.nodes if node.op in ("get_attr", "call_module")}
    holders = {path for target in settled for path in paths_around(target)}
    removed: set[str] = set()  # the contents of what is removed are removed with it
    for path in dict.fromkeys(erased):
        if path in holders or not removed.isdisjoint(paths_around(path)):
            continue
        if settled.isdisjoint(paths_around(path)) or held.is_beside(path):
            held.remove(path)
            removed.add(path)


def _checks(node: fx.Node, root: nn.Module) -> bool:
    """Returns whether a node checks sizes, also in an inner graph, on which known shapes of its results may rely."""
    if node.op != "call_module":
        return node.target in ASSERTIONS
    inner = (m for m in root.get_submodule(str(node.target)).modules() if isinstance(m, fx.GraphModule))
    return any(inside.target in ASSERTIONS for module in inner for inside in module.graph.nodes)
