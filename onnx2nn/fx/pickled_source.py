"""The source of a program in pickles: torch runs it with proxies, and makes the graph of what it calls.

torch's own source has two faults there. A value that an attribute reads may be a tensor in place of a proxy, which a
size that is a proxy cannot index. And a module named `self`, as in transformers' BertAttention, gives a node `self`,
whose value hides the module in the code that torch then generates. Here both are calls of the tracer's `create_proxy`.
"""

from __future__ import annotations

import copy

from torch import fx

PROGRAM_NAMES = frozenset({"self", "torch", "device"})
"""Names that a generated program uses itself; no value may have one of them."""


def pickled_source(graph: fx.Graph, buffers: frozenset[str]) -> str:
    """Returns the source of a graph's program for unpickling, which needs nothing but torch.

    Args:
        graph: of a `torch.fx.GraphModule`.
        buffers: names of buffers, as its nodes read them.

    Returns:
        A function `forward` for `torch.fx.Tracer.trace`; the graph that it makes is `graph`. A graph without inputs
        keeps torch's source, because there is no proxy to ask for the tracer.
    """
    changed = copy.deepcopy(graph)
    first = next((node for node in changed.nodes if node.op == "placeholder"), None)
    found = [node for node in changed.nodes if _is_read(node, buffers) or _hides(node)]
    if not found or first is None:
        return changed.python_code("self").src
    last = [node for node in changed.nodes if node.op == "placeholder"][-1]
    with changed.inserting_after(last):
        tracer = changed.call_function(getattr, (first, "tracer"))
    for node in found:
        name = "result" if _hides(node) else node.name
        with changed.inserting_before(node):
            call = (tracer, node.op, node.target, node.args, dict(node.kwargs), name)
            made = changed.create_node("call_method", "create_proxy", call, name=f"{name}_1")
        node.replace_all_uses_with(made)
        changed.erase_node(node)
    return changed.python_code("self").src


def _is_read(node: fx.Node, buffers: frozenset[str]) -> bool:
    return node.op == "get_attr" and str(node.target) in buffers


def _hides(node: fx.Node) -> bool:
    return node.op == "call_module" and node.target in PROGRAM_NAMES
