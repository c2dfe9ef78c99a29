"""Classes for the regions of a program: equal regions share one, and the numbers that vary are its arguments."""

from __future__ import annotations

from typing import Any

from torch import fx

from onnx2nn.fx.blocks.partition import Partition, Region
from onnx2nn.fx.blocks.value_hints import annotation
from onnx2nn.importing.regions import Path
from onnx2nn.output.python_source.class_bodies import Body, Kind
from onnx2nn.output.python_source.expressions import Attribute, Call, Collection, Expression, Text, Value
from onnx2nn.output.python_source.forward_calls import ForwardCalls
from onnx2nn.output.python_source.init_statements import InitStatements
from onnx2nn.output.python_source.layout import Layout
from onnx2nn.output.python_source.values import Values


def make_classes(partition: Partition) -> tuple[list[Kind], dict[str, str]]:
    """Returns the classes of a program, each after the classes that it uses; the last is the model's.

    Returns:
        The classes, and the new → old keys of buffers that another class holds than in the imported module.

    Raises:
        InputError: a layer or a value that cannot be written.
    """
    layout = Layout(partition)
    classes = _Classes()
    classes.instance(layout, ())
    return list(classes.kinds.values()), {".".join(new): ".".join(old) for old, new in layout.all_moved()}


class _Classes:
    """The classes of a program so far, by their structure."""

    def __init__(self) -> None:
        self.kinds: dict[Body, Kind] = {}

    def instance(self, layout: Layout, path: Path) -> tuple[Kind, list[Any]]:
        """Returns the class of the container at `path`, and its instance's numbers."""
        values = Values()
        region = layout.partition.regions.get(path)
        body = self._body(layout, path, region, values)
        kind = self.kinds.get(body)
        if kind is None:
            number = len(self.kinds)
            kind = Kind(body, number, values.hints, values.names, values.types, _main_argument(region))
            self.kinds[body] = kind
        kind.paths.append((*layout.prefix, *path))
        kind.holes.append(values.holes)
        return kind, values.holes

    def _body(self, layout: Layout, path: Path, region: Region | None, values: Values) -> Body:
        """Returns the structure of a container's class; fills the numbers and names of `values`."""
        statements = InitStatements(layout, path, values, self.instance)
        sequential = region is not None and region.slots is not None
        if region is not None and sequential:
            base, init = "Sequential", [("base", "", statements.sequential(region))]
        else:
            base, init = "Module", list(statements.contents(path))
        init += statements.added() + statements.tied()
        if region is None:
            return Body(base, tuple(init), 0, (), None)
        for entry in region.arguments:
            if isinstance(entry, tuple):
                values.packed[entry] = values.value(entry[0], "features", "list[Tensor]")
            else:
                values.known[entry] = values.value(entry)
        forward = ForwardCalls(layout, path, values)
        calls = [] if sequential else [call for item in region.items for call in forward.call(item)]
        if sequential:
            outputs: Expression = Call(Attribute(Call(Text("super")), "forward"), (Value(0),))
        elif path:
            results = tuple(values.known[node] for node in region.outputs)
            outputs = results[0] if len(results) == 1 else Collection("()", results)
        else:
            (last,) = (node for node in layout.program.graph.nodes if node.op == "output")
            outputs = values.expression(last.args[0])
        return Body(base, tuple(init), len(region.arguments), tuple(calls), outputs)


def _main_argument(region: Region | None) -> int:
    """Returns the argument that a layer computed, else the first tensor; -1 where several are inputs of the model."""
    inputs = region.inputs if region is not None else []
    if sum(node.op == "placeholder" for node in inputs) > 1:
        return -1
    entries = enumerate(region.arguments if region is not None else [])
    single = [(index, entry) for index, entry in entries if isinstance(entry, fx.Node)]
    tensors = [index for index, node in single if annotation(node) == "Tensor" and node.op != "get_attr"]
    layers = [index for index, node in single if index in tensors and node.op == "call_module"]
    return next(iter([*layers, *tensors]), -1)
