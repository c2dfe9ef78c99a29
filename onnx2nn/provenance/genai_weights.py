"""Gives weights in files of onnxruntime-genai's builder the keys that they have in transformers.

The builder reads a model of transformers, calls its weights by the nodes that it writes (`attn.o_proj.MatMul.weight`),
and packs the matrices of queries, keys and values into one. The node of the attention says where it is to be cut.
"""

from __future__ import annotations

import re
from typing import Any

import onnx_ir as ir

from onnx2nn.provenance.author import Author
from onnx2nn.provenance.exporter_metadata import State
from onnx2nn.provenance.weight_keys import weight_input

_TABLES = re.compile(r"(cos|sin)_cache")
"""Tables of angles, which transformers computes."""

_STEPS = (
    (re.compile(r"\.(?:MatMul|Add|layernorm|Gather)\.(weight|bias)"), r".\1"),
    (re.compile(r"\.attn\."), ".self_attn."),
    (re.compile(r"^model\.layers\.\d+\.final_norm_layernorm\."), "model.norm."),
)
"""What a key in the file is rewritten by."""

_PARTS = ("q_proj", "k_proj", "v_proj")


def is_of_genai(model: ir.Model) -> bool:
    """Returns whether onnxruntime-genai's builder wrote a file."""
    return model.producer_name == "onnxruntime-genai"


def restore_genai(model: ir.Model) -> Author:
    """Renames the weights of `model` in place, and splits the packed ones.

    Args:
        model: of the builder.

    Returns:
        The record of the names.
    """
    graph, author = model.graph, Author(listed=False)
    for node in list(graph):
        _split(graph, node)
        _tie_head(graph, node, author)
    for value in list(graph.initializers.values()):
        name = value.name or ""
        if _TABLES.fullmatch(name):
            author.states[name] = State(name, parameter=False, persistent=False)
            author.names.add(name)
        else:
            _rename(graph, value, author)
    for node in graph:
        if node.name:
            node.name = re.sub(r"^(/model/layers\.\d+)/attn/", r"\1/self_attn/", node.name)
            node.name = re.sub(r"^/model/layers\.\d+/final_norm_layernorm/", "/model/norm/", node.name)
            node.name = re.sub(r"(_proj|/lm_head|/embed_tokens|norm)/(MatMul|Gather|LayerNorm|Add)$", r"\1", node.name)
    return author


def _rename(graph: ir.Graph, value: ir.Value, author: Author) -> None:
    name = key = value.name or ""
    for step, replacement in _STEPS:
        key = step.sub(replacement, key)
    if key != name and key not in graph.initializers:
        value.name = key
        author.restored[key] = f"as transformers has it; the file calls it {name!r}"
    key = value.name or ""
    author.names.add(key)
    if name.endswith(".MatMul.weight"):
        author.moved[key] = "transposed"


def _split(graph: ir.Graph, node: ir.Node) -> None:
    """Gives an attention queries, keys and values of matrices of their own, where `node` takes packed ones."""
    sizes = _sizes(node)
    packed = None if sizes is None else node.inputs[0]
    if packed is None or sizes is None or len(packed.uses()) != 1:
        return
    made = packed.producer()
    bias = weight_input(made, 1) if made is not None and made.op_type == "Add" else None
    source = made.inputs[0] if bias is not None and made is not None else None
    product = source.producer() if source is not None else made
    weight = weight_input(product, 1) if product is not None and product.op_type == "MatMul" else None
    whole = None if weight is None else weight.const_value
    width = 0 if whole is None else int(whole.shape.numpy()[-1])
    if product is None or weight is None or ".qkv_proj." not in (weight.name or "") or width % sum(sizes):
        return
    start = 0
    for position, (part, size) in enumerate(zip(_PARTS, sizes, strict=True)):
        end = start + size * width // sum(sizes)
        name = (product.name or "").replace("qkv_proj", part)
        result = _node(graph, node, "MatMul", [product.inputs[0], _columns(graph, weight, part, start, end)], name)
        if bias is not None:
            cut = _columns(graph, bias, part, start, end)
            result = _node(graph, node, "Add", [result, cut], name.replace("/MatMul", "/Add"))
        if node.op_type == "Split":
            node.outputs[position].replace_all_uses_with(result)
        else:
            node.replace_input_with(position, result)
        start = end
    unused = [found for found in (made, product) if found is not None]
    graph.remove([*([node] if node.op_type == "Split" else []), *dict.fromkeys(unused)], safe=True)
    for value in (weight, bias):
        if value is not None and not value.uses():
            del graph.initializers[value.name or ""]


def _sizes(node: ir.Node) -> list[int] | None:
    """Returns the shares of queries, keys and values in packed ones; None for a node that takes none."""
    if node.op_type == "GroupQueryAttention" and all(value is None for value in node.inputs[1:3]):
        heads, shared = (node.attributes[name].as_int() for name in ("num_heads", "kv_num_heads"))
        return [heads, shared, shared]
    if node.op_type == "Split" and len(node.outputs) == len(_PARTS) and len(node.inputs) > 1:
        constant = ir.convenience.get_const_tensor(node.inputs[1]) if node.inputs[1] is not None else None
        return None if constant is None else [int(size) for size in constant.numpy()]
    return None


def _tie_head(graph: ir.Graph, node: ir.Node, author: Author) -> None:
    """Gives an embedding that reads the transposed weight of the head a weight, which the head reads transposed."""
    weight, key = weight_input(node, 0), "model.embed_tokens.weight"
    if (
        weight is None
        or weight.name != "lm_head.MatMul.weight"
        or node.op_type != "Transpose"
        or key in graph.initializers
    ):
        return
    whole = weight.const_value
    assert whole is not None

    def transposed() -> ir.Tensor:
        return ir.Tensor(whole.numpy().T, whole.dtype, name=key)

    shape = ir.Shape(list(whole.shape.numpy())[::-1])
    tensor = ir.LazyTensor(transposed, whole.dtype, shape=shape, name=key, cache=False)
    table = ir.Value(name=key, shape=shape, type=ir.TensorType(whole.dtype), const_value=tensor)
    graph.register_initializer(table)
    node.outputs[0].replace_all_uses_with(table)
    head = ir.Value(name="lm_head.weight", shape=shape, type=table.type, const_value=tensor)
    graph.register_initializer(head)
    author.ties["lm_head.weight"] = key
    turned = _node(graph, node, "Transpose", [head], "/lm_head/Transpose")
    weight.replace_all_uses_with(turned)
    graph.remove(node, safe=True)
    del graph.initializers[weight.name]


def _node(graph: ir.Graph, before: ir.Node, operator: str, inputs: list[Any], name: str) -> ir.Value:
    made = ir.node(operator, inputs, name=name)
    made.outputs[0].name = f"{name}/output_0"
    if before.outputs[0].type is not None:
        made.outputs[0].type = before.outputs[0].type
    graph.insert_before(before, made)
    return made.outputs[0]


def _columns(graph: ir.Graph, value: ir.Value, part: str, start: int, end: int) -> ir.Value:
    """Returns an initializer of some of the last dimension's elements."""
    whole, name = value.const_value, (value.name or "").replace("qkv_proj", part)
    assert whole is not None

    def cut() -> ir.Tensor:
        return ir.Tensor(whole.numpy()[..., start:end], whole.dtype, name=name)

    shape = ir.Shape([*whole.shape.numpy()[:-1], end - start])
    tensor = ir.LazyTensor(cut, whole.dtype, shape=shape, name=name, cache=False)
    result = ir.Value(name=name, shape=shape, type=ir.TensorType(whole.dtype), const_value=tensor)
    graph.register_initializer(result)
    return result
