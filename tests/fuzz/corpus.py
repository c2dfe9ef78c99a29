"""The seeds of the fuzzer: small models of onnx's suite, of the examples, and of every kind of message."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import onnx
from onnx import helper, numpy_helper
from onnx.backend.test.case.node import collect_testcases

_ROOT = Path(__file__).resolve().parents[2]
_LARGEST = 100_000  # bytes of a seed: mutations of larger files take longer and reach the same code

_TEXTS = (
    "y = Relu(x)",
    "c = Greater(n, n) y = If(c) <then_branch = t () => (float[k] a) { a = Neg(x) },"
    " else_branch = e () => (float[k] b) { b = Abs(x) }>",
    'y = Loop <body = b (int64 i, bool c, float[k] s) => (bool c, float[k] t) { t = Add(s, s) }> (n, "", x)',
    "q = SequenceConstruct(x, x) r = SequenceMap <body = b (float[k] e) => (float[k] f) { f = Neg(e) }> (q)"
    " y = ConcatFromSequence <axis = 0> (r)",
    "s = Shape(x) h = ConstantOfShape(s) y = Concat <axis = 0> (h, x)",
    "e = Erf(x) p = Add(e, w) q = Mul(x, p) y = Mul(q, w)",
    "y = Scan <num_scan_inputs = 1, body = b (float e) => (float f) { f = Neg(e) }> (x)",
    "q = SplitToSequence(x, n) y = SequenceAt(q, n)",
    "m = ReduceMean(x) d = Sub(x, m) v = Mul(d, d) r = ReduceMean(v) t = Sqrt(r) y = Div(d, t)",
)
_AROUND = '<ir_version: 9, opset_import: ["" : 21]> g (float[k] x) => (float[j] y) <float w = {0.5}, int64 n = {1}> {'


def seeds() -> Iterator[bytes]:
    """Yields the serialised models, in the same order everywhere."""
    for text in _TEXTS:
        yield onnx.parser.parse_model(f"{_AROUND} {text} }}").SerializeToString()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of numpy, about the values that the suite is made of
        for test in sorted(collect_testcases(None), key=lambda test: str(test.name)):
            if test.model is not None and test.model.ByteSize() <= _LARGEST:
                yield test.model.SerializeToString()
    data = Path(onnx.__file__).parent / "backend" / "test" / "data"
    for folder in (_ROOT / "examples", data / "pytorch-converted", data / "pytorch-operator", data / "simple"):
        for path in sorted(folder.rglob("*.onnx")):
            if path.stat().st_size <= _LARGEST:
                yield path.read_bytes()
    yield with_function().SerializeToString()


def with_function() -> onnx.ModelProto:
    """Returns a model with a function, a sparse tensor and exporter's metadata."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("l", 1)]
    body = helper.make_node("Elu", ["a"], ["b"])
    body.attribute.add(name="alpha", ref_attr_name="alpha", type=onnx.AttributeProto.FLOAT)
    function = helper.make_function("l", "f", ["a"], ["b"], [body], opsets, ["alpha"])
    nodes = [
        helper.make_node("f", ["x"], ["h"], domain="l", name="block/f", alpha=2.0),
        helper.make_node("Add", ["h", "s"], ["y"]),
    ]
    nodes[0].metadata_props.add(key="pkg.torch.onnx.name_scopes", value="['', 'block', 'f']")
    nodes[0].metadata_props.add(key="pkg.torch.onnx.class_hierarchy", value="['M', 'Block', 'aten.elu']")
    values = [helper.make_tensor_value_info(name, 1, [4]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:])
    tensor = graph.sparse_initializer.add(dims=[4])
    tensor.values.CopyFrom(numpy_helper.from_array(numpy_helper.np.ones(1, "float32"), "s"))
    tensor.indices.CopyFrom(numpy_helper.from_array(numpy_helper.np.array([2])))
    return helper.make_model(graph, opset_imports=opsets, functions=[function], ir_version=8)
