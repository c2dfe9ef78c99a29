"""Splits weights again that the exporter merged into one initializer because their values are equal."""

from __future__ import annotations

from collections.abc import Container

import onnx_ir as ir

from onnx2nn.ground.naming import without_call_number
from onnx2nn.provenance import exporter_metadata
from onnx2nn.provenance.weight_keys import WeightKeys, array_of, is_fresh, slot_of, weight_input


def split_identity(keys: WeightKeys, node: ir.Node) -> None:
    """Replaces an Identity by an initializer of its own: the exporter merged two weights with equal values.

    It merges weights that the author tied as well, and only those are tied here. What modules begin with (ones, zeros,
    a fresh layer scale, an identity matrix) is equal to another without being tied; other tensors are not by chance.
    """
    source, key = weight_input(node, 0), node.outputs[0].name or ""
    if source is None or node.outputs[0].is_graph_output() or source.const_value is None:
        return
    if keys.author.listed and not keys.is_key(key):
        return  # an identity of the author's own, such as Tensor.clone
    node.outputs[0].name = None
    own = keys.copy(key, source) if is_fresh(array_of(source)) else keys.tie(key, source)
    if not keys.is_key(key):
        keys.author.names.discard(key)
    node.outputs[0].replace_all_uses_with(own)
    keys.graph.remove(node)


def join_nameless(keys: WeightKeys, layers: Container[str]) -> None:
    """Reads the weight itself where an exporter's own value is equal to it and got no key: `1 - mask` of two masks.

    Args:
        keys: of a model whose nodes have their weights' keys.
        layers: the operators of layers, which get a key of their own later.
    """
    for key, source in list(keys.author.ties.items()):
        value, weight = keys.graph.initializers.get(key), keys.graph.initializers.get(source)
        if keys.is_key(key) or value is None or weight is None:
            continue
        if any(use.node.op_type in layers for use in value.uses()):
            continue
        value.replace_all_uses_with(weight, replace_graph_outputs=True)
        keys.graph.initializers.pop(key)
        for notes in (keys.author.ties, keys.author.restored, keys.author.moved):
            notes.pop(key, None)


def split_equal(keys: WeightKeys) -> None:
    """Gives each call its own weights again where its node reads equal weights of other calls.

    The noted call names the author's weights; its node reads other weights, which the calls of other nodes name. A
    weight that no call of its own node names is another call's, into which this one's was merged.
    """
    calls = [(node, named, keys.weights_of(node)) for node in keys.graph if (named := keys.call_keys(node))]
    held = {value.name for _, named, given in calls for value in given.values() if value.name in named}
    copies: dict[tuple[str, str], ir.Value] = {}  # of a layer that is called several times
    for node, named, given in calls:
        for position, key in _pairs(keys, named, given):
            source = given[position].name or ""
            if source == key or source not in held or key not in keys.absent:
                continue
            if (key, source) not in copies and keys.is_free(key):
                copies[key, source] = keys.copy(key, given[position])
            if (key, source) in copies:
                node.replace_input_with(position, copies[key, source])


def split_folded(keys: WeightKeys) -> None:
    """Splits what the exporter computed of several equal weights and then merged: each module reads its own again.

    The call of a node names the result that it read, `exp_1`, and the initializer is another module's, `exp`. The key
    of its weight is that of the other module's in the module of the node.
    """
    for value in list(keys.graph.initializers.values()):
        noted = exporter_metadata.folded_from(value)
        merged = noted & keys.absent
        if len(merged) != 1:
            continue
        (key,) = merged
        own: dict[str, ir.Value] = {}
        for use in list(value.uses()):
            name, other = _read_result(value, use.node), _key_beside(keys, key, use.node)
            if not other or not name or (name in keys.graph.initializers and name not in own):
                continue
            if name not in own:
                own[name] = ir.Value(name=name, shape=value.shape, type=value.type, const_value=value.const_value)
                keys.graph.register_initializer(own[name])
                exporter_metadata.note_folded(own[name], noted - merged | {other})
            use.node.replace_input_with(use.idx, own[name])


def _read_result(value: ir.Value, node: ir.Node) -> str:
    """Returns the name of the result that the call of a node read in the place of an initializer; `""` for its own."""
    call = exporter_metadata.call_of(node)
    names = [text.removeprefix("%") for text in call.arguments] if call is not None else []
    if value.name in names:
        return ""
    function = without_call_number(value.name or "")  # torch numbers further results of one function
    found = {name for name in names if without_call_number(name) == function}
    return next(iter(found)) if len(found) == 1 else ""


def _key_beside(keys: WeightKeys, key: str, node: ir.Node) -> str:
    """Returns the absent key that the weight `key` of another module has in the module of a node, `""` for none."""
    place = exporter_metadata.place_of(node)
    steps = key.split(".") if place is not None and place.path else []
    ends = (".".join(steps[-count:]) for count in range(1, len(steps)))
    found = (f"{place.path}.{end}" for end in ends) if place is not None else ()
    return next((other for other in found if other != key and other in keys.absent and keys.is_free(other)), "")


def _pairs(keys: WeightKeys, named: list[str], given: dict[int, ir.Value]) -> list[tuple[int, str]]:
    """Returns pairs of a node's input and the key, named by the node's call, of the weight there.

    An operator whose first input is data takes its weights in the same order in torch and ONNX. Where a call became
    several nodes, each reads a part of the weights: their keys have the same last step as the equal weights', or one
    key alone is left.
    """
    if len(named) == len(given) and 0 not in given and len(set(named)) == len(named):
        return list(zip(given, named, strict=True))
    others = {i: value for i, value in given.items() if value.name not in named}
    wanted = [key for key in named if key in keys.absent]
    slots = {i: [key for key in wanted if slot_of(key) == slot_of(value.name or "")] for i, value in others.items()}
    pairs = [(i, found[0]) for i, found in slots.items() if len(found) == 1]
    if len(others) == 1 and not pairs and len(left := [key for key in wanted if keys.is_free(key)]) == 1:
        pairs = [(next(iter(others)), left[0])]
    return pairs if len({key for _, key in pairs}) == len(pairs) else []
