"""The nodes of an exported model: those computed from numbers alone are folded, all are named and noted."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import onnx
import onnx_ir as ir

from onnx2nn.ground.pass_times import timed
from onnx2nn.provenance import exporter_metadata

if TYPE_CHECKING:
    from torch import fx

SOURCE = "onnx2nn.node"
"""The key of the notes on a call of the original module, among those that torch's exporter keeps."""


@timed("names and folding")
def clean(model: ir.Model, calls: Mapping[str, fx.Node]) -> None:
    """Folds nodes that the exporter computes from numbers alone, names the nodes, and notes their modules.

    Args:
        model: changed in place.
        calls: the exported calls by name.
    """
    from onnxscript import optimizer
    from onnxscript.ir.passes.common import RemoveUnusedNodesPass

    weights = set(model.graph.initializers)

    def folds(node: ir.Node) -> bool | None:  # None: by the folding's own rules
        reads = any(value is not None and value.name in weights for value in node.inputs)
        return False if reads and node.op_type != "Shape" else None  # a weight's shape is a mere number

    with contextlib.suppress(RuntimeError):  # onnxscript fails for a split into parts whose size is known at run time
        optimizer.fold_constants(model, should_fold=folds)
    _drop_invented_biases(model, weights)
    _drop_neutral_nodes(model)
    RemoveUnusedNodesPass()(model)
    graph = model.graph
    sources = {node: _source(node, calls if node.graph is graph else {}) for node in graph.all_nodes()}
    _name_values(model, _results(graph, sources))
    _note_modules(graph, sources)
    _name_nodes(sources)
    _forget_computed_sizes(graph)


def _forget_computed_sizes(graph: ir.Graph) -> None:
    """Leaves the sizes between the nodes that are computed from those of the inputs unknown, where they are noted.

    Torch notes them as its trace has them. Where a size of 1 is broadcast, as in the sum of two resolutions of a tiny
    image, they are others, and ONNX Runtime, which uses memory again by these notes, refuses the sum.
    """
    given = {str(size.value) for value in graph.inputs for size in value.shape or () if not isinstance(size, int)}
    outputs = set(graph.outputs)
    for node in graph.all_nodes():
        for value in node.outputs:
            if value.shape is not None and value not in outputs:
                value.shape = ir.Shape(
                    [size if isinstance(size, int) or str(size.value) in given else None for size in value.shape]
                )


def _drop_invented_biases(model: ir.Model, weights: Collection[str]) -> None:
    """Removes the zeros that the exporter adds to a convolution without bias: an import would hold them as a weight."""
    for node in model.graph.all_nodes():
        if node.op_type in ("Conv", "ConvTranspose") and len(node.inputs) == 3 and node.inputs[2] is not None:
            bias = node.inputs[2]
            if bias.name not in weights and bias.const_value is not None and not bias.const_value.numpy().any():
                node.replace_input_with(2, None)


def _drop_neutral_nodes(model: ir.Model) -> None:
    """Removes the factors of 1 and the casts to the type that is there among the several nodes of one call.

    The exporter writes ELU as `Elu(x * 1) * 1`, and a group normalisation with a CastLike of each weight. The only node
    of a call stays, which its author wrote.
    """
    counts = Counter(exporter_metadata.call_name(node) for node in model.graph.all_nodes() if not _is_constant(node))
    types = dict[ir.Value, ir.DataType | None]()
    version = model.graph.opset_imports.get("", 1)
    for node in model.graph.all_nodes():
        for position, output in enumerate(node.outputs):
            types[output] = output.dtype or _type_of_inputs(node, position, types, version)
        name = exporter_metadata.call_name(node)
        same = _same(node, types) if name and counts[name] > 1 and not node.domain else None
        if same is not None:
            _replace(node.outputs[0], same)


def _replace(value: ir.Value, same: ir.Value) -> None:
    """Uses an equal value instead of one, under its name if it is an output; an output that has another name stays."""
    if value.is_graph_output():
        producer = same.producer()
        graph = None if producer is None else producer.graph
        if graph is None or same.is_graph_output() or value not in graph.outputs:
            return
        same.name, value.name = value.name, same.name
        same.shape, same.type = value.shape, value.type
    ir.convenience.replace_all_uses_with(value, same, replace_graph_outputs=True)


def _is_constant(node: ir.Node) -> bool:
    return node.op_type == "Constant" and not node.domain


def _same(node: ir.Node, types: Mapping[ir.Value, ir.DataType | None]) -> ir.Value | None:
    """Returns the input that the only output of a node is always equal to, None where there is none known."""
    first, second = node.inputs if len(node.inputs) == 2 else (None, None)
    if first is None or second is None:
        return None
    if node.op_type == "CastLike":
        known = types.get(first, first.dtype)
        return first if known is not None and known == types.get(second, second.dtype) else None
    is_product = node.op_type == "Mul"
    if (is_product or node.op_type == "Div") and _is_one(second):
        return first
    return second if is_product and _is_one(first) else None


def _is_one(value: ir.Value) -> bool:
    tensor = ir.convenience.get_const_tensor(value)
    return tensor is not None and not tensor.shape.numpy() and bool(tensor.numpy() == 1)


def _type_of_inputs(
    node: ir.Node, position: int, types: Mapping[ir.Value, ir.DataType | None], version: int
) -> ir.DataType | None:
    """Returns the type of an output that has the type of an input by the operator's schema; None for others."""
    if node.domain or not onnx.defs.has(node.op_type, max_inclusive_version=version):
        return None
    schema = onnx.defs.get_schema(node.op_type, max_inclusive_version=version)
    if position >= len(schema.outputs):
        return None
    own = schema.outputs[position].type_str
    for formal, value in zip(schema.inputs, node.inputs, strict=False):
        if value is not None and formal.type_str == own:
            return types.get(value, value.dtype)
    return None


def _results(graph: ir.Graph, sources: Mapping[ir.Node, Mapping[str, Any]]) -> dict[str, ir.Value]:
    """Returns the values that the original file has, by their names there: what the last node of a call gives."""
    last = {tuple(sources[node]["onnx_outputs"]): node for node in graph if sources[node].get("onnx_outputs")}
    return {names[0]: node.outputs[0] for names, node in last.items() if len(names) == len(node.outputs) == 1}


def _name_values(model: ir.Model, results: Mapping[str, ir.Value]) -> None:
    """Names the values between the nodes as in the original file, the others otherwise than these and than outputs.

    A node of this file can then be compared with the module's call.
    """
    graph = model.graph
    fixed = {*graph.inputs, *graph.outputs, *graph.initializers.values()}
    taken = Counter(value.name or "" for value in fixed)
    for name, value in results.items():
        if value not in fixed:
            fixed.add(value)
            value.name = unused(name, taken)
    for node in graph.all_nodes():
        for value in node.outputs:
            if value not in fixed and value.name:
                value.name = unused(value.name, taken)


def _name_nodes(sources: Mapping[ir.Node, Mapping[str, Any]]) -> None:
    """Names each node after its node in the original file; of several, the one with its operator, else the last.

    Names are unique: a file that was exported here before already has names of this form.
    """
    groups: dict[tuple[str, str], list[ir.Node]] = {}
    others: list[tuple[ir.Node, str]] = []
    for node, source in sources.items():
        if "onnx" in source:
            _, operator, name = source["onnx"]
            groups.setdefault((operator, name), []).append(node)
        else:
            others.append((node, node.name or node.op_type))
    taken: Counter[str] = Counter()
    for (operator, name), nodes in groups.items():
        named = next((node for node in reversed(nodes) if node.op_type == operator), nodes[-1])
        named.name = unused(name, taken)
        others += [(node, f"{name}/{node.op_type}") for node in nodes if node is not named]
    for node, name in others:
        node.name = unused(name, taken)


def _note_modules(graph: ir.Graph, sources: Mapping[ir.Node, Mapping[str, Any]]) -> None:
    """Notes the modules around each node and their classes as torch's exporter does, which saw a flat program.

    Nodes in the graphs of others have the notes of these, of whose modules they are.
    """
    for node, source in sources.items():
        for key, name in ((exporter_metadata.SCOPES, "scopes"), (exporter_metadata.CLASSES, "classes")):
            node.metadata_props.pop(key, None)
            if name in source and node.graph is graph:
                node.metadata_props[key] = source[name]
        node.metadata_props.pop("pkg.torch.onnx.stack_trace", None)  # lines of the trace, not of the author's


def _source(node: ir.Node, calls: Mapping[str, fx.Node]) -> Mapping[str, Any]:
    """Returns the notes on the module's call that became `node`; empty where it is not known.

    Args:
        node: of the exported model.
        calls: the exported calls by name, which nodes note that come from a function of the exporter's.
    """
    call = node.meta.get("node")
    if call is None:
        call = calls.get(exporter_metadata.call_name(node))
    found: Mapping[str, Any] = call.meta.get("custom", {}).get(SOURCE, {}) if call is not None else {}
    return found


def unused(name: str, taken: Counter[str]) -> str:
    """Returns `name`, with a number behind it where it is taken, and takes it."""
    unused = name
    while taken[unused]:
        unused = f"{name}_{taken[name]}"
        taken[name] += 1
    taken[unused] += 1
    return unused
