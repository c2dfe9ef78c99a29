"""Transposes around channels last are pushed through what lies between them and cancel; nothing else changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper, parser
from realmodels import check_same, check_travels, run, run_onnxruntime
from torch import fx

import onnx2nn
from onnx2nn.fx.blocks.flattening import flattened
from onnx2nn.optable.registry import TABLE
from onnx2nn.rewrite import channels_first, channels_first_forms
from onnx2nn.rewrite.minimum_cut import FlowNetwork
from onnx2nn.rewrite.raising import raise_patterns

DATA = Path(__file__).parent / "data" / "tensorflow"
"""What `scripts/zoo/tensorflow_models.py` wrote: tf2onnx's files, as they are and without its optimisation."""

FILES: dict[str, tuple[int, int, dict[str, int]]] = {
    "keras_images": (8, 4, {"BatchNorm": 2, "PReLU": 2, "LayerNorm": 1}),
    "keras_images_literal": (16, 4, {"BatchNorm": 2, "PReLU": 2, "LayerNorm": 1}),
    "keras_sequence": (6, 2, {"BatchNorm": 1, "LayerNorm": 1}),
    "keras_sequence_literal": (6, 2, {"BatchNorm": 1, "LayerNorm": 1}),
}
"""How many permutations are left without and with the pass, and what else is raised.

The files' inputs and outputs are channels last, an nn.LayerNorm wants them last too, also where tf2onnx's own
optimisation has turned it to channels first; in one of sequences it writes the mean as a GlobalAveragePool.
"""


def _permutes(module: fx.GraphModule) -> int:
    return sum(str(node.target).split(".")[-1] in ("permute", "transpose") for node in flattened(module).graph.nodes)


@pytest.mark.parametrize("name", FILES)
def test_files_of_tensorflow(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = DATA / f"{name}.onnx"
    with np.load(DATA / f"{name}.npz") as arrays:
        x, expected = torch.from_numpy(arrays["input0"]), torch.from_numpy(arrays["output0"])
    module = onnx2nn.load(path)
    check_same(run(module, (x,)), (expected,), "against TensorFlow")
    check_travels(module, (x,), (x.repeat(2, *[1] * (x.ndim - 1)),), travels=("torch.export", "deepcopy"))
    assert not module.meta["onnx2nn"]["raising"]["dropped"]
    monkeypatch.setattr(channels_first.ChannelsFirst, "run", lambda self: 0)
    literal = onnx2nn.load(path)
    *permutes, wanted = FILES[name]
    assert [_permutes(literal), _permutes(module)] == permutes
    raised = module.meta["onnx2nn"]["raising"]["raised"]
    assert {rule: raised[rule] for rule in ("BatchNorm", "PReLU", "LayerNorm") if rule in raised} == wanted
    layers = [type(layer).__name__.rstrip("12d") for layer in module.modules()]
    assert [layers.count(kind) for kind in ("PReLU", "BatchNorm", "LayerNorm")] == [
        wanted.get(rule, 0) for rule in ("PReLU", "BatchNorm", "LayerNorm")
    ]
    assert sum(p.numel() for p in module.parameters()) == sum(p.numel() for p in literal.parameters())


SHAPE = (2, 4, 6, 3)
CASES: dict[str, tuple[dict[str, Any], list[np.ndarray | None]]] = {
    "Clip": ({}, [np.float32(-1), np.float32(1)]),
    "Cast": ({"to": TensorProto.DOUBLE}, []),
    **{
        op: ({}, [np.linspace(-1, 1, 3, dtype=np.float32)]) for op in ("Add", "Sub", "Mul", "Max", "Min", "Sum", "Mean")
    },
    **{op: ({}, [np.full((6, 3), 0.5, np.float32)]) for op in ("Div", "PRelu", "Greater", "Less", "Equal")},
    **{op: ({}, [np.full((1, 4, 1, 1), 0.5, np.float32)]) for op in ("GreaterOrEqual", "LessOrEqual")},
    "Concat": ({"axis": -1}, [np.ones((2, 4, 6, 5), np.float32)]),
    "Split": ({"axis": 3}, [np.array([1, 2])]),
    "Gather": ({"axis": -1}, [np.array([2, 0])]),
    "Softmax": ({"axis": 3}, []),
    "LogSoftmax": ({}, []),
    "Hardmax": ({"axis": 1}, []),
    "Pad": ({"mode": "edge"}, [np.array([0, 1, 2, 0, 0, 3, 0, 1])]),
    "Slice": ({}, [np.array([1, 0]), np.array([9, 2]), np.array([-2, 3]), np.array([2, 1])]),
    "Resize": ({"mode": "linear"}, [None, np.array([1, 2, 1.5, 1], np.float32)]),
    "Tile": ({}, [np.array([1, 2, 1, 3])]),
    "ReduceSum": ({}, [np.array([1, 3])]),
    **{
        f"Reduce{kind}": ({"axes": [1, -1]}, [])
        for kind in ("Max", "Mean", "Min", "Prod", "SumSquare", "L1", "L2", "LogSum", "LogSumExp")
    },
    "ArgMax": ({"axis": -1}, []),
    "ArgMin": ({"axis": 2}, []),
    "QuantizeLinear": ({}, [np.float32(0.1), np.uint8(3)]),
    "Selu": ({}, []),
    "Mod": ({"fmod": 1}, [np.full((6, 3), 0.3, np.float32)]),
}
ON_THEIR_OWN = {"Squeeze", "Unsqueeze", "Reshape", "Upsample", "DequantizeLinear", "Where", "Pow", "And", "Or", "Not"}
ELSEWHERE = {"Mish", "Gelu", "Swish", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor"}
ELSEWHERE |= {"Affine", "ParametricSoftplus", "Scale", "ScaledTanh"}
"""Operators that opset 17 does not have."""
NOT_OF_FLOATS = {"BitShift", "Xor"}
OPERATORS = {*channels_first_forms.FORMS}
OPERATORS |= {row.operator for row in TABLE if not row.domain and row.traits & {"elementwise", "reduction"}}


def _model(nodes: list[onnx.NodeProto], shape: tuple[int | str, ...] = SHAPE, **weights: np.ndarray) -> bytes:
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def _transpose(source: str, target: str, rank: int, first: bool) -> onnx.NodeProto:
    perm = channels_first_forms.to_channels_first(rank) if first else channels_first_forms.to_channels_last(rank)
    return helper.make_node("Transpose", [source], [target], perm=perm)


def _left(model: bytes) -> list[str]:
    read = ir.from_proto(onnx.ModelProto.FromString(model))
    raise_patterns(read, TABLE, torch)
    return [node.op_type for node in read.graph if node.op_type == "Transpose"]


def _check(model: bytes, left: int) -> None:
    assert len(_left(model)) == left
    x = torch.rand(SHAPE, generator=torch.Generator().manual_seed(0)) + 0.1
    check_same(run(onnx2nn.load(model), (x,)), run_onnxruntime(model, (x,)), "against ONNX Runtime")


@pytest.mark.parametrize("operator", sorted(OPERATORS - ON_THEIR_OWN - ELSEWHERE - NOT_OF_FLOATS))
def test_operators(operator: str) -> None:
    """Between two transposes each operator computes on channels first, and both are gone."""
    attributes, arrays = CASES.get(operator, ({}, []))
    names = [f"w{i}" if array is not None else "" for i, array in enumerate(arrays)]
    outputs = ["t", "u"] if operator == "Split" else ["t"]
    nodes = [
        helper.make_node("Abs", ["x"], ["a"]),
        _transpose("a", "last", 4, first=False),
        helper.make_node(operator, ["last", *names], outputs, **attributes),
        _transpose("t", "y", 4, first=True),
    ]
    model = _model(nodes, (2, 3, 4, 6), **{n: a for n, a in zip(names, arrays, strict=True) if a is not None})
    x = torch.rand(2, 3, 4, 6, generator=torch.Generator().manual_seed(0)) + 0.1
    assert not _left(model)
    check_same(run(onnx2nn.load(model), (x,)), run_onnxruntime(model, (x,)), "against ONNX Runtime")


def test_every_case_is_an_operator() -> None:
    assert set(CASES) <= OPERATORS


def test_what_takes_channels_away_and_puts_sizes_of_one_in() -> None:
    """A squeeze and excitation: no transpose is left but that of the input."""
    nodes = [
        _transpose("x", "a", 4, first=True),
        helper.make_node("Conv", ["a", "k"], ["b"]),
        _transpose("b", "c", 4, first=False),
        helper.make_node("ReduceMean", ["c"], ["d"], axes=[1, 2], keepdims=0),
        helper.make_node("Reshape", ["d", "target"], ["e"]),
        _transpose("e", "f", 4, first=True),
        helper.make_node("Conv", ["f", "k"], ["g"]),
        _transpose("g", "h", 4, first=False),
        helper.make_node("Mul", ["c", "h"], ["i"]),
        helper.make_node("Squeeze", ["h", "one"], ["j"]),
        helper.make_node("Unsqueeze", ["j", "one"], ["l"]),
        helper.make_node("Add", ["i", "l"], ["m"]),
        helper.make_node("ReduceMax", ["m"], ["y"], axes=[3], keepdims=0),
    ]
    kernel = np.random.default_rng(0).standard_normal((3, 3, 1, 1)).astype(np.float32)
    _check(_model(nodes, k=kernel, target=np.array([-1, 1, 1, 3]), one=np.array([1])), 1)


def test_who_reads_the_shape_or_another_order() -> None:
    nodes = [
        _transpose("x", "a", 4, first=True),
        helper.make_node("Relu", ["a"], ["b"]),
        _transpose("b", "c", 4, first=False),
        helper.make_node("Add", ["c", "w"], ["d"]),
        helper.make_node("Shape", ["d"], ["s"]),
        helper.make_node("Expand", ["half", "s"], ["e"]),
        _transpose("d", "f", 4, first=True),
        helper.make_node("Conv", ["f", "k"], ["g"]),
        _transpose("g", "h", 4, first=False),
        helper.make_node("Add", ["h", "e"], ["y"]),
    ]
    kernel = np.random.default_rng(0).standard_normal((3, 3, 1, 1)).astype(np.float32)
    weights = {"w": np.array([1, 2, 3], np.float32), "half": np.float32(0.5), "k": kernel}
    _check(_model(nodes, **weights), 2)


def test_a_weight_stays_one_under_its_name() -> None:
    """It is read on both orders here: the other one has a name of its own."""
    nodes = [
        helper.make_node("Add", ["x", "w"], ["b"]),
        helper.make_node("Softplus", ["b"], ["c"]),
        helper.make_node("Reshape", ["c", "same"], ["d"]),
        _transpose("d", "e", 4, first=True),
        helper.make_node("InstanceNormalization", ["e", "w", "w"], ["f"]),
        _transpose("f", "g", 4, first=False),
        helper.make_node("Mul", ["g", "w"], ["h"]),
        _transpose("h", "i", 4, first=True),
        helper.make_node("InstanceNormalization", ["i", "w", "w"], ["y"]),
    ]
    weights = {"w": np.array([1, 2, 3], np.float32), "same": np.array([0, 0, 0, -1])}
    model = _model(nodes, **weights)
    _check(model, 1)
    parameters = dict(onnx2nn.load(model).named_parameters())
    assert sorted(tuple(p.shape) for p in parameters.values())[-1] == (3, 1, 1)


def test_a_weight_that_is_an_output_stays_channels_last() -> None:
    nodes = [
        _transpose("x", "f", 4, first=True),
        helper.make_node("Softplus", ["f"], ["g"]),
        _transpose("g", "l", 4, first=False),
        helper.make_node("Add", ["l", "w"], ["a"]),
        _transpose("a", "h", 4, first=True),
        helper.make_node("Softplus", ["h"], ["y"]),
    ]
    model = onnx.load_model_from_string(_model(nodes, w=np.array([1, 2, 3], np.float32).reshape(1, 1, 3)))
    model.graph.output.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, None))
    _check(model.SerializeToString(), 1)


def test_a_form_that_is_wrong_is_dropped_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = channels_first_forms.ChannelsFirstForm(attributes={"axis": 2}, output_rank=4)
    monkeypatch.setitem(channels_first_forms.FORMS, "Softmax", lambda *args: wrong)
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        _transpose("a", "b", 4, first=False),
        helper.make_node("Softmax", ["b"], ["c"], axis=-1),
        _transpose("c", "y", 4, first=True),
    ]
    model = _model(nodes)
    _check(model, 2)
    assert "its results on channels first differ" in onnx2nn.load(model).meta["onnx2nn"]["raising"]["dropped"][0]


def test_files_of_torch_keep_the_authors_transposes() -> None:
    nodes = [_transpose("x", "a", 4, False), helper.make_node("Relu", ["a"], ["b"]), _transpose("b", "y", 4, True)]
    proto = onnx.ModelProto.FromString(_model(nodes))
    assert not _left(proto.SerializeToString())
    proto.producer_name = "pytorch"
    assert len(_left(proto.SerializeToString())) == 2


def test_minimum_cut() -> None:
    network: FlowNetwork[str] = FlowNetwork()
    for one, other, capacity in [("s", "a", 3), ("s", "b", 2), ("a", "b", 5), ("a", "t", 1), ("b", "t", 3)]:
        network.add_edge(one, other, capacity)
    assert network.source_side("s", "t") == {"s", "a", "b"}
    with pytest.raises(ValueError, match="no finite cut"):
        network = FlowNetwork()
        network.add_edge("s", "t")
        network.source_side("s", "t")


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_bytes_that_lie_channels_last_are_pooled(kind: type[np.generic]) -> None:
    name = np.dtype(kind).name
    model = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]> agraph ({name}[1,h,w,2] x) => ({name}[1,2,a,b] y) {{
            image = Transpose <perm = [0, 3, 1, 2]> (x) y = MaxPool <kernel_shape = [3, 3], strides = [2, 2]> (image)
        }}"""
    )
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    x = np.random.default_rng(0).integers(np.iinfo(kind).min, np.iinfo(kind).max, (1, 40, 31, 2)).astype(kind)
    assert np.array_equal(onnx2nn.load(model)(torch.from_numpy(x)).numpy(), session.run(None, {"x": x})[0])
