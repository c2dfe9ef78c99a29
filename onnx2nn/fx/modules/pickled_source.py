"""The source of a program in pickles: torch runs it with proxies, and makes the graph of what it calls.

torch's own source has faults there. A value that an attribute reads may be a tensor in place of a proxy, which a size
that is a proxy cannot index. Texts, which are an array, are no value of a node, and whether the module is in training
would be a constant. And a weight or module `self`, as in transformers' BertAttention, gives a node `self`, whose value
hides the module in the code that torch then generates. Here all are calls of the tracer's `create_proxy`.
"""

from __future__ import annotations

import copy
import operator

from torch import fx

PROGRAM_NAMES = frozenset({"self", "torch", "device"})
"""Names that a generated program uses itself; no value may have one of them."""

RESERVED_NAMES = PROGRAM_NAMES | {
    *("inf", "nan", "NoneType", "Ellipsis", "slice", "range", "pytree", "fx_pytree", "operator", "math", "onnx2nn"),
    *("getattr", "float", "int", "bool", "complex", "abs", "max", "min", "round", "len", "sum", "pow", "isinstance"),
}
"""Names of what a generated program may write or call besides; no argument may have one of them, as torch writes an
argument's name as it is."""


def pickled_source(graph: fx.Graph, values: frozenset[str]) -> str:
    """Returns the source of a graph's program for unpickling, which needs nothing but torch.

    Args:
        graph: of a `torch.fx.GraphModule`.
        values: names of buffers, of texts and of `training`, as its nodes read them.

    Returns:
        A function `forward` for `torch.fx.Tracer.trace`; the graph that it makes is `graph`.
    """
    changed = copy.deepcopy(graph)
    found = [node for node in changed.nodes if _is_read(node, values) or _hides(node)]
    if not found:
        return changed.python_code("self").src
    tracer = _tracer(changed)
    for node in found:
        name = "result" if _hides(node) else node.name
        with changed.inserting_before(node):
            call = (tracer, node.op, node.target, node.args, dict(node.kwargs), name)
            made = changed.create_node("call_method", "create_proxy", call, name=f"{name}_1")
        node.replace_all_uses_with(made)
        changed.erase_node(node)
    return changed.python_code("self").src


def _tracer(graph: fx.Graph) -> fx.Node:
    """Adds a node that asks a proxy for the tracer: the first input, or one that the source takes out of the graph."""
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    if inputs:
        with graph.inserting_after(inputs[-1]):
            return graph.call_function(getattr, (inputs[0], "tracer"))
    with graph.inserting_before(next(iter(graph.nodes))):
        given = graph.placeholder("*inputs")
        proxy = graph.call_function(operator.getitem, (given, 0))
        tracer = graph.call_function(getattr, (proxy, "tracer"))
        made = graph.call_function(getattr, (tracer, "graph"))
        graph.call_method("erase_node", (made, graph.call_function(getattr, (proxy, "node"))))
    return tracer


def _is_read(node: fx.Node, values: frozenset[str]) -> bool:
    return node.op == "get_attr" and str(node.target) in values


def _hides(node: fx.Node) -> bool:
    return node.op in ("call_module", "get_attr") and node.target in PROGRAM_NAMES
