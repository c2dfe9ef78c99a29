"""The walk over a job's ops: each is written in ONNX by its row or function, or reported as unsupported."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import onnx
import onnx_ir as ir

from oneflow_bridge.to_onnx.job import DIMENSIONS, DOMAIN, OPERANDS, RESULTS, VARYING, type_of
from oneflow_bridge.to_onnx.lowering.builder import Builder
from oneflow_bridge.to_onnx.lowering.registry import (
    HANDLERS,
    IGNORED,
    ROWS,
    Handler,
    Row,
    load_families,
    take_scalar,
)
from oneflow_bridge.to_onnx.lowering.schemas import NeedsOpsetError
from onnx2nn.errors import OperatorError, Problem, UnsupportedModelError
from onnx2nn.ground.pass_times import timed


@timed("lowering")
def lower(model: ir.Model, opset: int, *, later: bool = False, continue_on_error: bool = False) -> ir.Model:
    """Writes a model of OneFlow ops (see `oneflow_bridge.to_onnx.job_reader.read_job`) in ONNX operators.

    Args:
        model: the job as a graph; it is not modified, and its weights are shared.
        opset: opset version of the result.
        later: take a later opset where an op needs one.
        continue_on_error: keep ops that cannot be written as nodes of the domain `oneflow` instead of raising; they are
            listed in the result's `meta["unmapped"]`.

    Returns:
        The ONNX model.

    Raises:
        UnsupportedModelError: ops that cannot be written, all of them.
    """
    load_families()
    lowering = _Lowering(model, opset)
    needed = lowering.walk()
    if later and needed is not None and opset < needed <= onnx.defs.onnx_opset_version():
        return lower(model, needed, later=True, continue_on_error=continue_on_error)
    return lowering.finish(continue_on_error)


@dataclass
class _Failures:
    """Ops that could not be written, grouped by op type and reason."""

    problems: dict[tuple[str, str], Problem] = field(default_factory=dict)
    needed_opset: int | None = None

    def add(self, node: ir.Node, error: OperatorError) -> None:
        advice = "Rewrite that part of the model, or export with continue_on_error=True and supply the op yourself."
        if isinstance(error, NeedsOpsetError):
            self.needed_opset = max(self.needed_opset or 0, error.opset)
            if error.opset <= onnx.defs.onnx_opset_version():
                advice = f"Export with opset={error.opset} or later."
        key = (node.op_type, str(error))
        problem = self.problems.setdefault(key, Problem(node.op_type, DOMAIN, 1, str(error), advice, []))
        problem.nodes.append(str(node.name))


class _Lowering:
    """One walk over the job's nodes."""

    def __init__(self, model: ir.Model, opset: int):
        self._model = model
        self._opset = opset
        self._builder = Builder(model, opset)
        self._values: dict[ir.Value, ir.Value] = {}
        self._failures = _Failures()

    def walk(self) -> int | None:
        """Writes every node; returns the opset that the unsupported ops need, None if no later opset helps."""
        graph = self._model.graph
        for value in (*graph.inputs, *graph.initializers.values()):
            self._values[value] = _copy(value)
        self._builder.graph_inputs = [self._values[value] for value in graph.inputs]
        for node in graph:
            self._write(node)
        return self._failures.needed_opset

    def finish(self, continue_on_error: bool) -> ir.Model:
        """Returns the result, or raises the error that lists all unsupported ops."""
        problems = list(self._failures.problems.values())
        if problems and not continue_on_error:
            raise UnsupportedModelError(problems)
        lowered = self._finish()
        lowered.meta["unmapped"] = problems
        lowered.meta["oneflow_ops"] = self._model.meta.get("oneflow_ops", ())
        lowered.meta["weights"] = frozenset(self._model.graph.initializers)
        return lowered

    def _write(self, node: ir.Node) -> None:
        mark = len(self._builder.nodes)
        try:
            results = dict(zip(node.attributes[RESULTS].as_strings(), node.outputs, strict=True))
            self._builder.start(node, _first_of_each(node))
            written = self._call(node)
            for name, value in _by_output(node, results, written):
                self._bind(name, value)
        except OperatorError as error:
            del self._builder.nodes[mark:]
            self._failures.add(node, error)
            self._keep(node)

    def _call(self, node: ir.Node) -> Any:
        if node.op_type in ROWS:
            return self._row(node, ROWS[node.op_type])
        if node.op_type in HANDLERS:
            return self._handle(node, HANDLERS[node.op_type])
        raise OperatorError("has no known ONNX form.")

    def _row(self, node: ir.Node, row: Row) -> ir.Value:
        operands = self._operands(node)
        attributes = _attributes(node)
        inputs: list[Any] = []
        for name in row.operands:
            found = operands.pop(name.removesuffix("*"), [])
            inputs += found or [None]
        for name, value in row.absent.items():
            if attributes.pop(name, value) != value:
                raise OperatorError(f"has {name} other than {value!r}.")
        written = {new: attributes.pop(old) for old, new in row.attributes.items() if old in attributes}
        _refuse_rest(operands, attributes, frozenset())
        return getattr(self._builder, row.onnx)(*inputs, **written, **row.constants)

    def _handle(self, node: ir.Node, handler: Handler) -> Any:
        operands = self._operands(node)
        attributes = _attributes(node)
        inputs: list[Any] = []
        for name in handler.operands:
            found = operands.pop(name, [])
            inputs.append(found if name in handler.variadic else next(iter(found), None))
        taken = {name: attributes.pop(name) for name in list(attributes) if name in handler.attributes}
        _refuse_rest(operands, attributes, handler.ignored)
        taken |= {name: take_scalar(taken, prefix) for name, prefix in handler.scalars.items()}
        keywords = {f"{n}_" if n in _KEYWORDS else n: value for n, value in taken.items()}
        return handler.function(self._builder, *inputs, **keywords)

    def _operands(self, node: ir.Node) -> dict[str, list[ir.Value]]:
        operands: dict[str, list[ir.Value]] = {}
        for name, value in zip(node.attributes[OPERANDS].as_strings(), node.inputs, strict=True):
            if value is not None:
                operands.setdefault(name, []).append(self._values[value])
        return operands

    def _bind(self, job_value: ir.Value, value: ir.Value) -> None:
        """Gives the written value the job value's name, shape and element type."""
        self._values[job_value] = value
        if value.name is None:
            value.name = job_value.name
            value.shape = job_value.shape.copy() if job_value.shape is not None else None
            value.type = type_of(job_value)

    def _keep(self, node: ir.Node) -> None:
        """Copies a node that could not be written, so that the walk can go on."""
        outputs = [_copy(value) for value in node.outputs]
        inputs = [None if v is None else self._values[v] for v in node.inputs]
        self._builder.nodes.append(
            ir.Node(DOMAIN, node.op_type, inputs, list(node.attributes.values()), outputs=outputs, name=node.name)
        )
        self._values.update(zip(node.outputs, outputs, strict=True))

    def _finish(self) -> ir.Model:
        old = self._model.graph
        nodes = self._builder.nodes
        outputs = self._outputs()
        initializers = [self._values[value] for value in old.initializers.values()]
        used = {value for node in nodes for value in node.inputs if value is not None}
        graph = ir.Graph(
            [self._values[value] for value in old.inputs],
            outputs,
            nodes=nodes,
            initializers=[v for v in (*initializers, *self._builder.constants.values()) if v in used],
            opset_imports={"": self._opset},
            name=old.name,
        )
        if any(node.domain == DOMAIN for node in nodes):
            graph.opset_imports[DOMAIN] = 1
        self._name_values(graph)
        model = ir.Model(graph, ir_version=_ir_version(self._opset), producer_name="onnx2nn")
        model.meta[DIMENSIONS] = self._model.meta.get(DIMENSIONS)
        return model

    def _outputs(self) -> list[ir.Value]:
        """The results under the model's output names; inputs, weights and repeated values pass an Identity."""
        graph = self._model.graph
        names = self._model.meta.get("output_names") or [str(value.name) for value in graph.outputs]
        sources = {self._values[value] for value in (*graph.inputs, *graph.initializers.values())}
        sources.update(self._builder.constants.values())
        outputs: list[ir.Value] = []
        for job_value, name in zip(graph.outputs, names, strict=True):
            value = self._values[job_value]
            if value in sources or value in outputs:
                copied = _copy(job_value)
                self._builder.nodes.append(ir.Node("", "Identity", [value], outputs=[copied], name=f"{name}/Identity"))
                value = copied
            elif value.shape is None:
                value.shape, value.type = job_value.shape, type_of(job_value)
            value.name = name
            outputs.append(value)
        return outputs

    def _name_values(self, graph: ir.Graph) -> None:
        """Gives all values unique names; inputs, outputs and weights keep their own."""
        taken = {value.name for value in (*graph.inputs, *graph.outputs, *graph.initializers.values())}
        outputs = set(graph.outputs)
        for node in graph:
            for index, value in enumerate(node.outputs):
                if value in outputs:
                    continue
                name = base = value.name or f"{node.name}/out_{index}"
                count = 1
                while name in taken:
                    name = f"{base}_{count}"
                    count += 1
                value.name = name
                taken.add(name)


_KEYWORDS = frozenset({"from", "lambda", "in", "is"})


def _copy(value: ir.Value) -> ir.Value:
    shape = value.shape.copy() if value.shape is not None else None
    return ir.Value(name=value.name, shape=shape, type=type_of(value), const_value=value.const_value)


def _attributes(node: ir.Node) -> dict[str, Any]:
    found = {name: attribute.value for name, attribute in node.attributes.items() if name not in IGNORED}
    return {**found, **{k: v for k, v in node.meta.get(VARYING, {}).items() if k not in IGNORED}}


def _refuse_rest(operands: dict[str, Any], attributes: dict[str, Any], ignored: frozenset[str]) -> None:
    """Refuses inputs and attributes that the row or function does not know: they could change the result."""
    unknown = [*operands, *(name for name in attributes if name not in ignored)]
    if unknown:
        raise OperatorError(f"has {', '.join(sorted(unknown))}, which its ONNX form does not cover.")


def _first_of_each(node: ir.Node) -> dict[str, ir.Value]:
    found: dict[str, ir.Value] = {}
    for name, value in zip(node.attributes[RESULTS].as_strings(), node.outputs, strict=True):
        found.setdefault(name, value)
    return found


def _by_output(node: ir.Node, results: dict[str, ir.Value], written: Any) -> list[tuple[ir.Value, ir.Value]]:
    """Pairs of job value and written value; an output that was not written must have no reader."""
    names = node.attributes[RESULTS].as_strings()
    if isinstance(written, ir.Value):
        written = {names[0]: written}
    pairs = []
    positions: dict[str, int] = {}
    for name, value in zip(names, node.outputs, strict=True):
        position = positions.get(name, 0)
        positions[name] = position + 1
        found = written.get(name)
        if isinstance(found, (list, tuple)):
            found = found[position]
        if found is not None:
            pairs.append((value, found))
        elif value.uses() or value.is_graph_output():
            raise OperatorError(f"has its output {name} used, which has no ONNX form.")
    return pairs


def _ir_version(opset: int) -> int:
    """The lowest IR version that the ONNX release of this opset wrote, at least 4 (initializers need not be inputs)."""
    table = {9: 4, 10: 5, 11: 6, 12: 7, 13: 7, 14: 7, 15: 8, 16: 8, 17: 8, 18: 8, 19: 9, 20: 9, 21: 10, 22: 10, 23: 11}
    return table.get(opset, 11 if opset > 23 else 4)
