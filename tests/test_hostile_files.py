"""Damaged and hostile files end with an error that says what is wrong: no other exception, no hang, no huge array."""

from __future__ import annotations

import glob
import io
import itertools
import os
import pickle
import warnings
import zipfile

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import onnx2nn
from onnx2nn.errors import ModelFileError, Onnx2nnError, UnsupportedModelError
from onnx2nn.ground.limits import Account, Limits
from onnx2nn.reading.embedded import embedded
from onnx2nn.reading.reader import read
from tests.budgets import processor_time_below
from tests.handmade_files import OPSETS, RELU, field, model_of, value_info, varint


def relu(a, b):
    return helper.make_node("Relu", [a], [b])


def function_of(name, calls):
    """A function that calls each of `calls` in turn."""
    names = ["a", *(f"v{i}" for i in range(len(calls) - 1)), "b"]
    nodes = [
        helper.make_node(call, [a], [b], domain="local") for call, a, b in zip(calls, names, names[1:], strict=False)
    ]
    return helper.make_function("local", name, ["a"], ["b"], nodes or [relu("a", "b")], OPSETS)


def zip_bytes():
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("archive/data.pkl", b"weights")
    return stream.getvalue()


LOOKALIKES = {
    "zip": (zip_bytes(), "zip archive"),
    "pickle": (pickle.dumps({"weight": np.ones(3)}, protocol=2), "pickle"),
    "html": (b"<!DOCTYPE html><html><body>404</body></html>", "HTML"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 4\n", "git lfs pull"),
    "hdf5": (b"\x89HDF\r\n\x1a\n" + bytes(100), "HDF5"),
    "gzip": (b"\x1f\x8b\x08\x00" + bytes(100), "gzip"),
    "tflite": (b"\x1c\x00\x00\x00TFL3" + bytes(100), "TensorFlow Lite"),
    "json": (b'{"irVersion": "8"}', "JSON"),
    "ncnn": (b"7767517\n1 1\n", "NCNN"),
    "empty": (b"", "empty"),
    "zeros": (bytes(100), "no complete ONNX model"),
    "text": (b"hello, this is some text\n", "no complete ONNX model"),
    "no graph": (onnx.ModelProto(ir_version=8).SerializeToString(), "no graph"),
}


@pytest.mark.parametrize("name", LOOKALIKES)
def test_files_of_other_kinds(tmp_path, name):
    data, message = LOOKALIKES[name]
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    for source in (path, data):
        with pytest.raises(ModelFileError, match=message) as error:
            read(source)
    with pytest.raises(ModelFileError, match=r"model\.onnx") as error:
        read(path)
    assert "\n" not in str(error.value)


def test_paths_that_are_no_files(tmp_path):
    for path, message in [(tmp_path / "none.onnx", "No such file"), (tmp_path, "directory"), ("a\0b", "null")]:
        with pytest.raises(ModelFileError, match=message):
            read(path)
    with pytest.raises(ModelFileError, match="binary mode"):
        read(io.StringIO("text"))
    with pytest.raises(TypeError):
        read(3)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no FIFOs")
def test_a_fifo_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "model.onnx")
    with pytest.raises(ModelFileError, match="regular file"):
        read(tmp_path / "model.onnx")


def test_every_truncation_is_an_error(tmp_path):
    weights = numpy_helper.from_array(np.ones(500, np.float32), "w")
    data = model_of([helper.make_node("Add", ["x", "w"], ["y"], name="n" * 200)], [weights]).SerializeToString()
    path = tmp_path / "m.onnx"
    for length in range(0, len(data), 7):
        path.write_bytes(data[:length])
        for source in (path, data[:length]):
            with pytest.raises(ModelFileError):
                read(source)


def cycle():
    return model_of([helper.make_node("Add", ["x", "b"], ["a"]), relu("a", "b"), relu("b", "y")])


def cycle_through_a_subgraph():
    branch = helper.make_graph([relu("y", "z")], "b", [], [value_info("z")])
    condition = numpy_helper.from_array(np.array(True), "c")
    return model_of([helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)], [condition])


def two_opsets():
    proto = model_of()
    proto.opset_import.append(helper.make_opsetid("ai.onnx", 18))
    return proto


def opset_zero():
    proto = model_of()
    proto.opset_import[0].version = 0
    return proto


def attribute_twice():
    return model_of([onnx.NodeProto(op_type="Elu", input=["x"], output=["y"], attribute=[alpha(), alpha()])])


def alpha(**kwargs):
    return onnx.AttributeProto(**{"name": "alpha", "type": onnx.AttributeProto.FLOAT, "f": 1.0, **kwargs})


def elu(**kwargs):
    return model_of([onnx.NodeProto(op_type="Elu", input=["x"], output=["y"], attribute=[alpha(**kwargs)])])


def nested(depth):
    graph = helper.make_graph([relu("x", "y")], "g", [], [value_info("y")])
    for _ in range(depth):
        node = helper.make_node("If", ["c"], ["y"], then_branch=graph)
        graph = helper.make_graph([node], "g", [], [value_info("y")])
    return model_of(graph.node, [numpy_helper.from_array(np.array(True), "c")])


def laughs(levels):
    """Each function calls the next one ten times."""
    functions = [function_of(f"f{i}", [f"f{i + 1}"] * 10) for i in range(levels)]
    return model_of(
        [helper.make_node("f0", ["x"], ["y"], domain="local")], functions=[*functions, function_of(f"f{levels}", [])]
    )


def chain(levels):
    functions = [function_of(f"f{i}", [f"f{i + 1}"]) for i in range(levels)]
    return model_of(
        [helper.make_node("f0", ["x"], ["y"], domain="local")], functions=[*functions, function_of(f"f{levels}", [])]
    )


INCONSISTENT = {
    "output defined twice": (lambda: model_of([relu("x", "y"), relu("x", "y")]), "defined twice"),
    "input and output": (lambda: model_of([relu("x", "x")], outputs=("x",)), "defined twice"),
    "input twice": (lambda: model_of(inputs=("x", "x")), "defined twice"),
    "initializer twice": (
        lambda: model_of(initializers=[numpy_helper.from_array(np.ones(1, np.float32), "w")] * 2),
        "defined twice",
    ),
    "undefined input": (lambda: model_of([relu("nothing", "y")]), "'nothing'"),
    "undefined output": (lambda: model_of(outputs=("nothing",)), "'nothing'"),
    "no operator": (lambda: model_of([onnx.NodeProto(input=["x"], output=["y"])]), "no operator"),
    "cycle": (cycle, "cycle"),
    "node of its own": (lambda: model_of([relu("y", "y")]), "cycle"),
    "cycle through a subgraph": (cycle_through_a_subgraph, "cycle"),
    "recursion": (lambda: model_of(functions=[function_of("f", ["f"])]), "calls itself"),
    "mutual recursion": (
        lambda: model_of(functions=[function_of("f", ["g"]), function_of("g", ["f"])]),
        "calls itself",
    ),
    "function twice": (lambda: model_of(functions=[function_of("f", [])] * 2), "function twice"),
    "laughs": (lambda: laughs(12), "Limits.expansion"),
    "long chain of functions": (lambda: chain(2000), "function_depth"),
    "deep subgraphs": (lambda: nested(28), "subgraph_depth"),
    "two opsets": (two_opsets, "two versions"),
    "opset 0": (opset_zero, "no such version"),
    "attribute twice": (attribute_twice, "twice"),
    "attribute of another type": (lambda: elu(type=onnx.AttributeProto.INT), "another type"),
    "attribute without type and value": (lambda: elu(type=0, f=None), "neither a type nor a value"),
    "tensor attribute without value": (lambda: elu(type=onnx.AttributeProto.TENSOR), "no value"),
}


@pytest.mark.parametrize("name", INCONSISTENT)
def test_inconsistent_models(tmp_path, name):
    make, message = INCONSISTENT[name]
    proto = make()
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    for source in (proto, proto.SerializeToString(), tmp_path / "m.onnx"):
        with pytest.raises(ModelFileError, match=message):
            read(source)


def test_what_is_within_the_limits_is_read():
    for proto in (nested(24), laughs(3), chain(63)):
        read(proto)
    read(laughs(4), account=Account(Limits(expansion=1000)))
    with pytest.raises(ModelFileError, match=r"Limits\.nodes"):
        read(laughs(4), account=Account(Limits(nodes=10)))


def tensor(**kwargs):
    return TensorProto(**{"name": "w", "data_type": TensorProto.FLOAT, "dims": [2], **kwargs})


EXTERNAL = {"data_location": TensorProto.EXTERNAL}
BAD_TENSORS = {
    "too little raw data": (tensor(raw_data=bytes(7)), "needs 8 bytes"),
    "too much raw data": (tensor(raw_data=bytes(5000)), "needs 8 bytes"),
    "too few entries": (tensor(float_data=[1]), "needs 2 entries"),
    "wrong field": (tensor(int64_data=[1, 2]), "int64_data"),
    "two fields": (tensor(float_data=[1, 2], int32_data=[1, 2]), "int32_data"),
    "raw and typed": (tensor(float_data=[1, 2], raw_data=bytes(8)), "besides"),
    "big raw and typed": (tensor(dims=[500], float_data=[1], raw_data=bytes(2000)), "more than one field"),
    "no data": (tensor(), "needs 2 entries"),
    "huge without data": (tensor(dims=[1 << 40]), "entries"),
    "overflowing": (tensor(dims=[1 << 62, 1 << 62]), "impossible"),
    "overflowing but empty": (tensor(dims=[0, 1 << 62, 1 << 62]), "impossible"),
    "negative": (tensor(dims=[-2], raw_data=bytes(8)), "negative"),
    "rank": (tensor(dims=[1] * 70, float_data=[1]), "dimensions"),
    "no type": (tensor(data_type=0, raw_data=bytes(8)), "data type 0"),
    "unknown type": (tensor(data_type=99, raw_data=bytes(8)), "data type 99"),
    "strings in raw data": (tensor(data_type=TensorProto.STRING, raw_data=bytes(8)), "raw_data"),
    "no name": (tensor(name="", raw_data=bytes(8)), "no name"),
    "segment": (tensor(segment=TensorProto.Segment(begin=0, end=8)), "segments"),
    "negative segment": (tensor(segment=TensorProto.Segment(begin=-8, end=0)), "segments"),
    "external without location": (tensor(**EXTERNAL), "relative path"),
}


@pytest.mark.parametrize("name", BAD_TENSORS)
def test_bad_tensors(tmp_path, name):
    bad, message = BAD_TENSORS[name]
    constant = helper.make_node("Constant", [], ["c"])
    constant.attribute.append(onnx.AttributeProto(name="value", type=onnx.AttributeProto.TENSOR, t=bad))
    for proto in (model_of(initializers=[bad]), model_of([constant, RELU])):
        if name == "no name" and proto.graph.node[0].op_type == "Constant":
            continue  # a tensor in an attribute needs no name
        (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
        with pytest.raises(ModelFileError, match=message):
            read(tmp_path / "m.onnx")


def external_model():
    proto = tensor(**EXTERNAL)
    proto.external_data.add(key="location", value="w.bin")
    return model_of(initializers=[proto])


@pytest.mark.parametrize(
    ("operator", "attributes", "message"),
    [
        ("from_file", {"filename": "x", "size": 4}, "nothing but compute a result"),
        ("relu_", {}, "nothing but compute a result"),
        ("_foreach_exp", {}, "no public operator"),
        ("__class__", {}, "no public operator"),
        ("relu", {"out": 1}, "nothing but compute a result"),
    ],
)
def test_operators_of_pytorch_only_compute(operator, attributes, message):
    node = helper.make_node("ATen", ["x"], ["y"], domain="org.pytorch.aten", operator=operator, **attributes)
    with pytest.raises(UnsupportedModelError, match=message):
        onnx2nn.load(model_of([node]))


CONTRADICTORY = {
    "axis": ('["n"] y = Transpose <perm = [0, 5]> (x)', "does not name every dimension once"),
    "axes of another rank": ('["n"] y = Transpose <perm = [0]> (x)', "its inputs' shapes .* do not fit: permute"),
    "transpose of nothing": (
        'a = Transpose <perm = [1, 0]> (x) ["n"] b = Transpose <perm = [1, 0]> () y = Add(a, b)',
        "missing",
    ),
    "shapes": ('a = Constant <value_floats = [1.0, 2.0, 3.0]> () ["n"] b = Div(w, a) y = Add(x, b)', "size"),
    "bounds": ('a = Constant <value_ints = [1, 2]> () ["n"] y = Range(a, a, a)', "cannot be computed"),
    "ends": (
        'a = Constant <value_ints = [0]> () b = Constant <value_ints = [1, 2]> () ["n"] y = Slice(x, a, b, a)',
        "different lengths",
    ),
    "no body": ('["n"] y = Loop(, , x)', "attribute 'body' is missing"),
    "no branch": ('c = Constant <value_int = 1> () ["n"] y = If(c)', "attribute 'then_branch' is missing"),
    "branches that are numbers": (
        'c = Constant <value_int = 1> () ["n"] y = If <then_branch = 1, else_branch = 2> (c)',
        "attribute 'then_branch' is of type INT",
    ),
    "no inputs": ('["n"] y = Einsum <equation = "i->i"> ()', "input 'Inputs' is missing"),
    "no body of a map": ('["n"] y = SequenceMap(x)', "attribute 'body' is missing"),
    "no sequence": (
        '["n"] y = SequenceMap <body = each (float[2, 2] item) => (float[2, 2] i) { i = Neg(item) }> (x)',
        "its first input is no sequence",
    ),
    "a body of other inputs": (
        's = SequenceConstruct(x, w) ["n"] m = SequenceMap <body = each (float[2] item) => (float[2] i)'
        " { i = Neg(item) }> (s, s) y = SequenceAt(m, w)",
        "it has 2 inputs, its body takes 1",
    ),
    "sequences of different lengths": (
        's = SequenceConstruct(x, w) t = SequenceConstruct(x) ["n"] m = SequenceMap <body ='
        " each (float[a] p, float[b] q) => (float[c] i) { i = Add(p, q) }> (s, t) y = SequenceAt(m, w)",
        "different lengths",
    ),
    "number of no type": ('["n"] y = Cast <to = 4711> (x)', "4711"),
    "value of nothing": ('["n"] c = Constant () y = Add(x, c)', "none of the attributes"),
    "size": ('a = Constant <value_ints = [-2]> () ["n"] b = ConstantOfShape(a) y = Add(x, b)', "negative"),
}
AROUND = """<ir_version: 8, opset_import: ["" : 17]>
graph (float[2, 2] x) => (float[a, b] y) <float[2] w = {1, 2}> { %s }"""


@pytest.mark.parametrize("name", CONTRADICTORY)
def test_nodes_that_contradict_themselves(name):
    nodes, message = CONTRADICTORY[name]
    model = onnx.parser.parse_model(AROUND % nodes)
    assert all(problem.nodes == ["n"] for problem in onnx2nn.check(model).problems)
    with pytest.raises(UnsupportedModelError, match=message) as error:
        onnx2nn.load(model)
    assert [problem.nodes for problem in error.value.problems] == [["n"]]


def test_names_that_are_not_utf_8():
    data = model_of([relu("x", "QQQQ")], outputs=("QQQQ",)).SerializeToString().replace(b"QQQQ", b"\xff\xfe\xff\xfe")
    with pytest.raises(ModelFileError, match=r"damaged|complete"):
        read(data)


def test_deep_nesting_of_unknown_and_known_messages():
    graph = b"x" * 2000
    for _ in range(3000):
        graph = field(6, graph)
        graph = field(5, graph)
        graph = field(1, graph)
    for data in (field(7, graph), b"\x3b" * 5000, field(7, b"\x3b" * 5000)):
        with pytest.raises(ModelFileError):
            read(data)


@pytest.mark.parametrize(
    "around", [b"seq(", b"map(int64, ", b"optional(# )\n", b'"\\")" (', b"{ y = If(c) <g = t () => () "]
)
def test_deep_nesting_of_text(tmp_path, around):
    """onnx's parser of its own text format calls itself in native code, which ends the process where it is too deep."""
    (tmp_path / "m.onnxtxt").write_bytes(b'<ir_version: 9, opset_import: ["" : 21]> g (' + around * 200_000)
    for call in (read, onnx2nn.check, embedded):
        with pytest.raises(ModelFileError, match="nested"):
            call(str(tmp_path / "m.onnxtxt"))


def test_brackets_in_quotes_and_comments_of_text(tmp_path):
    graph = 'g (float[1] "x(((\\"") => (float[1] y) { # {{{ \n y = Relu("x(((\\"") }'
    text = f'<ir_version: 9, opset_import: ["" : 21]> {graph}'
    (tmp_path / "m.onnxtxt").write_text(text.replace("(((", "(" * 300).replace("{{{", "{" * 300))
    assert onnx2nn.load(tmp_path / "m.onnxtxt")(torch.tensor([-1.0])).tolist() == [0.0]


def test_deep_networks():
    """Nothing walks up a network by calling itself: 1200 nodes between the input and a layer, and behind it."""
    names = ["x", *(f"h{i}" for i in range(1200)), "p"]
    deep = [relu(a, b) for a, b in itertools.pairwise(names)]
    layer = helper.make_node("MatMul", ["p", "w"], ["q"])
    normal = helper.make_node("LayerNormalization", ["q", "one"], ["y"])
    constants = {"w": np.eye(4, dtype=np.float32), "one": np.ones(4, np.float32)}
    weights = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    model = model_of([*deep, layer, normal], weights)
    model.graph.input[0].CopyFrom(value_info("x", (None, 4)))
    module = onnx2nn.load(model)
    kinds = [type(m) for m in module.modules()]
    assert torch.nn.Linear in kinds
    assert torch.nn.LayerNorm in kinds
    x = torch.randn(3, 4)
    torch.testing.assert_close(module(x), torch.nn.functional.layer_norm(x.relu(), (4,)))


@pytest.mark.parametrize("chained", ["Cast", "Reshape", "Transpose", "target"])
def test_deep_constants(chained):
    """Nor from a layer to its weights: 1500 nodes between a bias and its convolution, or a size and its Reshape."""
    names = ["shape" if chained == "target" else "bias", *(f"h{i}" for i in range(1500))]
    inputs = {"Reshape": ["shape"]}.get(chained, [])
    attributes = {"Transpose": {"perm": [0, 1, 3, 2]}}.get(chained, {})
    operator = "Cast" if chained == "target" else chained
    kinds = itertools.cycle([TensorProto.INT32, TensorProto.INT64] if chained == "target" else [11, 1])
    deep = [
        helper.make_node(operator, [a, *inputs], [b], **({"to": next(kinds)} if operator == "Cast" else attributes))
        for a, b in itertools.pairwise(names)
    ]
    if chained == "target":
        deep.append(helper.make_node("Reshape", ["bias", names[-1]], ["last"]))
    bias = deep[-1].output[0]
    layer = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Add", ["c", bias], ["y"])]
    constants = {"w": np.ones((2, 3, 1, 1), np.float32), "bias": np.full((1, 2, 1, 1), 2, np.float32)}
    constants["shape"] = np.array([1, 2, 1, 1])
    model = model_of([*deep, *layer], [numpy_helper.from_array(array, name) for name, array in constants.items()])
    model.graph.input[0].CopyFrom(value_info("x", (None, 3, 4, 4)))
    x = torch.randn(2, 3, 4, 4)
    torch.testing.assert_close(onnx2nn.load(model)(x), (x.sum(1, keepdim=True) + 2).expand(2, 2, 4, 4))


def seeds():
    """Small models that together use every message of onnx.proto that is read."""
    branch = helper.make_graph(
        [helper.make_node("Add", ["x", "k"], ["z"])],
        "branch",
        [],
        [value_info("z")],
        [numpy_helper.from_array(np.ones(300, np.float32), "k")],
    )
    sparse = onnx.SparseTensorProto(
        values=numpy_helper.from_array(np.ones(2, np.float32), "sparse"),
        indices=numpy_helper.from_array(np.array([1, 3])),
        dims=[5],
    )
    everything = model_of(
        [
            helper.make_node("If", ["c"], ["i"], then_branch=branch, else_branch=branch),
            helper.make_node("f", ["i"], ["j"], domain="local"),
            helper.make_node("Sum", ["j", "w", "sparse", "typed"], ["y"], name="sum"),
        ],
        [
            numpy_helper.from_array(np.array(True), "c"),
            numpy_helper.from_array(np.ones(300, np.float32), "w"),
            helper.make_tensor("typed", TensorProto.INT64, [3], [1, 2, 3]),
            helper.make_tensor("words", TensorProto.STRING, [1], [b"a"]),
        ],
        functions=[function_of("f", [])],
    )
    everything.graph.sparse_initializer.append(sparse)
    everything.graph.value_info.append(value_info("i", ["N", 300]))
    yield everything.SerializeToString()
    yield external_model().SerializeToString()
    folder = os.path.join(os.path.dirname(onnx.__file__), "backend", "test", "data")
    for path in sorted(glob.glob(os.path.join(folder, "light", "*squeezenet.onnx"))):
        with open(path, "rb") as stream:
            yield stream.read()


SEEDS = list(seeds())
BUDGET = 2.0  # seconds of the processor; the largest seed takes some milliseconds


def read_or_refuse(source):
    with processor_time_below(BUDGET), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model = read(source)
            for value in model.graph.initializers.values():
                value.const_value.numpy()
        except Onnx2nnError as error:
            assert str(error)


mutations = st.lists(
    st.tuples(
        st.sampled_from(["set", "insert", "delete", "copy", "bump"]),
        st.floats(0, 1, exclude_max=True),
        st.integers(0, 255),
        st.integers(1, 12),
    ),
    min_size=1,
    max_size=4,
)


def mutate(data, changes):
    data = bytearray(data)
    for kind, where, value, count in changes:
        position = int(where * len(data)) if data else 0
        if kind == "set":
            data[position : position + 1] = bytes([value])
        elif kind == "insert":
            data[position:position] = bytes([value]) * count
        elif kind == "delete":
            del data[position : position + count]
        elif kind == "copy":
            data[position:position] = data[position : position + count * 16]
        elif data:
            data[position] = (data[position] + 1) % 256
    return bytes(data)


@settings(max_examples=400)
@given(st.sampled_from(SEEDS), mutations)
def test_mutated_models_are_read_or_refused(data, changes):
    read_or_refuse(mutate(data, changes))


@settings(max_examples=200)
@given(st.binary(max_size=400))
def test_random_bytes_are_read_or_refused(data):
    read_or_refuse(data)
    read_or_refuse(b"\x08\x08:" + varint(len(data)) + data)


def test_mutated_bytes_of_a_small_model_exhaustively(tmp_path):
    # Every byte of the model with every message, replaced by the values that move lengths and types most.
    data = SEEDS[0]
    path = tmp_path / "m.onnx"
    payload = np.ones(300, np.float32).tobytes()
    positions = list(range(len(data)))
    while payload in data:  # what is inside a payload changes no structure
        start = data.index(payload)
        data = data.replace(payload, bytes(len(payload)), 1)
        del positions[positions.index(start) : positions.index(start) + len(payload)]
    for position in positions:
        for value in (0, data[position] ^ 1, 0x7F, 0xFF):
            path.write_bytes(data[:position] + bytes([value]) + data[position + 1 :])
            read_or_refuse(path)
