"""Tiny decoders and encoders as the graphs that ONNX Runtime's searches take."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

VOCABULARY, HEADS, SIZE, LAYERS = 9, 2, 4, 2
_WIDTH = HEADS * SIZE


def _value(name: str, kind: int, *shape: Any) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, list(shape))


class _Graph:
    """Nodes and initializers of a graph; a call adds a node and returns the name of its output."""

    def __init__(self, seed: int) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.rng = np.random.default_rng(seed)

    def __call__(self, operator: str, *inputs: str, out: str = "", **attributes: Any) -> str:
        name = out or f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], **attributes))
        return name

    def constant(self, value: Any) -> str:
        name = f"c{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def weight(self, *shape: int) -> str:
        return self.constant(self.rng.standard_normal(shape).astype(np.float32))

    def heads(self, x: str, out: str = "") -> str:
        return self("Transpose", self("Reshape", x, self.constant([0, 0, HEADS, SIZE])), perm=[0, 2, 1, 3], out=out)

    def attention(self, q: str, k: str, v: str, mask: str = "") -> str:
        scores = self("MatMul", q, self("Transpose", k, perm=[0, 1, 3, 2]))
        scores = self("Add", scores, mask) if mask else scores
        y = self("MatMul", self("Softmax", scores, axis=-1), v)
        return self("Reshape", self("Transpose", y, perm=[0, 2, 1, 3]), self.constant([0, 0, _WIDTH]))

    def finished(self, name: str, inputs: list[Any], outputs: list[Any]) -> onnx.GraphProto:
        return helper.make_graph(self.nodes, name, inputs, outputs, self.initializers)


def decoder(seed: int) -> onnx.GraphProto:
    """Returns a decoder alone: token ids, positions, a mask and pasts → logits and presents."""
    g = _Graph(seed)
    x = g(
        "Add", g("Gather", g.weight(VOCABULARY, _WIDTH), "input_ids"), g("Gather", g.weight(32, _WIDTH), "position_ids")
    )
    for layer in range(LAYERS):
        inputs = [x, g.weight(_WIDTH, 3 * _WIDTH), g.weight(3 * _WIDTH), "attention_mask", f"past_{layer}"]
        outputs = [f"attended{layer}", f"present_{layer}"]
        options: Any = {"domain": "com.microsoft", "num_heads": HEADS, "unidirectional": 1}
        g.nodes.append(helper.make_node("Attention", inputs, outputs, **options))
        x = g("Add", f"attended{layer}", x)
    g("MatMul", x, g.weight(_WIDTH, VOCABULARY), out="logits")
    ids, floats = TensorProto.INT32, TensorProto.FLOAT
    inputs = [_value("input_ids", ids, "n", "l"), _value("position_ids", ids, "n", "l")]
    inputs += [_value("attention_mask", ids, "n", "all")]
    inputs += [_value(f"past_{i}", floats, 2, "n", HEADS, "past", SIZE) for i in range(LAYERS)]
    outputs = [_value("logits", floats, "n", "l", VOCABULARY)]
    outputs += [_value(f"present_{i}", floats, 2, "n", HEADS, "all", SIZE) for i in range(LAYERS)]
    return g.finished("decoder", inputs, outputs)


def encoder_and_decoder(seed: int, begins: bool, hidden: bool) -> tuple[onnx.GraphProto, onnx.GraphProto]:
    """Returns an encoder and its decoder.

    Args:
        seed: of the weights.
        begins: whether the encoder takes the first token and returns its logits.
        hidden: whether the decoder takes the encoder's result.
    """
    return _encoder(seed, begins), _behind(seed + 1, hidden)


def _masked(g: _Graph) -> str:
    absent = g("Sub", g.constant(np.float32(1)), g("Cast", "encoder_attention_mask", to=TensorProto.FLOAT))
    return g("Unsqueeze", g("Mul", absent, g.constant(np.float32(-1e4))), g.constant([1, 2]))


def _cross(kind: str) -> list[Any]:
    return [
        _value(f"{kind}_{part}_cross_0", TensorProto.FLOAT, "n", HEADS, "source", SIZE) for part in ("key", "value")
    ]


def _encoder(seed: int, begins: bool) -> onnx.GraphProto:
    g, ids, floats = _Graph(seed), TensorProto.INT32, TensorProto.FLOAT
    result = g(
        "Gather", g.weight(VOCABULARY, _WIDTH), "encoder_input_ids", out="encoder_hidden_states" if begins else ""
    )
    k, v = (
        g.heads(g("MatMul", result, g.weight(_WIDTH, _WIDTH)), f"present_{part}_cross_0") for part in ("key", "value")
    )
    inputs = [_value("encoder_input_ids", ids, "n", "source"), _value("encoder_attention_mask", ids, "n", "source")]
    if not begins:
        return g.finished("encoder", inputs, _cross("present"))
    x = g("Gather", g.weight(VOCABULARY, _WIDTH), "decoder_input_ids")
    for part in ("key", "value"):
        g.heads(g("MatMul", x, g.weight(_WIDTH, _WIDTH)), f"present_{part}_self_0")
    x = g("Add", x, g.attention(g.heads(x), k, v, _masked(g)))
    g("MatMul", x, g.weight(_WIDTH, VOCABULARY), out="logits")
    outputs = [
        _value("logits", floats, "n", 1, VOCABULARY),
        _value("encoder_hidden_states", floats, "n", "source", _WIDTH),
    ]
    outputs += [_value(f"present_{part}_self_0", floats, "n", HEADS, 1, SIZE) for part in ("key", "value")]
    return g.finished("encoder", [*inputs, _value("decoder_input_ids", ids, "n", 1)], [*outputs, *_cross("present")])


def _behind(seed: int, hidden: bool) -> onnx.GraphProto:
    g, ids, floats = _Graph(seed), TensorProto.INT32, TensorProto.FLOAT
    x = g("Gather", g.weight(VOCABULARY, _WIDTH), "input_ids")
    new = [g.heads(g("MatMul", x, g.weight(_WIDTH, _WIDTH))) for _ in range(2)]
    parts = ("key", "value")
    k, v = (
        g("Concat", f"past_{part}_self_0", rows, axis=2, out=f"present_{part}_self_0")
        for part, rows in zip(parts, new, strict=True)
    )
    x = g("Add", x, g.attention(g.heads(x), k, v))
    x = g("Add", x, g.attention(g.heads(x), "past_key_cross_0", "past_value_cross_0", _masked(g)))
    if hidden:
        x = g("Add", x, g("ReduceMean", "encoder_hidden_states", axes=[1], keepdims=1))
    g("MatMul", x, g.weight(_WIDTH, VOCABULARY), out="logits")
    inputs = [_value("input_ids", ids, "n", 1), _value("encoder_attention_mask", ids, "n", "source")]
    inputs += [_value("encoder_hidden_states", floats, "n", "source", _WIDTH)] if hidden else []
    inputs += [_value(f"past_{part}_self_0", floats, "n", HEADS, "past", SIZE) for part in parts]
    outputs = [_value("logits", floats, "n", 1, VOCABULARY)]
    outputs += [_value(f"present_{part}_self_0", floats, "n", HEADS, "all", SIZE) for part in parts]
    return g.finished("decoder", [*inputs, *_cross("past")], outputs)
