"""Changes to models that keep them models: nodes, attributes, shapes, names, functions; and to their bytes."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

import onnx
from google.protobuf.message import DecodeError
from onnx import defs, helper

_NUMBERS = (0, 1, -1, 2, 3, 7, 255, 1 << 16, 1 << 28, (1 << 31) - 1, 1 << 40, (1 << 63) - 1, -(1 << 63))
_FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-30, 1e30, float("inf"), float("-inf"), float("nan"))
_NAMES = ("", "x", "y", "self", "a.b.c", "a/b", "__init__", "class", "\u00e9", "a" * 300, "1", "weight", "a\nb")
_NAMES += (
    "X",
    "torch",
    "inf",
    "slice",
    "a b",
    "a_b",
    "__import__",
    'x") or RAN() or ("y',
    "x') or RAN() or ('y",
    "x\n RAN()\n",
)
"""The last ones call what the driver watches where a name is code; `X` and `x`, `a b` and `a_b` may become one name."""
_OPERATORS = sorted({(schema.domain, schema.name) for schema in defs.get_all_schemas()})

Mutator = Callable[[random.Random, onnx.ModelProto], None]


def _node(rng: random.Random, model: onnx.ModelProto) -> onnx.NodeProto:
    pools = [list(model.graph.node), *(list(function.node) for function in model.functions)]
    return rng.choice([node for pool in pools for node in pool] or [model.graph.node.add(op_type="Relu")])


def _value(rng: random.Random) -> Any:
    kind = rng.randrange(6)
    if kind == 0:
        return rng.choice(_NUMBERS)
    if kind == 1:
        return rng.choice(_FLOATS)
    if kind == 2:
        return rng.choice(_NAMES)
    if kind == 3:
        return [rng.choice(_NUMBERS) for _ in range(rng.randrange(1, 5))]
    if kind == 4:
        return [rng.choice(_FLOATS) for _ in range(rng.randrange(1, 5))]
    return helper.make_tensor("t", onnx.TensorProto.INT64, [2], [rng.choice(_NUMBERS), rng.choice(_NUMBERS)])


def change_attribute(rng: random.Random, model: onnx.ModelProto) -> None:
    """Gives a node's attribute another value, or the node one more attribute."""
    node = _node(rng, model)
    names = [attribute.name for attribute in node.attribute]
    if names and rng.random() < 0.8:
        index = rng.randrange(len(names))
        node.attribute[index].CopyFrom(helper.make_attribute(names[index], _value(rng)))
    else:
        name = rng.choice(("axis", "axes", "to", "value", "perm", "keepdims", "mode", "body", "pads", "num_outputs"))
        node.attribute.append(helper.make_attribute(name, _value(rng)))


def drop_attribute(rng: random.Random, model: onnx.ModelProto) -> None:
    """Removes an attribute."""
    node = _node(rng, model)
    if node.attribute:
        del node.attribute[rng.randrange(len(node.attribute))]


def change_operator(rng: random.Random, model: onnx.ModelProto) -> None:
    """Makes a node another operator's."""
    _node(rng, model).domain, _node(rng, model).op_type = rng.choice(_OPERATORS)


def rewire(rng: random.Random, model: onnx.ModelProto) -> None:
    """Gives a node other, more or fewer inputs."""
    graph, node = model.graph, _node(rng, model)
    known = [value.name for value in (*graph.input, *graph.initializer)]
    known += ["", *(output for other in graph.node for output in other.output)]
    if node.input and rng.random() < 0.6:
        node.input[rng.randrange(len(node.input))] = rng.choice(known)
    elif node.input and rng.random() < 0.4:
        del node.input[rng.randrange(len(node.input))]
    else:
        node.input.append(rng.choice(known))


def copy_node(rng: random.Random, model: onnx.ModelProto) -> None:
    """Adds a copy of a node, or takes a node away."""
    nodes = model.graph.node
    if nodes and rng.random() < 0.3:
        del nodes[rng.randrange(len(nodes))]
        return
    copy = nodes.add()
    copy.CopyFrom(_node(rng, model))
    for index in range(len(copy.output)):
        copy.output[index] = f"{copy.output[index]}_{rng.randrange(1000)}"


def change_shape(rng: random.Random, model: onnx.ModelProto) -> None:
    """Changes a dimension or the type of an input, an output or a value."""
    value = rng.choice([*model.graph.input, *model.graph.output, *model.graph.value_info] or [model.graph.input.add()])
    tensor = value.type.tensor_type
    choice = rng.randrange(4)
    if choice == 0:
        tensor.elem_type = rng.randrange(0, 26)
    elif choice == 1:
        tensor.shape.dim.add(dim_value=rng.choice(_NUMBERS))
    elif tensor.shape.dim:
        dim = tensor.shape.dim[rng.randrange(len(tensor.shape.dim))]
        if choice == 2:
            dim.dim_value = rng.choice(_NUMBERS)
        else:
            dim.dim_param = rng.choice(_NAMES)


def change_tensor(rng: random.Random, model: onnx.ModelProto) -> None:
    """Replaces a constant by large or strange sizes, or changes its declared shape."""
    if not model.graph.initializer:
        return
    tensor = rng.choice(list(model.graph.initializer))
    if rng.random() < 0.3:
        tensor.dims.append(rng.choice(_NUMBERS))
        return
    count = rng.randrange(1, 5)
    numbers = [rng.choice(_NUMBERS) for _ in range(count)]
    tensor.CopyFrom(helper.make_tensor(tensor.name, onnx.TensorProto.INT64, [count] if count > 1 else [], numbers))


def make_constant(rng: random.Random, model: onnx.ModelProto) -> None:
    """Makes an input of known shape a constant, so that the import computes what depends on it."""
    if not model.graph.input:
        return
    value = model.graph.input[rng.randrange(len(model.graph.input))]
    kind, dims = value.type.tensor_type.elem_type, [dim.dim_value for dim in value.type.tensor_type.shape.dim]
    count = math.prod(dims)
    if 0 <= count <= 1 << 12 and kind not in (0, onnx.TensorProto.STRING):
        numbers = [rng.choice((0, 1, 2, 3, 5)) for _ in range(count)]
        model.graph.initializer.append(helper.make_tensor(value.name, kind, dims, numbers))
        model.graph.input.remove(value)


def change_name(rng: random.Random, model: onnx.ModelProto) -> None:
    """Gives a node, a value or the graph another name."""
    node, name = _node(rng, model), rng.choice(_NAMES)
    if rng.random() < 0.5 or not node.output:
        node.name = name
    else:
        node.output[0] = name


def rename_everywhere(rng: random.Random, model: onnx.ModelProto) -> None:
    """Gives one step of a name another text wherever it stands: in values, weights, nodes, functions and notes."""
    found: set[str] = set()

    def note(text: str) -> str:
        found.update(re.findall(r"\w+", text))
        return text

    _map_texts(model.graph, note)
    old, new = rng.choice(sorted(found) or [""]), rng.choice(_NAMES)
    for part in (model.graph, *model.functions) if old else ():
        _map_texts(part, lambda text: re.sub(rf"\b{re.escape(old)}\b", lambda _: new, text))


def _map_texts(message: Any, function: Callable[[str], str]) -> None:
    """Replaces the texts in a message, but for operators and their domains."""
    for kind, value in message.ListFields():
        if kind.type == kind.TYPE_MESSAGE:
            for inner in value if isinstance(value, Sequence) else [value]:
                _map_texts(inner, function)
        elif kind.type == kind.TYPE_STRING and kind.name not in ("op_type", "domain", "key"):
            if isinstance(value, str):
                setattr(message, kind.name, function(value))
            else:
                value[:] = [function(text) for text in value]


def change_parameter(rng: random.Random, model: onnx.ModelProto) -> None:
    """Gives an input of a function another name, there and in its nodes."""
    if model.functions and (function := rng.choice(list(model.functions))).input:
        place, new = rng.randrange(len(function.input)), rng.choice(_NAMES)
        old, function.input[place] = function.input[place], new
        for node in function.node:
            node.input[:] = [new if name == old else name for name in node.input]


def change_opset(rng: random.Random, model: onnx.ModelProto) -> None:
    """Changes a version."""
    if model.opset_import:
        rng.choice(list(model.opset_import)).version = rng.choice((*range(1, 28), *_NUMBERS))


def change_function(rng: random.Random, model: onnx.ModelProto) -> None:
    """Adds a function of the graph's operators, or changes one."""
    if not model.functions:
        node = _node(rng, model)
        body = helper.make_node(node.op_type, ["a"], ["b"], domain=node.domain)
        opsets = [helper.make_opsetid("", 17)]
        model.functions.append(helper.make_function(node.domain, node.op_type, ["a"], ["b"], [body], opsets))
        return
    function = rng.choice(list(model.functions))
    if rng.random() < 0.5:
        function.name = rng.choice(_NAMES)
    else:
        function.output.append(rng.choice(_NAMES))


def change_metadata(rng: random.Random, model: onnx.ModelProto) -> None:
    """Gives a node an exporter's metadata, of scopes that do not fit."""
    for key in ("pkg.torch.onnx.name_scopes", "pkg.torch.onnx.class_hierarchy", "namespace"):
        value = rng.choice(("", "[", "['a']", "['', 'a', 'a.b']", "[1]", "{}", "a/b: c", "['" + "a." * 99 + "']"))
        _node(rng, model).metadata_props.add(key=key, value=value)


STRUCTURAL: tuple[Mutator, ...] = (
    *(change_attribute, drop_attribute, change_operator, rewire, copy_node, change_shape, change_tensor),
    make_constant,
    *(change_name, change_opset, change_function, change_metadata, rename_everywhere, change_parameter),
)


def mutated(rng: random.Random, seed: bytes) -> tuple[bytes, list[str]]:
    """Returns a changed model and the names of the changes; what is no model any more has its bytes changed."""
    if rng.random() < 0.15:
        return _changed_bytes(rng, seed), ["bytes"]
    try:
        model = onnx.ModelProto.FromString(seed)
    except DecodeError:
        return _changed_bytes(rng, seed), ["bytes"]
    done = []
    for _ in range(rng.randrange(1, 5)):
        mutator = rng.choice(STRUCTURAL)
        done.append(mutator.__name__)
        try:
            mutator(rng, model)
        except (DecodeError, TypeError, ValueError, KeyError):
            continue  # protobuf holds no such value
    return model.SerializeToString(), done


def _changed_bytes(rng: random.Random, seed: bytes) -> bytes:
    data = bytearray(seed)
    for _ in range(rng.randrange(1, 6)):
        place = rng.randrange(len(data) or 1)
        choice = rng.randrange(4)
        if choice == 0:
            data[place : place + 1] = bytes([rng.randrange(256)])
        elif choice == 1:
            del data[place : place + rng.randrange(1, 12)]
        elif choice == 2:
            data[place:place] = data[place : place + 40]
        else:
            data[place:place] = rng.randbytes(rng.randrange(1, 8))
    return bytes(data)
