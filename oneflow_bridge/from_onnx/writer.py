"""Writes the nodes of a graph as lines of the source of a module's forward."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from oneflow_bridge.from_onnx.constants import Constant
from oneflow_bridge.from_onnx.live import Live, checks_of, constant_numbers, is_numbers, is_static
from oneflow_bridge.from_onnx.module import ImportedModule
from oneflow_bridge.from_onnx.placement import Placement
from oneflow_bridge.from_onnx.program import Program, literal
from oneflow_bridge.from_onnx.recording import Call, Spec
from onnx2nn.ground.naming import identifier
from onnx2nn.importing.control_flow import module_path
from onnx2nn.optable.row import Row
from onnx2nn.optable.shape_values import ShapeValues


class Writer:
    """Writes into one program.

    Args:
        program: receives the lines.
        placement: the paths of constants and layers.

    Attributes:
        captured: values of outer graphs that the program uses, which become arguments.
    """

    def __init__(self, program: Program, placement: Placement):
        self.program, self.placement = program, placement
        self.captured: list[Live] = []
        self._captures: dict[Live, Live] = {}

    def argument(self, value: ir.Value, known: Spec | None = None) -> Live:
        """Returns an input of the graph as an argument of the program."""
        name = self.program.name(value.name or "input")
        self.program.parameters.append(name)
        return Live(name, self.program, known)

    def finish(self, outputs: Sequence[Any]) -> ImportedModule:
        """Returns the program's module, whose outputs are `outputs`."""
        uses: set[str] = set()
        self.program.comment = ""
        texts = [self.source(value, uses) for value in outputs]
        return self.program.finish(texts, uses)

    def own(self, value: Any) -> Any:
        """Returns a value as a value of this program: a value of an outer graph becomes an argument."""
        if isinstance(value, list):
            return [self.own(item) for item in value]
        if not isinstance(value, Live) or value.program is self.program:
            return value
        if value not in self._captures:
            name = self.program.name(f"outer_{value.name}")
            self.program.parameters.append(name)
            self.captured.append(value)
            self._captures[value] = Live(name, self.program, None, value.numbers)
        return self._captures[value]

    def call(self, call: Call, inputs: Sequence[Any]) -> None:
        """Adds a recorded call of the body of a node that has `inputs`."""
        layer = None
        if call.layer is not None:
            layer = self.placement.layer(call.layer, inputs)
            call = dataclasses.replace(call, layer=self.placement.described(call.layer, inputs))
        else:
            self.placement.note((*call.args, *call.kwargs.values()), inputs)
        self.program.add_call(call, self.placement.constant, layer)

    def operator(self, node: ir.Node, row: Row, inputs: Sequence[Any], attributes: dict[str, Any], known: Any) -> Any:
        """Adds the line that evaluates a row at run time.

        `known`: a `Spec` or `ShapeValues` of its result, a tuple of them for several, or None.
        """
        if row.operator in ("SequenceConstruct", "SequenceEmpty") or isinstance(known, list):
            known = None
        constant = constant_numbers(known)
        if constant is not None:
            self.program.required |= checks_of(inputs)
            return constant
        uses: set[str] = set()
        arguments = [self._literal(row, i, value, inputs, uses) for i, value in enumerate(inputs)]
        numbers = (
            row.on_shape_values is not None
            and bool(inputs)
            and (row.reads_shape or all(isinstance(v, (Constant, type(None))) or is_numbers(v) for v in inputs))
        )
        if numbers and any(isinstance(part, Spec) for part in (known if isinstance(known, tuple) else [known])):
            # With one tensor among its inputs an operator returns tensors, as the spec says.
            first = next(place for place, value in enumerate(inputs) if value is not None)
            arguments[first], numbers = f"ops.as_tensor({arguments[first]})", False
        for name, value in attributes.items():
            arguments.append(f"{name}={self.program.argument(value, uses, self.placement.constant)}")
        names = [self.program.name(variable_name(node, i)) for i in range(max(len(node.outputs), 1))]
        several = len(names) > 1
        self.program.add_operator(tuple(names) if several else names[0], row, arguments, uses, numbers=numbers)
        if not several:
            return self._live(names[0], known[0] if isinstance(known, tuple) else known, numbers, inputs)
        parts = known if isinstance(known, tuple) else [known] * len(names)
        return tuple(self._live(name, part, numbers, inputs) for name, part in zip(names, parts, strict=False))

    def module(self, node: ir.Node, module: Any, inputs: Sequence[Any]) -> list[Live]:
        """Adds a call of `module`, which runs the graphs of a node; returns the node's outputs."""
        uses: set[str] = set()
        arguments = ", ".join(self.source(value, uses) for value in inputs)
        names = tuple(self.program.name(value.name or "output") for value in node.outputs)
        self.program.add_module_call(names, module_path(node), module.eval(), arguments, uses)
        return [Live(name, self.program, None, checks=frozenset({name})) for name in names]

    def _live(self, name: str, known: Any, numbers: bool, inputs: Sequence[Any]) -> Live:
        if isinstance(known, ShapeValues):
            return Live(name, self.program, known, True, checks=checks_of(inputs))
        checks = frozenset() if is_static(inputs) else frozenset({name})
        return Live(name, self.program, known if isinstance(known, Spec) else None, numbers, checks=checks)

    def _literal(self, row: Row, position: int, value: Any, inputs: Sequence[Any], uses: set[str]) -> str:
        """Returns the source of an operator's input; short constants that may be shape values become literals."""
        if isinstance(value, Constant):
            name = row.input_name(position)
            floating = value.kind.is_floating_point()
            sizes = not floating or (not value.weight and any(map(is_numbers, inputs)))
            plain = (sizes or name in row.numbers) and not self.placement.is_author_key(value.name)
            short = literal(value) if plain or name in row.static else None
            if short is not None:
                return self.program.argument(short, uses, self.placement.constant)
        return self.source(value, uses)

    def source(self, value: Any, uses: set[str]) -> str:
        """Returns the source of a value; adds the names that it reads to `uses`."""
        if isinstance(value, Live):
            value = self.own(value)
            uses.add(value.name)
            return str(value.name)
        if isinstance(value, list):
            return f"[{', '.join(self.source(item, uses) for item in value)}]"
        if isinstance(value, Constant):
            value = self.placement.remember(value)
        return self.program.argument(value, uses, self.placement.constant)


def variable_name(node: ir.Node, index: int) -> str:
    """Returns the preferred name of the variable of a node's output."""
    name = node.outputs[index].name or node.op_type.lower()
    steps = [step for step in name.split("/") if step]
    return identifier(steps[-1] if steps else node.op_type.lower())
