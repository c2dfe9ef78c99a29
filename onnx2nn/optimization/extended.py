"""Calls what the author of a convolution called in it beside it, so that the convolution is torch's own again."""

from __future__ import annotations

from typing import Any

from torch import fx, nn

from onnx2nn.fx.blocks.extended_layers import ExtendedLayer, function_of, is_convolution, plain_layer
from onnx2nn.optimization.chains import parts


def open_convolutions(root: nn.Module) -> None:
    """Replaces extended convolutions by plain ones, which their callers call between what was inside.

    Those in an `nn.Sequential`, which calls nothing but modules, stay.
    """
    chained = {layer for part in parts(root) if isinstance(part, nn.Sequential) for layer in part}
    plain: dict[nn.Module, nn.Module] = {}
    for part in parts(root):
        if not isinstance(part, fx.GraphModule) or isinstance(part, ExtendedLayer):
            continue
        found = False
        for node in list(part.graph.nodes):
            layer = part.get_submodule(str(node.target)) if node.op == "call_module" else None
            if not isinstance(layer, ExtendedLayer) or not is_convolution(layer) or layer in chained:
                continue
            _open(part, node, layer)
            if layer not in plain:
                plain[layer] = plain_layer(layer)
                plain[layer].__dict__["_modules"] = {}
            found = True
        if found:
            part.recompile()
    for path, module in list(root.named_modules(remove_duplicate=False)):
        if module in plain:
            root.set_submodule(path, plain[module])


def _open(part: fx.GraphModule, call: fx.Node, layer: ExtendedLayer) -> None:
    """Puts the calls of a layer in the place of its call, which is that of the layer alone from then on."""
    function = function_of(layer)
    known: dict[fx.Node, Any] = {}
    with part.graph.inserting_before(call):
        for node in layer.graph.nodes:
            if node.op == "placeholder":
                known[node] = call.args[0]
            elif node.target is function:
                known[node] = part.graph.call_module(str(call.target), (known[node.args[0]],))
                known[node].meta.update(node.meta)
            elif node.op == "output":
                call.replace_all_uses_with(known[node.args[0]])
            elif node.op != "get_attr":
                known[node] = part.graph.node_copy(node, known.__getitem__)
                if node.op == "call_module":  # a plain layer has no modules
                    known[node].target = f"{call.target}_{node.target}"
                    part.set_submodule(str(known[node].target), layer.get_submodule(str(node.target)))
    part.graph.erase_node(call)
