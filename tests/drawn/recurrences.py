"""Loops in which a step of a recurrent layer is written out, in one of the many ways that there are."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_GATES = {"LSTM": "ifgo", "GRU": "zrn", "RNN": "h", "ReLU": "h"}


@dataclass
class Step:
    """A loop, and what it was drawn as.

    Attributes:
        kind: the layer.
        model: `(batch, steps, features)` → the hidden states `(batch, steps, hidden)`, and the last one.
        batch: the fixed batch, None for a dynamic one, 0 where there is no batch.
    """

    kind: str
    model: onnx.ModelProto
    batch: int | None


@dataclass
class _Body:
    """The graph of a step that is being written."""

    rng: random.Random
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: dict[str, np.ndarray] = field(default_factory=dict)

    def add(self, operator: str, *inputs: str, outputs: int = 1, **attributes: object) -> list[str]:
        """Adds a node; returns the names of its outputs."""
        names = [f"v{len(self.nodes)}_{at}" for at in range(outputs)]
        self.nodes.append(helper.make_node(operator, list(inputs), names, **attributes))
        return names

    def one(self, operator: str, *inputs: str, **attributes: object) -> str:
        """Adds a node; returns the name of its output."""
        return self.add(operator, *inputs, **attributes)[0]

    def weight(self, *shape: int) -> str:
        """Returns the name of a new weight."""
        name = f"w{len(self.weights)}"
        values = np.random.default_rng(self.rng.getrandbits(32)).normal(size=shape)
        self.weights[name] = (values / np.sqrt(shape[0])).astype(np.float32)
        return name

    def product(self, x: str, inputs: int, width: int, batched: bool) -> str:
        """Returns an input times a new matrix, in one of the ways to write it."""
        ways = ["MatMul", "Gemm", "transposed", "Einsum", "turned"] if batched else ["MatMul", "Einsum"]
        match self.rng.choice(ways):
            case "MatMul":
                return self.one("MatMul", x, self.weight(inputs, width))
            case "Gemm":
                return self.one("Gemm", x, self.weight(inputs, width))
            case "transposed":
                return self.one("Gemm", x, self.weight(width, inputs), transB=1)
            case "Einsum":
                equation = "ba,ca->bc" if batched else "a,ca->c"
                return self.one("Einsum", x, self.weight(width, inputs), equation=equation)
            case _:
                columns = self.one("Transpose", x, perm=[1, 0])
                return self.one("Transpose", self.one("MatMul", self.weight(width, inputs), columns), perm=[1, 0])

    def gates(self, x: str, inputs: int, hidden: int, order: str, batched: bool, biases: str) -> dict[str, str]:
        """Returns an input's part of each gate: of one matrix or several, with biases for the gates of `biases`."""
        names: dict[str, str] = {}
        rest = list(order)
        while rest:
            taken = rest[: self.rng.choice([1, len(rest)])]
            rest = rest[len(taken) :]
            product = self.product(x, inputs, hidden * len(taken), batched)
            if self.rng.random() < 0.5 and set(taken) <= set(biases):
                lead = self.rng.choice([[], [1]]) if batched else []
                product = self.one("Add", product, self.weight(*lead, hidden * len(taken)))
                biases = "".join(gate for gate in biases if gate not in taken)
            parts = self.add("Split", product, outputs=len(taken), axis=-1, num_outputs=len(taken))
            names |= dict(zip(taken, parts, strict=True))
        for gate in biases:
            names[gate] = self.one("Add", self.weight(hidden), names[gate])
        return names


def _next(body: _Body, kind: str, x: dict[str, str], h: dict[str, str], states: list[str]) -> list[str]:
    """Adds the nodes that make the next states of the gates' parts; returns their names, the hidden state first."""
    one, pick = body.one, body.rng.random() < 0.5
    total = {gate: one("Add", *((x[gate], h[gate]) if pick else (h[gate], x[gate]))) for gate in x if gate != "n"}
    if kind == "LSTM":
        i, f, o = (one("Sigmoid", total[gate]) for gate in "ifo")
        cell = one("Add", one("Mul", f, states[1]), one("Mul", i, one("Tanh", total["g"])))
        return [one("Mul", o, one("Tanh", cell)), cell]
    if kind == "GRU":
        z, r = one("Sigmoid", total["z"]), one("Sigmoid", total["r"])
        new = one("Tanh", one("Add", x["n"], one("Mul", r, h["n"])))
        if pick:  # n + z (h - n)
            return [one("Add", new, one("Mul", z, one("Sub", states[0], new)))]
        return [one("Add", one("Mul", one("Sub", "one", z), new), one("Mul", z, states[0]))]
    return [one("Tanh" if kind == "RNN" else "Relu", total["h"])]


_CHANGED = {"Sigmoid": "Tanh", "Tanh": "Sigmoid", "Relu": "Tanh", "Add": "Sub", "Sub": "Add", "Mul": "Add"}


def draw(seed: int, changed: bool = False) -> Step:
    """Returns a drawn loop; in one that is `changed` an operator of a step is another one, and `kind` means nothing."""
    rng = random.Random(seed)
    kind, batch = rng.choice(list(_GATES)), rng.choice([None, 2, 0])
    features, hidden, steps = rng.choice([1, 2, 5, 6]), rng.choice([2, 3, 6]), rng.choice([None, 4])
    body, lead = _Body(rng), [] if batch == 0 else [batch or "n"]
    names, order = ["h", "c"][: 2 if kind == "LSTM" else 1], "".join(rng.sample(_GATES[kind], len(_GATES[kind])))
    step = body.one("Gather", "all", "at", axis=0)
    dimensions = features, hidden, bool(lead)
    of_x = body.gates(step, dimensions[0], hidden, order, bool(lead), rng.choice(["", order, order]))
    of_h = body.gates("h", hidden, hidden, order, bool(lead), rng.choice(["", order, "n" if kind == "GRU" else ""]))
    after = dict(zip(names, _next(body, kind, of_x, of_h, names), strict=True))
    if rng.random() < 0.5:
        after = {name: body.one("Cast", value, to=TensorProto.FLOAT) for name, value in after.items()}
    if changed:
        node = rng.choice([node for node in body.nodes if node.op_type in _CHANGED])
        node.op_type = _CHANGED[node.op_type]
    stacked = body.one(rng.choice(["Identity", "Cast"]), after["h"])
    if body.nodes[-1].op_type == "Cast":
        body.nodes[-1].attribute.append(helper.make_attribute("to", TensorProto.FLOAT))
    carried = rng.choice([[], list(body.weights)])  # as loops of JAX and TensorFlow hand weights on
    names = rng.sample(names, len(names))
    more = body.one("Identity", "go")
    passed = [body.one("Identity", f"{name}_in") for name in carried]
    for node in body.nodes:
        for at, name in enumerate(node.input):
            node.input[at] = f"{name}_in" if name in carried else name
    typed = helper.make_tensor_value_info
    inside = helper.make_graph(
        body.nodes,
        "step",
        [typed("at", TensorProto.INT64, []), typed("go", TensorProto.BOOL, [])]
        + [typed(f"{name}_in", TensorProto.FLOAT, body.weights[name].shape) for name in carried]
        + [typed(name, TensorProto.FLOAT, [*lead, hidden]) for name in names],
        [typed(more, TensorProto.BOOL, [])]
        + [typed(name, TensorProto.FLOAT, body.weights[old].shape) for name, old in zip(passed, carried, strict=True)]
        + [typed(after[name], TensorProto.FLOAT, [*lead, hidden]) for name in names]
        + [typed(stacked, TensorProto.FLOAT, [*lead, hidden])],
    )
    outer = [helper.make_node("Transpose", ["x"], ["all"], perm=[1, 0, 2])] if lead else []
    if not lead:
        outer = [helper.make_node("Identity", ["x"], ["all"])]
    outer += [helper.make_node("Shape", ["all"], ["sizes"]), helper.make_node("Gather", ["sizes", "zero"], ["long"])]
    outer += [helper.make_node("Gather", ["sizes", "rows"], ["count"])] if lead else []
    outer += [helper.make_node("Concat", ["count", "width"] if lead else ["width"], ["target"], axis=0)]
    outer += [helper.make_node("Expand", ["nothing", "target"], [f"{name}_0"]) for name in names]
    ends = [*(f"{name}_end" for name in (*passed, *names)), "ys"]
    trips = "long" if steps is None else "fixed"
    outer.append(
        helper.make_node("Loop", [trips, "yes", *carried, *(f"{name}_0" for name in names)], ends, body=inside)
    )
    outer.append(helper.make_node("Transpose", ["ys"], ["y"], perm=[1, 0, 2] if lead else [0, 1]))
    outer.append(helper.make_node("Identity", ["h_end"], ["last"]))
    constants = {
        "zero": np.int64(0),
        "rows": np.array([1]),
        "width": np.array([hidden]),
        "nothing": np.float32(0),
        "one": np.float32(1),
        "yes": np.bool_(True),
        "fixed": np.int64(steps or 0),
        **body.weights,
    }
    sizes = [*lead, steps or "t"]
    graph = helper.make_graph(
        outer,
        "drawn",
        [typed("x", TensorProto.FLOAT, [*sizes, features])],
        [typed("y", TensorProto.FLOAT, [*sizes, hidden]), typed("last", TensorProto.FLOAT, [*lead, hidden])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    return Step(kind, model, batch)
